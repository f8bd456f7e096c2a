"""Masks: the algebra against brute force, the matrices of the notes, who may cache, what lies within reach, errors."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.attention.algebra import KeyRange, additive
from atento.attention.masks import (
    Mask,
    allowed_pairs,
    bidirectional,
    blocks,
    causal,
    dilated,
    documents,
    global_tokens,
    lookahead,
    padding,
    per_head,
    predicate,
    prefix,
    window,
)
from atento.attention.prepared_mask import prepare_mask
from failing import fails

B, H, S = 3, 2, 5
CPU = torch.device("cpu")
LENGTHS = [2, 5, 0]
PREFIXES = [0, 3, 1]
REAL = [[True, False, True, True, False], [True] * S, [False] * S]
DOCS = [[0, 0, 1, 1, -1], [2, 1, 1, 0, 0], [-1] * S]
PACKED = [3, 3, 3, 1, 1]
PAIRS = {(0, 3), (2, 1), (4, 4)}
KEPT = [[True, False, True], [True, True, False], [False, False, True]]
KEPT_BY_HEAD = [[[False, False], [True, False]], [[True, True], [False, True]]]
LEAVES: list[tuple[Callable[[], Mask], Any]] = [
    (bidirectional, lambda b, h, q, k: True),
    (causal, lambda b, h, q, k: k <= q),
    (lambda: lookahead(0), lambda b, h, q, k: k <= q),
    (lambda: lookahead(2), lambda b, h, q, k: k - q <= 2),
    (lambda: prefix(0), lambda b, h, q, k: k <= q),
    (lambda: prefix(1), lambda b, h, q, k: k <= q or k < 1),
    (lambda: prefix(3), lambda b, h, q, k: k <= q or k < 3),
    (lambda: prefix(torch.tensor(PREFIXES)), lambda b, h, q, k: k <= q or k < PREFIXES[b]),
    (lambda: window(1, 0), lambda b, h, q, k: q - 1 <= k <= q),
    (lambda: window(0, 2), lambda b, h, q, k: q <= k <= q + 2),
    (lambda: padding(torch.tensor(LENGTHS)), lambda b, h, q, k: k < LENGTHS[b]),
    (lambda: padding(torch.tensor(REAL)), lambda b, h, q, k: REAL[b][k]),
    (lambda: documents(torch.tensor(DOCS)), lambda b, h, q, k: q >= 0 and DOCS[b][q] == DOCS[b][k] != -1),
    (lambda: documents(torch.tensor([PACKED])), lambda b, h, q, k: q >= 0 and PACKED[q] == PACKED[k]),
    (lambda: prefix(torch.tensor([4])), lambda b, h, q, k: k <= q or k < 4),
    (lambda: prefix(9), lambda b, h, q, k: True),
    (lambda: dilated(2), lambda b, h, q, k: (k - q) % 2 == 0),
    (lambda: dilated(2, 2), lambda b, h, q, k: (k - q) % 2 == 0 and abs(k - q) <= 2),
    (lambda: global_tokens(1), lambda b, h, q, k: q == 0 or k == 0),
    (lambda: global_tokens([3, 9, 1, 3]), lambda b, h, q, k: q in (1, 3) or k in (1, 3)),
    (lambda: allowed_pairs(PAIRS), lambda b, h, q, k: (q, k) in PAIRS),
    (lambda: allowed_pairs([(3, 0)]), lambda b, h, q, k: (q, k) == (3, 0)),
    (lambda: blocks(torch.tensor(KEPT), 2), lambda b, h, q, k: q >= 0 and KEPT[q // 2][k // 2]),
    (lambda: blocks(torch.tensor(KEPT_BY_HEAD), 3), lambda b, h, q, k: q >= 0 and KEPT_BY_HEAD[h][q // 3][k // 3]),
    (lambda: predicate(lambda b, h, q, k: (q + k + h) % 2 == 0, heads=H), lambda b, h, q, k: (q + k + h) % 2 == 0),
]


@dataclass
class Pair:
    """A mask and the same thing as a function of four integers."""

    mask: Mask
    brute: Any


def _join(one: Pair, two: Pair, word: str) -> Pair:
    if word == "and":
        return Pair(one.mask & two.mask, lambda *at: one.brute(*at) and two.brute(*at))
    return Pair(one.mask | two.mask, lambda *at: one.brute(*at) or two.brute(*at))


def _by_head(masks: tuple[Pair, Pair]) -> Pair:
    return Pair(per_head([pair.mask for pair in masks]), lambda b, h, q, k: masks[h].brute(b, 0, q, k))


pairs = st.recursive(
    st.sampled_from(LEAVES).map(lambda leaf: Pair(leaf[0](), leaf[1])),
    lambda inner: st.one_of(
        inner.map(lambda pair: Pair(~pair.mask, lambda *at: not pair.brute(*at))),
        st.builds(_join, inner, inner, st.sampled_from(["and", "or"])),
        st.tuples(inner, inner).filter(lambda two: two[0].mask.heads == two[1].mask.heads == 1).map(_by_head),
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(pair=pairs, queries=st.integers(1, S + 2))
def test_a16_any_expression_of_masks_equals_brute_force(pair: Pair, queries: int) -> None:
    """And, or, not, by head, of every kind; any sizes. Queries before the first key stand in no document or square."""
    got = pair.mask.dense(queries, S)
    assert got.dtype == torch.bool and got.shape[2:] == (queries, S)
    assert got.shape[0] in (1, B) and got.shape[1] in (1, H)
    expected = torch.zeros(B, H, queries, S, dtype=torch.bool)
    for b, h, i, k in product(range(B), range(H), range(queries), range(S)):
        expected[b, h, i, k] = pair.brute(b, h, S - queries + i, k)
    assert torch.equal(got.expand(B, H, queries, S), expected)
    # "does not look ahead" is a promise, so that a cache is never wrong: nothing is above the diagonal
    matrix = pair.mask.dense(S)
    assert pair.mask.looks_ahead or not bool(matrix.triu(1).any())
    if pair.mask.max_ahead is not None and pair.mask.max_ahead >= 0:
        assert not bool(matrix.triu(pair.mask.max_ahead + 1).any())


@pytest.mark.parametrize(("make", "brute"), LEAVES)
def test_every_constructor_alone_equals_brute_force(make: Callable[[], Mask], brute: Any) -> None:
    """And knows whether it looks ahead: for all rows and heads, or the promise is not given."""
    matrix = make().dense(S).expand(B, H, S, S)
    for b, h, q, k in product(range(B), range(H), range(S), range(S)):
        assert bool(matrix[b, h, q, k]) == brute(b, h, q, k)
    assert make().looks_ahead or not bool(matrix.triu(1).any())


def listed(span: KeyRange) -> list[int]:
    return span.tolist() if isinstance(span, Tensor) else list(range(*span))


part = st.tuples(st.integers(0, S + 2), st.integers(0, S + 2)).map(sorted)
some_keys = st.one_of(
    st.none(),
    st.tuples(st.integers(0, S), st.integers(0, S)).map(lambda two: (min(two), max(two))),
    st.sets(st.integers(0, S - 1)).map(lambda keys: torch.tensor(sorted(keys), dtype=torch.long)),
)


@settings(max_examples=50)
@given(pair=pairs, queries=st.integers(1, S + 2), ends=part)
def test_a19_keys_are_seen_within_reach_alone_and_by_all_where_clear(pair: Pair, queries: int, ends: list[int]) -> None:
    """For any queries, in any row and in each; what is within reach is sorted and exists; clear is unmasked."""
    first, last = (min(end, queries) for end in ends)
    prepared = prepare_mask(pair.mask, queries, S, CPU)
    seen = pair.mask.dense(queries, S).expand(B, H, queries, S)[:, :, first:last]
    for row in (None, *range(B)):
        own = seen if row is None else seen[row]
        reach = listed(prepared.reachable(first, last, row))
        assert reach == sorted(set(reach)) and set(reach) <= set(range(S))
        assert not bool(own[..., [key for key in range(S) if key not in reach]].any())
        assert prepared.per_row or reach == listed(prepared.reachable(first, last, None))  # else all rows share blocks
        if first < last:
            low, high = prepared.unmasked(first, last, row)
            assert 0 <= low <= S and high <= S and (low >= high or bool(own[..., low:high].all()))


def test_a19_what_is_clear_is_no_narrower_than_it_might_be() -> None:
    """Queries 4 ... 5 of 9 keys, by hand; the longer one of two that may each allow."""
    expected = {
        causal(): (0, 5),
        lookahead(2): (0, 7),
        prefix(7): (0, 7),
        prefix(2): (0, 5),
        window(3, 2): (2, 7),
        window(0, 0): (5, 5),
        causal() & window(3, 2): (2, 5),
        window(1, 1) | prefix(3): (0, 5),
        causal() & padding(torch.tensor([3])): (0, 3),
        documents(torch.tensor([[0, 0, 1, 1, 1, 1, 1, 2, 2]])): (2, 7),
        documents(torch.tensor([[0, 0, 1, 1, 1, 2, 2, 2, 2]])): (0, 0),
        documents(torch.tensor([[0, 0, 1, 1, 1, 1, 0, 1, 2]])): (0, 0),
        ~causal(): (0, 0),
    }
    for mask, clear in expected.items():
        assert prepare_mask(mask, 9, 9, CPU).unmasked(4, 6) == clear, mask


@settings(max_examples=50)
@given(pair=pairs, queries=st.integers(1, S + 2), ends=part, keys=some_keys, row=st.sampled_from([None, *range(B)]))
def test_a19_some_queries_are_a_part(pair: Pair, queries: int, ends: list[int], keys: Any, row: int | None) -> None:
    """Queries as a slice or as numbers, keys as a range or as numbers, of a mask and of tensors that say the same."""
    dense = pair.mask.dense(queries, S).expand(B, H, queries, S)
    chosen = slice(*(min(end, queries) for end in ends))
    columns = listed((0, S) if keys is None else keys)
    expected = (dense if row is None else dense[row : row + 1])[:, :, chosen][..., columns]
    numbers = torch.arange(queries)[chosen]
    for mask in (pair.mask, dense, pair.mask.dense(queries, S)):
        prepared = prepare_mask(mask, queries, S, CPU)
        for rows in (chosen, numbers):
            strip = prepared.for_queries(rows, keys, row)
            assert bool(expected.all()) if strip is None else torch.equal(strip.expand(expected.shape), expected)
    flipped = pair.mask.tile(numbers.flip(0) + S - queries, torch.tensor(columns, dtype=torch.long), S, row)
    assert torch.equal(flipped.expand(expected.shape), expected.flip(-2))


@pytest.mark.parametrize("shape", [(3, S), (3, 1), (1, S), (B, 1, 3, 1), (B, H, 1, S), (1, H, 3, S)])
def test_queries_and_keys_of_a_tensor_that_broadcasts(shape: tuple[int, ...]) -> None:
    given_one = torch.rand(shape, generator=torch.Generator().manual_seed(0)) > 0.5
    prepared = prepare_mask(given_one, 3, S, CPU)
    expected = given_one.expand(B, H, 3, S)[2:, :, 1:, [0, 3]]
    strip = prepared.for_queries(slice(1, 3), torch.tensor([0, 3]), 2)
    assert strip is not None and torch.equal(strip.expand(expected.shape), expected)
    fails(ValueError, "over 4 keys does not fit: got 5 keys", prepare_mask, ones(3, 4), 3, S, CPU)


def test_a19_reaches_are_no_wider_than_they_need_be() -> None:
    """Or kernels would gain nothing; of 100 positions, and of two packed rows."""
    far, rows = 100, torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, -1, -1]])
    bands = {
        causal(): (0, 14),
        lookahead(3): (0, 17),
        prefix(40): (0, 40),
        prefix(7): (0, 14),
        window(2, 1): (8, 15),
        dilated(3, 6): (4, 20),
        allowed_pairs({(10, 5), (12, 14)}): (5, 16),
        window(2, 1) & causal(): (8, 14),
        window(2, 1) | window(0, 9): (8, 23),
        window(2, 1) & bidirectional(): (8, 15),
        per_head([window(1, 0), window(0, 1)]): (9, 15),
        padding(torch.tensor([3])) & window(1, 1): (9, 15),
    }
    for mask, expected in bands.items():
        assert mask.reachable is not None and mask.reachable(10, 14, far, None) == expected, mask
    assert window(9, 9).reachable(0, 2, 4, None) == (0, 4)  # type: ignore[misc]
    own, shared = documents(rows), window(1, 1)
    for joined in (own & shared, shared & own, own | shared, shared | own, per_head([shared, own])):
        assert prepare_mask(joined, 6, 6, CPU).per_row, joined
    packed = prepare_mask(own, 6, 6, CPU)
    assert [packed.reachable(0, 2, row) for row in (0, 1, None)] == [(0, 3), (0, 4), (0, 4)]
    assert [packed.reachable(4, 6, row) for row in (0, 1, None)] == [(3, 6), (0, 0), (3, 6)]
    assert packed.per_row and not prepare_mask(documents(rows[:1]), 6, 6, CPU).per_row
    lengths = prefix(torch.tensor([3, 8]))
    assert lengths.reachable and [lengths.reachable(4, 6, 9, row) for row in (0, 1, None)] == [(0, 6), (0, 8), (0, 8)]


def test_a19_reaches_with_gaps_are_lists_of_keys() -> None:
    chosen, local = global_tokens([0, 50]), window(1, 0) | global_tokens([0, 50])
    kept = blocks(torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0]]).bool(), 4)
    cases: list[tuple[Mask, int, int, list[int]]] = [
        (chosen, 10, 20, [0, 50]),
        (chosen, 40, 51, list(range(100))),  # 50 itself sees everyone
        (local, 10, 12, [0, 9, 10, 11, 50]),
        (local & causal(), 10, 12, [0, 9, 10, 11]),
        (kept, 0, 4, [0, 1, 2, 3, 12, 13, 14, 15]),
        (kept, 4, 8, [8, 9, 10, 11]),
        (kept, 3, 5, [0, 1, 2, 3, *range(8, 16)]),
        (kept & chosen, 0, 4, [0, 1, 2, 3, 12, 13, 14, 15]),
        (kept & chosen, 4, 8, []),
    ]
    for mask, first, last, expected in cases:
        assert mask.reachable is not None and listed(mask.reachable(first, last, 100, None)) == expected, (mask, first)
    assert (~causal()).reachable is (causal() | padding(torch.tensor([1]))).reachable is None


@settings(max_examples=40)
@given(pair=pairs, queries=st.integers(1, S + 2), size=st.integers(1, S + 1))
def test_a19_squares_of_a_mask_are_kept_where_any_pair_is(pair: Pair, queries: int, size: int) -> None:
    dense = pair.mask.dense(queries, S)
    got = pair.mask.blocks(queries, S, size)
    rows, columns = -(-queries // size), -(-S // size)
    assert got.shape == (*dense.shape[:2], rows, columns)
    for i, j in product(range(rows), range(columns)):
        square = dense[:, :, i * size : (i + 1) * size, j * size : (j + 1) * size]
        assert torch.equal(got[:, :, i, j], square.flatten(2).any(-1))


@settings(max_examples=50)
@given(pair=pairs, rows=st.lists(st.integers(0, B - 1), min_size=1, max_size=4))
def test_lowering_keeps_the_matrix_marks_empty_rows_and_follows_a_search(pair: Pair, rows: list[int]) -> None:
    prepared = prepare_mask(pair.mask, S, S, CPU)
    dense = pair.mask.dense(S)
    strip = prepared.select(torch.tensor(rows)).for_queries(slice(0, S))
    got = torch.ones(1, dtype=torch.bool) if strip is None else strip
    assert torch.equal(got.expand(len(rows), H, S, S), dense.expand(B, H, S, S)[rows])
    if prepared.allowed is None:
        assert bool(dense.all())
        return
    assert torch.equal(prepared.allowed.expand(dense.shape), dense)
    assert prepared.bias is not None and torch.equal(prepared.bias == 0, prepared.allowed)
    assert bool((prepared.bias[~prepared.allowed] == -torch.inf).all())
    empty = ~dense.any(-1, keepdim=True)
    assert (prepared.empty is None) == (not bool(empty.any()))
    if prepared.empty is not None:
        assert torch.equal(prepared.empty.expand(empty.shape), empty)
    assert not prepared.is_causal or torch.equal(dense[0, 0], torch.ones(S, S).tril().bool())


NEVER_AHEAD = [
    *(causal(), lookahead(0), prefix(0), window(3, 0), dilated(3, 0), allowed_pairs([(3, 1), (2, 2)])),
    prefix(1),  # the first key is behind, or at, every query
    *(causal() & padding(torch.tensor([3])), documents(torch.tensor([[0, 0, 1, 1, 1]])) & causal()),
    *(causal() | window(2, 0), bidirectional() & causal(), lookahead(2) & causal(), dilated(2) & causal()),
    *(window(2, 0) | global_tokens(1) & causal(), per_head([causal(), window(1, 0)])),
    *(blocks(torch.ones(2, 2).tril(-1).bool(), 4), blocks(torch.ones(5, 5).tril().bool(), 1)),
]
AHEAD = [
    *(lookahead(1), bidirectional(), prefix(2), prefix(torch.tensor([0, 3])), window(3, 1), padding(torch.tensor([3]))),
    *(documents(torch.tensor([[0, 0, 1, 1, 1]])), causal() | window(2, 1), dilated(2), global_tokens(1)),
    *(~bidirectional() | causal(), ~causal()),  # not known, so not promised
    *(causal() | allowed_pairs([(0, 3)]), per_head([causal(), lookahead(1)])),
    blocks(torch.ones(2, 2).tril().bool(), 4),  # within a square on the diagonal
]


@pytest.mark.parametrize("mask", [*NEVER_AHEAD, *AHEAD], ids=repr)
def test_who_looks_ahead(mask: Mask) -> None:
    assert mask.looks_ahead is (mask in AHEAD)


def drawn(mask: Mask, *size: int, row: int = 0) -> str:
    """The matrix of a row, one word for each query, as 110."""
    return " ".join("".join(map(str, line)) for line in mask.dense(*size)[row, 0].int().tolist())


def test_a7_a16_a19_l2_c10_e1_masks_by_hand_and_drawn() -> None:
    """S3's 4×4: zeros on and under the diagonal, −∞ above it."""
    inf = float("-inf")
    assert causal().additive(4).tolist() == [[[[0] * n + [inf] * (4 - n) for n in range(1, 5)]]]
    assert additive(torch.tensor([True, False]), torch.float64).tolist() == [0.0, inf]
    # row 3 of "o gato pulou alto" is 1110 causal (S1 forgets itself), 1111 bidirectional; a cached step of packing
    assert drawn(causal(), 4).split()[2] == "1110" and drawn(bidirectional(), 4).split()[2] == "1111"
    assert drawn(prefix(2), 4) == "1100 1100 1110 1111"
    by_row = prefix(torch.tensor([0, 3]))
    assert drawn(by_row, 3) == "100 110 111" and drawn(by_row, 3, row=1) == "111 111 111"
    assert drawn(window(1, 1), 4) == "1100 1110 0111 0011"
    assert drawn(documents(torch.tensor([[7, 7, 3, -1]])), 4) == "1100 1100 0010 0000"
    packed = causal() & documents(torch.tensor([[0, 0, 1, 1]]))
    assert drawn(packed, 4) == "1000 1100 0010 0011" and drawn(packed, 1, 4) == "0011"
    # token 0 may see token 3; Longformer's pattern; head 1 of two, and row 1 of two, and the last query alone
    assert (causal() | allowed_pairs({(0, 3)})).draw(4) == "■ · · ■\n■ ■ · ·\n■ ■ ■ ·\n■ ■ ■ ■"
    assert (window(1, 1) | global_tokens(1)).draw(4) == "■ ■ ■ ■\n■ ■ ■ ·\n■ ■ ■ ■\n■ · ■ ■"
    two = per_head([causal(), dilated(2)]) & padding(torch.tensor([3, 2]))
    assert two.draw(3, head=1) == "■ · ■\n· ■ ·\n■ · ■" and two.draw(1, 3, row=1) == "■ ■ ·"
    assert blocks(torch.eye(2).bool(), 2).draw(3) == "■ ■ ·\n■ ■ ·\n· · ■"


