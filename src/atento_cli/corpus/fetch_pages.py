"""The help pages of LibreOffice to sentence pairs: a paragraph has the same id in every language."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from atento.base.errors import DataError
from atento.base.limits import read_plain_text

_PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}


class Paragraph(NamedTuple):
    """One paragraph of a page: its id, its class ("code" and the like), its text without markup."""

    id: str
    kind: str
    text: str


class _Reader(HTMLParser):
    """Collects the paragraphs that have an id.

    A page holds text for several systems and programs side by side, each in a hidden span that a script shows; the
    span with a class is for one of them (`<span hidden="true" class="MAC">`), the one without is for all others.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[Paragraph] = []
        self._id = self._kind = ""
        self._text: list[str] = []
        self._spans: list[bool] = []  # of each open span: is it for one system only?

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag in _PARAGRAPHS:
            self._end()  # pages leave paragraphs open now and then
            self._id, self._kind = known.get("id") or "", known.get("class") or ""
        elif tag == "span":
            self._spans.append("hidden" in known and bool(known.get("class")))
        elif tag == "br":
            self._text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._end()
        elif tag == "span" and self._spans:
            self._spans.pop()

    def handle_data(self, data: str) -> None:
        if self._id and not any(self._spans):  # text for one system alone is left out
            self._text.append(data)

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        if self._id:
            self.paragraphs.append(Paragraph(self._id, self._kind, " ".join("".join(self._text).split())))
        self._id, self._text, self._spans = "", [], []  # spans end with their paragraph


def paragraphs(page: str) -> list[Paragraph]:
    """The paragraphs with an id of one HTML page, in their order, white space collapsed."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.paragraphs


def page_pairs(english: Path, foreign: Path, left_out: Counter[str]) -> Iterator[tuple[str, str, str]]:
    """Pair the paragraphs of two trees of pages.

    A pair needs the same page, the same id, and that id as often in both (the n-th then answers the n-th).

    Args:
        english, foreign: folders of pages, the same relative names in both.
        left_out: counts what has no partner, and program code.

    Yields:
        page, English text, foreign text.

    Raises DataError: a folder without pages, or a page that is not UTF-8.
    """
    names = [path.relative_to(english).as_posix() for path in sorted(english.rglob("*.html"))]
    if not names:
        raise DataError(f"{english}: holds no help pages (.html)")
    for name in names:
        ours = _by_id(english / name)
        theirs = _by_id(foreign / name) if (foreign / name).is_file() else {}
        for key, texts in ours.items():
            if len(theirs.get(key, [])) != len(texts):  # no partner, or not as many
                left_out["without a partner"] += len(texts)
                continue
            for paragraph, translation in zip(texts, theirs[key]):
                if "code" in paragraph.kind:
                    left_out["program code"] += 1
                else:
                    yield name, paragraph.text, translation.text


def _by_id(path: Path) -> dict[str, list[Paragraph]]:
    try:
        page = read_plain_text(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start}") from None
    grouped: dict[str, list[Paragraph]] = defaultdict(list)
    for paragraph in paragraphs(page):
        grouped[paragraph.id].append(paragraph)
    return grouped
