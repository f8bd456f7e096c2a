"""BART and Marian: configuration and weight table. Both norm after the sum; their positions differ.

See docs/notes.md#c8, #c16.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from atento.config.attention import AttentionConfig
from atento.config.network import FeedForwardConfig, InputConfig, NetworkConfig, OutputConfig, SpecialIds
from atento.config.positions import PositionConfig
from atento.errors import ModelError
from atento.networks.families.family import Family, activation_of, first_id, refuse, their_activation
from atento.networks.families.rows import Row, attention, linear, norm
from atento.networks.families.tying import Repeat, Tying

_READER, _WRITER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"


def _read(model_type: str, data: Mapping[str, Any], names: frozenset[str], tying: Tying) -> NetworkConfig:
    marian = model_type == "marian"
    refuse(
        data,
        {"normalize_before": (False,), "add_final_layer_norm": (False,)},
        model_type,
    )
    for name in ("ffn_dim", "attention_heads"):
        if data[f"encoder_{name}"] != data[f"decoder_{name}"]:
            raise ModelError(f"{model_type}: `encoder_{name}` and `decoder_{name}` must be equal here")
    if data.get("decoder_vocab_size") not in (None, data["vocab_size"]):
        raise ModelError(
            f"{model_type}: `decoder_vocab_size` must be `vocab_size` here: got {data['decoder_vocab_size']}"
        )
    pad = first_id(data.get("pad_token_id"), 1)
    end = first_id(data.get("eos_token_id"), 2)
    depth = data["encoder_layers"]
    return NetworkConfig(
        family=model_type,
        vocab_size=data["vocab_size"],
        d_model=data["d_model"],
        d_ff=data["encoder_ffn_dim"],
        n_heads=data["encoder_attention_heads"],
        n_layers=depth,
        n_decoder_layers=None if data["decoder_layers"] == depth else data["decoder_layers"],
        dropout=data.get("dropout", 0.1),
        attention=AttentionConfig(dropout=data.get("attention_dropout", 0.0)),
        feed_forward=FeedForwardConfig(
            dropout=data.get("activation_dropout", 0.0),
            activation=activation_of(data.get("activation_function", "gelu"), model_type),
        ),
        embedding=InputConfig(
            norm=not marian,
            scaled=bool(data.get("scale_embedding", False)),
            shared=tying.same(_READER, "shared.weight") and tying.same(_WRITER, "shared.weight"),
        ),
        output=OutputConfig(tied=tying.same("lm_head.weight", _WRITER), bias=True),
        ids=SpecialIds(
            pad=pad,
            bos=first_id(data.get("bos_token_id"), end),
            eos=end,
            unk=1 if marian else 3,
            start=first_id(data.get("decoder_start_token_id"), pad if marian else end),
            mask=None if marian else data["vocab_size"] - 1,
        ),
        positions=PositionConfig("sinusoidal", interleaved=False) if marian else PositionConfig("learned", shift=2),
        max_len=data.get("max_position_embeddings", 1024),
        initializer="normal",
    )


def _write(model_type: str, config: NetworkConfig) -> dict[str, Any]:
    data: dict[str, Any] = {
        "architectures": ["MarianMTModel" if model_type == "marian" else "BartForConditionalGeneration"],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "max_position_embeddings": config.max_len,
        "dropout": config.dropout,
        "attention_dropout": config.attention.dropout,
        "activation_dropout": config.feed_forward.dropout,
        "activation_function": their_activation(config),
        "scale_embedding": config.embedding.scaled,
        "tie_word_embeddings": config.output.tied,
        "is_encoder_decoder": True,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,  # theirs would force EOS at the last place; `generation_config.json` decides
    }
    for side, depth in (("encoder", config.n_layers), ("decoder", config.decoder_layers)):
        data |= {
            f"{side}_layers": depth,
            f"{side}_ffn_dim": config.d_ff,
            f"{side}_attention_heads": config.n_heads,
        }
    if model_type == "marian":
        data |= {"share_encoder_decoder_embeddings": config.embedding.shared, "decoder_vocab_size": config.vocab_size}
    return data


def _rows(model_type: str, config: NetworkConfig) -> list[Row]:
    if config.embedding.shared:
        # `transformers` takes an output matrix of its own for a sign that nothing else is shared either
        copies = () if config.output.tied else (_READER, _WRITER)
        rows = [Row("embedding.weight", ("shared.weight",), copies=copies)]
    else:
        rows = [Row("embedding.weight", (_READER,)), Row("target_embedding.weight", (_WRITER,))]
    for side, ours, depth in (("encoder", "source", config.n_layers), ("decoder", "target", config.decoder_layers)):
        if model_type == "bart":
            rows.append(Row(f"{ours}_inputs.positions.schemes.0.weight", (f"{side}.embed_positions.weight",)))
            rows += norm(f"{ours}_inputs.norm", f"{side}.layernorm_embedding")
        for n in range(depth):
            rows += _layer(f"{side}.blocks.{n}", f"{side}.layers.{n}", side == "decoder", config)
    rows += [] if config.output.tied else [Row("heads.vocabulary.output.weight", ("lm_head.weight",), head=True)]
    return [*rows, Row("heads.vocabulary.output.bias", ("final_logits_bias",), flat=True, head=True, optional=True)]


def _repeats(data: Mapping[str, Any]) -> tuple[Repeat, ...]:
    if not data.get("share_encoder_decoder_embeddings", True):  # Marian's, with a vocabulary a side
        return (Repeat("lm_head.weight", _WRITER),)
    return tuple(Repeat(name, "shared.weight") for name in (_WRITER, _READER, "lm_head.weight"))


def _layer(ours: str, theirs: str, reads_source: bool, config: NetworkConfig) -> list[Row]:
    parts = [("self_attention", "self_attention_residual", "self_attn")]
    parts += [("cross_attention", "cross_attention_residual", "encoder_attn")] if reads_source else []
    rows: list[Row] = []
    for part, residual, name in parts:
        inside = [f"{theirs}.{name}.{letter}_proj" for letter in "qkv"]
        rows += attention(f"{ours}.{part}", inside, f"{theirs}.{name}.out_proj", config)
        rows += norm(f"{ours}.{residual}.norm", f"{theirs}.{name}_layer_norm")
    return [
        *rows,
        *linear(f"{ours}.feed_forward.inner", f"{theirs}.fc1"),
        *linear(f"{ours}.feed_forward.outer", f"{theirs}.fc2"),
        *norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm"),
    ]


def _family(model_type: str) -> Family:
    positions = ("encoder.embed_positions.weight", "decoder.embed_positions.weight") if model_type == "marian" else ()
    return Family(
        model_type,
        prefix="model.",
        read=partial(_read, model_type),
        write=partial(_write, model_type),
        rows=partial(_rows, model_type),
        computed=("encoder.version", "decoder.version", *positions),
        repeats=_repeats,
    )


BART, MARIAN = _family("bart"), _family("marian")
