"""The same folder again: what may change, what is refused and how, damaged checkpoints, a second trainer (R8, R9)."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from atento.text.tokenizer import Tokenizer
from atento.training.metrics_log import read_journal
from conftest import ENVIRONMENT, ForkServer, refused, write_tsv
from http_service import until
from runs import batches, differences, events, facts, last, tensors

TINY = ["train", "tiny.yaml", "--threads", "1", "training.steps=8"]


@pytest.fixture(scope="module")
def ended(server: ForkServer, data: Path, scratch: Path) -> Path:
    """A run of 8 steps that has ended, checkpoints at 4 and 8."""
    server.good(*TINY, "--out", scratch / "ended", cwd=data)
    return scratch / "ended"


@pytest.fixture
def run(ended: Path, place: Path) -> Path:
    """A copy of it, beside a copy of its data."""
    shutil.copytree(ended, place / "run")
    return place / "run"


def snapshot(run: Path) -> dict[str, bytes]:
    """Every file of a run but its log, the lock and the facts of the last start."""
    skip = ("train.log", ".lock", "env.json")
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in skip}


def put(name: str, content: str) -> Callable[[Path], object]:
    return lambda place: (place / name).write_text(content, encoding="utf-8", newline="\n")


def one_pair_more(place: Path) -> None:
    with (place / "train.tsv").open("a", encoding="utf-8", newline="\n") as file:
        file.write("One more.\tMais um.\n")


def another_tokenizer(place: Path) -> None:
    kept = place / "run" / "tokenizer" / "tokenizer.json"
    kept.write_text(kept.read_text(encoding="utf-8").replace('"merges": [', '"merges": [', 1), encoding="utf-8")
    content = json.loads(kept.read_text(encoding="utf-8"))
    content["model"]["merges"] = content["model"]["merges"][:-1]  # the same vocabulary, another segmentation
    kept.write_text(json.dumps(content), encoding="utf-8")


CHANGED: list[tuple[str, list[str], Callable[[Path], object] | None, str]] = [
    ("the recipe", ["network.d_model=32"], None, "is a run of another recipe: network.d_model"),
    ("two keys", ["training.seed=2", "tokenizer.kind=unigram"], None, "training.seed"),
    ("a seed", ["--seed", "5"], None, "training.seed"),
    ("the precision", ["--precision", "bfloat16"], None, "training.precision"),
    ("the validation data", ["data.valid.0.count=3"], None, "data.valid.0.count"),
    ("the training data", [], one_pair_more, "was trained on other data: the records have changed."),
    ("validation's content", [], put("valid.tsv", "A.\tB.\n"), "was trained on other data"),
    ("its tokenizer", [], another_tokenizer, "was trained with another tokenizer than"),
    ("fewer steps", ["training.steps=6"], None, "run has 8 steps; `training.steps` 6 is fewer. Use --force"),
    ("its identity", [], put("run/run.json", '{"run_id": "x"}'), "run.json is damaged,"),
    ("its identity cut", [], put("run/run.json", ""), "run.json is damaged, so this run cannot be identified"),
]


@pytest.mark.parametrize(("what", "more", "change", "said"), CHANGED, ids=[row[0] for row in CHANGED])
def test_r9_what_changed_is_refused_by_name_and_nothing_is_touched(
    server: ForkServer, place: Path, run: Path, what: str, more: list[str], change: Callable[[Path], object], said: str
) -> None:
    if change is not None:
        change(place)
    before = snapshot(run)
    done = server.run(*TINY, *more, "--out", "run", cwd=place)
    assert done.status == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ") and said in done.stderr
    assert snapshot(run) == before


def test_r9_both_sides_of_three_differences_are_named_and_the_rest(server: ForkServer, place: Path, run: Path) -> None:
    """Another recipe may differ in thirty keys: three are enough to see that it is another."""
    done = server.run(*TINY, "training.seed=2", "network.d_ff=64", "--out", "run", cwd=place)
    refused(done, "training.seed", "1", "2", "network.d_ff", "32", "64", "--out", "--force")
    new = ("seed=2", "warmup=7", "clip=2", "label_smoothing=0", "batch_tokens=99", "schedule=cosine", "micro_batches=2")
    done = server.run(*TINY, *(f"training.{one}" for one in new), "--out", "run", cwd=place)
    assert done.status == 2 and done.stderr.count(" -> ") == 3
    assert "; and 4 more (its recipe is run/recipe.yaml). Give another folder" in done.stderr


def test_a_run_folder_goes_on_and_is_extended(server: ForkServer, place: Path, run: Path) -> None:
    """`train RUN`: from anywhere, with the recipe that the run keeps, and with more steps."""
    away = place / "away"
    away.mkdir()
    done = server.run("train", "../run", "--threads", "1", cwd=away)
    assert (done.status, done.stderr) == (0, "already finished: ../run, step 8\n")
    done = server.run("train", "../run", "training.steps=12", "--threads", "1", cwd=away)
    assert done.status == 0 and "resuming ../run from step 8" in done.stderr and "warning" not in done.stderr
    assert server.run(*TINY[:-1], "training.steps=12", "--out", "once", cwd=place).status == 0
    assert differences(run, place / "once") == []
    refused(server.run("train", "../run", "training.seed=2", cwd=away), "run of another recipe: training.seed: 1 -> 2")
    assert "steps: 12" in server.run("config", "show", "../run", cwd=away).stdout


def test_data_that_moved_are_the_same_data(server: ForkServer, place: Path, run: Path) -> None:
    """Files may have other names and folders where their records are equal; other records are refused by the path."""
    (place / "texts").mkdir()
    for name in ("train", "valid"):
        (place / f"{name}.tsv").rename(place / "texts" / f"my-{name}.tsv")
    moved = ["data.train.0.file=texts/my-train.tsv", "data.valid.0.file=texts/my-valid.tsv", "--out", "run"]
    assert "resuming run from step 8" in server.good(*TINY[:-1], "training.steps=12", *moved, cwd=place).stderr
    assert "already finished" in server.run("train", "run", "--threads", "1", cwd=place).stderr  # with the new paths
    put("texts/my-train.tsv", "A.\tB.\nC.\tD.\n")(place)
    refused(server.run(*TINY[:-1], "training.steps=14", *moved, cwd=place), "was trained on other data")
    put("texts/other.tsv", "A.\tB.\nC.\tD.\n")(place)
    moved[0] = "data.train.0.file=texts/other.tsv"
    said = "data.train.0.file: texts/my-train.tsv -> texts/other.tsv"
    refused(server.run(*TINY[:-1], "training.steps=14", *moved, cwd=place), said)


def test_a_runs_own_recipe_makes_it_again_elsewhere(server: ForkServer, place: Path, run: Path) -> None:
    """The same data, the same losses bit for bit, and not a warning; the original recipe still goes on with the run."""
    again = place / "away" / "again"
    again.parent.mkdir()
    shutil.copy(run / "recipe.yaml", again.parent / "mine.yaml")
    for number, recipe in enumerate((run / "recipe.yaml", "mine.yaml", run)):
        out = again.with_name(f"again-{number}")
        assert "warning" not in server.good("train", recipe, "--out", out, "--threads", "1", cwd=again.parent).stderr
        assert differences(out, place / "run") == []
    checked = server.run("config", "check", run / "recipe.yaml", cwd=place)
    assert (checked.stdout, checked.stderr) == ("ok\n", "")
    assert "already finished" in server.run(*TINY, "--out", again.with_name("again-0"), cwd=place).stderr


def test_a_recipe_with_a_tokenizer_and_a_first_model_is_usable_too(server: ForkServer, place: Path, run: Path) -> None:
    """Paths of `tokenizer` and `init` are kept whole; options that a task or `init` brings are not warned of."""
    away = place / "away"
    away.mkdir()
    for n, more in enumerate((["~tokenizer", "tokenizer.path=run/tokenizer"], ["init=run", "~network", "~tokenizer"])):
        out = place / f"first-{n}"
        assert server.run(*TINY, *more, "--out", out, cwd=place).status == 0
        done = server.run("train", out / "recipe.yaml", "--threads", "1", "--out", f"again-{n}", cwd=away)
        assert done.status == 0 and "warning" not in done.stderr, done.stderr
        assert differences(out, away / f"again-{n}") == []
        assert "already finished" in server.run(*TINY, *more, "--out", out, cwd=place).stderr


def test_a_run_begins_at_a_checkpoint_of_another(server: ForkServer, place: Path, run: Path) -> None:
    """`--from RUN@STEP`: unchanged, it is the other run bit for bit; with another rate it is not."""
    assert "starting from step 4 of run\n" in server.good(*TINY, "--out", "same", "--from", "run@4", cwd=place).stderr
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert tensors(last(place / "same") / name) == tensors(last(run) / name)
    assert [one for one in events(run, "train") if one["step"] > 4] == events(place / "same", "train")
    assert [one["step"] for one in events(place / "same", "checkpoint")] == [4, 8]
    again = [*TINY, "--out", "same", "training.steps=10"]
    assert "resuming same from step 8" in server.run(*again, "--from", "run@4", cwd=place).stderr
    assert "already finished: same, step 10" in server.run(*again, cwd=place).stderr
    refused(server.run(*again, "--from", "run@8", cwd=place), "same is a run that did not start from that checkpoint")
    changed = ["training.learning_rate=1e-3", "training.steps=9"]
    done = server.run(*TINY, *changed, "--from", "run@last", "--out", "b", cwd=place)
    assert done.status == 0 and [one["step"] for one in events(place / "b", "train")] == [9]


def test_what_no_run_can_begin_at_and_one_that_was_killed_goes_on(server: ForkServer, place: Path, run: Path) -> None:
    for given, said in (
        ("run", "--from must be RUN@STEP, such as runs/mine@500, runs/mine@best or @last: got 'run'"),
        ("none@4", "--from none@4: none is not a run"),
        ("run@5", "--from run@5: there is no such checkpoint; there are those of steps: 4, 8"),
        ("run@8", "--from run@8: `training.steps` must be above 8: got 8"),
        ("run@4 network.d_ff=64 network.dropout=0", "its network is not the recipe's: network.d_ff: 32 -> 64"),
        ("run@4 training.optimizer=muon", "optimizer state is that of adamw, and `training.optimizer` is muon"),
    ):
        refused(server.run(*TINY, "--out", "new", "--from", *given.split(), cwd=place), said)
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGKILL, "call": 2}
    command = [*TINY, "--out", "new", "--from", "run@4"]
    assert server.run(*command, cwd=place, fault="signal_in_call", **at).status == -signal.SIGKILL
    shutil.rmtree(run)
    assert "resuming new from step 4" in server.run("train", "new", "--threads", "1", cwd=place).stderr


def test_r9_force_moves_the_old_folder_aside(server: ForkServer, place: Path, run: Path) -> None:
    before = snapshot(run)
    command = [*TINY, "training.seed=2", "--out", "run", "--force"]
    assert server.good(*command, cwd=place).stderr.startswith("moved the old folder to run.old-1\n")
    assert snapshot(place / "run.old-1") == before
    assert "training.seed" not in server.run(*command[:-1], cwd=place).stderr  # it is a run of the new recipe now
    assert server.run(*command, cwd=place).status == 0
    assert sorted(path.name for path in place.glob("run*")) == ["run", "run.old-1", "run.old-2"]


def test_r9_a_tokenizer_folder_that_changed_is_refused(server: ForkServer, place: Path) -> None:
    made = [*("tokenizer", "train", "train.tsv", "--kind", "bpe", "--vocab-size"), "--out", "tok"]
    assert server.run(*made[:-2], "340", *made[-2:], cwd=place).status == 0
    command = [*TINY, "~tokenizer", "tokenizer.path=tok", "--out", "run"]
    assert server.run(*command, cwd=place).status == 0
    shutil.move(place / "tok", place / "moved")
    assert "already finished" in server.run(*command, cwd=place).stderr  # the run has a copy of its own
    assert server.run(*made[:-2], "350", *made[-2:], cwd=place).status == 0
    done = server.run(*command, cwd=place)
    assert done.status == 2 and "was trained with another tokenizer: " in done.stderr
    assert done.stderr.endswith("tok has changed. Use --out or --force\n")


def test_r9_threads_device_and_version_are_only_warned_of(server: ForkServer, place: Path, run: Path) -> None:
    kept = json.loads((run / "run.json").read_text(encoding="utf-8"))
    kept |= {"deterministic_from": "2.10.0", "device": "cuda"}
    (run / "run.json").write_text(json.dumps(kept), encoding="utf-8")
    done = server.good("train", "tiny.yaml", "training.steps=10", "--out", "run", "--threads", "2", cwd=place)
    assert "warning: the run started with 1 threads and continues with 2 threads: results agree up to" in done.stderr
    assert "warning: the run started on cuda and continues on cpu: results agree up to rounding only" in done.stderr
    assert "warning: the run started with torch 2.10.0 and continues with torch 2." in done.stderr
    assert [event["step"] for event in events(run, "train")] == [4, 8, 10]


def test_r9_without_threads_the_run_keeps_its_own_number(server: ForkServer, place: Path) -> None:
    command = ("train", "tiny.yaml", "training.warmup=1", "--out", "run")
    assert server.run(*command, "training.steps=2", "--threads", "2", cwd=place).status == 0
    assert "warning" not in server.good(*command, "training.steps=3", cwd=place).stderr
    assert facts(last(place / "run"))["threads"] == 2


def test_a_finished_run_is_left_alone_and_more_steps_extend_it(server: ForkServer, place: Path, run: Path) -> None:
    """8 steps, then 16: both ends are in the journal's place."""
    before = snapshot(run)
    for more in ([], ["training.log_every=1"], ["training.keep=1", "name=other"]):
        done = server.run(*TINY, *more, "--out", "run", cwd=place)
        assert (done.status, done.stdout, done.stderr) == (0, "", "already finished: run, step 8\n")
    assert snapshot(run) == before
    listed = server.run("runs", place, cwd=place)
    assert "finished" in listed.stdout and "unfinished" not in listed.stdout
    command = [*TINY[:-1], "training.steps=16"]
    assert "resuming run from step 8" in server.good(*command, "--out", "run", cwd=place).stderr
    assert [event["step"] for event in read_journal(run / "metrics.jsonl") if event["event"] == "end"] == [16]
    assert "steps: 16" in (run / "recipe.yaml").read_text(encoding="utf-8")
    updates = int(server.run(*command, "--out", "x", cwd=place).stderr.split(" updates an epoch")[0].split()[-1])
    assert server.run(*command[:-1], "training.epochs=1.5", "--out", "run", cwd=place).status == 0
    assert [event["step"] for event in events(run, "end")] == [round(1.5 * updates)]


