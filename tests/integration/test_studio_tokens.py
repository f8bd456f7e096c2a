"""The screen Tokens in a real browser: what it shows is what the tokenizers give; one trained there joins them."""

import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, train_tokenizer, word_spans
from atento.text.kinds import KINDS
from atento_serve.http.errors import ServiceError
from atento_serve.settings import Limits, ModelSettings
from atento_serve.studio.screen_table import answer
from atento_serve.studio.shelf import MOST_TOKENIZERS, Shelf
from failing import fails
from http_service import SOURCES, Served, random_model, served, tokenizer
from studio_page import StudioPage
from test_studio import HOSTILE, children

TEXT = "The cat na\u0303o sees  Zoe\u0308 🙂."
SIZES = {"wordpiece": 200, "byte": 300}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Studio over a folder that has a tokenizer alone, another one, and a model."""
    folder = tmp_path_factory.mktemp("pieces")
    for kind, size in SIZES.items():
        train_tokenizer(TokenizerConfig(cast(Any, kind), vocab_size=size), SOURCES).save(folder / kind)
    random_model(tokenizer(), "language-modeling", "bos", architecture="decoder").save(folder / "lm")
    names = [*SIZES, "lm"]
    with served([str(folder / name) for name in names], command="studio") as running:
        running.folders = {name: folder / name for name in names}
        yield running


def column(seen: StudioPage, name: str) -> dict[str, Any]:
    """What a column shows: its facts, whether it says that the text comes back, and its chips."""
    box = seen.page.locator(f'[data-column="{name}"]')
    told = "all => Object.fromEntries(all.map(one => [one.dataset.fact, one.textContent]))"
    chip = "[one.textContent, ...[one.title.match(/ id (\\d+) /)[1], one.dataset.start, one.dataset.end].map(Number)]"
    back, exact = box.locator(".marked"), box.locator("[data-exact]").get_attribute("data-exact")
    facts = {"chips": box.locator(".tone").evaluate_all(f"all => all.map(one => {chip})"), "exact": exact}
    facts |= {"back": back.text_content() if back.count() else None}
    return box.locator("dd").evaluate_all(told) | facts


def expected(own: Tokenizer, text: str) -> dict[str, Any]:
    """The same by the library."""
    encoded, back, unknown = own.encode_with_offsets(text), own.decode(own.encode(text)), own.specials.get("unk")
    rows = zip(encoded.tokens, encoded.ids, encoded.offsets, strict=True)
    return {
        "count": str(len(encoded.ids)),
        "fertility": f"{len(encoded.ids) / len(word_spans(text)):.4f}",
        "unknown": str(encoded.ids.count(unknown) if unknown is not None else 0),
        "chips": [[piece, number, *span] for piece, number, span in rows],
        "exact": str(back == text).lower(),
        "back": None if back == text else back,
    }


@pytest.mark.parametrize("text", [TEXT, "The cat sees the old house.", HOSTILE])
def test_the_columns_are_what_the_tokenizers_give(browser: Any, pieces: Served, text: str) -> None:
    seen = StudioPage(browser, pieces).go("tokens", text=text, model="lm")
    assert seen.problem == "" and seen.complaints == []
    for name, folder in pieces.folders.items():
        assert column(seen, name).items() >= expected(Tokenizer.load(folder), text).items(), name
    about = seen.text("#text-about")
    sizes = f"{len(text)} characters, {len(text.encode())} bytes in UTF-8, {len(word_spans(text))} words."
    assert about.startswith(sizes)
    assert ("not in NFC" in about) == (text == TEXT) and seen.page.locator("#screen img").count() == 0


def test_a_tokenizer_alone_closes_other_screens_and_its_tokens_light_up(browser: Any, pieces: Served) -> None:
    seen = StudioPage(browser, pieces).go("tokens")
    assert seen.problem == "" and seen.page.locator("#model").input_value() == "wordpiece"
    seen.page.locator("[data-screen=heads].off").wait_for()
    assert "config.json" in str(seen.page.locator("[data-screen=heads]").get_attribute("title"))
    seen.page.locator("[data-screen=heads]").click(force=True)
    assert "config.json" in seen.wait().problem and seen.go("heads", model="lm").problem == ""
    seen = StudioPage(browser, pieces).go("tokens", text=TEXT)
    seen.page.locator("[data-column=wordpiece] .tone").first.focus()
    lit = seen.page.locator("[data-column=byte] .pointed")
    assert lit.all_text_contents() == ["<0x54>", "<0x68>", "<0x65>"]
    assert "characters 0 to 3: “The” · bytes 54 68 65" in seen.text("#token-tip")
    seen.page.keyboard.press("ArrowRight")
    assert "“c”" in seen.text("#token-tip")
    seen.page.evaluate("document.activeElement.blur()")
    assert lit.count() == 0


def test_the_merges_of_a_word_are_replayed_in_their_order(browser: Any, pieces: Served) -> None:
    seen = StudioPage(browser, pieces).go("tokens", word="sees")
    own = Tokenizer.load(pieces.folders["lm"])
    merges = [tuple(pair) for pair in json.loads(own.definition)["model"]["merges"]]
    parts, frames = ["▁", *"sees"], [["▁", *"sees"]]
    while pairs := [pair for pair in pairwise(parts) if pair in merges]:  # the plain algorithm
        at = list(pairwise(parts)).index(min(pairs, key=merges.index))
        parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]
        frames.append(parts)
    steps = seen.page.locator(".steps li")
    texts = "all => all.map(one => [...one.querySelectorAll('span')].map(chip => chip.textContent))"
    assert steps.evaluate_all(texts) == frames
    assert len(frames) > 2 and frames[-1] == own.tokens(own.encode("sees"))
    seen.page.locator("#merge").fill("0")
    assert steps.count() == 1
    seen.page.evaluate("document.activeElement.blur()")
    seen.page.keyboard.press(" ")
    seen.page.wait_for_function(f"() => document.querySelectorAll('.steps li').length === {len(frames)}")
    assert seen.page.locator("#play").get_attribute("aria-pressed") == "false"


TRAINED = [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in ("bpe", "word"))) for kind in KINDS]


@pytest.mark.parametrize("kind", TRAINED)
def test_one_that_is_trained_there_joins_the_columns(browser: Any, pieces: Served, kind: str) -> None:
    seen = StudioPage(browser, pieces).go("tokens", text=TEXT, model="lm")
    page = seen.page
    page.locator("#training-text").fill("\n".join(SOURCES))
    page.select_option("#screen #kind", kind)
    page.locator("#screen input[type=number]").fill("320")
    page.locator("#train").click()
    page.locator('[data-column^="1: "]').wait_for()
    name = str(page.locator(".columns h2 span").last.text_content())
    own = train_tokenizer(TokenizerConfig(cast(Any, kind), vocab_size=320), SOURCES)
    assert column(seen.wait(), name).items() >= expected(own, TEXT).items()
    assert f"{own.vocab_size} pieces." in str(page.locator("#outcome").text_content())
    page.reload()
    assert column(seen.wait(), name)["count"] == expected(own, TEXT)["count"]
    page.get_by_role("button", name="Remove").click()
    page.locator('[data-column^="1: "]').wait_for(state="detached")
    assert seen.complaints == []


def test_what_cannot_be_trained_is_one_sentence(browser: Any, pieces: Served) -> None:
    seen = StudioPage(browser, pieces).go("tokens")
    for text, size, said in (
        ("", "300", "the text to train the tokenizer on is empty: it holds no word"),
        (" \n\t\n", "300", "the text to train the tokenizer on is empty: it holds no word"),
        ("a b", "0", "`vocab_size` must lie between 1 and 8,000: got 0"),
        ("a b", "99999", "`vocab_size` must lie between 1 and 8,000: got 99999"),
        ("a " * 60_000, "300", "a text to train on must have at most 100,000 characters: got 120,000"),
        (HOSTILE, "5", "the vocabulary has 285 pieces, 5 were requested"),
    ):
        seen.page.locator("#training-text").fill(text)
        seen.page.locator("#screen input[type=number]").fill(size)
        seen.page.locator("#train").click()
        seen.page.wait_for_function("said => document.querySelector('#outcome').textContent.includes(said)", arg=said)
    assert seen.page.locator("#screen img").count() == 0
    for fields in ({"kind": "words"}, {"vocab_size": "7"}, {"more": 1}):
        refused = pieces.post("/studio/api/train_tokenizer", {"text": "a", "kind": "word", "vocab_size": 9} | fields)
        assert refused.status_code in (400, 422) and "\n" not in refused.json()["error"]["message"], fields
    (number,) = children(pieces)
    os.kill(number, signal.SIGKILL)  # the trained ones go with it
    seen.go("models", model="lm")
    seen.go("tokens").page.locator(".columns .flag", has_text="train it again").wait_for()


def test_the_shelf_keeps_a_few_and_reads_what_it_was_given(tmp_path: Path) -> None:
    shelf = Shelf({"none": ModelSettings("none", str(tmp_path))}, Limits(input_tokens=4), 1)
    asked = [{"text": f"word{n}", "kind": "word", "vocab_size": 9} for n in range(MOST_TOKENIZERS + 1)]
    keys = [answer(shelf, "train_tokenizer", one)[0]["key"] for one in asked]
    shown = answer(shelf, "tokens", {"text": "word8", "names": ["none"], "trained": keys[1:]})[0]["columns"]
    assert "no tokenizer in" in shown[0]["error"] and [one["tokens"][0][0] for one in shown[1:]][-1] == "word8"
    gone = answer(shelf, "tokens", {"text": "a", "names": ["../x"], "trained": keys[:1]})[0]["columns"]
    assert "there is no model '../x'" in gone[0]["error"] and "train it again" in gone[1]["error"]
    for fields, said in (
        ({"text": "a" * 33, "names": [], "trained": []}, "at most 32 characters here: got 33"),
        ({"text": "a", "names": ["none"] * 9, "trained": []}, "between 0 and 8"),
    ):
        fails(ServiceError, said, answer, shelf, "tokens", fields)
    broken = answer(shelf, "tokens", {"text": "a\ud800", "names": [], "trained": keys[1:2]})[0]["columns"]
    assert "lone surrogate U+D800" in broken[0]["error"]
    fails(ServiceError, "at most 128 characters", answer, shelf, "merges", {"word": "a" * 129, "trained": keys[-1]})
