"""Records held out: validation data of the other kind are left out (W6), and pairs beyond the learned positions."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento import evaluate, load, train
from atento.base.errors import AtentoWarning, DataError, RecipeError
from atento.config.reading.loading import dump_recipe, load_recipe
from atento.config.recipe import DataConfig, Recipe, SourceConfig
from atento.data.records.splits import Split, held_out, held_out_lines, held_out_rows
from atento.runs.prepare import read_data
from atento_cli.commands.print_statistics import measured
from failing import fails

BOOK = "data.train={file: book.txt}"
RECORDS = st.tuples(st.integers(0, 60), st.sampled_from("aaaaaabbc"))
PAIRS = "data.train={source: a.en, target: a.pt}"


@pytest.mark.parametrize(
    ("recipe", "train", "names"),
    [
        ("micro-world-lm", BOOK, "data.valid and data.test (the micro-world) are"),
        ("micro-world-mlm", BOOK, "data.valid and data.test (the micro-world) are"),
        ("micro-world-elmo", BOOK, "data.valid (the micro-world) is"),
        ("micro-world-cbow", BOOK, "data.valid (the micro-world) is"),
        ("micro-world-en-pt", PAIRS, "data.valid and data.test (the micro-world) are"),
        ("micro-world-rnn", PAIRS, "data.valid and data.test (the micro-world) are"),
        ("multi30k-en-de", "data.train={world: train}", "data.valid (files) is"),
    ],
)
def test_a_shipped_recipes_validation_data_go_with_its_training_data(recipe: str, train: str, names: str) -> None:
    loaded = load_recipe(recipe, [train], environment={})
    assert (loaded.recipe.data.valid, loaded.recipe.data.test, loaded.recipe.data.held_out) == ((), (), 500)
    assert len(loaded.warnings) == 1
    assert f"the recipe's {names} left out; up to 500 training records are held out" in loaded.warnings[0]
    plain = load_recipe(recipe, environment={})
    assert plain.recipe.data.valid and plain.recipe.data.held_out == 0 and plain.warnings == []


def test_what_was_given_in_the_same_place_or_above_stays() -> None:
    both = load_recipe("micro-world-lm", [BOOK, "data.valid={file: v.txt}"], environment={})
    assert both.recipe.data.valid == (SourceConfig(file="v.txt"),) and both.recipe.data.held_out == 0
    assert both.recipe.data.test == () and "data.test (the micro-world) is left out" in both.warnings[0]
    explicit = load_recipe("micro-world-lm", [BOOK, "data.valid={world: valid}", "~data.test"], environment={})
    assert explicit.recipe.data.valid == (SourceConfig(world="valid"),)
    (said,) = explicit.warnings
    assert said.startswith("command line: data.valid is the micro-world, and data.train is files: its scores do not")
    smaller = load_recipe("micro-world-lm", ["data.train={world: train, count: 9}"], environment={})
    assert smaller.recipe.data.valid and smaller.recipe.data.test and smaller.warnings == []
    few = load_recipe("micro-world-lm", [BOOK, "data.held_out=30"], environment={})
    assert few.recipe.data.held_out == 30 and "up to 30 training records" in few.warnings[0]


def test_a_path_alone_is_a_text_file_what_is_given_later_counts_and_held_out_stands_alone(tmp_path: Path) -> None:
    short, whole = (load_recipe("micro-world-lm", [given], environment={}) for given in ("data.train=book.txt", BOOK))
    assert short.recipe == whole.recipe and short.warnings == whole.warnings
    both = load_recipe("micro-world-lm", ["data.train=[a.txt, {file: b.txt}]"], environment={})
    assert [source.file for source in both.recipe.data.train] == ["a.txt", "b.txt"] and both.recipe.data.valid == ()
    with pytest.raises(RecipeError, match=r"data.train is one file with columns, so `source` is missing"):
        load_recipe("micro-world-en-pt", ["data.train=pairs.tsv"], environment={})
    (tmp_path / "mine.yaml").write_text("extends: micro-world-lm\ndata: {train: {file: book.txt}}\n", encoding="utf-8")
    extended = load_recipe(tmp_path / "mine.yaml", environment={})
    assert extended.recipe.data.valid == () and extended.recipe.data.held_out == 500
    environment = load_recipe("micro-world-lm", environment={"ATENTO_DATA__TRAIN": "{file: book.txt}"})
    assert environment.recipe.data.valid == () and environment.warnings[0].startswith("ATENTO_DATA__TRAIN: ")
    # the resolved recipe of the run reads back as it is, and says nothing anew
    (tmp_path / "recipe.yaml").write_text(dump_recipe(extended.recipe), encoding="utf-8")
    again = load_recipe(tmp_path / "recipe.yaml", environment={})
    assert again.recipe == extended.recipe and not any("left out" in line for line in again.warnings)
    with pytest.raises(RecipeError, match=r"command line: `data.held_out` takes validation records .* got 9 beside"):
        load_recipe("micro-world-lm", ["data.held_out=9"], environment={})
    with pytest.raises(RecipeError, match=r"data.held_out.*-1"):
        load_recipe("micro-world-lm", ["data.held_out=-1", "~data.valid"], environment={})


@given(st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=2, max_size=300), st.integers(1, 40))
def test_no_record_is_lost_and_none_is_in_both(texts: list[str], count: int) -> None:
    try:
        rows = held_out({"text": texts}, count)
    except DataError:
        assert len(set(texts)) <= 26  # every letter may be held out
        return
    train, valid = ([texts[row] for row in part] for part in rows)
    assert len(valid) == min(count, max(1, len(texts) // 10)) and not set(train) & set(valid)
    rest = list(texts)
    for text in valid:
        rest.remove(text)
    assert train == [text for text in rest if text not in valid] and held_out({"text": texts}, count) == rows


def test_pairs_stay_in_blocks_of_neighbours_and_reading_says_how_many_are_held_out(tmp_path: Path) -> None:
    train, numbers = held_out({"source": [f"s{i}" for i in range(5000)], "target": [f"t{i}" for i in range(5000)]}, 200)
    assert len(numbers) == 200 and len(train) == 4800
    assert numbers == sorted(numbers) and all(sum(n // 25 == m // 25 for m in numbers) == 25 for n in numbers)
    assert min(numbers) < 1000 and max(numbers) > 4000
    with pytest.raises(DataError, match=r"nothing to hold out .* of 8 training records \(2 different\); give more"):
        held_out({"text": ["same"] * 8, "label": ["x", "y"] * 4}, 3, [["x"], ["y"]] * 4)
    (tmp_path / "a.txt").write_text("\n".join([*(f"line {i}" for i in range(60)), *["same"] * 40]), encoding="utf-8")
    data = DataConfig(train=(SourceConfig(file="a.txt"),), held_out=500)
    said: list[str] = []
    read = read_data(Recipe(task="language-modeling", data=data), tmp_path, said.append)
    assert read.valid is not None and len(read.valid) == 10
    assert len(said) == 2 and said[0].startswith("10 of 100 training texts held out for validation")
    same = "same" in read.valid["text"]
    assert ("equal to one of them" in said[0]) == same and read.train["text"].count("same") == (0 if same else 40)
    other = read_data(Recipe(task="language-modeling", data=DataConfig(train=data.train)), tmp_path, said.append)
    assert other.fingerprint != read.fingerprint
    (tmp_path / "one.txt").write_text("one\none\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"5 leaves nothing to train on of 2 training records, which are all equal"):
        data = DataConfig(train=(SourceConfig(file="one.txt"),), held_out=5)
        read_data(Recipe(task="language-modeling", data=data), tmp_path, said.append)


@given(st.lists(RECORDS, min_size=2, max_size=300), st.integers(1, 90))
def test_every_held_out_label_has_a_training_record(pairs: list[tuple[int, str]], count: int) -> None:
    columns = {"text": [str(text) for text, _ in pairs], "label": [label for _, label in pairs]}
    labels = [(label,) for label in columns["label"]]
    try:
        train, valid = held_out(columns, count, labels)
    except DataError:
        return
    assert {columns["label"][row] for row in valid} <= {columns["label"][row] for row in train} and valid
    assert not {pairs[row] for row in valid} & {pairs[row] for row in train}
    rows = held_out_rows(len(pairs), count, labels)
    assert set(valid) <= set(rows) and len(rows) == min(count, max(1, len(pairs) // 10))
    for label, number in Counter(columns["label"]).items():
        assert abs(sum(columns["label"][row] == label for row in rows) - len(rows) * number / len(pairs)) < 1


def test_labels_keep_their_shares_rare_ones_train_and_less_is_said(tmp_path: Path) -> None:
    """Blocks of neighbours alone held out 110 and 50 of two equal classes of long reviews."""
    rows = held_out_rows(1600, 160, [("neg",)] * 800 + [("pos",)] * 800)
    assert sum(row < 800 for row in rows) == 80 == sum(row >= 800 for row in rows)
    assert len({row // 25 for row in rows}) < 12  # blocks of neighbours
    mixed = held_out_rows(1600, 160, [("neg", "pos") if row % 2 else () for row in range(1600)])
    assert mixed == held_out_rows(1600, 160) == sorted({row for row in mixed for row in range(row // 25 * 25, row + 1)})
    # all three records of the label `rare` are neighbours, which are held out together where labels have no shares
    rows = [f"text {number}\t{'ab'[number % 2]}" for number in range(200)]
    recipe = "task: classification\ndata: {train: {file: a.tsv, text: 0, label: 1}, held_out: 20}\n"
    (tmp_path / "r.yaml").write_text(recipe, encoding="utf-8")
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    loaded = load_recipe(tmp_path / "r.yaml", environment={})
    first = read_data(loaded.recipe, tmp_path, lambda line: None).valid
    assert first is not None
    number = int(first.where(0).removeprefix("a.tsv:")) - 1
    assert first["text"][0] == f"text {number}"
    rows[number : number + 3] = [f"text {row}\trare" for row in range(number, number + 3)]
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    data = read_data(loaded.recipe, tmp_path, lambda line: None)
    assert data.valid is not None and data.train["label"].count("rare") == 3 and len(data.valid) == 20
    assert data.train.where(data.train["label"].index("rare")) == f"a.tsv:{number + 1}"
    assert len(data.valid) == 20 == measured(loaded, tokens=False)[0]["held_out"]  # `data stats` says what a run does
    assert Split({"text": ["a"]}, "").where(0) == "record 1"
    assert list(held_out_lines(10, 100, "texts", 10, 0)) == ["10 of 100 training texts held out for validation"]
    first, second = held_out_lines(30, 300, "examples", 200, 1)
    assert first.endswith("held out for validation; 1 equal to one of them is not trained on")
    assert second == "`data.held_out` 200 holds out at most a tenth; `data.valid` takes records of your own"


SHORT = [("a b c", "c b a"), ("d e", "e d"), ("a c e g", "g e c a"), ("b", "b")]
LONG = [(" ".join("abcdefgh" * 3), "a"), ("a", " ".join("hgfedcba" * 3))]  # 24 tokens: too long a source, a target


def run_of(folder: Path, valid: list[tuple[str, str]], truncate: str = "none", positions: str = "learned") -> Any:
    """Train two updates on short pairs, with these pairs for validation and test."""
    network = {"architecture": "encoder-decoder", "d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1}
    recipe = {
        "task": "translation",
        "data": {"max_len": 64, "truncate": truncate},
        "tokenizer": {"kind": "word", "vocab_size": 50},
        "network": network | {"positions": positions, "max_len": 12},
        "training": {"steps": 2, "batch_tokens": 60, "precision": "float32", "warmup": 0, "validate_every": 1},
        "decoding": {"beam": 1},
    }
    return train(recipe, data={"train": SHORT * 4, "valid": valid, "test": valid}, out=folder, device="cpu")


@pytest.mark.parametrize(("truncate", "left_out"), [("none", 2), ("source", 1), ("both", 0)])
def test_pairs_beyond_the_positions_are_left_out_or_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], truncate: str, left_out: int
) -> None:
    """The run scores the pairs that training would take, as if the others were not there, and counts them."""
    run = run_of(tmp_path / "run", [SHORT[0], *LONG, SHORT[1]], truncate)
    said = capsys.readouterr().err
    counted = f"data.valid: {left_out} of 4 pairs left out: longer than the 12 positions of the network"
    assert (counted in said) == (counted.replace("valid", "test") in said) == (left_out > 0)
    cut = [(" ".join(source.split()[:11]), " ".join(target.split()[:11])) for source, target in LONG]
    kept = {"none": [], "source": cut[:1], "both": cut}[truncate]
    same = run_of(tmp_path / "same", [SHORT[0], *kept, SHORT[1]])
    assert run.test is not None and same.test is not None
    assert np.isclose(run.test["nll"], same.test["nll"], atol=1e-6)
    if truncate != "both":  # whose references are not cut
        assert run.test == pytest.approx(same.test)


def test_all_beyond_the_positions_are_refused_and_evaluate_leaves_them_out_too(tmp_path: Path, capsys: Any) -> None:
    fails(DataError, r"data\.valid: 2 of 2 pairs left out: .* 12 pos", run_of, tmp_path / "run", LONG)
    capsys.readouterr()
    run_of(tmp_path / "all", [SHORT[0], *LONG], positions="sinusoidal")
    assert "left out" not in capsys.readouterr().err
    run_of(tmp_path / "run", SHORT)
    model = load(tmp_path / "run", device="cpu")
    with pytest.warns(AtentoWarning, match="2 of 6 pairs left out: longer than the 12 positions of the network"):
        scores = evaluate(model, [*SHORT, *LONG], metrics="chrf")
    assert scores["chrf"].value == evaluate(model, SHORT, metrics="chrf")["chrf"].value
