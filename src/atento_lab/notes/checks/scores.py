"""Checks of the attention of a recurrent decoder, compared with plain loops (docs/notes.md#a5, #a10)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from atento.attention import attend
from atento.attention.additive import AdditiveScore, BilinearScore, DotScore, attend_scored
from atento.attention.masks import padding
from atento.attention.multihead import MultiHeadAttention
from atento_lab.notes.checks.attention import EXACT, apart, random
from atento_lab.notes.finding import AtLeast, Finding, compare


def perceptron_by_loops(score: AdditiveScore, s: Tensor, h: Tensor) -> float:
    """Return vᵀ tanh(W s + U h + b) of one decoder state and one encoder state, number by number."""
    total = 0.0
    for unit, factor in enumerate(score.weigh.weight[0].tolist()):
        inside = float(score.key.bias[unit])
        inside += sum(a * b for a, b in zip(score.query.weight[unit].tolist(), s.tolist()))
        inside += sum(a * b for a, b in zip(score.key.weight[unit].tolist(), h.tolist()))
        total += factor * math.tanh(inside)
    return total


def form_by_loops(matrix: Tensor, s: Tensor, h: Tensor) -> float:
    """Return sᵀ W h, number by number."""
    return sum(
        float(s[i]) * float(matrix[i, j]) * float(h[j]) for i in range(matrix.shape[0]) for j in range(matrix.shape[1])
    )


def context_by_loops(scores: list[float], states: Tensor) -> Tensor:
    """Return Σ_j α_j h_j with α = exp(e_j) / Σ exp(e); states (S,D), one score each -> (D,)."""
    exponentials = [math.exp(score) for score in scores]
    out = torch.zeros(states.shape[1], dtype=states.dtype)
    for weight, state in zip(exponentials, states):
        out += weight / sum(exponentials) * state
    return out


@torch.no_grad()
def alignment_scores() -> Finding:
    """A5: e_ij = a(s_{i-1}, h_j): a perceptron, a bilinear form or a plain product."""
    states, hidden, lengths = random(2, 3, 6), random(2, 5, 4), [5, 3]
    wide = random(2, 5, 6)  # a plain product needs equal widths
    additive, bilinear, dot = AdditiveScore(6, 4, 7).double(), BilinearScore(6, 4).double(), DotScore()
    variants: dict[str, tuple[AdditiveScore | BilinearScore | DotScore, Tensor, Callable[[Tensor, Tensor], float]]] = {
        "perceptron": (additive, hidden, lambda s, h: perceptron_by_loops(additive, s, h)),
        "bilinear form": (bilinear, hidden, lambda s, h: form_by_loops(bilinear.key.weight, s, h)),
        "product": (dot, wide, lambda s, h: form_by_loops(torch.eye(6, dtype=s.dtype), s, h)),
    }
    value, on_padding, sums = {}, 0.0, 0.0
    for name, (score, keys, by_loops) in variants.items():
        contexts, weights = attend_scored(score(states, score.project(keys)), keys, padding(torch.tensor(lengths)))
        error = 0.0
        for row, length in enumerate(lengths):
            for step in range(3):
                scores = [by_loops(states[row, step], keys[row, position]) for position in range(length)]
                error = max(error, apart(contexts[row, step], context_by_loops(scores, keys[row, :length])))
        value[f"{name} away from loops"] = error
        on_padding, sums = (
            max(on_padding, float(weights[1, :, 3:].max())),
            max(sums, apart(weights.sum(-1), torch.ones(()))),
        )
    expected = dict.fromkeys(value, EXACT)
    unmasked = attend_scored(additive(states, additive.project(hidden)), hidden)[1]
    return compare(
        value | {"row sums away from 1": sums, "weight on padding": on_padding},
        expected | {"row sums away from 1": EXACT, "weight on padding": 0.0},
        within=0.0,
        notes={"weight on padding": float(unmasked[1, :, 3:].max())},
        remark="the formula sums over the whole source; a batch with padding needs the mask (error 30)",
    )


@torch.no_grad()
def recurrent_attention() -> Finding:
    """A10: its state is the query, the encoder's are keys and values: c_i = Σ_j α_ij h_j."""
    encoder, decoder = nn.GRU(5, 6, batch_first=True).double(), nn.GRUCell(5 + 6, 6).double()
    score = AdditiveScore(6, 6, 7).double()
    states, last = encoder(random(1, 7, 5))  # h_1 ... h_7 (1,7,6)
    projected_keys = score.project(states)  # U h_j, computed once for all steps
    state, states_of_decoder, contexts, by_hand = last[0], [], [], []
    for written in random(4, 1, 5):
        states_of_decoder.append(state)
        context = attend_scored(score(state.unsqueeze(1), projected_keys), states)[0][:, 0]
        contexts.append(context)
        by_hand.append(context_by_loops([perceptron_by_loops(score, state[0], h) for h in states[0]], states[0]))
        state = decoder(torch.cat([written, context], dim=-1), state)
    queries, contexts_by_step = torch.stack(states_of_decoder, dim=1), torch.stack(contexts, dim=1)
    together = attend_scored(score(queries, projected_keys), states)[0]
    product = attend_scored(DotScore()(queries, states), states)[0]
    one_head = attend(queries.unsqueeze(1), states.unsqueeze(1), states.unsqueeze(1), scale=1.0)[:, 0]
    outside = torch.maximum(contexts_by_step - states.amax(dim=1), states.amin(dim=1) - contexts_by_step).max()
    projected = MultiHeadAttention(6, 1).double().key_values(states)
    return compare(
        {
            "contexts away from loops": apart(contexts_by_step[0], torch.stack(by_hand)),
            "all steps at once away": apart(together, contexts_by_step),
            "plain product away from A3 of (s, h, h)": apart(product, one_head),
            "contexts outside the states": max(0.0, float(outside)),
            "keys unlike values in a Transformer": apart(projected.keys, projected.values),
        },
        {
            "contexts away from loops": EXACT,
            "all steps at once away": EXACT,
            "plain product away from A3 of (s, h, h)": EXACT,
            "contexts outside the states": 0.0,
            "keys unlike values in a Transformer": AtLeast(0.01),
        },
        within=0.0,
        notes={"keys unlike values in a Transformer": 0.0},
        remark="values equal the keys: true here, but the notes say it of all attention; a Transformer has a "
        "separate value projection (error 36)",
    )
