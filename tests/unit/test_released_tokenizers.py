"""Released tokenizers by hand: damaged files, templates, truncation, padding, `.model` files (rows D1, D2, D5, D6)."""

import json
import struct
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models

from atento.base.errors import CapabilityError, MissingPartError, TokenizerError, install_hint
from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, has_tokenizer, train_tokenizer
from atento.text.lengths import pad_batch, truncate
from atento.text.released.spm import read_model
from atento.text.released.tokenizer_files import unknown_class
from failing import fails

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "gat", "##o", "a", "[", "]", "mask", "acao", "."]
GPT2 = {"<|endoftext|>": 0, "g": 1, "a": 2, "t": 3, "o": 4, "Ġ": 5, "at": 6, "Ġg": 7, "Ġgat": 8}
MERGES = "#version: 0.2\na t\nĠ g\nĠg at\n"
ROBERTA = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 9, **{k: i + 10 for i, k in enumerate("gato")}}


def put(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, dict):
            content = json.dumps(content, ensure_ascii=False)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return folder


def lines(pieces: Sequence[str]) -> str:
    return "".join(piece + "\n" for piece in pieces)


def message(folder: Path, kind: type[Exception] = TokenizerError) -> str:
    with pytest.raises(kind) as caught:
        Tokenizer.load(folder)
    return str(caught.value)


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | bytes | float) -> bytes:
    """A field of a protocol buffer, of which `.model` files are made."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: str, score: float, kind: int = 1) -> bytes:
    return field(1, text.encode()) + field(2, score) + (field(3, kind) if kind != 1 else b"")


T5 = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2), ("▁", -2.0), ("a", -3.0), ("▁a", -2.5), ("b", -3.0)]


def model(pieces: Sequence[tuple[Any, ...]], kind: int = 1, **trainer: int) -> bytes:
    body = b"".join(field(1, piece(*row)) for row in pieces)
    settings = field(3, kind) + (field(35, 1) if trainer.get("byte_fallback") else b"")
    return body + field(2, settings) + field(3, field(1, b"identity") + field(3, 1))


def test_d2_t5_xlm_roberta_and_llama_by_hand(tmp_path: Path) -> None:
    """Sentinels stand behind the pieces, the last first; `▁a` (-2.5) beats `▁` and `a` (-5)."""
    found = read_model(model(T5, byte_fallback=1), Path("m"))
    assert [(p.text, p.score, p.type) for p in found.pieces] == [(*row, 1)[:3] for row in T5]
    assert (found.kind, found.byte_fallback, found.charsmap, found.unk_id) == ("unigram", True, b"", 2)
    assert read_model(model(T5, 2), Path("m")).kind == "bpe"
    ours = Tokenizer.load(put(tmp_path, {"spiece.model": model(T5)}))
    assert ours.encode("a b ab") == [5, 3, 6, 5, 6] and ours.encode("c") == [3, 2]
    assert [ours.specials.id(f"<extra_id_{i}>") for i in (0, 1, 99)] == [106, 105, 7] and ours.vocab_size == 107
    assert ours.with_specials([5, 6], [6]) == ([5, 6, 1, 6, 1], [0] * 5)
    assert ours.decode([5, 6, 106, 1]) == "ab" and ours.kind == "unigram"
    short = put(tmp_path / "short", {"spiece.model": model(T5), "tokenizer_config.json": {"extra_ids": 2}})
    assert Tokenizer.load(short).vocab_size == 9
    mt5 = Tokenizer.load(put(tmp_path / "mt5", {"spiece.model": model([*T5, ("▁<extra_id_0>", 0.0, 4)])}))
    assert mt5.vocab_size == 8 and mt5.specials.id("<extra_id_0>") == 7
    assert 7 not in mt5.encode("a <extra_id_0>") and mt5.decode([5, 7]) == "a"
    # fairseq's ids: the model's pieces from the fourth on, one higher, and the mask last
    tmp_path = tmp_path / "xlm-roberta"
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *T5[3:]]
    ours = Tokenizer.load(put(tmp_path, {"sentencepiece.bpe.model": model(pieces)}))
    assert (ours.bos_id, ours.pad_id, ours.eos_id, ours.unk_id, ours.mask_id) == (0, 1, 2, 3, 8)
    assert ours.encode("a b") == [6, 4, 7] and ours.with_specials([6], [7]) == ([0, 6, 2, 2, 7, 2], [0] * 6)
    assert ours.encode_with_mask("a <mask> b") == [6, 8, 4, 7] and 8 not in ours.encode("a <mask> b")
    path = put(tmp_path / "other", {"sentencepiece.bpe.model": model(T5)}) / "sentencepiece.bpe.model"
    assert message(path.parent) == f"{path} must begin with <unk>, <s> and </s>, which fairseq's ids count on"
    # Merges follow the ids: `ab` (8) is joined before `▁a` (9); unknown letters are bytes; no string is special
    tmp_path = tmp_path / "llama"
    pieces: list[tuple[Any, ...]] = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [("▁", 0.0), ("a", 0.0), ("b", 0.0), ("<s", 0.0), (">", 0.0), ("ab", -1.0), ("▁a", -2.0)]
    pieces += [("<", -3.0), ("s", -3.0), *((f"<0x{i:02X}>", 0.0, 6) for i in range(256))]
    ours = Tokenizer.load(put(tmp_path, {"tokenizer.model": model(pieces, 2, byte_fallback=1)}))
    assert ours.tokens(ours.encode("ab a")) == ["▁", "ab", "▁a"]
    assert ours.tokens(ours.encode("é")) == ["▁", "<0xC3>", "<0xA9>"] and ours.decode(ours.encode("aé b")) == "aé b"
    assert ours.tokens(ours.encode("<s>a")) == ["▁", "<s", ">", "a"]
    assert ours.with_specials([4], [5]) == ([1, 4, 1, 5], [0, 0, 1, 1])
    said = put(tmp_path / "b", {"tokenizer.model": model(pieces, 2), "tokenizer_config.json": {"add_eos_token": True}})
    assert Tokenizer.load(said).with_specials([4])[0] == [1, 4, 2]


def test_damaged_model_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "spiece.model"
    whole = model(T5)
    for end in range(len(whole)):  # whatever the place of the cut
        path.write_bytes(whole[:end])
        assert message(tmp_path).startswith(f"{path} must be a complete SentencePiece model: ")
    for data, start in [
        (b"<html>no</html>", f"{path} must be a complete SentencePiece model: "),
        (model(T5, 4), f"{path} must be a unigram or bpe model: got char"),
        (model(T5[3:]), f"{path} must have one piece for the unknown"),
        (model([*T5, T5[4]]), f"the pieces of {path} must differ from one another: got 'a' again at 7"),
        (model([*T5, ("x", float("nan"))]), f"{path} must be a complete SentencePiece model: a piece has a type or"),
    ]:
        path.write_bytes(data)
        assert message(tmp_path).startswith(start)
    path.write_bytes(whole)
    put(tmp_path, {"tokenizer_config.json": {"extra_ids": -1}})
    assert message(tmp_path) == f"`extra_ids` in {tmp_path} must lie in 0 ... 10000: got -1"


@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_are_a_model_or_a_clear_error(junk: bytes, at: int) -> None:
    whole = model(T5)
    for data in (junk, whole[:at] + junk + whole[at:]):
        try:
            read_model(data, Path("m"))
        except TokenizerError as error:
            assert "m must" in str(error) or "of m must" in str(error)


def test_d1_bert_by_hand_and_vocabularies_of_lines_that_are_damaged(tmp_path: Path) -> None:
    ours = Tokenizer.load(put(tmp_path, {"vocab.txt": lines(BERT), "tokenizer_config.json": {"do_lower_case": True}}))
    assert (ours.kind, ours.lowercase, ours.vocab_size) == ("wordpiece", True, 13)
    assert ours.tokens(ours.encode("Gato [MASK] ação.")) == ["gat", "##o", "[", "mask", "]", "acao", "."]
    assert ours.encode_with_mask("Gato [MASK].") == [5, 6, 4, 12] and 2 not in ours.encode_with_mask("[MASK] [CLS]")
    assert ours.with_specials([5, 6]) == ([2, 5, 6, 3], [0] * 4)
    assert ours.with_specials([5], [7]) == ([2, 5, 3, 7, 3], [0, 0, 0, 1, 1])
    assert (ours.added(), ours.added(True)) == (2, 3) and ours.decode([2, 5, 6, 12, 3]) == "gato."
    assert ours.target is ours
    cased = put(tmp_path / "cased", {"vocab.txt": lines(BERT), "tokenizer_config.json": {"do_lower_case": False}})
    assert Tokenizer.load(cased).encode("Gato") == [1]
    tmp_path = put(tmp_path / "damaged", {})
    path = tmp_path / "vocab.txt"
    for content, expected in [
        ("", f"{path} must hold a vocabulary: it is empty"),
        ("a\nb\n", f"{path} must hold '[UNK]', the piece for what is unknown"),
        ("[UNK]\na\n", "the bert template needs a token for 'cls': this tokenizer has none"),
    ]:
        path.write_text(content, encoding="utf-8")
        assert message(tmp_path).endswith(expected)
    path.write_bytes(b"[UNK]\n\xff\n")
    assert message(tmp_path) == f"{path} must be UTF-8: byte 6 is not"
    put(tmp_path, {"vocab.txt": lines(BERT), "tokenizer_config.json": {"do_lower_case": "yes"}})
    assert message(tmp_path) == f"`do_lower_case` in {tmp_path} must be true or false: got 'yes'"


def test_gpt2_by_hand_and_vocabularies_and_merges_that_are_damaged(tmp_path: Path) -> None:
    ours = Tokenizer.load(put(tmp_path, {"vocab.json": GPT2, "merges.txt": MERGES}))
    assert ours.tokens(ours.encode("gat gato")) == ["g", "at", "Ġgat", "o"]
    assert ours.decode([1, 6, 8, 4, 0]) == "gat gato"  # its one special token is hidden, though it is the unknown too
    assert ours.with_specials([1], [2]) == ([1, 2], [0, 1]) and ours.words([1, 6, 8, 4]).index == [0, 0, 1, 1]
    more: dict[str, Any] = {"added_tokens_decoder": {"9": {"content": "[P]", "special": True}}}
    more |= {"pad_token": "[P]", "add_bos_token": True}
    padded = put(tmp_path / "p", {"vocab.json": GPT2, "merges.txt": MERGES, "tokenizer_config.json": more})
    assert Tokenizer.load(padded).pad_id == 9 and Tokenizer.load(padded).with_specials([1])[0] == [0, 1]
    put(padded, {"tokenizer_config.json": {"added_tokens_decoder": {"11": {"content": "[P]", "special": True}}}})
    assert message(padded) == f"the added token '[P]' of {padded} must have the next free id 9: got 11"
    gaps = {"vocab.json": ROBERTA, "merges.txt": "", "tokenizer_config.json": {"extra_special_tokens": ["<x>"]}}
    folder = put(tmp_path / "gaps", gaps)  # nine pieces, and the ids go up to 13
    assert message(folder) == f"the vocabulary of {folder} must have no gaps: an added token has the id of another"
    tmp_path = tmp_path / "damaged"
    vocabulary, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vocab.json": "{"}, f"{vocabulary} must be JSON: "),
        ({"vocab.json": {}}, f"{vocabulary} must hold a vocabulary: it is empty"),
        ({"vocab.json": GPT2 | {"x": "1"}}, f"{vocabulary} must give each piece an id: got '1' for 'x'"),
        ({"vocab.json": GPT2 | {"x": 4}}, f"{vocabulary} must give each piece its own id: 'o' and 'x' have 4"),
        ({"merges.txt": MERGES + "at o\n"}, f"{merges}, line 5: the vocabulary has no piece 'ato'"),
        ({"merges.txt": "a x\n"}, f"{merges}, line 1: the vocabulary has no piece 'x'"),
        ({"merges.txt": "a\n"}, f"{merges}, line 1: a merge must be two pieces and a space between: got 'a'"),
        ({"merges.txt": "a t o\n"}, f"{merges}, line 1: a merge must be two pieces and a space between: got 'a t o'"),
    ]
    for files, start in cases:
        put(tmp_path, {"vocab.json": GPT2, "merges.txt": MERGES, **files})
        assert message(tmp_path).startswith(start)
    put(tmp_path, {"vocab.json": GPT2, "merges.txt": MERGES, "added_tokens.json": {}})
    assert Tokenizer.load(tmp_path).vocab_size == len(GPT2)  # it adds none, as BERTimbau's on the hub
    put(tmp_path, {"added_tokens.json": "[]"})
    assert message(tmp_path).startswith(f"{tmp_path / 'added_tokens.json'} must ")
    vocabulary.unlink()
    assert message(tmp_path) == f"no gpt2 tokenizer in {tmp_path}: it has no vocab.json"


def test_d2_pegasus_has_its_masks_before_its_pieces_and_albert_drops_accents_unless_it_keeps_them(tmp_path) -> None:
    config = {"tokenizer_class": "PegasusTokenizer"}
    ours = Tokenizer.load(put(tmp_path, {"spiece.model": model(T5), "tokenizer_config.json": config}))
    assert ours.vocab_size == len(T5) + 103 and ours.with_specials(ours.encode("a b"))[0] == [108, 106, 109, 1]
    named = {"<pad>": 0, "</s>": 1, "<mask_1>": 2, "<mask_2>": 3, "<unk_2>": 4, "<unk_102>": 104, "<unk>": 105}
    assert {text: ours.specials.ids[text] for text in named} == named and ours.specials.id("mask") == 3
    assert ours.decode([2, 108, 4, 109, 1]) == "ab"
    bare = {**config, "offset": 0, "mask_token": None, "mask_token_sent": None}
    assert Tokenizer.load(put(tmp_path, {"tokenizer_config.json": bare})).vocab_size == len(T5)
    put(tmp_path, {"tokenizer_config.json": {**config, "offset": -1}})
    assert message(tmp_path) == f"`offset` in {tmp_path} must lie in 0 ... 10000: got -1"
    put(tmp_path, {"tokenizer_config.json": {**config, "mask_token_sent": None}})
    assert "must begin with <pad>, </s> and <unk>, and fit `offset` and the masks" in message(tmp_path)
    tmp_path = tmp_path / "albert"
    pieces = [("<pad>", 0.0, 3), ("<unk>", 0.0, 2), ("[CLS]", 0.0, 3), ("[SEP]", 0.0, 3), ("[MASK]", 0.0, 4)]
    pieces += [("▁", -3.0), ("▁a", -2.0), ("á", -2.0), ("A", -2.0), ("1", -3.0), (",", -3.0), ("1,", -1.0), ('"', -1.0)]
    config = {"tokenizer_class": "AlbertTokenizer"}
    ours = Tokenizer.load(put(tmp_path, {"spiece.model": model(pieces), "tokenizer_config.json": config}))
    tokens = [ours.tokens(ours.encode(text)) for text in ("Á", "a1,", "``1''")]
    assert tokens == [["▁a"], ["▁a", "1", ","], ["▁", '"', "1", '"']]
    assert ours.with_specials([6])[0] == [2, 6, 3] and ours.lowercase
    put(tmp_path, {"tokenizer_config.json": config | {"do_lower_case": False, "keep_accents": True}})
    kept = Tokenizer.load(tmp_path)
    assert [kept.tokens(kept.encode(text)) for text in ("á", "A")] == [["▁", "á"], ["▁", "A"]]


def test_which_family_a_folder_is_of(tmp_path: Path) -> None:
    """By the class it names, else the model type, else by what its vocabulary holds."""
    roberta: dict[str, Any] = {"vocab.json": ROBERTA, "merges.txt": ""}
    assert Tokenizer.load(put(tmp_path / "a", roberta)).with_specials([10])[0] == [0, 10, 2]
    blanks = put(tmp_path / "blanks", {"vocab.json": ROBERTA | {"Ġ": 14}, "merges.txt": ""})
    assert Tokenizer.load(blanks).encode_with_mask("o <mask> a") == [13, 9, 14, 11]  # the mask takes its blank along
    as_gpt2 = put(tmp_path / "b", {**roberta, "config.json": {"model_type": "gpt2"}})
    assert Tokenizer.load(as_gpt2).with_specials([10])[0] == [10]
    as_bart = put(as_gpt2, {"tokenizer_config.json": {"tokenizer_class": "BartTokenizerFast"}})
    assert Tokenizer.load(as_bart).with_specials([10], [11])[0] == [0, 10, 2, 2, 11, 2]
    gpt1 = {"vocab.json": {"<unk>": 0, "a": 1, "b": 2, "a</w>": 3, "b</w>": 4, "ab</w>": 5}, "merges.txt": "a b</w>\n"}
    ours = Tokenizer.load(put(tmp_path / "c", gpt1))
    assert ours.encode("AB a c") == [5, 3, 0] and ours.decode([5, 3]) == "ab a"
    assert ours.words([5, 3, 1, 4]).index == [0, 1, 2, 2] and ours.encode_batch(["ab"], dropout=1.0) == [[1, 4]]
    config = {"tokenizer_class": "XLNetTokenizer"}
    xlnet = put(tmp_path / "d", {"spiece.model": model(T5), "tokenizer_config.json": config})
    llama = {"tokenizer.model": model(LLAMA, 2), "tokenizer_config.json": {"tokenizer_class": "LLaMATokenizer"}}
    assert Tokenizer.load(put(tmp_path / "e", llama)).with_specials([4])[0] == [1, 4]
    named = "its tokenizer, {}Tokenizer of transformers, is not known here; a `tokenizer.json` is read where"
    assert message(xlnet).startswith(f"{xlnet}: {named.format('XLNet')}")
    tweets = {"config.json": {"model_type": "roberta", "tokenizer_class": "BertweetTokenizer"}, "vocab.txt": "ol@@ 3\n"}
    assert message(put(tmp_path / "f", tweets)).startswith(f"{tmp_path / 'f'}: {named.format('Bertweet')}")
    of_bytes = put(tmp_path / "g", {"config.json": {"model_type": "t5", "tokenizer_class": "ByT5Tokenizer"}})
    assert not has_tokenizer(of_bytes) and unknown_class(of_bytes, {}) == "ByT5Tokenizer of transformers"
    assert has_tokenizer(xlnet) and not has_tokenizer(tmp_path)
    # A pointer of Git LFS is called one
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for name in ("tokenizer.json", "spiece.model"):
        folder = put(tmp_path / name, {name: pointer})
        said = f"{folder / name} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"
        assert message(folder) == said


def test_marian_needs_sentencepiece_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = {"</s>": 0, "<unk>": 1, "▁a": 2, "<pad>": 3}
    folder = put(tmp_path, {"source.spm": model(T5), "target.spm": model(T5), "vocab.json": vocabulary})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sentencepiece", None)
        assert message(folder, MissingPartError) == f"reading target.spm needs sentencepiece: {install_hint('spm')}"
    put(folder, {"source.spm": model(T5)[:-1]})
    assert message(folder).startswith(f"{folder / 'source.spm'} must be a complete SentencePiece model: ")
    put(folder, {"vocab.json": {"</s>": 0, "a": 1, "<pad>": 2}})
    assert message(folder) == f"{folder / 'vocab.json'} must hold '<unk>', the piece for what is unknown"
    (folder / "target.spm").unlink()
    assert message(folder) == f"no marian tokenizer in {folder}: it has no target.spm"


def test_marian_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra spm)")
    table = {"</s>": 0, "<unk>": 1, "▁a": 2, "▁": 3, "a": 4, ">>por<<": 5, "<pad>": 6}
    other = [*T5[:3], ("▁", -2.0), ("a", -1.0), ("▁a", -9.0)]
    ours = Tokenizer.load(put(tmp_path, {"source.spm": model(T5), "target.spm": model(other), "vocab.json": table}))
    assert ours.encode("a b") == [2, 3, 1]  # `b` is a piece of the source that has no id
    assert ours.target.encode("a a") == [3, 4, 3, 4] and ours.target.decode([3, 4, 2, 0]) == "a a"
    assert ours.with_specials([2])[0] == [2, 0] and ours.specials.id(">>por<<") == 5
    assert not {0, 5, 6} & set(ours.encode(">>por<< </s> <pad>"))
    encoded = ours.encode_with_offsets(" a  b")
    assert (encoded.ids, encoded.offsets) == ([2, 3, 1], [(1, 2), (4, 4), (4, 5)])
    fails(CapabilityError, r"^subword dropout .* sentencepiece", ours.encode_batch, ["a"], dropout=0.5)
    fails(TokenizerError, r"^this tokenizer has no special token 'mask'", ours.encode_with_mask, "a")


LLAMA = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁", 0.0), ("a", 0.0), ("▁a", -1.0)]
FOLDERS: dict[str, dict[str, Any]] = {
    "bert": {"vocab.txt": lines(BERT)},
    "gpt2": {"vocab.json": GPT2, "merges.txt": MERGES},
    "roberta": {"vocab.json": ROBERTA, "merges.txt": ""},
    "t5": {"spiece.model": model(T5)},
    "llama": {"tokenizer.model": model(LLAMA, 2)},
}
SETTINGS = [
    *(f"{role}_token" for role in ["pad", "unk", "bos", "eos", "cls", "sep", "mask"]),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "add_bos_token", "add_eos_token"),
    *("extra_ids", "additional_special_tokens", "extra_special_tokens", "added_tokens_decoder", "tokenizer_class"),
]
JUNK: list[Any] = [None, True, -1, 5, 10**20, 0.5, "", "x", "at", "gat", "<s>", [], [[]], ["<s>", 3], {}, {"a": 1}]
JUNK += [
    {"content": "at"},
    {"content": 3},
    {"5": "at"},
    {"5": {"content": ""}},
    {"6": {"content": "at", "special": True}},
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FOLDERS)), key=st.sampled_from(SETTINGS), junk=st.sampled_from(JUNK))
def test_settings_that_are_junk_load_or_are_refused(name: str, key: str, junk: object, tmp_path: Path) -> None:
    """A tokenizer that works, or a TokenizerError; nothing else, and no special ids from text."""
    folder = put(tmp_path / name, {**FOLDERS[name], "tokenizer_config.json": {key: junk}})
    try:
        tokenizer = Tokenizer.load(folder)
    except TokenizerError:
        return
    encoded = tokenizer.encode_with_offsets("a gat <s> [SEP] é")
    assert not tokenizer._spelling.hidden & set(encoded.ids)
    assert not tokenizer._spelling.hidden & set(tokenizer.encode_batch(["a gat <s>"], dropout=0.5)[0])
    tokenizer.decode(tokenizer.with_specials(encoded.ids, encoded.ids)[0])
    tokenizer.words(encoded.ids)
    assert Tokenizer.load(folder).fingerprint == tokenizer.fingerprint


def test_d5_the_template_of_tokenizer_json_decides(tmp_path: Path) -> None:
    definition = json.loads(Tokenizer.load(put(tmp_path, {"vocab.txt": lines(BERT)})).definition)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}

    def loaded(processor: Any, **settings: Any) -> Tokenizer:
        data = {**definition, "post_processor": processor}
        files = {"tokenizer.json": data, "tokenizer_config.json": names | settings}
        return Tokenizer.load(put(tmp_path / "json", files))

    a, b, sep = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, [3, 3]
    mark = {"SpecialToken": {"id": "x", "type_id": 1}}
    template: dict[str, Any] = {"type": "TemplateProcessing", "single": [mark, a], "pair": [a, mark, b]}
    template["special_tokens"] = {"x": {"id": "x", "ids": sep, "tokens": ["[SEP]", "[SEP]"]}}
    assert loaded(template).with_specials([5]) == ([3, 3, 5], [1, 1, 0])
    assert loaded(template).with_specials([5], [6]) == ([5, 3, 3, 6], [0, 1, 1, 1])
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    assert loaded({"type": "Sequence", "processors": [level, template]}).with_specials([5])[0] == [3, 3, 5]
    old = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    assert loaded(old).with_specials([5], [6]) == ([2, 5, 3, 6, 3], [0, 0, 0, 1, 1])
    roberta: dict[str, Any] = {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    roberta |= {"trim_offsets": True, "add_prefix_space": True}
    assert loaded(roberta).with_specials([5], [6]) == ([2, 5, 3, 3, 6, 3], [0] * 6)
    assert loaded(None).with_specials([5], [6]) == ([5, 6], [0, 1])  # nothing says what it is
    assert loaded(None, tokenizer_class="BertTokenizer").with_specials([5])[0] == [2, 5, 3]
    for wrong in [5, {}, {"type": "Other"}, {**old, "sep": ["[SEP]", "x"]}, {**template, "special_tokens": {}}]:
        fails(TokenizerError, "the `post_processor` must say", loaded, wrong)
    with pytest.raises(TokenizerError, match=r"the template of special tokens must have ids below 13$"):
        loaded({**old, "cls": ["[CLS]", 13]})


@pytest.mark.parametrize("name, model_type", [("bert", "bert"), ("roberta", "roberta"), ("gpt2", "gpt2")])
def test_tokens_that_the_settings_leave_to_the_class(name: str, model_type: str, tmp_path: Path) -> None:
    """bert-base-uncased and gpt2 as published: `tokenizer.json`, and settings that name no token."""
    older = Tokenizer.load(put(tmp_path / "older", FOLDERS[name]))
    few = {"tokenizer.json": json.loads(older.definition), "tokenizer_config.json": {"model_max_length": 512}}
    folder = put(tmp_path / "published", few | {"config.json": {"model_type": model_type}})
    ours = Tokenizer.load(folder)
    assert ours.specials.roles == older.specials.roles and ours.specials.roles["unk"]
    ours.save(tmp_path / "copy")  # without the `config.json`
    assert Tokenizer.load(tmp_path / "copy").fingerprint == ours.fingerprint
    put(folder, {"tokenizer_config.json": {"unk_token": None}})  # the settings say that there is none
    assert "unk" not in Tokenizer.load(folder).specials.roles
    put(folder, {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}})  # a class without tokens
    assert not Tokenizer.load(folder).specials.roles


@pytest.mark.parametrize(
    "part",
    [
        models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]),
        models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"),
        models.WordLevel({"[UNK]": 0, "ab": 1}, unk_token="[UNK]"),
        models.Unigram([("<unk>", 0.0), ("ab", -1.0), ("a", -2.0), ("b", -2.0)], 0),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_definition_whose_model_names_no_type(part: models.Model, tmp_path: Path) -> None:
    """As the library's first versions wrote it (gpt2, roberta-base): the type is the one that the library finds."""
    data = json.loads(tokenizers.Tokenizer(part).to_str())
    kind = data["model"].pop("type")
    data["model"] |= {"merges": ["a b"]} if kind == "BPE" else {}  # which were lines of text then
    put(tmp_path, {"tokenizer.json": data})
    ours, theirs = Tokenizer.load(tmp_path), tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert json.loads(ours.definition)["model"]["type"] == kind == type(theirs.model).__name__
    assert ours.encode("ab") == theirs.encode("ab").ids and ours.encode("ab")
    ours.save(tmp_path / "copy")
    assert Tokenizer.load(tmp_path / "copy").fingerprint == ours.fingerprint


