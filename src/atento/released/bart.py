"""BART and its relatives (Marian, mBART, M2M-100 and NLLB, Pegasus): one weight table, and their differences.

They differ in the placement of norms, in positions and in the special ids. See docs/notes.md#c8, #c16.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
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
from atento.config.tables.head_kinds import OF_TEXT, HeadKind
from atento.released.encoder_heads import read_rereading_heads, rereading_rows, write_rereading_heads
from atento.released.family import Family, Repeat, Settings, Tying, activation_of, first_id, refuse, their_activation
from atento.released.weight_rows import Row, attention, linear, norm

_log = logging.getLogger(__name__)
_READER, _WRITER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"


@dataclass(frozen=True)
class Relative:
    """The differences of a relative of BART.

    `theirs` is the class; `pre`: norms stand before the sublayers and at the end of each stack; `input_norm`: the
    embeddings are normalised; `positions`: "learned", "sinusoidal", or "fairseq" (sinusoids of real tokens, behind the
    id of padding); `bias`: the logits have one; `pad`, `unk`, `eos`: ids that a configuration may leave out;
    `denoises`: trained to write a text without its masks.
    """

    model_type: str
    theirs: str
    pre: bool = False
    input_norm: bool = True
    positions: str = "learned"
    bias: bool = True
    pad: int = 1
    eos: int = 2
    unk: int = 3
    activation: str = "gelu"
    denoises: bool = False

    def scheme(self, d_model: int, pad: int) -> PositionConfig:
        """The positions of its networks."""
        if self.positions == "learned":
            return PositionConfig("learned", shift=2)
        if self.positions == "sinusoidal":
            return PositionConfig("sinusoidal", interleaved=False)
        half = d_model // 2  # fairseq's last wavelength is that of 10,000 itself, the paper's is just below it
        base = 10000.0 ** (half / max(1, half - 1))
        return PositionConfig("sinusoidal", interleaved=False, base=base, shift=pad + 1, real_only=True)


def _read(relative: Relative, data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    model_type = relative.model_type
    refuse(data, {"normalize_before": (relative.pre,), "add_final_layer_norm": (relative.pre,)}, model_type)
    for name in ("ffn_dim", "attention_heads"):
        if data[f"encoder_{name}"] != data[f"decoder_{name}"]:
            raise ModelError(f"{model_type}: `encoder_{name}` and `decoder_{name}` must be equal here")
    written = data.get("decoder_vocab_size")
    written = None if data.get("share_encoder_decoder_embeddings", True) else written  # that of targets alone
    pad = first_id(data.get("pad_token_id"), relative.pad)
    end = first_id(data.get("eos_token_id"), relative.eos)
    depth = data["encoder_layers"]
    heads = read_rereading_heads(data, names)
    if heads and relative.model_type == "mbart":
        _log.warning(
            "a head of mBART reads the last token here, and begins at EOS; its own class reads the last EOS and begins "
            "at the last token: equal for texts that end in EOS, not for those that end in the code of a language"
        )
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
            activation=activation_of(data.get("activation_function", relative.activation), model_type),
        ),
        embedding=InputConfig(
            norm=relative.input_norm,
            scaled=bool(data.get("scale_embedding", False)),
            shared=tying.same(_READER, "shared.weight") and tying.same(_WRITER, "shared.weight"),
            target_vocab_size=None if written == data["vocab_size"] else written,
        ),
        output=OutputConfig(tied=tying.same("lm_head.weight", _WRITER), bias=relative.bias),
        ids=SpecialIds(
            pad=pad,
            bos=first_id(data.get("bos_token_id"), end),
            eos=end,
            unk=min(relative.unk, data["vocab_size"] - 1),
            start=first_id(data.get("decoder_start_token_id"), pad if relative.positions == "sinusoidal" else end),
            mask=data["vocab_size"] - 1 if model_type == "bart" else None,  # its last token
        ),
        norm="pre" if relative.pre else "post",
        positions=relative.scheme(data["d_model"], pad),
        max_len=data.get("max_position_embeddings", 1024),
        heads=heads,
        initializer="normal",
    )


def _write(relative: Relative, config: NetworkConfig) -> dict[str, object]:
    data: dict[str, object] = {
        **_write_heads(relative, config),
        "model_type": relative.model_type,
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
        data |= {f"{side}_layers": depth, f"{side}_ffn_dim": config.d_ff, f"{side}_attention_heads": config.n_heads}
    if relative.model_type == "marian":
        data["share_encoder_decoder_embeddings"] = config.embedding.shared
        data["decoder_vocab_size"] = config.target_vocab_size
    return data


def _write_heads(relative: Relative, config: NetworkConfig) -> dict[str, object]:
    """The class and, of a head for classes or a number, the labels.
    Raises ModelError: no class of the family has these heads.
    """
    if not config.heads:
        return {"architectures": [relative.theirs]}
    classes = relative.theirs.removesuffix("ForConditionalGeneration")
    if relative.model_type not in ("bart", "mbart"):
        raise ModelError(f"no {classes} class of the Hugging Face layout holds the heads of this network")
    return write_rereading_heads(classes, config)


def _rows(relative: Relative, config: NetworkConfig) -> list[Row]:
    if config.embedding.shared:
        # `transformers` takes an output matrix of its own for a sign that nothing else is shared either
        copies = () if config.output.tied else (_READER, _WRITER)
        rows = [Row("embedding.weight", ("shared.weight",), copies=copies)]
    else:
        rows = [Row("embedding.weight", (_READER,)), Row("target_embedding.weight", (_WRITER,))]
    for side, ours, depth in (("encoder", "source", config.n_layers), ("decoder", "target", config.decoder_layers)):
        if relative.positions == "learned":
            rows.append(Row(f"{ours}_inputs.positions.schemes.0.weight", (f"{side}.embed_positions.weight",)))
        rows += norm(f"{ours}_inputs.norm", f"{side}.layernorm_embedding") if relative.input_norm else []
        rows += norm(f"{side}.norm", f"{side}.layer_norm") if relative.pre else []
        parts = [("self_attention", "self_attention_residual", "self_attn")]
        parts += [("cross_attention", "cross_attention_residual", "encoder_attn")] if side == "decoder" else []
        for n in range(depth):
            block, theirs = f"{side}.blocks.{n}", f"{side}.layers.{n}"
            for part, residual, name in parts:
                inside = [f"{theirs}.{name}.{letter}_proj" for letter in "qkv"]
                rows += attention(f"{block}.{part}", inside, f"{theirs}.{name}.out_proj", config)
                rows += norm(f"{block}.{residual}.norm", f"{theirs}.{name}_layer_norm")
            rows += linear(f"{block}.feed_forward.inner", f"{theirs}.fc1")
            rows += linear(f"{block}.feed_forward.outer", f"{theirs}.fc2")
            rows += norm(f"{block}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
    rows += rereading_rows(config)
    rows += [] if config.output.tied else [Row("heads.vocabulary.output.weight", ("lm_head.weight",), head=True)]
    bias = Row(  # classes with a head for texts have none
        "heads.vocabulary.output.bias",
        ("final_logits_bias",),
        flat=True,
        head=True,
        optional=True,
        omit_zero=bool(config.heads),
    )
    return [*rows, bias] if relative.bias else rows


def _repeats(data: Mapping[str, object]) -> tuple[Repeat, ...]:
    if not data.get("share_encoder_decoder_embeddings", True):  # Marian's, with a vocabulary a side
        return (Repeat("lm_head.weight", _WRITER),)
    return tuple(Repeat(name, "shared.weight") for name in (_WRITER, _READER, "lm_head.weight"))


def _new_head(kind: HeadKind, network: NetworkConfig) -> dict[str, object] | None:
    if kind in OF_TEXT:
        return {"hidden": True, "pooling": "last", "side": "both", "dropout": network.dropout}
    return {"side": "both"} if kind == "span" else None


_TABLES = [f"{side}.embed_positions.weight{plural}" for side in ("encoder", "decoder") for plural in ("", "s")]
BART_AND_RELATIVES = tuple(
    Family(
        relative.model_type,
        prefix="model.",
        read=partial(_read, relative),
        write=partial(_write, relative),
        rows=partial(_rows, relative),
        computed=("encoder.version", "decoder.version", *([] if relative.positions == "learned" else _TABLES)),
        repeats=_repeats,
        new_head=_new_head if relative.denoises else lambda kind, network: None,
        denoises=relative.denoises,
    )
    for relative in (
        Relative("bart", "BartForConditionalGeneration", denoises=True),
        Relative("marian", "MarianMTModel", input_norm=False, positions="sinusoidal", unk=1),
        Relative("mbart", "MBartForConditionalGeneration", pre=True),
        Relative(
            "m2m_100",
            "M2M100ForConditionalGeneration",
            pre=True,
            input_norm=False,
            positions="fairseq",
            bias=False,
            activation="relu",
        ),
        Relative(
            "pegasus",
            "PegasusForConditionalGeneration",
            pre=True,
            input_norm=False,
            positions="sinusoidal",
            pad=0,
            eos=1,
            unk=105,
        ),
    )
)
