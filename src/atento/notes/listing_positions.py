"""The two position listings of the notes, corrected: sinusoidal and relative positions (docs/notes.md#k3)."""

import torch
from torch import Tensor, nn

from atento.attention import attend
from atento.attention.algebra import Mask
from atento.attention.positions import Shaw, sinusoids
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.base.errors import UsageError


class PositionalEncoding(nn.Module):
    """Adds the sinusoid of its position to each token (K3, B1).

    The notes' class lacks an import, fails if `d_model` is odd, and on batch-first input uses the batch index as the
    position (error 56).
    """

    pe: Tensor

    def __init__(self, d_model: int, max_len: int = 5000, *, batch_first: bool = True) -> None:
        super().__init__()
        self.d_model, self.max_len, self.batch_first = d_model, max_len, batch_first
        self.register_buffer("pe", sinusoids(torch.arange(max_len), d_model), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B,L,D), or (L,B,D) with `batch_first=False`, or one sequence (L,D) -> the same shape.

        Raises:
            UsageError: another width than `d_model`, or a sequence longer than `max_len`.
        """
        length = x.shape[1 if self.batch_first and x.dim() == 3 else 0]
        if x.dim() not in (2, 3) or x.shape[-1] != self.d_model:
            raise UsageError(f"`x` must be (B,L,D) or (L,D) with D = `d_model` {self.d_model}: got {tuple(x.shape)}")
        if length > self.max_len:
            raise UsageError(f"a sequence must not be longer than `max_len` {self.max_len}: got {length} positions")
        pe = self.pe[:length].to(x.dtype)  # (L,D)
        return x + (pe if self.batch_first or x.dim() == 2 else pe.unsqueeze(1))


class RelativePositionalEncoding(nn.Module):
    """Attention with relative positions of query and key (K3, B6; Shaw et al. 2018, equations 3 to 5).

    e_ij = q_i · (k_j + a_ij) / √K and y_i = Σ α_ij (v_j + b_ij). `a` and `b` are rows of two tables of 2·max_len - 1
    rows centred on distance 0, which is row max_len - 1 for any length. The tables are as wide as one head. The notes'
    class fails in its einsum (error 57). With only the einsum fixed, the row of a distance depends on the length of the
    text (error 58), scores are not divided by √K, values have no relative vectors, and there is no mask (error 59).

    Args:
        d_model: width of all heads together.
        max_len: the longest text for which each distance has its own row.
        n_heads: the width of a head is `d_model` / `n_heads`; the heads share the tables, as in the paper.
        max_distance: clip distances here instead; the tables then have 2·max_distance + 1 rows.
        values: False omits `b`.
    """

    def __init__(
        self,
        d_model: int,
        max_len: int = 5000,
        *,
        n_heads: int = 1,
        max_distance: int | None = None,
        values: bool = True,
    ) -> None:
        super().__init__()
        if n_heads < 1 or d_model % n_heads:
            raise UsageError(f"`n_heads` must divide `d_model`: got {n_heads} and {d_model}")
        if max_len < 1 or (max_distance is not None and max_distance < 0):
            raise UsageError(
                f"`max_len` must be at least 1 and `max_distance` not negative: got {max_len} and {max_distance}"
            )
        self.d_head, self.max_len = d_model // n_heads, max_len
        self.clipped = max_distance is not None
        self.relative = Shaw(self.d_head, max_len - 1 if max_distance is None else max_distance, values=values)

    @property
    def rel_embeddings(self) -> nn.Parameter:
        """`a` (rows, K): one row per distance, key minus query, from the most negative to the most positive."""
        return self.relative.keys

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, seq_len: int | None = None, mask: Mask | Tensor | None = None
    ) -> Tensor:
        """Attend: q (B,H,T,K), k and v (B,H,S,K), or all without heads (B,L,K), or one sequence (L,K) -> as q.

        Args:
            seq_len: S, the length of the text; None uses the number of keys. Query i has position S - T + i.
            mask: a Mask or a boolean tensor that broadcasts to (B,H,T,S), True = may attend.

        Raises:
            UsageError: a width other than a head's, a length other than the keys', or a text longer than `max_len`
                without `max_distance`.
        """
        widths = {x.shape[-1] for x in ((q, k, v) if self.relative.adds_values else (q, k))}
        if not q.dim() == k.dim() == v.dim() or q.dim() not in (2, 3, 4) or widths != {self.d_head}:
            raise UsageError(
                f"`q`, `k` and `v` must be (B,H,L,K), (B,L,K) or (L,K) with K = `d_model` / `n_heads` = "
                f"{self.d_head}: got {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
            )
        length = k.shape[-2]
        if seq_len is not None and seq_len != length:
            raise UsageError(f"`seq_len` must be the number of keys, {length}: got {seq_len}")
        if length > self.max_len and not self.clipped:
            raise UsageError(
                f"a text must not be longer than `max_len` {self.max_len}: got {length} positions; "
                "`max_distance` would clip distances instead"
            )
        heads = [x if x.dim() == 4 else x.reshape(-1, 1, *x.shape[-2:]) for x in (q, k, v)]  # (B,1,L,K)
        positions = QueryKeyPositions.arange(q.shape[-2], length, q.device)
        out = attend(*heads, mask=mask, relative=RelativeTerms((self.relative,), positions))
        return out.reshape(*q.shape[:-1], v.shape[-1])
