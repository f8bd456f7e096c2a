"""Tiny networks of every family with random weights that tell tokens apart, and tiny models with tokenizers."""

from collections.abc import Iterable
from typing import Any

import torch

from atento.config import presets
from atento.config.sections.network import NetworkConfig, changed
from atento.model import Model
from atento.networks import Network, build_network
from atento.text import Tokenizer

VOCABULARY = 60
_IDS = {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "start": 2, "mask": 4}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_ff": 24,
    "n_heads": 4,
    "n_layers": 2,
    "max_len": 64,
}
_NARROW = {"d_head": 8}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "t5-small": {"attention": _NARROW},
    "t5-11-small": {"attention": _NARROW},
    "mt5-small": {"attention": _NARROW, "n_decoder_layers": 3},
    "llama3-8b": {"attention": {"n_kv_heads": 2}},
    "mistral-7b": {"attention": {"n_kv_heads": 2}, "mask": None},
    "qwen2-0-5b": {"attention": {"n_kv_heads": 2}},
    "qwen3-0-6b": {"attention": {"n_kv_heads": 2, "d_head": 8}},
    "gemma-2b": {"attention": {"n_kv_heads": 1, "d_head": 8}},
    "electra-small": {"embedding": {"width": 8}},
    "albert-base": {"embedding": {"width": 8}},
    "modernbert-base": {"n_layers": 4},
}


def tiny_config(preset: str, **changes: Any) -> NetworkConfig:
    """A preset with small sizes."""
    sizes = _SIZES | {"ids": _IDS} | OF_FAMILY.get(preset, {})
    return changed(presets.preset(preset, **sizes), changes)


@torch.no_grad()
def tiny_network(config: NetworkConfig, seed: int = 0, scale: float = 1.2, shift: float = 0.1) -> Network:
    """Random weights, larger than those of a new network, whose outputs hardly depend on the input; norms and biases
    are random too."""
    torch.manual_seed(seed)
    network = build_network(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() < 2:
            parameter.add_(torch.randn_like(parameter) * shift)
        else:
            parameter.normal_(std=scale * parameter.shape[-1] ** -0.5)
    return network


def tiny_model(config: NetworkConfig, tokenizer: Tokenizer | None = None, **about: Any) -> Model:
    """A model of that network; `about` are further keys of its configuration."""
    return Model(tiny_network(config), tokenizer, {"name": "tiny", "task": "embedding", **about}, None)


def of_words(config: NetworkConfig, words: Iterable[str]) -> tuple[NetworkConfig, Tokenizer]:
    """The configuration with the vocabulary of a tokenizer that knows these words, and that tokenizer."""
    tokenizer = Tokenizer.from_vocabulary("word", tuple(words))
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos", "unk", "mask")}
    return changed(config, vocab_size=tokenizer.vocab_size, ids=ids | {"start": tokenizer.bos_id}), tokenizer
