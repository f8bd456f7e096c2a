"""Saving checkpoints: what comes back, what is refused, what a failing disk costs (R3, R5)."""

import errno
import logging
import math
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as library_bytes

from atento.base.errors import CheckpointError
from atento.storage.checkpoint import load_checkpoint, newest, save_checkpoint
from atento.storage.manifest import read_manifest, verify, write_manifest
from checkpoints import failing, names, save
from failing import fails

ODD = {
    "float32": torch.randn(3, 5),
    "float16": torch.randn(7).half(),
    "bfloat16": torch.randn(2, 2).bfloat16(),
    "float64": torch.randn(1, dtype=torch.float64),
    "complex": torch.randn(2, dtype=torch.complex64),
    "int64": torch.tensor([-(1 << 63), (1 << 63) - 1]),
    "int32": torch.tensor([1, -2], dtype=torch.int32),
    "int16": torch.tensor([3], dtype=torch.int16),
    "int8": torch.tensor([-4], dtype=torch.int8),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "uint16": torch.tensor([65535], dtype=torch.uint16),
    "uint32": torch.tensor([1], dtype=torch.uint32),
    "uint64": torch.tensor([2], dtype=torch.uint64),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "part": torch.arange(10.0)[2:5],
    "ação.weight": torch.ones(1),
    "a\"quote\\": torch.ones(1),
    "grad": torch.ones(2, requires_grad=True),
}  # fmt: skip
EMPTY: dict = {"config": {}, "weights": {}, "optimizer": {}, "state": {}}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    state = {"score": 0.1 + 0.2, "generators": {"python": [3, [1 << 63, 7], None]}, "name": "ação", "tiny": 5e-324}
    config = {"architecture": "encoder-decoder", "dropout": 0.1, "vocabulary": "português"}
    more = {"optimizer": {"w.exp_avg": torch.ones(2)}, "extra": {"tokenizer.json": b"\x00\xff"}, "run_id": "abc"}
    path = save_checkpoint(tmp_path / "run" / "checkpoints", 500, config=config, weights=ODD, state=state, **more)
    assert path == tmp_path / "run" / "checkpoints" / "step-00000500"
    assert names(path) == [
        "MANIFEST.json", "config.json", "model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"
    ]  # fmt: skip
    back = load_checkpoint(path)
    assert (back.step, back.run_id, back.path) == (500, "abc", path) and back.config == config
    assert back.state == {**state, "step": 500} and back.weights.keys() == ODD.keys()
    for name, tensor in ODD.items():
        assert back.weights[name].dtype == tensor.dtype
        assert torch.equal(back.weights[name], tensor), name
    assert torch.equal(back.optimizer["w.exp_avg"], torch.ones(2))
    assert (path / "tokenizer.json").read_bytes() == b"\x00\xff"


def test_the_tensor_file_is_the_librarys_own_byte_for_byte_and_shared_storage_is_written(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, config={}, weights=ODD, optimizer={}, state={})
    plain = {name: tensor.detach().contiguous() for name, tensor in ODD.items()}
    assert (path / "model.safetensors").read_bytes() == library_bytes(plain, {"format": "pt"})
    assert (path / "optimizer.safetensors").read_bytes() == library_bytes({}, {"format": "pt"})
    assert load_file(path / "model.safetensors").keys() == ODD.keys()
    shared = torch.arange(4.0)
    path = save_checkpoint(tmp_path, 2, config={}, weights={"a": shared, "b": shared}, optimizer={}, state={})
    back = load_checkpoint(path).weights
    assert torch.equal(back["a"], shared) and torch.equal(back["b"], shared)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float, part: str) -> None:
    tensors = {part: {"layer.0.bias": torch.tensor([0.0, value])}}
    file = "model.safetensors" if part == "weights" else "optimizer.safetensors"
    said = rf"{file}: tensor 'layer\.0\.bias' is not finite"
    fails(CheckpointError, said, save_checkpoint, tmp_path, 1, **EMPTY | tensors)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, dtype=torch.complex128), torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")],
    ids=["complex128", "sparse", "meta"],
)
def test_tensors_the_format_cannot_hold_are_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    parts = EMPTY | {"weights": {"w": tensor}}
    fails(CheckpointError, r"model\.safetensors: tensor 'w' cannot be", save_checkpoint, tmp_path, 1, **parts)


