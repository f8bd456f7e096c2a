"""Subword dropout: the published draws, the library's, and the same from the same seed (row D2; contract: resume)."""

import itertools
import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from atento.base.errors import CapabilityError, TokenizerError
from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, train_tokenizer
from atento.text.sampling import Sampler
from atento.text.specials import SpecialTokens
from failing import fails

DRAWS = 20_000


def lines() -> list[str]:
    text = "o gatinho corre rapidamente pela casa amarela da avó e pula alto no tapete vermelho"
    words = text.split(" ")
    return [" ".join(words[i:j]) for i, j in itertools.combinations(range(len(words) + 1), 2)]


def trained(kind: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=340), lines())  # type: ignore[arg-type]


def share_close(count: int, probability: float) -> bool:
    """Within five standard deviations of a share of `DRAWS`."""
    return abs(count - DRAWS * probability) <= 5 * math.sqrt(DRAWS * probability * (1 - probability))


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_draws_by_the_probability_of_the_segmentation(alpha: float) -> None:
    """Kudo 2018: P(segmentation) ** alpha, normalised over all of them, here counted by hand."""
    scores = {"▁": -1.5, "a": -2.0, "b": -2.5, "▁a": -2.2, "ab": -3.0, "▁ab": -4.5, "ba": -3.3, "bab": -5.0}
    tokenizer = Tokenizer.from_vocabulary("unigram", list(scores), scores=list(scores.values()))
    sampler = Sampler(tokenizer._backend, json.loads(tokenizer.definition), "unigram", alpha=alpha)

    def all_of(word: str) -> Iterator[tuple[str, ...]]:
        if not word:
            yield ()
        for end in range(1, len(word) + 1):
            if word[:end] in scores:
                yield from ((word[:end], *rest) for rest in all_of(word[end:]))

    weights = {pieces: math.exp(alpha * sum(scores[p] for p in pieces)) for pieces in all_of("▁abab")}
    assert len(weights) > 8
    counts = Counter(tuple(tokenizer.tokens(sampler.encode("abab", 1.0, seed))) for seed in range(DRAWS))
    assert set(counts) <= set(weights)
    for pieces, weight in weights.items():
        assert share_close(counts[pieces], weight / sum(weights.values()))


def test_words_are_left_alone_or_passed_over_with_the_rate() -> None:
    tokenizer = Tokenizer.from_vocabulary("unigram", ["▁", "a", "b", "▁ab"], scores=[-1.0, -2.0, -2.0, -20.0])
    plain = tokenizer.encode("ab")
    drawn = [ids != plain for ids in tokenizer.encode_batch(["ab"] * DRAWS, dropout=0.25, seed=3)]
    # Two segmentations, -5 and -20: with alpha 0.2 the second has weight e^-4 against e^-1.
    assert share_close(sum(drawn), 0.25 * math.exp(-4) / (math.exp(-4) + math.exp(-1)))
    # Provilkov et al. 2020, by hand: "ab" is joined with probability 1 - rate; "aab" has two places for one merge
    tokenizer = Tokenizer.from_vocabulary("bpe", ["▁", "a", "b", "ab"], merges=[("a", "b")])
    rows = tokenizer.encode_batch(["ab"] * DRAWS, dropout=0.3, seed=1)
    assert share_close(sum([tokenizer.tokens(row) == ["▁", "ab"] for row in rows]), 0.7)
    assert tokenizer.tokens(tokenizer.encode_batch(["abab"], dropout=1.0)[0]) == ["▁", "a", "b", "a", "b"]
    # Hiraoka 2022, by hand: "ab" stays whole with probability 1 - rate; single letters are never passed over
    tokenizer = Tokenizer.from_vocabulary("wordpiece", ["a", "##b", "ab", "c"])
    rows = tokenizer.encode_batch(["ab"] * DRAWS, dropout=0.3, seed=1)
    assert share_close(sum(tokenizer.tokens(row) == ["ab"] for row in rows), 0.7)
    assert {tuple(tokenizer.tokens(row)) for row in rows} == {("ab",), ("a", "##b")}
    assert tokenizer.encode_batch(["x"], dropout=0.5) == [[tokenizer.unk_id]]
    dead_end = Tokenizer.from_vocabulary("wordpiece", ["a", "ab"])
    assert {tuple(row) for row in dead_end.encode_batch(["ab"] * 50, dropout=0.5)} == {(6,)}


