"""DeBERTa v2 and v3: configuration and weight table (He et al. 2021, 2023). BERT with disentangled positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import (
    AttentionConfig,
    ConvolutionConfig,
    FeedForwardConfig,
    InputConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig
from atento.errors import ModelError
from atento.released.encoder_heads import HeadDropout, HeadNames, head_dropout, head_rows, read_heads, write_heads
from atento.released.family import Family, Repeat, Tying, activation_of, first_id, refuse, their_activation
from atento.released.weight_rows import Row, attention, linear, norm

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


def _read(data: Mapping[str, Any], names: frozenset[str], tying: Tying) -> NetworkConfig:
    width, n_heads = data["hidden_size"], data["num_attention_heads"]
    refuse(
        data,
        {"embedding_size": (width,), "pooler_hidden_size": (width,), "attention_head_size": (width // n_heads,)},
        "deberta-v2",
    )
    activation = activation_of(data.get("hidden_act", "gelu"), "deberta-v2")
    rate, vocab_size = data.get("hidden_dropout_prob", 0.1), data["vocab_size"]
    label_rate = data.get("cls_dropout")
    rates = HeadDropout(rate if label_rate is None else label_rate, tags=rate)
    pooler = activation_of(data.get("pooler_hidden_act", "gelu"), "deberta-v2")
    names |= {second for first, second in _SECOND_NAMES.items() if first in names}
    heads = read_heads(replace(_HEADS, hidden_activation=pooler), data, names, activation, rates)
    masked = any(head.kind == "masked-language-model" for head in heads)
    bos = first_id(data.get("bos_token_id"), min(1, vocab_size - 1))
    positions, scale = _positions(data, width // n_heads)
    return NetworkConfig(
        architecture="encoder",
        family="deberta-v2",
        vocab_size=vocab_size,
        d_model=width,
        d_ff=data["intermediate_size"],
        n_heads=n_heads,
        n_layers=data["num_hidden_layers"],
        dropout=rate,
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.1), scale=scale),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(norm=True, segments=data.get("type_vocab_size", 0), scaled=False),
        output=OutputConfig(tied=not masked or tying.same(_HEADS.matrix, _TABLE)),
        ids=SpecialIds(
            pad=first_id(data.get("pad_token_id"), 0),
            unk=min(3, vocab_size - 1),
            bos=bos,
            eos=first_id(data.get("eos_token_id"), min(2, vocab_size - 1)),
            start=bos,
            mask=min(128000, vocab_size - 1),  # [MASK] of the published tokenizers; of a tiny vocabulary the last id
        ),
        norm_eps=data.get("layer_norm_eps", 1e-7),
        positions=positions,
        convolution=_convolution(data),
        max_len=data["max_position_embeddings"],
        heads=heads,
        initializer="normal",
    )


def _convolution(data: Mapping[str, Any]) -> ConvolutionConfig | None:
    """The convolution of the larger models; None: there is none."""
    width = data.get("conv_kernel_size") or 0
    if width < 1:
        return None
    activation = activation_of(data.get("conv_act", "tanh"), "deberta-v2")
    return ConvolutionConfig(width, activation, data.get("conv_groups", 1))


def _positions(
    data: Mapping[str, Any], head_width: int
) -> tuple[PositionConfig | tuple[PositionConfig, ...], float | None]:
    """The position schemes, and the factor of the scores where it is not that of the schemes.

    Raises:
        ModelError: relative positions without shared projections, or in one direction only.
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
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.dropout,
        "hidden_act": their_activation(config),
        "layer_norm_eps": config.norm_eps,
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
        "tie_word_embeddings": config.output.tied,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
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
    for n in range(config.n_layers):
        ours, theirs = f"stack.blocks.{n}", f"encoder.layer.{n}"
        inside = [f"{theirs}.attention.self.{part}_proj" for part in ("query", "key", "value")]
        rows += [
            *attention(f"{ours}.self_attention", inside, f"{theirs}.attention.output.dense", config),
            *norm(f"{ours}.self_attention_residual.norm", f"{theirs}.attention.output.LayerNorm"),
            *linear(f"{ours}.feed_forward.inner", f"{theirs}.intermediate.dense"),
            *linear(f"{ours}.feed_forward.outer", f"{theirs}.output.dense"),
            *norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.output.LayerNorm"),
        ]
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
