"""What a LoRA adapter of PEFT makes of the weights of its base: every kind computed as PEFT computes it.

See `peft.tuners.lora` (0.21). A map is a linear map or an embedding, by its name in the base model.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atento.base.errors import ModelError, counted
from atento.released.family import Family
from atento.released.weight_rows import Row

_COSTLY = re.compile(r"\)[*+{]|([*+{].*){4}")  # repeated groups, many repetitions: exponential in the name
_PART = re.compile(
    r"(?P<map>.+)\.(?P<part>lora_[AB]\.weight|lora_B\.bias|lora_embedding_[AB]"
    r"|lora_magnitude_vector(?=(?:\.weight)?$)|token_adapter\.trainable_tokens_delta)(?:\.weight)?"
)
_TRAINING = (".lora_velora_embed", ".lora_monteclora_sampler.")  # only updates read them
_TOKENS, _MAGNITUDE = "token_adapter.trainable_tokens_delta", "lora_magnitude_vector"
Parts = Mapping[str, Tensor]


def is_of_training(name: str) -> bool:
    """Whether a tensor of an adapter is read by updates alone."""
    return any(part in name for part in _TRAINING)


def is_part(name: str) -> bool:
    """Whether a tensor of that name is a part of an adapter; others replace a tensor of the base."""
    return _PART.fullmatch(name) is not None


def by_map(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The parts of each adapted map, by the names of the maps."""
    maps: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _PART.fullmatch(name):
            maps.setdefault(match["map"], {})[match["part"]] = tensor
    return maps


def adapted(maps: Mapping[str, Parts]) -> frozenset[str]:
    """The weights of maps that have an adapter of their own; PEFT leaves another module that shares one as it is.

    Trained tokens change all that share the table.
    """
    return frozenset(f"{name}.weight" for name, parts in maps.items() if parts.keys() != {_TOKENS})


def _left_by_pissa(weight: Tensor, rank: int, scale: float, transposed: bool) -> Tensor:
    """W (out,in) without its `rank` largest singular values (Meng et al. 2024)."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    root = values[:rank].sqrt().diag()
    rest: Tensor = weight - (left[:, :rank] @ root) @ (root @ right[:rank])
    return rest


def _left_by_olora(weight: Tensor, rank: int, scale: float, transposed: bool) -> Tensor:
    """W (out,in) without the first `rank` columns of its QR decomposition (Büyükakyüz 2024), of W as it is stored."""
    stored = weight.t() if transposed else weight
    q, r = torch.linalg.qr(stored)
    rest: Tensor = stored - scale * q[:, :rank] @ r[:rank]
    return rest.t() if transposed else rest


@dataclass(frozen=True)
class Initialization:
    """How A and B began: `left` is what it left of the base's matrix, None: all; `refused` says why it is not read."""

    left: Callable[[Tensor, int, float, bool], Tensor] | None = None
    refused: str = ""


_CONVERT = "save it with `path_initial_model_for_weight_conversion` of PEFT's `save_pretrained`, as plain LoRA"
_INITIALIZATIONS = {  # `init_lora_weights`
    **dict.fromkeys(("true", "false", "none", "gaussian", "eva", "orthogonal", "mica"), Initialization()),
    "pissa": Initialization(_left_by_pissa),
    "olora": Initialization(_left_by_olora),
    "corda": Initialization(refused=f"it changed the base by data that no file of it holds: {_CONVERT}"),
    "lora_ga": Initialization(refused=f"it changed the base by gradients that no file of it holds: {_CONVERT}"),
    "loftq": Initialization(refused="it quantised the base: merge it there with PEFT (`merge_and_unload`)"),
}
_RANDOM = Initialization(refused=f"it changed the base by a decomposition with random numbers: {_CONVERT}")


def initialization(settings: Mapping[str, object], file: object) -> Initialization:
    """The row of `init_lora_weights`.
    Raises ModelError: it is not known, or changed the base in a way that cannot be computed again.
    """
    name = settings.get("init_lora_weights", True)
    key = str(name).lower()
    row = _RANDOM if re.fullmatch(r"pissa_niter_\d+", key) else _INITIALIZATIONS.get(key)
    if row is None:
        raise ModelError(
            f"{file}: `init_lora_weights` {name!r} is not known here; known: {', '.join(_INITIALIZATIONS)}"
        )
    if row.refused:
        raise ModelError(f"{file}: `init_lora_weights` {name!r} is not read here, {row.refused}")
    return row


def spans(row: Row, weights: Mapping[str, Tensor]) -> list[tuple[str, tuple[int, int]]]:
    """Their tensors in one of ours: the name of each, and its rows."""
    if row.ours not in weights:
        return []
    sizes, start, found = row.sizes or (weights[row.ours].shape[0],), 0, []
    for name, size in zip(row.theirs, sizes):
        found.append((name, (start, start + size)))
        start += size
    return found


