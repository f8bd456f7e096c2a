"""The frame of Studio in a real browser: quiet, safe, in two languages, by keys, and one sentence where it fails."""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import numpy as np
import pytest

import atento
from atento.inspection.figures.network_diagram import network_text
from atento.networks.describe import describe
from http_service import Served, served
from studio_page import TEXT, StudioPage

HOSTILE = '<img src=x onerror="document.title=1"> </script><b>'
SCREENS = {"one": {"model": "en-pt"}, "models": {}, "heads": {"model": "en-pt", "head": "1", "ablate": "1"}}
SCREENS |= {"inside": {"model": "llama", "softness": "0.5", "alpha": "1.5"}, "masks": {"paint": "0.3,5.2"}}
SCREENS |= {"positions": {"model": "t5"}, "compare": {"model": "lm", "b": "llama"}}
SCREENS |= {"tokens": {"text": "A menina na\u0303o veˆ <b>"}, "training": {"smooth": "0.5", "log": 1}}


def children(studio: Served, module: str = "model_process") -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(studio.process.pid), module], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]


def test_the_page_is_quiet_and_asks_nobody_else(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio, fresh=True)
    for screen, state in SCREENS.items():
        seen.go(screen, **state)
        assert seen.problem == "" and seen.page.locator("#screen").is_visible(), screen
    assert seen.complaints == []
    assert all(url.startswith((studio.url, f"blob:{studio.url}")) for url in seen.requests)
    policy = studio.get("/studio/").headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "require-trusted-types-for 'script'" in policy


def test_each_family_has_its_own_diagram(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio)
    for model in ("lm", "en-pt", "encoder", "rnn", "rnn-lm", "llama"):
        seen.go("models", model=model)
        network = atento.load(studio.folders[model]).network
        seen.page.locator("#screen summary").click()
        assert seen.page.locator("#screen pre").first.text_content() == network_text(describe(network)), model
        image = seen.page.locator("img.diagram")
        image.evaluate("image => image.decode()")
        assert image.evaluate("image => image.naturalWidth") > 100, model
        assert f"{sum(p.numel() for p in network.parameters()):,}" in seen.text(".facts"), model


