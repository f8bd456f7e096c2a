"""`atento convert`, `embed` and `similarity` as a user runs them; older weight files give weights and nothing else."""

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import atento
from atento.config import presets
from atento.networks import build_network
from conftest import ForkServer, refused


@pytest.fixture
def run(server: ForkServer, tmp_path: Path) -> Any:
    """`atento ARGUMENTS` with `given` on its standard input."""
    return lambda *arguments, given="", **changes: server.run(*arguments, cwd=tmp_path, stdin=given, env=changes)


def tiny_bert() -> atento.Model:
    tokenizer = atento.Tokenizer.from_vocabulary("word", ("o", "gato", "pulou", "alto", "corre", "casa"))
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos", "unk", "mask")}
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "d_ff": 12, "n_layers": 2, "max_len": 16}
    config = presets.bert_tiny(ids=ids | {"start": tokenizer.bos_id}, **sizes)
    torch.manual_seed(0)
    return atento.Model(build_network(config).eval(), tokenizer, {"name": "tiny", "task": "embedding"}, None)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """In the Hugging Face layout, tokenizer and all."""
    return tiny_bert().save(tmp_path / "tiny", layout="huggingface")


def older(folder: Path, out: Path, shards: int = 1) -> Path:
    """The same folder with the older kind of weight file, norms named as files converted from TensorFlow have them."""
    weights = load_file(folder / "model.safetensors")
    norms = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    named = {re.sub("LayerNorm.(weight|bias)", lambda one: norms[one[0]], name): w for name, w in weights.items()}
    out.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (out / name).write_bytes((folder / name).read_bytes())
    if shards == 1:
        torch.save(named, out / "pytorch_model.bin")
        return out
    table = {}
    for shard in range(shards):
        part = {name: named[name] for name in sorted(named)[shard::shards]}
        torch.save(part, out / f"pytorch_model-{shard}.bin")
        table |= dict.fromkeys(part, f"pytorch_model-{shard}.bin")
    (out / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
    return out


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_c16_older_weights_in(run: Any, released: Path, tmp_path: Path, shards: int) -> None:
    folder = older(released, tmp_path / "older", shards)
    done = run("convert", str(folder), "--to", "atento", "--out", str(tmp_path / "ours"))
    assert done.status == 0 and "tensors loaded" in done.stderr and not done.stdout
    found, wanted = atento.load(tmp_path / "ours"), atento.load(released)
    for name, value in wanted.network.state_dict().items():
        assert torch.equal(found.network.state_dict()[name], value)
    np.testing.assert_array_equal(found.embed("o gato"), wanted.embed("o gato"))
    assert run("convert", str(tmp_path / "ours"), "--to", "huggingface", "--out", str(tmp_path / "back")).status == 0
    again = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(again[name], value) for name, value in load_file(released / "model.safetensors").items())


