"""Benches of pretraining, fine-tuning and several processes on tiny networks: both sides do the same work."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from atento.networks import build_network
from benchmarks import replica_side, replicas
from benchmarks.finetuning import measure_finetuning, ratio
from benchmarks.finetuning_sides import Operations, OurTuning, TransformersLoop, natural_texts, write_classifier
from benchmarks.pretraining import matrix_rate, measure_pretraining
from benchmarks.pretraining_sides import SIZES, Ours, Theirs, batches_of, documents, weights_of
from benchmarks.processes import Measurement
from benchmarks.replica_side import NETWORKS, Rate, Work, measured
from benchmarks.replicas import measure_processes
from benchmarks.training import natural_lengths, padded, pairs_of


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetuning") / "model"
    write_classifier(folder, "tiny")
    return folder


def test_both_libraries_have_the_same_loss_in_each_update(classifier: Path) -> None:
    """No dropout, and all texts in one update, so that the order of the texts does not matter."""
    pytest.importorskip("transformers")
    texts = natural_texts("tiny", updates=1, per_update=24)
    ours, theirs = OurTuning(), TransformersLoop()
    ours.load(classifier, "float32")
    theirs.load(classifier, "float32")
    losses = [loss for _ in range(4) for loss in ours.run(texts)]
    assert losses == pytest.approx([loss for _ in range(4) for loss in theirs.run(texts)], abs=1e-5)
    assert losses[-1] < losses[0]


def test_a_run_reads_each_text_once_and_operations_are_those_of_the_products(classifier: Path) -> None:
    texts = natural_texts("tiny", updates=3, per_update=8)
    assert len(texts.ids) == len(texts.labels) == 24 and texts.tokens == sum(map(len, texts.ids))
    assert all(ids[0] == 101 and ids[-1] == 102 for ids in texts.ids)
    ours = OurTuning()
    ours.load(classifier, "float32")
    rows = [row for update in range(3) for part in ours.batches(texts).rows(update) for row in part.tolist()]
    assert sorted(rows) == list(range(24))
    assert len(ours.run(texts)) == 3
    # layers of width D and F, T tokens: forward, gradient of the inputs and of the weights are one product each
    texts = natural_texts("tiny", updates=1, per_update=8)
    counted = {}
    for train in ("all", "last-2", "head"):
        side = Operations()
        side.load(classifier, "float32", train)
        counted[train] = side.run(texts)
    layer = 2 * (8 * max(map(len, texts.ids))) * (4 * 32 * 32 + 2 * 32 * 64)
    assert counted["head"] >= 3 * layer  # the forward pass of three layers
    assert counted["all"] - counted["last-2"] >= 2 * layer  # the backward pass of the lowest layer
    assert counted["all"] < 3 * counted["head"]


def test_ratios_are_of_the_fastest_and_of_the_middle_run() -> None:
    seconds = {"atento bfloat16": (1.0, 2.0, 3.0), "transformers float32": (3.0, 5.0, 9.0)}
    row = ratio("tiny", {who: [Measurement(each, None, None) for each in runs] for who, runs in seconds.items()})
    assert (row["who"], row["ratio_to"]) == ("atento bfloat16", "transformers float32")
    assert (row["ratio"], row["by_middle_rounds"]) == (3.0, 2.5)


@pytest.mark.slow  # seven processes, each of which imports its library
def test_rows_say_what_was_measured_ratios_last() -> None:
    pytest.importorskip("transformers")
    rows = list(measure_finetuning(0.01, size="tiny", updates=2, per_update=4, rounds=1))
    assert all(row["bench"] == "finetuning" and row["size"] == "tiny" for row in rows)
    speeds = [row["who"] for row in rows if "real_tokens_per_second" in row]
    assert {"atento float32", "transformers float32"} <= set(speeds)
    assert [who.split()[-1] for who in speeds[-3:]] == ["all", "last-2", "lora"]
    assert all(row["real_tokens_per_second"] > 0 for row in rows if "real_tokens_per_second" in row)
    compared = [row for row in rows if "ratio_to" in row]
    assert "transformers float32" in {row["ratio_to"] for row in compared}
    for row in compared[-2:]:
        assert row["ratio_to"] == "all" and 0 < row["share_of_operations"] < 1
        assert row["ratio_in_proportion"] == pytest.approx(1 / row["share_of_operations"], abs=0.01)


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
    lengths = batches_of("gpt2", SIZES["tiny"]["gpt2"], "packed", 2000).stores.first["ids"].lengths
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


TOKENS = 4096


@pytest.mark.parametrize("who", ["atento", "transformers", "accelerate"])
@pytest.mark.slow  # imports accelerate and transformers
def test_an_update_has_about_the_real_targets_that_were_asked_for(who: str) -> None:
    pytest.importorskip("transformers")
    if who == "accelerate":
        pytest.importorskip("accelerate", reason="needs accelerate")
    with replica_side.SIDES[who](Work(who, "tiny", "float32", TOKENS, 0.1, torch.get_num_threads())) as trainer:
        counts = [trainer[0](number) for number in range(3)]
        rate = measured(trainer, 0.01)
    assert counts == pytest.approx([TOKENS] * 3, rel=0.1)
    assert rate.tokens == pytest.approx(3 * TOKENS, rel=0.1) and rate.seconds > 0 and rate.processor_seconds > 0
    assert rate.summing_seconds is None  # a process alone has nothing to send


def test_the_time_of_summing_over_processes_is_measured_after_the_warm_up() -> None:
    summing: list[float] = []

    def update(number: int) -> int:
        summing.append(100.0 if number < replica_side._WARM_UP else 0.25)
        return 1

    assert measured((update, summing), 0.0).summing_seconds == pytest.approx(0.25 * replica_side._FEWEST)
    who, rates = "atento, 2 processes", [Rate(10, 2.0, 4.0, 0.5), Rate(10, 1.0, 2.0, 0.1)]
    rows = replicas._rows("float32", {who: rates}, {who: ("atento", 2)})
    assert next(iter(rows))["summing_percent"] == 10.0  # of the best round


def test_the_processes_of_ddp_share_the_pairs_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of two has another half; counted from the lengths alone."""
    pytest.importorskip("transformers")
    source, target = natural_lengths(replica_side._SENTENCES, NETWORKS["tiny"].vocab_size)
    permutation = np.random.default_rng(1).permutation(len(source))[: pairs_of(target, TOKENS)]
    shares = []
    for number in (0, 1):
        monkeypatch.setattr(replica_side, "world_size", lambda: 2)
        monkeypatch.setattr(replica_side, "rank", lambda number=number: number)
        unwrapped: Any = lambda model: model  # noqa: E731
        monkeypatch.setattr(replica_side, "DistributedDataParallel", unwrapped)
        nothing = SimpleNamespace(init_process_group=lambda kind: None, destroy_process_group=lambda: None)
        monkeypatch.setattr(replica_side, "dist", nothing)
        with replica_side.SIDES["transformers"](Work("transformers", "tiny", "float32", TOKENS, 0.1, 1)) as (update, _):
            shares.append(update(0))
    expected = [int((target.lengths[permutation[rank::2]] + 1).sum()) for rank in (0, 1)]  # and the end of each
    assert shares == expected
    assert int((padded(source, target, permutation)["labels"] >= 0).sum()) == sum(expected)


