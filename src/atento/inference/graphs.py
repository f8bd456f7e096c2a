"""The step function with CUDA graphs: caches with fixed memory, so that a GPU captures a step once and replays it.

A step of a small network is some hundred short kernels, and launching them one by one takes longer than running them; a
captured graph launches all of them at once. For that, no tensor in it may move or change its shape: caches have room
for more tokens than there are, a mask marks the used columns, and finished outputs leave the batch only when half of it
is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.inference.fast import FastStepFunction
from atento.inference.fast_state import StepPositions
from atento.inference.packed_linear import Precision
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder

ROOM = 64  # tokens that a cache has room for at first; it grows by as many again
WARM_UP = 3  # steps on new memory before the capture: what libraries set up at first use must not be in the graph
_DEVICE = Lock()  # no thread may launch a step while another thread captures one


@dataclass
class Buffers:
    """The memory of a step with P slots for outputs and room for C tokens; its addresses never change.

    `positions` holds the rotations and biases of the current token; `mask` (P,1,1,C) is 0 where there is a token, else
    -inf. Buffers belong to the states of one search: `version` counts the steps on them, and a state of an earlier
    version is refused.
    """

    keys: list[Tensor]  # (P,Hkv,C,K) each
    values: list[Tensor]
    source: list[tuple[Tensor, Tensor]]  # (P,Hkv,S,K) each
    source_mask: Tensor | None  # (P,1,1,S)
    mask: Tensor
    column: Tensor  # (1,): the column of the current token
    x: Tensor | None = None  # (P,D)
    positions: StepPositions | None = None
    logits: Tensor | None = None  # (P,V)
    graph: torch.cuda.CUDAGraph | None = None
    n_steps: int = 0  # on this memory
    version: int = 0

    @property
    def slots(self) -> int:
        """How many outputs there is room for."""
        return self.mask.shape[0]

    @property
    def room(self) -> int:
        """How many tokens there is room for."""
        return self.mask.shape[3]

    def copied(self, rows: Tensor, room: int) -> Buffers:
        """A copy of those rows, in new memory with room for `room` tokens."""

        def longer(old: Tensor) -> Tensor:
            new = old.new_zeros(len(rows), old.shape[1], room, old.shape[3])  # zeros: masked numbers must be finite
            new[:, :, : old.shape[2]] = old.index_select(0, rows)  # (R,Hkv,room,K)
            return new

        mask = self.mask.new_full((len(rows), 1, 1, room), float("-inf"))  # (R,1,1,room)
        mask[..., : self.room] = self.mask.index_select(0, rows)
        return Buffers(
            [longer(tensor) for tensor in self.keys],
            [longer(tensor) for tensor in self.values],
            [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in self.source],
            None if self.source_mask is None else self.source_mask.index_select(0, rows),
            mask,
            self.column.clone(),
        )

    def take(self, rows: Tensor) -> None:
        """Replace the content of the slots by those rows (P,)."""
        pairs = [tensor for pair in self.source for tensor in pair]
        masks = [self.mask] if self.source_mask is None else [self.mask, self.source_mask]
        for tensor in (*self.keys, *self.values, *pairs, *masks):
            tensor.copy_(tensor.index_select(0, rows))


@dataclass
class GraphState:
    """The state of R outputs. Only the newest state of a search can be stepped: all of them share their buffers."""

    buffers: Buffers
    count: int  # R
    length: int
    starts: Tensor | None = None  # (R,): the positions of the first tokens, where they differ
    rows: Tensor | None = None  # (R,) of the slots, selected before the next step; None: the first R
    version: int = 0
    is_initial: bool = False  # no token was written yet: a search may continue from this state any number of times

    def select(self, rows: Tensor) -> GraphState:
        """Only those outputs, in that order; they are copied at the next step."""
        selected_rows = rows if self.rows is None else self.rows.index_select(0, rows)
        starts = None if self.starts is None else self.starts.index_select(0, rows)
        return GraphState(self.buffers, len(rows), self.length, starts, selected_rows, self.version, self.is_initial)


class GraphStepFunction:
    """The fast step function with fixed shapes: each step one graph on a GPU; on a CPU the same steps, not captured.

    Every output has a cache of its own, also those of one beam, because a GPU copies memory fast. A search that
    continues from several states of one past (the exact search) needs another step function.

    Raises:
        CapabilityError: the network has a part that is not supported; int8; a state that is not the newest.
    """

    def __init__(self, network: EncoderDecoder | Decoder, precision: Precision = "float32") -> None:
        if precision not in ("float32", "bfloat16"):
            raise CapabilityError(f"graphs are for float32 and bfloat16: got {precision}")
        self.fast = FastStepFunction(network, precision)
        self.network, self.precision = network, precision
        self.start_id, self.pad_id = self.fast.start_id, self.fast.pad_id
        self.eos_id, self.eos_ids = self.fast.eos_id, self.fast.eos_ids
        self.first_tokens, self.show = self.fast.first_tokens, self.fast.show

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> GraphState:
        """ids (B,S), sources or prompts -> the state of B rows."""
        with _DEVICE:
            read = self.fast.begin(ids, token_mask)
            room = max(ROOM, read.length)
            mask = torch.full((len(ids), 1, 1, room), float("-inf"), dtype=self.fast.cache_dtype, device=ids.device)
            mask[..., : read.length] = 0.0 if read.mask is None else read.mask[:, :, None, : read.length]
            column = torch.zeros(1, dtype=torch.long, device=ids.device)
            keys, values = (
                [tensor[:, :, : read.length] for tensor in part] for part in (read.cache.keys, read.cache.values)
            )
            buffers = Buffers(keys, values, read.source, read.source_mask, mask, column)
            return GraphState(buffers, len(ids), read.length, read.starts, is_initial=True)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: GraphState) -> tuple[Tensor, GraphState]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        for column in [tokens] if tokens.dim() == 1 else tokens.unbind(1):
            with _DEVICE:
                logits = self._advance(column, state)
                # a copy, because the next step writes to the same memory
                logits = logits[: state.count].to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        return logits, state

    def _advance(self, tokens: Tensor, state: GraphState) -> Tensor:
        """One token of each output: tokens (R,) -> logits (P,V), in memory that the next step writes again."""
        buffers = _writable(state)
        empty = buffers.slots - state.count  # these slots repeat the first output

        def filled(rows: Tensor) -> Tensor:
            return torch.cat([rows, rows[:1].expand(empty, *rows.shape[1:])]) if empty else rows

        starts = None if state.starts is None else filled(state.starts)
        buffers.column.fill_(state.length)
        buffers.mask[..., state.length] = 0.0  # the new column may be read from now on
        x = self.fast.embed(filled(tokens), state.length, starts)  # (P,D)
        of_rows = None if starts is None else starts.unsqueeze(1)  # (P,1)
        positions = self.fast.step_positions(state.length, buffers.room, of_rows, buffers.mask)
        masked = {id(bias): bias + buffers.mask for bias in positions.biases if bias is not None}  # layers share it
        biases: list[Tensor | None] = [buffers.mask if bias is None else masked[id(bias)] for bias in positions.biases]
        positions = StepPositions(positions.rotations, biases)
        if buffers.x is None or buffers.positions is None:
            buffers.x, buffers.positions = x, positions  # their memory is that of the graph from here on
        else:
            buffers.x.copy_(x)
            copied = set()
            for old, new in zip(_tensors(buffers.positions), _tensors(positions)):
                if old is not new and id(old) not in copied:  # layers share them
                    old.copy_(new)
                    copied.add(id(old))
        state.length += 1
        return self._run(buffers)

    def _run(self, buffers: Buffers) -> Tensor:
        """A step on these buffers: first computed, then captured, then replayed."""
        buffers.n_steps += 1
        if buffers.column.device.type != "cuda" or buffers.n_steps <= WARM_UP:
            return self.compute(buffers)
        device = buffers.column.device
        with torch.cuda.device(device):
            if buffers.graph is None:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                # other threads may allocate memory for their searches during the capture
                with torch.cuda.graph(graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"):
                    buffers.logits = self.compute(buffers)
                buffers.graph = graph
            buffers.graph.replay()
        assert buffers.logits is not None
        return buffers.logits

    def compute(self, buffers: Buffers) -> Tensor:
        """The captured computation: logits (P,V) from these buffers; Python reads none of their values."""
        assert buffers.x is not None and buffers.positions is not None

        def extend(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = buffers.keys[layer], buffers.values[layer]
            column = buffers.column
            return keys.index_copy_(2, column, k.to(keys)), values.index_copy_(2, column, v.to(values))

        attend = self.fast.self_attention(1, buffers.positions, extend)
        hidden = self.fast.run_layers(buffers.x, attend, buffers.source, buffers.source_mask)  # (P,D)
        return self.fast.project(self.fast.read_output(hidden))  # (P,V)


def _writable(state: GraphState) -> Buffers:
    """The buffers of that state with its rows selected and room for one more token; the state becomes the newest."""
    buffers = state.buffers
    if state.version != buffers.version:
        raise CapabilityError(
            "this state is not the newest: with graphs, only the newest state of a search can be stepped; use plain or "
            "fast steps"
        )
    fits = not state.is_initial and state.length < buffers.room and buffers.slots // 2 < state.count <= buffers.slots
    rows = state.rows
    if not fits:
        rows = torch.arange(state.count, device=buffers.mask.device) if rows is None else rows
        room = max(buffers.room, -(-(state.length + 1) // ROOM) * ROOM)  # ceil, to whole ROOMs
        buffers = buffers.copied(rows, room)
        state.buffers, state.is_initial = buffers, False
    elif rows is not None:
        buffers.take(torch.cat([rows, rows[:1].expand(buffers.slots - state.count)]))
    buffers.version += 1
    state.version, state.rows = buffers.version, None
    return buffers


def _tensors(positions: StepPositions) -> list[Tensor]:
    """The tensors of `positions` that change from token to token, always in the same order."""
    rotation_tensors = [
        tensor for rotations in positions.rotations for rotation in rotations for tensor in (rotation.cos, rotation.sin)
    ]
    return [*rotation_tensors, *[tensor for tensor in positions.biases if tensor is not None]]
