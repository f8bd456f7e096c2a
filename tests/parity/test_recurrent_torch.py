"""Recurrent networks against torch.nn with the same weights: cells, whole sequences, families (A5, A10, C11, C17b)."""

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention import observe
from atento.attention.additive import AdditiveScore, BilinearScore
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import SpecialIds
from atento.config.sections.recurrent import CellName, RecurrentConfig
from atento.networks.recurrent.cells import CELLS, RecurrentStack
from atento.networks.recurrent.language_model import RecurrentLM
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq, SourceAttention
from atento.networks.vocabulary import cross_entropy

SIZES: dict[str, Any] = {"vocab_size": 11, "d_model": 6, "n_heads": 1, "n_layers": 2, "dropout": 0.0}
CONFIG = NetworkConfig("recurrent-seq2seq", **SIZES, ids=SpecialIds(pad=0))
CELL_NAMES: tuple[CellName, ...] = ("lstm", "gru", "rnn")
TORCH_CELLS: dict[type, type] = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}
ROWS = [[5, 6, 7, 8, 3], [9, 4, 3], [10, 3], [3]]


@torch.no_grad()
def shaken(network: nn.Module, seed: int = 0) -> Any:
    """All weights random, biases too, in float64."""
    generator = torch.Generator().manual_seed(seed)
    network = network.double().eval()
    for parameter in network.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.6)
    return network


