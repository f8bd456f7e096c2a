"""Words, sentences and normalisation: labels of words and of tokens, where characters came from (rows D4, D6)."""

import time
import unicodedata
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from atento.base.errors import DataError, TokenizerError
from atento.text import align_words, merge_labels, split_sentences, spread_labels, word_spans
from atento.text.encoded import _JOINING_STARTERS, normalize_with_spans
from atento.text.kinds import detokenize, is_blank, library_normalizer, require_unicode
from failing import fails


def test_word_spans_spaces_alignment_and_labels_that_go_to_tokens_and_back() -> None:
    for text, words in (
        ("o gatinho corre", ["o", "gatinho", "corre"]),
        ("fazê-lo, já!", ["fazê", "-", "lo", ",", "já", "!"]),
        ("e\u0301 हिन्दी", ["e\u0301", "हिन्दी"]),
        ("日本 go", ["日", "本", "go"]),
        (" \t\x00", []),
        ("R$ 1.234", ["R", "$", "1", ".", "234"]),
    ):
        assert [text[start:end] for start, end in word_spans(text)] == words
    for line in (
        *("O gato pulou alto.", "Ele disse: «venha cá», e saiu!", 'She said "come here" and left.'),
        *("O guarda-chuva custa 1.234,56 (à vista).", "copo d'água", "", "às 10:30 de 21/11/2026"),
    ):
        assert detokenize([line[start:end] for start, end in word_spans(line)]) == line
    #       tokens:             o      gat     inho      .         pad
    words = align_words("o gatinho.", [(0, 1), (1, 5), (5, 9), (9, 10), None, (1, 2)])
    assert words.index == [0, 1, 1, 2, None, None] and words.words == ["o", "gatinho", "."]
    assert words.tokens(1) == [1, 2]
    index = [None, 0, 1, 1, 2, None]
    spread = spread_labels(["O", "B-PER", "O"], index, inner={"B-PER": "I-PER"})
    assert spread == [None, "O", "B-PER", "I-PER", "O", None]
    assert merge_labels(spread, index, 3) == ["O", "B-PER", "O"]
    assert merge_labels(["x"], [1], 3, missing="?") == ["?", "x", "?"]
    fails(DataError, "^every word must have a label: token 1 is of word 3, got 1 labels$", spread_labels, ["O"], [0, 3])
    fails(DataError, r"^every token must have a label: got 1 labels for 2 tokens$", merge_labels, ["O"], [0, 1], 2)


@given(st.text())
def test_words_cover_all_but_the_blanks(text: str) -> None:
    spans = word_spans(text)
    assert all(start < end for start, end in spans) and all(a[1] <= b[0] for a, b in pairwise(spans))
    assert "".join(text[s:e] for s, e in spans) == "".join(char for char in text if not is_blank(char))


def test_sentences_and_time_that_is_linear() -> None:
    for sentences in (
        ["O Sr. Silva chegou.", "A Dra. Ana saiu!", "E agora?"],
        ["Mr. Jones met Mrs. Smith.", "They talked."],
        ["Custa R$ 3.50 ou 1.234,56 reais.", "Barato!"],
        ["J. R. R. Tolkien escreveu muito.", "Li tudo."],
        ["Bem... não sei.", "Talvez…", "Quem sabe?"],
        ["Ele disse: “Venha.”", "Ela foi."],
        ["Espere!!!", "O quê?!", "Nada."],
        ["See Fig. 3, p. 10, e.g. there.", "Done."],
        ["1. Introdução", "2. Método"],
        ["Ficou em 2.", "O resto saiu, e só restou x.", "Veja 1.", "Fim."],
        ["a frase sem ponto"],
        ["Frutas, pão etc.", "Depois saiu."],
        ["Dr. Who?", "(Yes.)", "No."],
        ["<b>One.</b>", "Two.<0/>", "Three.<1>2</1>", "<2>Four."],
        ['<b title="A. B > c">One.</b>', 'Two.<sup class="n">[2]</sup>', "Three.<br>", "Four."],
        ["One.", "🙂🙂", "Two!", "☀️ 🙂", "Three.", "🙂Four."],
        ["<b>Dr.</b> Who and <b>e.g.</b> <i>so</i> on.<0/> and on.", "End."],
    ):
        assert split_sentences(("\n" if sentences[0].startswith("1. ") else " ").join(sentences)) == sentences
    for text in ("", " \n\t ", "\n\n"):
        assert split_sentences(text) == []
    # Rule D3 of the reliability plan: a quadratic scan would take hours here
    for part in (".", "a.", ". ", "a. ", '."', "1. ", "Sr. ", "! ", " "):
        started = time.perf_counter()
        split_sentences(part * 200_000)
        assert time.perf_counter() - started < 10


