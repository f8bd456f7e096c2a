"""The report of the position laboratory: tables, answers in two languages, and SVG figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from atento.inspection import AttentionRecord, attention_svg, palette
from atento.inspection.figures import svg
from atento_lab.studies.seeds import Row
from atento_lab.studies.tasks import ADJECTIVES, NOUNS

TITLES = {
    "echo": "Language model: repeat the letter three positions before a query symbol",
    "pairs": 'Classifier: mostly "a b", or mostly "b a"?',
    "world": "Language model: sentences of the micro-world",
    "reorder": "Translation with reversed phrases",
    "table": "Learned table on sentences of natural lengths",
    "cost": "Cost of a training step",
}
_DRAWN = {"echo": ("accuracy", True), "pairs": ("accuracy", True), "world": ("nll", False)}  # True: more is better
_COST = ("parameters", "mflops_a_token", "ms_a_step", "peak_mib", "memory_growth")


@dataclass(frozen=True)
class Report:
    """A text, and files by name."""

    text: str
    files: dict[str, str] = field(default_factory=dict)


def report_positions(rows: Sequence[dict[str, object]]) -> Report:
    """Return tables and answers as Markdown, and figures of tasks, learned table and alignments."""
    parts = []
    for task, title in TITLES.items():
        task_rows = [row for row in rows if row.get("task") == task]
        if task_rows:
            parts.append(f"## {title}\n\n{_cost_table(task_rows) if task == 'cost' else _table(task_rows)}")
    answered = [row for row in rows if "answer_pt" in row]
    for language, heading in (("en", "Answers"), ("pt", "Respostas")):
        if answered:
            lines = [f"- {row[f'question_{language}']} {row[f'answer_{language}']}" for row in answered]
            parts.append(f"## {heading}\n\n" + "\n".join(lines))
    text = "\n\n".join(parts) + "\n"
    return Report(text, {"positions.md": text} | _figures(rows))


def _table(rows: Sequence[Row]) -> str:
    """Format a table of schemes by measures: mean ± half the 95 % interval over seeds."""
    names = list(dict.fromkeys(name for row in rows for name in row["measures"]))
    lines = [["scheme", *names], ["---"] * (len(names) + 1)]
    lines += [[row["scheme"], *(_formatted(row["measures"].get(name)) for name in names)] for row in rows]
    about = f"{rows[0]['steps']} steps, {len(next(iter(rows[0]['measures'].values()))['seeds'])} seeds"
    return f"{_lines(lines)}\n\n({about}; ± is half the 95 % interval)"


def _formatted(measure: Row | None) -> str:
    if measure is None:
        return "-"
    mean, within = measure["mean"], measure["within"]
    digits = 0 if abs(mean) >= 100 else 2
    return f"{mean:.{digits}f}" + ("" if within is None else f" ± {within:.{digits}f}")


def _cost_table(rows: Sequence[Row]) -> str:
    """Format the cost of each scheme, and its ratio to the cost without positions."""
    base = next((row for row in rows if row["scheme"] == "none"), None)
    lines = [["scheme", *_COST, "time / none", "memory / none"], ["---"] * (len(_COST) + 3)]
    for row in rows:
        ratios = ["-" if base is None else f"{row[name] / base[name]:.2f}" for name in ("ms_a_step", "peak_mib")]
        lines.append([row["scheme"], *("-" if row[name] is None else f"{row[name]:g}" for name in _COST), *ratios])
    return f"{_lines(lines)}\n\n({rows[0]['length']} tokens, 8 texts, forward and backward)"


def _lines(cells: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def _figures(rows: Sequence[Row]) -> dict[str, str]:
    figures = {}
    for task, (measure, more_is_better) in _DRAWN.items():
        task_rows = [row for row in rows if row.get("task") == task]
        if task_rows:
            lengths = [times * task_rows[0]["length"] for times in (1, 2, 4, 8)]
            values = [[row["measures"][f"{measure} {length}"]["mean"] for length in lengths] for row in task_rows]
            caption = f"{measure} by text length in tokens; trained on {lengths[0]}; darker is better"
            figures[f"{task}.svg"] = grid_svg(
                TITLES[task],
                caption,
                [row["scheme"] for row in task_rows],
                [str(length) for length in lengths],
                values,
                more_is_better,
            )
    for row in rows:
        if row.get("task") == "table":
            share = [[value / max(max(row[name]), 1e-9) for value in row[name]] for name in ("updates", "change")]
            positions = [str(position) for position in range(len(share[0]))]
            figures["table.svg"] = grid_svg(
                TITLES["table"], "by position, as a share of the maximum", ["updates", "change"], positions, share, True
            )
        if "example" in row:
            figures[f"alignment-{row['scheme'].replace(' ', '-').replace('+', '-')}.svg"] = _alignment(row)
    return figures


def _alignment(row: Row) -> str:
    """Draw the cross-attention of one sentence: each word is its id, a target word that of its source with a prime."""
    example = row["example"]
    source, target = example["source"], example["target"]
    record = AttentionRecord(
        tokens=[f"{word - ADJECTIVES - NOUNS}′" for word in target],
        source_tokens=[str(word) for word in source],
        kinds={"cross": [np.array(example["weights"], dtype=np.float32)]},
        title=row["scheme"],
    )
    return attention_svg(record, kind="cross")


def grid_svg(
    title: str,
    caption: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    more_is_better: bool,
) -> str:
    """Draw a table of numbers in coloured cells as a standalone SVG, with the best numbers darkest."""
    cell, high, left, above = 62, 28, 30 + 7.4 * max(len(row) for row in rows), 86
    flat = [value for line in values for value in line]
    low, top = min(flat), max(flat)
    width, height = max(left + cell * len(columns) + 16, 24 + 7.4 * len(title)), above + high * len(rows) + 16
    parts = [svg.text(16, 26, title, font_weight="600"), svg.text(16, 46, caption, fill=palette.SOFT)]
    for number, column in enumerate(columns):
        parts.append(svg.text(left + (number + 0.5) * cell, above - 8, column, text_anchor="middle"))
    for row_number, (name, line) in enumerate(zip(rows, values, strict=True)):
        y = above + row_number * high
        parts.append(svg.text(left - 8, y + 18, name, text_anchor="end"))
        for number, value in enumerate(line):
            share = (value - low) / (top - low) if top > low else 1.0  # 1: all are equal
            share = share if more_is_better else 1 - share
            x, ink = left + number * cell, palette.PAPER if share > 0.5 else palette.INK
            parts.append(
                svg.rect(x, y, cell - 1, high - 1, fill=svg.ramp_colour(share))
                + svg.text(x + cell / 2, y + 18, f"{value:.2f}", text_anchor="middle", fill=ink)
            )
    return svg.drawing(width, height, title, parts, font_size=13, fill=palette.INK)
