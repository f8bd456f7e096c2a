"""A lane: greedy search and sampling for outputs that come and go between steps, each with a request of its own.

An output is what `greedy.greedy` and `sampling.sample` write for the same request, whatever is beside it: the rows of
one step share the network and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from atento.decoding.choosing import apply_rules, best_token, hypothesis, most_probable, no_distribution
from atento.decoding.contract import Request
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.running import RunningBatch
from atento.decoding.sampling import Drawn, draw, end_of
from atento.decoding.seeds import stream_key
from atento.decoding.strategies import Greedy, Sample

_GREEDY = Sample(temperature=0.0)


@dataclass(eq=False)
class Output:
    """One output in a lane.

    Attributes:
        input_ids: the source, or the prompt.
        strategy: greedy search, or sampling.
        request: of this output alone: its lists have one entry.
        number: of the sample, where the input has several.
        top: how many of the most probable tokens are recorded beside each token.
        drawn: its tokens so far.
        has_ended: no token will follow.
        error: why it failed.
    """

    input_ids: Sequence[int]
    strategy: Greedy | Sample
    request: Request
    number: int = 0
    top: int = 0
    drawn: list[Drawn] = field(default_factory=list)
    has_ended: bool = False
    error: Exception | None = None
    _ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.filters = _GREEDY if isinstance(self.strategy, Greedy) else self.strategy
        self.key = 0 if self.filters.temperature == 0 else stream_key(self.request.seeds[0], self.number)
        self.has_ended = self.request.max_new_tokens[0] < 1

    def scores(self, logits: Tensor) -> Tensor:
        """The logits (1,V) of its next token after its rules."""
        written = torch.tensor([[token.id for token in self.drawn]], dtype=torch.long, device=logits.device)
        return apply_rules(logits, self.request, [0], written, len(self.drawn))

    @property
    def has_rules(self) -> bool:
        """Whether `scores` changes anything at its next token."""
        return bool(self.request.rules) or len(self.drawn) < self.request.min_new_tokens

    def append(self, token: int, log_prob: float, top: tuple[tuple[int, float], ...] = ()) -> Drawn | None:
        """Add a token; None if the stop function fails, and so the output."""
        limit = self.request.max_new_tokens[0]
        try:
            end = end_of(token, self._ids, len(self.drawn) + 1, limit, self.request)
        except Exception as error:
            self.fail(error)
            return None
        self.drawn.append(Drawn(0, self.number, token, log_prob, end, top))
        self.has_ended = end is not None
        return self.drawn[-1]

    def fail(self, error: Exception) -> None:
        """End with an error, which is that of this output alone."""
        self.error, self.has_ended = error, True

    @property
    def hypothesis(self) -> Hypothesis:
        """What was written."""
        end = self.drawn[-1].end if self.drawn else None
        ids = [token.id for token in self.drawn if token.end != "eos"]
        return hypothesis(ids, [token.log_prob for token in self.drawn], end in ("eos", "stop"), 0.0)


@dataclass
class _Input:
    """An input with its outputs, which begin when it was read."""

    outputs: list[Output]
    reading: Any


class Lane:
    """The outputs that are being written by one network.

    Args:
        batch: its rows are those of the outputs.
        part: about so many tokens of inputs are read between two steps, so that long ones do not hold up the others.
        most: outputs that are written at a time; further ones wait.
        device: of the network.
    """

    def __init__(self, batch: RunningBatch, *, part: int, most: int, device: torch.device) -> None:
        self.batch, self.part, self.most, self.device = batch, part, most, device
        self.outputs: list[Output] = []  # those of the rows of the batch, in their order
        self.tokens = torch.empty(0, dtype=torch.long, device=device)  # what the next step reads
        self._new: list[Output] = []
        self._inputs: list[_Input] = []  # those that are being read

    def add(self, outputs: Sequence[Output]) -> None:
        """Let outputs begin, the samples of one input side by side."""
        self._new += [output for output in outputs if not output.has_ended]

    def drop(self, outputs: Sequence[Output]) -> None:
        """End outputs; they leave before the next step."""
        for output in outputs:
            output.has_ended = True

    @property
    def rows(self) -> int:
        """The number of outputs that have not ended."""
        outputs = chain(self.outputs, *(one.outputs for one in self._inputs), self._new)
        return sum(not output.has_ended for output in outputs)

    def step(self) -> list[tuple[Output, Drawn | None]]:
        """One token of each output, or part of a prompt; None for an output that ended without another token."""
        self._begin_new()
        self._change_rows()
        if not self.outputs:
            return []
        logits = self.batch.step(self.tokens)
        log_probs = torch.log_softmax(logits, dim=-1)
        self._fail_where_not_numbers(log_probs)
        allowed = self._after_rules(logits)
        live = [row for row, output in enumerate(self.outputs) if not output.has_ended]
        self.tokens = self._chosen(allowed, live)
        chosen_log_probs = log_probs.gather(1, self.tokens.unsqueeze(1)).squeeze(1).tolist()
        is_live, steps = set(live), list[tuple[Output, Drawn | None]]()
        for row, (output, token) in enumerate(zip(self.outputs, self.tokens.tolist())):
            top = most_probable(log_probs[row], output.top) if output.top and row in is_live else ()
            steps.append((output, output.append(token, chosen_log_probs[row], top) if row in is_live else None))
        return steps

    def _begin_new(self) -> None:
        """Begin to read the inputs of new outputs."""
        self._new = [output for output in self._new if not output.has_ended]
        room = max(0, self.most - (self.rows - len(self._new)))
        by_input: dict[int, list[Output]] = {}
        for output in self._new[:room]:
            by_input.setdefault(id(output.input_ids), []).append(output)
        self._new = self._new[room:]
        for outputs in by_input.values():
            self._inputs.append(_Input(outputs, self.batch.reading(outputs[0].input_ids)))

    def _change_rows(self) -> None:
        """Drop the outputs that have ended, read a part of the inputs, and take in the outputs whose input was read."""
        rows = moved_up([not output.has_ended for output in self.outputs])
        if len(rows) < len(self.outputs):
            self.outputs, self.tokens = [self.outputs[row] for row in rows], self.tokens[rows]
            self.batch.keep(rows)
        for one in self._inputs:
            one.outputs = [output for output in one.outputs if not output.has_ended]
        self._inputs = [one for one in self._inputs if one.outputs]
        self.batch.read([one.reading for one in self._inputs], self.part)
        joining = [one for one in self._inputs if one.reading.is_read]
        self._inputs = [one for one in self._inputs if not one.reading.is_read]
        if joining:
            readings = [one.reading for one in joining for _ in one.outputs]
            self.batch.join(readings)
            self.outputs += [output for one in joining for output in one.outputs]
            first = torch.tensor([reading.first for reading in readings], dtype=torch.long, device=self.device)
            self.tokens = torch.cat([self.tokens, first])

    def _fail_where_not_numbers(self, log_probs: Tensor) -> None:
        """End the outputs whose logits are NaN or infinite; they fail."""
        broken = log_probs[:, 0].isnan()  # then all of the row are
        if bool(broken.any()):
            for row in broken.nonzero().flatten().tolist():
                self.outputs[row].fail(no_distribution(0, len(self.outputs[row].drawn)))

    def _after_rules(self, logits: Tensor) -> Tensor:
        """The logits (R,V) after the rules of each output; one for which they leave no token, or fail, ends."""
        rows = [row for row, output in enumerate(self.outputs) if output.has_rules and not output.has_ended]
        if not rows:
            return logits
        allowed = logits.clone()
        for row in rows:
            try:
                allowed[row] = self.outputs[row].scores(logits[row : row + 1])[0]
                self.outputs[row].has_ended = bool(allowed[row].amax() == float("-inf"))
            except Exception as error:
                self.outputs[row].fail(error)
        return allowed

    def _chosen(self, allowed: Tensor, live: list[int]) -> Tensor:
        """A token of each live output; rows with the same filters are drawn together. 0 for the others."""
        by_filters: dict[Sample, list[int]] = {}
        for row in live:
            by_filters.setdefault(self.outputs[row].filters, []).append(row)
        tokens = torch.zeros(len(self.outputs), dtype=torch.long, device=self.device)
        for filters, rows in by_filters.items():
            index = torch.tensor(rows, device=self.device)
            scores = allowed if len(rows) == len(tokens) else allowed[index]
            if filters.temperature == 0:
                tokens[index] = best_token(scores)
            else:
                keys = torch.tensor([self.outputs[row].key for row in rows], device=self.device)
                positions = torch.tensor([len(self.outputs[row].drawn) for row in rows], device=self.device)
                tokens[index] = draw(scores, filters, keys, positions)
        return tokens


def moved_up(live: Sequence[bool]) -> list[int]:
    """The numbers of the live rows, in an order in which the last ones take the slots of those that have ended."""
    rows = [row for row, is_live in enumerate(live) if is_live]
    last = iter(row for row in reversed(rows) if row >= len(rows))
    return [row if live[row] else next(last) for row in range(len(rows))]
