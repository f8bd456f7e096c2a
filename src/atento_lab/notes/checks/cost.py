"""Checks of the memory and time of attention and positions, by counting tensors (docs/notes.md#a19, #b10)."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atento.attention import attend
from atento.attention.masks import Mask, causal, window
from atento.attention.positions import ALiBi, RelativeMatrix, Shaw, T5Bias
from atento.attention.relative_terms import QueryKeyPositions, RelativeScheme, RelativeTerms
from atento.config.sections.position_scheme import PositionConfig
from atento.networks.build import parameter_count
from atento_lab.notes.checks.attention import apart
from atento_lab.notes.checks.tiny import tiny_network
from atento_lab.notes.finding import AtMost, Finding, compare

HEADS, WIDTH = 2, 8
LENGTHS = (512, 1024, 2048)


class Counting(TorchDispatchMode):
    """A context that counts the largest tensor, the attention weights, and the operations of matrix products."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.largest, self.weights, self.operations = 0, 0, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: counting must not load PyTorch's compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, Tensor):
                # the storage: an expanded view is smaller than its shape
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        if func is torch.ops.aten._softmax.default:
            self.weights += output.numel()
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.operations += 2 * output.numel() * args[0].shape[-1]
        if func is torch.ops.aten.addmm.default:
            self.operations += 2 * output.numel() * args[1].shape[-1]
        return output


def attended(length: int, kernel: str, mask: Mask) -> tuple[Counting, Tensor, Tensor]:
    """Run attention forward and backward over `length` tokens; return the counts, the output and the gradient of q."""
    same = torch.Generator().manual_seed(length)  # the same numbers for every kernel
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, generator=same, requires_grad=True) for _ in range(3))
    with Counting() as counter:
        out = attend(q, k, v, mask=mask, kernel=kernel)
        torch.autograd.backward(out.square().sum())
    assert q.grad is not None
    return counter, out, q.grad


def long_texts() -> Finding:
    """A19: twice the text, four times the memory for scores, in blocks not, and as exact."""
    variants = {
        "plain": ("plain", causal()),
        "blocked": ("blocked", causal()),
        "window of 64": ("blocked", window(64, 0)),
    }
    counted: dict[str, list[Counting]] = {name: [] for name in variants}
    difference, lines = 0.0, [f"{'tokens':<7}" + "".join(f"{name:>14}" for name in variants)]
    for length in LENGTHS:
        results = {name: attended(length, *way) for name, way in variants.items()}
        for name, (counter, _, _) in results.items():
            counted[name].append(counter)
        (_, plain, gradient), (_, blocked, blocked_gradient) = results["plain"], results["blocked"]
        difference = max(difference, apart(plain, blocked), apart(gradient, blocked_gradient))
        lines.append(
            f"{length:<7}" + "".join(f"{results[name][0].largest * 4 / 2**20:>10.2f} MiB" for name in variants)
        )
    growth = {name: counters[-1].largest / counters[-2].largest for name, counters in counted.items()}
    windows = counted["window of 64"]
    return compare(
        {
            "largest tensor, twice the text": growth,
            "weights made, window": windows[-1].weights / windows[-2].weights,
            "blocked away from plain": difference,
        },
        {
            "largest tensor, twice the text": {"plain": 4.0, "blocked": AtMost(2.2), "window of 64": AtMost(2.2)},
            "weights made, window": AtMost(2.2),
            "blocked away from plain": AtMost(1e-4),
        },
        remark=f"from {LENGTHS[-2]} to {LENGTHS[-1]} tokens, forward and backward. A causal mask does not reduce the "
        "size of the scores (error 19). `atento bench attention` goes up to 65,536 tokens",
        drawing="\n".join(lines),
    )


# B10 -----------------------------------------------------------------------------------------------------------------

TOKENS, HEAD_WIDTH, LIMIT = 128, 16, 16


