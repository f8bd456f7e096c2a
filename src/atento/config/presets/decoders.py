"""The presets of the Transformer of Vaswani et al. and of released decoders, configurations of the one stack."""

from atento.config.presets.encoders import BASE, LARGE
from atento.config.presets.preset import Preset
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    MaskConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig

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
_QWEN: dict[str, object] = {
    "positions": PositionConfig("rotary", base=1e6),
    "norm_eps": 1e-6,
    "output": {"tied": True},
    "ids": {"pad": 151643, "bos": 151643, "eos": 151643, "unk": 151643, "start": 151643},
    "vocab_size": 151936,
}

TRANSFORMERS = {
    "transformer-tiny": Preset(
        "A small translation model: 128 wide, 2 + 2 layers, for a laptop and a lecture.",
        _TRANSFORMER,
        {"d_model": 128, "d_ff": 512, "n_heads": 4, "n_layers": 2, "norm": "pre"},
    ),
    "transformer-base": Preset(
        "Transformer-base of Vaswani et al. 2017, table 3: 512 wide, 6 + 6 layers, 8 heads.", _TRANSFORMER
    ),
    "transformer-big": Preset(
        "Transformer-big of Vaswani et al. 2017, table 3: 1,024 wide, 6 + 6 layers, 16 heads, dropout 0.3.",
        _TRANSFORMER,
        {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3},
    ),
}
PRESETS = {
    "gpt1": Preset(
        "GPT-1 (Radford et al. 2018): 116,534,784 parameters; norms stand after the sum.",
        _GPT2,
        BASE,
        {"ids": dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)},
        {"family": "openai-gpt", "norm": "post", "vocab_size": 40478, "max_len": 512},
    ),
    "gpt2": Preset("GPT-2, the small one (Radford et al. 2019): 124,439,808 parameters.", _GPT2, BASE),
    "gpt2-medium": Preset("GPT-2 medium: 354,823,168 parameters.", _GPT2, LARGE),
    "llama2-7b": Preset(
        "Llama 2, 7 B (Touvron et al. 2023): 6,738,415,616 parameters.",
        _LLAMA3,
        {"d_model": 4096, "d_ff": 11008, "n_heads": 32, "n_layers": 32, "vocab_size": 32000, "max_len": 4096},
        {"ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 0, "start": 1}},
        {"positions": PositionConfig("rotary")},
    ),
    "llama3-8b": Preset(
        "Llama 3, 8 B (Grattafiori et al. 2024): 8,030,261,248 parameters, eight shared heads of keys and values.",
        _LLAMA3,
        {"d_model": 4096, "d_ff": 14336, "n_heads": 32, "attention": {"n_kv_heads": 8}, "n_layers": 32},
    ),
    "llama3-70b": Preset(
        "Llama 3, 70 B: 70,553,706,496 parameters.",
        _LLAMA3,
        {"d_model": 8192, "d_ff": 28672, "n_heads": 64, "attention": {"n_kv_heads": 8}, "n_layers": 80},
    ),
    "mistral-7b": Preset(
        "Mistral 7 B, version 0.1 (Jiang et al. 2023): 7,241,732,096 parameters; a token sees 4,096 with itself.",
        _LLAMA3,
        {"d_model": 4096, "d_ff": 14336, "n_heads": 32, "attention": {"n_kv_heads": 8}, "n_layers": 32},
        {"family": "mistral", "mask": MaskConfig("window", left=4095, right=0), "positions": PositionConfig("rotary")},
        {"vocab_size": 32000, "max_len": 32768, "ids": {"pad": 2, "bos": 1, "eos": 2, "unk": 0, "start": 1}},
    ),
    "qwen2-0-5b": Preset(
        "Qwen2, 0.5 B (Yang et al. 2024): 494,032,768 parameters; queries, keys and values have a bias.",
        _LLAMA3,
        _QWEN,
        {"family": "qwen2", "d_model": 896, "d_ff": 4864, "n_heads": 14, "n_layers": 24, "max_len": 131072},
        {"attention": {"n_kv_heads": 2, "bias": True, "output_bias": False}},
    ),
    "qwen3-0-6b": Preset(
        "Qwen3, 0.6 B (Yang et al. 2025): 596,049,920 parameters; queries and keys are normalised.",
        _LLAMA3,
        _QWEN,
        {"family": "qwen3", "d_model": 1024, "d_ff": 3072, "n_heads": 16, "n_layers": 28, "max_len": 40960},
        {"attention": {"n_kv_heads": 8, "d_head": 128, "norm": True}},
    ),
    "gemma-2b": Preset(
        "Gemma, 2 B (Gemma Team 2024): 2,506,172,416 parameters; one head of keys and values for eight of queries.",
        _LLAMA3,
        {"d_model": 2048, "d_ff": 16384, "n_heads": 8, "attention": {"n_kv_heads": 1}, "n_layers": 18},
        {"family": "gemma", "feed_forward": {"activation": "gelu-tanh"}, "positions": PositionConfig("rotary")},
        {"norm_kind": "rms-plus-one", "norm_eps": 1e-6, "embedding": {"scaled": True}, "output": {"tied": True}},
        {"vocab_size": 256000, "ids": {"pad": 0, "bos": 2, "eos": 1, "unk": 3, "start": 2}},
    ),
}
