"""Several tasks in one model: heads over one encoder (`tasks` of a recipe), and prefixes of texts (F9)."""

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import CapabilityError, DataError, ModelError, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.tables.tasks import TASKS
from atento.data.files.source_lines import read_lines
from atento.data.records.reader import read_records
from atento.runs.prepare import read_data
from atento.runs.train import TrainedRun
from conftest import ForkServer, refused
from failing import fails
from http_service import error_of, served
from runs import differences, events

KINDS = {"animal": ["gato", "cão", "coelho"], "fruta": ["maçã", "pera", "uva"], "país": ["Brasil", "Chile", "Peru"]}
NAMES = [name for names in KINDS.values() for name in names]
MOODS = {"afirma": "eu vejo {}", "nega": "não vejo {}", "pede": "mostra {} já"}
NETWORK = {"architecture": "encoder", "d_model": 24, "d_ff": 48, "n_heads": 2, "n_layers": 1, "dropout": 0.1}
TRAINING = {"steps": 12, "learning_rate": 5e-3, "warmup": 2, "precision": "float32", "schedule": "constant"}
TRAINING |= {"validate_every": 6, "checkpoint_every": 6, "log_every": 6, "baseline": False}


def rows() -> list[dict[str, Any]]:
    """Texts with a kind, a mood, a size and tags; each lacks one of them now and then."""
    draw, found = random.Random(1), list[dict[str, Any]]()
    for number in range(90):
        kind, mood = draw.choice([*KINDS]), draw.choice([*MOODS])
        text = f"{MOODS[mood].format(draw.choice(KINDS[kind]))} {number}"
        size: float | None = 0.0 if kind == "fruta" else len(kind)
        tags = ["NOME" if word in NAMES else "OUTRO" for word in text.split()]
        row = {"text": text, "kind": kind, "mood": mood, "size": size, "words": text.split(), "tags": tags}
        found.append(row | dict.fromkeys([("kind",), ("mood",), ("size",), ("tags",), (), ()][number % 6]))
    return found


def task(name: str, kind: str, held_out: int = 6, **fields: str) -> dict[str, Any]:
    return {"name": name, "task": kind, "data": {"train": {"file": "rows.jsonl", **fields}, "held_out": held_out}}


def recipe(**changes: Any) -> dict[str, Any]:
    tasks = [
        task("kind", "classification", text="text", label="kind"),
        task("mood", "classification", text="text", label="mood") | {"share": 2, "weight": 0.5},
        task("words", "tagging", tokens="words", tags="tags") | {"batch_tokens": 64},
        task("size", "regression", text="text", score="size"),
    ]
    tokenizer = {"kind": "word", "vocab_size": 200}
    return {"tasks": tasks, "network": NETWORK, "tokenizer": tokenizer, "training": TRAINING} | changes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("several")
    (here / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows()), encoding="utf-8")
    keys = ("text", "kind", "mood", "size")
    table = "".join(",".join("" if row[key] is None else str(row[key]) for key in keys) + "\n" for row in rows())
    (here / "rows.csv").write_text(f"{','.join(keys)}\n{table}", encoding="utf-8")
    (here / "recipe.yaml").write_text(json.dumps(recipe()), encoding="utf-8")
    return here


@pytest.fixture(scope="module")
def run(folder: Path) -> TrainedRun:
    changes = ["training.steps=240", "training.learning_rate=1e-2", "training.validate_every=60"]
    return atento.train(folder / "recipe.yaml", changes, out=folder / "run", threads=1)


@pytest.fixture(scope="module")
def model(run: TrainedRun) -> atento.Model:
    return atento.load(run.folder, engine="torch")