def added_parameters() -> dict[str, int]:
    """Return the parameters that each scheme adds to a network of 2 + 2 layers."""
    kinds: tuple[Any, ...] = ("sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "matrix")
    none = parameter_count(tiny_network(positions=PositionConfig(kind="none")))
    return {kind: parameter_count(tiny_network(positions=PositionConfig(kind=kind))) - none for kind in kinds}


def counted_by_table() -> dict[str, int]:
    """Return the same from the sizes of the tables: 512 positions, width 12, 3 heads of 4, 4 layers in 2 stacks."""
    return {
        "sinusoidal": 0,
        "learned": 2 * 512 * 12,
        "rotary": 0,
        "shaw": 4 * 2 * (2 * 16 + 1) * 4,
        "t5": 2 * 32 * 3,
        "alibi": 0,
        "matrix": 4 * (2 * 128 + 1) * 3,
    }


def measured(run: Callable[[], object]) -> tuple[int, int, float]:
    """Return multiplications and additions, the largest tensor, and the fastest of five runs in milliseconds."""
    with Counting() as counter:
        run()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return counter.operations, counter.largest, 1000 * min(times)


def as_written(q: Tensor, k: Tensor, v: Tensor, scheme: Shaw) -> Tensor:
    """Compute Shaw's formulas with a vector for every pair: two (T,S,K) tensors."""
    assert scheme.value_table is not None
    positions = torch.arange(TOKENS)
    row = (positions - positions[:, None]).clamp(-LIMIT, LIMIT) + LIMIT
    scores = q @ k.transpose(-2, -1) + torch.einsum("bhik,ijk->bhij", q, scheme.keys[row])
    weights = torch.softmax(scores / HEAD_WIDTH**0.5, dim=-1)
    return weights @ v + torch.einsum("bhij,ijk->bhik", weights, scheme.value_table[row])


@torch.no_grad()
def cost_of_positions() -> Finding:
    """B10: parameters, operations and the largest tensor; no (T,S,K) tensor is allocated."""
    q, k, v = (torch.randn(1, HEADS, TOKENS, HEAD_WIDTH) for _ in range(3))
    positions, shaw = QueryKeyPositions.arange(TOKENS, TOKENS), Shaw(HEAD_WIDTH, LIMIT)
    schemes: dict[str, RelativeScheme] = {
        "alibi": ALiBi(HEADS),
        "t5": T5Bias(HEADS),
        "matrix": RelativeMatrix(HEADS),
        "shaw": shaw,
    }
    costs = {"none": measured(lambda: attend(q, k, v, kernel="plain"))}
    for name, scheme in schemes.items():
        relative = RelativeTerms((scheme,), positions)
        costs[name] = measured(partial(attend, q, k, v, kernel="plain", relative=relative))
    costs["shaw, as written"] = measured(lambda: as_written(q, k, v, shaw))
    ours = attend(q, k, v, kernel="plain", relative=RelativeTerms((shaw,), positions))
    long = []
    for length in (1024, 2048):
        x = torch.randn(1, 1, length, HEAD_WIDTH)
        with Counting() as counter:
            attend(x, x, x, kernel="blocked", relative=RelativeTerms((shaw,), QueryKeyPositions.arange(length, length)))
        long.append(counter.largest)
    table, pairs = 2 * LIMIT + 1, TOKENS * TOKENS
    lines = [f"{'positions':<17}{'MFLOP':>7}{'largest tensor':>16}{'ms':>7}"]
    lines += [f"{name:<17}{f / 1e6:>7.3f}{size:>16,}{ms:>7.2f}" for name, (f, size, ms) in costs.items()]
    return compare(
        {
            "parameters": added_parameters(),
            "operations Shaw adds": costs["shaw"][0] - costs["none"][0],
            "as written": costs["shaw, as written"][0] - costs["none"][0],
            "largest tensor, Shaw": costs["shaw"][1],
            "largest, as written": costs["shaw, as written"][1],
            "away from as written": apart(ours, as_written(q, k, v, shaw)),
            "largest in strips, twice the text": long[1] / long[0],
        },
        {
            "parameters": counted_by_table(),
            "operations Shaw adds": 2 * 2 * HEADS * TOKENS * table * HEAD_WIDTH,  # keys and values, multiply and add
            "as written": 2 * 2 * HEADS * pairs * HEAD_WIDTH,  # each pair, not each row of the table
            "largest tensor, Shaw": HEADS * pairs,
            "largest, as written": pairs * HEAD_WIDTH,
            "away from as written": AtMost(1e-5),
            "largest in strips, twice the text": AtMost(2.2),
        },
        remark=f"{TOKENS} tokens, {HEADS} heads of {HEAD_WIDTH}, distances up to {LIMIT}; parameters are those of the "
        "small network of these checks",
        drawing="\n".join(lines),
    )
