"""The guided tour in a real browser, with its numbers and source lines; a class of thirty opens Studio at once."""

import json
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import atento
from atento.models.shipped import shipped_models
from atento_serve.studio.screens.tour import FUNCTIONS_SHOWN
from atento_serve.studio.studio_routes import static_files
from http_service import Served, spent
from studio_page import StudioPage
from test_studio import children
from test_studio_predictions import shown

PACKAGE = Path(atento.__file__).parents[1]


@pytest.mark.parametrize("language", ["en", pytest.param("pt-BR", marks=pytest.mark.slow)])  # its texts: test_studio.py
def test_the_keys_turn_through_ten_chapters(browser: Any, small: Served, language: str) -> None:
    seen = StudioPage(browser, small).go("tour", language=language)
    titles, named = set(), set()
    for chapter in range(1, 11):
        assert seen.problem == "" and seen.state.get("chapter", "1") == str(chapter)
        titles.add(seen.text("#chapter-title"))
        text = str(seen.page.locator(".tour > p").first.text_content())
        assert 3 <= len(re.findall(r"[.:?!](?: |$)", text.replace(": ", " "))) <= 6, text
        assert seen.page.locator(".tour figure").is_visible() and len(shown(seen)) > 2
        assert seen.page.locator(".tour .river").is_visible()  # it goes along One sentence, whose part is marked
        assert seen.page.locator(".river [data-part][aria-pressed=true]").count() == 1
        seen.page.locator("#question summary").click()
        assert seen.page.locator("#question p").is_visible()
        for box in seen.page.locator(".source").all():
            box.locator("summary code", has_text=".py").wait_for()
            file, line, name = re.split(r", |: ", str(box.locator("summary").text_content()))
            lines = (PACKAGE / file).read_text(encoding="utf-8").splitlines()
            assert name.rpartition(".")[2] in " ".join(lines[int(line) - 1 : int(line) + 2])
            text = str(box.locator("pre").text_content())
            assert lines[int(line) - 1].strip() == text.splitlines()[0] and len(text.splitlines()) > 3
            named.add(name)
        seen.page.evaluate("document.activeElement.blur()")
        seen.page.keyboard.press("ArrowRight" if chapter % 2 else "Space")
        seen.wait()
    assert len(titles) == 10 and named < FUNCTIONS_SHOWN.keys() and seen.complaints == []
    seen.page.keyboard.press("ArrowLeft")
    assert seen.wait().state["chapter"] == "9"


def test_with_nothing_given_the_figures_are_of_the_package_s_models(browser: Any, small: Served) -> None:
    seen = StudioPage(browser, small).go("tour", chapter=3)
    weights = atento.load("micro-world-lm").attend("O gato vê a casa velha.").weights(0, 1)[5, :6]
    assert np.allclose([float(row[1].split(" ")[0]) for row in shown(seen)], weights, atol=1e-5)
    found: Any = atento.load("micro-world-mlm").fill("O <mask> vê a casa velha.", top=8)
    rows = shown(seen.go("tour", chapter=6))
    assert [row[0] for row in rows] == [one.token for one in found]
    assert np.allclose([float(row[1].split(" ")[0]) for row in rows], [one.probability for one in found], atol=1e-5)
    seen.page.locator("#try").click()
    assert seen.wait().problem == "" and seen.text("#masked") == "O <mask> vê a casa velha."
    for chapter in range(1, 11):
        seen.go("tour", chapter=chapter).page.locator("#try").click()
        assert seen.wait().problem == "" and seen.state["screen"] != "tour", chapter
    assert small.get("/studio/api/about").json()["models"] == list(shipped_models())
    assert small.post("/studio/api/card", {"model": "micro-world-lm"}).json()["verbs"][0] == "generate"


READ = (11, 4, 0.31, 6, None, None, None, None, None, None)  # what is known beforehand of the answers


