"""LoRA on a network: which linear maps get adapters, and the adapters joined to the weights of a file."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from atento.attention.lora import AdaptedLinear
from atento.attention.multihead import Projection
from atento.base.errors import RecipeError
from atento.config.sections.initial import LoraConfig
from atento.config.sections.network import NetworkConfig
from atento.networks.interface import Network

_MAP = re.compile(r"(?:.*\.)?blocks\.\d+\.(?P<map>(?:self|cross)_attention\.(?:input|output)|feed_forward\.\w+)")
_ADAPTER = re.compile(r"(?P<map>.+)\.adapters\.(?P<part>\w+)\.(?P<factor>[ab])")


def parts_of(name: str, config: NetworkConfig) -> dict[str, tuple[int, int]]:
    """The named parts of the linear map of that name: the first of their rows and how many; none for any other map.

    `input` is query, key and value under one another; `inner` of a gated feed-forward network has its gate below it.
    """
    match = _MAP.fullmatch(name)
    if match is None:
        return {}
    part = match["map"].rpartition(".")[2]  # the last word of the map's name
    if part == "input":
        queries, keys = config.n_heads * config.head_width, config.kv_heads * config.head_width
        rows = {"query": (0, queries), "key": (queries, keys), "value": (queries + keys, keys)}
        return rows | {"input": (0, queries + 2 * keys)}  # `input`: one adapter for all three
    if part == "inner":
        return {"inner": (0, config.d_ff)} | ({"gate": (config.d_ff, config.d_ff)} if config.feed_forward.gated else {})
    return {part: (0, config.d_model)}


def adapt(network: Network, lora: LoraConfig) -> None:
    """Put adapters on the linear maps that `lora` names, with A from PyTorch's global generator and B of zeros.
    Raises RecipeError: the network has no such linear map.
    """
    modules = ((name, module) for name, module in network.named_modules() if isinstance(module, Projection))
    maps = [(name, module) for name, module in modules if not name.startswith("source_features.")]
    # the gate lies in the matrix of `inner`, and is adapted with it
    part_names = {"gate" if target == "inner" else target for target in lora.maps} | set(lora.maps)
    adapted: set[str] = set()
    for name, linear in maps:
        rows = {part: span for part, span in parts_of(name, network.config).items() if part in part_names}
        if rows:
            parent, _, own = name.rpartition(".")  # the module that holds the map
            adapter = AdaptedLinear(linear, rows, rank=lora.rank, scale=lora.scale, dropout=lora.dropout)
            setattr(network.get_submodule(parent), own, adapter)
            adapted |= rows.keys()  # parts of any layer
    missing = [target for target in lora.maps if target not in adapted]
    if missing:
        raise RecipeError(
            f"`init.lora.targets`: a network of architecture {network.config.architecture!r} has no linear map "
            f"{' or '.join(missing)} in its layers"
        )


def is_adapter(name: str) -> bool:
    """Whether a weight of that name belongs to an adapter."""
    return _ADAPTER.fullmatch(name) is not None


def join_adapters(weights: Mapping[str, Tensor], lora: LoraConfig, config: NetworkConfig) -> dict[str, Tensor]:
    """The weights of a network without adapters: what they add is joined to the maps that they stand on.

    Args:
        weights: those of a network with adapters, by name.
        lora: rank, factor and targets of the adapters.
    """
    plain = {name: value for name, value in weights.items() if not is_adapter(name)}
    for name, b in weights.items():
        match = _ADAPTER.fullmatch(name)
        if match is None or match["factor"] == "a":
            continue
        start, count = parts_of(match["map"], config)[match["part"]]  # q, k and v are rows of one map
        a = weights[f"{match['map']}.adapters.{match['part']}.a"]  # (R,D); `b` is (N,R)
        weight = plain[f"{match['map']}.weight"].clone()  # a copy: the caller keeps the old one
        rows = weight[start : start + count]
        rows.copy_(rows.float() + lora.scale * (b.float() @ a.float()))
        plain[f"{match['map']}.weight"] = weight
    return plain


def without_effect(network: Network) -> dict[str, Tensor]:
    """Zeros for the weights of a network's adapters: with them it computes what its own maps say."""
    return {name: torch.zeros_like(value) for name, value in network.state_dict().items() if is_adapter(name)}
