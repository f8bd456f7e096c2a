"""ModernBERT: configuration and weight table (Warner et al. 2024).

Pre-norm without biases, gated, rotary positions; layers with a window alternate with layers that see all tokens.
"""

from typing import Any

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import AttentionConfig, FeedForwardConfig, InputConfig, MaskConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import OF_TEXT, HeadConfig, HeadKind
from atento.released.encoder_heads import HeadNames, head_dropout, labels_of, write_heads
from atento.released.family import (
    GLOBAL,
    LOCAL,
    Family,
    Settings,
    Tying,
    activation_of,
    layer_kinds,
    refuse,
    sizes_of,
    special_ids,
    their_activation,
    their_sizes,
)
from atento.released.weight_rows import Row, linear, norm

_TABLE = "embeddings.tok_embeddings.weight"
_BASES = {GLOBAL: ("global_rope_theta", 160000.0), LOCAL: ("local_rope_theta", 10000.0)}
_HEADS = HeadNames(
    "ModernBert", _TABLE, dense="head.dense", norm="head.norm", matrix="decoder.weight", bias="decoder.bias"
)
_IDS = {"pad": 50283, "unk": 50280, "bos": 50281, "eos": 50282, "mask": 50284}  # of its vocabulary
_POOLINGS: dict[str, Any] = {"cls": "first", "mean": "mean"}


def _read(data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    refuse(data, {"decoder_bias": (True,)}, "modernbert")
    last, depth = data["vocab_size"] - 1, data["num_hidden_layers"]
    heads = _heads(data, names)
    every = data.get("global_attn_every_n_layers") or 3
    usual = [LOCAL if n % every else GLOBAL for n in range(depth)]  # 0, 3 ... are global
    kinds = layer_kinds(data, depth, "modernbert") or usual
    layers = {kind: tuple(n for n in range(depth) if kinds[n] == kind) for kind in _BASES}
    window = data.get("local_attention", 128) // 2  # tokens on each side
    return NetworkConfig(
        architecture="encoder",
        family="modernbert",
        **sizes_of(data),
        dropout=data.get("embedding_dropout", 0.0),
        attention=AttentionConfig(
            dropout=data.get("attention_dropout", 0.0), bias=bool(data.get("attention_bias", False))
        ),
        feed_forward=FeedForwardConfig(
            activation=activation_of(data.get("hidden_activation", "gelu"), "modernbert"),
            gated=True,
            bias=bool(data.get("mlp_bias", False)),
            dropout=data.get("mlp_dropout", 0.0),
        ),
        mask=MaskConfig("window", left=window, right=window, layers=layers[LOCAL]) if layers[LOCAL] else None,
        embedding=InputConfig(norm=True, scaled=False),
        output=_HEADS.output(heads, tying),
        ids=special_ids(data, **{name: min(token_id, last) for name, token_id in _IDS.items()}),
        norm="pre",
        norm_bias=bool(data.get("norm_bias", False)),
        norm_eps=data.get("norm_eps", 1e-5),
        first_norm=False,  # the embeddings have a norm
        positions=tuple(
            PositionConfig("rotary", base=_base(data, kind), layers=layers[kind]) for kind in _BASES if layers[kind]
        ),
        max_len=data.get("max_position_embeddings", 8192),
        heads=heads,
        initializer="normal",
    )


def _base(data: Settings, kind: str) -> float:
    """The base of the rotations of the layers of that kind."""
    rope: Settings = (data.get("rope_parameters") or {}).get(kind) or {}
    if rope.get("rope_type", "default") != "default":
        raise ModelError(f"modernbert: rotary positions of type {rope['rope_type']!r} are not built here")
    key, usual = _BASES[kind]
    return float(rope.get("rope_theta", data.get(key) or usual))


def _heads(data: Settings, names: frozenset[str]) -> tuple[HeadConfig, ...]:
    """The head that the file holds: each has the same dense layer with a norm."""
    inside: dict[str, Any] = {
        "hidden_bias": bool(data.get("classifier_bias", False)),
        "activation": activation_of(data.get("classifier_activation", "gelu"), "modernbert"),
    }
    if "head.dense.weight" not in names:
        return ()
    if "classifier.weight" not in names:
        return (HeadConfig("masked-language-model", **inside),)
    inside |= {"hidden": True, "hidden_norm": True, "dropout": data.get("classifier_dropout", 0.0)}
    cls = " ".join(str(name) for name in data.get("architectures") or ())
    if "QuestionAnswering" in cls:
        return (HeadConfig("answer", **inside),)
    of_tokens = "TokenClassification" in cls
    kind, labels = labels_of(data, of_tokens=of_tokens)
    if of_tokens:
        return (HeadConfig(kind, labels, **inside),)
    pooling = data.get("classifier_pooling", "cls")
    if pooling not in _POOLINGS:
        raise ModelError(f"modernbert: `classifier_pooling` must be cls or mean: got {pooling!r}")
    return (HeadConfig(kind, labels, pooling=_POOLINGS[pooling], **inside),)


def _write(config: NetworkConfig) -> dict[str, object]:
    local = () if config.mask is None else config.mask.layers or ()
    kinds = [LOCAL if n in local else GLOBAL for n in range(config.n_layers)]
    ropes = {kinds[scheme.layers[0]]: scheme.base for scheme in config.schemes if scheme.layers}  # a base for each kind
    head = next(iter(config.heads), None)
    rate = head_dropout(config)
    data = {
        **write_heads(_HEADS, config),
        "model_type": "modernbert",
        **their_sizes(config),
        "layer_types": kinds,
        "local_attention": 2 * (config.mask.left or 0) if config.mask is not None else 128,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in ropes.items()},
        "embedding_dropout": config.dropout,
        "attention_dropout": config.attention.dropout,
        "attention_bias": config.attention.bias,
        "mlp_dropout": config.feed_forward.dropout,
        "mlp_bias": config.feed_forward.bias,
        "hidden_activation": their_activation(config),
        "norm_eps": config.norm_eps,
        "norm_bias": config.norm_bias,
        "max_position_embeddings": config.max_len,
        "tie_word_embeddings": config.output.tied,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "cls_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "sep_token_id": config.eos_id,
    }
    if head is not None:
        activation = head.activation or ("tanh" if head.hidden else config.feed_forward.activation)
        data |= {
            "classifier_bias": head.hidden_bias,
            "classifier_activation": {"gelu-tanh": "gelu_new"}.get(activation, activation),
            "classifier_pooling": "mean" if head.pooling == "mean" else "cls",
            "classifier_dropout": head.dropout if rate is None else rate,
        }
    return data


