"""What holds between the keys of a recipe: refusals with their places, and warnings about options without effect."""

import re
from collections.abc import Iterator
from dataclasses import fields

from atento.config import schema
from atento.config.decoding import UTILITIES
from atento.config.effects import unused_options
from atento.config.objective import OBJECTIVES
from atento.config.recipe import COLUMNS, DataConfig, Recipe, SourceConfig, TokenizerConfig
from atento.config.schema import Reading
from atento.config.task_defaults import with_defaults
from atento.config.tasks import PLANNED, TASKS, objectives_of
from atento.config.yaml12 import Written
from atento.errors import RecipeError, nearest
from atento.metrics.table import METRICS

SPLITS = ("train", "valid", "test")
_FORMS = {
    "pairs": "say `source` and `target` paths, or `file` with `source` and `target` columns, or `world` with the name "
    "of a split",
    "texts": "say `file` (a text a line, or with `text`, its column), or `world` with the name of a split",
    "examples": "say `file` and the column of each field: {}",
}
_TABLES = (".tsv", ".csv", ".jsonl", ".json")
_LANGUAGES = ("pt", "en")  # of the micro-world


def check_task(tree: Written) -> None:
    """Refuse a recipe without task or data, and a task that this version does not train."""
    trains = f"this version trains: {', '.join(TASKS)}"
    task = tree.value.get("task")
    if task is None:
        raise RecipeError(f"{tree.place}: task is missing; {trains}")
    if isinstance(task.value, str) and task.value not in TASKS:
        if task.value in PLANNED:
            raise RecipeError(f"{task.place}: task {task.value!r} is not built yet; {trains}")
        close = nearest(task.value, [*TASKS, *PLANNED]).partition(" Known:")[0]
        raise RecipeError(f"{task.place}: unknown task {task.value!r}{close} T{trains[1:]}")
    if "data" not in tree.value:
        forms = _forms(task.value if task.value in TASKS else next(iter(TASKS)))
        raise RecipeError(f"{tree.place}: data is missing: give at least data.train; {forms}")


def check(recipe: Recipe, reading: Reading) -> None:
    """Refuse what no single key shows: sources of no or of two forms, no training data, unknown metrics, a bad name.

    Raises:
        RecipeError: with the place, the dotted key, the rule and the value got.
    """
    spec = TASKS[recipe.task]
    if not recipe.data.train:
        place = reading.places.get("data.train") or reading.places["data"]
        raise RecipeError(f"{place}: data.train is missing: {_forms(recipe.task)}")
    for path, source in _sources(recipe.data):
        problem = _memory_problem(source) or _problem(recipe.task, source)
        if problem:
            key, reason = problem
            place = reading.origins.get(f"{path}.{key}", reading.places.get(path, "data"))
            raise RecipeError(f"{place}: {path} {reason}")
    architecture = recipe.network.architecture
    if recipe.init is None:
        _check_architecture(recipe, reading)
    if recipe.data.pack == "isolated" and architecture == "recurrent-lm":
        place = reading.origins.get("data.pack", "data.pack")
        raise RecipeError(
            f"{place}: data.pack isolated needs network.architecture decoder: a recurrent network reads on from one "
            "text into the next; stream or none"
        )
    if spec.reads_words and recipe.tokenizer.path is None and recipe.tokenizer.kind != "word":
        place = reading.origins.get("tokenizer.kind") or reading.places.get("tokenizer", "tokenizer")
        raise RecipeError(
            f"{place}: task {recipe.task} learns words, so tokenizer.kind must be word: got {recipe.tokenizer.kind!r}"
        )
    _check_metrics(recipe, reading)
    utility = recipe.decoding.mbr
    if utility is not None and utility not in UTILITIES:
        place = reading.origins.get("decoding.mbr", "decoding.mbr")
        later = "; embeddings:MODEL is for using a model" if utility.startswith("embeddings:") else ""
        raise RecipeError(
            f"{place}: decoding.mbr: unknown utility {utility!r}{nearest(utility, list(UTILITIES))}{later}"
        )
    if recipe.name in ("", ".", "..") or any(mark in recipe.name for mark in "/\\\0\n"):
        place = reading.places.get("name", "name")
        raise RecipeError(f"{place}: name must be the name of a folder, without slashes: got {recipe.name!r}")


