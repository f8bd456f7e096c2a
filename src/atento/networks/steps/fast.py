"""A Transformer that writes, made ready to write fast: the plain network's step functions have here their fast twin.

What makes it fast: products on packed weights, in float32 (exact), bfloat16 or int8; queries, keys and values in one
product; keys and values of the source made once and shared by all beams of a text; one cache for all beams of a text,
in which each beam sees its own past by a mask, so that beams change places without a copy; no module between the
products. On processors other than the CPU it runs the same steps on plain products.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.observe import observing
from atento.attention.positions import Rotation
from atento.attention.relative import Shaw
from atento.attention.relative_terms import QueryKeyPositions
from atento.errors import CapabilityError
from atento.networks.stack.block import Block
from atento.networks.stack.decoder import Decoder
from atento.networks.stack.encoder_decoder import EncoderDecoder
from atento.networks.stack.stack import Stack
from atento.networks.steps.decoder import last_tokens
from atento.networks.steps.fast_state import ROOM, Cache, FastState
from atento.networks.steps.packed_linear import Precision, Product, ReadyLinear, ready, with_ready_products
from atento.networks.steps.seq2seq import moved_to_front
from atento.precision import best_precision


def why_not_fast(network: object) -> str | None:
    """What about this network the fast steps cannot do; None where they can."""
    if not isinstance(network, EncoderDecoder | Decoder):
        return f"networks of type {type(network).__name__}"
    stack = network.decoder if isinstance(network, EncoderDecoder) else network.stack
    if stack.positions.sparse or stack.positions.added:
        return "sparse attention" if stack.positions.sparse else "positions added in single layers"
    for scheme in stack.positions.schemes:
        inner = getattr(scheme, "scheme", scheme)
        if isinstance(inner, Shaw):
            return "Shaw positions"
    return None


def fast_steps(network: Any, precision: Precision | None = None) -> Any:
    """The fast twin of `network.steps()` where there is one, else the plain steps themselves.

    `precision` None: that of the network's weights. Off the CPU the plain steps are taken.

    Raises:
        CapabilityError: int8 is asked for, and this network has no fast twin.
    """
    reason = why_not_fast(network)
    first = next(network.parameters())
    if reason is None and first.device.type == "cpu":
        return FastSteps(network, precision or ("bfloat16" if first.dtype == torch.bfloat16 else "float32"))
    if precision == "int8":
        raise CapabilityError(f"int8 is for networks with a fast decoder on the CPU, not for {reason or first.device}")
    return network.steps()


def _on_the_same_weights(network: Any) -> Any:
    """A copy of the modules that shares the weights' memory until they are packed, or of another type."""
    weights: dict[int, Any] = {id(one): nn.Parameter(one.detach(), requires_grad=False) for one in network.parameters()}
    return deepcopy(network, weights)


@dataclass
class _Layer:
    """One block of the decoder, taken apart."""

    norms: list[nn.Module]  # own, cross (if any), feed-forward
    own_in: Product
    own_out: Product
    cross_in: Product | None
    cross_memory: Product | None
    cross_out: Product | None
    inner: Product
    outer: Product
    activation: Callable[[Tensor], Tensor] | None  # None: the inner product takes it itself
    gated: bool


@dataclass(frozen=True)
class Told:
    """What the layers are told of a token's place: how queries and keys are turned, what is added to the scores.

    One entry a layer; what is added is (N or 1, 1 or H, w or 1, S), masks joined to it, or None.
    """

    turns: list[tuple[Rotation, ...]]
    biases: list[Tensor | None]


def _joined(bias: Tensor, seen: Tensor | None, width: int) -> Tensor:
    """A bias (N or 1,H,1,t), the same for all w beams, and what each of them sees (N,1,w,t·w) -> (N,H,w,t·w)."""
    bias = bias if width == 1 else bias.repeat_interleave(width, dim=-1)
    return bias if seen is None else bias + seen


