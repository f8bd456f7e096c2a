"""The steps of a decoder, and the layers of an encoder, as ONNX graphs: for networks small enough that calls cost most.

A step reads and writes the caches that fast steps have, in place, so that a search may take either for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atento.attention.multihead import Projection
from atento.attention.positions import Rotary, Rotation
from atento.config.sections.network import NetworkConfig
from atento.errors import CapabilityError, MissingPartError, UsageError, install_hint
from atento.inference.onnx_graph import AttentionSizes, Bound, Graph
from atento.networks.layers import Block, TokenEmbedding
from atento.networks.stack.position_tables import position_rows, position_table
from atento.networks.stack.stack import Stack, linear_maps
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.stack.stack_positions import InputLayer, LayerPositions
from atento.networks.vocabulary import VocabularyHead

Engine = Literal["auto", "torch", "onnx"]
ENGINES = get_args(Engine)
# Numbers of the largest weight of a layer up to which `auto` takes ONNX Runtime (docs/decisions/onnx-steps.md).
_LARGEST = 1 << 20
_ROWS_BESIDE_THREADS, _ROWS_BESIDE_AVX512 = 16, 64
CacheOfLayer = tuple[Tensor, Tensor]
"""Keys and values, (N,Hkv,C,K) each."""


def has_onnx() -> bool:
    """Whether the packages of the extra `onnx` are installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def takes_graph(engine: Engine, stack: Stack, precision: str) -> bool:
    """Whether ONNX Runtime runs a stack.

    Args:
        engine: "auto" takes it for what is faster by it, where the extra `onnx` is installed.
        stack: one that the fast passes support.
        precision: of their products.

    Raises:
        UsageError: no such engine. MissingPartError: "onnx" without the extra. CapabilityError: "onnx" for what the
            graphs do not hold; names it.
    """
    if engine not in ENGINES:
        raise UsageError(f"`engine` must be one of {', '.join(ENGINES)}: got {engine!r}")
    if engine == "torch":
        return False
    reason = f"the precision {precision}" if precision != "float32" else why_no_graph(stack)
    if engine == "onnx":
        if not has_onnx():
            raise MissingPartError(f"`engine: onnx` needs onnx and onnxruntime: {install_hint('onnx')}")
        if reason is not None:
            raise CapabilityError(f"`engine: onnx` does not hold {reason}; auto and torch do")
        return True
    inner = stack.layers[0].feed_forward.inner
    return reason is None and inner.in_features * inner.out_features <= _LARGEST and has_onnx()


def suits(rows: int) -> bool:
    """Whether a graph, which runs on one thread, is faster than PyTorch for so many rows.

    With AVX-512, PyTorch's products of many rows are faster on one thread too (docs/decisions/onnx-steps.md).
    """
    if torch.get_num_threads() > 1:
        return rows <= _ROWS_BESIDE_THREADS
    return rows <= _ROWS_BESIDE_AVX512 or torch.backends.cpu.get_cpu_capability() != "AVX512"


def why_no_graph(stack: Stack) -> str | None:
    """The part of a stack that the graphs do not hold, of those that fast passes support; None if they hold all."""
    weight = next(stack.parameters(), None)
    if weight is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return "weights other than float32 in the memory of the CPU"
    if any(heads is not None for layer in stack.positions.rotary for _, heads in layer):
        return "rotary positions of some heads"
    if any(type(getattr(owner, name)) is not Projection for owner, name in linear_maps(stack)):
        return "adapters, or weights in packed form"
    if any(block.self_attention.query_norm is not None for block in stack.layers):
        return "norms of queries and keys"
    if any(mask.form not in ("full", "causal") for mask in stack.masks):
        return "masks"
    return None


def decoder_of(network: EncoderDecoder | Decoder) -> Stack:
    """The stack that writes."""
    return network.decoder if isinstance(network, EncoderDecoder) else network.stack


