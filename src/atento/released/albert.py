"""ALBERT: configuration and weight table (Lan et al. 2020). BERT with narrow embeddings and one layer for all."""

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, FeedForwardConfig, InputConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.released.encoder_heads import HeadDropout, HeadNames, head_dropout, head_rows, read_heads, write_heads
from atento.released.family import (
    Family,
    Settings,
    Tying,
    activation_of,
    refuse,
    segments_of,
    sizes_of,
    special_ids,
    their_activation,
    their_ids,
    their_sizes,
)
from atento.released.weight_rows import Row, blocks, linear, norm

_TABLE = "embeddings.word_embeddings.weight"
_HEADS = HeadNames(
    "Albert",
    _TABLE,
    dense="predictions.dense",
    norm="predictions.LayerNorm",
    matrix="predictions.decoder.weight",
    bias="predictions.bias",
    next_sentence="sop_classifier.classifier",  # whether two sentences are in order
)


def _read(data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    refuse(
        data, {"position_embedding_type": ("absolute",), "num_hidden_groups": (1,), "inner_group_num": (1,)}, "albert"
    )
    activation = activation_of(data.get("hidden_act", "gelu_new"), "albert")
    rate, last = data.get("hidden_dropout_prob", 0.0), data["vocab_size"] - 1
    label_rate = data.get("classifier_dropout_prob", 0.1)
    label_rate = rate if label_rate is None else label_rate
    heads = read_heads(_HEADS, data, names, activation, HeadDropout(label_rate, sentences=label_rate))
    return NetworkConfig(
        architecture="encoder",
        family="albert",
        **sizes_of(data),
        shared_layers=True,
        dropout=rate,
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.0)),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(
            norm=True, segments=segments_of(data), scaled=False, width=data.get("embedding_size", 128)
        ),
        output=_HEADS.output(heads, tying),
        # [MASK] of the published tokenizers; of a tiny vocabulary the last id
        ids=special_ids(data, pad=0, unk=1, bos=2, eos=3, mask=min(4, last)),
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
        **their_sizes(config),
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.dropout,
        "classifier_dropout_prob": rate,
        "hidden_act": their_activation(config),
        "layer_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_len,
        "type_vocab_size": config.embedding.segments,
        **their_ids(config),
    }


def _rows(config: NetworkConfig) -> list[Row]:
    inside = [f"attention.{part}" for part in ("query", "key", "value")]
    parts = ("attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm")
    return [
        Row("embedding.weight", (_TABLE,)),
        Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",)),
        Row("inputs.segments", ("embeddings.token_type_embeddings.weight",)),
        *norm("inputs.norm", "embeddings.LayerNorm"),
        *linear("inputs.projection", "encoder.embedding_hidden_mapping_in"),
        *blocks("encoder.albert_layer_groups.0.albert_layers", inside, parts, config),
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
