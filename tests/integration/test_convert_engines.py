"""`atento convert` for CTranslate2 and ONNX as a user runs it; the folder works without Atento, as its card says."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Theirs

from atento.base.errors import AtentoError, MissingPartError
from atento.base.precision import cpu_features
from atento.config import presets
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model
from atento.networks import build_network
from atento.text import Tokenizer
from atento_cli.convert import comparison, ctranslate2_spec
from atento_cli.convert.engines import convert_for, tokenizer_files
from conftest import ForkServer

for package in ("ctranslate2", "onnx", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed")
TOKENIZER = Tokenizer.from_vocabulary("character", list("abcdefghijlmnopqrstuvxz "))
SIZES = {"vocab_size": TOKENIZER.vocab_size, "d_model": 16, "d_ff": 24, "n_heads": 4, "n_layers": 2, "max_len": 64}
IDS = {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "start": 2, "mask": 4}
TEXT = "o gato pulou alto"


@pytest.fixture
def run(server: ForkServer, tmp_path: Path) -> Any:
    return lambda *arguments: server.run(*map(str, arguments), cwd=tmp_path, env={"OMP_NUM_THREADS": "1"})


@torch.no_grad()
def model_of(config: NetworkConfig, task: str) -> Model:
    torch.manual_seed(0)
    network = build_network(config).eval()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=1.2 * parameter.shape[-1] ** -0.5)
    network.table.weight[:5] = 0.0  # special tokens are written seldom
    network.requires_grad_(False)
    return Model(network, TOKENIZER, {"name": "tiny", "task": task}, None)


def translator() -> Model:
    """Untied, so that its output is not one token again and again."""
    config = presets.transformer_tiny(**SIZES | {"max_len": 128}, ids=IDS, output={"tied": False, "bias": True})
    model = model_of(changed(config, positions=PositionConfig("learned"), norm="pre"), "translation")
    model.network.vocabulary_head.bias[:5] = -10.0  # type: ignore[index]
    return model


def by_its_card(folder: Path) -> str:
    """What the lines on the card print, without Atento."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None and "atento" not in code[1]
    script = code[1].replace('"Hello."', f'"{TEXT}"').replace('"Once"', f'"{TEXT}"')
    script = script.replace("beam_size=4", "beam_size=1, max_decoding_length=100")
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("engine", ["ctranslate2", "onnx"])
def test_a_translator_translates_as_its_card_says(run: Any, tmp_path: Path, engine: str) -> None:
    model = translator()
    model.save(tmp_path / "m")
    done = run("convert", "m", "--to", engine, "--out", "out")
    assert done.status == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2] == "100.0% of the greedy tokens agree" and "largest difference" in lines[-3]
    assert re.fullmatch(r"speed: Atento float32 [\d,]+ tokens/s, .+ float32 [\d,]+ tokens/s", lines[-1])
    assert {line.split()[-1] for line in lines[:-3]} == {file.name for file in (tmp_path / "out").iterdir()}
    assert "wrote out" in done.stderr
    [expected] = model.translate([TEXT], greedy=True, max_new_tokens=100)
    assert len(set(expected)) > 2 and by_its_card(tmp_path / "out") == expected


@pytest.mark.parametrize("engine", [pytest.param("ctranslate2", marks=pytest.mark.slow), "onnx"])
def test_a_writer_continues_as_its_card_says(run: Any, tmp_path: Path, engine: str) -> None:
    model = model_of(presets.gpt2(**SIZES, ids=IDS), "language-modeling")
    model.save(tmp_path / "m")
    done = run("convert", "m", "--to", engine, "--out", "out", "--no-check")
    assert done.status == 0 and "speed" not in done.stdout, done.stderr
    [expected] = model.generate([TEXT], greedy=True, max_new_tokens=40)
    assert len(set(expected)) > 2 and by_its_card(tmp_path / "out").removeprefix(TEXT).strip() == expected.strip()


@pytest.mark.slow
def test_an_encoder_reads_as_its_card_says(run: Any, tmp_path: Path) -> None:
    model_of(presets.bert_base(**SIZES, ids=IDS), "embedding").save(tmp_path / "m")
    assert run("convert", "m", "--to", "ctranslate2", "--out", "c").status == 0
    assert run("convert", "m", "--to", "onnx", "--out", "o", "--precision", "int8").status == 0
    by_its_card(tmp_path / "c")
    assert by_its_card(tmp_path / "o") == str({"last_hidden_state": (1, len(TOKENIZER.encode(TEXT)), 16)})