class _Terms:
    """The inputs of a graph for position schemes: each once, for all layers that have it."""

    def __init__(self, graph: Graph, positions: LayerPositions) -> None:
        self._graph, self.positions = graph, positions
        self.rotations = list(dict.fromkeys(key for layer in positions.rotary for key in layer))
        self.biases = list(dict.fromkeys(tuple(layer) for layer in positions.relative))
        self.layers = [positions.relative.index(list(schemes)) for schemes in self.biases]  # the first with each bias
        for number, (index, _) in enumerate(self.rotations):
            half = self._rotary(index).width // 2
            pair = (1, half) if not self._rotary(index).interleaved else (half, 1)
            for name in ("cos", "sin"):
                graph.input(f"{name}{number}", f"texts of {name}{number}", 1, f"tokens of {name}{number}", *pair)

    def _rotary(self, index: int) -> Rotary:
        rotary = self.positions.schemes[index]
        assert isinstance(rotary, Rotary)
        return rotary

    def split(self, x: str, layer: int, sizes: AttentionSizes) -> Sequence[str]:
        """Queries, keys and values x (N,H+2·Hkv,w,K) -> each by itself; queries and keys rotated as the layer says."""
        heads, shared = sizes.heads, sizes.kv_heads
        if not self.positions.rotary[layer]:
            return self._graph.split(x, [heads, shared, shared], axis=1)
        x, v = self._graph.split(x, [heads + shared, shared], axis=1)
        for key in self.positions.rotary[layer]:
            rotary, number = self._rotary(key[0]), self.rotations.index(key)
            cos, sin = f"cos{number}", f"sin{number}"
            x = self._graph.rotate(x, cos, sin, rotary.width, sizes.width, interleaved=rotary.interleaved)
        return *self._graph.split(x, [heads, shared], axis=1), v

    def inputs(self, rotations: Sequence[Sequence[object]]) -> Iterator[tuple[str, Tensor]]:
        """The inputs for the rotations of each layer."""
        for number, key in enumerate(self.rotations):
            layer = next(n for n, keys in enumerate(self.positions.rotary) if key in keys)
            rotation = rotations[layer][self.positions.rotary[layer].index(key)]
            assert isinstance(rotation, Rotation)
            for name, angles in (("cos", rotation.cos), ("sin", rotation.sin)):
                wide = angles if angles.dim() == 4 else angles[None, None]  # (N or 1,1,w,R/2)
                yield f"{name}{number}", wide.unsqueeze(-1 if rotation.interleaved else -2).contiguous()

    def bias(self, number: int, used: str, sizes: AttentionSizes) -> str:
        """What is added to scores, a row for each query of a key: (N or 1,Hkv or 1,G·w or 1,`used`)."""
        graph = self._graph
        whole = graph.input(f"bias{number}", *(f"{size} of bias{number}" for size in "NHWS"))
        bias = graph.node("Slice", whole, graph.whole(0), used, graph.whole(3))
        if sizes.shared == 1:
            return bias
        if not self.biases[number]:  # a mask, the same for all heads
            return graph.node("Concat", *[bias] * sizes.shared, axis=2)
        shape = graph.node("Concat", graph.whole(0, sizes.kv_heads, -1), used, axis=0)
        return graph.node("Reshape", bias, shape)

    def bias_of(self, layer: int) -> int:
        """The number of a layer's bias."""
        return self.biases.index(tuple(self.positions.relative[layer]))


def _layer(
    graph: Graph,
    x: str,
    block: Block,
    pre_norm: bool,
    attend_itself: Callable[[str], str],
    attend_source: Callable[[str], str] | None = None,
) -> str:
    """One block: x (R,D) -> (R,D); the functions give what heads give, (R,D) -> (R,H·K)."""

    def sublayer(x: str, norm: nn.Module, function: Callable[[str], str]) -> str:
        out = graph.node("Add", x, function(graph.norm(x, norm) if pre_norm else x))
        return out if pre_norm else graph.norm(out, norm)

    def projected(attend: Callable[[str], str], linear: nn.Module) -> Callable[[str], str]:
        assert isinstance(linear, nn.Linear)
        return lambda x: graph.linear(attend(x), linear.weight, linear.bias)

    x = sublayer(x, block.self_attention_residual.norm, projected(attend_itself, block.self_attention.output))
    if attend_source is not None:
        assert block.cross_attention is not None and block.cross_attention_residual is not None
        attend = projected(attend_source, block.cross_attention.output)
        x = sublayer(x, block.cross_attention_residual.norm, attend)
    return sublayer(x, block.feed_forward_residual.norm, lambda x: graph.feed_forward(x, block.feed_forward))


