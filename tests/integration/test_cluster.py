"""`--cluster`: the parts of a command over blocks, joined, are the bytes of the command over the file."""

import gzip
import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atento
from atento.base.errors import DataError
from atento_cli import lines as cli_lines
from atento_cli.block_worker import BlockServer
from atento_cli.line_work import Work
from atento_cli.main import command_function
from atento_cli.scale.inputs import Input
from atento_cli.scale.line_blocks import Block, Plan, Reading
from atento_cli.scale.workers import Answer
from atento_world import write
from conftest import ForkServer, each_refused
from http_service import until

RUN = ("--threads", "1", "--device", "cpu")
TRANSLATE = ("translate", "run", "in.txt", "--sample", "--seed", "3", *RUN)
REAL = {"NO_FORKED_MODULES": "1"}  # workers start as a user's do, not as forks of the fork server
CLUSTER = ("--cluster", "local", "--out", "parts", "--block-lines", "1")
SOURCES = "".join(f"{pair.source}\n" for pair in write("train", 40, 8))
wait_for = partial(until, pause=0.005)
TINY = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "dropout": 0.0, "max_len": 64}
TRAINING = {"steps": 2, "batch_tokens": 64, "warmup": 1, "precision": "float32"}


@pytest.fixture(scope="module")
def files(scratch: Path) -> dict[str, Path]:
    """Lines of which two are blank and one has two sentences; two texts on each, with a tab between; a mask on each."""
    lines = [pair.source for pair in write("train", 19, 5)]
    lines[4], lines[7], lines[13] = "", f"{lines[7]} {lines[8]}", "  "
    pairs = [f"{line}\t{lines[0]}" if line.strip() else "" for line in lines]
    masks = [f"{line} <mask>" if line.strip() else "" for line in lines]
    found = {name: scratch / name for name in ("texts.txt", "pairs.tsv", "masks.txt")}
    for path, rows in zip(found.values(), (lines, pairs, masks)):
        path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8", newline="\n")
    return found


