"""Checks of relative positions, compared with formulas by pair (docs/notes.md#b4 to #b6, #b8, #b13)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atento.attention import attend
from atento.attention.masks import causal
from atento.attention.positions import RelativeMatrix, Shaw, T5Bias
from atento.attention.relative import alibi_slopes, t5_buckets
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.config.sections.position_scheme import PositionConfig
from atento.inspection.ablation import attentions
from atento.inspection.decompose import parts_by_word
from atento.inspection.network_scores import score_parts
from atento.notes.listing_positions import RelativePositionalEncoding
from atento_lab.notes.checks.attention import EXACT, apart, random
from atento_lab.notes.checks.blocks import embedding_by_hand
from atento_lab.notes.checks.tiny import WORDS, some_ids, tiny_network
from atento_lab.notes.drawing import heat, labelled, sheet
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

SCHEMES = ("none", "sinusoidal", "learned", "rotary", "shaw", "t5", "alibi", "matrix")
ABSOLUTE = ("sinusoidal", "learned")
# spec section 3: 32 buckets up to distance 128
DISTANCES = [-200, -128, -64, -20, -8, -1, 0, 1, 7, 8, 20, 64, 127, 128, 200]
BOTH_WAYS = [15, 15, 14, 10, 8, 1, 0, 17, 23, 24, 26, 30, 31, 31, 31]
BEHIND = {-200: 31, -128: 31, -64: 26, -20: 17, -16: 16, -8: 8, -1: 1, 0: 0, 1: 0}
# exponents of 2: n heads that are no power of two take every second slope of twice the next lower power (Press et al.)
SLOPES: dict[int, list[float]] = {
    3: [4, 8, 2],
    8: [1, 2, 3, 4, 5, 6, 7, 8],
    12: [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5],
}


def pair_by_pair(
    score: Callable[[int, int], float], value: Callable[[int, int], Tensor], length: int, allowed: Tensor | None = None
) -> Tensor:
    """Return y_i = Σ_j α_ij value(i, j) with α = softmax of score(i, j), computed pair by pair; -> (L,K)."""
    rows = []
    for i in range(length):
        visible = [j for j in range(length) if allowed is None or allowed[i, j]]
        exponentials = [math.exp(score(i, j)) for j in visible]
        rows.append(
            torch.stack([weight / sum(exponentials) * value(i, j) for weight, j in zip(exponentials, visible)]).sum(
                dim=0
            )
        )
    return torch.stack(rows)


def dot(a: Tensor, b: Tensor) -> float:
    """Return Σ_m a_m b_m, number by number."""
    return float(sum(a * b for a, b in zip(a.tolist(), b.tolist())))


def table_row(i: int, j: int, limit: int) -> int:
    """Return the row of a table centred on distance 0: j - i, clipped."""
    return max(-limit, min(limit, j - i)) + limit


@torch.no_grad()
def relative_matrix() -> Finding:
    """B4: softmax((QKᵀ + R) / √d_k) V, with R a function of the distance."""
    length, width, limit = 7, 4, 3
    q, k, v = random(1, 2, length, width), random(1, 2, length, width), random(1, 2, length, width)  # (1,H,L,K) each
    positions = QueryKeyPositions.arange(length, length)
    matrix, t5 = RelativeMatrix(2, limit).double(), T5Bias(2).double()
    buckets = t5_buckets(positions.distances, 32, 128, True).tolist()

    def away(output: Tensor, score: Callable[[int, int, int], float]) -> float:
        def of_head(head: int) -> Tensor:
            return pair_by_pair(lambda i, j: score(head, i, j), lambda i, j: v[0, head, j], length)

        return max(apart(output[0, head], of_head(head)) for head in range(2))

    def product(head: int, i: int, j: int) -> float:
        return dot(q[0, head, i], k[0, head, j])

    def bias(head: int, i: int, j: int) -> float:
        return float(t5.weight[buckets[i][j], head])

    inside = attend(q, k, v, relative=RelativeTerms((matrix,), positions))  # R + QKᵀ, then the scale
    outside = attend(q, k, v, relative=RelativeTerms((t5,), positions))
    unscaled = attend(q, k, v, relative=RelativeTerms((t5,), positions), scale=1.0)  # as T5 does
    root = math.sqrt(width)
    errors = {
        "(QKᵀ + R)/√d away": away(
            inside, lambda h, i, j: (product(h, i, j) + float(matrix.weight[table_row(i, j, limit), h])) / root
        ),
        "QKᵀ/√d + b away": away(outside, lambda h, i, j: product(h, i, j) / root + bias(h, i, j)),
        "QKᵀ + b, as in T5, away": away(unscaled, lambda h, i, j: product(h, i, j) + bias(h, i, j)),
    }
    as_noted = away(unscaled, lambda h, i, j: (product(h, i, j) + bias(h, i, j)) / root)
    distances = torch.tensor(DISTANCES)
    slopes = {n: apart(alibi_slopes(n).double(), torch.tensor([2.0**-e for e in SLOPES[n]]).double()) for n in SLOPES}
    return compare(
        {
            **errors,
            "T5's buckets, both ways": t5_buckets(distances, 32, 128, True),
            "one way": t5_buckets(torch.tensor(list(BEHIND)), 32, 128, False),
            "ALiBi's slopes": alibi_slopes(8).tolist(),
            "slopes of 3, 8 and 12 heads away": max(slopes.values()),
        },
        {
            **dict.fromkeys(errors, EXACT),
            "T5's buckets, both ways": BOTH_WAYS,
            "one way": list(BEHIND.values()),
            "ALiBi's slopes": [2.0**-n for n in range(1, 9)],
            "slopes of 3, 8 and 12 heads away": AtMost(1e-7),
        },
        within=0.0,
        notes={"QKᵀ + b, as in T5, away": as_noted},
        remark="the notes put R inside the scaling for all schemes; its position depends on the scheme (error 60)",
    )


@torch.no_grad()
def shaw() -> Finding:
    """B5: e_ij = q_i · (k_j + a_ij) / √d; y_i = Σ α (v_j + b_ij)."""
    limit, width = 2, 4
    scheme = Shaw(width, limit).double()
    assert scheme.value_table is not None
    errors: dict[str, float] = {}
    for name, kernel in (("plain", "plain"), ("blocked", "blocked")):
        q, k, v = random(1, 1, 7, width), random(1, 1, 7, width), random(1, 1, 7, width)
        out = attend(q, k, v, relative=RelativeTerms((scheme,), QueryKeyPositions.arange(7, 7)), kernel=kernel)[0, 0]
        errors[f"{name} kernel away"] = apart(out, shaw_by_pairs(q[0, 0], k[0, 0], v[0, 0], scheme, limit))
    unit = torch.eye(width, dtype=torch.float64)  # each query selects one number of a_ij
    vectors_by_length = {}
    for length in (4, 6, 12):
        queries = unit.view(1, width, 1, width).expand(1, width, length, width)
        scores = scheme.scores(queries, queries, QueryKeyPositions.arange(length, length), 1.0)  # (1,K,L,L)
        vectors_by_length[length] = scores[0].permute(1, 2, 0)  # a_ij (L,L,K)
    difference = max(
        apart(vectors[i, j], scheme.keys[table_row(i, j, limit)])
        for length, vectors in vectors_by_length.items()
        for i in range(length)
        for j in range(length)
    )
    return compare(
        {
            **errors,
            "a_ij away from the row of j - i": difference,
            "beyond the limit apart": apart(vectors_by_length[12][0, 2:], vectors_by_length[12][0, 2]),
        },
        {**dict.fromkeys(errors, EXACT), "a_ij away from the row of j - i": 0.0, "beyond the limit apart": 0.0},
        within=0.0,
        remark="texts of 4, 6 and 12 tokens: each distance has one vector, and all distances beyond the limit share "
        "the last",
    )


def shaw_by_pairs(q: Tensor, k: Tensor, v: Tensor, scheme: Shaw, limit: int, allowed: Tensor | None = None) -> Tensor:
    """Return the output of one head, q, k, v (L,K), with the key k_j + a_ij and the value v_j + b_ij of every pair."""
    assert scheme.value_table is not None
    a, b, root = scheme.keys, scheme.value_table, math.sqrt(q.shape[-1])
    return pair_by_pair(
        lambda i, j: dot(q[i], k[j] + a[table_row(i, j, limit)]) / root,
        lambda i, j: v[j] + b[table_row(i, j, limit)],
        len(q),
        allowed,
    )


@torch.no_grad()
def relative_module() -> Finding:
    """B6: the notes' module, corrected."""
    length, max_len = 6, 9
    module = RelativePositionalEncoding(12, max_len, n_heads=3).double()
    q, k, v = random(2, 3, length, 4), random(2, 3, length, 4), random(2, 3, length, 4)  # (B,H,L,K) each
    errors = {"away from the formula": 0.0, "with a causal mask": 0.0}
    triangle = torch.ones(length, length).tril().bool()  # (L,L)
    for name, mask, allowed in (("away from the formula", None, None), ("with a causal mask", causal(), triangle)):
        out = module(q, k, v, length, mask=mask)
        for row in range(2):
            for head in range(3):
                by_hand = shaw_by_pairs(q[row, head], k[row, head], v[row, head], module.relative, max_len - 1, allowed)
                errors[name] = max(errors[name], apart(out[row, head], by_hand))
    one_table = [[module.rel_embeddings[table_row(i, j, max_len - 1)] for j in range(length)] for i in range(length)]
    vectors = torch.stack([torch.stack(row) for row in one_table])  # (L,L,K)
    repaired = torch.softmax(q @ k.transpose(-2, -1) + torch.einsum("bhid,ijd->bhij", q, vectors), dim=-1) @ v
    return compare(
        {**errors, "rows of the table": len(module.rel_embeddings), "columns": module.rel_embeddings.shape[1]},
        {**dict.fromkeys(errors, EXACT), "rows of the table": 2 * max_len - 1, "columns": 4},
        notes={"away from the formula": apart(repaired, module(q, k, v, length)), "columns": 12},
        remark="with its einsum repaired the listing still lacks √d_k, the values' vectors and the mask, and its table "
        "is as wide as all heads (error 59)",
    )


