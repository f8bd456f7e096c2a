"""Sinusoidal, learned and rotary positions by hand and by property; where queries and keys stand, and how far apart."""

import cmath
import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.attention.positions import Learned, Rotary, Sinusoidal, Stretch, sinusoids
from atento.attention.relative import ALiBi
from atento.attention.relative_terms import QueryKeyPositions
from atento.base.errors import RecipeError, UsageError
from atento.config.sections.position_scheme import StretchConfig
from failing import fails
from tensors import normal as random


def test_b1_golden_rows_far_positions_and_the_formula_at_any_width() -> None:
    """Section 3: d = 8, position 1."""
    golden = [0.841471, 0.540302, 0.099833, 0.995004, 0.010000, 0.999950, 0.001000, 1.000000]
    assert sinusoids(torch.tensor(1), 8).tolist() == pytest.approx(golden, abs=5e-7)
    assert sinusoids(torch.tensor(0), 4).tolist() == [0, 1, 0, 1]
    # Angles made in float32 would be wrong by 0.004 here
    assert float(sinusoids(torch.tensor(100_003), 2)[0]) == pytest.approx(math.sin(100_003), abs=1e-7)
    # sin on even, cos on odd dimensions; i is the index of the pair, 0 … d/2 − 1 (the notes say dimension)
    for d_model in (1, 2, 3, 7, 8):
        table = sinusoids(torch.arange(50), d_model)
        assert table.shape == (50, d_model) and table.dtype == torch.float32
        for position in (0, 1, 17, 49):
            for dim in range(d_model):
                angle = position / 10000 ** (2 * (dim // 2) / d_model)
                expected = math.sin(angle) if dim % 2 == 0 else math.cos(angle)
                assert float(table[position, dim]) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 12), st.integers(0, 600), st.integers(1, 9), st.sampled_from([10000.0, 100.0]))
def test_b1_an_offset_is_a_slice_of_the_whole(length: int, offset: int, d_model: int, base: float) -> None:
    """Also past the 256 rows the table begins with."""
    part = Sinusoidal(d_model, base)
    x = torch.zeros(2, length, d_model)
    whole = Sinusoidal(d_model, base)(torch.zeros(2, offset + length, d_model))
    assert torch.equal(part(x, offset), whole[:, offset:])
    assert torch.equal(whole, sinusoids(torch.arange(offset + length), d_model, base).expand(2, -1, -1))
    ids = torch.arange(offset, offset + length).expand(2, -1)
    assert torch.equal(part(x, position_ids=ids), whole[:, offset:])


@pytest.mark.parametrize("ids", [[[0, 300, 5000]], [[-2, 4, 9]], [[9000, 1, 0]], [[0.5, 2.0, 3.0]]])
@pytest.mark.parametrize("shift", [0, 2])
def test_sinusoidal_vectors_of_any_positions_are_those_of_the_equation(ids: list[list[float]], shift: int) -> None:
    """From a table, or computed: negative, fractional and far positions."""
    part, positions = Sinusoidal(6, shift=shift), torch.tensor(ids)
    expected = sinusoids(positions + shift, 6)
    for _ in range(2):
        torch.testing.assert_close(part.vectors(3, position_ids=positions), expected, rtol=0, atol=1e-7)
    exact = part.vectors(3, position_ids=positions, like=torch.empty(0, dtype=torch.float64))
    assert torch.equal(exact, sinusoids(positions + shift, 6, dtype=torch.float64))


def test_b11_unique_dot_products_depend_on_the_offset_alone_and_there_is_nothing_to_store() -> None:
    table = sinusoids(torch.arange(1000), 64).double()
    products = table @ table.T
    distances = (table[:, None, :8] - table[None, :, :8]).abs().amax(-1) + torch.eye(1000)
    assert float(distances.min()) > 1e-3  # no two positions are the same vector
    for offset in (0, 1, 5, 100):
        diagonal = products.diagonal(offset)
        assert float(diagonal.max() - diagonal.min()) < 1e-4  # float32 table: 32 products, 6e-8 each
    part = Sinusoidal(8)
    assert list(part.parameters()) == [] and part.state_dict() == {}
    # What inference mode made must not break a later backward pass, nor a copy in another precision
    part = Sinusoidal(4)
    with torch.inference_mode():
        part(torch.zeros(1, 300, 4))
    x = torch.zeros(1, 300, 4, requires_grad=True)
    (part(x) ** 2).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())
    half = part.to(torch.bfloat16)(torch.zeros(1, 10, 4, dtype=torch.bfloat16))
    torch.testing.assert_close(half.float()[0], sinusoids(torch.arange(10), 4), rtol=0, atol=2**-8)
    with torch.device("meta"):
        part, slopes = Sinusoidal(4), ALiBi(4)
        assert part(torch.zeros(1, 3, 4)).is_meta
    slopes.to_empty(device="cpu").reset_buffers()
    assert torch.equal(slopes.slopes, ALiBi(4).slopes)
    assert torch.equal(part(torch.zeros(1, 3, 4))[0], sinusoids(torch.arange(3), 4))


