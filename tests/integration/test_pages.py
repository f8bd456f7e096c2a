"""Pages in a real browser: in a notebook, of the routes (GET /docs), the report of the notes, the moving picture."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from tools import moving_picture, notebooks

import atento
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.trace import Trace
from atento.inspection import AttentionRecord
from atento.inspection.attention_record import NOTEBOOK_WEIGHTS
from atento.inspection.decoding_page import NOTEBOOK_STEPS
from atento.metrics import bleu
from atento.metrics.score import Score
from atento.runs.train import TrainedRun
from conftest import ForkServer, Watched
from http_service import SOURCES, Served, served

ATTACK = '"></iframe><script>top.hit = 1</script><img src="http://example.org/x" onerror="top.hit = 1">'


class Notebook(Watched):
    """A page that holds what `_repr_html_` gave, as a notebook's output cell does."""

    def __init__(self, browser: Any, folder: Path, shown: object) -> None:
        cell = shown._repr_html_()  # type: ignore[attr-defined]
        whole = f"<!DOCTYPE html><meta charset=utf-8><body><div id=cell>{cell}</div></body>"
        folder.joinpath("notebook.html").write_text(whole, encoding="utf-8")
        super().__init__(browser, folder.joinpath("notebook.html").as_uri())

    def frame(self) -> Any:
        assert self.page.locator("iframe").get_attribute("sandbox") == "allow-scripts allow-downloads"
        (inside,) = [frame for frame in self.page.frames if frame != self.page.main_frame]
        inside.wait_for_selector("h1")
        return inside

    def check(self) -> None:
        """Nothing was asked of the network, nothing went wrong, no text became a script or an element outside."""
        assert [url for url in self.requests if not url.startswith(("file:", "about:", "blob:"))] == []
        assert self.complaints == [] and self.page.evaluate("window.hit === undefined")
        assert self.page.locator("#cell script, #cell img").count() == 0
        self.page.close()


def test_an_attention_record_is_its_page_in_a_sandbox(browser: Any, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 3, 4)).astype(np.float32)
    tokens, title = ["▁o", "▁gato", ATTACK, "</s>"], f"o gato {ATTACK}"
    seen = Notebook(browser, tmp_path, AttentionRecord(tokens=tokens, kinds={"encoder": list(weights)}, title=title))
    inside = seen.frame()
    assert "o gato" in inside.locator("h1").first.text_content()
    assert inside.locator("#heat-canvas").evaluate("canvas => canvas.width > 0 && canvas.height > 0")
    inside.locator("#numbers summary").click()
    inside.wait_for_selector("#table table")
    cells = inside.locator("#table tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.textContent))")
    assert any(ATTACK in cell for cell in cells[0])
    inside.locator("#layer").select_option("0")
    inside.locator("#view-lines").click()  # what would write the address of a page: a frame has none
    with seen.page.expect_download() as download:
        inside.locator("#save").click()
    assert download.value.path().stat().st_size > 100
    title = "() => { try { return parent.document.title } catch (error) { return 'closed' } }"
    assert inside.evaluate(title) == "closed" and inside.evaluate("() => origin") == "null"
    seen.check()


def test_a_trace_is_its_page_in_a_sandbox_and_scores_and_runs_are_tables(browser: Any, tmp_path: Path) -> None:
    trace = Trace(name=lambda token: ["</s>", "a", "b", ATTACK][token])
    trace.begin("greedy", 1)
    trace.step([0], torch.zeros(1, 0, dtype=torch.long), torch.log_softmax(torch.tensor([[0.1, 0.2, 0.3, 2.0]]), 1))
    trace.choose(torch.tensor([3]), [True])
    trace.end([[Hypothesis([3], -0.5, -0.5, [-0.5])]])
    seen = Notebook(browser, tmp_path, trace)
    inside = seen.frame()
    assert inside.locator("#weighed tr").count() > 1
    assert ATTACK[:12] in inside.locator("#found").text_content()
    seen.check()
    score = bleu(["o gato pulou alto"], ["o gato pulou alto demais"])
    odd = Score(ATTACK, 12.345, {ATTACK: 1.0}, ATTACK, [[1.0]], sum)
    run = TrainedRun(Path("runs") / ATTACK, 24, 34.21, 16, {"bleu": 30.5, ATTACK: 1.0}, "translation")
    for shown, want in ((score, f"{score.value:.4g}"), (odd, "12.35"), (run, "34.21 at step 16")):
        seen = Notebook(browser, tmp_path, shown)
        rows = seen.page.locator("#cell tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.textContent))")
        assert want in [row[1] for row in rows], rows
        assert shown is score or any(ATTACK in cell for row in rows for cell in row)
        seen.check()


