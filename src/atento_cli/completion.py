"""Shell completion of recipes, keys, values, models, metrics and rows. Does not load torch.

Without completions the shell offers file names.
"""

import ast
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import typer

from atento.base.errors import RecipeError

Offers = Iterable[str | tuple[str, str]]  # completions, or completions with help


def words(*choices: str) -> Callable[[str], list[str]]:
    """Completion of an option that takes one of these words."""

    def offer(incomplete: str) -> list[str]:
        return [word for word in choices if word.startswith(incomplete)]

    return offer


def recipes(incomplete: str) -> Offers:
    """Shipped recipes and YAML files."""
    from atento.config.reading.recipe_layers import shipped, shipped_text

    yield from ((name, recipe_summary(shipped_text(name))) for name in shipped())
    yield from _paths(incomplete, lambda path: path.suffix in (".yaml", ".yml"))


def shipped_recipes() -> Offers:
    """Shipped recipes."""
    from atento.config.reading.recipe_layers import shipped, shipped_text

    return ((name, recipe_summary(shipped_text(name))) for name in shipped())


def recipe_summary(text: str) -> str:
    """The summary of a recipe: its first comment line; empty if there is none."""
    for line in text.splitlines():
        if line.startswith("#") and line.strip("# "):
            return line.strip("# ")
    return ""


def overrides(ctx: typer.Context, incomplete: str) -> Offers:
    """`key=value`: the keys of a recipe, then the values of keys with few values.

    Bash passes the part after `=` as a separate word; other shells pass the whole word.
    """
    before = [str(word) for word in ctx.params.get("overrides") or ()]
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(key)]
    if len(before) > 1 and before[-1] == "=":
        return _values(before[-2])
    if before and "=" not in before[-1] and incomplete == "" and (values := _values(before[-1])):
        return values
    return [(f"{name}=", meaning) for name, meaning in _keys()]


def recipe_keys() -> Offers:
    """The keys of a recipe, with their summaries."""
    return _keys()


def models(incomplete: str) -> Offers:
    """Runs and model folders in the current folder and in `runs`, or in the folder of the word; shipped models."""
    from atento.models.shipped import shipped_models

    yield from _paths(
        incomplete, lambda path: (path / "checkpoints").is_dir() or (path / "config.json").is_file(), "runs"
    )
    yield from shipped_models()


def runs(incomplete: str) -> Offers:
    """Run folders."""
    return _paths(incomplete, lambda path: (path / "run.json").is_file(), "runs")


def indexes(incomplete: str) -> Offers:
    """Folders of indexes."""
    return _paths(incomplete, lambda path: (path / "index.json").is_file())


def runs_words(ctx: typer.Context, incomplete: str) -> Offers:
    """The subcommands of `atento runs`, then runs."""
    return runs(incomplete) if ctx.params.get("words") else ["show", "compare", "plot", "positions"]


def tasks(incomplete: str) -> Offers:
    """Tasks of recipes."""
    from atento.config.tables.tasks import TASKS

    return [task for task in TASKS if task.startswith(incomplete)]


def scored_tasks(incomplete: str) -> Offers:
    """Tasks whose outputs metrics score."""
    from atento.config.tables.tasks import scored

    return [task for task in scored() if task.startswith(incomplete)]


def metrics(incomplete: str) -> Offers:
    """Metrics, also after a comma."""
    from atento.metrics import METRICS
    from atento.metrics.metric_table import LEARNED

    done, comma, _ = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in (*METRICS, *LEARNED)]


def gates() -> Offers:
    """METRIC= for each metric."""
    from atento.metrics import METRICS

    return [f"{name}=" for name in METRICS]


def utilities() -> Offers:
    """Utilities of minimum Bayes risk."""
    from atento.metrics.mbr_utilities import UTILITIES
    from atento.metrics.metric_table import LEARNED

    return [*UTILITIES, *(f"{name}:" for name in ("embeddings", *LEARNED))]


def measurements() -> Offers:
    """The names of `atento bench`."""
    from atento_cli.measurements import MEASUREMENTS

    return [(name, measurement.about) for name, measurement in MEASUREMENTS.items()]


def note_rows() -> Offers:
    """The rows of `atento notes` with their titles, read from the source, since an import loads torch."""
    package = importlib.util.find_spec("atento_lab")
    assert package is not None and package.submodule_search_locations is not None
    table = Path(package.submodule_search_locations[0]) / "notes" / "table.py"
    for node in ast.walk(ast.parse(table.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Row":
            name, title = (argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant))
            yield str(name), str(title)


def _keys() -> list[tuple[str, str]]:
    from atento.config.reading.dumping import sections

    return [(key.key, key.summary) for _, keys in sections() for key in keys]


def _values(key: str) -> list[str]:
    """The values of a key with few values; empty for other keys."""
    from atento.config.reading.dumping import explain

    try:
        kind = explain(key).type
    except RecipeError:
        return []
    if kind == "true or false":
        return ["true", "false"]
    return kind.removeprefix("one of ").split(", ") if kind.startswith("one of ") else []


def _paths(incomplete: str, accepts: Callable[[Path], bool], *more: str) -> Iterator[str]:
    """The wanted paths in the folder of the incomplete word, else in the current folder and those in `more`."""
    folder, slash, _ = incomplete.rpartition("/")
    for prefix in (f"{folder}/",) if slash else ("", *(f"{name}/" for name in more)):
        directory = Path(prefix or ".").expanduser()
        for path in sorted(directory.iterdir()) if directory.is_dir() else []:
            if accepts(path):
                yield f"{prefix}{path.name}"
