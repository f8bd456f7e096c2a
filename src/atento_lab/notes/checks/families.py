"""Checks of the network families on small networks (docs/notes.md#c9, #c11 to #c13, #c16, #c17, #c17b)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention import attend
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import RecurrentConfig, ScoreName
from atento.networks import Decoder, RecurrentLM, RecurrentSeq2Seq, build_network, parameter_count, presets
from atento.networks.recurrent.cells import RecurrentStack
from atento_lab.notes.checks.attention import EXACT, apart, random
from atento_lab.notes.checks.cost import Counting
from atento_lab.notes.checks.tiny import Adam, derivatives, some_ids
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

COUNTS = {  # published numbers of parameters
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "roberta_base": 124_645_632,
    "spanbert_base": 108_310_272,
    "xlm_roberta_large": 559_890_432,
    "gpt1": 116_534_784,
    "gpt2": 124_439_808,
    "t5_small": 60_506_624,
}
_WIDTH, _TEXTS = 64, (16, 64, 256)  # of a layer; tokens
_DISTANCE = 40  # positions between a token and the output that depends on it


def tiny(architecture: str, **changes: object) -> Any:
    """Return a small network of this architecture in float64, with random weights."""
    config = NetworkConfig(vocab_size=11, d_model=12, d_ff=20, n_heads=3, n_layers=2, dropout=0.0)
    network = build_network(changed(config, changes, architecture=architecture)).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    return network


LLAMA = {"Llama 3, 8 B": 8_030_261_248, "Llama 3, 70 B": 70_553_706_496, "Llama 3.1, 405 B": 405_853_388_800}


def sized(config: NetworkConfig) -> int:
    """Return the parameters of a network of equal layers, extrapolated from one and two layers."""
    with torch.device("meta"):
        one_layer, two_layers = (parameter_count(build_network(replace(config, n_layers=n))) for n in (1, 2))
    return one_layer + (config.n_layers - 1) * (two_layers - one_layer)


def layer_parameters(config: NetworkConfig) -> int:
    """Return the number of parameters of one layer."""
    return sized(replace(config, n_layers=2)) - sized(replace(config, n_layers=1))


@torch.no_grad()
def decoder_only() -> Finding:
    """C9: each logit depends on the tokens up to its own; tied weights are the embedding's."""
    network: Decoder = tiny("decoder", vocab_size=7)
    with torch.enable_grad():
        dependence = derivatives(network.stack, random(5, 12))
    ids = some_ids(1, 6, 7)
    out = network(ids)
    steps, written = network.begin(), []
    for position in range(6):
        written.append(network(ids[:, position : position + 1], state=steps).logits)
    return compare(
        {
            "sees": (dependence > 1e-12).int().tolist(),
            "tied output away": apart(out.logits, out.hidden @ network.embedding.weight.T),
            "cached away": apart(torch.cat(written, dim=1), out.logits),
        },
        {"sees": torch.ones(5, 5).tril().int().tolist(), "tied output away": EXACT, "cached away": EXACT},
    )


@torch.no_grad()
def recurrent_encoder() -> Finding:
    """C11: a loop over cells; padding on either side has no effect; C is the last state."""
    errors: dict[str, float] = {}
    for cell in ("lstm", "gru"):
        network: RecurrentSeq2Seq = tiny("recurrent-seq2seq", recurrent=RecurrentConfig(cell=cell, bidirectional=False))
        ids = some_ids(1, 5)
        states = network.encode(ids)
        x, layers = network.embedding(ids), None
        by_step = []
        layers = [network.encoder.zeros(x[:, 0]) for _ in network.encoder.layers]
        for position in range(5):
            layers = network.encoder.step(x[:, position], layers)
            by_step.append(layers[-1][0])
        errors[f"{cell}: cell after cell away"] = apart(states, torch.stack(by_step, dim=1))
        for side in (0, 1):
            pad = torch.full((1, 3), 9)  # any id: the mask hides it
            extended = torch.cat([ids, pad] if side else [pad, ids], dim=1)
            # ids > -1 is true everywhere, pad < 0 nowhere
            token_mask = torch.cat([ids > -1, pad < 0] if side else [pad < 0, ids > -1], dim=1)
            padded = network.encode(extended, source_token_mask=token_mask)
            errors[f"{cell}: padded {'right' if side else 'left'} away"] = apart(padded[token_mask], states[0])
            memory = network.decoder.begin(padded, token_mask).memory
            assert memory is not None
            errors[f"{cell}: C, padded {'right' if side else 'left'}, away from the last state"] = apart(
                memory.context, states[:, -1]
            )
    return compare(errors, dict.fromkeys(errors, EXACT))