def test_what_is_too_large_for_a_notebook_is_a_sentence() -> None:
    side = int(NOTEBOOK_WEIGHTS**0.5) + 1
    large = AttentionRecord(tokens=["a"] * side, kinds={"encoder": [np.full((1, side, side), 1 / side, np.float32)]})
    shown = large._repr_html_()
    assert "iframe" not in shown and "weights are too many for a notebook" in shown and ".save(" in shown
    trace = Trace()
    assert trace._repr_html_() == "<p>Trace(0 runs; 0 steps)</p>"
    trace.begin("greedy", 1)
    for length in range(NOTEBOOK_STEPS + 1):
        trace.step([0], torch.zeros(1, length, dtype=torch.long), torch.zeros(1, 2).log_softmax(1))
        trace.choose(torch.tensor([0]), [False])
    trace.end([[]])
    assert "iframe" not in trace._repr_html_() and "too many steps for a notebook" in trace._repr_html_()


class Routes(Watched):
    def send(self, path: str, body: Any = None, *, method: str = "POST", name: str = "") -> tuple[str, str]:
        """The status line and the answer, with a body and a name in the path in place of the examples."""
        route = self.page.locator(f"details[data-path='{path}'][data-method={method}]")
        if not route.evaluate("element => element.open"):
            route.locator("summary").click()
        if name:
            route.locator("input").fill(name)
        if body is not None:
            route.locator("textarea").fill(body if isinstance(body, str) else json.dumps(body))
        route.locator("pre").evaluate("element => element.textContent = ''")
        route.get_by_role("button", name="Send").click()
        answered = "element => element.textContent && element.textContent != '...'"
        self.page.wait_for_function(answered, arg=route.locator("pre").element_handle())
        first, _, rest = str(route.locator("pre").text_content()).partition("\n")
        return first, rest


def test_the_page_shows_the_routes_and_sends_requests(browser: Any, service: Served) -> None:
    seen = Routes(browser, f"{service.url}/docs")
    paths = service.get("/openapi.json").json()["paths"]
    shown = seen.page.locator("summary code").all_text_contents()
    assert sorted(shown) == sorted(path for path, operations in paths.items() for _ in operations)
    assert seen.page.locator("summary").first.is_visible() and not seen.page.locator("textarea").first.is_visible()
    models = {row["id"] for row in service.get("/v1/models").json()["data"]}
    status, answer = seen.send("/v1/models", method="GET")
    assert status == "200 OK" and {row["id"] for row in json.loads(answer)["data"]} == models
    body = {"model": "lm", "prompt": SOURCES[0], "max_tokens": 4, "temperature": 0}
    status, answer = seen.send("/v1/completions", body)
    same = service.post("/v1/completions", body).json()["choices"]
    assert status == "200 OK" and json.loads(answer)["choices"] == same
    assert seen.send("/translate", {"q": "a", "source": "en", "target": "pt"})[0] == "200 OK"
    status, answer = seen.send("/models/{id}", {"inputs": SOURCES[0]}, name="en-pt")
    assert status == "200 OK" and "translation_text" in json.loads(answer)[0]
    assert not seen.complaints and all(url.startswith(service.url) for url in seen.requests)
    status, answer = seen.send("/v1/completions", "{")
    assert status.startswith("400") and "error" in json.loads(answer)


def test_the_examples_of_the_page_are_bodies_that_the_service_takes(browser: Any, service: Served) -> None:
    """No field of an example is missing, unknown, of the wrong type or out of range (422)."""
    seen = Routes(browser, f"{service.url}/docs")
    routes = seen.page.locator("details[data-path]")
    note = {"name": "a.md", "mimeType": "text/markdown", "buffer": b"# `code`\n"}
    seen.page.locator("details[data-path='/translate_file'] input").set_input_files(note)
    routes.evaluate_all("all => all.forEach(one => one.querySelector('button').click())")  # all at once
    answers = "[...document.querySelectorAll('details[data-path] pre')].map(one => one.textContent)"
    seen.page.wait_for_function(f"() => {answers}.every(said => said && said !== '...')")
    said = [*zip(routes.evaluate_all("all => all.map(one => one.dataset.path)"), seen.page.evaluate(answers))]
    assert len(said) > 20
    assert dict(said)["/translate_file"] == "200 OK\n# `code`\n"  # it was sent as JSON, and answered 415
    assert not [one for one in said if one[1].startswith(("415", "422", "5")) or not one[1][0].isdigit()]


@pytest.mark.parametrize("width", [360, 1100])
def test_the_page_fits_its_window(browser: Any, service: Served, width: int) -> None:
    seen = Routes(browser, f"{service.url}/docs", width)
    seen.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_key_of_the_page_is_sent(browser: Any, service: Served) -> None:
    with served([str(service.folders["lm"]), "--api-key", "secret-of-the-page"]) as keyed:
        seen = Routes(browser, f"{keyed.url}/docs")
        assert seen.send("/v1/models", method="GET")[0].startswith("401")
        seen.page.locator("#key").fill("secret-of-the-page")
        status, answer = seen.send("/v1/models", method="GET")
        assert status == "200 OK" and '"lm"' in answer


ROWS = ["A6", "A17", "J1", "J4", "J12", "L1", "L4"]  # tables of numbers and text, drawings, what the notes say


