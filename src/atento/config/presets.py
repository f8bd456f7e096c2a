"""The well-known networks by name, each a configuration of the one stack, with the ids of its released tokenizer.

See docs/notes.md#c16.

Every preset takes changes: `bert_base(n_layers=4, dropout=0.0)`.
"""

from collections.abc import Callable
from typing import Any

from atento.config.encoder_decoder_presets import (
    bart_base as bart_base,
)
from atento.config.encoder_decoder_presets import (
    bart_large as bart_large,
)
from atento.config.encoder_decoder_presets import (
    marian as marian,
)
from atento.config.encoder_decoder_presets import (
    mbart_large_50 as mbart_large_50,
)
from atento.config.encoder_decoder_presets import (
    mt5_small as mt5_small,
)
from atento.config.encoder_decoder_presets import (
    nllb_200_600m as nllb_200_600m,
)
from atento.config.encoder_decoder_presets import (
    pegasus_large as pegasus_large,
)
from atento.config.encoder_decoder_presets import (
    t5_11_base as t5_11_base,
)
from atento.config.encoder_decoder_presets import (
    t5_11_small as t5_11_small,
)
from atento.config.encoder_decoder_presets import (
    t5_base as t5_base,
)
from atento.config.encoder_decoder_presets import (
    t5_large as t5_large,
)
from atento.config.encoder_decoder_presets import (
    t5_small as t5_small,
)
from atento.config.encoder_presets import (
    BASE,
    LARGE,
)
from atento.config.encoder_presets import (
    albert_base as albert_base,
)
from atento.config.encoder_presets import (
    albert_large as albert_large,
)
from atento.config.encoder_presets import (
    bert_base as bert_base,
)
from atento.config.encoder_presets import (
    bert_base_cased as bert_base_cased,
)
from atento.config.encoder_presets import (
    bert_base_pretraining as bert_base_pretraining,
)
from atento.config.encoder_presets import (
    bert_large as bert_large,
)
from atento.config.encoder_presets import (
    bert_tiny as bert_tiny,
)
from atento.config.encoder_presets import (
    deberta_v2_xlarge as deberta_v2_xlarge,
)
from atento.config.encoder_presets import (
    deberta_v3_base as deberta_v3_base,
)
from atento.config.encoder_presets import (
    deberta_v3_large as deberta_v3_large,
)
from atento.config.encoder_presets import (
    distilbert_base as distilbert_base,
)
from atento.config.encoder_presets import (
    electra_base as electra_base,
)
from atento.config.encoder_presets import (
    electra_large as electra_large,
)
from atento.config.encoder_presets import (
    electra_small as electra_small,
)
from atento.config.encoder_presets import (
    modernbert_base as modernbert_base,
)
from atento.config.encoder_presets import (
    modernbert_large as modernbert_large,
)
from atento.config.encoder_presets import (
    mpnet_base as mpnet_base,
)
from atento.config.encoder_presets import (
    roberta_base as roberta_base,
)
from atento.config.encoder_presets import (
    roberta_large as roberta_large,
)
from atento.config.encoder_presets import (
    spanbert_base as spanbert_base,
)
from atento.config.encoder_presets import (
    spanbert_large as spanbert_large,
)
from atento.config.encoder_presets import (
    xlm_roberta_base as xlm_roberta_base,
)
from atento.config.encoder_presets import (
    xlm_roberta_large as xlm_roberta_large,
)
from atento.config.network import NetworkConfig, changed
from atento.config.network_parts import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    MaskConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.positions import PositionConfig
from atento.errors import RecipeError, nearest

