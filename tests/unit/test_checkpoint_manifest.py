"""The manifest finds every change, names the file, and no artefact made with ill will gets further (R4, S1)."""

import hashlib
import json
import os
import pickle
import random
import shutil
import time
from pathlib import Path

import pytest
import torch

from atento.base.errors import CheckpointError
from atento.storage.checkpoint import load_checkpoint, newest, save_checkpoint
from atento.storage.manifest import is_plain_name, read_manifest, strict_json, verify, write_manifest
from failing import fails


def save(folder: Path, step: int) -> Path:
    """A checkpoint of 40 kB whose every tensor depends on the step, with a tokenizer beside it."""
    generator = torch.Generator().manual_seed(step)
    weights = {"embedding": torch.randn(64, 80, generator=generator), "norm": torch.randn(80, generator=generator)}
    moments = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in weights.items()}
    parts: dict = {"config": {"architecture": "encoder-decoder", "d_model": 80}, "weights": weights}
    parts |= {"optimizer": moments, "state": {"score": step / 10, "cursor": step * 7}}
    extra = {"tokenizer.json": json.dumps({"vocab": ["é", "ção", f"{step}"]}).encode()}
    return save_checkpoint(folder, step, extra=extra, run_id="r", **parts)


def rendered(body: dict) -> bytes:
    """A manifest as its page says it: canonical JSON, then its own hash last. Written here a second time on purpose."""
    own = hashlib.sha256(json.dumps(body, indent=1).encode("ascii")).hexdigest()
    return json.dumps({**body, "sha256": own}, indent=1).encode("ascii") + b"\n"


def listed(name: str, content: bytes) -> dict:
    return {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def body(files: list[dict], **changes: object) -> dict:
    return {"format": "atento-checkpoint-1", "step": 1, "run_id": "", "files": files, **changes}


def test_manifest_lists_name_size_and_hash_of_each_file_and_its_own_hash_last(tmp_path: Path) -> None:
    (tmp_path / "ação.txt").write_bytes(b"")
    fails(CheckpointError, r"the name 'ação.txt' is not made of A-Z", write_manifest, tmp_path)
    (tmp_path / "ação.txt").unlink()
    (tmp_path / "b.json").write_bytes(b"{}")
    (tmp_path / "a.txt").write_bytes("ação".encode())
    written = write_manifest(tmp_path, step=7, run_id="run")
    expected = body([listed("a.txt", "ação".encode()), listed("b.json", b"{}")], step=7, run_id="run")
    assert (tmp_path / "MANIFEST.json").read_bytes() == rendered(expected)
    assert verify(tmp_path) == read_manifest(tmp_path) == written
    assert (written.step, written.run_id) == (7, "run")
    fails(CheckpointError, r"there is a MANIFEST.json already", write_manifest, tmp_path)


def test_plain_names() -> None:
    assert is_plain_name("model-00001-of-2.safetensors") is is_plain_name("a_B.9") is True
    for name in ("", ".", "..", "a/b", "../x", "a b", "é", "a\n", "a\0"):
        assert is_plain_name(name) is False, name


def corruptions(folder: Path, good: Path, older: Path, count: int, seed: int):
    """Endless kinds of damage, each done on the disk: yields (the files one of which must be named, what was done)."""
    source, files = random.Random(seed), sorted(path.name for path in good.iterdir())
    twins = ["model.safetensors", "optimizer.safetensors"]
    for number in range(count):
        target = folder / f"case-{number}"
        shutil.copytree(good, target)
        name = files[source.randrange(len(files))]
        path = target / name
        content = bytearray(path.read_bytes())
        at = source.randrange(len(content))
        kind = number % 9
        if kind == 0:
            content[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            content[at] ^= source.randrange(1, 256)
        elif kind == 2:
            at = at // 4096 * 4096
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        elif kind == 3:
            del content[at:]
        elif kind == 4:
            content += bytes([source.randrange(256)])
        if kind <= 4:
            path.write_bytes(content)
        elif kind == 5:
            path.unlink()
        elif kind == 6:
            name = f"extra-{number}.json"
            (target / name).write_bytes(b"{}")
        elif kind == 7:
            name = source.choice([file for file in files if file != "config.json"])  # that one is the same in both
            shutil.copyfile(older / name, target / name)
        else:
            for one, other in (twins, twins[::-1]):
                shutil.copyfile(good / one, target / other)
        # Another step's manifest is whole in itself: then it is the other files that do not fit it.
        named = twins if kind == 8 else {*files} - {"config.json"} if kind == 7 and name == "MANIFEST.json" else [name]
        yield target, named, f"kind {kind} of {name} at {at}"
        shutil.rmtree(target)


def test_r4_no_damage_is_silent_and_the_file_is_named(tmp_path: Path) -> None:
    good, older = save(tmp_path, 2), save(tmp_path, 1)
    silent, count = [], 540
    for target, names, what in corruptions(tmp_path, good, older, count, seed=5):
        for check in (verify, load_checkpoint):
            try:
                check(target)
                silent.append(what)
            except CheckpointError as error:
                assert any(name in str(error).removeprefix(f"checkpoint {target}") for name in names), (what, error)
    assert silent == []
    assert verify(good).step == 2


def test_r4_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    path = save(tmp_path, 1) / "MANIFEST.json"
    content, source = path.read_bytes(), random.Random(3)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << source.randrange(8)
        path.write_bytes(changed)
        fails(CheckpointError, r"MANIFEST\.json (is malformed|was altered)", verify, path.parent)
    path.write_bytes(content)
    verify(path.parent)


def test_r4_each_fault_has_its_own_words(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    state = (path / "state.json").read_bytes()
    (path / "state.json").write_bytes(state + b" ")
    fails(CheckpointError, rf"state.json has {len(state) + 1} bytes where .* says {len(state)}", verify, path)
    (path / "state.json").write_bytes(state.replace(b"7", b"8", 1))
    fails(CheckpointError, r"state.json was altered: its SHA-256 is not that of MANIFEST.json", verify, path)
    (path / "state.json").unlink()
    fails(CheckpointError, r"state.json is missing", verify, path)
    (path / "state.json").write_bytes(state)
    (path / "weights.bin").write_bytes(b"")
    fails(CheckpointError, r"weights.bin does not belong to it", verify, path)
    (path / "MANIFEST.json").write_bytes(b"")
    fails(CheckpointError, r"MANIFEST.json is malformed", verify, path)
    (path / "MANIFEST.json").unlink()
    fails(CheckpointError, r"MANIFEST.json is missing", verify, path)
    fails(CheckpointError, "there is no such directory", verify, tmp_path / "absent")


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "socket"])
def test_s1_what_is_not_a_plain_file_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 1)
    victim = path / "state.json"
    victim.rename(tmp_path / "elsewhere.json")
    if kind == "link":
        victim.symlink_to(tmp_path / "elsewhere.json")  # the very content, by a way that leads outside
    elif kind == "pipe":
        os.mkfifo(victim)
    elif kind == "directory":
        victim.mkdir()
    else:
        import socket

        monkeypatch.chdir(path)  # a socket's address must be short
        socket.socket(socket.AF_UNIX).bind("state.json")
    fails(CheckpointError, r"state\.json is not a plain file", verify, path)


