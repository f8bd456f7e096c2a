"""The budget of docs/budget.md: what can be counted is within its limit, and no limit is far above it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from test_house_rules import FILES, HOUSES, forgotten, home_of, trees  # noqa: F401

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "budget.md").read_text(encoding="utf-8").partition("\n## ")[0]  # its table
ROWS = re.findall(r"^\| (.+?) \| ([\d,]+) \| (\w+).*? \| (.+) \|$", PAGE, flags=re.M)
STARTS = {
    "modules of ours that `import atento` loads": "import atento",
    "modules of ours that one command's help loads": "from atento_cli.main import application as a; a('translate')",
    "modules of ours that the help of all loads": "from atento_cli.main import application as a; a()",
}


def counted(what: str) -> int:
    """The number itself: lines or statements of a package, or modules after a start in a process of its own."""
    if what in STARTS:
        program = f"import sys; {STARTS[what]}; print(sum(name.split('.')[0] in {set(HOUSES)} for name in sys.modules))"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        return int(done.stdout)
    ((unit, house),) = re.findall(r"^(lines|statements) of `(\w+)`$", what)
    files = [file for file in FILES if file.relative_to(home_of(file)).parts[0] == house]
    files = sorted((ROOT / house).rglob("*.py")) if house == "tests" else files
    if unit == "statements":
        return sum(isinstance(node, ast.stmt) for file in files for node in ast.walk(trees()[file]))
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def test_each_house_and_each_start_has_a_row_that_says_what_it_buys() -> None:
    names = [what for what, _, how, _ in ROWS if how == "counted"]
    lines, statements = ([f"{unit} of `{house}`" for house in HOUSES] for unit in ("lines", "statements"))
    assert names == [*lines, "lines of `tests`", *statements, *STARTS]
    assert all(len(why) > 20 for *_, why in ROWS) and len(ROWS) == len(names) + 2


@pytest.mark.parametrize(("what", "most"), [(what, most) for what, most, how, _ in ROWS if how == "counted"])
def test_what_is_counted_is_within_its_limit(what: str, most: str) -> None:
    number, limit = counted(what), int(most.replace(",", ""))
    assert number <= limit, f"{what}: {number:,}; docs/budget.md says {limit:,}, and why it may grow"
    assert limit <= max(1.1 * number, number + 3), f"{what}: {number:,}; lower the limit {limit:,} of docs/budget.md"
