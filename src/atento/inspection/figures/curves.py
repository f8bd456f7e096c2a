"""Training curves as SVG, PNG or an HTML page, and as a line of text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.standalone import page
from atento.inspection.token_display import visible

BLOCKS = "▁▂▃▄▅▆▇█"
_STYLES = ("-", "--", ":", "-.")  # for further lines, after the colours
_MARKED = 40  # lines of at most this many points have markers


@dataclass(frozen=True)
class Line:
    """A curve: points (step or seconds, value) in their order; `number`, that of the run, decides the colour."""

    label: str
    number: int
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis; `name` is the label of the axis, with its unit."""

    name: str
    lines: Sequence[Line]


def curves_picture(panels: Sequence[Panel], layout: str, axis: str = "step") -> bytes:
    """Draw panels below one another over the same steps, or another `axis`, as `svg` or `png`, with matplotlib.
    Raises MissingPartError: matplotlib is not installed.
    """
    labels: dict[str, object] = {}
    figure = svg.new_figure("a picture of curves", 9, 0.9 + 2.4 * len(panels))
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "atento", "svg.fonttype": "none", "font.size": 10}):
        column = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for number, (axes, panel) in enumerate(zip(column, panels)):
            for line in panel.lines:
                if line.points:
                    drawn = axes.plot(
                        *zip(*line.points),
                        color=palette.SERIES[line.number % len(palette.SERIES)],
                        linestyle="--" if line.dashed else _STYLES[line.number // len(palette.SERIES) % len(_STYLES)],
                        linewidth=1.6,
                        marker="o" if len(line.points) <= _MARKED else None,
                        markersize=3.5,
                        markerfacecolor="white" if line.dashed else None,
                    )
                    labels.setdefault(line.label, drawn[0])
            axes.set_ylabel(panel.name, parse_math=False)
            axes.grid(color=palette.GRID, linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            if number == len(panels) - 1:
                axes.set_xlabel(axis)
        if labels:
            place = {"loc": "outside upper left", "ncols": 2, "frameon": False}
            legend = figure.legend(list(labels.values()), [visible(label) for label in labels], **place)
            for text in legend.get_texts():
                text.set_parse_math(False)  # a folder name may contain dollar signs
        return svg.saved(figure, layout, dpi=144, metadata={"Date": None} if layout == "svg" else None)


def curves_page(panels: Sequence[Panel], title: str, axis: str = "step", table: str = "") -> bytes:
    """The same as a standalone HTML page, without scripts and external resources; `table` is HTML above the picture.
    Raises MissingPartError: matplotlib is not installed.
    """
    picture = curves_picture(panels, "svg", axis).decode("utf-8")
    drawing = picture[picture.index("<svg") :]
    style = ".paper svg { width: 100%; min-width: 40rem; height: auto } td, th:not(:first-child) { text-align: right }"
    return page(title, 60, style, f'{table}<div class="paper">{drawing}</div>').encode("utf-8")


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Values as a line of at most `width` block characters, each the mean of its part of the values.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [len(finite) * n // count for n in range(count + 1)]  # parts of about equal size
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]  # of each part
    low, span = min(means), max(means) - min(means)  # 0: all are equal
    return "".join(BLOCKS[round((mean - low) / span * (len(BLOCKS) - 1)) if span else 0] for mean in means)
