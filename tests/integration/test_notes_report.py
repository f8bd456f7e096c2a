"""The report of the notes as a reader sees it: Chromium at two widths, light and dark, on paper, and axe."""

from pathlib import Path
from typing import Any

import pytest

from conftest import ForkServer

ROWS = ["A6", "A17", "J1", "J4", "J12", "L1", "L4"]  # tables of numbers and text, drawings, what the notes say


@pytest.fixture(scope="module")
def report(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    done = server.run(*["notes", "--report", "--out", folder / "report", "--language", "pt-BR", *ROWS], cwd=folder)
    assert done.status == 0 and done.stdout == f"{folder / 'report' / 'index.html'}\n", done.stderr
    return folder / "report"


def opened(browser: Any, file: Path, width: int = 1100, theme: str = "light") -> Any:
    """A page of the report; whatever it asked for, or said on the console, is in `asked`."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda message: page.asked.append(message.text))
    page.goto(file.as_uri())
    return page


def test_it_links_reads_and_asks_for_nothing_else(browser: Any, report: Path) -> None:
    page = opened(browser, report / "index.html")
    page.get_by_role("link", name="1. Autoatenção em modelos bidirecionais").click()
    assert page.title() == "1. Autoatenção em modelos bidirecionais"
    page.get_by_role("link", name="Todas as posições de uma vez").click()
    assert page.url.endswith("#c1")
    assert page.locator("article#j1 svg text", has_text="X, a entrada da camada").count() == 1
    assert len(page.asked) == 2, page.asked  # the two pages


@pytest.mark.parametrize(
    ("theme", "half"),
    [("light", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("light", 0), ("dark", 0), ("dark", 1)))],
)
def test_it_fits_a_small_window_and_axe_finds_nothing(browser: Any, report: Path, theme: str, half: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    files = sorted(report.glob("*.html"))
    assert len(files) == 6
    for number, file in enumerate(files):
        page = opened(browser, file, 360, theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, file.name
        if number % 2 == half:
            found = axe.Axe().run(page).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"][:160]) for one in found] == [], file.name


def test_no_text_of_a_drawing_leaves_it(browser: Any, report: Path) -> None:
    """Portuguese is longer than English; the texts stay inside their drawings."""
    page = opened(browser, report / "5-positions.html")
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


def test_it_prints(browser: Any, report: Path) -> None:
    """On paper nothing is cut off at the side."""
    page = opened(browser, report / "2-bidirectional-encoders.html", 700)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert len(page.pdf()) > 10_000
