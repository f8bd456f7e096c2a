"""A stack of equal blocks and its masks, prepared once for all layers; the base of the networks that are one stack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from atento.attention.cuda_kernels import RowMask, has_rows
from atento.attention.dropout import Randomness
from atento.attention.masks import Mask, bidirectional, causal, lookahead, padding, prefix, window
from atento.attention.multihead import MultiHeadAttention, Selectable
from atento.attention.observe import observing
from atento.attention.prepared_mask import PreparedMask, check_boolean, prepare_mask
from atento.attention.relative_terms import QueryKeyPositions
from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import MaskConfig
from atento.config.sections.position_scheme import ADDED
from atento.networks.frozen import current
from atento.networks.interface import Network, layer_count, of_new_tokens
from atento.networks.layers import Block, BlockState, TokenEmbedding, initialise, make_block, make_norm
from atento.networks.rare_layers import InputConvolution, LayerMix
from atento.networks.stack.compiled import recomputed, run_compiled
from atento.networks.stack.stack_positions import InputLayer, LayerPositions, total_cost


def without_padding(config: NetworkConfig) -> bool:
    """Whether layers can compute all real tokens of a batch as one row: no position in it matters to them.

    On a GPU, that is how they learn in 16 bits (`cuda_kernels.RowMask`), but for decoders that read a source.
    """
    added = all(scheme.kind in ADDED and scheme.layers is None for scheme in config.schemes)
    others = (config.attention.sparse, config.convolution, config.mask)
    width = config.head_width
    return added and others == (None, None, None) and width % 8 == 0 and width <= 256  # as FlashAttention takes heads


_ALL = 2**30  # neighbours: more than any text has


def default_masks(config: NetworkConfig, *, kind: str, n_layers: int) -> list[Mask]:
    """The self-attention masks of an "encoder" or a "decoder", one a layer; layers with the same mask share one object.

    The decoder of an encoder-decoder is always causal: `config.mask` is for its encoder.
    """
    usual = bidirectional() if kind == "encoder" else causal()
    if config.mask is None or (kind == "decoder" and config.reads_source):
        return [usual] * n_layers
    configured = _mask(config.mask, kind)
    return [configured if config.mask.layers is None or n in config.mask.layers else usual for n in range(n_layers)]


def within_window(mask: Mask, config: NetworkConfig) -> Mask | list[Mask]:
    """Join a mask that replaces the default masks of a network to its window, if it has one (a list: one a layer).

    The window of a decoder has no keys after a query. Under a mask with which queries look ahead, as in a prefix, it
    has as many after as before.
    """
    window_config = config.mask
    if window_config is None or window_config.kind != "window":
        return mask
    left, right = (_ALL if size is None else size for size in (window_config.left, window_config.right))
    joined = mask & window(left, left if config.architecture == "decoder" else right)
    if window_config.layers is None:
        return joined
    return [joined if n in window_config.layers else mask for n in range(config.n_layers)]


def _mask(config: MaskConfig, kind: str) -> Mask:
    """The mask of that configuration; in a decoder no query looks ahead."""
    if config.kind == "window":
        right = _ALL if config.right is None else config.right
        return window(_ALL if config.left is None else config.left, 0 if kind == "decoder" else right)
    if config.kind == "prefix":
        return prefix(config.length)
    if config.kind == "lookahead":
        return lookahead(config.ahead)
    return bidirectional() if config.kind == "bidirectional" else causal()


_LONG = 512  # keys from which on skipping some saves time
MaskArgument = Mask | Tensor | Sequence[Mask] | RowMask | None


@dataclass
class StackState(Selectable):
    """The cache of a decoder: one state a block, the number of cached positions, and the source's mask.

    `position_ids` (B,S) are the positions of the cached tokens, only if they were given.
    """

    blocks: list[BlockState]
    length: int = 0
    memory_mask: PreparedMask | None = None
    position_ids: Tensor | None = None


class Stack(nn.Module):
    """N blocks, one after the other; (B,L,D) -> (B,L,D)."""

    def __init__(
        self,
        config: NetworkConfig,
        *,
        kind: str,
        n_layers: int,
        masks: Sequence[Mask] | None = None,
        reads_source: bool = False,
    ) -> None:
        """`masks` are the default masks of self-attention, one a layer; None: those of `config`."""
        super().__init__()
        self.n_layers, self.writes = n_layers, kind == "decoder"
        numbers = [n_layers - 1] if config.shared_layers else range(n_layers)  # known as the last layer
        self.blocks = nn.ModuleList(
            make_block(config, kind=kind, layer=layer, reads_source=reads_source) for layer in numbers
        )
        self.positions = LayerPositions(config, kind=kind, n_layers=n_layers)
        self.norm = make_norm(config, config.d_model) if config.norm == "pre" else None
        self.convolution = None
        if config.convolution is not None and kind == "encoder":
            self.convolution = InputConvolution(config, config.convolution)
        self.recompute = False  # compute the blocks again in the backward pass instead of keeping their activations
        self.compiled = False  # in training, run the blocks with `torch.compile`
        self.rows = without_padding(config) and masks is None
        self.masks = list(default_masks(config, kind=kind, n_layers=n_layers) if masks is None else masks)

    @property
    def layers(self) -> list[Block]:
        """The block of each layer: all the same where layers are shared (Lan et al. 2020)."""
        blocks: list[Block] = list(self.blocks)  # type: ignore[arg-type]
        return blocks if len(blocks) == self.n_layers else blocks * self.n_layers  # the same block at every depth

    def forward(
        self,
        x: Tensor,
        *,
        mask: MaskArgument = None,
        token_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_token_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        state: StackState | None = None,
        random: Randomness | None = None,
        depth: int | None = None,
        layers: list[Tensor] | None = None,
        blocks: Sequence[Block] | None = None,
    ) -> Tensor:
        """Run the blocks, one after the other.

        Args:
            x: (B,T,D); with a `state` only the new positions.
            mask: replaces the default masks of self-attention; a list gives one a layer. Padding is always joined.
            token_mask: boolean (B,S), True = a real token, the cached ones among them.
            memory: the encoded source (B,S,D), for cross-attention.
            memory_token_mask: boolean (B,S), True = a real token of the source.
            position_ids: positions (B,T) of the tokens; None: they continue from the state's length.
            state: the cache; updated in place.
            depth: how many blocks to run; with fewer than all, the output of the last of them, without the final norm.
            layers: a list that gets x and the output of each block, (B,T,D); of the last one behind the final norm.
            blocks: run in place of those of the layers, whose weights they may share; never compiled.

        Returns:
            (B,T,D).
        """
        depth = self.n_layers if depth is None else depth
        alone = state is None and memory is None and layers is None and depth == self.n_layers
        if mask is None and token_mask is not None and alone and self.takes_rows(x.dtype, x.device):
            mask = RowMask.of(self.masks[0], token_mask, x.device)
        row = mask if isinstance(mask, RowMask) else None
        masks = self._masks(x, mask, token_mask, position_ids, state)
        memory_mask = None if state is None else state.memory_mask
        if memory_mask is None and memory is not None:
            real = None if memory_token_mask is None else padding(memory_token_mask)
            memory_mask = prepare_mask(real, 1, memory.shape[1], x.device)  # the same for every query
        offset = 0 if state is None else state.length
        terms = self.positions.terms(self._positions(x, position_ids, state), x.dtype)  # once for all layers
        shape, x = x.shape, x if row is None else row.pack(x)  # (1,T,D) if it is a row
        inputs = x  # the convolution reads what the first layer read
        learns = self.training and torch.is_grad_enabled()
        compiled = self.compiled and learns and state is None and blocks is None
        for index, block in enumerate(self.layers if blocks is None else blocks):
            if layers is not None:
                layers.append(x)
            if index == depth:
                return x  # without the final norm
            run = partial(
                partial(run_compiled, block) if compiled else block,
                mask=masks[index],
                position_terms=terms[index],
                memory=memory,
                memory_mask=memory_mask,
                state=None if state is None else state.blocks[index],
                layer=None if compiled else index,
            )
            if str(index) in self.positions.added:
                x = self.positions.added[str(index)](x, offset, position_ids)
            if self.recompute and state is None and torch.is_grad_enabled():
                x = recomputed(run, x, random)
            else:
                x = run(x, random=random)
            if self.convolution is not None and index == 0:
                x = self.convolution(inputs, x, token_mask, random)
        if state is not None:
            state.length, state.memory_mask = state.length + x.shape[1], memory_mask
        x = x if self.norm is None else self.norm(x)
        if layers is not None:
            layers.append(x)
        return x if row is None else row.unpack(x, shape)

    def takes_rows(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the layers learn from all real tokens as one row now, which a `RowMask` says: in 16 bits on a GPU."""
        learns = self.training and torch.is_grad_enabled() and dtype in (torch.bfloat16, torch.float16)
        allowed = learns and self.rows and not self.compiled and device.type != "cpu"  # code for rows is not compiled
        return allowed and not observing(self) and has_rows(device)

    def _positions(self, x: Tensor, position_ids: Tensor | None, state: StackState | None) -> QueryKeyPositions | None:
        """Positions of queries and keys, None where no layer reads them; `position_ids` are stored in the state."""
        cached = 0 if state is None else state.length
        if position_ids is None:
            if state is not None and state.position_ids is not None:
                raise ValueError("a decode state that has `position_ids` needs them at every step")
            return self.positions.consecutive(x.shape[1], cached + x.shape[1], x.device)
        keys = position_ids
        if state is not None:
            if cached and state.position_ids is None:
                raise ValueError("a decode state without `position_ids` takes none later")
            keys = position_ids if state.position_ids is None else torch.cat([state.position_ids, position_ids], dim=1)
            state.position_ids = keys
        return QueryKeyPositions(position_ids, keys, False)

    def _masks(
        self,
        x: Tensor,
        mask: MaskArgument,
        token_mask: Tensor | None,
        position_ids: Tensor | None,
        state: StackState | None,
    ) -> list[PreparedMask]:
        """The masks of the layers, joined with padding and learned spans, as kernels take them."""
        if isinstance(mask, RowMask):
            return [mask] * self.n_layers
        layer_masks = self.masks if mask is None else mask
        masks: list[Mask | Tensor] = list(layer_masks) if isinstance(layer_masks, Sequence) else [layer_masks]
        if isinstance(layer_masks, Sequence) and len(masks) != self.n_layers:
            raise ValueError(f"a list of masks gives one a layer: got {len(masks)} for {self.n_layers} layers")
        if all(layer_mask is masks[0] for layer_mask in masks):  # prepared once for all layers
            masks = masks[:1]
        key_len = x.shape[1] + (0 if state is None else state.length)  # cached and new
        joined: list[Mask | Tensor] = []
        for layer_mask in masks:
            if state is not None and not (isinstance(layer_mask, Mask) and not layer_mask.looks_ahead):
                got = repr(layer_mask) if isinstance(layer_mask, Mask) else f"a matrix of shape {(*layer_mask.shape,)}"
                raise CapabilityError(f"a mask that looks ahead cannot be cached: got {got} with a decode state")
            if token_mask is not None:
                real = padding(token_mask)
                if isinstance(layer_mask, Mask):
                    layer_mask = layer_mask & real
                else:
                    layer_mask = check_boolean(layer_mask) & real.dense(1, key_len, x.device)  # (B,1,1,S)
            joined.append(layer_mask)
        # spans that heads have learned are masks too: joined to the mask, a kernel skips keys that no head reaches;
        # they count positions in a row, so not where `position_ids` say otherwise
        spans = {} if position_ids is not None or key_len <= _LONG else self.positions.spans()
        if spans and len(joined) == 1:
            joined = joined * self.n_layers  # a list of its own for each layer's span
        for layer, span in spans.items():
            layer_mask = joined[layer]
            joined[layer] = layer_mask & span if isinstance(layer_mask, Mask) else layer_mask
        prepared = [prepare_mask(layer_mask, x.shape[1], key_len, x.device) for layer_mask in joined]
        return prepared * self.n_layers if len(prepared) == 1 else prepared

    def begin(self, memory: Tensor | None = None, token_mask: Tensor | None = None) -> StackState:
        """An empty decode state.

        Args:
            memory: the encoded source (B,S,D), whose keys and values are computed once, for every block and step.
            token_mask: boolean (B,S), True = a real token of the source; None: all are.
        """
        state = StackState([BlockState() for _ in range(self.n_layers)])
        if memory is None:
            return state
        for block, block_state in zip(self.layers, state.blocks):
            if isinstance(block.cross_attention, MultiHeadAttention):
                block_state.cross_attention = block.cross_attention.key_values(memory)
        real = None if token_mask is None or bool(token_mask.all()) else padding(token_mask)
        state.memory_mask = prepare_mask(real, 1, memory.shape[1], memory.device)  # the same for all queries
        return state


