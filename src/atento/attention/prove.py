"""Leak checker: measures which inputs each output of a network depends on, and compares with the declared mask.

It tests Lemma 11.1 of the notes on any network: without a mask ∂h_i/∂x_j ≠ 0 for all i, j (docs/notes.md#a6), and with
a causal mask it is exactly 0 for j > i (docs/notes.md#a7). There are two measures (`dependence.py`): the gradient
finds the smallest smooth dependence, and a changed input finds paths without a gradient (hard choices, lengths,
`detach`).

The check assumes that the same inputs give the same bits (no dropout), and that an input with weight 0 changes no bit.
Attention satisfies this for finite values: the weight of a masked score is exactly 0. Operations that mix all positions
and cancel (convolution by Fourier transform), or whose shapes depend on the data (mixtures of experts), leave rounding
errors; give a `tolerance`. A dependence that needs rare values is found only if a trial has them. A reported leak is
certain; the absence of leaks is strong evidence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atento.attention.algebra import Mask
from atento.attention.dependence import NetworkUnderTest, measure, output_len
from atento.attention.prepared_mask import prepare_mask
from atento.base.errors import UsageError

_MAX_LISTED = 3  # how many leaks of a kind a message names


@dataclass(frozen=True, eq=False)
class Proof:
    """The measured and the declared dependences of T outputs on S inputs in each row (T = S unless `cross`).

    Attributes:
        by_gradient: (B,T,S), dependences found by the gradient.
        by_change: (B,T,S), dependences found by changed inputs.
        declared: (B,T,S), dependences that the mask allows.
        judged: (B,T), the outputs that are checked: all except those at padding.
        across: (row, output, other row) for each output that depends on another row of the batch.
        broken: (row, output) for each output that is not a number, or whose gradient is not; nothing is proved there.
        cross: whether outputs and inputs are different sequences.
    """

    by_gradient: Tensor
    by_change: Tensor
    declared: Tensor
    judged: Tensor
    across: list[tuple[int, int, int]]
    broken: list[tuple[int, int]]
    cross: bool = False

    @property
    def measured(self) -> Tensor:
        """(B,T,S), True where either measure finds that the output depends on the input."""
        return self.by_gradient | self.by_change

    @property
    def leaks(self) -> list[tuple[int, int, int]]:
        """(row, output, input) for each dependence that is measured but not declared."""
        return _listed(self.measured & ~self.declared & self.judged[..., None])

    @property
    def missing(self) -> list[tuple[int, int, int]]:
        """(row, output, input) for each dependence that is declared but not measured. This is not an error."""
        return _listed(self.declared & ~self.measured & self.judged[..., None])

    @property
    def ok(self) -> bool:
        """True if there is no leak, within a row or across the batch, and all outputs are numbers."""
        return not (self.leaks or self.across or self.broken)

    @property
    def may_cache(self) -> bool:
        """True if no output depends on a later input, so that cached keys and values stay valid.

        See docs/notes.md#a7, #h12.
        """
        if self.cross or self.broken:
            return False
        return not bool((self.measured & self.judged[..., None]).triu(1).any())

    def draw(self, row: int = 0) -> str:
        """One batch row as text, one line for each output.

        ■ is allowed and measured, ! a leak, ○ allowed but not measured, · neither. A line of - is an output at
        padding, which is not checked; a line of ? is an output that is not a number.
        """
        lines = []
        for i, (measured, declared) in enumerate(zip(self.measured[row].tolist(), self.declared[row].tolist())):
            symbols = [("■" if b else "!") if a else ("○" if b else "·") for a, b in zip(measured, declared)]
            if not self.judged[row, i] or (row, i) in self.broken:
                symbols = ["?" if self.judged[row, i] else "-"] * len(symbols)
            lines.append(" ".join(symbols))
        return "\n".join(lines)

    def __str__(self) -> str:
        sentences = []
        if leaks := self.leaks:
            notes = ["" if self.by_gradient[leak] else " (without a gradient)" for leak in leaks]
            items = [f"output {i} of row {b} depends on input {j}{note}" for (b, i, j), note in zip(leaks, notes)]
            sentences.append(_counted("leak", items))
        if self.across:
            items = [f"output {i} of row {b} depends on row {c}" for b, i, c in self.across]
            sentences.append(_counted("leak", items, " across the batch"))
        if self.broken:
            items = [f"output {i} of row {b}" for b, i in self.broken]
            sentences.append(_counted("output", items, " not a number, or not its gradient"))
        if sentences:
            return "; ".join(sentences)
        unused = len(self.missing)
        tail = f"; {unused} allowed {'pair was' if unused == 1 else 'pairs were'} never seen" if unused else ""
        return f"no leak: every output depends only on what is declared{tail}"


def prove(
    network: Callable[..., object],
    inputs: Tensor,
    mask: Mask | Tensor | Sequence[Mask | Tensor],
    *,
    call: Callable[[Tensor], Tensor] | None = None,
    layers: int = 1,
    real: Tensor | None = None,
    cross: bool = False,
    embedding: str | None = None,
    trials: int = 3,
    tolerance: float = 0.0,
    seed: int = 0,
) -> Proof:
    """Measure which inputs each output of a network depends on, and compare with the declared mask.

    The network runs unchanged, in its own mode and with this shape. It runs trials · (T backward + S forward) passes,
    times B if rows of the batch depend on each other. For token ids, changed inputs are other tokens of the batch, and
    gradients are taken where the embedding reads the ids. See docs/notes.md#a6, #a7, #a16.

    Args:
        network: any function of `inputs`; for token ids an nn.Module with an embedding.
        inputs: vectors (B,S,D), or token ids (B,S) with at least two different ids.
        mask: the self-attention mask of a layer: a Mask, or a boolean tensor that broadcasts to (B,H,T,S); a pair is
            declared if any head allows it. A list gives the mask of each layer, the first layer first.
        call: a function of `inputs` that returns the outputs (B,T,...), if `network(inputs)` is not that tensor:
            `lambda ids: model(ids, attention_mask=real).last_hidden_state`.
        layers: number of layers with this mask. A stack of n layers with residuals may depend on (M or I)^n, which is
            M itself for full, causal, padding and document masks.
        real: boolean (B,S), True = a real token. Outputs at padding are not checked. Ids at padding are kept, because a
            network may derive its padding mask from them; their vectors are changed.
        cross: whether outputs and inputs are different sequences (outputs of a decoder, source tokens). `mask` is then
            the whole declaration, (T,S), and all outputs are checked.
        embedding: name of the module that reads the ids, as in `named_modules`; found automatically if not given.
        trials: number of inputs to test: the given one, then random ones.
        tolerance: dependences below this share of the largest are ignored; 0 ignores none.
        seed: seed of the random inputs.

    Raises:
        UsageError: shapes do not fit, no embedding is found, or two runs on the same inputs differ.
    """
    tested = NetworkUnderTest(network if call is None else call, inputs, real)
    if trials < 1:
        raise UsageError(f"`trials` must be at least 1: got {trials}")
    generator = torch.Generator().manual_seed(seed)
    with tested.hooked(network, embedding):
        size = output_len(tested, cross)
        declared = _declared(mask, layers, (inputs.shape[0], size, inputs.shape[1]), cross)
        gradients, changes, broken = measure(tested, size, trials, generator)
    judged = torch.ones_like(broken) if real is None or cross else real.cpu()
    by_gradient, by_change = _above(gradients, tolerance), _above(changes, tolerance)  # (B,T,B,S)
    rows = torch.arange(len(judged))
    across = (by_gradient | by_change).any(dim=-1) & judged[..., None]  # (B,T,B)
    across[rows, :, rows] = False  # its own row is no leak
    within = by_gradient[rows, :, rows], by_change[rows, :, rows]  # (B,T,S)
    return Proof(*within, declared, judged, _listed(across), _listed(broken & judged), cross)


def _listed(is_true: Tensor) -> list[Any]:
    """The indices of the True elements, as tuples."""
    return [tuple(index) for index in is_true.nonzero().tolist()]


def _counted(noun: str, items: list[str], tail: str = "") -> str:
    more = f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}{tail}: {', '.join(items[:_MAX_LISTED])}{more}"


def _above(strength: Tensor, tolerance: float) -> Tensor:
    """True where a dependence is more than `tolerance` times the largest one."""
    largest = float(strength.where(strength.isfinite(), 0.0).max())  # inf would hide all others
    return strength > tolerance * largest


def _declared(
    mask: Mask | Tensor | Sequence[Mask | Tensor], layers: int, shape: tuple[int, int, int], cross: bool
) -> Tensor:
    """The dependences allowed through all layers by any head, (B,T,S)."""
    rows, size, keys = shape
    masks = list(mask) if isinstance(mask, Sequence) else [mask] * layers
    if not masks or (isinstance(mask, Sequence) and layers not in (1, len(masks))):
        raise UsageError(f"`layers` must be at least 1, and as many as the masks: got {layers}, masks: {len(masks)}")
    if cross and len(masks) > 1:
        raise UsageError(f"with `cross` one mask is the whole declaration: got {len(masks)} layers")
    cpu, identity = torch.device("cpu"), torch.eye(keys, dtype=torch.bool)  # (S,S)
    reach = identity
    for layer_mask in masks:
        layer_mask = layer_mask.cpu() if isinstance(layer_mask, Tensor) else layer_mask
        allowed = prepare_mask(layer_mask, size, keys, cpu).allowed  # (B|1,H|1,T|1,S)
        layer = torch.ones(1, size, keys, dtype=torch.bool) if allowed is None else allowed.any(dim=1)  # by any head
        if layer.shape[0] not in (1, rows) or layer.shape[1] not in (1, size):
            raise UsageError(f"a mask of shape {tuple(layer.shape)} does not fit {rows} rows of {size} outputs")
        # the residual connection passes a position's own input on
        layer = layer.expand(-1, size, keys) if cross else layer.expand(-1, size, keys) | identity  # (B|1,T,S)
        reach = (layer.double() @ reach.double()).bool()  # through the layers below, then this one
    return reach.expand(rows, size, keys).clone()
