"""Checks of attention, compared with plain loops and formulas (docs/notes.md#a1 to #a16)."""

import math
from typing import Any

import torch
from torch import Tensor

from atento.attention import attend, attention_weights, observe
from atento.attention.masks import bidirectional, causal, documents, lookahead, predicate, window
from atento.attention.multihead import MultiHeadAttention
from atento.config.sections.position_scheme import PositionConfig
from atento.inspection.ablation import attentions
from atento.networks import EncoderDecoder
from atento_lab.notes.checks.tiny import derivatives, some_ids, tiny_network
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare, grid

EXACT = AtMost(1e-10)  # float64 against float64


def random(*shape: int) -> Tensor:
    """Return normal random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64)


def apart(a: Tensor, b: Tensor) -> float:
    """Return the largest difference between two tensors; infinite if either contains NaN."""
    return float((a - b).detach().abs().nan_to_num(nan=math.inf, posinf=math.inf).max())


def by_loops(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """Compute attention of one head in two loops: q (T,K), k (S,K), v (S,Kv), allowed (T,S) boolean -> (T,Kv)."""
    out = torch.zeros(len(q), v.shape[1], dtype=v.dtype)
    for i in range(len(q)):
        visible = [j for j in range(len(k)) if allowed[i, j]]
        exponentials = [math.exp(scale * sum(float(a) * float(b) for a, b in zip(q[i], k[j]))) for j in visible]
        for j, weight in zip(visible, exponentials):
            out[i] += weight / sum(exponentials) * v[j]
    return out


def unprojected_causal() -> Finding:
    """A1: y_i = Σ_{j ≤ i} α_ij x_j with α = softmax(x_i · x_j)."""
    x = random(5, 4)
    rows = x[None, None]  # one sequence, one head
    y = attend(rows, rows, rows, mask=causal(), scale=1.0)[0, 0]
    weights = attention_weights(rows, rows, mask=causal(), scale=1.0)[0, 0]
    value = {
        "away from two loops": apart(y, by_loops(x, x, x, torch.ones(5, 5).tril().bool(), 1.0)),
        "weights in each row": (weights > 0).sum(dim=1),
    }
    return compare(
        value,
        {"away from two loops": EXACT, "weights in each row": [1, 2, 3, 4, 5]},
        notes={"weights in row 3": 2},
        remark="the text says that y_3 compares x_3 only with x_1 and x_2; the formula includes j = i (error 22)",
    )


def roles() -> Finding:
    """A2: W x on columns and X W on rows are each other's transpose."""
    attention = MultiHeadAttention(12, 3).double()
    x = random(1, 5, 12)
    column = attention.input.weight[:12]  # W^Q, applied to a column x_i
    row = attention.head_weights()["query"].transpose(0, 1).flatten(1)  # W^Q, applied to rows X
    one_by_one = torch.stack([column @ x_i for x_i in x[0]])  # (T,D)
    torch.autograd.backward((attention(x)[0] - random(1, 5, 12)).square().sum())
    gradient = attention.input.weight.grad
    assert gradient is not None
    gradients = [float(part.norm()) for part in gradient.chunk(3)]  # of W^Q, W^K and W^V
    queries = x[0] @ attention.head_weights()["query"][0]  # (T,d_k) of the first head
    return compare(
        {
            "W x away from X W": apart(one_by_one, x[0] @ row),
            "least gradient of the three": min(gradients),
            "shapes of X and of one head's Q": [list(x[0].shape), list(queries.shape)],
        },
        {
            "W x away from X W": EXACT,
            "least gradient of the three": AtLeast(1e-3),
            "shapes of X and of one head's Q": [[5, 12], [5, 4]],
        },
        notes={"W x away from X W": apart(one_by_one, x[0] @ column), "shape of X": "N by d_k"},
        remark="q = W x and Q = X W cannot both hold for the same W: one of them has it transposed (error 15); X holds "
        "N tokens of width d, and only its projections by W^Q and W^K have width d_k (error 16)",
    )