def test_every_head_learns_and_validation_and_the_log_show_each(run: TrainedRun, model: atento.Model) -> None:
    valid = events(run.folder, "valid")[-1]
    firsts = [valid[f"{name}"] for name in ("accuracy[kind]", "accuracy[mood]", "tag-accuracy[words]", "pearson[size]")]
    assert valid["mean"] == pytest.approx(sum(firsts) / 4) and min(firsts) > 0.6 and run.best is not None
    assert valid["nll"] == pytest.approx(sum(valid[f"nll[{name}]"] for name in ("kind", "mood", "words", "size")))
    assert run.best == max(event["mean"] for event in events(run.folder, "valid"))
    assert [head.name for head in model.network.config.heads] == ["kind", "mood", "words", "size"]
    assert model.classify("eu vejo uva 3", head="kind").name == "fruta"
    assert model.classify(["não vejo gato 4"], head="mood")[0].name == "nega"
    assert {one.name for one in model.classifications(["x"], head="kind")[0]} == {*KINDS}
    words = model.tag("mostra Chile já")  # the only head that tags
    assert [word.label for word in words] == ["OUTRO", "NOME", "OUTRO"]
    assert words == model.tag("mostra Chile já", head="words") == model.tag_words("mostra Chile já", head="words")
    assert isinstance(model.similarity(["eu vejo uva 3"]), list)  # the only head that gives numbers
    assert model.embed(["uva", "gato"]).shape == model.embed(["uva", "gato"], head="kind").shape == (2, 24)
    assert model.explain("eu vejo uva 3", head="kind").target == "fruta"
    lines = [line for line in read_lines(run.folder / "train.log") if " of the updates, " in line]
    assert [line.partition(": ")[0].split()[-1] for line in lines] == ["kind", "mood", "words", "size"]
    assert "mood: 40.0% of the updates, each of about 32 texts" in lines[1] and "about 64 words" in lines[2]


def test_records_without_a_label_count_for_the_other_heads(folder: Path, run: TrainedRun) -> None:
    log = (run.folder / "train.log").read_text(encoding="utf-8")
    for name in ("kind", "mood", "words", "size"):
        assert f"warning: {name}: rows.jsonl: 15 examples without a text or a label left out" in log
    kind, *_, size = recipe()["tasks"]
    for table in (kind, size):
        table["data"]["train"]["file"] = "rows.csv"
    both = recipe(tasks=[kind, size], data={"folder": str(folder)})
    one = atento.train(both, ["training.steps=2"], out=folder / "csv", threads=1)
    assert "size: rows.csv: 15 examples without" in (one.folder / "train.log").read_text(encoding="utf-8")