def summed_by_loops(scores: Tensor, words: list[int | None]) -> Tensor:
    """Sum scores (B,H,T,S) over the pairs of tokens of each pair of words."""
    out = torch.zeros(*scores.shape[:2], 3, 3, dtype=scores.dtype)  # (B,H,words,words)
    for i, query_word in enumerate(words):
        for j, key_word in enumerate(words):
            if query_word is not None and key_word is not None:
                out[:, :, query_word, key_word] += scores[:, :, i, j]
    return out


def moved_by_shift(kind: Any, span: int = 6, shift: int = 5) -> float:
    """Return how much the encoder's outputs of the same words change when they are `shift` positions later."""
    network, ids = tiny_network(positions=PositionConfig(kind=kind)), some_ids(1, span)
    padded = torch.cat(
        [torch.zeros(1, shift, dtype=torch.long), ids], dim=1
    )  # left padding, which the token mask excludes
    token_mask = torch.arange(span + shift)[None] >= shift
    shifted = network.encode(padded, source_token_mask=token_mask)[:, shift:]
    return apart(shifted, network.encode(ids))


@torch.no_grad()
def translation_invariance() -> Finding:
    """B8: the same words 5 positions later: outputs of relative schemes stay, those of absolute ones change."""
    value = {kind: moved_by_shift(kind) for kind in SCHEMES}
    limits: dict[str, AtMost | AtLeast] = dict.fromkeys(value, EXACT)
    limits |= dict.fromkeys(ABSOLUTE, AtLeast(0.01)) | {"rotary": AtMost(1e-5)}  # its angles are float32
    return compare(
        value, limits, remark="largest change of an output; outputs are normalised, so their size is about 1"
    )


