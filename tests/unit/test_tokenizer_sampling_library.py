"""Subword dropout beside the library: hardly any is its plain segmentation, and all of it that of its own (row D2)."""

import itertools
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, train_tokenizer
from atento.text.specials import SpecialTokens

HARDLY, FLAGS = 1e-12, ("single_word", "lstrip", "rstrip", "normalized")
WORDS = ["gato", "gatinho", "a", "pulou", "covid", "19", "XMUY"]
TOKENS = ["covid19", "GATO", "tele visão", "e-mail"]  # one for each place of the flags, added to every tokenizer
ODD = ["<s>", "[UNK]", "<0x41>", "é", "日本", "\u0301", "ß", "#", "##", "▁", "\n", "\t", "-", ".", "😀"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(alphabet: list[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    prefix = options.get("continuing_subword_prefix", "")
    pieces = [*alphabet, *(left + right.removeprefix(prefix) for left, right in merges)]
    front = ["<unk>"] if "unk_token" in options else []
    return models.BPE({p: i for i, p in enumerate(dict.fromkeys([*front, *pieces]))}, merges, **options)


def wholes(model: models.BPE, words: list[str], **options: Any) -> models.BPE:
    """The same model with words that no merges make, as Llama 3 has them."""
    data = json.loads(tokenizers.Tokenizer(model).to_str())["model"]
    vocabulary = {p: i for i, p in enumerate(dict.fromkeys([*data["vocab"], *words]))}
    return models.BPE(vocabulary, [tuple(merge) for merge in data["merges"]], **options)


def unigram(byte_fallback: bool) -> models.Unigram:
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("a", -3.0), ("t", -3.5), ("▁gat", -4.0), ("at", -4.2), ("o", -3.0)]
    pieces += [("g", -3.0), ("inho", -5.0), ("pulou", -6.0), ("▁a", -2.5), ("v", -3.6), ("i", -3.1), ("d", -3.2)]
    return models.Unigram(pieces + [(byte, 0.0) for byte in BYTES if byte_fallback], 0, byte_fallback)


LETTERS = sorted(set("".join(WORDS)) | set("0123456789 -."))
MERGES = [("a", "t"), ("g", "at"), ("gat", "o"), ("o", "v"), ("c", "ov"), ("1", "9"), ("o", "u"), ("p", "u")]
SPACED = [*MERGES, ("▁", "gato"), ("▁", "a")]
LEVEL = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_LEVEL, METASPACE = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Metaspace()
LOWER = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
INNER = [("g", "##a"), ("ga", "##t"), ("##o", "##v"), ("c", "##ov"), ("##1", "##9")]
ENDED = [("o", "u</w>"), ("a", "t"), ("g", "at"), ("gat", "o</w>")]
PIECES = ["[UNK]", "gat", "gato", "##inho", "##o", "a", "##a", "p", "##u", "##l", "##ou", "c", "##ovid", "1", "##9"]
Made = tuple[Any, Any, Any]  # model, normalizer, pre-tokenizer

# what a file can ask of a model of the library -> how such a tokenizer is made
BACKENDS: dict[str, Callable[[], Made]] = {
    "bpe of bytes": lambda: (bpe(LEVEL, [*MERGES, ("Ġ", "gato")]), None, BYTE_LEVEL),
    "bpe that ignores merges": lambda: (
        wholes(bpe(LEVEL, MERGES), ["Ġpulou", "covid", "gat", "a" * 130], ignore_merges=True),
        None,
        BYTE_LEVEL,
    ),
    "bpe with bytes, uncut": lambda: (
        bpe([*BYTES, *LETTERS, "▁"], SPACED, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        normalizers.Replace(" ", "▁"),
        None,
    ),
    "bpe, unknown letters fused": lambda: (bpe([*LETTERS, "▁"], SPACED, unk_token="<unk>", fuse_unk=True), LOWER, None),
    "bpe, unknown letters one by one": lambda: (bpe([*LETTERS, "▁"], SPACED, unk_token="<unk>"), None, METASPACE),
    "bpe that drops letters": lambda: (bpe(LETTERS, MERGES), None, pre_tokenizers.Whitespace()),
    "bpe with ends of words": lambda: (
        bpe([*LETTERS, *(f"{letter}</w>" for letter in LETTERS)], ENDED, unk_token="<unk>", end_of_word_suffix="</w>"),
        LOWER,
        pre_tokenizers.BertPreTokenizer(),
    ),
    "bpe with insides of words": lambda: (
        bpe(
            [*LETTERS, *(f"##{letter}" for letter in LETTERS)], INNER, unk_token="<unk>", continuing_subword_prefix="##"
        ),
        None,
        pre_tokenizers.WhitespaceSplit(),
    ),
    "unigram of letters": lambda: (unigram(False), None, METASPACE),
    "unigram with bytes": lambda: (unigram(True), LOWER, METASPACE),
    "unigram, uncut": lambda: (unigram(False), normalizers.Replace(" ", "▁"), None),
    "wordpiece of short words": lambda: (
        models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]", max_input_chars_per_word=20),
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    ),
}


def with_tokens(made: Made) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(made[0])
    backend.normalizer, pre_tokenizer = made[1], made[2]
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    return backend


def added(backend: tokenizers.Tokenizer, kind: str, flags: tuple[bool, ...]) -> Tokenizer:
    """The tokenizer with added tokens of these flags, and with one special one."""
    backend.add_tokens([AddedToken(text, **dict(zip(FLAGS, flags))) for text in TOKENS])
    backend.add_special_tokens(["<s>"])
    unk = next((piece for piece in ("<unk>", "[UNK]") if backend.token_to_id(piece) is not None), None)
    roles = {"bos": "<s>"} | ({} if unk is None else {"unk": unk})
    specials = SpecialTokens(roles, {text: backend.token_to_id(text) for text in roles.values()})
    return Tokenizer(backend.to_str(), kind, specials)


@cache
def tokenizer(name: str, flags: tuple[bool, ...]) -> Tokenizer:
    if name in BACKENDS:
        backend = with_tokens(BACKENDS[name]())
        return added(backend, type(backend.model).__name__.lower(), flags)
    texts = [" ".join(words) for words in itertools.permutations(WORDS, 3)]
    trained = train_tokenizer(TokenizerConfig(kind=name, vocab_size=330), texts)  # type: ignore[arg-type]
    backend = tokenizers.Tokenizer.from_str(trained.definition)
    backend.add_tokens([AddedToken(text, **dict(zip(FLAGS, flags))) for text in TOKENS])
    return Tokenizer(backend.to_str(), name, trained.specials)


ALL = [*BACKENDS, "bpe", "unigram", "wordpiece"]
parts = st.sampled_from([*WORDS, *TOKENS, *(token.upper() for token in TOKENS), *ODD, " ", "  "])
runs = st.tuples(parts, st.integers(2, 60)).map(lambda run: run[0] * run[1])
texts = st.lists(parts | runs | st.text(max_size=4), max_size=12).map("".join).filter(lambda text: text.isprintable())
every_flag = st.tuples(*[st.booleans()] * len(FLAGS))


@pytest.mark.parametrize("name", ALL)
def test_hardly_any_dropout_is_the_plain_segmentation(name: str) -> None:
    """Whatever the model is asked for, whatever tokens were added: the words are the library's, and what it cuts."""

    @settings(max_examples=30, derandomize=True)
    @given(texts, every_flag)
    def holds(text: str, flags: tuple[bool, ...]) -> None:
        ours = tokenizer(name, flags)
        assert ours.encode_batch([text], dropout=HARDLY) == [ours.encode(text)]

    holds()


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("bpe")])
def test_all_merges_dropped_are_those_that_the_library_drops(name: str) -> None:
    """The only dropout of the library that its random numbers do not change: of every merge."""

    @settings(max_examples=40, derandomize=True)
    @given(texts, every_flag)
    def holds(text: str, flags: tuple[bool, ...]) -> None:
        assume(len(text) <= 128)  # longer words are cut in parts
        ours = tokenizer(name, flags)
        library = tokenizers.Tokenizer.from_str(ours._library.to_str())  # type: ignore[union-attr]
        library.encode_special_tokens = True
        library.model.dropout = 1.0
        assert ours.encode_batch([text], dropout=1.0) == [library.encode(text, add_special_tokens=False).ids]

    holds()


@pytest.mark.parametrize("name", ALL)
def test_an_added_token_is_never_cut(name: str) -> None:
    ours = tokenizer(name, (False, False, False, True))
    for rate in (0.5, 1.0):
        for row in ours.encode_batch(["o covid19 pulou e covid19"] * 20, dropout=rate):
            assert row.count(ours.token_id("covid19")) == 2


def test_a_long_run_is_cut_where_the_plain_segmentation_is_cut() -> None:
    """A text without spaces that is sampled in parts: only letters that are skipped differ."""
    ours = tokenizer("bpe with bytes, uncut", (False,) * 4)
    text = "gato covid19 é gatinho " * 40
    drawn = ours.encode_batch([text] * 20, dropout=0.02, seed=3)
    assert len(set(map(tuple, drawn))) > 10
    assert {"".join(ours.tokens(row)) for row in drawn} == {"".join(ours.tokens(ours.encode(text)))}
