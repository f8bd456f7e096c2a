"""Attention maps and masks as SVG, PNG (with matplotlib) and text."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from atento.errors import MissingPartError, UsageError, counted, install_hint
from atento.inspection.labels import display_width, shorten, visible
from atento.inspection.maps import AttentionMaps, Head
from atento.inspection.words import Matrix

# One hue from light to dark: lightness alone shows the magnitude, for all kinds of colour vision.
LIGHT_RAMP = ("#f4f9fe", "#dceafa", "#bdd9f2", "#94c3e6", "#64a6d6", "#3a85c0", "#1f66a5", "#0f4881", "#082c57")
DARK_RAMP = ("#16212e", "#1a3049", "#1f456b", "#265f93", "#3580ba", "#58a3d8", "#8cc4ec", "#c0e0f8", "#f0f8ff")
ZERO, ZERO_SIGN = "#eceef1", "#8b96a3"
KIND_NAMES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
_LABEL_COLUMNS = 22
_MAX_TITLED_CELLS = 10_000


@dataclass(frozen=True)
class _Map:
    weights: Matrix
    rows: list[str]
    columns: list[str]
    title: str
    caption: str

    @property
    def top(self) -> float:
        """The largest weight, which has the darkest colour."""
        return float(self.weights.max()) or 1.0


def kind_name(record: AttentionMaps, kind: str) -> str:
    """The name of a kind of attention; that of a decoder with a causal mask says "masked"."""
    if kind == "encoder" and len(record.kinds) == 1:
        return "self-attention"
    if kind == "decoder" and "causal" in record.masks.get(kind, "").lower():
        return "decoder masked self-attention"
    return KIND_NAMES[kind]


def _map_of(record: AttentionMaps, layer: int, head: Head, kind: str | None, words: bool) -> _Map:
    kind = record.default_kind if kind is None else kind
    weights = record.weights(layer, head, kind)
    groups = [side.groups() if words else side.single_groups() for side in record.sides(kind)]
    if words:
        weights = record.word_weights(layer, head, kind).weights
    depth, heads = len(record.layers(kind)), len(record.layers(kind)[layer])
    head_name = f"{head} of {counted(heads, 'head')}" if isinstance(head, str) else f"head {head % heads}"
    rows, columns = ([visible(shorten(group.label, _LABEL_COLUMNS)) for group in side] for side in groups)
    caption = f"{kind_name(record, kind)}, layer {layer % depth}, {head_name}: rows read columns"
    return _Map(weights, rows, columns, visible(record.title) if record.title else "", caption)


def attention_svg(
    record: AttentionMaps, layer: int = -1, head: Head = "mean", kind: str | None = None, *, words: bool = False
) -> str:
    """Draw an attention map as a standalone SVG, without scripts and external resources.

    Small maps show each weight in its cell; other maps show it on hover, except very large ones.

    Args:
        record: the attention record.
        layer: layer number from 0; -1 is the last.
        head: head number from 0, "mean" or "max" over heads.
        kind: "encoder", "decoder" or "cross"; the record's default if not given.
        words: whether to merge subwords into words.
    """
    drawn = _map_of(record, layer, head, kind, words)
    n_rows, n_columns = drawn.weights.shape
    cell = 42 if n_columns <= 12 else 24 if n_columns <= 48 else 14
    size = 13 if cell >= 24 else 10
    advance = 0.62 * size  # width of a character, with a margin, since the viewer chooses the font
    left = 16 + advance * max(display_width(label) for label in drawn.rows) + 8
    longest = advance * max(display_width(label) for label in drawn.columns)
    above = 58 + longest * 0.82 + 10
    width = max(left + n_columns * cell + longest * 0.58 + 16, 16 + 0.6 * 13 * len(drawn.caption), 330)
    height = above + n_rows * cell + 58
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" font-size="{size}" fill="#1b2430" '
        'shape-rendering="crispEdges" role="img">',
        f"<title>{escape(drawn.title or drawn.caption)}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="15" font-weight="600">{escape(shorten(drawn.title, int(width / 9)))}</text>',
        f'<text x="16" y="46" font-size="13" fill="#4c5a6b">{escape(drawn.caption)}</text>',
    ]
    for row, label in enumerate(drawn.rows):
        y = above + (row + 0.5) * cell + size * 0.36
        parts.append(f'<text x="{left - 8:.1f}" y="{y:.1f}" text-anchor="end">{escape(label)}</text>')
    for column, label in enumerate(drawn.columns):
        x, y = left + (column + 0.5) * cell + size * 0.3, above - 7
        parts.append(
            f'<text transform="translate({x:.1f} {y:.1f}) rotate(-55)" text-anchor="start">{escape(label)}</text>'
        )
    parts += _svg_cells(drawn, left, above, cell)
    parts += _svg_legend(drawn.top, left, above + n_rows * cell + 20)
    return "\n".join([*parts, "</svg>", ""])


def _svg_cells(drawn: _Map, left: float, above: float, cell: int) -> list[str]:
    parts = []
    titled = drawn.weights.size <= _MAX_TITLED_CELLS
    side = cell - 1
    for row, label in enumerate(drawn.rows):
        for column, read in enumerate(drawn.columns):
            weight = float(drawn.weights[row, column])
            x, y = left + column * cell, above + row * cell
            title = f"<title>{escape(label)} reads {escape(read)}: {weight:.4f}</title>" if titled else ""
            fill = ramp_colour(weight / drawn.top) if weight else ZERO
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{side}" height="{side}" fill="{fill}">{title}</rect>')
            if not weight:
                parts.append(f'<circle cx="{x + side / 2:.1f}" cy="{y + side / 2:.1f}" r="1" fill="{ZERO_SIGN}"/>')
            elif cell >= 42:
                ink = "#ffffff" if weight / drawn.top > 0.5 else "#1b2430"
                parts.append(
                    f'<text x="{x + side / 2:.1f}" y="{y + side / 2 + 4:.1f}" font-size="11" text-anchor="middle" '
                    f'fill="{ink}" pointer-events="none">{weight:.2f}</text>'
                )
    return parts


def _svg_legend(top: float, x: float, y: float) -> list[str]:
    steps = 40
    parts = [f'<g font-size="11" fill="#4c5a6b"><text x="{x:.1f}" y="{y + 24:.1f}">0</text>']
    for step in range(steps):
        colour = ramp_colour((step + 0.5) / steps)
        parts.append(f'<rect x="{x + step * 4:.1f}" y="{y:.1f}" width="4.2" height="10" fill="{colour}"/>')
    end = x + steps * 4
    parts.append(f'<text x="{end:.1f}" y="{y + 24:.1f}" text-anchor="end">{top:.3g}</text>')
    parts.append(f'<rect x="{end + 16:.1f}" y="{y:.1f}" width="10" height="10" fill="{ZERO}"/>')
    parts.append(f'<circle cx="{end + 21:.1f}" cy="{y + 5:.1f}" r="1" fill="{ZERO_SIGN}"/>')
    return [*parts, f'<text x="{end + 32:.1f}" y="{y + 9:.1f}">exactly 0</text></g>']


def ramp_colour(share: float) -> str:
    """The colour of a weight, given as a share (0 to 1) of the largest weight."""
    position = min(max(share, 0.0), 1.0) * (len(LIGHT_RAMP) - 1)
    low = min(int(position), len(LIGHT_RAMP) - 2)
    pair = [[int(LIGHT_RAMP[at][i : i + 2], 16) for i in (1, 3, 5)] for at in (low, low + 1)]
    return "#" + "".join(f"{round(a + (b - a) * (position - low)):02x}" for a, b in zip(*pair, strict=True))


def attention_png(
    record: AttentionMaps, layer: int = -1, head: Head = "mean", kind: str | None = None, *, words: bool = False
) -> bytes:
    """Draw the same map as a PNG with matplotlib. Raises MissingPartError if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPartError(f"a PNG picture needs matplotlib: {install_hint('plot')}") from error
    drawn = _map_of(record, layer, head, kind, words)
    n_rows, n_columns = drawn.weights.shape
    figure = Figure(figsize=(min(3 + 0.3 * n_columns, 40), min(2.4 + 0.3 * n_rows, 40)), layout="constrained")
    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("weights", list(LIGHT_RAMP)).with_extremes(bad=ZERO)
    picture = axes.imshow(
        np.ma.masked_equal(drawn.weights, 0), cmap=colours, vmin=0, vmax=drawn.top, interpolation="nearest"
    )
    axes.set_xticks(range(n_columns), drawn.columns, rotation=55, ha="left", rotation_mode="anchor", fontsize=9)
    axes.set_yticks(range(n_rows), drawn.rows, fontsize=9)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)  # a token may contain dollar signs
    axes.spines[:].set_visible(False)
    columns = int(figure.get_figwidth() * 11)  # characters of size 10 that fit the width
    lines = [line for text in (drawn.title, drawn.caption) for line in textwrap.wrap(text, columns)]
    figure.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    figure.colorbar(picture, ax=axes, shrink=0.6)
    written = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(written, format="png")
    return written.getvalue()


