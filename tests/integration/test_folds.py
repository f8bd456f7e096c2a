"""Cross-validation, and what reads it: `atento suspect` and `atento suggest`, with planted wrong labels and pools."""

import json
import os
import re
import signal
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import CapabilityError, DataError, UsageError
from atento.data.records.splits import fold_of
from atento.tasks.verb_table import VERBS
from atento.training import loop
from atento_cli.labels.next_labels import suggest
from atento_cli.labels.suspect_labels import suspect
from atento_cli.search.cross_validation import cross_validate
from conftest import ForkServer, refused
from failing import fails
from test_classification import NAMES, recipe, records
from test_tagging import recipe as recipe_of_tags
from test_tagging import records as records_of_tags


def test_folds_are_stratified_and_each_record_is_tested_once() -> None:
    columns: dict[str, list[Any]] = {"text": list(range(18)), "label": ["a"] * 11 + ["b"] * 7}
    parts = [fold_of(columns, 3, fold, 1, "label") for fold in (1, 2, 3)]
    assert sorted(row for _, test in parts for row in test) == list(range(18))
    for train, test in parts:
        assert sorted(train + test) == list(range(18)) and train == sorted(train)
        counts = Counter(columns["label"][row] for row in test)
        assert counts["a"] in (3, 4) and counts["b"] in (2, 3)
    assert fold_of(columns, 3, 1, 2, "label") != parts[0] == fold_of(columns, 3, 1, 1, "label")
    fails(DataError, "label 'b' has 7 examples, fewer than the 8", fold_of, columns, 8, 1, 1, "label")


def write_recipe(folder: Path, **training: int) -> None:
    """The records and a recipe that reads them."""
    write(folder / "all.tsv", records())
    settings = recipe({"train": {"file": "all.tsv", "text": 0, "label": 1}}, steps=6, **training)
    (folder / "recipe.yaml").write_text(json.dumps(settings), encoding="utf-8")


def test_a_run_for_each_fold_and_one_pooled_score(server: ForkServer, tmp_path: Path) -> None:
    write_recipe(tmp_path)
    command = ["train", "recipe.yaml", "--folds", "3", "--out", "cv", "--threads", "1", "--json"]
    done = server.good(*command, cwd=tmp_path)
    accuracy = json.loads(done.stdout)["metrics"]["accuracy"]
    assert len(accuracy["folds"]) == 3 and accuracy["mean"] == pytest.approx(sum(accuracy["folds"]) / 3)
    assert accuracy["pooled"] == pytest.approx(accuracy["mean"])  # folds of equal size
    assert accuracy["interval"][0] <= accuracy["pooled"] <= accuracy["interval"][1]
    model = atento.load(tmp_path / "cv" / "fold-2")
    columns: dict[str, list[Any]] = dict(zip(("text", "label"), map(list, zip(*records()))))
    _, test = fold_of(columns, 3, 2, 1, "label")
    tested = tuple([columns[name][row] for row in test] for name in ("text", "label"))
    assert accuracy["folds"][1] == pytest.approx(atento.evaluate(model, tested)["accuracy"].value)
    piped = (tmp_path / "recipe.yaml").read_text(encoding="utf-8")  # which each fold reads
    again = server.run("train", "-", *command[2:], "name=recipe", cwd=tmp_path, stdin=piped)
    assert again.stdout == done.stdout and again.stderr.count("already finished") == 3
    shown = server.run(*command[:-1], cwd=tmp_path).stdout
    assert shown.startswith(f"accuracy: mean {accuracy['mean']:.4f}, standard deviation") and "over 3 folds" in shown


def test_processes_do_not_share_a_recipe_on_standard_input(server: ForkServer, tmp_path: Path) -> None:
    done = server.run("train", "-", "--nproc", "2", cwd=tmp_path, stdin="task: translation\n")
    refused(done, "each process of --nproc reads the recipe: give a file or a name, not -")


def test_what_folds_refuse(tmp_path: Path) -> None:
    settings = recipe({"train": {"memory": "train"}}, steps=1)
    rare, a = [*records(), ("sozinho", "raro")], tmp_path / "a"
    fails(UsageError, "`folds` must be at least 2: got 1", cross_validate, settings, data=records(), folds=1, out=a)
    both = {"train": records(), "test": records()}
    fails(UsageError, r"take `data\.test` out", cross_validate, settings, data=both, out=a)
    said = "label 'raro' has 1 example, fewer than the 5 folds"
    fails(DataError, said, cross_validate, settings, data=rare, out=a, threads=1)


