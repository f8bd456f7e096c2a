"""Measure which inputs each output of a network depends on: by gradients and by changed inputs (used by `prove`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from atento.base.errors import UsageError, nearest

_SIZES = (1.0, 4.0, 16.0)  # how far vectors are moved in successive trials: far enough to flip a hard choice
_SMALLEST = torch.finfo(torch.float64).tiny


class NetworkUnderTest:
    """A network as a function of its inputs and of shifts, which are added to the vectors of the inputs.

    Vector inputs are shifted directly. For token ids, a forward hook shifts the output of each module that reads them.
    """

    def __init__(self, call: Callable[[Tensor], object], inputs: Tensor, real: Tensor | None) -> None:
        self.call, self.inputs, self.real = call, inputs, None if real is None else real.to(inputs.device)
        self.tokens = not inputs.is_floating_point()
        if inputs.dim() != (2 if self.tokens else 3) or 0 in inputs.shape:
            raise UsageError(f"`inputs` must be token ids (B,S) or vectors (B,S,D): got {tuple(inputs.shape)}")
        if real is not None and (real.dtype != torch.bool or real.shape != inputs.shape[:2]):
            raise UsageError(f"`real` must be boolean {tuple(inputs.shape[:2])}: got {real.dtype} {tuple(real.shape)}")
        self.pool: Tensor = torch.unique(inputs if self.real is None else inputs[self.real])  # other tokens
        if self.tokens and len(self.pool) < 2:
            raise UsageError("`inputs` must have at least two different real tokens, to change one for another")
        self.current_inputs = inputs  # the last inputs of the network
        self.readers: list[nn.Module] = []  # the modules that read the ids
        self.vectors = [] if self.tokens else [inputs]  # the vectors that are shifted, without shift
        self.shifts: list[Tensor] = []

    @contextmanager
    def hooked(self, network: Callable[..., object], embedding: str | None) -> Iterator[None]:
        """Find and hook the modules that read the ids: the named one, or each module without children that does.

        On exit the hooks are removed, and buffers that runs change (running means, for example) are restored.
        """
        named = dict(network.named_modules()) if isinstance(network, nn.Module) else {}
        if embedding is not None and embedding not in named:
            raise UsageError(f"unknown embedding {embedding!r}{nearest(embedding, [name for name in named if name])}")
        leaves = [module for module in named.values() if not any(module.children())]
        hooked = leaves if embedding is None else [named[embedding]]

        def read(
            module: nn.Module, args: tuple[object, ...], keywords: dict[str, object], output: Any
        ) -> Tensor | None:
            first = next((argument for argument in (*args, *keywords.values()) if isinstance(argument, Tensor)), None)
            ids = self.current_inputs  # these: the same memory, since others may be equal, or a copy for a named one
            if first is None or first.dtype != ids.dtype or not torch.equal(first, ids):
                return None
            if embedding is None and first.untyped_storage().data_ptr() != ids.untyped_storage().data_ptr():
                return None
            if self.shifts:
                return output + self.shifts[self.readers.index(module)] if module in self.readers else None
            if isinstance(output, Tensor) and output.shape[:-1] == first.shape and module not in self.readers:
                self.readers.append(module)  # the first run: who reads the ids is found out
                self.vectors.append(output.detach())
            return None

        hooks = [module.register_forward_hook(read, with_kwargs=True) for module in hooked] if self.tokens else []
        buffers = [(buffer, buffer.clone()) for module in named.values() for buffer in module.buffers(recurse=False)]
        try:
            if self.tokens:
                with torch.no_grad():
                    self.current_inputs = self.inputs.clone()  # a copy: its memory tells the ids from equal ones
                    self.call(self.current_inputs)
                if not self.readers:
                    raise UsageError("no module was found that embeds the ids: give `embedding`, or vectors as inputs")
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for buffer, before in buffers:
                if not torch.equal(buffer, before):  # a buffer that never changes may be read-only
                    buffer.copy_(before)

    def run(self, inputs: Tensor, shifts: list[Tensor]) -> Tensor:
        """Run the network and return its outputs (B,T,...) as (B,T,F)."""
        self.shifts, self.current_inputs = shifts, inputs.clone() if self.tokens else inputs + shifts[0]
        out = self.call(self.current_inputs)
        if not isinstance(out, Tensor):
            name = type(out).__name__
            raise UsageError(f"the network returned a {name}, not a tensor: give `call=lambda x: network(x)[0]`")
        if out.dim() < 2 or out.shape[0] != inputs.shape[0]:
            raise UsageError(f"outputs must be (B,T,...) for {inputs.shape[0]} rows: got {tuple(out.shape)}")
        return out.reshape(*out.shape[:2], -1).clone()  # a network may reuse the memory of its output

    def no_shifts(self) -> list[Tensor]:
        """Shifts of zero."""
        return [torch.zeros_like(vectors) for vectors in self.vectors]

    def random_inputs(self, generator: torch.Generator) -> Tensor:
        """Random vectors with the deviation of the given ones, or random tokens of the batch; ids at padding stay."""
        if not self.tokens:
            return _random(self.inputs, generator)
        drawn = torch.randint(len(self.pool), self.inputs.shape, generator=generator).to(self.pool.device)
        return self.pool[drawn] if self.real is None else self.pool[drawn].where(self.real, self.inputs)

    def run_changed(self, base: Tensor, where: Tensor, size: float, generator: torch.Generator) -> Tensor:
        """The outputs for `base` with other inputs where `where` (B,S) is True."""
        where = where.to(base.device)
        if self.tokens:
            index = torch.searchsorted(self.pool, base)  # sorted, so that each token finds its place
            step = torch.randint(1, len(self.pool), base.shape, generator=generator).to(base.device)
            tokens = where if self.real is None else where & self.real
            base = self.pool[(index + step) % len(self.pool)].where(tokens, base)  # never the same token
            where = where & ~tokens  # padding keeps its id: its vectors are shifted
        shifts = ((_random(vectors, generator) * size).where(where[..., None], 0.0) for vectors in self.vectors)
        return self.run(base, list(shifts))


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normally distributed numbers with the deviation, shape, dtype and device of `like`."""
    deviation = float(like.float().std()) if like.numel() > 1 else 0.0  # one number has no deviation
    return (torch.randn(like.shape, generator=generator) * (deviation if deviation > 0 else 1.0)).to(like)


