"""Record attention weights while the fast kernels run: `observe` recomputes them from queries and keys.

A context variable holds the current observation, so that no module needs an argument for it.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from atento.attention.kernels import AnyMask, BlockRouting, attention_weights, repeat_kv
from atento.attention.relative_terms import RelativeTerms
from atento.base.errors import UsageError


@runtime_checkable
class Observable(Protocol):
    """An attention layer that `observe` can record: it has the name and the layer number of its weights.

    One without a name is never recorded.
    """

    kind: str
    layer: int


@dataclass
class Observation:
    """The recorded weights: `observation["encoder" | "decoder" | "cross", layer]` -> (B,H',rows,S).

    They are float32 and detached. Layers count from 0, and -1 is the last. During cached decoding the rows of
    successive steps are concatenated.

    Attributes:
        layers: layers to record, also from the end, -1 is the last of each stack; None for all.
        heads: heads to record; None for all.
        rows: queries to record; None for all.
        n_layers: number of layers of the network by kind.
        modules: the attention layers of the observed network; other networks are not recorded.
        weights: the recorded weights of each call, by kind and layer.
    """

    layers: frozenset[int] | None = None
    heads: list[int] | None = None
    rows: list[int] | None = None
    n_layers: dict[str, int] = field(default_factory=dict)
    modules: frozenset[nn.Module] = frozenset()
    weights: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)

    def __getitem__(self, key: tuple[str, int]) -> Tensor:
        kind, layer = key
        if kind not in self.n_layers:
            raise UsageError(
                f"no {kind!r} attention was observed, only: {', '.join(sorted(self.n_layers)) or 'nothing'}"
            )
        depth = self.n_layers[kind]
        index = layer + depth if layer < 0 else layer  # -1 is the last
        if (kind, index) not in self.weights:
            raise UsageError(
                f"no {kind} attention of layer {layer} was observed; the network has layers 0 to {depth - 1}"
            )
        calls = self.weights[kind, index]
        if len(calls) == 1:
            return calls[0]
        width = max(weights.shape[-1] for weights in calls)  # each cached step has one more key
        return torch.cat([nn.functional.pad(part, (0, width - part.shape[-1])) for part in calls], dim=-2)


current_observation: ContextVar[Observation | None] = ContextVar("atento_observation", default=None)


@contextmanager
def observe(
    network: nn.Module,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    rows: Iterable[int] | None = None,
) -> Iterator[Observation]:
    """Record the exact attention weights of a network while the fast kernels run.

    Around `generate`, the record is one pass over the best output of each sentence. In an encoder-decoder, row t of
    "decoder" and "cross" is the query that predicts token t of the output, EOS included. In a language model the rows
    of the prompt come first: with a prompt of P tokens, row P - 1 + t predicts token t. The P tokens of `prefix_ids`
    also come first, and row P + t predicts token t. In a cached loop of your own, the rows of successive steps are
    concatenated.

    Args:
        network: the network to observe; other networks are not recorded.
        layers: layers to record, from 0, -1 is the last; all if not given.
        heads: heads to record; all if not given.
        rows: queries to record; all if not given. Nothing is computed for other queries, so that attention over
            thousands of tokens can be observed.

    Yields:
        The observation: `observation["cross", -1]` is (B,H,T,S).

    Raises:
        UsageError: a layer does not exist, or an argument is not a list of numbers.

    Example::

        with observe(network) as seen:
            network(source_ids, target_ids)
        weights = seen["cross", -1]
    """
    depth: dict[str, int] = {}
    modules = []
    for module in network.modules():
        if isinstance(module, Observable) and module.kind:
            depth[module.kind] = max(depth.get(module.kind, 0), module.layer + 1)  # layers of a kind count from 0
            modules.append(module)
    for name, values, size in (
        ("layers", layers, max(depth.values(), default=0)),
        ("heads", heads, None),
        ("rows", rows, None),
    ):
        _check_numbers(name, values, size)
    observation = Observation(
        None if layers is None else frozenset(layers),
        None if heads is None else list(heads),
        None if rows is None else list(rows),
        depth,
        frozenset(modules),
    )
    token = current_observation.set(observation)  # restores an outer observation at the end
    try:
        yield observation
    finally:
        current_observation.reset(token)


def _check_numbers(name: str, values: object, size: int | None) -> None:
    """Raises UsageError if `values` is not a list of numbers, or one of them is not below `size`."""
    if values is None:
        return
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise UsageError(f"`{name}` takes a list of numbers: got {values!r}; write {name}=[{values}]")
    for number in values if isinstance(values, Collection) else ():
        if size is not None and not -size <= number < size:  # without a size the heads are checked as they run
            has = f"layers 0 to {size - 1}" if size else "no attention layers"
            raise UsageError(f"there is no layer {number} to observe; the network has {has}")


def observing(network: nn.Module) -> bool:
    """True while this thread observes the network."""
    observation = current_observation.get()
    return observation is not None and not observation.modules.isdisjoint(network.modules())


@contextmanager
def unobserved() -> Iterator[None]:
    """Record nothing inside this context: a search runs many hypotheses, and only the best one is recorded."""
    token = current_observation.set(None)
    try:
        yield
    finally:
        current_observation.reset(token)


def record(
    module: nn.Module,
    kind: str,
    layer: int,
    q: Tensor,
    k: Tensor,
    mask: AnyMask,
    relative: RelativeTerms | None,
    scale: float | None,
    block_router: BlockRouting | None = None,
) -> None:
    """Record the weights of an attention layer; nothing if this one is not observed."""
    observation = _active_observation(module, kind, layer, q.shape[1], q.shape[-2])
    if observation is None:
        return
    with torch.no_grad():
        rows = None if observation.rows is None else torch.tensor(observation.rows, device=q.device)
        if block_router is not None:
            mask = block_router.allowed(q, repeat_kv(k, q.shape[1]), mask)  # the chosen blocks as a mask
        weights = attention_weights(q.float(), k.float(), mask=mask, scale=scale, rows=rows, relative=relative)
        _append(observation, kind, layer, weights)


def record_weights(module: nn.Module, kind: str, layer: int, weights: Tensor) -> None:
    """Record weights (B,T,S) that a layer with one head has computed."""
    observation = _active_observation(module, kind, layer, 1, weights.shape[1])
    if observation is None:
        return
    weights = weights.detach().float().unsqueeze(1)  # (B,1,T,S)
    _append(observation, kind, layer, weights if observation.rows is None else weights[:, :, observation.rows])


def _active_observation(module: nn.Module, kind: str, layer: int, n_heads: int, length: int) -> Observation | None:
    """The current observation if it records this layer of this kind, of this module with so many heads and queries.

    Raises UsageError: a requested head or row does not exist.
    """
    observation = current_observation.get()
    if observation is None or module not in observation.modules:
        return None
    either = (layer, layer - observation.n_layers[kind])  # from the first, from the last
    if observation.layers is not None and observation.layers.isdisjoint(either):
        return None
    for name, requested, size in (("head", observation.heads, n_heads), ("row", observation.rows, length)):
        for number in requested or ():
            if not -size <= number < size:
                raise UsageError(f"there is no {name} {number} to observe: there are {size}, from 0")
    return observation


def _append(observation: Observation, kind: str, layer: int, weights: Tensor) -> None:
    """Keep the weights (B,H,rows,S) of the requested heads."""
    weights = weights if observation.heads is None else weights[:, observation.heads]  # (B,H',rows,S)
    observation.weights.setdefault((kind, layer), []).append(weights)
