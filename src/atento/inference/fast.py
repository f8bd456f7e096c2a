"""The fast step function of a Transformer: the same outputs as the plain one, to rounding, in a fraction of the time.

It is fast because linear layers are packed for the processor, in float32, bfloat16 or int8; queries, keys and values
come from one product; keys and values of the source are computed once and shared by all beams of a text; all beams of
a text share one cache, in which a mask lets each beam attend to its own past, so that reordering beams copies no
cache; and no modules are called between the products. On devices other than the CPU the same steps run on plain
products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from atento.attention.kernels import sdpa
from atento.attention.multihead import KeyValues
from atento.attention.positions import Rotation
from atento.attention.relative_terms import QueryKeyPositions
from atento.base.errors import CapabilityError
from atento.base.precision import best_precision, cpu_features, threads_for
from atento.inference.encoder_reading import SourceReader, why_not_packed
from atento.inference.engine import Engine, runs_alone, why_no_graph
from atento.inference.fast_state import (
    ROOM,
    Cache,
    FastLayer,
    FastState,
    StepPositions,
    begin_column,
    norm_function,
    why_not_fast,
    with_mask,
)
from atento.inference.joined_states import joined as joined_states
from atento.inference.onnx_graph import CacheOfLayer
from atento.inference.onnx_reading import SourceGraph
from atento.inference.onnx_steps import StepGraph
from atento.inference.packed_linear import Precision, with_round_number
from atento.inference.packed_modules import Kept, copy_sharing_weights, pack, pack_decoder, pack_modules
from atento.inference.plain import (
    ROUNDING,
    ROUNDING_INT8,
    PlainStepFunction,
    last_tokens,
    left_align,
    without_last_token,
)
from atento.inference.ragged_rows import FastRows
from atento.networks.int8_projection import hold_tables_in_8_bits
from atento.networks.layers import BlockState
from atento.networks.stack.stack_decoders import Decoder, EncoderDecoder
from atento.networks.stack.stack_positions import real_positions
from atento.networks.vocabulary import at_least_float32

SelfAttention = Callable[[int, Tensor], Tensor]
"""The number of a layer and its queries, keys and values (R,(H+2·Hkv)·K) -> what its heads give (R,H·K)."""


def precision_of_sources(precision: Precision) -> Precision:
    """Of the encoder's products; a source is read once, so that for int8 half precision is enough there."""
    return best_precision("cpu") if precision == "int8" else precision


