"""Files cut into blocks and the folder of their parts: all lines, once, whatever the format; a manifest that knows."""

import errno
import gzip
import hashlib
import io
import json
import random
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from atento.base.errors import AtentoError, DataError, UsageError
from atento.data.files.source_lines import read_lines
from atento.text.words import split_sentences
from atento_cli.scale import line_blocks
from atento_cli.scale.collect_output import collectable, contents, write_joined
from atento_cli.scale.inputs import BlockReader, Input
from atento_cli.scale.line_blocks import Block, Plan, Reading
from atento_cli.scale.parts import Job, OutputFolder, refuse_difference
from failing import fails


def lines_of(source: Input, plan: Plan, bad: list[str] | None = None) -> list[list[str]]:
    reader = BlockReader(source)
    raw = source.bytes_in_order(iter(plan.blocks)) if source.is_packed else (b"" for _ in plan.blocks)
    return [reader.lines(block, content, bad) for block, content in zip(plan.blocks, raw)]


def text(seed: int) -> bytes:
    """Lines of every length, some blank, with letters of several bytes and both line ends."""
    draw = random.Random(seed)
    rows = ["".join(draw.choices("ab çã\u2028€", k=draw.choice((0, 1, 5, 40)))) for _ in range(draw.randrange(60))]
    return ("".join(row + draw.choice(("\n", "\r\n")) for row in rows) + draw.choice(("", "last"))).encode()


def test_the_blocks_of_a_file_have_its_lines_and_its_bytes_and_small_files_few(tmp_path, monkeypatch) -> None:
    for seed in range(12):
        path, step = tmp_path / "a.txt", 1 + seed % 5
        path.write_bytes(text(seed))
        plan = Input(str(path)).plan(Reading(step))
        parts = lines_of(Input(str(path)), plan)
        assert [line for part in parts for line in part] == read_lines(path)
        assert all(len(part) == step for part in parts[:-1]) and plan.lines == len(read_lines(path))
        assert [block.first for block in plan.blocks] == [1 + step * n for n in range(len(parts))]
        content = path.read_bytes()
        assert b"".join(content[b.offset : b.offset + b.size] for b in plan.blocks) == content
        assert plan.sha256 == hashlib.sha256(content).hexdigest()
    for content in (b"", b"\n", b"x", b"x\n", b"\xef\xbb\xbf", b"\xef\xbb\xbfa\nb", b"a\n\n\n"):
        path = tmp_path / "a.txt"
        path.write_bytes(content)
        for step in (1, 2, None):
            plan = Input(str(path)).plan(Reading(step))
            assert [line for part in lines_of(Input(str(path)), plan) for line in part] == read_lines(path)
            assert len(plan.blocks) >= 1
    # Parts that end within lines, in both ways of reading: with checks of the lines and without
    monkeypatch.setattr(line_blocks, "_PART", 7)
    path = tmp_path / "a.txt"
    path.write_bytes(text(3) + text(5))
    without = Input(str(path)).plan(Reading(4, skip_bad=True))
    assert without == Input(str(path)).plan(Reading(4, check=lambda line, position: None))
    assert [line for part in lines_of(Input(str(path)), without) for line in part] == read_lines(path)
    monkeypatch.setattr(line_blocks, "STEP", 2)
    monkeypatch.setattr(line_blocks, "MOST", 5)
    path.write_text("".join(f"{n}\n" for n in range(23)), encoding="utf-8")
    plan = Input(str(path)).plan(Reading())
    assert [block.lines for block in plan.blocks] == [6, 6, 6, 5]  # 12 steps of 2, three to a block
    assert lines_of(Input(str(path)), plan)[1] == ["6", "7", "8", "9", "10", "11"]


