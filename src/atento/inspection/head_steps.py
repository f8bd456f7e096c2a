"""What the heads of an attention layer compute from a text, step by step, with the functions of the layer itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.kernels import attend, attention_weights, repeat_kv
from atento.attention.multihead import PositionTerms
from atento.attention.prepared_mask import prepare_mask
from atento.attention.relative_terms import RelativeTerms
from atento.base.errors import UsageError
from atento.inspection.ablation import attentions


@dataclass(frozen=True)
class HeadSteps:
    """The steps of all heads of a layer, in their order, for one text (docs/notes.md#a3, #a11)."""

    queries: Tensor  # (H,T,K). keys: (H,S,K). values: (H,S,Kv). Keys and values that heads share are repeated
    keys: Tensor
    values: Tensor
    # `rotated_queries`, `rotated_keys`: the same, rotated by their positions; None: nothing rotates them
    rotated_queries: Tensor | None
    rotated_keys: Tensor | None
    scale: float  # factor of the products
    content: Tensor  # (H,T,S), the products of queries and keys, rotated where they are, times `scale`
    position: Tensor | None  # (H,T,S), what relative positions add; None: nothing
    schemes: tuple[str, ...]  # the names of those positions
    allowed: Tensor  # boolean (H,T,S), the mask
    normaliser: str  # what makes weights of scores: "softmax", or the class that replaces it
    weights: Tensor  # (H,T,S)
    from_positions: Tensor | None  # (H,T,Kv), what positions add to the mix of values; None: nothing
    mixed: Tensor  # (H,T,Kv), the output of each head: its weighted values, and what positions add


@torch.no_grad()
def head_steps(network: nn.Module, kind: str, layer: int, run: Callable[[], object]) -> HeadSteps:
    """The steps of attention `kind` ("encoder", "decoder" or "cross") of a layer, from 0, in the last call of `run()`.
    Raises UsageError: no such attention, or `run` did not pass through it.
    """
    known = attentions(network)
    shared = [module for (name, _), module in known.items() if name == kind]
    attention = known.get((kind, layer), shared[0] if len(shared) == 1 else None)  # layers may share one module
    read: dict[str, Any] = {}

    def before(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        if named.get("layer") in (None, layer):
            read.update({"x": inputs[0], "memory": inputs[1] if len(inputs) > 1 else None} | named)

    if attention is not None:
        hook = attention.register_forward_pre_hook(before, with_kwargs=True)
        try:
            run()
        finally:
            hook.remove()
    if attention is None or "x" not in read:
        names = ", ".join(f"{name} {number}" for name, number in sorted(known)) or "none"
        raise UsageError(f"no {kind} attention of layer {layer} was passed; there are: {names}")
    x, memory = read["x"], read["memory"]
    terms = read.get("position_terms") or PositionTerms()
    if memory is None:
        q, k, v = attention.split(attention.input(x))
    else:
        pairs = attention.key_values(memory)
        q, k, v = attention.queries(x), pairs.keys, pairs.values
    rotated_q, rotated_k = q, k
    for rotation in terms.rotations:
        rotated_q, rotated_k = rotation(rotated_q), rotation(rotated_k)
    n_heads, scale = attention.n_heads, attention.d_head**-0.5 if attention.scale is None else attention.scale
    mask = read.get("mask")
    if terms.block_router is not None:  # its choice becomes a mask
        mask = terms.block_router.allowed(rotated_q, repeat_kv(rotated_k, n_heads), mask)
    relative: RelativeTerms | None = None
    if terms.relative is not None:
        relative = terms.relative.projected(attention.project_positions)
    all_k = repeat_kv(rotated_k, n_heads)  # (B,H,S,K)
    shape = (*q.shape[1:3], all_k.shape[2])  # (H,T,S)
    position = None if relative is None else relative.scores(rotated_q * scale, all_k, scale)
    allowed = prepare_mask(mask, shape[1], shape[2], q.device).allowed
    weights = attention_weights(rotated_q, rotated_k, mask=mask, scale=scale, relative=relative)
    rotates, sparsifier = bool(terms.rotations), None if relative is None else relative.sparsifier
    added = None if relative is None else relative.values(weights)
    return HeadSteps(
        queries=q[0],  # (H,T,K) of the first text
        keys=repeat_kv(k, n_heads)[0],
        values=repeat_kv(v, n_heads)[0],
        rotated_queries=rotated_q[0] if rotates else None,
        rotated_keys=all_k[0] if rotates else None,
        scale=scale,
        content=((rotated_q * scale) @ all_k.transpose(-2, -1))[0],
        position=None if position is None else position[0].expand(shape),
        schemes=() if relative is None else tuple(type(scheme).__name__ for scheme in relative.schemes),
        allowed=q.new_ones(shape, dtype=torch.bool) if allowed is None else allowed[0].expand(shape),
        normaliser="softmax" if sparsifier is None else type(sparsifier).__name__,
        weights=weights[0],
        from_positions=None if added is None else added[0],
        mixed=attend(rotated_q, rotated_k, v, mask=mask, scale=scale, relative=relative, kernel="plain")[0],
    )
