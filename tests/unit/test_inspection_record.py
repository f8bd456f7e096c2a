"""The attention record: what it refuses, what it hands out, how words are merged and aligned, what each head does."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import AtentoError, MissingPartError, UsageError
from atento.inspection import AttentionRecord, alignment_error_rate
from atento.inspection.token_display import display_width, shorten, visible, word_label
from atento.inspection.word_groups import merge_words, word_groups
from failing import fails


def rows_of_one(heads: int, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(columns), size=(heads, rows)).astype(np.float32)


def translation(**changes: Any) -> AttentionRecord:
    """ "o gato" -> "the cat", two layers of three heads; the cross-attention of layer 1, head 0 is by hand."""
    crossed = [rows_of_one(3, 3, 4, seed) for seed in (1, 2)]
    crossed[1][0] = [[0.1, 0.2, 0.5, 0.2], [0.6, 0.1, 0.1, 0.2], [0.0, 0.0, 0.0, 1.0]]
    given_fields: dict[str, Any] = {
        "tokens": ["<s>", "the", "cat"],
        "words": [-1, 0, 1],
        "output_tokens": ["the", "cat", "</s>"],
        "output_words": [0, 1, -1],
        "source_tokens": ["▁o", "▁ga", "to", "</s>"],
        "source_words": [0, 1, 1, -1],
        "kinds": {
            "encoder": [rows_of_one(3, 4, 4, seed) for seed in (3, 4)],
            "decoder": [rows_of_one(3, 3, 3, seed) for seed in (5, 6)],
            "cross": crossed,
        },
        "masks": {"decoder": "causal"},
        "title": "o gato",
    }
    return AttentionRecord(**(given_fields | changes))


def test_a9_a11_all_three_uses_are_read_and_the_cross_attention_of_a_pair_first() -> None:
    record = translation()
    for kind, shape in (("encoder", (4, 4)), ("decoder", (3, 3)), ("cross", (3, 4))):
        for layer in (0, 1):
            for head in range(3):
                weights = record.weights(layer, head, kind)
                assert weights.shape == shape and weights.dtype == np.float32
                np.testing.assert_array_equal(weights, record.kinds[kind][layer][head])
                np.testing.assert_array_equal(weights, record.weights(layer - 2, head - 3, kind))
    heads = record.kinds["cross"][1].astype(np.float64)
    np.testing.assert_allclose(record.weights(1, "mean"), heads.mean(axis=0), atol=1e-7)
    np.testing.assert_array_equal(record.weights(1, "max"), record.kinds["cross"][1].max(axis=0))
    np.testing.assert_array_equal(record.weights(1, 0), record.weights(1, 0, "cross"))
    assert record.weights(1, 0).shape == (len(record.tokens), len(record.source_tokens))
    layer = rows_of_one(2, 3, 3)  # a record of one kind shows that
    record = AttentionRecord(tokens=["a", "b", "c"], kinds={"encoder": [layer]})
    np.testing.assert_array_equal(record.weights(0, 1), layer[1])
    assert record.default_kind == "encoder"


def test_what_is_not_there_and_a_record_that_cannot_be_right_are_refused() -> None:
    for arguments, message in (
        ((2, 0), r"`layer` must be from 0 to 1 \(-1 is the last\): got 2"),
        ((-3, 0), "`layer` must be from 0 to 1 .*got -3"),
        ((0, 3), r"`head` must be from 0 to 2 \(-1 is the last\) or 'mean' or 'max': got 3"),
        ((0, "median"), "`head` must be from 0 to 2 .*got 'median'"),
        ((0, True), "`head` must be .*got True"),
        ((0.0, 0), "`layer` must be .*got 0.0"),
        ((0, 0, "decodr"), "no 'decodr' attention was recorded; did you mean 'decoder'?"),
    ):
        fails(UsageError, message, translation().weights, *arguments)
    for changes, message in (
        ({"kinds": {}}, "`kinds` must have at least one of encoder, decoder, cross: got none"),
        ({"kinds": {"crossed": [rows_of_one(1, 3, 4)]}}, "unknown kind of attention 'crossed'; did you mean 'cross'?"),
        ({"kinds": {"cross": []}}, r"`kinds\['cross'\]` must hold at least one layer: got none"),
        ({"kinds": {"cross": [rows_of_one(2, 4, 3)]}}, r"layer 0 must be \(heads, 3, 4\): got \(2, 4, 3\)"),
        ({"kinds": {"cross": [rows_of_one(1, 3, 4)[0]]}}, r"must be \(heads, 3, 4\): got \(3, 4\)"),
        ({"kinds": {"cross": [rows_of_one(1, 3, 4) * 3]}}, "must be weights from 0 to 1: got 0"),
        ({"kinds": {"cross": [rows_of_one(1, 3, 4) * np.nan]}}, "must be weights from 0 to 1: got nan"),
        ({"words": [0, 1]}, "`words` must have one value for each of 3 tokens: got 2"),
        ({"source_special": [True]}, "`source_special` must have one value for each of 4 source_tokens: got 1"),
        ({"output_tokens": ["the"], "output_words": [0]}, "`output_tokens` must be as many as `tokens`, 3: got 1"),
    ):
        fails(UsageError, message, translation, **changes)


def test_words_are_merged_by_hand() -> None:
    """Columns are summed, rows averaged; special tokens never merge, even with a word index."""
    merged = translation().word_weights(1, 0)
    assert [group.label for group in merged.columns] == ["o", "gato", "</s>"]
    assert [group.label for group in merged.rows] == ["the", "cat", "</s>"]
    np.testing.assert_allclose(merged.weights, [[0.1, 0.7, 0.2], [0.6, 0.2, 0.2], [0.0, 0.0, 1.0]], atol=1e-6)
    weights = np.array([[1.0, 0, 0], [0, 0.5, 0.5], [0, 1, 0]], dtype=np.float32)
    groups = word_groups(["play", "##ing", "!"], [0, 0, 1], [False] * 3)
    assert [group.label for group in groups] == ["playing", "!"]
    np.testing.assert_allclose(merge_words(weights, groups, groups), [[0.75, 0.25], [1, 0]])
    groups = word_groups(["[CLS]", "a", "b", "[SEP]"], [0, 0, 0, 0], [True, False, False, True])
    assert [(group.start, group.end, group.special) for group in groups] == [(0, 1, True), (1, 3, False), (3, 4, True)]


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=9), st.lists(st.integers(-1, 3), min_size=1, max_size=9))
def test_merging_keeps_rows_that_sum_to_one_and_loses_no_token(rows: list[int], columns: list[int]) -> None:
    sides = []
    for words in (rows, columns):
        groups = word_groups(["x"] * len(words), words, [word < 0 for word in words])
        assert [at for group in groups for at in range(group.start, group.end)] == list(range(len(words)))
        sides.append(groups)
    merged = merge_words(rows_of_one(1, len(rows), len(columns))[0], *sides)
    assert merged.shape == (len(sides[0]), len(sides[1]))
    np.testing.assert_allclose(merged.sum(axis=1), 1, atol=1e-5)


def test_b14_alignment_takes_the_strongest_word_and_its_error_rate_by_hand() -> None:
    record = translation()
    links = record.alignment(layer=1, head=0)
    # "the" reads o 0.1, gato 0.7, </s> 0.2; "cat" reads o 0.6, gato 0.2; </s> aligns to nothing
    assert [(source, target) for source, target, _ in links] == [(1, 0), (0, 1)]
    np.testing.assert_allclose([weight for *_, weight in links], [0.7, 0.6], atol=1e-6)
    assert record.alignment() == record.alignment(layer=1, head="mean")
    without = AttentionRecord(tokens=["a"], kinds={"encoder": [np.ones((1, 1, 1), np.float32)]})
    fails(UsageError, r"no 'cross' attention was recorded\.? Known: encoder", without.alignment)
    # nor does a row that reads them alone; a word index does not make them words
    cross = np.array([[[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]], dtype=np.float32)
    source: dict[str, Any] = {"source_tokens": ["a", "b", "</s>"], "source_words": [0, 1, -1]}
    assert AttentionRecord(tokens=["x", "y"], kinds={"cross": [cross]}, **source).alignment() == [(0, 1, 0.5)]
    source = {"source_tokens": ["<en>", "a"], "source_special": [True, False], "special": [False, True]}
    kinds = {"cross": [np.array([[[0.9, 0.1], [0.8, 0.2]]], dtype=np.float32)]}
    record = AttentionRecord(tokens=["x", "</s>"], kinds=kinds, **source)
    assert [(source, target) for source, target, _ in record.alignment()] == [(1, 0)]
    gold = {(0, 0), (1, 1), (2, 2)}
    assert alignment_error_rate(gold, gold) == 0 and alignment_error_rate({(9, 9)}, gold) == 1
    assert alignment_error_rate(set(), set()) == 0 and alignment_error_rate(set(), gold) == 1
    # A = 4 links, 2 of them sure, 1 more possible: 1 - (2 + 3) / (4 + 3)
    predicted = {(0, 0), (1, 1), (1, 2), (7, 7)}
    assert alignment_error_rate(predicted, gold, {(1, 2)}) == pytest.approx(1 - 5 / 7)
    assert alignment_error_rate(predicted, gold) == pytest.approx(1 - 4 / 7)


LINKS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)))


@given(LINKS, LINKS)
def test_without_possible_links_the_rate_is_one_less_f1(predicted: set[Any], gold: set[Any]) -> None:
    both = len(predicted & gold)
    if both:
        precision, recall = both / len(predicted), both / len(gold)
        assert alignment_error_rate(predicted, gold) == pytest.approx(1 - 2 * precision * recall / (precision + recall))
    else:
        assert alignment_error_rate(predicted, gold) == (1 if predicted or gold else 0)
    fails(UsageError, r"`gold` must be a set of .*pairs: got list", alignment_error_rate, {(0, 0)}, [(0, 0)])


def test_a15_what_a_head_does_by_hand_also_with_empty_rows_and_two_texts() -> None:
    previous = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=np.float32)
    kinds = {"encoder": [np.stack([previous, np.full((3, 3), 1 / 3, dtype=np.float32)])]}
    sharp, flat = AttentionRecord(tokens=["[CLS]", "a", "b"], words=[-1, 0, 1], kinds=kinds).report()
    assert (sharp.layer, sharp.head, flat.head) == (0, 0, 1)
    assert sharp.entropy == 0 and sharp.distance == pytest.approx(2 / 3) and sharp.previous == 1
    assert sharp.first == pytest.approx(2 / 3) and sharp.special == pytest.approx(2 / 3)
    assert flat.entropy == pytest.approx(math.log(3)) and flat.previous == pytest.approx(1 / 3)
    assert flat.distance == pytest.approx((1 + 2 / 3 + 1) / 3) and flat.special == pytest.approx(1 / 3)
    weights = np.array([[0, 0, 0], [0.25, 0.75, 0], [0, 0.5, 0.5]], dtype=np.float32)
    (report,) = AttentionRecord(tokens=list("abc"), kinds={"encoder": [weights[None]]}).report()
    assert report.own == pytest.approx((0.75 + 0.5) / 2) and report.previous == pytest.approx((0.25 + 0.5) / 2)
    weights[1] = 0
    (report,) = AttentionRecord(tokens=list("abc"), kinds={"encoder": [weights[None]]}).report()
    assert report.own == report.previous == 0.5
    half = np.array([[[0, 0, 0, 0], [0.5, 0.5, 0, 0], [1, 0, 0, 0]]], dtype=np.float32)
    (report,) = translation(kinds={"cross": [half]}).report("cross")
    assert report.distance is None and report.previous is None
    assert report.entropy == pytest.approx(math.log(2) / 2) and report.first == pytest.approx(0.75)
    (nothing,) = translation(kinds={"cross": [half * 0]}).report()
    assert nothing.entropy == nothing.first == 0


def test_json_reads_back_to_the_same_weights_also_with_half_a_surrogate_pair(tmp_path: Any) -> None:
    record = translation()
    record.save(tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    kinds = {kind: [np.array(layer, np.float32) for layer in layers] for kind, layers in read.pop("kinds").items()}
    again = AttentionRecord(**read, kinds=kinds)
    for kind, layers in record.kinds.items():
        for ours, theirs in zip(layers, again.kinds[kind]):
            np.testing.assert_array_equal(ours, theirs)
    assert (again.tokens, again.source_words) == (record.tokens, record.source_words)
    assert again.output_special == [False, False, True]
    record = AttentionRecord(tokens=["a\udc80"], kinds={"encoder": [np.ones((1, 1, 1), np.float32)]}, title="\ud800")
    for ending in ("html", "json", "svg"):
        record.save(tmp_path / f"r.{ending}")
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["tokens"] == ["a\udc80"]


def test_other_endings_maps_folders_and_no_matplotlib_are_said(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record = translation()
    fails(UsageError, r"must end in \.html, \.json, \.png, \.svg: got '.*r\.pdf'", record.save, tmp_path / "r.pdf")
    fails(UsageError, "`layer` must be from 0 to 1", record.save, tmp_path / "r.svg", layer=7)
    for choice in ({"layer": 0}, {"head": 1}, {"kind": "cross"}, {"words": True}):  # W16: they were not heeded
        said = f"r.json contains every kind, layer and head, token by token: `{next(iter(choice))}` is for .html, .svg"
        fails(UsageError, re.escape(said), record.save, tmp_path / "r.json", **choice)
    fails(AtentoError, r"could not write '.*r\.svg': No such file", record.save, tmp_path / "nowhere" / "r.svg")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    fails(MissingPartError, r"pip install -e '\.\[plot\]'", translation().save, tmp_path / "r.png")


def test_words_lose_their_marks_what_cannot_be_seen_is_shown_and_induction_by_hand() -> None:
    for pieces, word in (
        (["▁cora", "ção"], "coração"),
        (["cora", "##ção"], "coração"),
        (["Ġpul", "ou"], "pulou"),
        (["pul@@", "ou"], "pulou"),
        (["▁", "ção"], "ção"),
        (["▁"], "▁"),
        (["##"], "##"),
    ):
        assert word_label(pieces) == word
    assert [visible(text) for text in (" ", "\n", "", "a\tb")] == ["␣", "⏎", "∅", "a⇥b"]
    assert visible("a\x1b[31m\u202eb\x00\ufffe") == "a\ufffd[31m\ufffdb\ufffd\ufffd"
    assert visible("coração é 日本 👍") == "coração é 日本 👍"
    assert [display_width(text) for text in ("ação", "日本", "e\u0301")] == [4, 4, 1]
    assert shorten("日本語テキスト", 5) == "日本…" and shorten("gato", 4) == "gato"
    # text "a b a c": the second "a" has one earlier "a", which "b" follows; no other token has an earlier equal
    weights = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.6, 0.3, 0], [0.25] * 4], dtype=np.float32)
    found = AttentionRecord(tokens=["a", "b", "a", "c"], kinds={"decoder": [weights[None]]}).report()[0]
    assert found.induction == pytest.approx(0.6) and found.own == pytest.approx((1 + 0.5 + 0.3 + 0.25) / 4)
    other = AttentionRecord(tokens=["a", "b", "d", "c"], kinds={"decoder": [weights[None]]}).report()[0]
    assert other.induction is None
