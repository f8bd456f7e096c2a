"""How order enters a network: position schemes, and rotations slowed down for longer texts."""

from dataclasses import dataclass
from typing import Annotated, Literal

from atento.base.errors import RecipeError
from atento.config.literals import ABOVE_0, ABOVE_0_TO_1, AT_LEAST_1, Count, Natural, Section

ADDED = ("sinusoidal", "learned")  # schemes that add to the input; the others act inside self-attention


@dataclass(frozen=True)
class StretchConfig(Section):
    """Rotations made `factor` times slower for texts longer than those of the training (`attention.positions.Stretch`).

    With `trained_len`, only those that turn fewer than `low` times in that many positions; up to `high` times in part.
    `{factor: 4, trained_len: 32768, high: 32, yarn: true}` is YaRN (Peng et al. 2024).
    """

    factor: Annotated[float, AT_LEAST_1] = 1.0
    """Factor by which rotations are slower. [at least 1]"""
    trained_len: Count | None = None
    """Length in training: only rotations with few turns in it are slowed down. [at least 1; null: all alike]"""
    low: float = 1.0
    """Rotations with fewer turns in `trained_len` are slowed down fully. [above 0, below `high`]"""
    high: float = 4.0
    """Rotations with more turns in `trained_len` are unchanged. [4 in Llama 3.1, 32 in YaRN]"""
    yarn: bool = False
    """Between `low` and `high`, go by the place among the rotations, and scale queries and keys. [true: with
    `trained_len`]
    """
    attention_factor: float | None = None
    """Factor of rotated queries and keys, for `yarn` and `long`. [above 0; null: 0.1 ln(factor) + 1 for `yarn`, else 1]
    """
    dynamic: bool = False
    """Dynamic NTK: raise the base for texts beyond `trained_len`. [true: with `trained_len`]"""
    short: tuple[float, ...] | None = None
    """Divisors of each rotation for texts up to `trained_len` (LongRoPE). [above 0, half as many as rotated dimensions;
    with `long`]
    """
    long: tuple[float, ...] | None = None
    """Divisors of each rotation for longer texts. [as `short`]"""

    def _check(self) -> None:
        if (self.short is None) != (self.long is None):
            raise RecipeError("`short` and `long` need one another: got only one of them")
        kinds = [name for name in ("yarn", "dynamic", "long") if getattr(self, name)]  # by the length of a text
        if len(kinds) > 1:
            raise RecipeError(f"`stretch` has one kind: got {' and '.join(kinds)}")
        if kinds and self.trained_len is None:
            raise RecipeError(f"`{kinds[0]}` needs `trained_len`, the length that the model was trained with: got null")
        for name in ("short", "long"):
            for value in getattr(self, name) or ():
                if not 0 < value < float("inf"):
                    raise RecipeError(f"`{name}` must hold numbers above 0: got {value}")
        if self.attention_factor is not None and not ((self.yarn or self.long) and self.attention_factor > 0):
            rule = "must be above 0 and needs `yarn` or `long`"
            raise RecipeError(f"`attention_factor` {rule}: got {self.attention_factor}")
        if not 0 < self.low < self.high:
            raise RecipeError(f"`low` must be above 0 and below `high`: got {self.low} and {self.high}")


@dataclass(frozen=True)
class PositionConfig(Section, choices="positions."):
    """One way in which order enters the network; several of them add up (docs/notes.md#b1, #b2, #b4, #b5, #b7)."""

    kind: Literal["sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "matrix", "disentangled", "none"] = (
        "sinusoidal"
    )
    """Added to each token: `sinusoidal`, `learned`; rotated queries and keys: `rotary`; added to scores: `shaw`, `t5`,
    `alibi`, `matrix`, `disentangled` (DeBERTa); or `none`. rotary, t5 and alibi suit longer texts than in training.
    """
    layers: tuple[int, ...] | None = None
    """Layers with the scheme, from 0. [null: all]"""
    heads: tuple[int, ...] | None = None
    """Heads with the scheme, from 0; not for sinusoidal and learned. [null: all]"""
    gate: bool = False
    """Multiply the scheme by a learned weight; not for rotary."""
    shared: bool | None = None
    """One table for all layers. [null: t5 and disentangled yes, others no]"""
    base: Annotated[float, ABOVE_0] = 10000.0
    """Base of the wavelengths of sinusoids and rotations; larger for long texts (Llama 3: 500,000). [above 0]"""
    fraction: Annotated[float, ABOVE_0_TO_1] = 1.0
    """Part of each head that is rotated. [above 0, up to 1]"""
    interleaved: bool | None = None
    """Pair neighbouring dimensions instead of the two halves. [null: sinusoids yes, rotations no]"""
    max_distance: Count | None = None
    """Maximum distance; larger ones equal it. [at least 1; null: 16 for shaw, 512 for disentangled, 128 for others]"""
    n_buckets: int = 32
    """Buckets of distances of t5, or of a side of disentangled (DeBERTa v2: 256). [at least 4; disentangled: 0 for a
    vector for each distance]
    """
    values: bool = True
    """For shaw: add a second table to the values."""
    norm: bool = False
    """Normalise the vectors of disentangled positions (DeBERTa v2 and v3)."""
    scaled: bool = True
    """For matrix: divide it by √d_head like the scores."""
    shift: Natural = 0
    """Unused rows at the start of a learned table: 2 in models of fairseq. [0 or more]"""
    real_only: bool = False
    """Padding on the left does not shift positions (RoBERTa)."""
    stretch: StretchConfig | None = None
    """Slow down rotations for texts longer than in training."""
    longer: Literal["grown", "interpolated"] = "grown"
    """How a learned table of a shorter model becomes longer: `grown` by new rows, or `interpolated`."""

    def _check(self) -> None:
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
        if self.n_buckets < 4 and not (self.n_buckets == 0 and self.kind == "disentangled"):
            raise RecipeError(f"`n_buckets` must be at least 4: got {self.n_buckets}")
        if self.kind == "disentangled":
            if self.gate or self.heads is not None:
                raise RecipeError(f"`{'gate' if self.gate else 'heads'}` is not supported for disentangled positions")
            if self.n_buckets > (most := self.max_distance or 512):
                rule = f"`n_buckets` of disentangled positions may be `max_distance`, {most}, at most"
                raise RecipeError(f"{rule}: got {self.n_buckets}")
        # 128: T5's own, where none is written
        if self.kind == "t5" and (self.max_distance or 128) <= self.n_buckets // 2:
            raise RecipeError(f"`max_distance` of t5 must be above half of `n_buckets`: got {self.max_distance or 128}")
