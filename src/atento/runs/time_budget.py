"""`training.minutes`: the first updates are timed on a copy of the network, and the number of updates is fixed."""

import json
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from atento.base.errors import counted
from atento.base.limits import read_plain_text
from atento.runs.classifier import classifier_of
from atento.runs.prepare import steps_of
from atento.runs.setup import Setup
from atento.storage.atomic_files import write_atomically
from atento.training.allocator import is_out_of_memory
from atento.training.compiling import compile_blocks
from atento.training.replica.local import Replica
from atento.training.step import NotFinite, Updater

TIMED = "fixed by `training.minutes`"  # the origin of such a number of steps
_SECONDS, _SHARE, _UPDATES = 5.0, 0.05, 30  # that are timed: until one of these is reached, of the budget for the share
_FIRST = 0.1  # of the budget: a first update that takes more is the only one that is timed
_PIECES = 64  # more than this many times the pieces of the recipe are not tried


def steps_for_time_budget(setup: Setup) -> None:
    """Replace `training.minutes` by a number of steps, which `run.json` keeps, so that a resumed run has the same.

    The number is that of the updates that the remaining time is enough for, at the rate of the first ones; `steps` or
    `epochs` that the recipe writes limit it. The timed updates are taken on a copy and forgotten.
    """
    minutes = setup.recipe.training.minutes
    if minutes is None or classifier_of(setup.recipe) is not None:
        return
    saved = setup.identity.get("minutes")
    written = _written(setup, saved)
    timed = saved is None
    if saved is None:
        seconds, spent = _timed(setup, 60 * minutes)  # the timed updates count too
        saved = {"seconds_per_update": seconds, "seconds_before": spent}
    begin = 0 if setup.branch is None else setup.branch.step
    rate = saved["seconds_per_update"]
    # the steps before the branch take none of the time
    fitting = begin + max(1, int((60 * minutes - saved["seconds_before"]) / rate))
    steps = fitting if written is None else min(fitting, written)
    setup.identity = {**setup.identity, "minutes": {**saved, "steps": steps, "limited": steps < fitting}}
    if setup.replica.main:
        path = setup.folder / "run.json"
        kept = json.loads(read_plain_text(path))  # it has `processes` too, which is no part of the identity
        write_atomically(path, json.dumps(kept | setup.identity, indent=2) + "\n")
    training = replace(setup.recipe.training, steps=steps, epochs=None)
    origins = setup.loaded.origins | {"training.steps": TIMED}
    setup.loaded = replace(setup.loaded, recipe=replace(setup.recipe, training=training), origins=origins)
    if timed:
        first = "" if steps == fitting else f"; the recipe ends after {counted(steps, 'step')}, before that"
        setup.report(
            f"training.minutes {minutes:g}: {counted(fitting, 'update')} at {rate:.3g} s each, besides validations"
            f"{first}; the number is fixed for this run, and training.steps={steps} training.minutes=null gives the "
            "same weights"
        )


def _written(setup: Setup, saved: Mapping[str, object] | None) -> int | None:
    """Return the limit of updates that the recipe writes; None: it writes none, or what `minutes` had fixed before."""
    training, origin = setup.recipe.training, setup.loaded.origins.get("training.steps", "default")
    if training.epochs is not None:
        return steps_of(training, setup.batches)
    if origin == "default" or origin.startswith("task "):
        return None
    fixed = saved is not None and saved.get("steps") == training.steps and not saved.get("limited")
    return None if fixed else training.steps


def _timed(setup: Setup, budget: float) -> tuple[float, float]:
    """Return the seconds of an update, and those that all timed updates took; the first one compiles kernels.

    The first process takes its part of each update alone, before the others begin.
    """
    recipe, begin = setup.recipe, time.monotonic()
    network, precision = deepcopy(setup.network), str(setup.identity["precision"])
    updater = Updater(network, recipe.training, precision, setup.trained, Replica())
    if recipe.training.compile:
        compile_blocks(updater.compute_network)
    seconds: list[float] = []
    pieces, enough = recipe.training.micro_batches, min(_SECONDS, _SHARE * budget)
    while len(seconds) < 2 or (len(seconds) < _UPDATES and sum(seconds[1:]) < enough):
        started = time.monotonic()
        pieces = _update(updater, setup, len(seconds) + 1, pieces)
        seconds.append(time.monotonic() - started)
        if seconds[0] > _FIRST * budget:
            break
    counted_ones = seconds[1:] or seconds  # the first compiles kernels
    return sum(counted_ones) / len(counted_ones), time.monotonic() - begin


def _update(updater: Updater, setup: Setup, step: int, pieces: int) -> int:
    """Take this process's part of an update, in more pieces where memory runs out; return the number of pieces."""
    while True:
        try:
            updater.update(list(setup.batches.parts(step - 1, pieces, setup.replica.ours())), step, 0.0)
        except NotFinite:
            return pieces  # the run itself says what becomes of it
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or pieces >= _PIECES * setup.recipe.training.micro_batches:
                raise
            pieces *= 2
        else:
            return pieces