@torch.no_grad()
def output_len(tested: NetworkUnderTest, cross: bool) -> int:
    """Number of outputs in a row. Raises UsageError if it is not the number of inputs, or if two runs differ."""
    first, second = (tested.run(tested.inputs, tested.no_shifts()) for _ in range(2))
    if bool(_difference(first, second).any()):
        raise UsageError("two runs on the same inputs differ: call `eval()` first, so that there is no dropout")
    size, keys = first.shape[1], tested.inputs.shape[1]
    if size != keys and not cross:
        raise UsageError(f"{size} outputs for {keys} inputs: give `cross=True` if they are different sequences")
    return size


def _difference(left: Tensor, right: Tensor) -> Tensor:
    """The largest difference of outputs (B,T,F): (B,T) in float64, 0 only if all numbers are equal."""
    equal = ((left == right) | (left.isnan() & right.isnan())).cpu()  # NaN equals NaN here
    difference = (left.cpu().double() - right.cpu().double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return difference.clamp(min=_SMALLEST).masked_fill(equal, 0.0).amax(dim=-1)  # an underflow counts


def _gradient_size(out: Tensor, leaves: list[Tensor], direction: Tensor, rows: Tensor, i: slice) -> Tensor:
    """The gradient of outputs `i` of these rows along `direction`: its largest element for each input, (B,S)."""
    upstream = torch.zeros_like(out)
    upstream[rows, i] = direction[rows, i]  # for other outputs 0, so that they do not count
    gradients = torch.autograd.grad(out, leaves, upstream, retain_graph=True, allow_unused=True)
    sizes = [gradient.abs().amax(dim=-1).cpu().double() for gradient in gradients if gradient is not None]
    return torch.stack(sizes).amax(dim=0) if sizes else torch.zeros(leaves[0].shape[:2], dtype=torch.float64)


def _run_with_graph(
    tested: NetworkUnderTest, base: Tensor, generator: torch.Generator
) -> tuple[Tensor, list[Tensor], Tensor]:
    """A run that can be differentiated: outputs (B,T,F), shifts, and a random direction for each output."""
    with torch.enable_grad():
        leaves = [shift.requires_grad_() for shift in tested.no_shifts()]
        out = tested.run(base, leaves)
    return out, leaves, torch.randn(out.shape, generator=generator).to(out)


def measure(
    tested: NetworkUnderTest, size: int, trials: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Measure the dependence of each output on each input.

    Args:
        tested: the network and its inputs.
        size: number of outputs T.
        trials: number of inputs to test.
        generator: random generator.

    Returns:
        The largest gradients (B,T,B,S), the largest changes (B,T,B,S), and True for outputs that are not a number or
        have such a gradient (B,T).
    """
    bases = [tested.inputs, *(tested.random_inputs(generator) for _ in range(trials - 1))]
    n_rows, keys = tested.inputs.shape[:2]
    all_rows = torch.arange(n_rows)
    mixed = n_rows > 1 and any(_rows_mix(tested, base, generator) for base in bases)
    groups = list(all_rows.split(1)) if mixed else [all_rows]  # independent rows are measured at once
    gradients, changes = torch.zeros(2, n_rows, size, n_rows, keys, dtype=torch.float64)  # each (B,T,B,S)
    broken = torch.zeros(n_rows, size, dtype=torch.bool)
    for trial, base in enumerate(bases):
        for rows in groups:
            gradient, not_a_number = _gradients(tested, base, rows, generator)
            change = _changes(tested, base, rows, generator, _SIZES[trial % len(_SIZES)])  # sizes take turns
            gradients, changes = torch.maximum(gradients, gradient), torch.maximum(changes, change)
            broken = broken | not_a_number
    return gradients, changes, broken


def _rows_mix(tested: NetworkUnderTest, base: Tensor, generator: torch.Generator) -> bool:
    """True if a row of the batch depends on another row."""
    out, leaves, direction = _run_with_graph(tested, base, generator)
    with torch.no_grad():
        before = tested.run(base, tested.no_shifts())
    for row in torch.arange(len(base)).split(1):
        is_other_row = torch.arange(len(base)) != row  # (B)
        if out.requires_grad:
            gradient = _gradient_size(out, leaves, direction, row, slice(None))[is_other_row]
            if bool(gradient.nan_to_num(nan=0.0).any()):
                return True
        where = (~is_other_row)[:, None].expand(base.shape[:2])  # the whole row is changed at once
        with torch.no_grad():
            for size in _SIZES:
                if bool(_difference(before, tested.run_changed(base, where, size, generator))[is_other_row].any()):
                    return True
    return False


def _gradients(
    tested: NetworkUnderTest, base: Tensor, rows: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Gradient sizes of each output of these rows, (B,T,B,S), and True where they are not a number, (B,T)."""
    out, leaves, direction = _run_with_graph(tested, base, generator)
    sizes = torch.zeros(*out.shape[:2], *base.shape[:2], dtype=torch.float64)  # (B,T,B,S)
    broken = out.isnan().any(dim=-1).cpu()
    for i in range(out.shape[1] if out.requires_grad else 0):
        gradient = _gradient_size(out, leaves, direction, rows, slice(i, i + 1))
        broken[rows, i] |= ~gradient[rows].isfinite().all(dim=-1)
        gradient = gradient.nan_to_num(nan=0.0, posinf=0.0)  # proves nothing
        sizes[rows, i, rows] = gradient[rows]  # each row by its own inputs
        if len(rows) == 1:
            sizes[rows, i] = gradient  # by the inputs of other rows too
    return sizes, broken


@torch.no_grad()
def _changes(tested: NetworkUnderTest, base: Tensor, rows: Tensor, generator: torch.Generator, size: float) -> Tensor:
    """The change of each output when each input of these rows is changed: (B,T,B,S)."""
    before = tested.run(base, tested.no_shifts())
    changes = torch.zeros(*before.shape[:2], *base.shape[:2], dtype=torch.float64)
    for j in range(base.shape[1]):
        where = torch.zeros(base.shape[:2], dtype=torch.bool)
        where[rows, j] = True
        change = _difference(before, tested.run_changed(base, where, size, generator))
        changes[rows, :, rows, j] = change[rows]  # each row's outputs by its own input, all rows at once
        if len(rows) == 1:
            changes[:, :, int(rows), j] = change  # the outputs of other rows too
    return changes