def normal(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def padded(rows: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
    """ids (B,L) and the padding mask, padding on the left or on the right."""
    longest = max(len(row) for row in rows)
    gaps = [[0] * (longest - len(row)) for row in rows]
    full = [gap + row if side == "left" else row + gap for row, gap in zip(rows, gaps)]
    real = [[False] * len(gap) + [True] * len(row) for row, gap in zip(rows, gaps)]
    return torch.tensor(full), torch.tensor(real if side == "left" else [row[::-1] for row in real])


@torch.no_grad()
def torch_cell(layer: nn.Module) -> Any:
    assert isinstance(layer, nn.RNNBase)
    cell = TORCH_CELLS[type(layer)](layer.input_size, layer.hidden_size).double()
    for name, parameter in cell.named_parameters():
        parameter.copy_(layer.get_parameter(f"{name}_l0"))
    return cell


@torch.no_grad()
def torch_layers(stack: RecurrentStack) -> Any:
    """torch.nn's several layers in one module, with the weights of a stack."""
    first = stack.layers[0]
    assert isinstance(first, nn.RNNBase)
    made: Any = cast(Any, type(first))(
        first.input_size, first.hidden_size, len(stack.layers), batch_first=True, bidirectional=first.bidirectional
    ).double()
    for index, layer in enumerate(stack.layers):
        for name, parameter in layer.named_parameters():
            made.get_parameter(name.replace("_l0", f"_l{index}")).copy_(parameter)
    return made


@pytest.mark.parametrize("name", CELL_NAMES)
def test_c11_one_step_of_a_cell(name: CellName) -> None:
    layer = shaken(CELLS[name].layer(5, 4))
    x = normal(3, 5)
    before = tuple(normal(3, 4, seed=2 + part) for part in range(CELLS[name].parts))
    theirs = torch_cell(layer)(x, before if len(before) == 2 else before[0])
    ours = CELLS[name].step(list(layer.all_weights[0]), x, before)
    for mine, other in zip(ours, theirs if isinstance(theirs, tuple) else (theirs,), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", CELL_NAMES)
def test_c11_whole_sequences_of_different_lengths(name: str, bidirectional: bool) -> None:
    """Every row of a padded batch, padding on either side, as torch.nn runs it alone: all states, all last states."""
    stack = shaken(RecurrentStack(name, 5, 4, 3, bidirectional=bidirectional))
    theirs = torch_layers(stack)
    lengths = [4, 1, 6, 3]
    x = normal(4, 6, 5)
    for side in ("left", "right"):
        real = padded([[1] * length for length in lengths], side)[1]
        states, ends = stack(x, token_mask=real)
        for row in range(4):
            expected, last = theirs(x[row : row + 1, real[row]])
            torch.testing.assert_close(states[row, real[row]], expected[0], rtol=0, atol=1e-10)
            assert bool((states[row, ~real[row]] == 0).all())
            for part, h_n in enumerate(last if isinstance(last, tuple) else (last,)):
                by_layer = h_n.view(3, 2 if bidirectional else 1, -1).flatten(1)  # [forward; backward] of each layer
                torch.testing.assert_close(torch.stack([end[part][row] for end in ends]), by_layer, rtol=0, atol=1e-10)


def read_by_loops(attention: SourceAttention, query: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and context of one query (D,) over states (S,D), a key at a time."""
    score, exps = attention.score, []
    for h in states:
        if isinstance(score, AdditiveScore):
            inside = score.query.weight @ query + score.key.weight @ h + score.key.bias
            e = score.weigh.weight[0] @ torch.tanh(inside)
        else:
            e = query @ (score.key.weight @ h) if isinstance(score, BilinearScore) else query @ h
        exps.append(math.exp(float(e)))
    context = torch.zeros_like(states[0])
    for exp, h in zip(exps, states):
        context = context + exp / sum(exps) * (h if attention.value is None else attention.value.weight @ h)
    return torch.tensor(exps, dtype=torch.float64) / sum(exps), context


@torch.no_grad()
def reference(network: RecurrentSeq2Seq, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """One pair, a step at a time with torch.nn's cells: logits (T,V) and weights (T,S), none without attention."""
    decoder, width = network.decoder, network.config.d_model
    recurrent = decoder.recurrent
    embedded = network.embedding.weight * math.sqrt(width)
    states, last = torch_layers(network.encoder)(embedded[source].unsqueeze(0))
    h_n = last[0] if isinstance(last, tuple) else last
    summary = torch.cat([h_n[-2, 0], h_n[-1, 0]]) if recurrent.bidirectional else h_n[-1, 0]
    parts = CELLS[recurrent.cell].parts
    first = torch.tanh(decoder.bridge(summary)).view(-1, parts, width)
    cells = [torch_cell(layer) for layer in decoder.stack.layers]
    layers = [list(parts_of) for parts_of in first]
    logits, rows, fed = [], [], torch.zeros_like(summary)
    for token in embedded[target]:
        context = summary
        if recurrent.attention == "additive":  # asked with the state before the step
            assert decoder.attention is not None
            row, context = read_by_loops(decoder.attention, layers[-1][0], states[0])
            rows.append(row)
        x = torch.cat([token, context]) if recurrent.attention in ("none", "additive") else token
        x = torch.cat([token, fed]) if recurrent.input_feeding else x
        for index, cell in enumerate(cells):
            out = cell(x, tuple(layers[index]) if parts == 2 else layers[index][0])
            layers[index] = list(out) if parts == 2 else [out]
            x = layers[index][0]
        if recurrent.attention in ("bilinear", "dot"):  # asked with the state after it
            assert decoder.attention is not None
            row, context = read_by_loops(decoder.attention, x, states[0])
            rows.append(row)
            fed = torch.tanh(decoder.join.weight @ torch.cat([context, x]))  # Luong's
        else:
            pieces = decoder.join.weight @ torch.cat([x, token, context]) + decoder.join.bias
            fed = torch.maximum(pieces[::2], pieces[1::2])  # the larger of each pair
        logits.append(network.projection @ fed)
    return torch.stack(logits), torch.stack(rows) if rows else torch.zeros(len(target), 0)


FORMS = [
    RecurrentConfig("lstm", attention="none"),
    RecurrentConfig("gru", attention="none", bidirectional=False),
    RecurrentConfig("rnn", attention="none"),
    RecurrentConfig("lstm", attention="additive"),
    RecurrentConfig("gru", attention="additive", values="projected"),
    RecurrentConfig("lstm", attention="bilinear", bidirectional=False),
    RecurrentConfig("gru", attention="bilinear", input_feeding=True),
    RecurrentConfig("gru", attention="dot", values="projected"),
    RecurrentConfig("lstm", attention="dot", input_feeding=True),
]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.cell}-{form.attention}-{form.input_feeding}")
def test_a5_a10_c12_c13_logits_and_weights_of_a_padded_batch(form: RecurrentConfig, tied: bool) -> None:
    """Context = Σ α h in two loops; padded source positions get exactly 0 (A5), padding on either side."""
    network = shaken(RecurrentSeq2Seq(changed(CONFIG, recurrent=form, output={"tied": tied}, n_decoder_layers=3)))
    targets = [[2, 5, 6, 7], [2, 8, 9, 4], [2, 2, 5, 10], [2, 7, 7, 7]]
    for side in ("left", "right"):
        source, real = padded(ROWS, side)
        with observe(network) as seen:
            logits = network(source, torch.tensor(targets), source_token_mask=real).logits.detach()
        for row, ids in enumerate(ROWS):
            expected, weights = reference(network, ids, targets[row])
            torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
            if form.attention != "none":
                found = seen["cross", 0][row, 0]  # (T,S) in float32
                torch.testing.assert_close(found[:, real[row]], weights.float(), rtol=0, atol=1e-6)
                assert bool((found[:, ~real[row]] == 0).all())
        assert bool(seen.n_layers) == (form.attention != "none")


@pytest.mark.parametrize("name", CELL_NAMES)
def test_c17b_perplexity_of_a_language_model(name: CellName) -> None:
    """exp of the mean nats a token, from a padded batch of ours and from torch.nn row by row."""
    config = replace(CONFIG, architecture="recurrent-lm", n_layers=3, recurrent=RecurrentConfig(name))
    network = shaken(RecurrentLM(changed(config, output={"tied": False})))
    table = nn.Embedding.from_pretrained(network.embedding.weight.detach() * math.sqrt(6))
    layers, output = torch_layers(network.stack), nn.Linear(6, 11, bias=False).double()
    output.load_state_dict({"weight": network.projection.detach()})
    texts = [[2, 5, 6, 7, 8, 3], [2, 9, 3], [2, 4, 4, 10, 3], [2, 3]]
    nats, count = 0.0, 0
    with torch.no_grad():
        for text in texts:
            hidden, _ = layers(table(torch.tensor([text[:-1]])))
            nats += float(F.cross_entropy(output(hidden[0]), torch.tensor(text[1:]), reduction="sum"))
            count += len(text) - 1
        for side in ("left", "right"):
            ids, real = padded([text[:-1] for text in texts], side)
            labels, _ = padded([text[1:] for text in texts], side)
            hidden = network(ids, token_mask=real, project=False).hidden[real]
            _, nll = cross_entropy(hidden, network.projection, labels[real])
            assert math.exp(float(nll) / int(real.sum())) == pytest.approx(math.exp(nats / count), rel=1e-10)
