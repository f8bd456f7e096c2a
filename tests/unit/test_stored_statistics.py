"""Statistics of a store of token ids: those of the same texts in memory; overlap with validation texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atento.config.reading.loading import LoadedRecipe, load_recipe
from atento_cli.commands.print_statistics import measured, text_lines
from benchmarks import data as bench_data

WORDS = ["o", "gato", "pulou", "alto", "a", "casa", "azul", "verde", "não", "é", "de", "que", "um", "céu", "mar", "sol"]


def recipe(folder: Path, store: str) -> LoadedRecipe:
    random = np.random.default_rng(2)
    lines = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(300)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    long = max(lines, key=len)
    (folder / "valid.txt").write_text(f"{lines[7]}\nverde {long} azul\nnada\n", encoding="utf-8")
    data: dict[str, Any] = {"train": "text.txt", "valid": "valid.txt", "max_len": 24, "folder": str(folder)}
    data |= {"store": store, "store_folder": str(folder / "store")}
    tokenizer = {"kind": "bpe", "vocab_size": 320}
    return load_recipe({"task": "language-modeling", "data": data, "tokenizer": tokenizer, "name": "tiny"})


def test_a_store_has_the_statistics_of_its_texts(tmp_path: Path) -> None:
    stored, plain = (measured(recipe(tmp_path, store), tokens=True) for store in ("disk", "memory"))
    assert stored[0]["texts"] == plain[0]["texts"] == 300
    assert stored[0]["text_characters"] == plain[0]["text_characters"]
    assert stored[0]["lengths"]["text"]["tokens"] == plain[0]["lengths"]["text"]["tokens"]
    assert stored[0]["over_max_len"] == plain[0]["over_max_len"] and stored[0]["over_max_len"]["records"] > 0
    assert stored[1]["also_in_train"] == plain[1]["also_in_train"] == 1
    assert stored[1]["shared_runs"]["tokens"] == 13 and stored[1]["shared_runs"]["texts"] >= 1
    lines = [line for record in stored for line in text_lines(record)]
    assert lines[0] == "train: 300 texts" and "  also in the training data: 1" in lines
    assert any(line.startswith("  with 13 tokens in a row of a training text: ") for line in lines)


def test_the_measurement_of_data_gives_a_rate_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_data, "_WORDS", 300)
    monkeypatch.setattr(bench_data, "_UPDATES", 1)
    whole = bench_data._recipe

    def small(folder: Path) -> LoadedRecipe:
        loaded = whole(folder)
        raw = {"train": "text.txt", "folder": str(folder), "store": "disk", "store_folder": str(folder / "store")}
        keys: dict[str, Any] = {"task": loaded.recipe.task, "data": raw | {"pack": "isolated"}}
        keys["tokenizer"] = {"path": str(folder / "pieces"), "kind": "bpe", "vocab_size": 500}
        keys["network"] = {"architecture": "decoder", "d_model": 16, "n_heads": 2, "d_ff": 16, "n_layers": 1}
        return load_recipe(keys | {"training": {"batch_tokens": 512}})

    monkeypatch.setattr(bench_data, "_recipe", small)
    rates = [row for row in bench_data.measure_data(0.1) if "part" in row]
    assert [row["part"] for row in rates][:3] == ["reading", "training the tokenizer", "normalizing, one thread"]
    assert all(value > 0 for row in rates for key, value in row.items() if key != "part")
    assert rates[-1]["percent"] < 100
