"""How the beginnings of a beam hang together: one pointer back a step, followed only for what is handed out."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Ended:
    """An output that ended: how the search ranks it, and where its beginning stands."""

    rank: float  # the sum of changed scores / length ** length_penalty
    step: int  # the step that ended it, from 0
    parent: int  # the row of that step which it went on from
    token: int
    log_prob: float
    eos: bool  # the last token is an end-of-sequence, not a part of the output


@dataclass
class _Grown:
    """What one step wrote in each of its rows: tensors until somebody asks, then lists."""

    tokens: Tensor
    log_probs: Tensor
    parents: Tensor  # the row of this step that each went on from
    kept: list[int] | None = None  # the searches that went on to the next step; None: all
    lists: tuple[list[int], list[float], list[int]] | None = None

    def read(self) -> tuple[list[int], list[float], list[int]]:
        if self.lists is None:
            parts = (self.tokens, self.log_probs, self.parents)
            self.lists = tuple(part.flatten().tolist() for part in parts)  # type: ignore[assignment]
        assert self.lists is not None
        return self.lists


@dataclass
class Paths:
    """Every step's tokens and pointers, (U,w); rows count through the searches, w places each."""

    width: int
    steps: list[_Grown] = field(default_factory=list)

    def grow(self, tokens: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        """A step is done: (U,w) each, parents as rows of that step."""
        self.steps.append(_Grown(tokens, log_probs, parents))

    def keep(self, kept: list[int]) -> None:
        """After it only those searches go on."""
        self.steps[-1].kept = kept

    def ids_of(self, one: Ended) -> tuple[list[int], list[float]]:
        """An ended output: ids without EOS, log-probabilities with its."""
        ids, log_probs = self.behind(one.step, one.parent)
        return ids if one.eos else [*ids, one.token], [*log_probs, one.log_prob]

    def behind(self, step: int, row: int) -> tuple[list[int], list[float]]:
        """What stood in `row` when step number `step` began."""
        if step == 0:
            return [], []
        kept = self.steps[step - 1].kept
        if kept is not None:
            row = kept[row // self.width] * self.width + row % self.width
        return self.written(step - 1, row)

    def written(self, step: int, row: int) -> tuple[list[int], list[float]]:
        """What stands in `row` as step number `step` left it."""
        ids, scores = [], []
        while True:
            grown = self.steps[step]
            tokens, log_probs, parents = grown.read()
            ids.append(tokens[row])
            scores.append(log_probs[row])
            row = parents[row]
            if step == 0:
                return ids[::-1], scores[::-1]
            step -= 1
            kept = self.steps[step].kept
            if kept is not None:
                row = kept[row // self.width] * self.width + row % self.width
