"""ALBERT: configuration and weight table (Lan et al. 2020). BERT with narrow embeddings and one layer for all."""

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
from atento.released.encoder_heads import HeadDropout, HeadNames, head_dropout, head_rows, read_heads, write_heads
from atento.released.family import Family, Tying, activation_of, first_id, refuse, segments_of, their_activation
from atento.released.weight_rows import Row, attention, linear, norm

_TABLE = "embeddings.word_embeddings.weight"
_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
_HEADS = HeadNames(
    "Albert",
    _TABLE,
    dense="predictions.dense",
    norm="predictions.LayerNorm",
    matrix="predictions.decoder.weight",
    bias="predictions.bias",
    next_sentence="sop_classifier.classifier",  # whether two sentences are in order
)


def _read(data: Mapping[str, Any], names: frozenset[str], tying: Tying) -> NetworkConfig:
    refuse(
        data, {"position_embedding_type": ("absolute",), "num_hidden_groups": (1,), "inner_group_num": (1,)}, "albert"
    )
    activation = activation_of(data.get("hidden_act", "gelu_new"), "albert")
    rate, vocab_size = data.get("hidden_dropout_prob", 0.0), data["vocab_size"]
    label_rate = data.get("classifier_dropout_prob", 0.1)
    label_rate = rate if label_rate is None else label_rate
    heads = read_heads(_HEADS, data, names, activation, HeadDropout(label_rate, sentences=label_rate))
    masked = any(head.kind == "masked-language-model" for head in heads)
    bos = first_id(data.get("bos_token_id"), 2)
    return NetworkConfig(
        architecture="encoder",
        family="albert",
        vocab_size=vocab_size,
        d_model=data["hidden_size"],
        d_ff=data["intermediate_size"],
        n_heads=data["num_attention_heads"],
        n_layers=data["num_hidden_layers"],
        shared_layers=True,
        dropout=rate,
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.0)),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(
            norm=True, segments=segments_of(data), scaled=False, width=data.get("embedding_size", 128)
        ),
        output=OutputConfig(tied=not masked or tying.same(_HEADS.matrix, _TABLE)),  # without its head there is none
        ids=SpecialIds(
            pad=first_id(data.get("pad_token_id"), 0),
            unk=1,
            bos=bos,
            eos=first_id(data.get("eos_token_id"), 3),
            start=bos,
            mask=min(4, vocab_size - 1),  # [MASK] of the published tokenizers; of a tiny vocabulary the last id
        ),
        norm_eps=data.get("layer_norm_eps", 1e-12),
        positions=PositionConfig("learned"),
        max_len=data["max_position_embeddings"],
        pooler="pooler.weight" in names,
        heads=heads,
        initializer="normal",
    )


def _write(config: NetworkConfig) -> dict[str, object]:
    rates = (head_dropout(config), head_dropout(config, ("next-sentence",)))
    rate = next((rate for rate in rates if rate is not None), 0.1)
    return {
        **write_heads(_HEADS, config),
        "model_type": "albert",
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding_width,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.dropout,
        "classifier_dropout_prob": rate,
        "hidden_act": their_activation(config),
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_len,
        "type_vocab_size": config.embedding.segments,
        "tie_word_embeddings": config.output.tied,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
    }


def _rows(config: NetworkConfig) -> list[Row]:
    inside = [f"{_LAYER}.attention.{part}" for part in ("query", "key", "value")]
    return [
        Row("embedding.weight", (_TABLE,)),
        Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",)),
        Row("inputs.segments", ("embeddings.token_type_embeddings.weight",)),
        *norm("inputs.norm", "embeddings.LayerNorm"),
        *linear("inputs.projection", "encoder.embedding_hidden_mapping_in"),
        *attention("stack.blocks.0.self_attention", inside, f"{_LAYER}.attention.dense", config),
        *norm("stack.blocks.0.self_attention_residual.norm", f"{_LAYER}.attention.LayerNorm"),
        *linear("stack.blocks.0.feed_forward.inner", f"{_LAYER}.ffn"),
        *linear("stack.blocks.0.feed_forward.outer", f"{_LAYER}.ffn_output"),
        *norm("stack.blocks.0.feed_forward_residual.norm", f"{_LAYER}.full_layer_layer_norm"),
        *(linear("pooler.dense", "pooler") if config.pooler else []),
        *head_rows(_HEADS, config),
    ]


ALBERT = Family(
    "albert",
    prefix="albert.",
    read=_read,
    write=_write,
    rows=_rows,
    computed=("embeddings.position_ids", "embeddings.token_type_ids"),
    repeats=_HEADS.repeats,
)