def _check_architecture(recipe: Recipe, reading: Reading) -> None:
    """Refuse a network that cannot learn the task or the objective, or that lacks the head it is learned by."""
    spec, architecture = TASKS[recipe.task], recipe.network.architecture
    place = reading.origins.get("network.architecture") or reading.places.get("network", "network")
    if architecture not in spec.architectures:
        raise RecipeError(
            f"{place}: task {recipe.task} needs network.architecture {' or '.join(spec.architectures)}, which "
            f"{spec.why}: got {architecture!r}"
        )
    for number, one in enumerate(objectives_of(recipe.task, recipe.objective)):
        where = reading.places.get(f"objective.{number}") or reading.places.get("objective", "objective")
        known, columns = OBJECTIVES[one.kind], set(spec.columns)
        if not any(set(needed) <= columns for needed in known.fields):
            needs = " or ".join(" and ".join(needed) for needed in known.fields)
            raise RecipeError(
                f"{where}: objective {one.kind} needs records of {needs}; task {recipe.task} has "
                f"{' and '.join(spec.columns)}"
            )
        if architecture not in known.architectures:
            raise RecipeError(
                f"{where}: objective {one.kind} needs network.architecture {' or '.join(known.architectures)}, which "
                f"{known.why}: got {architecture!r}"
            )
        place = reading.origins.get("network.heads") or reading.places.get("network.heads", "task ")
        given = {head.kind for head in recipe.network.heads}
        missing = [kind for kind in known.heads if kind not in given] if architecture == "encoder" else []
        if missing and not place.startswith(("task ", "preset ")):  # where none were written, they are added
            needs = f"task {recipe.task}" if one.kind == spec.objective else f"objective {one.kind}"
            raise RecipeError(f"{place}: {needs} needs a {' and a '.join(missing)} head in network.heads")


def _check_metrics(recipe: Recipe, reading: Reading) -> None:
    """Refuse a metric that is not known, does not apply to the task, or is named twice."""
    place = reading.places.get("metrics", "metrics")
    outputs = TASKS[recipe.task].outputs
    known = [name for name, metric in METRICS.items() if metric.outputs == outputs]
    for number, name in enumerate(recipe.metrics):
        if outputs is None:
            raise RecipeError(
                f"{place}: task {recipe.task} writes nothing that metrics could score (its validation says nll and "
                f"perplexity): got {name!r}"
            )
        if name not in known:
            raise RecipeError(f"{place}: unknown metric {name!r}{nearest(name, known)}")
        if name in recipe.metrics[:number]:
            raise RecipeError(f"{place}: metrics names {name!r} twice")


def _forms(task: str) -> str:
    """How a source of that task's records is written."""
    spec = TASKS[task]
    return _FORMS[spec.records].format(", ".join(f"`{one.name}`" for one in spec.fields if not one.optional))


def _problem(task: str, source: SourceConfig) -> tuple[str, str] | None:
    """What is wrong with a source of that task's records."""
    spec = TASKS[task]
    for key in COLUMNS:
        if key not in spec.columns and getattr(source, key) is not None and spec.records == "examples":
            return key, f"has a `{key}`, and this task reads {', '.join(spec.columns)}: {_forms(task)}"
        if key not in ("source", "target", "text", *spec.columns) and getattr(source, key) is not None:
            return key, f"has a `{key}`, and this task reads {spec.records}: {_forms(task)}"
    if spec.records == "pairs":
        return _source_problem(source)
    return _text_problem(source) if spec.records == "texts" else _columns_problem(task, source)