def killed_in_fold_2() -> None:
    """The cross-validation of a process that is killed behind the first checkpoint of the second fold."""
    save = loop.save

    def killing(run: Any, **options: Any) -> None:
        save(run)  # not beside the training, so that it is written before the kill
        if run.folder.name == "fold-2":
            os.kill(os.getpid(), signal.SIGKILL)

    loop.save = killing  # type: ignore[assignment]
    cross_validate("recipe.yaml", folds=3, out="cv", threads=1)


def test_a_killed_call_ends_as_a_whole_one(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_recipe(tmp_path, checkpoint_every=2)
    monkeypatch.chdir(tmp_path)
    assert server.run(cwd=tmp_path, test=f"{__name__}:killed_in_fold_2").status == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "cv" / "fold-2" / "checkpoints").iterdir()] == ["step-00000002"]
    predictions: list[int] = []
    predict = VERBS["classify"].call

    def counting(*arguments: Any) -> list[Any]:
        predictions.append(1)
        return predict(*arguments)

    monkeypatch.setitem(VERBS, "classify", replace(VERBS["classify"], call=counting))
    resumed = cross_validate("recipe.yaml", folds=3, out="cv", threads=1)
    assert len(predictions) == 2  # folds 2 and 3, each once
    monkeypatch.undo()
    whole = cross_validate(tmp_path / "recipe.yaml", folds=3, out=tmp_path / "other", threads=1)
    assert resumed.scores == whole.scores
    for fold in ("fold-1", "fold-2", "fold-3"):
        one, two = (atento.load(folder / fold).network.state_dict() for folder in (tmp_path / "cv", whole.folder))
        assert all(torch.equal(value, two[name]) for name, value in one.items())


WRONG = {4: NAMES[1], 22: NAMES[2], 41: NAMES[0]}  # line -> another label than the right one
SOURCE = {"file": "texts.tsv", "text": 0, "label": 1}


def write(path: Path, rows: Any) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def spoiled() -> list[tuple[str, str]]:
    """Records of which three have wrong labels."""
    return [(text, WRONG.get(line, label)) for line, (text, label) in enumerate(records(), 1)]


