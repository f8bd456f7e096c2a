"""`atento.train` as Python calls it: what it takes, what it gives back, what it leaves behind in the process."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento import load
from atento.base.errors import CapabilityError, DataError, RecipeError, TrainingError, UsageError
from atento.config.recipe import DataConfig, Recipe
from atento.config.sections.network import NetworkConfig
from atento.config.tables.tasks import scored
from atento.data.records.labelled_data import source_of
from atento.data.records.splits import Split
from atento.evaluation import evaluate
from atento.metrics import bleu, chrf
from atento.runs.model_config import model_config
from atento.runs.train import TrainedRun, train
from atento.storage.atomic_files import write_atomically
from atento.tasks.model_outputs import reads_signs
from atento.text import Tokenizer
from atento.training.metrics_log import read_journal
from atento_cli.demo import results, show
from atento_world import write
from failing import fails

RECIPE = """
task: translation
data:
  train: {world: train, count: 60}
  valid: {world: valid, count: 4}
tokenizer: {kind: bpe, vocab_size: 340}
network: {d_model: 16, d_ff: 32, n_heads: 2, n_layers: 1, norm: pre}
training: {steps: 4, batch_tokens: 200, precision: float32, validate_every: 2, checkpoint_every: 2}
decoding: {beam: 1, max_new_tokens: 4}
"""


@pytest.fixture(autouse=True)
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(RECIPE, encoding="utf-8")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(RECIPE, encoding="utf-8")
    return train(folder / "tiny.yaml", {"training.steps": 8}, out=folder / "run", threads=1)


def test_what_it_gives_back_and_that_arguments_win(capsys: pytest.CaptureFixture[str]) -> None:
    run = atento.train("tiny.yaml", {"training.steps": 3}, out="runs/x", device="cpu", threads=1)
    assert run == TrainedRun(Path("runs/x"), 3, run.best, run.best_step, None, "translation")
    scores = {e["step"]: e["bleu"] for e in read_journal(Path("runs/x/metrics.jsonl")) if e["event"] == "valid"}
    assert list(scores) == [2, 3] and run.best == max(scores.values()) and run.best_step in scores
    assert capsys.readouterr().out == ""
    again = train("tiny.yaml", ["training.steps=3"], out="runs/x", threads=1)
    assert again.already_finished and (again.step, again.best, again.best_step) == (3, run.best, run.best_step)
    for overrides in ({"training.seed": 7}, ["training.seed=7"]):
        train("tiny.yaml", overrides, out="run", seed=9, precision="bfloat16", threads=1, force=True)
        recipe = Path("run/recipe.yaml").read_text(encoding="utf-8")
        assert "seed: 9" in recipe and "precision: bfloat16" in recipe
        assert overrides in ({"training.seed": 7}, ["training.seed=7"])  # not changed behind the caller's back
    test = {"data.test.0.world": "combinations", "data.test.0.count": 3}
    run = train("tiny.yaml", test, out="tested", threads=1)
    assert run.test is not None and set(run.test) == {"loss", "nll", "bleu", "chrf"} and not run.already_finished
    again = train("tiny.yaml", test, out="tested", threads=1)
    assert again.test == run.test and again.already_finished
    # Outside the main thread
    done: list[TrainedRun] = []
    thread = threading.Thread(target=lambda: done.append(train("tiny.yaml", out="thread", threads=1)))
    thread.start()
    thread.join()
    assert done[0].step == 4


def test_sizes_that_the_recipe_leaves_open_fit_the_data_and_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe of task and data alone, on 40 pairs: no network of 48 million parameters, and the same one next time."""
    Path("least.yaml").write_text("task: translation\ndata: {train: {world: train, count: 40}}\n", encoding="utf-8")
    train("least.yaml", {"training.steps": 2}, out="run", threads=1)
    said = capsys.readouterr().err
    assert "training text: a small network, 128 wide and 2 layers deep, a vocabulary of 2,000, dropout 0.3, " in said
    assert int(said.split("least: ")[1].split()[0].replace(",", "")) < 1_500_000
    assert "d_model: 128" in Path("run/recipe.yaml").read_text(encoding="utf-8")
    train("least.yaml", {"training.steps": 3}, out="run", threads=1)
    assert "fitted to" not in capsys.readouterr().err and train("run", {"training.steps": 4}, threads=1).step == 4


