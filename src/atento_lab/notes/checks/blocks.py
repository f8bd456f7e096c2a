"""Checks of norm, feed-forward, block and stacks, compared with their equations (docs/notes.md#c1 to #c8)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention
from atento.attention.positions import Learned
from atento.config import presets
from atento.networks import Encoder, build_network
from atento.networks.layers import Block, FeedForward, Residual
from atento.networks.stack.stack_decoders import EncoderDecoder
from atento_lab.notes.checks.attention import EXACT, apart, random
from atento_lab.notes.checks.tiny import gold_batch, some_ids, tiny_network
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

ALMOST = AtMost(1e-5)  # with sinusoids, whose table is float32

# The equations -----------------------------------------------------------------------------------------------------


def norm_by_hand(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return γ (x - μ) / √(σ² + ε) + β, with the population's σ² over the features of each token."""
    mean = x.sum(dim=-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(dim=-1, keepdim=True) / x.shape[-1]
    return norm.weight * (x - mean) / torch.sqrt(variance + norm.eps) + norm.bias


def feed_forward_by_hand(x: Tensor, part: FeedForward) -> Tensor:
    """Return max(0, x W1 + b1) W2 + b2."""
    inner = x @ part.inner.weight.T + part.inner.bias
    return torch.where(inner > 0, inner, torch.zeros(())) @ part.outer.weight.T + part.outer.bias


def heads_by_hand(x: Tensor, memory: Tensor, part: MultiHeadAttention, causal: bool) -> Tensor:
    """Return Concat(head_1 ... head_h) W^O + b, head by head; x (T,D), memory (S,D) -> (T,D)."""
    weights, out = part.head_weights(), []
    biases = part.input.bias.unflatten(0, (3, part.n_heads, part.d_head))  # (3,H,K)
    for head in range(part.n_heads):
        q = x @ weights["query"][head] + biases[0, head]  # (T,K)
        k = memory @ weights["key"][head] + biases[1, head]  # (S,K)
        v = memory @ weights["value"][head] + biases[2, head]  # (S,K)
        scores = q @ k.T / math.sqrt(part.d_head)  # (T,S)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
        out.append(scores.exp() / scores.exp().sum(dim=-1, keepdim=True) @ v)  # (T,K)
    return torch.cat(out, dim=-1) @ weights["output"].flatten(0, 1) + part.output.bias


def block_by_hand(x: Tensor, block: Any, memory: Tensor | None = None) -> Tensor:
    """Apply a post-norm block, x (T,D): norm(x + part(x)) for each part.

    With a `memory` (S,D) it is a decoder's block.
    """
    attended = heads_by_hand(x, x, block.self_attention, causal=memory is not None)
    x = norm_by_hand(x + attended, block.self_attention_residual.norm)
    if memory is not None:
        attended_memory = heads_by_hand(x, memory, block.cross_attention, causal=False)
        x = norm_by_hand(x + attended_memory, block.cross_attention_residual.norm)
    return norm_by_hand(x + feed_forward_by_hand(x, block.feed_forward), block.feed_forward_residual.norm)


def embedding_by_hand(ids: Tensor, network: EncoderDecoder) -> Tensor:
    """Return E[id] √D + the sinusoid of its position; ids (L,) -> (L,D)."""
    d_model = network.config.d_model
    table = network.embedding.weight
    return torch.stack(
        [
            table[token] * math.sqrt(d_model)
            + torch.tensor(
                [
                    math.sin(position / 10000 ** (2 * (i // 2) / d_model) + math.pi / 2 * (i % 2))
                    for i in range(d_model)
                ],
                dtype=torch.float64,
            )
            for position, token in enumerate(ids)
        ]
    )


# The rows ----------------------------------------------------------------------------------------------------------


def residual_and_norm() -> Finding:
    """C1: post-norm is norm(x + f(x)), pre-norm x + f(norm(x))."""
    x, fx = random(2, 5, 12), random(2, 5, 12)
    norms = [nn.LayerNorm(12, eps=1e-5).double() for _ in range(2)]
    for norm in norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    post, pre = (
        Residual(norm, norm_placement=placement, dropout=0.0) for norm, placement in zip(norms, ("post", "pre"))
    )
    flat = torch.full((1, 1, 12), 3.0, dtype=torch.float64)
    value = {
        "post-norm away": apart(post.after(x, fx, None), norm_by_hand(x + fx, norms[0])),
        "pre-norm away": apart(pre.before(x), norm_by_hand(x, norms[1])) + apart(pre.after(x, fx, None), x + fx),
        "a flat token gives β": apart(pre.before(flat), norms[1].bias),
    }
    without = (flat - flat.mean()) / flat.std(correction=0)  # the notes' norm: 0 / 0
    return compare(
        value,
        dict.fromkeys(value, EXACT),
        notes={"a flat token": float(without[0, 0, 0])},
        remark="the notes' norm has no ε, so a token with equal features divides 0 by 0 (error 26)",
    )


def feed_forward() -> Finding:
    """C2: linear, ReLU, linear; or GELU, x Φ(x), as in BERT."""
    x = random(2, 5, 12)
    relu, gelu = (FeedForward(12, 20, activation=name).double() for name in ("relu", "gelu"))
    inner = x @ gelu.inner.weight.T + gelu.inner.bias
    smooth = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))  # x Φ(x)
    value = {
        "ReLU away": apart(relu(x), feed_forward_by_hand(x, relu)),
        "GELU away": apart(gelu(x), smooth @ gelu.outer.weight.T + gelu.outer.bias),
    }
    return compare(value, dict.fromkeys(value, EXACT))


def equal_blocks() -> Finding:
    """C3: the output has the shape of the input, for every batch and length."""
    network = tiny_network(n_layers=5)
    shapes = [[{n: tuple(p.shape) for n, p in block.named_parameters()}] for block in network.encoder.blocks]
    same_shape = []
    for batch, length in ((1, 1), (1, 9), (4, 3), (2, 300)):
        x = random(batch, length, 12)
        same_shape.append(network.encoder(x).shape == x.shape and network.decoder(x, memory=x[:, :2]).shape == x.shape)
    value = {
        "blocks": len(shapes),
        "all alike": all(block_shapes == shapes[0] for block_shapes in shapes),
        "shapes kept": same_shape,
    }
    return compare(value, {"blocks": 5, "all alike": True, "shapes kept": [True] * 4})


def input_sum() -> Finding:
    """C4: the token's vector times √D as in the paper; BERT adds the segment's vector and a norm."""
    network, bert, ids, inputs_of_blocks = tiny_network(), tiny_bert(), some_ids(1, 6), []

    def keep(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        inputs_of_blocks.append(inputs[0][0])

    stacks = (network.encoder, network.decoder, bert.stack)
    hooks = [stack.blocks[0].register_forward_pre_hook(keep) for stack in stacks]
    network(ids, ids.flip(1))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    with_both, of_one = bert(ids, segment_ids=segments).hidden, bert(ids).hidden  # the third input, and the fourth
    for hook in hooks:
        hook.remove()
    positions = bert.inputs.positions.schemes[0]
    assert isinstance(positions, Learned) and bert.inputs.segments is not None
    assert isinstance(bert.inputs.norm, nn.LayerNorm)
    embedded = bert.embedding.weight[ids[0]] + positions.weight[:6]  # (L,D)
    three = [
        norm_by_hand(embedded + bert.inputs.segments[segment], bert.inputs.norm)
        for segment in (segments[0], 0 * segments[0])
    ]
    value = {
        "encoder away": apart(inputs_of_blocks[0], embedding_by_hand(ids[0], network)),
        "decoder away": apart(inputs_of_blocks[1], embedding_by_hand(ids[0].flip(0), network)),
        "BERT away": apart(inputs_of_blocks[2], three[0]),
        "BERT, no segments given, away": apart(inputs_of_blocks[3], three[1]),
        "BERT, all of the first segment: moved by": apart(with_both, of_one),
    }
    return compare(
        value,
        dict.fromkeys(value, ALMOST) | {"BERT, all of the first segment: moved by": AtLeast(1e-3)},
        remark="a pair of texts is two segments: inference decides the relation between premise and hypothesis, it "
        "does not find one from the other (error 49); QQP has two questions, not two pairs, and MNLI has an accuracy "
        "on matched and one on mismatched texts (error 50)",
    )


def tiny_bert() -> Encoder:
    """Return a small BERT with random parameters."""
    ids = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)
    sizes = {"vocab_size": 11, "d_model": 12, "d_ff": 20, "n_heads": 3, "n_layers": 1, "max_len": 16}
    bert = build_network(presets.bert_base(**sizes, ids=ids)).double().eval()
    assert isinstance(bert, Encoder)
    with torch.no_grad():
        for parameter in bert.parameters():
            parameter.normal_(std=0.3)
    return bert


def output_probabilities() -> Finding:
    """C5: the matrix is the embedding's (tied) or a separate one."""
    value: dict[str, dict[str, float]] = {}
    for name, tied in (("tied", True), ("untied", False)):
        network = tiny_network(output={"tied": tied})
        output = network(some_ids(2, 6), some_ids(2, 5))
        matrix = network.embedding.weight if tied else network.vocabulary_head.output.weight
        assert matrix is not None
        error = apart(output.logits, output.hidden @ matrix.T)
        sums = torch.softmax(output.logits, dim=-1).sum(dim=-1)  # (B,T)
        value[name] = {"logits away": error, "sums away from 1": apart(sums, torch.ones(()))}
        value[name]["parameters"] = sum(parameter.numel() for parameter in network.parameters())
    d, f, v = 12, 20, 11  # width, feed-forward, vocabulary
    attention, inner, norm = 4 * d * d + 4 * d, 2 * d * f + f + d, 2 * d  # weights and biases
    # two blocks of the encoder, and two of the decoder, which attend twice and have a norm more
    blocks = 2 * (attention + inner + 2 * norm) + 2 * (2 * attention + inner + 3 * norm)
    expected = {"logits away": EXACT, "sums away from 1": EXACT}
    return compare(
        value,
        {"tied": expected | {"parameters": blocks + v * d}, "untied": expected | {"parameters": blocks + 2 * v * d}},
        remark="the notes say that parameters grow with the length of the input; only the scores do (error 21)",
    )


def encoder() -> Finding:
    """C6: embedding, then attention and feed-forward in each block, with normalised sums."""
    network, ids = tiny_network(), some_ids(1, 6)
    x = embedding_by_hand(ids[0], network)
    for block in network.encoder.blocks:
        x = block_by_hand(x, block)
    value = {"away from the equations": apart(network.encode(ids)[0], x)}
    return compare(value, dict.fromkeys(value, ALMOST))


def decoder() -> Finding:
    """C7: the parts in the notes' order; the input is the target shifted right."""
    network = tiny_network(n_layers=1)
    block = network.decoder.blocks[0]
    assert isinstance(block, Block)
    names: dict[nn.Module | None, str] = {
        block.self_attention: "masked self-attention",
        block.cross_attention: "cross-attention",
        block.feed_forward: "feed-forward",
        **{part.norm: "add & norm" for part in block.children() if isinstance(part, Residual)},
    }
    source, target, calls = some_ids(1, 6), some_ids(1, 5), []
    memory, x = network.encode(source), embedding_by_hand(target[0], network)

    def record_call(part: nn.Module, inputs: object, output: object) -> None:
        calls.append(names[part])

    def record_input(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls.append("token + position" if apart(inputs[0][0], x) < ALMOST.limit else "another input")

    hooks = [part.register_forward_hook(record_call) for part in names if part is not None]
    hooks.append(block.register_forward_pre_hook(record_input))
    logits = network(None, target, encoded=memory).logits
    for hook in hooks:
        hook.remove()
    by_hand = block_by_hand(x, block, memory[0]) @ network.embedding.weight.T  # (T,V), tied
    batch = gold_batch("I love NLP", "Eu amo PLN")
    shifted = batch.inputs["target_ids"][0, 1:].tolist() == batch.labels["vocabulary"][0, :-1].tolist()
    return compare(
        {
            "order": " > ".join(calls),
            "input is the target one step later": shifted,
            "logits away from the equations": apart(logits[0], by_hand),
        },
        {
            "order": "token + position > masked self-attention > add & norm > cross-attention > add & norm > "
            "feed-forward > add & norm",
            "input is the target one step later": True,
            "logits away from the equations": ALMOST,
        },
    )


def encoder_decoder() -> Finding:
    """C8: every output depends on every source token."""
    network, source, target = tiny_network(), some_ids(1, 6), some_ids(1, 5)
    memory, x = embedding_by_hand(source[0], network), embedding_by_hand(target[0], network)
    for block in network.encoder.blocks:
        memory = block_by_hand(memory, block)
    for block in network.decoder.blocks:
        x = block_by_hand(x, block, memory)
    logits = network(source, target).logits[0]
    effects = []
    for position in range(6):
        changed = source.clone()
        changed[0, position] = 4 + (changed[0, position] - 3) % 7  # another token
        effects.append(float((network(changed, target).logits[0] - logits).detach().abs().amax(dim=-1).min()))
    return compare(
        {
            "away from the equations": apart(logits, x @ network.embedding.weight.T),
            "least effect of a source token": min(effects),
        },
        {"away from the equations": ALMOST, "least effect of a source token": AtLeast(1e-6)},
    )
