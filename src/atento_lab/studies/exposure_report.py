"""The report of the exposure laboratory: a table, what the numbers say, curves by step, and the schedules."""

from collections.abc import Iterator, Sequence

from atento.base.errors import MissingPartError
from atento.config.sections.training import ScheduledSamplingConfig
from atento.inspection.figures.curves import Line, Panel, curves_page, curves_picture
from atento.training.scheduled_sampling import SCHEDULES, own_share
from atento_lab.studies.exposure import TEACHER_FORCING
from atento_lab.studies.report import Report
from atento_lab.studies.seeds import Row

TITLE = "Exposure bias: a decoder that reads its own tokens"
_NUMBERS = ("gold nll", "own nll", "gap", "exact", "recovered")
_POINTS = 60  # of the curve of a schedule


def report_exposure(rows: Sequence[dict[str, object]]) -> Report:
    """Return the table and what it says as Markdown, and as files the page of the curves and the schedules' picture."""
    text = "\n".join(["# " + TITLE, "", *_table(rows), "", *(f"- {line}" for line in _answers(rows))]) + "\n"
    files = {"exposure.md": text}
    try:
        files["exposure.html"] = curves_page(panels(rows), TITLE).decode("utf-8")
        files["exposure.svg"] = curves_picture(panels(rows), "svg").decode("utf-8")
        files["schedules.svg"] = curves_picture([schedules(rows[0])], "svg").decode("utf-8")
    except MissingPartError as error:
        text += f"\nNo curves are drawn: {error}\n"
    return Report(text, files)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    about = rows[0]
    yield (
        f"Nats a token after the right prefix (gold) and after the network's own (own), their difference (gap); the "
        f"share of sentences written right (exact), and of those ended right after a wrong word at step "
        f"{about['planted_at'] + 1} (recovered). {about['updates']} updates, {about['seeds']} seeds, ± half the 95 % "
        f"interval; largest share of own tokens {about['share']:g}; held-out combinations of the micro-world."
    )
    yield ""
    yield f"| network | training | {' | '.join(_NUMBERS)} |"
    yield "|" + " --- |" * (len(_NUMBERS) + 2)
    for row in rows:
        cells = (_cell(row[name]) for name in _NUMBERS)
        yield f"| {row['network']} | {row['training']} | {' | '.join(cells)} |"


def _cell(number: dict[str, object]) -> str:
    return f"{number['mean']:.3f}" + ("" if number["within"] is None else f" ± {number['within']:.3f}")


def _answers(rows: Sequence[Row]) -> Iterator[str]:
    """Yield for each network what the gap is under teacher forcing, and what each schedule makes of it."""
    for network in dict.fromkeys(row["network"] for row in rows):
        gaps = {row["training"]: row["gap"]["mean"] for row in rows if row["network"] == network}
        before = gaps.pop(TEACHER_FORCING, None)
        if before is None:
            continue
        changes = ", ".join(f"{gap:.2f} with {training}" for training, gap in gaps.items())
        yield (
            f"{network}: its own prefix costs {before:.2f} nats a token under teacher forcing"
            + (f"; {changes} scheduled sampling" if changes else "")
            + "."
        )


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Return the curves by step: for each network the loss after gold and own prefixes, and what a wrong word adds."""
    trainings = list(dict.fromkeys(row["training"] for row in rows))
    drawn = []
    for network in dict.fromkeys(row["network"] for row in rows):
        prefixes, added = [], []
        for row in (row for row in rows if row["network"] == network):
            number, training = trainings.index(row["training"]), row["training"]
            prefixes.append(Line(f"{training}: right prefix", number, _points(row["gold"])))
            prefixes.append(Line(f"{training}: own prefix", number, _points(row["own"]), dashed=True))
            excess = [planted - gold for planted, gold in zip(row["planted"], row["gold"], strict=True)]
            added.append(Line(f"{training}: right prefix", number, _points(excess)))
        drawn.append(Panel(f"{network}: nats", prefixes))
        drawn.append(Panel(f"{network}: nats added by\na wrong word", added))
    return drawn


def schedules(row: Row) -> Panel:
    """Return the share of own tokens by update, with the constants that the laboratory uses."""
    lines, steps = [], row["updates"]
    for number, schedule in enumerate(SCHEDULES, start=1):
        config = ScheduledSamplingConfig(row["share"], schedule)
        shown = range(1, steps + 1, max(1, steps // _POINTS))
        lines.append(Line(schedule, number, [(step, own_share(config, step, steps)) for step in shown]))
    return Panel("share of own tokens", lines)


def _points(values: Sequence[float]) -> list[tuple[int, float]]:
    return list(enumerate(values, start=1))
