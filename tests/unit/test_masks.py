"""Masks: the algebra against brute force, the matrices of the notes, who may cache, and what cannot be joined."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.attention.masks import (
    Mask,
    additive,
    bidirectional,
    causal,
    documents,
    lookahead,
    lower,
    padding,
    predicate,
    prefix,
    window,
)

B, H, S = 3, 2, 5
Brute = Callable[[int, int, int, int], bool]
LENGTHS = [2, 5, 0]
PREFIXES = [0, 3, 1]
REAL = [[True, False, True, True, False], [True] * S, [False] * S]
DOCUMENTS = [[0, 0, 1, 1, -1], [2, 1, 1, 0, 0], [-1] * S]
LEAVES: list[tuple[Callable[[], Mask], Brute]] = [
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
    (
        lambda: documents(torch.tensor(DOCUMENTS)),
        lambda b, h, q, k: DOCUMENTS[b][q] == DOCUMENTS[b][k] != -1,
    ),
    (lambda: predicate(lambda b, h, q, k: (q + k + h) % 2 == 0, heads=H), lambda b, h, q, k: (q + k + h) % 2 == 0),
]


@dataclass
class Pair:
    """A mask and the same thing as a function of four integers."""

    mask: Mask
    brute: Brute


def _join(one: Pair, two: Pair, word: str) -> Pair:
    if word == "and":
        return Pair(one.mask & two.mask, lambda *at: one.brute(*at) and two.brute(*at))
    return Pair(one.mask | two.mask, lambda *at: one.brute(*at) or two.brute(*at))


pairs = st.recursive(
    st.sampled_from(LEAVES).map(lambda leaf: Pair(leaf[0](), leaf[1])),
    lambda inner: st.one_of(
        inner.map(lambda pair: Pair(~pair.mask, lambda *at: not pair.brute(*at))),
        st.builds(_join, inner, inner, st.sampled_from(["and", "or"])),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(pair=pairs, queries=st.integers(1, S))
def test_any_expression_of_masks_equals_brute_force(pair: Pair, queries: int) -> None:
    """A16: and, or, not of every kind, mixed sizes of batch and heads, all queries or the last few only."""
    got = pair.mask.dense(queries, S)
    assert (
        got.dtype == torch.bool and got.shape[0] in (1, B) and got.shape[1] in (1, H) and got.shape[2:] == (queries, S)
    )
    expected = torch.zeros(B, H, queries, S, dtype=torch.bool)
    for b, h, i, k in product(range(B), range(H), range(queries), range(S)):
        expected[b, h, i, k] = pair.brute(b, h, S - queries + i, k)
    assert torch.equal(got.expand(B, H, queries, S), expected)


@settings(max_examples=100, deadline=None)
@given(pair=pairs)
def test_a_mask_that_does_not_look_ahead_has_nothing_above_the_diagonal(pair: Pair) -> None:
    """So a cache is never wrong: "does not look ahead" is a promise, kept for every expression."""
    matrix = pair.mask.dense(S)
    ahead = bool(matrix.triu(1).any())
    assert pair.mask.looks_ahead or not ahead
    if pair.mask.ahead is not None and pair.mask.ahead >= 0:
        assert not bool(matrix.triu(pair.mask.ahead + 1).any())


@settings(max_examples=100, deadline=None)
@given(pair=pairs)
def test_lowering_keeps_the_matrix_and_marks_the_rows_without_keys(pair: Pair) -> None:
    lowered = lower(pair.mask, S, S, torch.device("cpu"))
    dense = pair.mask.dense(S)
    if lowered.allowed is None:
        assert bool(dense.all())
        return
    assert torch.equal(lowered.allowed.expand(dense.shape), dense)
    assert torch.equal(lowered.bias == 0, lowered.allowed) and bool(
        (lowered.bias[~lowered.allowed] == -torch.inf).all()
    )
    empty = ~dense.any(-1, keepdim=True)
    assert (lowered.empty is None) == (not bool(empty.any()))
    if lowered.empty is not None:
        assert torch.equal(lowered.empty.expand(empty.shape), empty)
    assert not lowered.is_causal or torch.equal(dense[0, 0], torch.ones(S, S).tril().bool())


@pytest.mark.parametrize(
    ("mask", "ahead"),
    [
        (causal(), False),
        (lookahead(0), False),
        (lookahead(1), True),
        (bidirectional(), True),
        (prefix(0), False),
        (prefix(1), False),  # the first key is behind, or at, every query
        (prefix(2), True),
        (prefix(torch.tensor([0, 3])), True),
        (window(3, 0), False),
        (window(3, 1), True),
        (padding(torch.tensor([3])), True),
        (causal() & padding(torch.tensor([3])), False),
        (documents(torch.tensor([[0, 0, 1, 1, 1]])), True),
        (documents(torch.tensor([[0, 0, 1, 1, 1]])) & causal(), False),
        (causal() | window(2, 0), False),
        (causal() | window(2, 1), True),
        (bidirectional() & causal(), False),
        (lookahead(2) & causal(), False),
        (~bidirectional() | causal(), True),  # not known, so not promised
        (~causal(), True),
    ],
    ids=repr,
)
def test_who_looks_ahead(mask: Mask, ahead: bool) -> None:
    assert mask.looks_ahead is ahead


def test_a7_the_matrix_of_the_notes() -> None:
    """S3's 4×4: zeros on and under the diagonal, −∞ above it."""
    inf = float("-inf")
    expected = [[0, inf, inf, inf], [0, 0, inf, inf], [0, 0, 0, inf], [0, 0, 0, 0]]
    assert causal().additive(4).tolist() == [[expected]]
    assert additive(torch.tensor([True, False]), torch.float64).tolist() == [0.0, inf]


