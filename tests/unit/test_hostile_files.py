"""Files that are no files, swell, lie or name others: each file of a model folder in turn (S1)."""

import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

import atento
from atento.base.errors import AtentoError
from atento.config.recipe import TokenizerConfig
from atento.models.peft import read_peft
from atento.released.sentence_transformers import sentence_folder
from atento.text import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_cli.convert.unpickle import older_files
from failing import fails
from tiny_families import tiny_config, tiny_model

TEXTS = ["o gato pulou alto no tapete", "a gata dorme na cama", "um rato e um gato"] * 4


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind="wordpiece", vocab_size=60), TEXTS)


@pytest.fixture
def folders(tokenizer: Tokenizer, tmp_path: Path) -> dict[str, Path]:
    """A model in each layout, with every file that `load` may read there."""
    config = tiny_config("bert-base", vocab_size=tokenizer.vocab_size)
    made = {}
    for layout in ("atento", "huggingface"):
        model = tiny_model(config, tokenizer, embedding={"pooling": "mean"})
        made[layout] = model.save(tmp_path / layout, layout=layout)
        (made[layout] / "MANIFEST.json").unlink()
    theirs = made["huggingface"]
    for name in ("special_tokens_map.json", "config_sentence_transformers.json", "generation_config.json"):
        (theirs / name).write_text("{}", encoding="utf-8")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(theirs), "r": 1, "lora_alpha": 1}
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": ["query"]}))
    query = tiny_model(config).network.state_dict()["stack.blocks.0.self_attention.output.weight"]
    part = "base_model.model.encoder.layer.0.attention.output.dense"
    lora = {f"{part}.lora_A.weight": query[:1].contiguous(), f"{part}.lora_B.weight": query[:, :1].contiguous()}
    save_file(lora, adapter / "adapter_model.safetensors")
    return made | {"adapter": adapter}


def as_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(300 << 20)  # sparse


@pytest.mark.parametrize("kind", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir, as_large])
def test_s1_no_file_of_a_model_is_waited_for_or_read_without_an_end(kind, folders) -> None:
    """Also files that none of the readers has met yet: whatever `load` opens goes through `atento.base.limits`."""
    tried = 0
    for folder in folders.values():
        atento.load(folder, device="cpu")
        for path in sorted(file for file in folder.rglob("*") if file.is_file()):
            shutil.move(path, folder.parent / "aside")
            kind(path)
            begun = time.monotonic()
            try:
                with within(10):
                    atento.load(folder, device="cpu")
            except AtentoError as error:
                assert "\n" not in str(error), path
            assert time.monotonic() - begun < 5, path
            path.rmdir() if path.is_dir() else path.unlink()
            shutil.move(folder.parent / "aside", path)
            tried += 1
    assert tried > 14


@pytest.mark.parametrize("layout", ["atento", "huggingface"])
def test_k12_a_folder_of_ours_without_its_manifest_is_a_warning(layout: str, tmp_path: Path, caplog) -> None:
    folder = tiny_model(tiny_config("bert-base")).save(tmp_path / "model", layout=layout)
    with caplog.at_level(logging.WARNING):
        atento.load(folder)
        assert caplog.messages == []
        (folder / "MANIFEST.json").rename(tmp_path / "MANIFEST.json")
        atento.load(folder)
    assert len(caplog.messages) == 1 and "has no MANIFEST.json" in caplog.messages[0]
    (folder / "MANIFEST.json").symlink_to(tmp_path / "MANIFEST.json")
    fails(AtentoError, r"MANIFEST\.json is not a plain file", atento.load, folder)


