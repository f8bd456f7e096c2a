"""Train what a recipe says: the folder opened and locked, then the steps of a run, one after the other."""

import reprlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from atento.config.loading import LoadedRecipe, load_recipe
from atento.data.memory import MemoryRecords, by_split
from atento.errors import UsageError, path_of
from atento.metrics.table import signed
from atento.precision import resolve_device
from atento.precision import threads as thread_scope
from atento.runs.branch import branch_point
from atento.runs.folder import open_folder
from atento.runs.prepare import read_data
from atento.runs.steps import Setup, trained
from atento.storage.lock import RunLock
from atento.training.allocator import keep_programs
from atento.training.loop import Run
from atento.training.progress import Reporter


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended (or had already): its folder, its last step, its best validation score and test scores."""

    folder: Path
    step: int
    best: float | None
    best_step: int
    test: dict[str, float] | None
    task: str
    already_finished: bool = False

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best {self.best:.2f} at step {self.best_step}"
        return f"TrainedRun({reprlib.repr(str(self.folder))}, step {self.step}{best})"

    def _repr_html_(self) -> str:
        """A table for notebooks: folder, task, last step, best validation score, test scores."""
        rows = [("run", str(self.folder)), ("task", self.task), ("last step", f"{self.step:,}")]
        if self.best is not None:
            rows.append(("best validation score", f"{self.best:.2f} at step {self.best_step:,}"))
        rows += [(f"test {name}", f"{value:.2f}") for name, value in (self.test or {}).items()]
        cells = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
        return f"<table>{''.join(cells)}</table>"


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    data: MemoryRecords | Mapping[str, MemoryRecords] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    precision: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    from_: str | None = None,
) -> TrainedRun:
    """Train what the recipe says, into a run folder; an unfinished run is continued exactly.

    Args:
        recipe: a file, the name of a shipped recipe, a run folder, which goes on, or a mapping of the form of a file:
            {"task": "translation", ...}.
        overrides: {"training.steps": 1000} or ["training.steps=1000"].
        data: records in memory for the splits that it names, in place of the recipe's: {"train": pairs, "valid": ...},
            or the training records alone. Pairs are tuples (source, target), dicts with these keys, or a tuple of two
            lists; texts are str, or dicts with the key "text". A run goes on only with the same records.
        out: the run folder; `runs/NAME` by default. force: move a folder of another run aside.
        device, precision, seed, threads: win over the recipe.
        from_: "RUN@STEP": a new run begins at that checkpoint of another one.

    Raises:
        RecipeError, DataError, UsageError: before long work. TrainingStopped: by a signal, checkpoint saved.
    """
    if isinstance(overrides, str) or not isinstance(overrides, Mapping | Sequence):
        raise UsageError(f"`overrides` must be a mapping or a list of key=value: got {overrides!r:.60}")
    given = dict(overrides) if isinstance(overrides, Mapping) else list(overrides)
    for key, value in (("training.precision", precision), ("training.seed", seed)):
        if value is not None and isinstance(given, dict):
            given[key] = value
        elif value is not None and isinstance(given, list):
            given.append(f"{key}={value}")
    memory = by_split(data)
    loaded = load_recipe(recipe, given, memory=memory)
    device = resolve_device(device)
    begins = None if from_ is None else branch_point(from_)
    default: str | Path = Path("runs") / loaded.recipe.name
    if isinstance(recipe, str | Path) and loaded.path is not None and Path(recipe).is_dir():
        default = recipe  # a run, which goes on
    folder = Path(default) if out is None else path_of(out, "out", "a folder")
    if folder.name in ("", ".."):  # a folder is moved aside by its name
        folder = folder.resolve()
    if force:  # found wrong before anything is moved
        read_data(loaded.recipe, loaded.folder, lambda _: None, memory)
    aside = open_folder(folder, force, [*_files(loaded, folder), *([] if begins is None else [begins.path])])
    with RunLock(folder), thread_scope(threads), ExitStack() as files:
        log = files.enter_context((folder / "train.log").open("a", encoding="utf-8", newline="\n"))
        reporter = Reporter(0, log=log, bar=False)
        for line in [f"moved the old folder to {aside}"] if aside else []:
            reporter.line(line)
        keep_programs()
        return _result(*trained(Setup(loaded, memory, begins, folder, device, threads, reporter, files)))


def _files(loaded: LoadedRecipe, folder: Path) -> list[Path]:
    """The recipe's own file, unless it is that of the run in `folder`, those of its data, and its `init`."""
    data = loaded.recipe.data
    names = (
        name
        for source in (*data.train, *data.valid, *data.test)
        for name in ((source.source, source.target) if source.file is None else (source.file,))
    )
    own = [] if loaded.path is None or loaded.path.resolve() == (folder / "recipe.yaml").resolve() else [loaded.path]
    start = [] if loaded.recipe.init is None else [loaded.home / loaded.recipe.init]
    return own + start + [loaded.folder / name for name in names if isinstance(name, str)]


def _result(run: Run, test: dict[str, float] | None, already: bool) -> TrainedRun:
    progress = run.progress
    best = None if progress.best is None else signed(run.score_name, progress.best)
    task = str(run.model_config["task"])
    return TrainedRun(run.folder, progress.step, best, progress.best_step, test, task, already)
