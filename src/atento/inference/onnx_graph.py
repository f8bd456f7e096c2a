"""Writes the layers of a network as the nodes of an ONNX graph, and runs it with ONNX Runtime on the same weights.

See docs/decisions/onnx-steps.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention
from atento.attention.positions import Rotary, Rotation
from atento.config.sections.network import NetworkConfig
from atento.inference.packed_modules import PackedModule
from atento.networks.int8_projection import Int8Table
from atento.networks.layers import ACTIVATIONS, Block, FeedForward, RMSNorm, TokenEmbedding
from atento.networks.stack.stack_positions import InputLayer, LayerPositions, position_table

if TYPE_CHECKING:
    from onnx import NodeProto, ValueInfoProto
    from onnxruntime import InferenceSession

CacheOfLayer = tuple[Tensor, Tensor]
"""Keys and values, (N,Hkv,S,K) each."""
_OPSET = 17  # the first with LayerNormalization
_IR_VERSION = 8  # of the file format, as that opset has it
_SINUSOIDS = 512
_COPIED = 1 << 15  # numbers of an output that are copied in less time than memory is bound
_SMALL = 64  # numbers of a weight that stands in the graph itself
_NODES: dict[object, tuple[str, str]] = {  # activation -> operator and its domain
    ACTIVATIONS["relu"]: ("Relu", ""),
    ACTIVATIONS["gelu"]: ("Gelu", "com.microsoft"),
    ACTIVATIONS["gelu-tanh"]: ("FastGelu", "com.microsoft"),
    ACTIVATIONS["tanh"]: ("Tanh", ""),
}


class Graph:
    """The nodes of a graph, in the order of the equations. A value is the name of a tensor of the graph.

    `in_8_bits`: products are of codes of 8 bits, with a scale for each row of a weight, and one for the rows of x.
    """

    def __init__(self, *, in_8_bits: bool = False) -> None:
        self._in_8_bits = in_8_bits
        self._nodes: list[NodeProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._weights: dict[str, Tensor] = {}
        self._constants: dict[tuple[int, ...], str] = {}
        self._names = (f"value{number}" for number in count())

    def node(self, kind: str, *inputs: str, name: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add an operator with one output, and return that."""
        (output,) = self.nodes(kind, *inputs, names=[name or next(self._names)], domain=domain, **attributes)
        return output

    def nodes(
        self, kind: str, *inputs: str, names: Sequence[str], domain: str = "", **attributes: Any
    ) -> Sequence[str]:
        """Add an operator with several outputs, and return them."""
        from onnx import helper

        self._nodes.append(helper.make_node(kind, list(inputs), list(names), domain=domain, **attributes))
        return names

    def split(self, x: str, sizes: Sequence[int], axis: int) -> Sequence[str]:
        """The parts of x, of those sizes."""
        return self.nodes("Split", x, self.whole(*sizes), names=[next(self._names) for _ in sizes], axis=axis)

    def weight(self, value: Tensor) -> str:
        """A tensor of the network, whose memory is used."""
        name = f"weight{len(self._weights)}"
        self._weights[name] = value.detach().contiguous()
        return name

    def whole(self, *numbers: int) -> str:
        """A vector of whole numbers."""
        if numbers not in self._constants:
            self._constants[numbers] = self.weight(torch.tensor(numbers, dtype=torch.long))
        return self._constants[numbers]

    def input(self, name: str, *sizes: str | int, dtype: torch.dtype = torch.float32) -> str:
        """An input; sizes with equal names are equal."""
        self._inputs.append(_described(name, sizes, dtype))
        return name

    def output(self, name: str, *sizes: str | int) -> None:
        """Let the value of that name be an output."""
        self._outputs.append(_described(name, sizes, torch.float32))

    def session(self, *, packed: bool = True) -> Session:
        """What runs the graph as it stands now, on the thread that asks; `packed`: with packed copies of weights."""
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        graph, values = helper.make_graph(self._nodes, "layers", self._inputs, self._outputs), {}
        for name, value in self._weights.items():
            array = value.numpy()
            if value.numel() < _SMALL:
                graph.initializer.append(numpy_helper.from_array(array, name))
                continue
            stored = TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
            stored.data_location = TensorProto.EXTERNAL
            for key, text in (("location", "memory"), ("offset", "0"), ("length", str(array.nbytes))):
                stored.external_data.add(key=key, value=text)
            graph.initializer.append(stored)
            values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # no pool: nothing that a fork would lose
        options.log_severity_level = 3  # errors
        options.add_external_initializers(list(values), list(values.values()))
        for name, value in values.items():
            options.add_initializer(name, value)  # this memory is read then, where it was copied
        if not packed:
            options.add_session_config_entry("session.disable_prepacking", "1")
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        return Session(
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]),
            list(self._weights.values()),
        )

    # The parts of a layer

    def linear(self, x: str, weight: Tensor, bias: Tensor | None, name: str | None = None) -> str:
        """x (R,D) -> x Wᵀ + b (R,N)."""
        added = [] if bias is None else [self.weight(bias)]
        if self._in_8_bits:
            scales = weight.detach().abs().amax(dim=1).clamp_min(1e-12) / 127  # (N,)
            codes = (weight.detach() / scales.unsqueeze(1)).round().to(torch.int8).t()
            inputs = x, self.weight(codes), self.weight(scales), "", *added
            return self.node("DynamicQuantizeMatMul", *inputs, name=name, domain="com.microsoft")
        return self.node("Gemm", x, self.weight(weight), *added, name=name, transB=1)

    def norm(self, x: str, norm: nn.Module) -> str:
        """x (R,D) -> its norm (R,D)."""
        if isinstance(norm, nn.LayerNorm):
            gain = torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight
            bias = [] if norm.bias is None else [self.weight(norm.bias)]
            return self.node("LayerNormalization", x, self.weight(gain), *bias, axis=-1, epsilon=norm.eps)
        if isinstance(norm, RMSNorm):
            return self.node("SimplifiedLayerNormalization", x, self.weight(norm.gain), axis=-1, epsilon=norm.eps)
        return x  # an identity

    def activate(self, x: str, activation: Callable[[Tensor], Tensor]) -> str:
        """The activation of x."""
        if activation is F.silu:
            return self.node("Mul", x, self.node("Sigmoid", x))
        kind, domain = _NODES[activation]
        return self.node(kind, x, domain=domain)

    def feed_forward(self, x: str, layer: FeedForward) -> str:
        """x (R,D) -> (R,D)."""
        x = self.linear(x, layer.inner.weight, layer.inner.bias)
        if layer.gated:
            width = layer.inner.out_features // 2
            x, gate = self.split(x, [width, width], axis=1)
            x = self.node("Mul", self.activate(x, layer.activation), gate)
        else:
            x = self.activate(x, layer.activation)
        return self.linear(x, layer.outer.weight, layer.outer.bias)

    def by_head(self, x: str, rows: str, heads: int, width: int) -> str:
        """x (N·w,H·K) -> (N,H,w,K), w in the vector `rows`."""
        shape = self.node("Concat", self.whole(-1), rows, self.whole(heads, width), axis=0)
        return self.node("Transpose", self.node("Reshape", x, shape), perm=[0, 2, 1, 3])

    def rotate(self, x: str, cos: str, sin: str, rotated: int, width: int, *, interleaved: bool) -> str:
        """Rotate the pairs of the first `rotated` of K dimensions of x (N,H,w,K).

        cos and sin are (N or 1,1,w or 1,1,R/2), or (...,R/2,1) where the dimensions of a pair are neighbours.
        """
        rest = []
        if rotated < width:
            x, *rest = self.split(x, [rotated, width - rotated], axis=3)
        half = rotated // 2
        pairs = self.node("Reshape", x, self.whole(0, 0, 0, *((half, 2) if interleaved else (2, half))))
        axis = 4 if interleaved else 3
        a, b = self.split(pairs, [1, 1], axis=axis)
        first = self.node("Sub", self.node("Mul", a, cos), self.node("Mul", b, sin))
        second = self.node("Add", self.node("Mul", b, cos), self.node("Mul", a, sin))
        x = self.node("Reshape", self.node("Concat", first, second, axis=axis), self.whole(0, 0, 0, rotated))
        return self.node("Concat", x, *rest, axis=3) if rest else x

    def attend(self, q: str, keys: str, values: str, bias: str | None, sizes: AttentionSizes) -> str:
        """q (N,H,w,K), keys and values (N,Hkv,S,K), bias that broadcasts to (N,Hkv,G·w,S) -> (N·w,H·K)."""
        if sizes.shared > 1:  # the G queries of a key below one another
            q = self.node("Reshape", q, self.whole(0, sizes.kv_heads, -1, sizes.width))
        keys = self.node("Transpose", keys, perm=[0, 1, 3, 2])
        scores = self.node("Mul", self.node("MatMul", q, keys), self.weight(torch.tensor(sizes.scale)))
        scores = scores if bias is None else self.node("Add", scores, bias)
        out = self.node("MatMul", self.node("Softmax", scores, axis=-1), values)
        if sizes.shared > 1:
            out = self.node("Reshape", out, self.whole(0, sizes.heads, -1, sizes.width))
        out = self.node("Transpose", out, perm=[0, 2, 1, 3])
        return self.node("Reshape", out, self.whole(-1, sizes.heads * sizes.width))


