"""GPT-1 and GPT-2: configuration and weight table (docs/notes.md#c9, #c16). Their linear maps are stored (in, out)."""

from functools import partial

from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import (
    AttentionConfig,
    FeedForwardConfig,
    InputConfig,
    OutputConfig,
    SpecialIds,
)
from atento.config.sections.position_scheme import PositionConfig
from atento.released.decoder_heads import DecoderHeads
from atento.released.family import Family, Repeat, Settings, Tying, activation_of, first_id, refuse, their_activation
from atento.released.weight_rows import Row, linear, norm

_HEADS = {
    "openai-gpt": DecoderHeads("OpenAIGPT", "OpenAIGPTLMHeadModel", "tokens_embed.weight"),
    "gpt2": DecoderHeads("GPT2", "GPT2LMHeadModel", "wte.weight", tags="classifier", answers=True),
}


def _read(model_type: str, data: Settings, names: frozenset[str], tying: Tying) -> NetworkConfig:
    first, heads = model_type == "openai-gpt", _HEADS[model_type]
    refuse(
        data,
        {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
            "is_causal": (True, None),
        },
        model_type,
    )
    activation = activation_of(
        data.get("afn", "gelu") if first else data.get("activation_function", "gelu_new"), model_type
    )
    if first and activation == "gelu":
        activation = "gelu-tanh"  # what GPT-1's files call gelu is the approximation by tanh
    d_model = data["n_embd"]
    end = first_id(data.get("eos_token_id"), 0 if first else data["vocab_size"] - 1)
    start, unknown = first_id(data.get("bos_token_id"), end), first_id(data.get("unk_token_id"), 0 if first else end)
    return NetworkConfig(
        architecture="decoder",
        family=model_type,
        vocab_size=data["vocab_size"],
        d_model=d_model,
        d_ff=data.get("n_inner") or 4 * d_model,
        n_heads=data["n_head"],
        n_layers=data["n_layer"],
        dropout=data.get("resid_pdrop", 0.1),
        attention=AttentionConfig(dropout=data.get("attn_pdrop", 0.1)),
        feed_forward=FeedForwardConfig(activation=activation),
        embedding=InputConfig(scaled=False),
        output=OutputConfig(tied=heads.tied(data, names, tying)),
        ids=SpecialIds(pad=first_id(data.get("pad_token_id"), end), bos=start, eos=end, unk=unknown, start=start),
        norm="post" if first else "pre",
        norm_eps=data.get("layer_norm_epsilon", 1e-5),
        positions=PositionConfig("learned"),
        max_len=data["n_positions"],
        heads=heads.read(data, names),
        initializer="normal",
    )


def _write(model_type: str, config: NetworkConfig) -> dict[str, object]:
    first = model_type == "openai-gpt"
    data = {
        **_HEADS[model_type].write(config),
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "n_positions": config.max_len,
        "n_embd": config.d_model,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention.dropout,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.output.tied,
        "pad_token_id": config.pad_id,
        "bos_token_id": config.start_id,
        "eos_token_id": config.eos_id,
    }
    if first:
        known = "gelu" if config.feed_forward.activation == "gelu-tanh" else their_activation(config)
        return data | {"afn": known, "unk_token_id": config.unk_id}
    data |= {"activation_function": their_activation(config), "n_inner": config.d_ff}
    return data | {"unk_token_id": config.unk_id}


def _rows(model_type: str, config: NetworkConfig) -> list[Row]:
    first = model_type == "openai-gpt"
    table, position_table = ("tokens_embed", "positions_embed") if first else ("wte", "wpe")
    names = {"embedding.weight": table, "inputs.positions.schemes.0.weight": position_table}
    rows = [Row(ours, (f"{theirs}.weight",)) for ours, theirs in names.items()]
    for n in range(config.n_layers):
        ours, theirs = f"stack.blocks.{n}", f"h.{n}"
        rows += [
            *linear(f"{ours}.self_attention.input", f"{theirs}.attn.c_attn", transposed=True),
            *linear(f"{ours}.self_attention.output", f"{theirs}.attn.c_proj", transposed=True),
            *norm(f"{ours}.self_attention_residual.norm", f"{theirs}.ln_1"),
            *linear(f"{ours}.feed_forward.inner", f"{theirs}.mlp.c_fc", transposed=True),
            *linear(f"{ours}.feed_forward.outer", f"{theirs}.mlp.c_proj", transposed=True),
            *norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.ln_2"),
        ]
    rows += [] if first else norm("stack.norm", "ln_f")  # GPT-1 has its last norm in the last layer
    return [*rows, *_HEADS[model_type].rows(config)]


def _family(model_type: str) -> Family:
    return Family(
        model_type,
        prefix="transformer.",
        read=partial(_read, model_type),
        write=partial(_write, model_type),
        rows=partial(_rows, model_type),
        computed=(".attn.bias", ".attn.masked_bias", "position_ids"),
        repeats=lambda data: (Repeat("lm_head.weight", _HEADS[model_type].table),),
        transposed=True,
    )


GPT1, GPT2 = _family("openai-gpt"), _family("gpt2")
