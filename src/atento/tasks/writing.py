"""Outputs for many inputs by any strategy, in batches of similar length, with a seed for each input."""

import reprlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from atento.config.sections.decoding import CONTINUATION_TOKENS, DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import WritingConfig
from atento.decoding import Beam, Greedy, Hypothesis, Sample, generate
from atento.decoding.contract import Rule
from atento.decoding.draft import Draft
from atento.decoding.exact import exact_search
from atento.decoding.rules import StopStrings
from atento.decoding.seeds import row_seed
from atento.decoding.source import Source
from atento.decoding.strategies import Strategy
from atento.decoding.stream import Token, stream
from atento.decoding.trace import Trace
from atento.errors import AtentoWarning, UsageError, counted
from atento.tasks.grouping import by_length, results_of
from atento.tasks.lengths import check_lengths, warn_of_context, watched
from atento.tasks.strategies import NO_CONSTRAINTS, Constraints, ToText, Utility, constraints_of, rules_of, strategy_of
from atento.text.streaming import stream_text
from atento.text.tokenizer import Tokenizer

DOUBLINGS = 2  # of the width of a beam that found fewer than `n_best` different texts


@dataclass(frozen=True)
class WrittenText:
    """An output text with its hypothesis."""

    text: str
    hypothesis: Hypothesis

    def __repr__(self) -> str:
        return f"WrittenText({reprlib.repr(self.text)}, score={self.hypothesis.score:.4f})"


