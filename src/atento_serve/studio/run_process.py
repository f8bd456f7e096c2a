"""The process that reads the runs that Studio draws; it loads no torch."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest

from atento.base.errors import UsageError
from atento_serve.http.fields import Fields, Row, bounded, read
from atento_serve.settings import Limits, StudioSettings
from atento_serve.studio.process_loop import Answer, Answered, answer_all
from atento_serve.studio.run_curves import Mark, RunCurves
from atento_serve.studio.run_folders import found_runs

MOST_RUNS = 16


class FollowFields(Fields):
    """Runs by their names, and for each how far the page has it."""

    runs: Row[str]
    marks: Row[str]


class Follower:
    """The runs below the folders of the command line, each read on when it is asked for; the last ones stay read."""

    def __init__(self, given: Sequence[str]) -> None:
        self._given = given
        self._read: OrderedDict[str, RunCurves] = OrderedDict()

    def follow(self, fields: FollowFields) -> Answered:
        """The names of all runs, marks, and of runs that cannot be read why not; as JSON, what is new of the others."""
        bounded("runs", len(fields.runs), 0, MOST_RUNS)
        known, changes = found_runs(self._given), dict[str, object]()
        errors, marks = dict[str, str](), dict[str, object]()
        # a page may send fewer marks
        for name, mark in zip_longest(fields.runs, fields.marks[: len(fields.runs)], fillvalue=""):
            curves = self._read.pop(name, None)  # read again, it is the last to be forgotten
            if name not in known:
                errors[name] = f"the run {name[:80]!r} is not there: it was removed or moved, or never was"
                continue
            # another folder may have taken the name
            self._read[name] = curves if curves and curves.folder == known[name] else RunCurves(known[name])
            try:
                change = self._read[name].changes(Mark.read(mark))
            except FileNotFoundError:
                errors[name] = f"the run {name!r} has no metrics.jsonl yet"
            except (OSError, UsageError) as error:
                errors[name] = f"the run {name!r} cannot be read: {getattr(error, 'strerror', None) or error}"
            else:
                if change is not None:
                    changes[name], marks[name] = change, change["mark"]
        while len(self._read) > MOST_RUNS:  # those that no page asked for the longest
            self._read.popitem(last=False)
        told = {"runs": list(known), "errors": errors, "marks": marks, "error": None}
        return told, json.dumps(changes, allow_nan=False).encode("ascii") if changes else b""


def _begin(settings: StudioSettings, _: Limits) -> Answer:
    follower = Follower(settings.runs)
    return lambda function, arguments: follower.follow(read(FollowFields, arguments))


if __name__ == "__main__":
    answer_all(_begin)
