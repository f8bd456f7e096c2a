"""Markers: special tokens that texts may spell, in the data of a run and wherever its model is used (K2)."""

import json
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.base.errors import TokenizerError
from atento.text import Tokenizer
from atento.text.read_tokenizer import spelled
from atento.text.specials import SpecialTokens
from failing import fails
from test_released_tokenizers import BERT, lines, put

NUM = ["[NUM]", "[E1]"]
TEXTS = [("gato [NUM]", "a"), ("gato", "b"), ("[NUM] o", "a"), ("o gato", "b")]


def released(folder: Path, **settings: Any) -> Path:
    """A tokenizer of BERT with two further special tokens, by `vocab.txt`."""
    config = {"tokenizer_class": "BertTokenizer", "additional_special_tokens": NUM} | settings
    return put(folder, {"vocab.txt": lines([*BERT, "[NUM]", "[E1]"]), "tokenizer_config.json": config})


def described(folder: Path) -> Path:
    tokenizer = Tokenizer.load(released(folder / "lines"))
    files = {"tokenizer.json": json.loads(tokenizer.definition), "tokenizer_config.json": {"cls_token": "[CLS]"}}
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "sep", "mask")}
    files["tokenizer_config.json"] |= {**roles, "tokenizer_class": "BertTokenizer"}
    return put(folder, files)


def ours(folder: Path) -> Path:
    Tokenizer.from_vocabulary("wordpiece", ["o", "gato", "g", "##o"], extra_specials=["<num>", "<e1>"]).save(folder)
    return folder


FOLDERS = {"lines": (released, NUM), "tokenizer.json": (described, NUM), "ours": (ours, ["<num>", "<e1>"])}


@pytest.mark.parametrize("name", FOLDERS)
def test_k2_a_marker_is_a_token_of_texts(name: str, tmp_path: Path) -> None:
    make, (marker, other) = FOLDERS[name]
    folder = make(tmp_path / "plain")
    plain, marked = Tokenizer.load(folder), Tokenizer.load(folder, markers=[marker])
    number = plain.specials.ids[marker]
    text = f"gato {marker}o {other}"
    assert number not in plain.encode(text) and marked.encode(text).count(number) == 1
    assert marked.specials.ids[other] not in marked.encode(text)
    assert marked.encode("gato o") == plain.encode("gato o")
    assert number in marked.ordinary_ids and number not in plain.ordinary_ids
    assert marker in marked.decode(marked.encode(text)) and marked.fingerprint != plain.fingerprint
    assert marked.encode_with_offsets(f"gato {marker}").tokens[-1] == marker
    assert marked.encode_batch([text], dropout=1e-12) == [marked.encode(text)]
    assert marked.vocab_size == plain.vocab_size and marked.with_specials([5]) == plain.with_specials([5])
    marked.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert again.fingerprint == marked.fingerprint and again.markers == (marker,)
    both = Tokenizer.load(tmp_path / "saved", markers=[other])
    assert both.markers == (marker, other) and both.specials.ids.keys() == plain.specials.ids.keys() - {marker, other}


def test_k2_what_cannot_be_a_marker_and_special_tokens_are_counted(tmp_path: Path) -> None:
    folder = released(tmp_path / "a")
    for name, message in (
        ("[NUMB]", r"`markers`: the tokenizer has no token '\[NUMB\]'; did you mean '\[NUM\]'"),
        *((text, rf"`markers`: '\{text[:-1]}\]' has a role of its own") for text in ("[CLS]", "[UNK]", "[MASK]")),
    ):
        fails(TokenizerError, message, Tokenizer.load, folder, markers=[name])
    with pytest.raises(TokenizerError, match=r"`markers` of tokenizer_config\.json must be a list of tokens: got 3"):
        Tokenizer.load(released(tmp_path / "b", markers=3))
    specials = SpecialTokens({"pad": "<pad>"}, {"<pad>": 0, "[NUM]": 1})
    assert spelled(specials, ["a", "[NUM] [NUM]", "[", "<pad>[NUM]"]) == {"[NUM]": 2, "<pad>": 1}


def _recipe(**changes: Any) -> dict[str, Any]:
    network = {"preset": "bert-tiny", "d_model": 8, "n_heads": 1, "d_ff": 8}
    training = {"steps": 1, "batch_tokens": 64, "warmup": 0, "precision": "float32"}
    data = {"train": {"memory": "train"}}
    recipe = {"task": "classification", "data": data, "network": network | {"n_layers": 1}, "training": training}
    return {key: value for key, value in (recipe | changes).items() if value is not None}


def said(capsys: Any) -> list[str]:
    out, errors = capsys.readouterr()
    return [*out.splitlines(), *errors.splitlines()]


def test_k2_training_and_use_agree(tmp_path: Path, capsys: Any) -> None:
    """From a tokenizer's path and from an initial model, of ours with a fingerprint too; the run keeps the markers."""
    folder, data = released(tmp_path / "tokenizer"), {"train": TEXTS}
    number = Tokenizer.load(folder).specials.ids["[NUM]"]
    atento.train(_recipe(tokenizer={"path": str(folder)}), out=tmp_path / "without", data=data)
    (warned,) = (line for line in said(capsys) if "[NUM] stands in 2 texts" in line)
    assert 'tokenizer.markers: ["[NUM]"]` lets them be tokens' in warned
    plain = atento.load(tmp_path / "without")
    assert number not in plain.tokenizer.encode("o [NUM]")
    with_markers = {"path": str(folder), "markers": ["[NUM]"]}
    fine = {"network": None, "init": str(tmp_path / "without"), "tokenizer": {"markers": ["[NUM]"]}}
    for name, recipe in (("path", _recipe(tokenizer=with_markers)), ("init", _recipe(**fine))):
        atento.train(recipe, out=tmp_path / name, data=data)
        assert not [line for line in said(capsys) if "[NUM]" in line or "no effect" in line]
        model = atento.load(tmp_path / name)
        for layout in ("atento", "huggingface"):
            again = atento.load(model.save(tmp_path / f"{name} {layout}", layout=layout))
            assert again.tokenizer.encode("o [NUM]") == [*plain.tokenizer.encode("o"), number]
            assert again.classify(["o [NUM]"]) == model.classify(["o [NUM]"])
        atento.train(recipe, out=tmp_path / name, data=data)  # finished: the same run


def test_a_tokenizer_that_is_trained_gets_its_markers(tmp_path: Path) -> None:
    """One token each, which no pieces are learned for; with a name of the form that keeps special tokens apart."""
    texts = [("<num>gato", "a"), ("gato <num>", "b"), ("<num> o", "a"), ("o gato", "b")]
    for kind in ("bpe", "unigram", "wordpiece", "word", "character"):
        recipe = _recipe(tokenizer={"kind": kind, "vocab_size": 300, "markers": ["<num>"]})
        atento.train(recipe, out=tmp_path / kind, data={"train": texts})
        tokenizer = atento.load(tmp_path / kind).tokenizer
        number = tokenizer.encode("<num>")
        assert len(number) == 1 and tokenizer.encode("<num>o gato") == [*number, *tokenizer.encode("o gato")]
        assert not [piece for piece in tokenizer.tokens(tokenizer.ordinary_ids) if "um" in piece and piece != "<num>"]
        assert not {"n", "u", "m"} & set(tokenizer.tokens(tokenizer.ordinary_ids))
    with pytest.raises(TokenizerError, match=r"a special token must look like <name>, without spaces: got '\[NUM\]'"):
        atento.train(_recipe(tokenizer={"markers": ["[NUM]"]}), out=tmp_path / "new", data={"train": texts})
