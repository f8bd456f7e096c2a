"""The scores of a search over the values of each key: small multiples as SVG, and a page with the table of trials."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.standalone import page
from atento.inspection.token_display import shorten, visible

_DOT, _MEAN = palette.SERIES[:2]
_WIDE, _HIGH = 250, 150  # of the area of a panel
_LEFT, _TOP, _GAP_X, _GAP_Y = 62, 74, 84, 104
_COLUMNS = 3
_LABEL = 14  # characters


@dataclass(frozen=True)
class Point:
    """A trial: the value of the key (a number, or the text of a choice), the score, and the name of the trial."""

    value: float | str
    score: float
    label: str


@dataclass(frozen=True)
class Panel:
    """A key with its trials."""

    key: str  # the key
    points: Sequence[Point]  # its trials
    log: bool  # whether the axis of the values is logarithmic
    share: str  # the importance of the key, as text


def scores_svg(panels: Sequence[Panel], metric: str) -> str:
    """Draw one panel a key on one scale of scores, as a standalone SVG; bars mark the mean score of a choice.

    Args:
        panels: the keys. Scores that are not finite are left out.
        metric: name of the score.
    """
    scores = [point.score for panel in panels for point in panel.points if math.isfinite(point.score)]
    ticks = svg.axis_ticks(min(scores, default=0.0), max(scores, default=1.0))
    columns = min(_COLUMNS, max(1, len(panels)))
    rows = -(-len(panels) // columns)  # rounded up
    width, height = _LEFT + columns * (_WIDE + _GAP_X), 10 + rows * (_HIGH + _GAP_Y)
    parts = []
    for number, panel in enumerate(panels):
        left = _LEFT + number % columns * (_WIDE + _GAP_X)
        top = _TOP - 20 + number // columns * (_HIGH + _GAP_Y)
        parts.append(svg.moved(left, top, _panel(panel, metric, ticks)))
    title = f"{visible(metric)} over the values of each key"
    return svg.drawing(width, height, title, parts, font_size=11, fill=palette.INK)


def scores_page(drawing: str, rows: Sequence[Sequence[str]], title: str) -> str:
    """Return a standalone HTML page with the drawing and the table of trials; the first row is the heading."""
    cells = ["".join(f"<td>{escape(visible(cell) if cell else '')}</td>" for cell in row) for row in rows[1:]]
    heading = "".join(f'<th scope="col">{escape(visible(cell))}</th>' for cell in rows[0])
    body = "\n".join(f"<tr>{row}</tr>" for row in cells)
    return page(
        title,
        66,
        "",
        "<p>Each point is a trial. The percentage is the share of the variance of the scores that the key explains "
        f'alone.</p>\n<div class="paper">{drawing}</div>\n<div><table><thead><tr>{heading}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>",
    )


def _panel(panel: Panel, metric: str, ticks: Sequence[float]) -> Iterator[str]:
    low, span = ticks[0], ticks[-1] - ticks[0]

    def y_of(score: float) -> float:
        return _HIGH * (1 - (score - low) / span)  # the y of SVG grows downwards

    yield svg.text(0, -26, visible(panel.key), font_size=12, font_weight="600")
    yield svg.text(0, -11, panel.share, fill=palette.SOFT)
    yield svg.turned_text(-46, _HIGH / 2, -90, visible(metric), text_anchor="middle", fill=palette.SOFT)
    for tick in ticks:
        yield svg.path(f"M0 {y_of(tick):.1f}h{_WIDE}", stroke=palette.GRID)
        yield svg.text(-6, y_of(tick) + 4, f"{tick:g}", text_anchor="end", fill=palette.SOFT)
    points = [point for point in panel.points if math.isfinite(point.score)]
    if any(isinstance(point.value, str) for point in points):  # choices have no scale
        names = list(dict.fromkeys(str(point.value) for point in points))  # one position a choice
        center = {name: _WIDE * (number + 0.5) / len(names) for number, name in enumerate(names)}
        width = max(3, min(_LABEL, round(_LABEL * 3 / len(names))))
        labels = [(x, visible(shorten(name, width))) for name, x in center.items()]
        positions = [center[str(point.value)] for point in points]
        for x in sorted(set(positions)):
            scores = [point.score for point, at in zip(points, positions) if at == x]
            y = y_of(sum(scores) / len(scores))
            yield svg.path(f"M{x - 12:.1f} {y:.1f}h24", stroke=_MEAN, stroke_width=2)
    else:
        positions, labels = _interval([float(point.value) for point in points], panel.log)
    for x, text in labels:
        yield svg.text(float(x), _HIGH + 16, text, text_anchor="middle")
    for point, x in zip(points, positions):
        text = f"{point.label}: {panel.key} {point.value}, {metric} {point.score:.6g}"
        yield svg.circle(x, y_of(point.score), 4, svg.tooltip(visible(text)), fill=_DOT, fill_opacity=0.7)


def _interval(values: Sequence[float], log: bool) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the same for numbers: ends and middle have labels."""
    scaled = [math.log(value) if log else value for value in values]
    low, high = min(scaled, default=0.0), max(scaled, default=1.0)
    span = high - low or 1.0  # 1: a single value
    inner = _WIDE - 24  # 12 on each side, so that points are whole
    ends = [low, (low + high) / 2, high] if high > low else [low]  # and the middle of the axis
    labels = [(12 + inner * (end - low) / span, f"{math.exp(end) if log else end:.3g}") for end in ends]
    return [12 + inner * (value - low) / span for value in scaled], labels
