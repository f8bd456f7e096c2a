"""The works of Machado de Assis as paragraphs, and the stories of a book apart."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from atento.data.files.paragraphs import paragraphs

_INDEX = ("ÍNDICE", "INDICE")
_HEADING = re.compile(r"(CAP[ÍI]TULO|CENA|Cena|ATO|Ato)\b.{0,30}|[IVXLC]+\.?")


def stories(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines of each story by its title: those of the indices of books, which a blank line precedes.

    What stands before the first story of a book, such as a preface, is left out, and so are indices of chapters.
    """
    found: dict[str, list[str]] = {}
    titles: set[str] = set()
    story: list[str] = []  # of the preface; nobody keeps it
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        if line in _INDEX:
            entries, end = _entries(lines, at + 1)
            if at and not lines[at - 1].strip():
                titles, story = set(entries), []
            at = end
            continue
        if line in titles:
            story = found.setdefault(line, [])
        else:
            story.append(line)
        at += 1
    return {title: text for title, text in found.items() if sum(map(len, text)) > 2000}  # a preface of some lines


def _entries(lines: Sequence[str], start: int) -> tuple[list[str], int]:
    """The lines of an index, which ends where its first line comes again, and the number of that line."""
    first = lines[start].strip()
    end = next((at for at in range(start + 1, len(lines)) if lines[at].strip() == first), start)
    return [line.strip() for line in lines[start:end]], end


def chapters(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the paragraphs of each chapter: headings such as "CAPÍTULO II" and "IV" part chapters, and are left out."""
    chapter: list[str] = []
    for line in [*lines, "I"]:
        if _HEADING.fullmatch(line.strip()):
            if texts := [
                str(line[1]) for line in paragraphs(partial(enumerate, chapter, 1)) if isinstance(line, tuple)
            ]:
                yield texts
            chapter = []
        else:
            chapter.append(line)
