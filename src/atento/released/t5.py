"""T5, T5 1.1 and mT5, encoder-decoder or encoder only: configuration and weight table (docs/notes.md#c8, #c16)."""

from functools import partial

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HEAD_KINDS, HeadConfig
from atento.released.encoder_heads import (
    HeadNames,
    labels_of,
    read_rereading_heads,
    rereading_rows,
    write_heads,
    write_rereading_heads,
)
from atento.released.family import Family, Repeat, Settings, Tying, activation_of, first_id, their_activation
from atento.released.weight_rows import Row, attention, linear, norm

_READER, _WRITER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_TAGS = "classifier"


def _read(model_type: str, data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    gate, _, kind = str(data.get("feed_forward_proj", "relu")).rpartition("-")
    if gate not in ("", "gated"):
        raise ModelError(f"{model_type}: `feed_forward_proj` {data['feed_forward_proj']!r} is not known here")
    if gate and kind == "gelu":
        kind = "gelu_new"  # what T5 1.1's files call gated-gelu is the approximation by tanh
    # of a file that says it twice, as theirs do, these hold
    gated, activation = bool(data.get("is_gated_act", gate)), activation_of(data.get("dense_act_fn", kind), model_type)
    has_decoder = any(name.startswith("decoder.") for name in names)
    scaled = data.get("scale_decoder_outputs", data.get("tie_word_embeddings") is not False)
    depth, rate = data["num_layers"], data.get("dropout_rate", 0.1)
    pad = first_id(data.get("pad_token_id"), 0)
    heads = read_rereading_heads(data, names) if has_decoder else ()
    if not has_decoder and f"{_TAGS}.weight" in names:  # the class of an encoder alone
        kind_of_head, labels = labels_of(data, of_tokens=True)
        heads = (HeadConfig(kind_of_head, labels, dropout=data.get("classifier_dropout", 0.0)),)
    return NetworkConfig(
        architecture="encoder-decoder" if has_decoder else "encoder",
        family=model_type,
        vocab_size=data["vocab_size"],
        d_model=data["d_model"],
        d_ff=data["d_ff"],
        n_heads=data["num_heads"],
        attention=AttentionConfig(d_head=data["d_kv"], dropout=rate, bias=False, scale=1.0),
        feed_forward=FeedForwardConfig(dropout=rate, activation=activation, gated=gated, bias=False),
        embedding=InputConfig(
            scaled=False,
            shared=tying.same(_READER, "shared.weight") and (not has_decoder or tying.same(_READER, _WRITER)),
        ),
        output=OutputConfig(
            tied=not has_decoder or tying.same("lm_head.weight", _WRITER),
            scaled=has_decoder and model_type == "t5" and bool(scaled),
        ),
        ids=SpecialIds(
            pad=pad,
            bos=pad,
            eos=first_id(data.get("eos_token_id"), 1),
            unk=2,
            start=first_id(data.get("decoder_start_token_id"), pad),
        ),
        n_layers=depth,
        n_decoder_layers=None
        if not has_decoder or data.get("num_decoder_layers") in (None, depth)
        else data["num_decoder_layers"],
        dropout=rate,
        norm="pre",
        norm_kind="rms",
        norm_eps=data.get("layer_norm_epsilon", 1e-6),
        positions=PositionConfig(
            "t5",
            n_buckets=data.get("relative_attention_num_buckets", 32),
            max_distance=data.get("relative_attention_max_distance", 128),
        ),
        heads=heads,
    )


def _write_heads(model_type: str, config: NetworkConfig) -> dict[str, object]:
    """The class, and the labels of its head. Raises ModelError: no class of the family has these heads."""
    classes, has_decoder = {"t5": "T5", "mt5": "MT5"}[model_type], config.architecture == "encoder-decoder"
    if not config.heads:
        return {"architectures": [f"{classes}ForConditionalGeneration" if has_decoder else f"{classes}EncoderModel"]}
    if has_decoder:
        return write_rereading_heads(classes, config)
    if HEAD_KINDS[config.heads[0].kind] != "tag":
        raise ModelError(f"no {classes} class of an encoder alone holds a {config.heads[0].kind} head")
    return write_heads(HeadNames(classes, "", "", "", "", ""), config) | {"classifier_dropout": config.heads[0].dropout}


def _write(model_type: str, config: NetworkConfig) -> dict[str, object]:
    scheme = config.schemes[0] if config.schemes else PositionConfig("t5")
    feed_forward = config.feed_forward
    kind = "gelu" if feed_forward.gated and feed_forward.activation == "gelu-tanh" else their_activation(config)
    has_decoder = config.architecture == "encoder-decoder"
    return {
        **_write_heads(model_type, config),
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_kv": config.head_width,
        "d_ff": config.d_ff,
        "num_heads": config.n_heads,
        "num_layers": config.n_layers,
        "num_decoder_layers": config.decoder_layers,
        "dropout_rate": config.dropout,
        "feed_forward_proj": f"gated-{kind}" if config.feed_forward.gated else kind,
        "layer_norm_epsilon": config.norm_eps,
        "relative_attention_num_buckets": scheme.n_buckets,
        "relative_attention_max_distance": scheme.max_distance or 128,
        "is_encoder_decoder": has_decoder,
        "tie_word_embeddings": config.output.scaled,
        "scale_decoder_outputs": config.output.scaled,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.start_id,
    }


def _rows(config: NetworkConfig) -> list[Row]:
    if config.embedding.shared:
        rows = [Row("embedding.weight", ("shared.weight",))]
    else:
        rows = [Row("embedding.weight", (_READER,))]
        # an output matrix that their file leaves out is the `shared` one there
        writer = Row("target_embedding.weight", (_WRITER,), copies=("shared.weight",))
        rows += [] if config.architecture == "encoder" else [writer]
    if config.architecture == "encoder":
        heads = [row for head in config.heads for row in linear(f"heads.{head.name}.out", _TAGS, head=True)]
        return [*rows, *_stack("stack", "encoder", config.n_layers, False, config), *heads]
    rows += _stack("encoder", "encoder", config.n_layers, False, config)
    rows += [*_stack("decoder", "decoder", config.decoder_layers, True, config), *rereading_rows(config)]
    matrix = Row("heads.vocabulary.output.weight", ("lm_head.weight",), head=True)
    return rows if config.output.tied else [*rows, matrix]


def _stack(ours: str, theirs: str, n_layers: int, reads_source: bool, config: NetworkConfig) -> list[Row]:
    bias = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"  # of the first layer, for all
    rows = [Row(f"{ours}.positions.schemes.0.weight", (bias,))]
    for n in range(n_layers):
        block, layer = f"{ours}.blocks.{n}", f"{theirs}.block.{n}.layer"
        parts = [("self_attention", "self_attention_residual", "SelfAttention")]
        parts += [("cross_attention", "cross_attention_residual", "EncDecAttention")] if reads_source else []
        for number, (part, residual, name) in enumerate(parts):
            inside = [f"{layer}.{number}.{name}.{letter}" for letter in "qkv"]
            rows += attention(f"{block}.{part}", inside, f"{layer}.{number}.{name}.o", config)
            rows += norm(f"{block}.{residual}.norm", f"{layer}.{number}.layer_norm", bias=False)
        last = f"{layer}.{len(parts)}"  # behind the attentions
        dense = f"{last}.DenseReluDense"
        inner = (f"{dense}.wi_0", f"{dense}.wi_1") if config.feed_forward.gated else (f"{dense}.wi",)
        sizes = (config.d_ff, config.d_ff) if config.feed_forward.gated else ()
        rows += [
            *linear(f"{block}.feed_forward.inner", *inner, sizes=sizes, bias=False),
            *linear(f"{block}.feed_forward.outer", f"{dense}.wo", bias=False),
            *norm(f"{block}.feed_forward_residual.norm", f"{last}.layer_norm", bias=False),
        ]
    return [*rows, *norm(f"{ours}.norm", f"{theirs}.final_layer_norm", bias=False)]


def _family(model_type: str) -> Family:
    return Family(
        model_type,
        prefix="",
        other_prefixes=dict.fromkeys(("ForSequenceClassification", "ForTokenClassification"), "transformer."),
        read=partial(_read, model_type),
        write=partial(_write, model_type),
        rows=_rows,
        computed=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        repeats=lambda data: tuple(Repeat(name, "shared.weight") for name in (_READER, _WRITER, "lm_head.weight")),
        tied=None,
        on_encoder=("tag",),
    )


T5, MT5 = _family("t5"), _family("mt5")
