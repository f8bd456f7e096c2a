"""`atento recipes`: the shipped recipes listed, shown and copied, and new ones written; torch is never loaded."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from atento.base.errors import UsageError
from atento.base.terminal import echo
from atento_cli.completion import recipe_summary, shipped_recipes, tasks
from atento_cli.options import AsJson
from atento_cli.output_paths import output_file

recipes_app = typer.Typer(no_args_is_help=True, help="List, show and copy the shipped recipes, or write a new one.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(recipes_app, name="recipes")


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from: atento recipes list", autocompletion=shipped_recipes)
]


@recipes_app.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """List the shipped recipes, one per line: name and description, and whether its trained model is included.

    Example: atento recipes list
    """
    from atento.config.reading.recipe_layers import shipped, shipped_text
    from atento.models.shipped import shipped_models

    models = shipped_models()
    recipes = [
        {"name": name, "description": recipe_summary(shipped_text(name)), "model": name in models} for name in shipped()
    ]
    if as_json:
        echo(json.dumps(recipes, ensure_ascii=False))
        return
    width = max((len(str(entry["name"])) for entry in recipes), default=0)
    for entry in recipes:
        included = " (model included)" if entry["model"] else ""
        echo(f"{entry['name']:<{width}}  {entry['description']}{included}".rstrip())


@recipes_app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Print a shipped recipe with its comments.

    Example: atento recipes show micro-world-en-pt
    """
    from atento.config.reading.recipe_layers import shipped_text

    text = shipped_text(name)
    echo(json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n" if as_json else text, nl=False)


@recipes_app.command()
def copy(
    name: Name,
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="A new file, or an existing folder.")],
    force: Annotated[bool, typer.Option("--force", help="Replace DEST if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a shipped recipe to a file, and print its path.

    Example: atento recipes copy micro-world-en-pt my.yaml
    """
    from atento.config.reading.recipe_layers import shipped_text

    text = shipped_text(name)
    target = destination / f"{name}.yaml" if destination.is_dir() else destination
    _write(target, text, force, as_json)
    echo(f"next: atento config check {target}", err=True)


def _write(target: Path, text: str, force: bool, as_json: bool, option: str = "") -> None:
    """Write a recipe and print its path. Raises UsageError: it exists, and is not to be replaced."""
    output_file(target, option=option)
    try:
        with target.open("w" if force else "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{target} exists; --force replaces it") from None
    echo(json.dumps({"path": str(target)}, ensure_ascii=False) if as_json else str(target))


@recipes_app.command("new", epilog="Example:  atento recipes new train.tsv --out new.yaml")
def new(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="A file of data, or two parallel files.")],
    task: Annotated[
        str | None, typer.Option(help="The task; what the columns say if not given.", autocompletion=tasks)
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The recipe; printed if not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a recipe for a file of data: task, columns, sizes and held-out share, each with its reason.

    What the file leaves open is asked on a terminal; elsewhere it is listed (exit status 2).
    """
    from atento_cli.corpus.new_recipe import new_recipe

    text = new_recipe(files, task, _ask, out.parent if out else Path())
    if out is not None:
        _write(out, text, force, as_json, "--out")
        echo(f"next: atento train {out}", err=True)
    else:
        echo(json.dumps({"text": text}, ensure_ascii=False) + "\n" if as_json else text, nl=False)


def _asks() -> bool:
    """Whether someone can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(question: str, answers: Sequence[str]) -> str:
    """The answer that the user chooses by its number. Raises UsageError: nobody is there to answer."""
    numbered = {str(number): answer for number, answer in enumerate(answers, start=1)}
    listed = "; ".join(f"{number} {answer}" for number, answer in numbered.items())
    if not _asks():
        raise UsageError(f"{question}? {listed}")
    number = ""
    while number not in numbered:
        number = typer.prompt(f"{question}? {listed}", err=True)
    return numbered[number]
