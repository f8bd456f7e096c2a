"""Classification through recipe, command and Python: kinds of data, refusals, other architectures, resuming (G1)."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import AtentoWarning, DataError, UsageError
from atento.data.objectives.labels import inputs_of, store_texts
from atento.runs.train import TrainedRun
from atento.tasks.task_model import TaskModel
from atento.tasks.text_outputs import text_outputs
from atento.text.characters import sentence_characters
from conftest import ForkServer, refused
from failing import fails
from runs import events

TINY = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "max_len": 32}
ELMO: dict[str, Any] = {"architecture": "elmo", "d_model": 16, "n_layers": 1, "dropout": 0.0}
ELMO["elmo"] = {"d_cell": 32, "characters": {"filters": [[1, 8], [2, 16]], "n_highway": 1, "d_char": 4}}
ENCODER = {"architecture": "encoder", **TINY, "positions": {"kind": "learned"}, "embedding": {"segments": 2}}
NAMES = ["animal doméstico", "fruta", "país"]
WORDS = [["gato", "cão", "coelho"], ["maçã", "pera", "uva"], ["Brasil", "Chile", "Peru"]]
TRAINING = {"steps": 40, "batch_tokens": 16, "learning_rate": 5e-3, "warmup": 5, "precision": "float32"}
TRAINING |= {"validate_every": 20, "checkpoint_every": 20}


def records() -> list[tuple[str, str]]:
    """A text for each word and frame; its label is what the word means."""
    frames = ["eu vejo {}", "aqui há {}", "{} é bom", "digo {} outra vez", "não, {}!"]
    return [(frame.format(word), name) for name, words in zip(NAMES, WORDS) for word in words for frame in frames]


def recipe(data: dict[str, Any], network: dict[str, Any] = ENCODER, **training: Any) -> dict[str, Any]:
    made = {"task": "classification", "data": data, "tokenizer": {"kind": "word", "vocab_size": 200}}
    return made | {"network": network, "training": TRAINING | training}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records as a table without and with a header, quoted, and as objects."""
    here = tmp_path_factory.mktemp("classification")
    (here / "plain.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in records()), encoding="utf-8")
    (here / "named.tsv").write_text("label\ttext\n" + "".join(f"{b}\t{a}\n" for a, b in records()), encoding="utf-8")
    (here / "named.csv").write_text("text,label\n" + "".join(f'"{a}",{b}\n' for a, b in records()), encoding="utf-8")
    objects = [json.dumps({"text": text, "label": label}) for text, label in records()]
    (here / "named.jsonl").write_text("\n".join(objects), encoding="utf-8")
    return here


@pytest.fixture(scope="module")
def run(folder: Path) -> TrainedRun:
    source = {"file": str(folder / "plain.tsv"), "text": 0, "label": 1}
    return atento.train(recipe({"train": source, "valid": source}, steps=80), out=folder / "run", threads=1)


def test_a_recipe_without_init_learns_labels(run: TrainedRun, tmp_path: Path, server: ForkServer) -> None:
    assert run.best == 1.0
    model = atento.load(run.folder)
    assert model.config["network"]["heads"][0]["labels"] == NAMES
    assert [head.kind for head in model.network.config.heads] == ["classification"]
    label = model.classify("aqui há uva")
    assert label.name == "fruta" and 0.5 < label.probability <= 1
    every = model.classifications(["eu vejo Chile", ""])
    assert every[0][0].name == "país" and {one.name for one in every[1]} == set(NAMES)
    assert sum(one.probability for one in every[1]) == pytest.approx(1)
    assert "print(model.classify('Olá.'))" in (model.save(tmp_path / "saved") / "README.md").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="this model was trained on single texts: got pairs of texts"):
        atento.load(run.folder).classify([("um", "dois")])
    refused(server.run("classify", str(run.folder), "--pairs", cwd=tmp_path, stdin="a\tb\n"), "trained on single texts")


def test_every_form_of_the_data_gives_the_same_run(folder: Path, tmp_path: Path) -> None:
    named = {"text": "text", "label": "label"}
    sources = [named | {"file": str(folder / f"named.{kind}")} for kind in ("tsv", "csv", "jsonl")]
    sources.append({"text": 0, "label": 1, "file": str(folder / "plain.tsv")})
    texts, labels = map(list, zip(*records()))
    dicts = [{"text": text, "label": label} for text, label in records()]
    given: list[tuple[dict[str, Any], Any]] = [({"train": source}, None) for source in sources]
    given += [({}, data) for data in (records(), (texts, labels), dicts, iter(records()))]
    losses = set()
    for number, (sources_of, data) in enumerate(given):
        run = atento.train(recipe(sources_of, steps=2), data=data, out=tmp_path / str(number), threads=1)
        losses.add(events(run.folder, "train")[-1]["loss"])
    assert len(losses) == 1