def test_d5_our_own_tokenizers_add_nothing_unless_asked() -> None:
    ours = train_tokenizer(TokenizerConfig(kind="unigram", vocab_size=300), ["o gato pulou"] * 5)
    assert ours.with_specials([7], [8]) == ([7, 8], [0, 1]) and ours.added(True) == 0
    assert ours.with_specials([7], [8], template="bert") == ([2, 7, 3, 8, 3], [0, 0, 0, 1, 1])
    assert ours.with_specials([7], [8], template="roberta")[0] == [2, 7, 3, 3, 8, 3]
    assert ours.added(template="t5") == 1
    with pytest.raises(TokenizerError, match=r"^unknown template of special tokens 'brt'; did you mean 'bert'\?"):
        ours.with_specials([7], template="brt")
    # The mask is the only string that may be special
    ours = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), ["o gato pulou"] * 5)
    ids = ours.encode_with_mask("o <mask> </s> <pad>")
    assert ids.count(ours.mask_id) == 1 and not {ours.eos_id, ours.pad_id} & set(ids)
    assert ids == [*ours.encode("o"), ours.mask_id, *ours.encode("</s> <pad>")]
    assert ours.mask_id not in ours.encode("o <mask>")


def test_d6_truncation_takes_from_the_longer_text_and_padding_is_to_the_longest() -> None:
    for a, b, room in product(range(7), range(7), range(15)):
        first, second, cut = truncate(list(range(a)), list(range(10, 10 + b)), room)
        assert second is not None and cut == a + b - len(first) - len(second)
        assert first == list(range(len(first))) and second == list(range(10, 10 + len(second)))
        # Of every way that of least difference: the longer is cut while it is longer, and it stays the longer
        ways = [(x, y) for x in range(a + 1) for y in range(b + 1) if x + y == min(room, a + b)]
        best = min(ways, key=lambda way: (abs(way[0] - way[1]), -way[0] if a > b else -way[1]))
        assert (len(first), len(second)) == best
    assert truncate([1, 2, 3, 4, 5], [6, 7], 4) == ([1, 2], [6, 7], 3)
    assert truncate([1, 2, 3], None, 2) == ([1, 2], None, 1)
    assert truncate([1, 2, 3], [4], 3, side="left") == ([2, 3], [4], 1)
    assert truncate([1, 2], [3], 0, side="left") == ([], [], 3)
    fails(TokenizerError, r"^`room` must be at least 0: got -1$", truncate, [1], None, -1)
    fails(TokenizerError, r"^`side` must be 'right' or 'left': got 'up'$", truncate, [1], None, 1, side="up")
    ids, real = pad_batch([[5, 6, 7], [], [8]], 9)
    assert ids.dtype == np.int64 and real.dtype == np.bool_ and ids.tolist() == [[5, 6, 7], [9, 9, 9], [8, 9, 9]]
    assert real.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    ids, real = pad_batch([[5, 6, 7], [9]], 9, side="left")
    assert ids.tolist() == [[5, 6, 7], [9, 9, 9]] and real.tolist() == [[True] * 3, [False, False, True]]
    assert pad_batch([], 0)[0].shape == (0, 0)
    fails(TokenizerError, r"^`side` must be 'right' or 'left': got 'up'$", pad_batch, [[1]], 0, side="up")