@torch.no_grad()
def score_split() -> Finding:
    """B13: with x = E + p: four products and the terms of the schemes; also word by word."""
    network, ids = tiny_network(positions=(PositionConfig(), PositionConfig(kind="t5"))), some_ids(1, 5)
    parts = score_parts(network, "encoder", 0, lambda: network.encode(ids))
    attention, scheme = attentions(network)["encoder", 0], network.encoder.positions.schemes[0]
    assert isinstance(scheme, T5Bias)
    weights = attention.head_weights()
    embedded = embedding_by_hand(ids[0], network)
    content = network.embedding.weight[ids[0]] * network.config.d_model**0.5
    bias = attention.input.bias.unflatten(0, (3, 3, 4))  # role, head, width
    buckets = t5_buckets(QueryKeyPositions.arange(5, 5).distances, 32, 128, True)
    errors = {"sum away from the score": 0.0, "position-position away": 0.0}
    for head in range(3):
        q = embedded @ weights["query"][head] + bias[0, head]  # (L,K)
        k = embedded @ weights["key"][head] + bias[1, head]  # (L,K)
        score = q @ k.T / 2 + scheme.weight[:, head][buckets]  # 2 = √d_k
        added = embedded - content  # the position's part of x
        position_part = (added @ weights["query"][head]) @ (added @ weights["key"][head]).T / 2
        total = torch.stack([part[0, head] for part in parts.values()]).sum(dim=0)
        errors["sum away from the score"] = max(errors["sum away from the score"], apart(total, score))
        errors["position-position away"] = max(
            errors["position-position away"], apart(parts["position-position"][0, head], position_part)
        )
    of_tokens = [0, 0, 1, None, 2]  # the first word has two pieces; one token belongs to no word
    by_word = parts_by_word(parts, of_tokens)  # (B,H,3,3) each
    errors["parts by word away from loops"] = max(
        apart(by_word[name], summed_by_loops(part, of_tokens)) for name, part in parts.items()
    )
    score = torch.stack(list(parts.values())).sum(dim=0)
    word_sums = torch.stack(list(by_word.values())).sum(dim=0)
    errors["their sum away from the score by word"] = apart(word_sums, summed_by_loops(score, of_tokens))
    sizes = {name: float(part.abs().mean()) for name, part in parts.items()}
    share = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    words = [WORDS[int(token) - 4] for token in ids[0]]
    lines = [f"{name}, head 0\n{labelled(part[0, 0], words, words)}" for name, part in parts.items()]
    maps = [heat(part[0, 0], name, words, words, cell=48) for name, part in parts.items()]
    names = ["content-content", "content-position", "position-content", "position-position", "T5Bias"]
    return compare(
        {"parts": list(parts), **errors, "least share of a part": min(share.values())},
        {"parts": names, **dict.fromkeys(errors, AtMost(1e-5)), "least share of a part": AtLeast(1e-4)},
        remark="shares of the mean size: " + ", ".join(f"{name} {size:.0%}" for name, size in share.items()),
        drawing="\n".join(lines),
        figure=sheet("One head's scores, query by key, decomposed", [maps[n : n + 2] for n in range(0, len(maps), 2)]),
    )
