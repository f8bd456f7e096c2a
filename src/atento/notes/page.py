"""Generate `docs/notes.md` from the table of rows; row A11 has the address `docs/notes.md#a11`."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import atento
from atento.notes.errata import ERRATA, errata_of
from atento.notes.finding import Row
from atento.notes.table import CREDIT, ROWS, UNCHECKED

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
SCAFFOLDING = ("atento.config", "atento.errors", "atento.notes.checks", "atento.notes.drawing", "atento.notes.finding")
_HEAD = """# The lecture notes, row by row

This page lists the rows of five Portuguese lecture notes that Atento checks. Each check computes a value with the \
library and compares it with one found in another way. Where the notes contain an error, the row says what is right.

```bash
atento notes A3 L1     # runs two rows; without names it runs all of them
```

Docstrings name a row by its address here, for example `docs/notes.md#a11`.

{credit}

This page is generated: `atento notes --page > docs/notes.md`.
"""


def page() -> str:
    """The whole page in Markdown: a section a letter, a heading a row, and the errors of the notes by number."""
    lines = [_HEAD.format(credit=CREDIT)]
    names = sorted([*ROWS, *UNCHECKED], key=_place)
    for letter, title in SECTIONS.items():
        lines.append(f"## {title}\n")
        for name in (one for one in names if one[0] == letter):
            lines += _row(ROWS[name]) if name in ROWS else [f"### {name}\n", f"**{UNCHECKED[name]}.** No check yet.\n"]
    lines.append("## Errors of the notes\n")
    lines += ["| error | the notes | right | told by |", "| --- | --- | --- | --- |"]
    for number, one in ERRATA.items():
        rows = ", ".join(f"[{row}](#{row.lower()})" for row in one.rows)
        lines.append(f"| {number} | {one.notes} | {one.right} | {rows} |")
    return "\n".join(lines) + "\n"


def _place(name: str) -> tuple[str, int, str]:
    """C2 before C10, C17 before C17b."""
    digits = name[1:].rstrip("b")
    return name[0], int(digits), name[1 + len(digits) :]


def _row(row: Row) -> list[str]:
    told = inspect.cleandoc(row.check.__doc__ or "").replace("\n", " ")
    told = told.partition(": ")[2] if told.startswith(f"{row.id}:") else told.partition(", ")[2]
    if re.match("(a|[a-z]{2,})[ ,;-]", told):  # words; a formula or a name begins as it does
        told = told[0].upper() + told[1:]
    told = told.replace("<", "\\<")
    lines = [f"### {row.id}\n", f"**{row.title[0].upper()}{row.title[1:]}.** {told}\n"]
    for number, one in errata_of(row.id).items():
        lines.append(f"- Error {number}. The notes: {one.notes}. Right: {one.right}.")
    if row.missing:
        lines.append(f"- Not built yet: {row.missing}.")
    lives = [f"[`{name}`](../src/{path})" for name, path in library_parts(row.check)]
    if lives:
        lines.append(f"- In the library: {', '.join(lives)}.")
    return [*lines, ""]


def library_parts(check: Callable[..., Any]) -> list[tuple[str, str]]:
    """What of the library a check calls, itself or by functions of its own file: (name, file under `src`), by file.

    Where that is nothing, what the functions of other checks that it calls make use of.
    """
    return _parts(check, check.__module__) or _parts(check, "atento.notes.checks")


def _parts(check: Callable[..., Any], inside: str) -> list[tuple[str, str]]:
    """The same, with the functions of the modules whose name begins with `inside` looked through."""
    found: set[tuple[str, str]] = set()
    seen, waiting = set[object](), [inspect.unwrap(check)]
    while waiting:
        function = waiting.pop()
        seen.add(function)
        for name in sorted(_names(function)):
            used = function.__globals__.get(name)
            used = inspect.unwrap(used) if callable(used) else used
            home = used.__name__ if isinstance(used, ModuleType) else getattr(used, "__module__", None) or ""
            if inspect.isfunction(used) and home.startswith("atento.notes.checks"):
                waiting += [used] if home.startswith(inside) and used not in seen else []
            elif home.startswith("atento") and not home.startswith(SCAFFOLDING) and used is not None:
                found.add((getattr(used, "__qualname__", home.rpartition(".")[2]), _file_of(home)))
    return sorted(found, key=lambda part: part[::-1])


def _file_of(module: str) -> str:
    """Its file under `src`."""
    file = sys.modules[module].__file__
    assert file is not None
    return Path(file).relative_to(Path(atento.__file__).parent.parent).as_posix()


def _names(function: Callable[..., Any]) -> set[str]:
    """The names that stand in a function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
