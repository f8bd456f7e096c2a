"""The tokenizer as it is used: round trips, offsets, special ids, files (spec rows D1, D3, D4, D5; errors 11, 12)."""

import errno
import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atento.base.errors import AtentoError, CapabilityError, TokenizerError
from atento.config.recipe import TokenizerConfig
from atento.text import STANDARD, SpecialTokens, Tokenizer, merge_labels, sentinels, spread_labels, train_tokenizer
from failing import fails

KINDS = ["unigram", "bpe", "wordpiece", "word", "character", "byte"]
EXACT = ["unigram", "bpe", "byte"]


def lines() -> list[str]:
    """A small text of our own: every subject with every verb and object, with some punctuation."""
    subjects = ["o gato", "a gata", "o menino", "uma mulher", "o pássaro", "minha avó", "the cat", "a child"]
    verbs = ["pulou", "comeu", "vê rapidamente", "não quer", "sees", "ate"]
    objects = ["o peixe.", "a maçã!", "(o pão)", "um coração, sim", "12 ovos", "the fish?", "<nada>"]
    return [f"{s} {v} {o}" for s in subjects for v in verbs for o in objects]


@cache
def trained(kind: str, lowercase: bool = False) -> Tokenizer:
    config = TokenizerConfig(kind=kind, vocab_size=420, lowercase=lowercase)  # type: ignore[arg-type]
    return train_tokenizer(config, lines())