def _embedded(graph: Graph, table: TokenEmbedding, inputs: InputLayer, config: NetworkConfig) -> str:
    """The first layer's input (R,D) of tokens (R,) at positions (R,)."""
    x = graph.node("Gather", graph.weight(table.weight), graph.input("tokens", "R", dtype=torch.long))
    x = x if table.scale == 1.0 else graph.node("Mul", x, graph.weight(torch.tensor(table.scale)))
    if (rows := position_table(config, inputs)) is not None:
        positions = graph.input("positions", "R", dtype=torch.long)
        x = graph.node("Add", x, graph.node("Gather", graph.weight(rows), positions))
    x = x if inputs.segments is None else graph.node("Add", x, graph.weight(inputs.segments[0]))
    x = x if inputs.norm is None else graph.norm(x, inputs.norm)
    return x if inputs.projection is None else graph.linear(x, inputs.projection.weight, inputs.projection.bias)


class StepGraph:
    """The step of a decoder for one token of each of R = N·w outputs, w of each of N texts.

    Args:
        network: one that has fast steps, and of whose decoder `why_no_graph` says nothing.

    Attributes:
        limit: the number of positions that it has.
    """

    def __init__(self, network: EncoderDecoder | Decoder) -> None:
        has_source, stack = isinstance(network, EncoderDecoder), decoder_of(network)
        inputs = network.target_inputs if isinstance(network, EncoderDecoder) else network.inputs
        self._stack, self._sizes = stack, AttentionSizes(stack.layers[0].self_attention)
        self.limit, self._vocabulary = position_rows(network.config), len(network.projection)
        self._zeros: dict[int, Tensor] = {}
        self._has_table = bool(len(inputs.positions.schemes))
        self._graph = graph = Graph()
        self._terms = _Terms(graph, stack.positions)
        sizes = graph.input("sizes", 3, dtype=torch.long)  # outputs of a text, columns in use, outputs of a source
        self._width, self._used, self._per_source = graph.split(sizes, [1, 1, 1], axis=0)
        self._biases = [self._terms.bias(number, self._used, self._sizes) for number in range(len(self._terms.biases))]
        graph.input("places", "N", self._sizes.kv_heads, "w", 3, dtype=torch.long)
        x = _embedded(graph, network.table, inputs, network.config)
        if has_source:
            graph.input("source bias", "sources", 1, 1, "source length")
        for number, block in enumerate(stack.layers):
            attend = [partial(self._attend_itself, number, block)]
            attend += [partial(self._attend_source, number, block)] if has_source else []
            x = _layer(graph, x, block, network.config.norm == "pre", *attend)
        x = x if stack.norm is None else graph.norm(x, stack.norm)
        self._project(x, network.vocabulary_head, network.projection)
        self._session = graph.session()

    def __call__(
        self,
        tokens: Tensor,
        positions: int | Tensor,
        columns: Sequence[int] | NDArray[np.int64],
        used: int,
        caches: Sequence[Sequence[Tensor]],
        biases: Sequence[Tensor | None],
        rotations: Sequence[Sequence[object]] = (),
        source: Sequence[CacheOfLayer] = (),
        source_bias: Tensor | None = None,
    ) -> Tensor:
        """The logits (R,V) of what follows the tokens.

        Args:
            tokens: (R,).
            positions: of the tokens (R,); a number: of all.
            columns: where the new keys and values go in the caches, (N,1,w), or (w) for all texts.
            used: the columns of the caches that are read.
            caches: keys, and values, of each layer, (N,Hkv,C,K), to be changed in place.
            biases: of each layer, (N or 1,H or 1,w or 1,S), S at least `used`: a mask, or a bias and a mask.
            rotations: of each layer.
            source: keys and values of each layer, (M,Hkv,S,K), each read by R/M outputs.
            source_bias: (M,1,1,S); None: nothing of the sources is masked.
        """
        bound, (texts, kv_heads, room, _), outputs = self._session.bound, caches[0][0].shape, len(tokens)
        width = outputs // texts
        bound.whole("tokens", outputs)[:] = tokens.numpy()
        bound.whole("sizes", 3)[:] = width, used, outputs // len(source[0][0]) if source else 1
        if self._has_table:
            bound.whole("positions", outputs)[:] = positions
        places = bound.whole("places", texts, kv_heads, width, 3)
        if places[0, 0, 0, 0] < 0:  # new
            places[..., :2] = np.moveaxis(np.indices((texts, kv_heads, width))[:2], 0, -1)
        places[..., 2] = columns
        for name, angles in self._terms.inputs(rotations):
            bound.read(name, angles)
        for number, layer in enumerate(self._terms.layers):
            bias = biases[layer]
            bound.read(f"bias{number}", self._no_bias(room) if bias is None else bias.contiguous())
        for name, tensors in zip(("keys", "values"), caches):
            for number, tensor in enumerate(tensors):
                bound.read(f"{name}{number}", tensor, f"new {name}{number}")
        for number, (keys, values) in enumerate(source):
            bound.read(f"source keys{number}", keys)
            bound.read(f"source values{number}", values)
        if source:
            length = source[0][0].shape[2]
            bound.read("source bias", self._no_bias(length) if source_bias is None else source_bias)
        logits = bound.output("logits", outputs, self._vocabulary)
        bound.run()
        return logits.clone()

    def _no_bias(self, length: int) -> Tensor:
        """(1,1,1,length), zeros that stay in one place."""
        if length not in self._zeros:
            self._zeros[length] = torch.zeros(1, 1, 1, length)
        return self._zeros[length]

    # The graph

    def _attend_itself(self, number: int, block: Block, x: str) -> str:
        graph, linear, sizes = self._graph, block.self_attention.input, self._sizes
        shared = sizes.kv_heads
        x = graph.linear(x, linear.weight, linear.bias)
        parts = graph.by_head(x, self._width, sizes.heads + 2 * shared, sizes.width)
        q, k, v = self._terms.split(parts, number, sizes)
        read = []
        for name, new in (("keys", k), ("values", v)):
            shape = "N", shared, "C", sizes.width
            past = graph.input(f"{name}{number}", *shape)
            graph.node("ScatterND", past, "places", new, name=f"new {name}{number}")
            graph.output(f"new {name}{number}", *shape)
            read.append(graph.node("Slice", f"new {name}{number}", graph.whole(0), self._used, graph.whole(2)))
        keys, values = read
        return graph.attend(q, keys, values, self._biases[self._terms.bias_of(number)], sizes)

    def _attend_source(self, number: int, block: Block, x: str) -> str:
        assert block.cross_attention is not None
        graph, linear, sizes = self._graph, block.cross_attention.input, AttentionSizes(block.cross_attention)
        queries = sizes.heads * sizes.width  # rows of the weight of Q, K and V
        bias = None if linear.bias is None else linear.bias[:queries]
        q = graph.by_head(graph.linear(x, linear.weight[:queries], bias), self._per_source, sizes.heads, sizes.width)
        shape = "sources", sizes.kv_heads, "source length", sizes.width
        keys, values = (graph.input(f"source {name}{number}", *shape) for name in ("keys", "values"))
        return graph.attend(q, keys, values, "source bias", sizes)

    def _project(self, x: str, head: VocabularyHead, matrix: Tensor) -> None:
        """Hidden x (R,D) -> the output "logits" (R,V)."""
        graph, transform = self._graph, head.transform
        if transform is not None:
            x = graph.activate(graph.linear(x, transform.dense.weight, transform.dense.bias), transform.activation)
            x = graph.norm(x, transform.norm)
        x = x if head.scale == 1.0 else graph.node("Mul", x, graph.weight(torch.tensor(head.scale)))
        graph.linear(x, matrix, head.bias, name="logits")
        graph.output("logits", "R", self._vocabulary)