def test_state_that_would_not_come_back_is_refused(tmp_path: Path) -> None:
    for state, message in (
        ({"early_stop": {"best": -math.inf}}, r"state\.json cannot be written: `early_stop\.best` is not finite: -inf"),
        ({"losses": [1.0, math.nan]}, r"state\.json cannot be written: `losses\.1` is not finite: nan"),
        ({"slots": {1: 2}}, r"state\.json cannot be written: the key 1 in `slots` is not text"),
        ({"rng": b"123"}, r"state\.json cannot be written: .*bytes.* is not JSON serializable"),
        ({"name": "\ud800"}, r"state\.json cannot be written: .*surrogates not allowed"),
        ({"step": 4}, r"`state\['step'\]` must be the step that is saved: got 4 and 1"),
        ({"score": "high"}, r"`state\['score'\]` must be a number or None: got 'high'"),
        ({"score": True}, r"`state\['score'\]` must be a number or None: got True"),
    ):
        fails(CheckpointError, message, save_checkpoint, tmp_path, 1, **EMPTY | {"state": state})
        assert names(tmp_path) == []


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    endless: dict = {}
    endless["self"] = endless
    weights = {f"{'n' * 60_000}{number}": torch.ones(1) for number in range(300)}
    for part, message in (
        ({"config": endless}, r"config\.json cannot be written: it is nested too deeply"),
        ({"config": {"text": "x" * (65 << 20)}}, r"config\.json .*: it has \d+ bytes, more than 67108864"),
        ({"weights": weights}, r"model\.safetensors: its header would have \d+ bytes, more than 16"),
    ):
        fails(CheckpointError, message, save_checkpoint, tmp_path, 1, **EMPTY | part)


@pytest.mark.parametrize("name", ["../tokenizer.json", "a/b", "state.json", "MANIFEST.json", "..", "ação", ""])
def test_extra_files_have_plain_names_of_their_own(tmp_path: Path, name: str) -> None:
    fails(CheckpointError, "the name must match", save_checkpoint, tmp_path, 1, **EMPTY, extra={name: b""})


