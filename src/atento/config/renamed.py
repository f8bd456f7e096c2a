"""Keys of a network that have another name now: what a recipe is told, and what an older `config.json` is read by."""

from collections.abc import Mapping
from typing import Any

VERSION = 2
"""Of `config.json` and the names of tensors. 1: the keys of `network` were flat, and only encoders had heads."""

RENAMED: dict[str, tuple[str, ...]] = {
    "n_kv_heads": ("attention.n_kv_heads",),
    "d_head": ("attention.d_head",),
    "attention_dropout": ("attention.dropout",),
    "attention_scale": ("attention.scale",),
    "sparse": ("attention.sparse",),
    "bias": ("attention.bias", "feed_forward.bias"),
    "activation": ("feed_forward.activation",),
    "gated": ("feed_forward.gated",),
    "activation_dropout": ("feed_forward.dropout",),
    "scale_embedding": ("embedding.scaled",),
    "shared_embeddings": ("embedding.shared",),
    "n_segments": ("embedding.segments",),
    "embedding_norm": ("embedding.norm",),
    "tied_embeddings": ("output.tied",),
    "output_bias": ("output.bias",),
    "scale_output": ("output.scaled",),
    "pad_id": ("ids.pad",),
    "unk_id": ("ids.unk",),
    "bos_id": ("ids.bos",),
    "eos_id": ("ids.eos",),
    "start_id": ("ids.start",),
    "mask_id": ("ids.mask",),
}
"""A key of `network` in version 1 of `config.json` -> those that have its meaning."""


def renamed(key: str) -> str | None:
    """The sentence about a key of `network` that has another name now; None for any other key."""
    if key not in RENAMED:
        return None
    new = [f"network.{name}" for name in RENAMED[key]]
    return f"network.{key} is now {' and '.join(new)}"


def nested(network: Mapping[str, Any]) -> dict[str, Any]:
    """The `network` of a `config.json` of version 1 with the keys of today; keys of today are left as they are."""
    found: dict[str, Any] = {}
    for key, value in network.items():
        for name in RENAMED.get(key, (key,)):
            part, _, inner = name.partition(".")
            if inner:
                found.setdefault(part, {})[inner] = value
            else:
                found[key] = value
    return found
