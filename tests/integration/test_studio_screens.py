"""Heads, Inside a head, Masks and Positions: the numbers on the page are those of the Python API."""

from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.attention import masks
from atento.attention.entmax import entmax
from atento.attention.positions import ALiBi, Rotary, Sinusoidal
from atento.inspection.ablation import attentions
from atento_serve.settings import Limits, ModelSettings
from atento_serve.studio.screen_table import answer
from atento_serve.studio.shelf import Shelf
from http_service import Served
from studio_page import TEXT, StudioPage

PLACES = [("llama", "decoder", 1), ("t5", "decoder", 0), ("entmax", "decoder", 1), ("en-pt", "cross", 0)]


@pytest.mark.parametrize(("model", "kind", "layer"), [*PLACES, ("encoder", "encoder", 0)])
def test_inside_a_head_ends_in_weights_and_output(
    browser: Any, studio: Served, model: str, kind: str, layer: int
) -> None:
    query, head, side = 2, 1, "output" if kind == "cross" else "source"
    state = {"model": model, "kind": kind, "layer": layer, "head": head, "pin": f"{side}-{query}"}
    target = {"target": "o gato"} if kind == "cross" else {}
    seen = StudioPage(browser, studio).go("inside", **state, **target)
    assert seen.problem == "" and seen.complaints == []
    loaded = atento.load(studio.folders[model])
    attention, outputs = attentions(loaded.network)[kind, layer], list[torch.Tensor]()
    hook = attention.output.register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0]))
    record = loaded.attend(TEXT, target.get("target"))
    hook.remove()
    rows = seen.cells("#screen .scroll tr")
    weights = np.array([float(row[-1]) for row in rows[1:]])
    assert np.abs(weights - record.weights(layer, head, kind)[query]).max() < 1e-5
    scores = np.array([float(row[-3]) for row in rows[1:]])
    closed = np.array([row[-2] == "closed" for row in rows[1:]])
    if model != "entmax":
        powers = np.where(closed, 0.0, np.exp(scores - scores[~closed].max()))
        assert np.abs(powers / powers.sum() - weights).max() < 1e-5
    labels, _, vectors = seen.table(0)
    product = vectors[labels.index("product")]
    texts = [seen.page.locator(f".sum [data-name={one}]").text_content() for one in ("product", "content", "scale")]
    summed, content, scale = map(float, texts)
    assert abs(product.sum() - summed) < 1e-4 and abs(summed * scale - content) < 1e-4
    labels, _, vectors = seen.table(1)
    expected = outputs[-1][0, query].unflatten(-1, (-1, attention.d_head))[head]
    assert np.abs(vectors[labels.index("output")] - expected.numpy()).max() < 1e-5


