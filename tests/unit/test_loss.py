"""The loss: chunks equal the equation and PyTorch's own, gradients by hand, sums, and memory that does not grow."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.networks import vocabulary as loss_module
from atento.networks.vocabulary import cross_entropy, plain_cross_entropy
from failing import fails

SMOOTHINGS = [0.0, 0.1, 0.5, 0.99]


def cut(patch: pytest.MonkeyPatch, rows: int, strip: int = 2) -> None:
    """Blocks of at most `rows` rows, each in strips of `strip`, as a large vocabulary has them."""
    for name, value in (("_MAX_ROWS", rows), ("_MIN_STRIP_ROWS", strip), ("_STRIP_LOGITS", 0)):
        patch.setattr(loss_module, name, value)


def example(n: int, words: int, d: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    sides = (torch.randn(rows, d, generator=g, dtype=torch.float64).to(dtype) for rows in (n, words))
    hidden, weight = (side.requires_grad_() for side in sides)
    return hidden, weight, torch.randint(words, (n,), generator=g)


def with_gradients(function: object, *inputs: Tensor, smoothing: float) -> list[Tensor]:
    hidden, weight, targets = inputs
    loss, nll = function(hidden, weight, targets, smoothing)  # type: ignore[operator]
    return [loss.detach().double(), nll.detach().double(), *torch.autograd.grad(loss, [hidden, weight])]


sizes = st.tuples(st.integers(1, 20), st.integers(1, 12))
cuts = st.tuples(st.integers(1, 25), st.integers(1, 25))


@settings(max_examples=30)
@given(sizes, cuts, st.sampled_from(SMOOTHINGS), st.integers(0, 1000))
def test_e8_any_chunking_equals_the_equation(sizes: Any, cuts: Any, smoothing: float, seed: int) -> None:
    """float64 1e-10, values and both gradients, wherever the boundaries of blocks and strips fall."""
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, *cuts)
        got = with_gradients(cross_entropy, *example(*sizes, seed=seed), smoothing=smoothing)
    expected = with_gradients(plain_cross_entropy, *example(*sizes, seed=seed), smoothing=smoothing)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_e8_a_bias_counts_and_gradients_equal_finite_differences(
    smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and all three gradients against the plain equation, in several blocks; float64 1e-10."""
    cut(monkeypatch, 5)
    found = []
    for function in (cross_entropy, plain_cross_entropy):
        hidden, weight, targets = example(17, 11)
        bias = torch.linspace(-2, 2, 11, dtype=torch.float64).requires_grad_()
        loss, nll = function(hidden, weight, targets, smoothing, bias)
        found.append([loss.double(), nll.double(), *torch.autograd.grad(loss, [hidden, weight, bias])])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)
    hidden, weight, targets = example(4, 5, 3)
    assert torch.autograd.gradcheck(lambda h, w: cross_entropy(h, w, targets, smoothing)[0] * 3.5, (hidden, weight))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("function", [cross_entropy, plain_cross_entropy])
def test_e8_equals_pytorchs_cross_entropy(function: object, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`F.cross_entropy(label_smoothing=ε, reduction="sum")`, with gradients."""
    cut(monkeypatch, 5)
    inputs = example(17, 11)

    def theirs(hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        logits = hidden @ weight.T
        smooth = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
        return smooth, F.cross_entropy(logits, targets, reduction="sum")

    got, expected = (with_gradients(each, *inputs, smoothing=smoothing) for each in (function, theirs))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_e8_what_needs_no_gradient_gets_none() -> None:
    hidden, weight, targets = example(4, 5)
    loss, nll = cross_entropy(hidden.detach(), weight, targets)
    loss.backward()
    assert weight.grad is not None and hidden.grad is None and not nll.requires_grad
    loss, _ = cross_entropy(hidden.detach(), weight.detach(), targets)
    assert not loss.requires_grad


def test_huge_logits_many_targets_and_none() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss, nll = cross_entropy(hidden, weight, torch.tensor([1, 1]), 0.0)
    loss.backward()
    assert float(nll) == pytest.approx(2e4) and bool(hidden.grad.isfinite().all())
    # each target costs log V; float32 sums of 2^17 of them would be off in the fifth digit
    hidden, weight = torch.zeros(1 << 17, 1), torch.zeros(7, 1)
    loss, nll = cross_entropy(hidden, weight, torch.zeros(1 << 17, dtype=torch.long), 0.1)
    assert loss.dtype == nll.dtype == torch.float64
    assert float(nll) / (1 << 17) == pytest.approx(math.log(7), rel=1e-6)
    assert float(loss) / (1 << 17) == pytest.approx(math.log(7), rel=1e-6)
    hidden, weight, targets = example(0, 5)
    loss, nll = cross_entropy(hidden, weight, targets, 0.1)
    loss.backward()
    assert float(loss.detach()) == float(nll) == 0 and hidden.grad.shape == (0, 6)
    assert weight.grad.tolist() == [[0] * 6] * 5
    hidden, weight, _ = example(2, 5)
    for bad in (-1, 5):
        fails((IndexError, RuntimeError), "out of bounds", cross_entropy, hidden, weight, torch.tensor([0, bad]))


def test_peak_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    """Smoothed, both ways, in a process: 16,000 tokens more take less than the plain twin takes for 3,000."""
    program = """
import pathlib, resource, torch
from atento.networks.vocabulary import cross_entropy, plain_cross_entropy
torch.set_num_threads(1)
def peak():
    status = pathlib.Path("/proc/self/status")  # ru_maxrss is inherited from a large parent, this is not
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.read_text(encoding="ascii").split("VmHWM:")[1].split()[0])
def run(function, n):
    hidden = torch.randn(n, 8, requires_grad=True)
    weight = torch.randn(8000, 8, requires_grad=True)
    function(hidden, weight, torch.randint(8000, (n,)), 0.1)[0].backward()
run(cross_entropy, 8000)
start = peak(); run(cross_entropy, 24000)
middle = peak(); run(plain_cross_entropy, 3000)
print(middle - start, peak() - middle)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    chunked, plain = (int(number) for number in done.stdout.split())
    assert 0 < chunked + 1 < plain


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [5, 64])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_gradients_in_bfloat16_are_rounded_once(rows: int, smoothing: float, factor: float, monkeypatch: Any) -> None:
    """One block or several, which are summed in float32; the gradient of the loss is 1, or not. So are the sums."""
    cut(monkeypatch, rows)
    found = []
    for dtype, function in ((torch.bfloat16, cross_entropy), (torch.float64, plain_cross_entropy)):
        hidden, weight, targets = (x.detach() for x in example(40, 30))
        hidden, weight = (x.bfloat16().to(dtype).requires_grad_() for x in (hidden, weight))
        sums = function(hidden, weight, targets, smoothing)
        gradients = torch.autograd.grad(sums[0] * factor, [hidden, weight])
        assert {gradient.dtype for gradient in gradients} == {dtype}
        found.append([*gradients, *(one.detach() for one in sums)])
    for got, right in zip(*found):
        assert float((got.double() - right).norm() / right.norm()) < 2**-7
