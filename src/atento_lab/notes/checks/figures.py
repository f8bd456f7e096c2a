"""The figures of attention and positions of the notes, drawn from networks as they run (docs/notes.md#j1, #j2, #j4)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from atento.attention import observe
from atento.attention.masks import causal
from atento.attention.positions import RelativeMatrix, sinusoids
from atento.attention.relative_terms import QueryKeyPositions
from atento.config.sections.position_scheme import PositionConfig
from atento.inspection.ablation import attentions
from atento.networks import EncoderDecoder
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.positions import GOLDEN
from atento_lab.notes.checks.relative import table_row
from atento_lab.notes.checks.tiny import tiny_network
from atento_lab.notes.drawing import arrow, heat, labelled, links, shaded, sheet, wave
from atento_lab.notes.finding import AtMost, Finding, compare

NAMES = ["o", "gato", "pulou", "alto"]
IDS = torch.tensor([[4, 5, 6, 7]])  # the ids of those words
ALMOST = AtMost(1e-5)  # observed weights are float32


@dataclass
class Pass:
    """The inputs of the first layer of a stack, and the outputs of its heads before W^O."""

    inputs: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)


@contextmanager
def watched(network: EncoderDecoder, kind: str) -> Iterator[Pass]:
    """Record inputs and head outputs of the first self-attention of the "encoder" or the "decoder"."""
    record, attention = Pass(), attentions(network)[kind, 0]

    def keep_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        record.inputs.append(inputs[0].detach())

    def keep_heads(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        record.heads.append(inputs[0].detach())

    hooks = [attention.register_forward_pre_hook(keep_input), attention.output.register_forward_pre_hook(keep_heads)]
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def projections(network: EncoderDecoder, kind: str, x: Tensor, head: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, K and V of one head of the first layer, x (L,D) -> (L,K) each."""
    part = attentions(network)[kind, 0]
    weights, biases = part.head_weights(), part.input.bias.unflatten(0, (3, part.n_heads, part.d_head))
    q, k, v = (x @ weights[role][head] + biases[n, head] for n, role in enumerate(("query", "key", "value")))
    return q, k, v


@torch.no_grad()
def all_to_all() -> Finding:
    """J1: from X by Q, K and V to weights and output, without a mask."""
    network = tiny_network()
    with observe(network) as observed, watched(network, "encoder") as record:
        network.encode(IDS)
    weights = observed["encoder", 0][0, 0].double()
    q, k, v = projections(network, "encoder", record.inputs[0][0])
    scores = q @ k.T / math.sqrt(q.shape[1])
    by_hand = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
    figure = sheet(
        "Bidirectional self-attention: encoder, layer 1, head 1",
        [
            [
                links(weights, NAMES, "attention links; no mask"),
                heat(record.inputs[0][0], "X, the input of the layer", NAMES, cell=16),
            ],
            [
                heat(q, "Q = X·W^Q + b", NAMES),
                heat(k, "K = X·W^K + b", NAMES),
                arrow(),
                heat(weights, "weights = softmax(QKᵀ/√K)", NAMES, NAMES),
                heat(v, "V = X·W^V + b", NAMES),
                arrow(),
                heat(weights @ v, "output = weights·V", NAMES),
            ],
        ],
    )
    text = {"Q": q, "K": k, "V": v, "output = weights·V": weights @ v}
    lines = ["rows attend to columns", labelled(weights, NAMES, NAMES)]
    for name, matrix in text.items():
        lines += [name, labelled(matrix, NAMES)]
    return compare(
        {
            "links": int((weights > 0).sum()),
            "lines drawn": figure.count('class="link"'),
            "weights away": apart(weights, by_hand),
            "output away": apart(record.heads[0][0, :, :4], by_hand @ v),  # of the first head
        },
        {"links": 16, "lines drawn": 16, "weights away": ALMOST, "output away": EXACT},
        drawing="\n".join(lines),
        figure=figure,
    )


