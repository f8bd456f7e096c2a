"""How a model turns texts into vectors: the `embedding` of its `config.json`, and the options of `Model.embed`."""

from dataclasses import dataclass
from typing import TypedDict

from atento.config.sections.network import NetworkConfig
from atento.errors import nearest

POOLINGS = ("mean", "first", "last", "max", "sqrt-mean", "weighted-mean")


@dataclass(frozen=True)
class EmbeddingConfig:
    """Which layer's vectors are pooled, and how."""

    layer: int = -1
    """Layer whose vectors are pooled: 0 is the first, -1 the last."""
    pooling: str = "mean"
    """How the vectors of a text's tokens become one: mean, first, last, max, sqrt-mean (the sum divided by the square
    root of the number of tokens) or weighted-mean (later tokens weigh more); several joined by +, such as first+mean,
    give their vectors one behind the other.
    """
    normalize: bool = False
    """Divide each vector by its length."""
    max_len: int | None = None
    """Cut each text to this many tokens, special tokens included. [null: the network's limit]"""
    prompt: str = ""
    """Text that is put before each text, such as "query: "."""
    pool_prompt: bool = True
    """Pool the tokens of the prompt too. false: they are read, but the vector leaves them out."""
    lowercase: bool = False
    """Read each text in lower case, whatever the tokenizer does."""

    def read(self, text: str) -> str:
        """A text as it is read: behind the prompt, and in lower case if the configuration says so."""
        text = self.prompt + text
        return "".join(map(str.lower, text)) if self.lowercase else text

    def width(self, network: NetworkConfig) -> int:
        """The number of dimensions of a text's vector."""
        return network.text_width * (1 if network.projections else len(self.pooling.split("+")))


class EmbeddingOptions(TypedDict, total=False):
    """The options of `Model.embed`, for type checkers and completion: the fields of `EmbeddingConfig`."""

    layer: int
    pooling: str
    normalize: bool
    max_len: int | None
    prompt: str
    pool_prompt: bool
    lowercase: bool


def untrainable(config: EmbeddingConfig) -> tuple[str, str] | None:
    """Return the key at fault and the message if a model cannot be trained to make its vectors so, else None."""
    for part in config.pooling.split("+"):
        if part not in POOLINGS:
            return "pooling", f"unknown embedding.pooling {part!r}{nearest(part, list(POOLINGS))}"
    if config.layer != -1:
        return "layer", f"embedding.layer must be -1, the last layer, in training: got {config.layer}"
    if config.max_len is not None and config.max_len < 1:
        return "max_len", f"embedding.max_len must be at least 1: got {config.max_len}"
    return None
