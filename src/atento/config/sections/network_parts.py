"""The parts of a network's configuration: attention, masks, feed-forward, embedding, output, special tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Annotated, Any, Literal

from atento.base.errors import RecipeError, nearest
from atento.config.literals import NOT_NEGATIVE, BelowOne, Count, Natural, Rule, Section


@dataclass(frozen=True)
class SparseConfig(Section):
    """Sparse self-attention: the heads learn which links to keep (docs/notes.md#a17)."""

    top_k: Count | None = None
    """Keep the k highest scores of each query. [at least 1; null: all]"""
    alpha: Annotated[float, Rule("lie in [1, 2]", lambda alpha: 1 <= alpha <= 2)] | None = None
    """α of α-entmax: 1 is softmax, 2 sparsemax. [1 to 2; null: softmax]"""
    learn_alpha: bool = False
    """Let each head learn its α, starting at `alpha`."""
    span: Count | None = None
    """Maximum span of a head, which learns its own. [at least 1; null: all]"""
    look_ahead: bool = True
    """Later positions have a learned span too."""
    ramp: Count = 32
    """Positions of the soft end of a span. [at least 1]"""
    span_cost: Annotated[float, NOT_NEGATIVE] = 0.0
    """Loss for each position of the mean span, in nats per target. [0 or more]"""
    blocks: Count | None = None
    """Blocks of keys that each block of queries selects; in encoders, alone in this section. [at least 1; null: off]"""
    block_size: Count = 64
    """Positions of a block. [at least 1]"""
    layers: tuple[int, ...] | None = None
    """Sparse layers, from 0. [null: all]"""

    def _check(self) -> None:
        if min(self.layers or (0,)) < 0:
            raise RecipeError(f"`layers` must not be negative: got {self.layers}")
        if self.blocks is not None and (self.top_k, self.alpha, self.span) != (None, None, None):
            raise RecipeError("`blocks` excludes `top_k`, `alpha` and `span`")
        if self.learn_alpha and (self.alpha is None or not 1.0 < self.alpha < 2.0):
            raise RecipeError(f"`learn_alpha` needs an `alpha` between 1 and 2 to begin at: got {self.alpha}")


@dataclass(frozen=True)
class AttentionConfig(Section, path="attention."):
    """Options of all attention of a network, except `d_model` and `n_heads`."""

    n_kv_heads: int | None = None
    """Heads of keys and values, each shared by several query heads (grouped-query attention, Ainslie et al. 2023).
    [divides `n_heads`; null: `n_heads`]
    """
    d_head: Count | None = None
    """Width of a head. [at least 1; null: d_model / n_heads]"""
    dropout: BelowOne = 0.0
    """Share of attention weights set to 0 in training. [0 to below 1]"""
    bias: bool = True
    """Bias of the projections of queries, keys and values."""
    output_bias: bool | None = None
    """Bias of the output projection. [null: as `bias`; Qwen2 has none]"""
    norm: bool = False
    """RMSNorm of each head's queries and keys before rotation (Qwen3)."""
    scale: float | None = None
    """Factor of the attention scores. [null: 1/√d_head]"""
    sparse: SparseConfig | None = None
    """Sparse self-attention with learned links. [null: dense attention]"""


@dataclass(frozen=True)
class ConvolutionConfig(Section, path="convolution."):
    """A convolution over the input of an encoder, whose output is added to that of the first layer (He et al. 2021)."""

    width: Annotated[int, Rule("be odd and at least 1", lambda width: width >= 1 and width % 2 == 1)] = 3
    """Number of tokens that it reads. [odd, at least 1]"""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "tanh"] = "tanh"
    """Activation of its output."""
    groups: Count = 1
    """Groups of dimensions that are convolved apart. [divides `d_model`]"""


@dataclass(frozen=True)
class ProjectionConfig(Section, path="projections."):
    """A linear map of the vector of a text, behind the pooling (Dense of sentence-transformers)."""

    width: int
    """Dimensions of the result. [at least 1]"""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu", "tanh"] | None = "tanh"
    """Activation of the result. [null: none]"""
    bias: bool = True
    """Bias of the map."""
    inputs: int | None = None
    """Dimensions that it reads; `d_model` for each pooling. [at least 1; null: those of the part before it]"""

    def _check(self) -> None:
        for name in ("width", "inputs"):
            if (width := getattr(self, name)) is not None and width < 1:
                raise RecipeError(f"`{name}` of `network.projections` must be at least 1: got {width}")


