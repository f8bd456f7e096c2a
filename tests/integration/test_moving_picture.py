"""The moving picture of README and of the site, in a real browser: it plays, has two themes, and can stand still."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools import moving_picture

import atento

DOCS = Path(__file__).parents[2] / "docs"


def shot(page: Any, *, after: float = 0.0, **media: str) -> bytes:
    """The picture as an image of a page, which loads nothing else."""
    page.emulate_media(**media)
    page.goto(f"{(DOCS / 'one-sentence.svg').as_uri()}")
    page.wait_for_timeout(300 + after)
    taken: bytes = page.screenshot()
    return taken


def test_it_plays_in_both_themes_and_stands_still_when_asked(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 900, "height": 480})
    begins, later = (shot(page, after=ms, color_scheme="light", reduced_motion="no-preference") for ms in (0, 2700))
    assert begins != later
    still = [shot(page, after=ms, color_scheme="light", reduced_motion="reduce") for ms in (0, 2700)]
    assert still[0] == still[1] != begins
    assert shot(page, color_scheme="dark", reduced_motion="reduce") != still[0]
    page.close()


@pytest.mark.slow
def test_it_is_what_the_script_makes_of_the_running_page(tmp_path: Path) -> None:
    """Its words and shares: places may differ in the last digit on another processor."""
    script = [sys.executable, moving_picture.__file__, str(tmp_path)]  # a browser of its own
    subprocess.run(script, check=True, timeout=600)
    for name in ("one-sentence.svg", "one-sentence-narrow.pt-BR.svg"):
        texts = [re.findall(r">([^<>{}]+)</t", (folder / name).read_text("utf-8")) for folder in (tmp_path, DOCS)]
        assert texts[0] == texts[1] and len(texts[0]) > 200, name
    assert atento.load(moving_picture.MODEL).translate(moving_picture.TEXT) == "O gato branco dorme na casa velha."