def write_all(
    network: Source,
    config: NetworkConfig,
    inputs: Sequence[Sequence[int]],
    decoding: DecodingConfig,
    text: ToText,
    *,
    device: torch.device,
    n_special: int = 0,
    is_prompt: bool = False,
    constraints: Constraints = NO_CONSTRAINTS,
    utility: Utility | None = None,
    first: int = 0,
    trained: int | None = None,
    trace: Trace | None = None,
    draft: Draft | None = None,
) -> list[list[WrittenText]]:
    """The outputs for each input, best first; an empty input gets none.

    The `n_best` outputs of a beam or of minimum Bayes risk have different texts; `_fill_up` searches again where a beam
    found too few. Samples are in the order drawn.

    Inputs are sorted by length and decoded in batches of `decoding.batch_tokens` padded tokens, counted once for
    each output, so memory is bounded and short inputs do not wait for long ones. The outputs of an input do not depend
    on the other inputs: its seed comes from `decoding.seed` and its number.

    Args:
        network: a network, a loaded model or a step function.
        config: of the network.
        inputs: ids, special tokens included; `n_special` of each input are special.
        decoding: the options of decoding.
        text: ids -> text.
        device: where the network is.
        is_prompt: inputs are prompts; prompt and output share the positions.
        constraints: the words and tokens of `decoding`, as ids (`strategies.constraints_of`).
        first: the number of the first input, where these are part of more.
        utility: a function of (candidates, evidence) for `decoding.mbr`, in place of the metric that it names.
        trained: the most tokens of a text in training; longer inputs are counted in a warning.
        trace: records the search, for one input.
        draft: what proposes tokens (`drafts.draft_of`).

    Raises:
        UsageError: a prompt that takes all positions of the network, a limit below the tokens that `constraints` take,
            or a trace of several inputs.
    """
    if trace is not None and len(inputs) != 1:
        raise UsageError(f"a trace is of one text: got {len(inputs)}")
    check_lengths(lengths := [len(ids) for ids in inputs], config, trained)
    _warn_of_positions(lengths, decoding, config, is_prompt=is_prompt)
    writer = _Writer(
        network, config, inputs, decoding, text, device, n_special, is_prompt, constraints, first, trace, draft
    )
    strategy = strategy_of(decoding, text, utility)
    beam = strategy if isinstance(strategy, Beam) and decoding.n_best > 1 else None
    if beam is not None:  # request all hypotheses: several may be the same text in other tokens
        strategy = beam = replace(beam, n_best=beam.width)
    results: list[list[WrittenText]] = [[] for _ in inputs]
    for row, outputs in results_of(
        by_length(lengths, decoding.batch_tokens // decoding.rows),
        lambda rows: writer.write(rows, strategy),
        pack=lambda outputs: [asdict(output) for output in outputs],
        unpack=lambda values: [WrittenText(value["text"], Hypothesis(**value["hypothesis"])) for value in values],
    ):
        results[row] = outputs if beam is None else _distinct(outputs, decoding.n_best)
    if beam is not None:
        _fill_up(results, writer, beam)
    warn_of_context(lengths if is_prompt else [], map(_longest, results), config)
    if writer.stopped_early:
        warnings.warn(
            f"the exact search stopped early for {len(writer.stopped_early)} of {counted(len(inputs), 'text')} after "
            f"`exact_limit` {decoding.exact_limit:,}: their outputs may not be the best",
            AtentoWarning,
            stacklevel=2,
        )
    return results


def _longest(outputs: Sequence[WrittenText]) -> int:
    """The most tokens of an output."""
    return max((len(output.hypothesis.ids) for output in outputs), default=0)


@dataclass(frozen=True)
class _Writer:
    """The arguments of one call of `write_all`, which all of its batches share."""

    network: Source
    config: NetworkConfig
    inputs: Sequence[Sequence[int]]
    decoding: DecodingConfig
    text: ToText
    device: torch.device
    n_special: int
    is_prompt: bool
    constraints: Constraints
    first: int
    trace: Trace | None
    draft: Draft | None
    stopped_early: list[int] = field(default_factory=list)  # inputs whose exact search reached its limit

    def write(self, rows: list[int], strategy: Strategy) -> list[list[WrittenText]]:
        """Decode the inputs of these numbers as one batch."""
        decoding, inputs = self.decoding, [list(self.inputs[row]) for row in rows]
        stop = StopStrings(self.text, decoding.stop) if decoding.stop else None
        lengths = torch.tensor([len(ids) for ids in inputs])
        ids = torch.full((len(rows), int(lengths.max())), self.config.pad_id)
        for index, input_ids in enumerate(inputs):
            ids[index, : len(input_ids)] = torch.tensor(input_ids)
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        needed = self.constraints.length
        limits = [
            token_limit(len(input_ids), self.n_special, decoding, self.config, is_prompt=self.is_prompt, needed=needed)
            for input_ids in inputs
        ]
        required = self.constraints.required
        shared: dict[str, Any] = {
            "max_new_tokens": limits,
            "min_new_tokens": decoding.min_new_tokens,
            "eos_id": _eos_ids(decoding, self.constraints, self.config),
            "token_mask": real.to(self.device),
            "rules": rules_of(
                decoding,
                self.constraints,
                eos_id=self.config.eos_id,
                writing=self.config.writing,
                max_new_tokens=limits,
            ),
            "trace": self.trace,
        }
        results = generate(
            self.network,
            ids.to(self.device),
            strategy,
            required=[required] * len(rows) if required else None,
            stop=stop,
            seed=[row_seed(decoding.seed, self.first + row) for row in rows],
            draft=self.draft,
            **shared,
        )
        if decoding.exact:
            results = self._exact(ids.to(self.device), rows, results, shared)
        return [[self._written_text(hypothesis, stop) for hypothesis in hypotheses] for hypotheses in results]

    def _exact(
        self, ids: Tensor, rows: list[int], beam_results: list[list[Hypothesis]], shared: dict[str, Any]
    ) -> list[list[Hypothesis]]:
        """The best output of each row; the beam's if the search stops early or no output can end."""
        decoding = self.decoding
        # a rule that changes scores ranks outputs by other numbers than the scores of hypotheses
        penalties = (decoding.repetition_penalty, decoding.presence_penalty, decoding.frequency_penalty)
        own = self.config.writing or WritingConfig()
        comparable = penalties == (1.0, 0.0, 0.0) and not own.renormalized and (own.first, own.last) == (None, None)
        searched = exact_search(
            self.network,
            ids,
            length_penalty=decoding.length_penalty,
            limit=decoding.exact_limit,
            known=[result[0] for result in beam_results] if comparable else None,
            **shared,
        )
        self.stopped_early.extend(row for row, result in zip(rows, searched) if not result.optimal)
        return [
            [result.best] if result.best is not None and (result.optimal or comparable) else beam
            for result, beam in zip(searched, beam_results)
        ]

    def _written_text(self, hypothesis: Hypothesis, stop: StopStrings | None) -> WrittenText:
        text = self.text(hypothesis.ids)
        return WrittenText(text if stop is None else stop.cut(text), hypothesis)


def _distinct(outputs: Iterable[WrittenText], count: int) -> list[WrittenText]:
    """The first `count` different texts."""
    first: dict[str, WrittenText] = {}
    for output in outputs:
        first.setdefault(output.text, output)
    return list(first.values())[:count]


def _fill_up(results: list[list[WrittenText]], writer: _Writer, strategy: Beam) -> None:
    """Search again, twice and four times as wide, where a beam found fewer than `n_best` different texts.

    The outputs of the first search stay first, so that the best output does not depend on `n_best`.
    """
    decoding = writer.decoding
    for _ in range(DOUBLINGS):
        strategy = replace(strategy, width=2 * strategy.width, n_best=2 * strategy.width)
        short = [len(ids) if len(outputs) < decoding.n_best else 0 for ids, outputs in zip(writer.inputs, results)]
        for rows in by_length(short, decoding.batch_tokens // strategy.width):
            for row, more in zip(rows, writer.write(rows, strategy)):
                results[row] = _distinct([*results[row], *more], decoding.n_best)


@dataclass(frozen=True)
class Writing:
    """One input with all that the search for its outputs takes; no other input changes it.

    Attributes:
        ids: the input.
        tokenizer: of the outputs.
        strategy: the search, or sampling.
        max_new_tokens, min_new_tokens, eos_ids, rules, seed: as `generate` takes them.
        required: as `stream` takes it.
        stop_strings: they end an output, and are cut from it.
        draft: what proposes tokens.
    """

    ids: list[int]
    tokenizer: Tokenizer
    strategy: Strategy
    max_new_tokens: int
    min_new_tokens: int
    eos_ids: tuple[int, ...]
    rules: tuple[Rule, ...]
    stop_strings: tuple[str, ...]
    seed: int
    required: Sequence[Sequence[int]] = ()
    draft: Draft | None = None

    @property
    def stop(self) -> StopStrings | None:
        """The function that ends an output."""
        return StopStrings(self.tokenizer.decode, self.stop_strings) if self.stop_strings else None

    def tokens(self, network: Source, device: torch.device) -> Iterator[Token]:
        """The tokens of its output, by greedy search, one sample or a beam, as `decoding.stream.stream` gives them."""
        assert isinstance(self.strategy, Greedy | Sample | Beam)
        return stream(
            network,
            torch.tensor([self.ids], device=device),
            self.strategy,
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            eos_id=self.eos_ids,
            rules=self.rules,
            required=self.required,
            stop=self.stop,
            seed=[self.seed],
            draft=self.draft,
        )

    def written_text(self, hypothesis: Hypothesis) -> WrittenText:
        """An output as text."""
        text, stop = self.tokenizer.decode(hypothesis.ids), self.stop
        return WrittenText(text if stop is None else stop.cut(text), hypothesis)


def writing_of(
    config: NetworkConfig,
    ids: Sequence[int],
    decoding: DecodingConfig,
    tokenizer: Tokenizer,
    *,
    n_special: int = 0,
    is_prompt: bool = False,
    row: int = 0,
    draft: Draft | None = None,
) -> Writing:
    """Input number `row` with what `write_all` gives to the search for its outputs; arguments as there.

    Raises:
        UsageError: as `write_all`.
    """
    constraints = constraints_of(decoding, tokenizer, config.writing)
    limit = token_limit(len(ids), n_special, decoding, config, is_prompt=is_prompt, needed=constraints.length)
    return Writing(
        list(ids),
        tokenizer,
        strategy_of(decoding),
        limit,
        decoding.min_new_tokens,
        _eos_ids(decoding, constraints, config),
        rules_of(decoding, constraints, eos_id=config.eos_id, writing=config.writing, max_new_tokens=[limit]),
        decoding.stop,
        row_seed(decoding.seed, row),
        constraints.required,
        draft,
    )


def stream_one(
    network: Source,
    config: NetworkConfig,
    ids: Sequence[int],
    decoding: DecodingConfig,
    tokenizer: Tokenizer,
    *,
    device: torch.device,
    n_special: int = 0,
    is_prompt: bool = False,
    row: int = 0,
    trained: int | None = None,
    draft: Draft | None = None,
) -> Iterator[str]:
    """The text that `write_all` writes for input number `row`, in pieces, without the `stop` strings.

    Raises:
        UsageError: several outputs, `mbr` or `exact`, whose output is known only when the search is over.
    """
    strategy = strategy_of(decoding)
    if decoding.n_best > 1 or decoding.exact or not isinstance(strategy, Greedy | Sample | Beam):
        raise UsageError(
            "a stream is one output of greedy search, sampling or a beam: no `mbr`, no `exact`, no `n_best`"
        )
    check_lengths([len(ids)], config, trained)
    writing = writing_of(
        config, ids, decoding, tokenizer, n_special=n_special, is_prompt=is_prompt, row=row, draft=draft
    )
    tokens = writing.tokens(network, device)
    tokens = watched(tokens, len(ids), config) if is_prompt else tokens
    return stream_text(tokenizer, (token.id for token in tokens if token.end != "eos"), stop=decoding.stop)


def _eos_ids(decoding: DecodingConfig, constraints: Constraints, config: NetworkConfig) -> tuple[int, ...]:
    """Return the ids that end an output."""
    return (*(() if decoding.ignore_eos else config.eos_ids), *constraints.stop_ids)


def token_limit(
    length: int, n_special: int, decoding: DecodingConfig, config: NetworkConfig, *, is_prompt: bool, needed: int = 0
) -> int:
    """Return the maximum number of new tokens for an input of this length, within the positions of the network.

    Default: 2 x source + 16, or 128 after a prompt of any length; plus `needed`, the tokens that every output must
    contain.

    Raises:
        UsageError: no position after the prompt, or fewer tokens than `needed`.
    """
    usual = max(CONTINUATION_TOKENS if is_prompt else 2 * (length - n_special) + 16, decoding.min_new_tokens) + needed
    limit = usual if decoding.max_new_tokens is None else decoding.max_new_tokens
    room = _room(length, config, is_prompt=is_prompt)
    if room is not None and room < 1:
        raise UsageError(f"a prompt of {length} tokens fills all {config.max_len} positions of the network")
    limit = limit if room is None else min(limit, room)
    if limit < needed:
        raise UsageError(f"`prefix` and `required_words` take {needed} tokens: an output may have {limit}")
    return limit


def _room(length: int, config: NetworkConfig, *, is_prompt: bool) -> int | None:
    """How many new tokens the network has positions for after an input of that length; None: any number."""
    if config.position_limit is None:
        return None
    return config.position_limit - (length - 1 if is_prompt else 0)  # the first step reads the prompt's last token


def _warn_of_positions(
    lengths: Sequence[int], decoding: DecodingConfig, config: NetworkConfig, *, is_prompt: bool
) -> None:
    """Warn where more tokens are requested than the network has positions for."""
    requested = max(decoding.max_new_tokens or 0, decoding.min_new_tokens)
    rooms = [_room(length, config, is_prompt=is_prompt) for length in lengths if length]
    short = [room for room in rooms if room is not None and room < requested]
    if short and min(short) > 0:  # otherwise `token_limit` raises
        warnings.warn(
            f"the network has positions for {config.max_len} tokens: {len(short)} of {len(rooms)} outputs end after "
            f"{min(short)} or more, not {requested}",
            AtentoWarning,
            stacklevel=3,
        )