class StackNetwork(Network):
    """The base of networks of stacks."""

    def reset_parameters(self) -> None:
        """Initialise the weights with `initialise`."""
        initialise(self, self.config)

    def cost(self) -> Tensor | None:
        """The cost of learned sparsity, added to the loss, in nats a target; None: no cost (docs/notes.md#a17)."""
        return total_cost(self)


class SingleStack(StackNetwork):
    """The base of networks that are one stack: an encoder or a decoder of texts."""

    def __init__(self, config: NetworkConfig, *, kind: str) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.embedding_width, scale=config.embedding.scaled)
        self.inputs = InputLayer(config)
        self.stack = Stack(config, kind=kind, n_layers=config.n_layers)
        self.mix = LayerMix(config.n_layers + 1, norm=config.norm == "pre") if config.layer_mix else None

    def hidden(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None,
        position_ids: Tensor | None,
        mask: MaskArgument,
        random: Randomness | None,
        segment_ids: Tensor | None = None,
        state: StackState | None = None,
    ) -> Tensor:
        """The hidden vectors (B,L,D) of the last layer or the mix of layers; the arguments are those of `forward`."""

        def compute() -> Tensor:
            x = self.inputs(
                self.embedding(ids),
                0 if state is None else state.length,
                position_ids=position_ids,
                segment_ids=segment_ids,
                token_mask=of_new_tokens(token_mask, ids),
                random=random,
            )
            layers: list[Tensor] = []
            states: Tensor = self.stack(
                x,
                mask=mask,
                token_mask=token_mask,
                position_ids=position_ids,
                state=state,
                random=random,
                layers=None if self.mix is None else layers,
            )
            return states if self.mix is None else self.mix.joined(layers)

        # hidden vectors of a frozen network are computed once; a mask, positions or a state would change them
        vectors = current() if mask is None and position_ids is None and state is None else None
        if vectors is None:
            hidden = compute()
        else:
            hidden = vectors.hidden(compute, ids, token_mask, segment_ids).to(next(self.parameters()).dtype)
        return hidden if self.mix is None else self.mix.of_joined(hidden)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`, under the network's own mask."""
        depth = layer_count(layer, self.config.n_layers)
        x = self.inputs(self.embedding(ids), token_mask=token_mask)
        hidden: Tensor = self.stack(x, token_mask=token_mask, depth=depth)
        return hidden

    def with_own_window(self, mask: Mask) -> Mask | list[Mask]:
        """As `Network.with_own_window`."""
        return within_window(mask, self.config)

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of tokens."""
        return self.embedding


def linear_maps(stack: Stack) -> Iterator[tuple[nn.Module, str]]:
    """The linear maps of the layers, each as the module that has it and its name there; what layers share, once."""
    for block in {id(block): block for block in stack.layers}.values():
        yield from ((block.self_attention, name) for name in ("input", "output"))
        yield from ((block.feed_forward, name) for name in ("inner", "outer"))
