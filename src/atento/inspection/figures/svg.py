"""SVG as text: elements, a drawing, the colours of a scale, numbers for an axis; figures of matplotlib as bytes."""

import io
import math
from collections.abc import Iterable
from html import escape
from typing import Any

from atento.base.errors import MissingPartError, install_hint
from atento.inspection.palette import LIGHT_RAMP, PAPER

FONT = "system-ui, sans-serif"

Value = str | float | None


def element(name: str, *content: str, **attributes: Value) -> str:
    """An element.

    Args:
        content: SVG, not escaped; with none, the element closes itself.
        attributes: in their order. `stroke_width` is `stroke-width`, and `class_` is `class`. Texts are escaped, floats
            have one digit, None leaves an attribute out.
    """
    given = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None]
    opened = name + "".join(f' {key}="{_text(value)}"' for key, value in given)
    return f"<{opened}>{''.join(content)}</{name}>" if content else f"<{opened}/>"


def _text(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.1f}" if isinstance(value, float) else str(value)


def text(x: float, y: float, line: str, **attributes: Value) -> str:
    """A line of text."""
    return element("text", escape(line), x=x, y=y, **attributes)


def turned_text(x: float, y: float, degrees: int, line: str, **attributes: Value) -> str:
    """A line of text that is turned about its beginning; negative degrees go up."""
    return element("text", escape(line), transform=f"translate({_text(x)} {_text(y)}) rotate({degrees})", **attributes)


def rect(x: float, y: float, width: float, height: float, *content: str, **attributes: Value) -> str:
    """A rectangle."""
    return element("rect", *content, x=x, y=y, width=width, height=height, **attributes)


def circle(cx: float, cy: float, r: float, *content: str, **attributes: Value) -> str:
    """A circle."""
    return element("circle", *content, cx=cx, cy=cy, r=r, **attributes)


def path(d: str, **attributes: Value) -> str:
    """A path."""
    return element("path", d=d, **attributes)


def tooltip(line: str) -> str:
    """The title of the element that it is the content of; of a drawing, its name."""
    return element("title", escape(line))


def group(parts: Iterable[str], **attributes: Value) -> str:
    """Elements with common attributes, a line each."""
    return element("g", "\n".join(["", *parts, ""]), **attributes)


def moved(x: float, y: float, parts: Iterable[str]) -> str:
    """Elements whose origin is at a place."""
    return group(parts, transform=f"translate({_text(x)} {_text(y)})")


def root(*content: str, **attributes: Value) -> str:
    """A drawing that stands alone."""
    return element("svg", *content, xmlns="http://www.w3.org/2000/svg", **attributes)


def drawing(width: float, height: float, title: str, parts: Iterable[str], **attributes: Value) -> str:
    """A standalone drawing on paper, without scripts and external resources; its sizes are rounded."""
    wide, high = round(width), round(height)
    size: dict[str, Value] = {"viewBox": f"0 0 {wide} {high}", "width": wide, "height": high}
    lines = ["", tooltip(title), element("rect", width=wide, height=high, fill=PAPER), *parts, ""]
    return root("\n".join(lines), **size, font_family=FONT, **attributes, role="img") + "\n"


def mixed(low: str, high: str, share: float) -> str:
    """The colour between two, at a share (0 to 1) of the way."""
    ends = [[int(one[i : i + 2], 16) for i in (1, 3, 5)] for one in (low, high)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(*ends, strict=True))


def ramp_colour(share: float) -> str:
    """The colour of a weight, given as a share (0 to 1) of the largest weight."""
    position = min(max(share, 0.0), 1.0) * (len(LIGHT_RAMP) - 1)  # a place between two of the colours
    low = min(int(position), len(LIGHT_RAMP) - 2)  # the last one has no next
    return mixed(LIGHT_RAMP[low], LIGHT_RAMP[low + 1], position - low)


def axis_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers in equal steps that enclose an interval, about `count` of them.

    >>> axis_ticks(0.12, 0.47)
    [0.0, 0.2, 0.4, 0.6]
    """
    if not high > low:
        high, low = low + (abs(low) or 1.0) / 2, low - (abs(low) or 1.0) / 2  # half its size on each side
    rough = (high - low) / (count - 1)
    unit = 10.0 ** math.floor(math.log10(rough))  # a power of ten
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def new_figure(what: str, width: float, height: float) -> Any:
    """A figure of so many inches. Raises MissingPartError, that `what` needs matplotlib, if it is not installed."""
    try:
        import matplotlib.figure
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise MissingPartError(f"{what} needs matplotlib: {install_hint('plot')}") from error
    figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def saved(figure: Any, layout: str = "png", **options: object) -> bytes:
    """The bytes of a figure."""
    written = io.BytesIO()
    figure.savefig(written, format=layout, **options)
    return written.getvalue()
