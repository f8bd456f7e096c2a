"""Next-token distributions as bar charts, with the tokens that a filter keeps (docs/notes.md#j6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atento.base.errors import UsageError
from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.token_display import display_width, padded, shorten, visible

_KEPT, _LEFT_OUT = palette.SERIES[0], palette.GRID
_BAR, _HIGH, _GAP = 18, 130, 40
_LABEL_COLUMNS = 12


@dataclass(frozen=True)
class NextToken:
    """A distribution to draw."""

    title: str  # title of the chart
    probabilities: Any  # (V,), sum 1
    kept: object = None  # boolean (V,), the tokens that a filter keeps; None if there is no filter
    names: Sequence[str] = ()  # names of the V tokens; ids if empty


@dataclass(frozen=True)
class _Panel:
    """A distribution with its layout: the most probable tokens in order, and a line about the others."""

    title: str
    caption: str
    names: list[str]
    shares: list[float]
    kept: list[bool]
    more: str


def distribution_svg(panels: Sequence[NextToken], *, title: str = "", max_tokens: int = 20) -> str:
    """Draw distributions side by side on one scale, as a standalone SVG: kept tokens dark, the others grey.

    Args:
        max_tokens: number of bars for each distribution; a line sums up the other tokens.

    Raises UsageError: there are no distributions, or their arrays are not valid.
    """
    drawn = [_panel(panel, max_tokens) for panel in panels]
    if not drawn:
        raise UsageError("a drawing needs at least one distribution: got none")
    top = max(max(panel.shares) for panel in drawn)  # one scale for all
    below = 12 + 6.4 * max(display_width(name) for panel in drawn for name in panel.names)
    widths = [max(_BAR * len(p.names) + 8, 6.6 * display_width(p.caption), 7.5 * display_width(p.title)) for p in drawn]
    width = max(sum(widths) + _GAP * len(widths), 9 * display_width(title) + 32)
    height = 92 + _HIGH + below + 26
    parts = [svg.text(16, 24, visible(title) if title else "", font_size=15, font_weight="600")]
    left = 16.0
    for panel, wide in zip(drawn, widths):
        parts.append(svg.moved(left, 50, _bars(panel, top, below)))
        left += wide + _GAP
    return svg.drawing(width, height, title or drawn[0].title, parts, font_size=11, fill=palette.INK)


def distribution_text(panels: Sequence[NextToken], *, max_tokens: int = 10) -> str:
    """The same as text: one token per line with its probability, `+` if it is kept. Raises as `distribution_svg`."""
    lines = []
    for panel in (_panel(panel_input, max_tokens) for panel_input in panels):
        lines += [f"{panel.title}: {panel.caption}"]
        margin = max(display_width(name) for name in panel.names)
        for name, share, kept in zip(panel.names, panel.shares, panel.kept):
            bar = "█" * round(30 * share) if kept else "░" * round(30 * share)
            lines.append(f"  {'+' if kept else '-'} {padded(name, margin)} {share:.4f} {bar}".rstrip())
        lines += [f"    {panel.more}"] if panel.more else []
    return "\n".join(lines)


def _panel(distribution: NextToken, max_tokens: int) -> _Panel:
    """Check and sort a distribution, and describe what is left out."""
    shares = np.asarray(distribution.probabilities, dtype=np.float64)
    if shares.ndim != 1 or not shares.size or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-4:
        rule = "probabilities must be of shape (V,), none negative, and sum to 1"
        raise UsageError(f"{rule}: got {shares.shape} for {distribution.title!r}")
    kept = np.ones(shares.size, dtype=bool) if distribution.kept is None else np.asarray(distribution.kept)
    if kept.dtype != np.bool_ or kept.shape != shares.shape:
        raise UsageError(f"`kept` must be boolean of shape {shares.shape}: got {kept.dtype} of shape {kept.shape}")
    if distribution.names and len(distribution.names) != shares.size:
        raise UsageError(f"`names` must name {shares.size} tokens: got {len(distribution.names)}")
    if max_tokens < 1:
        raise UsageError(f"`max_tokens` must be at least 1: got {max_tokens}")
    ranked = np.argsort(-shares, kind="stable")  # of equals, lower ids first
    shown_ids, other_ids = ranked[:max_tokens], ranked[max_tokens:]  # ids of the bars, and of the rest
    every = [distribution.names[i] if distribution.names else str(i) for i in shown_ids.tolist()]
    names = [visible(shorten(name, _LABEL_COLUMNS)) for name in every]
    caption = f"{shares.size} tokens"
    if distribution.kept is not None:
        caption = f"keeps {int(kept.sum())} of {caption}, {shares[kept].sum():.1%} of the mass"
    more = ""
    if other_ids.size:
        more = f"and {other_ids.size} more: {shares[other_ids].sum():.1%}"
        more += f", {int(kept[other_ids].sum())} of them kept" if distribution.kept is not None else ""
    bars, is_kept = shares[shown_ids].tolist(), kept[shown_ids].tolist()
    return _Panel(visible(distribution.title), caption, names, bars, is_kept, more)


def _bars(panel: _Panel, top: float, below: float) -> Iterator[str]:
    foot = 28 + _HIGH
    yield svg.text(0, 0, panel.title, font_size=13)
    yield svg.text(0, 16, panel.caption, fill=palette.SOFT)
    yield svg.path(f"M0 {foot}h{_BAR * len(panel.names)}", stroke=palette.SOFT)
    for position, (name, share, kept) in enumerate(zip(panel.names, panel.shares, panel.kept)):
        x, high = position * _BAR, share / top * (_HIGH - 4)
        title = svg.tooltip(f"{name}: {share:.4f}{'' if kept else ', left out'}")
        y, fill = f"{foot - high:.2f}", _KEPT if kept else _LEFT_OUT
        yield svg.element("rect", title, x=x + 1, y=y, width=_BAR - 3, height=f"{high:.2f}", fill=fill)
        look = {"text_anchor": "end", "fill": palette.INK if kept else palette.SOFT}
        yield svg.turned_text(x + _BAR / 2 + 2, foot + 8, -90, name, **look)
    if panel.more:
        yield svg.text(0, foot + below + 18, panel.more, fill=palette.SOFT)