_LEARNED = PositionConfig("learned")
_TRANSFORMER = NetworkConfig()
_GPT2 = NetworkConfig(
    architecture="decoder",
    family="gpt2",
    vocab_size=50257,
    feed_forward=FeedForwardConfig(activation="gelu-tanh"),
    attention=AttentionConfig(dropout=0.1),
    embedding=InputConfig(scaled=False),
    ids=SpecialIds(pad=50256, bos=50256, eos=50256, unk=50256, start=50256),
    norm="pre",
    positions=_LEARNED,
    max_len=1024,
    initializer="normal",
)
_LLAMA3 = NetworkConfig(
    architecture="decoder",
    family="llama",
    vocab_size=128256,
    feed_forward=FeedForwardConfig(activation="silu", gated=True, bias=False),
    attention=AttentionConfig(bias=False),
    embedding=InputConfig(scaled=False),
    output=OutputConfig(tied=False),
    ids=SpecialIds(pad=128001, bos=128000, eos=128001, unk=128001, start=128000),
    norm="pre",
    norm_kind="rms",
    positions=PositionConfig("rotary", base=500000.0),
    max_len=8192,
    dropout=0.0,
    initializer="normal",
)
_QWEN: dict[str, Any] = {
    "positions": PositionConfig("rotary", base=1e6),
    "norm_eps": 1e-6,
    "output": {"tied": True},
    "ids": {"pad": 151643, "bos": 151643, "eos": 151643, "unk": 151643, "start": 151643},
    "vocab_size": 151936,
}


def transformer_tiny(**changes: Any) -> NetworkConfig:
    """A small translation model: 128 wide, 2 + 2 layers, for a laptop and a lecture."""
    sizes: dict[str, Any] = {"d_model": 128, "d_ff": 512, "n_heads": 4, "n_layers": 2, "norm": "pre"}
    return changed(_TRANSFORMER, sizes, changes)


def transformer_base(**changes: Any) -> NetworkConfig:
    """Transformer-base of Vaswani et al. 2017, table 3: 512 wide, 6 + 6 layers, 8 heads."""
    return changed(_TRANSFORMER, changes)


def transformer_big(**changes: Any) -> NetworkConfig:
    """Transformer-big of Vaswani et al. 2017, table 3: 1,024 wide, 6 + 6 layers, 16 heads, dropout 0.3."""
    return changed(_TRANSFORMER, {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3}, changes)


def gpt1(**changes: Any) -> NetworkConfig:
    """GPT-1 (Radford et al. 2018): 116,534,784 parameters; norms stand after the sum."""
    ids: dict[str, Any] = {"ids": dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)}
    return changed(
        _GPT2, BASE, ids, {"family": "openai-gpt", "norm": "post", "vocab_size": 40478, "max_len": 512}, changes
    )


def gpt2(**changes: Any) -> NetworkConfig:
    """GPT-2, the small one (Radford et al. 2019): 124,439,808 parameters."""
    return changed(_GPT2, BASE, changes)


def gpt2_medium(**changes: Any) -> NetworkConfig:
    """GPT-2 medium: 354,823,168 parameters."""
    return changed(_GPT2, LARGE, changes)


