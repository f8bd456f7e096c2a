"""`atento data tokenize` and `train` on its store, as processes: killed, resumed, equal to undisturbed ones."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atento
from atento.base.errors import DataError
from atento.config.reading.loading import load_recipe
from atento.runs.token_data import make_store
from atento.text import bulk
from conftest import ForkServer
from runs import events

RECIPE = """
task: language-modeling
data: {train: text.txt, max_len: 32, pack: isolated, store: disk, store_folder: store, held_out: 20}
tokenizer: {kind: bpe, vocab_size: 330}
network: {architecture: decoder, d_model: 16, n_heads: 2, d_ff: 16, n_layers: 1}
training: {steps: 8, batch_tokens: 256, validate_every: 4, checkpoint_every: 2, log_every: 1, average: 1}
"""
WORDS = ["o", "gato", "pulou", "alto", "a", "casa", "azul", "verde", "não", "é", "de", "que", "um", "céu", "mar", "sol"]


def write(folder: Path, lines: int) -> None:
    random = np.random.default_rng(4)
    folder.mkdir(exist_ok=True)
    (folder / "my.yaml").write_text(RECIPE)
    text = [" ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(lines)]
    (folder / "text.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    os.utime(folder / "text.txt", (1_700_000_000, 1_700_000_000))  # which the store records


def test_train_makes_a_store_and_resumes_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two calls the losses are those of one; it resumes in another directory; other text is refused."""
    for name, steps in (("once", [8]), ("twice", [4, 8])):
        write(tmp_path / name, 300)
        monkeypatch.chdir(tmp_path / name)
        for number in steps:
            atento.train("my.yaml", {"training.steps": number, "training.schedule": "constant"}, out="run")
    assert (tmp_path / "once" / "store" / "manifest.json").exists()

    def losses(name: str) -> list[tuple[int, float]]:
        return [(event["step"], event["loss"]) for event in events(tmp_path / name / "run", "train")]

    assert losses("once") == losses("twice") and len(losses("once")) == 8
    monkeypatch.chdir(tmp_path)
    (tmp_path / "once" / "text.txt").touch()
    assert atento.train("once/run", {"training.steps": 9}).step == 9  # the same bytes
    with (tmp_path / "once" / "text.txt").open("a") as file:
        file.write("mais\n")
    with pytest.raises(DataError, match=r"text.txt has changed"):
        atento.train("once/run", {"training.steps": 10})


def small_shards(said: Path) -> None:
    """The command with small shards, so that little text has many; it writes the process of its worker to a file."""
    start = bulk.Child

    def started(*arguments: str, **variables: str) -> Any:
        worker = start(*arguments, **variables)
        (said / "writing").write_text(str(worker.pid))
        (said / "writing").rename(said / "worker")
        return worker

    bulk.Child = started  # type: ignore[assignment,misc]
    make_store(load_recipe("my.yaml", ["data.held_out=0"]), lambda line: None, processes=1, shard_tokens=5_000)


@pytest.mark.parametrize("shard", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_killed_command_leaves_a_store_that_it_completes(server: ForkServer, tmp_path: Path, shard: int) -> None:
    """SIGKILL before the first shard or between two: no process is left over, and the result has the same bytes."""
    contents = []
    for name in ("undisturbed", "killed"):
        folder = tmp_path / name
        write(folder, 6_000)
        command = {"cwd": folder, "test": f"{__name__}:small_shards", "said": str(folder)}
        if name == "killed":
            running = server.start(**command)
            until = ["worker", *([f"store/shard-{shard:05}.json"] if shard else [])]
            while not all((folder / name).exists() for name in until):
                assert running.status() is None
                time.sleep(0.002)
            os.kill(running.pid, signal.SIGKILL)
            assert running.end().status == -signal.SIGKILL and not (folder / "store" / "manifest.json").exists()
            worker = int((folder / "worker").read_text())
            for _ in range(500):
                if not Path(f"/proc/{worker}").exists():
                    break
                time.sleep(0.02)
            else:
                raise AssertionError("the worker goes on without its parent")
        server.good(**command)
        files = (path for path in (folder / "store").iterdir() if path.suffix in (".bin", ".json"))
        contents.append({path.name: path.read_bytes() for path in files})
        manifest = json.loads(contents[-1]["manifest.json"])
        assert len(manifest["shards"]) > 6 and manifest["texts"] == 6_000
    assert contents[0] == contents[1]


def test_the_command_prints_what_it_made(server: ForkServer, tmp_path: Path) -> None:
    write(tmp_path, 300)
    said = json.loads(server.run("data", "tokenize", "my.yaml", "--json", cwd=tmp_path).stdout)
    assert said["texts"] == 280 and said["folder"].endswith("store") and said["tokens"] > 3000


# The peak of resident memory of making a store, and of reading its texts window by window, in MiB.
PEAK = """
import resource, sys
import numpy as np
from atento.config.reading.loading import load_recipe
from atento.base.splitmix import permuted
from atento.runs.token_data import make_store
loaded = load_recipe("my.yaml", ["data.held_out=0", "tokenizer={path: pieces}"])
store = make_store(loaded, lambda line: None, shard_tokens=1 << 20).store
count = 0
for first in range(0, store.n_blocks, 64):
    blocks = permuted(np.arange(first, min(first + 64, store.n_blocks)), store.n_blocks, 1, 0)
    count += sum(map(len, store.rows(blocks.tolist())))
    store.release()
assert count == store.tokens
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.slow
def test_memory_is_bounded_for_a_text_of_300_mb(tmp_path: Path) -> None:
    """694 MiB were measured, of which PyTorch takes about 220; the ids as lists would take 3 GiB."""
    write(tmp_path, 20_000)
    command = [sys.executable, "-c", "from atento_cli.start import main; main()", "tokenizer", "train", "text.txt"]
    subprocess.run([*command, "--out", "pieces", "--kind", "bpe", "--vocab-size", "330"], cwd=tmp_path, check=True)
    block = (tmp_path / "text.txt").read_bytes()
    with (tmp_path / "text.txt").open("wb") as file:
        for _ in range(192):
            file.write(block)
    done = subprocess.run([sys.executable, "-c", PEAK], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 850
