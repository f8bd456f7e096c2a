"""The fast reading pass of an encoder: its own forward pass without padding, on products packed for the CPU.

The tokens of all rows lie in one matrix (N,D), in which linear maps, norms and feed-forward networks compute no
padding. Rows of equal length attend together, so that attention needs no padding mask, and a row does not depend on
the others. In bfloat16, a few tokens of other lengths join them, padded, where that costs less than another call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.kernels import attend, choose_for_reading
from atento.attention.lowering import lower
from atento.attention.masks import padding
from atento.attention.multihead import Projection
from atento.attention.observe import observing
from atento.attention.relative_terms import ProjectedScheme
from atento.errors import CapabilityError
from atento.inference.int8_linear import FixedInt8Linear, RowInt8Linear
from atento.inference.packed_linear import Activation, PackedLinear, Precision, with_round_number
from atento.inference.packed_modules import PackedModule, pack, pack_modules
from atento.inference.plain import moved_to_front, padded
from atento.inference.unpadded_rows import CALL, Rows, Unpadded, groups_of
from atento.networks.frozen import current
from atento.networks.int8_projection import Int8Projection, has_int8_weights, in_8_bits, multiplies_by_table
from atento.networks.interface import Network, layer_count
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.stack.block import Block
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack import MaskArgument, Stack, linear_maps
from atento.networks.stack.stack_decoders import EncoderDecoder
from atento.precision import best_precision, cpu_features, threads_for

_CHUNK = 256  # tokens computed at a time, so that what is between two products stays in the cache


def why_no_fast_reading(network: object) -> str | None:
    """The part of this network that the fast reading pass does not support; None if it supports all."""
    if not isinstance(network, Encoder):
        return f"networks of type {type(network).__name__}"
    if next(network.parameters()).device.type != "cpu":
        return "networks on other devices than the CPU"
    return "a mix of layers" if network.mix is not None else why_not_packed(network.stack)


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


class FastReader(Network):
    """An encoder that reads with packed copies of its linear maps; all else is the encoder's, heads included.

    It computes what the encoder computes in evaluation mode, to rounding, and 0 at padding. Weights that change later
    have no effect on it. The copies take the memory of the linear maps of the layers once more: 4 bytes a weight in
    float32, 2 in bfloat16, 1 in int8, where the table of tokens is copied too. Where the encoder is observed, where its
    frozen vectors are stored, and for padding on the left, the encoder's own forward pass runs.

    Raises:
        CapabilityError: the network has a part that is not supported; names it.
    """

    def __init__(self, network: Encoder, precision: Precision = "float32") -> None:
        super().__init__()
        reason = why_no_fast_reading(network)
        if reason is not None:
            raise CapabilityError(f"no fast reading for {reason}")
        self.network, self.config, self.heads = network, network.config, network.heads
        attention_type = attention_type_of(network, precision)
        rounds = precision == "int8" and not multiplies_by_table(network)
        self.embedding = in_8_bits(network.embedding) if rounds else network.embedding
        self.packed = PackedStack(network.stack, network.config.norm == "pre", precision, attention_type)

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of tokens."""
        return self.network.table

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        mask: MaskArgument = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """As `Encoder.forward`."""
        network = self.network
        if position_ids is not None or mask is not None or not self._reads(token_mask):
            output: Output = network(
                ids,
                token_mask=token_mask,
                segment_ids=segment_ids,
                position_ids=position_ids,
                mask=mask,
                random=random,
                project=project,
            )
            return output
        hidden = self._hidden(ids, token_mask, segment_ids, self.config.n_layers)
        return network.output(hidden, token_mask, random, project=project)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`."""
        if not self._reads(token_mask):
            return self.network.features(ids, token_mask=token_mask, layer=layer)
        return self._hidden(ids, token_mask, None, layer_count(layer, self.config.n_layers))

    def text_vectors(self, pooled: Tensor) -> Tensor:
        """As `Network.text_vectors`."""
        return self.network.text_vectors(pooled)

    def _reads(self, token_mask: Tensor | None) -> bool:
        """Whether the fast pass applies here."""
        if self.network.training or current() is not None or observing(self.network):
            return False
        return token_mask is None or not bool((token_mask[:, 1:] & ~token_mask[:, :-1]).any())

    @torch.no_grad()
    def _hidden(self, ids: Tensor, token_mask: Tensor | None, segment_ids: Tensor | None, depth: int) -> Tensor:
        """The output of the first `depth` layers for ids (B,L), padded on the right: (B,L,D), 0 at padding."""
        network = self.network
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        if not bool(real.any()):
            return next(network.parameters()).new_zeros(*ids.shape, self.config.d_model)
        tokens = Unpadded(real)
        x = network.inputs(
            self.embedding(tokens.take(ids)),
            position_ids=tokens.positions,
            segment_ids=None if segment_ids is None else tokens.take(segment_ids),
        ).squeeze(0)  # (N,D)
        return tokens.pad(self.packed(x, tokens.lengths, depth))


class PackedStack:
    """The blocks of an encoder on packed products, for the tokens of rows that lie under one another without padding.

    Args:
        stack: of the encoder; one of which `why_not_packed` says nothing.
        pre_norm: whether norms stand before the sublayers.
        precision: of the products.
        attention_type: of queries, keys and values.
    """

    def __init__(self, stack: Stack, pre_norm: bool, precision: Precision, attention_type: torch.dtype) -> None:
        self.stack, self.attention_type = stack, attention_type
        # padding changes the last digits of a row: in float32, and with fixed scales, each row stays what it is alone
        self.call_cost = CALL if attention_type == torch.bfloat16 and not has_int8_weights(stack) else 0
        layers = {id(block): _Layer(block, pre_norm, precision, attention_type) for block in stack.layers}
        self.layers = [layers[id(block)] for block in stack.layers]
        for layer, following in pairwise(self.layers):
            layer.reader = following.input
        inner = stack.layers[0].feed_forward.inner
        self.threads = partial(threads_for, precision, inner.in_features * inner.out_features)

    def __call__(self, x: Tensor, lengths: Tensor, depth: int | None = None) -> Tensor:
        """The output (N,D) of the first `depth` layers, or of all.

        Args:
            x: (N,D), row after row; the pass may write in its memory.
            lengths: (B,) of the rows, descending.
            depth: with fewer than all layers, the output is that without the final norm.
        """
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
            lowered = {
                id(mask): lower(mask if real is None else mask & real, longest, longest, device) for mask in stack.masks
            }
            rows.masks = [lowered[id(mask)] for mask in stack.masks]
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

    def __init__(self, block: Block, pre_norm: bool, precision: Precision, attention_type: torch.dtype) -> None:
        attention, feed_forward = block.self_attention, block.feed_forward
        self.attention, self.pre_norm = attention, pre_norm
        self.norms = block.self_attention_residual.norm, block.feed_forward_residual.norm
        fused: Activation = "none"
        if not feed_forward.gated:
            fused = _FUSED.get(feed_forward.activation, "none")
        self.activation = None if fused != "none" else feed_forward.activation
        self.gated = feed_forward.gated
        self.in_place = isinstance(attention.output, Int8Projection)
        waits = cpu_features()["amx"] and (self.in_place or precision == "int8")  # for weights more than for rows
        self.rows = 2048 if waits else _CHUNK  # of a call of the feed-forward network
        self.reader: PackedLinear | None = None  # of the output: the next layer's first product
        self.attended_type = torch.uint8 if self.in_place else attention_type
        self.input = _packed(attention.input, precision, dtype=attention_type)
        self.output = _packed(attention.output, precision)
        self.inner = _packed(feed_forward.inner, precision, fused, reader=None if self.gated else feed_forward.outer)
        self.outer = _packed(feed_forward.outer, precision)

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
            if self.activation is not None and self.gated:
                inner, gate = inner.chunk(2, dim=-1)
                inner = self.activation(inner) * gate
            elif self.activation is not None:
                inner = self.activation(inner)
            self.outer.add_to(part, inner)
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


def attention_type_of(network: Encoder, precision: Precision) -> torch.dtype:
    """The type of queries, keys and values: with int8 products bfloat16 where the processor multiplies it natively."""
    rounds = precision == "int8" and best_precision("cpu") == "bfloat16" and not network.config.attention.norm
    return torch.bfloat16 if rounds else next(network.parameters()).dtype


def pack_stack(stack: Stack, precision: Precision, attention_type: torch.dtype) -> None:
    """Replace the linear maps of the layers by packed ones, which `PackedStack` takes as they are."""
    for owner, name in linear_maps(stack):
        linear = getattr(owner, name)
        if type(linear) is not Projection:
            continue
        if precision == "int8":
            dtype = attention_type if name == "input" else torch.float32
            setattr(owner, name, PackedModule(linear, RowInt8Linear(linear.weight, linear.bias, dtype=dtype)))
        else:
            setattr(owner, name, PackedModule(linear, pack(linear.weight, linear.bias, precision)))


def _packed(
    linear: nn.Linear | Int8Projection | PackedModule,
    precision: Precision,
    activation: Activation = "none",
    dtype: torch.dtype = torch.float32,
    reader: nn.Linear | Int8Projection | PackedModule | None = None,
) -> PackedLinear:
    """A packed copy of a linear map and its activation.

    `dtype` is the type of the result of an int8 product; with fixed scales and an activation that the product applies,
    it is the codes that `reader` takes.
    """
    if isinstance(linear, Int8Projection):
        codes_for = None
        if activation != "none" and isinstance(reader, Int8Projection) and reader.uniform:
            codes_for = reader
        return FixedInt8Linear(linear, activation=activation, dtype=dtype, reader=codes_for)
    if isinstance(linear, PackedModule):
        return linear.parts[0].followed_by(activation)
    if precision == "int8":
        return RowInt8Linear(linear.weight, linear.bias, activation=activation, dtype=dtype)
    return pack(linear.weight, linear.bias, precision, activation=activation)


class SourceReader:
    """The encoder of an encoder-decoder on packed products.

    Args:
        network: a copy, whose encoder is packed.
        precision: of the products.
    """

    def __init__(self, network: EncoderDecoder, precision: Precision) -> None:
        weight = next(network.parameters())
        self.device, dtype = weight.device, weight.dtype
        self._network, self._packed = network, None
        if self.device.type == "cpu" and why_not_packed(network.encoder) is None:
            pack_stack(network.encoder, precision, dtype)
            self._packed = PackedStack(network.encoder, network.config.norm == "pre", precision, dtype)
        else:
            pack_modules(network, precision)

    def encoded(self, ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """ids (B,S) -> encoded (B,S,D) and the mask of real tokens (B,S), both with padding behind the tokens."""
        ids, token_mask = moved_to_front(ids, token_mask)
        if self._packed is None:
            return self._network.encode(ids, source_token_mask=token_mask), token_mask
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        tokens = Unpadded(real)
        return tokens.pad(self._read(tokens.take(ids), tokens.positions, tokens.lengths)), token_mask

    def rows(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Some sources, the longest first -> encoded (N,D), one source under the other."""
        lengths = torch.tensor([len(source) for source in sources], device=self.device)  # (M,)
        if self._packed is None:
            ids, real = padded([list(source) for source in sources], self._network.config.pad_id, self.device)  # (M,S)
            encoded: Tensor = self._network.encode(ids, source_token_mask=real)
            return encoded[real]  # (N,D)
        ids = torch.tensor([[token for source in sources for token in source]], device=self.device)  # (1,N)
        positions = torch.cat([torch.arange(len(source), device=self.device) for source in sources]).unsqueeze(0)
        return self._read(ids, positions, lengths)

    def _read(self, ids: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """ids and positions (1,N) of rows of those lengths (B,) -> (N,D)."""
        assert self._packed is not None
        x = self._network.source_inputs(self._network.embedding(ids), position_ids=positions)
        return self._packed(x.squeeze(0), lengths)
