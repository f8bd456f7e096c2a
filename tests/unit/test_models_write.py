"""A model folder written whole or not at all, and its card."""

import json
from pathlib import Path

import pytest
import torch

from atento.base.errors import AtentoError, CheckpointError
from atento.config.sections.network import NetworkConfig
from atento.models.card import model_card
from atento.models.load import read_model
from atento.models.write import write_model
from failing import fails
from test_models_find import CONFIG, WEIGHTS


def test_w3_a_model_folder_is_written_whole_with_its_folders(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "deep" / "model", CONFIG, WEIGHTS, {"tokenizer.json": b"{}"})
    found = read_model(folder)
    assert found.config == CONFIG and torch.equal(found.weights["w"], WEIGHTS["w"])
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    fails(CheckpointError, r"notes.txt does not belong to it", read_model, folder)
    # sentence-transformers keeps its pooling in a folder: written, verified, and nothing beside it
    folder = write_model(tmp_path / "model", CONFIG, WEIGHTS, {"1_Pooling/config.json": b"{}"})
    assert read_model(folder).config == CONFIG
    (folder / "1_Pooling" / "config.json").write_bytes(b"[]")
    fails(CheckpointError, r"1_Pooling/config.json was altered", read_model, folder)
    (folder / "1_Pooling" / "config.json").write_bytes(b"{}")
    (folder / "1_Pooling" / "notes.txt").write_text("mine", encoding="utf-8")
    fails(CheckpointError, r"1_Pooling/notes.txt does not belong to it", read_model, folder)
    (folder / "1_Pooling" / "notes.txt").unlink()
    (folder / "2_Normalize").mkdir()
    fails(CheckpointError, r"2_Normalize does not belong to it", read_model, folder)


def test_what_fails_while_writing_leaves_nothing_and_the_card_counts_both_stacks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    # the name beside the second, while writing, is too long
    for target in (tmp_path / "file" / "model", tmp_path / ("n" * 254)):
        fails(AtentoError, r"cannot be written: ", write_model, target, CONFIG, WEIGHTS, {})
    with pytest.raises(AtentoError, match=r"cannot be written: .* is not made of A-Z a-z 0-9"):
        write_model(tmp_path / "model", CONFIG, WEIGHTS, {"ação.json": b"{}"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    card = model_card(CONFIG, NetworkConfig(d_model=8, n_layers=1, n_decoder_layers=3, vocab_size=9))
    assert "1 + 3 layers" in card and "vocabulary 9" in card
    assert json.loads(json.dumps(CONFIG))["network"]["d_model"] == NetworkConfig(d_model=8).d_model
