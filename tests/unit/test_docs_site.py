"""The documentation site: each page of docs/ has its line in mkdocs.yml, and pages in Portuguese follow the English."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from tools import gallery_pictures, ratio_chart, site_hooks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PORTUGUESE = sorted(DOCS.rglob("*.pt-BR.md"))
START = {"README", "getting-started", "train-a-translator", "classification"}
FENCE = re.compile(r"^```(.*?)^```$", flags=re.M | re.S)


class Loader(yaml.SafeLoader):
    """Reads a value that names a Python function, as settings of Markdown may, as None."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)  # type: ignore[no-untyped-call]
SETTINGS: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def named(nav: object) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    for child in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named(child)


def test_every_page_is_in_the_navigation_every_module_has_one_and_nothing_is_fetched() -> None:
    entries = list(named(SETTINGS["nav"]))
    pages = {page.relative_to(DOCS).as_posix() for page in set(DOCS.rglob("*.md")) - set(PORTUGUESE)}
    made = {f"reference/{module}.md" for module in site_hooks.MODULES} | set(site_hooks.beside())
    assert len(entries) == len(set(entries)) and len(entries) > 60
    assert sorted(pages - set(entries)) == [], "write a line for the page in `nav` of mkdocs.yml"
    assert sorted(set(entries) - pages - made) == [], "`nav` of mkdocs.yml names a page that does not exist"
    assert {f"reference/{module}.md" for module in site_hooks.MODULES} <= set(entries)
    assert {page.name.removesuffix(".pt-BR.md") for page in PORTUGUESE} >= START  # and two tutorials
    # those that docs/compatibility.md promises by name
    (table,) = re.findall(
        r"^## What is public\n\n(.+?)\n\n", (DOCS / "compatibility.md").read_text("utf-8"), flags=re.M | re.S
    )
    rows = [row.split("|")[1] for row in table.splitlines()[2:] if "stay" in row or "listings" in row]
    promised = set(re.findall(r"`(atento[\w.]*)`", " ".join(rows)))
    assert len(promised) > 5 and promised <= set(site_hooks.MODULES)
    for name in (name for module in site_hooks.MODULES for name in site_hooks.documented(module)):
        assert callable(resolve_name(name)), name  # what has moved has its new name there
    # fonts of the system; no address in what the settings add to pages
    assert SETTINGS["theme"]["font"] is False and SETTINGS["strict"] is True
    assert "http" not in str({key: value for key, value in SETTINGS.items() if key not in ("site_url", "repo_url")})


@pytest.mark.parametrize("page", PORTUGUESE, ids=lambda page: page.name)
def test_a_page_in_portuguese_has_the_headings_of_the_english_one_and_leads_to_others(page: Path) -> None:
    """Number and level of headings; in the start and the tutorials also the code but for comments: it is run once."""
    theirs = page.read_text(encoding="utf-8")
    ours = page.with_name(page.name.replace(".pt-BR.md", ".md")).read_text(encoding="utf-8")
    assert levels(theirs) == levels(ours)
    assert page.name.removesuffix(".pt-BR.md") not in START or code(theirs) == code(ours)
    accented = len(re.findall(r"\w*[ãçéêíóúâõ]\w*", theirs))
    assert accented > len(theirs.split()) / 50, "is it Portuguese, with its accents?"
    # where a clone is read, no plugin chooses the language; a page leads to its English self alone
    named = re.findall(r"\]\(([\w/-]+)\.md[)#]", page.read_text(encoding="utf-8"))
    ours = {one.relative_to(DOCS).as_posix().removesuffix(".pt-BR.md") for one in PORTUGUESE if one != page}
    assert sorted(ours & set(named)) == []


def levels(text: str) -> list[str]:
    return re.findall(r"^(#+) ", FENCE.sub("", text), flags=re.M)


def code(text: str) -> list[str]:
    """The blocks of code without comments and the spaces before them; texts that a program prints are left out."""
    blocks = [block for block in FENCE.findall(text) if not block.startswith("text\n")]
    return [re.sub(r"(^|\s+)# .*$", "", block, flags=re.M) for block in blocks]


