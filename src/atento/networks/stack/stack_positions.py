"""What is added to token vectors before the first layer, and the position schemes and learned sparsity of the layers.

See docs/notes.md#c4.
"""

from dataclasses import asdict, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.algebra import Mask
from atento.attention.block_router import BlockRouter
from atento.attention.dropout import Randomness, dropout
from atento.attention.entmax import AdaptiveSpan, Entmax
from atento.attention.multihead import PositionTerms
from atento.attention.positions import Learned, Rotary, Sinusoidal, Stretch
from atento.attention.relative import ALiBi, Gated, RelativeMatrix, Shaw, T5Bias
from atento.attention.relative_disentangled import Disentangled
from atento.attention.relative_terms import QueryKeyPositions, RelativeScheme, RelativeTerms
from atento.attention.sparse import SparseAttention
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import SparseConfig
from atento.config.sections.position_scheme import ADDED, PositionConfig
from atento.networks.layers import make_norm

_SHARED = ("t5", "rotary", "alibi", "disentangled")  # once for all layers, unless told otherwise
_SINUSOIDS = 2048  # rows of a table of sinusoids, which have no limit of their own


class AddedPositions(nn.Module):
    """The sum of the schemes that add a vector to each token, each with a learned gate if configured
    (docs/notes.md#b1)."""

    def __init__(self, config: NetworkConfig, schemes: list[PositionConfig], width: int) -> None:
        """`width` is that of the vectors that they are added to."""
        super().__init__()
        self.schemes = nn.ModuleList(
            Learned(config.max_len, width, scheme.shift)
            if scheme.kind == "learned"
            else Sinusoidal(width, scheme.base, interleaved=scheme.interleaved is not False, shift=scheme.shift)
            for scheme in schemes
        )
        self.numbers = [_number(scheme, config) for scheme in schemes]
        self.off: set[int] = set()  # numbers of schemes that are switched off at present (`position_ablation`)
        self.real_only = [scheme.real_only for scheme in schemes]
        gated = [str(n) for n, scheme in enumerate(schemes) if scheme.gate]
        self.gates = nn.ParameterDict({name: nn.Parameter(torch.ones(())) for name in gated})

    def forward(
        self, x: Tensor, offset: int = 0, position_ids: Tensor | None = None, token_mask: Tensor | None = None
    ) -> Tensor:
        """x (B,L,D) -> (B,L,D); the first token is at position `offset`, unless `position_ids` (B,L) are given.

        A scheme that counts only real tokens reads `token_mask` (B,L).
        """
        for number, scheme in enumerate(self.schemes):
            assert isinstance(scheme, Learned | Sinusoidal)
            if self.numbers[number] in self.off:
                continue
            positions = position_ids
            if positions is None and self.real_only[number] and token_mask is not None:
                positions = real_positions(token_mask)  # (B,L): padding does not count
            added = scheme.vectors(x.shape[1], offset, positions, x)
            gate = self.gates[str(number)].to(x.dtype) if str(number) in self.gates else None  # (), 1 at first
            x = x + (added if gate is None else added * gate)
        return x


def _number(scheme: PositionConfig, config: NetworkConfig) -> int:
    """The number of that scheme in the configuration, which may hold another one equal to it."""
    return next(number for number, configured in enumerate(config.schemes) if configured is scheme)


def real_positions(token_mask: Tensor) -> Tensor:
    """Positions that count real tokens alone: token mask (B,L) -> (B,L); padding before the first has position 0."""
    return (token_mask.long().cumsum(dim=1) - 1).clamp_min_(0)  # the n-th real token has position n - 1


def input_positions(config: NetworkConfig) -> AddedPositions:
    """The position schemes that are added before the first layer."""
    return AddedPositions(
        config,
        [scheme for scheme in config.schemes if scheme.kind in ADDED and scheme.layers is None],
        config.embedding_width,
    )


