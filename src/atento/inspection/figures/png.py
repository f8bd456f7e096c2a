"""Figures of matplotlib as bytes."""

import io
from typing import Any

from atento.errors import MissingPartError, install_hint


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