def test_what_masks_say_alike_what_kernels_know_of_them_and_their_names() -> None:
    lengths = torch.tensor([0, 2, 4])
    assert torch.equal(padding(lengths).dense(4), padding(torch.arange(4) < lengths[:, None]).dense(4))
    assert (causal() & padding(ones(2, 4))).dense(2, 4).shape == (2, 1, 2, 4)  # keys of its own serve a step too
    either = causal() | bidirectional()
    assert (causal() & bidirectional()).form == (bidirectional() & causal()).form == "causal"
    assert either.form == "any" and bool(either.dense(3).all())
    assert repr(~(causal() & padding(lengths)) | window(2, 1)) == "Mask((~(causal & padding) | window(2, 1)))"
    assert repr(lookahead(3)) == "Mask(lookahead(3))" and repr(prefix(2)) == "Mask(prefix(2))"


def test_a_rule_that_asks_for_rows_or_heads_says_how_many() -> None:
    """Else it would be asked about the first alone, and all would get its answer."""
    lengths = torch.tensor([6, 3])
    with pytest.raises(ValueError, match=r"this rule depends on `b`: .* as in predicate\(rule, batch"):
        predicate(lambda b, h, q, k: k < lengths[b])
    with pytest.raises(ValueError, match=r"this rule depends on `h`: .* as in predicate\(rule, heads"):
        predicate(lambda b, h, q, k: (q + k + h) % 2 == 0)
    mask = predicate(lambda b, h, q, k: k < lengths[b], batch=2)
    assert mask.dense(1, 6).sum(dim=-1).flatten().tolist() == [6, 3]
    assert predicate(lambda b, h, q, k: k < lengths[:1][b]).dense(1, 6).sum() == 6  # a table of one row is for one row


