"""The leak prover: which inputs each output really depends on, measured, beside what the mask declares.

Lemma 11.1 of the notes as a program (docs/notes.md#a6: ∂h_i/∂x_j ≠ 0 for all i, j without a mask; #a7: exactly 0 for j
> i with a causal one), for any network, ours or imported. Two measures, because each sees what the other cannot: the
gradient sees the smallest smooth dependence; a changed input shows paths without a gradient (hard choices, lengths,
`detach`).

What is assumed: the same inputs give the same bits (no dropout), and an input that weighs exactly 0 leaves the bits
alone. Attention keeps this while values are finite, in plain and in fused kernels, for one shape: a masked score is
-inf, or so low that its weight underflows to 0, and 0·v = 0 adds nothing. What mixes all positions and cancels again
(convolution by Fourier transform), or whose shapes follow the data (experts), leaves rounding behind: give `tolerance`.
A dependence that needs rare values shows only if the trials meet them: leaks are proved, their absence is strong
evidence.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.algebra import Mask
from atento.attention.lowering import lower
from atento.errors import UsageError, nearest

_SIZES = (1.0, 4.0, 16.0)  # how far a vector is moved, trial after trial: far enough to overturn a hard choice
_LEAST = torch.finfo(torch.float64).tiny
_SHOWN = 3  # how many faults of a kind a sentence names


@dataclass(frozen=True, eq=False)
class Proof:
    """What each output was seen to depend on, and what it may; T outputs, S inputs a row (T = S unless `cross`).

    `by_gradient`, `by_change` (B,T,S): seen by that measure; `declared` (B,T,S): allowed; `judged` (B,T): outputs that
    count, all but those at padding. `across` lists (row, output, other row) where a row depends on another row of the
    batch; `broken` lists (row, output) where the output or its gradient is not a number, so that nothing is proved.
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
        """(B,T,S), True where the output was seen to depend on the input, by either measure."""
        return self.by_gradient | self.by_change

    @property
    def leaks(self) -> list[tuple[int, int, int]]:
        """(row, output, input) seen but not declared."""
        return _listed(self.measured & ~self.declared & self.judged[..., None])

    @property
    def missing(self) -> list[tuple[int, int, int]]:
        """(row, output, input) declared but never seen: no fault, though perhaps not what was meant."""
        return _listed(self.declared & ~self.measured & self.judged[..., None])

    @property
    def ok(self) -> bool:
        """True if nothing leaks, within a row or across the batch, and everything could be judged."""
        return not (self.leaks or self.across or self.broken)

    @property
    def may_cache(self) -> bool:
        """True if no output was seen to depend on a later input: keys and values once made stay right.

        See docs/notes.md#a7, #h12.
        """
        if self.cross or self.broken:
            return False
        return not bool((self.measured & self.judged[..., None]).triu(1).any())

    def draw(self, row: int = 0) -> str:
        """One batch row as text, a line an output: ■ allowed and seen, ! leak, ○ allowed but not seen, · neither.

        The line of an output at padding, which is not judged, is of -; of one that is not a number, of ?.
        """
        lines = []
        for i, (seen, may) in enumerate(zip(self.measured[row].tolist(), self.declared[row].tolist())):
            marks = [("■" if b else "!") if a else ("○" if b else "·") for a, b in zip(seen, may)]
            if not self.judged[row, i] or (row, i) in self.broken:
                marks = ["?" if self.judged[row, i] else "-"] * len(marks)
            lines.append(" ".join(marks))
        return "\n".join(lines)

    def __str__(self) -> str:
        pulled, parts = self.by_gradient, []
        if leaks := self.leaks:
            ways = ["" if pulled[one] else " (without a gradient)" for one in leaks]
            said = [f"output {i} of row {b} depends on input {j}{way}" for (b, i, j), way in zip(leaks, ways)]
            parts.append(_counted("leak", said))
        if self.across:
            said = [f"output {i} of row {b} depends on row {c}" for b, i, c in self.across]
            parts.append(_counted("leak", said, " across the batch"))
        if self.broken:
            said = [f"output {i} of row {b}" for b, i in self.broken]
            parts.append(_counted("output", said, " not a number, or not its gradient"))
        if parts:
            return "; ".join(parts)
        unseen = len(self.missing)
        tail = f"; {unseen} allowed {'pair was' if unseen == 1 else 'pairs were'} never seen" if unseen else ""
        return f"no leak: every output depends only on what is declared{tail}"


