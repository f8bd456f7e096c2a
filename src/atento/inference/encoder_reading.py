"""The fast reading pass of an encoder: its own forward pass without padding, on products packed for the CPU.

The tokens of all rows lie in one matrix (N,D), in which linear maps, norms and feed-forward networks compute no
padding. Rows of equal length attend together, so that attention needs no padding mask, and a row does not depend on
the others. In bfloat16, a few tokens of other lengths join them, padded, where that costs less than another call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.kernels import attend, choose_for_reading
from atento.attention.masks import padding
from atento.attention.multihead import PositionTerms, Projection
from atento.attention.prepared_mask import PreparedMask, prepare_mask
from atento.attention.relative_terms import ProjectedScheme
from atento.base.precision import cpu_features, threads_for
from atento.inference.engine import runs_alone
from atento.inference.int8_linear import FixedInt8Linear, RowInt8Linear
from atento.inference.onnx_reading import EncoderGraph
from atento.inference.packed_linear import Activation, PackedLinear, Precision, with_round_number
from atento.inference.packed_modules import PackedModule, pack, pack_modules
from atento.inference.plain import left_align, padded
from atento.networks.int8_projection import Int8Projection, has_int8_weights
from atento.networks.layers import Block
from atento.networks.stack.stack import Stack, linear_maps
from atento.networks.stack.stack_decoders import EncoderDecoder

_CHUNK = 256  # tokens computed at a time, so that what is between two products stays in the cache
# The cost of attention in pairs of a query and a key, times the width D of the rows:
CALL = 1_750_000  # of a call by itself
_MOVE = 40  # of moving a token to a place in padded rows, and back


@dataclass
class Rows:
    """Rows of like length, the longest first, which lie under one another in the matrix of tokens."""

    span: slice  # their tokens
    lengths: list[int]  # of each row
    masks: list[PreparedMask] = field(default_factory=list)  # of each layer
    terms: list[PositionTerms | None] = field(default_factory=list)  # of each layer
    places: Tensor | None = None  # where the tokens are in rows padded to the longest, (N,); None: all rows are as long
    tokens: Tensor | None = None  # (B·L,) the token at each place; at padding any token of the row

    def padded(self, x: Tensor) -> Tensor:
        """All tokens (N,D) -> the rows (B,L,D)."""
        tokens = x[self.span] if self.tokens is None else x.index_select(0, self.tokens)
        rows: Tensor = tokens.unflatten(0, (len(self.lengths), self.lengths[0]))
        return rows

    def real(self, x: Tensor) -> Tensor:
        """Rows (B,L,D) -> their tokens (N,D)."""
        return x.flatten(0, 1) if self.places is None else x.flatten(0, 1).index_select(0, self.places)


class Unpadded:
    """The N real tokens of rows (B,L) that are padded on the right, as `PackedStack` takes them: the longest row first.

    Attributes:
        lengths: (B,) of the rows, descending.
        positions: (1,N) of the tokens in their rows.
    """

    def __init__(self, real: Tensor) -> None:
        """`real`: (B,L), True = a real token."""
        self.lengths, self._order = real.sum(dim=1).sort(descending=True, stable=True)  # (B,) each
        self._real = real[self._order]  # (B,L), the longest row first
        self._columns = torch.arange(real.shape[1], device=real.device).expand_as(real)  # (B,L)
        self.positions = self._columns[self._real].unsqueeze(0)  # (1,N)

    def take(self, tensor: Tensor) -> Tensor:
        """(B,L) -> (1,N)."""
        return tensor[self._order][self._real].unsqueeze(0)

    def pad(self, x: Tensor) -> Tensor:
        """(N,D) -> (B,L,D), 0 at padding."""
        padded: Tensor = x.new_zeros(*self._real.shape, x.shape[-1])
        padded[self._order.unsqueeze(1).expand_as(self._real)[self._real], self.positions[0]] = x
        return padded


def groups_of(lengths: list[int], call: float) -> list[list[int]]:
    """The lengths of rows, each at least as long as the next, in groups that attend in one call.

    Rows of equal length attend together. Groups of few tokens are joined, and the shorter rows padded, where that costs
    less than another call, which costs as much as `call` pairs of a query and a key.
    """
    groups: list[list[int]] = []
    cost = 0.0  # of the last group
    for _, equal in groupby(lengths):
        rows = list(equal)
        own = call + len(rows) * rows[0] ** 2  # each query with each key
        if groups:
            longest, tokens = groups[-1][0], sum(groups[-1]) + sum(rows)
            together = call + (len(groups[-1]) + len(rows)) * longest**2 + _MOVE * tokens
            if together < cost + own:
                groups[-1] += rows
                cost = together
                continue
        groups.append(rows)
        cost = own
    return groups


def why_not_packed(stack: Stack) -> str | None:
    """The part of the stack of an encoder that `PackedStack` does not support; None if it supports all."""
    if stack.positions.sparse or stack.positions.added:
        return "sparse attention" if stack.positions.sparse else "positions added in single layers"
    if stack.convolution is not None:
        return "a convolution over the input"
    if any(isinstance(getattr(scheme, "scheme", scheme), ProjectedScheme) for scheme in stack.positions.schemes):
        return "disentangled positions"
    for block in stack.layers:
        attention, feed_forward = block.self_attention, block.feed_forward
        if any(
            type(linear) not in (Projection, Int8Projection, PackedModule)
            for linear in (attention.input, attention.output, feed_forward.inner, feed_forward.outer)
        ):
            return "adapters"
    return None


class PackedStack:
    """The blocks of an encoder on packed products, for the tokens of rows that lie under one another without padding.

    Args:
        stack: of the encoder; one of which `why_not_packed` says nothing.
        pre_norm: whether norms stand before the sublayers.
        attention_type: of queries, keys and values.
        graph: runs all layers, where there is one; on one thread the weights are not packed for PyTorch then.
    """

    def __init__(
        self,
        stack: Stack,
        pre_norm: bool,
        precision: Precision,
        attention_type: torch.dtype,
        graph: EncoderGraph | None = None,
    ) -> None:
        self.stack, self.attention_type = stack, attention_type
        # padding changes the last digits of a row: in float32, and with fixed scales, each row stays what it is alone
        self.call_cost = CALL if attention_type == torch.bfloat16 and not has_int8_weights(stack) else 0
        as_it_is = graph is not None and runs_alone()
        layers = {id(block): _Layer(block, pre_norm, precision, attention_type, as_it_is) for block in stack.layers}
        self.layers = [layers[id(block)] for block in stack.layers]
        for layer, following in pairwise(self.layers):
            layer.reader = following.input
        inner = stack.layers[0].feed_forward.inner
        self.threads = partial(threads_for, precision, inner.in_features * inner.out_features)
        self.graph = graph

    def __call__(self, x: Tensor, lengths: Tensor, depth: int | None = None) -> Tensor:
        """The output (N,D) of the first `depth` layers, or of all.

        Args:
            x: (N,D), row after row; the pass may write in its memory.
            lengths: (B,) of the rows, descending.
            depth: with fewer than all layers, the output is that without the final norm.
        """
        if self.graph is not None and depth in (None, len(self.layers)) and self.graph.suits(len(x)):
            return self.graph.read(x, lengths.tolist())
        rows, tokens = self._rows(lengths, x), len(x)
        x = with_round_number(x)
        read = x
        with self.threads(len(x)):
            for index, layer in enumerate(self.layers[:depth]):
                x, read = layer(x, read, rows, index)
        if self.stack.norm is not None and depth in (None, len(self.layers)):
            x = self.stack.norm(x)
        return x[:tokens]

    def _rows(self, lengths: Tensor, x: Tensor) -> list[Rows]:
        """The groups of rows that attend together; rows without a token are in none."""
        stack, device = self.stack, x.device
        groups, start = [], 0
        for group in groups_of([length for length in lengths.tolist() if length], self.call_cost / x.shape[1]):
            longest, end = group[0], start + sum(group)
            rows = Rows(slice(start, end), group)
            real = None
            if group[-1] < longest:
                own = torch.tensor(group, device=device)  # (rows,)
                columns = torch.arange(longest, device=device)  # (longest,)
                is_real = columns < own.unsqueeze(1)  # (rows,longest)
                firsts = start + own.cumsum(0) - own  # the place of each row's first token in the flat x
                rows.tokens = (firsts.unsqueeze(1) + columns.where(is_real, 0)).flatten()  # padding: the first token
                rows.places = is_real.flatten().nonzero().squeeze(1)  # where real tokens stand in the padded group
                real = padding(own)
            prepared = {
                id(mask): prepare_mask(mask if real is None else mask & real, longest, longest, device)
                for mask in stack.masks
            }
            rows.masks = [prepared[id(mask)] for mask in stack.masks]
            rows.terms = stack.positions.terms(
                stack.positions.consecutive(longest, longest, device), self.attention_type
            )
            groups.append(rows)
            start = end
        return groups


def _normed(norm: nn.Module, x: Tensor, reader: PackedLinear | None) -> tuple[Tensor, Tensor]:
    """norm(x) (N,D), and what `reader` reads of it: itself, or its codes, made while a strip of x is in the cache."""
    if not isinstance(reader, FixedInt8Linear):
        x = norm(x)
        return x, x
    codes = x.new_empty(x.shape, dtype=torch.uint8)
    for strip, coded in zip(x.split(_CHUNK), codes.split(_CHUNK)):
        strip.copy_(norm(strip))
        coded.copy_(reader.codes(strip))
    return x, codes


_FUSED: dict[object, Activation] = {F.relu: "relu", F.gelu: "gelu"}


class _Layer:
    """One block of an encoder on packed products."""

    def __init__(
        self, block: Block, pre_norm: bool, precision: Precision, attention_type: torch.dtype, as_it_is: bool = False
    ) -> None:
        attention, feed_forward = block.self_attention, block.feed_forward
        self.attention, self.pre_norm = attention, pre_norm
        self.norms = block.self_attention_residual.norm, block.feed_forward_residual.norm
        fused: Activation = "none" if feed_forward.gated else _FUSED.get(feed_forward.activation, "none")
        self.activation = None if fused != "none" else feed_forward.activated
        self.in_place = isinstance(attention.output, Int8Projection)
        waits = cpu_features()["amx"] and (self.in_place or precision == "int8")  # for weights more than for rows
        self.rows = 2048 if waits else _CHUNK  # of a call of the feed-forward network
        self.reader: PackedLinear | None = None  # of the output: the next layer's first product
        self.attended_type = torch.uint8 if self.in_place else attention_type
        packed = partial(_packed, as_it_is=as_it_is)
        self.input = packed(attention.input, precision, dtype=attention_type)
        self.output = packed(attention.output, precision)
        self.inner = packed(
            feed_forward.inner, precision, fused, reader=None if feed_forward.gated else feed_forward.outer
        )
        self.outer = packed(feed_forward.outer, precision)

    def __call__(self, x: Tensor, read: Tensor, rows: list[Rows], index: int) -> tuple[Tensor, Tensor]:
        """(N,D) -> (N,D), as layer number `index`; and what the next layer's first product reads of it.

        `read` is what this layer's first product reads of x: x itself, or its codes.
        """
        first, second = self.norms
        attended = self._attend(first(x) if self.pre_norm else read, rows, index)
        if self.in_place:
            self.output.add_to(x, attended)
        else:
            x = self.output.plus(attended, x)
        x, read = (x, x) if self.pre_norm else _normed(first, x, self.inner)
        for part, given in zip(x.split(self.rows), read.split(self.rows)):
            inner = self.inner(second(part) if self.pre_norm else given)
            self.outer.add_to(part, inner if self.activation is None else self.activation(inner))
        return (x, x) if self.pre_norm else _normed(second, x, self.reader)

    def _attend(self, x: Tensor, rows: list[Rows], index: int) -> Tensor:
        """What the first product reads (N,D) -> what the second one does, the heads' outputs or their codes (N,H·K)."""
        attention, projected = self.attention, self.input(x)  # (N,(H+2·Hkv)·K)
        out = x.new_empty(len(x), attention.n_heads * attention.d_head, dtype=self.attended_type)
        out[rows[-1].span.stop if rows else 0 :] = 0  # below the last token
        for group in rows:
            q, k, v = attention.split(group.padded(projected))  # (B,H,L,K) and (B,Hkv,L,K)
            terms = group.terms[index]
            for rotation in () if terms is None else terms.rotations:
                q, k = rotation(q), rotation(k)
            relative = None if terms is None else terms.relative
            mask = group.masks[index]
            kernel = choose_for_reading(q.shape[-2], mask, relative)
            heads = attend(q, k, v, mask=mask, scale=attention.scale, relative=relative, kernel=kernel)
            flat = group.real(heads.transpose(1, 2).flatten(2))  # without padding, flat again
            out[group.span] = self.output.codes(flat) if isinstance(self.output, FixedInt8Linear) else flat
        return out


