"""Heads and Inside a head, in depth: badges of all heads, rollout, a head switched off, weights by other sliders."""

from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.attention.entmax import entmax
from atento.inspection.ablation import attentions
from atento_serve.settings import Limits, ModelSettings
from atento_serve.studio.screen_table import answer
from atento_serve.studio.shelf import Shelf
from http_service import Served
from studio_page import TEXT, StudioPage


def test_heads_are_sorted_by_a_badge_that_is_python_s(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio)
    reports = atento.load(studio.folders["llama"]).attend(TEXT).report()
    for badge in ("entropy", "distance", "own", "first", "previous", "special", "induction"):
        seen.go("heads", model="llama", view="overview", badge=badge)
        shown = seen.page.locator(".thumbs .badge")
        found = shown.evaluate_all("all => all.map(one => [one.dataset.head, Number(one.textContent)])")
        expected = {f"{one.layer}.{one.head}": getattr(one, badge) for one in reports}
        assert len(found) == 4 and all(abs(value - expected[name]) < 1e-5 for name, value in found), badge
        assert [value for _, value in found] == sorted((value for _, value in found), reverse=True), badge
    seen.page.locator(".thumb").first.click()  # of the badge that was last
    state = seen.wait().state
    assert f"{state.get('layer', 0)}.{state['head']}" == found[0][0]


def test_rollout_is_the_product_of_layers_and_what_cannot_be_switched_off_says_so(browser: Any, studio: Served) -> None:
    record = atento.load(studio.folders["llama"]).attend(TEXT)
    seen = StudioPage(browser, studio).go("heads", model="llama", head="rollout", layer=1)
    joint = np.eye(len(record.tokens))
    for layer in (0, 1):
        joint = (record.weights(layer, "mean").astype(float) + np.eye(len(joint))) / 2 @ joint
    assert np.abs(seen.table()[2] - joint).max() < 1e-5
    assert "rollout up to layer 1" in seen.text("#caption")
    seen.go("heads", model="en-pt", kind="cross", head="rollout")
    assert "read alone" in seen.problem
    assert seen.go("heads", model="llama", head="rollout", layer=9).problem.startswith("`layer` must be from 0 to 1")
    seen = StudioPage(browser, studio).go("heads", model="rnn", head=0, ablate=1)
    assert seen.problem == "" and "no head 0 in cross attention" in seen.text(".ablation")
    fields = {"model": "lm", "text": TEXT, "kind": "decoder", "layer": 0}
    assert studio.post("/studio/api/ablated", fields | {"head": "mean"}).status_code == 422
    assert studio.post("/studio/api/ablated", fields | {"head": 99}).status_code == 422


@pytest.mark.parametrize(("name", "kind", "written"), [("lm", "decoder", None), ("en-pt", "cross", "o gato")])
def test_a_head_switched_off_changes_it(
    browser: Any, studio: Served, name: str, kind: str, written: str | None
) -> None:
    target = {} if written is None else {"target": written}
    seen = StudioPage(browser, studio).go("heads", model=name, kind=kind, head=1, **target)
    seen.page.locator("#ablate").click()
    cells = seen.wait().page.locator(".ablation tbody tr td").all_text_contents()
    model: Any = atento.load(studio.folders[name])
    source, text = ("", TEXT) if written is None else (TEXT, written)
    before = model.score(source, text).total
    attention = next(module for path, module in model.network.named_modules() if getattr(module, "kind", None) == kind)
    with torch.no_grad():  # without the columns that mix the head in, its output is as good as zero
        attention.output.weight[:, attention.d_head :] = 0
    after = model.score(source, text).total
    assert before != after
    assert np.allclose([float(cell) for cell in cells], [before, after, after - before], atol=1e-4)
    assert seen.state["ablate"] == "1" and seen.complaints == []


def test_a_classifier_without_a_head_has_other_probabilities() -> None:
    name = "micro-world-tense"
    shelf = Shelf({name: ModelSettings(name, name)}, Limits(), 1 << 20)
    found, _ = answer(shelf, "ablated", {"model": name, "text": TEXT, "kind": "encoder", "layer": 1, "head": 2})
    model: Any = atento.load(name)
    before = {one.name: one.probability for one in model.classifications([TEXT])[0]}
    attention = attentions(model.network)["encoder", 1]
    with torch.no_grad():
        attention.output.weight[:, 2 * attention.d_head : 3 * attention.d_head] = 0
    after = {one.name: one.probability for one in model.classifications([TEXT])[0]}
    assert before != after
    for label, first, second in found["rows"]:
        assert (first, second) == (pytest.approx(before[label], abs=1e-6), pytest.approx(after[label], abs=1e-6))


def test_other_weights_by_temperature_and_entmax(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("inside", model="lm", pin="source-6", head=1, softness=0.5, alpha=1.5)
    rows = seen.cells("#screen .scroll tbody tr")
    scores = torch.tensor([float(row[-4]) if row[-3] == "open" else -torch.inf for row in rows], dtype=torch.float64)
    expected = entmax(scores / 0.5, 1.5)
    assert np.allclose([float(row[-2]) for row in rows], expected, atol=1e-5)
    assert (expected == 0).sum() > (scores == -torch.inf).sum()  # entmax leaves some out
    seen.page.locator("#screen .drop summary").click()
    seen.page.locator("#alpha").fill("1")
    assert "alpha" not in seen.wait().state
    assert seen.go("inside", model="lm", alpha=9).problem.startswith("`temperature` must be from 0.05 to 20")
    source = seen.go("inside", model="lm").page.locator(".source").first
    source.locator("summary").click()
    assert "def split" in str(source.locator("pre").text_content()) and "multihead.py" in str(source.text_content())
