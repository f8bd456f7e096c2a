"""The positions that are added to a network's input, as a table of rows, which other engines look up."""

import torch
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.networks.stack.stack_positions import InputLayer

_SINUSOIDS = 2048  # rows of a table of sinusoids, which have no limit of their own


def position_rows(config: NetworkConfig) -> int:
    """The number of positions of the table: those of learned positions; sinusoids have 2,048 or `max_len`."""
    return config.position_limit or max(config.max_len, _SINUSOIDS)


@torch.no_grad()
def position_table(config: NetworkConfig, inputs: InputLayer, *, real_only: bool | None = None) -> Tensor | None:
    """The sum of the position vectors, gates included, by position: (N,E) float32; None if no scheme adds any.

    `real_only` restricts the sum to the schemes that count real tokens only (True) or all tokens (False).
    """
    positions = inputs.positions
    chosen = [n for n, real in enumerate(positions.real_only) if real_only is None or real == real_only]
    if not chosen:
        return None
    left_out = {number for n, number in enumerate(positions.numbers) if n not in chosen}
    before = positions.off
    try:
        positions.off = before | left_out
        zeros = torch.zeros(1, position_rows(config), config.embedding_width)  # (1,N,E)
        table: Tensor = positions(zeros)[0]  # (N,E)
    finally:
        positions.off = before
    return table
