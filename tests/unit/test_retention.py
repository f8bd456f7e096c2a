"""Retention never deletes the newest good checkpoint, the best, a protected one or another run's (R6)."""

import contextlib
import errno
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st

from atento.base.errors import UsageError
from atento.storage import checkpoint
from atento.storage.checkpoint import best, clean, newest, prune, save_checkpoint
from atento.storage.checkpoint_list import CheckpointFolder, discard, list_checkpoints
from checkpoints import names
from failing import fails

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # fsync costs nothing there
LARGE = st.sampled_from([9_999, 10_000, 99_999_999, 100_000_000, 2_000_000_000])
STEPS = st.one_of(st.integers(0, 30), LARGE, LARGE)
FILES = ["model.safetensors", "state.json", "MANIFEST.json"]


def save(folder: Path, step: int, score: float | None = None, run_id: str = "a") -> Path:
    tensor = {"w": torch.full((2,), float(step))}
    return save_checkpoint(folder, step, config={}, weights=tensor, optimizer={}, state={"score": score}, run_id=run_id)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1
    path.write_bytes(content)


@dataclass
class Known:
    """A checkpoint as the test knows it, without reading it."""

    run: str
    step: int
    score: float | None
    damaged: str | None = None


class Retention(stateful.RuleBasedStateMachine):
    """Two runs in one folder, damage, clocks that jump, deletions that fail; survivors are computed independently."""

    prune: Callable[..., list[int]] = staticmethod(prune)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.known: dict[Path, Known] = {}
        self.patch = pytest.MonkeyPatch()

    @stateful.initialize()
    def other_peoples_things(self) -> None:
        (self.folder / "step-notes").mkdir()
        (self.folder / "notes.txt").write_text("ours\n", encoding="utf-8", newline="")
        (self.folder / "step-00000077").symlink_to(self.folder / "step-notes")
        (self.folder / "step-00000078").write_bytes(b"a file")

    @stateful.rule(
        steps=st.lists(STEPS, min_size=1, max_size=5),
        score=st.sampled_from([None, None, -1.0, 0.0, 1.0, 2.0]),
        run=st.sampled_from("aaab"),
    )
    def save(self, steps: list[int], score: float | None, run: str) -> None:
        for step in steps:
            path = self.folder / f"step-{step:08d}"
            there = self.known.get(path)
            if there is None or there.run == run:
                assert save(self.folder, step, score, run) == path
                self.known[path] = Known(run, step, score)

    @stateful.precondition(lambda self: self.known)
    @stateful.rule(data=st.data(), file=st.sampled_from(FILES), at=st.integers(0, 99))
    def damage(self, data: st.DataObject, file: str, at: int) -> None:
        path = data.draw(st.sampled_from(sorted(self.known)))
        if self.known[path].damaged is None:
            flip(path / file, at)
            self.known[path].damaged = file

    @stateful.precondition(lambda self: self.known)
    @stateful.rule(count=st.integers(1, 3), at=st.integers(0, 99))
    def damage_the_last(self, count: int, at: int) -> None:
        """What a failing disk does: the youngest are the ones that did not reach it."""
        for path in sorted(self.known, key=lambda path: self.known[path].step)[-count:]:
            if self.known[path].damaged is None:
                flip(path / "model.safetensors", at)
                self.known[path].damaged = "model.safetensors"

    @stateful.precondition(lambda self: self.known)
    @stateful.rule(seed=st.integers(0, 9))
    def clocks_jump(self, seed: int) -> None:
        source = random.Random(seed)
        for path in sorted(self.known):
            os.utime(path, (source.randrange(1 << 31),) * 2)

    @stateful.rule(
        fail=st.sampled_from(["", "", "", "rename", "rmdir"]),
        keep=st.integers(1, 3),
        protect=st.sets(STEPS, max_size=2),
    )
    def retention(self, fail: str, keep: int, protect: set[int]) -> None:
        ours = sorted(item.step for item in self.known.values() if item.run == "a" and item.damaged != "MANIFEST.json")
        good = [item for item in self.known.values() if item.run == "a" and item.damaged is None]
        stay = {*ours[-keep:], *protect}
        if good:
            stay.add(max(item.step for item in good))
        scored = [item for item in good if item.score is not None]
        if scored:
            stay.add(min(scored, key=lambda item: (-item.score, item.step)).step)
        due = [step for step in ours if step not in stay] if good else []
        if fail:
            self.patch.setattr(os, fail, self.refuse)
        deleted = self.prune(self.folder, keep, protect=protect, run_id="a")
        self.patch.undo()
        assert deleted == ([] if fail == "rename" else due)
        for step in deleted:
            del self.known[self.folder / f"step-{step:08d}"]
        kept = {item.step for item in self.known.values() if item.run == "a" and item.damaged != "MANIFEST.json"}
        if good and fail != "rename":
            assert len(kept - protect) <= keep + 2  # the newest may be older than `keep` damaged ones
            if all(item.damaged is None for item in self.known.values()):
                assert len(kept - protect) <= keep + 1
        assert {item.step for item in scored} & stay <= kept

    @staticmethod
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    @stateful.rule()
    def restart(self) -> None:
        clean(self.folder)
        assert not [name for name in names(self.folder) if name.startswith(".")]

    @stateful.invariant()
    def what_must_be_there_is_there(self) -> None:
        assert {path for path in self.known if path.is_dir()} == set(self.known)
        assert {"step-notes", "notes.txt", "step-00000077", "step-00000078"} <= set(names(self.folder))
        good = [path for path, item in self.known.items() if item.run == "a" and item.damaged is None]
        expected = max(good, key=lambda path: self.known[path].step, default=None)
        assert newest(self.folder, run_id="a", rename_damaged=False) == expected

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)


