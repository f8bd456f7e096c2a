"""Checks of sinusoidal positions: their reference values and three properties (docs/notes.md#b1, #b11)."""

import math

import torch

from atento.attention.positions import Sinusoidal, sinusoids
from atento.notes.listing_positions import PositionalEncoding
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

FLOAT32 = AtMost(1e-5)
# spec section 3: width 8, position 1
GOLDEN = [0.841471, 0.540302, 0.099833, 0.995004, 0.010000, 0.999950, 0.001000, 1.000000]


def sinusoidal() -> Finding:
    """B1: sine on even, cosine on odd dimensions; odd widths work."""
    d, position = 7, 4321
    formula = [math.sin(position / 10000 ** (2 * (i // 2) / d) + math.pi / 2 * (i % 2)) for i in range(d)]
    sentences = torch.zeros(2, 5, 8)  # two sentences of five tokens
    library = Sinusoidal(8)(sentences)
    batch_first = PositionalEncoding(8)(sentences)
    sequence_first = PositionalEncoding(8, batch_first=False)(sentences.transpose(0, 1)).transpose(0, 1)
    by_dimension = [math.sin(1 / 10000 ** (2 * i / 8) + math.pi / 2 * (i % 2)) for i in range(8)]  # with the notes' i
    by_batch_index = PositionalEncoding(8, batch_first=False)(sentences)  # what indexing by x.size(0) does
    return compare(
        {
            "width 8, position 1": sinusoids(torch.tensor(1), 8),
            "width 7, position 4321, away": float(
                (sinusoids(torch.tensor(position), d) - torch.tensor(formula)).abs().max()
            ),
            "the three ways apart": max(
                float((library - listing).abs().max()) for listing in (batch_first, sequence_first)
            ),
            "different positions in a sentence": len(torch.unique(library[0], dim=0)),
        },
        {
            "width 8, position 1": GOLDEN,
            "width 7, position 4321, away": FLOAT32,
            "the three ways apart": FLOAT32,
            "different positions in a sentence": 5,
        },
        within=1e-5,
        notes={
            "width 8, position 1": by_dimension,
            "different positions in a sentence": len(torch.unique(by_batch_index[0], dim=0)),
        },
        remark="i is the index of the pair of sine and cosine, 0 to d/2 - 1, not of the dimension (error 54); on "
        "batch-first input the listing uses the batch index as the position; it also lacks an import and fails on "
        "odd widths (error 56)",
    )


def sinusoid_properties() -> Finding:
    """B11: every position has its own vector; p_s · p_t depends only on t - s; a shift is one rotation."""
    d, count, shift = 64, 1024, 17
    table = sinusoids(torch.arange(count), d).double()
    distances = torch.cdist(table, table) + torch.eye(count) * d  # none to itself
    products = table @ table.T
    spread = max(float(products.diagonal(offset).max() - products.diagonal(offset).min()) for offset in range(200))
    angles = shift / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    sines, cosines = table[:-shift, 0::2], table[:-shift, 1::2]
    rotated = torch.stack(
        [sines * angles.cos() + cosines * angles.sin(), cosines * angles.cos() - sines * angles.sin()], dim=-1
    ).flatten(1)
    return compare(
        {
            "least distance between two positions": float(distances.min()),
            "spread of p_s·p_t at one offset": spread,
            "rotation away from the shift": float((rotated - table[shift:]).abs().max()),
        },
        {
            "least distance between two positions": AtLeast(0.1),
            "spread of p_s·p_t at one offset": AtMost(1e-4),
            "rotation away from the shift": FLOAT32,
        },
        remark="the notes once call these vectors relative; they are absolute, but their products depend on offsets "
        "(error 35)",
    )
