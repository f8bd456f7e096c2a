"""The presets of released encoders: BERT and the families after it, each a configuration of the one stack."""

from atento.config.presets.preset import Preset
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import (
    AttentionConfig,
    ConvolutionConfig,
    FeedForwardConfig,
    InputConfig,
    MaskConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig

BASE: dict[str, object] = {"d_model": 768, "d_ff": 3072, "n_heads": 12, "n_layers": 12}
LARGE: dict[str, object] = {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "n_layers": 24}
BYTE_BPE_IDS: dict[str, int] = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "start": 0}  # fairseq's dictionary

_BERT_HEADS = (HeadConfig("masked-language-model"), HeadConfig("next-sentence", dropout=0.0))

_BERT = NetworkConfig(
    architecture="encoder",
    family="bert",
    vocab_size=30522,
    feed_forward=FeedForwardConfig(activation="gelu"),
    embedding=InputConfig(norm=True, segments=2, scaled=False),
    attention=AttentionConfig(dropout=0.1),
    ids=SpecialIds(bos=101, eos=102, unk=100, start=101, mask=103),
    norm_eps=1e-12,
    positions=PositionConfig("learned"),
    pooler=True,
    initializer="normal",
)
_ROBERTA = changed(
    _BERT,
    family="roberta",
    vocab_size=50265,
    norm_eps=1e-5,
    positions=PositionConfig("learned", shift=2, real_only=True),
    embedding={"segments": 1},
    ids=BYTE_BPE_IDS | {"mask": 50264},
)
_DEBERTA = changed(
    _BERT,
    family="deberta-v2",
    vocab_size=128100,
    embedding={"segments": 0},
    ids={"pad": 0, "bos": 1, "eos": 2, "unk": 3, "start": 1, "mask": 128000},
    norm_eps=1e-7,
    positions=PositionConfig("disentangled", max_distance=512, n_buckets=256, norm=True),
    pooler=False,
)
_MODERNBERT = NetworkConfig(
    architecture="encoder",
    family="modernbert",
    vocab_size=50368,
    dropout=0.0,
    attention=AttentionConfig(bias=False),
    feed_forward=FeedForwardConfig(activation="gelu", gated=True, bias=False),
    embedding=InputConfig(norm=True, scaled=False),
    ids=SpecialIds(pad=50283, unk=50280, bos=50281, eos=50282, start=50281, mask=50284),
    norm="pre",
    norm_bias=False,
    first_norm=False,
    positions=PositionConfig("rotary"),
    max_len=8192,
    initializer="normal",
)
_ALBERT = changed(
    _BERT,
    BASE,
    family="albert",
    vocab_size=30000,
    shared_layers=True,
    dropout=0.0,
    attention={"dropout": 0.0},
    feed_forward={"activation": "gelu-tanh"},
    embedding={"width": 128},
    ids={"pad": 0, "unk": 1, "bos": 2, "eos": 3, "start": 2, "mask": 4},
)


def _modernbert_layers(config: NetworkConfig) -> dict[str, object]:
    """The layers with a window, and the positions of both kinds."""
    local = tuple(n for n in range(config.n_layers) if n % 3)
    return {
        "positions": (
            PositionConfig("rotary", base=160000.0, layers=tuple(range(0, config.n_layers, 3))),
            *([PositionConfig("rotary", base=10000.0, layers=local)] if local else []),
        ),
        "mask": MaskConfig("window", left=64, right=64, layers=local) if local else None,
    }