def test_b1_w11_in_float64_formulas_and_slopes_hold_to_their_last_digits() -> None:
    """Of a module made double, of one left in float32 that reads float64, past its first rows, and after bfloat16."""
    formula = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(700)]
    expected = torch.tensor(formula, dtype=torch.float64)
    x = torch.zeros(1, 700, 4, dtype=torch.float64)
    ids = torch.arange(700).unsqueeze(0)
    for part in (Sinusoidal(4).double(), Sinusoidal(4), Sinusoidal(4).to(torch.bfloat16).double()):
        torch.testing.assert_close(part(x)[0], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(part(x[:, :9], 600)[0], expected[600:609], rtol=0, atol=1e-12)
        torch.testing.assert_close(part(x, position_ids=ids)[0], expected, rtol=0, atol=1e-12)
    grown = Sinusoidal(4)
    grown(torch.zeros(1, 700, 4))
    torch.testing.assert_close(grown.double()(x)[0], expected, rtol=0, atol=1e-12)
    # 12 heads: some slopes are no powers of two
    expected = [2.0 ** -(i + 1) for i in range(8)] + [2.0 ** -(0.5 + i) for i in range(4)]
    assert ALiBi(12).double().slopes.tolist() == expected
    at = ALiBi(12).to(torch.bfloat16).double().at(torch.tensor([-7]))
    torch.testing.assert_close(at[:, 0], -7 * torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


def numbered(rows: int, d_model: int, shift: int = 0) -> Learned:
    """A table whose row n holds n, n + 1/10, n + 2/10 ..."""
    part = Learned(rows - shift, d_model, shift)
    with torch.no_grad():
        part.weight.copy_(torch.arange(rows)[:, None] + torch.arange(d_model) / 10)
    return part


def test_b2_b3_the_row_of_its_position_is_added_and_learns_from_texts_that_reach_it() -> None:
    part = numbered(6, 2)
    x = torch.tensor([[[100.0, 200.0]] * 3, [[300.0, 400.0]] * 3])
    row = [[100.0, 200.1], [101.0, 201.1], [102.0, 202.1]]
    torch.testing.assert_close(part(x)[0], torch.tensor(row))
    torch.testing.assert_close(part(x)[1], torch.tensor(row) + 200)
    torch.testing.assert_close(part(x, offset=3), part(x) + 3)
    ids = torch.tensor([[5, 0, 0], [2, 3, 4]])
    torch.testing.assert_close(part(x, position_ids=ids)[..., 0] - x[..., 0], ids.float())
    # Late positions learn less (the notes): the gradient counts who stood there, and is exactly 0 for the others
    part = Learned(6, 1)
    for length in (4, 2, 2):
        part(torch.zeros(1, length, 1)).sum().backward()
    assert part.weight.grad is not None and part.weight.grad.flatten().tolist() == [3, 3, 1, 1, 0, 0]
    part.zero_grad(set_to_none=False)
    part(torch.zeros(2, 3, 1), position_ids=torch.tensor([[5, 5, 0], [5, 1, 0]])).sum().backward()
    assert part.weight.grad.flatten().tolist() == [2, 1, 0, 0, 0, 3]


def test_b2_a_text_past_the_table_is_an_error_and_tables_are_grown_and_interpolated() -> None:
    for shift in (0, 2):
        part = Learned(5, 2, shift)
        x = torch.zeros(1, 3, 2)
        part(torch.zeros(1, 5, 2)), part(x, offset=2), part(x, position_ids=torch.tensor([[4, 0, 4]]))
        assert part(x[:, :0], position_ids=torch.zeros(1, 0, dtype=torch.long)).shape == (1, 0, 2)
        too_long: list[tuple[int, dict[str, Any]]] = [(6, {"x": torch.zeros(1, 6, 2)}), (7, {"x": x, "offset": 4})]
        for tokens, where in (*too_long, (6, {"x": x, "position_ids": torch.tensor([[0, 5, 1]])})):
            fails(UsageError, f"holds 5: got a text of {tokens} tokens; .* `grown` or `interpolated`", part, **where)
    for shift in (0, 2):
        part = numbered(4 + shift, 3, shift).double()
        longer = part.grown(9)
        assert (longer.max_len, longer.shift, longer.weight.dtype) == (9, shift, torch.float64)
        assert torch.equal(longer.vectors(4), part.vectors(4))
        assert torch.equal(longer.weight[:shift], part.weight[:shift])
        new = longer.weight[shift + 4 :]
        assert bool((new.abs() < 0.2).all()) and len(new.flatten().unique()) == 15  # random, of deviation 0.02
        assert longer.weight.requires_grad and part.max_len == 4
        assert torch.equal(part.grown(2).vectors(2), part.vectors(2))
        longer(torch.zeros(1, 9, 3, dtype=torch.float64)).sum().backward()
        assert part.weight.grad is None  # a table of its own
    part = Learned(3, 1)
    part.weight.data.copy_(torch.tensor([[0.0], [2.0], [10.0]]))
    for length, rows in ((5, [0, 1, 2, 6, 10]), (3, [0, 2, 10]), (2, [0, 10])):
        assert part.interpolated(length).weight.flatten().tolist() == rows
    # RoBERTa's table: two rows more than positions, the first position is row 2
    part = numbered(6, 1, shift=2)
    assert part.max_len == 4 and part.weight.shape == (6, 1) and part.vectors(4).flatten().tolist() == [2, 3, 4, 5]
    assert part.vectors(2, offset=1).flatten().tolist() == [3, 4]
    assert part.vectors(0, position_ids=torch.tensor([[0, 3]])).flatten().tolist() == [2, 5]


@settings(max_examples=25)
@given(own=st.integers(2, 9), new=st.integers(2, 30), shift=st.integers(0, 2))
def test_b2_interpolated_keeps_both_ends_and_straight_lines(own: int, new: int, shift: int) -> None:
    part = numbered(own + shift, 2, shift).double()
    longer = part.interpolated(new)
    assert (longer.max_len, longer.shift, longer.weight.dtype) == (new, shift, torch.float64)
    assert torch.equal(longer.weight[:shift], part.weight[:shift])
    line = torch.linspace(shift, shift + own - 1, new, dtype=torch.float64)[:, None] + torch.tensor([0.0, 0.1])
    torch.testing.assert_close(longer.vectors(new).detach(), line, rtol=0, atol=1e-5)  # drawn in float32


def test_rotary_keeps_types_and_the_other_heads() -> None:
    x = random(2, 3, 50, 8)
    assert Rotary(8)(x.bfloat16()).dtype == torch.bfloat16 and Rotary(8)(x.float()).dtype == torch.float32
    part, x = Rotary(4), random(2, 3, 5, 4)
    turn = part.at(torch.arange(5), torch.tensor([True, False, True]).view(3, 1, 1), torch.float64)
    assert torch.equal(turn(x)[:, 1], x[:, 1]) and torch.equal(turn(x)[:, ::2], part(x)[:, ::2])
    torch.testing.assert_close(turn.inverse()(turn(x)), x, rtol=0, atol=1e-14)  # and the way back
    rows = part.at(torch.arange(5).expand(2, -1), torch.tensor([True, False, True]).view(3, 1, 1), torch.float64)
    assert torch.equal(rows(x), turn(x))


@settings(max_examples=25)
@given(
    d_head=st.integers(2, 9),
    fraction=st.sampled_from([1.0, 0.75, 0.5]),
    interleaved=st.booleans(),
    base=st.sampled_from([10000.0, 50.0]),
    offset=st.integers(0, 200_000),
)
def test_rotary_by_complex_numbers(d_head: int, fraction: float, interleaved: bool, base: float, offset: int) -> None:
    """Each pair is one number, times e^(i·p·rate), however far p; the rest of the head stays as it is."""
    width = int(d_head * fraction) // 2 * 2
    if width == 0:
        return
    x, part = random(2, 2, 3, d_head), Rotary(d_head, base, interleaved=interleaved, fraction=fraction)
    counted, given = offset + torch.arange(3).expand(2, -1), torch.tensor([[offset, 7, 7], [0, 400, offset]])
    for out, positions in ((part(x, offset), counted), (part(x, position_ids=given), given)):
        assert torch.equal(out[..., width:], x[..., width:])
        for pair, row, p in product(range(width // 2), range(2), range(3)):
            one, two = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + width // 2)
            turn = cmath.exp(1j * int(positions[row, p]) * base ** (-2 * pair / width))
            expected = torch.complex(x[row, :, p, one], x[row, :, p, two]) * turn
            found = torch.complex(out[row, :, p, one], out[row, :, p, two])
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)  # W11; far positions cost digits


def test_yarn_by_hand_and_rotations_by_the_length_of_each_row() -> None:
    """Pairs with 15.9, 5.0, 1.6 and 0.5 turns: the first two keep their angle, the last has a quarter of it."""
    part = Rotary(8, 100.0, stretch=Stretch(4.0, 100, 1.0, 4.0, yarn=True))
    rates = [1.0, 0.1**0.5, 0.1 * (0.5 + 0.5 / 4), 0.1**1.5 / 4]
    assert part.stretch.scaled(part.rates()).tolist() == pytest.approx(rates, rel=1e-12)
    assert part.scale == pytest.approx(1 + 0.1 * math.log(4)) and Rotary(8, stretch=Stretch(4.0)).scale == 1.0
    rotation, x = part.at(torch.arange(5), dtype=torch.float64), random(1, 1, 5, 8)
    torch.testing.assert_close(rotation(x).norm(dim=-1), part.scale * x.norm(dim=-1))
    torch.testing.assert_close(rotation.inverse()(rotation(x)), x)
    torch.testing.assert_close(rotation.inverse().inverse()(x), rotation(x))
    assert Rotary(2, stretch=Stretch(4.0, 100, yarn=True)).at(torch.arange(3)).cos.shape == (3, 1)
    # Up to 4 positions as they are or by `short`; a row of 6 by its own length, whatever stands beside it
    positions = torch.stack([torch.arange(6), torch.tensor([0, 1, 2, 3, 3, 3])])
    dynamic = Rotary(4, 100.0, stretch=Stretch(2.0, 4, dynamic=True))
    grown = 100.0 * (2.0 * 6 / 4 - 1) ** 2  # the exponent is R / (R - 2) = 2
    for row, base in ((0, grown), (1, 100.0)):
        for at in (positions, positions[row : row + 1]):
            found = dynamic.at(at, dtype=torch.float64).cos[row if len(at) > 1 else 0]
            torch.testing.assert_close(found[0], Rotary(4, base).at(positions[row], dtype=torch.float64).cos)
    each = Rotary(4, 100.0, stretch=Stretch(1.0, 4, short=(1.0, 2.0), long=(4.0, 5.0), attention_factor=1.5))
    for row, divisors in ((0, (4.0, 5.0)), (1, (1.0, 2.0))):
        angles = positions[row].double().unsqueeze(-1) * torch.tensor([1.0, 0.1]).double() / torch.tensor(divisors)
        torch.testing.assert_close(each.at(positions, dtype=torch.float64).sin[row, 0], 1.5 * angles.sin())
    assert each.at(torch.arange(0)).cos.shape == (0, 2)
    with pytest.raises(ValueError, match="a stretch needs 3 divisors, one a pair: got 2"):
        Rotary(6, stretch=Stretch(1.0, 4, short=(1.0, 2.0), long=(4.0, 5.0)))


def test_stretches_and_positions_that_cannot_be_are_refused() -> None:
    for wrong, said in (
        ({"dynamic": True}, "`dynamic` needs `trained_len`"),
        ({"long": (1.0,)}, "`short` and `long` need one another"),
        ({"short": (1.0,), "long": (0.0,), "trained_len": 4}, "`long` must hold numbers above 0: got 0.0"),
        ({"dynamic": True, "yarn": True, "trained_len": 4}, "`stretch` has one kind: got yarn and dynamic"),
        ({"factor": 4.0, "yarn": True}, "`yarn` needs `trained_len`"),
        ({"attention_factor": 1.2}, "`attention_factor` must be above 0 and needs `yarn` or `long`: got 1.2"),
        ({"trained_len": 9, "yarn": True, "attention_factor": 0.0}, "`attention_factor` must be above 0"),
    ):
        fails(RecipeError, said, StretchConfig, **wrong)
    for make, message in (
        (lambda: Rotary(1), "rotary positions need a head at least 2 wide: got 1 and fraction 1.0"),
        (lambda: Rotary(4, fraction=0.25), "rotary positions need a head at least 2 wide: got 4 and fraction 0.25"),
        (lambda: Rotary(7, fraction=0.2), "rotary positions need a head at least 2 wide: got 7 and fraction 0.2"),
        (lambda: Learned(0, 4), "`max_len` must be at least 1: got 0"),
        (lambda: Learned(4, 4, -1), "`shift` must not be negative: got -1"),
    ):
        fails(ValueError, message, make)


IDS = torch.tensor([[0, 1, 2, 3, 9, 10, 11], [5, 5, 6, 0, 1, 2, 30]])  # positions by row, in no order


def two_heads(distance: Tensor) -> Tensor:
    return torch.stack([distance + 0.5, distance * distance])


@given(t=st.integers(0, 7), s=st.integers(0, 7))
def test_spread_by_strides_equals_looking_up_every_pair(t: int, s: int) -> None:
    positions = QueryKeyPositions.arange(t, s)
    found = positions.spread(two_heads)
    assert found.shape == (1, 2, t, s)
    assert torch.equal(found, replace(positions, consecutive=False).spread(two_heads))
    for i, j in product(range(t), range(s)):
        assert found[0, :, i, j].tolist() == [j - (s - t + i) + 0.5, (j - (s - t + i)) ** 2]


def test_spread_by_row_and_how_often_it_asks() -> None:
    asked = []

    def at(distance: Tensor) -> Tensor:
        asked.append(distance.numel())
        return two_heads(distance)

    found = QueryKeyPositions(IDS[:, -3:], IDS, False).spread(at)
    assert found.shape == (2, 2, 3, 7)
    for r, i, j in product(range(2), range(3), range(7)):
        assert float(found[r, 0, i, j]) == float(IDS[r, j] - IDS[r, 4 + i]) + 0.5
    QueryKeyPositions.arange(50, 100).spread(at)
    assert asked == [2 * 3 * 7, 149]


@settings(max_examples=30)
@given(data=st.data(), t=st.sampled_from([7, 3]), counted=st.booleans())
def test_a_strip_has_the_distances_of_its_queries_and_keys(data: st.DataObject, t: int, counted: bool) -> None:
    """Slices, with steps too, ranges and lists of keys, one batch row; spread agrees with its own distances."""
    positions = QueryKeyPositions.arange(t, 7) if counted else QueryKeyPositions(IDS[:, -t:], IDS, False)
    slices = st.builds(slice, st.integers(0, t - 1), st.integers(0, t), st.sampled_from([None, 1, 2]))
    queries = data.draw(slices | st.lists(st.integers(0, t - 1), min_size=1).map(torch.tensor))
    ranges = st.tuples(st.integers(0, 6), st.integers(0, 7)).map(lambda pair: (min(pair), max(pair)))
    listed = st.lists(st.integers(0, 6), min_size=1, unique=True).map(sorted).map(torch.tensor)
    keys = data.draw(st.none() | ranges | listed)
    row = data.draw(st.sampled_from([None, 0, 1]))
    strip = positions.for_queries(queries, keys, row)
    expected = positions.distances[..., queries, :]
    if keys is not None:
        expected = expected[..., keys] if isinstance(keys, Tensor) else expected[..., keys[0] : keys[1]]
    if row is not None and expected.dim() == 3:
        expected = expected[row : row + 1]
    assert torch.equal(strip.distances, expected)
    assert torch.equal(strip.spread(two_heads), replace(strip, consecutive=False).spread(two_heads))
    ranged = not isinstance(queries, Tensor) and queries.step in (None, 1) and not isinstance(keys, Tensor)
    assert strip.consecutive == (ranged and counted)
