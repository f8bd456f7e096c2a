"""A job that waits in a worker; its options checked, its items as requests of a search, how many outputs they take."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atento.base.errors import UsageError
from atento.config.sections.decoding import NGRAMS, UTILITIES
from atento.config.tables.tasks import task_with
from atento.decoding import MBR, Beam, Greedy, Sample
from atento.decoding.beam.groups import BeamRequest
from atento.decoding.strategies import Strategy
from atento.decoding.token_loop import Output
from atento.model import Model
from atento.tasks.model_outputs import generator_of
from atento.tasks.task_model import context_limit
from atento.tasks.text_generation import GenerationJob, TextGenerator
from atento.tasks.verb_calls import listed
from atento_serve.jobs import Job


def generator_for(model: Model, verb: str, options: str, limit: int | None) -> TextGenerator:
    """What writes for jobs of one verb with the same options, as JSON, and at most `limit` tokens, if that is a number.

    Raises:
        UsageError, AtentoError: they cannot be done.
    """
    given = json.loads(options)
    n_best, utility = given.pop("n_best", None), given.get("mbr")
    if utility is not None and utility not in UTILITIES:
        known = f"{', '.join(UTILITIES)}, as the service loads no other model for it"
        raise UsageError(f"`mbr` must be one of {known}: got {str(utility)[:60]!r}")
    for name in listed(given.get("draft", ())):  # that of this model's own decoding is loaded
        if name != NGRAMS and name not in model.decoding.draft:
            raise UsageError(f"`draft` must be {NGRAMS}: got {str(name)[:60]!r}, and a request loads no model")
    lower = {} if limit is None else {"max_new_tokens": limit}
    return generator_of(model, task_with(verb), n_best, given | lower)


def generation_jobs_of(
    generator: Callable[[str, str, int | None], TextGenerator], job: Job, items: list[object], most_tokens: int
) -> tuple[TextGenerator, list[GenerationJob | None]]:
    """What writes the outputs of a job, and what is searched for each item; None: nothing.

    An output has at most `most_tokens`, and with its prompt no more than the network was trained to read: where that
    lowers its limit, its generator is another one.

    Args:
        generator: `generator_for` a model, remembered: the requests of a client usually have the same options.
        job, items: what is asked for, the items within the limits of length.
        most_tokens: the most tokens of an output.

    Raises:
        UsageError, AtentoError: the job cannot be done.
    """
    options = json.dumps(job.options)
    usual = generator(job.verb, options, None)
    inputs = usual.generation_jobs(items)
    context = context_limit(usual.config) if usual.is_prompt else None
    for number, one in enumerate(inputs):
        if one is not None:
            limit = most_tokens if context is None else max(1, min(most_tokens, context - len(one.ids)))
            if one.max_new_tokens > limit:
                inputs[number] = generator(job.verb, options, limit).generation_job(one.ids, number)
    return usual, inputs


def outputs_of(generation: GenerationJob, top: int) -> list[Output]:
    """The outputs of a text in a continuous batch, one or as many as samples, with `top` likeliest tokens each."""
    strategy, request = generation.generator.strategy, generation.generator.request([generation])
    assert isinstance(strategy, Greedy | Sample)
    count = strategy.n if isinstance(strategy, Sample) else 1
    return [Output(generation.ids, strategy, request, number, top) for number in range(count)]


def beam_of(generation: GenerationJob) -> BeamRequest | None:
    """The search for the output of a text, if that is one output of a beam."""
    strategy = generation.generator.strategy
    if not isinstance(strategy, Beam) or strategy.n_best > 1:
        return None
    return BeamRequest(strategy, generation.generator.request([generation]))


def fits_batch(generator: TextGenerator) -> bool:
    """Whether a continuous batch writes its outputs token by token: greedy search or sampling."""
    return isinstance(generator.strategy, Greedy | Sample) and generator.draft is None


def is_one_output(generator: TextGenerator) -> bool:
    """Whether one output of a text is written, whose certain tokens can be sent before its end."""
    strategy = generator.strategy
    if generator.decoding.exact or not isinstance(strategy, Greedy | Sample | Beam):
        return False
    return strategy.n_best == 1 if isinstance(strategy, Beam) else width_of(strategy) == 1


def width_of(strategy: Strategy) -> int:
    """How many outputs of a text are written side by side."""
    if isinstance(strategy, MBR):
        generators = [strategy.candidates] if isinstance(strategy.candidates, Sample | Beam) else strategy.candidates
        return max(map(width_of, generators))
    return strategy.width if isinstance(strategy, Beam) else strategy.n if isinstance(strategy, Sample) else 1


@dataclass
class Waiting:
    """A job with its items, which are within the limits of length, and the number of their tokens."""

    job: Job
    items: list[Any]
    tokens: int
    arrived: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[str, str]:
        """Jobs with the same key can share a batch."""
        return self.job.verb, json.dumps(self.job.options, sort_keys=True)

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return time.monotonic() > self.job.deadline
