"""The folder of a search: `search.json`, what it searches; `results.jsonl`, its trials; the picture and the page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atento.base.errors import UsageError
from atento.base.limits import read_plain_text
from atento.config.reading.dumping import dump_recipe, scalar_text
from atento.config.reading.loading import load_recipe
from atento.storage.atomic_files import write_atomically
from atento_cli.search.result import SearchResult, Trial, share_text
from atento_cli.search.score_panels import Panel, Point, scores_page, scores_svg

IDENTITY, RESULTS = "search.json", "results.jsonl"
_OWN_FILES = (".lock", "search.log", f".{IDENTITY}-")  # a search that was refused or killed early leaves these
_SHOWN = 3  # differences that a message lists


def open_search(folder: Path, identity: Mapping[str, object]) -> bool:
    """Create the folder of a search, or check that it holds this one; return whether it does.

    Args:
        folder: the folder, which is locked.
        identity: strategy, seed, eta, trials, space and recipe as plain data. A search by random or grid may have more
            trials than before.

    Raises UsageError: the folder holds another search, or something else; the message names the difference.
    """
    path = folder / IDENTITY
    if not path.exists():
        foreign = [entry.name for entry in folder.iterdir() if not entry.name.startswith(_OWN_FILES)]
        if foreign:
            raise UsageError(f"{folder} holds files and is not a search; give another folder with --out")
        write_atomically(path, json.dumps(identity, indent=2, ensure_ascii=False) + "\n")
        return False
    try:
        different = differences(json.loads(read_plain_text(path)), identity)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise UsageError(f"{path} is damaged; give another folder with --out") from None
    if different:
        more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
        raise UsageError(
            f"{folder} is another search: {'; '.join(different[:_SHOWN])}{more}. Give another folder with --out"
        )
    write_atomically(path, json.dumps(identity, indent=2, ensure_ascii=False) + "\n")  # perhaps with more trials
    return True


def differences(saved: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return what differs between a search and its continuation, as `key: old -> new`."""
    before, now = _texts(saved), _texts(identity)
    asked, had = identity["trials"], saved["trials"]  # None: all
    if saved["strategy"] != "halving" and (asked is None or (had is not None and asked >= had)):
        before["trials"] = now["trials"]
    return [
        f"{key}: {before.get(key, '(absent)')} -> {now.get(key, '(absent)')}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key) != now.get(key)
    ]


def _texts(identity: Mapping[str, Any]) -> dict[str, str]:
    """Return each value of an identity as text; the keys of the space and of the recipe say which they are of."""
    texts = {key: scalar_text(value) for key, value in identity.items() if key not in ("space", "recipe")}
    texts |= {f"space {key}": scalar_text(value) for key, value in identity["space"].items()}
    return texts | {f"recipe {key}": value for key, value in identity["recipe"].items()}


def read_results(folder: Path, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials as `results.jsonl` has them; those that it does not have, unchanged.
    Raises UsageError: a line is damaged, or has other values than the trial.
    """
    path = folder / RESULTS
    if not path.exists():
        return list(trials)
    recorded: dict[int, Trial] = {}
    for number, line in enumerate(read_plain_text(path).splitlines(), start=1):
        try:
            trial = Trial.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{path}:{number} is not the record of a trial; give another folder with --out") from None
        recorded[trial.number] = trial  # the last record of a trial counts
    for trial in trials:
        if trial.number in recorded and recorded[trial.number].values != trial.values:
            raise UsageError(f"{path}: {trial.name} has other values than this search draws; use another --out")
    return [recorded.get(trial.number, trial) for trial in trials]


def write_results(folder: Path, trials: Sequence[Trial]) -> None:
    """Write a line for each trial that has begun. Raises TrainingError."""
    lines = (json.dumps(trial.to_dict(), ensure_ascii=False) for trial in trials if trial.state != "waiting")
    write_atomically(folder / RESULTS, "".join(f"{line}\n" for line in lines))


def write_best(result: SearchResult) -> None:
    """Write `best.yaml`: the resolved recipe of the best trial, with absolute paths. Raises TrainingError."""
    best = result.best
    if best is None or result.recipe is None:
        return
    recipe = load_recipe(result.folder / best.name / "recipe.yaml", environment={}).recipe
    first = f"# The recipe of {best.name}, the best of {len(result.trials)} trials: {result.metric} {best.score:.6g}.\n"
    write_atomically(result.recipe, first + dump_recipe(replace(recipe, name=f"{recipe.name}-best")))


def write_picture(result: SearchResult, ranges: Mapping[str, bool], log_keys: Sequence[str]) -> None:
    """Write `scores.svg` and `search.html`: the scores over the values of each key. Raises TrainingError."""
    panels = []
    for key, is_range in ranges.items():
        points = [
            # the first rung, which all trials reach
            Point(trial.values[key] if is_range else scalar_text(trial.values[key]), trial.rungs[0].score, trial.name)
            for trial in result.trials
            if trial.rungs
        ]
        panels.append(Panel(key, points, key in log_keys, share_text(result.importance[key])))
    metric = result.metric or "score"
    svg = scores_svg(panels, metric)
    write_atomically(result.folder / "scores.svg", svg)
    title = f"Search {result.folder.name}: {metric}"
    write_atomically(result.folder / "search.html", scores_page(svg, result.rows(), title))
