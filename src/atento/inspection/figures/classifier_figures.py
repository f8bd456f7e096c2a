"""Figures of a classifier: its confusion matrix, as SVG and as PNG (with matplotlib), and its reliability."""

from collections.abc import Sequence
from math import ceil, sqrt

from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.token_display import display_width, shorten, visible

_LABEL_COLUMNS = 22


def confusion_svg(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> str:
    """Draw a confusion matrix as a standalone SVG, without scripts and external resources.

    The darkness of a cell is its share of its row, that is of the examples with that right label. Each cell shows its
    count.

    Args:
        labels: the K labels.
        counts: K rows of K counts: `counts[i][j]` examples have the right label i and the predicted label j.
        title: the line above the drawing.
    """
    names = [visible(shorten(label, _LABEL_COLUMNS)) for label in labels]
    size, advance = 13, 0.62 * 13  # height, and width of a character with a margin, since the viewer chooses the font
    cell = max(42.0, 16 + advance * max(len(str(count)) for row in counts for count in row))
    longest = advance * max(map(display_width, names))
    left, above = 16 + 20 + longest + 8, 58 + longest * 0.82 + 10
    width = max(left + len(names) * cell + longest * 0.58 + 16, 330.0)
    height = above + len(names) * cell + 20
    parts = [
        svg.text(16, 26, shorten(visible(title), int(width / 9)), font_size=15, font_weight="600"),
        svg.text(16, 46, "rows: right label; columns: predicted label", fill=palette.SOFT),
    ]
    for number, name in enumerate(names):
        x, y = left + (number + 0.5) * cell, above + (number + 0.5) * cell
        parts.append(svg.text(left - 8, y + 5, name, text_anchor="end"))
        parts.append(svg.turned_text(x + 4, above - 7, -55, name))
    for row, (right, values) in enumerate(zip(names, counts)):
        for column, (predicted, count) in enumerate(zip(names, values)):
            x, y, share = left + column * cell, above + row * cell, count / (sum(values) or 1)
            fill = svg.ramp_colour(share) if count else palette.ZERO
            ink = palette.PAPER if share > 0.5 else palette.INK
            hover = svg.tooltip(f"{right} predicted as {predicted}: {count} ({share:.1%})")
            look = {"text_anchor": "middle", "fill": ink, "pointer_events": "none"}
            square = svg.rect(x, y, cell - 1, cell - 1, hover, fill=fill)
            parts.append(square + svg.text(x + cell / 2, y + cell / 2 + 4, str(count), **look))
    return svg.drawing(width, height, visible(title) or "confusion matrix", parts, font_size=size, fill=palette.INK)


def confusion_png(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> bytes:
    """Draw the same as a PNG with matplotlib. Raises MissingPartError if matplotlib is not installed."""
    names = [visible(shorten(label, _LABEL_COLUMNS)) for label in labels]
    side = min(3 + 0.5 * len(names), 40)
    figure = svg.new_figure("a PNG picture", side + 0.8, side)
    from matplotlib.colors import LinearSegmentedColormap

    axes = figure.add_subplot()
    shares = [[count / (sum(values) or 1) for count in values] for values in counts]  # of each right label
    axes.imshow(shares, cmap=LinearSegmentedColormap.from_list("shares", list(palette.LIGHT_RAMP)), vmin=0, vmax=1)
    for row, values in enumerate(counts):
        for column, count in enumerate(values):
            ink = palette.PAPER if shares[row][column] > 0.5 else palette.INK
            axes.text(column, row, str(count), ha="center", va="center", color=ink, fontsize=9)
    axes.set_xticks(range(len(names)), names, rotation=55, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a label may contain dollar signs
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    axes.set_title(visible(title), fontsize=10, parse_math=False)
    return svg.saved(figure, dpi=144)


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
    """
    counts, rights = [0] * _BINS, [0] * _BINS
    for probability, is_right in zip(answers, right):
        place = max(0, ceil(probability * _BINS) - 1)  # a range holds its upper end, and the first one 0
        counts[place] += 1
        rights[place] += bool(is_right)
    heading = visible(title) or "reliability"
    parts = [
        svg.text(16, 26, shorten(heading, 46), font_size=15, font_weight="600"),
        svg.text(16, 46, visible(error), fill=palette.SOFT),
        svg.rect(_LEFT, _ABOVE, _SIDE, _SIDE, fill=palette.ZERO),
    ]
    for place, (count, of_right) in enumerate(zip(counts, rights)):
        if count:  # the bar of this range of probability, and its interval
            accuracy, middle, width = of_right / count, _x((place + 0.5) / _BINS), _SIDE / _BINS
            low, high = wilson(of_right, count)
            of = f"{place / _BINS:g} to {(place + 1) / _BINS:g}: {of_right} of {count} right ({accuracy:.1%})"
            fill, height = svg.ramp_colour(0.25 + 0.6 * count / max(counts)), _y(0) - _y(accuracy)
            parts.append(svg.rect(middle - width / 2 + 1, _y(accuracy), width - 2, height, svg.tooltip(of), fill=fill))
            interval = f"M{middle:.1f} {_y(low):.1f}V{_y(high):.1f}"
            parts.append(svg.path(interval, stroke=palette.INK, stroke_width="2"))
    diagonal = f"M{_x(0):.1f} {_y(0):.1f}L{_x(1):.1f} {_y(1):.1f}"
    parts.append(svg.path(diagonal, stroke=palette.INK, stroke_dasharray="4 4"))
    for tick in (0.0, 0.5, 1.0):
        parts.append(svg.text(_x(tick), _y(0) + 18, f"{tick:g}", text_anchor="middle"))
        parts.append(svg.text(_LEFT - 8, _y(tick) + 5, f"{tick:g}", text_anchor="end"))
    parts.append(svg.text(_x(0.5), _y(0) + 38, "probability of the label", text_anchor="middle", fill=palette.SOFT))
    parts.append(svg.turned_text(20, _y(0.5) + 60, -90, "share of right labels", fill=palette.SOFT))
    return svg.drawing(_LEFT + _SIDE + 24, _ABOVE + _SIDE + 52, heading, parts, font_size=13, fill=palette.INK)


def wilson(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    square = _NORMAL**2
    middle = (right + square / 2) / (count + square)  # the centre of the interval
    half = _NORMAL / (count + square) * sqrt(right * (count - right) / count + square / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def _x(share: float) -> float:
    return _LEFT + share * _SIDE


def _y(share: float) -> float:
    return _ABOVE + (1 - share) * _SIDE
