"""The five lecture notes, from `five_notes.json`: chapters in the order of the book with their rows, and errors."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Chapter:
    """A part of a note, titled in our own words."""

    title: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """A lecture note.

    Args:
        number: from 1, in the order of the book.
        name: of its page.
        title: what it is about.
        errors: numbers of its errors in `atento_lab.notes.errata`.
        chapters: its parts; a row stands once in a note, and may stand in several notes.
    """

    number: int
    name: str
    title: str
    errors: tuple[int, ...]
    chapters: tuple[Chapter, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of all chapters, in their order."""
        return tuple(row for chapter in self.chapters for row in chapter.rows)


@cache
def five_notes() -> tuple[Note, ...]:
    """Return the notes, in the order of the book."""
    notes = []
    text = files("atento_lab.notes").joinpath("five_notes.json").read_text(encoding="utf-8")
    for number, note in enumerate(json.loads(text), start=1):
        chapters = tuple(Chapter(title, tuple(rows.split())) for title, rows in note["chapters"].items())
        notes.append(Note(number, note["name"], note["title"], tuple(note["errors"]), chapters))
    return tuple(notes)