def test_the_rows_end_in_ratios_of_the_best_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Work, int]] = []
    seconds = {("atento", 2): [1.0, 0.5], ("atento", 1): [1.0, 1.0], ("transformers", 2): [4.0, 2.0]}

    def run(work: Work, processes: int) -> Rate:
        started.append((work, processes))
        rounds = seconds.get((work.who, processes), [1.0, 1.0])
        before = sum(known == (work, processes) for known in started)
        return Rate(1000, rounds[before - 1], 2.0)

    monkeypatch.setattr(replicas, "run", run)
    monkeypatch.setattr(replicas.importlib.util, "find_spec", lambda name: None if name == "accelerate" else name)
    rows = list(measure_processes(1.0, precisions=("float32",)))
    assert {"bench": "processes", "who": "accelerate, 2 processes", "skipped": "pip install accelerate"} in rows
    assert [work.threads * processes for work, processes in started] == [2] * 8  # all have two cores
    by_name = {row["who"]: row for row in rows if "rounds" in row}
    assert by_name["atento, 2 processes"]["real_tokens_per_second"] == 2000
    assert by_name["transformers, 2 processes (DDP)"]["rounds"] == [250, 500]
    assert rows[-1]["ratio_to_atento_1_process"] == 2.0 and rows[-1]["ratio_to_transformers_2_processes"] == 4.0


@pytest.mark.slow  # ten processes, most of which import transformers
def test_all_contenders_run() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="needs accelerate")
    rows = list(measure_processes(0.02, size="tiny", precisions=("float32",), rounds=1))
    assert [row["who"] for row in rows if "rounds" in row] == list(replicas._CONTENDERS)
    assert len([name for name in rows[-1] if name.startswith("ratio_to_")]) == 4
