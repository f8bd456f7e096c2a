"""Rules that change scores before a token is chosen, and strings that stop an output.

A rule takes the scores (R,V) of one step and what each row has written; it forbids a token by -inf. Greedy search and
sampling hand it logits, a beam log-probabilities, as `transformers` does: it matters to the repetition penalty alone.
Rules count what was written anew; the repetition penalty and the n-grams count the prompt too where they are asked to.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atento.decoding.contract import Written

_NOTHING = -1  # stands left of a shorter row


@dataclass(frozen=True)
class RepetitionPenalty:
    """Tokens written before are made less likely: score / penalty above 0, score * penalty below (Keskar et al. 2019).

    1 changes nothing; below 1 it favours them. `prompt`: what stands in the prompt, or source, counts as written.
    """

    penalty: float
    prompt: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"`penalty` must be above 0 and finite: got {self.penalty}")

    @property
    def name(self) -> str:
        """As a trace tells it."""
        return f"repetition penalty {self.penalty:g}"

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        before = _before(written, self.prompt)
        told_off = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(_marked(before, scores.shape[-1]), told_off, scores)


@dataclass(frozen=True)
class NoRepeatNGrams:
    """No sequence of n tokens twice (Paulus et al. 2018); `prompt`: those of the prompt, or source, count too."""

    n: int
    prompt: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"`n` must be at least 1: got {self.n}")

    @property
    def name(self) -> str:
        """As a trace tells it."""
        return f"no {self.n}-gram twice"

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        before = _before(written, self.prompt)
        if before.shape[1] < self.n:
            return scores
        grams = before.unfold(1, self.n, 1)  # (R,N,n)
        # What pads a row on the left matches nothing: a gram that starts further left holds more of it than the end.
        end = before[:, before.shape[1] - self.n + 1 :].unsqueeze(1)
        again = (grams[..., :-1] == end).all(dim=-1)
        completed = torch.where(again, grams[..., -1], _NOTHING)
        return scores.masked_fill(_marked(completed, scores.shape[-1]), float("-inf"))


@dataclass(frozen=True)
class Banned:
    """Sequences of tokens that are never written: of each the last token is forbidden where the others stand before.

    A sequence of one is a token forbidden everywhere. EOS may be among them.
    """

    sequences: Sequence[Sequence[int]]
    name = "banned"

    def __post_init__(self) -> None:
        for sequence in self.sequences:
            if not isinstance(sequence, Sequence) or not sequence or min(sequence) < 0:
                raise ValueError(f"a banned sequence must hold ids, one at least, such as [[17]]: got {sequence}")

    @cached_property
    def _by_length(self) -> dict[int, tuple[Tensor, Tensor]]:
        """How many tokens stand before the last -> those (N,m) and the last ones (N,)."""
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
            end = written.ids[:, written.ids.shape[1] - m :]
            stands = (end.unsqueeze(1) == before.to(end.device)).all(dim=-1)  # (R,N)
            place, which = stands.nonzero(as_tuple=True)
            forbidden[place, last.to(end.device)[which]] = True
        return scores.masked_fill(forbidden, float("-inf"))


@dataclass(frozen=True)
class Forced:
    """Tokens that must stand at given steps: `at` maps a step, from 0, to an id. It wins over rules before it."""

    at: Mapping[int, int]
    name = "forced"

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        token = self.at.get(written.ids.shape[1])
        return scores if token is None else _nothing_but(scores, token)


@dataclass(frozen=True)
class ForcedLast:
    """The token that an output ends with if it runs to its limit, EOS for one; `most` is `max_new_tokens`."""

    token: int
    most: int | Sequence[int]
    name = "forced at the limit"

    def __call__(self, scores: Tensor, written: Written) -> Tensor:
        """(R,V) -> (R,V)."""
        step = written.ids.shape[1]
        last = [(self.most if isinstance(self.most, int) else self.most[row]) == step + 1 for row in written.rows]
        if not any(last):
            return scores
        here = torch.tensor(last, device=scores.device).unsqueeze(1)
        return torch.where(here, _nothing_but(scores, self.token), scores)


@dataclass(frozen=True)
class StopStrings:
    """For `generate(stop=...)`: an output ends with the token that completes any of these strings in its text.

    `text` turns ids into text. The ids keep that token, so `cut` ends the text before the string.
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
        """The text up to the string that is complete first; all of it where there is none."""
        met = [(text.find(string) + len(string), text.find(string)) for string in self.strings if string in text]
        return text[: min(met)[1]] if met else text


def _before(written: Written, prompt: bool) -> Tensor:
    """What stands before each row, (R,L), those with a shorter prompt padded on the left."""
    if not prompt or not written.prompts:
        return written.ids
    prompts = [written.prompts[row] for row in written.rows]
    longest = max(map(len, prompts), default=0)
    padded = [[_NOTHING] * (longest - len(one)) + list(one) for one in prompts]
    shape = (len(prompts), longest)
    return torch.cat([torch.tensor(padded, dtype=torch.long, device=written.ids.device).view(shape), written.ids], 1)


def _marked(ids: Tensor, vocab_size: int) -> Tensor:
    """ids (R,L) -> boolean (R,V), where they stand in the vocabulary; what is outside it is passed over."""
    marked = torch.zeros(ids.shape[0], vocab_size + 1, dtype=torch.bool, device=ids.device)
    marked.scatter_(1, torch.where((ids < 0) | (ids > vocab_size), vocab_size, ids), True)
    return marked[:, :vocab_size]


def _nothing_but(scores: Tensor, token: int) -> Tensor:
    """All others forbidden; the token keeps its score, or has 0 where it was forbidden before."""
    if not 0 <= token < scores.shape[-1]:
        raise ValueError(f"a forced id must lie below {scores.shape[-1]}, the vocabulary: got {token}")
    own = scores[:, token]
    out = torch.full_like(scores, float("-inf"))
    out[:, token] = torch.where(own == float("-inf"), torch.zeros_like(own), own)
    return out