def table(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of texts with wrong labels; the folder above it holds its data."""
    here = tmp_path_factory.mktemp("suspect")
    write(here / "texts.tsv", spoiled())
    data = {"folder": str(here), "train": SOURCE, "valid": SOURCE, "test": SOURCE}
    return atento.train(recipe(data, steps=80), out=here / "run", threads=1).folder


def test_planted_labels_come_first_also_by_vectors_of_the_run(server: ForkServer, run: Path) -> None:
    command = ["suspect", str(run), "--folds", "3", "--threads", "1"]
    done = server.good(*command, "--top", "3", cwd=run.parent)
    found = table(done.stdout)
    right = dict(enumerate(records(), 1))
    planted = {f"texts.tsv:{line}": (given, right[line][1], right[line][0]) for line, given in WRONG.items()}
    assert {place: (given, likely, text) for _, place, given, likely, text in found} == planted
    assert [float(row[0]) for row in found] == sorted(float(row[0]) for row in found)
    assert re.search(r"^45 labels, about \d+ wrong \(\d+\.\d%\)$", done.stderr, re.MULTILINE)
    assert "fold 3 of 3" in done.stderr
    # finished folds are not trained again; by themselves they give the same
    again = server.run("suspect", "run-folds-3", "--top", "3", "--json", "--out", "found.jsonl", cwd=run.parent)
    assert again.status == 0 and again.stdout == "" and "fold" not in again.stderr
    rows = [json.loads(line) for line in (run.parent / "found.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["line"] for row in rows] == [int(row[1].rpartition(":")[2]) for row in found]
    assert rows[0].keys() == {"source", "line", "given", "likely", "score", "text"}
    repeated = server.run(*command, cwd=run.parent)
    assert repeated.stderr.count("already finished") == 3
    # as many as are estimated, but none whose given label is the most probable one
    estimated = int(re.findall(r"about (\d+) wrong", repeated.stderr)[0])
    listed = table(repeated.stdout)
    assert len(listed) <= estimated and {row[1] for row in listed} >= {row[1] for row in found}
    done = server.good("suspect", "run", "--features", "--folds", "3", "--top", "3", "--threads", "1", cwd=run.parent)
    assert "logistic on 30 vectors" in done.stderr and "step 20" not in done.stderr
    lines = [int(row[1].rpartition(":")[2]) for row in table(done.stdout)]
    assert len(lines) == 3 and {*lines} & WRONG.keys()
    assert "45 computed" in done.stderr and "0 computed" in done.stderr  # each text is read once


def test_tags_have_the_line_of_their_word(tmp_path: Path) -> None:
    rows = records_of_tags()
    words, tags = rows[7]
    place = tags.index("B-LOC")
    rows[7] = (words, [*tags[:place], "B-PER", *tags[place + 1 :]])
    text = "\n".join("".join(f"{w} {t}\n" for w, t in zip(*record)) for record in rows)
    (tmp_path / "names.conll").write_text(text, encoding="utf-8")
    settings = recipe_of_tags({"folder": str(tmp_path), "train": {"file": "names.conll"}}, steps=80)
    folder = atento.train(settings, out=tmp_path / "run", threads=1).folder
    (found,) = suspect(folder, folds=3, top=1, threads=1)
    assert (found.given, found.likely, found.word, found.number) == ("B-PER", "B-LOC", words[place], place + 1)
    assert text.split("\n")[found.line - 1] == f"{words[place]} B-PER" and found.source == "names.conll"
    assert found.text == " ".join(words) and found.pair == ""
    pool = ["Rui Costa mora em Évora .", "📖 !", "Ana viu Ana"]
    suggested = suggest(folder, pool, top=2)
    assert len(suggested) == 2 and {one.text for one in suggested} < {*pool}
    (tmp_path / "pool.txt").write_text("\n".join(pool), encoding="utf-8")
    wanted = [(one.line + 1, pytest.approx(one.score)) for one in suggested]
    assert [(one.line, one.score) for one in suggest(folder, tmp_path / "pool.txt", top=2)] == wanted


def test_pairs_and_records_in_memory(tmp_path: Path) -> None:
    pairs = product(records(), records()[::7])
    right = [(text, other, "igual" if kind == label else "outro") for (text, kind), (other, label) in pairs]
    rows = [(*record[:2], "outro") if number == 0 else record for number, record in enumerate(right)]
    assert right[0][2] == "igual"
    settings = recipe({"train": {"memory": "train"}}, steps=100)
    folder = atento.train(settings, data=rows, out=tmp_path / "run", threads=1).folder
    found = suspect(folder, folds=2, features=True, top=2, data=rows, threads=1)
    assert all(one.pair == rows[one.line][1] and one.given == rows[one.line][2] for one in found)
    write(tmp_path / "pool.tsv", [("o gato", "a pera"), *(row[:2] for row in rows[:3])])
    said: list[str] = []
    (only,) = suggest(folder, tmp_path / "pool.tsv", data=rows, say=said.append)
    assert (only.text, only.pair, only.line) == ("o gato", "a pera", 1)
    assert "3 of 4 texts of " in said[0] and "are in the data of the run, or stand before" in said[0]
    fails(UsageError, "from memory, not from a file, so pass it again", suspect, folder, folds=2, threads=1)
    suggest(folder, [("o gato", "a pera")], say=said.append)
    assert said[-1].startswith("warning: the pool is not compared with the data of")


def test_a_pool_is_ordered_and_what_it_holds_already_is_left_out(server: ForkServer, run: Path) -> None:
    here = run.parent
    texts = ["eu vejo pera e gato", "o Chile", "eu vejo {}".format("uva"), "o Chile", "gato gato"]
    (here / "pool.txt").write_text("\n".join(texts), encoding="utf-8")
    done = server.good("suggest", "run", "pool.txt", cwd=here)
    assert "warning: 2 of 5 texts of pool.txt are in the data of the run, or stand before (pool.txt:3)" in done.stderr
    found = table(done.stdout)
    assert sorted(row[1] for row in found) == ["pool.txt:1", "pool.txt:2", "pool.txt:5"]
    scores = [float(row[0]) for row in found]
    assert scores == sorted(scores, reverse=True)
    rows = [(text, "fruta" if n == 1 else "", str(n)) for n, text in enumerate(texts)]
    write(here / "pool.tsv", [("text", "label", "id"), *rows])
    done = server.run("suggest", "run", "pool.tsv", "--json", "--top", "1", cwd=here)
    assert "warning: 1 of 5 texts of pool.tsv have a label (pool.tsv:3) and are left out" in done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row.keys() == {"source", "line", "score", "text"} and row["text"] == texts[row["line"] - 2]
    done = server.run("suggest", "run", "-", cwd=here, stdin="o Chile\n")
    assert done.status == 0 and done.stdout.split("\t")[1:] == ["standard input:1", "o Chile\n"]


def test_what_suspect_refuses(server: ForkServer, run: Path, tmp_path: Path) -> None:
    write(tmp_path / "texts.tsv", [*records(), ("sozinho", "raro")])
    data = {"folder": str(tmp_path), "train": SOURCE}
    rare = atento.train(recipe(data, steps=1), out=tmp_path / "rare", threads=1).folder
    for features in (False, True):
        with pytest.raises(DataError, match=r"^texts\.tsv:46: label 'raro' has 1 example, fewer than the 5 folds"):
            suspect(rare, features=features, threads=1)
    (tmp_path / "texts.tsv").rename(tmp_path / "moved.tsv")
    refused(server.run("suspect", "rare", cwd=tmp_path), "error: texts.tsv: no such file (looked for ")
    fails(UsageError, "is no run: give the folder of a run", suspect, tmp_path)
    numbers = {"task": "regression", "data": {"train": {"memory": "train"}}, "training": {"steps": 1}}
    numbers |= {"network": {"d_model": 16, "n_heads": 2, "n_layers": 1}, "tokenizer": {"kind": "character"}}
    rows = [("a b", 1.0), ("b a", 2.0), ("c", 3.0)]
    other = atento.train(numbers, data=rows, out=tmp_path / "numbers", threads=1).folder
    fails(UsageError, "is a run of regression, which does not give", suspect, other)
    fails(CapabilityError, "gives no labels or tags: its task is regression", suggest, other, ["a"])


def test_folds_of_other_data_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "texts.tsv", spoiled())
    folder = atento.train(recipe({"folder": str(tmp_path), "train": SOURCE}, steps=2), out=tmp_path / "run").folder
    assert suspect(folder, folds=2, top=1, threads=1)
    with pytest.raises(UsageError, match="run-folds-2 holds the runs of folds, which are used as they are"):
        suspect(tmp_path / "run-folds-2", features=True)
    write(tmp_path / "texts.tsv", records())  # corrected
    fails(UsageError, "the records have changed", suspect, folder, folds=2, threads=1)
    with pytest.raises(DataError, match="fold-1 was trained on other data: the records have changed; train the folds"):
        suspect(tmp_path / "run-folds-2")
    assert suspect(folder, folds=2, top=1, threads=1, force=True)
    (tmp_path / "run-folds-2" / "fold-2" / "test-outputs.jsonl").unlink()
    fails(UsageError, "fold-2 has not been trained and tested", suspect, tmp_path / "run-folds-2")


def test_what_a_pool_must_be(server: ForkServer, run: Path, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        done = server.run("suggest", str(run), *arguments, cwd=tmp_path)
        assert done.status == 2 and done.stdout == "" and done.stderr.startswith("error: "), done.stderr
        return str(done.stderr)

    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    assert "empty.txt: holds no text" in refused("empty.txt")
    write(tmp_path / "other.tsv", [("id", "question", "note"), ("1", "o Chile", "")])
    assert "other.tsv has the columns id, question, note: name that of the texts by --columns" in refused("other.tsv")
    assert "other.tsv" in (said := refused("other.tsv", "--columns", "text=frage")) and "'frage'" in said
    write(tmp_path / "done.tsv", [("text", "label"), ("o Chile", "país")])
    assert "no text is left to suggest: 1 of 1 texts of done.tsv have a label (done.tsv:2)" in refused("done.tsv")
    assert "there is no" in refused("missing.txt") or "missing.txt" in refused("missing.txt")
    done = server.run("suggest", str(run), "other.tsv", "--columns", "text=question", cwd=tmp_path)
    assert done.status == 0 and done.stdout.endswith("\tother.tsv:2\to Chile\n"), done.stderr