class EncoderGraph:
    """The layers of an encoder for N texts of equal length: x (N·S,D) -> (N·S,D), the final norm included.

    Args:
        stack: of the encoder; one that has fast reading, and of which `why_no_graph` says nothing.
        pre_norm: whether norms stand before the sublayers.
    """

    def __init__(self, stack: Stack, pre_norm: bool) -> None:
        self._stack, self._graph = stack, Graph()
        self._sizes, self._terms = AttentionSizes(stack.layers[0].self_attention), _Terms(self._graph, stack.positions)
        self._length = self._graph.input("length", 1, dtype=torch.long)
        self._biases = {
            number: self._terms.bias(number, self._length, self._sizes)
            for number, schemes in enumerate(self._terms.biases)
            if schemes
        }
        x = self._read()
        for number, block in enumerate(stack.layers):
            x = _layer(self._graph, x, block, pre_norm, partial(self._attend, number, block))
        self._write(x if stack.norm is None else self._graph.norm(x, stack.norm))
        self._session = self._graph.session()

    @classmethod
    def of(cls, engine: Engine, stack: Stack, config: NetworkConfig, precision: str) -> EncoderGraph | None:
        """The graph of an encoder that has fast reading; None where PyTorch runs it. Raises as `takes_graph`."""
        return cls(stack, config.norm == "pre") if takes_graph(engine, stack, precision) else None

    def __call__(self, x: Tensor, length: int) -> Tensor:
        """The output (N·S,D), of x (N·S,D), S = `length`."""
        bound = self._bound(length)
        bound.read("x", x.contiguous())
        out = bound.output("y", *x.shape)
        bound.run()
        return out.clone()

    def _bound(self, length: int) -> Bound:
        """The memory of this thread, with the terms of the position schemes for texts of that length."""
        bound, positions = self._session.bound, self._stack.positions
        bound.whole("length", 1)[:] = length
        if not len(positions.schemes):
            return bound
        terms = positions.terms(positions.consecutive(length, length, torch.device("cpu")), torch.float32)
        for name, angles in self._terms.inputs([() if one is None else one.rotations for one in terms]):
            bound.read(name, angles)
        like = torch.empty(0)
        for number in self._biases:
            one = terms[self._terms.layers[number]]
            assert one is not None and one.relative is not None
            bias = one.relative.scores(like, like, self._sizes.scale)  # these schemes read the dtype alone
            assert bias is not None
            bound.read(f"bias{number}", bias.to(like.dtype).contiguous())
        return bound

    def _read(self) -> str:
        return self._graph.input("x", "R", self._stack.layers[0].self_attention.input.in_features)

    def _write(self, x: str) -> None:
        self._graph.output(
            self._graph.node("Identity", x, name="y"), "R", self._stack.layers[0].feed_forward.outer.out_features
        )

    def _attend(self, number: int, block: Block, x: str) -> str:
        graph, linear, sizes = self._graph, block.self_attention.input, self._sizes
        x = graph.linear(x, linear.weight, linear.bias)
        parts = graph.by_head(x, self._length, sizes.heads + 2 * sizes.kv_heads, sizes.width)
        q, k, v = self._terms.split(parts, number, sizes)
        return graph.attend(q, k, v, self._biases.get(self._terms.bias_of(number)), sizes)


