"""What a notebook shows of records, traces, scores and runs: in a real browser, sandboxed, offline, escaped."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from atento.decoding.hypothesis import Hypothesis
from atento.decoding.trace import Trace
from atento.inspection import AttentionRecord
from atento.inspection.attention_record import NOTEBOOK_WEIGHTS
from atento.inspection.decoding_page import NOTEBOOK_STEPS
from atento.metrics import bleu
from atento.metrics.score import Score
from atento.runs.train import TrainedRun

ATTACK = '"></iframe><script>top.hit = 1</script><img src="http://example.org/x" onerror="top.hit = 1">'


class Notebook:
    """A page that holds what `_repr_html_` gave, as a notebook's output cell does."""

    def __init__(self, browser: Any, folder: Path, shown: object) -> None:
        cell = shown._repr_html_()  # type: ignore[attr-defined]
        whole = f"<!DOCTYPE html><meta charset=utf-8><body><div id=cell>{cell}</div></body>"
        folder.joinpath("notebook.html").write_text(whole, encoding="utf-8")
        self.requests, self.complaints = list[str](), list[str]()
        self.page = browser.new_page(viewport={"width": 1200, "height": 760})
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(folder.joinpath("notebook.html").as_uri())

    def frame(self) -> Any:
        """The only frame inside."""
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


def record(tokens: list[str], **more: Any) -> AttentionRecord:
    weights = np.random.default_rng(0).dirichlet(np.ones(len(tokens)), size=(2, 3, len(tokens))).astype(np.float32)
    return AttentionRecord(tokens=tokens, kinds={"encoder": list(weights)}, **more)


def test_an_attention_record_is_its_page_in_a_sandbox(browser: Any, tmp_path: Path) -> None:
    """Python: no `_repr_html_` on AttentionRecord, Score, Trace."""
    seen = Notebook(browser, tmp_path, record(["▁o", "▁gato", ATTACK, "</s>"], title=f"o gato {ATTACK}"))
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
