"""Normalisation: what the rule says, and that each character knows where it came from (spec rows D4, D6)."""

import unicodedata

from hypothesis import example, given, settings
from hypothesis import strategies as st

from atento.base.errors import TokenizerError
from atento.text.encoded import _JOINING_STARTERS, normalize_with_spans
from atento.text.kinds import is_blank, library_normalizer, require_unicode
from failing import fails


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
