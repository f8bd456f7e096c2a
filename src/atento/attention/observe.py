"""Seeing attention without slowing it: while observed, weights are recomputed exactly from queries and keys.

This is the one place where a context variable stands for an argument: looking must not change any signature.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from atento.attention.kernels import AnyMask, attention_weights, by_head
from atento.attention.lowering import lower
from atento.attention.relative import Relations
from atento.attention.sparse import BlockChoice
from atento.errors import UsageError


@runtime_checkable
class Observable(Protocol):
    """An attention layer as `observe` finds it: what its weights are called, and which layer makes them."""

    kind: str
    layer: int


@dataclass
class Observation:
    """What was seen: `seen["encoder" | "decoder" | "cross", layer]` -> (B,H',rows,S), float32, detached.

    Layers count from 0, -1 is the last. During cached decoding the rows of successive steps are joined.
    """

    layers: frozenset[int] | None = None
    heads: list[int] | None = None
    rows: list[int] | None = None
    n_layers: dict[str, int] = field(default_factory=dict)
    parts: frozenset[nn.Module] = frozenset()  # whose attention is wanted: another network's is not
    weights: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)

    def check(self, n_heads: int, length: int) -> None:
        """Raises UsageError: a head or a row is asked for that this attention has not."""
        for name, asked, most in (("head", self.heads, n_heads), ("row", self.rows, length)):
            for number in asked or ():
                if not -most <= number < most:
                    raise UsageError(f"there is no {name} {number} to observe: there are {most}, from 0")

    def __getitem__(self, where: tuple[str, int]) -> Tensor:
        kind, layer = where
        if kind not in self.n_layers:
            raise UsageError(
                f"no {kind!r} attention was observed; seen: {', '.join(sorted(self.n_layers)) or 'nothing'}"
            )
        depth = self.n_layers[kind]
        index = layer + depth if layer < 0 else layer
        if (kind, index) not in self.weights:
            raise UsageError(
                f"no {kind} attention of layer {layer} was observed; the network has layers 0 to {depth - 1}"
            )
        parts = self.weights[kind, index]
        if len(parts) == 1:
            return parts[0]
        width = max(part.shape[-1] for part in parts)  # cached steps see one key more each
        return torch.cat([nn.functional.pad(part, (0, width - part.shape[-1])) for part in parts], dim=-2)


_observation: ContextVar[Observation | None] = ContextVar("atento_observation", default=None)


@contextmanager
def observe(
    network: nn.Module,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    rows: Iterable[int] | None = None,
) -> Iterator[Observation]:
    """Record exact attention weights of any layer, head or row of `network` while the fast kernels run.

    `with observe(network) as seen: network(...)`; then `seen["cross", -1]` is (B,H,T,S). Costs nothing when off.
    Around `generate` what is seen is one pass over the best output of each sentence. In an encoder-decoder, row t of
    "decoder" and "cross" is what was read to write token t, EOS included. In a language model the rows of the prompt
    come first: with a prompt of P tokens, row P - 1 + t is what was read to write token t. The P tokens of `prefix_ids`
    likewise stand before: row P + t there. In a cached loop of one's own the rows of successive steps are joined. With
    `rows`, nothing is computed for other rows, so that a text of many thousand tokens can be looked at.
    """
    depth: dict[str, int] = {}
    parts = []
    for module in network.modules():
        if isinstance(module, Observable):
            depth[module.kind] = max(depth.get(module.kind, 0), module.layer + 1)
            parts.append(module)
    for name, given, most in (
        ("layers", layers, max(depth.values(), default=0)),
        ("heads", heads, None),
        ("rows", rows, None),
    ):
        _listed(name, given, most)
    wanted = (
        None
        if layers is None
        else frozenset(layer + n if layer < 0 else layer for layer in layers for n in depth.values())
    )
    seen = Observation(
        wanted, None if heads is None else list(heads), None if rows is None else list(rows), depth, frozenset(parts)
    )
    token = _observation.set(seen)
    try:
        yield seen
    finally:
        _observation.reset(token)


def _listed(name: str, given: object, most: int | None) -> None:
    """Raises UsageError: not a list of numbers, or one beyond the network's layers."""
    if given is None:
        return
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise UsageError(f"`{name}` takes a list of numbers: got {given!r}; write {name}=[{given}]")
    for number in given if isinstance(given, Collection) else ():
        if most is not None and not -most <= number < most:
            has = f"layers 0 to {most - 1}" if most else "no attention layers"
            raise UsageError(f"there is no layer {number} to observe; the network has {has}")


def observing(network: nn.Module) -> bool:
    """True while somebody looks at this network."""
    seen = _observation.get()
    return seen is not None and not seen.parts.isdisjoint(network.modules())


@contextmanager
def unobserved() -> Iterator[None]:
    """Nothing is recorded while this lasts: a search walks many ways, and only the one it took is to be shown."""
    token = _observation.set(None)
    try:
        yield
    finally:
        _observation.reset(token)


def record(
    part: nn.Module,
    kind: str,
    layer: int,
    q: Tensor,
    k: Tensor,
    mask: AnyMask,
    relations: Relations | None,
    scale: float | None,
    choice: BlockChoice | None = None,
) -> None:
    """Called by every attention layer, `part`, with its name; returns at once when nobody is looking at it."""
    seen = _observation.get()
    if seen is None or part not in seen.parts or (seen.layers is not None and layer not in seen.layers):
        return
    seen.check(q.shape[1], q.shape[-2])
    with torch.no_grad():
        rows = None if seen.rows is None else torch.tensor(seen.rows, device=q.device)
        if choice is not None:
            lowered = lower(mask, q.shape[-2], k.shape[-2], q.device)
            kept = choice.choose(q, by_head(k, q.shape[1]), lowered).dense(q.shape[-2], k.shape[-2])
            mask = kept if lowered.allowed is None else kept & lowered.allowed
        weights = attention_weights(q.float(), k.float(), mask=mask, scale=scale, rows=rows, relations=relations)
        seen.weights.setdefault((kind, layer), []).append(weights if seen.heads is None else weights[:, seen.heads])


def record_weights(part: nn.Module, kind: str, layer: int, weights: Tensor) -> None:
    """As `record`, for a layer of one head that makes its weights (B,T,S) anyway."""
    seen = _observation.get()
    if seen is None or part not in seen.parts or (seen.layers is not None and layer not in seen.layers):
        return
    seen.check(1, weights.shape[1])
    found = weights.detach().float().unsqueeze(1)  # (B,1,T,S)
    found = found if seen.rows is None else found[:, :, seen.rows]
    seen.weights.setdefault((kind, layer), []).append(found if seen.heads is None else found[:, seen.heads])
