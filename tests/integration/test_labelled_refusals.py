"""Bad labelled data and models without the right head, from the command line: one sentence, status 2."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from atento.data.records.values import alike_labels
from conftest import ForkServer
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
OTHER_TAG = as_lines(TWO_WORDS, tagged("gato dorme", "NOUN VERB"))
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
    "one label": ("classification", CLASSES, {"train.tsv": "o gato\tanimal\na gata\tanimal\n"}),
}
# what the only line of the error says
SAID = {
    "unknown label": r"data\.valid: .*valid\.tsv:2: unknown label 'frutas'; did you mean 'fruta'\?.*, fruta",
    "unknown tag": r"data\.valid: .*valid\.jsonl:2: .*'VERB'",
    "unequal words and tags": r"train\.jsonl:2: 3 words and 2 tags; each word needs one tag",
    "a word without its tag": r"train\.conll:5: ",
    "answer elsewhere": r"train\.jsonl:2: answer 'gato' is not at character 3 of .* 'ato ' there; it is only at 2",
    "no room for the context": r"train\.jsonl:2: the question '(quem ){8}' has \d+ tokens, .* of \d+ tokens",
    "several labels as text": r"train\.tsv:5: the label 'animal\|fruta' joins 'animal' and 'fruta', .*`task: multi-l",
    "several labels as a list": r"train\.jsonl:2: key 'label' must hold a string, not a list; .*`task: multi-label-cla",
    "one label": r"the training data has only one label, 'animal', so there is nothing to learn",
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
    done = server.run("train", "recipe.yaml", "--out", "run", cwd=tmp_path)
    assert done.status == 2 and "train.tsv:5: unknown label 'lugar'" in done.stderr, done.stderr
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