def test_the_address_restores_the_view_and_a_link_is_copied_with_its_sentence(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("heads", model="en-pt")
    seen.page.select_option("#kind", "encoder")
    seen.wait().page.select_option("#head", "1")
    seen.wait().page.locator(".settings summary").click()
    seen.page.locator("#toggle-words").check()
    seen.wait()
    shown, state = seen.text("#caption"), seen.state
    assert state["kind"] == "encoder" and state["head"] == "1" and state["words"] == "1"
    seen.page.reload()
    assert seen.wait().page.locator("#caption").text_content() == shown and seen.state == state
    seen.page.go_back()
    assert "words" not in seen.wait().state and not seen.page.locator("#toggle-words").is_checked()
    seen.page.go_forward()
    assert seen.wait().state == state
    assert StudioPage(browser, studio, fresh=True).go(**state).page.locator("#caption").text_content() == shown
    seen = StudioPage(browser, studio).go("heads", model="en-pt")
    page, text = seen.page, seen.page.locator("textarea").first.input_value()
    page.evaluate("navigator.clipboard.writeText = async (text) => { globalThis.copied = text; }")
    page.locator(".save summary").click()
    page.locator("#copy").click()
    said = page.locator("[role=status].toast")
    said.wait_for()
    assert said.text_content() == "The link to this view is copied." and not page.locator("#copy").is_visible()
    box, menu = said.bounding_box(), page.locator(".save summary").bounding_box()
    assert 0 < box["y"] - menu["y"] < 80 and box["x"] > 0 and box["x"] + box["width"] <= 1280
    copied = dict(parse_qsl(page.evaluate("copied").partition("#")[2]))
    assert copied == {"screen": "heads", "model": "en-pt", "text": text} and "text" not in seen.state
    said.wait_for(state="detached")


def test_everything_is_reached_by_keys(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("heads", model="llama")
    keys, page = seen.page.keyboard, seen.page
    keys.press("ArrowRight")
    assert seen.wait().state["pin"] == "source-0" and page.locator(".chip[aria-pressed=true]").count() == 1
    keys.press("ArrowRight")
    keys.press("ArrowUp")
    keys.press("]")
    state = seen.wait().state
    assert (state["pin"], state["layer"], state["head"]) == ("source-1", "1", "max")
    keys.press("ArrowUp")  # there are two layers
    keys.press("[")
    assert seen.wait().state["layer"] == "1" and "head" not in seen.state
    keys.press("/")
    page.keyboard.type("old")
    assert page.evaluate("document.activeElement.type") == "search"
    keys.press("Enter")
    pinned = page.locator(".chip[aria-pressed=true]")
    assert "old" in str(seen.wait().page.locator(".chips").first.text_content()) and pinned.count() <= 1
    page.evaluate("document.activeElement.blur()")
    keys.press("?")
    assert page.locator("dialog").is_visible()
    keys.press("Escape")
    assert not page.locator("dialog").is_visible()
    keys.press("Escape")
    assert "pin" not in seen.wait().state


def test_both_languages_have_the_same_texts(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("models")
    read = "async (name) => (await import(`/studio/${name}.js`)).default"
    english, portuguese = texts = seen.page.evaluate(f"async () => Promise.all(['en', 'pt-BR'].map({read}))")
    assert english.keys() == portuguese.keys() and len(english) > 80
    assert all(text.strip() for one in texts for text in one.values())
    places = [{key: set(re.findall(r"\{(.*?)\}", text)) for key, text in one.items()} for one in texts]
    assert places[0] == places[1]
    seen.page.select_option("#language", "pt-BR")
    assert seen.wait().page.locator("h1").text_content() == portuguese["screen.models"]
    assert seen.page.evaluate("document.documentElement.lang") == "pt-BR" and seen.complaints == []


def test_no_text_becomes_markup_and_a_screen_that_cannot_be_fed_says_why(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("heads", model="en-pt", text=HOSTILE, target=HOSTILE)
    assert seen.problem == "" and seen.page.locator("#screen img, .strip img, .strip b").count() == 0
    assert seen.page.locator("textarea").first.input_value() == HOSTILE
    assert seen.go(HOSTILE).problem.startswith("There is no screen <img src=x")
    assert seen.go("heads", model=HOSTILE).problem.startswith("there is no model '<img src=x")
    seen.go("models", model="<b>lm</b>")
    assert seen.page.locator(".card").last.text_content() == "<b>lm</b>"
    assert seen.page.title() != "1" and seen.page.locator("main b, select b").count() == 0
    seen = StudioPage(browser, studio).go("models", model="rnn-lm")
    button = seen.page.locator("[data-screen=heads]")
    assert button.get_attribute("class") == "off"
    assert button.get_attribute("title") == "RecurrentLM has no attention weights."
    button.click()
    assert seen.wait().problem == "RecurrentLM has no attention weights."
    seen.page.select_option("#model", "rnn")  # one head, of the alignment
    assert seen.wait().problem == "" and seen.page.locator("#lines").is_visible()


def test_a_wrong_address_or_an_emptied_text_is_answered_by_one_sentence(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio)
    wrong: list[tuple[dict[str, str], str]] = [
        ({"text": "a " * 600}, "text 0 has 6"),
        ({"text": " "}, "Type a sentence."),
        ({"model": "none"}, "there is no model 'none': Studio has lm, en-pt, encoder"),
        ({"layer": "9"}, "`layer` must be from 0 to 0 (-1 is the last): got 9"),
        ({"layer": "-1", "head": "0"}, "layers and heads count from 0: got -1 and 0"),
        ({"head": "<b>"}, "`head` must be"),
        ({"kind": "encode"}, "no 'encode' attention was recorded"),
        ({"screen": "attics"}, "There is no screen attics: choose one on the left."),
        ({"text": "a\0b"}, "NUL"),
    ]
    for state, said in wrong:
        seen.go(**({"screen": "heads", "model": "en-pt"} | state))
        assert said in seen.problem and "\n" not in seen.problem, state
        assert not seen.page.locator("#screen svg, #screen canvas, #screen details").first.is_visible()
        assert seen.go("heads", model="en-pt").problem == ""
    seen = StudioPage(browser, studio).go("one", model="en-pt")
    box, problem = seen.page.locator("textarea").first, seen.page.locator(".problem")
    box.fill("")
    problem.wait_for()
    colour = problem.evaluate("one => getComputedStyle(one).backgroundColor")
    assert seen.wait().problem == problem.text_content() == "Type a sentence." and colour == "rgba(0, 0, 0, 0)"
    assert not seen.page.locator(".river").is_visible() and box.evaluate("one => one === document.activeElement")
    box.fill(TEXT)
    seen.page.locator(".river").wait_for()
    assert seen.wait().problem == "" and seen.complaints == []


def test_what_failed_or_was_killed_is_asked_for_again_by_hand(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio, fresh=True).go("tour", model="none")
    for screen in ("masks", "heads", "inside"):
        seen.go(screen, model="none")
    assert seen.problem.startswith("there is no model 'none'")
    asked = [url.rpartition("/")[2] for url in seen.requests if "/studio/api/" in url]
    assert asked.count("card") == 1 and "screens" not in asked
    seen.page.get_by_role("button", name="Try again").click()
    seen.wait()
    assert sum(url.endswith("/card") for url in seen.requests) == 2 and seen.problem
    seen = StudioPage(browser, studio).go("heads", model="lm")
    (number,) = children(studio)
    os.kill(number, signal.SIGKILL)
    seen.page.select_option("#model", "llama")
    assert seen.wait().problem == (
        "the process that holds Studio's models ended (SIGKILL, which is what the system sends when memory runs out): "
        "it starts again with the next request"
    )
    seen.page.get_by_role("button", name="Try again").click()
    assert seen.wait().problem == "" and children(studio) != [number]


def test_what_the_routes_refuse(studio: Served) -> None:
    def code(path: str, body: Any, **headers: str) -> tuple[int, str]:
        answer = studio.post(f"/studio/api/{path}", body, headers=headers)
        return answer.status_code, str(answer.json()["error"]["code"])

    assert code("attic", {}) == (404, "not_found") and code("card", {}) == (422, "wrong_field")
    assert code("card", {"model": "lm", "more": 1}) == (422, "wrong_field")
    assert code("card", ["lm"]) == (422, "wrong_field") and code("card", {"model": "../lm"}) == (404, "unknown_model")
    assert code("card", {"model": "lm"}, host="evil.example") == (421, "wrong_host")
    assert code("trace", {"model": "lm", "text": "a" * (2 << 20)}) == (413, "too_long")
    for path in ("../command.py", "%2e%2e/command.py", "screens", "nothing.js", "api/card"):
        assert studio.get(f"/studio/{path}").status_code in (404, 405), path
    assert httpx.post(f"{studio.url}/studio/api/card", content="model=lm").status_code == 415
    assert studio.get("/").next_request is not None and studio.get("/", follow_redirects=True).status_code == 200
    page = studio.get("/studio/studio.js")
    assert studio.get("/studio/studio.js", headers={"If-None-Match": page.headers["etag"]}).status_code == 304


def test_the_service_shows_it_only_when_told_and_with_its_key(browser: Any, studio: Served, service: Served) -> None:
    words = [str(studio.folders["lm"]), "--studio", "--api-key", "secret"]
    with served(words, python=sys.executable) as keyed:  # which no fork server has given PyTorch
        assert keyed.lines[0].endswith(f"; Studio is at {keyed.url}/studio/")
        assert keyed.post("/studio/api/card", {"model": "lm"}).status_code == 401
        seen = StudioPage(browser, keyed, fresh=True).go("models")
        assert seen.problem == "the API key is missing or wrong: send `Authorization: Bearer KEY`"
        seen.page.locator(".problem input").fill("secret")
        seen.page.get_by_role("button", name="Use this key").click()
        assert seen.wait().problem == "" and seen.page.locator("img.diagram").is_visible()
        assert not keyed.holds_torch() and any(map(keyed.holds_torch, keyed.workers()))
    seen.page.locator("[data-screen=heads]").click()
    assert seen.wait().problem.startswith("The service does not answer")
    assert service.get("/studio/").status_code == 404


@pytest.mark.parametrize(
    ("theme", "half"),
    [("light", 0), ("dark", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("light", 1), ("dark", 0)))],
)
def test_axe_finds_nothing(browser: Any, studio: Served, theme: str, half: int) -> None:
    seen = StudioPage(browser, studio, color_scheme=theme, bypass_csp=True)
    for screen in [*SCREENS][half::2]:
        assert seen.go(screen, **SCREENS[screen]).axe() == [], screen
    assert seen.go("models", model="rnn-lm").axe() == []  # which cannot be fed


def test_it_fits_a_small_window(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio, width=360)
    for screen, state in SCREENS.items():
        seen.go(screen, **state)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360, screen


def test_the_weights_and_the_links_of_a_pinned_token_are_those_of_python(browser: Any, studio: Served) -> None:
    record = atento.load(studio.folders["en-pt"]).attend(TEXT, "o gato")
    seen = StudioPage(browser, studio)
    heads: list[Any] = [0, 1, "mean", "max"]
    for (row, kind), (column, head) in product(enumerate(("encoder", "decoder", "cross")), enumerate(heads)):
        words = (row + column) % 2 == 1  # each kind and each head both ways
        seen.go("heads", model="en-pt", kind=kind, target="o gato", head=head, words=int(words))
        expected, rows = record.weights(0, head, kind), record.sides(kind)[0].tokens
        if words:
            merged = record.word_weights(0, head, kind)
            expected, rows = merged.weights, [group.label for group in merged.rows]
        labels, _, numbers = seen.table()
        assert labels == rows and numbers.shape == expected.shape
        assert np.abs(numbers - expected).max() < 1e-5
    seen = StudioPage(browser, studio).go("heads", model="llama", layer=1, head=1)
    weights = atento.load(studio.folders["llama"]).attend(TEXT).weights(1, 1)
    seen.page.locator("#row-tokens button").nth(5).click()
    links = seen.wait().page.locator("aside .links li")
    shown = [float(text) for text in links.locator(".value").all_text_contents()]
    assert np.abs(np.array(shown) - np.sort(weights[5])[::-1][: len(shown)]).max() < 1e-5
    assert seen.state["pin"] == "source-5"
    seen.page.locator("#column-tokens button").nth(3).click()
    shown = [float(text) for text in seen.wait().page.locator("aside .links .value").all_text_contents()]
    assert np.abs(np.array(shown) - np.sort(weights[:, 3])[::-1][: len(shown)]).max() < 1e-5


def test_links_of_all_heads_are_the_strongest_weights(studio: Served) -> None:
    record = atento.load(studio.folders["llama"]).attend(TEXT)
    fields = {"model": "llama", "text": TEXT, "kind": "decoder", "layer": 1, "head": "each"}
    open_ = ~np.array(record.special)
    for asked, shown in (
        ({"most": 5}, np.ones((len(open_), len(open_)), dtype=bool)),
        ({"most": 5, "least": 0.2, "hide": True}, np.logical_and.outer(open_, open_)),
        ({"row": 2}, np.arange(len(open_))[:, None] == 2),
        ({"column": 1}, np.arange(len(open_))[None] == 1),
    ):
        answer = studio.post("/studio/api/links", fields | asked)
        about = json.loads(answer.headers["x-atento-about"])
        total = sum(about["counts"])
        places = np.frombuffer(answer.content, "<u4", 2 * total).reshape(2, -1)
        values = np.frombuffer(answer.content, "<f4")[2 * total :]
        for head, count in enumerate(about["counts"]):
            weights = np.where(shown, record.weights(1, head), 0)
            cells = np.flatnonzero(weights > asked.get("least", 0))
            expected = np.sort(weights.reshape(-1)[cells])[-asked.get("most", len(cells)) :]
            (rows, columns), places = places[:, :count], places[:, count:]
            mine, values = values[:count], values[count:]
            assert np.array_equal(weights[rows, columns], mine) and np.array_equal(np.sort(mine), expected)
            assert sorted(zip(rows, columns)) == list(zip(rows, columns))
            assert asked.keys() & {"row", "column"} or about["largest"][head] == weights.max()
    for wrong in ({"layer": 9}, {"row": len(open_)}, {"column": -1}):
        assert studio.post("/studio/api/links", fields | wrong).status_code == 422


def test_each_view_of_heads_draws_and_lines_where_they_are_in_sight(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio)
    for view, canvas in {"lines": "#lines-canvas", "heat": "#heat-canvas", "overview": ".thumb canvas"}.items():
        seen.go("heads", model="encoder", view=view, head="all")
        pixels = "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer"
        colours = seen.page.locator(canvas).first.evaluate(f"canvas => new Set(new Uint32Array({pixels})).size")
        assert colours > 3 and seen.complaints == [], view
    seen.page.locator(".thumb").nth(1).click()
    assert seen.wait().state["head"] == "1" and "view" not in seen.state
    seen = StudioPage(browser, studio).go("heads", model="llama", text=" ".join([TEXT] * 18), layer=1, head="all")
    inked = (
        "() => { const canvas = document.getElementById('lines-canvas');"
        " const { top, bottom } = canvas.getBoundingClientRect();"
        " const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        " return top <= 0 && bottom >= innerHeight && canvas.height < 3 * innerHeight && data.some((one) => one > 0); }"
    )
    for share in (0.3, 0.6):
        seen.page.evaluate("share => scrollTo(0, share * document.documentElement.scrollHeight)", share)
        seen.page.wait_for_function(inked)
    assert "links are drawn" in seen.text(".tip")


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in (1, 2, 3))])
def test_what_is_saved_stands_alone(browser: Any, studio: Served, turn: int, tmp_path: Path) -> None:
    """Each screen in one form a turn; in the gate each form on two screens."""
    seen, forms = StudioPage(browser, studio), ("png", "svg", "html", "json")
    starts = {"png": b"\x89PNG", "svg": b"<svg", "html": b"<!doctype html", "json": b"{"}
    page, asked = browser.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    for number, (screen, state) in enumerate(SCREENS.items()):
        form = forms[(number + turn) % 4]
        seen.go(screen, **state).page.locator(".save summary").click()
        with seen.page.expect_download() as started:
            seen.page.get_by_role("button", name=form.upper(), exact=True).click()
        started.value.save_as(tmp_path / f"{screen}.{form}")
        content = (tmp_path / f"{screen}.{form}").read_bytes()
        assert content.lower().startswith(starts[form].lower()) and len(content) > 500, (screen, form)
        if form in ("svg", "html"):
            page.goto((tmp_path / f"{screen}.{form}").as_uri())
    assert len(asked) >= 4 and all(url.startswith(("file:", "data:")) for url in asked)
