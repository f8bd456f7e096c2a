"""Search trees as SVG: the candidates of each step and why they were dropped; outputs of several strategies.

See docs/notes.md#j7.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from atento.base.errors import UsageError
from atento.decoding.trace import CUT, FINISHED, KEPT, Run
from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.token_display import display_width, shorten, visible

_FILL = {
    fate: (svg.mixed(palette.PAPER, colour, 0.16), colour)
    for fate, colour in {KEPT: palette.READS, FINISHED: palette.RAISES, CUT: palette.MARK}.items()
}
_DROPPED = (palette.ZERO, palette.ZERO_SIGN)
_HIGH, _GAP, _WORD, _REASON = 34, 14, 16, 14  # _REASON: room below a box for why it was dropped
_ROOT = "start"
_DASHES = "4 3"


@dataclass
class _Node:
    """A node of the tree, which is a prefix of outputs: label, score, fate and position in the drawing."""

    label: str
    total: float = 0.0
    log_prob: float = 0.0
    fate: str = KEPT
    step: int = 0
    children: list["_Node"] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # strategies whose output contains this prefix
    note: str = ""  # text to its right
    x: float = 0.0
    y: float = 0.0

    @property
    def alive(self) -> bool:
        return self.fate in _FILL

    def all(self) -> Iterator["_Node"]:
        """The node and all its descendants."""
        yield self
        for child in self.children:
            yield from child.all()


def beam_svg(run: Run, row: int = 0, *, name: Callable[[int], str] = str, title: str = "", dropped: int = 3) -> str:
    """Draw the search tree of a sentence as a standalone SVG.

    A box is a token with the score of the prefix that ends with it; its edge has the log-probability of the token. Blue
    prefixes continue, green ones are finished, yellow ones were cut at the length limit, grey ones were dropped, with
    the reason. The path of the best output is bold. Elements of step n are in groups of class `step-n`.

    Args:
        run: a run of a `Trace`.
        row: the sentence.
        name: a function from ids to text.
        dropped: how many dropped continuations of a step are shown, the best first.

    Raises UsageError: the run does not have this sentence.
    """
    _check_row(run, row)
    root = _Node(_ROOT)
    nodes: dict[tuple[int, ...], _Node] = {(): root}
    for step in run.of(row):
        worst_first = sorted(step.candidates, key=lambda candidate: candidate.total)
        gone = [candidate for candidate in worst_first if not candidate.alive][-dropped:] if dropped else []
        shown = [candidate for candidate in worst_first if candidate.alive] + gone
        for candidate in sorted(shown, key=lambda candidate: -candidate.total):
            before = tuple(step.live[candidate.parent])
            key = (*before, candidate.token)
            if before not in nodes:
                continue
            if key in nodes and (nodes[key].alive or not candidate.alive):
                continue  # two equal samples
            label = visible(shorten(name(candidate.token), _WORD))
            child_node = _Node(label, candidate.total, candidate.log_prob, candidate.fate, step.length + 1)
            if key in nodes:
                nodes[before].children.remove(nodes[key])
            nodes[before].children.append(child_node)
            nodes[key] = child_node
    best = run.hypotheses[row][0].ids if run.hypotheses and run.hypotheses[row] else []
    best_path = {id(nodes[tuple(best[:n])]) for n in range(len(best) + 1) if tuple(best[:n]) in nodes}
    ends = [child for node in [nodes.get(tuple(best))] if node for child in node.children if child.fate == FINISHED]
    bold = best_path | {id(end) for end in ends[:1]}
    return _drawn(root, title or f"{run.strategy}: candidates of each step", bold, _tree_node)


def outputs_svg(runs: Sequence[Run], row: int = 0, *, name: Callable[[int], str] = str, title: str = "") -> str:
    """Draw the outputs of several searches for a sentence as one tree, with a line for each strategy.

    The end of each output has its log-probability. See docs/notes.md#j7. Raises UsageError if a run does not have this
    sentence.
    """
    root = _Node(_ROOT)
    nodes: dict[tuple[int, ...], _Node] = {(): root}
    for number, run in enumerate(runs):
        _check_row(run, row)
        # the best output of a search, but all that were sampled
        for output in (run.hypotheses[row] if run.hypotheses else [])[: 1 if run.strategy != "sample" else None]:
            end = root
            for length in range(1, len(output.ids) + 1):
                key = tuple(output.ids[:length])
                if key not in nodes:
                    nodes[key] = _Node(visible(shorten(name(key[-1]), _WORD)), step=length)
                    end.children.append(nodes[key])
                end = nodes[key]
                end.lines += [number] if number not in end.lines else []
            unended = "" if output.finished else ", cut off"
            end.note += ("; " if end.note else "") + f"{run.strategy} {output.log_prob:.2f}{unended}"
    return _drawn(root, title or "Output of each strategy", set(), _output_node)


def _check_row(run: Run, row: int) -> None:
    if not 0 <= row < run.count:
        raise UsageError(f"the run has sentences 0 to {run.count - 1}: got {row}")


def _drawn(root: _Node, title: str, bold: set[int], draw: Callable[[_Node, float], list[str]]) -> str:
    wide = max(64.0, *(7.4 * display_width(node.label) + 18 for node in root.all()))
    across = wide + 56  # from one step to the next
    bottom = _layout(root, 0, across, 48.0)
    edges = [(node, child) for node in root.all() for child in node.children]
    parts = [_edge(node, child, wide, id(node) in bold and id(child) in bold) for node, child in edges]
    parts += [svg.group(draw(node, wide), class_=f"step-{node.step}") for node in root.all()]
    right = 16 + max(
        node.x
        + max(
            wide + 7 * display_width(node.note),
            wide + 6 + 5.6 * len(CUT) if node.fate == CUT else 0,  # beside the box
            0 if node.alive else 4.8 * len(node.fate),  # under it
        )
        for node in root.all()
    )
    width = max(right, 8.5 * display_width(title) + 32)
    return svg.drawing(width, bottom + 8, title, [_text(16, 26, title, 15, palette.INK), *parts])


def _layout(node: _Node, depth: int, across: float, top: float) -> float:
    """Place leaves below each other and each node in the middle of its children; returns the bottom."""
    node.x = 16 + depth * across
    if not node.children:
        node.y = top
        return top + _HIGH + _GAP + (0 if node.alive else _REASON - 6)
    foot = top
    for child in node.children:
        foot = _layout(child, depth + 1, across, foot)
    node.y = (node.children[0].y + node.children[-1].y) / 2  # between its first and its last child
    return max(foot, node.y + _HIGH + _GAP)


def _edge(node: _Node, child: _Node, wide: float, bold: bool) -> str:
    x, y, to_x, to_y = node.x + wide, node.y + _HIGH / 2, child.x, child.y + _HIGH / 2
    middle = (x + to_x) / 2
    parts = []
    for line_number, line in enumerate(child.lines or [-1]):
        off = 4 * (line_number - (len(child.lines) - 1) / 2) if child.lines else 0.0
        begin, end = f"{y + off:.1f}", f"{to_y + off:.1f}"
        d = f"M{x:.0f} {begin} C{middle:.0f} {begin} {middle:.0f} {end} {to_x:.0f} {end}"
        colour = (
            palette.SERIES[line % len(palette.SERIES)] if line >= 0 else palette.SOFT if child.alive else _DROPPED[1]
        )
        dashes, heavy = None if child.alive else _DASHES, 3.2 if bold or line >= 0 else 1.4
        parts.append(svg.path(d, fill="none", stroke=colour, stroke_width=heavy, stroke_dasharray=dashes))
    if not child.lines:
        beside = to_y + (13 if child.y > node.y else -5)  # beside the line
        colour = palette.SOFT if child.alive else palette.ZERO_SIGN
        parts.append(_text(to_x - 5, beside, f"{child.log_prob:.2f}", 10, colour, "end"))
    return svg.group(parts, class_=f"step-{child.step}")


def _tree_node(node: _Node, wide: float) -> list[str]:
    """A box with its token and score, and below it the reason if it was dropped."""
    fill, stroke = _FILL.get(node.fate, _DROPPED)  # another fate is a reason to drop it
    total = "−∞" if node.total == -inf else f"{node.total:.2f}"
    hover = svg.tooltip(f"{node.label}: {total}, {node.fate if node.step else 'start'}")
    heavy, dashes = 2.2 if node.fate == FINISHED else 1.3, None if node.alive else _DASHES
    parts = [
        _box(node, wide, hover, fill=fill, stroke=stroke, stroke_width=heavy, stroke_dasharray=dashes),
        _text(node.x + wide / 2, node.y + 15, node.label, 13, palette.INK if node.alive else palette.SOFT, "middle"),
    ]
    if node.step:
        parts.append(_text(node.x + wide / 2, node.y + 28, total, 10, palette.SOFT, "middle"))
    if not node.alive:
        parts.append(_text(node.x, node.y + _HIGH + 11, visible(shorten(node.fate, 44)), 9, palette.SOFT))
    elif node.fate == CUT:
        parts.append(_text(node.x + wide + 6, node.y + 21, node.fate, 10, _FILL[CUT][1]))
    return parts


def _output_node(node: _Node, wide: float) -> list[str]:
    """A box with its word, and the strategies whose output ends with it."""
    parts = [
        _box(node, wide, fill=palette.PAPER, stroke=palette.SOFT, stroke_width=1.3),
        _text(node.x + wide / 2, node.y + 21, node.label, 13, palette.INK, "middle"),
    ]
    if node.note:
        x, y = (node.x, node.y - 4) if node.children else (node.x + wide + 8, node.y + 21)
        parts.append(_text(x, y, node.note, 11, palette.INK))
    return parts


def _box(node: _Node, wide: float, *content: str, **look: svg.Value) -> str:
    return svg.rect(round(node.x), float(node.y), round(wide), _HIGH, *content, rx=6, **look)


def _text(x: float, y: float, text: str, size: int, fill: str, anchor: str = "start") -> str:
    return svg.text(float(x), float(y), visible(text), font_size=size, text_anchor=anchor, fill=fill)