def test_the_process_is_left_as_it_was() -> None:
    """Threads, the random generator, signal handlers, open files."""
    gc.disable()  # what is made from here on stays young: to look through all else takes seconds
    torch.manual_seed(4)
    wanted = torch.rand(1)
    torch.manual_seed(4)
    train("tiny.yaml", out="first", threads=1)  # opens whatever is opened once
    assert torch.equal(torch.rand(1), wanted)
    torch.set_num_threads(2)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    gc.collect(0)
    files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None  # noqa: PTH208
    train("tiny.yaml", out="run", threads=1)
    gc.collect(1)
    gc.enable()
    assert torch.get_num_threads() == 2
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    if files is not None:
        assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208


def test_what_is_refused_before_any_work() -> None:
    for call, kind, said in (
        (lambda: train("none.yaml"), RecipeError, "none.yaml"),
        (lambda: train("tiny.yaml", {"training.stps": 3}), RecipeError, "unknown key 'stps' in training; did you mean"),
        (lambda: train("tiny.yaml", ["training.steps"]), RecipeError, "key=value"),
        (lambda: train("tiny.yaml", precision="int8"), RecipeError, "training.precision must be one of"),
        (lambda: train("tiny.yaml", device="tpu9"), UsageError, "`device` must exist on this machine: got 'tpu9'"),
        (lambda: train("tiny.yaml", out="tiny.yaml"), UsageError, "the run folder tiny.yaml is a file"),
        (lambda: train("tiny.yaml", out="tiny.yaml/x"), UsageError, "cannot be created: Not a directory"),
        (lambda: train("tiny.yaml", out=".", force=False), UsageError, "holds files and is not a run"),
    ):
        fails(kind, said, call)
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]
    with pytest.raises(DataError, match=r"train\.tsv: no such file"):
        train("tiny.yaml", {"data.train": [{"file": "train.tsv", "source": 0, "target": 1}]}, out="run")


def test_force_moves_a_run_that_one_stands_in_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    Path("letter.txt").write_text("Dear", encoding="utf-8")
    with pytest.raises(UsageError, match=r"--force does not move .*mine: .*mine is in it"):
        train(tmp_path / "tiny.yaml", out=".", force=True, threads=1)
    assert Path("letter.txt").exists()
    monkeypatch.chdir(tmp_path / "run")
    train(tmp_path / "tiny.yaml", out=".", threads=1)
    train(tmp_path / "tiny.yaml", out=".", force=True, threads=1)
    assert (tmp_path / "run" / "run.json").exists() and (tmp_path / "run.old-1" / "run.json").exists()


def test_what_cannot_be_moved_or_written_is_said_and_config_json_has_what_a_model_needs(tmp_path: Path) -> None:
    """A name too long for `.old-1`, and a folder that has gone."""
    (tmp_path / ("n" * 252)).mkdir()
    (tmp_path / ("n" * 252) / "letter.txt").write_text("Dear", encoding="utf-8")
    with pytest.raises(UsageError, match=r"cannot be moved to n+\.old-1: File name too long"):
        train("tiny.yaml", out=tmp_path / ("n" * 252), force=True)
    with pytest.raises(TrainingError, match=r"gone/run\.json cannot be written: No such file or directory"):
        write_atomically(tmp_path / "gone" / "run.json", "{}")
    config = model_config(Recipe(task="translation", data=DataConfig(), name="x"), asdict(NetworkConfig()))
    assert config["model_type"] == "atento" and config["atento_version"] == atento.__version__
    assert (config["task"], config["name"], config["decoding"]["beam"]) == ("translation", "x", 4)
    assert config["network"]["positions"].items() >= {"kind": "sinusoidal", "base": 10000.0}.items()


