"""`metrics.jsonl` is whole lines, cut where the checkpoint stands, and never a reason to stop training."""

import errno
import hashlib
import json
import logging
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.base.errors import DataError, TrainingError, UsageError
from atento.training import metrics_log as journal_module
from atento.training.metrics_log import MetricsLog, changed_since, read_journal
from checkpoints import failing, names
from failing import fails


def train(step: int, **more: object) -> dict:
    return {"event": "train", "step": step, "loss": 1.5, **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_one_json_object_an_event_opened_again_with_null_for_what_is_not_finite(path: Path) -> None:
    with MetricsLog(path) as metrics_log:
        metrics_log.append({"event": "train", "step": 50, "loss": 0.1 + 0.2, "note": "ação"})
        metrics_log.append({"event": "valid", "step": 50, "bleu": 31.5, "parts": {"precisions": (60.0, 40.0)}})
        assert path.read_bytes().count(b"\n") == 2  # each is there at once, for whoever looks on
    first = '{"event": "train", "step": 50, "loss": 0.30000000000000004, "note": "ação"}'
    assert path.read_text(encoding="utf-8").splitlines()[0] == first
    assert read_journal(path)[1] == {"event": "valid", "step": 50, "bleu": 31.5, "parts": {"precisions": [60.0, 40.0]}}
    for step in (1, 2):
        with MetricsLog(path) as metrics_log:
            metrics_log.append(train(step))
    assert [event["step"] for event in read_journal(path)] == [50, 50, 1, 2]
    metrics_log.append(train(3))  # closed: opened again by need
    metrics_log.close()
    assert [event["step"] for event in read_journal(path)] == [50, 50, 1, 2, 3]
    with MetricsLog(path) as metrics_log:
        metrics_log.append(train(1, nll=math.nan, norms={"a": [1.0, -math.inf]}))
        metrics_log.append(train(2, nll=math.inf, note="resumed"))
    *_, first, second = read_journal(path)
    assert first["nll"] is None and first["norms"] == {"a": [1.0, None]} and first["loss"] == 1.5
    assert first["note"] == "nll was nan; norms.a.1 was -inf"
    assert second["note"] == "resumed; nll was inf"
    for line in path.read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "event", [{}, {"event": "train"}, {"step": 1}, {"event": "train", "step": 1.0}, {"event": 1, "step": 1}]
)
def test_an_event_has_a_name_and_a_step(path: Path, event: dict) -> None:
    with MetricsLog(path) as metrics_log, pytest.raises(ValueError, match="an event needs `event`"):
        metrics_log.append(event)
    assert path.read_bytes() == b""
    with MetricsLog(path) as metrics_log, pytest.raises(ValueError, match="an event must be plain data"):
        metrics_log.append(train(1, model=object()))


