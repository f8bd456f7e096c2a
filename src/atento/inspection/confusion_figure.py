"""A confusion matrix as SVG, and as PNG (with matplotlib)."""

import io
from collections.abc import Sequence
from html import escape

from atento.errors import MissingPartError, install_hint
from atento.inspection.figures import LIGHT_RAMP, ZERO, ramp_colour
from atento.inspection.labels import display_width, shorten, visible

_LABEL_COLUMNS = 22
_INK, _PAPER = "#1b2430", "#ffffff"


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
    cell = max(42, 16 + advance * max(len(str(count)) for row in counts for count in row))
    longest = advance * max(map(display_width, names))
    left, above = 16 + 20 + longest + 8, 58 + longest * 0.82 + 10
    width = max(left + len(names) * cell + longest * 0.58 + 16, 330.0)
    height = above + len(names) * cell + 20
    heading = shorten(visible(title), int(width / 9))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" font-size="{size}" fill="{_INK}" role="img">',
        f"<title>{escape(visible(title) or 'confusion matrix')}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="{_PAPER}"/>',
        f'<text x="16" y="26" font-size="15" font-weight="600">{escape(heading)}</text>',
        '<text x="16" y="46" fill="#4c5a6b">rows: right label; columns: predicted label</text>',
    ]
    for number, name in enumerate(names):
        x, y = left + (number + 0.5) * cell, above + (number + 0.5) * cell
        parts.append(f'<text x="{left - 8:.1f}" y="{y + 5:.1f}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<text transform="translate({x + 4:.1f} {above - 7:.1f}) rotate(-55)">{escape(name)}</text>')
    for row, (right, values) in enumerate(zip(names, counts)):
        for column, (predicted, count) in enumerate(zip(names, values)):
            x, y, share = left + column * cell, above + row * cell, count / (sum(values) or 1)
            fill, ink = (ramp_colour(share) if count else ZERO), (_PAPER if share > 0.5 else _INK)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" height="{cell - 1:.1f}" fill="{fill}">'
                f"<title>{escape(right)} predicted as {escape(predicted)}: {count} ({share:.1%})</title></rect>"
                f'<text x="{x + cell / 2:.1f}" y="{y + cell / 2 + 4:.1f}" text-anchor="middle" fill="{ink}" '
                f'pointer-events="none">{count}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def confusion_png(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str = "") -> bytes:
    """Draw the same as a PNG with matplotlib. Raises MissingPartError if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPartError(f"a PNG picture needs matplotlib: {install_hint('plot')}") from error
    names = [visible(shorten(label, _LABEL_COLUMNS)) for label in labels]
    side = min(3 + 0.5 * len(names), 40)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.add_subplot()
    shares = [[count / (sum(values) or 1) for count in values] for values in counts]
    axes.imshow(shares, cmap=LinearSegmentedColormap.from_list("shares", list(LIGHT_RAMP)), vmin=0, vmax=1)
    for row, values in enumerate(counts):
        for column, count in enumerate(values):
            ink = _PAPER if shares[row][column] > 0.5 else _INK
            axes.text(column, row, str(count), ha="center", va="center", color=ink, fontsize=9)
    axes.set_xticks(range(len(names)), names, rotation=55, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a label may contain dollar signs
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    axes.set_title(visible(title), fontsize=10, parse_math=False)
    written = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(written, format="png", dpi=144)
    return written.getvalue()