def join(
    weights: dict[str, Tensor],
    rows: Iterable[Row],
    maps: Mapping[str, Parts],
    family: Family,
    settings: Mapping[str, Any],
    folder: object,
) -> None:
    """Put what an adapter makes of each map in place of the base's weights.

    Args:
        weights: of the base, by our names; changed.
        rows: of the weight table.
        maps: the parts of each map, as `by_map` gives them.
        settings: `adapter_config.json`.

    Raises:
        ModelError: a map that the base does not have, parts that are missing or of other shapes.
    """
    places = {name: (row, *span) for row in rows for name, span in spans(row, weights)}
    for name, parts in maps.items():
        bare = family.bare(name)
        place = places.get(f"{bare}.weight")
        if place is None or weights[place[0].ours].dim() != 2:
            raise ModelError(f"{folder}: the adapter is for {name}, which is no matrix of the base model")
        row, start, stop = place  # the map may be a part of our matrix, such as the queries
        weight = weights[row.ours].clone()
        old = weight[start:stop].to(torch.promote_types(weight.dtype, torch.float32))
        if _TOKENS in parts:
            old = _with_tokens(old, parts[_TOKENS], name, settings, folder)
        if parts.keys() - {_TOKENS}:
            old = _adapted(old, row.transposed, name, parts, settings, folder)
        weight[start:stop] = old.to(weight.dtype)
        weights[row.ours] = weight
        if "lora_B.bias" in parts:  # it is added to that of the map
            if (place := places.get(f"{bare}.bias")) is None:
                raise ModelError(f"{folder}: `lora_bias` needs a bias of the base model, and {name} has none")
            row, start, stop = place
            bias = weights[row.ours].clone()
            added = _scale(name, parts["lora_A.weight"].shape[0], settings) * parts["lora_B.bias"].float()
            bias[start:stop] = (bias[start:stop].float() + added).to(bias.dtype)
            weights[row.ours] = bias


def _adapted(
    weight: Tensor, transposed: bool, name: str, parts: Parts, settings: Mapping[str, object], folder: object
) -> Tensor:
    """The matrix (out,in), or the table (V,D) of an embedding, with an adapter: in float32."""
    of_table = "lora_embedding_A" in parts
    a, b = (parts.get(f"lora_embedding_{x}" if of_table else f"lora_{x}.weight") for x in "AB")
    if a is None or b is None:
        raise ModelError(f"{folder}: the adapter of {name} lacks one of its two matrices")
    matrix = weight.t() if of_table else weight
    if (b.shape[0], a.shape[1]) != matrix.shape or b.shape[1] != a.shape[0]:
        raise ModelError(
            f"{folder}: the adapter of {name} is of shape {tuple(b.shape)} by {tuple(a.shape)}, and the "
            f"matrix of the base model of {tuple(matrix.shape)}"
        )
    scale, left = _scale(name, a.shape[0], settings), initialization(settings, folder).left
    if left is not None and not of_table:  # PEFT leaves embeddings as they are
        matrix = left(matrix, a.shape[0], scale, transposed)
    total = matrix + scale * (b.float() @ a.float())
    if _MAGNITUDE in parts:  # DoRA, Liu et al. 2024: a row's length is learned apart from its direction
        total = total * (parts[_MAGNITUDE].float() / torch.linalg.norm(total, dim=1)).unsqueeze(1)
    return total.t() if of_table else total


def _scale(name: str, rank: int, settings: Mapping[str, object]) -> float:
    """The factor of B·A of the map of that name, alpha by the patterns of PEFT."""
    alpha = settings.get("lora_alpha", 8)
    patterns = settings.get("alpha_pattern") or {}
    for pattern, own in patterns.items() if isinstance(patterns, Mapping) else ():
        if _COSTLY.search(pattern):
            raise ModelError(f"`alpha_pattern` {pattern!r:.60} repeats too much: name the maps")
        try:
            if re.match(rf"(.*\.)?({pattern})$", name):
                alpha = own
                break
        except (re.error, OverflowError) as error:
            raise ModelError(f"`alpha_pattern` {pattern!r:.60} is no pattern: {error}") from None
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ModelError(f"`lora_alpha` and `alpha_pattern` must be numbers: got {alpha!r:.60} for {name}")
    return alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _with_tokens(table: Tensor, rows: Tensor, name: str, settings: Mapping[str, Any], folder: object) -> Tensor:
    """The embedding `name` (V,D) with the rows that were trained, by `trainable_token_indices`, in place of its own."""
    ids = settings.get("trainable_token_indices") or []
    if isinstance(ids, Mapping):
        ids = next((own for key, own in ids.items() if f".{name}".endswith(f".{key}")), [])
    if len(ids) != len(rows) or rows.shape[1:] != table.shape[1:] or not all(0 <= n < len(table) for n in ids):
        raise ModelError(
            f"{folder}: {name}: `trainable_token_indices` names {counted(len(ids), 'row')} of a table of "
            f"{tuple(table.shape)}, and the file holds {tuple(rows.shape)}"
        )
    return table.index_copy(0, torch.tensor(list(ids), dtype=torch.long), rows.to(table.dtype))
