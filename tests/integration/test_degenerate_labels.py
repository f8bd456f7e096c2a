"""Labels that tell nothing apart, for every task that has labels: one sentence, or a run and scores; never a crash."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import AtentoError, DataError
from atento.config.tables.tasks import TASKS
from atento.metrics import METRICS, paired_test, report_table
from atento.tasks.score_files import read_items, where_all_say

TEXTS = ["um gato", "o cão", "a casa", "fim dia"] * 3
TINY: dict[str, Any] = {
    "tokenizer": {"kind": "character"},
    "network": {"preset": "bert-tiny", "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "max_len": 64},
    "training": {"steps": 2, "batch_tokens": 8, "precision": "float32"},
}
# kind of a field -> name of a case: the values of the records, and what is said; None: they train
DEGENERATE: dict[str, dict[str, tuple[list[Any], str | None]]] = {
    "class": {
        "all blank": ([""] * 12, r"holds no example \(12 empty, 0 bad\): `label` is blank in every record"),
        "one": (["a"] * 12, "the training data has only one label, 'a', so there is nothing to learn"),
    },
    "classes": {
        "all empty": ([[]] * 12, "no record of the training data has a label, so there is nothing to learn"),
        "one, in every text": ([["a"]] * 12, "only one label, 'a', which every text has, so there is nothing to learn"),
        "columns of 0 and 1": ([[1, 0], [0, 1]] * 6, "only one set of labels, '0', '1', which every text has, so"),
        "one, present or absent": ([["a"], []] * 6, None),
        "some without any": ([["a"], ["a", "b"], []] * 4, None),
    },
    "tags": {
        "one": ([["O", "O"]] * 12, "the training data has only one label, 'O', so there is nothing to learn"),
        "none": ([[]] * 12, "2 words and 0 tags; each word needs one tag"),
    },
    "number": {"all equal": ([1.0] * 12, None)},
    "spans": {"no answers": ([[]] * 12, None)},
}
WARNINGS = {
    "number": "data.train: every `score` is 1, so there is nothing to learn; correlations are 0",
    "spans": "data.train: no question has an answer, so there is nothing to learn",
}


def cases() -> Iterator[Any]:
    """Every task whose only label is of a kind above, alone and with its optional second text, by every case."""
    for task, spec in TASKS.items():
        labels = [field for field in spec.fields if field.kind in DEGENERATE and not field.only_training]
        if spec.outputs is None or len(labels) != 1 or task == "ranking":  # whose grades are refused by file and line
            continue
        for name, (values, said) in DEGENERATE[labels[0].kind].items():
            texts = [field for field in spec.fields if field.kind in ("text", "words")]
            for pair in {False, any(field.optional for field in texts)}:
                given = [one for one in texts if (pair or not one.optional) and not one.only_training]
                words = [text.split() for text in TEXTS]
                columns: dict[str, Any] = {one.name: words if one.kind == "words" else TEXTS for one in given}
                columns[labels[0].name] = values
                yield pytest.param(task, labels[0].kind, columns, said, id=f"{task}, {name}{', pairs' if pair else ''}")


CASES = list(cases())


def test_every_kind_of_label_is_among_the_cases() -> None:
    kinds = {field.kind for spec in TASKS.values() if spec.outputs is not None for field in spec.fields}
    assert kinds - {"text", "words"} == DEGENERATE.keys() == {case.values[1] for case in CASES}


@pytest.mark.parametrize(("task", "kind", "columns", "said"), CASES)
def test_labels_that_tell_nothing_apart(
    task: str, kind: str, columns: dict[str, Any], said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [dict(zip(columns, values)) for values in zip(*columns.values())]
    recipe = TINY | {"task": task, "data": {"train": {"world": "train"}, "max_len": 64}}
    if TASKS[task].scored_metrics:  # its usual objective reads no scores
        recipe["objective"] = "cosine"
    data = {"train": records, "valid": records}
    if said is not None:
        with pytest.raises(DataError, match=said) as error:
            atento.train(recipe, data=data, out=tmp_path / "run", threads=1)
        assert "bug" not in str(error.value)
        return
    run = atento.train(recipe, data=data, out=tmp_path / "run", threads=1)
    assert WARNINGS.get(kind, "") in " ".join(capsys.readouterr().err.split())
    scores = atento.evaluate(run.folder, records, threads=1)
    assert scores and all(math.isfinite(score.value) for score in scores.values())


def test_one_label_present_or_absent_is_learned_exported_and_read_by_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    records = [("bom filme", ["bom"]), ("mau filme", [])] * 8
    training = {"steps": 60, "batch_tokens": 8, "learning_rate": 1e-2, "precision": "float32"}
    recipe = TINY | {"task": "multi-label-classification", "data": {"train": {"world": "train"}}, "training": training}
    model = atento.load(atento.train(recipe, data=records, out=tmp_path / "run", threads=1).folder)
    assert atento.evaluate(model, records)["subset-accuracy"].value == 1
    texts = ["bom filme", "mau filme"]
    ours = [labels[0].probability for labels in model.classify(texts, threshold=0.0)]
    model.save(tmp_path / "theirs", layout="huggingface")
    again = atento.load(tmp_path / "theirs").classify(texts, threshold=0.0)
    assert [labels[0].probability for labels in again] == pytest.approx(ours)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    with torch.inference_mode():
        probabilities = theirs(**tokenizer(texts, return_tensors="pt")).logits.sigmoid()[:, 0].tolist()
    assert probabilities == pytest.approx(ours, abs=1e-5) and ours[0] > 0.5 > ours[1]


EMPTY: dict[str, list[tuple[Any, Any]]] = {  # what metrics score -> predictions and references that say little
    "texts": [(["", ""], ["", ""]), (["a"], [""])],
    "classes": [(["a"], ["a"]), (["a", "a"], ["a", "a"]), (["b"] * 3, ["a"] * 3)],
    "class sets": [([[], []], [[], []]), ([["a"]], [[]]), ([[]], [["a"]])],
    "tags": [([["O"]], [["O"]]), ([["O", "O"]], [["B-X", "I-X"]]), ([[], ["O"]], [[], ["O"]])],
    "numbers": [([1, 1], [1, 1]), ([1, 2], [3, 3]), ([0, 0], [1, 2])],
    "answers": [(["", ""], ["", ""]), (["x"], [()]), ([""], [("a",)])],
    "rankings": [([1.0, 1.0], [("q", "a", 1.0), ("q", "b", 0.0)]), ([None], [("q", "a", 1.0)])],
    "probabilities": [([("a", 1.0)], ["a"]), ([("a", 0.0)], ["b"])],
}


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.outputs != "vector pairs"])
def test_every_metric_has_a_finite_score_of_degenerate_labels(name: str) -> None:
    metric = METRICS[name]
    for predictions, references in EMPTY[metric.outputs]:
        score = metric.score(predictions, references)
        test = paired_test(metric.score, predictions, predictions, references, 20)
        numbers = [score.value, *score.interval(samples=20), *score.parts.values(), *score.per_sentence(), test.p_value]
        assert np.isfinite(numbers).all() and (not metric.table or report_table(score))


def test_blank_labels_of_files_are_refused_by_line_and_sentences_without_words_by_field(tmp_path: Path) -> None:
    path = tmp_path / "right.txt"
    for content, line in (("\n\n", 1), ("a\n \nb\n", 2)):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(AtentoError, match=rf"right.txt:{line}: a blank line is no label"):
            read_items(str(path), "classes", reference=True)
        references = read_items(str(path), "probabilities", reference=True)  # blank where a system says nothing, too
        says = replace(references, values=[("a", 0.5)] * len(references.values))
        with pytest.raises(AtentoError, match=rf"right.txt:{line}: a blank line is no"):
            where_all_say(references, [says])
    path.write_text(json.dumps({"data": []}), encoding="utf-8")
    assert read_items(str(path), "class sets", reference=True).values  # an empty line there is no label
    (tmp_path / "none.jsonl").write_text('{"tokens": [], "tags": []}\n' * 2, encoding="utf-8")
    source = {"file": str(tmp_path / "none.jsonl"), "tokens": "tokens", "tags": "tags"}
    with pytest.raises(DataError, match=r"holds no example \(2 empty, 0 bad\): `tokens` is blank in every record"):
        atento.train(TINY | {"task": "tagging", "data": {"train": source}}, out=tmp_path / "run")