def test_texts_that_one_task_is_validated_on_train_no_other(run: TrainedRun, folder: Path, tmp_path: Path) -> None:
    log = (run.folder / "train.log").read_text(encoding="utf-8")
    assert log.count("training examples left out, whose texts are held out for another task") == 4
    pairs = [("a b", "x", "1"), ("c d", "y", "2"), ("e f", "x", "1"), ("g h", "y", "2")]
    (tmp_path / "t.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "v.tsv").write_text("a b\t1\nc d\t2\ni j\t1\n", encoding="utf-8")
    train, valid = {"file": "t.tsv", "text": 0}, {"file": "v.tsv", "text": 0, "label": 1}
    one, two = {"train": train | {"label": 1}}, {"train": train | {"label": 2}, "valid": valid}
    tasks = [{"name": name, "task": "classification", "data": data} for name, data in (("one", one), ("two", two))]
    made = recipe(tasks=tasks, data={"folder": str(tmp_path)})
    done = atento.train(made, ["training.steps=2"], out=tmp_path / "run", threads=1)
    log = (done.folder / "train.log").read_text(encoding="utf-8")
    assert "one: 2 training examples left out, whose texts are held out" in log
    assert "two: 4 training" not in log and "warning: two: 2 of 3 validation examples of v.tsv are also" in log


def test_a_run_that_is_stopped_goes_on_bit_for_bit(server: ForkServer, folder: Path) -> None:
    command = ["train", "recipe.yaml", "--threads", "1"]
    for steps, out in ((12, "whole"), (6, "parts"), (12, "parts")):
        server.good(*command, f"training.steps={steps}", "--out", out, cwd=folder)
    assert differences(folder / "whole", folder / "parts") == []
    assert "already finished" in server.good(*command, "--out", "parts", cwd=folder).stderr
    other = server.run(*command, "tasks.1.share=3", "--out", "parts", cwd=folder)
    refused(other, "parts is a run of another recipe: tasks.1.share: 2.0 -> 3.0")
    moved = folder / "moved"
    moved.mkdir()
    (moved / "rows.jsonl").write_bytes((folder / "rows.jsonl").read_bytes())
    assert server.run(*command, f"data.folder={moved}", "--out", "parts", cwd=folder).status == 0


def test_a_saved_model_and_each_head_alone_or_pickled_give_the_same(model: atento.Model, tmp_path: Path) -> None:
    texts = ["eu vejo uva 3", "não vejo gato 4", "mostra Chile já"]
    wanted = {head: model.classifications(texts, head=head) for head in ("kind", "mood")}
    saved = atento.load(model.save(tmp_path / "all"), engine="torch")
    assert {head: saved.classifications(texts, head=head) for head in wanted} == wanted
    card = (tmp_path / "all" / "README.md").read_text(encoding="utf-8")
    assert "Heads: kind (classification), mood (classification), words (tagging)" in card
    assert "model.classify('Olá.', head='kind')" in card
    for head in wanted:
        alone = atento.load(model.head(head).save(tmp_path / head), engine="torch")
        assert alone.classifications(texts) == wanted[head] and "tasks" not in alone.config
        assert [one.name for one in alone.network.config.heads] == ["classification"]
        assert len(alone.network.state_dict()) < len(model.network.state_dict())
    view = model.head("words")
    assert view.tag("mostra Chile já") == model.tag("mostra Chile já") and view.network.stack is model.network.stack
    with torch.no_grad():
        model.network.heads["kind"].out.bias += 1  # type: ignore[union-attr,operator]
        assert model.classifications(texts, head="kind") != wanted["kind"]  # a view is no copy
        model.network.heads["kind"].out.bias -= 1  # type: ignore[union-attr,operator]
    view = model.head("mood")
    again = pickle.loads(pickle.dumps(view))
    assert "tasks" not in again.config and again.config["task"] == view.config["task"]
    assert again.classify("não vejo gato") == view.classify("não vejo gato")


def test_evaluation_scores_a_head_and_a_command_says_so(folder: Path, run: TrainedRun, server: ForkServer) -> None:
    path = str(folder / "rows.jsonl")
    scores = {head: atento.evaluate(run.folder, path, head=head) for head in ("kind", "mood", "words", "size")}
    assert [next(iter(of)) for of in scores.values()] == ["accuracy", "accuracy", "tag-accuracy", "pearson"]
    assert all(next(iter(of.values())).value > 0.6 for of in scores.values())
    assert atento.evaluate(run.folder, path, "tagging")["tag-accuracy"].value == scores["words"]["tag-accuracy"].value
    done = server.run("evaluate", "run", "rows.jsonl", "--head", "mood", "--json", cwd=folder)
    assert json.loads(done.stdout)["accuracy"]["value"] == scores["mood"]["accuracy"].value
    refused(server.run("evaluate", "run", "rows.jsonl", cwd=folder), "must name one of the heads", "has kind, mood")
    refused(server.run("evaluate", "run", "rows.jsonl", "--head", "mod", cwd=folder), "'mod'; did you mean 'mood'?")
    refused(server.run("evaluate", "run", "rows.jsonl", "--head", "mood", "--calibrate", cwd=folder), "of one head")
    for words in (("data", "stats"), ("data", "peek"), ("plan",), ("baseline",)):
        refused(server.run(*words, "recipe.yaml", cwd=folder), "recipe has the tasks kind, mood, words, size")
    assert server.run("config", "check", "recipe.yaml", cwd=folder).stdout == "ok\n"
    shown = server.run("config", "show", "recipe.yaml", cwd=folder)
    (folder / "shown.yaml").write_text(shown.stdout, encoding="utf-8")
    assert server.run("config", "show", "shown.yaml", cwd=folder).stdout == shown.stdout
    assert "\ntask:" not in shown.stdout and "\ndata:" not in shown.stdout


def test_commands_take_the_head_by_name(folder: Path, run: TrainedRun, model: atento.Model, server: ForkServer) -> None:
    texts = "eu vejo uva 3\n\nnão vejo gato 4\n"
    done = server.run("classify", "run", "--head", "kind", "--engine", "torch", cwd=folder, stdin=texts)
    wanted = model.classify(["eu vejo uva 3", "não vejo gato 4"], head="kind")
    lines = [f"{one.name}\t{one.probability:.4f}" for one in wanted]
    assert done.stdout == f"{lines[0]}\n\n{lines[1]}\n", done.stderr
    said = "`head` (--head NAME) must name one of the heads that classify: this model has kind, mood"
    refused(server.run("classify", "run", cwd=folder, stdin="a\n"), said)
    tagged = server.run("tag", "run", cwd=folder, stdin="mostra Chile já\n")
    assert tagged.stdout == "mostra/OUTRO Chile/NOME já/OUTRO\n", tagged.stderr
    refused(server.run("tag", "run", "--head", "kind", cwd=folder, stdin="a\n"), "and has no tagging head")
    explained = server.run("classify", "run", "--head", "mood", "--explain", "--json", cwd=folder, stdin="não vejo uva")
    assert json.loads(explained.stdout)["target"] in MOODS, explained.stderr
    assert len(server.run("embed", "run", "--head", "kind", cwd=folder, stdin="uva\n").stdout.split()) == 24
    (folder / "lines.txt").write_text(texts, encoding="utf-8")
    many = ("--cluster", "local", "--workers", "1", "--out", "cluster")
    parts = server.run("classify", "run", "lines.txt", "--head", "kind", *many, cwd=folder)
    assert server.run("collect", "cluster", cwd=folder).stdout == done.stdout, parts.stderr
    server.run("convert", "run", "--to", "atento", "--out", "one", "--head", "mood", cwd=folder)
    assert atento.load(folder / "one").classify("não vejo uva").name == model.classify("não vejo uva", head="mood").name
    refused(server.run("convert", "run", "--to", "huggingface", "--out", "two", cwd=folder), "words, size: --head NAME")


def test_the_service_takes_the_head_by_its_name(run: TrainedRun, model: atento.Model) -> None:
    text = "não vejo uva 3"
    heads = {"kind": "classification", "mood": "classification", "words": "tagging", "size": "regression"}
    with served([f"several={run.folder}", "--max-wait-ms", "1"]) as service:
        assert service.get("/info").json()["models"]["several"]["heads"] == heads
        for head in ("kind", "mood"):
            wanted = [(one.name, one.probability) for one in model.classifications([text], head=head)[0]]
            for body in ({"inputs": text, "parameters": {"head": head}}, {"inputs": text, "head": head}):
                (labels,) = service.post("/models/several", body).json()
                assert [one["label"] for one in labels] == [name for name, _ in wanted]
                assert [one["score"] for one in labels] == pytest.approx([share for _, share in wanted], abs=1e-5)
        tags = service.post("/models/several", {"inputs": "mostra Chile já", "parameters": {"head": "words"}}).json()
        assert [one["entity_group"] for one in tags] == ["OUTRO", "NOME", "OUTRO"]
        assert service.post("/token-classification", {"inputs": "mostra Chile já"}).json() == tags
        assert service.post("/text-classification", {"inputs": text, "head": "mood"}).status_code == 200
        apply = "function_to_apply"
        for body, message, pointer in (
            ({"inputs": text}, "must name one of the heads that classify: this model has kind, mood", ""),
            ({"inputs": text, "head": "mod"}, "no head the text 'mod'; did you mean 'mood'?", "/parameters/head"),
            ({"inputs": text, "head": ["mood"]}, "the model has no head a list of 1", "/parameters/head"),
            ({"inputs": text, "head": "kind", apply: "sigmoid"}, "must be softmax", f"/parameters/{apply}"),
        ):
            answer = service.post("/models/several", body)
            assert answer.status_code == 422 and message in answer.text, answer.text
            assert error_of(answer.json())["param"] == pointer
        assert service.post("/text-classification", {"inputs": text, "head": "words"}).status_code == 422


A = task("a", "classification", text="text", label="kind")
B = task("b", "classification", text="text", label="mood")
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"task": "classification"}, r"recipe: task is for a recipe of one task, and tasks beside it has several"),
    ({"metrics": ["f1"]}, r"metrics is for a recipe of one task"),
    ({"tasks": [A]}, r"tasks must list two or more, each with `name`, `task` and `data`: got a list of 1"),
    ({"tasks": "a"}, r"tasks must list two or more"),
    ({"tasks": [A, A]}, r"tasks must have different names: got 'a' twice"),
    ({"tasks": [A, B | {"share": 0}]}, r"`share` must be finite and above 0: got 0"),
    ({"tasks": [A, {"name": "b", "task": "classification"}]}, r"data.train is missing: .* \(task 'b'\)"),
    ({"tasks": [A, B | {"task": "translation"}]}, r"tasks.1.task must label or rate texts .*: got 'translation'"),
    ({"tasks": [A, B | {"task": "clasification"}]}, r"got 'clasification'; did you mean 'classification'\?"),
    ({"tasks": [A, B | {"metrics": ["entity-f1"]}]}, r"unknown metric 'entity-f1'"),
    ({"tasks": [A, B | {"weigth": 1}]}, r"unknown key 'weigth' in tasks.1; did you mean 'weight'\?"),
    ({"tasks": [A, B | {"name": "b.c"}]}, r"`name` of a task must have letters, digits, - and _"),
    ({"tasks": [A, B | {"name": "keys"}]}, r"`name` of a head cannot be 'keys'"),
    ({"teacher": "other"}, r"teacher is for a recipe of one task"),
    ({"init": {"model": "m", "train": "head", "classifier": {}}}, r"init.classifier is not for several tasks"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS)
