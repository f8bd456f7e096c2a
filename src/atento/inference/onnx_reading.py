"""The layers of an encoder as an ONNX graph, for texts of equal length: of small networks, and of a text alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.inference.engine import Engine, largest_weight, suits, takes_graph
from atento.inference.onnx_graph import AttentionSizes, Bound, CacheOfLayer, Graph, Terms, embedded, layer, rows_of
from atento.networks.layers import Block
from atento.networks.stack.stack import Stack
from atento.networks.stack.stack_decoders import EncoderDecoder


class EncoderGraph:
    """The layers of an encoder for N texts of equal length: x (N·S,D) -> (N·S,D), the final norm included.

    Args:
        stack: of the encoder; one that has fast reading, and of which `why_no_graph` says nothing.
        pre_norm: whether norms stand before the sublayers.
    """

    packed = True

    def __init__(self, stack: Stack, pre_norm: bool) -> None:
        self._stack, self._graph, self._largest = stack, Graph(), largest_weight(stack)
        self._sizes, self._terms = AttentionSizes(stack.layers[0].self_attention), Terms(self._graph, stack.positions)
        self._length = self._graph.input("length", 1, dtype=torch.long)
        self._biases = {
            number: self._terms.bias(number, self._length, self._sizes)
            for number, schemes in enumerate(self._terms.biases)
            if schemes
        }
        x = self._read()
        for number, block in enumerate(stack.layers):
            x = layer(self._graph, x, block, pre_norm, partial(self._attend, number, block))
        self._write(x if stack.norm is None else self._graph.norm(x, stack.norm))
        self._session = self._graph.session(packed=self.packed)

    @classmethod
    def of(cls, engine: Engine, stack: Stack, config: NetworkConfig, precision: str) -> EncoderGraph | None:
        """The graph of an encoder that has fast reading; None where PyTorch runs it. Raises as `takes_graph`."""
        return cls(stack, config.norm == "pre") if takes_graph(engine, stack, precision) else None

    def suits(self, tokens: int) -> bool:
        """Whether so many tokens are read faster by this graph."""
        return suits(self._largest, tokens=tokens)

    def read(self, x: Tensor, lengths: list[int]) -> Tensor:
        """The output (N,D), of x (N,D), text after text; those of equal length, which follow one another, at once."""
        parts, first = list[Tensor](), 0
        for length, texts in Counter(lengths).items():
            if length:
                parts.append(self(x[first : first + length * texts], length))
                first += length * texts
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def __call__(self, x: Tensor, length: int) -> Tensor:
        """The output (N·S,D), of x (N·S,D), S = `length`."""
        bound = self._bound(length)
        bound.read("x", x.contiguous())
        out = bound.output("y", *x.shape)
        bound.run()
        return bound.taken(out)

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
    """

    packed = False  # a source is read once: a packed copy saves less time than it takes memory

    def __init__(self, network: EncoderDecoder) -> None:
        self._network, self._limit = network, rows_of(network.config)
        super().__init__(network.encoder, network.config.norm == "pre")

    def takes(self, longest: int, tokens: int) -> bool:
        """Whether sources of so many tokens are read faster by this graph."""
        return longest <= self._limit and self.suits(tokens)

    def padded(self, ids: Tensor, lengths: list[int]) -> list[CacheOfLayer]:
        """As `sources`, of rows with so many tokens each, and anything behind them: 0 there."""
        texts, columns = ids.shape
        if all(length == columns for length in lengths):
            return self.sources(ids)
        layers = [self._shape(block, texts, columns) for block in self._network.decoder.layers]
        found = [(torch.zeros(shape), torch.zeros(shape)) for shape in layers]
        for length in {*lengths} - {0}:
            rows = [row for row, own in enumerate(lengths) if own == length]
            for whole, part in zip(found, self.sources(ids[rows, :length])):
                for one, other in zip(whole, part):
                    one[rows, :, :length] = other
        return found

    def each(self, rows: Sequence[Sequence[int]]) -> Iterator[list[CacheOfLayer]]:
        """Of each row, the longest first: keys and values of each layer of the decoder, (1,Hkv,S,K) each."""
        for _, same in groupby(rows, len):
            ids = torch.tensor(list(same))
            found = self.sources(ids)
            yield from ([(k[n : n + 1], v[n : n + 1]) for k, v in found] for n in range(len(ids)))

    def sources(self, ids: Tensor) -> list[CacheOfLayer]:
        """ids (B,S) -> keys and values of each layer of the decoder, (B,Hkv,S,K) each."""
        bound, (texts, length) = self._bound(ids.shape[1]), ids.shape
        bound.whole("tokens", texts * length)[:] = ids.flatten()
        if self._has_table:
            bound.whole("positions", texts * length).reshape(texts, length)[:] = np.arange(length)
        found = []
        for number, block in enumerate(self._network.decoder.layers):
            shape = self._shape(block, texts, length)
            found.append([bound.output(f"{name}{number}", *shape) for name in ("keys", "values")])
        bound.run()
        return [(bound.taken(keys), bound.taken(values)) for keys, values in found]

    @staticmethod
    def _shape(block: Block, texts: int, length: int) -> tuple[int, int, int, int]:
        """(N,Hkv,S,K) of the keys of a layer of the decoder."""
        assert block.cross_attention is not None
        return texts, block.cross_attention.n_kv_heads, length, block.cross_attention.d_head

    def _read(self) -> str:
        network = self._network
        self._has_table = bool(len(network.source_inputs.positions.schemes))
        return embedded(self._graph, network.embedding, network.source_inputs, network.config)

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
