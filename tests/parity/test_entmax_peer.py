"""α-entmax against the `entmax` package: sparsemax, 1.5-entmax and any α, with gradients of scores and α."""

import pytest
import torch
from torch import Tensor

from atento.attention.entmax import entmax

theirs = pytest.importorskip("entmax", reason="entmax is not installed")


def scores(*size: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.1, 2.0, 20.0])
@pytest.mark.parametrize(("name", "alpha"), [("sparsemax", 2.0), ("entmax15", 1.5)])
def test_a17_closed_forms(name: str, alpha: float, scale: float) -> None:
    z = scores(3, 4, 50, scale=scale).requires_grad_()
    g = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
    for dim in (-1, 1):
        found, expected = entmax(z, alpha, dim=dim), getattr(theirs, name)(z, dim=dim)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        one, other = (torch.autograd.grad((p * g).sum(), z)[0] for p in (found, expected))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_a17_alpha_by_head_with_its_gradient() -> None:
    z = scores(2, 5, 6, 40).requires_grad_()
    g = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=z.dtype)
    alpha = torch.tensor([1.05, 1.3, 1.5, 1.8, 2.0], dtype=z.dtype).view(5, 1, 1).requires_grad_()
    found = entmax(z, alpha)
    expected = theirs.entmax_bisect(z, alpha.expand(2, 5, 6, 1), dim=-1, n_iter=80)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    one, other = (torch.autograd.grad((p * g).sum(), (z, alpha)) for p in (found, expected))
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(one[1], other[1], rtol=1e-6, atol=1e-8)


def test_a17_hidden_keys() -> None:
    """Theirs take -inf too, as long as a row keeps some."""
    z = scores(4, 12)
    z[:, 7:] = -float("inf")
    torch.testing.assert_close(entmax(z, 1.5), theirs.entmax15(z, dim=-1), rtol=0, atol=1e-10)
    torch.testing.assert_close(entmax(z.float(), 2.0), theirs.sparsemax(z.float(), dim=-1), rtol=0, atol=1e-6)
