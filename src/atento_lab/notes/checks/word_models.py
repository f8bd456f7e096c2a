"""Checks of ELMo and word vectors, compared with their equations (docs/notes.md#c14, #c15)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig, ELMoConfig
from atento.data.batches.windows import Windows
from atento.networks import CBOW, ELMo
from atento.networks.recurrent.elmo import ProjectedLSTM
from atento.networks.words.cbow import train_vectors
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.tiny import some_ids
from atento_lab.notes.finding import AtLeast, Finding, compare


def projected_lstm_by_hand(layer: ProjectedLSTM, x: Tensor) -> Tensor:
    """Run one direction over one sentence x (L,D), token by token.

    The gates i, f, g, o are affine in x and h; h = P (σ(o) tanh(c)).
    """
    h, c = torch.zeros(x.shape[1], dtype=x.dtype), torch.zeros(layer.d_cell, dtype=x.dtype)
    out = torch.zeros_like(x)
    for t in reversed(range(len(x))) if layer.backward else range(len(x)):
        gates = layer.input.weight @ x[t] + layer.input.bias + layer.recurrent.weight @ h
        i, f, g, o = gates.view(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        c = c if layer.cell_clip is None else c.clamp(-layer.cell_clip, layer.cell_clip)
        h = layer.projection.weight @ (o.sigmoid() * c.tanh())
        h = h if layer.projection_clip is None else h.clamp(-layer.projection_clip, layer.projection_clip)
        out[t] = h
    return out


def layers_by_hand(network: ELMo, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return both directions' states (L,D) of each layer.

    From the second layer on, the input is added to the output.
    """
    assert network.embedding is not None
    ahead = behind = network.embedding.weight[ids[0]]
    layers = [(ahead, behind)]
    for number, (forward, backward) in enumerate(zip(network.forward_layers, network.backward_layers)):
        assert isinstance(forward, ProjectedLSTM) and isinstance(backward, ProjectedLSTM)
        new = projected_lstm_by_hand(forward, ahead), projected_lstm_by_hand(backward, behind)
        ahead, behind = (new[0] + ahead, new[1] + behind) if number else new
        layers.append((ahead, behind))
    return layers


@torch.no_grad()
def elmo() -> Finding:
    """C14: one LSTM per layer and direction, a skip connection; a word's vector is γ Σ softmax(w)_j h_j over layers;
    forward states ignore later words.
    """
    config = NetworkConfig(
        architecture="elmo",
        vocab_size=11,
        d_model=6,
        n_heads=1,
        n_layers=2,
        dropout=0.0,
        elmo=ELMoConfig(characters=None, d_cell=8),
    )
    network = ELMo(config).double().eval()
    for parameter in network.parameters():
        parameter.normal_(std=0.5)
    ids = some_ids(1, 5)
    layers = network.layers(ids)
    mix = torch.softmax(network.mix.weights, dim=0)
    by_hand = network.mix.gamma * sum(share * layer for share, layer in zip(mix, layers))
    changed = ids.clone()
    changed[0, 3] = (int(ids[0, 3]) + 1) % 11
    states = network.directions(ids)
    steps = [
        max(apart(states[0], expected) for states, expected in zip(*pair))
        for pair in zip(states, layers_by_hand(network, ids))
    ]
    ahead, behind = zip(*states)
    ahead_too, behind_too = zip(*network.directions(changed))
    return compare(
        {
            "layers away from their equations": max(steps),
            "mix away": apart(network(ids).hidden, by_hand),
            "forward states before a change away": max(apart(a[:, :3], b[:, :3]) for a, b in zip(ahead, ahead_too)),
            "backward states behind it away": max(apart(a[:, 4:], b[:, 4:]) for a, b in zip(behind, behind_too)),
            "its own vector moves by": apart(layers[:, :, 3], network.layers(changed)[:, :, 3]),
        },
        {
            "layers away from their equations": EXACT,
            "mix away": EXACT,
            "forward states before a change away": EXACT,
            "backward states behind it away": EXACT,
            "its own vector moves by": AtLeast(1e-3),
        },
    )


