"""Llama and its relatives (Mistral, Qwen2, Qwen3, Gemma): one configuration and weight table, and their differences.

Rotary positions over halves, shared heads, a gated feed-forward. See docs/notes.md#c16.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    MaskConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig, StretchConfig
from atento.released.decoder_heads import DecoderHeads
from atento.released.family import (
    GLOBAL,
    LOCAL,
    Family,
    Repeat,
    Settings,
    Tying,
    activation_of,
    first_id,
    layer_kinds,
    refuse,
    sizes_of,
    their_activation,
)
from atento.released.weight_rows import Row, attention, linear, norm

_TABLE = "embed_tokens.weight"


@dataclass(frozen=True)
class Relative:
    """The differences of a relative of Llama.

    `theirs` is the start of its classes' names; `answers`: the prefix in its class for answers, None: it has none.
    `bias`: queries, keys and values have a bias, and the output projection of attention has none. `norm`: queries and
    keys are normalised. `windowed`: a window needs no `use_sliding_window`, and is for all layers. `gemma`: norms
    multiply by 1 + weight, embeddings are scaled, the activation is gelu by tanh.
    """

    model_type: str
    theirs: str
    bias: bool = False
    norm: bool = False
    windowed: bool = False
    gemma: bool = False
    answers: str | None = "transformer."

    @property
    def heads(self) -> DecoderHeads:
        """The heads of its classes."""
        model = f"{self.theirs}ForCausalLM"
        return DecoderHeads(self.theirs, model, _TABLE, tags="score", answers=self.answers is not None)


def _read(relative: Relative, data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    read = {"pretraining_tp": (1, None), "use_bidirectional_attention": (None, False), "is_causal": (True, None)}
    refuse(data, read, relative.model_type)
    rope: Settings = (
        data.get("rope_parameters") or data.get("rope_scaling") or {}
    )  # the name of today, then the older one
    if not isinstance(rope, Mapping):
        raise ModelError(f"{relative.model_type}: `rope_parameters` must be a mapping: got {rope!r}")
    theta = float(rope.get("rope_theta", data.get("rope_theta", 10000.0)))
    n_heads = data["num_attention_heads"]
    shared = data.get("num_key_value_heads")
    width = data.get("head_dim")
    activation = activation_of(data.get("hidden_act", "gelu" if relative.gemma else "silu"), relative.model_type)
    if relative.gemma and activation == "gelu":  # published configurations say gelu and mean its approximation by tanh
        activation = "gelu-tanh"
    end = first_id(data.get("eos_token_id"), 2)
    start, unknown = first_id(data.get("bos_token_id"), 1), first_id(data.get("unk_token_id"), end)
    return NetworkConfig(
        architecture="decoder",
        family=relative.model_type,
        **sizes_of(data),
        attention=AttentionConfig(
            n_kv_heads=None if shared in (None, n_heads) else shared,
            d_head=None if width in (None, data["hidden_size"] // n_heads) else width,
            dropout=data.get("attention_dropout") or 0.0,
            bias=relative.bias or bool(data.get("attention_bias")),
            output_bias=False if relative.bias else None,  # queries, keys and values alone have one
            norm=relative.norm,
        ),
        feed_forward=FeedForwardConfig(activation=activation, gated=True, bias=bool(data.get("mlp_bias"))),
        mask=_window(relative, data),
        embedding=InputConfig(scaled=relative.gemma),
        output=OutputConfig(tied=relative.heads.tied(data, names, tying)),
        ids=SpecialIds(pad=first_id(data.get("pad_token_id"), end), bos=start, eos=end, unk=unknown, start=start),
        dropout=0.0,
        norm="pre",
        norm_kind="rms-plus-one" if relative.gemma else "rms",
        norm_eps=data.get("rms_norm_eps", 1e-6),
        positions=PositionConfig("rotary", base=theta, stretch=_stretch(rope, data, relative.model_type)),
        max_len=data.get("max_position_embeddings", 2048),
        heads=relative.heads.read(data, names),
        initializer="normal",
    )


def _window(relative: Relative, data: Settings) -> MaskConfig | None:
    """The window mask of self-attention, and the layers that have it."""
    width, depth = data.get("sliding_window"), data["num_hidden_layers"]
    kinds = layer_kinds(data, depth, relative.model_type)
    if width is None or not (relative.windowed or data.get("use_sliding_window")):
        return None
    if not isinstance(width, int) or width < 1:
        raise ModelError(f"{relative.model_type}: `sliding_window` must be a whole number, 1 or more: got {width!r}")
    if kinds is None:
        first = 0 if relative.windowed else data.get("max_window_layers", depth)  # the layers below see all
        layers = tuple(range(first, depth))
    else:
        layers = tuple(n for n, kind in enumerate(kinds) if kind == LOCAL)
    if not layers:
        return None
    # their width counts the token itself
    return MaskConfig("window", left=width - 1, right=0, layers=None if len(layers) == depth else layers)


def _their_window(relative: Relative, config: NetworkConfig) -> dict[str, object]:
    """The same under their keys."""
    if config.mask is None or config.mask.kind != "window" or config.mask.left is None:
        return {"sliding_window": None}
    layers = range(config.n_layers) if config.mask.layers is None else config.mask.layers
    kinds = [LOCAL if n in layers else GLOBAL for n in range(config.n_layers)]
    keys: dict[str, object] = {"sliding_window": config.mask.left + 1}
    if not relative.windowed:
        keys |= {"use_sliding_window": True, "layer_types": kinds, "max_window_layers": min(layers)}
    return keys


def _stretch(rope: Settings, data: Settings, model_type: str) -> StretchConfig | None:
    """The stretch of rotary positions, from their key."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return StretchConfig(float(rope["factor"]))
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return StretchConfig(float(rope["factor"]), int(rope["original_max_position_embeddings"]), low, high)
    if kind == "yarn":
        return _yarn(rope, data, model_type)
    longest = data.get("max_position_embeddings", 2048)
    if kind == "dynamic":
        return StretchConfig(float(rope["factor"]), longest, dynamic=True)
    if kind == "longrope":
        return _longrope(rope, data, longest)
    raise ModelError(
        f"{model_type}: rotary positions of type {kind!r} are not built here; known: default, linear, dynamic, llama3, "
        "yarn, longrope"
    )