@torch.no_grad()
def recurrent_decoder() -> Finding:
    """C12: step by step it has the logits of one pass; its state carries the first word to the last."""
    errors, carried = {}, []
    for attention in ("none", "additive", "dot"):
        network: RecurrentSeq2Seq = tiny("recurrent-seq2seq", recurrent=RecurrentConfig(attention=attention))
        source, target = some_ids(1, 5), torch.cat([torch.full((1, 1), 2), some_ids(1, 4)], dim=1)
        uncached = network(source, target).logits
        state = network.begin()
        steps = [network(source, target[:, t : t + 1], state=state).logits for t in range(5)]
        errors[attention] = apart(torch.cat(steps, dim=1), uncached)
        # with another first word
        other = torch.cat([target[:, :1], (target[:, 1:2] + 1) % 11, target[:, 2:]], dim=1)
        carried.append(apart(network(source, other).logits[:, -1], uncached[:, -1]))
    return compare(
        {**errors, "last logits moved by the first word, at least": min(carried)},
        {**dict.fromkeys(errors, EXACT), "last logits moved by the first word, at least": AtLeast(1e-6)},
    )


def reversal_batch(rows: int, letters: int) -> tuple[Tensor, Tensor]:
    """Return texts (B,L) and their reversals with the start token (B,L+1)."""
    source = torch.randint(4, 10, (rows, letters))
    return source, torch.cat([torch.full((rows, 1), 2), source.flip(1)], dim=1)


