"""The presets of released encoder-decoders: T5, BART, Marian and their relatives, configurations of the one stack."""

from dataclasses import replace

from atento.config.presets.encoders import BASE, BYTE_BPE_IDS, LARGE
from atento.config.presets.preset import Preset
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig

_SHIFTED = PositionConfig("learned", shift=2)  # fairseq counts positions from 2

_T5 = NetworkConfig(
    family="t5",
    vocab_size=32128,
    attention=AttentionConfig(d_head=64, bias=False, scale=1.0, dropout=0.1),
    feed_forward=FeedForwardConfig(bias=False, dropout=0.1),
    embedding=InputConfig(scaled=False),
    output=OutputConfig(scaled=True),
    ids=SpecialIds(pad=0, bos=0, eos=1, unk=2, start=0),
    norm="pre",
    norm_kind="rms",
    norm_eps=1e-6,
    positions=PositionConfig("t5", max_distance=128),
)
_T5_11 = changed(_T5, feed_forward={"activation": "gelu-tanh", "gated": True}, output={"tied": False, "scaled": False})
_MT5 = replace(_T5_11, family="mt5", vocab_size=250112)
_BART = NetworkConfig(
    family="bart",
    vocab_size=50265,
    feed_forward=FeedForwardConfig(activation="gelu"),
    embedding=InputConfig(norm=True, scaled=False),
    output=OutputConfig(bias=True),
    ids=SpecialIds(**BYTE_BPE_IDS | {"start": 2, "mask": 50264}),
    positions=_SHIFTED,
    max_len=1024,
    initializer="normal",
)
_MARIAN = NetworkConfig(
    family="marian",
    vocab_size=58101,
    feed_forward=FeedForwardConfig(activation="silu"),
    output=OutputConfig(bias=True),
    ids=SpecialIds(pad=58100, bos=0, eos=0, unk=1, start=58100),
    positions=PositionConfig("sinusoidal", interleaved=False),
    initializer="normal",
)
_PLAIN_INPUTS: dict[str, object] = {  # of Pegasus and M2M-100, beside BART
    "norm": "pre",
    "feed_forward": {"activation": "relu"},
    "embedding": {"norm": False, "scaled": True},
}


def _fairseq_positions(config: NetworkConfig) -> dict[str, object]:
    """Sinusoids whose last wavelength is that of 10,000 itself."""
    half = config.d_model // 2
    base = 10000.0 ** (half / max(1, half - 1))
    return {"positions": PositionConfig("sinusoidal", interleaved=False, base=base, shift=2, real_only=True)}


PRESETS = {
    "t5-small": Preset("T5-small (Raffel et al. 2020): 60,506,624 parameters.", _T5),
    "t5-base": Preset("T5-base: 222,903,552 parameters.", _T5, BASE),
    "t5-large": Preset("T5-large: 737,668,096 parameters.", _T5, LARGE),
    "t5-11-small": Preset(
        "T5 1.1 small: gated, with an output matrix of its own; 76,961,152 parameters.",
        _T5_11,
        {"d_ff": 1024, "n_heads": 6, "n_layers": 8},
    ),
    "t5-11-base": Preset("T5 1.1 base: 247,577,856 parameters.", _T5_11, BASE, {"d_ff": 2048}),
    "mt5-small": Preset(
        "mT5-small (Xue et al. 2021): T5 1.1 with a vocabulary for a hundred languages; 300,176,768 parameters.",
        _MT5,
        {"d_ff": 1024, "n_heads": 6, "n_layers": 8},
    ),
    "bart-base": Preset("BART-base (Lewis et al. 2020).", _BART, BASE, {"n_layers": 6}),
    "bart-large": Preset("BART-large.", _BART, LARGE, {"n_layers": 12}),
    "mbart-large-50": Preset(
        "mBART-50, large (Tang et al. 2020): BART-large with norms before the sublayers, for fifty languages.",
        _BART,
        LARGE,
        {"family": "mbart", "norm": "pre", "vocab_size": 250054, "n_layers": 12},
        {"embedding": {"scaled": True}, "ids": {"mask": None}},
    ),
    "pegasus-large": Preset(
        "PEGASUS-large (Zhang et al. 2020): sixteen layers a side, sinusoidal positions.",
        _BART,
        LARGE,
        _PLAIN_INPUTS
        | {"family": "pegasus", "n_layers": 16, "positions": PositionConfig("sinusoidal", interleaved=False)},
        {"vocab_size": 96103, "ids": {"pad": 0, "bos": 1, "eos": 1, "unk": 105, "start": 0, "mask": None}},
    ),
    "nllb-200-600m": Preset(
        "NLLB-200, distilled to 600 M (NLLB Team 2022), M2M-100's network: 615,073,792 parameters.",
        _BART,
        LARGE,
        _PLAIN_INPUTS | {"family": "m2m_100", "n_layers": 12, "output": {"bias": False}},
        {"vocab_size": 256206, "ids": {"mask": None}},
        sized=_fairseq_positions,
    ),
    "marian": Preset(
        "Transformer-base as in the OPUS-MT models (Tiedemann & Thottingal 2020), with the vocabulary of en-de.",
        _MARIAN,
    ),
}
