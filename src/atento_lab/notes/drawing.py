"""Figures of the notes as SVG and text: heat maps, links between tokens, captions."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.token_display import display_width, visible
from atento_lab.notes.finding import plain

SHADES = "·░▒▓█"


@dataclass(frozen=True)
class Panel:
    """A part of a drawing: its size, and its SVG elements with the origin at (0, 0)."""

    width: float
    height: float
    parts: list[str]


def colour(value: float, top: float) -> str:
    """Return blue for positive, brown for negative and grey for infinite numbers, darker for larger ones."""
    if math.isinf(value):
        return palette.ZERO
    share = value / top if top else 0.0
    if share >= 0:
        return svg.ramp_colour(share)
    return svg.mixed(palette.LIGHT_RAMP[0], palette.MARK, min(1.0, -share))


def text_at(x: float, y: float, text: str, size: int = 11, fill: str = palette.SOFT, anchor: str = "start") -> str:
    """Return one line of text as an SVG element."""
    return svg.text(float(x), float(y), visible(text), font_size=size, fill=fill, text_anchor=anchor)


def heat(
    matrix: object,
    title: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    *,
    cell: int = 38,
    digits: int = 2,
) -> Panel:
    """Draw a matrix as a heat map. Cells of 30 pixels or more show their number."""
    table = plain(matrix)
    numbers = [float(value) for row in table for value in row]
    top = max((abs(value) for value in numbers if not math.isinf(value)), default=0.0)
    left = 8 + (7 * max(map(display_width, rows)) + 6 if rows else 0)
    above = 22 + (16 if columns else 0)
    parts = [text_at(0, 12, title, 12, palette.INK)]
    parts += [text_at(left + (n + 0.5) * cell, above - 4, name, anchor="middle") for n, name in enumerate(columns)]
    parts += [text_at(left - 6, above + (n + 0.6) * cell, name, anchor="end") for n, name in enumerate(rows)]
    for index, value in enumerate(map(float, numbers)):
        row, column = divmod(index, len(table[0]))
        x, y = left + column * cell, above + row * cell
        parts.append(svg.rect(float(x), float(y), cell - 1, cell - 1, fill=colour(value, top)))
        if cell >= 30:
            masked = math.isinf(value)
            # + 0.0 makes 0 of -0
            label = ("−∞" if value < 0 else "∞") if masked else f"{round(value, digits) + 0.0:.{digits}f}"
            ink = palette.PAPER if not masked and top and (value / top > 0.55 or value / top < -0.7) else palette.INK
            parts.append(text_at(x + (cell - 1) / 2, y + cell / 2 + 4, label, 10, ink, "middle"))
    width = max(left + len(table[0]) * cell, 7 * display_width(title))
    return Panel(width, above + len(table) * cell, parts)


def links(weights: object, names: Sequence[str], title: str, readers: Sequence[str] = ()) -> Panel:
    """Draw attention links from inputs (below) to outputs (above), thicker for larger weights."""
    table, step, high = plain(weights), 92, 150
    readers = readers or names
    parts = [text_at(0, 12, title, 12, palette.INK)]

    def middle(index: int) -> float:
        return step * (index + 0.5)

    for reader, row in enumerate(table):
        for key, weight in enumerate(row):
            if weight > 0:
                hover = svg.tooltip(f"{readers[reader]} reads {names[key]}: {weight:.4f}")
                ends = {"x1": middle(key), "y1": float(high), "x2": middle(reader), "y2": 46}
                look = {"stroke": svg.ramp_colour(0.35 + 0.65 * weight), "stroke_width": f"{0.6 + 5 * weight:.2f}"}
                parts.append(svg.element("line", hover, class_="link", **ends, **look))
    for y, labels in ((28, readers), (high + 1, names)):
        for index, name in enumerate(labels):
            parts.append(_box(middle(index) - 36, y, 72))
            parts.append(text_at(middle(index), y + 14, name, 11, palette.INK, "middle"))
    return Panel(max(step * len(names), 7 * display_width(title)), high + 22, parts)


def wave(values: object, title: str) -> Panel:
    """Draw numbers between -1 and 1 as bars from a middle line, each with its value."""
    numbers, step, middle = [float(value) for value in plain(values)], 44, 70
    parts = [
        text_at(0, 12, title, 12, palette.INK),
        svg.path(f"M0 {middle}h{step * len(numbers)}", stroke=palette.SOFT),
    ]
    for index, value in enumerate(numbers):
        x, y = index * step + 8, middle - max(0.0, value) * 40
        size = step - 16, abs(value) * 40 + 0.5  # 0 is a thin line
        parts.append(svg.rect(x, y, *size, fill=colour(value, 1.0), stroke=palette.SOFT, stroke_width=0.5))
        parts.append(text_at(x + (step - 16) / 2, middle + 54, f"{value:.3f}", 10, palette.INK, "middle"))
    return Panel(max(step * len(numbers), 7 * display_width(title)), middle + 60, parts)


def boxes(table: Sequence[Sequence[str]], title: str, rows: Sequence[str] = ()) -> Panel:
    """Draw rows of texts, each in a box; the boxes of a column have the width of its longest text."""
    left = 7 * max(map(display_width, rows), default=0) + 6 if rows else 0
    widths = [7 * max(map(display_width, column)) + 12 for column in zip(*table, strict=True)]
    parts = [text_at(0, 12, title, 12, palette.INK)]
    for number, row in enumerate(table):
        y, x = 22 + 26 * number, left
        parts += [text_at(left - 6, y + 14, rows[number], anchor="end")] if rows else []
        for width, text in zip(widths, row):
            parts.append(_box(x, y, width - 4))
            parts.append(text_at(x + width / 2 - 2, y + 14, text, 11, palette.INK, "middle"))
            x += width
    return Panel(max(left + sum(widths), 7 * display_width(title)), 22 + 26 * len(table), parts)


def _box(x: float, y: float, width: float) -> str:
    """The box of a text."""
    return svg.rect(x, y, width, 20, rx=4, fill=palette.ZERO, stroke=palette.ZERO_SIGN)


def inside(drawn: str) -> Panel:
    """Return a whole drawing as a part of another one."""
    width, height = (float(size) for size in re.findall(r'(?:width|height)="(\d+)"', drawn)[:2])
    return Panel(width, height, [drawn])


def arrow(y: int = 76) -> Panel:
    """Draw an arrow from the panel on its left to the panel on its right, `y` pixels below their top."""
    d = f"M0 {y}h16m-5 -5l5 5l-5 5"
    return Panel(18, 0, [svg.path(d, fill="none", stroke=palette.SOFT, stroke_width=1.5)])


def sheet(title: str, rows: Sequence[Sequence[Panel]]) -> str:
    """Arrange rows of panels in one standalone SVG drawing, without scripts, fonts or links from outside."""
    gap, top, parts, width = 28, 44.0, [], 32.0 + 9 * display_width(title)
    for row in rows:
        left = 16.0
        for panel in row:
            parts.append(svg.moved(left, top, panel.parts))
            left += panel.width + gap
        width, top = max(width, left), top + max(panel.height for panel in row) + gap
    return svg.drawing(width, top, title, [text_at(16, 26, title, 15, palette.INK), *parts])


# As text --------------------------------------------------------------------------------------------------------------


def labelled(matrix: object, rows: Sequence[str], columns: Sequence[str] = (), digits: int = 2) -> str:
    """Format a matrix as lines of text with row names and, if given, column names."""

    def cell(value: float) -> str:
        return f"{round(value, digits) + 0.0:.{digits}f}" if math.isfinite(value) else f"{value:g}"

    table = [[cell(float(value)) for value in row] for row in plain(matrix)]
    width = max([len(text) for row in table for text in row] + [display_width(name) for name in columns])
    margin = max(map(display_width, rows))
    lines = [f"{'':{margin}} {' '.join(name.rjust(width) for name in columns)}"] if columns else []
    lines += [f"{name:<{margin}} {' '.join(text.rjust(width) for text in row)}" for name, row in zip(rows, table)]
    return "\n".join(lines)


def shaded(matrix: object) -> str:
    """Format numbers between -1 and 1 as a map of five shades, two characters each; -1 is the lightest."""
    return "\n".join(
        "".join(2 * SHADES[min(len(SHADES) - 1, int((float(value) + 1) / 2 * len(SHADES)))] for value in row)
        for row in plain(matrix)
    )
