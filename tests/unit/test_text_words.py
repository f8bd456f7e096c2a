"""Words, labels carried between words and tokens, and the spaces of a detokenised line (spec row D4)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import DataError
from atento.text import align_words, merge_labels, spread_labels, word_spans
from atento.text.kinds import detokenize, is_blank
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
    with pytest.raises(DataError, match=r"^every word must have a label: token 1 is of word 3, got 1 labels$"):
        spread_labels(["O"], [0, 3])
    fails(DataError, r"^every token must have a label: got 1 labels for 2 tokens$", merge_labels, ["O"], [0, 1], 2)


@given(st.text())
def test_words_cover_all_but_the_blanks(text: str) -> None:
    spans = word_spans(text)
    assert all(start < end for start, end in spans) and all(a[1] <= b[0] for a, b in pairwise(spans))
    assert "".join(text[s:e] for s, e in spans) == "".join(char for char in text if not is_blank(char))
