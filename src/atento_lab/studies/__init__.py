"""Studies of what networks learn, by name: those of `atento bench` that compare no other library."""

from collections.abc import Callable, Iterator, Sequence

from atento_lab.studies.exposure import measure_exposure
from atento_lab.studies.exposure_report import report_exposure
from atento_lab.studies.laboratory import measure_positions
from atento_lab.studies.ladder import measure_ladder, report_ladder
from atento_lab.studies.race import measure_race
from atento_lab.studies.race_report import report_race
from atento_lab.studies.recurrence import measure_recurrence
from atento_lab.studies.report import Report, report_positions
from atento_lab.studies.transfer import measure_transfer, report_transfer

BENCHES: dict[str, Callable[..., Iterator[dict[str, object]]]] = {
    "recurrence": measure_recurrence,
    "positions": measure_positions,
    "exposure": measure_exposure,
    "transfer": measure_transfer,
    "race": measure_race,
    "ladder": measure_ladder,
}
REPORTS: dict[str, Callable[[Sequence[dict[str, object]]], Report]] = {  # whose rows are better read as a page
    "positions": report_positions,
    "exposure": report_exposure,
    "transfer": report_transfer,
    "race": report_race,
    "ladder": report_ladder,
}
