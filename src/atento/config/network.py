"""What a network is made of: one frozen dataclass for every family, with one each for its larger parts."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from atento.config.elmo import CBOWConfig, ELMoConfig
from atento.config.heads import HEAD_KINDS, HeadConfig, Pooling
from atento.config.literals import check_choices
from atento.config.recurrent import RecurrentConfig
from atento.errors import RecipeError

_WIDEST = 2**18  # far beyond any network there is; one more digit typed would take all memory before it is counted
ADDED = ("sinusoidal", "learned")  # schemes that add to the input; the others act inside self-attention
_READ_A_SOURCE = ("encoder-decoder", "recurrent-seq2seq")
_LEFT_TO_RIGHT = ("decoder", "recurrent-lm")


@dataclass(frozen=True)
class StretchConfig:
    """Rotations made `factor` times slower for texts longer than those of the training (`attention.positions.Stretch`).

    With `trained_len`, only those that turn fewer than `low` times in that many positions; up to `high` times in part.
    """

    factor: float = 1.0
    """How many times slower the rotations turn. [at least 1]"""
    trained_len: int | None = None
    """Length that the model was trained with: only rotations that turn rarely in it are slowed (Llama 3.1). [at least
    1; null: all are slowed alike]
    """
    low: float = 1.0
    """Rotations that turn fewer times than this in `trained_len` are slowed in full. [above 0, below `high`]"""
    high: float = 4.0
    """Rotations that turn more times than this in `trained_len` are left as they are."""

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise RecipeError(f"`factor` must be at least 1: got {self.factor}")
        if self.trained_len is not None and self.trained_len < 1:
            raise RecipeError(f"`trained_len` must be at least 1: got {self.trained_len}")
        if not 0 < self.low < self.high:
            raise RecipeError(f"`low` must be above 0 and below `high`: got {self.low} and {self.high}")


@dataclass(frozen=True)
class PositionConfig:
    """One way in which order enters the network; several of them add up (docs/notes.md#b1, #b2, #b4, #b5, #b7)."""

    kind: Literal["sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "matrix", "none"] = "sinusoidal"
    """sinusoidal and learned add a vector to each token; rotary rotates queries and keys; shaw, t5, alibi and matrix
    add to the score of a pair; none leaves order out. rotary, t5 and alibi carry over to longer texts better than
    learned.
    """
    layers: tuple[int, ...] | None = None
    """Layers that have the scheme, counted from 0. [null: all]"""
    heads: tuple[int, ...] | None = None
    """Heads that have the scheme, counted from 0; not for schemes that add to the input. [null: all]"""
    gate: bool = False
    """Multiply the scheme by a learned weight, not for rotary."""
    shared: bool | None = None
    """One table for all layers. [null: as in the scheme's paper: t5 yes, others no]"""
    base: float = 10000.0
    """Base of the wavelengths of sinusoids and rotations. [above 0] Larger for longer texts: Llama 3 has 500,000."""
    fraction: float = 1.0
    """Part of each head that is rotated. [above 0, up to 1]"""
    interleaved: bool | None = None
    """Pair neighbouring dimensions instead of the two halves. [null: as in the scheme's paper: sinusoids yes, rotations
    no]
    """
    max_distance: int | None = None
    """Distance from which on all are treated alike. [at least 1; null: 16 for shaw, 128 for others]"""
    n_buckets: int = 32
    """Buckets of distances that t5 tells apart. [at least 4]"""
    values: bool = True
    """shaw adds a second table to the values, as the paper does."""
    scaled: bool = True
    """Divide the matrix by √d_head with the scores."""
    shift: int = 0
    """Rows left free at the start of a learned table: fairseq's models count positions from 2. [0 or more]"""
    real_only: bool = False
    """Count real tokens alone, so that padding on the left moves no position (RoBERTa)."""
    stretch: StretchConfig | None = None
    """Slow rotations down for texts longer than those of training."""
    longer: Literal["grown", "interpolated"] = "grown"
    """How a learned table becomes longer when training starts from a model with a shorter one: new rows, or the old
    ones interpolated.
    """

    def __post_init__(self) -> None:
        check_choices(self, "positions.")
        if self.heads is not None and self.kind in ADDED:
            raise RecipeError(f"`heads` has no meaning for {self.kind} positions, which are added before there are any")
        if self.real_only and self.kind not in ADDED:
            raise RecipeError(f"`real_only` has no meaning for {self.kind} positions: only added ones count tokens")
        if self.gate and self.kind == "rotary":
            raise RecipeError("`gate` has no meaning for rotary positions: a rotation is not added to anything")
        if self.stretch is not None and self.kind != "rotary":
            raise RecipeError(f"`stretch` has no meaning for {self.kind} positions: it slows rotations")
        for name in ("layers", "heads"):
            for number in getattr(self, name) or ():
                if number < 0:
                    raise RecipeError(f"`{name}` must not be negative: got {number}")
        if self.max_distance is not None and self.max_distance < 1:
            raise RecipeError(f"`max_distance` must be at least 1: got {self.max_distance}")
        if not 0.0 < self.base < float("inf"):
            raise RecipeError(f"`base` must be above 0: got {self.base}")
        if not 0.0 < self.fraction <= 1.0:
            raise RecipeError(f"`fraction` must lie in (0, 1]: got {self.fraction}")
        if self.n_buckets < 4:
            raise RecipeError(f"`n_buckets` must be at least 4: got {self.n_buckets}")
        if self.kind == "t5" and (self.max_distance or 128) <= self.n_buckets // 2:
            raise RecipeError(f"`max_distance` of t5 must be above half of `n_buckets`: got {self.max_distance or 128}")
        if self.shift < 0:
            raise RecipeError(f"`shift` must not be negative: got {self.shift}")


@dataclass(frozen=True)
class SparseConfig:
    """How the heads of self-attention learn which links to keep (docs/notes.md#a17); what is not given is dense."""

    top_k: int | None = None
    """Keep the k highest scores of each query. [at least 1; null: all]"""
    alpha: float | None = None
    """α of α-entmax instead of softmax: 1 is softmax, 2 sparsemax (Peters et al. 2019). [1 to 2; null: softmax]"""
    learn_alpha: bool = False
    """Let each head learn its α, starting at `alpha` (Correia et al. 2019)."""
    span: int | None = None
    """Most positions that a head may look back; each head learns how many it needs (Sukhbaatar et al. 2019). [at least
    1; null: all]
    """
    look_ahead: bool = True
    """The span reaches ahead too, where the network may look ahead."""
    ramp: int = 32
    """Positions that the soft end of a span takes. [at least 1]"""
    span_cost: float = 0.0
    """Loss for each position of the mean span, in nats a target. [0 or more] Raise it for shorter spans."""
    blocks: int | None = None
    """Blocks of keys that each block of queries chooses to read; in encoders, and with no other key of this section.
    [at least 1; null: off]
    """
    block_size: int = 64
    """Positions of a block. [at least 1]"""
    layers: tuple[int, ...] | None = None
    """Layers that are sparse, counted from 0. [null: all]"""

    def __post_init__(self) -> None:
        for name in ("top_k", "span", "ramp", "blocks", "block_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecipeError(f"`{name}` must be at least 1: got {value}")
        if self.alpha is not None and not 1.0 <= self.alpha <= 2.0:
            raise RecipeError(f"`alpha` must lie in [1, 2]: got {self.alpha}")
        if min(self.layers or (0,)) < 0:
            raise RecipeError(f"`layers` must not be negative: got {self.layers}")
        if self.blocks is not None and (self.top_k, self.alpha, self.span) != (None, None, None):
            raise RecipeError("`blocks` stands alone: give no `top_k`, `alpha` or `span` beside it")
        if self.span_cost < 0:
            raise RecipeError(f"`span_cost` must not be negative: got {self.span_cost}")
        if self.learn_alpha and (self.alpha is None or not 1.0 < self.alpha < 2.0):
            raise RecipeError(f"`learn_alpha` needs an `alpha` between 1 and 2 to begin at: got {self.alpha}")


@dataclass(frozen=True)
class NetworkConfig:
    """A network as numbers and choices: which of the stacks it has, and what their one block is made of."""

    architecture: Literal[
        "encoder-decoder", "encoder", "decoder", "recurrent-seq2seq", "recurrent-lm", "elmo", "cbow"
    ] = "encoder-decoder"
    """Arrangement of the network: Transformer encoder-decoder, encoder alone (BERT) or decoder alone (GPT); LSTM or GRU
    with attention, recurrent language model, ELMo, word vectors.
    """
    family: str = ""
    """The released models in whose layout the network can be saved. [empty: none] Presets set it."""
    vocab_size: int = 0
    """Size of the embedding table. [0: the tokenizer's]"""
    d_model: int = 512
    """Width of the vectors between layers. [1 to 262,144; a multiple of `n_heads`] Where no size of the network, preset
    or architecture is written, width, depth and heads fit the amount of data.
    """
    d_ff: int = 2048
    """Width inside the feed-forward sublayers. [1 to 262,144] 4 × `d_model` is usual."""
    n_heads: int = 8
    """Attention heads of a layer. [at least 1]"""
    n_kv_heads: int | None = None
    """Heads of keys and values, each shared by several query heads (grouped-query attention, Ainslie et al. 2023).
    [divides `n_heads`; null: `n_heads`] Fewer make decoding caches smaller.
    """
    d_head: int | None = None
    """Width of a head. [at least 1; null: d_model / n_heads]"""
    n_layers: int = 6
    """Layers of the stack, of the encoder where there are two. [at least 1]"""
    n_decoder_layers: int | None = None
    """Layers of the decoder of an encoder-decoder. [at least 1; null: `n_layers`] Fewer make decoding faster."""
    dropout: float = 0.1
    """Share of each sublayer's output set to 0 in training. [0 to below 1] 0.1 with plenty of data, 0.3 with little."""
    attention_dropout: float = 0.0
    """Share of attention weights set to 0 in training. [0 to below 1]"""
    activation_dropout: float = 0.0
    """Share of the feed-forward's inner values set to 0 in training. [0 to below 1]"""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    """Activation of the feed-forward sublayers."""
    gated: bool = False
    """Multiply the activation by a second product (GLU variants, Shazeer 2020)."""
    bias: bool = True
    """Give the products of attention and feed-forward a bias."""
    attention_scale: float | None = None
    """Factor of the attention scores. [null: 1/√d_head]"""
    norm: Literal["pre", "post"] = "post"
    """Where the norm stands: before each sublayer (pre, trains more easily) or after the residual sum (post, as in the
    paper).
    """
    norm_kind: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm without mean and bias (Zhang & Sennrich 2019)."""
    norm_eps: float = 1e-5
    """Added to the variance before its root is taken. [above 0]"""
    embedding_norm: bool = False
    """Normalise what enters the first layer (BERT)."""
    positions: PositionConfig | tuple[PositionConfig, ...] = PositionConfig()
    """How order enters the network: one scheme, or a list of them that add up."""
    sparse: SparseConfig | None = None
    """How heads learn which links to keep. [null: dense attention]"""
    recurrent: RecurrentConfig | None = None
    """What a recurrent network has besides."""
    elmo: ELMoConfig | None = None
    """What ELMo has besides."""
    cbow: CBOWConfig | None = None
    """What a network of word vectors has besides."""
    max_len: int = 512
    """Longest text, in tokens, where positions are learned. [at least 1]"""
    n_segments: int = 0
    """Kinds of segments that are told apart by an added vector (BERT: 2). [0 or more; encoders]"""
    pooler: bool = False
    """A dense layer with tanh over the first token, which heads may read (BERT; encoders)."""
    heads: tuple[HeadConfig, ...] = ()
    """What is read off the network besides its vectors and the tokens that it writes; names differ."""
    scale_embedding: bool = True
    """Multiply embeddings by √d_model."""
    shared_embeddings: bool = True
    """One embedding table for source and target."""
    tied_embeddings: bool = True
    """Use the embedding table as the output matrix (Press & Wolf 2017)."""
    output_bias: bool = False
    """Give the output logits a bias."""
    scale_output: bool = False
    """Divide the decoder's output by √d_model before the output matrix (T5)."""
    initializer: Literal["xavier", "normal"] = "xavier"
    """First weights: Glorot's uniform distribution, or a normal one of deviation 0.02 (BERT, GPT)."""
    pad_id: int = 0
    """Id of padding. The ids come from the tokenizer; set them only to match a released model."""
    bos_id: int = 2
    """Id of the beginning of a text."""
    eos_id: int = 3
    """Id of the end of a text."""
    unk_id: int = 1
    """Id of an unknown token."""
    start_id: int = 2
    """Id that a decoder starts from."""
    mask_id: int | None = None
    """Id of the mask token. [null: none]"""
    tokenizer_fingerprint: str | None = None
    """Fingerprint of the tokenizer that the network was trained with; written by training."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("d_model", "d_ff", "n_layers", "max_len"):
            if getattr(self, name) < 1:
                raise RecipeError(f"`{name}` must be at least 1: got {getattr(self, name)}")
        if self.n_heads < 1 or (self.d_head is None and self.d_model % self.n_heads):
            raise RecipeError(f"`n_heads` must divide `d_model`: got {self.n_heads} and {self.d_model}")
        if self.d_head is not None and self.d_head < 1:
            raise RecipeError(f"`d_head` must be at least 1: got {self.d_head}")
        self._check_parts()
        if not self.norm_eps > 0:
            raise RecipeError(f"`norm_eps` must be above 0: got {self.norm_eps}")
        if max(self.d_model, self.d_ff) > _WIDEST:
            raise RecipeError(f"`d_model` and `d_ff` may be {_WIDEST:,} at most: got {self.d_model} and {self.d_ff}")
        if self.n_kv_heads is not None and (self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads):
            raise RecipeError(
                f"`n_kv_heads` must divide `n_heads`, or be null for as many: got {self.n_kv_heads} and {self.n_heads}"
            )
        for scheme in self.schemes:
            if max(scheme.heads or (0,)) >= self.n_heads:
                raise RecipeError(f"`positions.heads` count from 0 to {self.n_heads - 1}: got {scheme.heads}")
            if scheme.heads is not None and scheme.kind == "rotary" and self.n_kv_heads not in (None, self.n_heads):
                raise RecipeError(
                    "`positions.heads` of rotary positions need `n_kv_heads` equal to `n_heads`: keys are shared"
                )
            if max(scheme.layers or (0,)) >= max(self.n_layers, self.decoder_layers):
                raise RecipeError(
                    f"`positions.layers` count from 0 to {max(self.n_layers, self.decoder_layers) - 1}: "
                    f"got {scheme.layers}"
                )
        if self.sparse is not None and self.sparse.blocks is not None:
            if self.architecture not in ("encoder", "encoder-decoder"):
                raise RecipeError(f"`sparse.blocks` is for encoders: got architecture {self.architecture!r}")
            added = [scheme.kind for scheme in self.schemes if scheme.kind not in (*ADDED, "rotary")]
            if added or self.attention_dropout:
                what = f"{added[0]} positions" if added else f"`attention_dropout` {self.attention_dropout}"
                raise RecipeError(f"`sparse.blocks` adds nothing to scores and drops no weights: got {what}")
        if self.sparse is not None and max(self.sparse.layers or (0,)) >= self.n_layers:
            raise RecipeError(f"`sparse.layers` count from 0 to {self.n_layers - 1}: got {self.sparse.layers}")
        if self.n_decoder_layers is not None and self.n_decoder_layers < 1:
            raise RecipeError(f"`n_decoder_layers` must be at least 1: got {self.n_decoder_layers}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise RecipeError(f"`{name}` must lie in [0, 1): got {getattr(self, name)}")

    def _check_parts(self) -> None:
        """What one arrangement has and another has not."""
        if self.architecture != "encoder":
            for name in ("pooler", "n_segments"):
                if getattr(self, name):
                    raise RecipeError(f"`{name}` belongs to an encoder: got architecture {self.architecture!r}")
        if self.n_segments < 0:
            raise RecipeError(f"`n_segments` must not be negative: got {self.n_segments}")
        if self.architecture not in ("encoder-decoder", "recurrent-seq2seq") and self.n_decoder_layers is not None:
            raise RecipeError("`n_decoder_layers` belongs to an encoder-decoder; use `n_layers`")
        for name, homes in (
            ("recurrent", ("recurrent-seq2seq", "recurrent-lm")),
            ("elmo", ("elmo",)),
            ("cbow", ("cbow",)),
        ):
            if getattr(self, name) is not None and self.architecture not in homes:
                raise RecipeError(f"`{name}` belongs to architecture {homes[0]}: got {self.architecture!r}")
        self._check_heads()

    def _check_heads(self) -> None:
        """That each head can stand on this architecture under its name."""
        names = ["vocabulary"] if self.writes or self.architecture == "elmo" else []
        for head in self.heads:
            if self.architecture == "cbow":
                raise RecipeError(f"`heads` cannot stand on word vectors alone: got a {head.kind} head")
            if head.kind in ("masked-language-model", "span-boundary") and self.architecture != "encoder":
                raise RecipeError(
                    f"`heads`: a {head.kind} head belongs to an encoder: got architecture {self.architecture!r}"
                )
            if head.name in names:
                raise RecipeError(f"`heads` must have different names: got {head.name!r} twice")
            names.append(head.name)
            if head.side == "decoder" and not self.reads_source:
                raise RecipeError(
                    f"`heads.side` is for networks that read a source and write: got architecture {self.architecture!r}"
                )
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
        if HEAD_KINDS[head.kind] not in ("class", "number"):
            return None
        if head.pooling is not None:
            return head.pooling
        if self.architecture == "encoder":
            return "pooler" if self.pooler else "first"
        return "last" if self.architecture in _LEFT_TO_RIGHT or head.side == "decoder" else "mean"

    @property
    def schemes(self) -> tuple[PositionConfig, ...]:
        """The position schemes that add up; none for kind "none"."""
        given = self.positions if isinstance(self.positions, tuple) else (self.positions,)
        return tuple(scheme for scheme in given if scheme.kind != "none")

    @property
    def head_width(self) -> int:
        """Width of one head, K."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def decoder_layers(self) -> int:
        """Depth of the decoder stack."""
        return self.n_layers if self.n_decoder_layers is None else self.n_decoder_layers


def network_to_dict(config: NetworkConfig) -> dict[str, Any]:
    """The configuration as plain data, lists for tuples: what `config.json` gives back."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(child) for name, child in value.items()}
        return [plain(child) for child in value] if isinstance(value, tuple | list) else value

    found: dict[str, Any] = plain(asdict(config))
    return found
