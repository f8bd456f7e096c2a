"""`atento bench ladder`: every rung of the shipped ladder on few documents, its documents and table, its refusals."""

from pathlib import Path

import pytest

from atento.base.errors import RecipeError, UsageError
from atento_lab.studies.ladder import documents, measure_ladder, read_ladder, report_ladder
from atento_world import labelled
from failing import fails

TRAIN = "data: {train: {file: x.tsv, text: 0, label: 1}}"
RUNGS = ["truncation", "head-tail", "windows by mean", "windows by max", "whole"]
RUNGS += ["sparse", "local", "hybrid", "recurrent"]


def test_rungs_are_trained_on_the_same_documents_and_have_their_cost() -> None:
    assert list(read_ladder()) == RUNGS
    rows = list(measure_ladder(1, quick=True, only=("windows by mean",)))
    assert [row["updates"] for row in rows] == [2] and [row["documents"] for row in rows] == [20]
    table = report_ladder(rows).text
    assert "| windows by mean | " in table and "20 test documents" in table


@pytest.mark.slow
def test_every_rung_of_the_shipped_ladder_trains() -> None:
    assert [row["rung"] for row in measure_ladder(1, quick=True)] == RUNGS


def test_a_document_is_a_yes_where_one_sentence_asks() -> None:
    examples = labelled("question", "combinations", 120)
    asked = {example["text"] for example in examples if example["label"] == "question"}
    places = []
    for text, label in documents("test", 30):
        found = [place for place, sentence in enumerate(text.removesuffix(".").split(". ")) if sentence in asked]
        assert len(found) == (label == "yes")
        places += found
    assert len(places) == 15 and len(set(places)) > 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: {}", "my.yaml: a ladder has the keys base and rungs"),
        ("base: 3\nrungs: {a: {}}", "`base` is a section: got 3"),
        ("rungs: [a]", r"`rungs` is a section: got \['a'\]"),
        ("rungs: {a: 3}", "a is a section with the keys that it changes: got 3"),
        (f"base: {{task: classification, {TRAIN}}}\nrungs: {{a: {{}}}}", "a rung classifies texts and has `data.test`"),
    ],
)
def test_a_file_that_is_no_ladder_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(text)
    fails(RecipeError, message, read_ladder, tmp_path / "my.yaml")
    fails(UsageError, "cannot be read", read_ladder, tmp_path / "none.yaml")
