"""The parts of a decoder block that the fast step function runs, and its state: one cache for all beams of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.positions import Rotation
from atento.attention.relative import Shaw
from atento.attention.relative_terms import ProjectedScheme
from atento.inference.packed_linear import PackedLinear, WeightLinear
from atento.inference.packed_modules import PackedModule
from atento.networks.layers import Block
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder

ROOM = 32  # tokens that a cache has room for at first; it grows by half
SHARED = 8  # up to so many outputs of one text share a cache; with more, reading the others' columns costs too much


@dataclass
class Cache:
    """Keys and values (N,Hkv,C·w,K) of every layer, with room for C tokens of w beams.

    Token t of all beams is in columns t·w to (t+1)·w. Several states may read one cache; only `holder` writes it.
    """

    keys: list[Tensor]
    values: list[Tensor]
    holder: object = None

    def enlarged(self, used: int, room: int) -> Cache:
        """The first `used` columns in new memory with room for `room` columns."""
        new = Cache([*self.keys], [*self.values])
        new.grow(used, room)
        return new

    def grow(self, used: int, room: int, *, zeros: bool = False) -> None:
        """As `enlarged`, in place and a layer at a time, so that two caches never exist at once.

        `zeros`: the columns behind those in use are 0, where they are read behind a mask.
        """
        for part in (self.keys, self.values):
            for layer, old in enumerate(part):
                part[layer] = (old.new_zeros if zeros else old.new_empty)(*old.shape[:2], room, old.shape[3])
                part[layer][:, :, :used] = old[:, :, :used]

    def of(self, texts: Tensor) -> Cache:
        """The keys and values of some texts, in new memory."""
        return Cache(
            [tensor.index_select(0, texts) for tensor in self.keys],
            [tensor.index_select(0, texts) for tensor in self.values],
        )


@dataclass
class FastState:
    """What R = N·w outputs of N texts have read, w beams of each text; M sources are read by R / M outputs each.

    A beam that continues another one inherits its past. The cache is not changed: only the rows of `mask` are
    reordered, so a step of beam search copies no keys or values.

    Attributes:
        is_own: whether no other state reads its memory.
    """

    cache: Cache
    width: int = 1
    length: int = 0
    # (N,w,C·w), 0 in the columns of a beam's own past and -inf elsewhere; None if all columns are its own
    mask: Tensor | None = None
    starts: Tensor | None = None  # (R,) the positions of the first tokens, where they differ
    source: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (M,Hkv,S,K) each
    source_mask: Tensor | None = None  # (M,1,1,S), 0 or -inf
    rows: int = 0
    beam_cache_dtype: torch.dtype = torch.float32  # of caches that beams share
    is_own: bool = False

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> FastState:
        """As `select`, where this state is not used again: once its memory is its own, only rows that move are copied.

        Fewest move where the last rows take the places of those that leave.
        """
        texts = rows[:: self.width] // self.width  # (N',)
        whole = torch.equal(rows // self.width, texts.repeat_interleave(self.width))  # each text keeps its outputs
        each_has_a_source = not self.source or len(self.source[0][0]) * self.width == self.rows
        if not (self.is_own and self.cache.holder is self and whole and each_has_a_source):
            kept = self.select(rows)
            kept.is_own = self.is_own or self._memory().isdisjoint(kept._memory())
            return kept
        moved = (texts != torch.arange(len(texts), device=rows.device)).nonzero().flatten()  # places with other texts
        if len(moved) or len(rows) < self.rows:
            now = texts[moved]  # where each of those that move stands

            def held(tensor: Tensor) -> Tensor:
                return tensor.index_copy_(0, moved, tensor.index_select(0, now))[: len(texts)]

            cache = self.cache
            cache.keys, cache.values = [[held(tensor) for tensor in part] for part in (cache.keys, cache.values)]
            self.source = [(held(keys), held(values)) for keys, values in self.source]
            self.source_mask = None if self.source_mask is None else self.source_mask.index_select(0, texts)
        self.starts = None if self.starts is None else self.starts.index_select(0, rows)
        if self.mask is not None:
            self.mask = self.mask.view(self.rows, -1).index_select(0, rows).view(len(texts), self.width, -1)
        self.rows = len(rows)
        return self

    def _memory(self) -> set[int]:
        """Where its first keys are, and those of its sources."""
        return {keys.data_ptr() for keys in (self.cache.keys[0], *(keys for keys, _ in self.source[:1]))}

    def select(self, rows: Tensor) -> FastState:
        """Only those outputs, in that order.

        Four cases, the cheapest that fits: beams are reordered within their texts (only the mask is copied); all beams
        of some texts leave (the cache is copied without them); outputs are repeated before the first token (a new
        cache for beams); anything else (each output gets its own cache).
        """
        count = len(rows)
        width = self.width
        texts = None if count % width else rows.view(-1, width) // width  # (N',w) the text that each comes from
        if texts is None or not bool((texts == texts[:, :1]).all()):  # the beams of a text are not consecutive
            return self.separated().select(rows)
        chosen = texts[:, 0]  # (N',)
        same = len(chosen) * width == self.rows and bool(
            (chosen == torch.arange(len(chosen), device=rows.device)).all()
        )
        if self.length == 0 and width == 1 and not same:
            return self._with_beams(rows)
        selected = FastState(
            self.cache, width, self.length, None, None, self.source, self.source_mask, count, self.beam_cache_dtype
        )
        if not same:
            selected.cache = self.cache.of(chosen)
            selected._select_sources(self, rows)
        # The new state becomes the holder of the cache. If another state already is (a search continues twice from one
        # past, as the exact search does), this one copies the cache before it writes (`reserve`).
        if not same or self.cache.holder is self:
            selected.cache.holder = selected
        selected.starts = None if self.starts is None else self.starts.index_select(0, rows)
        if self.mask is not None:
            selected.mask = self.mask.view(self.rows, -1).index_select(0, rows).view(len(chosen), width, -1)
        return selected

    def _with_beams(self, rows: Tensor) -> FastState:
        """Before the first token: where each text is repeated w times in a row, its outputs are beams of one cache."""
        first = rows[0]
        width = int((rows == first).sum())  # how often the first text is repeated
        grouped = len(rows) % width == 0 and width <= SHARED
        if grouped:
            repeated = rows.view(-1, width)  # (N',w)
            grouped = bool((repeated == repeated[:, :1]).all())  # all of a group continue one text
        width = width if grouped else 1
        like = self.cache.keys[0]
        shape = (len(rows) // width, like.shape[1], ROOM * width, like.shape[3])  # (N',Hkv,C·w,K)
        count = len(self.cache.keys)
        dtype = self.beam_cache_dtype if width > 1 else like.dtype
        cache = Cache(*[[like.new_empty(shape, dtype=dtype) for _ in range(count)] for _ in range(2)])
        beams = FastState(cache, width, 0, None, None, self.source, self.source_mask, len(rows), self.beam_cache_dtype)
        cache.holder = beams
        if width > 1:
            beams.mask = like.new_full((len(rows) // width, width, ROOM * width), float("-inf"), dtype=dtype)
        beams.starts = None if self.starts is None else self.starts.index_select(0, rows)
        beams._select_sources(self, rows)
        beams.source = [(keys.to(dtype), values.to(dtype)) for keys, values in beams.source]
        beams.source_mask = None if beams.source_mask is None else beams.source_mask.to(dtype)
        return beams

    def _select_sources(self, old: FastState, rows: Tensor) -> None:
        """Set the sources of those rows of the old state, each once if all have equally many consecutive outputs."""
        if not old.source:
            return
        owners = rows // (old.rows // old.source[0][0].shape[0])  # (R',) of M
        # a source is stored once for a run of equal owners, if all runs have one size; else once for each output
        changes = torch.nonzero(owners[1:] != owners[:-1]).flatten() + 1
        count = len(changes) + 1
        if len(rows) % count == 0:
            size = len(rows) // count
            runs = owners.view(count, size)  # (runs,R'/runs)
            if bool((runs == runs[:, :1]).all()):
                owners = runs[:, 0]  # one for each run
        if len(owners) == old.source[0][0].shape[0] and bool((owners[:-1] < owners[1:]).all()):
            return  # all of them, in order
        self.source = [(k.index_select(0, owners), v.index_select(0, owners)) for k, v in old.source]
        self.source_mask = None if self.source_mask is None else self.source_mask.index_select(0, owners)

    def separated(self) -> FastState:
        """The same outputs, each with a cache of its own: the columns that its mask allows, in their order."""
        if self.width == 1:
            raise ValueError("`rows` must be numbers of rows")
        assert self.mask is not None
        width, used = self.width, self.length * self.width
        visible = self.mask[:, :, :used].reshape(self.rows, used) == 0  # (R,t·w), True t times in each row
        mask = None
        if self.starts is None:
            columns = visible.nonzero()[:, 1].view(self.rows, self.length)  # ascending: the order of time
        else:  # True less often in shorter rows: their own columns are the last ones
            columns = visible.byte().argsort(dim=1, stable=True)[:, used - self.length :]  # (R,t)
            mask = self.mask.new_full((self.rows, 1, self.length + ROOM), float("-inf"))
            mask[:, 0, : self.length].masked_fill_(visible.gather(1, columns), 0.0)
        texts = torch.arange(self.rows, device=columns.device) // width

        def past_of_each(old: Tensor) -> Tensor:
            past = old.transpose(1, 2)[texts[:, None], columns]  # (R,t,Hkv,K)
            new = old.new_empty(self.rows, old.shape[1], self.length + ROOM, old.shape[3])
            new[:, :, : self.length] = past.transpose(1, 2)
            return new

        cache = Cache(
            [past_of_each(tensor) for tensor in self.cache.keys], [past_of_each(tensor) for tensor in self.cache.values]
        )
        separated = FastState(
            cache, 1, self.length, mask, self.starts, self.source, self.source_mask, self.rows, self.beam_cache_dtype
        )
        cache.holder = separated
        return separated

    def reserve(self) -> None:
        """Make room for one more token, in memory that no other state writes."""
        columns, is_holder = self.cache.keys[0].shape[2], self.cache.holder is self
        used, needed = self.length * self.width, (self.length + 1) * self.width  # columns: w for each token
        if needed > columns:  # half as much again, in whole tokens: copying stays linear in the length
            columns = max(needed, columns + max(columns // 2, self.width) // self.width * self.width)
            if is_holder:
                self.cache.grow(used, columns)
        if not is_holder:
            self.cache = self.cache.enlarged(used, columns)
            self.cache.holder = self
        if self.mask is not None and self.mask.shape[2] < columns:
            grown = self.mask.new_full((*self.mask.shape[:2], columns), float("-inf"))  # (N,w,columns)
            grown[:, :, :used] = self.mask[:, :, :used]
            self.mask = grown


def norm_function(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """A norm as a plain function: to call a module takes longer than to normalise a token."""
    if type(norm) is not nn.LayerNorm:
        function: Callable[[Tensor], Tensor] = norm.forward
        return function
    weight, bias = norm.weight.detach(), None if norm.bias is None else norm.bias.detach()
    return partial(torch.layer_norm, normalized_shape=norm.normalized_shape, weight=weight, bias=bias, eps=norm.eps)


class FastLayer:
    """The parts of one decoder block that is packed (`pack_decoder`).

    Attributes:
        norms: of self-attention, cross-attention (if any), feed-forward.
        self_input: gives queries, keys and values.
        activation: of the feed-forward network, with the gate if there is one; None: `inner` applies it.
    """

    def __init__(self, block: Block) -> None:
        attention, cross_attention, feed_forward = block.self_attention, block.cross_attention, block.feed_forward

        def parts(linear: nn.Module) -> Sequence[WeightLinear]:
            assert isinstance(linear, PackedModule)
            return linear.parts

        relu = feed_forward.activation is F.relu and not feed_forward.gated  # relu is part of the packed product
        self.norms = [norm_function(part.norm) for part in (block.self_attention_residual, block.feed_forward_residual)]
        self.self_input, self.self_output = parts(attention.input)[0], parts(attention.output)[0]
        self.inner = parts(feed_forward.inner)[0].followed_by("relu" if relu else "none")
        self.outer, self.activation = parts(feed_forward.outer)[0], None if relu else feed_forward.activated
        self.cross_queries: PackedLinear | None = None
        self.cross_keys_values: PackedLinear | None = None
        self.cross_output: PackedLinear | None = None
        if cross_attention is not None and block.cross_attention_residual is not None:
            self.norms.insert(1, norm_function(block.cross_attention_residual.norm))
            self.cross_queries, self.cross_keys_values = parts(cross_attention.input)
            self.cross_output = parts(cross_attention.output)[0]


@dataclass(frozen=True)
class StepPositions:
    """The terms of the position schemes for one token, layer by layer: rotations of queries and keys, and score biases.

    A bias is (N or 1, 1 or H, w or 1, S), the mask added to it, or None.
    """

    rotations: list[tuple[Rotation, ...]]
    biases: list[Tensor | None]


@cache
def own_columns(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The mask of the columns of a new token of w beams (w,w): each attends to its own."""
    return torch.full((width, width), float("-inf"), dtype=dtype, device=device).fill_diagonal_(0.0)