def test_the_charts_are_drawn_from_their_tables() -> None:
    """Every ratio of the table, within the scale; ratios of time are inverted."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert (DOCS / "benchmarks" / "ratios.svg").read_text("utf-8") == ratio_chart.drawn(page), "tools/ratio_chart.py"
    found = dict(ratio_chart.rows(page))
    assert found["training Transformer-base, target tokens per second"] == [3.6, 6.6]
    assert [round(1 / one, 2) for one in found["pretrained families, a training step, time"]] == [1.12, 0.41]
    assert all(ratio_chart.LOW <= one <= ratio_chart.HIGH for ratios in found.values() for one in ratios)
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    tables = dict(zip(gallery_pictures.TABLES, gallery_pictures.rows(page), strict=True))
    for name, table in tables.items():
        drawn = (DOCS / "gallery" / f"{name}.svg").read_text("utf-8")
        assert drawn == gallery_pictures.drawn(table), "tools/gallery_pictures.py"
    assert [len(table) for table in tables.values()] == [9, 4, 8]
    assert tables["fine-tuned"][5] == ("names, Portuguese, WikiANN", "entity F1 76.0", 0.76)
    assert all((DOCS / one).is_file() for one in re.findall(r"\]\((\S+(?:svg|png))\)", page))


def test_a_translated_heading_has_the_english_address_too_and_the_report_is_in_the_navigation(tmp_path: Path) -> None:
    """But for the title, and one that has it already; comments of code are no headings."""
    english = "# Start\n\n```bash\n# a comment\n```\n\n## Read it\n\n### A1\n"
    theirs = "# Início\n\n```bash\n# um comentário\n```\n\n## Leia\n\n### A1\n"
    expected = theirs.replace("## Leia", '<a id="read-it"></a>\n\n## Leia')
    assert site_hooks.with_english_places(theirs, english) == expected
    assert site_hooks.with_english_places(expected, english) == expected
    nav = ["README.md", {"The lecture notes": ["notes.md"]}, {"Project": ["budget.md"]}]
    folder = tmp_path / "notes-report"
    assert site_hooks.with_report(nav, folder) == nav
    (folder / "pt-BR").mkdir(parents=True)
    added = {"The lecture notes": ["notes.md", {"Todas as figuras": "notes-report/pt-BR/index.html"}]}
    assert site_hooks.with_report(nav, folder) == [nav[0], added, nav[2]]
    assert site_hooks.with_report(site_hooks.with_report(nav, folder), folder) == [nav[0], added, nav[2]]
    assert {"The lecture notes": ["notes.md"]} in SETTINGS["nav"]


def test_links_out_of_docs_and_the_readme_lead_to_the_same() -> None:
    page, record = DOCS / "compatibility.md", DOCS / "decisions" / "shapes.md"
    moved = "see [CHANGELOG](repository/CHANGELOG.md#x), [here](#y), [data](data.md), [out](https://a.b/c)"
    assert site_hooks.relinked(moved.replace("repository", ".."), page) == moved
    assert site_hooks.relinked("[a](../../src/atento/model.py)", record) == "[a](../repository/src/atento/model.py.md)"
    log = ROOT / "CHANGELOG.md"
    assert site_hooks.relinked("[a](docs/data.md#file-formats)", log) == "[a](../data.md#file-formats)"
    pages = site_hooks.beside()
    assert {"repository/CHANGELOG.md", "repository/CONTRIBUTING.md"} <= set(pages)
    assert "](../compatibility.md#" in pages["repository/CHANGELOG.md"]
    known = "".join((DOCS / name).read_text("utf-8") for name in ("benchmarks.md", "portuguese.md"))
    for name, told in (("README.md", "Measured"), ("README.pt-BR.md", "Medido")):
        text = re.findall(rf"^\*\*{told}\..+$", (DOCS / name).read_text("utf-8"), flags=re.M)[0]
        numbers = [one.replace(",", ".") for one in re.findall(r"\d+[.,]\d+", text)]
        assert len(numbers) >= 7 and all(re.search(rf"\b{re.escape(one)}\b", known) for one in numbers), numbers
    # one sentence, the picture, three commands, four doors, what was measured, the notes; in both languages
    for name in ("README.md", "README.pt-BR.md"):
        site, readme = (DOCS / name).read_text("utf-8"), (ROOT / name).read_text("utf-8").replace("](docs/", "](")
        sentence, picture = site.split("\n\n")[1:3]
        doors = re.findall(r"^- \[\*\*.+$", site, flags=re.M)
        told = re.findall(r"^\*\*(?:Measured|Medido|The lecture notes|As notas de aula)\..+$", site, flags=re.M)
        commands = FENCE.findall(site)[0]
        assert len(doors) == 4 and len(told) == 2 and commands.count("\n$ ") == 3
        assert readme.split("\n\n")[1].startswith(sentence) and commands in FENCE.findall(readme)
        assert all(part in readme.partition("\n## ")[0] for part in (*doors, *told))
        alt, file = re.findall(r"\[!\[(.+)\]\((.+)\)\]", picture)[0]
        assert f'<img src="docs/{file}" alt="{alt}">' in readme
        for named in re.findall(r'src(?:set)?="(.+?)"', readme):
            assert 10_000 < (ROOT / named).stat().st_size < 1_500_000


@pytest.mark.parametrize("name", ["one-sentence", "one-sentence-narrow", "one-sentence.pt-BR"])
def test_the_picture_is_of_the_real_translator(name: str) -> None:
    """Its steps write what the model writes, and stand still where the reader asks for it."""
    drawn = (DOCS / f"{name}.svg").read_text("utf-8")
    heads = re.findall(r'<g class="step .*?</text>', drawn)
    written = ["".join(re.findall(r'class="(?:behind|now)">([^<]*)', head)) for head in heads]
    assert len(written) > 8 and all(after.startswith(before) for before, after in pairwise(written))
    assert written[-1] == "O gato branco dorme na casa velha." and "prefers-reduced-motion" in drawn
    assert "<script" not in drawn and "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
