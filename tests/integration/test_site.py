"""The documentation site, built strictly as `make docs` does, without a network, and read back."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from tools.site_hooks import MODULES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
PROGRAM = """
import socket, sys
def refuse(*arguments, **options):
    raise OSError("the build asked for the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli(["build", "--strict", "--quiet", "--site-dir", sys.argv[1]])
"""


class Loaded(HTMLParser):
    """What a page loads when it is opened: not the links that a reader may follow."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "link" and dict(attrs).get("rel") in ("canonical", "alternate", "next", "prev"):
            return
        self.found += [value for name, value in attrs if (tag, name) in LOADS and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs_static_i18n", reason="the extra docs is not installed")
    out = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-c", PROGRAM, str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_there_and_loads_its_own_files_alone(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 150
    for page in pages:
        for address in Loaded(page.read_text(encoding="utf-8")).found:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
            if page.name != "404.html" and not address.startswith("data:"):
                assert (page.parent / re.sub(r"[?#].*", "", address)).exists(), f"{page.name}: {address}"


def test_every_link_leads_to_a_page_and_a_place_in_it(site: Path) -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    places = {page: {"", "__comments", *re.findall(r'\bid="([^"]+)"', text)} for page, text in texts.items()}
    for page, text in texts.items():
        for address in set(re.findall(r'<a\b[^>]*?\bhref="([^"]+)"', text)):
            if re.match(r"[a-z]+:", address):
                continue
            name, _, place = unescape(unquote(address)).partition("#")
            there = (page.parent / name).resolve() if name else page
            assert there.is_file(), f"{page.relative_to(site)}: {address}"
            assert there.suffix != ".html" or place in places[there], f"{page.relative_to(site)}: {address}"


def test_the_reference_has_every_public_function_and_class(site: Path) -> None:
    pages = {module: (site / "reference" / f"{module}.html").read_text(encoding="utf-8") for module in MODULES}
    shown = {name.split(".")[-1] for text in pages.values() for name in re.findall(r'<h\d id="(atento[\w.]+)"', text)}
    named = [
        (name, module) for module in map(importlib.import_module, MODULES) for name in getattr(module, "__all__", ())
    ]
    public = {name for name, module in named if inspect.isroutine(one := getattr(module, name)) or inspect.isclass(one)}
    assert len(public) > 80 and public <= shown, public - shown
    assert 'id="atento.model.Model.translate"' in pages["atento"]
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", pages["atento.attention"]))
    assert "(B,H,T,K)" in plain and "kernel" in plain
    linked = re.findall(r'href="\.\./notes\.html#([\w-]+)"', pages["atento.attention"])
    notes = (site / "notes.html").read_text(encoding="utf-8")
    assert linked and all(f'id="{anchor}"' in notes for anchor in linked)


def test_portuguese_pages_and_the_map_for_language_models(site: Path) -> None:
    """Pages that are not translated fall back to English; the map names every page."""
    start = (site / "pt-BR" / "getting-started.html").read_text(encoding="utf-8")
    assert '<html lang="pt"' in start and "Referência" in start and "Primeiros passos" in start
    assert "Serve models over HTTP" in (site / "pt-BR" / "serving.html").read_text(encoding="utf-8")
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Atento" and lines[2].startswith("> ")
    named = re.findall(r"^- \[.+?\]\((.+?)\)", "\n".join(lines), flags=re.M)
    assert len(named) > 60 and all((site / name).is_file() for name in named)


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_a_reader_finds_a_page_by_search_from_a_folder(site: Path) -> None:
    """Without a server: the page is a file. No request goes out."""
    with pytest.importorskip("playwright.sync_api", reason="needs playwright").sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.get_by_label("Search").first.click()
        page.keyboard.type("perplexity", delay=20)
        page.wait_for_selector(".md-search-result__link", timeout=20_000)
        found = page.locator(".md-search-result__link").evaluate_all("all => all.map(a => a.href)")
        assert "metrics" in " ".join(found)
        browser.close()
    assert asked and not [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]
