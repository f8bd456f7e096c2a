"""Data in memory for `train` and `evaluate`: the run of a file bit for bit, gone on with only by the same records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import atento
from atento.base.errors import DataError, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.data.records.memory import records_in
from atento.data.records.reader import SOURCE_AND_TARGET, TEXT
from atento.metrics import bleu, chrf
from atento_world import write
from failing import fails
from runs import last, tensors

pytestmark = pytest.mark.usefixtures("in_a_folder")
PAIRS = [(pair.source, pair.target) for pair in write("train", 60)]
VALID = [(pair.source, pair.target) for pair in write("valid", 6)]
RECIPE: dict[str, Any] = {
    "task": "translation",
    "tokenizer": {"kind": "bpe", "vocab_size": 360},
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "norm": "pre", "dropout": 0.1},
    "training": {"steps": 8, "batch_tokens": 120, "warmup": 6, "learning_rate": 5e-3, "precision": "float32"}
    | {"validate_every": 4, "checkpoint_every": 4, "log_every": 4},
    "decoding": {"beam": 1, "max_new_tokens": 6},
    "metrics": ["chrf"],
}
DATA = {"train": PAIRS, "valid": VALID}


def tsv(path: Path, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8", newline="\n")
    return {"file": str(path), "source": 0, "target": 1}


def test_a_run_from_memory_is_the_run_from_files(tmp_path: Path) -> None:
    """Python: `train` took no data in memory, and no recipe in memory either."""
    files = {"train": tsv(tmp_path / "train.tsv", PAIRS), "valid": tsv(tmp_path / "valid.tsv", VALID)}
    (tmp_path / "files.yaml").write_text(yaml.safe_dump(RECIPE | {"data": files}), encoding="utf-8")
    atento.train("files.yaml", out="files", threads=1)
    columns = tuple(list(side) for side in zip(*PAIRS))
    dicts = ({"source": source, "target": target, "id": n} for n, (source, target) in enumerate(VALID))
    run = atento.train(RECIPE, data={"train": columns, "valid": dicts}, out="memory", threads=1)
    assert tensors(last(run.folder) / "model.safetensors") == tensors(last(tmp_path / "files") / "model.safetensors")
    kept = load_recipe(tmp_path / "memory" / "recipe.yaml").recipe.data
    assert [(one.memory, one.file) for one in (*kept.train, *kept.valid)] == [("train", None), ("valid", None)]


def test_a_run_from_memory_goes_on_with_the_same_records_only(tmp_path: Path, server: Any) -> None:
    whole = atento.train(RECIPE, {"training.steps": 12}, data=DATA, out="whole", threads=1)
    atento.train(RECIPE, data=DATA, out="parts", threads=1)
    assert atento.train(RECIPE, data=DATA, out="parts", threads=1).already_finished
    changed = DATA | {"train": [*PAIRS[:-1], ("I see.", "Eu vejo.")]}
    with pytest.raises(UsageError, match="parts was trained on other data: the records have changed"):
        atento.train(RECIPE, {"training.steps": 12}, data=changed, out="parts", threads=1)
    with pytest.raises(UsageError, match=r"parts is a run of another recipe: .*data.valid"):
        atento.train(RECIPE, {"training.steps": 12}, data=PAIRS, out="parts", threads=1)
    parts = atento.train("parts", {"training.steps": 12}, data=DATA, threads=1)
    assert tensors(last(parts.folder) / "model.safetensors") == tensors(last(whole.folder) / "model.safetensors")
    # from the command line the records are not there, and that is what it says
    for words in (["parts"], ["parts/recipe.yaml", "--out", "other"]):
        done = server.run("train", *words, cwd=tmp_path)
        assert done.status == 2 and "this recipe reads data['train'] from memory, not from a file" in done.stderr
        assert "atento.train(..., data={'train': ...})" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(UsageError, match=r"this recipe reads data\['valid'\] from memory"):
        atento.train("parts", data={"train": PAIRS}, threads=1)


def test_a_task_and_data_are_a_recipe() -> None:
    loaded = load_recipe({"task": "translation"}, memory=["train"])
    assert loaded.recipe.data.train[0].memory == "train" and loaded.recipe.name == "run"
    assert loaded.origins["task"] == "recipe" and loaded.home == Path.cwd()
    assert atento.train(RECIPE, {"training.steps": 1}, data=PAIRS[:20], threads=1).folder == Path("runs/run")


@pytest.mark.parametrize("task", ["language-modeling", "masked-language-modeling"])
def test_texts_in_memory(task: str) -> None:
    small = {key: RECIPE[key] for key in ("tokenizer", "training")} | {"task": task}
    network = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "max_len": 64}
    recipe = small | {"network": network, "training": RECIPE["training"] | {"steps": 2, "checkpoint_every": 2}}
    texts = [target for _, target in PAIRS]
    named = [{"text": text} for text in texts]
    one = atento.train(recipe, data=texts, out="one", threads=1)
    two = atento.train(recipe, data={"train": named}, out="two", threads=1)
    assert tensors(last(one.folder) / "model.safetensors") == tensors(last(two.folder) / "model.safetensors")


def test_memory_replaces_the_data_of_a_recipe_and_broken_records_are_left_out(capsys: Any) -> None:
    """The micro-world's validation data say nothing of one's own pairs: some of those are held out instead."""
    extended = {"extends": "micro-world-en-pt", **{key: RECIPE[key] for key in ("tokenizer", "network", "decoding")}}
    extended["training"] = RECIPE["training"] | {"steps": 2, "average": 0}
    atento.train(extended, data=PAIRS, out="own", threads=1)
    said = capsys.readouterr().err
    assert "data.train is in memory, so the recipe's data.valid and data.test (the micro-world) are left out" in said
    assert "6 of 60 training pairs held out" in said
    recipe = RECIPE | {"data": {"skip_bad": True}, "training": RECIPE["training"] | {"steps": 1}}
    atento.train(recipe, data=[*PAIRS, ("a", None), ("", "b")], out="x", threads=1)
    said = capsys.readouterr().err
    assert "data['train']: 1 pair with an empty side left out" in said
    assert "data['train']: 1 bad record left out, first data['train'][60]: key 'target' must hold a string" in said


def test_what_is_wrong_with_records_is_told_with_their_place() -> None:
    two, one = SOURCE_AND_TARGET, TEXT
    made = list(records_in((np.array(["a", "b"]), np.array(["c", "d"])), two, "data"))
    assert made == [(0, ["a", "c"]), (1, ["b", "d"])] and {type(text) for _, texts in made for text in texts} == {str}
    misspelt = ([{"source": "a", "tgt": "b"}], two)
    wrong = {
        "data[1]: give pairs (source, target), dicts": ([("a", "b"), ("a",)], two),
        "data[0]: give pairs (source, target), dicts": (["a b"], two),
        "data[2]: key 'target' must hold a string": ([("a", "b"), ("c", "d"), ("e", None)], two),
        "data[0]: key 'target' is not in the record; did you mean 'tgt'?; its keys are 'source', 'tgt'": misspelt,
        "data[0]: key 'text' holds half of a surrogate pair": (["\ud800"], one),
        "data[1]: key 'text' holds a NUL": (["a", "b\0"], one),
        "data[0]: give texts, or dicts with the key 'text': got tuple of 2": ([("a", "b")], one),
    }
    for said, (given, fields) in wrong.items():
        errors = [str(item) for item in records_in(given, fields, "data") if isinstance(item, DataError)]
        assert len(errors) == 1 and errors[0].startswith(said), errors
    for given in ("train.tsv", {"a": "b"}, 3, None):
        fails(UsageError, r"data must be an iterable of pairs", list, records_in(given, two, "data"))
    fails(DataError, "data has 2 sources and 1 targets", list, records_in((["a", "b"], ["c"]), two, "data"))
    with pytest.raises(DataError, match=r"data\['train'\]\[1\]: key 'target' must hold a string"):
        atento.train(RECIPE, data=[("a", "b"), ("c", 3)], out="x")
    with pytest.raises(UsageError, match="`data` takes records for train, valid, test: got 'source'"):
        atento.train(RECIPE, data={"source": ["a"], "target": ["b"]}, out="x")
    with pytest.raises(RecipeError, match=r"recipe: data.train holds records, .* atento.train\(recipe, data=\{'train'"):
        atento.train(RECIPE | {"data": {"train": PAIRS}}, out="x")
    with pytest.raises(RecipeError, match=r"data.train names records in memory, so `file` cannot be combined with"):
        atento.train(RECIPE | {"data": {"train": {"memory": "train", "file": "x"}}}, out="x")
    with pytest.raises(RecipeError, match="recipe: unknown key 'netwrok'; did you mean 'network'"):
        atento.train(RECIPE | {"netwrok": {}}, data=PAIRS, out="x")
    assert not Path("x").exists() or not list(Path("x").glob("checkpoints/*"))


def test_evaluate_takes_records_files_and_columns(trained: Path, tmp_path: Path) -> None:
    """Python: `evaluate` took no data in memory."""
    model = atento.load(trained)
    sources, references = [source for source, _ in VALID], [target for _, target in VALID]
    outputs = model.translate(sources)
    want = {"bleu": bleu(outputs, references).value, "chrf": chrf(outputs, references).value}
    tsv(tmp_path / "valid.tsv", VALID)
    named = [{"source": source, "target": target} for source, target in VALID]
    columns = ((sources, references), (np.array(sources), np.array(references)), zip(sources, references))
    for data in (VALID, named, *columns, "valid.tsv", [tmp_path / "valid.tsv"]):
        scores = atento.evaluate(model, data, metrics=["bleu", "chrf"])
        assert {name: score.value for name, score in scores.items()} == want
    by_name = atento.evaluate(trained, VALID, metrics=["chrf"], device="cpu", precision="float64", threads=1)
    assert by_name["chrf"].value == pytest.approx(want["chrf"], abs=5)
    with pytest.warns(UserWarning, match="data: 1 pair with an empty side left out"):
        atento.evaluate(model, [*VALID, ("", "x")], metrics=["chrf"], greedy=True)
    fails(DataError, r"data\[6\]: key 'target' must hold a string", atento.evaluate, model, [*VALID, ("x", None)])
    fails(UsageError, "`n_best` has no effect in an evaluation", atento.evaluate, model, VALID, n_best=2)
    with pytest.raises(UsageError, match="`device` and `precision` are for a model that is loaded here"):
        atento.evaluate(model, VALID, device="cpu")
    fails(DataError, "data: holds no sentence pair", atento.evaluate, model, [])
