"""The notes' two position listings by name (K3, B6): the formulas, spec errors 56-60, and every message."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.attention import attend
from atento.attention.masks import causal
from atento.attention.positions import T5Bias
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.base.errors import UsageError
from atento.notes import PositionalEncoding, RelativePositionalEncoding
from failing import fails


def test_positional_encoding_adds_the_formula_and_the_relative_one_by_steps_and_by_gradient_k3() -> None:
    """Batch first, sequence first, one sequence, odd width."""
    d_model, length = 7, 9
    table = [
        [math.sin(p / 10000 ** (2 * (i // 2) / d_model) + math.pi / 2 * (i % 2)) for i in range(d_model)]
        for p in range(length)
    ]
    right = torch.tensor(table)
    x = torch.randn(2, length, d_model)
    torch.testing.assert_close(PositionalEncoding(d_model)(x), x + right)
    torch.testing.assert_close(PositionalEncoding(d_model, 20)(x[0]), x[0] + right)
    sequence_first = PositionalEncoding(d_model, max_len=20, batch_first=False)
    torch.testing.assert_close(sequence_first(x.transpose(0, 1)), (x + right).transpose(0, 1))
    torch.testing.assert_close(sequence_first(x[0]), x[0] + right)
    assert not list(PositionalEncoding(d_model).parameters())
    for most, shape, said in (
        (4, (2, 5, 8), "a sequence must not be longer than `max_len` 4: got 5 positions"),
        (5000, (2, 5, 6), r"`x` must be \(B,L,D\) or \(L,D\) with D = `d_model` 8: got \(2, 5, 6\)"),
        (5000, (8,), r"got \(8,\)"),
    ):
        fails(UsageError, said, PositionalEncoding(8, max_len=most), torch.zeros(shape))
    # The last queries alone read what they read in the whole; every distance of the text is learned, no other
    module = RelativePositionalEncoding(6, max_len=8).double()
    q, k, v = (torch.randn(2, 1, 5, 6, dtype=torch.float64) for _ in range(3))
    whole = module(q, k, v, 5, mask=causal())
    torch.testing.assert_close(module(q[..., 3:, :], k, v, 5, mask=causal()), whole[..., 3:, :])
    torch.testing.assert_close(module(q, k, v), module(q, k, v, 5))
    module(q, k, v, 5).square().sum().backward()
    learned = module.rel_embeddings.grad.abs().sum(dim=1) > 0
    assert learned.tolist() == [abs(distance) < 5 for distance in range(-7, 8)]
    module, x = RelativePositionalEncoding(8, max_len=4, n_heads=2), torch.zeros(1, 2, 3, 4)
    fails(UsageError, "`n_heads` must divide `d_model`: got 3 and 8", RelativePositionalEncoding, 8, n_heads=3)
    with pytest.raises(UsageError, match=r"`max_len` must be at least 1 and `max_distance` not .*: got 0 and None"):
        RelativePositionalEncoding(8, 0)
    with pytest.raises(UsageError, match="must not be longer than `max_len` 4: got 5 positions; `max_distance` would"):
        module(*[torch.zeros(5, 4)] * 3, 5)
    assert RelativePositionalEncoding(4, 4, max_distance=2)(*[torch.zeros(5, 4)] * 3, 5).shape == (5, 4)
    fails(UsageError, "`seq_len` must be the number of keys, 3: got 4", module, x, x, x, 4)
    with pytest.raises(UsageError, match=r"with K = `d_model` / `n_heads` = 4: got \(1, 2, 3, 8\), \(1, 2, 3, 4\)"):
        module(torch.zeros(1, 2, 3, 8), x, x, 3)
    with pytest.raises(UsageError, match=r"got \(1, 2, 3, 4\), \(1, 2, 3, 4\) and \(1, 2, 3, 7\)"):
        module(x, x, torch.zeros(1, 2, 3, 7), 3)


def shaw_written_out(module, q, k, v, limit, sees=None):
    """Shaw et al. 2018, equations 3 to 5, with a vector for every pair: a and b (L,L,K)."""
    length, tables = k.shape[-2], [module.rel_embeddings, module.relative.value_table]
    row = torch.tensor([[max(-limit, min(limit, j - i)) + limit for j in range(length)] for i in range(length)])
    a, b = (None if table is None else table[row] for table in tables)
    scores = (q.unsqueeze(-2) * (k.unsqueeze(-3) + a)).sum(-1) / math.sqrt(q.shape[-1])  # (...,L,L)
    weights = torch.softmax(scores if sees is None else scores.masked_fill(~sees, float("-inf")), dim=-1)
    values = v.unsqueeze(-3) if b is None else v.unsqueeze(-3) + b
    return (weights.unsqueeze(-1) * values).sum(-2)


@pytest.mark.parametrize("lead", [(), (3,), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_relative_positional_encoding_is_shaws_formula_k3(lead, masked):
    """Spec error 59: divided by √K, values know distances too, a mask, tables as wide as one head."""
    module = RelativePositionalEncoding(24, max_len=9, n_heads=4).double()
    q, k, v = (torch.randn(*lead, 7, 6, dtype=torch.float64) for _ in range(3))
    sees = torch.ones(7, 7).tril().bool()
    out = module(q, k, v, 7, mask=causal() if masked else None)
    assert out.shape == q.shape and module.rel_embeddings.shape == (17, 6)
    torch.testing.assert_close(out, shaw_written_out(module, q, k, v, 8, sees if masked else None))


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(0, 5) | st.none(), st.booleans(), st.integers(0, 2**31))
def test_relative_positional_encoding_at_any_length_and_limit_b6(length, limit, values, seed):
    torch.manual_seed(seed)
    module = RelativePositionalEncoding(3, max_len=9, max_distance=limit, values=values).double()
    q, k, v = (torch.randn(2, length, 3, dtype=torch.float64) for _ in range(3))
    expected = shaw_written_out(module, q, k, v, 8 if limit is None else limit)
    torch.testing.assert_close(module(q, k, v, length), expected)
    assert len(module.rel_embeddings) == (17 if limit is None else 2 * limit + 1)


def test_spec_errors_57_to_60() -> None:
    """One letter fewer than the vectors have dimensions; with the missing one it is part of our score."""
    module, q = RelativePositionalEncoding(6, max_len=5), torch.randn(1, 1, 4, 6)
    vectors = module.rel_embeddings[torch.arange(4) - torch.arange(4)[:, None] + 4]  # of every pair, (4,4,6)
    fails(RuntimeError, "number of subscripts", torch.einsum, "bhid,jd->bhij", q, vectors)
    zeros = torch.zeros(1, 1, 4, 4)
    found = module.relative.scores(q, q, QueryKeyPositions.arange(4, 4), 1.0)
    torch.testing.assert_close(zeros + found, torch.einsum("bhid,ijd->bhij", q, vectors))
    # Mended in the einsum alone it is another function; without √K the weights are sharper
    torch.manual_seed(5)
    module = RelativePositionalEncoding(16, max_len=6)
    q, k, v = (torch.randn(1, 1, 6, 16) for _ in range(3))
    vectors = module.rel_embeddings[torch.arange(6) - torch.arange(6)[:, None] + 5]
    scores = q @ k.transpose(-2, -1) + torch.einsum("bhid,ijd->bhij", q, vectors)
    unscaled, scaled = torch.softmax(scores, dim=-1), torch.softmax(scores / 4, dim=-1)
    assert torch.special.entr(unscaled).sum(-1).mean() < torch.special.entr(scaled).sum(-1).mean()
    keys_only = RelativePositionalEncoding(16, max_len=6, values=False)
    keys_only.load_state_dict({"relative.keys": module.rel_embeddings})
    torch.testing.assert_close(keys_only(q, k, v, 6), scaled @ v)
    assert not torch.allclose(module(q, k, v, 6), scaled @ v, atol=0.1)
    assert not torch.allclose(keys_only(q, k, v, 6), unscaled @ v, atol=0.1)
    # softmax(QKᵀ + b) in T5, which does not scale at all; never softmax((QKᵀ + b) / √K)
    q, k, v = (torch.randn(1, 2, 5, 9, dtype=torch.float64) for _ in range(3))
    t5 = T5Bias(2).double()
    bias = torch.stack([torch.stack([t5.at(torch.tensor(j - i)) for j in range(5)]) for i in range(5)])  # (5,5,H)
    scores, bias = q @ k.transpose(-2, -1), 10 * bias.permute(2, 0, 1)
    t5.weight.data *= 10  # as large as the scores
    relative = RelativeTerms((t5,), QueryKeyPositions.arange(5, 5))
    torch.testing.assert_close(attend(q, k, v, relative=relative, scale=1.0), torch.softmax(scores + bias, -1) @ v)
    scaled = attend(q, k, v, relative=relative)
    torch.testing.assert_close(scaled, torch.softmax(scores / 3 + bias, -1) @ v)
    assert not torch.allclose(scaled, torch.softmax((scores + bias) / 3, -1) @ v, atol=1e-3)
    # A query that may see one key reads its value and the vector of their distance: the same row at 4, 6 and 12
    for distance in (-3, -1, 0, 2, 3):
        module = RelativePositionalEncoding(5, max_len=12).double()
        shifted_by_length = []
        for length in (4, 6, 12):
            q, k, v = (torch.randn(length, 5, dtype=torch.float64) for _ in range(3))
            only = torch.arange(length) - torch.arange(length)[:, None] == distance
            read = module(q, k, v, length, mask=only)
            for query in range(max(0, -distance), min(length, length - distance)):
                vector = read[query] - v[query + distance]
                torch.testing.assert_close(vector, module.relative.value_table[11 + distance])
            shifted_by_length.append(distance + length - 1)  # the notes' row
        assert len(set(shifted_by_length)) == 3