class SourceGraph(EncoderGraph):
    """The encoder of an encoder-decoder for texts of equal length, and what the decoder reads of them.

    Args:
        network: one of whose encoder and decoder `why_no_graph` says nothing, with a table of source tokens.

    Attributes:
        limit: the number of positions that it has.
    """

    def __init__(self, network: EncoderDecoder) -> None:
        self._network, self.limit = network, position_rows(network.config)
        super().__init__(network.encoder, network.config.norm == "pre")

    def sources(self, ids: Tensor) -> list[CacheOfLayer]:
        """ids (B,S) -> keys and values of each layer of the decoder, (B,Hkv,S,K) each."""
        bound, (texts, length) = self._bound(ids.shape[1]), ids.shape
        bound.whole("tokens", texts * length)[:] = ids.flatten()
        if self._has_table:
            bound.whole("positions", texts * length).reshape(texts, length)[:] = np.arange(length)
        found = []
        for number, block in enumerate(self._network.decoder.layers):
            assert block.cross_attention is not None
            shape = texts, block.cross_attention.n_kv_heads, length, block.cross_attention.d_head
            found.append([bound.output(f"{name}{number}", *shape) for name in ("keys", "values")])
        bound.run()
        return [(keys.clone(), values.clone()) for keys, values in found]

    def _read(self) -> str:
        network = self._network
        self._has_table = bool(len(network.source_inputs.positions.schemes))
        return _embedded(self._graph, network.embedding, network.source_inputs, network.config)

    def _write(self, x: str) -> None:
        graph = self._graph
        for number, block in enumerate(self._network.decoder.layers):
            attention = block.cross_attention
            assert attention is not None
            queries, shared = attention.n_heads * attention.d_head, attention.n_kv_heads
            bias = None if attention.input.bias is None else attention.input.bias[queries:]
            both = graph.linear(x, attention.input.weight[queries:], bias)
            names = [f"keys{number}", f"values{number}"]
            heads = graph.by_head(both, self._length, 2 * shared, attention.d_head)
            for name in graph.nodes("Split", heads, graph.whole(shared, shared), names=names, axis=1):
                graph.output(name, "texts", shared, "length of texts", attention.d_head)