@pytest.fixture(scope="module")
def models(scratch: Path, trained: Path, files: dict[str, Path]) -> Mapping[str, str]:
    """A tiny model of each kind."""
    folder = scratch / "cluster-models"
    folder.mkdir()
    lines = [line for line in files["texts.txt"].read_text(encoding="utf-8").splitlines() if line.strip()]
    (folder / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    labelled = "".join(f"{line}\t{('long', 'short')[len(line) < 30]}\n" for line in lines)
    (folder / "labelled.tsv").write_text(labelled, encoding="utf-8")
    tagged = "".join("".join(f"{word}\t{'OX'[word < 'm']}\n" for word in line.split()) + "\n" for line in lines)
    (folder / "tagged.conll").write_text(tagged, encoding="utf-8")
    answers = [(line, [{"text": line[:3], "answer_start": 0}]) for line in lines]
    asked = [{"question": "who ?", "context": line, "answers": answer} for line, answer in answers]
    (folder / "asked.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in asked), encoding="utf-8")
    encoder = {"architecture": "encoder", **TINY, "positions": {"kind": "learned"}, "embedding": {"segments": 2}}
    decoder, labels = {"architecture": "decoder", **TINY}, {"file": "labelled.tsv", "text": 0, "label": 1}
    recipes: dict[str, Any] = {
        "language": {"task": "language-modeling", "data": {"train": "texts.txt"}, "network": decoder},
        "masked": {"task": "masked-language-modeling", "data": {"train": "texts.txt"}, "network": encoder},
        "labels": {"task": "classification", "data": {"train": labels}, "network": encoder},
        "tags": {"task": "tagging", "data": {"train": "tagged.conll"}, "network": encoder},
        "answers": {"task": "question-answering", "data": {"train": "asked.jsonl"}, "network": encoder},
    }
    for name, recipe in recipes.items():
        recipe |= {"tokenizer": {"kind": "word", "vocab_size": 200}, "training": TRAINING}
        atento.train(recipe | {"data": recipe["data"] | {"folder": str(folder)}}, out=folder / name)
    return {"translator": str(trained)} | {name: str(folder / name) for name in recipes}


class Feed:
    """The requests of a worker in this process: some blocks, whose answers are joined."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.answers: list[Answer] = []

    def blocks(self) -> Iterator[tuple[Block, bytes]]:
        yield from ((block, b"") for block in self._plan.blocks)

    def reply(self, answer: Answer) -> None:
        self.answers.append(answer)


def by_blocks(command: str, file: Path, options: Mapping[str, Any], bad: list[str] | None = None) -> bytes:
    """What the workers of a command write for the blocks of a file, joined; `bad` gets the messages of bad lines."""
    function = command_function(command)
    work: list[Work] = []

    class Planner:
        columns = ()

        def run(self, planned: Work) -> None:
            work.append(planned)

    function(file=str(file), cluster=Planner(), **options)
    feed = Feed(Input(str(file)).plan(Reading(4, None, work[0].check, work[0].rows, bad is not None)))
    defaults = {"device": "cpu", "precision": "float32", "seed": 1, "threads": 1}
    about = {"options": {**defaults, **options}, "input": {"path": str(file), "columns": [], "name": str(file)}}
    function(file=str(file), cluster=BlockServer(feed, about), **options)  # type: ignore[arg-type]
    if bad is not None:
        bad += [message for answer in feed.answers for message in answer.bad]
    return b"".join(answer.content for answer in feed.answers)


@pytest.mark.parametrize(
    "command, model, name, options",
    [
        ("translate", "translator", "texts.txt", {"decoding": {"sample": True, "temperature": 2.0}}),
        ("translate", "translator", "texts.txt", {"decoding": {"sample": True}, "split_sentences": True, "seed": 7}),
        ("translate", "translator", "texts.txt", {"decoding": {"beam": 3, "n_best": 2}}),
        ("generate", "language", "texts.txt", {"decoding": {"top_p": 0.9, "max_new_tokens": 5}}),
        ("fill", "masked", "masks.txt", {"top": 2}),
        ("classify", "labels", "texts.txt", {"as_json": True}),
        ("similarity", "masked", "pairs.tsv", {"as_json": True}),
        ("tag", "tags", "texts.txt", {"as_json": True}),
        ("answer", "answers", "pairs.tsv", {"as_json": True, "n_best": 2}),
    ],
)
def test_blocks_give_the_bytes_of_the_command(
    models: Any, files: Any, capsys: Any, monkeypatch: Any, command: str, model: str, name: str, options: dict[str, Any]
) -> None:
    """All digits of those that read a window of lines at a time: a block has the batches of whole windows."""
    monkeypatch.setattr(cli_lines, "WINDOW", 2)
    options = {"model": models[model], "device": "cpu", "threads": 1, **options}
    if "decoding" not in options and command in ("translate", "generate"):
        options["decoding"] = {}
    command_function(command)(file=str(files[name]), **options)
    expected = capsys.readouterr().out.encode()
    assert expected.strip() and expected.count(b"\n") == 19
    assert by_blocks(command, files[name], options) == expected


@pytest.mark.parametrize("model, name", [("language", "texts.txt"), ("translator", "pairs.tsv")])
def test_perplexities_of_blocks_are_those_of_the_command(
    models: Mapping[str, str], files: dict[str, Path], capsys: pytest.CaptureFixture[str], model: str, name: str
) -> None:
    """To rounding: a block has other batches than a file. Blank lines stay blank."""
    options = {"model": models[model], "device": "cpu", "threads": 1, "per_text": True}
    command_function("perplexity")(file=str(files[name]), **options)
    expected = capsys.readouterr().out.splitlines()
    values = by_blocks("perplexity", files[name], options).decode().splitlines()
    assert [bool(value) for value in values] == [bool(value) for value in expected] and len(values) == 19
    assert [float(value) for value in values if value] == pytest.approx([float(v) for v in expected if v], rel=1e-5)


def test_vectors_of_blocks_are_those_of_the_command(models: Any, files: dict[str, Path], tmp_path: Path) -> None:
    options = {"model": models["masked"], "device": "cpu", "threads": 1}
    command_function("embed")(file=str(files["texts.txt"]), out=tmp_path / "all.npy", **options)
    parts = io.BytesIO(by_blocks("embed", files["texts.txt"], options))
    vectors = np.concatenate([np.load(parts) for _ in range(5)])
    assert vectors.shape == (19, 16)
    np.testing.assert_allclose(vectors, np.load(tmp_path / "all.npy"), atol=1e-6)


def test_bad_lines_are_empty_in_blocks_as_in_the_command_or_named_by_their_number(
    models: Mapping[str, str], files: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Those that break a rule of files, of the command, and of the model."""
    file = tmp_path / "bad.tsv"
    lines = files["pairs.tsv"].read_bytes().splitlines(keepends=True)
    lines[3], lines[6], lines[9] = b"\xff\n", b"no tab\n", b"who " * 70 + b"?\tlong question\n"
    file.write_bytes(b"".join(lines))
    options = {"model": models["answers"], "device": "cpu", "threads": 1, "skip_bad": True}
    command_function("answer")(file=str(file), **options)
    printed = capsys.readouterr()
    assert "3 bad lines skipped" in printed.err
    bad: list[str] = []
    assert by_blocks("answer", file, options, bad) == printed.out.encode()
    assert [message.split(": ")[0].rsplit(":")[-1] for message in bad] == ["4", "7", "10"]
    file = tmp_path / "masks.txt"
    file.write_text("a <mask>\n" * 5 + "no place\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"masks\.txt:6: the text has no <mask> to fill"):
        by_blocks("fill", file, {"model": models["masked"], "device": "cpu"})


def test_usage_is_checked_before_any_work(server: ForkServer, here: Path, files: dict[str, Path]) -> None:
    texts = files["texts.txt"]
    (here / "bad.txt").write_bytes(b"good\nb\xffd\n")
    out = "--cluster local --out parts"
    refusals = {
        f"{texts} --workers 2": "--workers has no effect without --cluster",
        f"{texts} --cluster local": "--cluster needs --out DIR",
        f"{texts} --cluster here --out parts": "--cluster must be local, ray or ray://HOST:PORT: got 'here'",
        f"{texts} {out} --stream": "--stream and --cluster exclude each other",
        f"{texts} {out} --columns a": "--columns is for .jsonl, .tsv and .parquet files",
        f"- {out}": "--cluster needs a FILE",
        f"none.txt {out}": "none.txt: no such file",
        f"{texts} --cluster local --out .": "new or empty folder",
        f"bad.txt {out}": "bad.txt:2: not UTF-8",
    }
    others = {f"perplexity run {texts} {out}": "needs --per-text", "collect parts": "parts has no manifest.json"}
    each_refused(server, here, {f"translate run {rest}": said for rest, said in refusals.items()} | others)


def descendants(pid: int) -> list[tuple[int, str]]:
    """The processes that this one started, and those that they started, with their command lines."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    ours, count = {pid}, 0
    while len(ours) > count:
        count = len(ours)
        ours |= {int(child) for child, parent, _ in rows if int(parent) in ours}
    return [(int(child), command) for child, _, command in rows if int(child) in ours - {pid}]


def finished(folder: Path) -> int:
    """The number of parts in a folder of a run."""
    return len(list(folder.glob("parts/part-*")))


def test_the_parts_of_a_worker_joined_are_the_output_of_the_command(server: ForkServer, here: Path) -> None:
    (here / "in.txt").write_text(SOURCES, encoding="utf-8", newline="\n")
    expected = server.run(*TRANSLATE, cwd=here).stdout
    done = server.run(*TRANSLATE, *CLUSTER, "--workers", "1", cwd=here, env=REAL)
    assert done.status == 0 and done.stdout == "", done.stderr
    assert done.stderr == "wrote parts: 40 parts for 40 lines; to join them: atento collect parts\n"
    assert server.run("collect", "parts", cwd=here).stdout == expected


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["local", "ray"])
def test_a_killed_worker_costs_its_block_alone(server: ForkServer, here: Path, cluster: str) -> None:
    """On Ray, its actor is killed, which holds the worker."""
    if cluster == "ray":
        pytest.importorskip("ray", reason="needs ray")
    (here / "in.txt").write_text(SOURCES, encoding="utf-8", newline="\n")
    expected = server.run(*TRANSLATE, cwd=here).stdout
    where = ("--cluster", cluster, *CLUSTER[2:], "--workers", "1")
    running = server.start(*TRANSLATE, *where, cwd=here, env=REAL | {"RAY_ADDRESS": "local"})  # a cluster of its own
    wait_for(lambda: finished(here / "parts") > 1, 120)
    name = "block_worker" if cluster == "local" else "ray::WorkerProcess"
    (worker,) = [pid for pid, command in descendants(running.pid) if name in command]
    os.kill(worker, signal.SIGKILL)
    done = running.end(120)
    assert done.status == 0 and done.stdout == "", done.stderr
    lost = "its process ended by SIGKILL" if cluster == "local" else "its actor ended: "
    assert done.stderr.count(f"which is done again: {lost}") == 1, done.stderr
    assert "wrote parts: 40 parts for 40 lines" in done.stderr
    assert server.run("collect", "parts", cwd=here).stdout == expected


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_makes_lost_parts_again(server: ForkServer, here: Path) -> None:
    """SIGTERM and SIGINT in the middle; then a part removed and one altered, which alone are made again."""
    (here / "in.txt").write_text(SOURCES, encoding="utf-8", newline="\n")
    expected = server.run(*TRANSLATE, cwd=here).stdout
    for stop, before in ((signal.SIGTERM, 1), (signal.SIGINT, 10)):
        running = server.start(*TRANSLATE, *CLUSTER, "--workers", "2", cwd=here, env=REAL)
        wait_for(lambda: finished(here / "parts") > before)  # noqa: B023
        workers = [pid for pid, _ in descendants(running.pid)]
        assert len(workers) == 2
        os.kill(running.pid, stop)
        done = running.end()
        assert done.status == -stop and f"stopped by {stop.name}: " in done.stderr
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))  # noqa: B023
    assert before < finished(here / "parts") < 40
    assert server.run(*TRANSLATE, *CLUSTER, "--workers", "3", cwd=here).status == 0
    files = sorted((here / "parts" / "parts").iterdir())
    files[7].unlink()
    files[30].write_text("another text\n", encoding="utf-8")
    times = {path.name: path.stat().st_mtime_ns for path in files if path.exists()}
    again = server.run(*TRANSLATE, *CLUSTER, cwd=here)
    assert again.status == 0 and again.stderr.count("it is made again") == 2
    changed = [path.name for path in files if times.get(path.name) != path.stat().st_mtime_ns]
    assert changed == ["part-00007.txt", "part-00030.txt"]
    assert server.run("collect", "parts", cwd=here).stdout == expected


@pytest.mark.slow
def test_many_lines_in_flat_memory(server: ForkServer, here: Path) -> None:
    """100,000 lines, packed: the process that hands them out holds a few blocks, not the file."""
    lines = "".join(f"{pair.source} {number}\n" for number, pair in enumerate(write("train", 2000, 9))) * 50
    with gzip.open(here / "in.txt.gz", "wt", encoding="utf-8", newline="\n") as file:
        file.write(lines)
    command = ("embed", "run", "in.txt.gz", *RUN, "--cluster", "local", "--workers", "2", "--out", "parts")
    running = server.start(*command, cwd=here)
    peaks: list[int] = []

    def ended() -> bool:
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{running.pid}/status").read_text(encoding="ascii").splitlines()
            peaks.append(int(next(line for line in status if line.startswith("RssAnon:")).split()[1]))
        manifest = here / "parts" / "manifest.json"
        return manifest.exists() and '"parts": [\n' in manifest.read_text(encoding="utf-8")

    wait_for(ended, 600)
    assert running.end().status == 0
    assert finished(here / "parts") == 98  # 1024 lines each
    quarter = len(peaks) // 4
    assert max(peaks[-quarter:]) < max(peaks[quarter : 2 * quarter]) + 20_000  # kB
    assert server.run("collect", "parts", "--out", "all.npy", cwd=here).status == 0
    vectors = np.load(here / "all.npy", mmap_mode="r")
    assert vectors.shape == (100_000, 16)
    np.testing.assert_array_equal(vectors[:1024], np.load(here / "parts" / "parts" / "part-00000.npy"))
    np.testing.assert_allclose(vectors[:2000], vectors[98_000:], atol=1e-5)
