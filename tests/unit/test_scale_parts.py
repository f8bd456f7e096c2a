"""The folder of a run: parts that are whole, a manifest that knows them, and what joins them."""

import errno
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from atento.base.errors import AtentoError, DataError, UsageError
from atento_cli.scale.collect_output import collectable, contents, write_joined
from atento_cli.scale.line_blocks import Block, Plan
from atento_cli.scale.parts import Job, OutputFolder, refuse_difference
from failing import fails

JOB = Job("translate", "run", "0" * 64, {"seed": 1, "beam": 4}, "in.txt", ".txt")
PLAN = Plan(tuple(Block(n, 2 * n + 1, 2, 4 * n, 4, 2 * n) for n in range(4)), "1" * 64)


def begun(path: Path, job: Job = JOB) -> OutputFolder:
    folder = OutputFolder(path)
    folder.begin(job, PLAN, {"size": 16})
    return folder


def joined(folder: OutputFolder) -> bytes:
    stream = io.BytesIO()
    stream.writelines(contents(folder))
    return stream.getvalue()


def test_parts_are_joined_in_the_order_of_their_blocks(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    for number in (2, 0, 3, 1):
        folder.add(PLAN.blocks[number], f"{number}\n{number}\n".encode(), [])
    folder.save()
    assert joined(collectable(tmp_path)) == b"0\n0\n1\n1\n2\n2\n3\n3\n"
    write_joined(collectable(tmp_path), tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_bytes() == joined(collectable(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "out.txt", "parts"]


def test_a_killed_run_is_known_by_its_journal(tmp_path: Path) -> None:
    """The manifest is of the beginning; the last line of the journal may be cut short."""
    folder = begun(tmp_path)
    folder.add(PLAN.blocks[1], b"one\n", ["bad line"])
    folder.add(PLAN.blocks[2], b"two\n", [])
    journal = tmp_path / "parts.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    again = OutputFolder(tmp_path)
    assert again.blocks == PLAN.blocks and again.check() == {}
    assert {number: (part.bad, part.first_bad) for number, part in again.parts.items()} == {1: (1, "bad line")}
    again.save()
    assert not journal.exists() and OutputFolder(tmp_path).parts == again.parts


def test_another_job_is_refused_with_the_difference(tmp_path: Path) -> None:
    for changes, said in (
        ({"command": "summarize"}, "the command was translate and is summarize"),
        ({"model": "other", "model_sha256": "2" * 64}, "the model was run and is other"),
        ({"model_sha256": "2" * 64}, "the model changed"),
        ({"options": {"seed": 2, "beam": 4}}, "--seed was 1 and is 2"),
        ({"options": {"seed": 1, "beam": 4, "top_p": 0.9}}, "--top-p was not given and is 0.9"),
        ({"options": {"seed": 1}}, "--beam was 4 and is not given"),
        ({"options": {"seed": 1, "beam": 4, "as_json": True}}, "--json was not given and is given"),
    ):
        begun(tmp_path)
        refuse_difference(OutputFolder(tmp_path), replace(JOB, model="renamed", input="moved.txt"))  # the same bytes
        with pytest.raises(UsageError, match=f"has the parts of another run: {said}; give another folder"):
            refuse_difference(OutputFolder(tmp_path), replace(JOB, **changes))


def test_malformed_manifests_and_missing_and_altered_parts_are_named(tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / "manifest.json"
    body = json.loads(path.read_text(encoding="utf-8"))
    changes = ({"format": "other"}, {"blocks": [[1]]}, {"ending": "/../../../secret"})
    for wrong in ("[]", "{", *(json.dumps(body | change) for change in changes)):
        path.write_text(wrong, encoding="utf-8")
        fails(DataError, r"manifest\.json", OutputFolder, tmp_path)
    other = tmp_path / "other"
    folder = begun(other)
    fails(DataError, "0 parts of 4 can be joined: parts 0-3 are not finished", collectable, other)
    for block in PLAN.blocks[:3]:
        folder.add(block, b"text\n", [])
    folder.save()
    folder.part_path(0).unlink()
    folder.part_path(2).write_bytes(b"tExt\n")
    said = "part-00000.txt is missing; part-00002.txt was altered: its SHA-256 .*; part 3 is not finished; run the same"
    fails(DataError, said, collectable, other)
    assert sorted(OutputFolder(other).check()) == [0, 2]
    fails(UsageError, r"has no manifest\.json", collectable, other / "parts")


def test_a_full_disk_costs_the_part_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path)
    folder.add(PLAN.blocks[0], b"text\n", [])

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    fails(AtentoError, "the disk is full; the parts written so far are good", folder.add, PLAN.blocks[1], b"text\n", [])
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["part-00000.txt"]
    assert list(OutputFolder(tmp_path).parts) == [0]


def test_arrays_are_joined_to_the_bytes_that_numpy_writes_for_all_of_them(tmp_path: Path) -> None:
    folder = begun(tmp_path, replace(JOB, ending=".npy"))
    vectors = np.random.default_rng(1).standard_normal((11, 3)).astype(np.float32)
    for block, rows in zip(PLAN.blocks, np.split(vectors, [2, 7, 7])):
        stream = io.BytesIO()
        np.save(stream, rows)
        folder.add(block, stream.getvalue(), [])
    folder.save()
    expected = io.BytesIO()
    np.save(expected, vectors)
    assert joined(collectable(tmp_path)) == expected.getvalue()
    stream = io.BytesIO()
    np.save(stream, vectors[:, :2])
    folder.add(PLAN.blocks[3], stream.getvalue(), [])
    folder.save()
    fails(AtentoError, r"part-00003\.npy: its vectors do not fit those before", joined, collectable(tmp_path))