def test_a_key_is_chosen_and_one_that_is_closed_says_so(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("inside", model="lm", pin="source-1")
    seen.page.select_option("#key", "4")
    assert "may not read" in str(seen.wait().page.locator("#caption").text_content())
    assert seen.go("inside", model="lm", key=99).problem == "`key` must be from 0 to 22: got 99"
    assert seen.go("inside", model="lm", pin="source-99").problem == "`query` must be from 0 to 22: got 99"
    assert seen.go("inside", model="rnn").problem.startswith("Its attention compares states of recurrent layers")


def shown_mask(seen: StudioPage) -> np.ndarray:
    text = str(seen.unfolded(holds="pre").locator("pre").text_content())
    return np.array([line.split() for line in text.splitlines()]) == "1"


def test_masks_are_those_of_the_library_and_of_the_stack(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("masks", mask="causal() & window(3, 0) | prefix(2)", queries=9, keys=12)
    expected = (masks.causal() & masks.window(3, 0) | masks.prefix(2)).dense(9, 12)[0, 0].numpy()
    assert np.array_equal(shown_mask(seen), expected)
    seen.go("masks", mask="causal()", queries=6)
    seen.page.select_option("#part", "window(2, 0)")
    seen.page.get_by_role("button", name="and", exact=True).click()
    assert seen.wait().state["mask"] == "(causal()) & window(2, 0)"
    assert np.array_equal(shown_mask(seen), (masks.causal() & masks.window(2, 0)).dense(6)[0, 0].numpy())
    assert seen.text("#mask-code") == "(causal()) & window(2, 0)"
    seen = StudioPage(browser, studio).go("masks", model="en-pt", queries=7, **{"from": "decoder"})
    network = atento.load(studio.folders["en-pt"]).network
    assert np.array_equal(shown_mask(seen), network.decoder.masks[0].dense(7)[0, 0].numpy())
    said = "this model has no masks of kind 'encoder': it has decoder"
    assert seen.go("masks", model="lm", **{"from": "encoder"}).problem == said
    assert seen.go("masks", mask="causal(").problem.startswith("this is no code of a mask: 'causal('")
    assert seen.go("masks", queries=500).problem == "`queries` must be from 1 to 128: got 500"
    assert seen.go("masks", mask="documents([0, 1])").problem.startswith("the mask does not fit these lengths")


def test_cells_are_painted_by_mouse_and_by_keys(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("masks", queries=6)
    canvas = seen.page.locator("#mask-canvas")
    side = canvas.evaluate("canvas => studio.screen.side")
    canvas.click(position={"x": 22 + 3.5 * side, "y": 22 + 0.5 * side})
    assert seen.wait().state["paint"] == "0.3"
    seen.page.locator(".maskbox").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft", "Space"):  # from (0, 3) to (2, 1)
        seen.page.keyboard.press(key)
    assert seen.wait().state["paint"] == "0.3,2.1"
    expected = masks.causal().dense(6)[0, 0].clone()
    expected[0, 3], expected[2, 1] = True, False
    assert np.array_equal(shown_mask(seen), expected.numpy())
    code = "(causal() | allowed_pairs([(0, 3)])) & ~allowed_pairs([(2, 1)])"
    assert seen.text("#mask-code") == code
    seen.page.locator("#clear").click()
    assert "paint" not in seen.wait().state


def test_positions_are_those_of_the_models_own_module_and_of_the_library(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("positions", model="en-pt", p_length=20)
    _, _, matrix = seen.table(0)
    network = atento.load(studio.folders["en-pt"]).network
    assert np.abs(matrix - network.source_inputs.positions.schemes[0].vectors(20).numpy()).max() < 1e-5
    seen.go("positions", model="t5", p_length=20)
    _, _, curves = seen.table(1)
    (bias,) = atento.load(studio.folders["t5"]).network.stack.positions.schemes
    assert np.abs(curves.T - bias.at(torch.arange(-19, 20)).detach().numpy()).max() < 1e-5
    seen.go("positions", model="llama", p_length=20)
    _, _, matrix = seen.table(0)
    (rotary,) = atento.load(studio.folders["llama"]).network.stack.positions.schemes
    assert np.abs(matrix - rotary.at(torch.arange(20)).cos.numpy()).max() < 1e-5
    seen = StudioPage(browser, studio).go("positions", scheme="sinusoidal", p_length=12, p_width=8, p_base=100)
    assert np.abs(seen.table(0)[2] - Sinusoidal(8, 100.0).vectors(12).numpy()).max() < 1e-5
    seen.go("positions", scheme="rotary", p_length=12, p_width=8)
    ones = Rotary(8)(torch.ones(1, 1, 12, 8))[0, 0]
    assert np.abs(seen.table(1)[2][:, 0] - (ones @ ones[0] / 8).numpy()).max() < 1e-5
    seen.go("positions", scheme="alibi", p_length=12, p_heads=4)
    assert np.abs(seen.table(1)[2].T - ALiBi(4).at(torch.arange(-11, 12)).numpy()).max() < 1e-5
    assert seen.go("positions", scheme="7").problem.startswith("`scheme` must be one of 0")
    too_long = seen.go("positions", scheme="sinusoidal", p_length=9999).problem
    assert too_long == "`length` must be from 2 to 512: got 9999"
    assert seen.complaints == [one for one in seen.complaints if "422" in one]


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
