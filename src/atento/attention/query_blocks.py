"""How the blocked kernel divides a call: into blocks of queries, and those into parts that fit into a cache."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from atento.attention.algebra import KeyRange, Mask, count
from atento.attention.dropout import Key
from atento.attention.prepared_mask import PreparedMask
from atento.attention.relative_terms import RelativeTerms

_PART_SCORES = 1 << 20  # scores computed at once on a CPU: a few megabytes, which stay in its cache
_GPU_FACTOR = 64  # times as many on a GPU, which needs large operations
_MAX_QUERIES = 512  # queries in a block
_MIN_QUERIES = 128  # fewer make thin products, which are slow; more read keys that their mask does not allow
_TINY = 16  # queries in a block that exceeds the budget all the same


@dataclass(frozen=True)
class QueryBlockCall:
    """The arguments of a call, the same for all blocks."""

    mask: PreparedMask
    relative: RelativeTerms | None
    scale: float
    dropout: float
    key: Key  # of the dropout
    lengths: tuple[int, int]  # T and S

    @property
    def learned(self) -> list[Tensor]:
        """The parameters of the relative schemes."""
        return [] if self.relative is None else self.relative.parameters()

    @property
    def budget(self) -> int:
        """How many scores are computed at once."""
        return _PART_SCORES if self.mask.device.type == "cpu" else _GPU_FACTOR * _PART_SCORES  # scores in a part


@dataclass(frozen=True)
class QueryBlock:
    """Some queries of batch row `row` (None: of all rows), and the keys that they can reach."""

    queries: slice
    keys: KeyRange
    row: int | None

    def rows(self, x: Tensor) -> Tensor:
        """The batch rows of the block in x, whose first dimension may be 1."""
        return x if self.row is None or x.shape[0] == 1 else x[self.row : self.row + 1]

    def bias(self, x: Tensor) -> Tensor:
        """The rows and queries of the block in a bias (B|1,H|1,T|1,S), for all keys."""
        x = self.rows(x)
        return x if x.shape[-2] == 1 else x[..., self.queries, :]


@dataclass(frozen=True)
class Part:
    """Some heads of some batch rows of a block, computed at once."""

    rows: slice
    heads: slice

    def of(self, x: Tensor) -> Tensor:
        """The view of the part in x (b|1,H|1,...)."""
        x = x if x.shape[0] == 1 else x[self.rows]
        return x if x.shape[1] == 1 else x[:, self.heads]

    def add(self, total: Tensor, gradient: Tensor) -> None:
        """Add the part's gradient to `total` (b|1,H|1,...), summed over dimensions of size 1."""
        total = self.of(total)
        total += gradient.sum_to_size(total.shape)


def query_blocks(call: QueryBlockCall, batch: int, n_heads: int) -> Iterator[QueryBlock]:
    """The blocks of a call, without those whose queries reach no key."""
    query_len = call.lengths[0]
    for row in range(batch) if call.mask.per_row and batch > 1 else (None,):
        # the length of a block follows from the number of keys that queries in the middle reach
        middle = call.mask.reachable(query_len // 2, min(query_len // 2 + 64, query_len), row)
        if call.relative is not None and call.relative.without_distance_bias is not None:
            n_matrices = n_heads * (batch if row is None else 1)  # some term is computed for all heads of a block
        else:
            n_matrices = call.mask.n_matrices(row)  # the mask of a block is made for these at once
        width = max(1, count(middle)) * n_matrices  # scores of one query
        limits_keys = isinstance(call.mask.mask, Mask) and call.mask.mask.reachable is not None
        n_queries = min(_MAX_QUERIES, max(_MIN_QUERIES, count(middle) // 8)) if limits_keys else _MAX_QUERIES
        size = max(_TINY, min(n_queries, call.budget // width))
        first = 0
        # invariant: queries before `first` are in a block, or reach no key
        while first < query_len:
            last = min(first + size, query_len)
            keys = call.mask.reachable(first, last, row)
            # queries that reach many more keys than those in the middle get shorter blocks
            while last - first > _TINY and n_matrices * (last - first) * count(keys) > 4 * call.budget:
                last = first + max(_TINY, (last - first) // 2)
                keys = call.mask.reachable(first, last, row)
            if count(keys):
                yield QueryBlock(slice(first, last), keys, row)
            first = last


def parts(call: QueryBlockCall, block: QueryBlock, rows: int, n_heads: int) -> Iterator[Part]:
    """Divides a block into parts of about the budget: several batch rows, one row, or some heads of one row."""
    pairs = (block.queries.stop - block.queries.start) * count(block.keys)  # of one plane
    relative = call.relative  # a term may need the weights of all heads at once, so that a block cannot be divided
    is_whole = relative is not None and (relative.adds_values or relative.sparsifier is not None)
    n_planes = rows * n_heads if is_whole else max(1, call.budget // pairs)  # planes in a part
    # a plane is the (t,s) scores of one head of one row; whole rows are taken where all their heads fit
    if n_planes >= n_heads:
        size = n_planes // n_heads  # rows in a part
        yield from (Part(slice(i, min(i + size, rows)), slice(0, n_heads)) for i in range(0, rows, size))
    else:
        for row in range(rows):
            for first in range(0, n_heads, n_planes):
                yield Part(slice(row, row + 1), slice(first, min(first + n_planes, n_heads)))