def test_what_is_wrong_is_one_sentence(folder: Path, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    made = recipe(tasks=[A, B], data={"folder": str(folder)}) | changes
    fails(RecipeError, message, atento.train, made, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_wrong_records_name_the_task_file_and_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("a\tx\nb\tx\n", encoding="utf-8")
    train = {"file": str(tmp_path / "one.tsv"), "text": 0, "label": 1}
    same = {"name": "b", "task": "classification", "data": {"train": train}}
    with pytest.raises(DataError, match=r"the training data has only one label, 'x'.*\(task 'b'\)"):
        atento.train(recipe(tasks=[A, same], data={"folder": str(folder)}), out=tmp_path / "run")
    broken = A | {"name": "c", "data": {"train": {"file": "rows.jsonl", "text": "text", "label": "kindd"}}}
    with pytest.raises(DataError, match=r"rows.jsonl:1: .*kindd.*\(task 'c'\)"):
        atento.train(recipe(tasks=[A, broken], data={"folder": str(folder)}), out=tmp_path / "run")


def test_heads_that_do_not_fit_are_named_and_their_folder_is_refused(model: atento.Model, tmp_path: Path) -> None:
    for call in (model.classify, model.classifications):
        fails(UsageError, r"one of the heads that classify: this model has kind, mood", call, ["a"])
        fails(UsageError, r"'kin'; did you mean 'kind'\? Known: kind, mood, size, words", call, ["a"], head="kin")
    fails(CapabilityError, "trained for tagging and has no classification head", model.classify, "a", head="words")
    fails(CapabilityError, "holds one head of kind, mood, words, size", model.save, "nowhere", layout="huggingface")
    path = model.save(tmp_path / "all")
    (path / "MANIFEST.json").unlink()
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    unknown = ({"kind": {"task": "no such"}}, {"other": {"task": "tagging"}}, {"kind": {"task": []}})
    for tasks in ([], {"kind": 1}, *unknown):
        (path / "config.json").write_text(json.dumps(config | {"tasks": tasks}), encoding="utf-8")
        fails(ModelError, "`tasks` must have the task of each head by its name", atento.load, path)


LETTERS = "abcdef"
TASK = "text-to-text"


def pairs(name: str) -> list[tuple[str, str]]:
    """Words of three letters: repeated, reversed, or their last letter."""
    words = [f"{a} {b} {c}" for a in LETTERS for b in LETTERS for c in LETTERS]
    what = {"copy": lambda word: word, "reverse": lambda word: word[::-1], "last": lambda word: word[-1]}[name]
    return [(word, what(word)) for word in words]


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    here = tmp_path_factory.mktemp("tasks")
    sources = []
    for name in ("copy", "reverse", "last"):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(name))
        (here / f"{name}.tsv").write_text(lines, encoding="utf-8")
        sources.append({"file": f"{name}.tsv", "source": 0, "target": 1, "prefix": f"{name}: "})
    recipe: dict[str, Any] = {
        "task": TASK,
        "data": {"train": sources, "valid": sources},
        "tokenizer": {"kind": "word", "vocab_size": 60},
        "network": {"d_model": 48, "d_ff": 96, "n_heads": 4, "n_layers": 1, "dropout": 0.0},
        "training": {"batch_tokens": 256, "precision": "float32", "learning_rate": 5e-3, "label_smoothing": 0.0}
        | {"warmup": 20, **dict.fromkeys(("steps", "validate_every", "checkpoint_every"), 160)},
    }
    recipe["network"]["preset"] = "transformer-tiny"
    (here / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    return atento.train(here / "recipe.json", out=here / "run", threads=1)


def test_f9_the_prefix_picks_the_task(prefixed: TrainedRun, server: ForkServer) -> None:
    model = atento.load(prefixed.folder)
    texts = ["copy: a b c", "reverse: a b c", "last: a b c"]
    assert model.generate(texts) == ["a b c", "c b a", "c"]
    done = server.run("generate", "run", cwd=prefixed.folder.parent, stdin="".join(f"{text}\n" for text in texts))
    assert done.stdout.splitlines() == ["a b c", "c b a", "c"]
    assert model.translate("reverse: d e f") == "f e d"  # the verb does not matter, the prefix does
    assert "".join(model.stream("last: d e f")) == "f"
    assert atento.evaluate(model, [("copy: f e d", "f e d"), ("last: f e d", "d")])["exact-match"].value == 100


def test_f9_each_prefix_has_its_own_scores(prefixed: TrainedRun, server: ForkServer) -> None:
    (valid,) = events(prefixed.folder, "valid")
    parts = [valid[f"exact-match[{name}:]"] for name in ("copy", "reverse", "last")]
    assert valid["exact-match"] == pytest.approx(sum(parts) / 3)  # as many records each
    model = atento.load(prefixed.folder)
    data = [("copy: f e d", "f e d"), ("copy: a b c", "wrong"), ("last: f e d", "d")]
    values = {name: score.value for name, score in atento.evaluate(model, data, metrics="exact-match").items()}
    assert values == pytest.approx({"exact-match": 200 / 3, "exact-match[copy:]": 50, "exact-match[last:]": 100})
    assert list(atento.evaluate(model, data[:2], metrics="exact-match")) == ["exact-match"]  # one prefix alone
    here = prefixed.folder.parent
    (here / "some.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in data), encoding="utf-8")
    lines = server.run("evaluate", "run", "some.tsv", "--metrics", "exact-match", cwd=here).stdout.splitlines()
    assert len(lines) == 3 and lines[1].startswith("copy: ") and lines[2].startswith("last: ")


def test_f9_a_prefix_stands_before_each_source(tmp_path: Path) -> None:
    (tmp_path / "copy.tsv").write_text("a\tb\n", encoding="utf-8")
    source = {"file": str(tmp_path / "copy.tsv"), "source": 0, "target": 1}
    prints = []
    for prefix in ("", "copy: "):
        loaded = load_recipe({"task": TASK, "data": {"train": {**source, "prefix": prefix}}})
        data = read_data(loaded.recipe, loaded.folder, print)
        assert data.train["source"] == [f"{prefix}a"] and data.train["target"] == ["b"]
        prints.append(data.train.fingerprint)
    assert prints[0] != prints[1]  # a resumed run tells them apart
    world = {"world": "train", "count": 3, "prefix": "pt: "}
    loaded = load_recipe({"task": "language-modeling", "data": {"train": world}})
    assert all(text.startswith("pt: ") for text in read_data(loaded.recipe, loaded.folder, print).train["text"])
    tags = {"file": "tags.conll", "prefix": "x"}
    (tmp_path / "tags.conll").write_text("a O\n", encoding="utf-8")
    (config,) = load_recipe({"task": "tagging", "data": {"train": tags}}).recipe.data.train
    said = "`prefix` is for data with `source` or `text`: got tokens and tags"
    fails(RecipeError, said, read_records, config, TASKS["tagging"].fields, tmp_path)


def test_a_translator_does_not_generate(trained: Path) -> None:
    fails(CapabilityError, "cannot continue a text", atento.load(trained).generate, "a")
