"""`atento bench sharing` with toy contenders: each setting has its variables and threads; the ratios by hand."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from atento.base.start_up import LONG_WAITS, SHORT_WAITS, machine_environment
from benchmarks import sharing
from benchmarks.sharing import SITUATIONS, Job, jobs_in, measure_sharing

NAMES = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")


class Toy:
    """Returns the variables of OpenMP and the threads of its process."""

    def load(self, *arguments: Any) -> None:
        """Do nothing."""

    def run(self, work: Any) -> tuple[dict[str, str], int]:
        """Return what the process has."""
        return {name: os.environ[name] for name in NAMES if name in os.environ}, torch.get_num_threads()


class Other(Toy):
    """The same, as another library."""

    other_library = True


TOYS = Job(Toy, Other, (), (), "work", 7)


def test_each_setting_has_its_variables_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(sharing, "Side", lambda kind, **options: made.append(options))
    names = [name for name, _ in sharing._sides(TOYS)]
    theirs = machine_environment()
    assert dict(zip(names, made)) == {
        "default": {"environment": theirs | SHORT_WAITS, "threads": None},
        "long waits": {"environment": theirs | LONG_WAITS, "threads": None},
        "no waits": {"environment": theirs | {"OMP_WAIT_POLICY": "passive"}, "threads": None},
        "one thread": {"environment": theirs | SHORT_WAITS, "threads": 1},
        "transformers": {},
    }


@pytest.mark.slow  # four processes that import torch
def test_the_processes_have_the_variables_and_threads_of_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"default": (SHORT_WAITS, None), "long waits": (LONG_WAITS, 1)}
    monkeypatch.setattr(sharing, "SETTINGS", few)
    monkeypatch.setattr(sharing, "jobs_in", lambda folder: {"toy": TOYS})
    monkeypatch.setattr(sharing.time, "sleep", lambda seconds: None)
    seen: dict[str, Any] = {}
    before = sharing.alternate

    def alternate(sides: Any, work: Any, seconds: float, rounds: int) -> Any:
        measured = before(sides, work, seconds, rounds)
        seen.update({name: runs[0].result for name, runs in measured.items()})
        return measured

    monkeypatch.setattr(sharing, "alternate", alternate)
    rows = list(measure_sharing(0.0, situations=("nothing",), rounds=1))
    threads = torch.get_num_threads()
    theirs = {name: value for name, value in machine_environment().items() if name in NAMES}
    assert seen["default"] == (theirs | SHORT_WAITS, threads) and seen["transformers"] == (theirs, threads)
    assert seen["long waits"] == (theirs | LONG_WAITS, 1)
    assert [row["who"] for row in rows[1:-1]] == [*few, "transformers"]
    assert rows[-1]["goal"] == 1.15 and rows[-1]["beside"] == "nothing"


def test_programs_run_beside_and_end_and_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"default": 80.0, "long waits": 20.0, "no waits": 100.0, "one thread": 50.0, "transformers": 10.0}
    row = sharing._ratio("toy", "nothing", rates, 1.15)
    assert (row["best"], row["time_to_that_of_the_best_setting"]) == ("no waits", 1.25)
    assert (row["speed_to_long_waits"], row["speed_to_transformers"]) == (4.0, 8.0)
    monkeypatch.setattr(sharing.time, "sleep", lambda seconds: None)
    started: list[Any] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(sharing.subprocess, "Popen", start)
    with sharing._beside(SITUATIONS["two programs of one thread"]):
        assert [program.poll() for program in started] == [None, None]
    assert all(program.poll() is not None for program in started)


@pytest.mark.slow  # writes models of full size
def test_the_jobs_are_those_that_are_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sharing.finetuning_sides, "write_classifier"), (sharing.decoding_sides, "write_weights")):
        monkeypatch.setattr(module, name, lambda *arguments: None)
    monkeypatch.setattr(sharing.encoding_sides, "write_encoder", lambda *arguments: None)
    jobs = jobs_in(tmp_path)
    assert {"training tiny", "training MiniLM", "training Transformer-base", "reading"} <= jobs.keys()
    assert jobs["decoding one sentence"].goal == 1.2 and jobs["decoding 16 sentences"].units == 16 * 24
    ours = jobs["training tiny"].ours()
    ours.load(*jobs["training tiny"].arguments)
    theirs = jobs["training tiny"].theirs()
    theirs.load(*jobs["training tiny"].theirs_arguments)
    assert ours.run(1) == pytest.approx(4096, rel=0.1) and theirs.run(1) == pytest.approx(4096, rel=0.1)