def scaled_dot_product() -> Finding:
    """A3: softmax(Q Kᵀ / √d_k) V; a row sums to 1, or to 0 if it sees nothing."""
    q, k, v = random(4, 8), random(6, 8), random(6, 5)
    batch = [x[None, None] for x in (q, k, v)]  # one sequence, one head
    allowed = torch.rand(4, 6) > 0.4  # (T,S)
    allowed[:, 0] = True
    allowed[2] = False  # the third query may attend to nothing
    expected = by_loops(q, k, v, allowed, 1 / math.sqrt(8))
    weights = attention_weights(batch[0], batch[1], mask=allowed)[0, 0]  # (T,S)
    value = {
        "plain kernel away": apart(attend(*batch, mask=allowed, kernel="plain")[0, 0], expected),
        "fused kernel away": apart(attend(*batch, mask=allowed, kernel="fused")[0, 0], expected),
        "row sums": weights.sum(dim=1),
        "least weight": float(weights.min()),
    }
    in_float32 = math.sqrt(3) / float(torch.sqrt(torch.tensor(3, dtype=torch.float32)).double()) - 1
    return compare(
        value,
        {
            "plain kernel away": EXACT,
            "fused kernel away": EXACT,
            "row sums": [1.0, 1.0, 0.0, 1.0],
            "least weight": AtLeast(0.0),
        },
        notes={"relative error of √3 made in float32": abs(in_float32)},
        remark="the listing computes √d_k in float32, whatever the type of the scores (error 17)",
    )


def plain_dot_product() -> Finding:
    """A4: the score without √d_k is `scale=1`: A3 with queries times √d_k."""
    q, k, v = random(4, 9), random(6, 9), random(6, 5)
    batch = [x[None, None] for x in (q, k, v)]  # one sequence, one head
    plain = attend(*batch, scale=1.0)[0, 0]
    value = {
        "away from two loops": apart(plain, by_loops(q, k, v, torch.ones(4, 6).bool(), 1.0)),
        "away from A3 with 3 q": apart(plain, attend(3 * batch[0], batch[1], batch[2])[0, 0]),
    }
    return compare(
        value,
        dict.fromkeys(value, EXACT),
        remark="the notes give steps without the scale and a matrix form with it; here the scale is "
        "an option (error 14)",
    )


def sees_everything() -> Finding:
    """A6: lemma 11.1: in an encoder ∂h_i/∂x_j is never zero."""
    matrix = derivatives(tiny_network().encoder, random(5, 12))
    return compare(
        {"pairs that depend": int((matrix > 1e-9).sum()), "of": matrix.numel(), "least": float(matrix.min())},
        {"pairs that depend": 25, "of": 25, "least": AtLeast(1e-9)},
        drawing=grid(matrix),
        remark="all positions at once, without a direction; joining two directions is another design (error 18)",
    )


def sees_the_past() -> Finding:
    """A7: ∂h_i/∂x_j is exactly 0 for j > i."""
    network = tiny_network()
    matrix = derivatives(network.decoder, random(4, 12), memory=random(1, 3, 12))
    additive = causal().additive(4)[0, 0]
    zero, inf = 0.0, "-inf"
    return compare(
        {
            "largest derivative from the future": float(matrix.triu(1).max()),
            "least from the past": float(matrix[torch.ones(4, 4).tril().bool()].min()),
            "mask": additive,
        },
        {
            "largest derivative from the future": 0.0,
            "least from the past": AtLeast(1e-9),
            "mask": [[zero if j <= i else inf for j in range(4)] for i in range(4)],
        },
        within=0.0,
        drawing=grid(additive),
        remark="the notes call the mask binary, but it contains -inf and is added; a mask is boolean or additive "
        "(error 31)",
    )


