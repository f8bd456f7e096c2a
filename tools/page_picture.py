"""Takes the README's picture of the attention page: `python tools/page_picture.py RUN docs/attention-page.png`.

Needs Chromium and, of the development packages, playwright and matplotlib (for Pillow).
"""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import atento

TEXT = "The white cat loves my small house."


def main(run: str, out: str) -> None:
    """Attend to one sentence, open the page as a reader would, and take its picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        page = Path(folder) / "page.html"
        atento.load(run).attend(TEXT).save(page, words=True)
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1120, "height": 960}, color_scheme="light")
        opened.goto(f"{page.as_uri()}#view=heat&kind=cross&layer=1&head=mean&merge=1")
        opened.wait_for_timeout(300)
        picture = Image.open(io.BytesIO(opened.screenshot()))
        browser.close()
    picture.quantize(200).save(out, optimize=True)  # few colours: a small file


if __name__ == "__main__":
    main(*sys.argv[1:])
