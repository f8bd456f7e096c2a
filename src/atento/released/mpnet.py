"""MPNet: configuration and weight table (Song et al. 2020). RoBERTa's layout with T5's relative bias in every layer."""

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, FeedForwardConfig, InputConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.released.bert import TABLE, bert_settings, roberta_heads
from atento.released.encoder_heads import HeadDropout, head_rows, read_heads, write_heads
from atento.released.family import Family, Settings, Tying, activation_of, refuse, sizes_of, special_ids, their_ids
from atento.released.weight_rows import Row, blocks, linear, norm

_PAD = 1  # positions begin behind it, whatever the configuration says
_HEADS = roberta_heads("MPNet")


def _read(data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    refuse(data, {"relative_attention_num_buckets": (32,), "pad_token_id": (_PAD,)}, "mpnet")
    activation = activation_of(data.get("hidden_act", "gelu"), "mpnet")
    rate, last = data.get("hidden_dropout_prob", 0.1), data["vocab_size"] - 1
    heads = read_heads(_HEADS, data, names, activation, HeadDropout(rate))
    return NetworkConfig(
        architecture="encoder",
        family="mpnet",
        **sizes_of(data),
        dropout=rate,
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.1)),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(norm=True, scaled=False),
        output=_HEADS.output(heads, tying),
        ids=special_ids(data, pad=_PAD, unk=3, bos=0, eos=2, mask=last),
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
        **bert_settings(config),
        "max_position_embeddings": config.max_len + _PAD + 1,
        "relative_attention_num_buckets": 32,
        **their_ids(config),
    }


def _rows(config: NetworkConfig) -> list[Row]:
    rows = [
        Row("embedding.weight", (TABLE,)),
        Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",)),
        *norm("inputs.norm", "embeddings.LayerNorm"),
        Row("stack.positions.schemes.0.weight", ("encoder.relative_attention_bias.weight",)),
    ]
    parts = ("attention.attn.o", "attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")
    rows += blocks("encoder.layer", [f"attention.attn.{letter}" for letter in "qkv"], parts, config)
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
