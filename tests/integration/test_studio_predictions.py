"""Studio's screens of predictions, and Compare, in a real browser: what they show is what Python computes."""

import re
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import UsageError
from atento.metrics.bleu import chrf
from atento_serve.settings import Limits, ModelSettings
from atento_serve.studio.screen_table import answer
from atento_serve.studio.screens.compare import apart, why_not_two
from atento_serve.studio.shelf import Shelf
from http_service import Served
from studio_page import TEXT, StudioPage

SCREENS: dict[str, dict[str, Any]] = {"next": {"model": "lm"}, "translate": {"model": "en-pt"}}
SCREENS |= {"beam": {"model": "en-pt"}, "fill": {"model": "encoder"}, "labels": {"model": "encoder"}}
SCREENS |= {"answer": {"model": "encoder", "question": "Who sees the house?"}}
SCREENS |= {"why": {"model": "encoder", "method": "leave-out"}}


def shown(page: StudioPage, at: int = 0) -> list[list[str]]:
    """The cells of a folded table of the screen."""
    return page.cells(page.unfolded(at).locator("tbody tr"))


def test_a_screen_is_shown_without_complaint_and_saved(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio)
    for number, (screen, state) in enumerate(SCREENS.items()):
        seen.go(screen, **state)
        assert seen.problem == "" and shown(seen) and seen.complaints == [], screen
        kind = ("SVG", "JSON")[number % 2]
        seen.page.locator(".save summary").click()
        with seen.page.expect_download() as file:
            seen.page.locator(".save .menu button", has_text=kind).click()
        assert file.value.path().stat().st_size > 100, (screen, kind)


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_and_a_narrow_page_does_not_scroll_sideways(browser: Any, studio: Served, theme: str) -> None:
    seen = StudioPage(browser, studio, width=360, bypass_csp=True)
    for screen, state in SCREENS.items():
        assert seen.go(screen, theme=theme, **state).axe() == [], screen
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360, screen


def first_logits(folder: Any) -> torch.Tensor:
    """Of what follows the text, by the network itself."""
    model: Any = atento.load(folder)
    ids = model.tokenizer.with_specials(model.tokenizer.encode(TEXT), template=model.config.get("template"))[0]
    return model.network(torch.tensor([ids])).logits[0, -1].double()