def test_c16_older_weights_of_a_hub_name(server: ForkServer, released: Path, tmp_path: Path) -> None:
    """From the hub's cache, offline: fetched weights that are of the older kind alone are found too."""
    cache = tmp_path / "hub" / "models--someone--small"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    (cache / "snapshots").mkdir()
    older(released, cache / "snapshots" / ("0" * 40))
    offline = "from huggingface_hub import constants; "  # the environment has been read
    offline += f"constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = {str(tmp_path / 'hub')!r}, True; "
    program = f"{offline}from atento_cli.main import main; main()"
    server.good("convert", "someone/small", "--to", "atento", "--out", "ours", cwd=tmp_path, program=program)
    np.testing.assert_array_equal(atento.load(tmp_path / "ours").embed("o gato"), atento.load(released).embed("o gato"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_w12_types_and_shards_there_and_back(run: Any, released: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    """A model of that type through both layouts in tiny shards: `AutoModel` reads the same bits of the same type."""
    import transformers

    given = transformers.AutoModel.from_pretrained(released).to(dtype)
    for parameter in given.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    given.save_pretrained(tmp_path / "given")
    wanted = {name: value.clone() for name, value in given.state_dict().items()}
    folder = tmp_path / "given"
    for layout in ("atento", "huggingface"):
        command = ("convert", str(folder), "--to", layout, "--out", str(tmp_path / layout), "--max-shard-size", "2KB")
        done = run(*command)
        assert done.status == 0 and "warning" not in done.stderr.lower(), done.stderr
        folder = tmp_path / layout
        shards = [load_file(file) for file in folder.glob("model-*-of-*.safetensors")]
        assert len(shards) > 1 and (folder / "model.safetensors.index.json").exists()
        assert {value.dtype for tensors in shards for value in tensors.values()} == {dtype}
    again = transformers.AutoModel.from_pretrained(folder)
    found = again.state_dict()
    assert (
        again.dtype == dtype
        and found.keys() == wanted.keys()
        and all(torch.equal(found[name], value) for name, value in wanted.items())
    )


def test_w12_another_type_where_it_is_asked_for(run: Any, released: Path, tmp_path: Path) -> None:
    command = ("convert", str(released), "--to", "huggingface", "--out", str(tmp_path / "half"))
    assert run(*command, "--precision", "float16").status == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (released, tmp_path / "half"))
    assert all(torch.equal(after[name], value.half()) for name, value in before.items())
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "float16"
    known = "`--precision` must be one of float32, bfloat16, float16, float64: got 'float8'"
    ours = ("convert", str(released), "--to", "atento", "--out", str(tmp_path / "x"))
    refused(run(*ours, "--precision", "float8"), known)
    refused(run(*ours, "--max-shard-size", "big"), "`max_shard_size` must be a size above 0 such as 5GB")
    assert not (tmp_path / "x").exists()


class Evil:
    """What a hostile file does when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_c16_a_hostile_file_runs_nothing(run: Any, released: Path, tmp_path: Path) -> None:
    folder, mark = older(released, tmp_path / "older"), tmp_path / "mark"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(mark)))
    done = run("convert", str(folder), "--to", "atento", "--out", str(tmp_path / "ours"))
    assert done.status != 0 and not mark.exists() and not (tmp_path / "ours").exists()
    assert "pytorch_model.bin cannot be read" in done.stderr and "Traceback" not in done.stderr
    said = "`--to` must be one of atento, huggingface, ctranslate2, onnx: got 'onyx'"
    refused(run("convert", str(released), "--to", "onyx", "--out", str(tmp_path / "out")), said)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept.txt").write_text("kept")
    done = run("convert", str(released), "--to", "atento", "--out", str(tmp_path / "out"))
    assert done.status == 2 and "nothing is overwritten" in done.stderr and (tmp_path / "out" / "kept.txt").exists()


LATER = ((True, 0.05), (True, 0.5), (False, 0.05), (False, 0.99))
CUTS = [(True, 0.99), (False, 0.5), *(pytest.param(*case, marks=pytest.mark.slow) for case in LATER)]


@pytest.mark.parametrize(("zipped", "cut"), CUTS)
def test_c16_a_cut_file_is_called_that(run: Any, released: Path, tmp_path: Path, zipped: bool, cut: float) -> None:
    folder = older(released, tmp_path / "older")
    file = folder / "pytorch_model.bin"
    torch.save(torch.load(file, weights_only=True), file, _use_new_zipfile_serialization=zipped)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * cut)])
    done = run("convert", str(folder), "--to", "atento", "--out", str(tmp_path / "ours"))
    refused(done, "pytorch_model.bin cannot be read: it is damaged or cut short")


def test_g8_embed_and_similarity(run: Any, released: Path, tmp_path: Path) -> None:
    """Line N answers line N; the file holds the same numbers; the cosine is that of the vectors."""
    wanted = atento.load(released).embed(["o gato pulou", "casa"])
    done = run("embed", str(released), given="o gato pulou\ncasa\n")
    assert done.status == 0
    np.testing.assert_allclose([[*map(float, line.split())] for line in done.stdout.splitlines()], wanted, rtol=1e-5)
    done = run("embed", str(released), "--out", str(tmp_path / "v.npy"), given="o gato pulou\ncasa\n")
    assert done.status == 0 and not done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, rtol=1e-6)
    done = run("similarity", str(released), "--json", given="o gato pulou\tcasa\n")
    cosine = wanted[0] @ wanted[1] / np.linalg.norm(wanted[0]) / np.linalg.norm(wanted[1])
    assert json.loads(done.stdout)["similarity"] == pytest.approx(float(cosine), abs=1e-6)
    needed = "the text needs a second one behind a TAB, because the model compares two: 'o gato'"
    done = run("similarity", str(released), given="o gato\n")
    assert (done.status, done.stderr) == (2, f"error: standard input:1: {needed}\n")
    done = run("similarity", str(released), given="a\ta\n\no gato\n")  # the lines before it are answered
    assert (done.status, done.stdout) == (1, "1.000000\n\n") and f"standard input:3: {needed}" in done.stderr
    done = run("similarity", str(released), "--skip-bad", given="o gato\na\ta\n")
    assert (done.status, done.stdout) == (0, "\n1.000000\n")
