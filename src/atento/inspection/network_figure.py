"""Block diagrams of networks, as SVG and as text, in the order of computation (docs/notes.md#j3, #j9)."""

from collections.abc import Sequence
from html import escape
from typing import Protocol

_WIDE, _HIGH, _GAP, _EDGE = 236, 34, 12, 16
_FILL = {"self-attention": "#fde3cf", "cross-attention": "#fde3cf", "feed-forward": "#d6e8fa", "norm": "#f7f3c6"}


class Box(Protocol):
    """A box of a diagram; see `atento.networks.describe.Part`."""

    @property
    def name(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def parameters(self) -> int | None: ...
    @property
    def parts(self) -> "tuple[Box, ...]": ...
    @property
    def repeats(self) -> int: ...
    @property
    def skips(self) -> int: ...


def network_text(columns: Sequence[Box]) -> str:
    """The boxes as lines of text, with inner boxes indented and the number of parameters at the end."""
    return "\n".join(line for column in columns for line in _lines(column, 0))


def _lines(box: Box, depth: int) -> list[str]:
    line_text = "  " * depth + box.name + (f" × {box.repeats}" if box.repeats > 1 else "")
    line_text += (f" ({box.detail})" if box.detail else "") + (f"  {box.parameters:,}" if box.parameters else "")
    return [line_text, *(line for part in box.parts for line in _lines(part, depth + 1))]


def network_svg(columns: Sequence[Box], title: str = "") -> str:
    """The boxes as an SVG drawing: columns side by side, from bottom to top, with lines for residual connections.

    An arrow goes from the top of the first column to each attention over it in the second.
    """
    drawn = [_Column(column) for column in columns]
    high = max(column.height for column in drawn) + 60
    parts, x = [], 40.0
    targets: list[tuple[float, float]] = []
    for number, column in enumerate(drawn):
        bottom = high - 20
        parts += column.drawn(x, bottom)
        parts.append(_text(x + column.width / 2, bottom - column.height - 10, column.name, 13, "middle", "#1b2430"))
        if number:
            targets += [(x + _EDGE, bottom - y) for y in column.attention_heights]
        x += column.width + 90
    if len(drawn) > 1:
        start = 40 + drawn[0].width
        top = high - 20 - drawn[0].height + _HIGH / 2
        for to, y in targets:
            parts.append(
                f'<path d="M{start:.0f} {top:.0f} H{start + 45:.0f} V{y:.0f} H{to:.0f}" fill="none" stroke="#b3541e" '
                'stroke-width="1.6" marker-end="url(#end)"/>'
            )
    wide = x - 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
        f'height="{high:.0f}" role="img" aria-label="{escape(title or "network", quote=True)}" '
        'font-family="system-ui, sans-serif"><defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#4c5a6b"/></marker></defs>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{_text(12, 18, title, 13, "start", "#1b2430")}'
        f"{''.join(parts)}</svg>"
    )


class _Column:
    """The layout of a column; heights are measured from its bottom."""

    def __init__(self, box: Box) -> None:
        self.name = box.name
        self.attention_heights: list[float] = []  # heights of the boxes that attend to another column
        self._rows: list[tuple[float, Box, int]] = []  # bottom, box, depth
        self._frames: list[tuple[float, float, Box]] = []
        self.height = self._layout(box.parts, 0.0, 0) - _GAP
        self.width = _WIDE + 2 * _EDGE

    def _layout(self, boxes: Sequence[Box], y: float, depth: int) -> float:
        for box in boxes:
            if box.parts:
                end = self._layout(box.parts, y + _EDGE, depth + 1) - _GAP + _EDGE
                self._frames.append((y, end, box))
                y = end + _GAP
                continue
            if box.name in ("cross-attention", "attention"):
                self.attention_heights.append(y + _HIGH / 2)
            self._rows.append((y, box, depth))
            y += _HIGH + _GAP
        return y

    def drawn(self, x: float, bottom: float) -> list[str]:
        """The SVG elements of the column, with its bottom at `bottom`."""
        parts = []
        for low, high, box in self._frames:
            parts.append(
                f'<rect x="{x:.0f}" y="{bottom - high:.0f}" width="{self.width}" height="{high - low:.0f}" rx="9" '
                'fill="#f4f6f9" stroke="#8a97a8" stroke-dasharray="4 3"/>'
            )
            label = f"× {box.repeats}" + (f", {box.detail}" if box.detail else "")
            parts.append(_text(x + self.width - 6, bottom - high + 12, label, 11, "end"))
        left = x + _EDGE
        for position, (y, box, _) in enumerate(self._rows):
            top = bottom - y - _HIGH
            parts.append(
                f'<rect x="{left:.0f}" y="{top:.0f}" width="{_WIDE}" height="{_HIGH}" rx="5" '
                f'fill="{_FILL.get(box.name, "#ffffff")}" stroke="#4c5a6b"/>'
            )
            number = "" if not box.parameters else f"{box.parameters:,}"
            middle = left + _WIDE / 2
            parts.append(_text(middle, top + 14, box.name, 12, "middle", "#1b2430"))
            parts.append(_text(middle, top + 28, "; ".join(filter(None, (box.detail, number))), 10, "middle"))
            if position:
                below = bottom - self._rows[position - 1][0] - _HIGH
                parts.append(
                    f'<line x1="{middle:.0f}" y1="{below:.0f}" x2="{middle:.0f}" y2="{top + _HIGH:.0f}" '
                    'stroke="#4c5a6b" marker-end="url(#end)"/>'
                )
            if box.skips:  # a residual connection begins below the first of these boxes and ends here
                leaves = bottom - self._rows[position - box.skips][0] + _GAP / 2
                back = top + _HIGH / 2
                parts.append(
                    f'<path d="M{middle:.0f} {leaves:.0f} H{left - 9:.0f} V{back:.0f} H{left:.0f}" fill="none" '
                    'stroke="#2a6fb5" stroke-width="1.4" marker-end="url(#end)"/>'
                )
        return parts


def _text(x: float, y: float, text: str, size: int, anchor: str, fill: str = "#4c5a6b") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
    )