class FastSteps:
    """`begin`, `step`, `end` as the network's own steps have them, fast (docs/notes.md#h12).

    The weights are copied into the form that their products like best, so a network and its fast steps hold them twice.

    Raises:
        CapabilityError: something about the network has no fast path; says what.
    """

    def __init__(self, network: EncoderDecoder | Decoder, precision: Precision = "float32") -> None:
        reason = why_not_fast(network)
        if reason is not None:
            raise CapabilityError(f"no fast steps for {reason}")
        self.network, self.precision, self.plain = network, precision, network.steps()
        config = network.config
        self.start_id, self.eos_id, self.pad_id = config.start_id, config.eos_id, config.pad_id
        own = next(network.parameters()).dtype
        self.dtype = torch.bfloat16 if precision == "bfloat16" else own if own == torch.float64 else torch.float32
        # what one query looks at stays in float32 on a CPU, which attends several times slower in bfloat16; where four
        # beams look at the past of them all, half the bytes are quicker
        on_cpu = next(network.parameters()).device.type == "cpu"
        self.kept = torch.float32 if on_cpu and self.dtype == torch.bfloat16 else self.dtype
        rounds = precision == "int8" and on_cpu and self.dtype == torch.float32
        self.of_beams = torch.bfloat16 if rounds and best_precision("cpu") == "bfloat16" else self.dtype
        whole = _on_the_same_weights(network).to(self.dtype).eval()
        self.project = ready(whole.projection, whole.vocabulary_head.bias, precision)
        self.reader = with_ready_products(whole, precision) if isinstance(whole, Decoder) else None
        stack = whole.decoder if isinstance(whole, EncoderDecoder) else whole.stack
        assert isinstance(stack, Stack)
        self.embedding, self.inputs = (
            whole.table,
            whole.target_inputs if isinstance(whole, EncoderDecoder) else whole.inputs,
        )
        self.pre = config.norm == "pre"
        self.last_norm, self.positions = stack.norm, stack.positions
        self.heads = config.n_heads
        self.kv_heads = config.n_heads if config.n_kv_heads is None else config.n_kv_heads
        self.d_head = config.head_width
        self.scale = self.d_head**-0.5 if config.attention_scale is None else config.attention_scale
        self.layers = [self._layer(block) for block in stack.blocks]  # type: ignore[arg-type]
        self.read_output = whole.vocabulary_head.read
        self.encoder: EncoderDecoder | None = None
        if isinstance(whole, Decoder):
            self.first_tokens = self._first_tokens
        else:
            whole.decoder = nn.Module()
            reads = precision
            if precision == "int8":  # the source is read once: there half the bits are saving enough
                reads = best_precision("cpu")
                self.embedding, self.inputs = deepcopy((self.embedding, self.inputs))
                whole = whole.to(torch.bfloat16 if reads == "bfloat16" else self.dtype)
            self.encoder = with_ready_products(whole, reads)

    def _layer(self, block: Block) -> _Layer:
        """The block's weights made ready, unless they are."""
        own, cross, feed = block.self_attention, block.cross_attention, block.feed_forward
        precision = self.precision

        def product(linear: nn.Module, relu: bool = False) -> Product:
            if isinstance(linear, ReadyLinear):
                return linear.product
            assert isinstance(linear, nn.Linear)
            return ready(linear.weight, linear.bias, precision, relu=relu)

        norms = [block.own_residual.norm, block.feed_forward_residual.norm]
        relu = feed.activation is F.relu and not feed.gated and isinstance(feed.inner, nn.Linear)
        made = _Layer(
            norms,
            product(own.input),
            product(own.output),
            None,
            None,
            None,
            product(feed.inner, relu),
            product(feed.outer),
            None if relu else feed.activation,
            feed.gated,
        )
        if cross is not None and block.cross_residual is not None:
            norms.insert(1, block.cross_residual.norm)
            queries = self.heads * self.d_head
            weight, bias = cross.input.weight, cross.input.bias
            made.cross_in = ready(weight[:queries], None if bias is None else bias[:queries], precision)
            memory = "float32" if precision == "int8" else precision
            made.cross_memory = ready(weight[queries:], None if bias is None else bias[queries:], memory)
            made.cross_out = product(cross.output)
        return made

    def _first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """As `DecoderSteps.first_tokens`."""
        return last_tokens(ids, token_mask, self.start_id)

    @torch.inference_mode()
    def begin(self, ids: Tensor, token_mask: Tensor | None) -> FastState:
        """ids (B,S), a source or prompts -> the state of B rows."""
        self.begun = ids, token_mask
        count = ids.shape[0]
        shape = (count, self.kv_heads, ROOM, self.d_head)
        empty = [[torch.empty(shape, dtype=self.kept, device=ids.device) for _ in self.layers] for _ in range(2)]
        state = FastState(Cache(*empty), rows=count, of_beams=self.of_beams)
        state.cache.holder = state
        if self.encoder is None:
            return self._read_prompts(ids, token_mask, state)
        ids, token_mask = moved_to_front(ids, token_mask)
        encoded = self.encoder.encode(ids, source_token_mask=token_mask).flatten(0, 1).to(self.dtype)
        for layer in self.layers:
            assert layer.cross_memory is not None
            both = layer.cross_memory(encoded).view(count, ids.shape[1], 2 * self.kv_heads, self.d_head).transpose(1, 2)
            keys, values = both.to(self.kept).split(self.kv_heads, dim=1)
            state.source.append((keys.contiguous(), values.contiguous()))
        if token_mask is not None and not bool(token_mask.all()):
            unseen = torch.zeros(token_mask.shape, dtype=self.kept, device=ids.device)
            state.source_mask = unseen.masked_fill_(~token_mask, float("-inf"))[:, None, None, :]
        return state

    def _read_prompts(self, ids: Tensor, token_mask: Tensor | None, state: FastState) -> FastState:
        """All but each prompt's last token, in one pass; shorter ones are moved to end together."""
        assert self.reader is not None
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        order = torch.argsort(real.int(), dim=1, stable=True)  # padding first, the order of real tokens kept
        ids, real = ids.gather(1, order)[:, :-1], real.gather(1, order)[:, :-1]
        columns = ids.shape[1]
        if not columns:
            return state
        whole = bool(real.all())
        places = None if whole else (real.long().cumsum(dim=1) - 1).clamp_min_(0)
        read = self.reader(
            ids, token_mask=None if whole else real, position_ids=places, state=self.reader.begin(), project=False
        ).state
        caches = [block.own for block in read.blocks]
        own = Cache([one.keys.to(self.kept) for one in caches], [one.values.to(self.kept) for one in caches])
        state.cache = own.roomier(columns, columns + ROOM)
        state.cache.holder, state.length = state, columns
        if not whole:
            state.starts = real.sum(dim=1) - columns  # start + column is each token's own position
            unseen = torch.full((len(ids), 1, columns + ROOM), float("-inf"), dtype=self.kept, device=ids.device)
            unseen[:, 0, :columns].masked_fill_(real, 0.0)
            state.seen = unseen
        return state

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: FastState) -> tuple[Tensor, FastState]:
        """tokens (R,) or a prefix (R,T) -> logits (R,V) after the last of them, in float32 at least, and the state."""
        columns = [tokens] if tokens.dim() == 1 else list(tokens.unbind(1))
        for column in columns[:-1]:
            self._advance(column, state)
        logits = self.project(self.read_output(self._advance(columns[-1], state)))
        return logits.to(torch.promote_types(logits.dtype, torch.float32)), state

    def _advance(self, tokens: Tensor, state: FastState) -> Tensor:
        """One token of each output: tokens (R,) -> hidden (R,D); the state has read it then."""
        width, column = state.width, state.length
        state.make_room()
        first, last = column * width, (column + 1) * width
        if state.seen is not None:  # each beam sees its own new token
            fresh = state.seen.new_full((width, width), float("-inf")).fill_diagonal_(0.0) if width > 1 else 0.0
            state.seen[:, :, first:last] = fresh
        seen = None if state.seen is None else state.seen[:, None, :, :last]
        starts = None if state.starts is None else state.starts.view(-1, width)[:, :1]  # (N,1)
        x = self._read_in(tokens, column, state.starts)
        told = self._told(column, column + 1, starts, state.cache.keys[0])
        masks = [seen if bias is None else _joined(bias, seen, width) for bias in told.biases]

        def kept(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = state.cache.keys[layer], state.cache.values[layer]
            keys[:, :, first:last], values[:, :, first:last] = k, v
            return keys[:, :, :last], values[:, :, :last]

        x = self._through(x, width, Told(told.turns, masks), kept, state.source, state.source_mask)
        state.length = column + 1
        return x

    def _read_in(self, tokens: Tensor, column: int, starts: Tensor | None) -> Tensor:
        """What the first layer reads: tokens (R,), each the one numbered `column`, the first at `starts` (R,)."""
        places = None if starts is None else (starts + column).unsqueeze(1)
        x: Tensor = self.inputs(self.embedding(tokens.unsqueeze(1)), column, position_ids=places).squeeze(1)
        return x

    def _told(self, column: int, columns: int, starts: Tensor | None, like: Tensor) -> Told:
        """What position schemes do to the token numbered `column`, beside keys 0 to `columns` of type and place `like`;
        `starts` (N,1).
        """
        count = len(self.layers)
        if not len(self.positions.schemes):
            return Told([()] * count, [None] * count)
        keys = torch.arange(columns, device=like.device)
        own = keys[column : column + 1]
        places = (
            QueryKeyPositions(own, keys, True)
            if starts is None
            else QueryKeyPositions(starts + own, starts + keys, False)
        )
        turns: list[tuple[Rotation, ...]] = []
        biases: list[Tensor | None] = []
        made: dict[tuple[int, ...], Tensor | None] = {}
        for terms in self.positions.terms(places, self.dtype):
            relative = None if terms is None else terms.relative
            rotations = () if terms is None else terms.rotations
            turns.append(tuple(one for one in rotations if isinstance(one, Rotation)))
            if relative is None:
                biases.append(None)
                continue
            same = tuple(id(scheme) for scheme in relative.schemes)
            if same not in made:
                bias = relative.scores(like, self.scale)  # of queries these schemes read the precision alone
                made[same] = None if bias is None else bias.to(like.dtype)
            biases.append(made[same])
        return Told(turns, biases)

    def _through(
        self,
        x: Tensor,
        width: int,
        told: Told,
        kept: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
        source: list[tuple[Tensor, Tensor]],
        source_mask: Tensor | None,
    ) -> Tensor:
        """The layers: x (R,D) -> hidden (R,D). `kept` takes a layer's new keys and values (N,Hkv,w,K) and gives all."""
        rows = len(x)
        for number, layer in enumerate(self.layers):
            read = layer.norms[0](x) if self.pre else x
            stacked = layer.own_in(read).view(rows // width, width, -1, self.d_head).transpose(1, 2)  # (N,H+2Hkv,w,K)
            q, k, v = stacked.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
            for turn in told.turns[number]:
                q, k = turn(q), turn(k)
            keys, values = kept(number, k, v)
            out = self._attend(q, keys, values, told.biases[number])  # (N,H,w,K)
            x = layer.own_out.added(out.transpose(1, 2).reshape(rows, -1), x)
            x = x if self.pre else layer.norms[0](x)
            if layer.cross_in is not None and layer.cross_out is not None:
                source_keys, source_values = source[number]
                read = layer.norms[1](x) if self.pre else x
                q = layer.cross_in(read).view(len(source_keys), -1, self.heads, self.d_head).transpose(1, 2)
                out = self._attend(q, source_keys, source_values, source_mask)  # (M,H,R/M,K)
                x = layer.cross_out.added(out.transpose(1, 2).reshape(rows, -1), x)
                x = x if self.pre else layer.norms[1](x)
            read = layer.norms[-1](x) if self.pre else x
            x = layer.outer.added(self._inside(layer, read), x)
            x = x if self.pre else layer.norms[-1](x)
        last_hidden: Tensor = x if self.last_norm is None else self.last_norm(x)
        return last_hidden

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q (N,H,w,K), keys and values (N,Hkv,S,K) -> (N,H,w,K)."""
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(
            q.to(keys.dtype), keys, values, attn_mask=mask, scale=self.scale, enable_gqa=grouped
        )
        return out.to(self.dtype)

    def _inside(self, layer: _Layer, x: Tensor) -> Tensor:
        """What the feed-forward network's outer product reads, (R,F)."""
        x = layer.inner(x)
        if layer.activation is None:
            return x
        if not layer.gated:
            return layer.activation(x)
        x, gate = x.chunk(2, dim=-1)
        return layer.activation(x) * gate

    @torch.inference_mode()
    def end(self, written: list[list[int]]) -> None:
        """As the network's own steps have it: what was written is shown to whoever observes the network."""
        if observing(self.network):
            self.plain.begin(*self.begun)
            self.plain.end(written)