def test_fewer_steps_that_were_just_reached_end_an_unfinished_run(server: ForkServer, place: Path) -> None:
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGTERM, "call": 5}
    assert server.run(*TINY, "--out", "run", cwd=place, fault="signal_in_call", **at).status == 75
    done = server.run(*TINY, "training.steps=5", "--out", "run", cwd=place)
    assert done.status == 0 and [event["step"] for event in events(place / "run", "valid")] == [5]
    assert "already finished: run, step 5" in server.run(*TINY, "training.steps=5", "--out", "run", cwd=place).stderr


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"])
def test_r4_a_damaged_checkpoint_gives_way(server: ForkServer, place: Path, run: Path, ended: Path, name: str) -> None:
    flip(run / "checkpoints" / "step-00000008" / name)
    used = server.run("translate", "run", "--beam", "1", cwd=place, stdin="A cat.\n")
    # the best is looked for and then the last, of one folder: one warning
    assert used.status == 0 and name in used.stderr and used.stderr.count("it is skipped") == 1
    assert used.stderr.startswith("warning: ") and (run / "checkpoints" / "step-00000008").is_dir()
    done = server.run(*TINY, "--out", "run", cwd=place)
    assert done.status == 0 and "resuming run from step 4" in done.stderr and name in done.stderr
    assert differences(run, ended) == []
    assert [path.name for path in (run / "checkpoints").glob("*.bad")] == ["step-00000008.bad"]