class AttentionSizes:
    """The numbers of an attention module."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        self.heads, self.kv_heads, self.width = attention.n_heads, attention.n_kv_heads, attention.d_head
        self.shared = self.heads // self.kv_heads  # G, the queries of each key
        self.scale = self.width**-0.5 if attention.scale is None else attention.scale


def _described(name: str, sizes: Sequence[str | int], dtype: torch.dtype) -> ValueInfoProto:
    from onnx import TensorProto, helper

    kind = TensorProto.FLOAT if dtype == torch.float32 else TensorProto.INT64
    return helper.make_tensor_value_info(name, kind, list(sizes))


class Session:
    """Runs a graph on the CPU, on the thread that asks; several threads may ask at once."""

    def __init__(self, session: InferenceSession, weights: Sequence[Tensor]) -> None:
        self._session, self._weights = session, weights  # whose memory the session reads
        self._threads = threading.local()

    @property
    def bound(self) -> Bound:
        """The memory of this thread."""
        if not hasattr(self._threads, "bound"):
            self._threads.bound = Bound(self._session)
        bound: Bound = self._threads.bound
        return bound


class Bound:
    """The memory that a thread binds to the inputs and outputs of a graph: once, and again where it has changed."""

    def __init__(self, session: InferenceSession) -> None:
        self._session, self._binding = session, session.io_binding()
        self._places: dict[str, list[object]] = {}
        self._whole: dict[str, NDArray[np.int64]] = {}
        self._outputs: dict[str, Tensor] = {}
        self._held: list[Tensor] = []  # what the next run reads

    def whole(self, name: str, *shape: int) -> NDArray[np.int64]:
        """An input of whole numbers, in memory of its own: as it was left, or -1 if its shape is another one."""
        array = self._whole.get(name)
        if array is None or array.shape != shape:
            array = self._whole[name] = np.full(shape, -1)
            self._binding.bind_input(name, "cpu", 0, np.int64, shape, array.ctypes.data)
        return array

    def output(self, name: str, *shape: int) -> Tensor:
        """An output, in memory that the next run writes again, unless it is large; `taken` makes it the caller's."""
        tensor = self._outputs.get(name)
        if tensor is None or tensor.shape != shape or tensor.numel() > _COPIED:
            tensor = self._outputs[name] = torch.empty(shape)
            self._binding.bind_output(name, "cpu", 0, np.float32, shape, tensor.data_ptr())
        return tensor

    @staticmethod
    def taken(output: Tensor) -> Tensor:
        """An output that later runs leave as it is."""
        return output if output.numel() > _COPIED else output.clone()

    def read(self, name: str, tensor: Tensor) -> None:
        """An input in the memory of a tensor, which must be contiguous."""
        self.read_layers([name], [tensor])

    def read_layers(self, names: Sequence[str], tensors: Sequence[Tensor], new: Sequence[str] = ()) -> None:
        """Inputs of equal shapes, as `read`; the outputs `new` are written there too."""
        self._held.extend(tensors)
        places = [tensors[0].shape, *[tensor.data_ptr() for tensor in tensors]]
        if self._places.get(names[0]) == places:
            return
        self._places[names[0]] = places
        for kinds, bind in ((names, self._binding.bind_input), (new, self._binding.bind_output)):
            for name, tensor in zip(kinds, tensors):
                bind(name, "cpu", 0, np.float32, tuple(tensor.shape), tensor.data_ptr())

    def run(self) -> None:
        """Run the graph."""
        self._session.run_with_iobinding(self._binding)
        self._held.clear()