def llama2_7b(**changes: Any) -> NetworkConfig:
    """Llama 2, 7 B (Touvron et al. 2023): 6,738,415,616 parameters."""
    sizes: dict[str, Any] = {
        "d_model": 4096,
        "d_ff": 11008,
        "n_heads": 32,
        "n_layers": 32,
        "vocab_size": 32000,
        "max_len": 4096,
    }
    ids: dict[str, Any] = {"ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 0, "start": 1}}
    return changed(_LLAMA3, sizes, ids, {"positions": PositionConfig("rotary")}, changes)


def llama3_8b(**changes: Any) -> NetworkConfig:
    """Llama 3, 8 B (Grattafiori et al. 2024): 8,030,261,248 parameters, eight shared heads of keys and values."""
    sizes: dict[str, Any] = {
        "d_model": 4096,
        "d_ff": 14336,
        "n_heads": 32,
        "attention": {"n_kv_heads": 8},
        "n_layers": 32,
    }
    return changed(_LLAMA3, sizes, changes)


def llama3_70b(**changes: Any) -> NetworkConfig:
    """Llama 3, 70 B: 70,553,706,496 parameters."""
    sizes: dict[str, Any] = {
        "d_model": 8192,
        "d_ff": 28672,
        "n_heads": 64,
        "attention": {"n_kv_heads": 8},
        "n_layers": 80,
    }
    return changed(_LLAMA3, sizes, changes)


def mistral_7b(**changes: Any) -> NetworkConfig:
    """Mistral 7 B, version 0.1 (Jiang et al. 2023): 7,241,732,096 parameters; a token sees 4,096, itself among them."""
    sizes: dict[str, Any] = {
        "family": "mistral",
        "d_model": 4096,
        "d_ff": 14336,
        "n_heads": 32,
        "attention": {"n_kv_heads": 8},
        "n_layers": 32,
        "vocab_size": 32000,
        "max_len": 32768,
        "mask": MaskConfig("window", left=4095, right=0),
        "positions": PositionConfig("rotary"),
        "ids": {"pad": 2, "bos": 1, "eos": 2, "unk": 0, "start": 1},
    }
    return changed(_LLAMA3, sizes, changes)


def qwen2_0_5b(**changes: Any) -> NetworkConfig:
    """Qwen2, 0.5 B (Yang et al. 2024): 494,032,768 parameters; queries, keys and values have a bias."""
    sizes: dict[str, Any] = {
        "family": "qwen2",
        "d_model": 896,
        "d_ff": 4864,
        "n_heads": 14,
        "attention": {"n_kv_heads": 2, "bias": True, "output_bias": False},
        "n_layers": 24,
        "max_len": 131072,
    }
    return changed(_LLAMA3, _QWEN, sizes, changes)


def qwen3_0_6b(**changes: Any) -> NetworkConfig:
    """Qwen3, 0.6 B (Yang et al. 2025): 596,049,920 parameters; queries and keys are normalised."""
    sizes: dict[str, Any] = {
        "family": "qwen3",
        "d_model": 1024,
        "d_ff": 3072,
        "n_heads": 16,
        "attention": {"n_kv_heads": 8, "d_head": 128, "norm": True},
        "n_layers": 28,
        "max_len": 40960,
    }
    return changed(_LLAMA3, _QWEN, sizes, changes)


def gemma_2b(**changes: Any) -> NetworkConfig:
    """Gemma, 2 B (Gemma Team 2024): 2,506,172,416 parameters; one head of keys and values for eight of queries."""
    sizes: dict[str, Any] = {
        "family": "gemma",
        "d_model": 2048,
        "d_ff": 16384,
        "n_heads": 8,
        "attention": {"n_kv_heads": 1},
        "feed_forward": {"activation": "gelu-tanh"},
        "embedding": {"scaled": True},
        "output": {"tied": True},
        "n_layers": 18,
        "vocab_size": 256000,
        "norm_kind": "rms-plus-one",
        "norm_eps": 1e-6,
        "positions": PositionConfig("rotary"),
        "ids": {"pad": 0, "bos": 2, "eos": 1, "unk": 3, "start": 2},
    }
    return changed(_LLAMA3, sizes, changes)


_MADE: tuple[Callable[..., NetworkConfig], ...] = (
    transformer_tiny,
    transformer_base,
    transformer_big,
    bert_tiny,
    bert_base,
    bert_base_cased,
    bert_base_pretraining,
    bert_large,
    roberta_base,
    roberta_large,
    xlm_roberta_base,
    xlm_roberta_large,
    distilbert_base,
    electra_small,
    electra_base,
    electra_large,
    mpnet_base,
    deberta_v3_base,
    deberta_v3_large,
    deberta_v2_xlarge,
    modernbert_base,
    modernbert_large,
    albert_base,
    albert_large,
    spanbert_base,
    spanbert_large,
    gpt1,
    gpt2,
    gpt2_medium,
    llama2_7b,
    llama3_8b,
    llama3_70b,
    mistral_7b,
    qwen2_0_5b,
    qwen3_0_6b,
    gemma_2b,
    t5_small,
    t5_base,
    t5_large,
    t5_11_small,
    t5_11_base,
    mt5_small,
    bart_base,
    bart_large,
    mbart_large_50,
    pegasus_large,
    nllb_200_600m,
    marian,
)
PRESETS = {made.__name__.replace("_", "-"): made for made in _MADE}


def preset(name: str, **changes: Any) -> NetworkConfig:
    """The preset of that name with some fields changed.

    Raises:
        RecipeError: no such preset, or no such field; the message lists the known ones.
    """
    if name not in PRESETS:
        raise RecipeError(f"unknown preset {name!r}{nearest(name, list(PRESETS))}")
    return PRESETS[name](**changes)