def _columns_problem(task: str, source: SourceConfig) -> tuple[str, str] | None:
    """As `_source_problem`, of a task whose records stand in one file with a column for each field."""
    if source.memory is not None:
        return None
    if source.world is not None:
        return "world", f"is a split of the micro-world, which has no labels: {_forms(task)}"
    if not source.file:
        return "", f"says no data: {_forms(task)}"
    if source.paragraphs:
        return "paragraphs", "is a file with columns: `paragraphs` joins the lines of a text file"
    if not source.file.removesuffix(".gz").endswith(_TABLES):
        return "file", f"must end in one of {', '.join(_TABLES)} (or that and .gz): `file` is {source.file!r}"
    given = {one.name: getattr(source, one.name) for one in TASKS[task].fields}
    for one in TASKS[task].fields:
        if given[one.name] is None and not one.optional:
            return "", f"is one file with columns, so `{one.name}` is missing"
    named = {key: column for key, column in given.items() if column is not None}
    if len({isinstance(column, int) for column in named.values()}) > 1:
        return next(iter(named)), f"must give all columns by number (no header) or all by name (a header): got {named}"
    for key, column in named.items():
        if isinstance(column, int) and column < 0:
            return key, f"must count its columns from 0: `{key}` is {column}"
        if list(named.values()).count(column) > 1:
            return key, f"must have a column for each field: {column!r} stands twice"
    return None


def _sources(data: DataConfig) -> Iterator[tuple[str, SourceConfig]]:
    """Every source with its dotted key."""
    for split in SPLITS:
        for number, source in enumerate(getattr(data, split)):
            yield f"data.{split}.{number}", source


def _memory_problem(source: SourceConfig) -> tuple[str, str] | None:
    """The key at fault of a source that names records in memory and something else too."""
    if source.memory is None:
        return None
    for key in ("world", "file", "source", "target", "text"):
        if getattr(source, key) is not None:
            got = getattr(source, key)
            return key, f"names records in memory, so `{key}` may not stand beside `memory`: got {got!r}"
    return None if source.memory else ("memory", "must name the records: `memory` is ''")


def _source_problem(source: SourceConfig) -> tuple[str, str] | None:
    """The key at fault and the rest of the sentence, or None where the source has exactly one form."""
    if source.memory is not None:
        return None
    columns = {"source": source.source, "target": source.target}
    if source.paragraphs:
        return "paragraphs", "has `paragraphs`, and line N of one side must answer line N of the other"
    if source.text is not None:
        return "text", f"has a `text`, and this task reads pairs: {_FORMS['pairs']}"
    if source.world is not None:
        for key, value in {"file": source.file, **columns}.items():
            if value is not None:
                return key, f"is a split of the micro-world, so `{key}` may not stand beside `world`: got {value!r}"
        return None
    missing = [key for key, value in columns.items() if value is None]
    if source.file is None and len(missing) == 2:
        return "", f"says no data: {_FORMS['pairs']}"
    if missing:
        kind = "is two parallel files" if source.file is None else "is one file with columns"
        return "", f"{kind}, so `{missing[0]}` is missing"
    for key, value in columns.items():
        if source.file is None and not isinstance(value, str):
            return key, f"is two parallel files, so `{key}` must be a path: got {value!r} (a column needs `file`)"
        if isinstance(value, int) and value < 0:
            return key, f"must count its columns from 0: `{key}` is {value}"
        if value == "":
            return key, f"must name a path or a column: `{key}` is ''"
    if source.file == "":
        return "file", "must name a path: `file` is ''"
    if source.file is not None and source.source == source.target:
        return "target", f"must have two columns: `source` and `target` are both {source.target!r}"
    if source.file is not None and isinstance(source.source, int) != isinstance(source.target, int):
        got = f"{source.source!r} and {source.target!r}"
        return "target", f"must give both columns by number (no header) or both by name (a header): got {got}"
    return None


def _text_problem(source: SourceConfig) -> tuple[str, str] | None:
    """As `_source_problem`, of a task that reads texts."""
    if source.memory is not None:
        return None
    for key in ("source", "target"):
        if getattr(source, key) is not None:
            return key, f"has a `{key}`, and this task reads texts: {_FORMS['texts']}"
    if source.paragraphs and (source.world is not None or str(source.file).removesuffix(".gz").endswith(_TABLES)):
        kind = "the micro-world" if source.world is not None else "a file with columns"
        return "paragraphs", f"is {kind}: `paragraphs` joins the lines of a text file"
    if source.world is not None:
        if source.file is not None:
            return "file", f"is a split of the micro-world, so `file` may not stand beside `world`: got {source.file!r}"
        if source.text not in (None, *_LANGUAGES):
            return "text", f"is a split of the micro-world, so `text` must be pt or en: got {source.text!r}"
        return None
    if not source.file:
        return "", f"says no data: {_FORMS['texts']}"
    table = source.file.removesuffix(".gz").endswith(_TABLES)
    if table and source.text is None:
        return "", "is one file with columns, so `text` is missing"
    if not table and source.text is not None:
        return "text", f"has a text a line, so it has no column `text`: got {source.text!r}"
    if isinstance(source.text, int) and source.text < 0:
        return "text", f"must count its columns from 0: `text` is {source.text}"
    return None