def test_l2_what_pulou_sees() -> None:
    """ "o gato pulou alto": row 3 is [1 1 1 0] causal (S1 forgets itself) and [1 1 1 1] bidirectional."""
    assert causal().dense(4)[0, 0, 2].int().tolist() == [1, 1, 1, 0]
    assert bidirectional().dense(4)[0, 0, 2].int().tolist() == [1, 1, 1, 1]


def test_c10_prefix_window_and_documents_by_hand() -> None:
    assert prefix(2).dense(4)[0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert prefix(torch.tensor([0, 3])).dense(3)[:, 0].int().tolist() == [
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
        [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
    ]
    assert window(1, 1).dense(4)[0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert documents(torch.tensor([[7, 7, 3, -1]])).dense(4)[0, 0].int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]


def test_e1_packed_causal_documents_by_hand() -> None:
    packed = causal() & documents(torch.tensor([[0, 0, 1, 1]]))
    assert packed.dense(4)[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert packed.dense(1, 4)[0, 0].int().tolist() == [[0, 0, 1, 1]]  # a cached step of it


def test_lengths_and_a_boolean_matrix_say_the_same() -> None:
    lengths = torch.tensor([0, 2, 4])
    assert torch.equal(padding(lengths).dense(4), padding(torch.arange(4) < lengths[:, None]).dense(4))


def test_joining_with_a_full_mask_keeps_what_kernels_know() -> None:
    assert (causal() & bidirectional()).form == (bidirectional() & causal()).form == "causal"
    assert (causal() | bidirectional()).form == "any"
    assert bool((causal() | bidirectional()).dense(3).all())


def test_a_mask_made_for_other_keys_is_refused() -> None:
    mask = causal() & padding(torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="the mask causal & padding was made for 4 keys: got 5"):
        mask.dense(5)
    with pytest.raises(ValueError, match="the mask documents was made for 3 keys: got 4"):
        documents(torch.tensor([[0, 0, 0]])).dense(1, 4)
    assert mask.dense(2, 4).shape == (2, 1, 2, 4)


def test_masks_that_do_not_fit_are_not_joined() -> None:
    two, three = padding(torch.tensor([1, 2])), prefix(torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match=r"masks of batch 2 and 3 cannot be joined: padding, prefix\(rows\)"):
        two & three
    heads = [predicate(lambda b, h, q, k: h < q, f"own{n}", heads=n) for n in (2, 4)]
    with pytest.raises(ValueError, match="masks of heads 2 and 4 cannot be joined: own2, own4"):
        heads[0] | heads[1]
    four, five = (padding(torch.ones(2, n, dtype=torch.bool)) for n in (4, 5))
    with pytest.raises(ValueError, match=r"masks made for 4 and 5 keys cannot be joined: padding, ~\(padding\)"):
        four & ~five


def test_looking_ahead_by_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="`k` must not be negative: got -1"):
        lookahead(-1)


def test_a_window_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="`left` and `right` must not be negative: got 2 and -1"):
        window(2, -1)
    with pytest.raises(ValueError, match="`left` and `right` must not be negative: got -3 and 0"):
        window(-3, 0)


def test_a_mask_says_what_it_is() -> None:
    lengths = torch.tensor([1])
    assert repr(~(causal() & padding(lengths)) | window(2, 1)) == "Mask((~(causal & padding) | window(2, 1)))"
    assert repr(lookahead(3)) == "Mask(lookahead(3))" and repr(prefix(2)) == "Mask(prefix(2))"


def test_a_float_mask_is_refused_when_lowered() -> None:
    with pytest.raises(TypeError, match=r"a mask must be boolean, True = may attend: got torch\.float32"):
        lower(torch.zeros(2, 2), 2, 2, torch.device("cpu"))
