"""Attention maps as SVG and PNG (with matplotlib)."""

import textwrap
from dataclasses import dataclass

import numpy as np

from atento.base.errors import counted
from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.maps import AttentionMaps, Head
from atento.inspection.token_display import display_width, shorten, visible
from atento.inspection.word_groups import Matrix

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
        return float(self.weights.max()) or 1.0  # 1: all weights are 0


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
        layer: layer number from 0; -1 is the last.
        head: head number from 0, "mean" or "max" over heads.
        kind: "encoder", "decoder" or "cross"; the record's default if not given.
        words: whether to merge subwords into words.
    """
    drawn = _map_of(record, layer, head, kind, words)
    n_rows, n_columns = drawn.weights.shape
    cell = 42 if n_columns <= 12 else 24 if n_columns <= 48 else 14  # smaller cells for longer texts
    size = 13 if cell >= 24 else 10
    advance = 0.62 * size  # width of a character, with a margin, since the viewer chooses the font
    left = 16 + advance * max(display_width(label) for label in drawn.rows) + 8
    longest = advance * max(display_width(label) for label in drawn.columns)
    above = 58 + longest * 0.82 + 10  # 0.82 = sin 55°, the slope of the labels
    width = max(left + n_columns * cell + longest * 0.58 + 16, 16 + 0.6 * 13 * len(drawn.caption), 330)
    height = above + n_rows * cell + 58
    parts = [
        svg.text(16, 26, shorten(drawn.title, int(width / 9)), font_size=15, font_weight="600"),
        svg.text(16, 46, drawn.caption, font_size=13, fill=palette.SOFT),
    ]
    for row, label in enumerate(drawn.rows):
        parts.append(svg.text(left - 8, above + (row + 0.5) * cell + size * 0.36, label, text_anchor="end"))
    for column, label in enumerate(drawn.columns):
        x = left + (column + 0.5) * cell + size * 0.3
        parts.append(svg.turned_text(x, above - 7, -55, label, text_anchor="start"))
    titled, side = drawn.weights.size <= _MAX_TITLED_CELLS, cell - 1  # a gap between two
    for row, label in enumerate(drawn.rows):
        for column, read in enumerate(drawn.columns):
            weight = float(drawn.weights[row, column])
            x, y = left + column * cell, above + row * cell
            tip = svg.tooltip(f"{label} reads {read}: {weight:.4f}") if titled else ""
            share = weight / drawn.top  # of the largest: the darkest colour
            parts.append(svg.rect(x, y, side, side, tip, fill=svg.ramp_colour(share) if weight else palette.ZERO))
            if not weight:
                parts.append(svg.circle(x + side / 2, y + side / 2, 1, fill=palette.ZERO_SIGN))
            elif cell >= 42:  # room for a number
                ink = palette.PAPER if share > 0.5 else palette.INK
                look = {"text_anchor": "middle", "fill": ink, "pointer_events": "none"}
                parts.append(svg.text(x + side / 2, y + side / 2 + 4, f"{weight:.2f}", font_size=11, **look))
    # the legend: a ramp of 40 steps from 0 to the largest weight, and the sign of an exact 0
    y, end = above + n_rows * cell + 20, left + 40 * 4
    legend = [svg.rect(left + step * 4, y, 4.2, 10, fill=svg.ramp_colour((step + 0.5) / 40)) for step in range(40)]
    legend = [svg.text(left, y + 24, "0"), *legend, svg.text(end, y + 24, f"{drawn.top:.3g}", text_anchor="end")]
    legend += [svg.rect(end + 16, y, 10, 10, fill=palette.ZERO), svg.circle(end + 21, y + 5, 1, fill=palette.ZERO_SIGN)]
    legend.append(svg.text(end + 32, y + 9, "exactly 0"))
    parts.append(svg.element("g", "\n".join(legend), font_size=11, fill=palette.SOFT))
    title = drawn.title or drawn.caption
    return svg.drawing(width, height, title, parts, font_size=size, fill=palette.INK, shape_rendering="crispEdges")


def attention_png(
    record: AttentionMaps, layer: int = -1, head: Head = "mean", kind: str | None = None, *, words: bool = False
) -> bytes:
    """Draw the same map as a PNG with matplotlib. Raises MissingPartError if matplotlib is not installed."""
    drawn = _map_of(record, layer, head, kind, words)
    n_rows, n_columns = drawn.weights.shape
    figure = svg.new_figure("a PNG picture", min(3 + 0.3 * n_columns, 40), min(2.4 + 0.3 * n_rows, 40))
    from matplotlib.colors import LinearSegmentedColormap

    axes = figure.add_subplot()
    colours = LinearSegmentedColormap.from_list("weights", list(palette.LIGHT_RAMP)).with_extremes(bad=palette.ZERO)
    shown = np.ma.masked_equal(drawn.weights, 0)
    picture = axes.imshow(shown, cmap=colours, vmin=0, vmax=drawn.top, interpolation="nearest")
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
    return svg.saved(figure)