CAMPAIGN = settings(
    max_examples=200, stateful_step_count=12, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def quiet() -> Iterator[None]:
    """The campaign damages thousands of checkpoints on purpose; the warnings have tests of their own."""
    logger = logging.getLogger("atento")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])  # each writes and damages files
def test_r6_random_histories(count: int) -> None:
    stateful.run_state_machine_as_test(Retention, settings=settings(CAMPAIGN, max_examples=count))


def planted(bug: str) -> Callable[..., list[int]]:
    """Retention right in all but one thing, each seen in a well-known project."""

    def order(item: CheckpointFolder) -> object:
        return {"clock": item.path.stat().st_mtime, "name": item.path.name}.get(bug, item.step)

    def wrong(folder: Path, keep: int, protect: set[int], run_id: str) -> list[int]:
        run = None if bug == "every run" else run_id
        last = newest(folder, run_id=run, rename_damaged=False)
        if last is None and bug != "verifies nothing":
            return []
        spared = {last if bug != "verifies nothing" else None}
        spared.add(None if bug == "forgets the best" else best(folder, run_id=run, rename_damaged=False))
        ours = sorted((item for item in list_checkpoints(folder, run) if item.manifest), key=order, reverse=True)
        deleted = []
        for item in ours[keep - (bug == "one too many") :]:
            if item.path not in spared and item.step not in protect:
                with contextlib.suppress(OSError):
                    discard(item.path)
                    deleted.append(item.step)
        return sorted(deleted)

    return wrong


def histories_of(planted_retain: Callable[..., list[int]], count: int = 200) -> None:
    class Planted(Retention):
        prune = staticmethod(planted_retain)

    more = settings(CAMPAIGN, max_examples=count, phases=[Phase.generate], report_multiple_bugs=False)
    stateful.run_state_machine_as_test(Planted, settings=more)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "bug",
    [
        *("clock", "verifies nothing", "forgets the best", "one too many"),
        *(pytest.param(bug, marks=pytest.mark.slow) for bug in ("name", "every run")),  # bite late
    ],
)
def test_r6_has_teeth(bug: str) -> None:
    fails(AssertionError, "", histories_of, planted(bug), count=3000)  # ends at the first that bites


@pytest.mark.usefixtures("quiet")
def test_r6_teeth_bite_the_bug_alone() -> None:
    """The planted retention without its bug passes the same histories."""
    histories_of(planted("none"), count=25)


def test_keeps_the_newest_the_best_and_the_protected_of_the_run(tmp_path: Path) -> None:
    for step, score in ((1, 1.0), (2, 9.0), (3, 2.0), (4, None), (5, 3.0), (6, 1.0)):
        save(tmp_path, step, score)
    assert prune(tmp_path, 2, protect={3}) == [1, 4]
    assert names(tmp_path) == ["step-00000002", "step-00000003", "step-00000005", "step-00000006"]
    assert prune(tmp_path, 2, protect={3}) == [] and prune(tmp_path, 1) == [3, 5]
    folder = tmp_path / "bad"
    for step in (1, 2, 3):
        flip(save(folder, step) / "model.safetensors", -1)
    assert prune(folder, 1) == [] and names(folder) == ["step-00000001", "step-00000002", "step-00000003"]
    assert prune(folder / "absent", 1) == []
    folder = tmp_path / "runs"
    for step in (1, 2, 3, 4):
        save(folder, step, run_id="ab"[step % 2])
    assert prune(folder, 1) == [2]  # 4 is of run a, as is 2
    assert prune(folder, 1, run_id="b") == [1] and prune(folder, 1, run_id="c") == []
    assert names(folder) == ["step-00000003", "step-00000004"]
    folder = tmp_path / "renamed"
    save(folder, 1).rename(folder / "step-99999999")
    save(folder, 2)
    assert prune(folder, 1) == [1] and names(folder) == ["step-00000002"]


def test_what_is_being_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_checkpoint` is stopped between its verification and each file of tensors."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    deleted, right = [], checkpoint.read_parts

    def read_parts(*arguments: Any) -> dict[str, torch.Tensor]:
        deleted.append(prune(tmp_path, 1))
        return right(*arguments)

    monkeypatch.setattr(checkpoint, "read_parts", read_parts)
    assert checkpoint.load_checkpoint(tmp_path / "step-00000001").step == 1
    assert deleted == [[], []]
    assert prune(tmp_path, 1) == [1]
    for keep in (0, -1):
        fails(UsageError, f"`keep` must be at least 1: got {keep}", prune, tmp_path, keep)


@pytest.mark.parametrize(("call", "deleted"), [("rename", []), ("rmdir", [1])])
def test_a_deletion_that_fails_is_a_warning(tmp_path, call, deleted, monkeypatch, caplog) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    monkeypatch.setattr(os, call, Retention.refuse)
    with caplog.at_level(logging.WARNING):
        assert prune(tmp_path, 1) == deleted
    monkeypatch.undo()
    assert "could not be deleted (Device or resource busy)" in caplog.text
    clean(tmp_path)
    assert names(tmp_path) == (["step-00000002"] if deleted else ["step-00000001", "step-00000002"])