PRESETS = {
    "bert-tiny": Preset(
        "BERT 128 wide and 2 layers deep (Turc et al. 2019), for a laptop and a lecture.",
        _BERT,
        {"d_model": 128, "d_ff": 512, "n_heads": 2, "n_layers": 2},
    ),
    "bert-base": Preset(
        "BERT-base, lower-cased (Devlin et al. 2019): 109,482,240 parameters with its pooler.", _BERT, BASE
    ),
    "bert-base-cased": Preset(
        "BERT-base, cased: 108,310,272 parameters with its pooler.", _BERT, BASE, {"vocab_size": 28996}
    ),
    "bert-base-pretraining": Preset(
        "BERT-base with both heads it was pretrained with: 110,106,428 parameters.", _BERT, BASE, {"heads": _BERT_HEADS}
    ),
    "bert-large": Preset("BERT-large, lower-cased: 335,141,888 parameters with its pooler.", _BERT, LARGE),
    "roberta-base": Preset("RoBERTa-base (Liu et al. 2019): 124,645,632 parameters with its pooler.", _ROBERTA, BASE),
    "roberta-large": Preset("RoBERTa-large: 355,359,744 parameters with its pooler.", _ROBERTA, LARGE),
    "xlm-roberta-base": Preset(
        "XLM-R base (Conneau et al. 2020): 278,043,648 parameters with its pooler.",
        _ROBERTA,
        BASE,
        {"family": "xlm-roberta", "vocab_size": 250002, "ids": {"mask": 250001}},
    ),
    "xlm-roberta-large": Preset(
        "XLM-R large: 559,890,432 parameters with its pooler.",
        _ROBERTA,
        LARGE,
        {"family": "xlm-roberta", "vocab_size": 250002, "ids": {"mask": 250001}},
    ),
    "distilbert-base": Preset(
        "DistilBERT-base, lower-cased (Sanh et al. 2019): 66,362,880 parameters.",
        _BERT,
        BASE,
        {"family": "distilbert", "n_layers": 6, "pooler": False, "embedding": {"segments": 0}},
    ),
    "electra-small": Preset(
        "ELECTRA-small (Clark et al. 2020): 13,483,008 parameters; embeddings 128 wide, layers 256.",
        _BERT,
        {"d_model": 256, "d_ff": 1024, "n_heads": 4, "n_layers": 12, "embedding": {"width": 128}},
        {"family": "electra", "pooler": False},
    ),
    "electra-base": Preset(
        "ELECTRA-base: 108,891,648 parameters.", _BERT, BASE, {"family": "electra", "pooler": False}
    ),
    "electra-large": Preset(
        "ELECTRA-large: 334,092,288 parameters.", _BERT, LARGE, {"family": "electra", "pooler": False}
    ),
    "mpnet-base": Preset(
        "MPNet-base (Song et al. 2020): 109,486,464 parameters with its pooler.",
        _ROBERTA,
        BASE,
        {"family": "mpnet", "positions": (*_ROBERTA.schemes, PositionConfig("t5", max_distance=128))},
        {"vocab_size": 30527, "embedding": {"segments": 0}, "ids": {"mask": 30526}},
    ),
    "deberta-v3-base": Preset(
        "DeBERTa v3 base (He et al. 2023): 183,831,552 parameters, of which the vocabulary has 98 million.",
        _DEBERTA,
        BASE,
    ),
    "deberta-v3-large": Preset("DeBERTa v3 large: 434,012,160 parameters.", _DEBERTA, LARGE),
    "deberta-v2-xlarge": Preset(
        "DeBERTa v2 xlarge (He et al. 2021), which Albertina 900M has: 884,593,152 parameters, with a convolution.",
        _DEBERTA,
        {"d_model": 1536, "d_ff": 6144, "n_heads": 24, "n_layers": 24},
        {"convolution": ConvolutionConfig(3, "gelu")},
    ),
    "modernbert-base": Preset(
        "ModernBERT-base (Warner et al. 2024): 149,014,272 parameters; every third layer sees the whole text.",
        _MODERNBERT,
        {"d_model": 768, "d_ff": 1152, "n_heads": 12, "n_layers": 22},
        sized=_modernbert_layers,
    ),
    "modernbert-large": Preset(
        "ModernBERT-large: 394,781,696 parameters.",
        _MODERNBERT,
        {"d_model": 1024, "d_ff": 2624, "n_heads": 16, "n_layers": 28},
        sized=_modernbert_layers,
    ),
    "albert-base": Preset(
        "ALBERT-base, version 2 (Lan et al. 2020): 11,683,584 parameters with its pooler; twelve layers share theirs.",
        _ALBERT,
    ),
    "albert-large": Preset("ALBERT-large, version 2: 17,683,968 parameters with its pooler.", _ALBERT, LARGE),
    "spanbert-base": Preset(
        "SpanBERT-base, cased (Joshi et al. 2020): BERT's network with 108,310,272 parameters; its objective differs.",
        _BERT,
        BASE,
        {"vocab_size": 28996},
    ),
    "spanbert-large": Preset("SpanBERT-large, cased.", _BERT, LARGE, {"vocab_size": 28996}),
}
