"""Sinusoidal positions: the golden row, odd widths, offsets, and the properties the notes ask about."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atento.attention.positions import Sinusoidal, sinusoids


def test_b1_golden_row() -> None:
    """Section 3: d = 8, position 1."""
    golden = [0.841471, 0.540302, 0.099833, 0.995004, 0.010000, 0.999950, 0.001000, 1.000000]
    assert sinusoids(torch.tensor(1), 8).tolist() == pytest.approx(golden, abs=5e-7)
    assert sinusoids(torch.tensor(0), 4).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("d_model", [1, 2, 3, 7, 8])
def test_b1_formula_at_any_width_odd_too(d_model: int) -> None:
    """sin on even, cos on odd dimensions; i is the index of the pair, 0 … d/2 − 1 (the notes say dimension)."""
    table = sinusoids(torch.arange(50), d_model)
    assert table.shape == (50, d_model) and table.dtype == torch.float32
    for position in (0, 1, 17, 49):
        for dim in range(d_model):
            angle = position / 10000 ** (2 * (dim // 2) / d_model)
            expected = math.sin(angle) if dim % 2 == 0 else math.cos(angle)
            assert float(table[position, dim]) == pytest.approx(expected, abs=1e-6)


def test_b1_far_positions_are_exact() -> None:
    """Angles made in float32 would be wrong by 0.004 here."""
    assert float(sinusoids(torch.tensor(100_003), 2)[0]) == pytest.approx(math.sin(100_003), abs=1e-7)


@given(
    length=st.integers(1, 12),
    offset=st.integers(0, 600),
    d_model=st.integers(1, 9),
    base=st.sampled_from([10000.0, 100.0]),
)
def test_b1_an_offset_is_a_slice_of_the_whole(length: int, offset: int, d_model: int, base: float) -> None:
    """Also past the 256 rows the table begins with."""
    part = Sinusoidal(d_model, base)
    x = torch.zeros(2, length, d_model)
    whole = Sinusoidal(d_model, base)(torch.zeros(2, offset + length, d_model))
    assert torch.equal(part(x, offset), whole[:, offset:])
    assert torch.equal(whole[0], sinusoids(torch.arange(offset + length), d_model, base))
    ids = torch.arange(offset, offset + length).expand(2, -1)
    assert torch.equal(part(x, position_ids=ids), whole[:, offset:])


def test_b1_the_position_is_the_place_in_the_sentence_not_in_the_batch() -> None:
    """The listing of S4 gives batch-first input the batch index; here rows are alike and columns differ."""
    out = Sinusoidal(8)(torch.zeros(3, 5, 8))
    assert torch.equal(out[0], out[1]) and torch.equal(out[0], out[2])
    assert len({tuple(row) for row in out[0].tolist()}) == 5


def test_positions_given_for_each_row() -> None:
    x = torch.randn(2, 3, 6)
    out = Sinusoidal(6)(x, position_ids=torch.tensor([[0, 1, 2], [7, 7, 0]]))
    torch.testing.assert_close(out[1, 0] - x[1, 0], out[1, 1] - x[1, 1], rtol=0, atol=1e-6)
    torch.testing.assert_close(out[1, 2] - x[1, 2], out[0, 0] - x[0, 0], rtol=0, atol=1e-6)


def test_b11_unique_and_the_dot_product_depends_on_the_offset_alone() -> None:
    table = sinusoids(torch.arange(1000), 64).double()
    products = table @ table.T
    distances = (table[:, None, :8] - table[None, :, :8]).abs().amax(-1) + torch.eye(1000)
    assert float(distances.min()) > 1e-3  # no two positions are the same vector
    for offset in (0, 1, 5, 100):
        diagonal = products.diagonal(offset)
        assert float(diagonal.max() - diagonal.min()) < 1e-4  # float32 table: 32 products, 6e-8 each


def test_b11_a_shift_is_linear() -> None:
    """One rotation a pair takes every position to the one `s` further, whatever the position."""
    d_model, shift = 16, 9
    table = sinusoids(torch.arange(300), d_model).double()
    rotation = torch.zeros(d_model, d_model, dtype=torch.float64)
    for pair in range(d_model // 2):
        angle = shift / 10000 ** (2 * pair / d_model)
        s, c = math.sin(angle), math.cos(angle)
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor([[c, s], [-s, c]])
    torch.testing.assert_close(table[:-shift] @ rotation.T, table[shift:], rtol=0, atol=3e-7)


def test_there_is_nothing_to_learn_or_to_store() -> None:
    part = Sinusoidal(8)
    assert list(part.parameters()) == [] and part.state_dict() == {}


def test_a_table_grown_while_decoding_serves_in_training() -> None:
    """What inference mode made must not break a later backward pass, nor a copy in another precision."""
    part = Sinusoidal(4)
    with torch.inference_mode():
        part(torch.zeros(1, 300, 4))
    x = torch.zeros(1, 300, 4, requires_grad=True)
    (part(x) ** 2).sum().backward()
    assert bool(x.grad.isfinite().all())
    half = part.to(torch.bfloat16)(torch.zeros(1, 10, 4, dtype=torch.bfloat16))
    torch.testing.assert_close(half.float()[0], sinusoids(torch.arange(10), 4), rtol=0, atol=2**-8)


def test_buffers_can_be_made_anew_after_the_meta_device() -> None:
    with torch.device("meta"):
        part = Sinusoidal(4)
    part = part.to_empty(device="cpu")
    part.reset_buffers()
    assert torch.equal(part(torch.zeros(1, 3, 4))[0], sinusoids(torch.arange(3), 4))