def test_r4_all_checkpoints_damaged(server: ForkServer, place: Path, run: Path) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        flip(path / "model.safetensors")
    used = server.run("translate", "run", cwd=place, stdin="A cat.\n")
    assert used.status == 1 and "error: every checkpoint of the run run is damaged\n" in used.stderr
    for _ in range(2):
        done = server.run(*TINY, "--out", "run", cwd=place)
        bad = "every checkpoint of run is damaged (step-00000004.bad, step-00000008.bad); --force moves it aside"
        refused(done, bad, status=1)
    used = server.run("translate", "run", cwd=place, stdin="A cat.\n")
    assert used.status == 1 and "every checkpoint of the run run is damaged" in used.stderr
    assert server.run(*TINY, "--out", "run", "--force", cwd=place).status == 0


def test_a_damaged_journal_does_not_stop_a_run(server: ForkServer, place: Path, run: Path) -> None:
    journal = run / "metrics.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'{"event": "valid"', b'{"evnt": "valid"', 1))
    refused(server.run("runs", "show", "run", cwd=place), "metrics.jsonl:4: not an event")
    assert server.run(*TINY, "--out", "run", cwd=place).status == 0
    assert [event["event"] for event in read_journal(journal)][-1] == "end"
    assert "already finished" in server.run(*TINY, "--out", "run", cwd=place).stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "was removed"), (b"", "was removed"), (b"half", "was cut to"), (b"other", "was changed"), (b"same", "")],
)
def test_a_run_whose_events_were_changed_goes_on_and_says_so(
    server: ForkServer, place: Path, run: Path, content: bytes | None, said: str
) -> None:
    """Its metrics could be edited, cut or deleted, and the run resumed without a word (K12)."""
    journal = run / "metrics.jsonl"
    events = journal.read_bytes()
    new = {b"half": events[: len(events) // 2], b"other": events.replace(b"loss", b"lost", 1), b"same": events}
    journal.unlink() if content is None else journal.write_bytes(new.get(content, content))
    done = server.good(*TINY, "--out", "run", "training.steps=10", cwd=place)
    assert (f"metrics.jsonl {said} " in done.stderr) == bool(said) == ("put the file back" in done.stderr)
    assert "put the file back" not in server.good(*TINY, "--out", "run", "training.steps=12", cwd=place).stderr


def test_left_overs_of_killed_commands_are_cleared_away(server: ForkServer, place: Path) -> None:
    at = {"module": "atento.runs.run_tokenizer", "function": "tokenizer_for", "number": signal.SIGKILL}
    assert server.run(*TINY, "--out", "run", cwd=place, fault="signal_in_call", **at).status == -9
    (place / "run" / ".tokenizer-12345").mkdir()
    (place / "run" / "checkpoints" / f".tmp-4-{'0' * 32}").mkdir(parents=True)
    (place / "run" / "averaged" / f".tmp-4-{'0' * 32}").mkdir(parents=True)
    assert server.run(*TINY, "--out", "run", cwd=place).status == 0
    assert [path for path in (place / "run").rglob(".*") if path.name != ".lock"] == []


def test_r8_a_second_trainer_is_refused(server: ForkServer, place: Path) -> None:
    first = server.start("train", "tiny.yaml", "training.steps=4000", "--out", "run", "--threads", "1", cwd=place)
    until(lambda: (place / "run" / "checkpoints").exists(), 30)
    for more in ([], ["--force"]):
        refused(server.run(*TINY, "--out", "run", *more, cwd=place), f"folder run is in use by process {first.pid} on ")
    assert "unfinished" in server.good("runs", place, cwd=place).stdout
    os.kill(first.pid, signal.SIGKILL)
    first.end()
    assert server.run("train", "tiny.yaml", "training.steps=4000", "--seed", "3", "--out", "run", cwd=place).status == 2


def test_a_folder_in_which_nothing_was_trained_is_free(server: ForkServer, place: Path) -> None:
    """Refused for its data or after the tokenizer was made, or killed in the first step: another recipe may have it."""
    refused(server.run(*TINY, "data.train.0.file=trian.tsv", "--out", "run", cwd=place), "trian.tsv: no such file")
    done = server.run(*TINY, "network.vocab_size=7", "--out", "run", cwd=place)
    assert done.status == 2 and "`network.vocab_size` must be the tokenizer's: got 7 and 360" in done.stderr
    at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGKILL}
    killed = [*TINY, "--seed", "3", "tokenizer.vocab_size=350", "--out", "run"]
    assert server.run(*killed, cwd=place, fault="signal_in_call", **at).status == -9
    tokenizer = (place / "run" / "tokenizer" / "tokenizer.json").read_bytes()
    assert server.run(*TINY, "--out", "run", cwd=place).status == 0
    assert server.run(*TINY, "--out", "other", cwd=place).status == 0
    assert differences(place / "run", place / "other") == []
    assert (place / "run" / "tokenizer" / "tokenizer.json").read_bytes() != tokenizer


def test_folders_that_are_no_runs_are_refused(server: ForkServer, place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "letter.txt").write_text("Dear", encoding="utf-8")
    (place / "file").write_text("x", encoding="utf-8")
    refused(server.run(*TINY, "--out", "mine", cwd=place), "mine holds files and is not a run; give another folder")
    assert [path.name for path in (place / "mine").iterdir()] == ["letter.txt"]
    refused(server.run(*TINY, "--out", "file", cwd=place), "the run folder file is a file; give another with --out")
    refused(server.run(*TINY, "--out", "file/run", cwd=place), "folder file/run cannot be created: Not a directory")
    assert server.run(*TINY, "--out", "mine", "--force", cwd=place).status == 0
    assert (place / "mine.old-1" / "letter.txt").exists()


def test_what_a_run_folder_holds_here_and_elsewhere(server: ForkServer, place: Path, run: Path) -> None:
    """On valid the scores by name; nothing points out of the folder."""
    names = {"recipe.yaml", "run.json", "env.json", "metrics.jsonl", "train.log", "tokenizer", "checkpoints", ".lock"}
    assert {path.name for path in run.iterdir()} == names
    recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["training"]["steps"] == 8 and recipe["network"]["d_model"] == 16
    facts = json.loads((run / "env.json").read_text(encoding="utf-8"))
    sizes = {"parameters", "examples", "steps"}
    assert {"atento", "torch", "python", "system", "command", "started"} | sizes == set(facts)
    assert facts["command"].startswith("atento train tiny.yaml --threads 1 training.steps=8 --out ")
    identity = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert identity["precision"] == "float32" and identity["threads"] == 1 and len(identity["data"]) == 64
    files = {"config.json", "model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"}
    assert {path.name for path in last(run).iterdir()} == files | {"tokenizer.json", "tokenizer_config.json"}
    log = (run / "train.log").read_text(encoding="utf-8").splitlines()
    assert all(line[:19].count(":") == 2 and line[4] == "-" for line in log)
    assert any("step 8: validation nll" in line for line in log)
    found = read_journal(run / "metrics.jsonl")
    assert [(event["event"], event["step"]) for event in found] == [
        *(("train", 4), ("checkpoint", 4), ("train", 8), ("valid", 8), ("checkpoint", 8), ("end", 8))
    ]
    train, valid = {"loss", "nll", "learning_rate", "tokens_per_second", "gradient_norm"}, {"loss", "nll", "chrf"}
    for event in found:
        assert set(event) == {"event", "step"} | {"train": train, "valid": valid}.get(event["event"], set())
    first, second = events(run, "train")
    assert 0 < first["gradient_norm"] < 100 and second["loss"] < first["loss"] and 0 < second["learning_rate"] <= 5e-3
    assert first["loss"] != first["nll"]  # smoothing included, and without
    server.good("convert", "run", "--to", "atento", "--out", "copy", cwd=place)
    assert json.loads((place / "copy" / "config.json").read_text())["name"] == "tiny"  # not that of a checkpoint
    assert "\n# tiny\n" in (place / "copy" / "README.md").read_text()
    shutil.move(run, place / "moved")
    for name in ("train.tsv", "valid.tsv", "tiny.yaml"):
        (place / name).unlink()
    assert server.run("translate", "moved", cwd=place, stdin="A cat.\n").status == 0
    assert server.run("translate", last(place / "moved"), cwd=place, stdin="A cat.\n").status == 0


def test_train_events_are_means_over_real_targets(server: ForkServer, place: Path) -> None:
    """The event of four steps is the mean of theirs, weighed by their targets."""
    record = place / "ids"
    command = [*TINY[:-1], "training.steps=4"]
    assert server.run(*command, "training.log_every=1", "--out", "each", cwd=place, record=record).status == 0
    assert server.run(*command, "--out", "whole", cwd=place).status == 0
    tokenizer = Tokenizer.load(place / "each" / "tokenizer")
    pairs = [line.split("\t") for line in (place / "train.tsv").read_text(encoding="utf-8").splitlines()]
    targets = [len(tokenizer.encode(target)) + 1 for _, target in pairs]
    weights = [sum(targets[row] for part in rows for row in part) for rows, _ in batches(record).values()]
    each, (whole,) = events(place / "each", "train"), events(place / "whole", "train")
    for name in ("loss", "nll"):
        mean = sum(event[name] * weight for event, weight in zip(each, weights, strict=True)) / sum(weights)
        assert whole[name] == pytest.approx(mean, rel=1e-9)


def test_pairs_in_both_splits_are_counted_and_the_folder_has_the_recipes_name(server: ForkServer, place: Path) -> None:
    pairs = (place / "train.tsv").read_text(encoding="utf-8").splitlines()[:3]
    with (place / "valid.tsv").open("a", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(pairs) + "\n")
    done = server.run(*TINY, "--out", "run", cwd=place)
    assert "warning: 3 of 9 validation pairs of valid.tsv are also in the training data\n" in done.stderr
    assert server.run(*TINY, cwd=place).status == 0 and (place / "runs" / "tiny" / "run.json").exists()
    assert server.run(*TINY, "name=other", cwd=place).status == 0
    assert (place / "runs" / "other" / "run.json").exists()
    found = [line.split("\t")[:3] for line in server.run("runs", cwd=place).stdout.splitlines()]
    assert found == [[f"runs/{name}", "step 8", "finished"] for name in ("other", "tiny")]


def test_n1_a_process_with_another_hash_seed_makes_the_same_run(server: ForkServer, place: Path, ended: Path) -> None:
    """Not forked: Python's own hashes, and so the order of its sets, are other ones."""
    command = [sys.executable, "-c", "from atento_cli.main import main; main()", *TINY, "--out", "run-1"]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stdout == b"" and differences(place / "run-1", ended) == []
    write_tsv(place / "valid.tsv", "valid", 5)
    assert "other data" in server.run(*TINY, "--out", "run-1", cwd=place).stderr


def test_force_moves_nothing_before_the_data_and_the_recipe_are_found_right(server: ForkServer, here: Path) -> None:
    """A typed-wrong file once moved a good run aside first, and `--out . --force` the folder with recipe and texts."""
    (here / "run").unlink()
    shutil.copytree(here.parent / "trained", here / "run")
    before = sorted(path.name for path in here.iterdir())
    done = server.run("train", "tiny.yaml", "data.train.0.file=no.tsv", "--out", "run", "--force", cwd=here)
    refused(done, "no such file")
    assert sorted(path.name for path in here.iterdir()) == before and (here / "run" / "checkpoints").is_dir()
    for out in (".", "..", str(here)):
        refused(server.run("train", "tiny.yaml", "--out", out, "--force", cwd=here), "--force does not move")
    elsewhere = server.run("train", here / "tiny.yaml", "--out", here, "--force", cwd=here / "run")
    refused(elsewhere, "--force does not move")
    for using in (["--from", "run@last"], ["init=run"], ["tokenizer.path=run"]):
        refused(server.run("train", "tiny.yaml", *using, "--out", "run", "--force", cwd=here), "--force does not move")
    assert sorted(path.name for path in here.iterdir()) == before
    # `--force starts over`, as messages say: also where the recipe stands in the folder that is moved
    refused(server.run("train", "run", "training.steps=4", "--threads", "1", cwd=here), "Use --force to start over")
    anew = server.good("train", "run", "training.steps=4", "--threads", "1", "--force", cwd=here)
    assert "moved the old folder to run.old-1" in anew.stderr and last(here / "run").name == "step-00000004"
    assert last(here / "run.old-1").name == last(here.parent / "trained").name