class LayerPositions(nn.Module):
    """The position schemes of each layer of a stack: added to its input, rotary, relative; and its sparse attention."""

    def __init__(self, config: NetworkConfig, *, kind: str, n_layers: int) -> None:
        super().__init__()
        self.schemes = nn.ModuleList()  # each scheme once, or once a layer
        self.numbers: list[int] = []  # of each, its index in the configuration
        self.relative: list[list[int]] = [[] for _ in range(n_layers)]  # indices into `schemes`
        self.rotary: list[list[tuple[int, tuple[int, ...] | None]]] = [[] for _ in range(n_layers)]  # (index, heads)
        self.n_heads = config.n_heads
        self.added = nn.ModuleDict()
        for scheme in config.schemes:
            layers = [n for n in range(n_layers) if scheme.layers is None or n in scheme.layers]
            if scheme.kind in ADDED:
                continue
            shared = scheme.kind in _SHARED if scheme.shared is None else scheme.shared
            for count, layer in enumerate(layers):
                if count == 0 or not shared:  # once for all layers if shared, else once a layer
                    self.schemes.append(_make(scheme, config, kind))
                    self.numbers.append(_number(scheme, config))
                index = len(self.schemes) - 1  # the one just made, or the shared one
                if scheme.kind == "rotary":
                    self.rotary[layer].append((index, scheme.heads))
                else:
                    self.relative[layer].append(index)
        self.sparse = nn.ModuleDict()
        sparse = config.attention.sparse
        if sparse is not None:
            for layer in range(n_layers) if sparse.layers is None else sparse.layers:
                if sparse.blocks is None:
                    self.sparse[str(layer)] = _sparse(sparse, config.n_heads, kind)
                elif kind == "encoder":
                    router = BlockRouter(config.n_heads, config.head_width, size=sparse.block_size, n=sparse.blocks)
                    self.sparse[str(layer)] = router
        for layer in range(n_layers):
            added = [scheme for scheme in config.schemes if scheme.kind in ADDED and layer in (scheme.layers or ())]
            if added:
                self.added[str(layer)] = AddedPositions(config, added, config.d_model)

    def spans(self) -> dict[int, Mask]:
        """The masks of the spans that heads have learned, by layer (docs/notes.md#a17)."""
        spans = {}
        for layer, sparse in self.sparse.items():
            if isinstance(sparse, SparseAttention) and sparse.span is not None:
                spans[int(layer)] = sparse.span.to_mask()
        return spans

    def relative_schemes(self, layer: int) -> tuple[RelativeScheme, ...]:
        """The relative schemes of a layer."""
        return tuple(cast(RelativeScheme, self.schemes[index]) for index in self.relative[layer])

    def consecutive(self, query_len: int, key_len: int, device: torch.device) -> QueryKeyPositions | None:
        """Positions that count up by one; None where nothing in the layers reads positions."""
        reads = len(self.schemes) or len(self.sparse)
        return QueryKeyPositions.arange(query_len, key_len, device) if reads else None

    def terms(self, positions: QueryKeyPositions | None, dtype: torch.dtype) -> list[PositionTerms | None]:
        """The position terms of each layer's self-attention, computed once for all layers.

        Args:
            positions: positions of the queries and the keys; None: nothing reads them.
            dtype: dtype of the queries and the keys.

        Returns:
            The terms of each layer; None if a layer has none.
        """
        if positions is None:
            return [None] * len(self.rotary)
        rotations, inverses = {}, {}
        for key in {key for layer in self.rotary for key in layer}:
            index, heads = key
            rotary = self.schemes[index]
            assert isinstance(rotary, Rotary)
            head_mask = None
            if heads is not None:
                head_mask = torch.zeros(self.n_heads, 1, 1, dtype=torch.bool, device=positions.queries.device)
                head_mask[list(heads)] = True  # (H,1,1)
            rotations[key] = rotary.at(positions.queries, head_mask, dtype)  # (T,R/2), or (B,1,T,R/2)
            inverses[key] = partial(_unrotated, rotary, head_mask)  # asks for the positions of its strip later
        terms: list[PositionTerms | None] = []
        for layer, rotary_keys in enumerate(self.rotary):
            schemes = self.relative_schemes(layer)
            layer_positions = positions
            if rotary_keys and schemes:  # relative schemes may need the queries as they were before rotation
                layer_positions = replace(positions, inverse_rotations=tuple(inverses[key] for key in rotary_keys))
            relative = RelativeTerms(schemes, layer_positions) if schemes else None
            block_router = None
            if str(layer) in self.sparse:
                sparse = self.sparse[str(layer)]
                if isinstance(sparse, SparseAttention):
                    relative = RelativeTerms(schemes, layer_positions, sparse)
                else:
                    assert isinstance(sparse, BlockRouter)
                    block_router = sparse
            used = rotary_keys or relative is not None or block_router is not None
            layer_rotations = tuple(rotations[key] for key in rotary_keys)
            terms.append(PositionTerms(layer_rotations, relative, block_router) if used else None)
        return terms


def total_cost(network: nn.Module) -> Tensor | None:
    """The sum of the costs of a network's sparse layers, in nats per target; None if there are none.

    See docs/notes.md#a17.
    """
    costs = [module.cost() for module in network.modules() if isinstance(module, SparseAttention)]
    known = [cost for cost in costs if cost is not None]
    return torch.stack(known).sum() if known else None


def _unrotated(rotary: Rotary, heads: Tensor | None, q: Tensor, positions: Tensor) -> Tensor:
    """Queries (B,H,T,K) at positions (T,) or (B,T), as they were before rotation. Same shape."""
    return rotary.at(positions, heads, q.dtype).inverse()(q)  # the rotation of -angle, and 1/scale