def test_the_next_token_has_the_probabilities_of_python_before_and_after_filters(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("next", model="lm", temperature=0.5, top_k=5)
    model = atento.load(studio.folders["lm"])
    logits = first_logits(studio.folders["lm"])
    first, cool = torch.softmax(logits, 0), torch.softmax(logits / 0.5, 0)
    cut = torch.where(torch.isin(torch.arange(len(cool)), cool.topk(5).indices), cool, 0.0)
    rows, order = shown(seen), first.argsort(descending=True)
    for row, token in zip(rows[:10], order.tolist(), strict=False):
        expected = [first[token], cool[token], (cut / cut.sum())[token]]
        assert np.allclose([float(cell) for cell in row[1:]], expected, atol=2e-5), row
    seen.page.locator("#draw").click()
    once = seen.wait().state["written"]
    seen.page.locator("#clear").click()
    seen.wait().page.locator("#draw").click()
    assert seen.wait().state["written"] == once != ""
    assert once == model.generate(TEXT, sample=True, temperature=0.5, top_k=5, seed=1, max_new_tokens=1)


@pytest.mark.parametrize(("screen", "options"), [("next", {}), ("search", {"beam": 2})])
@pytest.mark.parametrize("text", ["42", ""])
def test_a_text_that_is_not_searched_is_one_sentence(screen: str, options: dict[str, int], text: str) -> None:
    name = "micro-world-en-pt"
    shelf = Shelf({name: ModelSettings(name, name)}, Limits(), 1 << 20)
    with pytest.raises(UsageError, match="nothing is searched for: a text without words is its own translation"):
        answer(shelf, screen, {"model": name, "text": text, **options})


PRESSED = [("micro-world-lm", "O gato"), ("micro-world-en-pt", "The white cat sleeps.")]


@pytest.mark.parametrize(("name", "text"), PRESSED)
def test_the_likeliest_token_pressed_again_and_again_writes_what_the_model_writes(name: str, text: str) -> None:
    """With its spaces, which a token alone has lost."""
    shelf = Shelf({name: ModelSettings(name, name)}, Limits(), 1 << 20)
    found: dict[str, Any] = {"drawn": {"written": ""}, "ended": False}
    for _ in range(40):
        if found["ended"]:
            break
        written = found["drawn"]["written"]
        found, _ = answer(shelf, "next", {"model": name, "text": text, "written": written, "top_k": 1})
        assert found["ended"] or found["written"][0] == found["drawn"]["written"]
    model = shelf.model(name)
    expected = model.generate(text, greedy=True) if name == "micro-world-lm" else model.translate(text, greedy=True)
    assert found["ended"] and written.strip() == expected.strip()


def test_a_translation_lights_its_sources_and_goes_on_from_another_token(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("translate", model="en-pt")
    model = atento.load(studio.folders["en-pt"])
    output: Any = model.translate(TEXT)
    scores = model.score(TEXT, output, top=8)
    assert [row[0] for row in shown(seen)] == scores.tokens
    assert np.allclose([float(row[1]) for row in shown(seen)], scores.log_probs, atol=1e-5)
    record = model.attend(TEXT, output)
    weights = record.word_weights(len(record.layers("cross")) - 1, "mean", "cross").weights
    seen.page.locator("#output-words .word").first.hover()
    share = "all => all.map(one => Number(one.style.getPropertyValue('--share')))"
    shares = seen.page.locator("#source-words .word").evaluate_all(share)
    assert np.allclose(shares, weights[0], atol=1e-5)
    seen.page.locator("#screen aside .links button").nth(1).click()
    seen.page.wait_for_function("() => location.hash.includes('prefix=')")
    state = seen.wait().state
    assert state["target"] == model.translate(TEXT, prefix=state["prefix"])
    seen.page.locator("#reset").click()
    assert "target" not in seen.wait().state


def test_the_tree_has_the_best_outputs_and_a_reason_for_each_cut(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("beam", model="en-pt", beam=3)
    model = atento.load(studio.folders["en-pt"])
    best, _ = model.traced(TEXT, n_best=3, beam=3, length_penalty=1.0, max_new_tokens=24)
    rows = seen.cells("[aria-label='Outputs found'] tbody tr")
    assert [row[0] for row in rows] == [one.text for one in best]
    assert np.allclose([float(row[1]) for row in rows], [one.hypothesis.score for one in best], atol=1e-5)
    assert all(row[5] for row in shown(seen)) and len(shown(seen)) > 10
    wins = seen.page.locator(".beam .node.win")
    assert wins.count() == len(best[0].hypothesis.token_scores)
    assert wins.first.is_visible() and len({wins.nth(at).locator("rect").get_attribute("y") for at in range(3)}) == 1
    seen.go("beam", model="en-pt", beam=99)
    assert "`beam` must lie between 1 and 16" in seen.problem


def test_masks_labels_answers_and_explanations_are_those_of_python(browser: Any, studio: Served) -> None:
    model = atento.load(studio.folders["encoder"])
    seen = StudioPage(browser, studio).go("fill", model="encoder")
    seen.page.locator("#fill-words .word", has_text="old").click()
    assert seen.wait().state["masked"] == "1,4"
    expected: Any = model.fill("The <mask> sees the <mask> house.", top=8)
    assert [row[2] for row in shown(seen)] == [one.text for one in expected]
    assert np.allclose([float(row[1]) for row in shown(seen)], [one.probability for one in expected], atol=1e-5)
    seen.go("labels", model="encoder")
    tagged: Any = model.tag_words(TEXT)
    assert [row[:4] for row in shown(seen)] == [[one.text, one.label, str(one.start), str(one.end)] for one in tagged]
    question = "Who sees the house?"
    seen.go("answer", model="encoder", question=question)
    answers: Any = model.answer(question, TEXT, n_best=5)
    assert [row[:3] for row in shown(seen)] == [[one.text, str(one.start), str(one.end)] for one in answers]
    assert seen.text("#context mark") == answers[0].text
    for method in ("integrated-gradients", "leave-out"):
        seen.go("why", model="encoder", method=method)
        why = model.explain(TEXT, method)
        assert seen.problem == ""
        assert [row[0] for row in shown(seen)] == why.words
        assert np.allclose([float(row[1]) for row in shown(seen)], why.scores, atol=1e-5)


def test_what_a_text_says_is_no_markup_and_a_screen_that_cannot_be_fed_says_why(browser: Any, studio: Served) -> None:
    hostile = '<img src=x onerror="document.title=1"> <b>cat</b>'
    seen = StudioPage(browser, studio)
    for screen, state in SCREENS.items():
        seen.go(screen, **{**state, "text": hostile, "question": hostile})
        assert seen.page.locator("#screen img, #screen b").count() == 0 and "Studio" in seen.page.title(), screen
    for screen, model, words in (
        ("fill", "lm", "predicts no masked tokens"),
        ("translate", "lm", "reads no source"),
        ("next", "encoder", "writes no text"),
        ("labels", "en-pt", "gives no labels"),
    ):
        assert words in seen.go(screen, model=model).problem


TWO = {"model": "lm", "b": "llama"}


def said(seen: StudioPage) -> list[float]:
    """The numbers with decimals of the sentence above the comparison."""
    return [float(one) for one in re.findall(r"\d+\.\d+", seen.text("#said"))]


def test_the_next_tokens_of_two_models_and_their_divergence(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("compare", **TWO, way="next")
    a, b = (torch.softmax(first_logits(studio.folders[name]), 0).detach().numpy() for name in TWO.values())
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