@torch.no_grad()
def _causal_sheet(
    masked: Tensor, weights: Tensor, projected: tuple[Tensor, Tensor, Tensor], steps: dict[str, Tensor], y_3: Tensor
) -> str:
    """J2's figure: the third output's links, scores and weights, and its sum step by step."""
    q, k, v = projected
    inputs = [f"x_{n} {name}" for n, name in enumerate(NAMES, start=1)]
    only = torch.zeros(4, 4)
    only[2] = weights[2]
    return sheet(
        "Causal self-attention: decoder, layer 1, head 1",
        [
            [
                links(
                    only,
                    inputs,
                    "the third output attends to itself and to earlier tokens",
                    ["y_1", "y_2", "y_3", "y_4"],
                ),
                heat(masked, "QKᵀ/√K, future masked", NAMES, NAMES),
                heat(weights, "weights", NAMES, NAMES),
            ],
            [
                heat(q[2:3], "q_3"),
                heat(k[:3], "k_1 to k_3", NAMES[:3]),
                heat(torch.stack(list(steps.values())).T, "score, weight", NAMES[:3]),
                heat(v[:3], "v_1 to v_3", NAMES[:3]),
                heat(y_3[None], "y_3 = Σ weight·v"),
            ],
        ],
    )


def causal_output() -> Finding:
    """J2: y_3 with its query, keys and values; the N×N scores with the future masked."""
    network = tiny_network()
    with observe(network) as observed, watched(network, "decoder") as record:
        network(IDS, IDS)
    weights = observed["decoder", 0][0, 0].double()
    q, k, v = projections(network, "decoder", record.inputs[0][0])
    scores = q @ k.T / math.sqrt(q.shape[1])
    masked = scores + causal().additive(4)[0, 0]
    third = weights[2, :3]
    y_3 = sum((weight * value for weight, value in zip(third, v)), torch.zeros(4).double())
    steps = {"score": scores[2, :3], "weight": third}
    figure = _causal_sheet(masked, weights, (q, k, v), steps, y_3)
    drawing = "\n".join(
        [
            labelled(masked, NAMES, NAMES),
            "the third output",
            labelled(q[2:3], ["q_3"]),
            labelled(k[:3], ["k_1", "k_2", "k_3"]),
            labelled(torch.stack(list(steps.values())), list(steps)),
            labelled(v[:3], ["v_1", "v_2", "v_3"]),
            labelled(y_3[None], ["y_3"]),
        ]
    )
    return compare(
        {
            "inputs y_3 reads": figure.count('class="link"'),
            "-inf in the scores": int(torch.isinf(masked).sum()),
            "weights away from softmax of the masked": apart(weights, torch.softmax(masked, dim=1)),
            "y_3 away": apart(record.heads[0][0, 2, :4], y_3),
        },
        {
            "inputs y_3 reads": 3,
            "-inf in the scores": 6,
            "weights away from softmax of the masked": ALMOST,
            "y_3 away": ALMOST,
        },
        notes={"inputs y_3 reads": 2},
        remark="the text compares x_3 with x_1 and x_2; the sum includes x_3 (error 22)",
        drawing=drawing,
        figure=figure,
    )