@given(st.text(st.sampled_from("aBé .!?…\"'()\n1Sr")))
def test_nothing_is_lost(text: str) -> None:
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_the_rule_and_lower_case_in_both_engines_and_spans() -> None:
    for text, expected in (
        ("avó avô pôr por ação", "avó avô pôr por ação"),  # accents stay
        ("e\u0301 a\u0303", "é ã"),
        (" \ta\r\nb\u2028c\u2029d\u3000e\xa0", "a b c d e"),
        *(("a\x00b\x07c\x85d", "a b c d"), ("a▁b", "a b"), ("", "")),
        (" \x00\t ", ""),
        ("\u1100\u1161\u11a8", "각"),
        ("👩\u200d👧 \ufeffx", "👩\u200d👧 \ufeffx"),
        ("Ação", "Ação"),
    ):
        assert normalize_with_spans(text).text == expected
        assert library_normalizer(lowercase=False).normalize_str(text) == expected
    for text, expected in (("AÇÃO", "ação"), ("ΣΑΣ", "σασ"), ("İ", "i\u0307"), ("É", "é")):
        assert normalize_with_spans(text, lowercase=True).text == expected
        assert library_normalizer(lowercase=True).normalize_str(text) == expected
    normal = normalize_with_spans(" \te\u0301  a\u2028\u2028b ")
    assert normal.text == "é a b" and normal.spans == [(2, 4), (4, 6), (6, 7), (7, 9), (9, 10)]


# Characters on whose properties the two engines' Unicode tables agree: assigned long ago.
_OLD = st.characters(codec="utf-8", categories=["L", "M", "N", "P", "S", "Z", "Cc", "Cf"], max_codepoint=0xFFFF).filter(
    lambda char: unicodedata.ucd_3_2_0.category(char) != "Cn"
)


@settings(max_examples=60)
@given(st.text(_OLD, max_size=30), st.booleans())
@example("\u0ddd\u0dd9\u0dcf", False)
@example("0 \u0340", False)  # a blank and a mark that is replaced are one cluster
@example("a" + "\u0301\u0316" * 20, False)
def test_both_engines_agree_and_spans_hold_their_character(text: str, lowercase: bool) -> None:
    normal = normalize_with_spans(text, lowercase)
    assert normal.text == library_normalizer(lowercase).normalize_str(text)
    assert len(normal.spans) == len(normal.text)
    for char, (start, end) in zip(normal.text, normal.spans, strict=True):
        part = "".join(c.lower() for c in text[start:end]) if lowercase else text[start:end]
        assert any(map(is_blank, part)) if char == " " else char in unicodedata.normalize("NFC", part)
    starts = [start for start, _ in normal.spans]
    assert starts == sorted(starts)
    covered = {i for start, end in normal.spans for i in range(start, end)}
    assert all(is_blank(text[i]) for i in set(range(len(text))) - covered)


@settings(max_examples=60)
@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalize_with_spans(text).text
    assert normalize_with_spans(once).text == once
    library = library_normalizer(lowercase=False)
    assert library.normalize_str(library.normalize_str(text)) == library.normalize_str(text)


def test_the_joining_starters_are_those_of_the_unicode_tables() -> None:
    """Every character of combining class 0 that composes with the one before it, worked out from the tables here."""
    found = set()
    for code in [*range(0xD800), *range(0xE000, 0x1_2000)]:
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            if unicodedata.combining(second) == 0 and unicodedata.normalize("NFC", first + second) == chr(code):
                found.add(second)
    found |= {chr(i) for i in [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]}
    assert found <= _JOINING_STARTERS
    said = r"^text must be Unicode text: got the lone surrogate U\+D800 at character 2$"
    fails(TokenizerError, said, require_unicode, "ab\ud800c")
    fails(TokenizerError, r"^text must be a string: got bytes$", require_unicode, b"ab")
