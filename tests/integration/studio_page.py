"""What the tests of Studio share: tiny models of every kind of attention, and the page as its user meets it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from atento.config.sections.network_parts import AttentionConfig, SparseConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.recurrent import RecurrentConfig
from http_service import Served, random_model, served, tokenizer, write_models

TEXT = "The cat sees the old house."
MORE: dict[str, dict[str, Any]] = {
    "llama": {"positions": PositionConfig("rotary"), "attention": AttentionConfig(n_kv_heads=1), "norm": "pre"},
    "t5": {"positions": PositionConfig("t5")},
    "entmax": {"positions": PositionConfig("shaw"), "attention": AttentionConfig(sparse=SparseConfig(alpha=1.5))},
}


def write_run(folder: Path, steps: int = 60) -> Path:
    """A run as training leaves it, without its checkpoints: a recipe, and a journal."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    data = "data: {train: {world: train, text: en}, valid: {world: valid, text: en}}"
    recipe = f"task: language-modeling\n{data}\ntraining: {{steps: 100, batch_tokens: 200}}\n"
    (folder / "recipe.yaml").write_text(recipe)
    lines = [json.dumps(event) for step in range(1, steps + 1) for event in events_at(step)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def events_at(step: int) -> list[dict[str, Any]]:
    train = {"loss": 5 / step + 0.1, "nll": 5 / step, "learning_rate": step * 1e-5, "tokens_per_second": 400.0}
    events: list[dict[str, Any]] = [{"event": "train", "step": step, **train}]
    if step % 20 == 0:
        events.append({"event": "valid", "step": step, "nll": 6 / step, "chrf": 1.5 * step})
        texts = {"input": "<b>the cat</b>", "output": f"o gato {step}", "reference": "o gato"}
        events.append({"event": "sample", "step": step, "number": 1, **texts})
    return events


@contextmanager
def shared_studio(folder: Path) -> Iterator[Served]:
    """`atento studio` over the tiny models of the service and some of other families."""
    subwords, folders = tokenizer(), write_models(folder)
    for name, parts in MORE.items():
        model = random_model(subwords, "language-modeling", "bos", architecture="decoder", n_layers=2, **parts)
        folders[name] = model.save(folder / name)
    sizes: dict[str, Any] = {"n_heads": 1, "recurrent": RecurrentConfig()}
    decoding = {"beam": 1, "max_new_tokens": 6}
    rnn = random_model(subwords, "translation", None, decoding=decoding, architecture="recurrent-seq2seq", **sizes)
    rnn_lm = random_model(subwords, "language-modeling", None, architecture="recurrent-lm", **sizes)
    folders |= {"rnn": rnn.save(folder / "rnn"), "rnn-lm": rnn_lm.save(folder / "rnn-lm")}
    names = [*map(str, folders.values()), f"run={write_run(folder / 'runs' / 'run')}", f"<b>lm</b>={folders['lm']}"]
    with served(names, command="studio") as running:
        running.folders = folders
        yield running


# What a change of the language does, with nothing in the address and nothing stored.
ANEW = """() => {
  studio.round += 1;
  studio.screen?.close?.();
  history.replaceState(null, "", "#");
  studio.state.values = {};
  sessionStorage.clear();
  studio.mount();
  scrollTo(0, 0);
}"""


class StudioPage:
    """Studio in the browser, with all it complained of, and where it is `fresh` all it asked of the network.

    A page that is not `fresh` is loaded once for many tests, which costs a second: each finds it as it was at first,
    but for the answers that it remembers of its service.
    """

    def __init__(
        self,
        browser: Any,
        studio: Served,
        *,
        width: int = 1280,
        color_scheme: str = "light",
        fresh: bool = False,
        **options: Any,
    ) -> None:
        self.studio = studio
        self.requests: list[str] = []
        key = f"{studio.process.pid} {studio.url} {options}"
        self.page: Any = None if fresh else browser.kept.get(key)
        known = self.page is not None
        if not known:
            self.page = browser.new_page(viewport={"width": 1280, "height": 900}, locale="en-US", **options)
            self.page.set_default_timeout(30_000)
            self.page.on("console", lambda said: self.page.said(said.text))
            self.page.on("pageerror", lambda error: self.page.said(str(error)))
        if fresh:
            self.page.on("request", lambda request: self.requests.append(request.url))
        elif not known:
            browser.kept[key] = self.page
        self.page.bring_to_front()  # Chromium hardly paints the others
        if self.page.viewport_size["width"] != width:
            self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=color_scheme)
        if known:
            self.page.mouse.move(0, 0)
            self.page.evaluate(ANEW)
        self.complaints: list[str] = []
        self.page.said = self.complaints.append

    def go(self, screen: str, **state: Any) -> "StudioPage":
        """Open an address and wait until it is shown."""
        address = f"{self.studio.url}/studio/#{urlencode({'screen': screen, **state})}"
        if self.page.url.partition("#")[0] == address.partition("#")[0]:
            self.page.evaluate("address => { location.href = address; }", address)
        else:
            self.page.goto(address)
        return self.wait()

    def wait(self) -> "StudioPage":
        """Wait until the page has nothing under way."""
        self.page.wait_for_function("() => globalThis.studio && studio.settled", timeout=60_000)
        return self

    @property
    def problem(self) -> str:
        """The sentence that stands in the place of a screen; empty if there is none."""
        box = self.page.locator(".problem")
        return str(box.locator("p").first.text_content()) if box.is_visible() else ""

    @property
    def state(self) -> dict[str, str]:
        return dict(self.page.evaluate("() => Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"))

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).text_content())

    def cells(self, rows: Any) -> list[list[str]]:
        """The texts in the cells of some rows, or of those of a selector."""
        rows = self.page.locator(rows) if isinstance(rows, str) else rows
        found: list[list[str]] = rows.evaluate_all("all => all.map(tr => [...tr.children].map(one => one.textContent))")
        return found

    def unfolded(self, at: int = 0, holds: str = "tr") -> Any:
        """The part of the screen that says the same in a table, or a text, when it is open."""
        details = self.page.locator("#screen details.equivalent").nth(at)
        if not details.evaluate("box => box.open"):
            details.locator("summary").click()
            details.locator(holds).first.wait_for()
        return details

    def table(self, at: int = 0) -> tuple[list[str], list[str], np.ndarray]:
        """Row labels, column labels and numbers of a folded table of the screen."""
        (_, *columns), *rows = self.cells(self.unfolded(at).locator("tr"))
        return [row[0] for row in rows], columns, np.array([[float(cell) for cell in row[1:]] for row in rows])

    def axe(self) -> list[str]:
        """What axe finds on the page, in a page that was opened with `bypass_csp`."""
        base = pytest.importorskip("axe_playwright_python.base", reason="axe is not installed")
        if not self.page.evaluate("() => Boolean(globalThis.axe)"):
            self.page.evaluate(base.AXE_SCRIPT)
        found = self.page.evaluate("async () => (await axe.run({resultTypes: ['violations']})).violations")
        return [json.dumps([one["id"], [node["html"][:160] for node in one["nodes"]][:3]]) for one in found]