def _make(scheme: PositionConfig, config: NetworkConfig, kind: str) -> nn.Module:
    """The module of a scheme that acts inside self-attention of the "encoder" or the "decoder"."""
    usual = {"shaw": 16, "disentangled": 512}.get(scheme.kind, 128)
    max_distance = usual if scheme.max_distance is None else scheme.max_distance
    module: nn.Module
    if scheme.kind == "rotary":  # its heads are chosen where it rotates
        return Rotary(
            config.head_width,
            scheme.base,
            interleaved=bool(scheme.interleaved),
            fraction=scheme.fraction,
            stretch=None if scheme.stretch is None else Stretch(**asdict(scheme.stretch)),
        )
    if scheme.kind == "shaw":
        module = Shaw(config.head_width, max_distance, values=scheme.values)
    elif scheme.kind == "t5":
        module = T5Bias(config.n_heads, scheme.n_buckets, max_distance, bidirectional=kind == "encoder")
    elif scheme.kind == "disentangled":
        norm_eps = config.norm_eps if scheme.norm else None
        module = Disentangled(config.d_model, max_distance, scheme.n_buckets, norm_eps=norm_eps, dropout=config.dropout)
    elif scheme.kind == "alibi":
        module = ALiBi(config.n_heads)
    else:
        module = RelativeMatrix(config.n_heads, max_distance, scaled=scheme.scaled)
    if scheme.heads is None and not scheme.gate:  # all heads, always on
        return module
    return Gated(cast(RelativeScheme, module), config.n_heads, scheme.heads, scheme.gate)


def _sparse(config: SparseConfig, n_heads: int, kind: str) -> SparseAttention:
    """The learned sparsity of a layer of the "encoder" or the "decoder", whose spans never reach ahead."""
    span = None
    if config.span is not None:
        ahead = config.look_ahead and kind == "encoder"
        span = AdaptiveSpan(n_heads, config.span, ramp=config.ramp, ahead=ahead)
    entmax = None if config.alpha is None else Entmax(n_heads, config.alpha, learned=config.learn_alpha)
    return SparseAttention(span=span, top_k=config.top_k, entmax=entmax, span_cost=config.span_cost)


class InputLayer(nn.Module):
    """token + position + segment, then norm and dropout, as `config` says (Devlin et al. 2019, fig. 2).

    Embeddings that are narrower than the layers (width E) are projected to the layers' width D at the end.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width, segments = config.embedding_width, config.embedding.segments
        self.positions = input_positions(config)
        self.segments = nn.Parameter(torch.empty(segments, width)) if segments else None
        self.norm = make_norm(config, width) if config.embedding.norm else None
        self.projection = None if config.embedding.width is None else nn.Linear(width, config.d_model)
        self.dropout = config.dropout

    def forward(
        self,
        x: Tensor,
        offset: int = 0,
        *,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        token_mask: Tensor | None = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Tensor:
        """Token vectors x (B,L,E) -> (B,L,D); the first is at position `offset`, unless `position_ids` (B,L) are given.

        `segment_ids` (B,L) default to 0. With `project` False the vectors are (B,L,E).
        Raises ValueError: segments given to a network that has none.
        """
        x = self.positions(x, offset, position_ids, token_mask)
        if self.segments is not None:
            x = x + (self.segments[0] if segment_ids is None else F.embedding(segment_ids, self.segments))
        elif segment_ids is not None:
            raise ValueError("`segment_ids` given, and this network has no segments (`n_segments` 0)")
        x = x if self.norm is None else self.norm(x)
        x = dropout(x, self.dropout, random) if self.training else x
        return x if self.projection is None or not project else self.projection(x)


def position_rows(config: NetworkConfig) -> int:
    """The number of positions of the table: those of learned positions; sinusoids have 2,048 or `max_len`."""
    return config.position_limit or max(config.max_len, _SINUSOIDS)


@torch.no_grad()
def position_table(
    config: NetworkConfig, inputs: InputLayer, *, real_only: bool | None = None, rows: int | None = None
) -> Tensor | None:
    """The sum of the position vectors, gates included, by position: (N,E) float32; None if no scheme adds any.

    `real_only` restricts the sum to the schemes that count real tokens only (True) or all tokens (False); N is `rows`,
    if given.
    """
    positions = inputs.positions
    chosen = [n for n, real in enumerate(positions.real_only) if real_only is None or real == real_only]
    if not chosen:
        return None
    left_out = {number for n, number in enumerate(positions.numbers) if n not in chosen}
    before = positions.off
    try:
        positions.off = before | left_out
        zeros = torch.zeros(1, rows or position_rows(config), config.embedding_width)  # (1,N,E)
        table: Tensor = positions(zeros)[0]  # (N,E)
    finally:
        positions.off = before
    return table
