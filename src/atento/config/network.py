"""What a network is made of: one frozen dataclass for every family, and the presets that name the well-known ones."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from atento.errors import RecipeError, nearest


@dataclass(frozen=True)
class PositionConfig:
    """How order enters the network (spec rows B1 ...)."""

    kind: Literal["sinusoidal", "none"] = "sinusoidal"
    base: float = 10000.0


@dataclass(frozen=True)
class NetworkConfig:
    """An encoder-decoder Transformer as numbers and choices; the stack is built from this alone.

    `d_head` None means d_model / n_heads; `n_decoder_layers` None means n_layers;
    `attention_dropout` and `activation_dropout` stand beside the residual `dropout`.
    """

    architecture: Literal["encoder-decoder"] = "encoder-decoder"
    vocab_size: int = 0  # 0: taken from the tokenizer
    d_model: int = 512
    d_ff: int = 2048
    n_heads: int = 8
    n_layers: int = 6
    n_decoder_layers: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: Literal["relu", "gelu"] = "relu"
    norm: Literal["pre", "post"] = "post"
    norm_eps: float = 1e-5
    positions: PositionConfig = PositionConfig()
    max_len: int = 512
    scale_embedding: bool = True
    tied_embeddings: bool = True
    initializer: Literal["xavier", "normal"] = "xavier"
    pad_id: int = 0
    bos_id: int = 2
    eos_id: int = 3
    unk_id: int = 1
    start_id: int = 2
    tokenizer_fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.n_heads < 1 or self.d_model % self.n_heads:
            raise RecipeError(f"`n_heads` must divide `d_model`: got {self.n_heads} and {self.d_model}")
        for name in ("d_model", "d_ff", "n_layers", "max_len"):
            if getattr(self, name) < 1:
                raise RecipeError(f"`{name}` must be at least 1: got {getattr(self, name)}")
        if self.n_decoder_layers is not None and self.n_decoder_layers < 1:
            raise RecipeError(f"`n_decoder_layers` must be at least 1: got {self.n_decoder_layers}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise RecipeError(f"`{name}` must lie in [0, 1): got {getattr(self, name)}")

    @property
    def d_head(self) -> int:
        """Width of one head, K."""
        return self.d_model // self.n_heads

    @property
    def decoder_layers(self) -> int:
        """Depth of the decoder stack."""
        return self.n_layers if self.n_decoder_layers is None else self.n_decoder_layers


def transformer_tiny(**changes: Any) -> NetworkConfig:
    """A small translation model: 128 wide, 2 + 2 layers, for a laptop and a lecture."""
    return replace(NetworkConfig(d_model=128, d_ff=512, n_heads=4, n_layers=2, norm="pre"), **changes)


def transformer_base(**changes: Any) -> NetworkConfig:
    """Transformer-base of Vaswani et al. 2017, table 3: 512 wide, 6 + 6 layers, 8 heads."""
    return replace(NetworkConfig(), **changes)


PRESETS = {"transformer-tiny": transformer_tiny, "transformer-base": transformer_base}


def preset(name: str, **changes: Any) -> NetworkConfig:
    """The preset of that name with some fields changed.

    Raises:
        RecipeError: no such preset, or no such field; the message lists the known ones.
    """
    if name not in PRESETS:
        raise RecipeError(f"unknown preset {name!r}{nearest(name, list(PRESETS))}")
    known = [field.name for field in fields(NetworkConfig)]
    for key in changes:
        if key not in known:
            raise RecipeError(f"unknown network key {key!r}{nearest(key, known)}")
    return PRESETS[name](**changes)


def network_to_dict(config: NetworkConfig) -> dict[str, Any]:
    """The configuration as plain data, for `config.json`."""
    return asdict(config)
