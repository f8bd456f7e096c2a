"""Outputs for many inputs by any strategy, in batches of similar length, with a seed for each input."""

import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from atento.base.errors import AtentoWarning, UsageError, counted
from atento.config.sections.decoding import CONTINUATION_TOKENS, DecodingConfig
from atento.config.sections.network import NetworkConfig
from atento.decoding import Beam, Greedy, Hypothesis, Sample
from atento.decoding.choosing import row_seed
from atento.decoding.contract import Request
from atento.decoding.draft_proposals import Draft
from atento.decoding.exact import exact_outputs
from atento.decoding.generate import search
from atento.decoding.rules import StopStrings
from atento.decoding.source import Prepared, Source, step_function_of
from atento.decoding.strategies import Strategy
from atento.decoding.stream import Token, tokens_of
from atento.decoding.trace import Trace
from atento.inference.plain import padded
from atento.tasks.decoding_setup import NO_CONSTRAINTS, Constraints, ToText, Utility, rules_of, strategy_of
from atento.tasks.length_batching import run_in_batches
from atento.tasks.task_model import check_lengths, warn_of_context
from atento.text.protected_spans import has_words

_CACHES = 1 << 30  # bytes of keys and values of all batches that are decoded at a time
DOUBLINGS = 2  # of the width of a beam that found fewer than `n_best` different texts
Searched = Callable[[Strategy, list[int]], "list[list[GeneratedText]]"]


@dataclass(frozen=True)
class GeneratedText:
    """An output text with its hypothesis."""

    text: str
    hypothesis: Hypothesis

    def __repr__(self) -> str:
        return f"GeneratedText({reprlib.repr(self.text)}, score={self.hypothesis.score:.4f})"


