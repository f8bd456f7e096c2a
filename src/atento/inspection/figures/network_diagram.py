"""Block diagrams of networks, as SVG and as text, in the order of computation (docs/notes.md#j3, #j9)."""

from collections.abc import Sequence

from atento.inspection import palette
from atento.inspection.figures import svg
from atento.networks.describe import Part

_WIDE, _HIGH, _GAP, _EDGE = 236, 34, 12, 16
_END = "url(#end)"
_FILL = {
    "self-attention": svg.mixed(palette.PAPER, palette.READS, 0.2),
    "cross-attention": svg.mixed(palette.PAPER, palette.WRITES, 0.2),
    "feed-forward": svg.mixed(palette.PAPER, palette.INK, 0.14),
    "norm": palette.ZERO,
}


def network_text(columns: Sequence[Part]) -> str:
    """The boxes as lines of text, with inner boxes indented and the number of parameters at the end."""
    return "\n".join(line for column in columns for line in _lines(column, 0))


def _lines(box: Part, depth: int) -> list[str]:
    line_text = "  " * depth + box.name + (f" × {box.repeats}" if box.repeats > 1 else "")
    line_text += (f" ({box.detail})" if box.detail else "") + (f"  {box.parameters:,}" if box.parameters else "")
    return [line_text, *(line for part in box.parts for line in _lines(part, depth + 1))]


def network_svg(columns: Sequence[Part], title: str = "") -> str:
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
        parts.append(_text(x + column.width / 2, bottom - column.height - 10, column.name, 13, "middle", palette.INK))
        if number:
            targets += [(x + _EDGE, bottom - y) for y in column.attention_heights]
        x += column.width + 90
    if len(drawn) > 1:
        start = 40 + drawn[0].width
        top = high - 20 - drawn[0].height + _HIGH / 2
        for to, y in targets:
            d = f"M{start:.0f} {top:.0f} H{start + 45:.0f} V{y:.0f} H{to:.0f}"
            parts.append(svg.path(d, fill="none", stroke=palette.WRITES, stroke_width=1.6, marker_end=_END))
    wide = x - 50
    end = svg.path("M0 0 L8 4 L0 8 z", fill=palette.SOFT)
    size = {"markerWidth": 7, "markerHeight": 7}
    marker = svg.element("marker", end, id="end", viewBox="0 0 8 8", refX=7, refY=4, **size, orient="auto")
    ground = svg.element("rect", width="100%", height="100%", fill=palette.PAPER)
    above = [svg.element("defs", marker) + ground, _text(12, 18, title, 13, "start", palette.INK)]
    look: dict[str, svg.Value] = {"viewBox": f"0 0 {wide:.0f} {high:.0f}", "width": round(wide), "height": round(high)}
    return svg.root(*above, *parts, **look, role="img", aria_label=title or "network", font_family=svg.FONT)


class _Column:
    """The layout of a column; heights are measured from its bottom."""

    def __init__(self, box: Part) -> None:
        self.name = box.name
        self.attention_heights: list[float] = []  # heights of the boxes that attend to another column
        self._rows: list[tuple[float, Part, int]] = []  # bottom, box, depth
        self._frames: list[tuple[float, float, Part]] = []
        self.height = self._layout(box.parts, 0.0, 0) - _GAP
        self.width = _WIDE + 2 * _EDGE

    def _layout(self, boxes: Sequence[Part], y: float, depth: int) -> float:
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
            place = round(x), round(bottom - high), self.width, round(high - low)
            parts.append(svg.rect(*place, rx=9, fill="none", stroke=palette.ZERO_SIGN, stroke_dasharray="4 3"))
            label = f"× {box.repeats}" + (f", {box.detail}" if box.detail else "")
            parts.append(_text(x + self.width - 6, bottom - high + 12, label, 11, "end"))
        left = x + _EDGE
        for position, (y, box, _) in enumerate(self._rows):
            top = bottom - y - _HIGH
            fill = _FILL.get(box.name, palette.PAPER)
            parts.append(svg.rect(round(left), round(top), _WIDE, _HIGH, rx=5, fill=fill, stroke=palette.SOFT))
            number = "" if not box.parameters else f"{box.parameters:,}"
            middle = left + _WIDE / 2
            parts.append(_text(middle, top + 14, box.name, 12, "middle", palette.INK))
            parts.append(_text(middle, top + 28, "; ".join(filter(None, (box.detail, number))), 10, "middle"))
            if position:
                below = bottom - self._rows[position - 1][0] - _HIGH
                ends = {"x1": round(middle), "y1": round(below), "x2": round(middle), "y2": round(top + _HIGH)}
                parts.append(svg.element("line", **ends, stroke=palette.SOFT, marker_end=_END))
            if box.skips:  # a residual connection begins below the first of these boxes and ends here
                leaves = bottom - self._rows[position - box.skips][0] + _GAP / 2
                back = top + _HIGH / 2
                d = f"M{middle:.0f} {leaves:.0f} H{left - 9:.0f} V{back:.0f} H{left:.0f}"
                parts.append(svg.path(d, fill="none", stroke=palette.READS, stroke_width=1.4, marker_end=_END))
        return parts


def _text(x: float, y: float, text: str, size: int, anchor: str, fill: str = palette.SOFT) -> str:
    return svg.text(round(x), round(y), text, font_size=size, text_anchor=anchor, fill=fill)
