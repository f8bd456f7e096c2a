"""Tagging through recipe, command and Python: kinds of data, refusals, architectures, export (G4)."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import AtentoWarning, CapabilityError, DataError
from atento.runs.train import TrainedRun
from atento.tasks.tagging import word_tags
from conftest import ForkServer, refused
from failing import fails
from runs import events

TINY = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "max_len": 48}
ENCODER = {"architecture": "encoder", **TINY}
TRAINING = {"steps": 60, "batch_tokens": 80, "learning_rate": 5e-3, "warmup": 5, "precision": "float32"}
TRAINING |= {"validate_every": 30, "checkpoint_every": 30}
FRAMES = ["{PER} mora em {LOC} .", "Ontem , {PER} viu {LOC} !", "Em {LOC} {PER} lê 📖 ."]
NAMES = {"PER": ["Ana", "Rui Costa", "Inês de Castro"], "LOC": ["Lisboa", "Porto Alegre", "Évora"]}
PARTS_OF_SPEECH = {".": "PUNCT", ",": "PUNCT", "!": "PUNCT", "mora": "VERB", "viu": "VERB", "lê": "VERB", "em": "ADP"}


def records(frames: list[str] = FRAMES) -> list[tuple[list[str], list[str]]]:
    """Words and tags of each frame with each name in its slots."""
    made = []
    for frame, person, city in product(frames, NAMES["PER"], NAMES["LOC"]):
        words: list[str] = []
        tags: list[str] = []
        for word in frame.split():
            kind = word.strip("{}") if word.startswith("{") else None
            parts = {"PER": person, "LOC": city}[kind].split() if kind else [word]
            words += parts
            tags += [f"{'I' if number else 'B'}-{kind}" if kind else "O" for number in range(len(parts))]
        made.append((words, tags))
    return made


def recipe(data: dict[str, Any], network: dict[str, Any] = ENCODER, **training: Any) -> dict[str, Any]:
    given = {"task": "tagging", "data": data, "tokenizer": {"kind": "bpe", "vocab_size": 330}, "network": network}
    return given | {"training": TRAINING | training}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records as a table, as objects and as columns, a word and its tag a line."""
    here = tmp_path_factory.mktemp("tagging")
    lines = ["\t".join([" ".join(words), " ".join(tags)]) for words, tags in records()]
    (here / "plain.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    objects = [json.dumps({"tokens": words, "tags": tags}) for words, tags in records()]
    (here / "named.jsonl").write_text("\n".join(objects), encoding="utf-8")
    columns = ("".join(f"{word} _ {tag}\n" for word, tag in zip(words, tags)) for words, tags in records())
    (here / "columns.conll").write_text("\n".join(columns), encoding="utf-8")
    return here


@pytest.fixture(scope="module")
def run(folder: Path) -> TrainedRun:
    source = {"file": str(folder / "plain.tsv"), "tokens": 0, "tags": 1}
    return atento.train(recipe({"train": source, "valid": source}), out=folder / "run", threads=1)


def test_a_recipe_learns_entities_and_long_sentences_are_read_in_windows(run: TrainedRun, tmp_path: Path) -> None:
    """Long sentences are cut in training; in use every word has a tag."""
    assert run.best == 1.0
    model = atento.load(run.folder)
    assert [head.labels for head in model.network.config.heads] == [("B-LOC", "B-PER", "I-LOC", "I-PER", "O")]
    assert model.config["tag_scheme"] == "IOB2"
    text = "Em  Porto Alegre Inês de Castro lê 📖."
    entities = model.tag(text)
    assert [(entity.label, entity.text) for entity in entities] == [("LOC", "Porto Alegre"), ("PER", "Inês de Castro")]
    assert all(text[entity.start : entity.end] == entity.text and 0.3 < entity.probability <= 1 for entity in entities)
    assert model.tag([text, ""]) == [entities, []] and model.tag(text, constrained=True) == entities
    assert [word.label for word in model.tag_words(words=["Ana", "mora"])] == ["B-PER", "O"]
    assert (loaded := atento.evaluate(model, records()))["entity-f1"].value == 1.0 and set(loaded) == {"entity-f1"}
    assert atento.evaluate(model, records(), metrics=["tag-accuracy"])["tag-accuracy"].value == 1.0
    fails(
        CapabilityError,
        "trained for tagging and has no classif",
        atento.evaluate,
        model,
        [("a", "x")],
        "classification",
    )
    saved = model.save(tmp_path / "saved")
    assert "print(model.tag('Ana mora em Lisboa.'))" in (saved / "README.md").read_text(encoding="utf-8")
    model = atento.load(run.folder)
    sentence = [word for words, _ in records() for word in words]
    assert len(model.tag_words(words=sentence)) == len(sentence) > 150
    right = [tag for _, tags in records() for tag in tags]
    tags = [word.label for word in model.tag_words(words=sentence)]
    assert sum(tag == gold for tag, gold in zip(tags, right)) > 0.8 * len(right)


def test_every_form_of_the_data_gives_the_same_run(folder: Path, tmp_path: Path) -> None:
    table = {"file": str(folder / "plain.tsv"), "tokens": 0, "tags": 1}
    objects = {"file": str(folder / "named.jsonl"), "tokens": "tokens", "tags": "tags"}
    columns = {"file": str(folder / "columns.conll")}  # words in its first column, tags in its last one
    words, tags = map(list, zip(*records()))
    dicts = [{"tokens": words, "tags": tags} for words, tags in records()]
    given: list[tuple[dict[str, Any], Any]] = [({"train": source}, None) for source in (table, objects, columns)]
    losses = set()
    for number, (sources, data) in enumerate([*given, ({}, records()), ({}, (words, tags)), ({}, dicts)]):
        run = atento.train(recipe(sources, steps=2), data=data, out=tmp_path / str(number), threads=1)
        losses.add(events(run.folder, "train")[-1]["loss"])
    assert len(losses) == 1


def test_commands(run: TrainedRun, folder: Path, server: ForkServer) -> None:
    lines = "Ana mora em Porto Alegre.\n\nEm Évora Rui Costa lê 📖 .\n"
    done = server.run("tag", "run", cwd=folder, stdin=lines)
    assert done.stdout == "Ana/PER mora em [Porto Alegre]/LOC .\n\nEm Évora/LOC [Rui Costa]/PER lê 📖 .\n"
    done = server.run("tag", "run", "--json", cwd=folder, stdin=lines)
    first, empty, _ = map(json.loads, done.stdout.splitlines())
    assert empty == {"text": "", "entities": []} and first["text"] == "Ana mora em Porto Alegre."
    city = first["entities"][1]
    assert (city["label"], city["text"], city["start"], city["end"]) == ("LOC", "Porto Alegre", 12, 24)
    assert 0 < city["probability"] <= 1
    done = server.run("tag", "run", "--words", "--conll", "--constrained", cwd=folder, stdin="Ana  mora\n\nem Évora\n")
    assert done.stdout == "Ana\tB-PER\nmora\tO\n\n\nem\tO\nÉvora\tB-LOC\n\n"
    refused(server.run("tag", "run", "--json", "--conll", cwd=folder, stdin=""), "--conll and --json exclude")
    for file in ("columns.conll", "plain.tsv"):
        assert json.loads(server.run("evaluate", "run", file, "--json", cwd=folder).stdout)["entity-f1"]["value"] == 1.0
    gate = server.run("evaluate", "run", "named.jsonl", "--fail-under", "tag-accuracy=1.5", cwd=folder)
    assert gate.status == 3 and "entity F1 1.00" in gate.stdout
    source = {"file": "plain.tsv", "tokens": 0, "tags": 1}
    (folder / "tune.yaml").write_text(json.dumps(recipe({"train": source})), encoding="utf-8")
    assert server.run("config", "check", "tune.yaml", cwd=folder).status == 0
    done = server.run("data", "stats", "tune.yaml", cwd=folder)
    assert "train: 27 examples" in done.stdout and "'B-PER' 27" in done.stdout
    done = server.run("data", "peek", "tune.yaml", "--count", "1", "--json", cwd=folder)
    labels = json.loads(done.stdout)["labels"]
    assert set(labels["tokens"]) <= {"B-LOC", "B-PER", "I-LOC", "I-PER", "O"} and len(labels["ids"]) >= 6


def test_plain_tags_are_scored_by_their_accuracy(tmp_path: Path, server: ForkServer) -> None:
    data = [(words, [PARTS_OF_SPEECH.get(word, "X") for word in words]) for words, _ in records()]
    given = recipe({}, steps=40, validate_every=40)
    run = atento.train(given, data={"train": data, "valid": data}, out=tmp_path / "run", threads=1)
    assert [event["tag-accuracy"] for event in events(run.folder, "valid")] == [run.best]
    assert run.best is not None and run.best > 0.8
    model = atento.load(run.folder)
    assert model.config["tag_scheme"] is None and set(atento.evaluate(model, data)) == {"tag-accuracy"}
    (tmp_path / "plain.conll").write_text("Ana\tX\nviu\tVERB\n", encoding="utf-8")
    told = server.good("evaluate", "run", "plain.conll", "--report", cwd=tmp_path).stdout
    assert told.startswith("tag accuracy ") and re.search(r"^VERB .* 1$", told, re.M)  # with its support
    done = server.run("tag", str(run.folder), cwd=tmp_path, stdin="Ana viu, Évora.\n")
    assert [part.split("/")[0] for part in done.stdout.split()] == ["Ana", "viu", ",", "Évora", "."]
    again = atento.train(given, data={"train": data, "valid": data}, out=tmp_path / "run", threads=1)
    assert again.already_finished  # the metric that was chosen is no other recipe
    named = recipe({}, steps=1) | {"metrics": ["entity-f1"]}
    chosen = atento.train(named, data={"train": records(), "valid": records()}, out=tmp_path / "named", threads=1)
    assert chosen.best is not None


def test_what_is_refused_before_training(folder: Path, tmp_path: Path) -> None:
    train = {"file": str(folder / "plain.tsv"), "tokens": 0, "tags": 1}
    with pytest.raises(DataError, match=r"data\['train'\]\[0\]: 1 word and 2 tags; each word needs one tag"):
        atento.train(recipe({}), data=[(["a"], ["O", "O"])], out=tmp_path / "memory", threads=1)
    heads = [{"kind": "tagging", "labels": ["B-PER", "I-PER", "O"]}]
    with pytest.raises(DataError, match=r"plain\.tsv:1: unknown tag 'B-LOC' of word 4, 'Lisboa'"):
        atento.train(recipe({"train": train}, ENCODER | {"heads": heads}), out=tmp_path / "heads", threads=1)


def test_what_a_tagger_cannot_say_is_refused(run: TrainedRun) -> None:
    fails(CapabilityError, "has no tagging head", atento.evaluate, "micro-world-tense", records(), task="tagging")
    fails(CapabilityError, "for tagging and has no classification head: .*by", atento.load(run.folder).classify, "a")
    fails(DataError, r"data:0: unknown tag 'B-X' of word 1, 'a'", atento.evaluate, run.folder, [(["a"], ["B-X"])])


NETWORKS: list[dict[str, Any]] = [
    {"architecture": "decoder", **TINY},
    {"architecture": "encoder-decoder", **TINY},
    {"architecture": "recurrent-seq2seq", "d_model": 32, "n_layers": 1, "dropout": 0.0},
    {"architecture": "recurrent-lm", "d_model": 32, "n_layers": 1, "dropout": 0.0},
    {"architecture": "elmo", "d_model": 16, "n_layers": 1, "dropout": 0.0, "elmo": {"d_cell": 16, "characters": None}},
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["architecture"])
def test_any_architecture_that_reads_text_can_tag(network: dict[str, Any], tmp_path: Path) -> None:
    given = recipe({}, network, steps=30, learning_rate=1e-2, log_every=10)
    if network["architecture"] == "elmo":
        given["tokenizer"] = {"kind": "word"}
    run = atento.train(given, data=records(), out=tmp_path / "run", threads=1)
    losses = [event["loss"] for event in events(run.folder, "train")]
    assert losses[-1] < 0.8 * losses[0]
    model = atento.load(run.folder)
    words = [words for words, _ in records()[:4]]
    for sentence, probabilities in zip(words, word_tags(model, words)):
        (alone,) = word_tags(model, [sentence])
        assert alone == pytest.approx(probabilities, abs=1e-5)  # padding changes nothing


def test_elmo_reads_the_characters_of_words(tmp_path: Path) -> None:
    characters = {"filters": [[1, 8], [2, 8]], "n_highway": 1, "d_char": 4}
    network = {"architecture": "elmo", "d_model": 16, "n_layers": 1, "dropout": 0.0}
    given = recipe({}, network | {"elmo": {"d_cell": 16, "characters": characters}}, steps=3)
    run = atento.train(given | {"tokenizer": {"kind": "word"}}, data=records(), out=tmp_path / "run", threads=1)
    first, second = word_tags(atento.load(run.folder), [["nunca"], ["vista"]])
    assert (first != second).any()  # words that the vocabulary lacks


@pytest.mark.parametrize("preset", ["bert-tiny", "roberta-base", "modernbert-base"])
def test_export_to_transformers_and_back(preset: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")
    given = recipe({}, {"preset": preset, **TINY}, steps=20)
    model = atento.load(atento.train(given, data=records(), out=tmp_path / "run", threads=1).folder)
    with pytest.warns(AtentoWarning, match="does not follow the places of tags"):  # of a tokenizer that Atento trained
        folder = model.save(tmp_path / "out", layout="huggingface")
    network, report = transformers.AutoModelForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert not report["unexpected_keys"] and not report["missing_keys"]  # no pooler, which nothing reads
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tuple(network.config.id2label.values()) == model.network.config.heads[0].labels
    text = "Em Porto Alegre Ana lê"
    with torch.no_grad():
        encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        theirs = network(**encoded).logits[0].softmax(dim=-1)
    back = atento.load(folder)
    assert back.config["tag_scheme"] == "IOB2"
    for loaded in (model, back):
        for word in loaded.tag_words(text):
            (position, *_) = (at for at, (start, end) in enumerate(offsets) if start <= word.start < end)
            number = model.network.config.heads[0].labels.index(word.label)
            assert word.probability == pytest.approx(float(theirs[position, number]), abs=1e-5)
    assert "pipeline('token-classification'" in (folder / "README.md").read_text(encoding="utf-8")