def pack_stack(stack: Stack, precision: Precision, attention_type: torch.dtype, as_it_is: bool = False) -> None:
    """Replace the linear maps of the layers by packed ones, which `PackedStack` takes; `as_it_is` as in `pack`."""
    for owner, name in linear_maps(stack):
        linear = getattr(owner, name)
        if type(linear) is not Projection:
            continue
        if precision == "int8":
            dtype = attention_type if name == "input" else torch.float32
            setattr(owner, name, PackedModule(linear, RowInt8Linear(linear.weight, linear.bias, dtype=dtype)))
        else:
            setattr(owner, name, PackedModule(linear, pack(linear.weight, linear.bias, precision, as_it_is=as_it_is)))


def _packed(
    linear: nn.Linear | Int8Projection | PackedModule,
    precision: Precision,
    activation: Activation = "none",
    dtype: torch.dtype = torch.float32,
    reader: nn.Linear | Int8Projection | PackedModule | None = None,
    as_it_is: bool = False,
) -> PackedLinear:
    """A packed copy of a linear map and its activation.

    `dtype` is the type of the result of an int8 product; with fixed scales and an activation that the product applies,
    it is the codes that `reader` takes.
    """
    if isinstance(linear, Int8Projection):
        codes_for = reader if activation != "none" and isinstance(reader, Int8Projection) and reader.uniform else None
        return FixedInt8Linear(linear, activation=activation, dtype=dtype, reader=codes_for)
    if isinstance(linear, PackedModule):
        return linear.parts[0].followed_by(activation)
    if precision == "int8":
        return RowInt8Linear(linear.weight, linear.bias, activation=activation, dtype=dtype)
    return pack(linear.weight, linear.bias, precision, activation=activation, as_it_is=as_it_is)