def test_a_url_is_read_as_a_local_file_is(tmp_path: Path) -> None:
    for url in ("memory://folder/{}", "file://{}"):
        path = tmp_path / "a.txt"
        path.write_bytes(text(7) + b"\nend\n")
        packed = tmp_path / "a.txt.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        for local in (path, packed):
            address = url.format(local)
            if url.startswith("memory"):
                fsspec.filesystem("memory").pipe(address, local.read_bytes())
            source = Input(address, name="remote")
            plan = source.plan(Reading(4))
            assert plan == Input(str(local)).plan(Reading(4))
            assert [line for part in lines_of(source, plan) for line in part] == read_lines(path)
            version = source.version()
            assert version["size"] == local.stat().st_size and len(version) > 1
        fails(DataError, "remote: cannot be read: no such file", Input("memory://folder/none", name="remote").version)
        fails(UsageError, "no such kind of URL", Input("nothing://folder/none").version)


def test_rows_of_parquet_and_columns_of_json_and_tsv(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    questions = [None if n == 5 else f"q {n}\nmore" for n in range(11)]
    table = pyarrow.table({"q": questions, "n": list(range(11)), "c": [f"c\t{n}" for n in range(11)]})
    parquet.write_table(table, path, row_group_size=4)
    one, two = Input(str(path), ("q",)), Input(str(path), ("c", "q"))
    plan = one.plan(Reading(3))
    assert [block.lines for block in plan.blocks] == [3, 3, 3, 2]
    texts = ["" if n == 5 else f"q {n} more" for n in range(11)]
    assert [line for part in lines_of(one, plan) for line in part] == texts
    pairs = [line for part in lines_of(two, two.plan(Reading(5))) for line in part]
    assert pairs == [f"c {n}\t{text}" for n, text in enumerate(texts)]
    for columns, said in ((("n",), "must be a column of strings"), ((), "name the column of the texts")):
        fails(UsageError, said, Input(str(path), columns).plan, Reading())
    with pytest.raises(DataError, match="is no Parquet file"):
        (tmp_path / "b.parquet").write_text("text", encoding="utf-8")
        Input(str(tmp_path / "b.parquet")).plan(Reading())
    records = [{"b": f"second\n{n}", "a": f"first {n}", "n": n} for n in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (tmp_path / "a.tsv").write_text("".join(f"{n}\tfirst {n}\tsecond {n}\n" for n in range(5)), encoding="utf-8")
    for name, columns in (("a.jsonl", ("a", "b")), ("a.tsv", ("1", "2"))):
        source = Input(str(tmp_path / name), columns)
        parts = lines_of(source, source.plan(Reading(2)))
        assert [line for part in parts for line in part] == [f"first {n}\tsecond {n}" for n in range(5)]
    wrong = (("a.jsonl", ("n",), "a.jsonl:1: key 'n' must hold a string"), ("a.tsv", ("3",), "there is no column 3"))
    for name, columns, said in wrong:
        fails(DataError, said, Input(str(tmp_path / name), columns).plan, Reading(2))
    for name, columns, said in (("a.tsv", ("a",), "are numbers"), ("a.txt", ("a",), "is for .jsonl, .tsv")):
        fails(UsageError, said, Input(str(tmp_path / name), columns).plan, Reading())


def test_bad_lines_changed_and_compressed_files_and_texts_before_a_block(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nb\xffd\ngood\nodd\n\n")

    def check(line: str, position: str) -> None:
        if line == "odd":
            raise DataError(f"{position}: odd")

    source = Input(str(path), name="shown")
    fails(DataError, "shown:2: not UTF-8: byte 0xff at byte 6", source.plan, Reading(2))
    bad: list[str] = []
    plan = source.plan(Reading(2, check=check, skip_bad=True))
    reader = BlockReader(source)
    assert [reader.lines(block, b"", bad, check) for block in plan.blocks] == [["good", ""], ["good", ""], [""]]
    assert [message.split(":")[1] for message in bad] == ["2", "4"]
    path.write_bytes(b"good\nodd\n")
    fails(DataError, "shown:2: odd", source.plan, Reading(1, check=check))
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n", encoding="utf-8")
    source = Input(str(path))
    plan = source.plan(Reading(2))
    path.write_text("one two\nthree\n", encoding="utf-8")
    fails(DataError, "has changed", lines_of, source, plan)
    path.write_text("one\n", encoding="utf-8")
    fails(DataError, "it is shorter than it was", lines_of, source, plan)
    lines = ["One. Two.", "", "Three.", "Four. Five! Six?", "Seven"]
    path.write_text("\n".join(lines), encoding="utf-8")
    plan = Input(str(path)).plan(Reading(2, rows=lambda line: len(split_sentences(line))))
    counts = [len(split_sentences(line)) for line in lines]
    assert [block.row for block in plan.blocks] == [0, sum(counts[:2]), sum(counts[:4])]
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("".join(f"line {n}\n" for n in range(10)).encode()))
    source = Input(str(path))
    plan = source.plan(Reading(3))
    assert [line for part in lines_of(source, plan) for line in part] == read_lines(path)
    raw = list(source.bytes_in_order(iter([plan.blocks[1], plan.blocks[3]])))
    assert raw == [b"line 3\nline 4\nline 5\n", b"line 9\n"]


JOB = Job("translate", "run", "0" * 64, {"seed": 1, "beam": 4}, "in.txt", ".txt")
PARTS_PLAN = Plan(tuple(Block(n, 2 * n + 1, 2, 4 * n, 4, 2 * n) for n in range(4)), "1" * 64)


def begun(path: Path, job: Job = JOB) -> OutputFolder:
    folder = OutputFolder(path)
    folder.begin(job, PARTS_PLAN, {"size": 16})
    return folder


def joined(folder: OutputFolder) -> bytes:
    stream = io.BytesIO()
    stream.writelines(contents(folder))
    return stream.getvalue()


def test_parts_are_joined_in_the_order_of_their_blocks(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    for number in (2, 0, 3, 1):
        folder.add(PARTS_PLAN.blocks[number], f"{number}\n{number}\n".encode(), [])
    folder.save()
    assert joined(collectable(tmp_path)) == b"0\n0\n1\n1\n2\n2\n3\n3\n"
    write_joined(collectable(tmp_path), tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_bytes() == joined(collectable(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "out.txt", "parts"]


def test_a_killed_run_is_known_by_its_journal(tmp_path: Path) -> None:
    """The manifest is of the beginning; the last line of the journal may be cut short."""
    folder = begun(tmp_path)
    folder.add(PARTS_PLAN.blocks[1], b"one\n", ["bad line"])
    folder.add(PARTS_PLAN.blocks[2], b"two\n", [])
    journal = tmp_path / "parts.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    again = OutputFolder(tmp_path)
    assert again.blocks == PARTS_PLAN.blocks and again.check() == {}
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
    for block in PARTS_PLAN.blocks[:3]:
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
    folder.add(PARTS_PLAN.blocks[0], b"text\n", [])

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    fails(
        AtentoError,
        "the disk is full; the parts written so far are good",
        folder.add,
        PARTS_PLAN.blocks[1],
        b"text\n",
        [],
    )
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["part-00000.txt"]
    assert list(OutputFolder(tmp_path).parts) == [0]


def test_arrays_are_joined_to_the_bytes_that_numpy_writes_for_all_of_them(tmp_path: Path) -> None:
    folder = begun(tmp_path, replace(JOB, ending=".npy"))
    vectors = np.random.default_rng(1).standard_normal((11, 3)).astype(np.float32)
    for block, rows in zip(PARTS_PLAN.blocks, np.split(vectors, [2, 7, 7])):
        stream = io.BytesIO()
        np.save(stream, rows)
        folder.add(block, stream.getvalue(), [])
    folder.save()
    expected = io.BytesIO()
    np.save(expected, vectors)
    assert joined(collectable(tmp_path)) == expected.getvalue()
    stream = io.BytesIO()
    np.save(stream, vectors[:, :2])
    folder.add(PARTS_PLAN.blocks[3], stream.getvalue(), [])
    folder.save()
    fails(AtentoError, r"part-00003\.npy: its vectors do not fit those before", joined, collectable(tmp_path))