def with_mask(bias: Tensor, mask: Tensor | None, width: int) -> Tensor:
    """A bias (N or 1,H,1,t), which all w beams share, plus the mask of each beam (N,1,w,t·w) -> (N,H,w,t·w)."""
    bias = bias if width == 1 else bias.repeat_interleave(width, dim=-1)
    return bias if mask is None else bias + mask


def begin_column(state: FastState) -> tuple[int, int, Tensor | None]:
    """Let the state have room for a token of each output, which attends to it.

    Returns:
        The token's columns in the cache, one for each beam: the first, and the one behind the last; and where each
        text starts (N,1), None for 0.
    """
    width = state.width
    state.reserve()  # its own cache
    first, last = state.length * width, (state.length + 1) * width
    if state.mask is not None:  # each beam attends to its own new token
        state.mask[:, :, first:last] = own_columns(width, state.mask.dtype, state.mask.device)
    return first, last, None if state.starts is None else state.starts.view(-1, width)[:, :1]  # beams share it


def why_not_fast(network: object) -> str | None:
    """The part of this network that the fast step function does not support; None if it supports all."""
    if not isinstance(network, EncoderDecoder | Decoder):
        return f"networks of type {type(network).__name__}"
    stack = network.decoder if isinstance(network, EncoderDecoder) else network.stack
    if stack.positions.sparse or stack.positions.added:
        return "sparse attention" if stack.positions.sparse else "positions added in single layers"
    if any(mask.name != "causal" for mask in stack.masks):
        return "a mask other than the causal one"
    if network.config.layer_mix:
        return "a mix of layers"
    if network.config.attention.norm:
        return "norms of queries and keys"
    for scheme in stack.positions.schemes:
        inner = getattr(scheme, "scheme", scheme)
        if isinstance(inner, Shaw):
            return "Shaw positions"
        if isinstance(inner, ProjectedScheme):
            return "disentangled positions"
    return None
