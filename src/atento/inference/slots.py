"""The rows of a running batch on fast steps: each has a slot of a buffer, and is not copied where others come or go.

The keys and values of a row begin in the first column of its slot, and each row counts its own tokens; a mask hides the
columns behind them. A row that joins writes its prompt into the next free slot. Where rows leave, the last ones move
into their slots. Prompts are read in parts, which share the products of a step with the tokens of the rows.

The beams of a text have one slot: behind the prompt, w columns for each token that they have read, and a row of the
mask for the past of each beam. So beams are reordered in the mask alone, and they share the keys and values of the
source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atento.attention.relative_terms import QueryKeyPositions
from atento.inference.fast import FastStepFunction, SelfAttention
from atento.inference.fast_state import StepPositions
from atento.inference.onnx_steps import StepGraph
from atento.inference.prompts import PrefixCache, common_length
from atento.inference.slot_buffer import SlotBuffer

PATIENCE = 4  # steps of the rows that a source waits for others, because several are read faster together


@dataclass(eq=False)
class Reading:
    """An input that is being read for rows that will join.

    Attributes:
        keys, values: of every layer (1,Hkv,T,K), of a source, or of the prompt without its last token.
    """

    ids: Sequence[int]  # a source, or a prompt
    first: int  # the token that its rows read first
    is_read: bool = False  # whether its rows can join
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    length: int = 0  # the number of tokens of the prompt that were read


@dataclass
class _Part:
    """The next tokens of a prompt, as many as `count`."""

    reading: Reading
    count: int


class Slots:
    """The rows of one running batch (`atento.decoding.running.RunningBatch`), a slot for each group.

    Args:
        steps: the step function of the network; several batches may share it.
        memory: of prompts that were read before; None: each prompt is read by itself.
        width: w, the rows of a slot.

    Attributes:
        lengths: the number of tokens that the rows of each slot have read.
    """

    def __init__(self, steps: FastStepFunction, memory: PrefixCache | None = None, width: int = 1) -> None:
        self.steps, self.memory, self.width = steps, memory, width
        self.device = next(steps.embedding.parameters()).device
        self.lengths: list[int] = []
        # as `FastState` has it: where there are prompts, their keys and values are in the dtype of one output
        dtype = steps.beam_cache_dtype if width > 1 and steps.encoder is not None else steps.cache_dtype
        sizes = len(steps.layers), steps.kv_heads, steps.d_head, dtype, self.device
        self._past, self._sources = SlotBuffer(*sizes, width), SlotBuffer(*sizes)
        self._prompt_lengths: list[int] = []
        self._source_lengths: list[int] = []
        self._waited = 0  # steps that the first unread source has waited
        self._parts: list[_Part] = []  # what the next step reads beside the rows
        # With int8 all rows of a product share a scale: prompts must not change those of the rows.
        self._shares_steps = steps.precision != "int8"

    def reading(self, ids: Sequence[int]) -> Reading:
        """An input that is to be read."""
        return Reading(ids, ids[-1] if ids and self.steps.encoder is None else self.steps.start_id)

    @torch.inference_mode()
    def read(self, readings: Sequence[Reading], part: int) -> None:
        """Read about `part` tokens of the first inputs; those of prompts with the next step, if there are rows."""
        unread = [reading for reading in readings if not reading.is_read]
        if self.steps.encoder is not None:
            self._encode(unread, part)
            return
        self._parts = list(self._next_parts(unread, part))
        if self._parts and not (self.lengths and self._shares_steps):
            parts, self._parts = self._parts, []
            for together in [parts] if self._shares_steps else [[one] for one in parts]:
                self._run(None, together)

    @torch.inference_mode()
    def join(self, readings: Sequence[Reading]) -> None:
        """Append a slot for each of these inputs, which were read; an input may occur several times."""
        first, has_source = len(self.lengths), self.steps.encoder is not None
        self.lengths += [reading.length for reading in readings]
        self._prompt_lengths += [reading.length for reading in readings]
        self._past.fit(first, len(self.lengths), self._columns)
        if has_source:
            self._source_lengths += [len(reading.ids) for reading in readings]
            self._sources.fit(first, len(self.lengths), max(self._source_lengths))
        keys, values = [reading.keys for reading in readings], [reading.values for reading in readings]
        self._past.put(first, [reading.length for reading in readings], keys, values)
        if has_source:
            self._sources.put(first, [len(reading.ids) for reading in readings], keys, values)

    @torch.inference_mode()
    def keep(self, groups: Sequence[int]) -> None:
        """Only those slots, in that order; a slot moves forward, or stays where it is."""
        moved = [(old, new) for new, old in enumerate(groups) if old != new]
        self.lengths = [self.lengths[slot] for slot in groups]
        self._prompt_lengths = [self._prompt_lengths[slot] for slot in groups]
        self._past.move(moved)
        self._past.fit(len(groups), len(groups), self._columns)
        if self.steps.encoder is not None:
            self._source_lengths = [self._source_lengths[slot] for slot in groups]
            self._sources.move(moved)
            self._sources.fit(len(groups), len(groups), max(self._source_lengths, default=0))

    @torch.inference_mode()
    def reorder(self, parents: Tensor) -> None:
        """Each row continues a row of its slot from now on: `parents` (S,w)."""
        self._past.reorder(parents)

    @property
    def _next_columns(self) -> list[int]:
        """The first column of each slot that the next token takes."""
        return [prompt + (length - prompt) * self.width for prompt, length in zip(self._prompt_lengths, self.lengths)]

    @property
    def _columns(self) -> int:
        """How many columns the slots need for the next token."""
        return max(self._next_columns, default=0) + self.width

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """tokens (S·w,) -> logits (S·w,V) of what comes next in each row, in float32 at least."""
        parts, self._parts = self._parts, []
        graph = None if parts else self.steps.graph_for(len(tokens), max(self.lengths))
        if graph is not None:
            return self._graph_step(graph, tokens)
        with self.steps.threads(len(tokens) + sum(part.count for part in parts)):
            hidden = self._run(tokens, parts)
            logits = self.steps.project(self.steps.read_output(hidden[: len(tokens)]))  # (S·w,V)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    # Inputs

    def _encode(self, unread: Sequence[Reading], part: int) -> None:
        """Encode about `part` tokens of sources, once there are half as many as rows, or after `PATIENCE` steps."""
        if 2 * len(unread) < len(self.lengths) and self._waited < PATIENCE:
            self._waited += bool(unread)
            return
        steps, taken, count = self.steps, list[Reading](), 0
        for reading in unread:
            if count >= part:
                break
            taken.append(reading)
            count += len(reading.ids)
        self._waited = 0 if len(taken) == len(unread) else PATIENCE
        if not taken:
            return
        taken.sort(key=lambda reading: -len(reading.ids))  # the encoder groups rows of similar length
        for reading, layers in zip(taken, steps.sources_of([reading.ids for reading in taken])):
            reading.keys, reading.values = [keys for keys, _ in layers], [values for _, values in layers]
            reading.is_read = True

    def _next_parts(self, unread: Sequence[Reading], part: int) -> Iterator[_Part]:
        """What is read of prompts, about `part` tokens. A prompt waits for one that begins alike and is being read."""
        begun = list[Reading]()
        for reading in unread:
            if part <= 0:
                return
            if not reading.keys and not self._begin(reading, begun):
                continue
            begun.append(reading)
            count = min(part, reading.keys[0].shape[2] - reading.length)
            part -= count
            if count:
                yield _Part(reading, count)
            else:  # one token, or a prompt that was read before
                reading.is_read = True

    def _begin(self, reading: Reading, begun: Sequence[Reading]) -> bool:
        """Make room for the keys and values of a prompt, with those that are known; False: it must wait."""
        steps, prompt = self.steps, tuple(reading.ids[:-1])
        known, layers = (0, []) if self.memory is None else self.memory.longest(prompt)
        if self.memory is not None:
            alike = max((common_length(other.ids[:-1], prompt) for other in begun if not other.is_read), default=0)
            if alike > max(known, self.memory.shortest - 1):
                return False
            self.memory.skipped += known
        shape = (1, steps.kv_heads, len(prompt), steps.d_head)  # (1,Hkv,T,K)
        for tensors in (reading.keys, reading.values):
            tensors += [torch.empty(shape, dtype=steps.cache_dtype, device=self.device) for _ in steps.layers]
        for layer, part in enumerate(layers):
            reading.keys[layer][:, :, :known], reading.values[layer][:, :, :known] = part.keys, part.values
        reading.length = known
        return True

    # Steps

    def _run(self, tokens: Tensor | None, parts: Sequence[_Part]) -> Tensor:
        """One pass over the tokens (R,) of all rows, if given, and over parts of prompts -> hidden (R+T,D)."""
        lengths = self.lengths if tokens is not None else []
        ids = [token for part in parts for token in part.reading.ids[part.reading.length :][: part.count]]
        positions = [length for length in lengths for _ in range(self.width)]  # beams of a slot are equally long
        positions += [part.reading.length + number for part in parts for number in range(part.count)]
        read = torch.tensor(ids, dtype=torch.long, device=self.device)  # (T,)
        x = self.steps.embed(  # (R+T,D)
            read if tokens is None else torch.cat([tokens, read]), 0, torch.tensor(positions, device=self.device)
        )
        attentions = [self._rows_attention()] if lengths else []
        attentions += [self._part_attention(part) for part in parts]
        sizes = [len(lengths) * self.width] * bool(lengths) + [part.count for part in parts]  # rows, then prompts

        def attend(layer: int, projected: Tensor) -> Tensor:
            if len(sizes) == 1:
                return attentions[0](layer, projected)
            pieces = projected.split(sizes)  # rows, then each prompt
            return torch.cat([attention(layer, piece) for attention, piece in zip(attentions, pieces)])

        sources, mask = list[tuple[Tensor, Tensor]](), None
        if self.steps.encoder is not None:
            longest = max(self._source_lengths)
            sources = list(self._sources.layers(len(lengths), longest))
            mask = self._sources.mask(len(lengths), longest) if min(self._source_lengths) < longest else None
        hidden = self.steps.run_layers(x, attend, sources, mask)
        self.lengths = [length + 1 for length in lengths] if lengths else self.lengths
        for part in parts:
            # count a part of a prompt as read, and remember the prompt if it was the last
            reading = part.reading
            reading.length += part.count
            reading.is_read = reading.length == reading.keys[0].shape[2]
            if reading.is_read and self.memory is not None:
                self.memory.remember(tuple(reading.ids[:-1]), reading.keys, reading.values)
        return hidden

    def _graph_step(self, graph: StepGraph, tokens: Tensor) -> Tensor:
        """As `step`, by ONNX Runtime; columns behind those that are read are masked."""
        count, columns, new = self._begin_columns()
        keys, values, mask = self._past.whole(count)
        terms = StepPositions([], [mask] * len(keys))
        if self.steps.has_schemes:
            terms = self._terms(columns, mask[..., :columns], keys[0])
            terms.biases[:] = [
                mask if not schemes else bias for bias, schemes in zip(terms.biases, self.steps.positions.relative)
            ]
        source_keys, source_values, source_mask = self._sources.whole(count)
        logits = graph(
            tokens,
            torch.tensor(self.lengths).repeat_interleave(self.width),
            new.numpy()[:, None],  # for each head
            columns,
            (keys, values),
            terms.biases,
            terms.rotations,
            list(zip(source_keys, source_values)) if self.steps.encoder is not None else (),
            source_mask,
        )
        self.lengths = [length + 1 for length in self.lengths]
        return logits

    def _begin_columns(self) -> tuple[int, int, Tensor]:
        """Let each row attend to its next token: the number of slots, the columns in use, and the new ones (S,w)."""
        count, columns = len(self.lengths), self._columns
        new = self._column_of(self._next_columns) + torch.arange(self.width, device=self.device)
        self._past.fit(count, count, columns)
        self._past.show(new)
        return count, columns, new

    def _terms(self, columns: int, mask: Tensor | None, like: Tensor) -> StepPositions:
        """The terms of the position schemes for the next token of every row, with a mask added to the biases."""
        keys = torch.arange(columns, device=self.device).expand(len(self.lengths), -1)  # (S,columns)
        if self.width > 1:  # the positions of what is in the columns
            prompts = self._column_of(self._prompt_lengths)  # (S,1)
            keys = torch.where(keys < prompts, keys, prompts + (keys - prompts) // self.width)
        positions = QueryKeyPositions(self._column_of(self.lengths), keys, False)
        return _masked(self.steps.positions_of(positions, like), mask)

    def _rows_attention(self) -> SelfAttention:
        """The self-attention of the next token of every row."""
        steps, (count, columns, new) = self.steps, self._begin_columns()
        slots = torch.arange(count, device=self.device).unsqueeze(1)
        past = list(self._past.layers(count, columns))  # of each layer
        equal_lengths = self.width == 1 and min(self._next_columns) + 1 == columns  # one row a slot, all equally long
        terms = self._terms(columns, None if equal_lengths else self._past.mask(count, columns), past[0][0])

        def attend(layer: int, projected: Tensor) -> Tensor:
            q, k, v = steps.split(projected, self.width, terms.rotations[layer])
            past_keys, past_values = past[layer]
            if equal_lengths:
                past_keys[:, :, -1:], past_values[:, :, -1:] = k, v
            else:
                past_keys[slots, :, new] = k.transpose(1, 2).to(past_keys)  # slots (S,1), new (S,w) -> (S,w,Hkv,K)
                past_values[slots, :, new] = v.transpose(1, 2).to(past_values)
            return steps.attend(q, past_keys, past_values, terms.biases[layer])

        return attend

    def _column_of(self, numbers: Sequence[int]) -> Tensor:
        """A number for each slot, (S,1)."""
        return torch.tensor(numbers, device=self.device).unsqueeze(1)

    def _part_attention(self, part: _Part) -> SelfAttention:
        """The self-attention of a part of a prompt, under the causal mask."""
        steps, reading, first = self.steps, part.reading, part.reading.length
        last = first + part.count
        keys = torch.arange(last, device=self.device)  # (last,)
        mask = torch.zeros(part.count, last, dtype=steps.cache_dtype, device=self.device)
        mask.masked_fill_(keys > keys[first:].unsqueeze(1), float("-inf"))  # (count,last)
        terms = _masked(steps.positions_of(QueryKeyPositions(keys[first:], keys, True), reading.keys[0]), mask)

        def attend(layer: int, projected: Tensor) -> Tensor:
            q, k, v = steps.split(projected, part.count, terms.rotations[layer])  # (1,H or Hkv,count,K)
            past_keys, past_values = reading.keys[layer][:, :, :last], reading.values[layer][:, :, :last]
            past_keys[:, :, first:], past_values[:, :, first:] = k, v  # views: this writes into the prompt's cache
            return steps.attend(q, past_keys, past_values, terms.biases[layer])

        return attend


def _masked(positions: StepPositions, mask: Tensor | None) -> StepPositions:
    """The terms of position schemes with a mask (...,S) added to their biases."""
    sums = {id(bias): bias if mask is None else bias + mask for bias in positions.biases if bias is not None}
    return StepPositions(positions.rotations, [mask if bias is None else sums[id(bias)] for bias in positions.biases])