def _longrope(rope: Settings, data: Settings, longest: int) -> StretchConfig:
    """LongRoPE's stretch. The attention factor may be given, or follow from how much longer texts may be (Phi-3)."""
    names, key = ("short_factor", "long_factor"), "original_max_position_embeddings"
    short, long = (tuple(float(value) for value in rope[name]) for name in names)
    trained = int(rope.get(key) or data.get(key) or longest)
    scale, factor = rope.get("attention_factor"), float(rope.get("factor") or longest / trained)
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return StretchConfig(max(factor, 1.0), trained, short=short, long=long, attention_factor=float(scale))


def _yarn(rope: Settings, data: Settings, model_type: str) -> StretchConfig:
    """YaRN's stretch. The attention factor may be given, or follow from `mscale` and `mscale_all_dim` (DeepSeek)."""
    refuse(rope, {"truncate": (True,)}, model_type)
    longest = data.get("max_position_embeddings", 2048)
    trained = int(rope.get("original_max_position_embeddings") or longest)
    factor, scale = float(rope.get("factor") or longest / trained), rope.get("attention_factor")
    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale is None and above and below:
        scale = (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
    low, high = float(rope.get("beta_slow") or 1), float(rope.get("beta_fast") or 32)
    scale = None if scale is None else float(scale)
    return StretchConfig(factor, trained, low, high, yarn=True, attention_factor=scale)


def _rope(config: NetworkConfig) -> dict[str, object]:
    """The same under their keys."""
    scheme = config.schemes[0] if config.schemes else PositionConfig("rotary")
    keys: dict[str, object] = {"rope_type": "default", "rope_theta": scheme.base}
    if scheme.stretch is None:
        return keys
    keys |= {"rope_type": "linear", "factor": scheme.stretch.factor}  # unless something below says otherwise
    if scheme.stretch.trained_len is None:
        return keys
    if scheme.stretch.dynamic:
        return keys | {"rope_type": "dynamic"}
    if scheme.stretch.long:
        return keys | {
            "rope_type": "longrope",
            "short_factor": list(scheme.stretch.short or ()),
            "long_factor": list(scheme.stretch.long),
            "original_max_position_embeddings": scheme.stretch.trained_len,
            "attention_factor": scheme.stretch.attention_factor,
        }
    if scheme.stretch.yarn:
        return keys | {
            "rope_type": "yarn",
            "beta_slow": scheme.stretch.low,
            "beta_fast": scheme.stretch.high,
            "original_max_position_embeddings": scheme.stretch.trained_len,
            "attention_factor": scheme.stretch.attention_factor,
        }
    return keys | {
        "rope_type": "llama3",
        "low_freq_factor": scheme.stretch.low,
        "high_freq_factor": scheme.stretch.high,
        "original_max_position_embeddings": scheme.stretch.trained_len,
    }


def _write(relative: Relative, config: NetworkConfig) -> dict[str, object]:
    rope = _rope(config)
    biases = {} if relative.bias else {"attention_bias": config.attention.bias}
    biases |= {"mlp_bias": config.feed_forward.bias} if relative.model_type == "llama" else {}
    return {
        **relative.heads.write(config),
        "model_type": relative.model_type,
        **biases,
        **_their_window(relative, config),
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "num_hidden_layers": config.n_layers,
        "attention_dropout": config.attention.dropout,
        "hidden_act": their_activation(config),
        "rms_norm_eps": config.norm_eps,
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "max_position_embeddings": config.max_len,
        "tie_word_embeddings": config.output.tied,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.start_id,
        "eos_token_id": config.eos_id,
        "unk_token_id": config.unk_id,
    }


def _rows(relative: Relative, config: NetworkConfig) -> list[Row]:
    rows, bias = [Row("embedding.weight", (_TABLE,))], config.feed_forward.bias
    for n in range(config.n_layers):
        ours, theirs = f"stack.blocks.{n}", f"layers.{n}"
        inside = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        gated = (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
        for part in ("query", "key") if config.attention.norm else ():
            rows += norm(f"{ours}.self_attention.{part}_norm", f"{theirs}.self_attn.{part[0]}_norm", bias=False)
        rows += [
            *attention(f"{ours}.self_attention", inside, f"{theirs}.self_attn.o_proj", config),
            *norm(f"{ours}.self_attention_residual.norm", f"{theirs}.input_layernorm", bias=False),
            *linear(f"{ours}.feed_forward.inner", *gated, sizes=(config.d_ff, config.d_ff), bias=bias),
            *linear(f"{ours}.feed_forward.outer", f"{theirs}.mlp.down_proj", bias=bias),
            *norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.post_attention_layernorm", bias=False),
        ]
    rows += norm("stack.norm", "norm", bias=False)
    return [*rows, *relative.heads.rows(config)]


LLAMA_AND_RELATIVES = tuple(
    Family(
        relative.model_type,
        prefix="model.",
        read=partial(_read, relative),
        write=partial(_write, relative),
        rows=partial(_rows, relative),
        computed=(".rotary_emb.inv_freq",),
        repeats=lambda data: (Repeat("lm_head.weight", _TABLE),),
        other_prefixes={} if relative.answers is None else {"ForQuestionAnswering": relative.answers},
        tied=relative.gemma,
    )
    for relative in (
        Relative("llama", "Llama"),
        Relative("mistral", "Mistral", windowed=True, answers="model."),
        Relative("qwen2", "Qwen2", bias=True),
        Relative("qwen3", "Qwen3", norm=True),
        Relative("gemma", "Gemma", gemma=True, answers=None),
    )
)