def test_what_was_written_is_a_record(run: Any, tmp_path: Path) -> None:
    translator().save(tmp_path / "m")
    done = run("convert", "m", "--to", "ctranslate2", "--out", "out", "--precision", "int8", "--json")
    record = json.loads(done.stdout)
    assert (record["wrote"], record["engine"], record["precision"]) == ("out", "ctranslate2", "int8")
    assert record["files"] == {file.name: file.stat().st_size for file in sorted((tmp_path / "out").iterdir())}
    assert record["comparison"].keys() == {"compared", "max_difference", "agreement", "choices", "before", "after"}
    assert 0 < record["comparison"]["max_difference"] < (1 if cpu_features()["vnni"] else 3)  # sums of 8 bits saturate


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--to ctranslate2 --out m", "--out m must be a new or empty folder"),
        ("--to onnx --out out --precision bfloat16", "`--precision` of ONNX must be one of float32, int8"),
        ("--to ctranslate2 --out out", "CTranslate2 does not hold a classification head, which m has"),
    ],
)
def test_refusals_come_before_work(run: Any, tmp_path: Path, arguments: str, message: str) -> None:
    head = HeadConfig("classification", ("a", "b"), pooling="first")
    model_of(changed(presets.bert_base(**SIZES, ids=IDS), heads=(head,)), "classification").save(tmp_path / "m")
    done = run("convert", "m", *arguments.split())
    assert done.status == 2 and message in done.stderr and not done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"m"}


@pytest.mark.parametrize("to", ["ctranslate2", "onnx"])
def test_a_decoder_that_reads_prompts_in_both_directions_is_refused(run: Any, tmp_path: Path, to: str) -> None:
    """Both engines would read them causally, and random ids, which are compared, do not show it."""
    model_of(presets.gpt2(**SIZES, ids=IDS), "prefix-language-modeling").save(tmp_path / "m")
    done = run("convert", "m", "--to", to, "--out", "out")
    assert done.status == 2 and "does not hold prompts that are read in both directions, which m has" in done.stderr


def test_heads_of_pretraining_are_left_out_with_a_warning(run: Any, tmp_path: Path) -> None:
    config = changed(presets.bert_base(**SIZES, ids=IDS), heads=(HeadConfig("masked-language-model"),))
    model_of(config, "masked-language-modeling").save(tmp_path / "m")
    done = run("convert", "m", "--to", "ctranslate2", "--out", "out")
    assert done.status == 0 and "left out: the head vocabulary" in done.stderr


def test_another_output_is_refused_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption; then a planted fault: one weight of the converted network is wrong."""
    translator().save(tmp_path / "m")

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(comparison, "generate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert_for(tmp_path / "m", tmp_path / "out", "ctranslate2")
    assert {path.name for path in tmp_path.iterdir()} == {"m"}
    right = ctranslate2_spec._set_feed_forward

    def wrong(made: object, feed_forward: object) -> None:
        right(made, feed_forward)  # type: ignore[arg-type]
        made.linear_0.weight[0, 0] += 1.0  # type: ignore[attr-defined]

    monkeypatch.setattr(ctranslate2_spec, "_set_feed_forward", wrong)
    with pytest.raises(AtentoError, match="gives other log-probabilities than Atento"):
        convert_for(tmp_path / "m", tmp_path / "out", "ctranslate2")
    assert {path.name for path in tmp_path.iterdir()} == {"m"}
    assert convert_for(tmp_path / "m", tmp_path / "out", "ctranslate2", check=False).comparison is None


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else real(name))
    with pytest.raises(MissingPartError, match=re.escape("pip install -e '.[onnx]'")):
        convert_for(tmp_path / "m", tmp_path / "out", "onnx")


def test_the_tokenizer_adds_what_the_model_reads(tmp_path: Path) -> None:
    """`tokenizers` alone gives the ids that Atento gives, special tokens included."""
    theirs = Theirs.from_str(tokenizer_files(translator())["tokenizer.json"].decode())
    for text in (TEXT, "casas", "é", ""):
        assert theirs.encode(text).ids == [*TOKENIZER.encode(text), 3]
    assert np.array(theirs.encode(TEXT).attention_mask).all()
