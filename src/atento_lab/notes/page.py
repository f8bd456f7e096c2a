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

from atento_lab.notes.errata import ERRATA, errata_of
from atento_lab.notes.finding import Row
from atento_lab.notes.table import CREDIT, ROWS

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
SCAFFOLDING = (
    "atento.config",
    "atento.errors",
    "atento_lab.notes.checks",
    "atento_lab.notes.drawing",
    "atento_lab.notes.finding",
)
_HEAD = """# The lecture notes, row by row

This page lists the rows of five Portuguese lecture notes that Atento checks. Each check computes a value with the \
library and compares it with a value computed independently. Where the notes contain an error, the row gives the \
correct statement.

```bash
atento notes A3 L1     # runs two rows; without names it lists the rows; --all runs them
```

Docstrings name a row by its address here, for example `docs/notes.md#a11`.

{credit}

This page is generated: `atento notes --page > docs/notes.md`.
"""


def page() -> str:
    """Return the page in Markdown: a section per letter, a heading per row, and the errors by number."""
    lines = [_HEAD.format(credit=CREDIT)]
    names = sorted(ROWS, key=_sort_key)
    for letter, title in SECTIONS.items():
        lines.append(f"## {title}\n")
        for name in (name for name in names if name[0] == letter):
            lines += _row(ROWS[name])
    lines.append("## Errors of the notes\n")
    lines += ["| error | the notes | right | named by |", "| --- | --- | --- | --- |"]
    for number, erratum in ERRATA.items():
        rows = ", ".join(f"[{row}](#{row.lower()})" for row in erratum.rows)
        lines.append(f"| {number} | {erratum.notes} | {erratum.right} | {rows} |")
    return "\n".join(lines) + "\n"


def _sort_key(name: str) -> tuple[str, int, str]:
    """Return a key that sorts C2 before C10, and C17 before C17b."""
    digits = name[1:].rstrip("b")
    return name[0], int(digits), name[1 + len(digits) :]


def _row(row: Row) -> list[str]:
    text = inspect.cleandoc(row.check.__doc__ or "").replace("\n", " ")
    text = text.partition(": ")[2] if text.startswith(f"{row.id}:") else text.partition(", ")[2]
    if re.match("(a|[a-z]{2,})[ ,;-]", text):  # a word; formulas and names keep their first letter
        text = text[0].upper() + text[1:]
    text = text.replace("<", "\\<")
    lines = [f"### {row.id}\n", f"**{row.title[0].upper()}{row.title[1:]}.** {text}\n"]
    for number, erratum in errata_of(row.id).items():
        lines.append(f"- Error {number}. The notes: {erratum.notes}. Right: {erratum.right}.")
    links = [f"[`{name}`](../src/{path})" for name, path in library_parts(row.check)]
    if links:
        lines.append(f"- In the library: {', '.join(links)}.")
    return [*lines, ""]


def library_parts(check: Callable[..., Any]) -> list[tuple[str, str]]:
    """Return the parts of the library that a check calls: (name, file under `src`), sorted by file.

    Calls through functions of the check's own file count. If there are none, calls through functions of other checks
    count.
    """
    return _parts(check, check.__module__) or _parts(check, "atento_lab.notes.checks")


def _parts(check: Callable[..., Any], prefix: str) -> list[tuple[str, str]]:
    """Return the same; functions of modules whose name begins with `prefix` are followed."""
    parts: set[tuple[str, str]] = set()
    visited, waiting = set[object](), [inspect.unwrap(check)]
    while waiting:
        function = waiting.pop()
        visited.add(function)
        for name in sorted(_names(function)):
            value = function.__globals__.get(name)
            value = inspect.unwrap(value) if callable(value) else value
            module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
            if inspect.isfunction(value) and module.startswith("atento_lab.notes.checks"):
                waiting += [value] if module.startswith(prefix) and value not in visited else []
            elif module.startswith("atento") and not module.startswith(SCAFFOLDING) and value is not None:
                parts.add((getattr(value, "__qualname__", module.rpartition(".")[2]), _source_file(module)))
    return sorted(parts, key=lambda part: part[::-1])


def _source_file(module: str) -> str:
    """Return the path of a module's file under `src`."""
    file = sys.modules[module].__file__
    assert file is not None
    return Path(file).relative_to(Path(__file__).parents[2]).as_posix()


def _names(function: Callable[..., Any]) -> set[str]:
    """Return the names that occur in a function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