class FastStepFunction:
    """The fast step function of an encoder-decoder or a decoder (docs/notes.md#h12).

    It packs copies of weights and shares others with the network, which must not change while these steps are used.

    Raises:
        CapabilityError: the network has a part that is not supported; names it.
    """

    def __init__(
        self, network: EncoderDecoder | Decoder, precision: Precision = "float32", engine: Engine = "torch"
    ) -> None:
        if (reason := why_not_fast(network)) is not None:
            raise CapabilityError(f"no fast steps for {reason}")
        self.network, self.precision = network, precision
        self.show = PlainStepFunction(network).show  # observers see one pass over the best outputs
        config = network.config
        self.threads = partial(threads_for, precision, config.d_model * config.d_ff)
        self.start_id, self.pad_id = config.start_id, config.pad_id
        self.eos_id, self.eos_ids = config.eos_id, config.eos_ids
        weight = next(network.parameters())
        exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.dtype = torch.bfloat16 if precision == "bfloat16" else exact
        self.graph = None if engine == "torch" else StepGraph.of(network, engine, precision)
        # Half the bytes are read faster, but with one query CPUs without AMX take several times as long in bfloat16.
        # int8 reads prompts in float32 and keeps them so.
        on_cpu = weight.device.type == "cpu"
        rounds = precision == "int8" and on_cpu and self.dtype == torch.float32 and self.graph is None
        self.beam_cache_dtype = torch.bfloat16 if rounds and best_precision("cpu") == "bfloat16" else self.dtype
        halved = not on_cpu or (cpu_features()["amx"] and (precision != "int8" or isinstance(network, EncoderDecoder)))
        self.cache_dtype = self.beam_cache_dtype if halved or self.dtype == torch.float64 else torch.float32
        copy = copy_sharing_weights(network).to(self.dtype).eval()
        if precision == "int8":
            hold_tables_in_8_bits(copy, outputs=True)
        alone = self.graph is not None and precision == "float32" and runs_alone()
        kept: Kept = {"steps": True, "is_held": weight.dtype == self.dtype, "as_it_is": alone}
        self.project = pack(copy.projection, copy.vocabulary_head.bias, precision, **kept)
        # `encoder` encodes the sources of an encoder-decoder; `reader` reads the prompts of a decoder
        self.encoder: SourceReader | None = None
        self.source_graph: SourceGraph | None = None
        stack = copy.decoder if isinstance(copy, EncoderDecoder) else copy.stack
        pack_decoder(stack, precision, **kept)
        self.reader = pack_modules(copy, precision) if isinstance(copy, Decoder) else None
        self.embedding = copy.table
        self.inputs = copy.target_inputs if isinstance(copy, EncoderDecoder) else copy.inputs
        self.pre_norm = config.norm == "pre"
        self.last_norm = None if stack.norm is None else norm_function(stack.norm)
        self.positions = stack.positions
        self.has_schemes = bool(len(stack.positions.schemes))  # in the layers
        self.heads, self.kv_heads, self.d_head = config.n_heads, config.kv_heads, config.head_width
        self.scale = self.d_head**-0.5 if config.attention.scale is None else config.attention.scale
        self.layers = [FastLayer(block) for block in stack.layers]
        self.read_output = copy.vocabulary_head.read
        if isinstance(copy, EncoderDecoder) and isinstance(network, EncoderDecoder):
            copy.decoder = nn.Module()  # type: ignore[assignment]
            precision = precision_of_sources(self.precision)
            if self.precision == "int8":
                self.embedding, self.inputs = copy_sharing_weights(self.embedding), copy_sharing_weights(self.inputs)
                copy = copy.to(torch.bfloat16 if precision == "bfloat16" else self.dtype)
            is_packed = network.source_features is None and why_not_packed(network.encoder) is None
            if self.graph is not None and is_packed and why_no_graph(network.encoder) is None:
                self.source_graph = SourceGraph(network)
            self.encoder = SourceReader(copy, precision, alone and self.source_graph is not None)

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """What the first step reads: the start token, or of a decoder the last real token of each prompt in ids."""
        if self.reader is None:
            return torch.full((ids.shape[0],), self.start_id, dtype=torch.long, device=ids.device)
        return last_tokens(ids, token_mask, self.start_id)

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> FastState:
        """ids (B,S), sources or prompts -> the state of B rows."""
        *_, state = self.prefill_in_chunks(ids, token_mask, ids.shape[1])
        assert state is not None
        return state

    @torch.inference_mode()
    def prefill_in_chunks(
        self, ids: Tensor, token_mask: Tensor | None, size: int, known: Sequence[KeyValues] = ()
    ) -> Iterator[FastState | None]:
        """As `begin`, where a prompt is read `size` tokens at a time: None after each part, and the state at last.

        A source is encoded at once. `known` are the keys and values of every layer for the first tokens of a prompt,
        which is then the only row; these tokens are not read.
        """
        count = ids.shape[0]
        shape = (count, self.kv_heads, ROOM, self.d_head)  # (N,Hkv,columns,K)
        empty = [[torch.empty(shape, dtype=self.cache_dtype, device=ids.device) for _ in self.layers] for _ in range(2)]
        state = FastState(Cache(*empty), rows=count, beam_cache_dtype=self.beam_cache_dtype)
        state.cache.holder = state
        if self.encoder is None:
            yield from self._read_prompts(ids, token_mask, state, size, known)
            yield state
            return
        if self.source_graph is not None and self.source_graph.takes(ids.shape[1], ids.numel()):
            ids, token_mask = left_align(ids, token_mask)
            lengths = [ids.shape[1]] * len(ids) if token_mask is None else token_mask.sum(dim=1).tolist()
            state.source = self.source_graph.padded(ids, lengths)
        else:
            encoded, token_mask = self.encoder.encoded(ids, token_mask)  # (B,S,D), (B,S)
            for both in self.source_keys_values(encoded.flatten(0, 1)):
                keys, values = both.unflatten(0, ids.shape).transpose(1, 2).split(self.kv_heads, dim=1)  # (B,Hkv,S,K)
                state.source.append((keys.contiguous(), values.contiguous()))
        if token_mask is not None and not bool(token_mask.all()):
            mask = torch.zeros(token_mask.shape, dtype=self.cache_dtype, device=ids.device)  # (B,S)
            state.source_mask = mask.masked_fill_(~token_mask, float("-inf"))[:, None, None, :]  # (B,1,1,S)
        yield state

    def source_keys_values(self, encoded: Tensor) -> Iterator[Tensor]:
        """Tokens of sources (N,D) -> of every layer keys and values (N,2·Hkv,K)."""
        tokens, encoded = len(encoded), with_round_number(encoded.to(self.dtype))
        for layer in self.layers:
            assert layer.cross_keys_values is not None
            both = layer.cross_keys_values(encoded)[:tokens]
            yield both.unflatten(1, (-1, self.d_head)).to(self.cache_dtype)

    def sources_of(self, rows: Sequence[Sequence[int]]) -> Iterator[list[CacheOfLayer]]:
        """Some sources, the longest first -> of each the keys and values (1,Hkv,S,K) of every layer."""
        if self.source_graph is not None and self.source_graph.takes(len(rows[0]), sum(map(len, rows))):
            return self.source_graph.each(rows)
        assert self.encoder is not None
        layers, lengths = self.source_keys_values(self.encoder.rows(rows)), [len(row) for row in rows]
        rows_of_layers = zip(*(both.split(lengths) for both in layers))
        return ([tuple(b.transpose(0, 1)[None].split(self.kv_heads, dim=1)) for b in row] for row in rows_of_layers)

    def _read_prompts(
        self, ids: Tensor, token_mask: Tensor | None, state: FastState, size: int, known: Sequence[KeyValues]
    ) -> Iterator[None]:
        """All but each prompt's last token, in parts; shorter prompts are moved to end at the same column."""
        ids, real = without_last_token(ids, token_mask)
        columns = ids.shape[1]
        if not columns:
            return
        assert self.reader is not None
        read, unpadded = self.reader.begin(), bool(real.all())
        if known:
            read.blocks = [
                BlockState(KeyValues(part.keys.to(self.dtype), part.values.to(self.dtype))) for part in known
            ]
            read.length = known[0].keys.shape[2]  # columns that are already read
        for first in range(read.length, columns, size):
            part = slice(first, first + size)
            read = self.reader(
                ids[:, part],
                token_mask=None if unpadded else real[:, : first + size],
                position_ids=None if unpadded else real_positions(real)[:, part],
                state=read,
                project=False,
            ).state
            if first + size < columns:
                yield None
        caches = [block.self_attention for block in read.blocks if block.self_attention is not None]
        cache = Cache([c.keys.to(self.cache_dtype) for c in caches], [c.values.to(self.cache_dtype) for c in caches])
        state.cache = cache.enlarged(columns, columns + ROOM)
        state.cache.holder, state.length = state, columns
        if not unpadded:
            state.starts = real.sum(dim=1) - columns  # start + column is each token's own position
            mask = torch.full((len(ids), 1, columns + ROOM), float("-inf"), dtype=self.cache_dtype, device=ids.device)
            mask[:, 0, :columns].masked_fill_(real, 0.0)
            state.mask = mask

    joined = staticmethod(joined_states)

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: FastState) -> tuple[Tensor, FastState]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        if tokens.dim() == 1 and (graph := self.graph_for(len(tokens), state.length)) is not None:
            return self._graph_step(graph, tokens, state), state
        columns = [tokens] if tokens.dim() == 1 else tokens.unbind(1)
        with self.threads(len(tokens)):
            *_, hidden = [self._advance(column, state) for column in columns]
            return at_least_float32(self.project(self.read_output(hidden))), state

    @property
    def rounding(self) -> float:
        """As `decoding.contract.Rewinding.rounding`."""
        return ROUNDING_INT8 if self.precision == "int8" else ROUNDING[self.dtype]

    rewindable = staticmethod(FastRows.of)

    @torch.inference_mode()
    def step_all(self, tokens: Tensor, counts: Sequence[int], state: FastRows) -> tuple[Tensor, FastRows]:
        """As `decoding.contract.Rewinding.step_all`."""
        count = tokens.shape[1]  # T
        last = max(state.lengths) + count  # columns after this step
        state.reserve(last)
        columns = state.new_columns(count)
        positions = self.positions_of(state.positions(columns, last), state.cache.keys[0])
        mask = state.mask(columns, last)
        biases = [bias if mask is None else mask if bias is None else bias + mask for bias in positions.biases]
        x: Tensor = self.inputs(  # (R,T,D)
            self.embedding(tokens), state.lengths[0], position_ids=state.position_ids(columns, counts)
        )
        terms = StepPositions(positions.rotations, biases)
        attend = self.self_attention(count, terms, partial(state.store, columns, last))
        with self.threads(tokens.numel()):
            hidden = self.run_layers(x.flatten(0, 1), attend, state.source, state.source_mask)  # (R·T,D)
            logits = at_least_float32(self.project(self.read_output(hidden)))  # (R·T,V)
        return logits.unflatten(0, tokens.shape), state.changed(counts)  # (R,T,V)

    def crop(self, state: FastRows, counts: Sequence[int]) -> FastRows:
        """As `decoding.contract.Rewinding.crop`."""
        return state.changed([-count for count in counts])

    def graph_for(self, rows: int, length: int) -> StepGraph | None:
        """The graph, if it is to run a step of so many rows whose outputs have so many tokens, the longest."""
        return self.graph if self.graph is not None and self.graph.takes(rows, length) else None

    def _graph_step(self, graph: StepGraph, tokens: Tensor, state: FastState) -> Tensor:
        """One token of each output by ONNX Runtime: tokens (R,) -> logits (R,V); updates the state."""
        first, last, starts = begin_column(state)
        column, caches = state.length, (state.cache.keys, state.cache.values)
        mask = None if state.mask is None else state.mask.unsqueeze(1)  # all columns; the graph reads a part of them
        biases, rotations = [mask] * len(self.layers), list[tuple[Rotation, ...]]()
        if self.has_schemes:
            positions = self.step_positions(column, column + 1, starts, state.cache.keys[0])
            seen, rotations = None if mask is None else mask[..., :last], positions.rotations
            biases = [mask if bias is None else with_mask(bias, seen, state.width) for bias in positions.biases]
        own = column if state.starts is None else state.starts + column
        state.length = column + 1
        columns = range(first, last)
        return graph(tokens, own, columns, last, caches, biases, rotations, state.source, state.source_mask)

    def _advance(self, tokens: Tensor, state: FastState) -> Tensor:
        """One token of each output: tokens (R,) -> hidden (R,D); updates the state."""
        width, column = state.width, state.length
        first, last, starts = begin_column(state)
        mask = None if state.mask is None else state.mask[:, None, :, :last]
        x = self.embed(tokens, column, state.starts)
        positions = self.step_positions(column, column + 1, starts, state.cache.keys[0])
        masks = [mask if bias is None else with_mask(bias, mask, width) for bias in positions.biases]

        def extend(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = state.cache.keys[layer], state.cache.values[layer]
            keys[:, :, first:last], values[:, :, first:last] = k, v  # (N,Hkv,w,K), in place
            return keys[:, :, :last], values[:, :, :last]  # views: nothing is copied

        attend = self.self_attention(width, StepPositions(positions.rotations, masks), extend)
        x = self.run_layers(x, attend, state.source, state.source_mask)
        state.length = column + 1
        return x

    def embed(self, tokens: Tensor, column: int, starts: Tensor | None) -> Tensor:
        """The first layer's input (R,D) of tokens (R,) in that column; outputs begin at `starts` (R,), or at 0."""
        position_ids = None if starts is None else (starts + column).unsqueeze(1)
        x: Tensor = self.inputs(self.embedding(tokens.unsqueeze(1)), column, position_ids=position_ids).squeeze(1)
        return x

    def step_positions(self, column: int, columns: int, starts: Tensor | None, like: Tensor) -> StepPositions:
        """The terms of the position schemes for the token in `column`, with keys in columns 0 to `columns`.

        Outputs begin at `starts` (N,1), or at 0. Biases have the dtype and device of `like`.
        """
        keys = torch.arange(columns, device=like.device)  # (columns,)
        queries = keys[column : column + 1]  # (1,)
        if starts is None:
            return self.positions_of(QueryKeyPositions(queries, keys, True), like)
        return self.positions_of(QueryKeyPositions(starts + queries, starts + keys, False), like)

    def positions_of(self, query_key_positions: QueryKeyPositions, like: Tensor) -> StepPositions:
        """The terms of the position schemes for those queries and keys; biases have the dtype and device of `like`."""
        count = len(self.layers)
        if not len(self.positions.schemes):
            return StepPositions([()] * count, [None] * count)
        rotations: list[tuple[Rotation, ...]] = []
        biases: list[Tensor | None] = []
        bias_of_schemes: dict[tuple[int, ...], Tensor | None] = {}  # layers with the same schemes share a bias
        for terms in self.positions.terms(query_key_positions, self.dtype):
            relative = None if terms is None else terms.relative
            layer_rotations = () if terms is None else terms.rotations
            rotations.append(tuple(rotation for rotation in layer_rotations if isinstance(rotation, Rotation)))
            if relative is None:
                biases.append(None)
                continue
            schemes = tuple(id(scheme) for scheme in relative.schemes)
            if schemes not in bias_of_schemes:
                bias = relative.scores(like, like, self.scale)  # these schemes read only the dtype of the queries
                bias_of_schemes[schemes] = None if bias is None else bias.to(like.dtype)
            biases.append(bias_of_schemes[schemes])
        return StepPositions(rotations, biases)

    def self_attention(
        self, width: int, positions: StepPositions, extend: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> SelfAttention:
        """The self-attention of one token of each output, w beams of each text.

        `extend` stores the new keys and values (N,Hkv,w,K) of a layer and returns all of them.
        """

        def attend(layer: int, projected: Tensor) -> Tensor:
            q, k, v = self.split(projected, width, positions.rotations[layer])
            return self.attend(q, *extend(layer, k, v), positions.biases[layer])

        return attend

    def split(self, projected: Tensor, length: int, rotations: Sequence[Rotation]) -> tuple[Tensor, Tensor, Tensor]:
        """(N·T,(H+2·Hkv)·K) -> queries (N,H,T,K), keys and values (N,Hkv,T,K) with T = `length`, rotated."""
        stacked = projected.view(len(projected) // length, length, -1, self.d_head).transpose(1, 2)
        q, k, v = stacked.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        for rotation in rotations:
            q, k = rotation(q), rotation(k)
        return q, k, v

    def run_layers(
        self, x: Tensor, attend: SelfAttention, source: list[tuple[Tensor, Tensor]], source_mask: Tensor | None
    ) -> Tensor:
        """x (R,D) -> hidden (R,D). M sources are attended to by R/M consecutive outputs each."""
        for number, layer in enumerate(self.layers):
            normed = layer.norms[0](x) if self.pre_norm else x  # (R,D)
            x = layer.self_output.plus(attend(number, layer.self_input(normed)), x)
            x = x if self.pre_norm else layer.norms[0](x)
            if layer.cross_queries is not None and layer.cross_output is not None:
                # the outputs of a source are the queries of one attention call
                source_keys, source_values = source[number]  # (M,Hkv,S,K)
                normed = layer.norms[1](x) if self.pre_norm else x
                q = layer.cross_queries(normed).view(len(source_keys), -1, self.heads, self.d_head).transpose(1, 2)
                x = layer.cross_output.plus(self.attend(q, source_keys, source_values, source_mask), x)
                x = x if self.pre_norm else layer.norms[1](x)
            normed = layer.norms[-1](x) if self.pre_norm else x
            inner = layer.inner(normed)
            x = layer.outer.plus(inner if layer.activation is None else layer.activation(inner), x)
            x = x if self.pre_norm else layer.norms[-1](x)
        return x if self.last_norm is None else self.last_norm(x)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q (N,H,T,K), keys and values (N,Hkv,S,K) -> (N·T,H·K)."""
        grouped = self.heads != self.kv_heads
        out = sdpa(q.type_as(keys), keys, values, mask, scale=self.scale, grouped=grouped).type_as(q)
        return out.transpose(1, 2).reshape(q.shape[0] * q.shape[2], -1)