def many_heads() -> Finding:
    """A8: one product equals 8, 12, 16 separate heads; weights convert both ways."""
    value = {}
    for n_heads in (8, 12, 16):
        attention = MultiHeadAttention(96, n_heads, bias=False).double()
        x, one_by_one = random(1, 6, 96), []
        weights = attention.head_weights()
        for head in range(n_heads):
            q, k, v = (x[0] @ weights[role][head] for role in ("query", "key", "value"))  # (T,K) each
            one_by_one.append(torch.softmax(q @ k.T / math.sqrt(96 // n_heads), dim=-1) @ v)  # (T,K)
        joined = torch.cat(one_by_one, dim=-1) @ weights["output"].flatten(0, 1)  # W^O is (D,D)
        value[f"{n_heads} heads away"] = apart(attention(x)[0][0], joined)
    reloaded = MultiHeadAttention(96, 16, bias=False).double()
    reloaded.load_head_weights(attention.head_weights())
    value["there and back"] = apart(reloaded.input.weight, attention.input.weight)
    return compare(value, {**dict.fromkeys(list(value)[:3], EXACT), "there and back": 0.0}, within=0.0)


def cross() -> Finding:
    """A9: queries from the decoder, keys and values from the encoder, once."""
    network = tiny_network()
    source, token_mask = some_ids(1, 6), torch.tensor([[True, True, True, True, False, False]])
    encoded = network.encode(source, source_token_mask=token_mask)
    caches = []
    for length in (3, 5):  # two decoders over one source
        state = network.decoder.begin(encoded, token_mask)
        with observe(network) as observed:
            network(None, some_ids(1, length), state=state)
        caches.append(state.blocks[-1].cross_attention)
    with observe(network) as unmasked:
        network(source, some_ids(1, 5), encoded=encoded)
    assert caches[0] is not None and caches[1] is not None
    value = {
        "shape (T, S)": list(observed["cross", -1].shape[2:]),
        "keys of two decoders apart": apart(caches[0].keys, caches[1].keys),
        "weight on padding": float(observed["cross", -1][..., 4:].max()),
    }
    return compare(
        value,
        {"shape (T, S)": [5, 6], "keys of two decoders apart": 0.0, "weight on padding": 0.0},
        within=0.0,
        notes={"weight on padding": float(unmasked["cross", -1][..., 4:].max())},
        remark="the notes say that this mask is mostly unnecessary; every batch with padding needs it (error 30)",
    )


def three_uses() -> Finding:
    """A11: in the encoder, masked in the decoder, and across; of any layer and head."""
    network, source = tiny_network(), some_ids(1, 6)
    encoded = network.encode(source)[0].detach()  # (S,D)
    inputs_by_layer: dict[tuple[str, int], Tensor] = {}

    def keep(part: Any, inputs: tuple[Tensor, ...]) -> None:
        inputs_by_layer[part.kind, part.layer] = inputs[0][0].detach()

    parts = attentions(network)
    hooks = [part.register_forward_pre_hook(keep) for part in parts.values()]
    with observe(network) as observed:
        network(source, some_ids(1, 5))
    for hook in hooks:
        hook.remove()
    shapes, difference = {}, 0.0
    for kind in ("encoder", "decoder", "cross"):
        layers = torch.cat([observed[kind, layer] for layer in range(observed.n_layers[kind])])  # (layers,H,T,S)
        shapes[kind] = list(layers.shape)
        for layer, weights in enumerate(layers):
            x = inputs_by_layer[kind, layer]
            expected = weights_by_head(parts[kind, layer], x, encoded if kind == "cross" else x, kind == "decoder")
            difference = max(difference, apart(weights.double(), expected))
    return compare(
        {**shapes, "away from the softmax of each head": difference},
        {
            "encoder": [2, 3, 6, 6],
            "decoder": [2, 3, 5, 5],
            "cross": [2, 3, 5, 6],
            "away from the softmax of each head": AtMost(1e-5),
        },
        remark="layers, heads, queries, keys; each head is recomputed from the input of its layer",
    )


@torch.no_grad()
def weights_by_head(part: MultiHeadAttention, x: Tensor, memory: Tensor, past_only: bool) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k) of each head, one after the other: x (T,D), memory (S,D) -> (H,T,S)."""
    weights, biases = part.head_weights(), part.input.bias.unflatten(0, (3, part.n_heads, part.d_head))
    weights_of_heads = []
    for head in range(part.n_heads):
        q, k = (
            y @ weights[role][head] + biases[n, head] for n, (role, y) in enumerate((("query", x), ("key", memory)))
        )
        scores = q @ k.T / math.sqrt(part.d_head)  # (T,S)
        if past_only:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        weights_of_heads.append(scores.exp() / scores.exp().sum(dim=1, keepdim=True))  # the softmax, written out
    return torch.stack(weights_of_heads)  # (H,T,S)


def vectorised() -> Finding:
    """A12: as a loop over tokens; a batch as its sequences one by one."""
    attention = MultiHeadAttention(12, 3).double()
    x = random(4, 6, 12)
    output = attention(x)[0]  # (B,T,D)
    token_by_token = torch.cat([attention(x[:, t : t + 1], x)[0] for t in range(6)], dim=1)  # a query at a time
    one_by_one = torch.cat([attention(sequence[None])[0] for sequence in x])  # a sequence at a time
    value = {"tokens away": apart(output, token_by_token), "sequences away": apart(output, one_by_one)}
    return compare(value, dict.fromkeys(value, EXACT))


def order_blind() -> Finding:
    """A13: without positions f(P X) = P f(X); with them not."""
    ids, permutation = torch.arange(4, 10)[None], torch.tensor([3, 0, 5, 1, 4, 2])
    without, with_positions = tiny_network(positions=PositionConfig(kind="none")), tiny_network()

    def off(model: EncoderDecoder) -> float:
        return apart(model.encode(ids[:, permutation]), model.encode(ids)[:, permutation])

    unmoved = apart(without.encode(ids[:, permutation]), without.encode(ids))
    return compare(
        {"f(PX) away from P f(X)": off(without), "the same with positions": off(with_positions)},
        {"f(PX) away from P f(X)": EXACT, "the same with positions": AtLeast(0.01)},
        notes={"f(PX) away from f(X)": unmoved},
        remark="the notes call it invariant; it is equivariant: the outputs move with their words (error 53)",
    )


def why_scale() -> Finding:
    """A14: without 1/√d_k the softmax of wide vectors concentrates on one key, and its gradient vanishes."""
    widths = (4, 16, 64, 256, 1024)
    entropy: dict[str, list[float]] = {"scaled": [], "plain": []}
    gradient: dict[str, list[float]] = {"scaled": [], "plain": []}
    for width in widths:
        q, k = random(1, 1, 256, width), random(1, 1, 32, width)  # (1,1,T,K), (1,1,S,K)
        for name, scale in (("scaled", None), ("plain", 1.0)):
            p = attention_weights(q, k, scale=scale)[0, 0]  # (T,S)
            entropy[name].append(float(torch.special.entr(p).sum(dim=1).mean()))  # nats
            jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]  # of the weights by the scores
            gradient[name].append(float(torch.linalg.matrix_norm(jacobian).mean()))  # Frobenius norms

    def ratio(values: dict[str, list[float]], name: str) -> float:
        return values[name][-1] / values[name][0]

    table = [widths, entropy["scaled"], entropy["plain"], gradient["scaled"], gradient["plain"]]
    names = ("d_k", "entropy, scaled", "entropy, plain", "gradient, scaled", "gradient, plain")
    lines = [f"{name:<17}{line}" for name, line in zip(names, grid(table, 4).splitlines())]
    return compare(
        {
            f"{quantity} kept, {name}": ratio(values, name)
            for quantity, values in (("entropy", entropy), ("gradient", gradient))
            for name in values
        },
        {
            "entropy kept, scaled": AtLeast(0.9),
            "entropy kept, plain": AtMost(0.1),
            "gradient kept, scaled": AtLeast(0.9),
            "gradient kept, plain": AtMost(0.3),
        },
        remark="value at d_k = 1024 divided by the value at d_k = 4; entropies in nats",
        drawing="\n".join(lines),
    )


def partly_causal() -> Finding:
    """A16: outputs depend exactly on what the mask allows."""
    encoder, length = tiny_network(n_layers=1).encoder, 6
    pairs = {(0, 3), (2, 5)}  # an arbitrary set: token 0 also sees 3, token 2 also sees 5

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        extra = torch.zeros_like(q + k, dtype=torch.bool)
        for i, j in pairs:
            extra |= (q == i) & (k == j)
        return (k <= q) | extra

    one_ahead = torch.tensor([[j <= i + 1 for j in range(length)] for i in range(length)])  # (T,T)
    and_pairs = torch.tensor([[j <= i or (i, j) in pairs for j in range(length)] for i in range(length)])
    real = torch.arange(length) < 4  # two tokens of padding
    padded = (one_ahead & real) | torch.eye(length).bool()  # by the residual connection each position depends on itself
    x = random(length, 12)
    cases = {
        "one token ahead": (derivatives(encoder, x, mask=lookahead(1)), one_ahead),
        "a set of pairs": (derivatives(encoder, x, mask=predicate(rule)), and_pairs),
        "joined with padding": (derivatives(encoder, x, mask=lookahead(1), token_mask=real[None]), padded),
        "two before, one after": (
            derivatives(encoder, x, mask=window(2, 1)),
            torch.tensor([[-2 <= j - i <= 1 for j in range(length)] for i in range(length)]),
        ),
        "two documents": (
            derivatives(encoder, x, mask=documents(torch.tensor([[0, 0, 1, 1, 1, 1]]))),
            torch.tensor([[(i < 2) == (j < 2) for j in range(length)] for i in range(length)]),
        ),
    }
    value = {name: int(((depends > 0) != declared).sum()) for name, (depends, declared) in cases.items()}
    return compare(value, dict.fromkeys(value, 0), remark="pairs of positions whose derivative contradicts the mask")


def mask_rows(token: int, length: int) -> dict[str, list[int]]:
    """Return which of `length` tokens one token may see, itself included: 1 = yes (L2)."""
    masks = {"causal": causal(), "bidirectional": bidirectional()}
    return {name: mask.dense(length)[0, 0, token].int().tolist() for name, mask in masks.items()}
