"""The pages that people read: their links lead somewhere, and so do the pages and files that text and code name."""

import pkgutil
import re
from pathlib import Path

import pytest
import typer

import atento
from atento.config.presets import PRESETS
from atento_cli.main import application

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!`)!?\[[^\]\n]*\]\(([^)\s]+)\)")


def path(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings and of what it names itself, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.M):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=path)
def test_nothing_is_left_to_be_filled_in_and_links_and_files_are_there(page: Path) -> None:
    """No placeholder of whoever wrote the page; inside quotation marks of code they are a subject."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert re.findall(r"\b(?:TODO|FIXME|TBD|XXX)\b|^[A-Z]{4,}$", text, flags=re.M) == []
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in LINK.findall(text):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), f"{path(page)}: {link}"
        assert not anchor or anchor in anchors(there), f"{path(page)}: {link}: {sorted(anchors(there))}"
    # `decoding/generate.py` and its like, from the root or from the package; a bare `NAME.py` anywhere in it
    if page.name == "CHANGELOG.md":
        return  # which names what was
    for name in re.findall(r"`([\w./-]+\.py)`", text):
        places = [ROOT / name, ROOT / "src" / name, ROOT / "src" / "atento" / name]
        assert any(place.is_file() for place in places) or ("/" not in name and any(ROOT.glob(f"src/**/{name}"))), name


def test_pages_that_code_names_and_modules_that_pages_name_exist() -> None:
    """`docs/NAME.md#anchor` in docstrings, messages, help and tools."""
    assert sum(len(LINK.findall(page.read_text(encoding="utf-8"))) for page in PAGES) > 10
    named = re.compile(r"docs/([a-z/-]+\.md)(?:#([\w-]+))?")
    files = [file for folder in ("src", "tests", "tools") for file in (ROOT / folder).rglob("*.py")]
    found = {
        (page, anchor): file
        for file in [*files, ROOT / "Makefile", ROOT / "pyproject.toml"]
        for page, anchor in named.findall(file.read_text(encoding="utf-8"))
    }
    assert len(found) > 30
    for (page, anchor), file in found.items():
        there = ROOT / "docs" / page
        assert there.is_file(), f"{file.name} names docs/{page}"
        assert not anchor or anchor in anchors(there), f"{file.name} names docs/{page}#{anchor}"
    # `atento.decoding.rules` is a module, or a name in one
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        now, heading, moved = text.partition("## Imports that moved")
        text = now + heading + re.sub(r"^\|.+?\|", "|", moved, flags=re.M)  # whose first column has the old names
        for name in re.findall(r"`(atento\w*(?:\.\w+)+)[`(]", text):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError) as error:
                raise AssertionError(f"{page.name} names {name}") from error


def test_commands_presets_decisions_and_public_names_are_on_their_pages() -> None:
    commands = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8"), flags=re.M)
    assert set(commands) <= set(re.findall(r"`(\w+)`", " ".join(rows)))
    networks = (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    assert {name.replace("-", "_") for name in PRESETS} <= set(re.findall(r"`(\w+)`", networks))
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = [page for page in folder.glob("*.md") if page.name != "README.md"]
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"^Decided \d{4}-\d\d-\d\d", text, flags=re.M)) == 1, page.name
        assert f"- [{text.splitlines()[0].removeprefix('# ')}]({page.name}): " in index, page.name
        assert re.findall(r"^## (.+)$", text, flags=re.M) == ["Decision", "Rejected"], page.name
    # the names that docs/compatibility.md promises for `atento`, one by one
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    row = re.search(r"^\| of `atento` itself: (.+?) \|", page, flags=re.M)
    assert row is not None and set(re.findall(r"`(\w+)`", row[1])) == {*atento.__all__} - {"__version__"}
