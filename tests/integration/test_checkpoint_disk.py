"""A disk that is really full never costs the last good checkpoint, and what was stopped goes on when it frees (R5)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WAYS = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])

# Runs with the small disk mounted on its first argument, and prints what it saw.
SCRIPT = '''
import json, logging, os, pathlib, shutil, sys
import torch
from atento.base.errors import CheckpointError
from atento.storage import checkpoint
from atento.storage.checkpoint import clean, load_checkpoint, newest, save_checkpoint
from atento.training.metrics_log import MetricsLog, read_journal
from atento.storage.lock import RunLock

warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("atento").addHandler(handler)
disk = pathlib.Path(sys.argv[1])
folder, seen = disk / "checkpoints", {"warnings": warnings}


def save(step):
    w = {"w": torch.full((100_000,), float(step))}
    return save_checkpoint(folder, step, config={}, weights=w, optimizer=w, state={})


def refused(step):
    try:
        save(step)
    except CheckpointError as error:
        return str(error)


def names():
    return sorted(os.listdir(folder))


def fill():
    """Take every byte there is."""
    fd = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (4096, 1):
        try:
            while True:
                os.write(fd, b"x" * size)
        except OSError:
            pass
    os.close(fd)


def whole(path):
    back = load_checkpoint(path)
    return back.step, back.weights["w"].unique().tolist(), back.optimizer["w"].unique().tolist()


save(1)
journal = MetricsLog(disk / "metrics.jsonl")
journal.append({"event": "train", "step": 1})
seen["before writing"] = refused(2)  # 1.5 times one checkpoint: there is no room for a second
seen["names before writing"] = names()

# The room goes between the look and the writing: what another process may do.
real = os.statvfs
free = lambda path: os.statvfs_result((4096, 4096, 10**6, 10**6, 10**6, 0, 0, 0, 0, 255))
checkpoint._PAUSES = (0.0, 0.0, 0.0)
os.statvfs = free
seen["while writing"] = refused(3)
seen["names while writing"] = names()
fill()
seen["no byte at all"] = refused(4)
seen["names no byte"] = names()
os.statvfs = real
seen["newest"] = whole(newest(folder))
for step in (2, 3, 4):
    journal.append({"event": "train", "step": step, "text": "x" * 5000})
with RunLock(disk):  # taken also where there is no room to sign it
    seen["locked"] = True
seen["journal full"] = [event["step"] for event in read_journal(disk / "metrics.jsonl")]

os.unlink(disk / "filler")
shutil.rmtree(folder / "step-00000001")  # the person makes room
journal.append({"event": "train", "step": 5})
seen["after"] = whole(save(5))
seen["names after"] = names()
seen["journal after"] = [event["step"] for event in read_journal(disk / "metrics.jsonl")]
print(json.dumps(seen))
'''


TRAINING = """
import sys
from pathlib import Path
import atento
from atento.base.errors import CheckpointError

said = []
try:
    recipe = {
        "task": "translation",
        "data": {"train": {"world": "train", "count": 40}, "valid": {"world": "valid", "count": 4}},
        "tokenizer": {"kind": "word"},
        "network": {"d_model": 64, "d_ff": 128, "n_heads": 4, "n_layers": 2},
        "training": {"steps": 2000, "batch_tokens": 100},
    }
    atento.train(recipe, out=Path(sys.argv[1]) / "run", device="cpu")
except CheckpointError as error:
    print(error)
print((Path(sys.argv[1]) / "run" / "metrics.jsonl").read_text() == "")
"""


VECTORS = """
import os, sys
from pathlib import Path
import numpy as np
from atento_cli.commands.embed import _write
from atento.base.errors import AtentoError

disk = Path(sys.argv[1])
small, large = np.ones((8, 4), np.float32), np.random.default_rng(1).random((50_000, 4), np.float32)
for name in ("v.npy", "v.tsv", "v.vec"):
    out = disk / name
    _write(out, [f"w{n}" for n in range(8)], small)
    before = out.read_bytes()
    try:
        _write(out, [f"w{n}" for n in range(50_000)], large)
    except AtentoError as error:
        print(error)
    assert out.read_bytes() == before
print(sorted(os.listdir(disk)))
"""


def way_in(disk: Path) -> list[str] | None:
    """How this machine lets us mount a small disk of our own, if it does."""
    for way in WAYS:
        try:
            command = [*way, "mount", "-t", "tmpfs", "none", str(disk)]
            if subprocess.run(command, capture_output=True, timeout=30).returncode == 0:
                return way
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


def on_a_small_disk(disk: Path, script: str, size: int) -> str:
    """Run a script with the folder of a disk of so many bytes, and return what it printed."""
    disk.mkdir()
    way = way_in(disk)
    if way is None:
        pytest.skip("needs root or user namespaces, to mount a small disk")
    mounted = 'mount -t tmpfs -o size="$3" none "$1" && exec "$4" -c "$2" "$1"'
    command = [*way, "sh", "-c", mounted, "sh", str(disk), script, str(size), sys.executable]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_vectors_that_do_not_fit_leave_the_file_before(tmp_path: Path) -> None:
    *errors, names = on_a_small_disk(tmp_path / "disk", VECTORS, 300_000).splitlines()
    assert len(errors) == 3 and all("cannot be written: " in line and "None" not in line for line in errors)
    assert all("No space left" in line or "the disk may be full" in line for line in errors)
    assert names == "['v.npy', 'v.tsv', 'v.vec']"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A disk of one and a half checkpoints, and the lines of two scripts on it: one interpreter that imports torch."""
    disk = tmp_path_factory.mktemp("small") / "disk"
    one = 2 * 400_000 + 6 * 4096  # bytes of one checkpoint, about
    return disk, on_a_small_disk(disk, f"{SCRIPT}\nshutil.rmtree(folder)\n{TRAINING}", one * 3 // 2).splitlines()


def test_r5_a_full_disk(told: tuple[Path, list[str]]) -> None:
    disk, lines = told
    seen = json.loads(lines[0])
    only = ["step-00000001"]

    text = seen["before writing"]
    assert text.startswith(f"cannot save step 2 to {disk / 'checkpoints' / 'step-00000002'}: ")
    assert "bytes are needed (1.2 times the checkpoint) and" in text
    assert text.endswith("are free; the last good checkpoint is step 1")
    assert seen["names before writing"] == only

    for key, step, names in (("while writing", 3, "names while writing"), ("no byte at all", 4, "names no byte")):
        assert f"cannot save step {step} to {disk / 'checkpoints'}" in seen[key]
        assert "No space left on device" in seen[key]
        assert "bytes are needed; the last good checkpoint is step 1" in seen[key] and seen[names] == only
    assert seen["newest"] == [1, [1.0], [1.0]]

    assert seen["journal full"] == [1]
    assert sum("training continues without events" in text for text in seen["warnings"]) == 1
    assert sum("3 events were lost" in text for text in seen["warnings"]) == 1
    assert seen["locked"] is True and seen["after"] == [5, [5.0], [5.0]] and seen["names after"] == ["step-00000005"]
    assert seen["journal after"] == [1, 5]


def test_r5_a_disk_too_small_for_one_checkpoint_is_said_before_training(told: tuple[Path, list[str]]) -> None:
    _, (_, said, nothing_trained) = told
    assert said.startswith("cannot save step 2000 to ") and "bytes are needed (1.2 times the checkpoint)" in said
    assert nothing_trained == "True"
