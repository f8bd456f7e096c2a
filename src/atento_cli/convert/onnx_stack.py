"""The stack as the ONNX exporter reads it: plain operations, without a branch on values or lengths.

The exporter records the operations of one call, so whatever depends on a length must be a tensor. The network's own
forward pass chooses kernels by length, which a record would fix; the modules here hold the same weights.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.masks import Mask
from atento.attention.multihead import MultiHeadAttention
from atento.attention.positions import Rotary, Rotation
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.config.sections.network import NetworkConfig
from atento.networks.layers import Block, TokenEmbedding
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_positions import InputLayer, position_table

Cache = tuple[Tensor, Tensor]
"""Keys and values, (B,Hkv,S,K) each."""
_MASKED = torch.finfo(torch.float32).min  # a row that may attend to nothing attends uniformly instead of giving NaN


def index_positions(length: Tensor | int) -> Tensor:
    """0 ... length - 1, (L,)."""
    return torch.arange(length)  # type: ignore[arg-type]


def real_positions(attention_mask: Tensor) -> Tensor:
    """Positions that count real tokens alone: (B,L) -> (B,L)."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)


@dataclass(frozen=True)
class Read:
    """Which tokens a call reads."""

    queries: Tensor  # indices of the new tokens in their rows, (T,)
    keys: Tensor  # indices of all tokens, cached ones first, (S,)
    query_positions: Tensor  # positions of the new tokens, (T,) or (B,T). key_positions: of all, (S,) or (B,S)
    key_positions: Tensor
    real: Tensor | None  # boolean (B,S), True = a real token; None: all are