@dataclass(frozen=True)
class MaskConfig(Section, path="mask."):
    """Which tokens self-attention may attend to, where that is not all of them (encoders) or those before (decoders).

    See docs/notes.md#a6.
    """

    kind: Literal["bidirectional", "causal", "prefix", "lookahead", "window"] = "window"
    """All tokens (`bidirectional`), those up to a token (`causal`), also the first `length` (`prefix`) or `ahead` more
    (`lookahead`), or `left` and `right` neighbours (`window`). A decoder takes causal and window, and stays causal.
    """
    length: Natural = 0
    """Tokens of the prefix. [0 or more; prefix]"""
    ahead: Natural = 0
    """Following tokens that a token may attend to. [0 or more; lookahead]"""
    left: Natural | None = None
    """Neighbours before a token (Mistral: 4,095). [0 or more; null: all; window]"""
    right: Natural | None = None
    """Neighbours after a token, in encoders. [0 or more; null: all; window]"""
    layers: tuple[int, ...] | None = None
    """Layers with this mask, from 0; others have the default. [null: all]"""

    def _check(self) -> None:
        for name, kind in (("length", "prefix"), ("ahead", "lookahead"), ("left", "window"), ("right", "window")):
            if getattr(self, name) and self.kind != kind:
                raise RecipeError(f"`mask.{name}` has no meaning for a mask of kind {self.kind}: it is for {kind}")
        if min(self.layers or (0,)) < 0:
            raise RecipeError(f"`layers` must not be negative: got {self.layers}")


@dataclass(frozen=True)
class FeedForwardConfig(Section, path="feed_forward."):
    """Options of the feed-forward sublayers, except their width `d_ff`."""

    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    """Activation between the two products."""
    gated: bool = False
    """Multiply the activation by a second product (GLU variants)."""
    bias: bool = True
    """Bias of the products."""
    dropout: BelowOne = 0.0
    """Share of the inner values set to 0 in training. [0 to below 1]"""


@dataclass(frozen=True)
class InputConfig(Section, path="embedding."):
    """Options of the embedding of token ids, except `positions`."""

    scaled: bool = True
    """Multiply embeddings by √d_model."""
    shared: bool = True
    """One table for source and target."""
    target_vocab_size: int | None = None
    """Number of target tokens, if sources have others (Marian). [at least 1, with `shared` false; null: the
    vocabulary's size; encoder-decoders]
    """
    segments: Natural = 0
    """Kinds of segments (BERT: 2). [0 or more; encoders]"""
    norm: bool = False
    """Normalise the input of the first layer (BERT)."""
    width: Count | None = None
    """Width of the added vectors, which a linear map takes to `d_model` (ALBERT, ELECTRA). [at least 1; null:
    `d_model`, without a map; encoders]
    """

    def _check(self) -> None:
        if self.target_vocab_size is not None and (self.target_vocab_size < 1 or self.shared):
            raise RecipeError(
                "`embedding.target_vocab_size` must be at least 1 and needs `embedding.shared` false: got "
                f"{self.target_vocab_size} and {'true' if self.shared else 'false'}"
            )


@dataclass(frozen=True)
class FeaturesConfig:
    """Vectors of a trained encoder in place of the embeddings of source tokens: feature-based transfer."""

    model: str
    """The frozen encoder: a run or model folder, a shipped model (`micro-world-mlm`) or a hub name."""
    layers: tuple[int, ...] | None = None
    """Layers whose vectors are normalised, joined and mapped to `d_model`; 0 is the embeddings. [null: the embeddings,
    the last layer and two between]
    """
    cache: str | None = None
    """Folder, relative to the recipe, for the vectors of the training texts, read once: 2 bytes for each of `layers` ×
    width numbers of a token. [null: read texts every time]
    """
    encoder: Mapping[str, object] | None = field(default=None, repr=False)
    """Its network; written by training."""
    template: str | None = None
    """Its special tokens around a text; written by training. [null: its tokenizer's]"""
    max_len: int | None = None
    """Maximum tokens that it reads; written by training. [null: no limit]"""

    def __post_init__(self) -> None:
        if not self.model:
            raise RecipeError("`features.model` must name a model: got ''")
        if self.encoder is not None and self.encoder.get("architecture") != "encoder":
            raise RecipeError("`features.encoder` must be the network of an encoder; training writes it")
        if self.layers is not None and (
            not self.layers or min(self.layers) < 0 or len(set(self.layers)) < len(self.layers)
        ):
            raise RecipeError(f"`features.layers` must be different numbers from 0: got {list(self.layers)}")


