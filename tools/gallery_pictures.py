"""Draws docs/gallery/: what the package's models say of a sentence, and the scores of each table of docs/gallery.md."""

import re
from pathlib import Path

import atento
from atento.inspection import palette
from atento.inspection.figures import svg

DOCS = Path(__file__).resolve().parents[1] / "docs"
EXPLAINED: dict[str, str | tuple[str, str]] = {  # a model of the package -> what it reads
    "tense": "O gato vai dormir.",
    "entailment": ("A gata branca dorme.", "A gata dorme."),
    "entities": "Ana mora em Lisboa.",
    "answers": ("Quem mora em Lisboa?", "Ana mora em Lisboa."),
}
TABLES = ("micro-world", "translators", "fine-tuned")  # of the page, in their order
LEFT, WIDE, ROW, TOP = 300, 260, 24, 44


def rows(page: str) -> list[list[tuple[str, str, float]]]:
    """Return for each table of the page the name, the score as it stands and its share of the best one, of each row."""
    found = []
    for table in re.findall(r"^\|.+score.*\|\n\|[ -|]+\n((?:\|.+\n)+)", page, flags=re.M):
        cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        scores = [next(cell for cell in row[2:] if re.search(r"(BLEU|Pearson|accuracy|F1) \d", cell)) for row in cells]
        names = [f"{row[0]}, {row[1]}" if not row[1].startswith("`") else row[0] for row in cells]
        values = [float(re.findall(r"\d+(?:\.\d+)?", score.replace("F1", ""))[0]) for score in scores]
        found.append(
            [(name, said, value if value <= 1 else value / 100) for name, said, value in zip(names, scores, values)]
        )
    return found


def drawn(table: list[tuple[str, str, float]]) -> str:
    """Return the chart of a table: a bar for each row, as long as its score."""
    foot = TOP + ROW * len(table)
    parts = [svg.text(16, 26, "Scores, the whole width is the best possible one", font_size=14, font_weight="600")]
    parts.append(svg.path(f"M{LEFT + WIDE} {TOP - 12}V{foot - 8}", stroke=palette.ZERO))
    for number, (name, said, share) in enumerate(table):
        y = float(TOP + ROW * number)
        short = name if len(name) < 44 else name[:42].rsplit(" ", 1)[0] + " …"
        parts.append(svg.text(LEFT - 10, y + 4, short, text_anchor="end"))
        parts.append(
            svg.rect(LEFT, y - 7, WIDE * share, 14.0, svg.tooltip(f"{name}: {said}"), fill=svg.ramp_colour(0.6))
        )
        parts.append(svg.text(LEFT + WIDE + 8, y + 4, said.split(",")[0], fill=palette.SOFT))
    return svg.drawing(LEFT + WIDE + 130, foot + 8, "Scores", parts, font_size=12, fill=palette.INK)


def main() -> None:
    """Write the pictures."""
    folder = DOCS / "gallery"
    folder.mkdir(exist_ok=True)
    for name, text in EXPLAINED.items():
        atento.load(f"micro-world-{name}", device="cpu").explain(text).save(folder / f"{name}.svg")
    for name, table in zip(TABLES, rows((DOCS / "gallery.md").read_text("utf-8")), strict=True):
        (folder / f"{name}.svg").write_text(drawn(table), encoding="utf-8")


if __name__ == "__main__":
    main()
