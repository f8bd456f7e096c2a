"""Drafts: what proposes the next tokens of an output, so that the network reads several in one step.

A proposal costs little: a copy of what followed the same n-gram before, or the tokens of a small network
(`draft_network`). `DraftedSearch` verifies it, so that the outputs are those without a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from atento.decoding.source import Source

_LONGEST, _SHORTEST = 4, 1  # n-grams that are looked up, the longest first
_SEPARATOR = -1  # between a source and its output: no n-gram contains it


@dataclass(frozen=True)
class Draft:
    """What proposes tokens, for `generate(draft=...)`.

    Args:
        ngrams: propose what followed the last n-gram where it occurred before: in the output, and in the source or
            prompt (prompt lookup; Saxena 2023, Yang et al. 2023).
        network: a small network with the same vocabulary, a loaded model or a step function, which reads the same ids
            and proposes its own continuation (Leviathan et al. 2023, Chen et al. 2023). Beside `ngrams` it proposes
            where no n-gram occurred before.
        tokens: the most that are proposed at a time. After a step, the next proposal has at most twice as many as were
            accepted, and one.
        longest: the most tokens for which `network` has positions: of a prompt with its output, or of each of a source
            and its output; it proposes nothing behind them. None: any number.
        source: whether n-grams are looked up in the source or prompt; not where the ids of sources and of outputs name
            different tokens.
        vocab_size: the number of rows of the network that it drafts for, where `network` may have another one: released
            networks with one vocabulary may pad their matrices differently. None: the same.
    """

    ngrams: bool = True
    network: Source | None = None
    tokens: int = 8
    longest: int | None = None
    source: bool = True
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"`tokens` must be at least 1: got {self.tokens}")
        if not self.ngrams and self.network is None:
            raise ValueError("a draft needs `ngrams` or a `network`: got neither")


@dataclass(frozen=True)
class Proposal:
    """The tokens that are proposed for one output.

    `probabilities` (k,V) are those that the k tokens were drawn from, in float64; None: the tokens were not drawn.
    """

    ids: list[int]
    probabilities: Tensor | None = None


class PromptLookup:
    """Proposes what followed the last n-gram of each output where it occurred before.

    Args:
        before: for each output the texts before it: the last one, a prompt, is continued by the output.
    """

    def __init__(self, before: Sequence[Sequence[Sequence[int]]]) -> None:
        self._texts = [_Occurrences() for _ in before]
        for occurrences, texts in zip(self._texts, before):
            for number, text in enumerate(texts):
                occurrences.extend(text if number == 0 else [_SEPARATOR, *text])
        self._lengths = [0] * len(before)  # tokens of the outputs that were read

    def propose(self, outputs: Sequence[int], written: Sequence[list[int]], most: Sequence[int]) -> list[Proposal]:
        """A proposal for each of some outputs.

        Args:
            outputs: their numbers.
            written: the tokens of each, of which those of the last call are the first.
            most: the number of tokens that each proposal may have at most.
        """
        proposals = []
        for output, ids, count in zip(outputs, written, most):
            occurrences = self._texts[output]
            occurrences.extend(ids[self._lengths[output] :])
            self._lengths[output] = len(ids)
            proposals.append(Proposal(occurrences.continuation(count)))
        return proposals


class _Occurrences:
    """A text, and where each of its n-grams occurred last."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> the index of the token behind it

    def extend(self, ids: Sequence[int]) -> None:
        """Add tokens. An n-gram is entered with the token behind it, so that the last one never finds itself."""
        for token in ids:
            index = len(self._ids)  # of the token that is added now
            if token != _SEPARATOR:
                for ngram in self._last_ngrams():  # all that end right before it
                    self._after[ngram] = index
            self._ids.append(token)

    def continuation(self, count: int) -> list[int]:
        """What followed the longest of the last n-grams that occurred before, up to `count` tokens.

        A copy that reaches the end of the text goes on with its own tokens, as a loop does.
        """
        index = next((self._after[ngram] for ngram in self._last_ngrams() if ngram in self._after), None)
        if index is None:
            return []
        copied: list[int] = []
        while len(copied) < count:
            at = index + len(copied)
            token = self._ids[at] if at < len(self._ids) else copied[at - len(self._ids)]
            if token == _SEPARATOR:
                break
            copied.append(token)
        return copied

    def _last_ngrams(self) -> list[tuple[int, ...]]:
        """The n-grams at the end, the longest first."""
        ngrams = [tuple(self._ids[-n:]) for n in range(_LONGEST, _SHORTEST - 1, -1) if len(self._ids) >= n]
        return [ngram for ngram in ngrams if _SEPARATOR not in ngram]  # none reaches over a border
