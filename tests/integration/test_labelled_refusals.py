"""Labelled data that teach nothing or are wrong, and models without the right head: one sentence, never a crash."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import atento
from atento.base.errors import AtentoError, DataError
from atento.config.tables.tasks import TASKS
from atento.data.records.values import alike_labels
from atento.metrics import METRICS, paired_test, report_table
from atento.tasks.score_files import read_items, where_all_say
from conftest import ForkServer, refused
from failing import fails
from released_folders import write_released

CLASSES = {"text": 0, "label": 1}
LABELLED = "o gato dorme\tanimal\na uva caiu\tfruta\no gato come\tanimal\na pera caiu\tfruta\n"
QUESTIONS = {name: name for name in ("question", "context", "answers")}
TAGS = {"tokens": "tokens", "tags": "tags"}


def as_lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def question(text: str, start: int, words: str = "quem dorme") -> dict[str, Any]:
    return {"question": words, "context": "o gato dorme", "answers": [{"text": text, "answer_start": start}]}


def tagged(words: str, tags: str) -> dict[str, Any]:
    return {"tokens": words.split(), "tags": tags.split()}


TWO_WORDS = tagged("o gato", "DET NOUN")
OTHER_TAG = as_lines(TWO_WORDS, tagged("gato dorme", "NOUN NOUM"))
TAG_TOO_FEW = as_lines(TWO_WORDS, tagged("o gato dorme", "DET NOUN"))
LISTED = as_lines({"text": "o gato", "label": "animal"}, {"text": "uva", "label": ["animal", "fruta"]})
ELSEWHERE = as_lines(question("gato", 2), question("gato", 3))
NO_ROOM = as_lines(question("gato", 2), question("gato", 2, "quem " * 400))
UNKNOWN = {"train.tsv": LABELLED, "valid.tsv": "o gato\tanimal\na casa\tfrutas\n"}
# task, columns, files
DATA: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "unknown label": ("classification", CLASSES, UNKNOWN),
    "unknown tag": ("tagging", TAGS, {"train.jsonl": as_lines(TWO_WORDS), "valid.jsonl": OTHER_TAG}),
    "unequal words and tags": ("tagging", TAGS, {"train.jsonl": TAG_TOO_FEW}),
    "a word without its tag": ("tagging", {}, {"train.conll": "o DET\ngato NOUN\n\no DET\ngato\n"}),
    "answer elsewhere": ("question-answering", QUESTIONS, {"train.jsonl": ELSEWHERE}),
    "no room for the context": ("question-answering", QUESTIONS, {"train.jsonl": NO_ROOM}),
    "several labels as text": ("classification", CLASSES, {"train.tsv": LABELLED + "gato, uva\tanimal|fruta\n"}),
    "several labels as a list": ("classification", {"text": "text", "label": "label"}, {"train.jsonl": LISTED}),
}
# what the only line of the error says
SAID = {
    "unknown label": r"data\.valid: .*valid\.tsv:2: unknown label 'frutas'; did you mean 'fruta'\?.*, fruta",
    "unknown tag": r"data\.valid: .*valid\.jsonl:2: unknown tag 'NOUM' of word 2, 'dorme'; did you mean 'NOUN'",
    "unequal words and tags": r"train\.jsonl:2: 3 words and 2 tags; each word needs one tag",
    "a word without its tag": r"train\.conll:5: ",
    "answer elsewhere": r"train\.jsonl:2: answer 'gato' is not at character 3 of .* 'ato ' there; it is only at 2",
    "no room for the context": r"train\.jsonl:2: the question '(quem ){8}' has \d+ tokens, .* of \d+ tokens",
    "several labels as text": r"train\.tsv:5: the label 'animal\|fruta' joins 'animal' and 'fruta', .*`task: multi-l",
    "several labels as a list": r"train\.jsonl:2: key 'label' must hold a string, not a list; .*`task: multi-label-cla",
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_released("bert", tmp_path_factory.mktemp("released") / "bert")


def recipe(task: str, columns: dict[str, Any], files: dict[str, str], bert: Path) -> dict[str, Any]:
    data = {name.partition(".")[0]: {"file": name, **columns} for name in files}
    return {"task": task, "data": data, "init": str(bert), "training": {"steps": 1, "batch_tokens": 4}}


@pytest.mark.parametrize("name", DATA)
def test_bad_labelled_data_is_one_sentence(name: str, bert: Path, server: ForkServer, tmp_path: Path) -> None:
    task, columns, files = DATA[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(task, columns, files, bert)), encoding="utf-8")
    done = server.run("train", "recipe.yaml", "--out", "run", cwd=tmp_path)
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.status == 2 and not done.stdout, done.stderr
    assert re.search(SAID[name], said), said
    assert said == done.stderr.splitlines()[-1] and not (tmp_path / "run" / "checkpoints").exists()


def test_a_class_with_one_example_is_a_warning(bert: Path, server: ForkServer, tmp_path: Path) -> None:
    rare = "".join(f"a casa {n}\trara{n}\n" for n in range(6))  # a label each: five are named, the others counted
    (tmp_path / "train.tsv").write_text(LABELLED + "a casa\tlugar\n" + rare.replace("rara5", "RARA1"), encoding="utf-8")
    written = recipe("classification", CLASSES, {"train.tsv": ""}, bert)
    (tmp_path / "recipe.yaml").write_text(json.dumps(written), encoding="utf-8")
    done = server.good("train", "recipe.yaml", "--out", "run", cwd=tmp_path)
    assert "warning: label 'lugar' has one training example (train.tsv:5), from which little is learned" in done.stderr
    assert done.stderr.count("has one training example") == 5
    assert "warning: 2 labels more with one training example each" in done.stderr
    assert "warning: 'RARA1' and 'rara1' are two labels here; write one form if they mean the same" in done.stderr


@pytest.mark.parametrize(
    ("labels", "alike"),
    [
        (["sim", "não", "SIM"], ("SIM", "sim")),
        (["1", "2", "1.0"], ("1", "1.0")),
        (["Ação", "ação"], ("Ação", "ação")),
        (["1", "-1", "01a", "nan", "NaN5"], None),
        (["1234567890123456", "1234567890123457"], None),
    ],
)
def test_labels_that_differ_in_case_or_form_of_a_number(labels: list[str], alike: tuple[str, str] | None) -> None:
    assert alike_labels(labels) == alike


@pytest.mark.parametrize(
    ("command", "line", "message"),
    [
        ("classify", "o gato\n", "no classification head: fine-tune it by a recipe with `task: classification` and"),
        ("tag", "o gato\n", "no tagging head: fine-tune it by a recipe with `task: tagging` and"),
        ("answer", "quem\to gato\n", "no answer head: fine-tune it by a recipe with `task: question-answering` and"),
    ],
)
def test_a_model_without_the_head_says_its_task_and_how_to_give_it_one(
    command: str, line: str, message: str, bert: Path, server: ForkServer, tmp_path: Path
) -> None:
    done = server.run(command, bert, cwd=tmp_path, stdin=line)
    assert done.status == 2 and not done.stdout
    said = f"this model was trained for masked-language-modeling and has {message} `init: {bert}`"
    assert done.stderr == f"error: {said}\n"


def test_a_head_of_another_size_than_its_labels(bert: Path, server: ForkServer, tmp_path: Path) -> None:
    """In the recipe, and in the files of a model."""
    (tmp_path / "train.tsv").write_text(LABELLED + "a casa\tlugar\na rua\tlugar\n", encoding="utf-8")
    written = recipe("classification", CLASSES, {"train.tsv": ""}, bert)
    heads = [{"kind": "classification", "labels": ["animal", "fruta"]}]
    (tmp_path / "recipe.yaml").write_text(json.dumps(written | {"network": {"heads": heads}}), encoding="utf-8")
    refused(server.run("train", "recipe.yaml", "--out", "run", cwd=tmp_path), "train.tsv:5: unknown label 'lugar'")
    (tmp_path / "recipe.yaml").write_text(json.dumps(written), encoding="utf-8")
    assert server.run("train", "recipe.yaml", "--out", "run", cwd=tmp_path).status == 0
    server.good("convert", "run", "--to", "huggingface", "--out", "out", cwd=tmp_path)
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert sorted(config["id2label"].values()) == ["animal", "fruta", "lugar"]
    weights = load_file(tmp_path / "out" / "model.safetensors")
    cut = {name: value[:2].contiguous() if name.startswith("classifier.") else value for name, value in weights.items()}
    save_file(cut, tmp_path / "out" / "model.safetensors", {"format": "pt"})
    (tmp_path / "out" / "MANIFEST.json").unlink(missing_ok=True)
    done = server.run("classify", "out", cwd=tmp_path, stdin="o gato\n")
    assert done.status == 2 and "classifier.weight" in done.stderr and "(2, 16)" in done.stderr
    assert "config.json says (3, 16)" in done.stderr


def test_a_context_of_too_many_characters_or_windows(bert: Path, server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(as_lines(question("gato", 2)), encoding="utf-8")
    written = recipe("question-answering", QUESTIONS, {"train.jsonl": ""}, bert)
    (tmp_path / "recipe.yaml").write_text(json.dumps(written), encoding="utf-8")
    assert server.run("train", "recipe.yaml", "--out", "run", cwd=tmp_path).status == 0
    done = server.run("answer", "run", cwd=tmp_path, stdin=f"quem\to gato\nquem\t{'o gato ' * 150_000}\n")
    assert done.status == 2 and not done.stdout
    assert "standard input:2: a context may have at most 1,000,000 characters: got 1,050,000" in done.stderr


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
def test_labels_that_tell_nothing(task: str, kind: str, columns: Any, said: Any, tmp_path: Path, capsys: Any) -> None:
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
        fails(AtentoError, rf"right.txt:{line}: a blank line is no", where_all_say, references, [says])
    path.write_text(json.dumps({"data": []}), encoding="utf-8")
    assert read_items(str(path), "class sets", reference=True).values  # an empty line there is no label
    (tmp_path / "none.jsonl").write_text('{"tokens": [], "tags": []}\n' * 2, encoding="utf-8")
    source = {"file": str(tmp_path / "none.jsonl"), "tokens": "tokens", "tags": "tags"}
    with pytest.raises(DataError, match=r"holds no example \(2 empty, 0 bad\): `tokens` is blank in every record"):
        atento.train(TINY | {"task": "tagging", "data": {"train": source}}, out=tmp_path / "run")
