"""Unlabelled texts in the order in which they are worth a label: a model is unsure of them, and they are different."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atento.base.errors import CapabilityError, DataError, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import READING, SourceConfig
from atento.config.tables.formats import FORMATS, Column, format_of
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS
from atento.data.files.dialect import first_of
from atento.data.records.labelled_data import reading_of
from atento.data.records.memory import MemoryRecords, by_split
from atento.data.records.reader import TEXT, Records, read_records, records_in_memory
from atento.data.records.values import as_text, compared
from atento.metrics.confident_learning import Floats
from atento.runs.prepare import read_data
from atento.tasks.classification import THRESHOLD, gives_label_sets, label_probabilities
from atento.tasks.model_vectors import embed
from atento.tasks.tagging import word_tags
from atento.tasks.task_model import TaskModel, load_for_tasks
from atento.text.words import word_spans


@dataclass(frozen=True)
class Suggestion:
    """A text that is worth a label."""

    source: str  # the file, or "pool"
    line: int  # its line, from 1, or in memory its number, from 0
    score: float  # how uncertain it is, and how far from those before it
    text: str
    pair: str = ""  # of pairs, the second text


def suggest(
    run: TaskModel | str | Path,
    pool: str | Path | MemoryRecords,
    *,
    top: int = 100,
    columns: Mapping[str, Column] | None = None,
    reading: Mapping[str, object] | None = None,
    data: MemoryRecords | Mapping[str, MemoryRecords] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Suggestion]:
    """Order unlabelled texts so that labels of the first ones teach the model of a run most.

    A text stands at the gradient that its most probable label would give the head: the outer product of what the
    probabilities lack and the vector of the text (BADGE, Ash et al. 2020, Deep Batch Active Learning by Diverse,
    Uncertain Gradient Lower Bounds). The first text has the longest gradient; each further one is farthest from all
    before it (k-center, Sener and Savarese 2018).

    Args:
        run: a run of labels, of sets of labels or of tags; or its model.
        pool: a file of lines, a table or words in columns; or texts, pairs or lists of words. What has a label, is in
            the data of the run or stands in the pool before is left out.
        top: how many texts.
        columns, reading: of a table, as in `atento.evaluate`.
        data: the records of a run that was trained on records in memory.
        say: called with each warning.

    Raises CapabilityError: the model gives no labels. UsageError, DataError: the pool cannot be read, or no text is
    left; names the file.
    """
    run = run if isinstance(run, TaskModel) else load_for_tasks(run, "auto")
    spec = TASKS.get(str(run.config.get("task")))
    if spec is None or spec.outputs not in ("classes", "class sets", "tags"):
        raise CapabilityError(f"{run.requested} gives no labels or tags: its task is {run.config.get('task')}")
    records, labelled = _read_pool(run, spec.fields, pool, columns or {}, reading or {})
    for warning in records.warnings():
        say(f"warning: {warning}")
    texts = [tuple(map(as_text, record)) for record in records]  # words joined by spaces
    known = _texts_of_run(run, [*records.columns], by_split(data), say)
    reasons: dict[str, list[int]] = {"have a label": [], "are in the data of the run, or stand before": [], "": []}
    for row, (line, text) in enumerate(zip(records.origins.lines, map(compared, texts))):
        reasons[[*reasons][0 if line in labelled else 1 if text in known else 2]].append(row)
        known.add(text)
    rows, total = reasons.pop(""), f"{len(records):,} texts of {records.origins.names[0]}"
    left_out = [f"{len(out):,} of {total} {why} ({records.where(out[0])})" for why, out in reasons.items() if out]
    if not rows:
        raise DataError(f"no text is left to suggest: {', '.join(left_out)}")
    for why in left_out:
        say(f"warning: {why} and are left out")
    parts = [embed(run, list(side), normalize=True) for side in zip(*(texts[row] for row in rows))]  # of a pair, two
    chosen = [record if len(record) > 1 else record[0] for record in map([*records].__getitem__, rows)]
    if spec.outputs == "tags":  # of a sentence, the mean of the sizes over its words
        words = [[one[a:b] for a, b in word_spans(one)] if isinstance(one, str) else [*one] for one in chosen]
        residuals = np.stack([np.abs(_residuals(one)).mean(axis=0) for one in word_tags(run, words)])
    else:
        residuals = _residuals(label_probabilities(run, chosen)[1].numpy(), gives_label_sets(run.network))
    found = spread(residuals, np.concatenate(parts, axis=1).astype(np.float64), top)
    places = ((*records.where(rows[row]).rpartition(":"), score, texts[rows[row]]) for row, score in found)
    return [Suggestion(source, int(line), score, *text) for source, _, line, score, text in places]


def spread(residuals: Floats, vectors: Floats, count: int) -> Iterator[tuple[int, float]]:
    """Yield the numbers of points, each the farthest from those before it, with this distance; the first is farthest
    from the origin. A point is the outer product of a row of residuals (N,C) and one of vectors (N,D).
    """
    norms = (residuals**2).sum(axis=1) * (vectors**2).sum(axis=1)
    squares = norms.copy()
    for _ in range(min(count, len(norms))):
        row = int(squares.argmax())
        yield row, float(np.sqrt(max(0.0, squares[row])))
        products = (residuals @ residuals[row]) * (vectors @ vectors[row])  # of the outer products, which are not made
        squares = np.minimum(squares, norms + norms[row] - 2 * products)
        squares[row] = -np.inf


def _residuals(shares: Floats, several: bool = False) -> Floats:
    """Probabilities less those of a sure answer (N,C): 1 for the most probable label, or for `several` labels."""
    sure = shares >= THRESHOLD if several else np.arange(shares.shape[1]) == shares.argmax(axis=1)[:, None]
    return shares - sure


def _texts_of_run(
    model: TaskModel, names: list[str], memory: Mapping[str, MemoryRecords], say: Callable[[str], None]
) -> set[object]:
    """The texts of the data that a model was trained by; none, after a warning, where they cannot be read."""
    try:
        loaded = load_recipe(model.requested, environment={}, memory=memory)
        data = read_data(loaded.recipe, loaded.folder, lambda line: None, memory)
    except (DataError, RecipeError, UsageError) as error:
        say(f"warning: the pool is not compared with the data of {model.requested}: {error}")
        return set()
    names = ["tokens"] if "tokens" in data.train.columns else names
    splits = filter(None, (data.train, data.valid, data.test))
    return {compared(tuple(map(as_text, texts))) for split in splits for texts in zip(*(split[name] for name in names))}


def _read_pool(
    model: TaskModel,
    fields: Sequence[Field],
    pool: str | Path | MemoryRecords,
    columns: Mapping[str, Column],
    reading: Mapping[str, Any],
) -> tuple[Records, set[int]]:
    """The records of a pool, and the lines of those that have a label.
    Raises UsageError, DataError: it cannot be read, or holds no text; names the file.
    """
    label = next(field for field in fields if field.kind in ("class", "classes", "tags"))
    pairs = bool(model.config.get("pairs"))
    texts = tuple(Field(one.name, one.kind) for one in fields if one is not label and (pairs or not one.optional))
    if not isinstance(pool, str | Path):
        lines = isinstance(pool, list) and isinstance(next(iter(pool), None), str)
        return records_in_memory(pool, TEXT if lines else texts, "pool"), set()
    path, names = str(pool), [one.name for one in texts]
    form = format_of(path, reading.get("format"), texts) or "text"
    if form == "text":
        return read_records(SourceConfig(file=path, format="text"), TEXT), set()
    of_run = {**(model.config.get("reading") or {}), **reading}
    keys: dict[str, Any] = {"file": path, **reading_of(path, {key: of_run[key] for key in of_run if key in READING})}
    if FORMATS[form].table and not columns:
        first, learned = first_of(SourceConfig(**keys), form), model.config.get("columns") or {}
        columns = {name: one for name in (*names, label.name) for one in (learned.get(name), name) if one in first}
        width = 1 + max((column for column in learned.values() if isinstance(column, int)), default=-1)
        if not {*names} <= columns.keys() and FORMATS[form].by_number and len(first) in (len(names), width):
            columns = learned if len(first) == width else dict(zip(names, range(len(names))))
        if not {*names} <= columns.keys():
            raise UsageError(f"{path} has the columns {', '.join(first[:8])}: name that of the texts by --columns")
    source = SourceConfig(**keys | dict(columns))
    records, labelled = read_records(source, texts), set[int]()
    if label.name in columns or not FORMATS[form].table:
        with suppress(DataError):  # no record has one
            marked = read_records(source, (*texts, label), skip_bad=True)
            labelled = {line for line, value in zip(marked.origins.lines, marked[label.name]) if value}
    return records, labelled
