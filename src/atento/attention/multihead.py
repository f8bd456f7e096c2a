"""Multi-head attention, self or cross, with its decode state (docs/notes.md#a2, #a8, #a9, #a11, #h12)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.kernels import AnyMask, attend, by_head
from atento.attention.observe import record
from atento.attention.positions import Turn
from atento.attention.relative import Relations
from atento.attention.sparse import BlockChoice, attend_chosen


@dataclass
class KeyValues:
    """Keys and values of the positions seen so far, each (B,Hkv,S,K); what makes decoding a step cheap."""

    keys: Tensor
    values: Tensor

    def extended(self, keys: Tensor, values: Tensor) -> "KeyValues":
        """With the keys and values of the next positions joined behind."""
        return KeyValues(torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2))

    def select(self, rows: Tensor) -> "KeyValues":
        """Only those batch rows, in that order (beams reorder and finished sentences leave)."""
        return KeyValues(self.keys.index_select(0, rows), self.values.index_select(0, rows))


@dataclass(frozen=True)
class Order:
    """What position schemes have made ready for a self-attention: how to turn queries and keys, what pairs get."""

    turns: tuple[Turn, ...] = ()
    relations: Relations | None = None
    choice: BlockChoice | None = None  # what chooses blocks of keys, where attention is sparse by blocks


class MultiHeadAttention(nn.Module):
    """Concat(head_1 ... head_h) W^O with head_i = attend(x W_i^Q, m W_i^K, m W_i^V).

    All the input matrices stand in one weight, rows in the order queries, keys, values, head after head, so that
    self-attention is one product. `kind` ("encoder", "decoder", "cross") and `layer` only name it when observed.
    `n_kv_heads` fewer than `n_heads` share keys and values (grouped; 1: multi-query); `scale` None is 1/√K.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        bias: bool = True,
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
        self.input = nn.Linear(d_model, (n_heads + 2 * self.n_kv_heads) * self.d_head, bias=bias)
        self.output = nn.Linear(n_heads * self.d_head, d_model, bias=bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeyValues | None = None,
        *,
        mask: AnyMask = None,
        order: Order | None = None,
        state: KeyValues | None = None,
        random: Randomness | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """x (B,T,D) attends to itself, or to `memory` (B,S,D) (or its keys and values, made once by `key_values`).

        `order` is what position schemes add to a self-attention; keys are cached turned, as they stay where they are.
        Returns the output (B,T,D) and the keys and values it read, which are the next `state` of a self-attention.
        """
        if memory is None:
            q, k, v = self._split(self.input(x))
            for turn in () if order is None else order.turns:
                q, k = turn(q), turn(k)
            read = KeyValues(k, v) if state is None else state.extended(k, v)
        else:
            weight, bias = self._rows(0, self.n_heads)
            q = self._by_head(F.linear(x, weight, bias))
            read = memory if isinstance(memory, KeyValues) else self.key_values(memory)
        relations = None if order is None else order.relations
        choice = None if order is None else order.choice
        record(self, self.kind, self.layer, q, read.keys, mask, relations, self.scale, choice)
        if choice is not None:
            k, v = by_head(read.keys, self.n_heads), by_head(read.values, self.n_heads)
            out = attend_chosen(q, k, v, choice, mask=mask, scale=self.scale)
            return self.output(out.transpose(1, 2).flatten(2)), read
        dropout = self.dropout if self.training else 0.0
        out = attend(
            q,
            read.keys,
            read.values,
            mask=mask,
            scale=self.scale,
            dropout=dropout,
            random=random,
            relations=relations,
        )  # (B,H,T,K)
        return self.output(out.transpose(1, 2).flatten(2)), read

    def key_values(self, memory: Tensor) -> KeyValues:
        """Keys and values of `memory` (B,S,D): computed once for all steps of a decoder (docs/notes.md#a9)."""
        weight, bias = self._rows(self.n_heads, self.n_heads + 2 * self.n_kv_heads)
        k, v = F.linear(memory, weight, bias).split(self.n_kv_heads * self.d_head, dim=-1)
        return KeyValues(self._by_head(k), self._by_head(v))

    def head_weights(self) -> dict[str, Tensor]:
        """The matrices for X·W by head: "query" (H,D,K), "key", "value" (Hkv,D,K), "output" (H,K,D); no biases."""
        sizes = [self.n_heads * self.d_head, *[self.n_kv_heads * self.d_head] * 2]
        parts = self.input.weight.split(sizes, dim=0)
        named = {n: p.unflatten(0, (-1, self.d_head)).transpose(1, 2) for n, p in zip(("query", "key", "value"), parts)}
        return named | {"output": self.output.weight.t().unflatten(0, (self.n_heads, self.d_head))}

    @torch.no_grad()
    def load_head_weights(self, weights: dict[str, Tensor]) -> None:
        """The inverse of `head_weights` (docs/notes.md#a8: fused and per-head weights convert both ways)."""
        self.input.weight.copy_(
            torch.cat([weights[n].transpose(1, 2).flatten(0, 1) for n in ("query", "key", "value")])
        )
        self.output.weight.copy_(weights["output"].flatten(0, 1).t())

    def _rows(self, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        rows = slice(first * self.d_head, last * self.d_head)
        return self.input.weight[rows], None if self.input.bias is None else self.input.bias[rows]

    def _by_head(self, x: Tensor) -> Tensor:
        heads = x.shape[-1] // self.d_head
        return x.reshape(*x.shape[:2], heads, self.d_head).transpose(1, 2)  # (B,L,H*K) -> (B,H,L,K)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes = [self.n_heads * self.d_head, *[self.n_kv_heads * self.d_head] * 2]
        q, k, v = x.split(sizes, dim=-1)
        return self._by_head(q), self._by_head(k), self._by_head(v)
