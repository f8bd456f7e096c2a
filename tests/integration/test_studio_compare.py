"""Compare in a real browser: what two models say is what Python says, and the difference is that of their numbers."""

import re
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.metrics.bleu import chrf
from atento_serve.studio.screens.compare import apart, why_not_two
from http_service import Served
from studio_page import TEXT, StudioPage
from test_studio_predictions import shown

TWO = {"model": "lm", "b": "llama"}


def first_shares(folder: Any) -> np.ndarray:
    """The distribution after the text, by the network itself."""
    model: Any = atento.load(folder)
    ids = model.tokenizer.with_specials(model.tokenizer.encode(TEXT), template=model.config.get("template"))[0]
    return np.asarray(torch.softmax(model.network(torch.tensor([ids])).logits[0, -1].double(), 0))


def said(seen: StudioPage) -> list[float]:
    """The numbers with decimals of the sentence above the comparison."""
    return [float(one) for one in re.findall(r"\d+\.\d+", seen.text("#said"))]


def test_the_next_tokens_of_two_models_and_their_divergence(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("compare", **TWO, way="next")
    a, b = (first_shares(studio.folders[name]) for name in TWO.values())
    tokens = atento.load(studio.folders["lm"]).tokenizer.tokens(range(len(a)))  # type: ignore[union-attr]
    rows = shown(seen)
    assert len(rows) == 24 and max(a.max(), b.max()) == pytest.approx(max(map(float, rows[0][1:3])), abs=1e-5)
    for name, *cells in rows:
        at = tokens.index(name)
        assert np.allclose([float(cell) for cell in cells], [a[at], b[at], a[at] - b[at]], atol=1e-5)
    expected = [np.abs(a - b).sum() / 2, (a * np.log(a / b)).sum(), (b * np.log(b / a)).sum()]
    assert np.allclose(said(seen), expected, atol=1e-5)


def test_outputs_part_where_their_words_do_and_texts_are_sorted_by_disagreement(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("compare", **TWO, way="output")
    models = [atento.load(studio.folders[name]) for name in TWO.values()]
    a, b = (str(model.generate(TEXT)) for model in models)
    assert [row[1:3] for row in shown(seen)] == [[a, b]] and a != b
    marked = seen.text("#compared [data-side=A] mark")
    assert a.endswith(str(marked)) and not b.endswith(str(marked))
    texts = [TEXT, "Ana reads.", "The dog that sleeps is small."]
    seen.page.locator("#compare-texts").fill("\n".join(texts))
    seen.page.locator("#sort").click()
    lines = seen.page.locator("#disagreements tbody tr")
    lines.first.wait_for()
    found = seen.cells(lines)
    pairs = {text: tuple(str(model.generate(text)) for model in models) for text in texts}
    expected = {text: 1 - chrf([two[1]], [two[0]]).value / 100 for text, two in pairs.items()}
    assert [row[0] for row in found] == sorted(texts, key=lambda text: -expected[text])
    assert all(abs(float(row[1]) - expected[row[0]]) < 1e-5 and tuple(row[2:]) == pairs[row[0]] for row in found)
    seen.page.get_by_role("button", name="Ana reads.").click()
    assert seen.wait().state["text"] == "Ana reads."


@pytest.mark.parametrize("head", ["mean", "1"])
def test_the_difference_of_attention_is_that_of_both_records(browser: Any, studio: Served, head: str) -> None:
    seen = StudioPage(browser, studio).go("compare", **TWO, way="attention", head=head)
    number: Any = "mean" if head == "mean" else 1
    a, b = (atento.load(studio.folders[name]).attend(TEXT).weights(0, number) for name in TWO.values())
    _, _, numbers = seen.table()
    assert np.abs(numbers - (a - b)).max() < 1e-5
    assert np.allclose(said(seen), [np.abs(a - b).mean(), np.abs(a - b).max()], atol=1e-5)
    seen.go("compare", **TWO, way="attention", layer=1)
    assert "`layer` must be from 0 to 0" in seen.text("#said")


def test_a_model_agrees_with_itself(browser: Any, studio: Served) -> None:
    model: Any = atento.load(studio.folders["encoder"])
    seen = StudioPage(browser, studio)
    for way in ("labels", "tags", "fill", "similarity"):
        second = {"second": "Ana buys two books."} if way in ("labels", "similarity") else {}
        seen.go("compare", model="encoder", b="encoder", way=way, **second)
        assert seen.problem == "" and " 0" in seen.text("#said"), way
        rows = shown(seen)
        assert all(row[1] == row[2] for row in rows)
        if way == "tags":
            assert [row[1] for row in rows] == [one.label for one in model.tag_words(TEXT)]
        if way == "fill":
            best = model.fill("The <mask> sees the old house.", top=1)[0]
            assert rows[0][0] == best.token and float(rows[0][1]) == pytest.approx(best.probability, abs=1e-5)
        if way == "similarity":
            assert float(rows[0][1]) == pytest.approx(model.similarity(TEXT, second["second"]), abs=1e-5)
    assert seen.complaints == []


def test_what_is_not_shared_says_so(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("compare", model="lm")
    seen.page.get_by_role("button", name="with llama").click()
    assert seen.wait().state["b"] == "llama"
    labels = seen.page.locator("[data-way=labels]")
    assert labels.get_attribute("aria-disabled") == "true" and "same labels" in str(labels.get_attribute("title"))
    model, bare = (atento.load(studio.folders["lm"]) for _ in range(2))
    bare.tokenizer = None
    reason = why_not_two(model, bare)
    assert reason is not None and reason.code == "nothing_shared" and why_not_two(model, model) is None
    assert seen.go("compare", model="lm", b="none").problem.startswith("there is no model 'none'")
    answer = studio.post("/studio/api/compared", {"model": "lm", "b": "llama", "view": "attic", "text": TEXT})
    assert answer.status_code == 422 and "`view` must be one of labels" in answer.json()["error"]["message"]
    fields = {"model": "lm", "b": "llama", "view": "output", "text": TEXT}
    assert studio.post("/studio/api/disagreements", fields | {"texts": []}).status_code == 422
    assert studio.post("/studio/api/compared", fields | {"view": "tags"}).status_code == 422
    other = {"model": "en-pt", "b": "lm", "text": TEXT, "target": "a", "kind": "decoder", "layer": 0, "head": 0}
    assert studio.post("/studio/api/difference", other).status_code == 422  # they read different tokens


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ({"x": 0.75, "y": 0.25}, {"x": 0.5, "y": 0.5}, 0.25),
        ({"x": 1.0}, {"y": 1.0}, 1.0),
        ([("a", "O"), ("b", "B-PER")], [("a", "O"), ("b", "O")], 0.5),
        ("o gato", "o gato", 0.0),
        (0.5, -0.5, 0.5),
    ],
)
def test_how_far_apart_two_answers_are(a: Any, b: Any, distance: float) -> None:
    assert apart(a, b) == apart(b, a) == distance
