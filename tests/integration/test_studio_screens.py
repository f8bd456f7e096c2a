"""Inside a head, Masks and Positions: the numbers on the page are those of the Python API."""

from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.attention import masks
from atento.attention.positions import ALiBi, Rotary, Sinusoidal
from atento.inspection.ablation import attentions
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
