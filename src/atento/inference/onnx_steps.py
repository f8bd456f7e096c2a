"""The step of a decoder as an ONNX graph: for networks small enough that the calls of operations cost most.

A step reads and writes the caches that fast steps have, in place, so that a search may take either for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.inference.engine import Engine, largest_weight, suits, takes_graph
from atento.inference.onnx_graph import AttentionSizes, CacheOfLayer, Graph, Terms, embedded, layer, rows_of
from atento.networks.layers import Block
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder, stack_that_writes


class StepGraph:
    """The step of a decoder for one token of each of R = N·w outputs, w of each of N texts.

    Args:
        network: one that has fast steps, and of whose decoder `why_no_graph` says nothing.
    """

    def __init__(self, network: EncoderDecoder | Decoder, *, in_8_bits: bool = False) -> None:
        has_source, stack = isinstance(network, EncoderDecoder), stack_that_writes(network)
        inputs = network.target_inputs if isinstance(network, EncoderDecoder) else network.inputs
        self._sizes = AttentionSizes(stack.layers[0].self_attention)
        self._largest, self._limit = largest_weight(stack), rows_of(network.config)
        self._vocabulary = len(network.projection)
        self._zeros: dict[int, Tensor] = {}
        every = [[f"{name}{number}" for number in range(len(stack.layers))] for name in ("keys", "values")]
        self._caches = [(names, [f"new {name}" for name in names]) for names in every]
        self._sources = [[f"source {name}" for name in names] for names in every]
        self._has_table = bool(len(inputs.positions.schemes))
        self._graph = graph = Graph(in_8_bits=in_8_bits)
        self._terms = Terms(graph, stack.positions)
        sizes = graph.input("sizes", 3, dtype=torch.long)  # outputs of a text, columns in use, outputs of a source
        self._width, self._used, self._per_source = graph.split(sizes, [1, 1, 1], axis=0)
        self._biases = [self._terms.bias(number, self._used, self._sizes) for number in range(len(self._terms.biases))]
        graph.input("places", "N", self._sizes.kv_heads, "w", 3, dtype=torch.long)
        x = embedded(graph, network.table, inputs, network.config)
        if has_source:
            graph.input("source bias", "sources", 1, 1, "source length")
        for number, block in enumerate(stack.layers):
            attend = [partial(self._attend_itself, number, block)]
            attend += [partial(self._attend_source, number, block)] if has_source else []
            x = layer(graph, x, block, network.config.norm == "pre", *attend)
        x = x if stack.norm is None else graph.norm(x, stack.norm)
        head = network.vocabulary_head
        if head.transform is not None:
            x = graph.linear(x, head.transform.dense.weight, head.transform.dense.bias)
            x = graph.norm(graph.activate(x, head.transform.activation), head.transform.norm)
        x = x if head.scale == 1.0 else graph.node("Mul", x, graph.weight(torch.tensor(head.scale)))
        graph.linear(x, network.projection, head.bias, name="logits")
        graph.output("logits", "R", self._vocabulary)
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
        for number, first in enumerate(self._terms.layers):
            bias = biases[first]
            bound.read(f"bias{number}", self._no_bias(room) if bias is None else bias.contiguous())
        for (names, new), tensors in zip(self._caches, caches):
            bound.read_layers(names, tensors, new)
        if source:
            for names, tensors in zip(self._sources, zip(*source)):
                bound.read_layers(names, tensors)
            length = source[0][0].shape[2]
            bound.read("source bias", self._no_bias(length) if source_bias is None else source_bias)
        logits = bound.output("logits", outputs, self._vocabulary)
        bound.run()
        return bound.taken(logits)

    def takes(self, rows: int, length: int) -> bool:
        """Whether a step of so many rows, whose outputs have so many tokens at most, is faster by this graph."""
        return length < self._limit and suits(self._largest, rows)

    def _no_bias(self, length: int) -> Tensor:
        """(1,1,1,length), zeros that stay in one place."""
        if length not in self._zeros:
            self._zeros[length] = torch.zeros(1, 1, 1, length)
        return self._zeros[length]

    @classmethod
    def of(cls, network: EncoderDecoder | Decoder, engine: Engine, precision: str) -> StepGraph | None:
        """The graph of a network that has fast steps; None where PyTorch runs them. Raises as `takes_graph`."""
        takes = takes_graph(engine, stack_that_writes(network), precision)
        return cls(network, in_8_bits=precision == "int8") if takes else None

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