# Texts that look for trouble: special strings, byte pieces, marks, joiners, blanks of all sorts, control characters.
TROUBLE = (
    "<s> </s> <pad> <mask> <unk> [MASK] [CLS] <0x41> <0xC3> <extra_id_0> ▁ ▁▁ ##a < > e\u0301 \u0301 ã 각 \u1100\u1161"
    " 👩\u200d👩\u200d👧 日本 \u202e \ufeff \x00 \t \u2028 \xa0 ( . 1.234,56 gato avó"
)
PIECES = st.one_of(st.text(max_size=8), st.sampled_from(TROUBLE.split(" ")), st.just(" "))
TRICKY = st.lists(PIECES, max_size=12).map("".join)


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=30)
@given(text=TRICKY)
@example(text="")
@example(text=" \t\x00")
@example(text="▁(▁")
def test_decode_gives_back_the_normalised_text(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalize(text)
    encoded = tokenizer.encode_with_offsets(text)
    assert encoded.ids == tokenizer.encode(text) and encoded.tokens == tokenizer.tokens(encoded.ids)


@settings(max_examples=30)
@given(text=st.text(st.sampled_from(sorted(set("".join(lines())))), max_size=40))
def test_characters_round_trip_where_none_is_unknown(text: str) -> None:
    tokenizer = trained("character")
    assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalize(text)
    assert len(tokenizer.encode(text)) == len(tokenizer.normalize(text))


@pytest.mark.parametrize("kind", KINDS)
def test_d4_d5_specials_batches_and_words_of_every_kind_and_saving_keeps_everything(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    ids = [tokenizer.bos_id, *tokenizer.encode("o gato"), tokenizer.unk_id, tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode(ids).split("<unk>")[0].strip() == "o gato"
    assert "<unk>" in tokenizer.decode(ids) and "</s>" not in tokenizer.decode(ids)
    assert all(text in tokenizer.decode(ids, skip_special=False) for text in ("<s>", "</s>", "<pad>"))
    # Row D5: pad 0, unk 1, bos 2, eos 3, mask 4, in every kind
    ids = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id]
    assert ids == [0, 1, 2, 3, 4]
    assert tokenizer.tokens(ids) == ["<pad>", "<unk>", "<s>", "</s>", "<mask>"] == list(STANDARD.values())
    # A batch is its texts one by one
    texts = ["o gato", "", " ", "a maçã! 日本", "o gato"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode("") == tokenizer.encode(" \t") == [] and tokenizer.decode([]) == ""
    # Rows D4, E2: whole words on any tokenizer
    for text in ["o gato pulou (o pão), 12 ovos!", "minha avó não quer um coração"]:
        encoded = tokenizer.encode_with_offsets(text)
        words = tokenizer.words([tokenizer.bos_id, *encoded.ids, tokenizer.eos_id, tokenizer.pad_id])
        assert words.index == [None, *encoded.word_ids, None, None]
        if tokenizer.unk_id not in encoded.ids:
            assert words.words == encoded.words
    tokenizer = trained(kind, lowercase=kind == "bpe")
    tokenizer.save(tmp_path / "new" / "folder")
    again = Tokenizer.load(tmp_path / "new" / "folder")
    text = "O gato não quer <s> 日本 (12)"
    assert again.encode(text) == tokenizer.encode(text)
    assert (again.fingerprint, again.kind, again.lowercase) == (tokenizer.fingerprint, kind, kind == "bpe")
    assert again.specials == tokenizer.specials
    again.save(tmp_path / "twice")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "twice" / name).read_bytes() == (tmp_path / "new" / "folder" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(text=TRICKY)
@example(text="<s> </s> <pad> <mask> [MASK] <unk>")
@example(text="<s></s><unk>日<mask>")
def test_user_text_never_makes_special_ids(kind: str, text: str) -> None:
    """Contract, bad input; and error 12: `unk` only in kinds that know no other way."""
    tokenizer = trained(kind)
    special = set(range(5)) - (set() if kind in EXACT else {tokenizer.unk_id})
    assert not special & set(tokenizer.encode(text)) and not special & set(tokenizer.encode_with_offsets(text).ids)
    if kind in ("unigram", "bpe", "wordpiece"):
        assert not special & set(tokenizer.encode_batch([text], dropout=0.5, seed=1)[0])


def test_sentinels_stand_behind_the_five_and_special_tokens_that_cannot_be() -> None:
    config = TokenizerConfig(kind="unigram", vocab_size=420)
    tokenizer = train_tokenizer(config, lines(), extra_specials=[*sentinels(3), "<2pt>"])
    assert [tokenizer.specials.id(f"<extra_id_{i}>") for i in range(3)] == [5, 6, 7]
    assert tokenizer.token_id("<2pt>") == 8 and not {5, 6, 7, 8} & set(tokenizer.encode("<extra_id_0> <2pt>"))
    assert tokenizer.decode([5, *tokenizer.encode("gato")]) == "gato"
    for extra, message in (
        (["<s>"], "special tokens must differ from one another: got '<s>' twice"),
        (["SOS"], "a special token must look like <name>, without spaces: got 'SOS'"),
        (["<0x41>"], "a special token must not look like a byte piece: got '<0x41>'"),
    ):
        fails(TokenizerError, f"^{message}$", train_tokenizer, TokenizerConfig(), lines(), extra_specials=extra)
    with pytest.raises(TokenizerError, match=r"^this tokenizer has no special token 'mask'; it has: pad$"):
        SpecialTokens({"pad": "<pad>"}, {"<pad>": 0}).id("mask")
    assert SpecialTokens({}, {}).get("pad") is None


def test_the_notes_contrast_of_words_and_subwords_spaces_bytes_and_lowercase() -> None:
    """Rows D1, D3, L3 and error 11: two words are unknown ("o" and "gatinho"), while WordPiece gives six pieces."""
    sentence = "o gatinho corre rapidamente"
    words = Tokenizer.from_vocabulary("word", ["gato", "cachorro", "corre", "pula", "rapidamente"])
    assert words.tokens(words.encode(sentence)) == ["<unk>", "<unk>", "corre", "rapidamente"]
    subwords = Tokenizer.from_vocabulary("wordpiece", ["o", "gat", "##inho", "corre", "rapida", "##mente"])
    ids = subwords.encode(sentence)
    assert subwords.tokens(ids) == ["o", "gat", "##inho", "corre", "rapida", "##mente"]
    assert ids == [5, 6, 7, 8, 9, 10] and subwords.decode(ids) == sentence
    assert subwords.words(ids).index == [0, 1, 1, 2, 3, 3]
    # Error 12: a letter that the pieces do not hold is unknown in WordPiece, and in the kinds with bytes it is not.
    assert subwords.encode("gatão") == [subwords.unk_id]
    assert trained("unigram").unk_id not in trained("unigram").encode("gatão ж")
    tokenizer = Tokenizer.from_vocabulary("bpe", ["▁", "é", "a", "(", "▁a"], merges=[("▁", "a")])
    encoded = tokenizer.encode_with_offsets(" e\u0301  a (日\ta")
    assert encoded.tokens == ["▁", "é", "▁a", "▁", "(", "<0xE6>", "<0x97>", "<0xA5>", "▁a"]
    assert encoded.offsets == [(1, 1), (1, 3), (5, 6), (7, 7), (7, 8), (8, 9), (8, 9), (8, 9), (10, 11)]
    assert encoded.words == ["e\u0301", "a", "(", "日", "a"]
    assert encoded.word_ids == [None, 0, 1, None, 2, 3, 3, 3, 4]
    for kind in ("word", "wordpiece"):
        tokenizer = trained(kind)
        for text in ["o gato comeu a maçã!", "minha avó vê rapidamente (o pão)", "a gata pulou um coração, sim"]:
            assert tokenizer.decode(tokenizer.encode(text)) == text
    tokenizer = trained("byte")
    assert tokenizer.vocab_size == 5 + 256 and tokenizer.encode("aé") == [5 + b for b in "aé".encode()]
    assert tokenizer.decode([5 + 0xC3]) == "\ufffd"  # half a character is shown, not raised
    text = "O GATO Pulou AÇÃO É"
    assert trained("unigram").decode(trained("unigram").encode(text)) == text
    lower = trained("unigram", True)
    assert lower.decode(lower.encode(text)) == "o gato pulou ação é"
    assert lower.encode_with_offsets("GATO").words == ["GATO"]
    found = tokenizer.words([5 + 0xC3, 5 + 0x20, 5 + 0xC3, 5 + 0xA9, 5 + 0x61])
    assert (found.index, found.words) == ([0, None, 1, 1, 1], ["\ufffd", "éa"])


def test_from_vocabulary_of_the_other_kinds_and_vocabularies_that_cannot_be() -> None:
    bpe = Tokenizer.from_vocabulary("bpe", ["▁", "a", "b", "ab"], merges=[("a", "b")])
    assert bpe.tokens(bpe.encode("abb a")) == ["▁", "ab", "b", "▁", "a"]
    unigram = Tokenizer.from_vocabulary("unigram", ["▁", "a", "b", "ab"], scores=[-1.0, -2.0, -2.0, -3.0])
    assert unigram.tokens(unigram.encode("ab")) == ["▁", "ab"]  # -3 beats -2 - 2
    letters = Tokenizer.from_vocabulary("character", ["a", " "])
    assert letters.encode("a ab") == [5, 6, 5, letters.unk_id]
    assert Tokenizer.from_vocabulary("byte", []).vocab_size == 261
    for kind, pieces, more, message in (
        ("subword", [], {}, "unknown kind of tokenizer 'subword'"),
        ("word", ["a", "a"], {}, "the pieces of a vocabulary must differ from one another: got 'a' twice"),
        ("word", ["<s>"], {}, "the pieces of a vocabulary must differ from one another: got '<s>' twice"),
        ("bpe", ["a"], {}, "a bpe vocabulary must have the piece '▁', the space"),
        ("unigram", ["▁"], {}, "a unigram vocabulary needs a score for each piece: got 0 for 1"),
        ("byte", ["a"], {}, "a byte vocabulary has no pieces except the bytes: got 1"),
        ("character", ["ab"], {}, "the pieces of a character vocabulary must be single characters"),
        ("bpe", ["▁", "a"], {"merges": [("a", "a")]}, "a merge must join two pieces into a third: got 'a' and 'a'"),
    ):
        fails(TokenizerError, f"^{message}", Tokenizer.from_vocabulary, kind, pieces, **more)
    assert len({trained(kind).fingerprint for kind in KINDS} | {trained("bpe", True).fingerprint}) == len(KINDS) + 1
    one = Tokenizer.from_vocabulary("word", ["a", "b"])
    assert one.fingerprint == Tokenizer.from_vocabulary("word", ["a", "b"]).fingerprint
    assert one.fingerprint != Tokenizer.from_vocabulary("word", ["b", "a"]).fingerprint


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(text=TRICKY)
@example(text="e\u0301a\u0303b\u0301\u0316 x")
def test_offsets_are_exact_in_the_users_text(kind: str, text: str) -> None:
    """Row D4: the characters a piece points at normalise to the piece; what no piece points at is blank."""
    tokenizer = trained(kind)
    encoded = tokenizer.encode_with_offsets(text)
    covered: set[int] = set()
    for i, token, (start, end) in zip(encoded.ids, encoded.tokens, encoded.offsets, strict=True):
        assert 0 <= start <= end <= len(text)
        covered.update(range(start, end))
        if i != tokenizer.unk_id and not (token.startswith("<0x") and token.endswith(">") and len(token) == 6):
            assert token.removeprefix("##").replace("▁", " ").strip() in tokenizer.normalize(text[start:end])
        elif i != tokenizer.unk_id:
            byte = bytes([int(token[3:5], 16)])
            assert byte in tokenizer.normalize(text[start:end] or " ").encode() or token == "<0x20>"
    starts = [start for start, _ in encoded.offsets]
    assert starts == sorted(starts)
    assert not tokenizer.normalize("".join(char for i, char in enumerate(text) if i not in covered))


WORDS = st.lists(st.one_of(st.text(min_size=1, max_size=6), st.sampled_from(["gato", "avó", ",", "", " ", "<s>"])))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(words=WORDS, data=st.data())
@example(words=["\u0301", "a", ""], data=None)
def test_word_labels_survive_the_round_trip(kind: str, words: list[str], data: st.DataObject | None) -> None:
    """Row D4: labels of words -> labels of tokens -> the same labels of words, whatever the words are."""
    labels = [data.draw(st.sampled_from("ABC")) if data else "A" for _ in words]
    encoded = trained(kind).encode_words(words)
    assert merge_labels(spread_labels(labels, encoded.word_ids), encoded.word_ids, len(words)) == labels


def test_bad_text_and_ids_and_folders_are_clear_errors(tmp_path: Path) -> None:
    tokenizer = trained("unigram")
    with pytest.raises(TokenizerError, match=r"^text must be Unicode text: got .* surrogate U\+DC00 at character 1$"):
        tokenizer.encode("a\udc00")
    with pytest.raises(TokenizerError, match=r"^text 1 must be Unicode text: got the lone surrogate U\+D800 at"):
        tokenizer.encode_batch(["a", "\ud800"])
    fails(TokenizerError, r"^word 0 must be Unicode text", tokenizer.encode_words, ["\ud800"])
    for call in (tokenizer.decode, tokenizer.tokens, tokenizer.words):
        fails(TokenizerError, rf"^an id must .* 0 \.\.\. {tokenizer.vocab_size - 1}: got -1$", call, [-1])
        fails(TokenizerError, r"^an id must lie in", call, [tokenizer.vocab_size])
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(AtentoError, match=r"^cannot write the tokenizer to ") as failed:
        trained("byte").save(tmp_path / "file" / "inside")
    assert failed.value.exit_status == 1  # a failure of the machine, not wrong usage


def test_files_that_are_missing_or_malformed(tmp_path: Path) -> None:
    def message(folder: Path) -> str:
        with pytest.raises(TokenizerError) as caught:
            Tokenizer.load(folder)
        return str(caught.value)

    assert message(tmp_path / "none") == f"no tokenizer at {tmp_path / 'none'}: there is no such folder"
    assert message(tmp_path) == f"no tokenizer in {tmp_path}: it has no tokenizer.json"
    folder = tmp_path / "a"
    Tokenizer.from_vocabulary("word", ["a"]).save(folder)
    path, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    whole, config = path.read_text(encoding="utf-8"), json.loads(config_path.read_text(encoding="utf-8"))
    for broken, start in [
        (whole[: len(whole) // 2], f"{path} must be JSON: "),
        ("[" * 100_000, f"{path} must be JSON: "),
        ("[]", f"{path} must hold a JSON object: got list"),
        ('{"model": {}}', f"{path} must hold a model with a vocabulary"),
        (whole.replace("Whitespace", "Xyz"), f"{folder}: tokenizer.json cannot be read as a tokenizer: "),
        (whole.replace("WordLevel", "BPE"), f"{folder}: a word tokenizer must have a WordLevel model: got 'BPE'"),
        (whole.replace('"<mask>": 4', '"<mask>": 6'), f"the mask token of {folder} must be '<mask>' with id 4: "),
    ]:
        path.write_text(broken, encoding="utf-8")
        assert message(folder).startswith(start)
    path.write_bytes(b"\xff\xfe{}")
    assert message(folder) == f"{path} must be UTF-8: byte 0 is not"
    path.write_text(whole, encoding="utf-8")
    for changed, start in [
        (config | {"atento": {"kind": "x"}}, f"{folder}: `atento` must name a kind and `lowercase`: got "),
        (config | {"mask_token": "[M]"}, f"the mask token '[M]' of {config_path} is not in the vocabulary"),
    ]:
        config_path.write_text(json.dumps(changed), encoding="utf-8")
        assert message(folder).startswith(start)
    del config["atento"]
    config_path.write_text(json.dumps(config), encoding="utf-8")
    path.write_text(whole.replace('"unk_token": "<unk>"', '"unk_token": ["<unk>"]'), encoding="utf-8")
    assert message(folder).startswith(f"the unknown token of {path} must be '<unk>': got ['<unk>']")
    path.write_text(whole.replace("WordLevel", "Words"), encoding="utf-8")
    assert message(folder).startswith(f"{folder}: unknown model type 'Words'")


def test_two_pieces_with_one_id_are_refused(tmp_path: Path) -> None:
    Tokenizer.from_vocabulary("bpe", ["▁", "a", "▁a"], merges=[("▁", "a")]).save(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    document["model"]["vocab"]["▁a"] = document["model"]["vocab"]["<0x00>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    fails(TokenizerError, "must give each piece an id of its own: two have id 5$", Tokenizer.load, tmp_path)


def test_a_disk_that_fills_leaves_the_tokenizer_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = trained("byte")
    before.save(tmp_path)
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "config" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    fails(AtentoError, r"^cannot write the tokenizer to .*: No space left on device", trained("word").save, tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == before.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


JUNK = [None, True, -1, 5, 10**20, 0.5, "", "x", "<s>", "byte", "BPE", [], [[]], {}, {"a": 1}]


def places(value: object, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    return [path] * bool(path) + [place for key, part in inner for place in places(part, (*path, key))]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_altered_files_load_or_are_refused(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    """One value of either file replaced by junk: a tokenizer that works, or a TokenizerError; nothing else."""
    small = {
        "unigram": {"pieces": ["▁", "a"], "scores": [-1.0, -2.0]},
        "bpe": {"pieces": ["▁", "a", "▁a"], "merges": [("▁", "a")]},
        "wordpiece": {"pieces": ["a", "##a"]},
    }
    Tokenizer.from_vocabulary(kind, **small[kind]).save(tmp_path)
    path = tmp_path / data.draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
    document = json.loads(path.read_text(encoding="utf-8"))
    place = data.draw(st.sampled_from([p for p in places(document) if "<0x" not in str(p)]))
    part = document
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = data.draw(st.sampled_from(JUNK))
    path.write_text(json.dumps(document), encoding="utf-8")
    try:
        tokenizer = Tokenizer.load(tmp_path)
        encoded = tokenizer.encode_with_offsets("a <s> é")
        tokenizer.words(encoded.ids)
        tokenizer.decode(encoded.ids)
        tokenizer.encode_batch(["a <s> é"], dropout=0.5)
    except (TokenizerError, CapabilityError):
        return
    assert not tokenizer._spelling.hidden & set(encoded.ids)
