"""How a model turns texts into vectors: the `embedding` of its `config.json`, and the options of `Model.embed`."""

from dataclasses import dataclass
from typing import TypedDict

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