def negative_sampling_away(mode: Literal["cbow", "skip-gram"]) -> float:
    """Return the error of the loss against -log σ(u·v) - Σ log σ(-u·v_k), without drawn words equal to the target."""
    cbow_config = CBOWConfig(window=1, mode=mode, negatives=3)
    config = NetworkConfig(architecture="cbow", vocab_size=6, d_model=4, n_heads=1, dropout=0.0, cbow=cbow_config)
    network = CBOW(config).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    centre, context = torch.tensor([0, 3]), torch.tensor([[1, 2], [-1, 4]])  # the second has one neighbour
    if mode == "cbow":  # (target word, its context, drawn words); one drawn word equals its target
        negatives = torch.tensor([[0, 5, 2], [1, 3, 3]])
        examples = [(0, [1, 2], [0, 5, 2]), (3, [4], [1, 3, 3])]
    else:
        negatives = torch.tensor([[[1, 5, 0], [4, 4, 2]], [[0, 0, 0], [4, 1, 5]]])
        examples = [(1, [0], [1, 5, 0]), (2, [0], [4, 4, 2]), (4, [3], [4, 1, 5])]
    by_hand = torch.zeros((), dtype=torch.float64)
    for target, context_words, drawn in examples:
        u = network.input_weight[context_words].mean(dim=0)
        by_hand -= F.logsigmoid(u @ network.output_weight[target])
        for word in drawn:
            if word != target:
                by_hand -= F.logsigmoid(-(u @ network.output_weight[word]))
    loss, targets = network.loss(centre, context, negatives)
    return apart(loss, by_hand) if targets == len(examples) else math.inf


def windows_of(sentence: Sequence[int]) -> list[list[int]]:
    """Return the context of each word of one sentence, two words on either side, as `Windows` gives it; -1: none."""
    windows = Windows([list(sentence)], 20, CBOWConfig(window=2, subsample=0.0), seed=1)
    (batch,) = windows.epoch(0)
    context_by_word = dict(zip(batch.centre.tolist(), batch.context.tolist()))
    return [context_by_word.get(word, []) for word in sentence]


@torch.no_grad()
def word_vectors() -> Finding:
    """C15: words of the same contexts are nearest neighbours; the loss ignores drawn words equal to the target."""
    generator = torch.Generator().manual_seed(0)

    def draw(words: tuple[str, ...]) -> str:
        return words[int(torch.randint(len(words), (1,), generator=generator))]

    animals, places, verbs = ("gato", "felino"), ("casa", "rua", "escola"), ("dorme", "corre", "come")
    machines = ("carro", "trem"), ("para", "parte", "chega"), ("cedo", "tarde", "agora")
    sentences = []
    # *gato* and *felino* stand in the same contexts
    for _ in range(600):
        kinds = (animals, verbs, places) if int(torch.randint(2, (1,), generator=generator)) else machines
        sentences.append([draw(kind) for kind in kinds])
    first: dict[Literal["cbow", "skip-gram"], str] = {"cbow": "", "skip-gram": ""}
    for mode in first:
        cbow_config = CBOWConfig(window=2, mode=mode, negatives=4, subsample=0.0)
        windows = Windows.from_words(sentences, cbow_config, seed=1)
        config = NetworkConfig(
            architecture="cbow", vocab_size=len(windows.words), d_model=16, n_heads=1, dropout=0.0, cbow=cbow_config
        )
        with torch.enable_grad():
            vectors = F.normalize(train_vectors(windows, config, 1, epochs=8).vectors, dim=-1)
        index = windows.words.index("gato")
        near = (vectors @ vectors[index]).tolist()
        near[index] = -2.0  # itself; a cosine is at least -1
        first[mode] = windows.words[near.index(max(near))]
    away = {mode: negative_sampling_away(mode) for mode in first}
    return compare(
        {"nearest to gato": first, "loss away from pairs": away, "windows of 5 6 7 8": windows_of((5, 6, 7, 8))},
        {
            "nearest to gato": dict.fromkeys(first, "felino"),
            "loss away from pairs": dict.fromkeys(away, EXACT),
            "windows of 5 6 7 8": [[-1, -1, 6, 7], [-1, 5, 7, 8], [5, 6, 8, -1], [6, 7, -1, -1]],
        },
    )
