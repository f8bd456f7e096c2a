"""How a run ends and what it keeps: best, stopped early, averaged; and what a person sees of it meanwhile."""

import itertools
import json
import os
import pty
import re
import select
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from atento.base.errors import CheckpointError, UsageError
from atento.models.model_folder import find_model
from atento.storage.average_weights import average_run
from atento.storage.checkpoint import load_checkpoint, save_checkpoint
from conftest import Done, ForkServer
from failing import fails
from runs import events, facts, last, tensors

TINY = ["train", "tiny.yaml", "--threads", "1"]
RISING = ["training.learning_rate=3", "training.warmup=60"]  # a rate that climbs until nothing is learnt any more


@pytest.fixture(scope="module")
def run(server: ForkServer, data: Path, scratch: Path) -> Path:
    """24 steps, checkpoints at 4, 8 ... 24, of which six are kept."""
    server.good(*TINY, "training.keep=6", "--out", scratch / "kept", cwd=data)
    return scratch / "kept"


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


@pytest.mark.parametrize("metric", ["nll", "chrf", "ter"])
def test_best_is_the_lowest_loss_and_error_and_the_highest_score(server: ForkServer, place: Path, metric: str) -> None:
    """`best` goes by the first metric of the recipe (the loss where there is none); ter is an error rate."""
    metrics = "metrics=[]" if metric == "nll" else f"metrics=[{metric}]"
    more = [*RISING, "training.validate_every=1", "training.steps=16", "training.keep=20", "decoding.max_new_tokens=16"]
    more += ["tokenizer.kind=word", metrics]  # whole words, so that ter has something to count
    done = server.good(*TINY, *more, "--out", "run", cwd=place)
    scores = {event["step"]: event[metric] for event in events(place / "run", "valid")}
    best = max(scores.values()) if metric == "chrf" else min(scores.values())
    first = min(step for step, score in scores.items() if score == best)
    assert len(set(scores.values())) > 1 and find_model(place / "run").name == f"step-{first:08d}"
    assert f"best validation score {best:.2f} at step {first}" in done.stderr


@pytest.mark.parametrize("metrics", ["[bleu, chrf]", "[{bleu: {tokenize: 13a}}, chrf]"])
def test_chinese_is_loaded_at_its_best(server: ForkServer, place: Path, metrics: str) -> None:
    """A first metric that is 0 throughout leaves the choice to the next, or the loss, and neither ends the run."""
    words = zip(("I", "you"), "我你"), zip(("read", "buy", "see"), "读买看"), zip(("books", "fish"), "书鱼")
    every = itertools.product(*words)
    rows = [f"{a} {b} new {c} today\t{one}今天{two}新的{three}\n" for (a, one), (b, two), (c, three) in every]
    for name in ("train.tsv", "valid.tsv"):
        (place / name).write_text("".join(rows), encoding="utf-8")
    size = ["network.d_model=32", "tokenizer.kind=character", "decoding.max_new_tokens=10", "network.dropout=0"]
    train = ["training.validate_every=15", "training.checkpoint_every=15", "training.learning_rate=1e-2"]
    given = [*TINY, *size, *train, "training.steps=90", "training.keep=1", "data.folder=.", f"metrics={metrics}"]
    given += ["training.early_stop=2", "training.average=2", "--out", "run"]
    done = server.good(*given, cwd=place)
    found = events(place / "run", "valid")
    by = "chrf" if "13a" in metrics else "bleu"
    scores = {event["step"]: event[by] for event in found}
    best = max(scores.values())
    assert scores[15] < best and best > 90, scores
    loaded = find_model(place / "run")
    if loaded.parent.name == "checkpoints":
        assert scores[int(loaded.name[5:])] == best
    else:
        assert [facts(loaded)["score"], *facts(loaded)["ties"]][0 if by == "bleu" else 1] >= best
    still = "warning: bleu was 0 in all" in done.stderr
    assert still == (by != "bleu") and [event["bleu"] > 50 for event in found][-1] == (by == "bleu")
    assert scores[json.loads(server.run("runs", "show", "run", "--json", cwd=place).stdout)["best"]["step"]] == best


def test_the_newest_are_kept_and_the_best_between_checkpoints(run: Path, server: ForkServer, place: Path) -> None:
    """Validated at 3, 6, 9 ... with checkpoints at 10, 20 alone: the best has its checkpoint all the same."""
    more = [*RISING, "metrics=[]", "training.validate_every=3", "training.checkpoint_every=10", "training.keep=1"]
    server.good(*TINY, *more, "--out", "run", cwd=place)
    scores = {event["step"]: event["nll"] for event in events(place / "run", "valid")}
    best = min(scores, key=lambda step: scores[step])
    assert best % 10 and best != 24 and steps(place / "run" / "checkpoints") == [best, 24]
    assert find_model(place / "run").name == f"step-{best:08d}"
    assert steps(run / "checkpoints") == [4, 8, 12, 16, 20, 24]
    assert server.run(*TINY, "training.keep=2", "~data.valid", "--out", "two", cwd=place).status == 0
    assert steps(place / "two" / "checkpoints") == [20, 24]