@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_bpe_draws_each_segmentation_as_often_as_the_paper_would(rate: float) -> None:
    """Every step keeps each possible merge with 1 - rate and makes the best of those: by hand, over all paths."""
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("c", "ab"), ("abc", "ab")]
    pieces = ["▁", "a", "b", "c", *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer.from_vocabulary("bpe", list(dict.fromkeys(pieces)), merges=merges)

    def shares(parts: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        places = [(merges.index(pair), i) for i, pair in enumerate(itertools.pairwise(parts)) if pair in merges]
        found: dict[tuple[str, ...], float] = {parts: rate ** len(places)}
        for better, (_, i) in enumerate(sorted(places)):
            joined = (*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :])
            for end, share in shares(joined).items():
                found[end] = found.get(end, 0.0) + (1 - rate) * rate**better * share
        return found

    expected = shares(("▁", *"abcab"))
    assert len(expected) > 6 and math.isclose(sum(expected.values()), 1.0)
    rows = tokenizer.encode_batch(["abcab"] * DRAWS, dropout=rate, seed=2)
    counts = Counter(tuple(tokenizer.tokens(row)) for row in rows)
    assert set(counts) <= set(expected)
    for parts, share in expected.items():
        assert share_close(counts[parts], share)


def test_no_dropout_is_the_plain_segmentation_seeds_draw_the_same_again_and_a_draw_spells_the_text() -> None:
    """The twin of ours against the library, on words seen and unseen."""
    for kind in ("unigram", "bpe", "wordpiece"):
        tokenizer = trained(kind)
        sampler = Sampler(tokenizer._backend, json.loads(tokenizer.definition), kind)
        chance = random.Random(1)
        letters = [*sorted(set("".join(lines()))), "é", "日", "<", "1"]
        texts = lines()[:30] + ["".join(chance.choice(letters) for _ in range(20)) for _ in range(100)]
        for text in texts:
            assert sampler.encode(text, 0.0, 1) == tokenizer.encode(text)
        # Whatever was drawn before, whatever stands beside it in the batch
        tokenizer, texts = trained(kind), lines()[:40]
        seeds = list(range(100, 140))
        first = tokenizer.encode_batch(texts, dropout=0.3, seed=seeds)
        again = trained(kind)
        backwards = [again.encode_batch([t], dropout=0.3, seed=[s])[0] for t, s in reversed(list(zip(texts, seeds)))]
        assert backwards[::-1] == first
        assert tokenizer.encode_batch(texts, dropout=0.3, seed=7) == again.encode_batch(texts, dropout=0.3, seed=7)
        assert tokenizer.encode_batch(texts, dropout=0.3, seed=7) != again.encode_batch(texts, dropout=0.3, seed=8)
    for kind in ("unigram", "bpe"):
        tokenizer = trained(kind)
        text = "o gatinho pula ж <s> 日本 " + "x" * 500
        seen = set()
        for seed in range(30):
            [ids] = tokenizer.encode_batch([text], dropout=0.5, seed=[seed])
            assert tokenizer.decode(ids) == text
            seen.add(tuple(ids))
        assert len(seen) > 1


def test_the_same_seed_draws_the_same_in_another_process() -> None:
    code = (
        "from atento.text import Tokenizer\n"
        "t = Tokenizer.from_vocabulary('bpe', ['▁', 'a', 'b', 'ab', '▁ab'], merges=[('a', 'b'), ('▁', 'ab')])\n"
        "print(t.encode_batch(['abab ab ba'] * 20, dropout=0.4, seed=5))"
    )
    runs = partial(subprocess.run, [sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8")
    outputs = {runs(env={"PYTHONHASHSEED": str(i), "PYTHONUTF8": "1"}).stdout for i in range(2)}
    assert len(outputs) == 1 and outputs.pop().startswith("[[")


def test_wrong_use_is_refused() -> None:
    tokenizer = Tokenizer.from_vocabulary("wordpiece", ["a"])
    fails(TokenizerError, r"^`dropout` must lie in \[0, 1\]: got 1\.5$", tokenizer.encode_batch, ["a"], dropout=1.5)
    with pytest.raises(TokenizerError, match=r"^`seed` must be one number, or one for each text: got 2 for 1 texts$"):
        tokenizer.encode_batch(["a"], dropout=0.5, seed=[1, 2])
    for kind in ("word", "character", "byte"):
        single = Tokenizer.from_vocabulary(kind, [] if kind == "byte" else ["a"])
        said = rf"^subword dropout needs a bpe, unigram or wordpiece tokenizer: a {kind} tokenizer has one segm"
        fails(CapabilityError, said, single.encode_batch, ["a"], dropout=0.5)
    # By hand: "abab" joins ab twice, the left one first, then both; bytes come by no merge
    tokenizer = Tokenizer.from_vocabulary("bpe", ["▁", "a", "b", "ab", "abab"], merges=[("a", "b"), ("ab", "ab")])
    joined = [(0, ["▁", "ab", "a", "b"]), (0, ["▁", "ab", "ab"]), (1, ["▁", "abab"])]
    spelt = [(None, ["▁", "b", "é"]), (None, ["▁", "b", "<0xC3>", "<0xA9>"])]
    assert list(tokenizer.sampler.merges("abab bé")) == [[(None, ["▁", *"abab"]), *joined], spelt]
    assert not list(tokenizer.sampler.merges(""))
    own = trained("bpe")
    for line in lines()[:40]:
        assert [piece for steps in own.sampler.merges(line) for piece in steps[-1][1]] == own.tokens(own.encode(line))
    fails(CapabilityError, "only a bpe tokenizer joins pieces", list, trained("unigram").sampler.merges("a"))
    fails(TokenizerError, "surrogate", list, own.sampler.merges("a\ud800"))


HARDLY, FLAGS = 1e-12, ("single_word", "lstrip", "rstrip", "normalized")
WORDS = ["gato", "gatinho", "a", "pulou", "covid", "19", "XMUY"]
TOKENS = ["covid19", "GATO", "tele visão", "e-mail"]  # one for each place of the flags, added to every tokenizer
ODD = ["<s>", "[UNK]", "<0x41>", "é", "日本", "\u0301", "ß", "#", "##", "▁", "\n", "\t", "-", ".", "😀"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe(alphabet: list[str], merges: list[tuple[str, str]], words: Sequence[str] = (), **options: Any) -> models.BPE:
    """With `words` that no merges make, as Llama 3 has them."""
    prefix = options.get("continuing_subword_prefix", "")
    front = ["<unk>"] if "unk_token" in options else []
    pieces = [*front, *alphabet, *(left + right.removeprefix(prefix) for left, right in merges), *words]
    return models.BPE({p: i for i, p in enumerate(dict.fromkeys(pieces))}, merges, **options)


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
SPACES, BERT = normalizers.Replace(" ", "▁"), pre_tokenizers.BertPreTokenizer()
UNKNOWN, WHOLE = {"unk_token": "<unk>"}, ["Ġpulou", "covid", "gat", "a" * 130]
ENDS, INSIDES = ([*LETTERS, *(form.format(letter) for letter in LETTERS)] for form in ("{}</w>", "##{}"))
INNER = [("g", "##a"), ("ga", "##t"), ("##o", "##v"), ("c", "##ov"), ("##1", "##9")]
ENDED = [("o", "u</w>"), ("a", "t"), ("g", "at"), ("gat", "o</w>")]
PIECES = ["[UNK]", "gat", "gato", "##inho", "##o", "a", "##a", "p", "##u", "##l", "##ou", "c", "##ovid", "1", "##9"]

# what a file can ask of a model of the library -> how its model, normalizer and pre-tokenizer are made
BACKENDS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "bpe of bytes": lambda: (bpe(LEVEL, [*MERGES, ("Ġ", "gato")]), None, BYTE_LEVEL),
    "bpe that ignores merges": lambda: (bpe(LEVEL, MERGES, WHOLE, ignore_merges=True), None, BYTE_LEVEL),
    "bpe with bytes, uncut": lambda: (
        bpe([*BYTES, *LETTERS, "▁"], SPACED, **UNKNOWN, fuse_unk=True, byte_fallback=True),
        SPACES,
        None,
    ),
    "bpe, unknown letters fused": lambda: (bpe([*LETTERS, "▁"], SPACED, **UNKNOWN, fuse_unk=True), LOWER, None),
    "bpe, unknown letters one by one": lambda: (bpe([*LETTERS, "▁"], SPACED, **UNKNOWN), None, METASPACE),
    "bpe that drops letters": lambda: (bpe(LETTERS, MERGES), None, pre_tokenizers.Whitespace()),
    "bpe with ends of words": lambda: (bpe(ENDS, ENDED, **UNKNOWN, end_of_word_suffix="</w>"), LOWER, BERT),
    "bpe with insides of words": lambda: (
        bpe(INSIDES, INNER, **UNKNOWN, continuing_subword_prefix="##"),
        None,
        pre_tokenizers.WhitespaceSplit(),
    ),
    "unigram of letters": lambda: (unigram(False), None, METASPACE),
    "unigram with bytes": lambda: (unigram(True), LOWER, METASPACE),
    "unigram, uncut": lambda: (unigram(False), SPACES, None),
    "wordpiece of short words": lambda: (
        models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]", max_input_chars_per_word=20),
        normalizers.BertNormalizer(lowercase=True),
        BERT,
    ),
}


@cache
def tokenizer(name: str, flags: tuple[bool, ...]) -> Tokenizer:
    """With added tokens of these flags; one of the library also with a special one."""
    made = BACKENDS.get(name)
    if made is not None:
        model, normalizer, pre_tokenizer = made()
        backend, kind = tokenizers.Tokenizer(model), type(model).__name__.lower()
        backend.normalizer = normalizer
        if pre_tokenizer is not None:
            backend.pre_tokenizer = pre_tokenizer
    else:
        texts = [" ".join(words) for words in itertools.permutations(WORDS, 3)]
        trained = train_tokenizer(TokenizerConfig(kind=name, vocab_size=330), texts)  # type: ignore[arg-type]
        backend, kind, specials = tokenizers.Tokenizer.from_str(trained.definition), name, trained.specials
    backend.add_tokens([AddedToken(text, **dict(zip(FLAGS, flags))) for text in TOKENS])
    if made is not None:
        backend.add_special_tokens(["<s>"])
        unk = next((piece for piece in ("<unk>", "[UNK]") if backend.token_to_id(piece) is not None), None)
        roles = {"bos": "<s>"} | ({} if unk is None else {"unk": unk})
        specials = SpecialTokens(roles, {text: backend.token_to_id(text) for text in roles.values()})
    return Tokenizer(backend.to_str(), kind, specials)


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
