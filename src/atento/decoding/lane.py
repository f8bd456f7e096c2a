"""A lane: greedy search and sampling for outputs that come and go between steps, each with a request of its own.

An output is what `greedy.greedy` and `sampling.sample` write for the same request, whatever is beside it: the rows of
one step share the network and nothing else.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from atento.decoding.choosing import apply_rules, best_token, hypothesis, no_distribution
from atento.decoding.contract import Joining, Request, StepFunction, first_tokens
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.sampling import Drawn, draw, end_of
from atento.decoding.seeds import stream_key
from atento.decoding.strategies import Greedy, Sample
from atento.errors import AtentoError

_GREEDY = Sample(temperature=0.0)
_ALIKE = 1.25  # inputs that are read together differ in length by at most this factor
_SHARE, _STEPS = 8, 4  # rows change when one in 8 does, or after 4 steps: each time, all of the state is copied


@dataclass(eq=False)
class Output:
    """One output in a lane.

    Attributes:
        input_ids: the source, or the prompt.
        strategy: greedy search, or sampling.
        request: of this output alone: its lists have one entry.
        number: of the sample, where the input has several.
        drawn: its tokens so far.
        has_ended: no token will follow.
        error: why it failed.
    """

    input_ids: Sequence[int]
    strategy: Greedy | Sample
    request: Request
    number: int = 0
    drawn: list[Drawn] = field(default_factory=list)
    has_ended: bool = False
    error: AtentoError | None = None
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

    def append(self, token: int, log_prob: float) -> Drawn:
        """Add a token."""
        limit = self.request.max_new_tokens[0]
        end = end_of(token, self._ids, len(self.drawn) + 1, limit, self.request)
        self.drawn.append(Drawn(0, self.number, token, log_prob, end))
        self.has_ended = end is not None
        return self.drawn[-1]

    @property
    def hypothesis(self) -> Hypothesis:
        """What was written."""
        end = self.drawn[-1].end if self.drawn else None
        ids = [token.id for token in self.drawn if token.end != "eos"]
        return hypothesis(ids, [token.log_prob for token in self.drawn], end in ("eos", "stop"), 0.0)


@dataclass
class _Begun:
    """Outputs whose inputs were read: what they read first (R,), and their state."""

    outputs: list[Output]
    first: Tensor
    state: Any


class Lane:
    """The outputs that are being written by one step function.

    Args:
        step_function: one whose states can be joined.
        part: about so many tokens of inputs are read between two steps, so that long ones do not hold up the others.
        most: outputs that are written at a time; further ones wait.
        device: of the network.
    """

    def __init__(self, step_function: StepFunction[Any], *, part: int, most: int, device: torch.device) -> None:
        assert isinstance(step_function, Joining)
        self.step_function, self.part, self.most, self.device = step_function, part, most, device
        self.outputs: list[Output] = []  # those in `state`, in its order
        self.state: Any = None
        self.tokens = torch.empty(0, dtype=torch.long, device=device)  # what the next step reads
        self._new: list[Output] = []
        self._begun: list[_Begun] = []  # the outputs whose inputs were read, and that are not in `state` yet
        self._unchanged = 0  # steps since the rows of `state` changed
        self._reading: deque[tuple[list[Output], Iterator[Any]]] = deque()

    def add(self, outputs: Sequence[Output]) -> None:
        """Let outputs begin, the samples of one input side by side."""
        self._new += [output for output in outputs if not output.has_ended]

    def drop(self, outputs: Sequence[Output]) -> None:
        """End outputs; they leave before the next step."""
        for output in outputs:
            output.has_ended = True
        self._unchanged = _STEPS

    @property
    def rows(self) -> int:
        """The number of outputs that have not ended."""
        outputs = chain(self.outputs, *(outputs for outputs, _ in self._reading), self._new)
        begun = (output for begun in self._begun for output in begun.outputs)
        return sum(not output.has_ended for output in chain(outputs, begun))

    def step(self) -> list[tuple[Output, Drawn | None]]:
        """One token of each output, or part of a prompt; None for an output that ended without another token."""
        self._begin_new()
        self._read_part()
        self._change_rows()
        if not self.outputs:
            return []
        logits, self.state = self.step_function.step(self.tokens, self.state)
        log_probs = torch.log_softmax(logits, dim=-1)
        self._fail_where_not_numbers(log_probs)
        allowed = self._after_rules(logits)
        live = [row for row, output in enumerate(self.outputs) if not output.has_ended]
        self.tokens = self._chosen(allowed, live)
        chosen_log_probs = log_probs.gather(1, self.tokens.unsqueeze(1)).squeeze(1).tolist()
        is_live, steps = set(live), list[tuple[Output, Drawn | None]]()
        for row, (output, token) in enumerate(zip(self.outputs, self.tokens.tolist())):
            steps.append((output, output.append(token, chosen_log_probs[row]) if row in is_live else None))
        return steps

    def _begin_new(self) -> None:
        """Begin to read the inputs of new outputs, those of like length together."""
        self._new = [output for output in self._new if not output.has_ended]
        room = max(0, self.most - (self.rows - len(self._new)))
        by_input: dict[int, list[Output]] = {}
        for output in self._new[:room]:
            by_input.setdefault(id(output.input_ids), []).append(output)
        self._new = self._new[room:]
        inputs = sorted(by_input.values(), key=lambda outputs: len(outputs[0].input_ids))
        while inputs:
            shortest = len(inputs[0][0].input_ids)
            alike = [outputs for outputs in inputs if len(outputs[0].input_ids) <= _ALIKE * shortest]
            batch = alike[: max(1, self.part // shortest)]
            inputs = inputs[len(batch) :]
            self._reading.append(([output for outputs in batch for output in outputs], self._read(batch)))

    def _read(self, batch: list[list[Output]]) -> Iterator[Any]:
        """Read inputs, each with its outputs: None after each part, then the state of the outputs and their tokens."""
        lengths = torch.tensor([len(outputs[0].input_ids) for outputs in batch], device=self.device)
        columns = torch.arange(int(lengths.max()), device=self.device)
        ids = torch.full((len(batch), len(columns)), self.step_function.pad_id, device=self.device)
        for row, outputs in enumerate(batch):
            ids[row, : len(outputs[0].input_ids)] = torch.tensor(list(outputs[0].input_ids), device=self.device)
        real = columns < lengths.unsqueeze(1)
        first = first_tokens(self.step_function, ids, real, None)
        for state in self.step_function.begin_in_parts(ids, real, self.part):
            yield None if state is None else (first, state)

    def _read_part(self) -> None:
        """Read about `part` tokens of the oldest inputs."""
        count = 0
        while self._reading and count < self.part:
            outputs, parts = self._reading[0]
            count += sum(map(len, {id(output.input_ids): output.input_ids for output in outputs}.values()))
            read = next(parts) if any(not output.has_ended for output in outputs) else ()
            if read is None:
                return  # a long prompt: its next part after the next step
            self._reading.popleft()
            if read:
                first, state = read
                inputs = list(dict.fromkeys(id(output.input_ids) for output in outputs))
                live = [output for output in outputs if not output.has_ended]
                rows = torch.tensor([inputs.index(id(output.input_ids)) for output in live], device=self.device)
                self._begun.append(_Begun(live, first[rows], state.select(rows)))

    def _change_rows(self) -> None:
        """Drop the outputs that have ended, and take in those that begin, unless these are too few to copy the rest."""
        rows = [row for row, output in enumerate(self.outputs) if not output.has_ended]
        changes = len(self.outputs) - len(rows) + sum(len(begun.outputs) for begun in self._begun)
        self._unchanged += 1
        if not changes or (rows and changes * _SHARE < len(self.outputs) and self._unchanged < _STEPS):
            return
        self._unchanged = 0
        if len(rows) < len(self.outputs):
            index = torch.tensor(rows, dtype=torch.long, device=self.device)
            self.outputs, self.tokens = [self.outputs[row] for row in rows], self.tokens[index]
            self.state = self.state.select(index) if rows else None
        if self._begun:
            states = [begun.state for begun in self._begun]
            self.state = self.step_function.joined(states if self.state is None else [self.state, *states])
            self.tokens = torch.cat([self.tokens, *(begun.first for begun in self._begun)])
            self.outputs += [output for begun in self._begun for output in begun.outputs]
            self._begun = []

    def _fail_where_not_numbers(self, log_probs: Tensor) -> None:
        """End the outputs whose logits are NaN or infinite; they fail."""
        broken = log_probs[:, 0].isnan()  # then all of the row are
        if bool(broken.any()):
            for row in broken.nonzero().flatten().tolist():
                self.outputs[row].error = no_distribution(0, len(self.outputs[row].drawn))
                self.outputs[row].has_ended = True

    def _after_rules(self, logits: Tensor) -> Tensor:
        """The logits (R,V) after the rules of each output; an output for which they leave no token ends."""
        rows = [row for row, output in enumerate(self.outputs) if output.has_rules and not output.has_ended]
        if not rows:
            return logits
        allowed = logits.clone()
        for row in rows:
            allowed[row] = self.outputs[row].scores(logits[row : row + 1])[0]
            self.outputs[row].has_ended = bool(allowed[row].amax() == float("-inf"))
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
