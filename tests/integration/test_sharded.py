"""Weights sharded among processes: the same run as with copies, checkpoints of shards, and processes that fail."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import atento
from conftest import ForkServer, each_refused, refused
from runs import differences, events, last
from test_replicas import SETTINGS, SMALL, TINY, finished, free_port, furthest, start, train

SHARDED = (*SETTINGS, "training.parallel.shard=2")


@pytest.fixture(scope="module")
def whole(server: ForkServer, data: Path, scratch: Path) -> Path:
    """The run in one process."""
    server.good("train", "tiny.yaml", "--out", scratch / "whole", *SETTINGS, cwd=data)
    return scratch / "whole"


def test_sharded_weights_train_as_whole_ones_and_any_size_goes_on(server: ForkServer, place: Path, whole: Path) -> None:
    """Stopped on 2 processes that divide the weights, continued on 1, stopped again, continued on 2."""
    file = "model-00002-of-00002.safetensors"
    for size, step, settings, expected in ((2, 3, SHARDED, file), (1, 7, SETTINGS, "model.safetensors")):
        fault = {"fault": "signalled", "step": step, "rank": size - 1, "number": int(signal.SIGTERM)}
        done = [running.end() for running in start(server, size, "--out", "run", *settings, cwd=place, **fault)]
        assert [process.status for process in done] == [75] * size, done
        assert (place / f"run/checkpoints/step-{step:08d}" / expected).exists()
    recorded = {"fault": "bytes_recorded", "folder": str(place)}
    finished(train(server, 2, "--out", "run", *SHARDED, "training.samples=2", cwd=place, **recorded))
    shown = events(place / "run", "sample")  # at steps 8 to 12, of weights that are gathered for the validation
    assert [event["number"] for event in shown] == [1, 2] and all(event["reference"] for event in shown)
    assert 0 <= furthest(whole, place / "run") < 5e-5 and furthest(whole, place / "run", "valid") < 5e-5
    scores = [[event["chrf"] for event in events(run, "valid")] for run in (whole, place / "run")]
    assert scores[0] == pytest.approx(scores[1], abs=0.5)  # a rounding may change a word
    parameters = sum(value.numel() for value in atento.load(whole).network.parameters())
    for rank in (0, 1):  # each has about half
        counted = json.loads((place / f"bytes-{rank}.json").read_text(encoding="utf-8"))
        for name, size in (("weights", 4), ("gradients", 4), ("optimizer", 8)):
            assert counted[name] == pytest.approx(size * parameters / 2, rel=0.05), (rank, name)
    model = atento.load(place / "run", device="cpu")
    assert model.translate([event["input"] for event in shown]) == [event["output"] for event in shown]
    assert "12" in server.good("runs", "show", "run", cwd=place).stdout
    assert server.run("average", "run", "--last", "2", cwd=place).status == 0


def test_a_process_killed_while_it_saves_leaves_the_one_before(server: ForkServer, place: Path, whole: Path) -> None:
    fault = {"fault": "killed_while_saving", "step": 8, "rank": 1}
    done = train(server, 2, "--out", "run", *SHARDED, cwd=place, **fault)
    assert done[1].status == -signal.SIGKILL
    refused(done[0], "another process has ended", status=1)
    assert "by peer" not in done[0].stderr and "by peer" in (place / "run" / "train.log").read_text(encoding="utf-8")
    assert last(place / "run").name == "step-00000006"
    finished(train(server, 1, "--out", "run", *SETTINGS, cwd=place))
    assert 0 <= furthest(whole, place / "run") < 5e-5


def test_a_shard_that_is_announced_before_it_is_written_makes_no_checkpoint(server: ForkServer, place: Path) -> None:
    """A planted bug: the manifest would name files that are not there."""
    fault = {"fault": "announced_before_written", "step": 8, "rank": 1}
    done = train(server, 2, "--out", "run", *SHARDED, cwd=place, **fault)
    refused(done[0], "the first one does not see it", status=1)
    assert done[1].status == 1 and last(place / "run").name == "step-00000006"


@pytest.mark.slow
def test_a_process_that_cannot_compute_or_drifts_ends_all(server: ForkServer, place: Path) -> None:
    done = train(server, 2, "--out", "run", *SHARDED, cwd=place, fault="memory_runs_out", step=6, rank=1)
    assert [process.status for process in done] == [1, 1], done
    assert "process 1 of 2: RuntimeError: DefaultCPUAllocator" in done[1].stderr
    assert "weights are sharded, so that all processes end" in done[1].stderr
    assert "another process has ended" in done[0].stderr
    done = train(server, 4, "--out", "drifts", *SHARDED, cwd=place, fault="weights_drift", step=6, rank=3)
    refused(done[0], "step 8: the weights of process 3 are not those of process 1", status=1)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_on_one_process_is_skipped_by_all(server: ForkServer, place: Path) -> None:
    for policy, action in (("skip", "the update is skipped"), ("rewind", "those of step 4 again")):
        settings = (*SHARDED, f"training.non_finite={policy}")
        done = train(server, 2, "--out", policy, *settings, cwd=place, fault="loss_not_finite", step=5, rank=1)
        finished(done)
        assert done[0].stderr.count(action) == 1


FAST = tuple(setting for setting in SMALL if "exact" not in setting)
LM, MLM, TENSE = "micro-world-lm", "micro-world-mlm", "micro-world-tense"


@pytest.mark.slow
@pytest.mark.parametrize(
    "size, recipe, more",
    [
        (2, LM, ("training.ema=0.9", *TINY)),
        (2, LM, ("network.output.tied=false", "training.activation_checkpointing=true", *TINY)),
        (2, LM, ("network.shared_layers=true", *TINY, "network.n_layers=2")),
        (2, LM, ("training.batch_tokens=60", "training.micro_batches=1", *TINY)),  # an update is one part
        (3, LM, TINY),
        (4, LM, ("training.precision=bfloat16", *TINY)),  # two copies of two shards
        (2, MLM, ("training.precision=bfloat16", *TINY)),
        (2, "micro-world-en-pt", ("training.precision=bfloat16", *TINY)),
        (2, "micro-world-en-pt", ("training.r_drop=5", *TINY)),
        (2, "micro-world-pos", TINY),
        (2, "micro-world-answers", TINY),
        (2, TENSE, ("init.model=base", "init.lora={}")),
        (4, TENSE, ("init.model=base", "init.lora={}")),
        (2, TENSE, ("init.model=base", "init.train=head")),
        (2, TENSE, ("init.model=base", "init.unfreeze.steps=1", "training.precision=float32")),
        (2, TENSE, ("init.model=base", "init.unfreeze.steps=1", "training.precision=bfloat16")),
    ],
)
def test_sharded_weights_train_any_task(server: ForkServer, place: Path, size: int, recipe: str, more: Any) -> None:
    if "init.model=base" in more:
        finished(train(server, 1, "--out", "base", *FAST, *TINY, cwd=place, recipe=MLM))
    shards = size if size != 4 else 2
    finished(train(server, 1, "--out", "whole", *FAST, *more, cwd=place, recipe=recipe))
    settings = (*FAST, *more, f"training.parallel.shard={shards}")
    finished(train(server, size, "--out", "run", *settings, cwd=place, recipe=recipe))
    for kind in ("train", "valid"):
        assert 0 <= furthest(place / "whole", place / "run", kind) < 5e-5


@pytest.mark.slow
def test_a_run_of_shards_that_was_killed_has_the_bits_of_one_that_was_not(server: ForkServer, place: Path) -> None:
    for step, rank in ((4, 0), (4, 1), (8, 0), (12, 1)):
        fault = {"fault": "killed_while_saving", "step": step, "rank": rank}
        done = train(server, 2, "--out", f"run-{step}-{rank}", *SHARDED, cwd=place, **fault)
        assert done[rank].status == -signal.SIGKILL
        finished(train(server, 2, "--out", f"run-{step}-{rank}", *SHARDED, cwd=place))
    finished(train(server, 2, "--out", "run", *SHARDED, cwd=place))
    for step, rank in ((4, 0), (4, 1), (8, 0), (12, 1)):
        assert differences(place / "run", place / f"run-{step}-{rank}") == []


def test_what_cannot_be_sharded_is_refused_with_the_reason(server: ForkServer, place: Path) -> None:
    shard = "training.parallel.shard=2"
    refusals = {
        "training.optimizer=muon": "it computes with whole matrices",
        "training.parallel.exact=true": "summed where each shard is",
        "training.log_update_ratios=true": "some rows of each weight",
        "": "shard` is 2, and 1 process was started: give --nproc 2",
    }
    each_refused(server, place, {f"train tiny.yaml {shard} {rest}": said for rest, said in refusals.items()})
    three = train(server, 3, "--out", "run", shard, cwd=place)
    refused(three[0], "shard` is 2, and 3 processes were started: give --nproc 2 or a multiple of it")
    assert [(process.status, process.stderr) for process in three[1:]] == [(2, "")] * 2
    before = {*place.rglob("*")}
    done = train(server, 2, "--out", "run", shard, "training.scheduled_sampling.share=0.5", cwd=place)
    refused(done[0], "weights outside of a pass")
    assert done[1].status == 2 and done[1].stderr == "" and {*place.rglob("*")} == before


def test_the_check_of_a_cluster_finds_a_difference(server: ForkServer, place: Path) -> None:
    for fault, status in ((None, 0), ("other_version", 1)):
        world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = ("doctor", "--cluster", "--folder", str(place))
        details = {"fault": fault} | ({} if fault is None else {"rank": 1})
        ranks = [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        done = [process.end() for process in [server.start(*command, cwd=place, env=env, **details) for env in ranks]]
        assert [process.status for process in done] == [status] * 2, done
        assert done[1].stdout == "" and "link 0 - 1" in done[0].stdout and "folder: lock" in done[0].stdout
        if fault is None:
            assert done[0].stdout.endswith("all processes can train together\n")
        else:
            assert "wrong: python differs: " in done[0].stdout and "2.7.18 on process 1" in done[0].stdout
    assert not list(place.glob(".atento-*"))