def test_a_number_that_is_read_off_is_checked(browser: Any, small: Served) -> None:
    """Right with a point or a comma and a sign of per cent; what is too small or too large is told."""
    seen = StudioPage(browser, small)
    page, told = seen.page, seen.page.locator(".quiz output")
    for chapter, known in enumerate(READ, start=1):
        seen.go("tour", chapter=chapter)
        answer = page.evaluate("studio.screen.answer")
        assert answer is not None and (known is None or round(answer, 2) == known), chapter
        box, digits = page.locator("#reading"), page.evaluate("studio.screen.chapter.digits")
        given = f"{answer:.{digits}f}"
        for typed, said in (
            ("", "Give a number"),
            ("about three", "Give a number"),
            (str(answer - 40), "it is more"),
            (str(answer + 40), "it is less"),
            (given.replace(".", ",") + " %", f"Right: {given}"),
        ):
            box.fill(typed)
            page.locator("#check").click() if typed else box.press("Enter")
            assert said in str(told.text_content()), (chapter, typed)
    assert seen.complaints == []


def test_a_link_opens_a_chapter_with_a_sentence_and_a_model(browser: Any, small: Served) -> None:
    """The numbers are those of that model; the next chapter has them too where it can, and says where it cannot."""
    text = "The white cat sleeps in the old house."
    seen = StudioPage(browser, small, fresh=True).go("tour", chapter=8, model="atento-en-pt", text=text)
    model: Any = atento.load("atento-en-pt")
    weights = model.attend(text, model.translate(text)).word_weights(0, "mean", "cross")
    rows = shown(seen)
    assert [row[0] for row in rows] == [group.label for group in weights.columns]
    assert np.allclose([float(row[1].split(" ")[0]) for row in rows], weights.weights[1], atol=1e-5)
    assert weights.rows[1].label in seen.text(".quiz label")
    assert seen.text("#line [aria-pressed=true]") == " gato"
    seen.page.locator("#after").click()
    assert seen.wait().state == {"screen": "tour", "chapter": "9", "model": "atento-en-pt", "text": text}
    assert shown(seen)[0][0] == model.translate(text, beam=4)
    seen.go("tour", chapter=6, model="atento-en-pt", text=text)
    assert seen.state["model"] == "micro-world-mlm"
    assert seen.page.locator("textarea").first.input_value() == "O gato vê a casa velha."
    assert "atento-en-pt cannot be shown" in seen.text("#instead")
    seen.page.locator("#before").click()
    assert seen.wait().state["model"] == "micro-world-lm"
    seen.go("tour", chapter=3, text="O menino dorme.")
    assert seen.state["model"] == "micro-world-lm" and seen.page.locator(".river").is_visible()
    assert seen.page.locator("textarea").first.input_value() == "O menino dorme." and seen.complaints == []
    seen.go("tour", chapter=1, model="micro-world-lm", text="<img src=x> </b>")
    assert seen.problem == "" and seen.page.locator("#screen img, #screen b").count() == 0


def test_a_chapter_is_printed_on_one_page(browser: Any, small: Served) -> None:
    """In light colours, with the picture, the figure, room for answers; without what is only for a screen."""
    seen = StudioPage(browser, small, color_scheme="dark", fresh=True)
    for chapter in (2, 3, 8):
        seen.go("tour", chapter=chapter)
        assert len(re.findall(rb"/Type ?/Page\b", seen.page.pdf(prefer_css_page_size=True))) == 1, chapter
    seen.page.set_viewport_size({"width": 680, "height": 900})
    seen.page.emulate_media(media="print", color_scheme="dark")
    hidden = seen.page.locator(".bar, .rail, .strip, .controls, #try, #check, .equivalent")
    assert not any(hidden.evaluate_all("all => all.map((one) => one.checkVisibility())"))
    for part in ("#chapter-title", ".tour .river", ".tour figure", ".quiz label", "#question summary"):
        assert seen.page.locator(part).first.is_visible(), part
    paper = seen.page.evaluate("getComputedStyle(document.querySelector('.river .ground')).fill")
    assert paper == "rgb(255, 255, 255)" and seen.complaints == []


