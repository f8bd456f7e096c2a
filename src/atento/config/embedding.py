"""How a model turns texts into vectors: the `embedding` of its `config.json`, and the options of `Model.embed`."""

from dataclasses import dataclass
from typing import TypedDict

from atento.errors import nearest

POOLINGS = ("mean", "first", "last", "max")


@dataclass(frozen=True)
class EmbeddingConfig:
    """Which layer's vectors are pooled, and how."""

    layer: int = -1
    """Layer whose vectors are pooled: 0 is the first, -1 the last."""
    pooling: str = "mean"
    """How the vectors of a text's tokens become one: mean, first, last or max."""
    normalize: bool = False
    """Divide each vector by its length."""
    max_len: int | None = None
    """Cut each text to this many tokens, special tokens included. [null: the network's limit]"""


class EmbeddingOptions(TypedDict, total=False):
    """The options of `Model.embed`, for type checkers and completion: the fields of `EmbeddingConfig`."""

    layer: int
    pooling: str
    normalize: bool
    max_len: int | None


def untrainable(config: EmbeddingConfig) -> tuple[str, str] | None:
    """Return the key at fault and the message if a model cannot be trained to make its vectors so, else None."""
    if config.pooling not in POOLINGS:
        return "pooling", f"unknown embedding.pooling {config.pooling!r}{nearest(config.pooling, list(POOLINGS))}"
    if config.layer != -1:
        return "layer", f"embedding.layer must be -1, the last layer, in training: got {config.layer}"
    if config.max_len is not None and config.max_len < 1:
        return "max_len", f"embedding.max_len must be at least 1: got {config.max_len}"
    return None
