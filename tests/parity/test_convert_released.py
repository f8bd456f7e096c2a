"""Released folders, as transformers saves them, converted for CTranslate2 and ONNX and run as their cards say."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import atento
from atento_cli.convert.engines import convert_for, tokenizer_files
from released_folders import TEXTS, write_released
from translator_folders import TRANSLATORS, write_translator

for package in ("ctranslate2", "onnx", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed")
tokenizers = pytest.importorskip("tokenizers")
LIMIT = 12
FAMILIES = ("bert", "roberta", "gpt2", "llama", "t5", "bart", "marian")
TEXT = "o gato dorme"


def cases(families: Iterable[str], in_the_gate: set[tuple[str, str]]) -> list[Any]:
    """Every family and engine; those that are not in the gate are slow."""
    pairs = [(family, engine) for family in families for engine in ("ctranslate2", "onnx")]
    return [pytest.param(*pair, marks=() if pair in in_the_gate else pytest.mark.slow) for pair in pairs]


def by_its_card(folder: Path, length: int) -> str:
    """What the lines on the card print for `TEXT`, greedily and with at most so many new tokens."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None and "atento" not in code[1]
    script = code[1].replace('"Hello."', f'"{TEXT}"').replace('"Once"', f'"{TEXT}"')
    script = script.replace("beam_size=4", f"beam_size=1, min_decoding_length=0, max_decoding_length={length}")
    script = re.sub(r"max_length=\d+", f"max_length={length}, min_length=0", script)
    script = re.sub(r"range\(\d+\)", f"range({length})", script)
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


@pytest.mark.parametrize("family, engine", cases(FAMILIES, {("llama", "ctranslate2"), ("marian", "onnx")}))
def test_c16_a_released_folder_is_run_as_its_card_says(family: str, engine: str, tmp_path: Path) -> None:
    source = write_released(family, tmp_path / "theirs")
    model = atento.load(source, device="cpu")
    converted = convert_for(source, tmp_path / "out", engine)
    assert converted.comparison is not None and converted.comparison.max_difference < 5e-4  # of logits up to 20
    assert converted.comparison.agreement > 0.99999
    assert "# Theirs" in (tmp_path / "out" / "README.md").read_text() and (tmp_path / "out" / "LICENSE").exists()
    printed = by_its_card(tmp_path / "out", LIMIT)
    if model.network.config.reads_source:
        assert printed == model.translate(TEXT, greedy=True, max_new_tokens=LIMIT)
    elif model.network.config.writes:
        assert printed == model.generate(TEXT, greedy=True, max_new_tokens=LIMIT)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "t5"])
def test_d5_tokenizers_alone_gives_the_ids_that_the_model_reads(family: str, tmp_path: Path) -> None:
    model = atento.load(write_released(family, tmp_path), device="cpu")
    assert model.tokenizer is not None
    theirs = tokenizers.Tokenizer.from_str(tokenizer_files(model)["tokenizer.json"].decode())
    from atento.data.batches.special_tokens import special_tokens_of

    template = special_tokens_of(model.network.config, model.tokenizer)
    for text in [*TEXTS[:20], "ação", "naïve café ☕", ""]:
        assert theirs.encode(text).ids == template.apply(model.tokenizer.encode(text))[0], text


@pytest.mark.parametrize("family, engine", cases(TRANSLATORS, {("m2m_100", "ctranslate2")}))
def test_h4_a_multilingual_translator_begins_with_a_language(family: str, engine: str, tmp_path: Path) -> None:
    from atento.text.specials import languages_of
    from atento_cli.convert.usage import output_prefix, source_prefix

    source = tmp_path / "theirs"
    write_translator(family, source)
    model = atento.load(source, device="cpu")
    assert model.tokenizer is not None
    convert_for(source, tmp_path / "out", engine)
    names = {token: name for name, token in languages_of(model.tokenizer.specials.ids).items()}
    language = next((names[token] for token in (*output_prefix(model), *source_prefix(model))), None)
    behind = language is not None and not source_prefix(model)  # the language is the first token of the output
    limit = LIMIT - 1 if behind and engine == "onnx" else LIMIT
    expected = model.translate(TEXT, greedy=True, max_new_tokens=LIMIT, target_language=language)
    assert by_its_card(tmp_path / "out", limit) == expected