# Evaluation ---------------------------------------------------------------------------------------------------------


def test_evaluate_scores_a_models_translations(trained: TrainedRun) -> None:
    model = atento.load(trained.folder)
    pairs = write("valid", 5)
    Path("data.tsv").write_text("".join(f"{p.source}\t{p.target}\n" for p in pairs), encoding="utf-8")
    for name, side in (("a.en", "source"), ("a.pt", "target")):
        Path(name).write_text("".join(f"{getattr(p, side)}\n" for p in pairs), encoding="utf-8")
    rows = (f'{{"source": "{p.source}", "target": "{p.target}"}}\n' for p in pairs)
    Path("data.jsonl").write_text("".join(rows), encoding="utf-8")
    outputs = model.translate([pair.source for pair in pairs], beam=2)
    right = {name: score(outputs, [p.target for p in pairs]).value for name, score in (("bleu", bleu), ("chrf", chrf))}
    for data in ("data.tsv", Path("data.tsv"), ["a.en", "a.pt"], "data.jsonl", ["data.tsv"]):
        found = atento.evaluate(model, data, metrics=("bleu", "chrf"), beam=2)
        assert {name: score.value for name, score in found.items()} == right
    assert set(evaluate(trained.folder, "data.tsv")) == {"bleu", "chrf", "exact-match"}


def test_texts_without_words_are_their_own_translations(trained: TrainedRun) -> None:
    """Alone, in a list or in pieces; letters of any script are translated, and all by a model that learned to."""
    model = load(trained.folder, device="cpu")
    assert "without_words" not in model.config
    as_it_is = ["🙂 👍🏽", "...", " — ?!", "☆", "🇧🇷", "42", "123 🙂", "%1$s: {{name}}", "---", "<b>7</b>"]
    as_it_is += ["½", "a@b.pt"]
    assert model.translate(as_it_is) == as_it_is and model.translate(as_it_is[0]) == as_it_is[0]
    assert model.translate(["a 🙂", " ", *as_it_is])[1:] == ["", *as_it_is]
    assert model.translate("🙂", n_best=2, beam=2) == ["🙂"]
    assert model.translate("... 🙂", split_sentences=True) == "... 🙂"
    assert list(model.stream("🙂")) == ["🙂"] and list(model.stream(" ")) == []
    sources: list[list[str]] = []
    encode = Tokenizer.encode_batch
    with pytest.MonkeyPatch.context() as patch:

        def encoded(self: Tokenizer, texts: list[str], **options: float) -> object:
            sources.append(list(texts))
            return encode(self, texts, **options)

        patch.setattr(Tokenizer, "encode_batch", encoded)
        translated = ["猫", "é", "7 %x a", "a!", "ß", "कि"]
        model.translate([*translated, *as_it_is])
        assert sources.pop() == [*translated, *[""] * len(as_it_is)]
        assert model.translate("7", prefix="O").startswith("O")
        assert "gato" in model.translate("24/7", required_words=["gato"], beam=2, max_new_tokens=9)
        assert model.translate("42", glossary={"42": "gato"}, max_new_tokens=9) == "gato"
        sources.clear()
        pairs = [(f"{n} {n + 1}", f"{n + 1} {n}") for n in range(9)]
        recipe: Any = {"task": "translation", "data": {"train": {"memory": "train"}, "valid": {"memory": "valid"}}}
        network = {"preset": "transformer-tiny", "d_model": 16, "d_ff": 32, "n_layers": 1}
        recipe |= {"tokenizer": {"kind": "word"}, "network": network, "training": {"steps": 2, "batch_tokens": 90}}
        run = train(recipe, data={"train": pairs, "valid": pairs[:2]}, out="signs", threads=1)
        assert ["0 1", "1 2"] in sources  # in validation
        signs = load(run.folder, device="cpu")
        assert signs.config["without_words"] is True
        signs.translate(["3 4", "🙂"])
        assert sources[-1] == ["3 4", "🙂"]
    noise = [("- -", "-"), ("7", "7")] + [("a", "b")] * 9
    for some, signs_are_read in ((pairs, True), (noise, False), ([("7", "7")] * 9, False), ([], False)):
        columns = {"source": [source for source, _ in some], "target": [target for _, target in some]}
        assert reads_signs(Split(columns, "")) is signs_are_read


