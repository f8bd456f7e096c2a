"""What a network is made of: one frozen dataclass for every family."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

from atento.base.errors import RecipeError, nearest
from atento.config.literals import BelowOne, Count, Rule, Section
from atento.config.sections.network_parts import (
    PARTS,
    AttentionConfig,
    ConvolutionConfig,
    FeaturesConfig,
    FeedForwardConfig,
    InputConfig,
    MaskConfig,
    OutputConfig,
    ProjectionConfig,
    SpecialIds,
    WritingConfig,
    part_of,
)
from atento.config.sections.position_scheme import ADDED, PositionConfig
from atento.config.sections.recurrent import CBOWConfig, ELMoConfig, RecurrentConfig
from atento.config.tables.head_kinds import HEAD_KINDS, OF_TRAINING, HeadConfig, Pooling

DEEPEST = 1000  # layers of a stack: more would be built for minutes before anything is checked
WIDEST = 2**18  # far beyond any network there is; one more digit typed would take all memory before it is counted
_READ_A_SOURCE = ("encoder-decoder", "recurrent-seq2seq")
_LEFT_TO_RIGHT = ("decoder", "recurrent-lm")
_HOMES = {"recurrent": ("recurrent-seq2seq", "recurrent-lm"), "elmo": ("elmo",), "cbow": ("cbow",)}  # of parts
_HOMES |= {"features": ("encoder-decoder",)}
_OF_ENCODERS = ("masked-language-model", "replaced-token", *OF_TRAINING)  # kinds of heads


@dataclass(frozen=True)
class NetworkConfig(Section):
    """A network as numbers and choices: which of the stacks it has, and what their one block is made of."""

    architecture: Literal[
        "encoder-decoder", "encoder", "decoder", "recurrent-seq2seq", "recurrent-lm", "elmo", "cbow"
    ] = "encoder-decoder"
    """A Transformer (`encoder-decoder`, `encoder` as BERT, `decoder` as GPT), LSTM or GRU with attention
    (`recurrent-seq2seq`), recurrent language model (`recurrent-lm`), `elmo`, or word vectors (`cbow`).
    """
    family: str = ""
    """Family of released models, for saving; presets set it. [empty: none]"""
    vocab_size: int = 0
    """Size of the embedding table. [0: the tokenizer's]"""
    d_model: Count = 512
    """Width between layers. [1 to 262,144; a multiple of `n_heads`] Without size, preset or architecture, width, depth
    and heads follow from the amount of data.
    """
    d_ff: Count = 2048
    """Width inside the feed-forward sublayers; 4 × `d_model` is usual. [1 to 262,144]"""
    n_heads: int = 8
    """Attention heads of a layer. [at least 1]"""
    n_layers: Count = 6
    """Layers of the stack, or of the encoder. [1 to 1,000]"""
    n_decoder_layers: Count | None = None
    """Layers of an encoder-decoder's decoder; fewer decode faster. [1 to 1,000; null: `n_layers`]"""
    shared_layers: bool = False
    """All layers of a stack have the same weights (ALBERT)."""
    dropout: BelowOne = 0.1
    """Share of each sublayer's output set to 0 in training: 0.1 with much data, 0.3 with little (a translator's without
    sizes). [0 to below 1] With `init`, this, `attention.dropout` and `feed_forward.dropout` are the initial model's.
    """
    norm: Literal["pre", "post"] = "post"
    """Before each sublayer (`pre`, trains more easily) or after the residual sum (`post`)."""
    norm_kind: Literal["layer", "rms", "rms-plus-one"] = "layer"
    """LayerNorm (`layer`); RMSNorm (`rms`); or RMSNorm that multiplies by 1 + its weight (`rms-plus-one`, Gemma)."""
    norm_bias: bool = True
    """Give LayerNorm a bias (ModernBERT: no)."""
    first_norm: bool = True
    """Pre-norm: also before the first self-attention (ModernBERT: no)."""
    norm_eps: Annotated[float, Rule("be above 0", lambda eps: eps > 0)] = 1e-5
    """Added to the variance before the square root. [above 0]"""
    positions: PositionConfig | tuple[PositionConfig, ...] = PositionConfig()
    """Position scheme, or schemes that add up."""
    max_len: Count = 512
    """Maximum number of tokens for learned positions. [at least 1]"""
    mask: MaskConfig | None = None
    """Tokens that self-attention (or the encoder's) may attend to. [null: all in an encoder, those before in a decoder]
    """
    convolution: ConvolutionConfig | None = None
    """Convolution over an encoder's input, added behind its first layer (DeBERTa v2). [null: none]"""
    attention: AttentionConfig = AttentionConfig()
    """Further options of attention."""
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    """Further options of the feed-forward sublayers."""
    embedding: InputConfig = InputConfig()
    """Options of the embedding of token ids."""
    features: FeaturesConfig | None = None
    """Vectors of a trained encoder in place of source embeddings. [null: none; encoder-decoders]"""
    output: OutputConfig = OutputConfig()
    """Options of the logits over the vocabulary."""
    pooler: bool = False
    """Dense layer with tanh on the first token, for heads (BERT; encoders)."""
    layer_mix: bool = False
    """Heads read γ Σ softmax(w)_j h_j, a learned mix of embeddings and layers. [encoders and decoders; ELMo always]"""
    heads: tuple[HeadConfig, ...] = ()
    """Heads beside the output, with different names."""
    projections: tuple[ProjectionConfig, ...] = ()
    """Linear maps of the vector of a text, in encoders. [empty: none]"""
    recurrent: RecurrentConfig | None = None
    """Further options of a recurrent network."""
    elmo: ELMoConfig | None = None
    """Further options of ELMo."""
    cbow: CBOWConfig | None = None
    """Further options of word vectors."""
    initializer: Literal["xavier", "normal"] = "xavier"
    """Initial weights: Glorot's (`xavier`), or `normal` with standard deviation 0.02 (BERT, GPT; for post-norm and few
    updates).
    """
    ids: SpecialIds = SpecialIds()
    """Ids of special tokens."""
    writing: WritingConfig | None = None
    """Rules of a released model for its outputs. [null: none]"""
    tokenizer_fingerprint: str | None = None
    """Written by training."""

    def _check(self) -> None:
        for name, kind in PARTS.items():
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, part_of(name, kind, value))
        # with a `d_head` of their own the heads need not add up to `d_model`
        if self.n_heads < 1 or (self.attention.d_head is None and self.d_model % self.n_heads):
            raise RecipeError(f"`n_heads` must divide `d_model`: got {self.n_heads} and {self.d_model}")
        self._check_parts()
        if max(self.d_model, self.d_ff) > WIDEST:
            raise RecipeError(f"`d_model` and `d_ff` may be {WIDEST:,} at most: got {self.d_model} and {self.d_ff}")
        deep = self.n_layers, self.decoder_layers
        if max(deep) > DEEPEST:
            raise RecipeError(f"`n_layers` and `n_decoder_layers` may be {DEEPEST:,} at most: got {deep[0]}, {deep[1]}")
        shared = self.attention.n_kv_heads
        if shared is not None and (shared < 1 or self.n_heads % shared):
            rule = "`attention.n_kv_heads` must divide `n_heads`, or be null for as many"
            raise RecipeError(f"{rule}: got {shared} and {self.n_heads}")
        for scheme in self.schemes:
            _check_numbers("positions.heads", scheme.heads, self.n_heads)
            if scheme.heads is not None and scheme.kind == "rotary" and shared not in (None, self.n_heads):
                rule = "need `attention.n_kv_heads` equal to `n_heads`"
                raise RecipeError(f"`positions.heads` of rotary positions {rule}: keys are shared")
            _check_numbers("positions.layers", scheme.layers, max(self.n_layers, self.decoder_layers))
        self._check_layers()
        if self.writing is not None:
            self.writing.check(self.vocab_size)

    def _check_layers(self) -> None:
        """That sparsity and the mask name layers that there are, and fit the architecture."""
        sparse = self.attention.sparse
        if sparse is not None and sparse.blocks is not None:
            if self.architecture not in ("encoder", "encoder-decoder"):
                raise RecipeError(f"`attention.sparse.blocks` is for encoders: got architecture {self.architecture!r}")
            # schemes that add to the scores
            added = [scheme.kind for scheme in self.schemes if scheme.kind not in (*ADDED, "rotary")]
            if added or self.attention.dropout:
                conflict = f"{added[0]} positions" if added else f"`attention.dropout` {self.attention.dropout}"
                raise RecipeError(
                    f"`attention.sparse.blocks` adds nothing to scores and drops no weights: got {conflict}"
                )
        if sparse is not None:
            _check_numbers("attention.sparse.layers", sparse.layers, self.n_layers)
        if self.convolution is not None and self.d_model % self.convolution.groups:
            raise RecipeError(
                f"`convolution.groups` must divide `d_model`: got {self.convolution.groups} and {self.d_model}"
            )
        if self.mask is None:
            return
        if self.architecture not in ("encoder", "decoder", "encoder-decoder"):
            raise RecipeError(f"`mask` belongs to a Transformer: got architecture {self.architecture!r}")
        if self.architecture == "decoder" and self.mask.kind not in ("causal", "window"):
            raise RecipeError(f"`mask` of a decoder must be causal or window: got {self.mask.kind!r}")
        _check_numbers("mask.layers", self.mask.layers, self.n_layers)

    def _check_parts(self) -> None:
        """What one arrangement has and another has not, heads among it."""
        if self.architecture != "encoder":
            for name, value in (
                ("pooler", self.pooler),
                ("embedding.segments", self.embedding.segments),
                ("embedding.width", self.embedding.width),
                ("projections", list(self.projections)),
                ("convolution", self.convolution),
            ):
                if value:
                    raise RecipeError(f"`{name}` belongs to an encoder: got architecture {self.architecture!r}")
        if self.layer_mix and self.architecture not in ("encoder", "decoder"):
            raise RecipeError(f"`layer_mix` is for an encoder or a decoder: got architecture {self.architecture!r}")
        if not self.reads_source and self.n_decoder_layers is not None:
            raise RecipeError("`n_decoder_layers` belongs to an encoder-decoder; use `n_layers`")
        if not self.reads_source and self.embedding.target_vocab_size is not None:
            raise RecipeError("`embedding.target_vocab_size` belongs to an encoder-decoder")
        if self.output.adaptive and self.architecture != "elmo":
            raise RecipeError(f"`output.adaptive` belongs to architecture elmo: got {self.architecture!r}")
        for name, homes in _HOMES.items():
            if getattr(self, name) is not None and self.architecture not in homes:
                raise RecipeError(f"`{name}` belongs to architecture {homes[0]}: got {self.architecture!r}")
        names = ["vocabulary"] if self.writes or self.architecture == "elmo" else []
        for head in self.heads:
            if self.architecture == "cbow":
                raise RecipeError(f"`heads` cannot stand on word vectors alone: got a {head.kind} head")
            if head.kind in _OF_ENCODERS and self.architecture != "encoder":
                raise RecipeError(
                    f"`heads`: a {head.kind} head belongs to an encoder: got architecture {self.architecture!r}"
                )
            if head.name in names:
                raise RecipeError(f"`heads` must have different names: got {head.name!r} twice")
            names.append(head.name)
            if head.side != "encoder" and not self.reads_source:
                raise RecipeError(
                    f"`heads.side` is for networks that read a source and write: got {self.architecture!r}; "
                    "beside `init`, write the model's `architecture` too"
                )
            if head.kind == "span-boundary" and self.embedding.width is not None:
                raise RecipeError("a span-boundary head predicts from `d_model`: `embedding.width` must be null")
            if self.pooling(head) == "pooler" and not self.pooler:
                raise RecipeError(f"a {head.kind} head that reads the pooler needs `pooler: true`")

    @property
    def reads_source(self) -> bool:
        """Whether the network reads a source and writes a target."""
        return self.architecture in _READ_A_SOURCE

    @property
    def writes(self) -> bool:
        """Whether the network writes, each token from those before it."""
        return self.reads_source or self.architecture in _LEFT_TO_RIGHT

    def pooling(self, head: HeadConfig) -> Pooling | None:
        """Which vector of a text that head reads; None: it does not read one vector a text."""
        if HEAD_KINDS[head.kind] not in ("class", "set", "number"):
            return None
        if head.pooling is not None:
            return head.pooling
        if self.architecture == "encoder":
            return "pooler" if self.pooler else "first"
        return "last" if self.architecture in _LEFT_TO_RIGHT or head.side != "encoder" else "mean"

    @property
    def position_limit(self) -> int | None:
        """Maximum number of tokens of a text, if positions are learned; None: no limit."""
        return self.max_len if any(scheme.kind == "learned" for scheme in self.schemes) else None

    @property
    def source_limit(self) -> int | None:
        """As `position_limit`, of a text that is read: `features` may have a limit too."""
        limits = (self.position_limit, None if self.features is None else self.features.max_len)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def schemes(self) -> tuple[PositionConfig, ...]:
        """The position schemes that add up; none for kind "none"."""
        schemes = self.positions if isinstance(self.positions, tuple) else (self.positions,)
        return tuple(scheme for scheme in schemes if scheme.kind != "none")

    @property
    def embedding_width(self) -> int:
        """Width of the vectors of tokens, E."""
        return self.d_model if self.embedding.width is None else self.embedding.width

    @property
    def target_vocab_size(self) -> int:
        """The size of the vocabulary that is written."""
        return self.embedding.target_vocab_size or self.vocab_size

    @property
    def text_width(self) -> int:
        """Width of the vector of a text."""
        return self.projections[-1].width if self.projections else self.d_model

    @property
    def head_width(self) -> int:
        """Width of one head, K."""
        return self.d_model // self.n_heads if self.attention.d_head is None else self.attention.d_head

    def score_scale(self, layer: int) -> float | None:
        """Factor of the scores of self-attention in a layer; None: 1/√K.

        With disentangled positions a score is the sum of three products, so that it is 1/√(3K) if not configured.
        """
        schemes = [scheme for scheme in self.schemes if scheme.layers is None or layer in scheme.layers]
        if self.attention.scale is None and any(scheme.kind == "disentangled" for scheme in schemes):
            return float((3 * self.head_width) ** -0.5)
        return self.attention.scale

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_heads if self.attention.n_kv_heads is None else self.attention.n_kv_heads

    @property
    def output_projection_bias(self) -> bool:
        """Whether the output projection of attention has a bias."""
        return self.attention.bias if self.attention.output_bias is None else self.attention.output_bias

    @property
    def decoder_layers(self) -> int:
        """Depth of the decoder stack."""
        return self.n_layers if self.n_decoder_layers is None else self.n_decoder_layers

    @property
    def pad_id(self) -> int:
        """Id of padding."""
        return self.ids.pad

    @property
    def unk_id(self) -> int:
        """Id of an unknown token."""
        return self.ids.unk

    @property
    def bos_id(self) -> int:
        """Id of the beginning of a text."""
        return self.ids.bos

    @property
    def eos_id(self) -> int:
        """Id of the end of a text."""
        return self.ids.eos

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end an output."""
        return (self.eos_id,) if self.writing is None else (self.eos_id, *self.writing.ends)

    @property
    def start_id(self) -> int:
        """Id that a decoder starts from."""
        return self.ids.start

    @property
    def mask_id(self) -> int | None:
        """Id of the mask token; None: there is none."""
        return self.ids.mask


def _check_numbers(name: str, numbers: tuple[int, ...] | None, count: int) -> None:
    """That the heads or layers that a key names are among as many as there are."""
    if max(numbers or (0,)) >= count:
        raise RecipeError(f"`{name}` count from 0 to {count - 1}: got {numbers}")


def changed(config: NetworkConfig, *layers: Mapping[str, Any], **changes: Any) -> NetworkConfig:
    """A copy with some fields changed, by each mapping in turn; a mapping for a part changes some fields of that part.

    `changed(config, n_layers=4, attention={"dropout": 0.1})`.
    Raises RecipeError: no such field, or a value out of range.
    """
    known = [field.name for field in fields(NetworkConfig)]
    values: dict[str, Any] = {}
    for layer in (*layers, changes):
        for key, value in layer.items():
            if key not in known:
                raise RecipeError(f"unknown network key {key!r}{nearest(key, known)}")
            if key in PARTS and isinstance(value, Mapping):
                value = part_of(key, PARTS[key], vars(values.get(key, getattr(config, key))) | dict(value))
            values[key] = value
    return replace(config, **values)


def network_to_dict(config: NetworkConfig) -> dict[str, Any]:
    """Return the configuration as plain data with lists instead of tuples, as read from `config.json`."""
    data: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in data.items() if name not in ("writing", "features") or value is not None}
