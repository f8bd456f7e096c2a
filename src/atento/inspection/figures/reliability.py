"""How often a classifier is right, by the probability that it gives, as SVG."""

from collections.abc import Sequence
from math import ceil, sqrt

from atento.inspection.figures import svg
from atento.inspection.token_display import shorten, visible

_BINS = 10
_SIDE, _LEFT, _ABOVE = 300.0, 64.0, 66.0  # of the square, and the room before and above it
_NORMAL = 1.96  # standard deviations of a 95 % interval


def reliability_svg(answers: Sequence[float], right: Sequence[bool], error: str, title: str = "") -> str:
    """Draw the share of right answers in ten equal ranges of probability, with Wilson's 95 % intervals.

    On the diagonal, answers of probability p are right in a share of p. The darker a bar, the more answers it has.

    Args:
        answers: (N,) probabilities of the labels that are predicted.
        right: (N,) whether they are right.
        error: the line below the heading, such as the calibration error.
        title: the heading.
    """
    counts, rights = [0] * _BINS, [0] * _BINS
    for probability, is_right in zip(answers, right):
        place = max(0, ceil(probability * _BINS) - 1)  # a range holds its upper end, and the first one 0
        counts[place] += 1
        rights[place] += bool(is_right)
    heading = visible(title) or "reliability"
    parts = [
        svg.text(16, 26, shorten(heading, 46), font_size=15, font_weight="600"),
        svg.text(16, 46, visible(error), fill=svg.SOFT),
        svg.rect(_LEFT, _ABOVE, _SIDE, _SIDE, fill=svg.ZERO),
    ]
    for place, (count, of_right) in enumerate(zip(counts, rights)):
        if count:
            parts += _bar(place, count, of_right, count / max(counts))
    parts.append(svg.path(f"M{_x(0):.1f} {_y(0):.1f}L{_x(1):.1f} {_y(1):.1f}", stroke=svg.INK, stroke_dasharray="4 4"))
    for tick in (0.0, 0.5, 1.0):
        parts.append(svg.text(_x(tick), _y(0) + 18, f"{tick:g}", text_anchor="middle"))
        parts.append(svg.text(_LEFT - 8, _y(tick) + 5, f"{tick:g}", text_anchor="end"))
    parts.append(svg.text(_x(0.5), _y(0) + 38, "probability of the label", text_anchor="middle", fill=svg.SOFT))
    parts.append(svg.turned_text(20, _y(0.5) + 60, -90, "share of right labels", fill=svg.SOFT))
    return svg.drawing(_LEFT + _SIDE + 24, _ABOVE + _SIDE + 52, heading, parts, font_size=13, fill=svg.INK)


def _bar(place: int, count: int, of_right: int, share: float) -> list[str]:
    """The bar of a range of probability, and its interval."""
    accuracy, middle = of_right / count, _x((place + 0.5) / _BINS)
    low, high = wilson(of_right, count)
    width = _SIDE / _BINS
    hover = svg.tooltip(f"{place / _BINS:g} to {(place + 1) / _BINS:g}: {of_right} of {count} right ({accuracy:.1%})")
    fill = svg.ramp_colour(0.25 + 0.6 * share)
    bar = svg.rect(middle - width / 2 + 1, _y(accuracy), width - 2, _y(0) - _y(accuracy), hover, fill=fill)
    return [bar, svg.path(f"M{middle:.1f} {_y(low):.1f}V{_y(high):.1f}", stroke=svg.INK, stroke_width="2")]


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    square = _NORMAL**2
    middle = (right + square / 2) / (count + square)
    half = _NORMAL / (count + square) * sqrt(right * (count - right) / count + square / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def _x(share: float) -> float:
    return _LEFT + share * _SIDE


def _y(share: float) -> float:
    return _ABOVE + (1 - share) * _SIDE
