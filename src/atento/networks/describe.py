"""A network as a tree of named parts, in the order of computation: the data of diagrams."""

from dataclasses import dataclass, field

from torch import nn

from atento.attention.multihead import MultiHeadAttention
from atento.base.errors import CapabilityError
from atento.config.sections.recurrent import RecurrentConfig
from atento.networks.interface import Network
from atento.networks.layers import Block, FeedForward, Residual
from atento.networks.recurrent.elmo import ELMo
from atento.networks.recurrent.language_model import RecurrentLM
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
from atento.networks.stack.encoder import Encoder
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.stack.stack_positions import InputLayer
from atento.networks.vocabulary import VocabularyHead
from atento.networks.words.cbow import CBOW


@dataclass(frozen=True)
class Part:
    """A box: its name, a short description, the number of its parameters (None: not shown).

    `parts` are the inner boxes, from first to last; `repeats` is how often the box is repeated. `skips` is for the sum
    of a residual connection: the number of boxes that the connection skips.
    """

    name: str
    detail: str = ""
    parameters: int | None = None
    parts: tuple["Part", ...] = field(default=())
    repeats: int = 1
    skips: int = 0


def describe(network: Network) -> list[Part]:
    """The columns of a network's diagram: one, or those of an encoder and a decoder."""
    if isinstance(network, EncoderDecoder):
        features = network.source_features
        source = (
            _table(network.embedding, "source tokens")
            if features is None
            else Part("features", f"layers {', '.join(map(str, features.layers))} of an encoder", _count(features))
        )
        reader = [source, *_inputs(network.source_inputs), *_stack(network.encoder)]
        writer = [_table(network.table, "target tokens, shifted right"), *_inputs(network.target_inputs)]
        writer += [*_stack(network.decoder), *_heads(network)]
        return [Part("encoder", parts=tuple(reader)), Part("decoder", parts=tuple(writer))]
    if isinstance(network, RecurrentSeq2Seq):
        recurrent = network.config.recurrent or RecurrentConfig()
        kind, score = recurrent.cell, recurrent.attention
        both = "both ways" if recurrent.bidirectional else "one way"
        reader = [_table(network.embedding, "source tokens"), Part(kind.upper(), both, _count(network.encoder))]
        attention = Part("attention", score, None) if score != "none" else Part("context", "the last state")
        writer = [_table(network.table, "target tokens, shifted right"), attention]
        writer += [Part(kind.upper(), "step by step", _count(network.decoder)), *_heads(network)]
        return [Part("encoder", parts=tuple(reader)), Part("decoder", parts=tuple(writer))]
    if isinstance(network, RecurrentLM):
        cells = Part("recurrent layers", "left to right", _count(network.stack))
        parts = [_table(network.embedding, "tokens"), cells, *_heads(network)]
        return [Part("language model", parts=tuple(parts))]
    if isinstance(network, ELMo):
        below = network.characters
        first = Part("words", "one vector each") if below is None else Part("characters", "CNN, highway", _count(below))
        parts = [first, Part("LSTM, forward", f"{network.config.n_layers} layers", _count(network.forward_layers))]
        parts += [Part("LSTM, backward", f"{network.config.n_layers} layers", _count(network.backward_layers))]
        return [Part("ELMo", parts=(*parts, Part("mix of all layers", "γ Σ softmax(w) h", _count(network.mix))))]
    if isinstance(network, CBOW):
        words = Part("words of the window", "no order", network.input_weight.numel())
        return [Part("CBOW", parts=(words, Part("mean"), Part("the word between", "", network.output_weight.numel())))]
    if not isinstance(network, Encoder | Decoder):
        raise CapabilityError(f"there is no diagram of a network of type {type(network).__name__}")
    parts = [_table(network.embedding, "tokens"), *_inputs(network.inputs), *_stack(network.stack)]
    if network.mix is not None:
        parts.append(Part("mix of all layers", "γ Σ softmax(w) h", _count(network.mix)))
    if isinstance(network, Decoder):
        return [Part("decoder", parts=(*parts, *_heads(network)))]
    if network.pooler is not None:
        parts.append(Part("pooler", "tanh of the first token", _count(network.pooler)))
    parts += _heads(network)
    return [Part("encoder", parts=tuple(parts))]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _table(embedding: nn.Module, detail: str) -> Part:
    return Part("embedding", detail, _count(embedding))


def _heads(network: Network) -> list[Part]:
    parts = []
    for name in network.heads:
        head = network.heads[name]
        n_parameters = _count(head)
        if isinstance(head, VocabularyHead) and head.transform is None:
            parts.append(Part("linear and softmax", "" if n_parameters else "the embedding's matrix", n_parameters))
        else:
            parts.append(Part(f"{name} head", "", n_parameters))
    return parts


def _inputs(layer: InputLayer) -> list[Part]:
    kinds = [type(scheme).__name__.lower() for scheme in layer.positions.schemes]
    parts = [Part("+ positions", " + ".join(kinds), _count(layer.positions))] if kinds else []
    if layer.segments is not None:
        parts.append(Part("+ segments", f"{layer.segments.shape[0]} kinds", layer.segments.numel()))
    if layer.norm is not None:
        parts.append(Part("norm", "", _count(layer.norm)))
    if layer.projection is not None:
        parts.append(Part("linear", f"{layer.projection.in_features} wide to the layers", _count(layer.projection)))
    return parts


def _stack(stack: Stack) -> list[Part]:
    first = next(iter(stack.blocks))
    assert isinstance(first, Block)
    masks = " / ".join(dict.fromkeys(mask.name for mask in stack.masks))
    inside = _sublayer(first.self_attention, first.self_attention_residual, masks)
    if first.cross_attention is not None and first.cross_attention_residual is not None:
        inside += _sublayer(first.cross_attention, first.cross_attention_residual, "over the encoded source")
    inside += _sublayer(first.feed_forward, first.feed_forward_residual, "")
    relative = [type(scheme).__name__ for scheme in stack.positions.schemes]
    detail = " + ".join(relative)
    parts = [Part("block", detail, _count(first), tuple(inside), repeats=stack.n_layers)]
    return parts if stack.norm is None else [*parts, Part("norm", "", _count(stack.norm))]


def _sublayer(part: MultiHeadAttention | FeedForward, residual: Residual, detail: str) -> list[Part]:
    norm = Part("norm", type(residual.norm).__name__, _count(residual.norm))
    if isinstance(part, MultiHeadAttention):
        kind = "cross-attention" if part.kind == "cross" else "self-attention"
        shared = "" if part.n_kv_heads == part.n_heads else f", {part.n_kv_heads} of keys"
        middle = Part(kind, f"{part.n_heads} heads{shared}; {detail}", _count(part))
    else:
        middle = Part("feed-forward", f"{part.outer.in_features} wide", _count(part))
    if residual.norm_placement == "pre":
        return [norm, middle, Part("+", "the stream itself", skips=2)]
    return [middle, Part("+", "the stream itself", skips=1), norm]
