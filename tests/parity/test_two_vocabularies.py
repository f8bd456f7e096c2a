"""Marian with a vocabulary a side, of two sizes, as `transformers` has it: texts, exports, training from it (K2)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import atento
from atento.base.errors import CapabilityError, ModelError, RecipeError, TokenizerError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.models.transplant import extended
from atento_cli.convert.engines import convert_for
from failing import fails
from folders import edited
from released_folders import _SEQ2SEQ, TEXTS, _scored, _spm, randomised

SOME, LIMIT = [*TEXTS[:4], "o gato"], 9


def write_pair(folder: Path) -> tuple[Any, Any]:
    """A folder with `vocab.json`, a longer `target_vocab.json`, and their tokenizer and network."""
    folder.mkdir()
    sizes = {}
    for side, table, few in (("source", "vocab.json", 9), ("target", "target_vocab.json", 0)):
        model = _spm(folder, side)
        pieces = [piece for piece, _ in _scored(model)]
        vocabulary = {
            piece: i for i, piece in enumerate(dict.fromkeys(["</s>", "<unk>", "<pad>", *pieces[: len(pieces) - few]]))
        }
        (folder / table).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        model.rename(folder / f"{side}.spm")
        sizes[side] = len(vocabulary)
    settings = {"separate_vocabs": True, "tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "pt"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    ids = {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 2, "decoder_start_token_id": 2}
    made = {"vocab_size": sizes["source"], "decoder_vocab_size": sizes["target"], "scale_embedding": True}
    config = hf.MarianConfig(**made, share_encoder_decoder_embeddings=False, **_SEQ2SEQ, **ids)
    torch.manual_seed(0)
    network = randomised(hf.MarianMTModel(config).eval(), but="embed_positions")
    network.save_pretrained(folder)
    return hf.MarianTokenizer.from_pretrained(folder), network


def _expected(tokenizer: Any, network: Any) -> list[str]:
    lines = []
    for text in SOME:
        inputs = tokenizer(text, return_tensors="pt")
        ids = network.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=LIMIT, min_length=0)
        lines.append(tokenizer.decode(ids[0], skip_special_tokens=True).strip())
    return lines


def _written(model: atento.Model) -> list[str]:
    return model.translate(SOME, greedy=True, max_new_tokens=LIMIT)


def test_k2_two_vocabularies_translate_as_transformers_and_are_saved(tmp_path: Path) -> None:
    """Here, from our own layout and from theirs again; a tokenizer that is longer than its side is refused."""
    tokenizer, network = write_pair(tmp_path / "theirs")
    model = atento.load(tmp_path / "theirs", device="cpu")
    config = model.network.config
    assert config.target_vocab_size == config.vocab_size + 9
    assert model.load_report is not None and not model.load_report.unread
    expected = _expected(tokenizer, network)
    assert _written(model) == expected and len(set(expected)) > 1
    for layout in ("atento", "huggingface"):
        assert _written(atento.load(model.save(tmp_path / layout, layout=layout), device="cpu")) == expected
    again = hf.MarianMTModel.from_pretrained(tmp_path / "huggingface").eval()
    assert _expected(hf.MarianTokenizer.from_pretrained(tmp_path / "huggingface"), again) == expected
    fails(CapabilityError, "a network with two vocabularies", extended, model.network, 600)
    count = len(edited(tmp_path / "theirs" / "target_vocab.json", more=config.target_vocab_size))
    fails(TokenizerError, f"{count} pieces and .* {count - 1}", atento.load, tmp_path / "theirs")


@pytest.mark.parametrize("init", [True, False])
def test_k2_two_vocabularies_are_trained(init: bool, tmp_path: Path) -> None:
    """From the model, and anew with its tokenizer: targets have ids above the vocabulary of the sources."""
    write_pair(tmp_path / "theirs")
    (tmp_path / "d.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS[:40]), encoding="utf-8")
    tiny = {"n_layers": 1, "d_model": 16, "d_ff": 16, "n_heads": 2, "embedding": {"shared": False}}
    data = {"train": {"file": str(tmp_path / "d.tsv"), "source": 0, "target": 1}}
    recipe: dict[str, Any] = {"task": "translation", "data": data, "training": {"steps": 2, "learning_rate": 1e-3}}
    theirs = str(tmp_path / "theirs")
    recipe |= {"init": theirs} if init else {"tokenizer": theirs, "network": tiny}
    run = atento.train(recipe, out=tmp_path / "run")
    model = atento.load(tmp_path / "run", device="cpu")
    assert model.network.config.target_vocab_size == model.network.config.vocab_size + 9
    assert run is not None and len(_written(model)) == len(SOME)
    if not init:
        recipe["network"]["embedding"]["target_vocab_size"] = 7
        said = r"`network\.embedding\.target_vocab_size` must be .* tokenizer's: got 7"
        fails(RecipeError, said, atento.train, recipe, out=tmp_path / "other")


@pytest.mark.parametrize("engine", ["ctranslate2", "onnx"])
def test_k2_two_vocabularies_in_other_engines(engine: str, tmp_path: Path) -> None:
    write_pair(tmp_path / "theirs")
    converted = convert_for(tmp_path / "theirs", tmp_path / "out", engine)
    assert converted.comparison is not None and converted.comparison.max_difference < 5e-4


def test_a_second_size_needs_a_second_table() -> None:
    fails(RecipeError, r"`embedding\.shared` false: got 9 and true", InputConfig, target_vocab_size=9)
    said = r"`embedding\.target_vocab_size` belongs to an encoder-decoder"
    table = InputConfig(shared=False, target_vocab_size=8)
    fails(RecipeError, said, NetworkConfig, architecture="decoder", vocab_size=9, embedding=table)


def test_an_id_above_the_written_vocabulary_is_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "theirs")
    folder = atento.load(tmp_path / "theirs").save(tmp_path / "ours")
    (folder / "MANIFEST.json").unlink()
    data = json.loads((folder / "config.json").read_text())
    data["network"]["ids"]["start"] = data["network"]["embedding"]["target_vocab_size"]
    (folder / "config.json").write_text(json.dumps(data))
    fails(ModelError, r"network\.ids\.start must be below network\.vocab_size", atento.load, folder)