@dataclass(frozen=True)
class OutputConfig:
    """The matrix from vectors to logits over the vocabulary."""

    tied: bool = True
    """Use the embedding table as the output matrix."""
    bias: bool = False
    """Bias of the logits of a network that writes."""
    scaled: bool = False
    """Divide the decoder's vectors by √d_model before the output matrix (T5)."""
    adaptive: tuple[int, ...] = ()
    """For ELMo: first ids of the clusters of an adaptive softmax, such as 4000 and 40000, faster above 50,000 words.
    [rising, below the vocabulary's size; empty: off]
    """

    def __post_init__(self) -> None:
        if not all(low < high for low, high in pairwise((0, *self.adaptive))):
            raise RecipeError(f"`output.adaptive` must rise, from above 0: got {list(self.adaptive)}")


@dataclass(frozen=True)
class SpecialIds:
    """Ids of special tokens. They come from the tokenizer; set them only to match a released model."""

    pad: int = 0
    """Id of the padding token."""
    unk: int = 1
    """Id of an unknown token."""
    bos: int = 2
    """Id of the beginning of a text."""
    eos: int = 3
    """Id of the end of a text."""
    start: int = 2
    """Id that a decoder starts from."""
    mask: int | None = None
    """Id of the mask token. [null: none]"""


@dataclass(frozen=True)
class WritingConfig:
    """Rules of a released model that all of its outputs follow, whatever the search."""

    ends: tuple[int, ...] = ()
    """Ids that end an output besides `ids.eos`."""
    first: int | None = None
    """Id that outputs begin with by default. [null: any]"""
    last: int | None = None
    """Id at the maximum length. [null: any]"""
    suppressed: tuple[int, ...] = ()
    """Ids that are never written."""
    suppressed_first: tuple[int, ...] = ()
    """Ids never written first, behind `first`."""
    banned: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that are never written."""
    renormalized: bool = False
    """Rank beams by probabilities among the tokens that rules leave."""

    def check(self, vocab_size: int) -> None:
        """Raises RecipeError: an id that is not in the vocabulary, or an empty sequence."""
        for key in fields(self):
            value = getattr(self, key.name)
            parts = () if value is None or isinstance(value, bool) else value if isinstance(value, tuple) else (value,)
            sequences = [part if isinstance(part, tuple) else (part,) for part in parts]
            if not all(ids and all(0 <= token < vocab_size for token in ids) for ids in sequences):
                raise RecipeError(
                    f"`writing.{key.name}` must be ids below `vocab_size` {vocab_size}, none empty: got {value}"
                )


PARTS: dict[str, type] = {
    "attention": AttentionConfig,
    "feed_forward": FeedForwardConfig,
    "embedding": InputConfig,
    "output": OutputConfig,
    "ids": SpecialIds,
}
"""The parts of `NetworkConfig` that every network has; in Python, a mapping of some of its fields is accepted."""


def part_of(name: str, kind: Any, values: Mapping[str, object]) -> object:
    """A part made of some of its fields."""
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            raise RecipeError(f"unknown key {key!r} in `{name}`{nearest(key, known)}")
    return kind(**values)


def by_key(config: object) -> dict[str, Any]:
    """Every value of a `NetworkConfig` by its key, those of parts by two: `"attention.bias"`."""
    values: dict[str, object] = {}
    for name, value in vars(config).items():
        values |= {f"{name}.{key}": inner for key, inner in vars(value).items()} if name in PARTS else {name: value}
    return values
