"""The tokens of a beam, stored as backpointers, which are followed only for outputs that are returned."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Finished:
    """A finished output: its rank in the search, and the live hypothesis that it extends by one token."""

    rank: float  # the sum of changed scores / length ** length_penalty
    step: int  # the step that finished it, from 0
    parent: int  # the row of that step that it extends
    token: int
    log_prob: float
    eos: bool  # the token is an end-of-sequence, not a part of the output


@dataclass
class _Step:
    """The tokens, log-probabilities and parents that one step appended: tensors until they are first read, then
    lists."""

    tokens: Tensor
    log_probs: Tensor
    parents: Tensor  # the row of this step that each extends
    remaining: list[int] | None = None  # the groups that continued to the next step; None: all
    lists: tuple[list[int], list[float], list[int]] | None = None

    def read(self) -> tuple[list[int], list[float], list[int]]:
        if self.lists is None:
            parts = (self.tokens, self.log_probs, self.parents)
            self.lists = tuple(part.flatten().tolist() for part in parts)  # type: ignore[assignment]
        assert self.lists is not None
        return self.lists


@dataclass
class Backpointers:
    """The tokens and pointers of every step, (U,w); the rows of a step count through its U groups, w slots each."""

    width: int
    steps: list[_Step] = field(default_factory=list)

    def append(self, tokens: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        """Append a step: tensors (U,w), `parents` as rows of that step."""
        self.steps.append(_Step(tokens, log_probs, parents))

    def select(self, remaining: list[int]) -> None:
        """Only these groups continue after the last step."""
        self.steps[-1].remaining = remaining

    def output(self, finished: Finished) -> tuple[list[int], list[float]]:
        """The ids of a finished output without EOS, and its log-probabilities with EOS's."""
        ids, log_probs = self.before(finished.step, finished.parent)
        return ids if finished.eos else [*ids, finished.token], [*log_probs, finished.log_prob]

    def before(self, step: int, row: int) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities of row `row` at the beginning of step number `step`."""
        return ([], []) if step == 0 else self.after(step - 1, self._row_before(step, row))

    def after(self, step: int, row: int) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities of row `row` at the end of step number `step`."""
        ids, scores = [], []
        while True:
            tokens, log_probs, parents = self.steps[step].read()
            ids.append(tokens[row])
            scores.append(log_probs[row])
            row = parents[row]
            if step == 0:
                return ids[::-1], scores[::-1]
            row = self._row_before(step, row)
            step -= 1

    def common(self, rows: Iterable[int], finished: Iterable[Finished]) -> tuple[list[int], list[float]]:
        """The ids and log-probabilities with which the rows of the last step and those finished outputs all begin."""
        extended: dict[int, set[int]] = {}  # by step, the rows after it that finished outputs extend
        for output in finished:
            if output.step == 0:  # it extends the empty hypothesis
                return [], []
            extended.setdefault(output.step - 1, set()).add(self._row_before(output.step, output.parent))
        step, met = len(self.steps) - 1, set(rows)
        while step > 0 and (len(met) > 1 or min(extended, default=step) < step):
            parents = self.steps[step].read()[2]
            met = {self._row_before(step, parents[row]) for row in met} | extended.get(step - 1, set())
            step -= 1
        return self.after(step, met.pop()) if len(met) == 1 else ([], [])

    def _row_before(self, step: int, row: int) -> int:
        """The row of step number `step` - 1 that became row `row`: finished groups have left in between."""
        remaining = self.steps[step - 1].remaining
        return row if remaining is None else remaining[row // self.width] * self.width + row % self.width