def mask_text(matrix: Any, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """A boolean mask as lines of text, 1 = may attend: `1 1 1 0` (docs/notes.md#a7, #l2).

    Args:
        matrix: boolean (T,S), or with leading dimensions of size 1, such as `mask.dense(4, 4)`.
        rows: labels of the queries, printed if given.
        columns: labels of the keys, printed if given.

    Raises:
        UsageError: the matrix is not boolean, or the number of labels is wrong.
    """
    array = np.asarray(matrix)
    if array.dtype != np.bool_ or array.ndim < 2 or any(size != 1 for size in array.shape[:-2]):
        raise UsageError(f"a mask must be boolean of shape (T, S): got {array.dtype} of shape {array.shape}")
    n_rows, n_columns = array.shape[-2:]
    for name, labels, count in (("rows", rows, n_rows), ("columns", columns, n_columns)):
        if labels and len(labels) != count:
            raise UsageError(f"`{name}` must be as many labels as the mask has {name}, {count}: got {len(labels)}")
    heads = [visible(label) for label in columns] or [""] * n_columns
    widths = [max(1, display_width(head)) for head in heads]
    names = [visible(label) for label in rows]
    margin = max((display_width(name) for name in names), default=0)
    lines = [
        [("1" if value else "0").ljust(width) for value, width in zip(row, widths)]
        for row in array.reshape(n_rows, n_columns)
    ]
    if columns:
        lines.insert(0, [_padded(head, width) for head, width in zip(heads, widths)])
        names = ["", *names] if names else names
    if names:
        lines = [[_padded(name, margin + 1), *line] for name, line in zip(names, lines)]
    return "\n".join(" ".join(line).rstrip() for line in lines)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))
