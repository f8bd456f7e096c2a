"""The fine-tuning bench at a tiny size: both libraries do the same work, what the rows say, what shares count."""

import importlib.util
from pathlib import Path

import pytest

from benchmarks.finetuning import measure_finetuning, ratio
from benchmarks.finetuning_sides import Operations, OurTuning, TransformersLoop, natural_texts, write_classifier
from benchmarks.processes import Measurement

TRANSFORMERS = importlib.util.find_spec("transformers") is not None


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetuning") / "model"
    write_classifier(folder, "tiny")
    return folder


@pytest.mark.skipif(not TRANSFORMERS, reason="transformers is not installed (extra dev)")
def test_both_libraries_have_the_same_loss_in_each_update(classifier: Path) -> None:
    """No dropout, and all texts in one update, so that the order of the texts does not matter."""
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


def runs(*seconds: float) -> list[Measurement]:
    return [Measurement(each, None, None) for each in seconds]


def test_ratios_are_of_the_fastest_and_of_the_middle_run() -> None:
    row = ratio("tiny", {"atento bfloat16": runs(1.0, 2.0, 3.0), "transformers float32": runs(3.0, 5.0, 9.0)})
    assert (row["who"], row["ratio_to"]) == ("atento bfloat16", "transformers float32")
    assert (row["ratio"], row["by_middle_rounds"]) == (3.0, 2.5)


@pytest.mark.slow
@pytest.mark.skipif(not TRANSFORMERS, reason="transformers is not installed (extra dev)")
def test_rows_say_what_was_measured_ratios_last() -> None:
    """Seven processes, each of which imports its library."""
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