def test_early_stop_after_validations_without_a_better_one_also_over_a_resume(server: ForkServer, place: Path) -> None:
    more = [*RISING, "metrics=[]", "training.validate_every=2", "training.early_stop=3", "training.steps=400"]
    done = server.good(*TINY, *more, "--out", "run", cwd=place)
    scores = [event["nll"] for event in events(place / "run", "valid")]
    best = scores.index(min(scores))
    assert len(scores) == best + 4 and (len(scores) * 2) < 400
    end = 2 * len(scores)
    assert f"step {end}: no better nll in 3 validations; stopping early" in done.stderr
    assert f"finished run at step {end}, best validation score {min(scores):.2f} at step {2 * best + 2}" in done.stderr
    assert (find_model(place / "run").name, last(place / "run").name) == (f"step-{2 * best + 2:08d}", f"step-{end:08d}")
    warning, said = server.run(*TINY, *more[:-1], "training.steps=800", "--out", "run", cwd=place).stderr.splitlines()
    assert warning.endswith("training.learning_rate 3 is far above the usual range (1e-5 to 1e-2)")
    assert said == f"already finished: run, step {end}"  # it ended by itself: more steps do not revive it
    for call in (5, 2, 3):
        at = {"module": "atento.training.loop", "function": "learning_rate", "number": signal.SIGTERM, "call": call}
        assert server.run(*TINY, *more, "--out", "cut", cwd=place, fault="signal_in_call", **at).status in (75, 0)
    assert server.run(*TINY, *more, "--out", "cut", cwd=place).status == 0
    assert last(place / "cut").name == last(place / "run").name
    assert events(place / "cut", "valid") == events(place / "run", "valid")


def test_f12_the_average_is_the_mean_in_float64_of_scheduled_checkpoints(run: Path, place: Path) -> None:
    shutil.copytree(run, place / "run")
    averaged = average_run(place / "run", 3)
    assert (len(averaged.names), averaged.score) == (3, None)
    parts = [load_file(run / "checkpoints" / f"step-000000{n}" / "model.safetensors") for n in (16, 20, 24)]
    found = load_file(averaged.path / "model.safetensors")
    assert found.keys() == parts[0].keys()
    for name, value in found.items():
        mean = sum(part[name].double() for part in parts) / 3
        assert torch.equal(value, mean.to(torch.float32)) and value.dtype == torch.float32, name
    content = facts(averaged.path)
    assert content["averaged"] == ["step-00000024", "step-00000020", "step-00000016"] and content["step"] == 24
    assert load_checkpoint(averaged.path).optimizer == {}
    assert tensors(average_run(place / "run", 1).path / "model.safetensors") == tensors(last(run) / "model.safetensors")
    assert len(average_run(place / "run", 50).names) == 6
    beside = place / "run" / "checkpoints" / "step-00000020" / "state.json"  # as if it had been saved by a stop
    beside.write_text(beside.read_text("utf-8").replace('"scheduled": true', '"scheduled": false'), encoding="utf-8")
    averaged, most = average_run(place / "run", 2), average_run(place / "run", 50)
    assert averaged.names == ("step-00000024", "step-00000016") and len(most.names) == 5
    assert averaged.skipped == most.skipped == ("step-00000020",)


def test_a_checkpoint_that_was_kept_as_the_best_is_not_averaged_with_the_last(run: Path, place: Path) -> None:
    shutil.copytree(run, place / "run")
    for step in (12, 16):  # deleted, as `keep` has it
        shutil.rmtree(place / "run" / "checkpoints" / f"step-{step:08d}")
    averaged = average_run(place / "run", 3)
    assert averaged.names == ("step-00000024", "step-00000020")
    assert averaged.skipped == ("step-00000008", "step-00000004")


def test_best_chooses_the_better_and_what_stands_between_steps_is_not_averaged(run: Path, place: Path) -> None:
    shutil.copytree(run, place / "run")
    here = place / "run"
    scored = facts(find_model(here))["score"]
    for score, chosen in ((scored - 1, False), (scored, False), (scored + 1, True)):
        assert (average_run(here, 2, score=lambda _, score=score: [score]).path == find_model(here)) == chosen, score
    average_run(here, 2)  # not scored: never the best
    assert find_model(here).parent.name == "checkpoints"
    kept = load_checkpoint(place / "run" / "checkpoints" / "step-00000024")
    parts = {"config": kept.config, "weights": kept.weights, "optimizer": {}, "run_id": kept.run_id}
    save_checkpoint(place / "run" / "checkpoints", 22, state={"scheduled": False}, **parts)  # a signal asked for it
    average_run(place / "run", 2)
    assert facts(place / "run" / "averaged" / "step-00000024")["averaged"] == ["step-00000024", "step-00000020"]