class Terms:
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

    def split(self, x: str, number: int, sizes: AttentionSizes) -> Sequence[str]:
        """Queries, keys and values x (N,H+2·Hkv,w,K) -> each by itself; queries and keys rotated as the layer says."""
        heads, shared = sizes.heads, sizes.kv_heads
        if not self.positions.rotary[number]:
            return self._graph.split(x, [heads, shared, shared], axis=1)
        x, v = self._graph.split(x, [heads + shared, shared], axis=1)
        for key in self.positions.rotary[number]:
            rotary, at = self._rotary(key[0]), self.rotations.index(key)
            cos, sin = f"cos{at}", f"sin{at}"
            x = self._graph.rotate(x, cos, sin, rotary.width, sizes.width, interleaved=rotary.interleaved)
        return *self._graph.split(x, [heads, shared], axis=1), v

    def inputs(self, rotations: Sequence[Sequence[object]]) -> Iterator[tuple[str, Tensor]]:
        """The inputs for the rotations of each layer."""
        for number, key in enumerate(self.rotations):
            layer = next(n for n, keys in enumerate(self.positions.rotary) if key in keys)
            rotation = rotations[layer][self.positions.rotary[number].index(key)]
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


def layer(
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
        assert isinstance(linear, nn.Linear | PackedModule)
        return lambda x: graph.linear(attend(x), linear.weight, linear.bias)

    x = sublayer(x, block.self_attention_residual.norm, projected(attend_itself, block.self_attention.output))
    if attend_source is not None:
        assert block.cross_attention is not None and block.cross_attention_residual is not None
        attend = projected(attend_source, block.cross_attention.output)
        x = sublayer(x, block.cross_attention_residual.norm, attend)
    return sublayer(x, block.feed_forward_residual.norm, lambda x: graph.feed_forward(x, block.feed_forward))


def rows_of(config: NetworkConfig) -> int:
    """The number of positions that a graph has: for sinusoids fewer than a network has, since their table is held."""
    return config.position_limit or _SINUSOIDS


def embedded(graph: Graph, table: TokenEmbedding | Int8Table, inputs: InputLayer, config: NetworkConfig) -> str:
    """The first layer's input (R,D) of tokens (R,) at positions (R,)."""
    tokens = graph.input("tokens", "R", dtype=torch.long)
    if isinstance(table, Int8Table):
        codes = graph.node("Gather", graph.weight(table.codes), tokens)
        factors = graph.node("Gather", graph.weight(table.factors), tokens)
        x = graph.node("Mul", graph.node("Cast", codes, to=1), factors)  # 1: float32
    else:
        x = graph.node("Gather", graph.weight(table.weight), tokens)
        x = x if table.scale == 1.0 else graph.node("Mul", x, graph.weight(torch.tensor(table.scale)))
    if (rows := position_table(config, inputs, rows=rows_of(config))) is not None:
        positions = graph.input("positions", "R", dtype=torch.long)
        x = graph.node("Add", x, graph.node("Gather", graph.weight(rows), positions))
    x = x if inputs.segments is None else graph.node("Add", x, graph.weight(inputs.segments[0]))
    x = x if inputs.norm is None else graph.norm(x, inputs.norm)
    return x if inputs.projection is None else graph.linear(x, inputs.projection.weight, inputs.projection.bias)
