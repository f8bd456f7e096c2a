"""Hooks of MkDocs: pages of public modules, files beside docs/ that pages link to, the look, llms.txt (`make docs`).

A link from docs/ to a file outside it (`../CHANGELOG.md`) leads to the file on the repository's page. In the site it
leads to a page with the text of that file, under repository/.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from atento.inspection.palette import palette_sheet
from atento.inspection.standalone import part

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[#)])")
NAMED = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")
# The public modules of docs/compatibility.md, with names that are given by their homes: those of `atento`, which are
# loaded late, and functions whose file has their name, which the reader of the source takes for the file.
MODULES: dict[str, tuple[str, ...]] = {
    "atento": (
        *("model.load", "runs.train.train", "evaluation.evaluate", "atento_cli.search.run_search.search"),
        *(
            "atento_cli.suites.run_suite.glue",
            "atento_cli.labels.suspect_labels.suspect",
            "atento_cli.labels.next_labels.suggest",
            "model.Model",
            "retrieval.text_index.Index",
            "base.errors.AtentoError",
        ),
    ),
    "atento.attention": ("observe.observe", "prove.prove"),
    "atento.attention.masks": (),
    "atento.attention.positions": (),
    "atento.networks": (),
    "atento.config.presets": (),
    "atento.inference": (),
    "atento.decoding": ("generate.generate",),
    "atento.metrics": (
        "bleu.bleu",
        "classes.confusion",
        "perplexity.perplexity",
        "rankings.retrieval",
        "rouge.rouge",
    ),
    "atento.text": (),
    "atento.sklearn": ("_Trained",),  # whose arguments those of three estimators are
    "atento.notes": (),
    "atento_world": (),
}
_seen: dict[str, Navigation] = {}  # language -> navigation, for llms.txt


class Elsewhere(File):
    """A page that the build of another language writes: links of this one lead to it."""

    def is_documentation_page(self) -> bool:
        """Return False: there is nothing to render."""
        return False

    def copy_file(self, dirty: bool = False) -> None:
        """Do nothing: the other build writes it."""


def elsewhere(config: MkDocsConfig, source: str, address: str) -> Elsewhere:
    """Return a page that another build writes, by the path that links name and its address in the site."""
    file = Elsewhere(source, None, config.site_dir, False, dest_uri=address)
    file.generated_by = "tools/site_hooks.py"
    return file


def place(file: Path) -> str:
    """Return the source path of a file in the site: docs/ is its root, what stands beside docs/ is in repository/."""
    if DOCS in file.parents:
        return file.relative_to(DOCS).as_posix()
    name = file.relative_to(ROOT).as_posix()
    return f"repository/{name}" + ("" if file.suffix == ".md" else ".md")


def links(text: str, file: Path) -> Iterator[tuple[str, Path]]:
    """Yield the links of a page that lead to a file of the repository, and those files."""
    for link in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        there = (file.parent / link).resolve()
        if ROOT in there.parents and there.is_file():
            yield link, there


def relinked(text: str, file: Path) -> str:
    """Return a page with links to and from files beside docs/ as they are in the site."""
    up = "../" * place(file).count("/")
    found = dict(links(text, file))
    moved = {link: up + place(there) for link, there in found.items() if DOCS not in file.parents or
             DOCS not in there.parents}  # fmt: skip
    return LINK.sub(lambda one: moved.get(one[1], one[1]), text)


def beside() -> dict[str, str]:
    """Return the pages of files beside docs/ that a page links to, directly or by such a page: path -> text."""
    waiting = [there for page in DOCS.rglob("*.md") for _, there in links(page.read_text("utf-8"), page)]
    waiting += [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    pages: dict[str, str] = {}
    while waiting:
        file = waiting.pop()
        if DOCS in file.parents or place(file) in pages:
            continue
        text = file.read_text("utf-8")
        if file.suffix == ".md":
            waiting += [there for _, there in links(text, file)]
            pages[place(file)] = relinked(text, file)
        else:
            kind = {".py": "python", ".yaml": "yaml", ".toml": "toml"}.get(file.suffix, "text")
            hidden = "---\nsearch: {exclude: true}\n---\n"
            pages[place(file)] = f"{hidden}# {file.relative_to(ROOT)}\n\n`````{kind}\n{text.rstrip()}\n`````\n"
    return pages


def with_report(nav: list[Any], folder: Path) -> list[Any]:
    """Return a navigation that also names the report of the notes, in each language that has been written."""
    titles = {"en": "Every figure", "pt-BR": "Todas as figuras"}
    written = [{titles[name]: f"{folder.name}/{name}/index.html"} for name in titles if (folder / name).is_dir()]
    return [
        {key: [part[key][0], *written] if key == "The lecture notes" else part[key] for key in part}
        if isinstance(part, dict)
        else part
        for part in nav
    ]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add what `make notes-report` has written, which takes too long for every build."""
    config.nav = with_report(config.nav or [], DOCS / "notes-report")
    return config


