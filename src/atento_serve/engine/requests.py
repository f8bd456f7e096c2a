"""What a job asks of decoding: its options checked, its items as requests of a search, how many outputs they take."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from atento.config.sections.decoding import NGRAMS, UTILITIES, DecodingConfig, DecodingOptions
from atento.config.tables.tasks import task_with
from atento.decoding import MBR, Beam, Greedy, Sample
from atento.decoding.beam.groups import BeamRequest
from atento.decoding.contract import Request
from atento.decoding.strategies import Strategy
from atento.decoding.token_loop import Output
from atento.errors import UsageError
from atento.model import Model
from atento.tasks.generation import Continuing
from atento.tasks.lengths import context_limit
from atento.tasks.model_outputs import writings
from atento.tasks.options import decoding_for
from atento.tasks.verbs import listed
from atento.tasks.writing import Writing
from atento_serve.jobs import Job


def inputs_of(
    model: Model, job: Job, items: list[Any], n_best: int | None, options: Any, most_tokens: int
) -> tuple[list[Writing | None], list[int | None]]:
    """What is searched for each item, and the limit to which its tokens were lowered; None: they were not.

    An output has at most `most_tokens`, and with its prompt no more than the network was trained to read.

    Raises:
        UsageError, AtentoError: the job cannot be done.
    """
    task = task_with(job.verb)
    _check_utility(options)
    _check_draft(options, model)
    inputs = writings(model, task, items, n_best, 0, options, _decode)
    limits = [_most_tokens(model, one, most_tokens) for one in inputs]
    cuts = [limit if one is not None and one.max_new_tokens > limit else None for one, limit in zip(inputs, limits)]
    for number, cut in enumerate(cuts):
        if cut is not None:
            lower = options | {"max_new_tokens": cut}
            (inputs[number],) = writings(model, task, [items[number]], n_best, number, lower, _decode)
    return inputs, cuts


def _most_tokens(model: Model, writing: Writing | None, most_tokens: int) -> int:
    """The most tokens of an output."""
    limit = context_limit(model.network.config) if isinstance(model.network, Continuing) else None
    return most_tokens if limit is None or writing is None else max(1, min(most_tokens, limit - len(writing.ids)))


def _decode(usual: DecodingConfig, n_best: int | None, options: DecodingOptions) -> DecodingConfig:
    """As `decoding_for`, remembered: the requests of a client usually have the same options."""
    return _decoded(usual, n_best, json.dumps(options))


@lru_cache(maxsize=256)
def _decoded(usual: DecodingConfig, n_best: int | None, options: str) -> DecodingConfig:
    return decoding_for(usual, n_best, json.loads(options))


def outputs_of(writing: Writing, top: int) -> list[Output]:
    """The outputs of an input in a lane, one or as many as samples; `top` of the likeliest tokens stand beside each."""
    assert isinstance(writing.strategy, Greedy | Sample)
    request = _request_of(writing)
    count = writing.strategy.n if isinstance(writing.strategy, Sample) else 1
    return [Output(writing.ids, writing.strategy, request, number, top) for number in range(count)]


def beam_of(writing: Writing) -> BeamRequest | None:
    """The search for the output of an input, if that is one output of a beam."""
    if not isinstance(writing.strategy, Beam) or writing.strategy.n_best > 1:
        return None
    return BeamRequest(writing.strategy, _request_of(writing))


def _request_of(writing: Writing) -> Request:
    return Request(
        [writing.max_new_tokens],
        writing.min_new_tokens,
        writing.eos_ids,
        writing.rules,
        seeds=(writing.seed,),
        prompts=[writing.ids],
        required=[writing.required] if writing.required else None,
        stop=writing.stop,
    )


def fits_lane(writing: Writing) -> bool:
    """Whether a lane writes it token by token: greedy search or sampling."""
    return isinstance(writing.strategy, Greedy | Sample) and writing.draft is None


def is_one_output(writing: Writing) -> bool:
    """Whether one output is written, whose certain tokens can be sent before its end."""
    strategy = writing.strategy
    if isinstance(strategy, Beam):
        return strategy.n_best == 1
    return isinstance(strategy, Greedy | Sample) and _width(strategy) == 1


def width_of(inputs: Sequence[Writing | None]) -> int:
    """How many outputs of an item are written side by side."""
    return max((_width(writing.strategy) for writing in inputs if writing is not None), default=1)


def _width(strategy: Strategy) -> int:
    if isinstance(strategy, MBR):
        writers = [strategy.candidates] if isinstance(strategy.candidates, Sample | Beam) else strategy.candidates
        return max(map(_width, writers))
    return strategy.width if isinstance(strategy, Beam) else strategy.n if isinstance(strategy, Sample) else 1


def _check_utility(options: dict[str, Any]) -> None:
    """Raises UsageError: `mbr` names another model, which a request must not load."""
    utility = options.get("mbr")
    if utility is not None and utility not in UTILITIES:
        raise UsageError(f"`mbr` must be one of {', '.join(UTILITIES)}: got {str(utility)[:60]!r}")


def _check_draft(options: dict[str, Any], model: Model) -> None:
    """Raises UsageError: `draft` names another model than the one of this model's own decoding."""
    for name in listed(options.get("draft", ())):
        if name != NGRAMS and name not in model.decoding.draft:
            raise UsageError(f"`draft` must be {NGRAMS}: got {str(name)[:60]!r}, and a request loads no model")
