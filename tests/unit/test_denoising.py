"""BART's noise: text infilling, sentence permutation, deletion and rotation, each by itself and its rates."""

from dataclasses import replace
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Draw
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives import batches_for
from atento.data.objectives.denoising import Noise, sentence_numbers
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split
from atento.text.tokenizer_training import train_tokenizer
from failing import fails

MASK = 4
NONE = Noise(MASK, infilling=0.0, permutation=0.0)
TEXTS = ["O gato dorme. Ele sonha com peixe! A casa é azul?", "Eu leio. Tu lês.", "Bom dia"]


def noisy(noise: Noise, length: int, row: int = 0, epoch: int = 0, sentences: int = 1) -> list[int]:
    """A noisy copy of the tokens 100, 101 ..."""
    ids: NDArray[np.int64] = 100 + np.arange(length)
    numbers = np.arange(length) * sentences // length
    return noise.noisy([ids], [numbers], np.array([row]), Draw(1, epoch))[0].tolist()


def spans_of(source: list[int], length: int) -> list[int]:
    """The number of tokens behind each mask of a source of the tokens 100, 101 ... in order."""
    lengths, expected, open_mask = [], 100, False
    for token in [*source, 100 + length]:
        if token == MASK:
            assert not open_mask, "two masks are neighbours"
            open_mask = True
            continue
        if open_mask:
            lengths.append(token - expected)
        else:
            assert token == expected
        expected, open_mask = token + 1, False
    return lengths


def test_infilling_spans_are_poisson_and_hide_the_share_of_tokens() -> None:
    """Lewis et al. 2020: each span becomes one mask; a span of length 0 inserts one."""
    length, lengths = 20_000, []
    for row in range(4):
        spans = spans_of(noisy(replace(NONE, infilling=0.3), length, row), length)
        assert sum(spans) in (6000, 6001)
        lengths += spans
    law = np.array([exp(-3) * 3**k / factorial(k) for k in range(9)])
    counts = np.bincount(np.minimum(lengths, 9), minlength=10)
    assert counts[0] > 0
    assert chisquare(counts, np.append(law, 1 - law.sum()) * counts.sum()).pvalue > 1e-3


@settings(max_examples=40)
@given(length=st.integers(1, 60), row=st.integers(0, 99), rate=st.sampled_from([0.05, 0.3, 0.95]))
def test_infilling_of_any_text_keeps_what_it_does_not_hide(length: int, row: int, rate: float) -> None:
    spans = spans_of(noisy(replace(NONE, infilling=rate), length, row), length)
    assert abs(sum(spans) - rate * length) < 1


def test_deletion_permutation_and_rotation_keep_what_they_may() -> None:
    kept = noisy(replace(NONE, deletion=0.25), 8001)
    assert kept == sorted(kept) and len(set(kept)) == len(kept) in (6000, 6001)
    means = [len(noisy(replace(NONE, deletion=0.25), 6, row)) for row in range(600)]
    assert np.mean(means) == pytest.approx(4.5, abs=0.1)  # rounded at random
    noise = Noise(MASK)
    assert noisy(noise, 60) == noisy(noise, 60) != noisy(noise, 60, epoch=1)
    orders = {tuple(noisy(replace(NONE, permutation=1.0), 9, row, sentences=3)) for row in range(200)}
    sentences = [(100, 101, 102), (103, 104, 105), (106, 107, 108)]
    assert len(orders) == 6 and all({order[:3], order[3:6], order[6:]} == set(sentences) for order in orders)
    starts = np.zeros(5)
    for row in range(1000):
        text = noisy(replace(NONE, rotation=1.0), 5, row)
        starts[text[0] - 100] += 1
        assert text == [100 + (text[0] - 100 + i) % 5 for i in range(5)]
    assert chisquare(starts).pvalue > 1e-3
    untouched = sum(noisy(replace(NONE, rotation=0.4), 50, row)[0] == 100 for row in range(1000))
    assert untouched == pytest.approx(600 + 400 / 50, abs=60)


@pytest.mark.parametrize("kind", ["bpe", "byte", "wordpiece"])
def test_the_target_is_the_clean_text_and_sentences_are_those_of_the_text(kind: str) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind, vocab_size=150), TEXTS)  # type: ignore[arg-type]
    ids, numbers = sentence_numbers(tokenizer, TEXTS[0])
    assert ids == tokenizer.encode(TEXTS[0])
    parts = [tokenizer.decode([i for i, n in zip(ids, numbers) if n == number]).strip() for number in range(3)]
    said = ("O gato dorme.", "Ele sonha com peixe!", "A casa é azul?")
    assert parts == [tokenizer.decode(tokenizer.encode(sentence)) for sentence in said]
    recipe = load_recipe({"task": "span-corruption", "data": {"train": {"world": "train"}}}).recipe
    network = NetworkConfig("encoder-decoder", vocab_size=tokenizer.vocab_size)
    preparation = Preparation(recipe, network, tokenizer, Split({"text": TEXTS}, ""))
    made = batches_for(preparation, (ObjectiveConfig("denoising", rotation=0.5, deletion=0.1),))
    assert isinstance(made, PlannedBatches)
    batch = made.batch(np.arange(3))
    for row, text in enumerate(TEXTS):
        labels = batch.labels["vocabulary"][row]
        assert tokenizer.decode(labels[labels >= 0].tolist()[:-1]) == tokenizer.decode(tokenizer.encode(text))
        source = batch.inputs["source_ids"][row]
        assert set(source.tolist()) <= {*tokenizer.encode(text), tokenizer.mask_id, network.eos_id, network.pad_id}
    assert batch.counts()["vocabulary"] == int(made.objective.sizes(made.stores.first).sum())


def test_wrong_noise_is_named() -> None:
    fails(RecipeError, r"`deletion` must lie in \[0, 1\): got 1", ObjectiveConfig, "denoising", deletion=1.0)
    with pytest.raises(RecipeError, match="needs noise: infilling, deletion, permutation, rotation are all 0"):
        ObjectiveConfig("denoising", infilling=0.0, permutation=0.0)
    fails(RecipeError, "`rotation` has no effect on the objective masked", ObjectiveConfig, "masked", rotation=0.5)
