"""DistilBERT: configuration and weight table (Sanh et al. 2019). BERT without segments and pooler, with other names."""

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, FeedForwardConfig, InputConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.released.bert import bert_ids
from atento.released.encoder_heads import HeadDropout, HeadNames, head_dropout, head_rows, read_heads, write_heads
from atento.released.family import Family, Settings, Tying, activation_of, their_activation, their_ids
from atento.released.weight_rows import Row, blocks, norm

_TABLE = "embeddings.word_embeddings.weight"
_HEADS = HeadNames(
    "DistilBert",
    _TABLE,
    dense="vocab_transform",
    norm="vocab_layer_norm",
    matrix="vocab_projector.weight",
    bias="vocab_projector.bias",
    hidden="pre_classifier",
    hidden_activation="relu",
)


def _read(data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    activation = activation_of(data.get("activation", "gelu"), "distilbert")
    rate = data.get("dropout", 0.1)
    rates = HeadDropout(data.get("seq_classif_dropout", 0.2), rate, data.get("qa_dropout", 0.1))
    heads = read_heads(_HEADS, data, names, activation, rates)
    return NetworkConfig(
        architecture="encoder",
        family="distilbert",
        vocab_size=data["vocab_size"],
        d_model=data["dim"],
        d_ff=data["hidden_dim"],
        n_heads=data["n_heads"],
        n_layers=data["n_layers"],
        dropout=rate,
        attention=AttentionConfig(dropout=data.get("attention_dropout", 0.1)),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(norm=True, scaled=False),
        output=_HEADS.output(heads, tying),
        ids=bert_ids(data),
        norm_eps=1e-12,
        positions=PositionConfig("learned"),  # its sinusoids, where a configuration has them, are stored too
        max_len=data["max_position_embeddings"],
        heads=heads,
        initializer="normal",
    )


def _write(config: NetworkConfig) -> dict[str, object]:
    rate, answer_rate = head_dropout(config), head_dropout(config, ("answer",))
    return {
        **write_heads(_HEADS, config),
        "model_type": "distilbert",
        "vocab_size": config.vocab_size,
        "dim": config.d_model,
        "hidden_dim": config.d_ff,
        "n_heads": config.n_heads,
        "n_layers": config.n_layers,
        "dropout": config.dropout,
        "attention_dropout": config.attention.dropout,
        "seq_classif_dropout": 0.2 if rate is None else rate,
        "qa_dropout": 0.1 if answer_rate is None else answer_rate,
        "activation": their_activation(config),
        "max_position_embeddings": config.max_len,
        **their_ids(config),
    }


def _rows(config: NetworkConfig) -> list[Row]:
    rows = [
        Row("embedding.weight", (_TABLE,)),
        Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",)),
        *norm("inputs.norm", "embeddings.LayerNorm"),
    ]
    parts = ("attention.out_lin", "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm")
    rows += blocks("transformer.layer", [f"attention.{letter}_lin" for letter in "qkv"], parts, config)
    return [*rows, *head_rows(_HEADS, config)]


DISTILBERT = Family(
    "distilbert",
    prefix="distilbert.",
    read=_read,
    write=_write,
    rows=_rows,
    computed=("embeddings.position_ids",),
    repeats=_HEADS.repeats,
    new_head=_HEADS.new_head,
)