@pytest.fixture(scope="module")
def report(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    done = server.run(*["notes", "--report", "--out", folder / "report", "--language", "pt-BR", *ROWS], cwd=folder)
    assert done.status == 0 and done.stdout == f"{folder / 'report' / 'index.html'}\n", done.stderr
    return folder / "report"


def test_the_report_links_reads_and_asks_for_nothing_else(browser: Any, report: Path) -> None:
    seen = Watched(browser, (report / "index.html").as_uri())
    page = seen.page
    page.get_by_role("link", name="1. Autoatenção em modelos bidirecionais").click()
    assert page.title() == "1. Autoatenção em modelos bidirecionais"
    page.get_by_role("link", name="Todas as posições de uma vez").click()
    assert page.url.endswith("#c1")
    assert page.locator("article#j1 svg text", has_text="X, a entrada da camada").count() == 1
    assert len(seen.requests) == 2 and seen.complaints == [], seen.requests  # the two pages


@pytest.mark.parametrize(
    ("theme", "half"),
    [("light", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("light", 0), ("dark", 0), ("dark", 1)))],
)
def test_the_report_fits_a_phone_and_axe_finds_nothing(browser: Any, report: Path, theme: str, half: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    files = sorted(report.glob("*.html"))
    assert len(files) == 6
    for number, file in enumerate(files):
        page = Watched(browser, file.as_uri(), 360, 800, color_scheme=theme, bypass_csp=True).page
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, file.name
        if number % 2 == half:
            found = axe.Axe().run(page).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"][:160]) for one in found] == [], file.name


def test_no_text_of_a_drawing_leaves_it_and_on_paper_nothing_is_cut_off(browser: Any, report: Path) -> None:
    """Portuguese is longer than English."""
    page = Watched(browser, (report / "5-positions.html").as_uri()).page
    outside = page.evaluate(
        """() => [...document.querySelectorAll("figure > svg")].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter(text => {
                const box = text.getBoundingClientRect();
                return box.right > frame.right + 1 || box.left < frame.left - 1;
            }).map(text => text.textContent);
        })"""
    )
    assert page.locator("figure > svg").count() == 1 and outside == []
    page = Watched(browser, (report / "2-bidirectional-encoders.html").as_uri(), 700).page
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert len(page.pdf()) > 10_000


DOCS = Path(__file__).parents[2] / "docs"


def shot(page: Any, *, after: float = 0.0, **media: str) -> bytes:
    """The picture as an image of a page, which loads nothing else."""
    page.emulate_media(**media)
    page.goto(f"{(DOCS / 'one-sentence.svg').as_uri()}")
    page.wait_for_timeout(300 + after)
    taken: bytes = page.screenshot()
    return taken


def test_the_picture_plays_in_both_themes_and_stands_still_when_asked(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 900, "height": 480})
    begins, later = (shot(page, after=ms, color_scheme="light", reduced_motion="no-preference") for ms in (0, 2700))
    assert begins != later
    still = [shot(page, after=ms, color_scheme="light", reduced_motion="reduce") for ms in (0, 2700)]
    assert still[0] == still[1] != begins
    assert shot(page, color_scheme="dark", reduced_motion="reduce") != still[0]
    page.close()


@pytest.mark.slow
def test_the_picture_is_what_the_script_makes_of_the_running_page(tmp_path: Path) -> None:
    """Its words and shares: places may differ in the last digit on another processor."""
    script = [sys.executable, moving_picture.__file__, str(tmp_path)]  # a browser of its own
    subprocess.run(script, check=True, timeout=600)
    for name in ("one-sentence.svg", "one-sentence-narrow.pt-BR.svg"):
        texts = [re.findall(r">([^<>{}]+)</t", (folder / name).read_text("utf-8")) for folder in (tmp_path, DOCS)]
        assert texts[0] == texts[1] and len(texts[0]) > 200, name
    assert atento.load(moving_picture.MODEL).translate(moving_picture.TEXT) == "O gato branco dorme na casa velha."


QUICK = ("03-look-inside",)  # how the names of the others begin
CASES = [
    pytest.param(source, marks=[] if source.stem.startswith(QUICK) else [pytest.mark.slow], id=source.stem)
    for source in notebooks.sources()
]


@pytest.mark.parametrize("source", CASES)
def test_a_notebook_runs_and_shows_its_figures(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "IPYTHONDIR": str(tmp_path / "ipython")}.items():
        monkeypatch.setenv(name, value)
    book = notebooks.made(source, "en")
    NotebookClient(book, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    kept = [{one.output_type for one in notebooks.kept(cell)} for cell in book.cells if cell.cell_type == "code"]
    stored = notebooks.outputs_in(notebooks.place(source, "en"), notebooks.made(source, "en"))
    assert kept == [{one.output_type for one in outputs} for outputs in stored]
    shown = [
        output.data["text/html"]
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    assert len(shown) > 1 and any(re.search("<iframe|<table", page) for page in shown)
    if source.stem != "09-metrics-and-significance":  # tables alone
        assert any("<iframe" in page for page in shown)
    assert sum(len(page) for page in shown) < 2_000_000  # a notebook that is saved with its outputs stays small
