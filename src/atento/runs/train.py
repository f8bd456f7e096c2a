"""Train a recipe: open and lock the run folder, then its steps; few labels (`init.few_shot`, SetFit)."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from html import escape
from pathlib import Path

import numpy as np

from atento.base.errors import DataError, RecipeError, UsageError, counted
from atento.base.limits import path_of
from atento.base.precision import resolve_device
from atento.base.precision import threads as thread_scope
from atento.config.reading.initial_keys import rates_among
from atento.config.reading.loading import LoadedRecipe, load_recipe
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network_parts import by_key
from atento.config.tables.tasks import EMBEDDING
from atento.data.files.source_records import header_hint
from atento.data.objectives.labels import label_numbers
from atento.data.records.memory import MemoryRecords, by_split
from atento.data.records.splits import Split
from atento.metrics.metric_table import signed
from atento.models.initial_model import initial_model
from atento.models.load import read_model
from atento.models.model_folder import SECTIONS, section_of
from atento.runs.branch import branch_point
from atento.runs.fine_tuning import inherited_keys
from atento.runs.folder import clear_folder, make_folder
from atento.runs.prepare import read_data
from atento.runs.run_identity import has_begun
from atento.runs.setup import Setup
from atento.runs.steps import train_run
from atento.runs.token_data import data_of
from atento.storage.atomic_files import NewFolder
from atento.storage.lock import RunLock
from atento.tasks.task_model import check_flags
from atento.training.progress import Reporter
from atento.training.replica.environment import restarted
from atento.training.replica.joined import replica_joined, said_once
from atento.training.replica.local import Replica
from atento.training.trackers import check_trackers

_ROUNDS, _PAIRS = 20, 4000  # pairs of each kind that a text is in first, and pairs in all
_TRAINING = {"batch_tokens": 16, "epochs": 1, "learning_rate": 2e-5, "schedule": "linear", "log_every": 20}
_NO_DROPOUT = {"dropout": 0.0, "attention": {"dropout": 0.0}, "feed_forward": {"dropout": 0.0}}  # in one short pass
_POOLINGS = ("mean", "first", "last")  # that a head can read


def vectors_recipe(
    loaded: LoadedRecipe, memory: Mapping[str, MemoryRecords]
) -> tuple[dict[str, object], list[tuple[str, str, float]]]:
    """The recipe that trains the encoder, and its pairs of texts, with 1 for texts of one label and 0 for others.

    Every text is the first of up to 20 pairs of each kind, which are drawn by the seed: as many of one label as of two,
    so that pairs repeat where labels have few texts. There are at most about 4,000 pairs, and one pass over
    them, without dropout (Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts).
    Raises RecipeError: the records are pairs. DataError: a label with fewer than two different texts.
    """
    recipe, init = loaded.recipe, loaded.recipe.init
    assert init is not None
    data = read_data(recipe, loaded.folder, lambda line: None, memory)
    train = data.train
    if "pair" in train.columns:
        raise RecipeError("`init.few_shot` learns from single texts with a label: leave `pair` out")
    if data.valid is not None:
        label_numbers(data.valid, sorted({*train["label"]}))  # before the encoder learns
    folder, windows = loaded.home / init.model, recipe.data.windows
    read: dict[str, object] = {"train": {"memory": "train"}, "max_len": recipe.data.max_len}
    if windows is not None:  # a head alone has weights of windows
        read["windows"] = "mean" if windows == "attention" else windows
    if loaded.origins.get("data.stride", "default") != "default":
        read["stride"] = recipe.data.stride
    if recipe.data.truncate == "head-tail":
        read["truncate"] = "head-tail"
    vectors: dict[str, object] = {
        "task": EMBEDDING,
        "init": str(folder) if folder.exists() else init.model,
        "network": _NO_DROPOUT,
        "objective": "cosine",
        "data": read,
        "tokenizer": {"markers": list(recipe.tokenizer.markers)},
        "training": _TRAINING | {"seed": recipe.training.seed, "precision": recipe.training.precision},
    }
    if windows is not None:  # a prompt of the model has no place before them
        initial = initial_model(init.model, loaded.home)
        known = section_of(EmbeddingConfig, initial.config, initial.path)
        vectors[SECTIONS[EmbeddingConfig]] = asdict(replace(known, prompt="", prompts={}, field_prompts={}))
    return vectors, pairs_of_labels(train, recipe.training.seed)


def pairs_of_labels(train: Split, seed: int) -> list[tuple[str, str, float]]:
    """Pairs of texts with 1.0 where both have one label, 0.0 where they have two."""
    texts = dict(zip(train["text"], train["label"]))  # each text once
    by_label: dict[str, list[str]] = {}
    for text, label in texts.items():
        by_label.setdefault(label, []).append(text)
    for label, own in by_label.items():
        if len(own) < 2:
            at = train.where(train["text"].index(own[0]))
            raise DataError(
                f"{at}: label {label!r} has {counted(len(own), 'text')}, and a pair of texts of one label needs 2: "
                f"`init.few_shot` needs two or more of each label{header_hint(at)}"
            )
    if len(by_label) < 2:
        raise DataError(f"{train.where(0)}: every text has the label {train['label'][0]!r}: there is nothing to learn")
    draw, pairs = np.random.default_rng(seed), list[tuple[str, str, float]]()
    places = {text: place for own in by_label.values() for place, text in enumerate(own)}
    for _ in range(max(1, min(_ROUNDS, _PAIRS // (2 * len(texts))))):
        for text, label in texts.items():
            labels = [other for other in by_label if other != label]
            same, different = by_label[label], by_label[labels[draw.integers(len(labels))]]
            behind = (places[text] + draw.integers(1, len(same))) % len(same)  # any text of the label but this one
            for other, score in ((same[behind], 1.0), (different[draw.integers(len(different))], 0.0)):
                first, second = sorted((text, other))
                pairs.append((first, second, score))
    return pairs


def head_overrides(loaded: LoadedRecipe, vectors: Path) -> dict[str, object]:
    """The keys of the recipe by which the head is fitted on the vectors of the trained encoder.

    The rates of dropout are those of the initial model, for a later fine-tuning: the pairs were learned with none.
    """
    assert loaded.recipe.init is not None
    trained, rates = read_model(vectors), by_key(initial_model(loaded.recipe.init.model, loaded.home).network_config)
    pooling = section_of(EmbeddingConfig, trained.config, trained.path).pooling
    keys: dict[str, object] = {"init.model": str(vectors.resolve()), "init.few_shot": False, "init.train": "head"}
    keys |= {key: rates[key.removeprefix("network.")] for key in rates_among(inherited_keys(loaded))}
    if loaded.origins.get("init.classifier.pooling", "default") == "default":
        keys["init.classifier.pooling"] = pooling if pooling in _POOLINGS else "mean"
    return keys


@dataclass(frozen=True)
class TrainedRun:
    """The result of `atento.train`."""

    folder: Path  # the run folder
    step: int  # the last step
    best: float | None  # best validation score; None: there is none
    best_step: int  # step of the best score
    test: dict[str, float] | None  # test scores by name; None: there is no test data
    task: str  # task of the recipe
    already_finished: bool = False  # whether the run had finished before this call
    finished: bool = True  # False if the run paused after `share` of its updates

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
    recipe: str | Path | Mapping[str, object],
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    data: MemoryRecords | Mapping[str, MemoryRecords] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    precision: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    from_: str | None = None,
    share: Fraction = Fraction(1),
) -> TrainedRun:
    """Train a recipe in a run folder; an unfinished run is resumed bit-exactly.

    Args:
        recipe: a file, the name of a shipped recipe, a run folder to resume, or a mapping with the keys of a recipe
            file: {"task": "translation", ...}.
        overrides: values that replace the recipe's: {"training.steps": 1000} or ["training.steps=1000"].
        data: records in memory that replace the recipe's, by split: {"train": pairs, "valid": ...}; or the training
            records alone. Pairs are tuples (source, target), dicts with these keys, or a tuple of two lists. Texts are
            str, or dicts with the key "text". Resuming needs the same records.
        out: the run folder; `runs/NAME` by default.
        force: move the folder of another run aside.
        device: "auto", "cpu" or "cuda".
        precision: "auto", "float32", "bfloat16" or "float16"; replaces `training.precision`.
        seed: replaces `training.seed`.
        threads: number of CPU threads.
        from_: "RUN@STEP": the new run begins at that checkpoint of another run.
        share: above 0 to 1; below 1, the run pauses with a checkpoint at the first validation after this share of its
            updates. The next call resumes it. The learning-rate schedule has its whole length all the same.

    Returns:
        The finished run: its folder, steps and scores.

    Raises:
        RecipeError, DataError, UsageError: before any long work.
        TrainingStopped: a signal stopped training; a checkpoint was saved.
    """
    check_flags(force=force)
    if isinstance(overrides, str) or not isinstance(overrides, Mapping | Sequence):
        raise UsageError(f"`overrides` must be a mapping or a list of key=value: got {overrides!r:.60}")
    changes = dict(overrides) if isinstance(overrides, Mapping) else list(overrides)
    given: dict[str, object] = {"training.precision": precision, "training.seed": seed}
    own = {key: value for key, value in given.items() if value is not None}
    changes = (
        changes | own if isinstance(changes, dict) else [*changes, *(f"{key}={value}" for key, value in own.items())]
    )
    if not 0 < share <= 1:
        raise UsageError(f"`share` must lie above 0 and at most at 1: got {share}")
    with said_once():
        memory = by_split(data)
        loaded = load_recipe(recipe, changes, memory=memory)
        check_trackers(loaded.recipe.training.report_to)
        device = resolve_device(device)
        branch = None if from_ is None else branch_point(str(from_))
    default: str | Path = Path("runs") / loaded.recipe.name
    if isinstance(recipe, str | Path) and loaded.path is not None and Path(recipe).is_dir():
        default = recipe  # a run folder: resume it
    folder = Path(default) if out is None else path_of(out, "out", "a folder")
    if folder.name in ("", ".."):  # a folder is moved aside by its name
        folder = folder.resolve()
    if loaded.recipe.init is not None and loaded.recipe.init.few_shot:
        recipe_of_vectors, pairs = vectors_recipe(loaded, memory)
        beside = folder.with_name(f"{folder.name}-vectors")
        train(recipe_of_vectors, data={"train": pairs}, out=beside, force=force, device=device, threads=threads)
        keys = head_overrides(loaded, beside)
        items = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        head = load_recipe(recipe, changes | keys if isinstance(changes, dict) else [*changes, *items], memory=memory)
        loaded = replace(head, warnings=loaded.warnings)  # of the recipe as it is written
    used = [*_files(loaded, folder), *([] if branch is None else [branch.path])]
    parallel = loaded.recipe.training.parallel
    with said_once():
        if parallel.exact and threads not in (None, 1):
            raise UsageError(f"`training.parallel.exact` computes on one CPU thread a process: got {threads} threads")
    threads = 1 if parallel.exact else threads
    with replica_joined(parallel, device, folder) as replica, thread_scope(threads), ExitStack() as files:
        reporter = _open(folder, loaded, memory, used, force, replica, files)
        setup = Setup(loaded, memory, branch, folder, device, threads, reporter, files, share, replica=replica)
        run, test, already = train_run(setup)
        progress, task = run.progress, str(run.model_config["task"])
        best = None if progress.best is None else signed(run.score_name, progress.best)
        return TrainedRun(run.folder, progress.step, best, progress.best_step, test, task, already, progress.finished)


def _open(
    folder: Path,
    loaded: LoadedRecipe,
    memory: Mapping[str, MemoryRecords],
    used: Sequence[Path],
    force: bool,
    replica: Replica,
    files: ExitStack,
) -> Reporter:
    """Open and lock the run folder, and return what writes to the terminal and its log; the first process does it."""
    moved = force and not restarted()  # by a launcher, after a failure: the folder is that of this run

    def opened() -> str | None:
        for part in loaded.by_task() if moved else ():  # refuses wrong data before the folder is moved
            data_of(part, lambda _: None, memory)
        aside, journal = clear_folder(folder, moved, used), folder / "metrics.jsonl"

        def put_back(*raised: object) -> None:
            if aside is not None and not folder.exists():  # the new one is gone, since the command was refused
                aside.rename(folder)
                Reporter(0, bar=False).line(f"put {folder} back")

        files.push(put_back)
        # a run has more than a refused command leaves: a checkpoint, or an event of training
        new = NewFolder(folder, lambda: has_begun(folder) or (journal.exists() and journal.stat().st_size > 0))
        make_folder(folder)
        files.enter_context(RunLock(folder))
        files.enter_context(new)
        return None if aside is None else str(aside)

    aside, log = replica.on_main_process(opened), None
    if replica.main:
        log = files.enter_context((folder / "train.log").open("a", encoding="utf-8", newline="\n"))
    reporter = Reporter(0, log=log, bar=False, quiet=not replica.main)
    if aside is not None:
        reporter.line(f"moved the old folder to {aside}")
    return reporter


def _files(loaded: LoadedRecipe, folder: Path) -> list[Path]:
    """Return what must not be moved away: the recipe (unless the run's own), its data, tokenizer and models."""
    names = (
        part.folder / name
        for part in loaded.by_task()
        for source in (*part.recipe.data.train, *part.recipe.data.valid, *part.recipe.data.test)
        for name in ((source.source, source.target) if source.file is None else (source.file,))  # or parallel files
        if isinstance(name, str)  # not a column's number
    )
    own = [] if loaded.path is None or loaded.path.resolve() == (folder / "recipe.yaml").resolve() else [loaded.path]
    models = [part.model for part in (loaded.recipe.init, loaded.recipe.network.features) if part is not None]
    initial_model = [loaded.home / model for model in models]
    teachers = [] if loaded.recipe.teacher is None else [loaded.home / name for name in loaded.recipe.teacher.model]
    tokenizer = [] if loaded.recipe.tokenizer.path is None else [loaded.home / loaded.recipe.tokenizer.path]
    return own + initial_model + tokenizer + teachers + list(names)
