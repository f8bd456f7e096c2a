"""Rules that change scores before a token is chosen, and strings that stop an output.

A rule takes the scores (R,V) of one step and what each row has written, and forbids a token by -inf. Greedy search and
sampling give it logits, a beam gives it log-probabilities, as in `transformers`; the difference matters only to the
repetition penalty. Rules look at the output; with `prompt`, the repetition penalty and the n-grams also look at the
prompt. A rule with a true `forbids` does nothing but forbid: every other token keeps its score.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atento.decoding.contract import Written

_PADDING = -1  # on the left of a shorter row


@dataclass(frozen=True)
class RepetitionPenalty:
    """Makes tokens that were written before less likely: score / penalty above 0, score * penalty below.

    A penalty of 1 changes nothing; below 1 it favours them (Keskar et al. 2019).

    Args:
        penalty: above 0.
        prompt: whether tokens of the prompt, or source, count as written.
    """

    penalty: float
    prompt: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"`penalty` must be above 0 and finite: got {self.penalty}")

    @property
    def name(self) -> str:
        """Its name in a trace."""
        return f"repetition penalty {self.penalty:g}"

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        before = _before(written, self.prompt)
        penalised = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(_counts(before, scores.shape[-1]) > 0, penalised, scores)


@dataclass(frozen=True)
class CountPenalty:
    """Lowers the score of each token by its count in the output so far, as OpenAI's API defines it.

    score - frequency * count - presence * (count > 0): negative values make tokens that were written more likely.
    """

    presence: float = 0.0
    frequency: float = 0.0

    def __post_init__(self) -> None:
        for name in ("presence", "frequency"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"`{name}` must be finite: got {getattr(self, name)}")

    @property
    def name(self) -> str:
        """Its name in a trace."""
        return f"presence penalty {self.presence:g}, frequency penalty {self.frequency:g}"

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        counts = _counts(written.ids, scores.shape[-1])  # (R,V)
        penalties = self.frequency * counts + self.presence * (counts > 0)  # (R,V)
        return scores - penalties.to(scores.dtype)


@dataclass(frozen=True)
class NoRepeatNGrams:
    """Forbids n-grams that were written before (Paulus et al. 2018), with `prompt` also those of the prompt."""

    n: int
    prompt: bool = False
    forbids = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"`n` must be at least 1: got {self.n}")

    @property
    def name(self) -> str:
        """Its name in a trace."""
        return f"no {self.n}-gram twice"

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        before = _before(written, self.prompt)
        if before.shape[1] < self.n:  # no n-gram has been written yet
            return scores
        grams = before.unfold(1, self.n, 1)  # (R,N,n)
        # Padding never matches: an n-gram that begins further left contains more of it than the last one does.
        end = before[:, before.shape[1] - self.n + 1 :].unsqueeze(1)  # (R,1,n-1), what the next token would complete
        repeated = (grams[..., :-1] == end).all(dim=-1)  # (R,N)
        completed = torch.where(repeated, grams[..., -1], _PADDING)  # (R,N): the token that followed, or padding
        return scores.masked_fill(_counts(completed, scores.shape[-1]) > 0, float("-inf"))


@dataclass(frozen=True)
class Banned:
    """Forbids sequences of tokens: the last token of each, where the others were just written.

    A sequence of one token forbids it everywhere. EOS may be among them.
    """

    sequences: Sequence[Sequence[int]]
    name = "banned"
    forbids = True

    def __post_init__(self) -> None:
        for sequence in self.sequences:
            if not isinstance(sequence, Sequence) or not sequence or min(sequence) < 0:
                raise ValueError(f"a banned sequence must hold ids, one at least, such as [[17]]: got {sequence}")

    @cached_property
    def _by_length(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Number m of tokens before the last one -> these tokens (N,m) and the last ones (N,)."""
        lengths = sorted({len(sequence) for sequence in self.sequences})
        grouped = {m - 1: torch.tensor([list(s) for s in self.sequences if len(s) == m]) for m in lengths}
        return {m: (group[:, :-1], group[:, -1]) for m, group in grouped.items()}

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        forbidden = torch.zeros_like(scores, dtype=torch.bool)
        for m, (before, last) in self._by_length.items():
            if int(last.max()) >= scores.shape[-1]:
                raise ValueError(f"a banned id must be below {scores.shape[-1]}, the vocabulary: got {int(last.max())}")
            if m > written.ids.shape[1]:
                continue
            end = written.ids[:, written.ids.shape[1] - m :]  # (R,m)
            matches = (end.unsqueeze(1) == before.to(end.device)).all(dim=-1)  # (R,N)
            row, sequence_index = matches.nonzero(as_tuple=True)  # (row, sequence) pairs that match
            forbidden[row, last.to(end.device)[sequence_index]] = True
        return scores.masked_fill(forbidden, float("-inf"))


