"""The graphs that are exported: an encoder with its heads, decoders with their caches, and the encoder beside one.

Inputs and outputs have the names that they have in the files of optimum.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.base.errors import CapabilityError
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import OF_TRAINING
from atento.model import Model
from atento.models.model_folder import section_of
from atento.networks.heads import LinearHead, max_token, mean_token, sqrt_mean_token, weighted_mean_token
from atento.networks.interface import Network
from atento.networks.rare_layers import LayerMix
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.vocabulary import VocabularyHead
from atento_cli.convert.onnx_stack import (
    Cache,
    GraphInputs,
    GraphStack,
    Read,
    index_positions,
    memory_caches,
    real_positions,
)

_BATCH, _LENGTH, _PAST = 2, 3, 4  # sizes of the recorded call
Axes = dict[int, str]
_TEXT: Axes = {0: "batch_size", 1: "sequence_length"}
_SOURCE: Axes = {0: "batch_size", 1: "encoder_sequence_length"}


@dataclass(frozen=True)
class Graph:
    """A module, the inputs of the call that is recorded, by name, and the names of the outputs.

    `axes` names the dimensions of any length, by input or output.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]
    axes: dict[str, Axes] = field(default_factory=dict)


def graphs_of(network: Network, embedding: EmbeddingConfig | None) -> dict[str, Graph]:
    """The graphs of a network by file name.

    Args:
        network: a network that the limits do not refuse.
        embedding: how an encoder makes the vector of a text; None: it is not a model of text vectors.
    """
    if isinstance(network, EncoderDecoder):
        return _encoder_decoder(network)
    if isinstance(network, Decoder):
        return {"model.onnx": _decoder(network)}
    assert isinstance(network, Encoder)
    return {"model.onnx": _encoder(network, embedding)}


def text_vectors_of(model: Model) -> EmbeddingConfig | None:
    """How a model makes the vectors of texts; None: it is not a model of text vectors."""
    if "embedding" not in model.config:
        return None
    config = section_of(EmbeddingConfig, model.config, model.path or Path())
    if config.prompt and not config.pool_prompt:
        raise CapabilityError("ONNX has no text vectors that leave out the prompt: `embedding.pool_prompt` is false")
    return config


def head_names(config: NetworkConfig) -> list[str]:
    """The heads of an encoder that have a prediction for each text or token."""
    return [head.name for head in config.heads if head.kind not in OF_TRAINING]


