"""The process that reads the runs that Studio draws; it loads no torch."""

from collections import OrderedDict

from atento.errors import UsageError
from atento_serve.http.errors import ServiceError
from atento_serve.http.fields import Fields, bounded, read
from atento_serve.settings import Limits, StudioSettings
from atento_serve.studio.process_loop import Answer, Answered, answer_all
from atento_serve.studio.run_curves import Mark, RunCurves
from atento_serve.studio.run_folders import found_runs

MOST_RUNS = 16


class FollowFields(Fields):
    """Runs by their names, and for each how far the page has it."""

    runs: list[str]
    marks: list[str]


class Follower:
    """The runs below the folders of the command line, each read on when it is asked for; the last ones stay read."""

    def __init__(self, given: list[str]) -> None:
        self._given = given
        self._read: OrderedDict[str, RunCurves] = OrderedDict()

    def follow(self, fields: FollowFields) -> dict[str, object]:
        """The names of all runs, and what is new of some; a run that cannot be read says why in one sentence."""
        bounded("runs", len(fields.runs), 0, MOST_RUNS)
        known, changes = found_runs(self._given), dict[str, object]()
        for name, mark in zip(fields.runs, [*fields.marks, *[""] * len(fields.runs)], strict=False):
            if name not in known:
                self._read.pop(name, None)
                changes[name] = {"error": f"the run {name[:80]!r} is not there: it was removed or moved, or never was"}
                continue
            curves = self._read.pop(name, None)
            self._read[name] = curves if curves and curves.folder == known[name] else RunCurves(known[name])
            try:
                change = self._read[name].changes(Mark.read(mark))
            except FileNotFoundError:
                change = {"error": f"the run {name!r} has no metrics.jsonl yet"}
            except (OSError, UsageError) as error:
                change = {"error": f"the run {name!r} cannot be read: {getattr(error, 'strerror', None) or error}"}
            if change is not None:
                changes[name] = change
        while len(self._read) > MOST_RUNS:
            self._read.popitem(last=False)
        return {"runs": list(known), "changes": changes}


def _begin(settings: StudioSettings, _: Limits) -> Answer:
    follower = Follower(list(settings.runs))

    def answered(function: str, arguments: object) -> Answered:
        if function != "follow":
            raise ServiceError(404, f"the runs have no function {function[:80]!r}", "not_found")
        return follower.follow(read(FollowFields, arguments)), b""

    return answered


if __name__ == "__main__":
    answer_all(_begin)
