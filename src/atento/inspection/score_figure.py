"""The scores of a search over the values of each key: small multiples as SVG, and a page with the table of trials."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from atento.inspection.labels import shorten, visible

_DOT, _MEAN, _INK, _SOFT, _GRID = "#0072b2", "#d55e00", "#1b2430", "#4c5a6b", "#e3e6ea"
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
    """A key with its trials.

    Attributes:
        key: the key.
        points: its trials.
        log: whether the axis of the values is logarithmic.
        share: the importance of the key, as text.
    """

    key: str
    points: Sequence[Point]
    log: bool
    share: str


def scores_svg(panels: Sequence[Panel], metric: str) -> str:
    """Draw one panel a key on one scale of scores, as a standalone SVG; bars mark the mean score of a choice.

    Args:
        panels: the keys. Scores that are not finite are left out.
        metric: name of the score.
    """
    scores = [point.score for panel in panels for point in panel.points if math.isfinite(point.score)]
    ticks = axis_ticks(min(scores, default=0.0), max(scores, default=1.0))
    columns = min(_COLUMNS, max(1, len(panels)))
    rows = -(-len(panels) // columns)
    width, height = _LEFT + columns * (_WIDE + _GAP_X), 10 + rows * (_HIGH + _GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{_INK}" role="img">',
        f"<title>{escape(visible(metric))} over the values of each key</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        left = _LEFT + number % columns * (_WIDE + _GAP_X)
        top = _TOP - 20 + number // columns * (_HIGH + _GAP_Y)
        parts += [f'<g transform="translate({left} {top})">', *_panel(panel, metric, ticks), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def scores_page(svg: str, rows: Sequence[Sequence[str]], title: str) -> str:
    """Return a standalone HTML page with the drawing and the table of trials; the first row is the heading."""
    cells = ["".join(f"<td>{escape(visible(cell) if cell else '')}</td>" for cell in row) for row in rows[1:]]
    heading = "".join(f'<th scope="col">{escape(visible(cell))}</th>' for cell in rows[0])
    body = "\n".join(f"<tr>{row}</tr>" for row in cells)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{escape(visible(title))}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>body { max-width: 66rem; margin: 1rem auto; padding: 0 1rem; font-family: sans-serif } "
        "h1 { font-size: 1.3rem; overflow-wrap: anywhere } div { overflow-x: auto } "
        "svg { max-width: 100%; height: auto } td, th { padding: 0.15rem 0.8rem 0.15rem 0; text-align: left }</style>\n"
        f"<h1>{escape(visible(title))}</h1>\n"
        "<p>Each point is a trial. The percentage is the share of the variance of the scores that the key explains "
        "alone.</p>\n"
        f"<div>{svg}</div>\n<div><table><thead><tr>{heading}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        "</html>\n"
    )


def axis_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers in equal steps that enclose an interval, about `count` of them.

    >>> axis_ticks(0.12, 0.47)
    [0.0, 0.2, 0.4, 0.6]
    """
    if not high > low:
        high, low = low + (abs(low) or 1.0) / 2, low - (abs(low) or 1.0) / 2
    rough = (high - low) / (count - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def _panel(panel: Panel, metric: str, ticks: Sequence[float]) -> list[str]:
    low, span = ticks[0], ticks[-1] - ticks[0]

    def y_of(score: float) -> float:
        return _HIGH * (1 - (score - low) / span)

    parts = [
        f'<text x="0" y="-26" font-size="12" font-weight="600">{escape(visible(panel.key))}</text>',
        f'<text x="0" y="-11" fill="{_SOFT}">{escape(panel.share)}</text>',
        f'<text transform="translate(-46 {_HIGH / 2}) rotate(-90)" text-anchor="middle" fill="{_SOFT}">'
        f"{escape(visible(metric))}</text>",
    ]
    for tick in ticks:
        parts.append(f'<path d="M0 {y_of(tick):.1f}h{_WIDE}" stroke="{_GRID}"/>')
        parts.append(f'<text x="-6" y="{y_of(tick) + 4:.1f}" text-anchor="end" fill="{_SOFT}">{tick:g}</text>')
    points = [point for point in panel.points if math.isfinite(point.score)]
    if any(isinstance(point.value, str) for point in points):
        positions, labels = _choices(points)
        parts += _means(points, positions, y_of)
    else:
        positions, labels = _interval([float(point.value) for point in points], panel.log)
    for x, text in labels:
        parts.append(f'<text x="{x:.1f}" y="{_HIGH + 16}" text-anchor="middle">{escape(text)}</text>')
    for point, x in zip(points, positions):
        text = f"{point.label}: {panel.key} {point.value}, {metric} {point.score:.6g}"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y_of(point.score):.1f}" r="4" fill="{_DOT}" fill-opacity="0.7">'
            f"<title>{escape(visible(text))}</title></circle>"
        )
    return parts


def _choices(points: Sequence[Point]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the position of each point, and the labels of the axis: one position a choice."""
    names = list(dict.fromkeys(str(point.value) for point in points))
    center = {name: _WIDE * (number + 0.5) / len(names) for number, name in enumerate(names)}
    width = max(3, min(_LABEL, round(_LABEL * 3 / len(names))))
    labels = [(x, visible(shorten(name, width))) for name, x in center.items()]
    return [center[str(point.value)] for point in points], labels


def _interval(values: Sequence[float], log: bool) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the same for numbers: ends and middle have labels."""
    scaled = [math.log(value) if log else value for value in values]
    low, high = min(scaled, default=0.0), max(scaled, default=1.0)
    span = high - low or 1.0
    inner = _WIDE - 24
    ends = [low, (low + high) / 2, high] if high > low else [low]
    labels = [(12 + inner * (end - low) / span, f"{math.exp(end) if log else end:.3g}") for end in ends]
    return [12 + inner * (value - low) / span for value in scaled], labels


def _means(points: Sequence[Point], positions: Sequence[float], y_of: Callable[[float], float]) -> list[str]:
    parts = []
    for x in sorted(set(positions)):
        scores = [point.score for point, at in zip(points, positions) if at == x]
        y = y_of(sum(scores) / len(scores))
        parts.append(f'<path d="M{x - 12:.1f} {y:.1f}h24" stroke="{_MEAN}" stroke-width="2"/>')
    return parts
