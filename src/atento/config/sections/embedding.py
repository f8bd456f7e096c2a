"""How a model turns texts into vectors: the `embedding` of its `config.json`, and the options of `Model.embed`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict

from atento.base.errors import UsageError, nearest
from atento.config.sections.network import NetworkConfig

QUERY, DOCUMENTS = "query", ("document", "passage", "corpus")  # usual names of prompts of sentence-transformers
PROMPTS = ("prompts", "field_prompts")  # keys
NO_PROMPT = "data.windows has no place for a prompt of embedding, which would stand before the first window alone"
POOLINGS = ("mean", "first", "last", "max", "sqrt-mean", "weighted-mean")


@dataclass(frozen=True)
class EmbeddingConfig:
    """Which layer's vectors are pooled, and how."""

    layer: int = -1
    """Layer whose vectors are pooled: 0 is the first, -1 the last."""
    pooling: str = "mean"
    """How tokens become one vector: mean, first, last, max, sqrt-mean (the sum divided by the root of their number) or
    weighted-mean (later tokens weigh more); first+mean concatenates two.
    """
    normalize: bool = False
    """Divide each vector by its length."""
    max_len: int | None = None
    """Maximum tokens of a text, special ones included. [null: the network's limit]"""
    prompt: str = ""
    """Text before each text, such as "query: "."""
    pool_prompt: bool = True
    """Pool the tokens of the prompt too."""
    lowercase: bool = False
    """Read texts in lower case."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name: {query: "query: ", passage: "passage: "}; by default the initial model's."""
    field_prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompt of each field: {text: query, pair: passage}; others have `prompt`, and `negative` that of `pair`."""

    def read(self, text: str) -> str:
        """A text as it is read: behind the prompt, and in lower case if the configuration says so."""
        text = self.prompt + text
        return "".join(map(str.lower, text)) if self.lowercase else text

    def named(self, name: str) -> "EmbeddingConfig":
        """The configuration with the prompt of that name.
        Raises UsageError: there is none; names those that there are.
        """
        if name not in self.prompts:
            known = nearest(name, list(self.prompts)) if self.prompts else ": the model has none"
            raise UsageError(f"unknown prompt {name!r}{known}")
        return replace(self, prompt=self.prompts[name])

    def of_field(self, field: str) -> "EmbeddingConfig":
        """The configuration with the prompt of a field of the records: text, pair or negative."""
        name = self.field_prompts.get(field, self.field_prompts.get("pair") if field == "negative" else None)
        return self if name is None else self.named(name)

    def search_prompts(self) -> tuple[str | None, str | None]:
        """The names of the prompts of a query and of documents: the usual names, where there are such prompts."""
        query = QUERY if QUERY in self.prompts else None
        return query, next((name for name in DOCUMENTS if name in self.prompts), None)

    def width(self, network: NetworkConfig) -> int:
        """The number of dimensions of a text's vector."""
        return network.text_width * (1 if network.projections else len(self.pooling.split("+")))


class EmbeddingOptions(TypedDict, total=False):
    """The options of `Model.embed`, for type checkers and completion: fields of `EmbeddingConfig`, the name of one of
    its prompts, how many numbers of each vector are kept, and the name of one of several heads."""

    layer: int
    pooling: str
    normalize: bool
    max_len: int | None
    prompt: str
    pool_prompt: bool
    lowercase: bool
    prompt_name: str
    dimensions: int
    head: str | None


_FIELDS = ["text", "pair", "negative"]


def untrainable(config: EmbeddingConfig) -> tuple[str, str] | None:
    """Return the key at fault and the message if a model cannot be trained to make its vectors so, else None."""
    for part in config.pooling.split("+"):
        if part not in POOLINGS:
            return "pooling", f"unknown embedding.pooling {part!r}{nearest(part, list(POOLINGS))}"
    if config.layer != -1:
        return "layer", f"embedding.layer must be -1, the last layer, in training: got {config.layer}"
    if config.max_len is not None and config.max_len < 1:
        return "max_len", f"embedding.max_len must be at least 1: got {config.max_len}"
    for name, prompt in config.field_prompts.items():
        if name not in _FIELDS:
            return "field_prompts", f"embedding.field_prompts: unknown field {name!r}{nearest(name, _FIELDS)}"
        if config.prompts and prompt not in config.prompts:
            known = nearest(prompt, list(config.prompts))
            return "field_prompts", f"embedding.field_prompts: no prompt is called {prompt!r}{known}"
    return None
