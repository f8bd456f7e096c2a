"""Renamed keys of a network: messages for recipes, and the migration of an older `config.json`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atento.config.reading.yaml12 import Node
from atento.config.tables.foreign import OPTIONS, our_key

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
    **{f"{name}_id": (f"ids.{name}",) for name in ("pad", "unk", "bos", "eos", "start", "mask")},
}
"""A key of `network` in version 1 of `config.json` -> those that have its meaning."""


# Sections in which people look for a key that stands in another one: the first ones are those that are typed most.
_SECTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("steps", "epochs", "minutes", "learning_rate", "batch_tokens", "warmup", "schedule", "seed", "precision"),
        ("training",),
    ),
    **dict.fromkeys(("validate_every", "checkpoint_every", "early_stop", "average", "clip", "keep"), ("training",)),
    **dict.fromkeys(("train", "valid", "test", "max_len", "truncate", "held_out", "skip_bad"), ("data",)),
    **dict.fromkeys(("beam", "max_new_tokens", "length_penalty", "top_p", "top_k", "temperature"), ("decoding",)),
    **dict.fromkeys(("d_model", "n_layers", "n_heads", "d_ff", "dropout", "preset"), ("network",)),
    **dict.fromkeys(("model", "lora"), ("init",)),
    "vocab_size": ("tokenizer",),
}


_TRAINING = {"accumulate": "micro_batches"}


def renamed(section: str, key: str) -> str | None:
    """Return the message for a renamed key of a section; None for any other key."""
    if section == "training" and key in _TRAINING:
        return f"training.{key} is now training.{_TRAINING[key]}"
    if section != "network" or key not in RENAMED:
        return None
    new = [f"network.{name}" for name in RENAMED[key]]
    return f"network.{key} is now {' and '.join(new)}"


def elsewhere(section: str, key: str) -> str | None:
    """Return the message for a key that another section, a command or another tool has; None for any other key."""
    if key == "greedy":
        return f"unknown key {key!r}: greedy search is a beam of 1, `decoding: {{beam: 1}}`"
    if key in OPTIONS and section in {"", "training"}:
        return f"{key!r} is no key of a recipe, but an option of the command: {OPTIONS[key]}"
    found = [place for place in _SECTIONS.get(key, ()) if place != section]
    ours = our_key(key) or (f"{found[0]}.{key}" if found else None)
    if ours is None or ours == f"{section}.{key}":
        return None
    where = f" in {section}" if section else ""
    return f"unknown key {key!r}{where}; did you mean {ours}?"


def nested(network: Mapping[str, object]) -> dict[str, object]:
    """Migrate the `network` of a `config.json` of version 1 to the current keys; current keys are unchanged."""
    result: dict[str, Any] = {}
    for key, value in network.items():
        for name in RENAMED.get(key, (key,)):
            part, _, inner = name.partition(".")
            if inner:
                result.setdefault(part, {})[inner] = value
            else:
                result[key] = value
    return result


def migrated(recipe: Node) -> Node:
    """Migrate the recipe in the folder of an older run to the current keys; a current one is unchanged."""
    sections = dict(recipe.value)
    network, training = sections.get("network"), sections.get("training")
    if network is not None and isinstance(network.value, dict):
        parts = {
            # a new section has the position of the old one
            key: value if isinstance(value, Node) else Node(value, network.position, key_position=network.position)
            for key, value in nested(network.value).items()
        }
        sections["network"] = replace(network, value=parts)
    if training is not None and isinstance(training.value, dict) and "accumulate" in training.value:
        keys = {_TRAINING.get(key, key): value for key, value in training.value.items()}
        sections["training"] = replace(training, value=keys)
    return replace(recipe, value=sections)
