"""Draws docs/benchmarks/ratios.svg from the summary of docs/benchmarks.md: how many times as fast each row is."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

from atento.inspection import palette
from atento.inspection.figures import svg

DOCS = Path(__file__).resolve().parents[1] / "docs"
LEFT, WIDE, ROW, TOP = 430, 420, 26, 60
LOW, HIGH = 0.5, 50.0
TICKS = (0.5, 1, 2, 5, 10, 20, 50)


def rows(page: str) -> Iterator[tuple[str, list[float]]]:
    """Yield each measurement that has ratios, and the ratios as times as fast: those of time are inverted."""
    (table,) = re.findall(r"^\| measurement .+?\n\|[ -|]+\n(.+?)\n\n", page, flags=re.M | re.S)
    last = ""
    for line in table.splitlines():
        name, _, _, ratio = (cell.strip() for cell in line.strip("|").split("|"))
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", name).replace("`", "")
        numbers = [float(one) for one in re.findall(r"(?<![a-z\d.])\d+(?:\.\d+)?", ratio)]
        if plain.startswith("the same"):
            plain = f"{last.split(',')[0]}{plain.removeprefix('the same').replace(' for ', ', ', 1)}"
        else:
            last = plain
        if numbers:
            yield plain, sorted(1 / one for one in numbers) if re.search(r"\btime\b", name) else sorted(numbers)


def place(ratio: float) -> float:
    """Return the distance from the left of a ratio, on a logarithmic scale."""
    return LEFT + WIDE * math.log(ratio / LOW) / math.log(HIGH / LOW)


def drawn(page: str) -> str:
    """Return the chart: a line for each row from its lowest to its highest ratio."""
    found = list(rows(page))
    foot = TOP + ROW * len(found)
    parts = [svg.text(16, 26, "Times as fast as another library", font_size=15, font_weight="600")]
    for tick in TICKS:
        at = place(tick)
        parts.append(svg.path(f"M{at:.1f} {TOP - 12}V{foot}", stroke=palette.INK if tick == 1 else palette.ZERO))
        parts.append(svg.text(at, foot + 16, f"{tick:g}", text_anchor="middle", fill=palette.SOFT))
    for number, (name, ratios) in enumerate(found):
        y = float(TOP + ROW * number)
        low, high = place(ratios[0]), place(ratios[-1])
        short = name if len(name) < 64 else name[:62].rsplit(" ", 1)[0] + " …"
        said = f"{ratios[0]:.2g}" if len(ratios) == 1 else f"{ratios[0]:.2g}–{ratios[-1]:.2g}"
        title = svg.tooltip(f"{name}: {said}")
        parts.append(svg.text(LEFT - 12, y + 4, short, text_anchor="end"))
        parts.append(svg.rect(low - 3, y - 4, high - low + 6, 8.0, title, rx=4, fill=svg.ramp_colour(0.7)))
        parts.append(svg.text(high + 10, y + 4, said, fill=palette.SOFT))
    return svg.drawing(
        LEFT + WIDE + 80, foot + 30, "Times as fast as another library", parts, font_size=12, fill=palette.INK
    )


if __name__ == "__main__":
    (DOCS / "benchmarks" / "ratios.svg").write_text(
        drawn((DOCS / "benchmarks.md").read_text("utf-8")), encoding="utf-8"
    )