def test_k12_a_folder_of_others_has_no_manifest_and_the_hubs_cache_is_made_of_links(tmp_path, caplog) -> None:
    folder = tiny_model(tiny_config("bert-base")).save(tmp_path / "model", layout="huggingface")
    cache = tmp_path / "snapshots" / "abc"
    cache.mkdir(parents=True)
    for file in folder.iterdir():
        (cache / file.name).symlink_to(file)
    (folder / "MANIFEST.json").unlink()
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del data["atento"]
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    (cache / "MANIFEST.json").unlink()
    (cache / "MANIFEST.json").symlink_to(folder / "config.json")
    with caplog.at_level(logging.WARNING):
        atento.load(folder)
        atento.load(cache)
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["../outside", "{tmp}/outside", "1_Pooling/../../outside", "link"])
def test_k12_the_modules_of_a_folder_are_inside_it(name: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside"
    for one in (folder / "1_Pooling", outside):
        one.mkdir(parents=True)
        (one / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    (folder / "link").symlink_to(outside)
    for kind in ("Transformer", "Pooling", "Dense"):
        module = {"path": name.format(tmp=tmp_path), "type": f"sentence_transformers.models.{kind}"}
        (folder / "modules.json").write_text(json.dumps([module]), encoding="utf-8")
        fails(AtentoError, r"modules\.json: the path of a module must be inside the folder", sentence_folder, folder)
    (folder / "modules.json").write_text(json.dumps([module | {"path": "1_Pooling"}]), encoding="utf-8")
    assert sentence_folder(folder) is not None


def test_k12_a_local_adapter_asks_nobody_for_its_base(folders: dict[str, Path], monkeypatch: Any) -> None:
    """The base is on this machine, or a sentence says how to fetch it; named on the hub, an adapter brings its base."""
    adapter = folders["adapter"]
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = "owner/base"
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    asked: list[object] = []

    def ask(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise OSError("no network in this test")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, ask)
    fails(AtentoError, r"base model owner/base is not .*`hf download owner/base`", atento.load, adapter)
    assert asked == []
    fails(AtentoError, "the hub cannot be reached", read_peft, adapter)
    assert asked != []


VALUES = ("1e999", "NaN", "-1", "true", "null", '"3"', "[]", "{}", "9" * 5000, "[" * 300 + "]" * 300, "2147483648", "2")


def mutated(text: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, cut out or repeated, or a number in place of another value."""
    content, kind = bytearray(text), draw.randrange(5)
    at = draw.randrange(len(content))
    if kind == 0:
        content[at] = draw.randrange(256)
    elif kind == 1:
        del content[at : at + draw.randrange(1, 20)]
    elif kind == 2:
        content[at:at] = content[at : at + draw.randrange(1, 40)]
    else:
        places = [n for n, byte in enumerate(content[:-1]) if byte in b":[, " and content[n + 1] in b'0123456789"tf[{']
        start = draw.choice(places) + 1 if places else at
        end = next((n for n in range(start + 1, len(content)) if content[n] in b",]}\n"), len(content))
        content[start:end] = draw.choice(VALUES).encode()
    return bytes(content)


def load_mutations(folder: Path, name: str, count: int, load: Callable[[Path], object]) -> int:
    """Load a folder with that many mutations of one file; return how many were refused."""
    path, refused, draw = folder / name, 0, random.Random(name)
    whole, wrong = path.read_bytes(), dict[str, bytes]()
    logging.disable()
    for _ in range(count):
        content = mutated(whole, draw)
        path.write_bytes(content)
        try:
            with within(10):
                load(folder)
        except AtentoError as error:
            refused += 1
            if len(str(error)) > 3000:
                wrong[f"too long: {str(error)[:200]}"] = content
        except BaseException as error:  # a panic of the tokenizers library is none of Exception
            at = traceback.extract_tb(error.__traceback__)[-1]
            wrong[f"{type(error).__name__} in {at.filename}:{at.lineno}: {error}"[:300]] = content
    logging.disable(logging.NOTSET)
    path.write_bytes(whole)
    assert wrong == {}, "\n".join(wrong)
    return refused


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_s1_mutated_files_end_in_documented_errors(folders: dict[str, Path], share: int) -> None:
    for folder, name, count in (
        (folders["huggingface"], "config.json", 300),
        (folders["atento"], "config.json", 300),
        (folders["huggingface"], "modules.json", 100),
        (folders["huggingface"], "1_Pooling/config.json", 50),
        (folders["adapter"], "adapter_config.json", 150),
    ):
        count //= share
        assert load_mutations(folder, name, count, lambda path: atento.load(path, device="cpu")) > count / 10, name


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_s1_mutated_tokenizers_end_in_documented_errors(tmp_path: Path, share: int) -> None:
    """Also when they encode and decode: the library's panics are no exceptions of Python's."""

    def use(path: Path) -> None:
        tokenizer = Tokenizer.load(path)
        assert isinstance(tokenizer.decode(tokenizer.encode("o gato <s> [MASK] pulou")), str)

    for kind in ("wordpiece", "bpe", "unigram", "word"):
        size = 340 if kind == "bpe" else 300
        train_tokenizer(TokenizerConfig(kind=kind, vocab_size=size), TEXTS).save(tmp_path / kind)
        for name, count in (("tokenizer.json", 250), ("tokenizer_config.json", 50)):
            assert load_mutations(tmp_path / kind, name, count // share, use) > count // share / 10, (kind, name)


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_s1_mutated_headers_and_indexes_of_weights_are_refused(folders: dict[str, Path], share: int) -> None:
    folder = folders["huggingface"]
    weights = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(weights[:8], "little")
    (folder / "header").write_bytes(weights[8 : 8 + size])

    def load(path: Path) -> None:
        header = (path / "header").read_bytes()
        (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weights[8 + size :])
        atento.load(path, device="cpu")

    assert load_mutations(folder, "header", 600 // share, load) > 300 // share
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "model-00001-of-00001.safetensors").write_bytes(weights)
    names = [name for name in json.loads(weights[8 : 8 + size]) if name != "__metadata__"]
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    assert load_mutations(folder, "model.safetensors.index.json", 200 // share, atento.load) > 20 // share


_COMMAND = """
import errno, os, sys
failing = sys.argv.pop(1)

def fail(*_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

import atento_cli.main as cli
if failing == "preadv":
    os.preadv = os.pread = fail
elif failing == "strange":
    import atento.models.load
    atento.models.load.read_config = fail
else:
    import click.utils
    sys.stdout.write = fail
cli.main()
"""


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("preadv", "huggingface/model.safetensors cannot be read: Input/output error"),
        ("strange", "a file could not be read or written (fail; --debug shows where): Input/output error"),
        ("stdout", "standard output: Input/output error"),
    ],
)
def test_k12_a_disk_that_fails_is_named(failing: str, said: str, folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("o gato\n", encoding="utf-8")
    command: list[Any] = ["embed", folders["huggingface"], tmp_path / "texts.txt", "--out", tmp_path / "vectors.npy"]
    if failing == "stdout":
        command = ["tokenizer", "encode", folders["atento"], tmp_path / "texts.txt"]
    program = [sys.executable, "-c", _COMMAND, failing, *map(str, command)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done
    assert done.stderr.splitlines()[-1].endswith(said), done.stderr


def test_s1_older_weights_are_plain_files_and_have_a_bound_of_memory(tmp_path: Path) -> None:
    """Pickles are read by a process of their own: a pipe must not hold it, nor a zip that swells fill the memory."""
    os.mkfifo(tmp_path / "pytorch_model.bin")
    command = [sys.executable, "-m", "atento_cli.convert.unpickle", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "a plain file is needed" in done.stderr
    (tmp_path / "pytorch_model.bin").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1000))
    program = (
        "import sys; from pathlib import Path; from atento_cli.convert.unpickle import bounded, older_files\n"
        "import mmap; bounded(older_files(Path(sys.argv[1]))); mmap.mmap(-1, 1 << 30).close(); print('read')\n"
        "bytearray(64 << 30)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "read\n"
    assert not sys.platform.startswith("linux") or done.stderr.endswith("MemoryError\n")
    for content in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {}}'):
        (tmp_path / "pytorch_model.bin").unlink(missing_ok=True)
        (tmp_path / "pytorch_model.bin.index.json").write_text(content, encoding="utf-8")
        if content.endswith("{}}"):
            assert older_files(tmp_path) == []
        else:
            fails(AtentoError, r"index\.json is damaged", older_files, tmp_path)


@pytest.mark.parametrize("count", [40, pytest.param(120, marks=pytest.mark.slow)])
def test_s1_mutated_settings_of_a_model_that_writes_end_in_documented_errors(tmp_path: Path, count: int) -> None:
    """Loaded and used: `task: []` was found at the first text."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=310), TEXTS)
    model = tiny_model(tiny_config("gpt2", vocab_size=tokenizer.vocab_size), tokenizer, task=None)
    folder = model.save(tmp_path / "model", layout="huggingface")
    (folder / "MANIFEST.json").unlink()

    def use(path: Path) -> object:
        return atento.load(path, device="cpu").generate(["o gato"], max_new_tokens=2)

    for name in ("config.json", "generation_config.json"):
        assert load_mutations(folder, name, count, use) > count // 10, name
    data = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    data["atento"]["task"] = []
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    fails(AtentoError, r"config\.json: `task` must be text: got \[\]", atento.load, folder)
