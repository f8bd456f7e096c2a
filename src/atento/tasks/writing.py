"""Outputs written for many inputs: batches of like length, each input its own seed, whatever strategy is asked for."""

import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from atento.config.decoding import CONTINUATION_TOKENS, FILTERS, DecodingConfig
from atento.config.network import NetworkConfig
from atento.decoding import MBR, Beam, Greedy, Hypothesis, Sample, generate
from atento.decoding.contract import Rule
from atento.decoding.rules import NoRepeatNGrams, RepetitionPenalty, StopStrings
from atento.decoding.seeds import row_seed
from atento.decoding.strategies import Strategy
from atento.decoding.stream import stream
from atento.decoding.trace import Trace
from atento.errors import AtentoWarning, UsageError
from atento.tasks.grouping import by_length
from atento.tasks.lengths import warn_of_length
from atento.text.streaming import stream_text
from atento.text.tokenizer import Tokenizer

ToText = Callable[[list[int]], str]
Utility = Callable[[list[str], list[str]], Any]  # candidates, evidence -> (N,M) in 0-1
WIDER = 2  # times that the width of a beam is doubled to find `n_best` different texts


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
            writers = Beam(n, config.length_penalty, n, config.stopping)
        elif config.candidates_from == "both" and n > 1:
            half = n // 2
            writers = (Sample(**drawn, n=n - half), Beam(half, config.length_penalty, half, config.stopping))
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
    trained: int | None = None,
    trace: Trace | None = None,
) -> list[list[WrittenText]]:
    """The outputs for each input, best first; an empty input gets none.

    The `n_best` outputs of a beam or of minimum Bayes risk differ in their texts (`_filled_up` says what is done where
    a beam found too few); samples are what was drawn, in the order drawn.

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
        trained: tokens of the longest text that the model was trained on; longer inputs are counted in a warning.
        trace: is told of the search; for one input.

    Raises:
        UsageError: a prompt that fills all the places a network has; a trace of several inputs.
    """
    if trace is not None and len(inputs) != 1:
        raise UsageError(f"a trace is of one text: got {len(inputs)}")
    lengths = [len(ids) for ids in inputs]
    warn_of_length(lengths, trained)
    _warn_of_places(lengths, decoding, config, goes_on=goes_on)
    writer = _Writer(steps, config, inputs, decoding, text, device, marks, goes_on, first, trace)
    strategy = strategy_of(decoding, text, utility)
    beam = strategy if isinstance(strategy, Beam) and decoding.n_best > 1 else None
    if beam is not None:  # all that it finds: some may be one text in other pieces
        strategy = beam = replace(beam, n_best=beam.width)
    results: list[list[WrittenText]] = [[] for _ in inputs]
    for rows in by_length(lengths, decoding.batch_tokens // decoding.rows):
        for row, found in zip(rows, writer.write(rows, strategy)):
            results[row] = found if beam is None else _distinct(found, decoding.n_best)
    if beam is not None:
        _fill_up(results, writer, beam)
    return results


@dataclass(frozen=True)
class _Writer:
    """What all batches of one call share; the fields are the arguments of `write_all`."""

    steps: Any
    config: NetworkConfig
    inputs: Sequence[Sequence[int]]
    decoding: DecodingConfig
    text: ToText
    device: torch.device
    marks: int
    goes_on: bool
    first: int
    trace: Trace | None

    def write(self, rows: list[int], strategy: Strategy) -> list[list[WrittenText]]:
        """The outputs for the inputs of those numbers, as one batch."""
        decoding, inputs = self.decoding, [list(self.inputs[row]) for row in rows]
        stop = StopStrings(self.text, decoding.stop) if decoding.stop else None
        lengths = torch.tensor([len(ids) for ids in inputs])
        ids = torch.full((len(rows), int(lengths.max())), self.config.pad_id)
        for place, one in enumerate(inputs):
            ids[place, : len(one)] = torch.tensor(one)
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        most = [most_tokens(len(one), self.marks, decoding, self.config, goes_on=self.goes_on) for one in inputs]
        found = generate(
            self.steps,
            ids.to(self.device),
            strategy,
            max_new_tokens=most,
            min_new_tokens=decoding.min_new_tokens,
            token_mask=real.to(self.device),
            rules=rules_of(decoding),
            stop=stop,
            trace=self.trace,
            seed=[row_seed(decoding.seed, self.first + row) for row in rows],
        )
        return [[self._read(one, stop) for one in hypotheses] for hypotheses in found]

    def _read(self, one: Hypothesis, stop: StopStrings | None) -> WrittenText:
        text = self.text(one.ids)
        return WrittenText(text if stop is None else stop.cut(text), one)


def _distinct(found: Iterable[WrittenText], count: int) -> list[WrittenText]:
    """The first `count` different texts: other pieces that spell the same are left out."""
    first: dict[str, WrittenText] = {}
    for one in found:
        first.setdefault(one.text, one)
    return list(first.values())[:count]


def _fill_up(results: list[list[WrittenText]], writer: _Writer, strategy: Beam) -> None:
    """Inputs whose beam found fewer than `n_best` different texts are searched again, twice and four times as wide.

    What the asked width found stays first, so that the best output does not hang on `n_best`; new texts follow.
    """
    decoding = writer.decoding
    for _ in range(WIDER):
        strategy = replace(strategy, width=2 * strategy.width, n_best=2 * strategy.width)
        short = [len(ids) if len(one) < decoding.n_best else 0 for ids, one in zip(writer.inputs, results)]
        for rows in by_length(short, decoding.batch_tokens // strategy.width):
            for row, more in zip(rows, writer.write(rows, strategy)):
                results[row] = _distinct([*results[row], *more], decoding.n_best)


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
    trained: int | None = None,
) -> Iterator[str]:
    """What `write_all` writes for its input number `row`, as pieces of text that join to it; `stop` strings are never
    shown.

    Raises:
        UsageError: a beam of more than 1, several outputs or `mbr`: those know their output only at its end.
    """
    if decoding.mbr is not None or decoding.n_best > 1 or (decoding.beam > 1 and not decoding.samples):
        raise UsageError("a stream is one output of greedy search or sampling: no beam, no `mbr`, no `n_best`")
    warn_of_length([len(ids)], trained)
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
    """How many tokens may be written for an input of that length; learned positions end somewhere.

    Where nothing is asked for: 2 x source + 16, or, where an output goes on from a prompt, 128 however long that is.
    """
    usual = max(CONTINUATION_TOKENS if goes_on else 2 * (length - marks) + 16, decoding.min_new_tokens)
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
        warnings.warn(
            f"the network has places for {config.max_len} tokens: {len(short)} of {len(rooms)} outputs end after "
            f"{min(short)} or more, not {asked}",
            AtentoWarning,
            stacklevel=3,
        )
