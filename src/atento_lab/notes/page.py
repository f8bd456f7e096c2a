"""Generate `docs/notes.md` from the table of rows; row A11 has the address `docs/notes.md#a11`."""

import re

from atento_lab.notes.errata import errata_of
from atento_lab.notes.finding import Row
from atento_lab.notes.table import ROWS
from atento_lab.notes.wording import CREDIT, ENGLISH, Wording

SECTIONS = {
    "A": "Attention",
    "B": "Positions",
    "C": "Blocks and models",
    "D": "Tokens",
    "E": "Objectives",
    "F": "Training",
    "G": "Tasks",
    "H": "Decoding",
    "I": "Metrics",
    "J": "Figures",
    "K": "Listings",
    "L": "Worked examples and questions",
}
_HEAD = (
    "The lecture notes, row by row",
    "What five Portuguese lecture notes state, and in bold numbers their errors. The check of a row compares a value "
    "of the library with one computed independently; its title leads to the code.",
    "`atento notes A3 L1` runs two rows; bare, it lists them; `--all` runs all: 75 seconds on two quiet cores, up to "
    "nine minutes on busy ones. `--report --out DIR` also writes a page for each of the notes, with whole descriptions "
    "and every figure; `--language pt-BR` gives Portuguese.",
    CREDIT,
)


def page(words: Wording = ENGLISH) -> str:
    """Return the page in Markdown: a section per letter, a heading per row, and the errors at their rows."""
    lines = [f"# {words.text(_HEAD[0])}\n", *(f"{words.text(paragraph)}\n" for paragraph in _HEAD[1:])]
    names = sorted(ROWS, key=_sort_key)
    for letter, title in SECTIONS.items():
        lines.append(f"## {words.text(title)}\n")
        for name in (name for name in names if name[0] == letter):
            lines += _row(ROWS[name], words)
    return "\n".join(lines)


def _sort_key(name: str) -> tuple[str, int, str]:
    """Return a key that sorts C2 before C10, and C17 before C17b."""
    digits = name[1:].rstrip("b")
    return name[0], int(digits), name[1 + len(digits) :]


def _row(row: Row, words: Wording) -> list[str]:
    """Return the lines of a row: its title, a link to its check, and its errors, each in full where it occurs first.

    Of a description the first part stands here, up to a semicolon or full stop.
    """
    title, about = row.titled(words), re.split(r"(?<!\.)[;.](?: |$)", row.about(words).replace("<", "\\<"))[0]
    if row.id[0] in "JK":  # "figure: ", "listing: ", as the section says
        title = title.partition(": ")[2]
    file = row.check.__module__.replace(".", "/")
    lines = [f"### {row.id}\n", f"**[{title[0].upper()}{title[1:]}](../src/{file}.py).** {about}.\n"]
    for number, error in errata_of(row.id).items():
        first = error.rows[0]
        told = words.text("**{}:** {}. Right: {}.").format(number, *words.error(number))
        if first != row.id:
            told = words.text("**{}:** see {}.").format(number, f"[{first}](#{first.lower()})")
        lines.append(f"{told}\n")
    return lines
