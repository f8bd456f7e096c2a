"""Fast steps of fixed shapes: caches that stay where they are, so that a GPU captures a step once and replays it.

A step of a small network is some hundred short kernels, and a GPU waits for each to be asked for; a captured graph asks
for all of them at once (CUDA graphs). For that, nothing in it may move or change its shape: caches have room for more
tokens than there are, a mask says which, and outputs that end leave the batch only when half of it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atento.errors import CapabilityError
from atento.networks.steps.fast import FastSteps, Told
from atento.networks.steps.fast_state import FastState

ROOM = 64  # tokens that a cache has room for at first; it grows by as many again
WARM = 3  # steps on new memory before they are captured: what libraries set up at first use must not be in the graph


@dataclass
class Fixed:
    """What a step of P places reads and writes, always in the same memory; C tokens fit in.

    `told` holds the rotations and biases of the token at hand, `seen` (P,1,1,C) 0 where a token stands, else -inf.
    """

    keys: list[Tensor]  # (P,Hkv,C,K) each
    values: list[Tensor]
    source: list[tuple[Tensor, Tensor]]  # (P,Hkv,S,K) each
    source_mask: Tensor | None  # (P,1,1,S)
    seen: Tensor
    column: Tensor  # (1,): the place of the token at hand
    x: Tensor | None = None  # (P,D)
    told: Told | None = None
    logits: Tensor | None = None  # (P,V)
    graph: Any = None
    steps: int = 0  # taken on this memory
    version: int = 0  # of what stands in it: a state that has been overtaken is refused

    @property
    def places(self) -> int:
        """How many outputs there is room for."""
        return self.seen.shape[0]

    @property
    def room(self) -> int:
        """How many tokens there is room for."""
        return self.seen.shape[3]

    def moved(self, rows: Tensor, room: int) -> Fixed:
        """Those rows, in new memory with room for `room` tokens."""

        def longer(old: Tensor) -> Tensor:
            new = old.new_zeros(len(rows), old.shape[1], room, old.shape[3])  # zeros: unseen numbers must be finite
            new[:, :, : old.shape[2]] = old.index_select(0, rows)
            return new

        seen = self.seen.new_full((len(rows), 1, 1, room), float("-inf"))
        seen[..., : self.room] = self.seen.index_select(0, rows)
        return Fixed(
            [longer(one) for one in self.keys],
            [longer(one) for one in self.values],
            [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.source],
            None if self.source_mask is None else self.source_mask.index_select(0, rows),
            seen,
            self.column.clone(),
        )

    def take(self, rows: Tensor) -> None:
        """Those rows (P,) in place of what stood here."""
        pairs = [one for pair in self.source for one in pair]
        masks = [self.seen] if self.source_mask is None else [self.seen, self.source_mask]
        for one in (*self.keys, *self.values, *pairs, *masks):
            one.copy_(one.index_select(0, rows))


@dataclass
class FixedState:
    """Where R outputs stand. Only the newest state of a search can be stepped: the memory behind it is one."""

    fixed: Fixed
    count: int  # R
    length: int
    starts: Tensor | None = None  # (R,): the positions of the first tokens, where they differ
    rows: Tensor | None = None  # (R,) of the places, what is to be taken before the next step; None: the first R
    version: int = 0
    begun: bool = False  # nothing was written yet: what was read may be gone on from any number of times

    def select(self, rows: Tensor) -> FixedState:
        """Only those outputs, in that order; copied when they are next stepped."""
        taken = rows if self.rows is None else self.rows.index_select(0, rows)
        starts = None if self.starts is None else self.starts.index_select(0, rows)
        return FixedState(self.fixed, len(rows), self.length, starts, taken, self.version, self.begun)


class GraphSteps(FastSteps):
    """`begin`, `step`, `end` as `FastSteps`, each step one graph on a GPU; on the CPU the same steps, not captured.

    Every output has a cache of its own, also those of one beam: memory is what a GPU reads fastest. Searches that go
    on from several states of one past (the exact one) need the plain steps.

    Raises:
        CapabilityError: something about the network has no fast path; int8; a state that another has overtaken.
    """

    def __init__(self, network: Any, precision: str = "float32") -> None:
        if precision not in ("float32", "bfloat16"):
            raise CapabilityError(f"graphs are for float32 and bfloat16: got {precision}")
        super().__init__(network, precision)  # type: ignore[arg-type]

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> FixedState:  # type: ignore[override]
        """ids (B,S), a source or prompts -> the state of B rows."""
        read: FastState = super().begin(ids, token_mask)
        room = max(ROOM, read.length)
        seen = torch.full((len(ids), 1, 1, room), float("-inf"), dtype=self.kept, device=ids.device)
        seen[..., : read.length] = 0.0 if read.seen is None else read.seen[:, :, None, : read.length]
        column = torch.zeros(1, dtype=torch.long, device=ids.device)
        keys, values = ([one[:, :, : read.length] for one in part] for part in (read.cache.keys, read.cache.values))
        fixed = Fixed(keys, values, read.source, read.source_mask, seen, column)
        return FixedState(fixed, len(ids), read.length, read.starts, begun=True)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        for column in [tokens] if tokens.dim() == 1 else tokens.unbind(1):
            logits = self._next(column, state)
        return logits[: state.count].to(torch.promote_types(logits.dtype, torch.float32), copy=True), state

    def _next(self, tokens: Tensor, state: FixedState) -> Tensor:
        """One token of each output: tokens (R,) -> logits (P,V), in memory that the next step writes again."""
        fixed = _ready(state)
        more = fixed.places - state.count  # places that nobody needs do as the first does

        def filled(rows: Tensor) -> Tensor:
            return torch.cat([rows, rows[:1].expand(more, *rows.shape[1:])]) if more else rows

        starts = None if state.starts is None else filled(state.starts)
        fixed.column.fill_(state.length)
        fixed.seen[..., state.length] = 0.0
        x = self._read_in(filled(tokens), state.length, starts)
        told = self._told(state.length, fixed.room, None if starts is None else starts.unsqueeze(1), fixed.seen)
        joined = {id(one): one + fixed.seen for one in told.biases if one is not None}
        told = Told(told.turns, [fixed.seen if one is None else joined[id(one)] for one in told.biases])
        if fixed.x is None or fixed.told is None:
            fixed.x, fixed.told = x, told
        else:
            fixed.x.copy_(x)
            done = set()
            for old, new in zip(_tensors(fixed.told), _tensors(told)):
                if old is not new and id(old) not in done:  # layers share them
                    old.copy_(new)
                    done.add(id(old))
        state.length += 1
        return self._captured(fixed)

    def _captured(self, fixed: Fixed) -> Tensor:
        """The step on that memory: as it comes at first, then captured, then replayed."""
        fixed.steps += 1
        if fixed.column.device.type != "cuda" or fixed.steps <= WARM:
            return self.compute(fixed)
        device = fixed.column.device
        with torch.cuda.device(device):
            if fixed.graph is None:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=torch.cuda.Stream(device)):
                    fixed.logits = self.compute(fixed)
                fixed.graph = graph
            fixed.graph.replay()
        assert fixed.logits is not None
        return fixed.logits

    def compute(self, fixed: Fixed) -> Tensor:
        """What is captured: logits (P,V) of what stands in that memory; no number of it is looked at in Python."""
        assert fixed.x is not None and fixed.told is not None

        def kept(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = fixed.keys[layer], fixed.values[layer]
            return keys.index_copy_(2, fixed.column, k.to(keys)), values.index_copy_(2, fixed.column, v.to(values))

        hidden = self._through(fixed.x, 1, fixed.told, kept, fixed.source, fixed.source_mask)
        return self.project(self.read_output(hidden))


def _ready(state: FixedState) -> Fixed:
    """The memory of that state with its rows in place and room for one more token; the state is the newest then."""
    fixed = state.fixed
    if state.version != fixed.version:
        raise CapabilityError("this state was overtaken: graphs hold one past only; take the network's plain steps")
    fits = not state.begun and state.length < fixed.room and fixed.places // 2 < state.count <= fixed.places
    rows = state.rows
    if not fits:
        rows = torch.arange(state.count, device=fixed.seen.device) if rows is None else rows
        room = max(fixed.room, -(-(state.length + 1) // ROOM) * ROOM)
        fixed = fixed.moved(rows, room)
        state.fixed, state.begun = fixed, False
    elif rows is not None:
        fixed.take(torch.cat([rows, rows[:1].expand(fixed.places - state.count)]))
    fixed.version += 1
    state.version, state.rows = fixed.version, None
    return fixed


def _tensors(told: Told) -> list[Tensor]:
    """Those of it that change from token to token, always in the same order."""
    turned = [one for turns in told.turns for turn in turns for one in (turn.cos, turn.sin)]
    return [*turned, *[one for one in told.biases if one is not None]]