def test_numbers_are_labels_too(tmp_path: Path) -> None:
    given = [{"text": text, "label": NAMES.index(label)} for text, label in records()]
    (tmp_path / "numbers.jsonl").write_text("\n".join(map(json.dumps, given)), encoding="utf-8")
    source = {"file": str(tmp_path / "numbers.jsonl"), "text": "text", "label": "label"}
    file = atento.train(recipe({"train": source}, steps=1), out=tmp_path / "file", threads=1)
    for run in (file, atento.train(recipe({}, steps=1), data=given, out=tmp_path / "memory", threads=1)):
        model = atento.load(run.folder)
        assert model.network.config.heads[0].labels == ("0", "1", "2"), run
        assert set(atento.evaluate(model, source["file"])) == set(atento.evaluate(model, given)) == {"accuracy"}


def test_evaluation_reads_a_header_and_refuses_unknown_labels(folder: Path, run: TrainedRun, tmp_path: Path) -> None:
    model = atento.load(run.folder)
    for name in ("plain.tsv", "named.tsv", "named.csv", "named.jsonl"):
        score = atento.evaluate(model, folder / name)["accuracy"]
        assert score.value == 1.0 and score.interval() == (1.0, 1.0)
    (tmp_path / "other.tsv").write_text("uva\tfruta\nrei\tpessoa\n", encoding="utf-8")
    fails(DataError, r"other\.tsv:2: unknown label 'pessoa'", atento.evaluate, model, tmp_path / "other.tsv")