def prove(
    network: Callable[..., Any],
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
    """Measures which inputs each output of a network depends on, and compares with the declared mask.

    See docs/notes.md#a6, #a7, #a16.

    The network runs as it stands, in its own mode, on that shape: trials · (T backward + S forward) passes, times B if
    rows of the batch depend on each other. With token ids, tokens are changed for others of the batch, and gradients
    taken where the embedding reads the ids, so that imported models need nothing special.

    Args:
        network: any function of `inputs`; for token ids an nn.Module with an embedding.
        inputs: vectors (B,S,D), or token ids (B,S) with at least two different ones.
        mask: what a layer's self-attention may see: a Mask, or a boolean tensor that broadcasts to (B,H,T,S); heads
            are united. A list gives one a layer, the first layer first.
        call: how inputs become outputs (B,T,...), where `network(inputs)` is not that tensor:
            `lambda ids: model(ids, attention_mask=real).last_hidden_state`.
        layers: how many layers follow `mask`. A stack reaches farther than a layer: n layers with residuals may see
            (M or I)^n, which for full, causal, padding and document masks is the same for any n.
        real: boolean (B,S), True = a real token. Outputs at padding are not judged; ids there are kept, and their
            vectors changed, as a network may read its padding mask off the ids.
        cross: outputs and inputs are different sequences (a decoder's outputs, source tokens). `mask` is then the whole
            declaration, (T,S), and all outputs are judged.
        embedding: name of the module that reads the ids, as in `named_modules`; found by itself if not given.
        trials: how many inputs are tried: those given, then random ones.
        tolerance: what counts as nothing, as a part of the greatest dependence seen; 0: not one bit.
        seed: of the random numbers, which are a generator's of its own.

    Raises:
        UsageError: shapes do not fit, no embedding is found, or two runs on the same inputs differ.
    """
    source = _Source(network if call is None else call, inputs, real)
    if trials < 1:
        raise UsageError(f"`trials` must be at least 1: got {trials}")
    generator = torch.Generator().manual_seed(seed)
    with source.ready(network, embedding):
        size = _outputs(source, cross)
        declared = _declared(mask, layers, (inputs.shape[0], size, inputs.shape[1]), cross)
        pulls, moves, wrong = _measure(source, size, trials, generator)
    judged = torch.ones_like(wrong) if real is None or cross else real.cpu()
    by_gradient, by_change = _seen(pulls, tolerance), _seen(moves, tolerance)  # (B,T,B,S)
    rows = torch.arange(len(judged))
    across = (by_gradient | by_change).any(dim=-1) & judged[..., None]  # (B,T,B)
    across[rows, :, rows] = False
    within = by_gradient[rows, :, rows], by_change[rows, :, rows]
    return Proof(*within, declared, judged, _listed(across), _listed(wrong & judged), cross)


def _listed(found: Tensor) -> list[Any]:
    return [tuple(where) for where in found.nonzero().tolist()]


def _counted(noun: str, said: list[str], tail: str = "") -> str:
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    return f"{len(said)} {noun}{'' if len(said) == 1 else 's'}{tail}: {', '.join(said[:_SHOWN])}{more}"


def _seen(strength: Tensor, tolerance: float) -> Tensor:
    """Where a dependence is more than `tolerance` of the greatest one."""
    greatest = float(strength.where(strength.isfinite(), 0.0).max())
    return strength > tolerance * greatest


def _declared(
    mask: Mask | Tensor | Sequence[Mask | Tensor], layers: int, shape: tuple[int, int, int], cross: bool
) -> Tensor:
    """What may be seen through all the layers, (B,T,S), by any head."""
    rows, size, keys = shape
    masks = list(mask) if isinstance(mask, Sequence) else [mask] * layers
    if not masks or (isinstance(mask, Sequence) and layers not in (1, len(masks))):
        raise UsageError(f"`layers` must be at least 1, and as many as the masks: got {layers}, masks: {len(masks)}")
    if cross and len(masks) > 1:
        raise UsageError(f"with `cross` one mask is the whole declaration: got {len(masks)} layers")
    cpu, itself = torch.device("cpu"), torch.eye(keys, dtype=torch.bool)
    reach = itself
    for one in masks:
        allowed = lower(one.cpu() if isinstance(one, Tensor) else one, size, keys, cpu).allowed
        layer = torch.ones(1, size, keys, dtype=torch.bool) if allowed is None else allowed.any(dim=1)
        if layer.shape[0] not in (1, rows) or layer.shape[1] not in (1, size):
            raise UsageError(f"a mask of shape {tuple(layer.shape)} does not fit {rows} rows of {size} outputs")
        layer = layer.expand(-1, size, keys) if cross else layer.expand(-1, size, keys) | itself
        reach = (layer.double() @ reach.double()).bool()
    return reach.expand(rows, size, keys).clone()


class _Source:
    """The network as a function of its inputs and of shifts, which are added to the vectors that stand for them.

    Vectors are shifted as they come; token ids where embeddings read them, by a forward hook, one shift a module.
    """

    def __init__(self, call: Callable[[Tensor], Any], inputs: Tensor, real: Tensor | None) -> None:
        self.call, self.inputs, self.real = call, inputs, None if real is None else real.to(inputs.device)
        self.tokens = not inputs.is_floating_point()
        if inputs.dim() != (2 if self.tokens else 3) or 0 in inputs.shape:
            raise UsageError(f"`inputs` must be token ids (B,S) or vectors (B,S,D): got {tuple(inputs.shape)}")
        if real is not None and (real.dtype != torch.bool or real.shape != inputs.shape[:2]):
            raise UsageError(f"`real` must be boolean {tuple(inputs.shape[:2])}: got {real.dtype} {tuple(real.shape)}")
        self.pool: Tensor = torch.unique(inputs if self.real is None else inputs[self.real])  # other tokens
        if self.tokens and len(self.pool) < 2:
            raise UsageError("`inputs` must hold at least two different real tokens, to change one for another")
        self.given = inputs  # what was last handed to the network
        self.readers: list[nn.Module] = []  # the modules that read the ids
        self.vectors = [] if self.tokens else [inputs]  # what is shifted, as it stands
        self.shifts: list[Tensor] = []

    @contextmanager
    def ready(self, network: Callable[..., Any], embedding: str | None) -> Iterator[None]:
        """Readers are found and hooked: the module named, or whichever reads the ids and has no parts of its own.

        Afterwards hooks are gone, and buffers that running changes (running means, say) are as before.
        """
        named = dict(network.named_modules()) if isinstance(network, nn.Module) else {}
        if embedding is not None and embedding not in named:
            raise UsageError(f"unknown embedding {embedding!r}{nearest(embedding, [one for one in named if one])}")
        wanted = [one for one in named.values() if not any(one.children())] if embedding is None else [named[embedding]]

        def read(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Tensor | None:
            first = next((one for one in (*args, *keywords.values()) if isinstance(one, Tensor)), None)
            if first is None or not self._is_given(first, named=embedding is not None):
                return None
            if self.shifts:
                return output + self.shifts[self.readers.index(module)] if module in self.readers else None
            if isinstance(output, Tensor) and output.shape[:-1] == first.shape and module not in self.readers:
                self.readers.append(module)
                self.vectors.append(output.detach())
            return None

        hooks = [one.register_forward_hook(read, with_kwargs=True) for one in wanted] if self.tokens else []
        buffers = [(one, one.clone()) for module in named.values() for one in module.buffers(recurse=False)]
        try:
            if self.tokens:
                with torch.no_grad():
                    self.given = self.inputs.clone()
                    self.call(self.given)
                if not self.readers:
                    raise UsageError("no embedding of a module read the ids: name it by `embedding`, or give vectors")
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for one, before in buffers:
                if not torch.equal(one, before):  # some, never changed, cannot be written
                    one.copy_(before)

    def _is_given(self, ids: Tensor, named: bool) -> bool:
        """True for the ids themselves, in the same memory (others may be equal by chance), or a copy if it is named."""
        if ids.dtype != self.given.dtype or not torch.equal(ids, self.given):
            return False
        return named or ids.untyped_storage().data_ptr() == self.given.untyped_storage().data_ptr()

    def run(self, inputs: Tensor, shifts: list[Tensor]) -> Tensor:
        """The outputs (B,T,...) as (B,T,F)."""
        self.shifts, self.given = shifts, inputs.clone() if self.tokens else inputs + shifts[0]
        out = self.call(self.given)
        if not isinstance(out, Tensor):
            name = type(out).__name__
            raise UsageError(f"the network gave a {name}, not a tensor: say which with `call=lambda x: network(x)[0]`")
        if out.dim() < 2 or out.shape[0] != inputs.shape[0]:
            raise UsageError(f"outputs must be (B,T,...) for {inputs.shape[0]} rows: got {tuple(out.shape)}")
        return out.reshape(*out.shape[:2], -1).clone()  # of our own: a network may write its next answer there

    def still(self) -> list[Tensor]:
        """Shifts by nothing."""
        return [torch.zeros_like(one) for one in self.vectors]

    def another(self, generator: torch.Generator) -> Tensor:
        """Random inputs: vectors as spread as those given, tokens of the same batch; ids at padding stay."""
        if not self.tokens:
            return _random(self.inputs, generator)
        drawn = torch.randint(len(self.pool), self.inputs.shape, generator=generator).to(self.pool.device)
        return self.pool[drawn] if self.real is None else self.pool[drawn].where(self.real, self.inputs)

    def run_changed(self, base: Tensor, where: Tensor, size: float, generator: torch.Generator) -> Tensor:
        """The outputs for `base` with other inputs where `where` (B,S) is True."""
        where = where.to(base.device)
        if self.tokens:
            place = torch.searchsorted(self.pool, base)
            step = torch.randint(1, len(self.pool), base.shape, generator=generator).to(base.device)
            tokens = where if self.real is None else where & self.real
            base = self.pool[(place + step) % len(self.pool)].where(tokens, base)  # never the same token
            where = where & ~tokens
        return self.run(base, [(_random(one, generator) * size).where(where[..., None], 0.0) for one in self.vectors])


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers as spread as `like`, of its shape, type and place."""
    spread = float(like.float().std()) if like.numel() > 1 else 0.0
    return (torch.randn(like.shape, generator=generator) * (spread if spread > 0 else 1.0)).to(like)


@torch.no_grad()
def _outputs(source: _Source, cross: bool) -> int:
    """How many outputs a row has. Raises UsageError: not as many as inputs; not the same twice."""
    first, second = (source.run(source.inputs, source.still()) for _ in range(2))
    if bool(_difference(first, second).any()):
        raise UsageError("two runs on the same inputs differ: call `eval()` first, so that no dropout is drawn")
    size, keys = first.shape[1], source.inputs.shape[1]
    if size != keys and not cross:
        raise UsageError(f"{size} outputs for {keys} inputs: say `cross=True` if they are different sequences")
    return size


def _difference(one: Tensor, two: Tensor) -> Tensor:
    """By how much outputs (B,T,F) differ: (B,T) in float64, 0 only where all numbers are the same."""
    same = ((one == two) | (one.isnan() & two.isnan())).cpu()
    far = (one.cpu().double() - two.cpu().double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).clamp(min=_LEAST)
    return far.masked_fill(same, 0.0).amax(dim=-1)


def _pull(out: Tensor, leaves: list[Tensor], direction: Tensor, rows: Tensor, i: slice) -> Tensor:
    """The gradient of outputs `i` of these rows along their `direction`, its largest number an input: (B,S)."""
    alone = torch.zeros_like(out)
    alone[rows, i] = direction[rows, i]
    found = torch.autograd.grad(out, leaves, alone, retain_graph=True, allow_unused=True)
    sizes = [one.abs().amax(dim=-1).cpu().double() for one in found if one is not None]
    return torch.stack(sizes).amax(dim=0) if sizes else torch.zeros(leaves[0].shape[:2], dtype=torch.float64)


def _graph(source: _Source, base: Tensor, generator: torch.Generator) -> tuple[Tensor, list[Tensor], Tensor]:
    """A run that can be differentiated: outputs (B,T,F), shifts, and a random direction at every output."""
    with torch.enable_grad():
        leaves = [one.requires_grad_() for one in source.still()]
        out = source.run(base, leaves)
    return out, leaves, torch.randn(out.shape, generator=generator).to(out)


def _measure(source: _Source, size: int, trials: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """How each output pulls at each input and moves with it, each (B,T,B,S), and where it is not a number, (B,T)."""
    bases = [source.inputs, *(source.another(generator) for _ in range(trials - 1))]
    n_rows, keys = source.inputs.shape[:2]
    together = torch.arange(n_rows)
    mixed = n_rows > 1 and any(_mixes(source, base, generator) for base in bases)
    groups = list(together.split(1)) if mixed else [together]  # rows that do not meet are measured at once
    pulls, moves = torch.zeros(2, n_rows, size, n_rows, keys, dtype=torch.float64)
    wrong = torch.zeros(n_rows, size, dtype=torch.bool)
    for trial, base in enumerate(bases):
        for rows in groups:
            pulled, nowhere = _gradients(source, base, rows, generator)
            moved = _changes(source, base, rows, generator, _SIZES[trial % len(_SIZES)])
            pulls, moves, wrong = torch.maximum(pulls, pulled), torch.maximum(moves, moved), wrong | nowhere
    return pulls, moves, wrong


def _mixes(source: _Source, base: Tensor, generator: torch.Generator) -> bool:
    """True if some row of the batch depends on another."""
    out, leaves, direction = _graph(source, base, generator)
    with torch.no_grad():
        before = source.run(base, source.still())
    for row in torch.arange(len(base)).split(1):
        others = torch.arange(len(base)) != row
        if out.requires_grad:
            pulled = _pull(out, leaves, direction, row, slice(None))[others]
            if bool(pulled.nan_to_num(nan=0.0).any()):
                return True
        where = (~others)[:, None].expand(base.shape[:2])
        with torch.no_grad():
            for size in _SIZES:
                if bool(_difference(before, source.run_changed(base, where, size, generator))[others].any()):
                    return True
    return False


def _gradients(source: _Source, base: Tensor, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """How each output of these rows pulls at each input, (B,T,B,S), and where it is not a number, (B,T)."""
    out, leaves, direction = _graph(source, base, generator)
    found = torch.zeros(*out.shape[:2], *base.shape[:2], dtype=torch.float64)
    wrong = out.isnan().any(dim=-1).cpu()
    for i in range(out.shape[1] if out.requires_grad else 0):
        pulled = _pull(out, leaves, direction, rows, slice(i, i + 1))
        wrong[rows, i] |= ~pulled[rows].isfinite().all(dim=-1)
        pulled = pulled.nan_to_num(nan=0.0, posinf=0.0)  # this proves nothing
        found[rows, i, rows] = pulled[rows]
        if len(rows) == 1:
            found[rows, i] = pulled
    return found, wrong


@torch.no_grad()
def _changes(source: _Source, base: Tensor, rows: Tensor, generator: torch.Generator, size: float) -> Tensor:
    """How far each output moves when each input of these rows is changed: (B,T,B,S)."""
    before = source.run(base, source.still())
    found = torch.zeros(*before.shape[:2], *base.shape[:2], dtype=torch.float64)
    for j in range(base.shape[1]):
        where = torch.zeros(base.shape[:2], dtype=torch.bool)
        where[rows, j] = True
        moved = _difference(before, source.run_changed(base, where, size, generator))
        found[rows, :, rows, j] = moved[rows]
        if len(rows) == 1:
            found[:, :, int(rows), j] = moved
    return found
