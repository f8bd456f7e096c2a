"""Outputs written for many inputs: batches of like length, each input its own seed, whatever strategy is asked for."""

import logging
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atento.config.decoding import FILTERS, DecodingConfig
from atento.config.network import NetworkConfig
from atento.decoding import MBR, Beam, Greedy, Hypothesis, Sample, generate
from atento.decoding.hypothesis import Rule
from atento.decoding.rules import NoRepeatNGrams, RepetitionPenalty, StopStrings
from atento.decoding.seeds import row_seed
from atento.decoding.strategies import Strategy
from atento.decoding.stream import stream
from atento.errors import UsageError
from atento.tasks.grouping import by_length
from atento.text.streaming import stream_text
from atento.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
ToText = Callable[[list[int]], str]
Utility = Callable[[list[str], list[str]], Any]  # candidates, evidence -> (N,M) in 0-1


@dataclass(frozen=True)
class WrittenText:
    """One output text with the hypothesis it was written from."""

    text: str
    hypothesis: Hypothesis

    def __repr__(self) -> str:
        return f"WrittenText({reprlib.repr(self.text)}, score={self.hypothesis.score:.4f})"


def strategy_of(config: DecodingConfig, text: ToText | None = None, utility: Utility | None = None) -> Strategy:
    """The strategy a decoding configuration stands for; `text` is how outputs are read where utilities compare them,
    `utility` a function that does so in place of the metric that the configuration names.
    """
    drawn = {name: getattr(config, name) for name in FILTERS}
    if config.mbr is not None:
        n = config.candidates
        writers: Any = Sample(**drawn, n=n)
        if config.candidates_from == "beam":
            writers = Beam(n, length_penalty=config.length_penalty, n_best=n)
        elif config.candidates_from == "both" and n > 1:
            half = n // 2
            writers = (Sample(**drawn, n=n - half), Beam(half, length_penalty=config.length_penalty, n_best=half))
        return MBR(utility or config.mbr, writers, text=text, n_best=config.n_best)
    if config.samples:
        return Sample(**drawn, n=config.n_best)
    if config.beam == 1:
        return Greedy()
    return Beam(config.beam, config.length_penalty, config.n_best, config.stopping)


def rules_of(config: DecodingConfig) -> tuple[Rule, ...]:
    """What changes scores before a choice, as the configuration says."""
    rules: list[Rule] = []
    if config.repetition_penalty != 1.0:
        rules.append(RepetitionPenalty(config.repetition_penalty))
    if config.no_repeat_ngrams:
        rules.append(NoRepeatNGrams(config.no_repeat_ngrams))
    return tuple(rules)


