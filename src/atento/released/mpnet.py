"""MPNet: configuration and weight table (Song et al. 2020). RoBERTa's layout with T5's relative bias in every layer."""

from collections.abc import Mapping
from typing import Any

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig
from atento.released.encoder_heads import HeadDropout, HeadNames, head_rows, read_heads, write_heads
from atento.released.family import Family, Tying, activation_of, first_id, refuse, their_activation
from atento.released.weight_rows import Row, attention, linear, norm

_TABLE = "embeddings.word_embeddings.weight"
_PAD = 1  # positions begin behind it, whatever the configuration says
_HEADS = HeadNames(
    "MPNet",
    _TABLE,
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    matrix="lm_head.decoder.weight",
    bias="lm_head.bias",
    activation="gelu",
    hidden="classifier.dense",
    classifier="classifier.out_proj",
)


def _read(data: Mapping[str, Any], names: frozenset[str], tying: Tying) -> NetworkConfig:
    refuse(data, {"relative_attention_num_buckets": (32,), "pad_token_id": (_PAD,)}, "mpnet")
    activation = activation_of(data.get("hidden_act", "gelu"), "mpnet")
    rate, vocab_size = data.get("hidden_dropout_prob", 0.1), data["vocab_size"]
    heads = read_heads(_HEADS, data, names, activation, HeadDropout(rate))
    masked = any(head.kind == "masked-language-model" for head in heads)
    bos = first_id(data.get("bos_token_id"), 0)
    return NetworkConfig(
        architecture="encoder",
        family="mpnet",
        vocab_size=vocab_size,
        d_model=data["hidden_size"],
        d_ff=data["intermediate_size"],
        n_heads=data["num_attention_heads"],
        n_layers=data["num_hidden_layers"],
        dropout=rate,
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.1)),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(norm=True, scaled=False),
        output=OutputConfig(tied=not masked or tying.same(_HEADS.matrix, _TABLE)),
        ids=SpecialIds(
            pad=_PAD, unk=3, bos=bos, eos=first_id(data.get("eos_token_id"), 2), start=bos, mask=vocab_size - 1
        ),
        norm_eps=data.get("layer_norm_eps", 1e-12),
        positions=(
            PositionConfig("learned", shift=_PAD + 1, real_only=True),  # as in RoBERTa: counted from pad + 1
            PositionConfig("t5", n_buckets=32, max_distance=128),
        ),
        max_len=data["max_position_embeddings"] - _PAD - 1,  # no token reads the first rows
        pooler="pooler.dense.weight" in names,
        heads=heads,
        initializer="normal",
    )


def _write(config: NetworkConfig) -> dict[str, object]:
    return {
        **write_heads(_HEADS, config),
        "model_type": "mpnet",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.dropout,
        "hidden_act": their_activation(config),
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_len + _PAD + 1,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": config.output.tied,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
    }


def _rows(config: NetworkConfig) -> list[Row]:
    rows = [
        Row("embedding.weight", (_TABLE,)),
        Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",)),
        *norm("inputs.norm", "embeddings.LayerNorm"),
        Row("stack.positions.schemes.0.weight", ("encoder.relative_attention_bias.weight",)),
    ]
    for n in range(config.n_layers):
        ours, theirs = f"stack.blocks.{n}", f"encoder.layer.{n}"
        inside = [f"{theirs}.attention.attn.{letter}" for letter in "qkv"]
        rows += [
            *attention(f"{ours}.self_attention", inside, f"{theirs}.attention.attn.o", config),
            *norm(f"{ours}.self_attention_residual.norm", f"{theirs}.attention.LayerNorm"),
            *linear(f"{ours}.feed_forward.inner", f"{theirs}.intermediate.dense"),
            *linear(f"{ours}.feed_forward.outer", f"{theirs}.output.dense"),
            *norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.output.LayerNorm"),
        ]
    if config.pooler:
        rows += linear("pooler.dense", "pooler.dense")
    return [*rows, *head_rows(_HEADS, config)]


MPNET = Family(
    "mpnet",
    prefix="mpnet.",
    read=_read,
    write=_write,
    rows=_rows,
    computed=("embeddings.position_ids",),
    repeats=_HEADS.repeats,
    new_head=_HEADS.new_head,
)
