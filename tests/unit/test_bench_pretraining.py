"""`atento bench pretraining` on tiny networks: the same real tokens for both sides, padding, operations."""

import numpy as np
import pytest

from atento.networks import build_network
from benchmarks.pretraining import matrix_rate, measure_pretraining
from benchmarks.pretraining_sides import SIZES, Ours, Theirs, batches_of, documents, weights_of


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5"])
def test_both_sides_read_about_the_tokens_of_an_update_and_count_what_they_compute(kind: str) -> None:
    pytest.importorskip("transformers")
    ours, theirs = Ours(), Theirs()
    ours.load(kind, "tiny", "float32", "", 2000)
    theirs.load(kind, "tiny", "float32", 2000)
    our_work, their_work = ours.run(1), theirs.run(1)
    assert our_work.real == pytest.approx(2000, rel=0.25) and their_work.real >= 2000
    assert our_work.real <= our_work.computed < 1.25 * our_work.real  # like lengths together
    assert their_work.computed > 1.2 * their_work.real  # padded to the longest of eight


def test_operations_are_those_of_the_matrices_halves_count_apart_and_rows_lose_none() -> None:
    config = SIZES["tiny"]["bert"]
    weights = weights_of(build_network(config), config)
    per_layer = 4 * config.d_model**2 + 2 * config.d_model * config.d_ff
    assert weights == {"encoder": config.n_layers * per_layer, "decoder": 0, "head": config.vocab_size * config.d_model}
    side = Ours()
    side.load("bert", "tiny", "float32", "", 2000)
    (part, *_) = parts = list(side.batches.parts(0))
    targets = sum(part.batch.targets for part in parts)
    work = side.run(1)
    assert work.flops == pytest.approx(6 * (weights["encoder"] * work.real + weights["head"] * targets))
    assert part.batch.targets > 0
    config = SIZES["tiny"]["t5"]
    weights = weights_of(build_network(config), config)
    attention, feed_forward = 4 * config.d_model * 32, 2 * config.d_model * config.d_ff
    assert weights["encoder"] == config.n_layers * (attention + feed_forward)
    assert weights["decoder"] == config.decoder_layers * (2 * attention + feed_forward)
    texts = documents(500)
    batches = batches_of("gpt2", SIZES["tiny"]["gpt2"], "packed", 2000)
    lengths = batches.stores.first["ids"].lengths
    assert int(lengths.sum()) - (len(lengths) - 1) == sum(len(text) + 2 for text in texts)
    assert np.median([len(text) for text in texts]) == pytest.approx(80, rel=0.15)


@pytest.mark.slow  # nine processes, most of which import transformers
def test_the_rows_name_both_sides_and_end_in_ratios() -> None:
    pytest.importorskip("transformers")
    rows = list(measure_pretraining(0.01, size="tiny", tokens=300))
    ratios = [row for row in rows if "ratio_to_transformers_as_it_comes" in row]
    assert [row["network"] for row in ratios] == ["bert", "gpt2", "gpt2", "t5"]
    assert all(row["ratio_to_transformers_as_it_comes"] > 0 for row in ratios)
    assert matrix_rate("float32", repeats=2) > 1e8