def test_validation_does_not_say_again_how_many_texts_are_cut(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    source = {"file": str(folder / "plain.tsv"), "text": 0, "label": 1}
    data = {"train": source, "valid": source, "max_len": 4}
    atento.train(recipe(data, steps=2, validate_every=1), out=tmp_path / "run", threads=1)
    assert capsys.readouterr().err.count("cut") >= 1
    assert not [warning for warning in recwarn if issubclass(warning.category, AtentoWarning)]


SIDE = {"a": "low", "b": "low", "c": "high", "d": "high"}
PAIRS = [(one, other, f"{SIDE[one]} {SIDE[other]}") for one in SIDE for other in SIDE] * 3


def test_pairs_of_texts(tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "pairs.tsv").write_text("".join("\t".join(record) + "\n" for record in PAIRS), encoding="utf-8")
    columns = {"text": 0, "pair": 1, "label": 2}
    file = recipe({"train": {"file": str(tmp_path / "pairs.tsv"), **columns}}, steps=150, learning_rate=3e-3)
    (tmp_path / "pairs.yaml").write_text(json.dumps(file), encoding="utf-8")
    run = atento.train(tmp_path / "pairs.yaml", out=tmp_path / "run", threads=1)
    memory = atento.train(recipe({}, steps=150, learning_rate=3e-3), data=PAIRS, out=tmp_path / "memory", threads=1)
    model = atento.load(run.folder)
    assert torch.equal(next(model.network.parameters()), next(atento.load(memory.folder).network.parameters()))
    for given in (tmp_path / "pairs.tsv", PAIRS):
        assert atento.evaluate(model, given)["accuracy"].value == 1.0
    assert model.classify(("a", "a")).name == "low low"
    assert [label.name for label in model.classify([("a", "c"), ("d", "b")])] == ["low high", "high low"]
    fails(UsageError, "this model was trained on pairs of texts: got single texts", model.classify, ["um", "dois"])
    fails(UsageError, "a pair is a tuple of two texts", model.classify, [("a", "b", "c")])
    classify = ["classify", "run", "--pairs"]
    done = server.run(*classify, cwd=tmp_path, stdin="a\tc\n\nc\tc\n")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["low high", "", "high high"]
    failed = server.run(*classify, cwd=tmp_path, stdin="a\tb\na\n")  # the lines before the bad one are answered
    assert failed.status == 1 and failed.stdout.count("\n") == 1
    assert "standard input:2: --pairs takes two texts" in failed.stderr
    done = server.run(*classify, "--skip-bad", cwd=tmp_path, stdin="a\na\tb\n")
    assert done.stdout.startswith("\nlow low\t") and "1 bad line skipped, first: standard input:1" in done.stderr
    peek = server.run("data", "peek", "pairs.yaml", "--count", "1", cwd=tmp_path).stdout
    assert re.search(r"segment_ids  0 0 0( 0)* 1( 1)+\n", peek)  # no pieces of the vocabulary
    assert any(f"labels  {name}:{number}" in peek for number, name in enumerate(sorted({one for *_, one in PAIRS})))


def test_commands(run: TrainedRun, folder: Path, server: ForkServer) -> None:
    done = server.run("classify", "run", cwd=folder, stdin="aqui há uva\n\neu vejo Peru\n")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["fruta", "", "país"] and done.status == 0
    done = server.run("classify", "run", "--json", cwd=folder, stdin="aqui há uva\n\n")
    first, empty = map(json.loads, done.stdout.splitlines())
    assert first["text"] == "aqui há uva" and first["labels"][0]["name"] == "fruta" and len(first["labels"]) == 3
    assert empty == {"text": "", "labels": []}
    assert server.run("evaluate", "run", "plain.tsv", cwd=folder).stdout.startswith("accuracy 1.0000 [1.0000, 1.0000]")
    done = server.run("evaluate", "run", "plain.tsv", "--metrics", "f1,matthews,report", cwd=folder)
    assert [line.split()[0] for line in done.stdout.splitlines()[:4]] == ["F1", "Matthews", "accuracy", "precision"]
    done = server.run("evaluate", "run", "plain.tsv", "--report", "--confusion", "c.svg", cwd=folder)
    lines = done.stdout.splitlines()
    assert sum(line.startswith("accuracy") for line in lines) == 1 and done.stderr.endswith("wrote c.svg\n")
    assert lines[-3].split() == ["animal", "doméstico", "15", "0", "0"] and lines[-4].startswith("right \\ predicted")
    assert (folder / "c.svg").read_text(encoding="utf-8").startswith("<svg")
    done = server.run("evaluate", "run", "plain.tsv", "--report", "--json", cwd=folder)
    confusion = json.loads(done.stdout)["report"]["confusion"]
    assert confusion == {"labels": NAMES, "counts": [[15, 0, 0], [0, 15, 0], [0, 0, 15]]}
    data = {"train": {"file": "plain.tsv", "text": 0, "label": 1}}
    (folder / "tune.yaml").write_text(json.dumps(recipe(data) | {"init": "run"}), encoding="utf-8")
    done = server.run("data", "stats", "tune.yaml", cwd=folder)
    assert "train: 45 examples" in done.stdout and "labels: 'animal doméstico' 15, 'fruta' 15, 'país' 15" in done.stdout
    done = server.run("data", "peek", "tune.yaml", "--count", "2", "--json", cwd=folder)
    example = json.loads(done.stdout.splitlines()[0])
    assert example["labels"]["tokens"][0] == NAMES[example["labels"]["ids"][0]]
    tokenizer = atento.load(run.folder).tokenizer
    assert tokenizer is not None and example["ids"]["tokens"] == tokenizer.tokens(example["ids"]["ids"])
    assert server.run("config", "check", "tune.yaml", cwd=folder).status == 0
    assert "accuracy" in server.good("runs", "show", "run", cwd=folder).stdout


def test_what_is_refused_before_training(tmp_path: Path) -> None:
    for given, said in (
        ([("uva",)], r"data\['train'\]\[0\]: give pairs \(text, label\)"),
        ([("uva", "a", "b"), ("uva", "a")], r"data\['train'\]\[1\]: give tuples \(text, pair, label\)"),
        ([("uva", 1.5)], "must hold a string, not a number"),
        ((["uva"], ["a", "b"]), "has 1 texts and 2 labels; the numbers must be equal"),
    ):
        fails(DataError, said, atento.train, recipe({}), data=given, out=tmp_path / "bad", threads=1)
    data = {"train": [("uva", "pera", "fruta"), ("gato", "cão", "animal")], "valid": [("uva", "fruta")]}
    sources = {name: {"memory": name} for name in data}
    with pytest.raises(DataError, match=r"`data.valid` has `text` and `label`, and `data.train` has `text` and `pair`"):
        atento.train(recipe(sources), data=data, out=tmp_path / "run")


def test_long_texts_are_cut_with_one_warning_that_counts(run: TrainedRun, folder: Path, tmp_path: Path) -> None:
    """No longer than the recipe says, nor than there are positions."""
    model = atento.load(run.folder)
    long = "aqui há uva " * 30
    with pytest.warns(AtentoWarning, match="1 of 2 texts cut to 32 tokens"):
        assert model.classify([long, "uva"])[0].name == "fruta"
    atento.train(recipe({"max_len": 8}, steps=1), data=[*records(), (long, "fruta")], out=tmp_path / "run", threads=1)
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert log.count("warning: 1 of 46 examples cut to 8 tokens") == 1 and "about 16 texts" in log


def test_fine_tuning_keeps_the_head_of_the_same_labels_alone(run: TrainedRun, tmp_path: Path) -> None:
    still = {"steps": 1, "learning_rate": 0.0}
    before = atento.load(run.folder).network.state_dict()
    renamed = [(text, f"{label}!") for text, label in records()]
    fewer = [(text, label) for text, label in records() if label != "fruta"]
    for name, data, labels, kept in (
        ("same", records(), NAMES, True),
        ("fewer", fewer, NAMES, True),
        ("renamed", renamed, [f"{label}!" for label in NAMES], False),
    ):
        given = recipe({}, ENCODER, **still) | {"init": str(run.folder)}
        model = atento.load(atento.train(given, data=data, out=tmp_path / name, threads=1).folder)
        assert list(model.network.config.heads[0].labels) == labels
        after = model.network.state_dict()
        assert torch.equal(after["heads.classification.out.weight"], before["heads.classification.out.weight"]) == kept
        others = [key for key in before if not key.startswith("heads.")]
        assert all(torch.equal(after[key], before[key]) for key in others)


@pytest.mark.parametrize(
    "network",
    [
        {"architecture": "encoder", **TINY},
        pytest.param({"architecture": "decoder", **TINY}, marks=pytest.mark.slow),  # as gpt2 below
        pytest.param({"architecture": "encoder-decoder", **TINY}, marks=pytest.mark.slow),
        {"preset": "gpt2", **TINY},
        {"preset": "t5-small", **TINY, "attention": {"d_head": 16}},
        {"architecture": "recurrent-seq2seq", "d_model": 32, "n_layers": 1, "dropout": 0.0, "recurrent": {}},
        {"architecture": "recurrent-lm", "d_model": 32, "n_layers": 1, "dropout": 0.0, "recurrent": {}},
        ELMO,
        pytest.param(ELMO | {"elmo": {"d_cell": 32, "characters": None}}, marks=pytest.mark.slow),
    ],
    ids=lambda network: network.get("preset", network.get("architecture")),
)
def test_every_architecture_learns_labels(network: dict[str, Any], tmp_path: Path) -> None:
    """The encoder's first token or pooler, the decoder's last token, the encoder half, a recurrent encoder."""
    given = recipe({}, network, steps=100, validate_every=100)
    if network.get("architecture") == "elmo":
        given["tokenizer"] = {"kind": "word"}
    run = atento.train(given, data={"train": records(), "valid": records()}, out=tmp_path / "run", threads=1)
    assert run.best == 1.0
    model = atento.load(run.folder)
    texts, labels = map(list, zip(*records()))
    assert [label.name for label in model.classify(texts)] == labels
    assert [label.name for label in model.classify(texts[3:4])] == labels[3:4]  # padding changes nothing


def test_elmo_reads_the_characters_of_pairs(tmp_path: Path) -> None:
    """Words that the vocabulary lacks; each text of a pair begins and ends a sentence, and a cut is counted."""
    given = recipe({}, ELMO, steps=3, validate_every=3) | {"tokenizer": {"kind": "word"}}
    data = [(text, "aqui há", label) for text, label in records()]
    model = atento.load(atento.train(given, data=data, out=tmp_path / "run", threads=1).folder)
    network, template = model.network, model.tokenizer.template("bos-eos")
    words = "eu", "desconhecida"
    store, _ = store_texts(model.tokenizer, template, [words[0]], [words[1]], None, network.config)
    (row,) = inputs_of(store, [0], network.config, network.config.heads[0])["ids"]
    assert row.tolist() == np.concatenate([sentence_characters([word]) for word in words]).tolist()
    labels = model.classify([(words[0], other) for other in ("desconhecida", "desconhecido")])
    assert labels[0].probability != labels[1].probability
    with pytest.warns(AtentoWarning, match="1 of 2 texts cut to 20 tokens"):
        cutting = TaskModel(network, model.tokenizer, {"max_len": 20})
        rows = text_outputs(cutting, network.config.heads[0], ["eu vejo " * 12, "eu"])
    (alone,) = text_outputs(TaskModel(network, model.tokenizer, {}), network.config.heads[0], ["eu"])
    assert alone == pytest.approx(rows[1], abs=1e-5)  # padding changes nothing


@pytest.mark.parametrize("preset", ["bert-tiny", "roberta-base", "modernbert-base", "bart-base"])
def test_export_to_transformers_and_back(preset: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
    given = recipe({}, {"preset": preset, **TINY}, steps=20) | {"tokenizer": {"kind": "bpe", "vocab_size": 330}}
    model = atento.load(atento.train(given, data=records(), out=tmp_path / "run", threads=1).folder)
    folder = model.save(tmp_path / "out", layout="huggingface")
    network, report = transformers.AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and all("pooler" in name for name in report["unexpected_keys"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert network.config.id2label == dict(enumerate(NAMES))
    texts = [text for text, _ in records()][::7]
    with torch.no_grad():
        theirs = network(**tokenizer(texts, padding=True, return_tensors="pt")).logits.softmax(dim=-1)
    for one in (model, atento.load(folder)):
        for row, labels in zip(theirs.tolist(), one.classifications(texts)):
            assert {label.name: label.probability for label in labels} == pytest.approx(dict(zip(NAMES, row)), abs=1e-5)
    assert "pipeline('text-classification', model='.')" in (folder / "README.md").read_text(encoding="utf-8")