def test_evaluate_refuses_and_counts_and_a_first_line_of_fields_is_a_header(
    trained: TrainedRun, tmp_path: Path
) -> None:
    Path("data.tsv").write_text("a\tb\nbroken\n\tc\n", encoding="utf-8")
    for call, kind, said in (
        (lambda: evaluate(trained.folder, "data.tsv", "cbow"), CapabilityError, f"{', '.join(scored())}: got 'cbow'"),
        (lambda: evaluate(trained.folder, ["a", "b", "c"]), DataError, "a: no such file"),
        (lambda: evaluate(trained.folder, "none.tsv"), DataError, r"none\.tsv: no such file"),
        (lambda: evaluate(trained.folder, "data.tsv"), DataError, r"data\.tsv:2: 1 column"),
        (lambda: evaluate(trained.folder, "data.tsv", metrics=["blue"]), UsageError, "'blue'; did you mean"),
        (lambda: evaluate("nowhere", "data.tsv", skip_bad=True), UsageError, "no model at nowhere"),
    ):
        fails(kind, said, call)
    said_: list[str] = []
    evaluate(trained.folder, "data.tsv", skip_bad=True, metrics=["chrf"], say=said_.append)
    assert said_[0] == "warning: data.tsv: 1 pair with an empty side left out" and len(said_) == 2
    assert said_[1].startswith("warning: data.tsv: 1 bad record left out, first data.tsv:2: 1 column separated by")
    keyed, numbered = (source_of(name, "translation") for name in ("x.json.gz", "x.tsv.gz"))
    assert (keyed.source, keyed.target) == ("source", "target") and (numbered.source, numbered.target) == (0, 1)
    table, keyed = tmp_path / "x.tsv", tmp_path / "x.jsonl"
    table.write_text("label\tid\ttext\nA\t1\tum\n", encoding="utf-8")
    keyed.write_text('{"text": "um", "pair": "dois", "label": "A"}\n', encoding="utf-8")
    named = source_of(table, "classification")
    assert (named.text, named.label, named.pair) == ("text", "label", None)
    assert source_of(keyed, "classification").pair == "pair"
    table.write_text("um\tA\n", encoding="utf-8")
    numbered = source_of(table, "classification")
    assert (numbered.text, numbered.label) == (0, 1)


# The demo's page of results -----------------------------------------------------------------------------------------


def test_the_demo_shows_scores_translations_a_page_and_what_to_type_next(trained: TrainedRun) -> None:
    lines = list(show({"steps": 1200, **results(trained.folder, ["My own sentence."], count=4)}))
    text = "\n".join(lines)
    assert text.startswith("\nafter 1,200 updates:\n4 unseen")
    assert "4 unseen combinations (" in text and "4 unseen structures (" in text
    assert text.count("BLEU ") == text.count("chrF") == text.count("exact match ") == 2
    assert "  My own sentence.  →  " in text
    assert (trained.folder / "attention.html").read_text(encoding="utf-8").startswith("<!")
    assert f"atento attend {trained.folder} " in text and lines[-1].startswith("  atento train ")
    assert "alignment error rate" in text or "alignment: the tokenizer's words are not the grammar's" in text
