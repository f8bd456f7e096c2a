"""The presets of released encoders: BERT and the families after it, each a configuration of the one stack."""

from typing import Any

from atento.config.heads import HeadConfig
from atento.config.network import NetworkConfig, changed
from atento.config.network_parts import (
    AttentionConfig,
    ConvolutionConfig,
    FeedForwardConfig,
    InputConfig,
    MaskConfig,
    SpecialIds,
)
from atento.config.positions import PositionConfig

BASE: dict[str, Any] = {"d_model": 768, "d_ff": 3072, "n_heads": 12, "n_layers": 12}
LARGE: dict[str, Any] = {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "n_layers": 24}
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


def bert_tiny(**changes: Any) -> NetworkConfig:
    """BERT 128 wide and 2 layers deep (Turc et al. 2019), for a laptop and a lecture."""
    return changed(_BERT, {"d_model": 128, "d_ff": 512, "n_heads": 2, "n_layers": 2}, changes)


def bert_base(**changes: Any) -> NetworkConfig:
    """BERT-base, lower-cased (Devlin et al. 2019): 109,482,240 parameters with its pooler."""
    return changed(_BERT, BASE, changes)


def bert_base_cased(**changes: Any) -> NetworkConfig:
    """BERT-base, cased: 108,310,272 parameters with its pooler."""
    return changed(_BERT, BASE, {"vocab_size": 28996}, changes)


def bert_base_pretraining(**changes: Any) -> NetworkConfig:
    """BERT-base with both heads it was pretrained with: 110,106,428 parameters."""
    return changed(_BERT, BASE, {"heads": _BERT_HEADS}, changes)


def bert_large(**changes: Any) -> NetworkConfig:
    """BERT-large, lower-cased: 335,141,888 parameters with its pooler."""
    return changed(_BERT, LARGE, changes)


def roberta_base(**changes: Any) -> NetworkConfig:
    """RoBERTa-base (Liu et al. 2019): 124,645,632 parameters with its pooler."""
    return changed(_ROBERTA, BASE, changes)


def roberta_large(**changes: Any) -> NetworkConfig:
    """RoBERTa-large: 355,359,744 parameters with its pooler."""
    return changed(_ROBERTA, LARGE, changes)


def xlm_roberta_base(**changes: Any) -> NetworkConfig:
    """XLM-R base (Conneau et al. 2020): 278,043,648 parameters with its pooler."""
    return changed(_ROBERTA, BASE, {"family": "xlm-roberta", "vocab_size": 250002, "ids": {"mask": 250001}}, changes)


def xlm_roberta_large(**changes: Any) -> NetworkConfig:
    """XLM-R large: 559,890,432 parameters with its pooler."""
    return changed(_ROBERTA, LARGE, {"family": "xlm-roberta", "vocab_size": 250002, "ids": {"mask": 250001}}, changes)


def distilbert_base(**changes: Any) -> NetworkConfig:
    """DistilBERT-base, lower-cased (Sanh et al. 2019): 66,362,880 parameters."""
    return changed(
        _BERT, BASE, {"family": "distilbert", "n_layers": 6, "pooler": False, "embedding": {"segments": 0}}, changes
    )


def electra_small(**changes: Any) -> NetworkConfig:
    """ELECTRA-small (Clark et al. 2020): 13,483,008 parameters; embeddings 128 wide, layers 256."""
    sizes: dict[str, Any] = {"d_model": 256, "d_ff": 1024, "n_heads": 4, "n_layers": 12, "embedding": {"width": 128}}
    return changed(_BERT, sizes, {"family": "electra", "pooler": False}, changes)


def electra_base(**changes: Any) -> NetworkConfig:
    """ELECTRA-base: 108,891,648 parameters."""
    return changed(_BERT, BASE, {"family": "electra", "pooler": False}, changes)


def electra_large(**changes: Any) -> NetworkConfig:
    """ELECTRA-large: 334,092,288 parameters."""
    return changed(_BERT, LARGE, {"family": "electra", "pooler": False}, changes)


def mpnet_base(**changes: Any) -> NetworkConfig:
    """MPNet-base (Song et al. 2020): 109,486,464 parameters with its pooler."""
    positions = (*_ROBERTA.schemes, PositionConfig("t5", max_distance=128))
    rest: dict[str, Any] = {"vocab_size": 30527, "embedding": {"segments": 0}, "ids": {"mask": 30526}}
    return changed(_ROBERTA, BASE, {"family": "mpnet", "positions": positions}, rest, changes)


def deberta_v3_base(**changes: Any) -> NetworkConfig:
    """DeBERTa v3 base (He et al. 2023): 183,831,552 parameters, of which the vocabulary has 98 million."""
    return changed(_DEBERTA, BASE, changes)


def deberta_v3_large(**changes: Any) -> NetworkConfig:
    """DeBERTa v3 large: 434,012,160 parameters."""
    return changed(_DEBERTA, LARGE, changes)


def deberta_v2_xlarge(**changes: Any) -> NetworkConfig:
    """DeBERTa v2 xlarge (He et al. 2021), which Albertina 900M has: 884,593,152 parameters, with a convolution."""
    sizes: dict[str, Any] = {"d_model": 1536, "d_ff": 6144, "n_heads": 24, "n_layers": 24}
    return changed(_DEBERTA, sizes, {"convolution": ConvolutionConfig(3, "gelu")}, changes)


def albert_base(**changes: Any) -> NetworkConfig:
    """ALBERT-base, version 2 (Lan et al. 2020): 11,683,584 parameters with its pooler; twelve layers share theirs."""
    return changed(_ALBERT, changes)


def albert_large(**changes: Any) -> NetworkConfig:
    """ALBERT-large, version 2: 17,683,968 parameters with its pooler."""
    return changed(_ALBERT, LARGE, changes)


def modernbert_base(**changes: Any) -> NetworkConfig:
    """ModernBERT-base (Warner et al. 2024): 149,014,272 parameters; every third layer sees the whole text."""
    return _modernbert({"d_model": 768, "d_ff": 1152, "n_heads": 12, "n_layers": 22}, changes)


def modernbert_large(**changes: Any) -> NetworkConfig:
    """ModernBERT-large: 394,781,696 parameters."""
    return _modernbert({"d_model": 1024, "d_ff": 2624, "n_heads": 16, "n_layers": 28}, changes)


def _modernbert(sizes: dict[str, Any], changes: dict[str, Any]) -> NetworkConfig:
    """ModernBERT of those sizes; its layers with a window are those of the changed depth."""
    depth = changes.get("n_layers", sizes["n_layers"])
    local = tuple(n for n in range(depth) if n % 3)
    layers: dict[str, Any] = {
        "positions": (
            PositionConfig("rotary", base=160000.0, layers=tuple(range(0, depth, 3))),
            *([PositionConfig("rotary", base=10000.0, layers=local)] if local else []),
        ),
        "mask": MaskConfig("window", left=64, right=64, layers=local) if local else None,
    }
    return changed(_MODERNBERT, sizes, layers, changes)


def spanbert_base(**changes: Any) -> NetworkConfig:
    """SpanBERT-base, cased (Joshi et al. 2020): BERT's network with 108,310,272 parameters; its objective differs."""
    return bert_base_cased(**changes)


def spanbert_large(**changes: Any) -> NetworkConfig:
    """SpanBERT-large, cased."""
    return changed(_BERT, LARGE, {"vocab_size": 28996}, changes)
