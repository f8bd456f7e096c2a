"""Blocks of windows with shared negatives: the same windows, the same loss and the same gradients as one by one."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atento.base.errors import RecipeError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.windows import BLOCK, BlockBatch, WindowBlocks, Windows
from atento.data.objectives.window import WindowBatches
from atento.networks.words.cbow import CBOW
from atento.training.losses import Call, losses
from atento.training.step import Updater
from failing import fails

Mode = Literal["cbow", "skip-gram"]
MODES: list[Mode] = ["cbow", "skip-gram"]
CONFIG = CBOWConfig(window=2, negatives=3, subsample=0.0, shared_negatives=3)


def one_by_one(blocks: BlockBatch) -> list[tuple[int, tuple[int, ...]]]:
    """Every window of some blocks as (word, its context)."""
    centres, contexts = blocks.centre().flatten().tolist(), blocks.context().flatten(0, 1).tolist()
    return sorted((centre, tuple(context)) for centre, context in zip(centres, contexts) if centre >= 0)


def made(cbow: CBOWConfig, vocab_size: int) -> CBOW:
    """A network of float64 with random vectors."""
    config = NetworkConfig(architecture="cbow", vocab_size=vocab_size, d_model=4, n_heads=1, dropout=0.0, cbow=cbow)
    network = CBOW(config).double()
    generator = torch.Generator().manual_seed(2)
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=generator)
    return network


WIDTHS = st.integers(1, 4)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 5), max_size=40), min_size=1, max_size=6), WIDTHS, st.sampled_from([0.0, 0.1]))
def test_windows_in_blocks_are_those_one_by_one(sentences: list[list[int]], window: int, subsample: float) -> None:
    windows = Windows([[0, 1], *sentences], 6, replace(CONFIG, window=window, subsample=subsample), seed=3)
    for epoch in (0, 1):
        every = windows.part(epoch, 0, 1)
        expected = sorted((int(word), tuple(row.tolist())) for word, row in zip(every.centre, every.context))
        parts = [WindowBlocks(windows).part(epoch, index, 3) for index in range(3)]
        assert sorted(pair for part in parts for pair in one_by_one(part)) == expected


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_and_the_gradients_of_blocks_are_those_of_their_windows_with_any_shared_negatives(mode: Mode) -> None:
    rng = np.random.default_rng(1)
    sentences = [rng.integers(0, 7, length).tolist() for length in (1, 2, 5, 3 * BLOCK, 4)]
    config = replace(CONFIG, mode=mode)
    blocks = WindowBlocks(Windows(sentences, 7, config, seed=1)).part(0, 0, 1)
    network = made(config, 7)
    loss, targets = network.block_loss(blocks.ids, blocks.neighbours, blocks.negatives)
    centre, context = blocks.centre(), blocks.context()
    has_window = centre >= 0
    drawn = blocks.negatives.unsqueeze(1).expand(-1, BLOCK, -1)[has_window].long()
    assert (drawn == centre[has_window].unsqueeze(1)).any()  # some draws are the word itself
    if mode == "skip-gram":
        drawn = drawn.unsqueeze(1).expand(-1, context.shape[-1], -1)
    expected, count = network.loss(centre[has_window].long(), context[has_window].long(), drawn)
    torch.testing.assert_close(loss, expected)
    assert targets == count
    gradients = (torch.autograd.grad(total, list(network.parameters())) for total in (loss, expected))
    for ours, plain in zip(*gradients):
        torch.testing.assert_close(ours, plain)
    # -Σ log σ(u·v) - k/K Σ log σ(-u·n) over pairs, in a loop, with K = 8 drawn words for k = 3
    config = replace(CONFIG, mode=mode, shared_negatives=8)
    blocks = WindowBlocks(Windows([[0, 1, 2, 3, 4, 1]], 5, config, seed=1)).part(0, 0, 1)
    network = made(config, 5)
    v, u = network.input_weight.detach(), network.output_weight.detach()
    centres, contexts = blocks.centre()[0].tolist(), blocks.context()[0].tolist()

    def nats(hidden: Tensor, target: int) -> float:
        others = [word for word in blocks.negatives[0].tolist() if word != target]
        logs = np.log1p(np.exp([-float(hidden @ u[target]), *(float(hidden @ u[word]) for word in others)]))
        return float(logs[0] + 3 / 8 * logs[1:].sum())

    total = 0.0
    for centre, context in zip(centres, contexts):
        words = [word for word in context if word >= 0]
        if mode == "skip-gram":
            total += sum(nats(v[centre], word) for word in words)
        elif words:
            total += nats(v[words].mean(dim=0), centre)
    loss, _ = network.block_loss(blocks.ids, blocks.neighbours, blocks.negatives)
    assert float(loss.detach()) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_an_update_of_blocks_has_parts_whose_targets_are_those_of_the_text(mode: Mode) -> None:
    rng = np.random.default_rng(2)
    sentences = [rng.integers(0, 50, 11).tolist() for _ in range(3000)]
    windows = Windows(sentences, 50, replace(CONFIG, mode=mode), seed=1)
    batches = WindowBatches(windows, budget=8192)
    parts = [part for update in range(batches.updates_per_epoch) for part in batches.parts(update)]
    assert batches.updates_per_epoch == 4 and len(parts) == 8
    per_sentence = 11 if mode == "cbow" else 2 * (9 + 10)
    assert sum(part.batch.targets for part in parts) == 3000 * per_sentence
    again = list(WindowBatches(windows, budget=8192).parts(1))
    for part, same in zip(parts[2:], again):
        assert torch.equal(part.batch.inputs["ids"], same.batch.inputs["ids"])
        assert torch.equal(part.batch.extras["negatives"], same.batch.extras["negatives"])
    network = made(windows.config, 50)
    sums = losses(network, parts[0].batch, Call())["window"]
    extras = parts[0].batch.extras
    expected, _ = network.block_loss(parts[0].batch.inputs["ids"], extras["neighbours"], extras["negatives"])
    assert torch.equal(sums[0], expected)


@pytest.mark.covering
@pytest.mark.parametrize("mode", MODES)
def test_training_on_blocks_makes_words_of_the_same_contexts_similar(mode: Mode) -> None:
    """Words 0 to 9 occur with words 10 to 14, words 15 to 24 with words 25 to 29."""
    rng = np.random.default_rng(3)
    firsts = rng.integers(0, 2, 4000) * 15
    sentences = [
        [rng.integers(10, 15) + first, rng.integers(0, 10) + first, rng.integers(10, 15) + first] for first in firsts
    ]
    windows = Windows(sentences, 30, replace(CONFIG, mode=mode, negatives=5, shared_negatives=16), seed=1)
    network = CBOW(replace(made(windows.config, 30).config, d_model=16))
    updater = Updater(network, TrainingConfig(weight_decay=0.0), "float32")
    batches = WindowBatches(windows, budget=256)
    for step in range(5 * batches.updates_per_epoch):
        updater.update(batches.parts(step), step + 1, 2e-2)
    vectors = torch.nn.functional.normalize(network.vectors.detach(), dim=-1)
    cosines = vectors @ vectors.T
    assert cosines[:10, :10].mean() > 0.5 + cosines[:10, 15:25].mean()


def test_shared_negatives_need_negatives() -> None:
    with pytest.raises(RecipeError, match=r"`shared_negatives` needs `negatives` of at least 1: got 8 and 0"):
        CBOWConfig(negatives=0, shared_negatives=8)
    fails(RecipeError, r"`shared_negatives` must not .*: got -1", CBOWConfig, shared_negatives=-1)
