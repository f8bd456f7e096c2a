"""Heads, Inside a head, Masks, Positions, Tokens: what the page shows is what the Python API gives."""

import json
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import atento
from atento.attention import masks
from atento.attention.entmax import entmax
from atento.attention.positions import ALiBi, Rotary, Sinusoidal
from atento.config.recipe import TokenizerConfig
from atento.inspection.ablation import attentions
from atento.text import Tokenizer, train_tokenizer, word_spans
from atento.text.kinds import KINDS
from atento_serve.http.errors import ServiceError
from atento_serve.settings import Limits, ModelSettings
from atento_serve.studio.screen_table import answer
from atento_serve.studio.shelf import MOST_TOKENIZERS, Shelf
from failing import fails
from http_service import SOURCES, Served, random_model, served, tokenizer
from studio_page import TEXT, StudioPage
from test_studio import HOSTILE, children

PLACES = [("llama", "decoder", 1), ("t5", "decoder", 0), ("entmax", "decoder", 1), ("en-pt", "cross", 0)]


@pytest.mark.parametrize(("model", "kind", "layer"), [*PLACES, ("encoder", "encoder", 0)])
def test_a_head_ends_in_weights_and_output(browser: Any, studio: Served, model: str, kind: str, layer: int) -> None:
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
    assert seen.text("#mask-code") == "(causal() | allowed_pairs([(0, 3)])) & ~allowed_pairs([(2, 1)])"
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
def test_a_head_switched_off_matters(browser: Any, studio: Served, name: str, kind: str, written: str | None) -> None:
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


SPELLED = "The cat na\u0303o sees  Zoe\u0308 🙂."
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


@pytest.mark.parametrize("text", [SPELLED, "The cat sees the old house.", HOSTILE])
def test_the_columns_are_what_the_tokenizers_give(browser: Any, pieces: Served, text: str) -> None:
    seen = StudioPage(browser, pieces).go("tokens", text=text, model="lm")
    assert seen.problem == "" and seen.complaints == []
    for name, folder in pieces.folders.items():
        assert column(seen, name).items() >= expected(Tokenizer.load(folder), text).items(), name
    about = seen.text("#text-about")
    sizes = f"{len(text)} characters, {len(text.encode())} bytes in UTF-8, {len(word_spans(text))} words."
    assert about.startswith(sizes)
    assert ("not in NFC" in about) == (text == SPELLED) and seen.page.locator("#screen img").count() == 0


def test_a_tokenizer_alone_closes_other_screens_and_its_tokens_light_up(browser: Any, pieces: Served) -> None:
    seen = StudioPage(browser, pieces).go("tokens")
    assert seen.problem == "" and seen.page.locator("#model").input_value() == "wordpiece"
    seen.page.locator("[data-screen=heads].off").wait_for()
    assert "config.json" in str(seen.page.locator("[data-screen=heads]").get_attribute("title"))
    seen.page.locator("[data-screen=heads]").click(force=True)
    assert "config.json" in seen.wait().problem and seen.go("heads", model="lm").problem == ""
    seen = StudioPage(browser, pieces).go("tokens", text=SPELLED)
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
    seen = StudioPage(browser, pieces).go("tokens", text=SPELLED, model="lm")
    page = seen.page
    page.locator("#training-text").fill("\n".join(SOURCES))
    page.select_option("#screen #kind", kind)
    page.locator("#screen input[type=number]").fill("320")
    page.locator("#train").click()
    page.locator('[data-column^="1: "]').wait_for()
    name = str(page.locator(".columns h2 span").last.text_content())
    own = train_tokenizer(TokenizerConfig(cast(Any, kind), vocab_size=320), SOURCES)
    assert column(seen.wait(), name).items() >= expected(own, SPELLED).items()
    assert f"{own.vocab_size} pieces." in str(page.locator("#outcome").text_content())
    page.reload()
    assert column(seen.wait(), name)["count"] == expected(own, SPELLED)["count"]
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
