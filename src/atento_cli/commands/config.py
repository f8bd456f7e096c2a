"""`atento config`: check, show and explain recipes. Does not load torch."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.options import AsJson, Overrides, RecipeArgument, recipe_of, warn

if TYPE_CHECKING:
    from atento.config.reading.loading import LoadedRecipe

_FIRST, _FILES = 100, 8  # records of a file, and files of a source, that a check reads

config_app = typer.Typer(
    no_args_is_help=True, help="Check recipes, show them with all defaults, or explain their keys."
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(config_app, name="config")


@config_app.command()
def check(recipe: RecipeArgument, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a recipe and the first records of its files without running it: print ok, or the error and its line.

    Example: atento config check my.yaml training.learning_rate=5e-4
    """
    from atento.config.reading.loading import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    warnings = [*loaded.warnings, *dict.fromkeys(text for part in loaded.by_task() for text in _absent(part))]
    warn(warnings)
    if as_json:
        echo(json.dumps({"ok": True, "name": loaded.recipe.name, "warnings": warnings}, ensure_ascii=False))
    else:
        echo("ok")


@config_app.command()
def show(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    origins: Annotated[bool, typer.Option("--origins", help="Also print where each value comes from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the complete recipe, with defaults and presets filled in.

    Example: atento config show micro-world-en-pt training.steps=500 --origins
    """
    from atento.config.reading.loading import dump_recipe
    from atento.config.recipe import recipe_to_dict

    loaded = recipe_of(recipe, overrides)
    later = loaded.later()
    if as_json:
        shown: dict[str, object] = recipe_to_dict(loaded.recipe)
        for *sections, name in (key.split(".") for key in later):
            section: Any = shown
            for part in sections:
                section = section[part]
            del section[name]
        record = {"recipe": shown, "folder": str(loaded.folder), "origins": loaded.origins, "warnings": loaded.warnings}
        echo(json.dumps(record, ensure_ascii=False))
    else:
        echo(dump_recipe(loaded.recipe, loaded.origins if origins else None, later), nl=False)


@config_app.command()
def explain(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="A key, such as training.steps; all keys if not given.",
            autocompletion=completion.recipe_keys,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a recipe key: its meaning, its values, its default and when to change it.

    Example: atento config explain training.learning_rate
    """
    from dataclasses import asdict

    from atento.config.reading.dumping import explain as explained
    from atento.config.reading.dumping import sections

    if key is None:
        entries = [entry for _, keys in sections() for entry in keys]
    else:
        top = explained(key)
        entries = [top, *(explained(f"{top.key}.{name}") for name in top.keys)]
    if as_json:
        echo(json.dumps([asdict(entry) for entry in entries], ensure_ascii=False))
        return
    if key is not None:
        entry = entries.pop(0)
        values = f"{entry.type}; {entry.range}" if entry.range else entry.type
        default = "" if entry.keys else f"\n  default  {entry.default}"
        echo(f"{entry.key}\n  values   {values}{default}\n\n{textwrap.fill(entry.meaning, 100)}\n")
    width = max((len(entry.key) for entry in entries), default=0)
    for entry in entries:
        echo(f"{entry.key:<{width}}  {entry.summary}")


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for completion and checks in an editor.

    Example: atento config schema > recipe.schema.json
    """
    from atento.config.reading.loading import recipe_schema

    echo(json.dumps(recipe_schema(), ensure_ascii=False, indent=2))


def _absent(loaded: "LoadedRecipe") -> Iterator[str]:
    """A warning for each data file and model that does not exist here; it may exist on another machine, or the hub.

    The first records of the files that do exist are read, which raises what is wrong with them.
    """
    from dataclasses import replace

    from atento.base.errors import UsageError
    from atento.config.reading.task_defaults import task_of_records
    from atento.config.tables.tasks import TASKS
    from atento.data.files.several_files import source_files
    from atento.data.records.reader import read_records
    from atento.models.model_folder import find_model

    recipe, data = loaded.recipe, loaded.recipe.data
    parts = {"init": recipe.init, "network.features": recipe.network.features}
    named = {key: (part.model,) for key, part in parts.items() if part is not None}
    for key, models in (named if recipe.teacher is None else named | {"teacher": recipe.teacher.model}).items():
        for model in models:
            path = loaded.home / model
            if path.exists() or model.count("/") != 1 or Path(model).parent.is_dir():  # else it may be on the hub
                try:
                    find_model(path if path.exists() else model)
                except UsageError as error:
                    yield f"{key}: {error}"
    for split, sources in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        for source in sources:
            names = [source.source, source.target] if source.file is None else [source.file]
            paths = {name: loaded.folder / Path(name).expanduser() for name in names if isinstance(name, str)}
            absent = [path for name, path in paths.items() if not path.exists() and not {*name} & {*"*?["}]
            yield from (f"data.{split}: no such file here: {path}" for path in absent)
            if absent or not paths or source.world is not None or source.dataset is not None:
                continue
            spec, first = TASKS[task_of_records(recipe, split)], min(source.count or _FIRST, _FIRST)
            fields = spec.partly_labelled if recipe.head else spec.fields
            files = [None] if source.file is None else source_files(source, loaded.folder, fields)[:_FILES]
            for file in files:
                part = replace(source, file=file, count=first)
                records = read_records(part, fields, loaded.folder, skip_bad=data.skip_bad)
                yield from (f"data.{split}: {text}" for text in records.warnings())