@torch.no_grad()
def _positions_sheet(
    inputs: tuple[Tensor, Tensor, Tensor],
    vector: Tensor,
    table: Tensor,
    distances: Tensor,
    terms: tuple[Tensor, Tensor],
    weights: Tensor,
) -> str:
    """J4's figure: the sum at the input, the table of sines, and the sum in the scores."""
    tokens, absolute, embedded = inputs
    content, relative = terms
    return sheet(
        "Positions: added to the token, or to the score of each pair",
        [
            [
                heat(tokens, "token", NAMES, cell=16),
                heat(absolute, "+ position", NAMES, cell=16),
                heat(embedded, "= input of the first layer", NAMES, cell=16),
            ],
            [
                wave(vector, "position 1, width 8: sine, cosine, sine ..."),
                heat(table, "positions (down) × dimensions (across)", cell=9),
            ],
            [
                heat(absolute, "absolute: a vector per position", [f"position {n}" for n in range(4)], cell=16),
                heat(distances, "relative: key minus query", NAMES, NAMES, digits=0),
                heat(relative, "R/√K: a number per distance", NAMES, NAMES),
            ],
            [
                heat(content, "QKᵀ/√K", NAMES, NAMES),
                heat(relative, "+ R/√K", NAMES, NAMES),
                heat(content + relative, "= scores", NAMES, NAMES),
                heat(weights, "softmax: weights", NAMES, NAMES),
            ],
        ],
    )


def positions_drawn() -> Finding:
    """J4: token + position, sines and cosines, positions × dimensions, absolute and relative."""
    network = tiny_network(positions=(PositionConfig(), PositionConfig(kind="matrix", max_distance=8)))
    with observe(network) as observed, watched(network, "encoder") as record:
        network.encode(IDS)
    embedded, weights = record.inputs[0][0], observed["encoder", 0][0, 0].double()
    tokens, absolute = network.embedding.weight[IDS[0]] * 12**0.5, sinusoids(torch.arange(4), 12, dtype=embedded.dtype)
    positions = QueryKeyPositions.arange(4, 4)
    q, k, _ = projections(network, "encoder", embedded)
    content = q @ k.T / math.sqrt(4)
    scheme = network.encoder.positions.schemes[0]
    assert isinstance(scheme, RelativeMatrix)
    zeros = torch.zeros(1, 3, 4, 4).double()
    relative = scheme.scores(zeros, zeros, positions, 0.5)[0, 0]  # R/√K of head 1
    one_row = torch.tensor([[float(scheme.weight[table_row(i, j, 8), 0]) / 2 for j in range(4)] for i in range(4)])
    vector, table = sinusoids(torch.tensor(1), 8), sinusoids(torch.arange(32), 32)
    figure = _positions_sheet(
        (tokens, absolute, embedded), vector, table, positions.distances, (content, relative), weights
    )
    names = ["token", "+ position", "= input"]
    drawing = "\n".join(
        [
            f"the word {NAMES[1]!r}, its first eight numbers",
            labelled(torch.stack([part[1, :8] for part in (tokens, absolute, embedded)]), names),
            "position 1, width 8",
            labelled(vector[None], ["p_1"], digits=4),
            "positions 0 to 15 down, 32 dimensions across",
            shaded(table[:16]),
            relative_text(positions, content, relative),
        ]
    )
    return compare(
        {
            "token + position away": apart(tokens + absolute, embedded),
            "position 1": vector,
            "different rows of the map": len(torch.unique(table, dim=0)),
            "R away from one row a distance": apart(relative, one_row),
            "softmax(content + R/√K) away": apart(torch.softmax(content + relative, dim=1), weights),
        },
        {
            "token + position away": EXACT,
            "position 1": GOLDEN,
            "different rows of the map": 32,
            "R away from one row a distance": AtMost(1e-7),
            "softmax(content + R/√K) away": ALMOST,
        },
        remark="the vector of sines is absolute; the numbers of R are relative (error 35)",
        drawing=drawing,
        figure=figure,
    )


def relative_text(positions: QueryKeyPositions, content: Tensor, relative: Tensor) -> str:
    """Format positions, distances, and the scores (L,L) of content, of distance, and of both."""
    both = torch.cat([positions.queries.unsqueeze(1), positions.distances], dim=1)
    return "\n".join(
        [
            "absolute: the position of each token; relative: the distance of each key",
            labelled(both, NAMES, ["position", *NAMES], 0),
            "content, + distance, = score; rows attend to columns",
            labelled(torch.cat([content, relative, content + relative], dim=1), NAMES, 3 * NAMES),
        ]
    )