@dataclass(frozen=True)
class Forced:
    """Forces the token of given steps: `at` maps a step, from 0, to an id, in one mapping or one a row. It wins over
    the rules before it.

    The token keeps its score, or has the score 0 at the first of the steps if that is `certain`, as in `transformers`.
    """

    at: Mapping[int, int] | Sequence[Mapping[int, int]]
    certain: bool = False
    name = "forced"

    @property
    def forbids(self) -> bool:
        """Whether the token keeps its score."""
        return not self.certain

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        step, out = written.ids.shape[1], scores
        steps = [self.at if isinstance(self.at, Mapping) else self.at[row] for row in written.rows]
        tokens = [at.get(step) for at in steps]
        for token in {token for token in tokens if token is not None}:
            rows = [row for row, one in enumerate(tokens) if one == token]
            if not 0 <= token < scores.shape[-1]:
                raise ValueError(f"a forced id must lie below {scores.shape[-1]}, the vocabulary: got {token}")
            certain = torch.tensor([self.certain and step == min(steps[row]) for row in rows], device=out.device)
            token_scores = out[rows, token]  # 0 where the token was forbidden or is certain
            only = out.new_full((len(rows), scores.shape[-1]), float("-inf"))
            only[:, token] = token_scores.masked_fill((token_scores == float("-inf")) | certain, 0.0)
            out = out.index_copy(0, torch.tensor(rows, device=out.device), only)
        return out


class ForcedLast(Forced):
    """Forces the last token of an output that reaches its limit, such as EOS; the ranks of beams differ.

    Args:
        max_new_tokens: one number, or one a row.
    """

    name = "forced at the limit"

    def __init__(self, token: int, max_new_tokens: int | Sequence[int], certain: bool = False) -> None:
        limits = max_new_tokens
        super().__init__(
            {limits - 1: token} if isinstance(limits, int) else [{limit - 1: token} for limit in limits], certain
        )


@dataclass(frozen=True)
class SuppressedAt:
    """Forbids tokens at one step, from 0, or at one a row."""

    step: int | Sequence[int]
    tokens: Sequence[int]
    name = "suppressed at the beginning"
    forbids = True

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        steps = [self.step if isinstance(self.step, int) else self.step[row] for row in written.rows]
        return _without(scores, self.tokens, [step == written.ids.shape[1] for step in steps])


@dataclass(frozen=True)
class SuppressedBehind:
    """Forbids tokens where one of some sequences was just written: those that would go on with a word that is over."""

    sequences: Sequence[Sequence[Sequence[int]]]  # those of all rows, or of each
    tokens: Sequence[int]
    name = "suppressed behind a word"
    forbids = True

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        each = [self.sequences[row if len(self.sequences) > 1 else 0] for row in written.rows]
        ids = written.ids.tolist()
        behind = [any(one and row[-len(one) :] == list(one) for one in own) for row, own in zip(ids, each, strict=True)]
        return _without(scores, self.tokens, behind)


def renormalized(scores: Tensor, written: Written) -> Tensor:
    """Log-probabilities (R,V) among the tokens that the rules before it leave."""
    return torch.log_softmax(scores, dim=-1)


@dataclass(frozen=True)
class StopStrings:
    """For `generate(stop=...)`: an output ends with the token that completes one of these strings in its text.

    The ids contain that token; `cut` ends the text before the string. `text` turns ids into text.
    """

    text: Callable[[list[int]], str]
    strings: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.strings, str) or not self.strings or not all(self.strings):
            raise ValueError(f"`strings` must be a list of strings, none of them empty: got {self.strings!r}")

    def __call__(self, ids: list[int]) -> bool:
        """Whether the output ends."""
        text = self.text(ids)
        return any(string in text for string in self.strings)

    def cut(self, text: str) -> str:
        """The text before the string that is completed first; all of it if there is none."""
        met = [(text.find(string) + len(string), text.find(string)) for string in self.strings if string in text]
        return text[: min(met)[1]] if met else text


def _before(written: Written, prompt: bool) -> Tensor:
    """The tokens that each row counts as written, (R,L); rows with a shorter prompt are padded on the left."""
    if not prompt or not written.prompts:
        return written.ids
    prompts = [written.prompts[row] for row in written.rows]
    longest = max(map(len, prompts), default=0)
    padded = [[_PADDING] * (longest - len(prompt_ids)) + list(prompt_ids) for prompt_ids in prompts]
    shape = (len(prompts), longest)
    return torch.cat([torch.tensor(padded, dtype=torch.long, device=written.ids.device).view(shape), written.ids], 1)


def _counts(ids: Tensor, vocab_size: int) -> Tensor:
    """ids (R,L) -> (R,V), how often each id occurs in its row; ids outside the vocabulary are ignored."""
    counts = torch.zeros(ids.shape[0], vocab_size + 1, device=ids.device)
    columns = torch.where((ids < 0) | (ids > vocab_size), vocab_size, ids)
    counts.scatter_add_(1, columns, torch.ones_like(columns, dtype=counts.dtype))
    return counts[:, :vocab_size]


def _without(scores: Tensor, tokens: Sequence[int], rows: list[bool]) -> Tensor:
    """The scores (R,V) without those tokens in the rows (R) that are True."""
    if not any(rows):
        return scores
    without = scores.index_fill(-1, torch.tensor(list(tokens), device=scores.device), float("-inf"))
    return torch.where(torch.tensor(rows, device=scores.device).unsqueeze(1), without, scores)
