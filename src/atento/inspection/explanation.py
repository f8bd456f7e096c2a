"""`Explanation`: how much each word adds to a number that a model predicts, as text, page (HTML), SVG and JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from atento.base.errors import UsageError
from atento.inspection import palette
from atento.inspection.figures import svg
from atento.inspection.standalone import framed, page
from atento.inspection.token_display import display_width, padded, shorten, visible
from atento.storage.atomic_files import write_output

ENDINGS = (".html", ".svg", ".json")
_BAR = 24  # columns of the longest bar in a terminal
_NAMED = 5  # words of the line of a part in a terminal
CELLS = 40_000  # of the tables of a page
_LABEL_COLUMNS = 24
_ROW, _HALF = 22, 150  # of a drawing: a word's height, a bar's greatest length
_STYLE = (
    "main > section > p { max-width: 45rem } "
    ".words { display: flex; flex-wrap: wrap; gap: 4px; padding: 0; list-style: none } "
    ".words li { padding: 2px 6px; border: 1px solid var(--zero-sign); border-radius: 4px; text-align: center } "
    ".words .special { border-style: dashed } .words .side { border: 0; align-self: center } "
    ".words small { display: block; color: inherit } td, tr:first-child th + th { text-align: right }"
)


@dataclass(frozen=True)
class Explanation:
    """The scores of the words that a model reads for a number that it computes from them."""

    # the words in their order, special tokens among them. Of an encoder-decoder, the source, then the output as the
    # decoder reads it
    words: list[str]
    scores: list[float]  # the score of each word; above 0 it raises the number, below 0 it lowers it
    method: str  # integrated-gradients, gradient-input, rollout or leave-out
    target: str  # what is predicted: a label, the tag of a word, an answer, an output
    total: float  # what the scores add up to; of integrated gradients, how much the number differs from its baseline
    quantity: str = ""  # what the number is, such as "log-probability of the label"
    value: float = 0.0  # the number
    baseline: str = ""  # what the number is compared with, in words; empty for rollout
    error: float = 0.0  # how far the sum of the scores is from `total`: the error of the integral, else 0
    steps: int = 0  # the steps of the integral, else 0
    special: list[bool] = field(default_factory=list, repr=False)  # whether each word is a special token
    # what each word is part of: "text", "second", "question", "context", "source", "prompt" or "output"
    sides: list[str] = field(default_factory=list, repr=False)
    # of an output or of several tags, the explanation of each; its words are these, and its scores add up to these
    parts: "list[Explanation]" = field(default_factory=list, repr=False)
    title: str = ""  # the text
    model: str = ""  # name of the model

    def __repr__(self) -> str:
        parts = f", {len(self.parts)} parts" if self.parts else ""
        return f"Explanation({self.target!r}, {len(self.words)} words, {self.method}, total={self.total:+.4f}{parts})"

    def _repr_html_(self) -> str:
        """The page in a sandboxed frame, for notebooks."""
        return framed(explanation_page([self]), height=320 + 30 * len(self.parts))

    def to_dict(self) -> dict[str, Any]:
        """The explanation as lists, numbers and strings for JSON; its parts have only their own scores."""
        plain = {name: value for name, value in vars(self).items() if name != "parts"}
        own = ("scores", "target", "total", "value")
        return plain | {"parts": [{name: getattr(part, name) for name in own} for part in self.parts]}

    def save(self, path: str | Path) -> None:
        """Write the explanation to a file: a page (.html), a drawing (.svg) or the numbers (.json).
        Raises UsageError: another extension. AtentoError: the file cannot be written.
        """
        path, ending = Path(path), Path(path).suffix.lower()
        if ending not in ENDINGS:
            raise UsageError(f"the file must end in {', '.join(ENDINGS)}: got {str(path)!r}")
        if ending == ".json":
            content = json.dumps(self.to_dict(), ensure_ascii=False) + "\n"
        else:
            content = explanation_page([self]) if ending == ".html" else explanation_svg(self)
        write_output(path, content.encode("utf-8", errors="backslashreplace"))

    def text(self) -> str:
        """The explanation for a terminal: a line for each word with its score and a bar, `█` above 0 and `░` below.

        With several parts, a line for each part instead: the words of its largest scores, of the output behind `|`.
        """
        head = f"{visible(self.target)}: {self.quantity} {self.value:.4f}; {self.method}, total {self.total:+.4f}"
        if len(self.parts) > 1:
            margin = max(display_width(visible(part.target)) for part in self.parts)  # columns of the longest name
            return "\n".join(
                [head, *(f"  {padded(visible(part.target), margin)} ← {part._largest()}" for part in self.parts)]
            )
        margin = max((display_width(visible(word)) for word in self.words), default=0)
        top = max(map(abs, self.scores), default=0.0) or 1.0  # 1 if all are 0
        lines = [head]
        for word, score in zip(self.words, self.scores):
            bar = ("█" if score > 0 else "░") * round(_BAR * abs(score) / top)
            lines.append(f"  {padded(visible(word), margin)} {score:+.4f} {bar}".rstrip())
        return "\n".join(lines)

    def _largest(self) -> str:
        """The words with the largest scores, in one line: what the output was made from, then the output before."""
        ranked = sorted(range(len(self.words)), key=lambda number: -abs(self.scores[number]))[:_NAMED]
        output = {n for n, side in enumerate(self.sides) if side == "output"}
        sides = [[n for n in ranked if (n in output) is written] for written in (False, True)]
        named = [", ".join(f"{visible(self.words[n])} {self.scores[n]:+.2f}" for n in side) for side in sides]
        return " | ".join(named) if sides[1] else named[0]


def colour(share: float) -> str:
    """The colour of a score, given as a share (-1 to 1) of the largest: green raises the number, purple lowers it.

    It is as far from the page as the share, and light enough for letters.
    """
    end = "raises" if share > 0 else "lowers"
    return f"color-mix(in srgb, var(--{end}) {45 * min(abs(share), 1):.3g}%, transparent)"


def explanation_page(explanations: Sequence[Explanation]) -> str:
    """Explanations below one another as a page, without scripts and external resources.
    Raises UsageError: there is none, or their tables have more than 40,000 cells.
    """
    if not explanations:
        raise UsageError("a page needs at least one explanation: got none")
    cells = sum(len(one.parts) * len(one.words) for one in explanations)
    if cells > CELLS:
        raise UsageError(f"a page holds tables of at most {CELLS:,} cells: got {cells:,}; explain a shorter text")
    body = "".join(f"<section>{_section(one)}</section>\n" for one in explanations)
    first = explanations[0]
    return page(f"Why “{first.target}”?" if len(explanations) == 1 else "Explanations", 70, _STYLE, body)


def _section(one: Explanation) -> str:
    named = f"<h2>{escape(visible(one.title))}</h2>\n" if one.title else ""
    error = f" The sum of the scores differs by {one.error:.2g}, with {one.steps} steps." if one.steps else ""
    baseline = f" Compared with: {escape(one.baseline)}." if one.baseline else ""
    about = (
        f"<p><b>{escape(visible(one.target))}</b>: {escape(one.quantity)} {one.value:.4f}. "
        f"Method {escape(one.method)}: the scores add up to {one.total:+.4f}.{error}{baseline} "
        "Green and + raise the number, purple and − lower it; special tokens have a dashed border.</p>\n"
    )
    top = max(map(abs, one.scores), default=0.0) or 1.0  # the longest bar and the darkest colour
    special = one.special or [False] * len(one.words)
    sides = one.sides if len(set(one.sides)) > 1 else []
    items = [
        (f'<li class="side">{escape(sides[n])}:</li>' if sides and (n == 0 or sides[n] != sides[n - 1]) else "")
        + f'<li{" class=special" if special[n] else ""} style="background: {colour(score / top)}">'
        f"{escape(visible(word))}<small>{_signed(score)}</small></li>"
        for n, (word, score) in enumerate(zip(one.words, one.scores))
    ]
    section = f'{named}{about}<ul class="words">{"".join(items)}</ul>\n'
    if not one.parts:
        return section
    # a row for each part, a column for each word, on one scale
    top = max((abs(score) for part in one.parts for score in part.scores), default=0.0) or 1.0
    head = "".join(f"<th scope=col>{escape(visible(word))}</th>" for word in one.words)
    rows = "".join(
        f"<tr><th scope=row>{escape(visible(part.target))}</th>"
        + "".join(f'<td style="background: {colour(score / top)}">{_signed(score)}</td>' for score in part.scores)
        + f"<td>{_signed(part.total)}</td></tr>\n"
        for part in one.parts
    )
    table = f"<table><tr><td></td>{head}<th scope=col>total</th></tr>\n{rows}</table>"
    return f'{section}<div tabindex="0">{table}</div>\n'


def _signed(score: float) -> str:
    """A number with its sign, a minus as wide as the plus; 0 has none."""
    shown = f"{score:+.3f}"
    return "0" if float(shown) == 0 else shown.replace("-", "−")


def explanation_svg(one: Explanation) -> str:
    """The words of an explanation as signed bars: those that raise the number to the right, the others to the left."""
    labels = [visible(shorten(word, _LABEL_COLUMNS)) for word in one.words]
    top = max(map(abs, one.scores), default=0.0) or 1.0
    left = 32 + 7.5 * max(map(display_width, labels), default=0)  # room of the longest word
    middle, above = left + 60 + _HALF, 84
    caption = f"{one.quantity} {one.value:.4f}; {one.method}, total {one.total:+.4f}"
    parts = [
        svg.text(16, 26, shorten(visible(one.title or one.target), 70), font_size=15, font_weight="600"),
        svg.text(16, 46, shorten(visible(one.target), 70)),
        svg.text(16, 64, caption, fill=palette.SOFT),
        svg.path(f"M{middle:.1f} {above - 6}v{_ROW * len(labels) + 8}", stroke=palette.SOFT),
    ]
    for number, (label, score) in enumerate(zip(labels, one.scores)):
        y, length = float(above + number * _ROW), _HALF * abs(score) / top  # pixels
        begin = middle if score > 0 else middle - length  # bars begin in the middle
        fill = palette.RAISES if score > 0 else palette.LOWERS
        parts.append(svg.text(left, y + 13, label, text_anchor="end"))
        parts.append(svg.rect(begin, y + 2, length, 15.0, svg.tooltip(f"{label}: {score:+.6f}"), fill=fill))
        x, anchor = (middle + length + 6, "start") if score > 0 else (middle - length - 6, "end")
        parts.append(svg.text(x, y + 13, _signed(score), text_anchor=anchor))
    width = max(middle + _HALF + 70, 32 + 6.6 * display_width(caption))
    return svg.drawing(width, above + _ROW * len(labels) + 20, f"Why {visible(one.target)}", parts, font_size=12)