def write_all(
    steps: Any,
    config: NetworkConfig,
    inputs: Sequence[Sequence[int]],
    decoding: DecodingConfig,
    text: ToText,
    *,
    device: torch.device,
    marks: int = 0,
    goes_on: bool = False,
    utility: Utility | None = None,
    first: int = 0,
) -> list[list[WrittenText]]:
    """The outputs for each input, best first; an empty input gets none.

    Inputs are sorted by length and decoded `decoding.batch_tokens` padded tokens at a time, outputs written for each
    counted, so memory is bounded and none waits for a much longer one. The result does not depend on who shares a
    batch: what draws has a seed for each input, from (`decoding.seed`, its number).

    Args:
        steps: a network or a step function.
        inputs: ids, special tokens with them; `marks` of each are special.
        text: ids -> text.
        goes_on: inputs are prompts, which stand before the output and share its places.
        first: the number of the first input, where these are part of more.
        utility: a function of (candidates, evidence) for `decoding.mbr`, in place of the metric that it names.

    Raises:
        UsageError: a prompt that fills all the places a network has.
    """
    strategy, rules = strategy_of(decoding, text, utility), rules_of(decoding)
    stop = StopStrings(text, decoding.stop) if decoding.stop else None
    _warn_of_places([len(ids) for ids in inputs], decoding, config, goes_on=goes_on)
    results: list[list[WrittenText]] = [[] for _ in inputs]
    for rows in by_length([len(ids) for ids in inputs], decoding.batch_tokens // decoding.rows):
        lengths = torch.tensor([len(inputs[row]) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), config.pad_id)
        for place, row in enumerate(rows):
            ids[place, : len(inputs[row])] = torch.tensor(list(inputs[row]))
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        found = generate(
            steps,
            ids.to(device),
            strategy,
            max_new_tokens=[most_tokens(len(inputs[row]), marks, decoding, config, goes_on=goes_on) for row in rows],
            min_new_tokens=decoding.min_new_tokens,
            padding_mask=real.to(device),
            rules=rules,
            stop=stop,
            seed=[row_seed(decoding.seed, first + row) for row in rows],
        )
        for row, hypotheses in zip(rows, found):
            texts = [text(h.ids) for h in hypotheses]
            results[row] = [WrittenText(stop.cut(t) if stop else t, h) for t, h in zip(texts, hypotheses)]
    return results


def stream_one(
    steps: Any,
    config: NetworkConfig,
    ids: Sequence[int],
    decoding: DecodingConfig,
    tokenizer: Tokenizer,
    *,
    device: torch.device,
    marks: int = 0,
    goes_on: bool = False,
    row: int = 0,
) -> Iterator[str]:
    """What `write_all` writes for its input number `row`, as pieces of text that join to it; `stop` strings are never
    shown.

    Raises:
        UsageError: a beam of more than 1, several outputs or `mbr`: those know their output only at its end.
    """
    if decoding.mbr is not None or decoding.n_best > 1 or (decoding.beam > 1 and not decoding.samples):
        raise UsageError("a stream is one output of greedy search or sampling: no beam, no `mbr`, no `n_best`")
    strategy = strategy_of(decoding)
    assert isinstance(strategy, Greedy | Sample)
    tokens = stream(
        steps,
        torch.tensor([list(ids)], device=device),
        strategy,
        max_new_tokens=most_tokens(len(ids), marks, decoding, config, goes_on=goes_on),
        min_new_tokens=decoding.min_new_tokens,
        rules=rules_of(decoding),
        stop=StopStrings(tokenizer.decode, decoding.stop) if decoding.stop else None,
        seed=[row_seed(decoding.seed, row)],
    )
    return stream_text(tokenizer, (token.id for token in tokens if token.end != "eos"), stop=decoding.stop)


def most_tokens(length: int, marks: int, decoding: DecodingConfig, config: NetworkConfig, *, goes_on: bool) -> int:
    """How many tokens may be written for an input of that length; learned positions end somewhere."""
    usual = max(2 * (length - marks) + 16, decoding.min_new_tokens)
    most = usual if decoding.max_new_tokens is None else decoding.max_new_tokens
    room = _room(length, config, goes_on=goes_on)
    if room is None:
        return most
    if room < 1:
        raise UsageError(f"a prompt of {length} tokens fills all {config.max_len} places that the network has")
    return min(most, room)


def _room(length: int, config: NetworkConfig, *, goes_on: bool) -> int | None:
    """How many tokens a network has places for after an input of that length; None: any number."""
    if all(scheme.kind != "learned" for scheme in config.schemes):
        return None
    return config.max_len - (length - 1 if goes_on else 0)  # the prompt's last token is read by the first step


def _warn_of_places(lengths: Sequence[int], decoding: DecodingConfig, config: NetworkConfig, *, goes_on: bool) -> None:
    """Say so where more tokens are asked for than the network has places."""
    asked = max(decoding.max_new_tokens or 0, decoding.min_new_tokens)
    rooms = [_room(length, config, goes_on=goes_on) for length in lengths if length]
    short = [room for room in rooms if room is not None and room < asked]
    if short and min(short) > 0:  # else it is refused
        log.warning(
            f"the network has places for {config.max_len} tokens: {len(short)} of {len(rooms)} outputs end after "
            f"{min(short)} or more, not {asked}"
        )