def test_cut_removes_what_is_past_the_checkpoint_or_no_event(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MetricsLog(path) as metrics_log:
        for step in (50, 100, 150):
            metrics_log.append(train(step))
        metrics_log.append({"event": "checkpoint", "step": 100})
        before = path.read_bytes().splitlines(keepends=True)
        assert metrics_log.cut(100) == 1
        assert path.read_bytes() == before[0] + before[1] + before[3]  # byte for byte
        metrics_log.append(train(150, again=True))
        assert metrics_log.cut(150) == 0
        assert [event.get("again") for event in read_journal(path)] == [None, None, None, True]
        assert metrics_log.cut(-1) == 4 and path.read_bytes() == b""
        metrics_log.append(train(100))
        metrics_log.append({"event": "end", "step": 100})
        assert metrics_log.cut(100) == 1
    assert names(path.parent) == ["metrics.jsonl"]
    assert [event["event"] for event in read_journal(path)] == ["train"]
    metrics_log = MetricsLog(path)
    path.unlink()
    assert metrics_log.cut(5) == 0
    path.mkdir()
    fails(TrainingError, r"metrics\.jsonl cannot be read: Is a directory", metrics_log.cut, 1)
    metrics_log.close()
    path.rmdir()
    path.write_bytes(b'{"event": "train", "step": 1}\n\x00\x00\n[]\n{"event": "train", "step": 2}\n')
    with MetricsLog(path) as metrics_log, caplog.at_level(logging.WARNING):
        assert metrics_log.cut(9) == 2
    assert f"{path}:2 is not an event and was removed" in caplog.text and f"{path}:3 is" in caplog.text
    assert [event["step"] for event in read_journal(path)] == [1, 2]


@settings(max_examples=30)
@given(keep=st.integers(0, 200), tail=st.sampled_from([b"", b"\x00" * 40, b'{"event": "tr']))
def test_a_journal_cut_off_anywhere_is_mended(tmp_path_factory: pytest.TempPathFactory, keep: int, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("journal") / "metrics.jsonl"
    with MetricsLog(path) as metrics_log:
        for step in range(1, 5):
            metrics_log.append(train(step))
    whole = path.read_bytes()
    path.write_bytes(whole[:keep] + (tail if keep < len(whole) else b""))
    # A line counts once its closing brace is there; its line end is put back, unless rubbish stands in its place.
    lines = (whole[:keep] + (tail if keep < len(whole) else b"")).split(b"\n")
    expected = sum(line.startswith(b'{"event"') and line.endswith(b"}") for line in lines)
    assert len(read_journal(path)) == expected
    with MetricsLog(path) as metrics_log:
        metrics_log.append(train(9))
    assert [event["step"] for event in read_journal(path)] == [*range(1, expected + 1), 9]


def test_a_torn_line_longer_than_any_buffer_is_removed(path: Path) -> None:
    line = json.dumps(train(1)).encode() + b"\n"
    path.write_bytes(line + b"x" * 200_000)
    MetricsLog(path).close()
    assert path.read_bytes() == line


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"event": "train"}', b'{"step": 1}', b"\xff", b"", b"[" * 100_000])
def test_reading_names_file_and_line_of_what_is_no_event(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"event": "train", "step": 1}\n' + line + b"\n")
    fails(DataError, r"metrics\.jsonl:2: not an event", read_journal, path)


def test_a_journal_where_none_is_or_can_be(tmp_path: Path) -> None:
    fails(DataError, r"metrics\.jsonl cannot be read: No such file", read_journal, tmp_path / "metrics.jsonl")
    fails(UsageError, r"absent/metrics\.jsonl .*: No such file", MetricsLog, tmp_path / "absent" / "metrics.jsonl")


def full(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A disk with room for so many more bytes: a write takes what fits, the next one fails, as the system does it."""
    real, left = os.write, [room]

    def write(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, data[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("room", [0, 1, 20])
def test_r5_a_full_disk_costs_events_not_the_training(
    path: Path, room: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with MetricsLog(path) as metrics_log, caplog.at_level(logging.WARNING):
        metrics_log.append(train(1))
        with monkeypatch.context() as patch:
            full(patch, room)
            for step in (2, 3, 4):
                metrics_log.append(train(step))
            assert len(read_journal(path)) == 1 and path.read_bytes().endswith(b"}\n")  # nothing torn is left
        assert len(caplog.records) == 1  # one warning, not three
        assert "No space left on device" in caplog.text and "training continues without events" in caplog.text
        metrics_log.append(train(5))
        assert "is written again; 3 events were lost" in caplog.text
        with monkeypatch.context() as patch:
            full(patch, 0)
            metrics_log.append(train(6))
        assert len(caplog.records) == 3  # a new trouble is a new warning
    assert [event["step"] for event in read_journal(path)] == [1, 5]


def test_r5_a_disk_full_at_first(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with monkeypatch.context() as patch:
        failing("open", errno.ENOSPC, lambda call: True, patch)
        metrics_log = MetricsLog(path)
        metrics_log.append(train(1))
    assert "No space left" in caplog.text
    metrics_log.append(train(2))
    metrics_log.close()
    assert [event["step"] for event in read_journal(path)] == [2]


def test_checkpoints_and_the_end_reach_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.stat().st_size))
    monkeypatch.setattr("fcntl.F_FULLFSYNC", None, raising=False)
    with MetricsLog(path) as metrics_log:
        for event in ("train", "checkpoint", "valid", "end"):
            metrics_log.append({"event": event, "step": 1})
            if event in ("checkpoint", "end"):
                assert synced.pop() == path.stat().st_size
            assert synced == []


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_cut_that_fails_leaves_the_journal_as_it_was(path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsLog(path) as metrics_log:
        for step in (1, 2, 3):
            metrics_log.append(train(step))
        before = path.read_bytes()

        def refuse(*args: object, **kwargs: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            if call == "write":
                real = Path.open  # a buffered file writes beneath os.write
                patch.setattr(Path, "open", lambda s, mode="r", *r: (refuse if "x" in mode else real)(s, mode, *r))
            else:
                patch.setattr(os, call, refuse)
            fails(TrainingError, r"metrics\.jsonl cannot be cut: No space left", metrics_log.cut, 1)
        assert path.read_bytes() == before and names(path.parent) == ["metrics.jsonl"]
        metrics_log.append(train(4))
    assert [event["step"] for event in read_journal(path)] == [1, 2, 3, 4]


def test_the_checkpoints_of_a_journal_are_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MetricsLog(path) as metrics_log:
        metrics_log.append({"event": "checkpoint", "step": 4})
        metrics_log.append(train(4))
    reads: list[Path] = []
    real = journal_module.read_plain
    monkeypatch.setattr(journal_module, "read_plain", lambda file, most: reads.append(file) or real(file, most))
    with MetricsLog(path) as metrics_log:
        assert metrics_log.has_checkpoint(4) and not metrics_log.has_checkpoint(8)
        for step in (8, 12, 16):
            metrics_log.append({"event": "checkpoint", "step": step})
            assert metrics_log.has_checkpoint(step) and not metrics_log.has_checkpoint(step + 4)
        assert len(reads) == 1
        with monkeypatch.context() as patch:
            full(patch, 0)
            metrics_log.append({"event": "checkpoint", "step": 20})
        assert not metrics_log.has_checkpoint(20)  # it is not in the file
        metrics_log.cut(8)
        assert metrics_log.has_checkpoint(8) and not metrics_log.has_checkpoint(12)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=12), st.lists(st.integers(0, 12), max_size=3))
@settings(max_examples=40)
def test_the_mark_of_a_journal_is_the_hash_of_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, events: list[str], cuts: list[int]
) -> None:
    """Kept while it is written, after cuts, and by who opens the file again."""
    path = tmp_path_factory.mktemp("journal") / "metrics.jsonl"
    with MetricsLog(path) as metrics_log:
        for step, note in enumerate(events):
            metrics_log.append(train(step, note=note))
            if step in cuts:
                metrics_log.cut(step // 2)
            content = path.read_bytes()
            expected = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            assert metrics_log.mark() == expected
            with MetricsLog(path) as again:
                assert again.mark() == expected


def test_every_change_before_a_mark_is_seen_and_none_behind_it(path: Path) -> None:
    """A checkpoint keeps the mark; what a run wrote behind it is cut when it resumes (K12)."""
    with MetricsLog(path) as metrics_log:
        metrics_log.append(train(1, note="ação"))
        metrics_log.append(train(2))
        mark = metrics_log.mark()
        metrics_log.append(train(3))
    content = path.read_bytes()
    assert mark is not None and changed_since(path, mark) == "" and changed_since(path, None) == ""
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert changed_since(path, mark) == ("was changed" if place < mark["bytes"] else "")
        path.write_bytes(content[:place])
        cut = f"was cut to {place:,} of {mark['bytes']:,} bytes"
        assert changed_since(path, mark) == ("" if place >= mark["bytes"] else cut if place else "was removed")
    path.unlink()
    assert changed_since(path, mark) == "was removed"
    os.mkfifo(path)
    assert "cannot be read (it is a pipe" in changed_since(path, mark)