def test_without_the_small_models_a_chapter_says_how_to_see_its_figure(browser: Any, studio: Served) -> None:
    seen = StudioPage(browser, studio).go("tour", chapter=99)
    assert seen.problem == "" and "micro-world-tense" in seen.text(".tour figure")
    assert seen.page.locator("#try").count() == 0
    answer = studio.post("/studio/api/source", {"name": "os.system"})
    assert answer.status_code == 404 and "names no function" in answer.json()["error"]["message"]


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_and_it_fits_and_is_saved(browser: Any, small: Served, theme: str) -> None:
    seen = StudioPage(browser, small, color_scheme=theme, bypass_csp=True, width=360)
    for chapter in (1, 2, 3, 10):
        assert seen.go("tour", chapter=chapter).axe() == [], chapter
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
        seen.page.locator(".save summary").click()
        with seen.page.expect_download() as file:
            seen.page.get_by_role("button", name="HTML", exact=True).click()
        assert file.value.path().stat().st_size > 500


CLASS = 30
MODEL = "atento-en-pt"
BEFORE = [("card", {"model": MODEL}), ("screens", {"model": MODEL, "b": ""})]


def opened(studio: Served, text: str) -> tuple[list[float], list[float]]:
    """What a browser asks to show a chapter along One sentence: its files, then the numbers; the seconds of each."""
    seconds: list[float] = []
    with httpx.Client(base_url=studio.url, timeout=120) as client, ThreadPoolExecutor(6) as connections:

        def get(path: str, method: str = "GET", **options: Any) -> Any:
            began = time.perf_counter()
            answer = client.request(method, f"/studio/{path}", **options)
            seconds.append(time.perf_counter() - began)
            assert answer.status_code == 200, (path, answer.text[:200])
            return answer

        def ask(function: str, **fields: Any) -> Any:
            return get(f"api/{function}", "POST", json=fields)

        list(connections.map(get, [name for name in static_files() if name != "index.html"]))
        files = len(seconds)
        get("api/about")
        list(connections.map(lambda one: ask(one[0], **one[1]), BEFORE))
        trace = ask("trace", model=MODEL, text=text).json()
        whole = {"model": MODEL, "text": text, "target": trace["target"]}
        assert ask("flow", model=MODEL, text=text).json()["target"] == trace["target"]
        asked = [("flow_links", whole), *(("overview", {**whole, "kind": kind}) for kind in trace["kinds"])]
        asked.append(("weights", {**whole, "kind": "cross", "layer": 0, "head": "mean", "words": True}))
        list(connections.map(lambda one: ask(one[0], **one[1]), asked))
        assert json.dumps(ask("said", **whole, place=1).json()["tokens"]) != "[]"
    return seconds[:files], seconds[files:]


def test_thirty_browsers_at_once_are_answered(small: Served) -> None:
    nouns = ("cat", "dog", "house", "car", "book", "garden")
    texts = [f"The {one} sees the old {other}." for one in nouns for other in nouns if one != other][:CLASS]
    assert len(set(texts)) == CLASS
    opened(small, "The cat sleeps.")  # the model is loaded
    began = time.perf_counter()
    with ThreadPoolExecutor(CLASS) as browsers:
        found = list(browsers.map(lambda text: opened(small, text), texts))
    whole, answers = time.perf_counter() - began, sorted(one for _, asked in found for one in asked)
    slowest = f"median {statistics.median(answers):.3f}, slowest {answers[-1]:.3f} s"
    print(f"\n{CLASS} browsers: {whole:.2f} s; answers: {slowest}")
    assert len(answers) == CLASS * 11 and answers[-1] < 60  # seconds, on a machine that computes other things too


def test_what_a_model_can_is_tried_once(small: Served) -> None:
    """The cards and reasons of thirty browsers cost as much as one."""
    for function, fields in BEFORE:
        assert small.post(f"/studio/api/{function}", fields).status_code == 200
    (number,) = children(small)
    if not Path(f"/proc/{number}").exists():
        pytest.skip("needs /proc")
    before = spent(number)
    for _ in range(CLASS):
        for function, fields in BEFORE:
            small.post(f"/studio/api/{function}", fields)
    assert spent(number) - before < 1.0  # 84 ms of processor time each before
