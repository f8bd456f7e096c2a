"""The page of a family race: a table of what each entrant has learned, and curves over the seconds of training."""

from collections.abc import Sequence
from html import escape

from atento.base.errors import MissingPartError
from atento.inspection.figures.curves import Line, Panel, curves_page
from atento_lab.studies.report import Report
from atento_lab.studies.seeds import Row

_HEADINGS = {"fill": "fill, both sides", "continue": "fill, left side", "translate": "translate, chrF"}
_ABOUT = (
    "Fill: accuracy in choosing the word that was left out of a held-out text among ten, by the words on both sides or "
    "on the left alone; chance is 0.1. The columns of classes are accuracies of logistic regression on the mean "
    "vector of each text, from the network as it is. A dash: the family cannot do it."
)


def report_race(rows: Sequence[Row]) -> Report:
    """Return the table as Markdown, and a page with the table and the curves where matplotlib is installed."""
    final = {row["entrant"]: row for row in rows}  # the last checkpoint of each entrant
    names = list(dict.fromkeys(name for row in final.values() for name in row["scores"]))
    head = ["family", "parameters", "without word vectors", "updates", "seconds", *(_HEADINGS.get(n, n) for n in names)]
    cells = [
        [
            entrant,
            f"{row['parameters']:,}",
            f"{row['without_word_vectors']:,}",
            f"{row['step']:,}",
            f"{row['seconds']:.0f}",
            *(_score(row["scores"].get(name), name) for name in names),
        ]
        for entrant, row in final.items()
    ]
    lines = [head, ["---"] * len(head), *cells]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{_ABOUT}\n"
    files = {"race.md": text}
    html_rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in cells)
    header = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    table = f"<div><table><tr>{header}</tr>{html_rows}</table></div>\n<p>{escape(_ABOUT)}</p>\n"
    try:
        page = curves_page(_panels(rows, names), "The family race", "seconds of training", table)
        files["race.html"] = page.decode("utf-8")
    except MissingPartError:
        pass  # the table needs no picture
    return Report(text, files)


def _score(score: float | None, name: str) -> str:
    return "-" if score is None else f"{score:.1f}" if name == "translate" else f"{score:.2f}"


def _panels(rows: Sequence[Row], names: Sequence[str]) -> list[Panel]:
    entrants = list(dict.fromkeys(row["entrant"] for row in rows))
    panels = []
    for name in names:
        lines = [
            Line(
                entrant,
                number,
                [
                    (row["seconds"], row["scores"][name])
                    for row in rows
                    if row["entrant"] == entrant and row["scores"].get(name) is not None
                ],
            )
            for number, entrant in enumerate(entrants)
        ]
        panels.append(Panel(_HEADINGS.get(name, name), [line for line in lines if line.points]))
    return [panel for panel in panels if panel.lines]