class SourceReader:
    """The encoder of an encoder-decoder on packed products.

    Args:
        network: a copy, whose encoder is packed.
        as_it_is: as in `pack`.
    """

    def __init__(self, network: EncoderDecoder, precision: Precision, as_it_is: bool = False) -> None:
        weight = next(network.parameters())
        self.device, dtype = weight.device, weight.dtype
        self._network, self._packed = network, None
        if self.device.type == "cpu" and why_not_packed(network.encoder) is None:
            pack_stack(network.encoder, precision, dtype, as_it_is)
            if network.source_features is not None:
                pack_modules(network.source_features, precision)
            self._packed = PackedStack(network.encoder, network.config.norm == "pre", precision, dtype)
        else:
            pack_modules(network, precision)

    def encoded(self, ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """ids (B,S) -> encoded (B,S,D) and the mask of real tokens (B,S), both with padding behind the tokens."""
        ids, token_mask = left_align(ids, token_mask)
        if self._packed is None:
            return self._network.encode(ids, source_token_mask=token_mask), token_mask
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        tokens = Unpadded(real)
        if self._network.source_features is None:
            vectors = self._network.embed_source(tokens.take(ids), None)
        else:  # its encoder needs rows
            vectors = tokens.take(self._network.embed_source(ids, token_mask))
        x = self._network.source_inputs(vectors, position_ids=tokens.positions)
        return tokens.pad(self._packed(x.squeeze(0), tokens.lengths)), token_mask

    def rows(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Some sources, the longest first -> encoded (N,D), one source under the other."""
        ids, real = padded([list(source) for source in sources], self._network.config.pad_id, self.device)  # (M,S)
        return self.encoded(ids, real)[0][real]