def letter_loss(network: RecurrentSeq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss per letter, in nats, under teacher forcing."""
    logits = network(source, target[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


@cache
def reversing(
    attention: ScoreName, letters: int = 8, updates: int = 250, rows: int = 24, rate: float = 5e-3
) -> tuple[RecurrentSeq2Seq, float]:
    """Train a recurrent network briefly to reverse texts; return it and its loss per letter on new texts.

    Texts of more than 8 letters are learned gradually: they grow from 5 letters during the first 7 updates of 10.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(1)
        config = NetworkConfig(
            architecture="recurrent-seq2seq",
            vocab_size=10,
            d_model=32,
            n_heads=1,
            n_layers=1,
            dropout=0.0,
            recurrent=RecurrentConfig(cell="gru", attention=attention),
        )
        network = RecurrentSeq2Seq(config)
        adam = Adam(network.parameters(), rate)
        for update in range(updates):
            length = letters if letters <= 8 else min(letters, 5 + (letters - 5) * update // int(0.7 * updates))
            torch.autograd.backward(letter_loss(network, *reversal_batch(rows, length)))
            adam.step()
        network.eval()
        with torch.no_grad():
            loss = float(letter_loss(network, *reversal_batch(64, letters)))
    return network, loss


LONG = 40  # letters to reverse


def with_and_without_attention() -> Finding:
    """C13: the loss per letter of reversing 40 letters, after equal updates."""
    losses = {
        attention: reversing(attention, LONG, updates=120, rows=12, rate=1e-2)[1] for attention in ("none", "dot")
    }
    return compare(
        {"letters": LONG, "loss with attention over without": losses["dot"] / losses["none"]},
        {"letters": 40, "loss with attention over without": AtMost(0.6)},
        remark=f"nats per letter: {losses['none']:.2f} through one vector, {losses['dot']:.2f} with attention, "
        f"{math.log(6):.2f} for a uniform guess",
    )


def published_sizes() -> Finding:
    """C16: presets have the published numbers of parameters; layers of BERT, GPT-1 and GPT-2 are equally large."""
    counts = {}
    with torch.device("meta"):  # no memory for the weights
        for name in COUNTS:
            counts[name] = parameter_count(build_network(getattr(presets, name)()))
    layers = [layer_parameters(presets.bert_base()), layer_parameters(presets.gpt1()), layer_parameters(presets.gpt2())]
    heads = {name: getattr(presets, name)().n_heads for name in ("bert_base", "xlm_roberta_large")}
    sizes: dict[str, object] = {"d_model": 16384, "d_ff": 53248, "n_heads": 128, "attention": {"n_kv_heads": 8}}
    billions = {
        "Llama 3, 8 B": presets.llama3_8b(),
        "Llama 3, 70 B": presets.llama3_70b(),
        "Llama 3.1, 405 B": presets.llama3_8b(**sizes, n_layers=126),
    }
    llama = {name: sized(config) for name, config in billions.items()}
    return compare(
        {"parameters": counts, "one layer": layers, "heads of a layer": heads, "Llama": llama},
        {
            "parameters": COUNTS,
            "one layer": [7_087_872] * 3,
            "heads of a layer": {"bert_base": 12, "xlm_roberta_large": 16},
            "Llama": LLAMA,
        },
        notes={
            "BERT": "about 100 million",
            "XLM-R": "about 550 million",
            "a decoder": "needs more than an encoder",
            "heads of a layer": "12 and 16 attention layers of many heads each",
            "Llama 3": "405 billion",
        },
        remark="layers have the same size: the totals differ by vocabularies and heads (errors 7, 8, 9); a layer has "
        "one attention of 12 heads, or 16 in XLM-R (error 6); Llama 3.1 has 405 billion (error 10)",
    )


def gradient_against_distance() -> Finding:
    """C17: the gradient over 40 positions relative to one: RNN, LSTM, Transformer."""
    shares = {}
    for name, config in _readers().items():
        torch.manual_seed(0)
        network = build_network(config).double().eval()
        ids = torch.randint(11, (4, _DISTANCE + 1))
        embeddings: list[Tensor] = []

        def keep(module: object, inputs: object, output: Tensor, embeddings: list[Tensor] = embeddings) -> Tensor:
            embeddings.append(output.detach().requires_grad_())
            return embeddings[-1]  # a leaf, at which the gradient is taken

        hook = network.get_submodule("embedding").register_forward_hook(keep)
        last = network(ids, project=False).hidden[:, -1]
        hook.remove()
        (gradient,) = torch.autograd.grad(last.square().sum(), embeddings[0])
        norms = gradient.norm(dim=-1).mean(dim=0)
        shares[name] = float(norms[0] / norms[_DISTANCE - 1])  # 40 positions before over one before
    return compare(
        {
            "rnn": shares["rnn"],
            "Transformer": shares["transformer"],
            "rnn below lstm": shares["rnn"] < shares["lstm"],
            f"products, attention over recurrence, width {_WIDTH}": {
                str(n): attention_over_recurrence(n) for n in _TEXTS
            },
        },
        {
            "rnn": AtMost(1e-3),
            "Transformer": AtLeast(0.1),
            "rnn below lstm": True,
            f"products, attention over recurrence, width {_WIDTH}": {str(n): n / _WIDTH for n in _TEXTS},
        },
        notes={"cost": "linear against quadratic: attention the dearer at every length"},
        remark=f"lstm: {shares['lstm']:.1e}; a Transformer's path is one layer long at any distance, but its depth "
        "remains (error 33); recurrence costs N d² and attention N² d, so attention is cheaper for texts shorter "
        "than the width of the layer (error 34); `atento bench recurrence` measures all seven aspects",
    )


def attention_over_recurrence(length: int) -> float:
    """Return the multiplications of attention divided by those of a plain recurrence W x + U h."""
    with torch.no_grad():
        q = torch.randn(1, 1, length, _WIDTH)
        with Counting() as attention:
            attend(q, q, q, kernel="plain")
        stack = RecurrentStack("rnn", _WIDTH, _WIDTH, 1)
        states = [stack.zeros(q[0, :1, 0])]
        with Counting() as steps:
            for position in range(length):
                states = stack.step(q[0, :, position], states)
    return float(attention.operations / steps.operations)


def _readers() -> Mapping[str, NetworkConfig]:
    base = NetworkConfig(vocab_size=11, d_model=32, d_ff=32, n_heads=2, n_layers=1, dropout=0.0, norm="pre")
    return {
        "rnn": replace(base, architecture="recurrent-lm", recurrent=RecurrentConfig(cell="rnn")),
        "lstm": replace(base, architecture="recurrent-lm", recurrent=RecurrentConfig(cell="lstm")),
        "transformer": replace(base, architecture="decoder"),
    }


@torch.no_grad()
def recurrent_language_model() -> Finding:
    """C17b: the perplexity of PyTorch's own LSTM with the same weights."""
    network: RecurrentLM = tiny("recurrent-lm", n_layers=1, recurrent=RecurrentConfig(cell="lstm"))
    (layer,) = network.stack.layers
    reference = torch.nn.LSTM(12, 12, batch_first=True).double()
    reference.load_state_dict(layer.state_dict())
    ids = some_ids(2, 7)
    states, _ = reference(F.embedding(ids[:, :-1], network.embedding.weight) * network.embedding.scale)
    expected = F.cross_entropy((states @ network.embedding.weight.T).flatten(0, 1), ids[:, 1:].flatten())
    loss = F.cross_entropy(network(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
    return compare({"perplexity": float(loss.exp())}, {"perplexity": float(expected.exp())}, within=1e-9)
