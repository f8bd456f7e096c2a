"""Multi-head attention, self or cross, with cached keys and values (docs/notes.md#a2, #a8, #a9, #a11, #h12)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.algebra import Context, TypedFunction
from atento.attention.dropout import Randomness
from atento.attention.kernels import AnyMask, BlockRouting, attend, has_tiles, repeat_kv
from atento.attention.observe import current_observation, record
from atento.attention.relative_terms import RelativeTerms

_MANY_ROWS = 256  # from here on a copy of a matrix pays in training


class Selectable:
    """A dataclass whose tensors have a row for each row of a batch; lists hold such tensors or dataclasses."""

    def select(self, rows: Tensor) -> Self:
        """That of these batch rows, in this order; a row may occur several times."""
        chosen = object.__new__(type(self))  # in less time than a copy
        vars(chosen).update({name: _selected(value, rows) for name, value in vars(self).items()})
        return chosen


def _selected(value: object, rows: Tensor) -> object:
    if isinstance(value, Tensor):
        return value.index_select(0, rows)
    if isinstance(value, list | tuple):
        return type(value)(_selected(part, rows) for part in value)
    return value.select(rows) if hasattr(value, "select") else value  # a number, or None


@dataclass
class KeyValues(Selectable):
    """Keys and values, each (B,Hkv,S,K), of all positions so far: the cache of a decoding step."""

    keys: Tensor
    values: Tensor

    def append(self, keys: Tensor, values: Tensor) -> "KeyValues":
        """A copy with the keys and values of the next positions appended."""
        return KeyValues(torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2))


@dataclass(frozen=True)
class PositionTerms:
    """What the position schemes of a layer contribute to its self-attention."""

    # applied to queries and keys, in this order (`positions.Rotation`)
    rotations: tuple[Callable[[Tensor], Tensor], ...] = ()
    relative: RelativeTerms | None = None  # added to scores and values
    # chooses the blocks of keys that are read, for attention that is sparse by blocks
    block_router: BlockRouting | None = None


class _Linear(TypedFunction):
    """A linear map whose gradient by the weights takes a third less time in bfloat16 with AMX.

    The narrower matrix of the product is copied transposed, which oneDNN does more slowly inside the product.
    """

    @staticmethod
    def forward(ctx: Context[None], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context[None], grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (of_x, _, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        inputs, outputs = x.flatten(0, -2), grad.flatten(0, -2)  # (B·L,D) and (B·L,N)
        wide = weight.shape[0] > weight.shape[1]
        dweight = (inputs.t().contiguous() @ outputs).t() if wide else outputs.t().contiguous() @ inputs  # (N,D)
        return (outputs @ weight).view(x.shape) if of_x else None, dweight, outputs.sum(dim=0) if of_bias else None


class Projection(nn.Linear):
    """A linear map that can compute some of its rows alone; one with adapters uses the randomness of dropout."""

    def forward(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """(...,D) -> (...,N)."""
        learns = self.weight.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        narrow = x.dtype == torch.bfloat16 and x.device.type == "cpu" and x.numel() >= _MANY_ROWS * x.shape[-1]
        out: Tensor = (_Linear.apply if learns and narrow and has_tiles() else F.linear)(x, self.weight, self.bias)
        return out

    def rows(self, x: Tensor, start: int, stop: int, random: Randomness | None = None) -> Tensor:
        """(...,D) -> (...,stop - start), the outputs from `start` to before `stop`: views of the weight, no copies."""
        return F.linear(x, self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class MultiHeadAttention(nn.Module):
    """Multi-head attention: Concat(head_1 ... head_h) W^O with head_i = attend(x W_i^Q, m W_i^K, m W_i^V).

    The weight of `input` holds the matrices of queries, keys and values, in this order, head after head, so that
    self-attention is one product.

    Args:
        d_model: width of the input and the output.
        n_heads: number of query heads; must divide `d_model` unless `d_head` is given.
        n_kv_heads: number of key and value heads; `n_heads` if not given. Fewer is grouped-query attention, 1 is
            multi-query attention.
        d_head: width of a head; `d_model // n_heads` if not given.
        bias: whether the projections to queries, keys and values have a bias.
        output_bias: whether the output projection has one; `bias` if not given.
        query_norm: norm of each query (..., d_head), before it is rotated; none if not given.
        key_norm: norm of each key, likewise.
        dropout: dropout probability of the attention weights.
        scale: factor of the scores; 1/√d_head if not given.
        kind: "encoder", "decoder" or "cross", the name under which `observe` records the weights.
        layer: the layer number under which `observe` records the weights; the last one if layers share this module.

    Raises:
        ValueError: `n_kv_heads` does not divide `n_heads`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        kind: str = "encoder",
        layer: int = 0,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"`n_kv_heads` must divide `n_heads`: got {self.n_kv_heads} and {n_heads}")
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.dropout, self.scale, self.kind, self.layer = dropout, scale, kind, layer
        self.input = Projection(d_model, (n_heads + 2 * self.n_kv_heads) * self.d_head, bias=bias)
        self.output = Projection(n_heads * self.d_head, d_model, bias=bias if output_bias is None else output_bias)
        self.query_norm, self.key_norm = query_norm, key_norm

    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeyValues | None = None,
        *,
        mask: AnyMask = None,
        position_terms: PositionTerms | None = None,
        state: KeyValues | None = None,
        random: Randomness | None = None,
        layer: int | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Attend to x itself, or to `memory`.

        Args:
            x: queries (B,T,D); in self-attention also the keys and values.
            memory: for cross-attention, (B,S,D), or its keys and values from `key_values`.
            mask: which keys each query may attend to.
            position_terms: position schemes, for self-attention. Cached keys are already rotated.
            state: the cache of a self-attention, which the new keys and values are appended to.
            layer: the layer number under which `observe` records the weights, where several layers share this module.

        Returns:
            The output (B,T,D), and the keys and values that were read, which are the next `state`.
        """
        terms = PositionTerms() if position_terms is None else position_terms
        if memory is None:
            q, k, v = self.split(self.input(x, random))  # q (B,H,T,K), k and v (B,Hkv,T,K)
            for rotation in terms.rotations:
                q, k = rotation(q), rotation(k)  # keys and queries alike: their distance counts
            keys_values = KeyValues(k, v) if state is None else state.append(k, v)
        else:
            q = self.queries(x, random)
            keys_values = memory if isinstance(memory, KeyValues) else self.key_values(memory, random)
        k, v, router = keys_values.keys, keys_values.values, terms.block_router
        relative = None if terms.relative is None else terms.relative.projected(self.project_positions, random)
        if not torch.compiler.is_compiling() and current_observation.get() is not None:
            record(self, self.kind, self.layer if layer is None else layer, q, k, mask, relative, self.scale, router)
        if router is not None:
            out = router.attend(q, repeat_kv(k, self.n_heads), repeat_kv(v, self.n_heads), mask=mask, scale=self.scale)
        else:
            out = attend(
                q,
                k,
                v,
                mask=mask,
                scale=self.scale,
                dropout=self.dropout if self.training else 0.0,
                random=random,
                relative=relative,
            )  # (B,H,T,K)
        return self.output(out.transpose(1, 2).flatten(2), random), keys_values  # (B,T,D)

    def queries(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """The queries of x (B,T,D) alone, as cross-attention reads it: (B,H,T,K)."""
        return self._normed(self._by_head(self.input.rows(x, 0, self.n_heads * self.d_head, random)), self.query_norm)

    def key_values(self, memory: Tensor, random: Randomness | None = None) -> KeyValues:
        """Keys and values of `memory` (B,S,D), computed once for all steps of a decoder (docs/notes.md#a9)."""
        start, stop = (heads * self.d_head for heads in (self.n_heads, self.n_heads + 2 * self.n_kv_heads))
        both = self.input.rows(memory, start, stop, random)
        k, v = both.split(self.n_kv_heads * self.d_head, dim=-1)  # (B,S,Hkv·K) each
        return KeyValues(self._normed(self._by_head(k), self.key_norm), self._by_head(v))

    def project_positions(self, vectors: Tensor, random: Randomness | None = None) -> tuple[Tensor, Tensor]:
        """Vectors of positions (N,D) as queries and keys, (H,N,K) each; keys that heads share are repeated."""
        widths = [self.n_heads * self.d_head, self.n_kv_heads * self.d_head]
        both = self.input.rows(vectors.unsqueeze(0), 0, sum(widths), random)  # (1,N,(H+Hkv)·K)
        queries, keys = (self._by_head(part) for part in both.split(widths, dim=-1))  # (1,H,N,K) and (1,Hkv,N,K)
        return queries[0], repeat_kv(keys, self.n_heads)[0]

    def head_weights(self) -> dict[str, Tensor]:
        """The weight matrices by head, without biases.

        Returns:
            "query" (H,D,K), "key" (Hkv,D,K), "value" (Hkv,D,K) and "output" (H,K,D), for products X·W.
        """
        sizes = [self.n_heads * self.d_head, *[self.n_kv_heads * self.d_head] * 2]
        matrices = zip(("query", "key", "value"), self.input.weight.split(sizes, dim=0))
        named = {name: weight.unflatten(0, (-1, self.d_head)).transpose(1, 2) for name, weight in matrices}
        return named | {"output": self.output.weight.t().unflatten(0, (self.n_heads, self.d_head))}  # (H,K,D)

    @torch.no_grad()
    def load_head_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy the matrices in: the inverse of `head_weights` (docs/notes.md#a8)."""
        rows = [weights[name].transpose(1, 2).flatten(0, 1) for name in ("query", "key", "value")]  # (H·K,D)
        self.input.weight.copy_(torch.cat(rows))
        self.output.weight.copy_(weights["output"].flatten(0, 1).t())  # (H,K,D) -> (D,H·K), as nn.Linear has it

    def _by_head(self, x: Tensor) -> Tensor:
        heads = x.shape[-1] // self.d_head
        return x.reshape(*x.shape[:2], heads, self.d_head).transpose(1, 2)  # (B,L,H*K) -> (B,H,L,K)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projected (B,L,(H+2·Hkv)·K) -> queries (B,H,L,K), keys and values (B,Hkv,L,K)."""
        q, k, v = x.split([self.n_heads * self.d_head, *[self.n_kv_heads * self.d_head] * 2], dim=-1)
        q, k = self._normed(self._by_head(q), self.query_norm), self._normed(self._by_head(k), self.key_norm)
        return q, k, self._by_head(v)

    @staticmethod
    def _normed(x: Tensor, norm: nn.Module | None) -> Tensor:
        """(B,H,L,K) -> (B,H,L,K)."""
        out: Tensor = x if norm is None else norm(x)
        return out
