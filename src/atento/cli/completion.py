"""What the shell offers when TAB is pressed: recipes, keys, values, models, metrics, rows; torch is not loaded.

Where nothing is offered the shell falls back to file names.
"""

import ast
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import typer

Offers = Iterable[str | tuple[str, str]]  # words, or words with a line of help


def words(*choices: str) -> Callable[[str], list[str]]:
    """The completion of an option that takes one of these words."""

    def offer(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return offer


def recipes(incomplete: str) -> Offers:
    """The shipped recipes, and YAML files beside."""
    from atento.cli.recipes import describe
    from atento.config.layers import shipped, shipped_text

    yield from ((name, describe(shipped_text(name))) for name in shipped())
    yield from _paths(incomplete, lambda path: path.suffix in (".yaml", ".yml"))


def shipped_recipes() -> Offers:
    """The shipped recipes alone."""
    from atento.cli.recipes import describe
    from atento.config.layers import shipped, shipped_text

    return ((name, describe(shipped_text(name))) for name in shipped())


def overrides(ctx: typer.Context, incomplete: str) -> Offers:
    """`key=value`: the keys of a recipe, then the values of those that take one of a few.

    Bash hands over what stands behind `=` as a word of its own, the other shells the whole word.
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
    """The keys of a recipe, with the first sentence of what they mean."""
    return _keys()


def models(incomplete: str) -> Offers:
    """Runs and model folders here and in `runs`, or in the folder that the word names."""
    return _paths(incomplete, lambda path: (path / "checkpoints").is_dir() or (path / "config.json").is_file(), "runs")


def runs(incomplete: str) -> Offers:
    """Runs alone."""
    return _paths(incomplete, lambda path: (path / "run.json").is_file(), "runs")


def runs_words(ctx: typer.Context, incomplete: str) -> Offers:
    """What `atento runs` does, then runs; or a folder of runs, of which the shell knows."""
    return runs(incomplete) if ctx.params.get("words") else ["show", "compare", "plot", "positions"]


def metrics(incomplete: str) -> Offers:
    """The metrics; behind a comma one more."""
    from atento.metrics import METRICS

    done, comma, _ = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in METRICS]


def gates() -> Offers:
    """METRIC=, of which the value is one's own."""
    from atento.metrics import METRICS

    return [f"{name}=" for name in METRICS]


def utilities() -> Offers:
    """What minimum Bayes risk compares texts by."""
    from atento.metrics.utilities import UTILITIES

    return [*UTILITIES, "embeddings:"]


def measurements() -> Offers:
    """The names of `atento bench`."""
    from atento.cli.bench import MEASUREMENTS

    return [(name, one.about) for name, one in MEASUREMENTS.items()]


def note_rows() -> Offers:
    """The rows of `atento notes`, with their titles: read off the table's source, as importing it would load torch."""
    package = importlib.util.find_spec("atento")
    assert package is not None and package.submodule_search_locations is not None
    table = Path(package.submodule_search_locations[0]) / "notes" / "table.py"
    for node in ast.walk(ast.parse(table.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Row":
            name, title = (one.value for one in node.args[:2] if isinstance(one, ast.Constant))
            yield str(name), str(title)


def _keys() -> list[tuple[str, str]]:
    from atento.config.explaining import sections

    return [(one.key, one.summary) for _, keys in sections() for one in keys]


def _values(key: str) -> list[str]:
    """The values of a key that takes one of a few; none of another, or of no key."""
    from atento.config.explaining import explain
    from atento.errors import RecipeError

    try:
        kind = explain(key).type
    except RecipeError:
        return []
    if kind == "true or false":
        return ["true", "false"]
    return kind.removeprefix("one of ").split(", ") if kind.startswith("one of ") else []


def _paths(incomplete: str, wanted: Callable[[Path], bool], *more: str) -> Iterator[str]:
    """What is wanted of the folder that the word so far names, or of the current one and those in `more`."""
    folder, slash, _ = incomplete.rpartition("/")
    for place in (f"{folder}/",) if slash else ("", *(f"{name}/" for name in more)):
        here = Path(place or ".").expanduser()
        for path in sorted(here.iterdir()) if here.is_dir() else []:
            if wanted(path):
                yield f"{place}{path.name}"