def ones(*size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bool)


def rows(*lengths: int) -> Mask:
    return prefix(torch.tensor(lengths))


def text(length: int) -> Mask:
    return documents(torch.zeros(1, length, dtype=torch.long))


NO_MASKS = [
    (lambda: causal() & ones(2, 2), "a mask combines only with a mask: got Tensor; `predicate`"),
    (lambda: causal() | causal, "a mask combines only with a mask: got function; `predicate`"),
    (lambda: padding([1, 2]), "`padding` takes lengths (B,), or boolean (B,L) with True for a real token: got list"),
    (lambda: prefix(torch.ones(2)), "`prefix` takes whole numbers (B,), one for each row: got torch.float32 of (2,)"),
    (lambda: documents(torch.zeros(4).long()), "`documents` takes integers (B,L), the number of each token's docu"),
    (lambda: documents([[0, 1]]), "`documents` takes integers (B,L), the number of each token's document: got list"),
    (lambda: prepare_mask(causal, 2, 2, CPU), "a mask is a value: call the function, as in mask=causal()"),
    (lambda: predicate(lambda b, h, q, k: True), "a rule must return a boolean tensor, as `k <= q` does: got bool"),  # type: ignore[arg-type,return-value]
    (lambda: predicate(lambda b, h, q, k: q - k), "a rule must return a boolean tensor, as `k <= q` does: got torch."),
    (lambda: causal() and causal(), "a mask has no truth value: combine masks with & and |"),
    (lambda: not causal(), "a mask has no truth value"),
    (lambda: allowed_pairs((0, 3)), "`pairs` are (query, key) numbers from 0, as in allowed_pairs([(0, 3)])"),  # type: ignore[arg-type]
    (lambda: prepare_mask([[True]], 1, 1, CPU), "a mask is a `Mask` or a boolean tensor, True = may attend: got list"),
    (lambda: prepare_mask(torch.eye(2), 2, 2, CPU), "a mask must be boolean, True = may attend: got torch.float32"),
]
NO_NUMBERS = [
    (lambda: lookahead(-1), "`k` must be a whole number, 0 or more: got -1"),
    (lambda: lookahead(1.5), "`k` must be a whole number, 0 or more: got 1.5"),
    (lambda: window(2, -1), "`right` must be a whole number, 0 or more: got -1"),
    (lambda: window(1.5, 0), "`left` must be a whole number, 0 or more: got 1.5"),
    (lambda: prefix(-1), "`n` must be a whole number, 0 or more: got -1"),
    (lambda: prefix(torch.tensor([2, -1])), "`prefix` takes lengths of 0 or more: got -1"),
    (lambda: padding(torch.tensor([3, -2])), "`padding` takes lengths of 0 or more: got -2"),
    (lambda: dilated(0), "`step` must be a whole number, 1 or more: got 0"),
    (lambda: dilated(2, -1), "`reach` must be a whole number, 0 or more: got -1"),
    *(
        (lambda n=n: global_tokens(n), f"`positions` must name at least one position, none negative: got {n}")
        for n in (0, -2, [], [3, -1])
    ),
    (lambda: blocks(torch.ones(2, 2), 4), "`allowed_blocks` must be a boolean matrix, or one for each head: got tor"),
    (lambda: blocks(ones(2), 4), "`allowed_blocks` must be a boolean matrix, or one for each head: got torch.bool (2"),
    (lambda: blocks(ones(2, 2), 0), "`size` must be a whole number, 1 or more: got 0"),
    (lambda: blocks(ones(2, 2), 2).dense(5), "the mask blocks(2) was made for 4 queries and 4 keys"),
    (lambda: per_head([]), "`per_head` takes one mask for each head, none of which depends on the head itself"),
    (lambda: per_head([causal(), per_head([causal()] * 2)]), "`per_head` takes one mask for each head, none of which"),
    (lambda: per_head([causal(), rows(1, 2), rows(1, 2, 3)]), "masks of batch 2 and 3 cannot be combined: prefix("),
    (lambda: per_head([text(4), text(5)]), "masks made for 4 and 5 keys cannot be combined: documents"),
    (lambda: prepare_mask(per_head([text(4), causal()]), 5, 5, CPU), "the mask per_head(documents, causal) was made "),
    (lambda: (causal() & padding(ones(2, 4))).dense(5), "the mask causal & padding was made for 4 keys: got 5"),
    (lambda: text(3).dense(1, 4), "the mask documents was made for 3 keys: got 4"),
    (lambda: padding(torch.tensor([1, 2])) & rows(1, 2, 3), "masks of batch 2 and 3 cannot be combined: padding, pre"),
    (lambda: own(2) | own(4), "masks of heads 2 and 4 cannot be combined: own2, own4"),
    (lambda: padding(ones(2, 4)) & ~padding(ones(2, 5)), "masks made for 4 and 5 keys cannot be combined: padding, ~"),
]


def own(heads: int) -> Mask:
    return predicate(lambda b, h, q, k: h < q, f"own{heads}", heads=heads)


@pytest.mark.parametrize(("make", "message"), [*NO_MASKS, *NO_NUMBERS])
def test_what_cannot_be_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError if any(make is row[0] for row in NO_MASKS) else ValueError) as refused:
        make()
    assert str(refused.value).startswith(message)