def _rows(config: NetworkConfig) -> list[Row]:
    bias = config.norm_bias
    rows = [Row("embedding.weight", (_TABLE,)), *norm("inputs.norm", "embeddings.norm", bias=bias)]
    for n in range(config.n_layers):
        ours, theirs = f"stack.blocks.{n}", f"layers.{n}"
        # the first layer has no norm before its attention
        rows += norm(f"{ours}.self_attention_residual.norm", f"{theirs}.attn_norm", bias=bias) if n else []
        rows += [
            *linear(f"{ours}.self_attention.input", f"{theirs}.attn.Wqkv", bias=config.attention.bias),
            *linear(f"{ours}.self_attention.output", f"{theirs}.attn.Wo", bias=config.output_projection_bias),
            *norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.mlp_norm", bias=bias),
            *linear(f"{ours}.feed_forward.inner", f"{theirs}.mlp.Wi", bias=config.feed_forward.bias),
            *linear(f"{ours}.feed_forward.outer", f"{theirs}.mlp.Wo", bias=config.feed_forward.bias),
        ]
    rows += norm("stack.norm", "final_norm", bias=bias)
    return [*rows, *(row for head in config.heads for row in _head_rows(head, config))]


def _head_rows(head: HeadConfig, config: NetworkConfig) -> list[Row]:
    ours, masked = f"heads.{head.name}", head.kind == "masked-language-model"
    if not masked and not (head.hidden and head.hidden_norm):
        raise ModelError("heads of ModernBERT have a dense layer and a norm: set `hidden` and `hidden_norm`")
    inside = f"{ours}.transform" if masked else ours
    rows = [
        *linear(f"{inside}.dense", "head.dense", bias=head.hidden_bias, head=True),
        *norm(f"{inside}.norm", "head.norm", bias=config.norm_bias, head=True),
    ]
    if not masked:
        return [*rows, *linear(f"{ours}.out", "classifier", head=True)]
    matrix = [] if config.output.tied else [Row(f"{ours}.output.weight", (_HEADS.matrix,), head=True)]
    return [*rows, *matrix, Row(f"{ours}.output.bias", (_HEADS.bias,), head=True)]


def _new_head(kind: HeadKind, network: NetworkConfig) -> dict[str, object]:
    """As its classes, which read the mean of the tokens in the released models."""
    inside = {"hidden": True, "hidden_bias": False, "hidden_norm": True, "activation": "gelu"}
    return {**inside, "pooling": "mean" if kind in OF_TEXT else None, "dropout": network.dropout}


MODERNBERT = Family(
    "modernbert",
    prefix="model.",
    read=_read,
    write=_write,
    rows=_rows,
    computed=(".rotary_emb.inv_freq",),
    repeats=_HEADS.repeats,
    new_head=_new_head,
)
