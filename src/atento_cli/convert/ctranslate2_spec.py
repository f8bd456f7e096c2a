"""A network of ours as a specification of CTranslate2's Transformer, in which every family has the same form."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention
from atento.attention.positions import Rotary, Shaw, T5Bias
from atento.config.sections.network import NetworkConfig
from atento.networks.interface import Network
from atento.networks.layers import FeedForward, TokenEmbedding
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.stack.stack_positions import InputLayer, position_rows, position_table
from atento_cli.convert.token_names import Vocabulary

Array = NDArray[np.float32]


def specification(network: Network, vocabulary: Vocabulary) -> Any:
    """The specification of a network that `why_not_held` does not refuse, with copies of its weights in float32.

    Args:
        network: an encoder, a decoder or an encoder-decoder on the stack.
        vocabulary: the names of its tokens.
    """
    from ctranslate2 import specs

    config = network.config
    if isinstance(network, EncoderDecoder):
        target_table = network.embedding if network.target_embedding is None else network.target_embedding
        made = specs.TransformerSpec(
            _encoder(config, network.encoder, network.source_inputs, network.embedding),
            _decoder(config, network.decoder, network.target_inputs, target_table),
        )
        made.register_source_vocabulary(list(vocabulary.source))
        made.register_target_vocabulary(list(vocabulary.target))
        made.config.decoder_start_token = vocabulary.target[config.start_id]
    elif isinstance(network, Decoder):
        made = specs.TransformerDecoderModelSpec(_decoder(config, network.stack, network.inputs, network.embedding))
        made.register_vocabulary(list(vocabulary.target))
    else:
        assert isinstance(network, Encoder)
        encoder = _encoder(config, network.stack, network.inputs, network.embedding)
        made = specs.TransformerEncoderModelSpec(encoder, pooling_layer=network.pooler is not None)
        if network.pooler is not None:
            _set_linear(made.pooler_dense, network.pooler.dense)
        made.register_vocabulary(list(vocabulary.source))
    if not isinstance(network, Encoder):
        made.decoder.projection.weight = _array(network.projection)
        head = network.vocabulary_head
        if head.bias is not None:
            made.decoder.projection.bias = _array(head.bias)
        if head.scale != 1.0:
            made.decoder.scale_outputs = float(head.scale)
    made.config.layer_norm_epsilon = config.norm_eps
    made.config.unk_token = vocabulary.target[config.unk_id]
    made.config.bos_token = vocabulary.target[config.bos_id]
    made.config.eos_token = vocabulary.target[config.eos_id]
    return made


def _encoder(config: NetworkConfig, stack: Stack, inputs: InputLayer, table: TokenEmbedding) -> object:
    from ctranslate2 import specs
    from ctranslate2.specs.common_spec import EmbeddingsMerge

    several = config.embedding.segments > 1
    made = specs.TransformerEncoderSpec(
        stack.n_layers,
        config.n_heads,
        num_source_embeddings=2 if several else 1,
        embeddings_merge=EmbeddingsMerge.ADD,
        **_options(config, inputs),
    )
    made.embeddings[0].weight = _array(table.weight)
    if inputs.segments is not None and several:
        made.embeddings[1].weight = _array(inputs.segments)
    elif inputs.segments is not None:  # one segment is added to every token
        made.embeddings[0].weight += _array(inputs.segments) / table.scale  # the sum is scaled when it is read
    _set_stack(made, config, stack, inputs, table)
    return made


def _decoder(config: NetworkConfig, stack: Stack, inputs: InputLayer, table: TokenEmbedding) -> object:
    """The specification of the stack of a decoder, without its output matrix."""
    from ctranslate2 import specs

    options = _options(config, inputs)
    stretched = isinstance(rotary := _scheme(stack), Rotary) and rotary.stretch is not None
    if stretched:  # factors of each rotation; with equal lengths the scores are not scaled
        limits = ("original_max_position_embeddings", "max_position_embeddings")
        options |= {"rotary_scaling_type": specs.RotaryScalingType.Su} | dict.fromkeys(limits, config.max_len)
    made = specs.TransformerDecoderSpec(
        stack.n_layers,
        config.n_heads,
        with_encoder_attention=config.architecture == "encoder-decoder",
        alibi=any(scheme.kind == "alibi" for scheme in config.schemes),
        **options,
    )
    made.embeddings.weight = _array(table.weight)
    _set_stack(made, config, stack, inputs, table)
    return made


def _options(config: NetworkConfig, inputs: InputLayer) -> dict[str, object]:
    """The arguments that the specifications of encoders and decoders share."""
    from ctranslate2.specs.common_spec import Activation

    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu-tanh": Activation.GELUTanh,
        "silu": Activation.SWISH,
    }
    kinds = {scheme.kind: scheme for scheme in config.schemes}
    options: dict[str, object] = {
        "pre_norm": config.norm == "pre",
        "activation": activations[config.feed_forward.activation],
        "layernorm_embedding": inputs.norm is not None,
        "relative_position": "shaw" in kinds,
        "relative_attention_bias": "t5" in kinds,
        "ffn_glu": config.feed_forward.gated,
        "rms_norm": config.norm_kind != "layer",
        "num_heads_kv": None if config.kv_heads == config.n_heads else config.kv_heads,
        "head_dim": None if config.head_width * config.n_heads == config.d_model else config.head_width,
        "qk_norm": config.attention.norm,
    }
    if "rotary" in kinds:
        rotary = kinds["rotary"]
        options |= {
            "rotary_dim": int(config.head_width * rotary.fraction) // 2 * 2,  # whole pairs
            "rotary_interleave": bool(rotary.interleaved),
            "rotary_base": rotary.base,
        }
    return options


def _set_stack(made: Any, config: NetworkConfig, stack: Stack, inputs: InputLayer, table: TokenEmbedding) -> None:
    made.scale_embeddings = table.scale if table.scale != 1.0 else False
    if hasattr(made, "position_encodings"):
        added = position_table(config, inputs)
        # zeros if there are none, where the engine would add sinusoids of its own
        zeros = np.zeros((position_rows(config), config.d_model), np.float32)
        made.position_encodings.encodings = zeros if added is None else _array(added)
    if inputs.norm is not None:
        _set_norm(made.layernorm_embedding, inputs.norm)
    if stack.norm is not None:
        _set_norm(made.layer_norm, stack.norm)
    for index, (layer, block) in enumerate(zip(made.layer, stack.layers)):
        _set_attention(layer.self_attention, block.self_attention, config.score_scale(index), groups=1)
        _set_norm(layer.self_attention.layer_norm, block.self_attention_residual.norm)
        if block.cross_attention is not None and block.cross_attention_residual is not None:
            _set_attention(layer.attention, block.cross_attention, config.attention.scale, groups=2)
            _set_norm(layer.attention.layer_norm, block.cross_attention_residual.norm)
        _set_feed_forward(layer.ffn, block.feed_forward)
        _set_norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)
        _set_relative(layer.self_attention, _scheme(stack, index))


def _set_attention(made: Any, attention: MultiHeadAttention, scale: float | None, *, groups: int) -> None:
    """Copy the projections: queries, keys and values in one matrix (1 group), or queries apart (2)."""
    weight, bias = attention.input.weight, attention.input.bias
    queries = attention.n_heads * attention.d_head
    parts = [slice(None)] if groups == 1 else [slice(0, queries), slice(queries, None)]
    for linear, part in zip(made.linear, parts):
        linear.weight = _array(weight[part])
        if bias is not None:
            linear.bias = _array(bias[part])
    _set_linear(made.linear[-1], attention.output)  # the last one is that of the output
    if scale is not None:
        made.queries_scale = float(scale)
    if attention.query_norm is not None and attention.key_norm is not None:
        _set_norm(made.q_norm, attention.query_norm)
        _set_norm(made.k_norm, attention.key_norm)


def _set_feed_forward(made: Any, feed_forward: FeedForward) -> None:
    """Copy both products; the first half of a gated one passes the activation."""
    inner = feed_forward.inner
    if not feed_forward.gated:
        _set_linear(made.linear_0, inner)
    else:
        half = inner.out_features // 2
        for linear, part in ((made.linear_0, slice(0, half)), (made.linear_0_noact, slice(half, None))):
            linear.weight = _array(inner.weight[part])
            if inner.bias is not None:
                linear.bias = _array(inner.bias[part])
    _set_linear(made.linear_1, feed_forward.outer)


def _scheme(stack: Stack, layer: int = 0) -> nn.Module | None:
    """The position scheme inside the self-attention of a layer; None: there is none."""
    positions = stack.positions
    indices = [*positions.relative[layer], *(index for index, _ in positions.rotary[layer])]
    return positions.schemes[indices[0]] if indices else None


def _set_relative(made: Any, scheme: nn.Module | None) -> None:
    """Copy the tables of relative positions, and the factors of stretched rotations."""
    if isinstance(scheme, T5Bias):
        made.relative_attention_bias = _array(scheme.weight)
        made.relative_attention_max_distance = np.dtype("int32").type(scheme.max_distance)
    elif isinstance(scheme, Shaw):
        assert scheme.value_table is not None
        made.relative_position_keys, made.relative_position_values = _array(scheme.keys), _array(scheme.value_table)
    elif isinstance(scheme, Rotary) and scheme.stretch is not None:
        rates = scheme.rates()
        factors = _array(rates / scheme.stretch.scaled(rates))  # how many times slower each rotation is
        made.rotary_scaling_long_factor, made.rotary_scaling_short_factor = factors, factors.copy()


def _set_linear(made: Any, linear: nn.Linear) -> None:
    made.weight = _array(linear.weight)
    if linear.bias is not None:
        made.bias = _array(linear.bias)


def _set_norm(made: Any, norm: nn.Module) -> None:
    if isinstance(norm, nn.LayerNorm):
        made.gamma = _array(norm.weight)
        made.beta = np.zeros_like(made.gamma) if norm.bias is None else _array(norm.bias)
    else:
        made.gamma = _array(cast(Tensor, norm.gain))


def _array(tensor: Tensor) -> Array:
    """A copy in float32: the library changes its arrays in place when it quantises them."""
    array: Array = tensor.detach().float().cpu().numpy().copy()
    return array
