"""What happens to token vectors before the first layer: positions and segments added, a norm, dropout.

See docs/notes.md#c4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout, fresh
from atento.config.sections.network import NetworkConfig
from atento.networks.layers import make_norm
from atento.networks.stack.stack_positions import input_positions


class InputLayer(nn.Module):
    """token + position + segment, then norm and dropout, as `config` says (Devlin et al. 2019, fig. 2).

    Embeddings that are narrower than the layers (width E) are projected to the layers' width D at the end.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width, segments = config.embedding_width, config.embedding.segments
        self.positions = input_positions(config)
        self.segments = nn.Parameter(torch.empty(segments, width)) if segments else None
        self.norm = None
        if config.embedding.norm:
            self.norm = make_norm(config.norm_kind, width, config.norm_eps, bias=config.norm_bias)
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
    ) -> Tensor:
        """Token vectors x (B,L,E) -> (B,L,D); the first is at position `offset`, unless `position_ids` (B,L) are given.

        `segment_ids` (B,L) default to 0.

        Raises:
            ValueError: segments given to a network that has none.
        """
        x = self.summed(
            x, offset, position_ids=position_ids, segment_ids=segment_ids, token_mask=token_mask, random=random
        )
        return x if self.projection is None else self.projection(x)

    def summed(
        self,
        x: Tensor,
        offset: int = 0,
        *,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        token_mask: Tensor | None = None,
        random: Randomness | None = None,
    ) -> Tensor:
        """As `forward`, without the projection: (B,L,E)."""
        x = self.positions(x, offset, position_ids, token_mask)
        if self.segments is not None:
            x = x + (self.segments[0] if segment_ids is None else F.embedding(segment_ids, self.segments))
        elif segment_ids is not None:
            raise ValueError("`segment_ids` given, and this network has no segments (`n_segments` 0)")
        if self.norm is not None:
            x = self.norm(x)
        if self.training and self.dropout:
            x = dropout(x, self.dropout, fresh(random))
        return x