def test_s1_manifests_that_lie_are_refused(tmp_path: Path) -> None:
    for raw, message in (
        (rendered(body([listed("../x", b"")])), "the file name '../x' is not made of"),
        (rendered(body([listed("/etc/passwd", b"")])), "the file name '/etc/passwd' is not made of"),
        (rendered(body([listed("..", b"")])), r"the file name '\.\.' is not made of"),
        (rendered(body([listed("MANIFEST.json", b"")])), "the file name 'MANIFEST.json' is not"),
        (rendered(body([listed("a", b""), listed("a", b"")])), "in order, each once"),
        (rendered(body([listed("b", b""), listed("a", b"")])), "in order, each once"),
        (rendered(body([listed("a", b"") | {"size": -1}])), "a: size or sha256 is not one"),
        (rendered(body([listed("a", b"") | {"size": 1 << 63}])), "a: size or sha256 is not one"),
        (rendered(body([listed("a", b"") | {"size": True}])), "a: size or sha256 is not one"),
        (rendered(body([listed("a", b"") | {"sha256": "0"}])), "a: size or sha256 is not one"),
        (rendered(body([listed("a", b"") | {"mode": 7}])), "name, size, sha256 and nothing else"),
        (rendered(body(["a"])), "name, size, sha256 and nothing else"),
        (rendered(body([], step=-1)), "`step` must be a number"),
        (rendered(body([], run_id=None)), "`run_id` text"),
        (rendered(body([], format="2")), "its format must be 'atento-checkpoint-1': got '2'"),
        (rendered({**body([]), "_target_": "os.system"}), "its keys must be"),
        (b"[]\n", "its keys must be"),
        (b'{"step": 1, "step": 2}', "a key occurs twice"),
        (b'{"step": NaN}', "NaN is no JSON number"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"step": ' + b"9" * 10_000 + b"}", "MANIFEST.json is malformed"),
        (b"\xff\xfe", "MANIFEST.json is malformed"),
        (b" " * (5 << 20), "MANIFEST.json is longer than 4194304 bytes"),
        (rendered(body([])).replace(b"\n", b"\r\n"), "its own SHA-256 does not match"),
        (rendered(body([])).replace(b'"step": 1', b'"step": 2'), "its own SHA-256 does not match"),
    ):
        (tmp_path / "MANIFEST.json").write_bytes(raw)
        started = time.monotonic()
        fails(CheckpointError, message, verify, tmp_path)
        assert time.monotonic() - started < 1


def with_content(folder: Path, name: str, content: bytes) -> Path:
    """A checkpoint with a file changed and a manifest that agrees, as ill will would make it."""
    path = save(folder, 1)
    (path / name).write_bytes(content)
    (path / "MANIFEST.json").unlink()
    write_manifest(path, step=1)
    return path


class Planted:
    """Creates a file when unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self):
        return (os.mkdir, (str(self.sentinel),))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "config.json", "state.json"])
def test_s1_a_pickle_under_any_name_never_runs(tmp_path: Path, name: str) -> None:
    sentinel = tmp_path / "ran"
    torch.save({"w": Planted(sentinel)}, tmp_path / "archive")
    for content in (pickle.dumps(Planted(sentinel)), (tmp_path / "archive").read_bytes()):
        path = with_content(tmp_path, name, content)
        fails(CheckpointError, rf"{name} (is malformed|is not a safetensors file|has a header)", load_checkpoint, path)
        assert not sentinel.exists()
        shutil.rmtree(path)


def tensor_file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(**changes: object) -> dict:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def test_s1_safetensors_headers_that_lie_are_refused(tmp_path: Path) -> None:
    contents = (
        b"",
        b"\x01",
        ((17 << 20).to_bytes(8, "little")) + b"{}",
        b"\xff" * 8 + b"{}",
        tensor_file(one(), b"1234567"),  # one byte short
        tensor_file(one(), b"123456789"),  # one too many
        tensor_file(one(shape=[1 << 60], data_offsets=[0, 1 << 62]), b"12345678"),
        tensor_file(one(shape=[1 << 32, 1 << 32]), b"12345678"),
        tensor_file(one(shape=[-2]), b"12345678"),
        tensor_file(one(data_offsets=[8, 0]), b"12345678"),
        tensor_file(one(data_offsets=[-8, 0]), b"12345678"),
        tensor_file({**one(), "v": one()["w"]}, b"12345678"),  # overlapping
        tensor_file({**one(), "v": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}, b"0" * 16),  # a hole
        tensor_file(one(dtype="PICKLE"), b"12345678"),
        tensor_file(b"[" * 100_000),
        tensor_file(b'{"w": 1}'),
        tensor_file(b"\x80\x04."),
    )
    for number, content in enumerate(contents):
        path = with_content(tmp_path / str(number), "model.safetensors", content)
        started = time.monotonic()
        fails(CheckpointError, r"model\.safetensors (is not a safetensors file|has a header of)", load_checkpoint, path)
        assert time.monotonic() - started < 1


def test_s1_what_is_read_is_checked(tmp_path: Path) -> None:
    for name, content, message in (
        ("optimizer.safetensors", tensor_file(one(), b"\0\0\xc0\x7f" * 2), r"tensor 'w' is not finite"),
        ("config.json", b" " * (65 << 20), r"has 68157440 bytes, more than the 67108864 allowed"),
        ("state.json", b"[]", r"is malformed: it must be one object"),
    ):
        fails(CheckpointError, f"{name}:? {message}", load_checkpoint, with_content(tmp_path / name, name, content))


def test_a_checkpoint_without_a_part_or_with_two_steps_is_refused(tmp_path: Path) -> None:
    path = with_content(tmp_path, "state.json", b'{"step": 2}')
    fails(CheckpointError, r"state\.json says step 2, MANIFEST\.json 1", load_checkpoint, path)
    for name in ("state.json", "optimizer.safetensors"):
        (path / name).unlink()
        (path / "MANIFEST.json").unlink()
        write_manifest(path, step=1)
        fails(CheckpointError, rf"{name} is not part of it", load_checkpoint, path)
        shutil.rmtree(path)
        save(tmp_path, 1)


def test_a_checkpoint_directory_that_is_a_link_is_no_candidate(tmp_path: Path) -> None:
    elsewhere = save(tmp_path / "elsewhere", 3)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step-00000003").symlink_to(elsewhere)
    assert newest(tmp_path / "run") is None


def test_a_directory_that_cannot_be_listed_and_strict_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 1)

    def refuse(fd: int) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "scandir", refuse)
    fails(CheckpointError, r"step-00000001: cannot be read \(Too many open files\)", verify, path)
    assert strict_json(b'{"n": 18446744073709551615}') == {"n": (1 << 64) - 1}
    fails(ValueError, "-Infinity is no JSON number", strict_json, b"[-Infinity]")