def documented(module: str) -> list[str]:
    """What the page of a module documents beside the module itself, by its whole name."""
    return [name if name.startswith("atento_cli.") else f"{module}.{name}" for name in MODULES[module]]


@event_priority(-200)  # after the plugin of languages, which knows real files alone
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file of docs/ has, in English alone, and those of the other language, to be linked to."""
    pages = beside()
    for module in MODULES:
        names = [*([module] if module != "atento" else []), *documented(module)]
        pages[f"reference/{module}.md"] = f"# `{module}`\n\n" + "".join(f"::: {name}\n\n" for name in names)
    language = config.plugins["i18n"].current_language  # type: ignore[attr-defined]
    look = {"assets/palette.css": palette_sheet(), "assets/mark.svg": part("mark.svg")}
    for name, text in (pages | look).items():
        address = re.sub(r"README\.html$", "index.html", re.sub(r"\.md$", ".html", name))
        files.append(
            File.generated(config, name, content=text) if language == "en" else elsewhere(config, name, address)
        )
    for page in DOCS.glob("*.pt-BR.md"):
        name = page.name.removesuffix(".pt-BR.md").replace("README", "index")
        if language == "en":
            files.append(elsewhere(config, page.name, f"pt-BR/{name}.html"))
        else:
            files.append(elsewhere(config, f"english/{name}.md", f"{name}.html"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the pages of those files, and a page's link to its English self to that."""
    if page.file.generated_by:
        return markdown
    if page.file.src_uri.startswith("README."):
        page.meta["hide"] = ["navigation", "toc"]
    name = page.file.src_uri.removesuffix(".pt-BR.md")
    if name != page.file.src_uri:
        markdown = with_english_places(markdown, (DOCS / f"{name}.md").read_text("utf-8"))
        markdown = markdown.replace(f"]({name}.md", f"](english/{name.replace('README', 'index')}.md")
    return relinked(markdown, DOCS / page.file.src_uri)


def with_english_places(text: str, english: str) -> str:
    """Return a translated page whose headings below the first also have the addresses of the English ones."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.M | re.S)
    plain = re.sub(r"^```.*?^```", "", english, flags=re.M | re.S)
    slugs = iter([slugify(case="lower")(heading, "-") for heading in re.findall(r"^##+ (.+)$", plain, flags=re.M)])

    def marked(heading: re.Match[str]) -> str:
        slug = next(slugs, "")
        same = not slug or slug == slugify(case="lower")(heading[1], "-") or f'id="{slug}"' in text
        return heading[0] if same else f'<a id="{slug}"></a>\n\n{heading[0]}'

    parts[::2] = [re.sub(r"^##+ (.+)$", marked, part, flags=re.M) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the pages that docstrings name, as in docs/notes.md#a7."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    return NAMED.sub(lambda one: f'<a href="../{one[1]}.html{one[2] or ""}">{one[0]}</a>', html)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the navigation of each language."""
    _seen[config.plugins["i18n"].current_language] = nav  # type: ignore[attr-defined]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, a map of the pages for language models: sections, titles, first sentences."""
    if config.plugins["i18n"].current_language != "en":  # type: ignore[attr-defined]
        return
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for item in _seen["en"].items:
        pages = [item] if isinstance(item, Page) else list(under(item))
        lines += [f"## {item.title}", "", *(entry(page) for page in pages), ""]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def under(section: object) -> Iterator[Page]:
    """Yield the pages of a section and of its sections."""
    for child in getattr(section, "children", None) or ():
        if isinstance(child, Page):
            yield child
        else:
            yield from under(child)


def entry(page: Page) -> str:
    """Return the line of a page: its title as a link, and the first sentence of its first paragraph."""
    text = re.sub(r"^(?:---\n.*?^---\n|```.*?^```)", "", page.markdown or "", flags=re.M | re.S)
    first = next((line for line in text.splitlines() if re.match(r"[\w*`]", line)), "")
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", first)
    sentence = re.split(r"(?<=[.:!?]) ", plain)[0]
    return f"- [{page.title}]({page.url})" + (f": {sentence}" if sentence else "")