class GraphInputs(nn.Module):
    """Token vectors with positions and segments, as `InputLayer` makes them; positions are rows of a table."""

    def __init__(self, config: NetworkConfig, inputs: InputLayer, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.embedding, self.inputs = embedding, inputs
        for name, real_only in (("by_index", False), ("by_real", True)):
            self.register_buffer(name, position_table(config, inputs, real_only=real_only))

    def forward(self, ids: Tensor, index: Tensor, real: Tensor, segment_ids: Tensor | None = None) -> Tensor:
        """ids (B,T), their positions by index and by real tokens, (T,) or (B,T), and segments (B,T) -> (B,T,D)."""
        x = self.embedding(ids)
        for table, positions in ((self.by_index, index), (self.by_real, real)):
            if isinstance(table, Tensor):
                x = x + F.embedding(positions, table)
        if self.inputs.segments is not None:
            segments = self.inputs.segments
            x = x + (segments[0] if segment_ids is None else F.embedding(segment_ids, segments))
        x = x if self.inputs.norm is None else self.inputs.norm(x)
        out: Tensor = x if self.inputs.projection is None else self.inputs.projection(x)
        return out


class GraphStack(nn.Module):
    """N blocks; in evaluation mode, with the cache as plain tensors."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        self.rates = {  # (R/2,) angles a position, computed here in float64, so that the record holds them as constants
            number: (scheme.rates() if scheme.stretch is None else scheme.stretch.scaled(scheme.rates())).float()
            for number, scheme in enumerate(stack.positions.schemes)
            if isinstance(scheme, Rotary)
        }

    def forward(
        self,
        x: Tensor,
        read: Read,
        *,
        past: list[Cache] | None = None,
        memory: list[Cache] | None = None,
        memory_real: Tensor | None = None,
    ) -> tuple[list[Tensor], list[Cache]]:
        """Run the blocks.

        Args:
            x: (B,T,D), the new tokens.
            read: their positions and masks.
            past: keys and values of the cached tokens, a layer.
            memory: keys and values of the source, a layer; `memory_real` boolean (B,M), its real tokens.

        Returns:
            x and the output of each block, the last behind the final norm; and the new cache.
        """
        stack, inputs = self.stack, x
        layers, present = [x], []
        source = None if memory_real is None else memory_real[:, None, None, :]  # (B,1,1,M)
        for index, block in enumerate(stack.layers):
            queries = block.self_attention_residual.before(x)
            attended, cache = self._attend_itself(block, index, queries, read, None if past is None else past[index])
            x = block.self_attention_residual.after(x, attended, None)
            present.append(cache)
            if memory is not None:
                x = _attend_source(block, x, memory[index], source)
            x = block.feed_forward_residual.after(x, block.feed_forward(block.feed_forward_residual.before(x)), None)
            if stack.convolution is not None and index == 0:  # DeBERTa's, beside the first layer
                x = stack.convolution(inputs, x, read.real)
            layers.append(x)
        if stack.norm is not None:
            layers[-1] = stack.norm(x)
        return layers, present

    def _attend_itself(
        self, block: Block, index: int, x: Tensor, read: Read, past: Cache | None
    ) -> tuple[Tensor, Cache]:
        """Self-attention of one block: (B,T,D) -> (B,T,D), and the keys and values of all tokens."""
        attention, positions = block.self_attention, self.stack.positions
        q, k, v = attention.split(attention.input(x))
        for number, heads in positions.rotary[index]:
            rotary = positions.schemes[number]
            assert isinstance(rotary, Rotary)
            # (L,R/2) or (B,L,R/2), in float32 as `transformers` has them
            angles = read.query_positions.float().unsqueeze(-1) * self.rates[number]
            angles = angles if read.query_positions.dim() == 1 else angles.unsqueeze(1)
            cos, sin = angles.cos() * rotary.scale, angles.sin() * rotary.scale
            rotated: Tensor | None = None  # which heads are, (H,1,1); None: all
            if heads is not None:
                rotated = torch.zeros(attention.n_heads, 1, 1, dtype=torch.bool)
                rotated[list(heads)] = True
            rotation = Rotation(cos, sin, rotary.interleaved, rotated)
            q, k = rotation(q), rotation(k)
        if past is not None:  # which were rotated when they were new
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        relative = None
        if positions.relative[index]:
            pairs = QueryKeyPositions(read.query_positions, read.key_positions, False)
            relative = RelativeTerms(positions.relative_schemes(index), pairs).projected(attention.project_positions)
        allowed = _allowed(self.stack.masks[index], read)
        return attention.output(_attend(attention, q, k, v, allowed, relative)), (k, v)


def memory_caches(stack: Stack, encoded: Tensor) -> list[Cache]:
    """The keys and values of an encoded source (B,M,D), a layer."""
    caches = []
    for block in stack.layers:
        assert block.cross_attention is not None
        keys_values = block.cross_attention.key_values(encoded)
        caches.append((keys_values.keys, keys_values.values))
    return caches


def _attend_source(block: Block, x: Tensor, memory: Cache, allowed: Tensor | None) -> Tensor:
    """Cross-attention of one block with its residual connection: (B,T,D) -> (B,T,D)."""
    attention, residual = block.cross_attention, block.cross_attention_residual
    assert attention is not None and residual is not None
    width = attention.n_heads * attention.d_head
    queries = attention.input.rows(residual.before(x), 0, width)  # (B,T,H·K)
    q = queries.reshape(queries.shape[0], -1, attention.n_heads, attention.d_head).transpose(1, 2)  # (B,H,T,K)
    q = q if attention.query_norm is None else attention.query_norm(q)
    return residual.after(x, attention.output(_attend(attention, q, *memory, allowed, None)), None)


def _attend(
    attention: MultiHeadAttention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    relative: RelativeTerms | None,
) -> Tensor:
    """softmax(Q Kᵀ · scale + ...) V, heads joined: (B,T,H·K)."""
    scale = 1.0 / math.sqrt(attention.d_head) if attention.scale is None else attention.scale
    q, k, v = q * scale, _by_head(k, attention), _by_head(v, attention)
    scores = q @ k.transpose(-2, -1)  # (B,H,T,S)
    added = None if relative is None else relative.scores(q, k, scale)  # q is scaled already
    scores = scores if added is None else scores + added
    if allowed is not None:
        scores = torch.where(allowed, scores, torch.tensor(_MASKED))
    weights = torch.softmax(scores, dim=-1)
    out = weights @ v  # (B,H,T,K)
    values = None if relative is None else relative.values(weights)
    out = out if values is None else out + values
    return out.transpose(1, 2).reshape(out.shape[0], -1, attention.n_heads * attention.d_head)  # (B,T,H·K)


def _by_head(x: Tensor, attention: MultiHeadAttention) -> Tensor:
    """Keys or values that heads share, once for each head: (B,Hkv,S,K) -> (B,H,S,K)."""
    shared = attention.n_heads // attention.n_kv_heads
    if shared == 1:
        return x
    repeated = x.unsqueeze(2).expand(-1, -1, shared, -1, -1)  # (B,Hkv,shared,S,K)
    return repeated.reshape(x.shape[0], attention.n_heads, -1, attention.d_head)  # (B,H,S,K)


def _allowed(mask: Mask, read: Read) -> Tensor | None:
    """Which keys the queries may attend to, boolean (B|1,1,T|1,S); None: all."""
    real = None if read.real is None else read.real[:, None, None, :]  # (B,1,1,S)
    if mask.form == "full":
        return real
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    allowed = mask.rule(zero, zero, read.queries.view(1, 1, -1, 1), read.keys.view(1, 1, 1, -1))  # (1,1,T,S)
    return allowed if real is None else allowed & real