def test_a_damaged_checkpoint_is_set_aside_and_the_older_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1)
    bad = save(tmp_path, 2)
    content = bytearray((bad / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (bad / "model.safetensors").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path, rename_damaged=False) == tmp_path / "step-00000001"
        assert names(tmp_path) == ["step-00000001", "step-00000002"]
        assert newest(tmp_path) == tmp_path / "step-00000001"
    assert names(tmp_path) == ["step-00000001", "step-00000002.bad"]
    assert any("model.safetensors was altered" in record.getMessage() for record in caplog.records)
    with pytest.raises(CheckpointError, match=r"model\.safetensors was altered"):
        load_checkpoint(tmp_path / "step-00000002.bad")  # asked for by name, nothing else is given
    (save(tmp_path, 2) / "config.json").unlink()
    assert newest(tmp_path) == tmp_path / "step-00000001"
    assert names(tmp_path) == ["step-00000001", "step-00000002.bad", "step-00000002.bad1"]


def no_waiting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("atento.storage.checkpoint._PAUSES", (0.0, 0.0, 0.0))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_r5_a_disk_that_fails_at_any_write_costs_nothing_but_the_save(tmp_path: Path, code: int) -> None:
    save(tmp_path, 1)
    points = 0
    for at in range(100):
        with pytest.MonkeyPatch.context() as patch:
            no_waiting(patch)
            calls = failing("write", code, lambda call, at=at: call >= at, patch)
            try:
                save(tmp_path, 2)
            except CheckpointError as error:
                text = str(error)
            else:
                break
        points += 1
        assert len(calls) - at == (4 if code == errno.EIO else 2)  # one try again on a full disk, three on an error
        assert f"cannot save step 2 to {tmp_path / 'step-00000002'}: {os.strerror(code)}" in text
        assert "bytes are needed; the last good checkpoint is step 1" in text
        assert names(tmp_path) == ["step-00000001"]
        assert verify(tmp_path / "step-00000001").step == 1
    assert points >= 6  # four files, one of them in two pieces, and the manifest
    assert newest(tmp_path) == tmp_path / "step-00000002"


@pytest.mark.parametrize("name", ["write", "fsync", "open", "mkdir", "rename"])
def test_r5_a_passing_error_is_tried_again(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "trial").mkdir()
    for at in range(100):
        folder = tmp_path / "trial" / str(at)
        folder.mkdir()
        save(folder, 1)
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            no_waiting(patch)
            calls = failing(name, errno.EIO, lambda call, at=at: call == at, patch)
            path = save(folder, 2)
        assert verify(path).step == 2
        assert names(folder) == ["step-00000001", "step-00000002"]
        if len(calls) <= at:
            break
        if name != "mkdir" or at > 0:  # the first mkdir is of the folder, which is there already
            assert "saving step 2 failed (Input/output error), trying again" in caplog.text
    assert 0 < at < 99


def test_an_error_that_will_not_pass_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = failing("fsync", errno.EROFS, lambda call: True, monkeypatch)
    fails(CheckpointError, r"Read-only file .* \(config\.json\).*there is no earlier", save, tmp_path, 1)
    assert len(calls) == 1 and names(tmp_path) == []


def test_r5_too_little_room_is_seen_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    little = SimpleNamespace(f_blocks=1000, f_frsize=4096, f_bavail=2)
    monkeypatch.setattr(os, "statvfs", lambda path: little)
    calls = failing("mkdir", errno.EIO, lambda call: call > 0, monkeypatch)  # the folder itself alone
    with pytest.raises(CheckpointError, match=r"cannot save step 2 to .*step-00000002: ") as caught:
        save(tmp_path, 2)
    # Four files of one block each, the manifest and the directory: 6 x 4096 x 1.2.
    assert "29,492 bytes are needed (1.2 times the checkpoint) and 8,192 are free" in str(caught.value)
    assert str(caught.value).endswith("the last good checkpoint is step 1")
    assert len(calls) == 1 and names(tmp_path) == ["step-00000001"]
    monkeypatch.undo()
    assert verify(save(tmp_path, 2)).step == 2


def test_left_overs_are_cleared_when_room_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f".tmp-9-{'a' * 32}"
    left.mkdir()
    room = partial(SimpleNamespace, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: room(f_blocks=1000, f_bavail=0 if left.exists() else 900))
    save(tmp_path, 1)
    assert names(tmp_path) == ["step-00000001"]
    monkeypatch.setattr(os, "statvfs", lambda path: room(f_blocks=0, f_bavail=0))  # a disk that does not tell
    assert verify(save(tmp_path, 2)).step == 2


def test_the_same_step_is_replaced_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(CheckpointError, "`step` must not be negative: got -1", save, tmp_path, -1)
    save(tmp_path, 1, fill=1.0)
    path = save(tmp_path, 1, fill=2.0)
    assert load_checkpoint(path).weights["w"][0] == 2.0
    assert names(tmp_path) == ["step-00000001"]
    (path / "MANIFEST.json").write_bytes(b"{}")
    assert verify(save(tmp_path, 1)).step == 1 and names(tmp_path) == ["step-00000001"]
    path = save(tmp_path, 2, run_id="a")
    fails(CheckpointError, r"another run \('a', this one is 'b'\); .* not replaced", save, tmp_path, 2, run_id="b")
    assert read_manifest(path).run_id == "a"
    (tmp_path / "file").write_bytes(b"")
    said = r"cannot save step 1 to .*: Not a directory; there is no earlier"
    fails(CheckpointError, said, save, tmp_path / "file" / "checkpoints", 1)

    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "new", 1)
    assert names(tmp_path / "new") == []


def test_r3_nothing_is_named_before_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order a power cut asks for: write and fsync of each file, then of the directory, rename, then the parent."""
    log: list[tuple[str, int]] = []
    real = {name: getattr(os, name) for name in ("write", "fsync", "rename")}

    def noted(name: str, inode: int, *args) -> object:
        log.append((name, inode))
        return real[name](*args)

    monkeypatch.setattr(os, "write", lambda fd, data: noted("write", os.fstat(fd).st_ino, fd, data))
    monkeypatch.setattr(os, "fsync", lambda fd: noted("fsync", os.fstat(fd).st_ino, fd))
    monkeypatch.setattr(os, "rename", lambda a, b: noted("rename", Path(a).stat().st_ino, a, b))
    path = save(tmp_path, 1)
    inode = {name: (path / name).stat().st_ino for name in names(path)}
    whole = path.stat().st_ino  # the temporary directory's own: it was only renamed
    commit = log.index(("rename", whole))
    for name in names(path):
        last_write = max(index for index, entry in enumerate(log) if entry == ("write", inode[name]))
        assert last_write < log.index(("fsync", inode[name])) < log.index(("fsync", whole)) < commit
        if name != "MANIFEST.json":
            assert log.index(("fsync", inode[name])) < log.index(("write", inode["MANIFEST.json"]))
    assert log[commit + 1 :] == [("fsync", tmp_path.stat().st_ino)]


def test_write_manifest_may_serve_a_folder_saved_otherwise(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(library_bytes({"w": torch.ones(2)}))
    write_manifest(tmp_path)
    assert verify(tmp_path).entry("model.safetensors") is not None
    assert verify(tmp_path).entry("other") is None