@dataclass(frozen=True)
class TextGenerator:
    """Writes the outputs of one call: all that the search for them takes, but for the texts.

    The outputs of a text do not depend on the other texts: its seed comes from `decoding.seed` and its number.
    """

    steps: Source  # a network, a loaded model or a step function
    config: NetworkConfig  # of the network
    decoding: DecodingConfig  # the options of decoding
    text: ToText  # ids -> text
    device: torch.device  # where the network is
    # texts -> ids, special tokens included, `n_special` of each text; no ids: it is not searched
    encode: Callable[[Sequence[Any]], list[list[int]]] = list
    n_special: int = 0
    is_prompt: bool = False  # whether texts are prompts; prompt and output share the positions
    words_only: bool = False  # whether a text without words (`has_words`), such as a number, is its own output
    # the words and tokens of `decoding`, as ids (`decoding_setup.constraints_of`)
    constraints: Constraints = NO_CONSTRAINTS
    # a function of (candidates, evidence) for `decoding.mbr`, in place of the metric that it names
    utility: Utility | None = None
    trained: int | None = None  # the most tokens of a text in training; longer inputs are counted in a warning
    draft: Draft | None = None  # what proposes tokens (`model_outputs.draft_of`)

    @cached_property
    def strategy(self) -> Strategy:
        """The search, or sampling."""
        return strategy_of(self.decoding, self.text, self.utility)

    def write(
        self,
        texts: Sequence[Any],
        first: int | Sequence[int] = 0,
        trace: Trace | None = None,
        each: Sequence[Constraints] = (),
    ) -> list[list[GeneratedText]]:
        """The outputs for each text, best first; a source that is not searched has one.

        The `n_best` outputs of a beam or of minimum Bayes risk have different texts; `_fill_up` searches again where a
        beam found too few. Samples are in the order drawn.

        Inputs are sorted by length and decoded in batches of `decoding.batch_tokens` padded tokens, counted once for
        each output, so memory is bounded and short inputs do not wait for long ones.

        Args:
            texts: as `encode` takes them.
            first: the number of the first one, where these are part of more, or those of all.
            trace: records the search, for one text.
            each: the constraints of each text, if these are not the generator's.

        Raises UsageError: a prompt that takes all positions of the network, a limit below the tokens that `constraints`
        take, or a trace of several texts.
        """
        results = self.written(self.encode(texts), first, trace, each)
        return results if self.is_prompt else [found or [self.passthrough(text)] for text, found in zip(texts, results)]

    def written(
        self,
        inputs: Sequence[Sequence[int]],
        first: int | Sequence[int] = 0,
        trace: Trace | None = None,
        each: Sequence[Constraints] = (),
    ) -> list[list[GeneratedText]]:
        """As `write`, for inputs; one without ids has no outputs."""
        if trace is not None and len(inputs) != 1:
            raise UsageError(f"a trace is of one text: got {len(inputs)}")
        check_lengths(lengths := [len(ids) for ids in inputs], self.config, self.trained)
        _warn_of_positions(lengths, self.decoding, self.config, is_prompt=self.is_prompt)
        strategy, early = self.strategy, list[int]()
        numbers = range(first, first + len(inputs)) if isinstance(first, int) else first
        beam = strategy if isinstance(strategy, Beam) and self.decoding.n_best > 1 else None
        if beam is not None:  # request all hypotheses: several may be the same text in other tokens
            strategy = beam = replace(beam, n_best=beam.width)

        def searched(strategy: Strategy, rows: list[int]) -> list[list[GeneratedText]]:
            generation_jobs = [
                self.generation_job(inputs[row], numbers[row], each[row] if each else None) for row in rows
            ]
            return self._searched(generation_jobs, strategy, trace, early)

        results: list[list[GeneratedText]] = [[] for _ in inputs]
        for row, outputs in run_in_batches(
            lengths,
            self.decoding.batch_tokens // self.decoding.rows,
            partial(searched, strategy),
            self.device,
            most=self._at_once(lengths),
            shared=True,
            pack=lambda outputs: [asdict(output) for output in outputs],
            unpack=lambda values: [GeneratedText(value["text"], Hypothesis(**value["hypothesis"])) for value in values],
        ):
            results[row] = outputs if beam is None else _distinct(outputs, self.decoding.n_best)
        if beam is not None:
            self._fill_up(results, lengths, beam, searched)
        longest = (max((len(one.hypothesis.ids) for one in outputs), default=0) for outputs in results)
        warn_of_context(lengths if self.is_prompt else [], longest, self.config)
        if early:
            warnings.warn(
                f"the exact search stopped early for {len(early)} of {counted(len(inputs), 'text')} after "
                f"`exact_limit` {self.decoding.exact_limit:,}: their outputs may not be the best",
                AtentoWarning,
                stacklevel=2,
            )
        return results

    def _fill_up(
        self, results: list[list[GeneratedText]], lengths: Sequence[int], strategy: Beam, searched: Searched
    ) -> None:
        """Search again, twice and four times as wide, where a beam found fewer than `n_best` different texts.

        The best output of the first search stays first, so that it does not depend on `n_best`; the others follow by
        their scores, unless penalties of rules or of groups rank the outputs of the first search otherwise.
        """
        by_score = [row for row, outputs in enumerate(results) if outputs == _by_score(outputs)]
        count = self.decoding.n_best
        for _ in range(DOUBLINGS):
            strategy = replace(strategy, width=2 * strategy.width, n_best=2 * strategy.width)
            short = [length if len(outputs) < count else 0 for length, outputs in zip(lengths, results)]
            budget = self.decoding.batch_tokens // strategy.width
            for row, more in run_in_batches(short, budget, partial(searched, strategy), self.device):
                results[row] = _distinct([*results[row], *more], count)
        for row in by_score:
            results[row] = [*results[row][:1], *_by_score(results[row][1:])]

    def _at_once(self, lengths: Sequence[int]) -> int:
        """How many batches are decoded at a time, at most: of so many the keys and values take a GiB."""
        outputs, tokens = len(lengths) * self.decoding.rows, 1
        for length in set(lengths) - {0}:
            limit = token_limit(length, self.n_special, self.decoding, self.config, is_prompt=self.is_prompt)
            tokens = max(tokens, min(self.decoding.batch_tokens // length, outputs) * (length + limit))
        return _CACHES // (8 * self.config.n_layers * self.config.d_model * tokens)

    def generation_jobs(self, texts: Sequence[Any], first: int = 0) -> "list[GenerationJob | None]":
        """What is searched for each text, each by itself; None: its output is `passthrough`."""
        return [self.generation_job(ids, first + n) if ids else None for n, ids in enumerate(self.encode(texts))]

    def generation_job(self, ids: Sequence[int], row: int, constraints: Constraints | None = None) -> "GenerationJob":
        """What is searched for text number `row`, with constraints of its own or not. Raises UsageError: as `write`."""
        constraints = constraints or self.constraints
        limit = token_limit(
            len(ids), self.n_special, self.decoding, self.config, is_prompt=self.is_prompt, needed=constraints.length
        )
        draws = self.decoding.samples or self.decoding.mbr is not None  # other searches read no seed
        return GenerationJob(self, list(ids), limit, row_seed(self.decoding.seed, row) if draws else 0, constraints)

    def passthrough(self, text: str) -> GeneratedText:
        """The output of a source that has no ids: empty, or with `words_only` the text itself if it is not blank."""
        as_it_is = self.words_only and bool(text.strip()) and not has_words(text)
        return GeneratedText(text if as_it_is else "", Hypothesis([], 0.0, 0.0, []))

    def generated_text(self, hypothesis: Hypothesis) -> GeneratedText:
        """An output as text, without the strings that end it."""
        text = self.text(hypothesis.ids)
        return GeneratedText(
            StopStrings(self.text, self.decoding.stop).cut(text) if self.decoding.stop else text, hypothesis
        )

    def request(self, generation_jobs: "Sequence[GenerationJob]", trace: Trace | None = None) -> Request:
        """The options of a search for some texts side by side."""
        decoding, each = self.decoding, [one.constraints for one in generation_jobs]
        limits = [one.max_new_tokens for one in generation_jobs]
        return Request(
            limits,
            decoding.min_new_tokens,
            (*(() if decoding.ignore_eos else self.config.eos_ids), *self.constraints.stop_ids),
            rules_of(
                decoding,
                each[:1] if all(one == each[0] for one in each) else each,  # equal for all: once
                eos_id=self.config.eos_id,
                writing=self.config.writing,
                max_new_tokens=limits,
            ),
            seeds=tuple(one.seed for one in generation_jobs),
            prompts=[one.ids for one in generation_jobs],
            required=[one.required for one in each] if any(one.required for one in each) else None,
            stop=StopStrings(self.text, decoding.stop) if decoding.stop else None,
            trace=trace,
        )

    def _searched(
        self, generation_jobs: "list[GenerationJob]", strategy: Strategy, trace: Trace | None, early: list[int]
    ) -> list[list[GeneratedText]]:
        """The outputs of some texts as one batch; `early` gets one entry an exact search that reached its limit."""
        request = self.request(generation_jobs, trace)
        ids, real = padded([one.ids for one in generation_jobs], self.config.pad_id, self.device)  # (B,S) each
        prepared = Prepared(step_function_of(self.steps), ids, real, request)
        results = search(prepared, strategy, self.draft)
        if self.decoding.exact:  # begins with the score of the beam's outputs as a bound
            # a rule that changes scores ranks outputs by other numbers than the scores of hypotheses
            comparable = all(getattr(rule, "forbids", False) for rule in request.rules)
            known = [result[0] for result in results] if comparable else None
            found = exact_outputs(prepared, self.decoding.length_penalty, self.decoding.exact_limit, known)
            early.extend(row for row, result in enumerate(found) if not result.optimal)
            results = [  # that of the beam if the search stops early or no output can end
                [result.best] if result.best is not None and (result.optimal or comparable) else beam
                for result, beam in zip(found, results)
            ]
        return [[self.generated_text(hypothesis) for hypothesis in hypotheses] for hypotheses in results]


@dataclass(frozen=True)
class GenerationJob:
    """One text that a generator writes for, with all that the search takes; no other text changes it."""

    generator: TextGenerator
    ids: list[int]
    max_new_tokens: int
    seed: int
    constraints: Constraints

    def tokens(self) -> Iterator[Token]:
        """The tokens of its output, by greedy search, one sample or a beam, as `decoding.stream` gives them."""
        generator, request = self.generator, self.generator.request([self])
        assert isinstance(generator.strategy, Greedy | Sample | Beam)
        ids = torch.tensor([self.ids], device=generator.device)
        prepared = Prepared(step_function_of(generator.steps), ids, None, request)
        return tokens_of(prepared, generator.strategy, generator.draft)


def _distinct(outputs: Iterable[GeneratedText], count: int) -> list[GeneratedText]:
    first: dict[str, GeneratedText] = {}
    for output in outputs:
        first.setdefault(output.text, output)
    return list(first.values())[:count]


def _by_score(outputs: list[GeneratedText]) -> list[GeneratedText]:
    """Outputs by their scores, best first; those that were cut off stand behind those that ended."""
    return sorted(outputs, key=lambda one: (one.hypothesis.finished, one.hypothesis.score), reverse=True)


def token_limit(
    length: int, n_special: int, decoding: DecodingConfig, config: NetworkConfig, *, is_prompt: bool, needed: int = 0
) -> int:
    """Return the maximum number of new tokens for an input of this length, within the positions of the network.

    Default: 2 x source + 16, or 128 after a prompt of any length; plus `needed`, the tokens that every output must
    contain.
    Raises UsageError: no position after the prompt, or fewer tokens than `needed`.
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
