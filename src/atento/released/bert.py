"""BERT and SpanBERT, RoBERTa, XLM-R, CamemBERT and ELECTRA: configuration and weight table (docs/notes.md#c6, #c16)."""

from dataclasses import dataclass
from functools import partial

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, FeedForwardConfig, InputConfig, SpecialIds
from atento.config.sections.position_scheme import PositionConfig
from atento.released.encoder_heads import HeadDropout, HeadNames, head_dropout, head_rows, read_heads, write_heads
from atento.released.family import (
    Family,
    Settings,
    Tying,
    activation_of,
    first_id,
    refuse,
    segments_of,
    sizes_of,
    special_ids,
    their_activation,
    their_ids,
    their_sizes,
)
from atento.released.weight_rows import Row, blocks, linear, norm

TABLE = "embeddings.word_embeddings.weight"
BERT_BLOCK = (
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
"""The maps and norms of a block, as `weight_rows.blocks` takes them."""


@dataclass(frozen=True)
class Relative:
    """The differences of a relative of BERT.

    `from_padding`: positions count real tokens and begin behind the id of padding (RoBERTa). `projected`: embeddings
    may be narrower than the layers, with a linear map between (ELECTRA).
    """

    model_type: str
    heads: HeadNames
    prefix: str
    from_padding: bool = False
    projected: bool = False


def roberta_heads(classes: str) -> HeadNames:
    return HeadNames(
        classes,
        TABLE,
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        matrix="lm_head.decoder.weight",
        bias="lm_head.bias",
        activation="gelu",  # whatever the network's is
        hidden="classifier.dense",
        classifier="classifier.out_proj",
    )


_RELATIVES = (
    Relative(
        "bert",
        HeadNames(
            "Bert",
            TABLE,
            dense="cls.predictions.transform.dense",
            norm="cls.predictions.transform.LayerNorm",
            matrix="cls.predictions.decoder.weight",
            bias="cls.predictions.bias",
            next_sentence="cls.seq_relationship",
        ),
        "bert.",
    ),
    Relative("roberta", roberta_heads("Roberta"), "roberta.", from_padding=True),
    Relative("xlm-roberta", roberta_heads("XLMRoberta"), "roberta.", from_padding=True),
    Relative("camembert", roberta_heads("Camembert"), "roberta.", from_padding=True),
    Relative(
        "electra",
        HeadNames(
            "Electra",
            TABLE,
            dense="generator_predictions.dense",
            norm="generator_predictions.LayerNorm",
            matrix="generator_lm_head.weight",
            bias="generator_lm_head.bias",
            activation="gelu",
            hidden="classifier.dense",
            hidden_activation="gelu",
            classifier="classifier.out_proj",
            detector=("discriminator_predictions.dense", "discriminator_predictions.dense_prediction"),
        ),
        "electra.",
        projected=True,
    ),
)


def _read(relative: Relative, data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    model_type, roberta = relative.model_type, relative.from_padding
    refuse(data, {"position_embedding_type": ("absolute",)}, model_type)
    refuse(data, {"is_decoder": (False,), "add_cross_attention": (False,)}, model_type)
    pad = first_id(data.get("pad_token_id"), 1 if roberta else 0)
    if roberta and data.get("pad_token_id") == []:  # the configured id is beyond the vocabulary
        raise ModelError(f"{model_type}: positions begin behind `pad_token_id`, which must be below `vocab_size`")
    no_pad = roberta and data.get("pad_token_id") == -1  # positions then begin at 0, as in `transformers`
    shift = pad + 1 if roberta and not no_pad else 0  # RoBERTa's positions begin behind the id of padding
    vocab_size, d_model = data["vocab_size"], data["hidden_size"]
    ids = bert_ids(data)
    if roberta:
        mask = 250001 if vocab_size == 250002 else vocab_size - 1
        ids = special_ids(data, pad=pad, unk=3, bos=0, eos=2, mask=mask)
    rate = data.get("classifier_dropout")
    rates = HeadDropout(data.get("hidden_dropout_prob", 0.1) if rate is None else rate)
    activation = activation_of(data.get("hidden_act", "gelu"), model_type)
    heads = read_heads(relative.heads, data, names, activation, rates)
    width = data.get("embedding_size", d_model) if relative.projected else d_model
    return NetworkConfig(
        architecture="encoder",
        family=model_type,
        **sizes_of(data),
        dropout=data.get("hidden_dropout_prob", 0.1),
        attention=AttentionConfig(dropout=data.get("attention_probs_dropout_prob", 0.1)),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(
            norm=True, segments=segments_of(data), scaled=False, width=None if width == d_model else width
        ),
        output=relative.heads.output(heads, tying),
        ids=ids,
        norm_eps=data.get("layer_norm_eps", 1e-12),
        positions=PositionConfig("learned", shift=shift, real_only=roberta),
        max_len=data["max_position_embeddings"] - shift,
        pooler="pooler.dense.weight" in names,
        heads=heads,
        initializer="normal",
    )


def bert_ids(data: Settings) -> SpecialIds:
    """The special ids of their configuration, with those of BERT's vocabulary for what it does not name."""
    last = data["vocab_size"] - 1
    unk, bos, eos, mask = (min(token_id, last) for token_id in (100, 101, 102, 103))
    return special_ids(data, pad=0, unk=unk, bos=bos, eos=eos, mask=mask)


def bert_settings(config: NetworkConfig) -> dict[str, object]:
    """Sizes, rates of dropout, activation and epsilon under the keys of BERT and its relatives."""
    return {
        **their_sizes(config),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.dropout,
        "hidden_act": their_activation(config),
        "layer_norm_eps": config.norm_eps,
    }


def _write(relative: Relative, config: NetworkConfig) -> dict[str, object]:
    scheme = config.schemes[0] if config.schemes else PositionConfig("none")
    data = {
        **write_heads(relative.heads, config),
        "model_type": relative.model_type,
        **bert_settings(config),
        "max_position_embeddings": config.max_len + scheme.shift,  # rows of the table
        "type_vocab_size": config.embedding.segments,
        **their_ids(config),
    }
    if relative.from_padding and scheme.shift == 0:
        data["pad_token_id"] = -1  # positions count from pad + 1
    if relative.projected:
        data["embedding_size"] = config.embedding_width
    rate = head_dropout(config)
    return data if rate is None else data | {"classifier_dropout": rate}


def _rows(relative: Relative, config: NetworkConfig) -> list[Row]:
    rows = [
        Row("embedding.weight", (TABLE,)),
        Row("inputs.positions.schemes.0.weight", ("embeddings.position_embeddings.weight",)),
        Row("inputs.segments", ("embeddings.token_type_embeddings.weight",)),
        *norm("inputs.norm", "embeddings.LayerNorm"),
        *([] if config.embedding.width is None else linear("inputs.projection", "embeddings_project")),
    ]
    parts = [f"attention.self.{part}" for part in ("query", "key", "value")]
    rows += blocks("encoder.layer", parts, BERT_BLOCK, config)
    if config.pooler:
        rows += linear("pooler.dense", "pooler.dense")
    return [*rows, *head_rows(relative.heads, config)]


BERT_AND_RELATIVES = tuple(
    Family(
        relative.model_type,
        prefix=relative.prefix,
        read=partial(_read, relative),
        write=partial(_write, relative),
        rows=partial(_rows, relative),
        computed=("embeddings.position_ids", "embeddings.token_type_ids"),
        repeats=relative.heads.repeats,
        from_padding=relative.from_padding,
        new_head=relative.heads.new_head,
        pooler=not relative.heads.hidden,
    )
    for relative in _RELATIVES
)