def test_a_recipe_that_averages_scores_the_average_and_decides(server: ForkServer, place: Path) -> None:
    """Validation's own score of the mean weights, from the right network; `best` is the better of both."""
    more = ["metrics=[]", "training.average=3", "training.validate_every=4"]
    done, here = server.run(*TINY, *more, "--out", "run", cwd=place), place / "run"
    score = -facts(here / "averaged" / "step-00000024")["score"]
    assert f"averaged the last 3 checkpoints: nll {score:.2f}\n" in done.stderr
    best = min(event["nll"] for event in events(here, "valid"))
    assert (find_model(here).parent.name == "averaged") == (score < best)
    server.good("evaluate", here / "averaged" / "step-00000024", "valid.tsv", "--metrics", "chrf", cwd=place)
    # the mean of weights that still learn lies behind the last of them, so its loss lies between first and last
    losses = [event["nll"] for event in events(here, "valid")]
    assert min(losses[-3:]) - 0.1 < score < max(losses[-3:]) + 0.1


def test_average_by_hand(server: ForkServer, run: Path, place: Path) -> None:
    shutil.copytree(run, place / "run")
    done = server.run("average", "run", "--last", "2", cwd=place)
    assert (done.status, done.stdout) == (0, "run/averaged/step-00000024\n")
    assert done.stderr == "averaged 2 checkpoints: step-00000024, step-00000020\n"
    assert server.run("translate", "run/averaged/step-00000024", cwd=place, stdin="A cat.\n").status == 0
    missing = server.run("average", "nothing", cwd=place)
    assert missing.status == 2 and missing.stderr == "error: nothing has no checkpoint to average\n"
    weights = place / "run" / "checkpoints" / "step-00000020" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    done = server.run("average", "run", cwd=place)
    assert done.status == 1 and "step-00000020: model.safetensors has" in done.stderr
    fails(CheckpointError, "step-00000020", average_run, place / "run", 3)
    fails(UsageError, "has no checkpoint to average", average_run, place, 3)


def test_n3_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_step(server: ForkServer, place: Path) -> None:
    more = ["training.clip=0", "training.checkpoint_every=1"]
    done = server.run(*TINY, *more, "--out", "run", cwd=place, fault="rate_explodes")
    assert done.status == 1 and done.stdout == ""
    assert re.search(r"error: step \d: the (loss|gradient) is not finite \(loss \S+, gradient norm \S+\)", done.stderr)
    assert "Lower `training.learning_rate` or raise `training.warmup`" in done.stderr
    assert all(torch.isfinite(value).all() for value in load_file(last(place / "run") / "model.safetensors").values())


def on_a_terminal(server: ForkServer, *argv: object, cwd: Path) -> tuple[Done, str]:
    """A command whose standard error is a terminal, and all that the terminal was sent."""
    ours, theirs = pty.openpty()
    running = server.start(*argv, cwd=cwd, stderr=Path(os.ttyname(theirs)))
    shown, deadline = b"", time.monotonic() + 60
    status = None
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.01)[0]:
            shown += os.read(ours, 65536)
        elif status is not None:
            break
        else:
            status = running.status()
    os.close(theirs)
    os.close(ours)
    assert status is not None
    return running.told(status), shown.decode("utf-8", "replace")


def test_a_bar_on_a_terminal(server: ForkServer, place: Path) -> None:
    done, shown = on_a_terminal(server, *TINY, "training.steps=60", "--out", "run", cwd=place)
    assert done.status == 0 and done.stdout == "" and "\x1b[" in shown and re.search(r"step\s.{0,20}\d+/60", shown)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "step 8: validation nll" in plain and "finished run at step 60" in plain
    assert "tokens/s, " not in plain  # the line's "left" is the bar's own business
    log = (place / "run" / "train.log").read_text(encoding="utf-8")
    assert log.count(": loss ") == 15 and "\x1b" not in log


def test_quiet_lines_in_a_file_and_whoever_read_them_may_leave(server: ForkServer, place: Path) -> None:
    """`atento train ... 2>&1 | head -1`: training goes on to its end, and the run's own log has it all."""
    done = server.run(*TINY, "--out", "run", cwd=place)
    assert "\x1b" not in done.stderr and "\r" not in done.stderr
    lines = done.stderr.splitlines()
    assert sum(bool(re.fullmatch(r"step \d+: loss .* tokens/s, .* left", line)) for line in lines) == 6
    assert sum(bool(re.fullmatch(r"step \d+: validation nll \d\.\d{3}, chrf \d+\.\d\d", line)) for line in lines) == 3
    assert "60 pairs" in lines[1] and "cpu, float32, 1 thread; run folder run" in lines[1] and done.stdout == ""
    os.mkfifo(place / "said")
    running = server.start(*TINY, "--out", "left", cwd=place, stderr=place / "said")
    with (place / "said").open(encoding="utf-8") as reader:
        assert reader.readline()
    assert running.end().status == 0 and last(place / "left").name == "step-00000024" and events(place / "left", "end")
    assert "step 24: validation" in (place / "left" / "train.log").read_text(encoding="utf-8")
