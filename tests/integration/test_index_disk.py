"""An index whose writer dies at any of its system calls, is killed, or finds the disk full: the old one or the new."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atento.base.errors import DataError, UsageError
from atento.retrieval import text_index
from atento.retrieval.index_folder import INDEX, Document, State, read_index, read_state, writing
from atento.retrieval.text_index import Index
from conftest import in_small_process
from test_checkpoint_disk import on_a_small_disk
from test_checkpoint_kill import EVERY, every_death, folder  # noqa: F401


def ones(count: int) -> tuple[Any, Any]:
    return np.full((count, 4), 0.5, dtype=np.float32), np.ones(count, dtype=np.float32)


def made(index: Path, *texts: str) -> None:
    with writing(index, State("a-model", "0" * 64, 4, "float32", ())) as writer:
        writer.commit([writer.segment([Document(text, line) for line, text in enumerate(texts, 1)], *ones(len(texts)))])


def opened(path: Path) -> Index:
    """An index that asks no model."""
    text_index.search_vectors = lambda model, texts, **query: ones(len(texts))[0]  # in a process of its own
    index = Index(path)
    index._model = object()  # type: ignore[assignment]
    return index


def held(path: Path) -> list[str] | None:
    """The texts of an index; None: there is none."""
    try:
        _, segments = read_index(path)
    except (UsageError, DataError) as error:
        assert "is no index" in str(error) or "half written" in str(error), error
        return None
    return [one.document(row).text for one in segments for row in np.flatnonzero(one.alive).tolist()]


def one_of(*states: list[str] | None) -> Any:
    """After a death: one of these states, and the same command goes on and cleans up."""

    def check(trial: Path) -> None:
        assert held(trial) in states
        if held(trial) is None:
            made(trial, "a")
        opened(trial).add(["later"])
        after = held(trial)
        assert after is not None and after[-1] == "later"
        kept = {".lock", INDEX, *(entry.name for entry in read_state(trial).segments)}
        assert {path.name for path in trial.iterdir()} == kept

    return check


# What may die, the texts before it, those it may leave, and how many deaths it has at least.
CHANGES: dict[str, tuple[Any, list[str], tuple[list[str] | None, ...], int]] = {
    "making": (lambda trial: made(trial, "a", "b"), [], (None, ["a", "b"]), 20),
    "adding with a merge": (lambda trial: opened(trial).add(["b", "c"]), ["a"], (["a"], ["a", "b", "c"]), 20),
    "taking out": (lambda trial: opened(trial).remove(["a"]), [*"abc"], ([*"abc"], ["b", "c"]), 15),
}


@EVERY
@pytest.mark.parametrize("number", range(len(CHANGES)), ids=list(CHANGES))
@in_small_process
def test_changing_an_index_may_die_anywhere(folder: Path, number: int, every: int) -> None:  # noqa: F811
    work, before, states, least = [*CHANGES.values()][number]
    prepare = (lambda trial: made(trial, *before)) if before else (lambda trial: None)
    assert every_death(folder, prepare, work, one_of(*states), every) > least // every


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_index_disk import opened
index, number = opened(Path(sys.argv[1])), 0
print("ready", flush=True)
while True:
    index.add([f"t{number}"])
    number += 1
    if number % 3 == 0:
        index.remove([f"t{number - 2}"])
"""


def test_a_writer_that_is_killed_leaves_whole_states_that_a_reader_sees(tmp_path: Path) -> None:
    """SIGKILL in the middle of changes, and a reader beside a writer: numbers without a gap but for those taken out."""
    made(tmp_path / "i", "first")
    command = [sys.executable, "-c", WRITER, str(tmp_path / "i"), str(Path(__file__).parent)]
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        seen, until = [], time.monotonic() + 3
        try:
            while time.monotonic() < until:
                seen.append(held(tmp_path / "i"))
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    seen.append(held(tmp_path / "i"))
    assert len({len(texts or ()) for texts in seen}) > 2  # it was changed meanwhile
    for texts in seen:
        assert texts is not None and texts[0] == "first"
        numbers = [int(re.fullmatch(r"t(\d+)", text)[1]) for text in texts[1:]]  # type: ignore[index]
        last = max(numbers, default=-1)
        full = set(range(last + 1))
        gone = {number for number in full if number % 3 == 1}
        assert full - gone <= set(numbers) and gone - set(numbers) >= {number for number in gone if number < last - 2}
    opened(tmp_path / "i").add(["later"])


FULL = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_index_disk import held, made, opened
from atento.base.errors import AtentoError

disk = Path(sys.argv[1])
made(disk / "i", "a", "b")
for work in (lambda: opened(disk / "i").add(["x" * 300_000]), lambda: made(disk / "j", "x" * 300_000)):
    try:
        work()
    except AtentoError as error:
        print(type(error).__name__, error)
print(held(disk / "i"), held(disk / "j"), sorted(os.listdir(disk / "i")), sorted(os.listdir(disk / "j")))
print(opened(disk / "i").add(["c"]), held(disk / "i"))
"""


def test_a_full_disk_leaves_the_old_index(tmp_path: Path) -> None:
    here = Path(__file__).parent
    script = FULL.format(paths=[str(here), str(here.parent), str(here.parent / "unit")])
    disk = tmp_path / "disk"
    *errors, left, after = on_a_small_disk(disk, script, 200_000).splitlines()
    said = "AtentoError the index {} cannot be written: No space left on device"
    assert errors == [said.format(disk / name) for name in "ij"]
    assert left == "['a', 'b'] None ['.lock', 'index.json', 'segment-00000001.safetensors'] ['.lock']"
    assert after == "1 ['a', 'b', 'c']"
