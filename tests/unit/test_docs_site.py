"""The site and the notebooks: each page has its line in mkdocs.yml, made files are up to date, both languages agree."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from nbformat import reads, v4, validate, writes
from tools import gallery_pictures, notebooks, ratio_chart, site_hooks

from failing import fails

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


LESSONS = notebooks.sources()
MACHINE = re.compile(
    r"(?<![\w<])/(tmp|home|root|work|dev|usr|var|Users)/|\b[A-Z]:\\\\|0x[0-9a-f]{6}|<script|<iframe|\\u001b"
)


def test_every_source_has_both_notebooks_and_outputs_stay_while_the_code_is_the_same(tmp_path: Path) -> None:
    assert len(LESSONS) == 10
    for language in notebooks.LANGUAGES:
        assert {file.stem for file in (notebooks.FOLDER / language).iterdir()} == {file.stem for file in LESSONS}
    source = tmp_path / "lesson.py"
    source.write_text('# %% [markdown] lang="en"\n# # Title\n\n# %% [markdown]\n# text\n', encoding="utf-8")
    fails(ValueError, r"lesson.py: a cell of text needs lang=", notebooks.made, source, "en")
    source, file = tmp_path / "lesson.py", tmp_path / "lesson.ipynb"
    code = '# %% [markdown] lang="en"\n# # {title}\n\n# %%\nprint({number})\n\n# %% tags=["measured"]\n{number}\n'
    source.write_text(code.format(title="One", number=1), encoding="utf-8")
    outputs = [[v4.new_output("stream", text="1\n")], []]
    file.write_text(writes(notebooks.with_outputs(notebooks.made(source, "en"), outputs)), encoding="utf-8")
    source.write_text(code.format(title="Another title", number=1), encoding="utf-8")
    book = notebooks.made(source, "en")
    assert notebooks.outputs_in(file, book) == outputs
    source.write_text(code.format(title="One", number=2), encoding="utf-8")
    assert notebooks.outputs_in(file, notebooks.made(source, "en")) == []
    first, second = (cell for cell in book.cells if cell.cell_type == "code")
    first.outputs = [v4.new_output("stream", name="stderr", text="0.1 s\n"), *outputs[0]]
    second.outputs = outputs[0]
    assert [notebooks.kept(first), notebooks.kept(second)] == outputs


@pytest.mark.parametrize("source", LESSONS, ids=lambda source: source.stem)
def test_a_made_notebook_is_up_to_date_with_the_outputs_of_its_code_and_the_same_in_both_languages(source) -> None:
    """Small ones, which any reader of notebooks shows: no error, no script, nothing of the machine that ran them."""
    seen = []
    for language in notebooks.LANGUAGES:
        file, book = notebooks.place(source, language), notebooks.made(source, language)
        outputs, text = notebooks.outputs_in(file, book), file.read_text(encoding="utf-8")
        assert outputs, f"other code: python tools/notebooks.py --run {source.stem}"
        assert text == writes(notebooks.with_outputs(book, outputs)) + "\n", "run: python tools/notebooks.py"
        validate(reads(text, as_version=4))
        seen.append(outputs)
    assert seen[0] == seen[1]
    shown = [output for outputs in seen[0] for output in outputs]
    assert {output.output_type for output in shown} <= {"execute_result", "display_data", "stream"} and len(shown) > 3
    written = json.dumps(shown)
    assert any("image/svg+xml" in output.get("data", {}) or "<table" in str(output) for output in shown)
    assert len(written) < 150_000 and not MACHINE.search(written), MACHINE.search(written)
    code = (cell for cell in book.cells if cell.cell_type == "code")
    with_last_line = [cell for cell in code if "measured" not in cell.metadata.get("tags", ())]
    assert sum(bool(cell.outputs) for cell in with_last_line) > len(with_last_line) / 2
    # Cell for cell: the same kinds, the same code, as many headings and equations; a question and its solution
    english, portuguese = (notebooks.made(source, language).cells for language in notebooks.LANGUAGES)
    assert 8 <= len(english) <= 16
    assert [cell.cell_type for cell in english] == [cell.cell_type for cell in portuguese]
    for one, other in zip(english, portuguese):
        if one.cell_type == "code":
            assert one.source == other.source
        else:
            for pattern in (r"^#+ ", r"\$\$"):
                assert len(re.findall(pattern, one.source, re.M)) == len(re.findall(pattern, other.source, re.M))
    for cells, question, solution in ((english, "Question", "Solution"), (portuguese, "Pergunta", "Solução")):
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        assert "$$" in text and text.index(f"## {question}") < text.index(f"**{solution}.**")