class EncoderGraph(nn.Module):
    """ids, mask and segments -> the predictions of the heads, or hidden vectors (and the vectors of texts)."""

    def __init__(self, network: Encoder, embedding: EmbeddingConfig | None) -> None:
        super().__init__()
        self.network, self.embedding = network, embedding
        self.inputs = GraphInputs(network.config, network.inputs, network.embedding)
        self.stack = GraphStack(network.stack)

    def forward(self, ids: Tensor, attention_mask: Tensor, segment_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        """(B,L) each -> the outputs, in the order of their names."""
        network, index = self.network, index_positions(ids.shape[1])
        x = self.inputs(ids, index, real_positions(attention_mask), segment_ids)  # (B,L,D)
        layers, _ = self.stack(x, Read(index, index, index, index, attention_mask != 0))
        hidden = layers[-1] if network.mix is None else _mixed(network.mix, layers)
        names = head_names(network.config)
        if names:
            read = [self._prediction(name, hidden, attention_mask) for name in names]
            return tuple(tensor for tensors in read for tensor in tensors)
        if self.embedding is None:
            return (hidden,)
        parts = self.embedding.pooling.split("+")
        pooled = torch.cat([_pooled(part, hidden, attention_mask) for part in parts], dim=-1)  # (B,parts·D)
        vectors = network.text_vectors(pooled)
        return (hidden, F.normalize(vectors, dim=-1) if self.embedding.normalize else vectors)

    def _prediction(self, name: str, hidden: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        head = self.network.heads[name]
        if isinstance(head, VocabularyHead):
            return (head(hidden, self.network.table),)
        assert isinstance(head, LinearHead)
        if head.pooling == "pooler":
            assert self.network.pooler is not None
            hidden = torch.tanh(self.network.pooler.dense(_pooled("first", hidden, attention_mask)))  # (B,D)
        elif head.pooling is not None:
            hidden = _pooled(head.pooling, hidden, attention_mask)
        logits = head(hidden)
        if head.kind == "span":
            return logits[..., 0], logits[..., 1]
        return (logits.squeeze(-1) if head.kind == "detection" else logits,)


def _pooled(pooling: str, hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """One vector a text: (B,L,D) -> (B,D)."""
    if pooling in ("mean", "max"):
        return (mean_token if pooling == "mean" else max_token)(hidden, attention_mask != 0)
    if pooling == "sqrt-mean":
        return sqrt_mean_token(hidden, attention_mask != 0)
    if pooling == "weighted-mean":
        return weighted_mean_token(hidden, attention_mask * (real_positions(attention_mask) + 1))
    order = index_positions(attention_mask.shape[1]) + 1  # (L,), 1 to L
    if pooling == "first":
        order = attention_mask.shape[1] + 1 - order  # L to 1: the first token wins
    token = (attention_mask * order).argmax(dim=1)  # (B,), the last real token or the first
    return hidden.gather(1, token[:, None, None].expand(-1, 1, hidden.shape[-1])).squeeze(1)  # (B,D)


def _mixed(mix: LayerMix, layers: list[Tensor]) -> Tensor:
    """As `LayerMix`, one layer after the other."""
    shares = torch.softmax(mix.weights, dim=0)  # (layers,)
    normed = [F.layer_norm(layer, layer.shape[-1:]) for layer in layers] if mix.norm else layers
    total = normed[0] * shares[0]
    for number, layer in enumerate(normed[1:], 1):
        total = total + layer * shares[number]
    return total * mix.gamma


class DecoderGraph(nn.Module):
    """ids (B,T), the mask of all tokens (B,P+T) and the cache of P tokens -> logits and the cache of P+T tokens."""

    def __init__(self, network: Decoder) -> None:
        super().__init__()
        self.network = network
        self.inputs = GraphInputs(network.config, network.inputs, network.embedding)
        self.stack = GraphStack(network.stack)

    def forward(self, ids: Tensor, attention_mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Prompts may be padded on either side; positions count real tokens."""
        keys, positions = index_positions(attention_mask.shape[1]), real_positions(attention_mask)
        start = attention_mask.shape[1] - ids.shape[1]  # tokens in the caches
        new = positions[:, start:]
        read = Read(keys[start:], keys, new, positions, attention_mask != 0)
        pairs = [(past[n], past[n + 1]) for n in range(0, len(past), 2)]
        layers, present = self.stack(self.inputs(ids, new, new), read, past=pairs)
        hidden = layers[-1] if self.network.mix is None else _mixed(self.network.mix, layers)
        return (self.network.project(hidden), *_flat(present))


class SourceGraph(nn.Module):
    """The encoder of an encoder-decoder: ids and mask (B,M) -> hidden vectors (B,M,D)."""

    def __init__(self, network: EncoderDecoder) -> None:
        super().__init__()
        self.inputs = GraphInputs(network.config, network.source_inputs, network.embedding)
        self.stack = GraphStack(network.encoder)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        """As the class says."""
        index = index_positions(ids.shape[1])
        x = self.inputs(ids, index, real_positions(attention_mask))
        layers, _ = self.stack(x, Read(index, index, index, index, attention_mask != 0))
        hidden: Tensor = layers[-1]
        return hidden


class TargetGraph(nn.Module):
    """The decoder of an encoder-decoder: with `first`, from encoded sources; else from a cache of P tokens."""

    def __init__(self, network: EncoderDecoder, *, first: bool) -> None:
        super().__init__()
        self.network, self.first = network, first
        self.inputs = GraphInputs(network.config, network.target_inputs, network.table)
        self.stack = GraphStack(network.decoder)

    def forward(self, source_mask: Tensor, ids: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The source's mask (B,M), ids (B,T), and encoded sources (B,M,D) or the caches of both attentions a layer."""
        past, cached = None, 0
        if self.first:
            memory = memory_caches(self.network.decoder, tensors[0])
        else:
            layers = [tensors[n : n + 4] for n in range(0, len(tensors), 4)]  # keys and values of both attentions
            past = [(keys, values) for keys, values, _, _ in layers]
            memory = [(keys, values) for _, _, keys, values in layers]
            cached = tensors[0].shape[2]  # tokens
        keys = index_positions(cached + ids.shape[1])
        queries = keys[cached:]  # those of the T new tokens
        x = self.inputs(ids, queries, queries)
        hidden, present = self.stack(
            x, Read(queries, keys, queries, keys, None), past=past, memory=memory, memory_real=source_mask != 0
        )
        logits = self.network.project(hidden[-1])  # (B,T,V)
        if not self.first:
            return (logits, *_flat(present))  # the source's do not change
        return (logits, *(tensor for new, source in zip(present, memory) for tensor in (*new, *source)))


def _flat(caches: list[Cache]) -> list[Tensor]:
    return [tensor for cache in caches for tensor in cache]


def _encoder(network: Encoder, embedding: EmbeddingConfig | None) -> Graph:
    config = network.config
    inputs = {"input_ids": _ids(_LENGTH), "attention_mask": _ids(_LENGTH)}
    if config.embedding.segments > 1:
        inputs["token_type_ids"] = _ids(_LENGTH)
    axes = dict.fromkeys(inputs, _TEXT)
    names, outputs = head_names(config), list[str]()
    for name in names:
        head, prefix = network.heads[name], "" if len(names) == 1 else f"{name}_"
        outputs += [f"{prefix}start_logits", f"{prefix}end_logits"] if head.kind == "span" else [f"{prefix}logits"]
        tokens = head.kind in ("vocabulary", "tag", "span", "detection")  # else one for each text
        axes |= dict.fromkeys(outputs[-2 if head.kind == "span" else -1 :], _TEXT if tokens else {0: "batch_size"})
    if not names:
        outputs, axes["last_hidden_state"] = ["last_hidden_state"], _TEXT
        if embedding is not None:
            outputs, axes["sentence_embedding"] = [*outputs, "sentence_embedding"], {0: "batch_size"}
    return Graph(EncoderGraph(network, embedding), inputs, outputs, axes)


def _decoder(network: Decoder) -> Graph:
    config = network.config
    inputs: dict[str, Tensor] = {"input_ids": _ids(_LENGTH), "attention_mask": _ids(_PAST + _LENGTH)}
    both = {0: "batch_size", 1: "past_sequence_length + sequence_length"}
    axes: dict[str, Axes] = {"input_ids": _TEXT, "attention_mask": both, "logits": _TEXT}
    outputs = ["logits"]
    for n in range(config.n_layers):
        for part in ("key", "value"):
            inputs[f"past_key_values.{n}.{part}"] = _cache(config, _PAST)
            axes[f"past_key_values.{n}.{part}"] = {0: "batch_size", 2: "past_sequence_length"}
            outputs.append(f"present.{n}.{part}")
            axes[outputs[-1]] = {0: "batch_size", 2: "past_sequence_length + sequence_length"}
    return Graph(DecoderGraph(network), inputs, outputs, axes)


def _encoder_decoder(network: EncoderDecoder) -> dict[str, Graph]:
    config = network.config
    encoder = Graph(
        SourceGraph(network),
        {"input_ids": _ids(_LENGTH), "attention_mask": _ids(_LENGTH)},
        ["last_hidden_state"],
        dict.fromkeys(("input_ids", "attention_mask", "last_hidden_state"), _TEXT),
    )
    encoded = torch.zeros(_BATCH, _PAST, config.d_model)
    shared = {"encoder_attention_mask": _ids(_PAST), "input_ids": _ids(_LENGTH)}
    axes: dict[str, Axes] = {"encoder_attention_mask": _SOURCE, "input_ids": _TEXT, "logits": _TEXT}
    first_axes, past_axes = {**axes, "encoder_hidden_states": _SOURCE}, dict(axes)
    past, outputs, new_outputs = dict[str, Tensor](), ["logits"], ["logits"]
    for n in range(config.decoder_layers):
        for side, length in (("decoder", "past_sequence_length"), ("encoder", "encoder_sequence_length")):
            for part in ("key", "value"):
                name = f"{n}.{side}.{part}"
                past[f"past_key_values.{name}"] = _cache(config, _PAST)
                past_axes[f"past_key_values.{name}"] = {0: "batch_size", 2: length}
                outputs.append(f"present.{name}")
                first_axes[f"present.{name}"] = {0: "batch_size", 2: length.replace("past_", "")}  # no past yet
                if side == "decoder":  # the source's are those of the first call
                    new_outputs.append(f"present.{name}")
                    past_axes[f"present.{name}"] = {0: "batch_size", 2: "past_sequence_length + sequence_length"}
    return {
        "encoder_model.onnx": encoder,
        "decoder_model.onnx": Graph(
            TargetGraph(network, first=True), {**shared, "encoder_hidden_states": encoded}, outputs, first_axes
        ),
        "decoder_with_past_model.onnx": Graph(
            TargetGraph(network, first=False), {**shared, **past}, new_outputs, past_axes
        ),
    }


def _ids(length: int) -> Tensor:
    return torch.ones(_BATCH, length, dtype=torch.long)


def _cache(config: NetworkConfig, length: int) -> Tensor:
    return torch.zeros(_BATCH, config.kv_heads, length, config.head_width)


def ordered(graph: Graph) -> tuple[object, ...]:
    """The inputs of the recorded call, in the order of the module's arguments."""
    return tuple(graph.inputs.values())