def doubtful(recipe: Recipe, reading: Reading) -> list[str]:
    """One sentence for every option that was written and changes nothing, or that can hardly be meant."""
    return list(_warnings(recipe, reading.origins))


def _defaults(task: str) -> dict[str, object]:
    """What a recipe of this task holds where nothing is written, by dotted key: a run's recipe writes that down too."""
    sources = {split: [{"world": "train"}] for split in SPLITS}
    tree = schema.as_written({"task": task, "data": sources}, "")
    return schema.flatten(schema.Reading().build(Recipe, with_defaults(tree), ""))


def _warnings(recipe: Recipe, written: dict[str, str]) -> Iterator[str]:
    """The rules, each beside its sentence; `written` holds the keys that are not defaults."""
    training = recipe.training
    values, default = schema.flatten(recipe), _defaults(recipe.task)

    def said(key: str, why: str) -> Iterator[str]:
        as_usual = key in values and values[key] == default.get(re.sub(r"^(data\.\w+)\.\d+", r"\1.0", key), values)
        if not as_usual and not written.get(key, "task ").startswith("task "):
            yield f"{written[key]}: {key} has no effect: {why}"

    for name, usual, most in (("learning_rate", "1e-5 to 1e-2", 0.1), ("weight_decay", "0 to 0.3", 1.0)):
        if (value := getattr(training, name)) > most:
            key = f"training.{name}"
            yield f"{written.get(key, key)}: {key} {value:g} is far above what is usual ({usual})"
    if training.epochs is not None:
        yield from said("training.steps", "training.epochs is given")
    kinds = {split: {source.world is not None for source in getattr(recipe.data, split)} for split in SPLITS}
    for split in SPLITS[1:]:
        if kinds[split] and kinds["train"].isdisjoint(kinds[split]):
            own = "in memory" if any(one.memory for one in (*recipe.data.train, *recipe.data.valid)) else "files"
            ours, theirs = ("the micro-world", own) if True in kinds["train"] else (own, "the micro-world")
            place = written.get(f"data.{split}.0.world") or written.get(f"data.{split}.0.file", "data")
            yield f"{place}: data.{split} is {theirs}, and data.train is {ours}: its scores say nothing of that data"
    if not recipe.data.valid and not recipe.data.held_out:
        if training.early_stop > 0:
            yield from said("training.early_stop", "there is no data.valid")
        yield from said("training.validate_every", "there is no data.valid")
        if not recipe.data.test:
            yield from said("metrics", "there is neither data.valid nor data.test")
    spec = TASKS[recipe.task]
    for key, why in spec.unused.items():
        for one in [one for one in written if one == key or one.startswith(f"{key}.")]:
            yield from said(one, why)
    if "decoding" not in spec.unused:
        given = {key.split(".")[1] for key in written if key.startswith("decoding.")}
        for name, why in unused_options(recipe.decoding, given):
            yield from said(f"decoding.{name}", why)
    if recipe.init is not None:
        for key, place in written.items():
            brought = key.startswith(("tokenizer.", "network.")) and not key.endswith("dropout")
            if brought and not place.startswith(("preset ", "task ")):
                yield from said(key, "init names a trained model, which brings its own")
    elif recipe.tokenizer.path is not None:
        for part in fields(TokenizerConfig):
            if part.name != "path":
                yield from said(f"tokenizer.{part.name}", "tokenizer.path names a trained one")
    for path, source in _sources(recipe.data):
        if source.world is None:
            yield from said(f"{path}.seed", "it is for the micro-world only")
    if recipe.init is recipe.tokenizer.path is None and recipe.tokenizer.kind in ("character", "byte"):
        yield from said("tokenizer.vocab_size", f"the {recipe.tokenizer.kind} tokenizer's size follows from the text")
