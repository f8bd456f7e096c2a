"""DeBERTa v2 and v3: configuration and weight table (He et al. 2021, 2023). BERT with disentangled positions."""

from collections.abc import Mapping
from dataclasses import replace

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, ConvolutionConfig, FeedForwardConfig, InputConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.released.bert import BERT_BLOCK, bert_settings
from atento.released.encoder_heads import HeadDropout, HeadNames, head_dropout, head_rows, read_heads, write_heads
from atento.released.family import (
    Family,
    Repeat,
    Settings,
    Tying,
    activation_of,
    refuse,
    sizes_of,
    special_ids,
    their_activation,
    their_ids,
)
from atento.released.weight_rows import Row, blocks, linear, norm

_TABLE = "embeddings.word_embeddings.weight"
_HEADS = HeadNames(
    "DebertaV2",
    _TABLE,
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    matrix="cls.predictions.decoder.weight",
    bias="cls.predictions.bias",
    hidden="pooler.dense",
    hidden_activation="gelu",
)
_SECOND_NAMES = {  # of the head for masked tokens, in files whose configuration has `legacy: false`
    "lm_predictions.lm_head.dense.weight": "cls.predictions.transform.dense.weight",
    "lm_predictions.lm_head.dense.bias": "cls.predictions.transform.dense.bias",
    "lm_predictions.lm_head.LayerNorm.weight": "cls.predictions.transform.LayerNorm.weight",
    "lm_predictions.lm_head.LayerNorm.bias": "cls.predictions.transform.LayerNorm.bias",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
_PARTS = ("weight", "bias")
_TERMS = {"c2p", "p2c"}


def _read(data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    width, n_heads = data["hidden_size"], data["num_attention_heads"]
    refuse(
        data,
        {"embedding_size": (width,), "pooler_hidden_size": (width,), "attention_head_size": (width // n_heads,)},
        "deberta-v2",
    )
    activation = activation_of(data.get("hidden_act", "gelu"), "deberta-v2")
    rate, last = data.get("hidden_dropout_prob", 0.1), data["vocab_size"] - 1
    label_rate = data.get("cls_dropout")
    rates = HeadDropout(rate if label_rate is None else label_rate, tags=rate)
    pooler = activation_of(data.get("pooler_hidden_act", "gelu"), "deberta-v2")
    names |= {second for first, second in _SECOND_NAMES.items() if first in names}
    heads = read_heads(replace(_HEADS, hidden_activation=pooler), data, names, activation, rates)
    positions, scale = _positions(data, width // n_heads)
    convolution = None
    if (kernel := data.get("conv_kernel_size") or 0) >= 1:  # of the larger models
        kernel_activation = activation_of(data.get("conv_act", "tanh"), "deberta-v2")
        convolution = ConvolutionConfig(kernel, kernel_activation, data.get("conv_groups", 1))
    return NetworkConfig(
        architecture="encoder",
        family="deberta-v2",
        **sizes_of(data),
        dropout=rate,
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.1), scale=scale),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(norm=True, segments=data.get("type_vocab_size", 0), scaled=False),
        output=_HEADS.output(heads, tying),
        # those of the published tokenizers; of a tiny vocabulary the last id
        ids=special_ids(data, pad=0, unk=min(3, last), bos=min(1, last), eos=min(2, last), mask=min(128000, last)),
        norm_eps=data.get("layer_norm_eps", 1e-7),
        positions=positions,
        convolution=convolution,
        max_len=data["max_position_embeddings"],
        heads=heads,
        initializer="normal",
    )


def _positions(data: Settings, head_width: int) -> tuple[PositionConfig | tuple[PositionConfig, ...], float | None]:
    """The position schemes, and the factor of the scores where it is not that of the schemes.
    Raises ModelError: relative positions without shared projections, or in one direction only.
    """
    named = data.get("pos_att_type") or ()
    terms = {name.strip() for name in (named.split("|") if isinstance(named, str) else named)} & _TERMS
    schemes = [PositionConfig("learned")] if data.get("position_biased_input", True) else []
    if not data.get("relative_attention", False):
        # named terms shrink the scores even where `relative_attention` is off and none is added
        scale = None if not terms else float(((1 + len(terms)) * head_width) ** -0.5)
        return schemes[0] if schemes else PositionConfig("none"), scale
    refuse(data, {"share_att_key": (True,)}, "deberta-v2")
    if "share_att_key" not in data or terms != _TERMS:
        known = "`share_att_key` true and `pos_att_type` of both c2p and p2c"
        raise ModelError(f"deberta-v2: `relative_attention` is built here with {known}: got {named!r}")
    longest, buckets = data.get("max_relative_positions", -1), data.get("position_buckets", -1)
    scheme = PositionConfig(
        "disentangled",
        max_distance=longest if longest > 0 else data["max_position_embeddings"],  # -1: as many as there are positions
        n_buckets=max(buckets, 0),  # -1: none
        norm="layer_norm" in str(data.get("norm_rel_ebd", "none")).lower(),
    )
    return (*schemes, scheme) if schemes else scheme, None


def _write(config: NetworkConfig) -> dict[str, object]:
    schemes = {scheme.kind: scheme for scheme in config.schemes}
    rate = head_dropout(config)
    scale = config.score_scale(0)
    n_terms = 0 if scale is None else round(1 / (scale**2 * config.head_width)) - 1  # they also decide the scale
    relative: dict[str, object] = {"pos_att_type": ["p2c", "c2p"][:n_terms]}
    if "disentangled" in schemes:
        scheme = schemes["disentangled"]
        relative |= {
            "max_relative_positions": 512 if scheme.max_distance is None else scheme.max_distance,
            "position_buckets": scheme.n_buckets or -1,
            "norm_rel_ebd": "layer_norm" if scheme.norm else "none",
            "share_att_key": True,
        }
    convolution: dict[str, object] = {}
    if config.convolution is not None:
        convolution = {
            "conv_kernel_size": config.convolution.width,
            "conv_act": their_activation(config, config.convolution.activation),
            "conv_groups": config.convolution.groups,
        }
    head = next((head for head in config.heads if head.hidden), None)
    pooler = {} if head is None else {"pooler_hidden_act": their_activation(config, head.activation or "tanh")}
    return {
        **write_heads(_HEADS, config),
        "model_type": "deberta-v2",
        **bert_settings(config),
        "max_position_embeddings": config.max_len,
        "type_vocab_size": config.embedding.segments,
        "position_biased_input": "learned" in schemes,
        "relative_attention": "disentangled" in schemes,
        **relative,
        **convolution,
        **pooler,
        "pooler_hidden_size": config.d_model,
        "pooler_dropout": 0.0,
        **({} if rate is None else {"cls_dropout": rate}),
        **their_ids(config),
    }


def _rows(config: NetworkConfig) -> list[Row]:
    kinds = {scheme.kind: scheme for scheme in config.schemes}
    table = Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",))
    rows = [
        Row("embedding.weight", (_TABLE,)),
        *([table] if "learned" in kinds else []),
        *([Row("inputs.segments", ("embeddings.token_type_embeddings.weight",))] if config.embedding.segments else []),
        *norm("inputs.norm", "embeddings.LayerNorm"),
    ]
    if "disentangled" in kinds:
        ours = "stack.positions.schemes.0"
        rows.append(Row(f"{ours}.weight", ("encoder.rel_embeddings.weight",)))
        rows += norm(f"{ours}.norm", "encoder.LayerNorm") if kinds["disentangled"].norm else []
    if config.convolution is not None:
        rows += linear("stack.convolution.conv", "encoder.conv.conv")
        rows += norm("stack.convolution.norm", "encoder.conv.LayerNorm")
    inside = [f"attention.self.{part}_proj" for part in ("query", "key", "value")]
    rows += blocks("encoder.layer", inside, BERT_BLOCK, config)
    return [*rows, *head_rows(_HEADS, config)]


def _repeats(data: Mapping[str, object]) -> tuple[Repeat, ...]:
    second = tuple(Repeat(name, source, replaces=True) for name, source in _SECOND_NAMES.items())
    return (*second, *_HEADS.repeats(data))


DEBERTA = Family(
    "deberta-v2",
    prefix="deberta.",
    read=_read,
    write=_write,
    rows=_rows,
    computed=("embeddings.position_ids",),
    repeats=_repeats,
    new_head=_HEADS.new_head,
    tied=None,
    ignored=(  # an absolute table or a norm that is switched off, and the second head of the pretraining of version 3
        "embeddings.position_embeddings.weight",
        *(f"encoder.LayerNorm.{part}" for part in _PARTS),
        *(f"mask_predictions.{layer}.{part}" for layer in ("dense", "LayerNorm", "classifier") for part in _PARTS),
    ),
)
