"""`atento recipes` and `atento config`: what they print where, and what they refuse."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from atento.base.errors import RecipeError, UsageError
from atento.config.presets import PRESETS
from atento.config.reading.initial_keys import INHERITED
from atento.config.reading.loading import load_recipe, recipe_schema
from atento.config.reading.recipe_layers import shipped, shipped_text
from atento.config.reading.sizes_by_data import FITTED
from atento.config.recipe import recipe_to_dict
from atento.config.tables.tasks import TASKS
from atento_cli.commands.config import config_app
from atento_cli.commands.recipes import recipes_app
from atento_cli.completion import recipe_summary

NAME = "micro-world-en-pt"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, stdin: str | None = None) -> Result:
    app = typer.Typer()
    app.add_typer(config_app, name="config")
    app.add_typer(recipes_app, name="recipes")
    return CliRunner().invoke(app, list(arguments), input=stdin)


def refused(*arguments: str) -> UsageError:
    error = run(*arguments).exception
    assert isinstance(error, UsageError) and error.exit_status == 2
    return error


def test_recipes_list_show_config_of_standard_input_and_an_example_in_each_help() -> None:
    lines = run("recipes", "list").stdout.splitlines()
    assert len(lines) == len(shipped())
    assert any(line.startswith(NAME) and "  English to Portuguese" in line for line in lines)
    records = json.loads(run("recipes", "list", "--json").stdout)
    assert [record["name"] for record in records] == sorted(shipped())
    assert all(record["description"] for record in records)
    assert recipe_summary("\n#\n#  For a lecture. \n# more\ntask: x\n") == "For a lecture."
    assert recipe_summary("task: x\n") == ""
    assert run("recipes", "show", NAME).stdout == shipped_text(NAME)
    assert "did you mean" in str(refused("recipes", "show", "micro-world-en-p"))
    assert run("config", "check", "-", stdin="task: translation\ndata: {train: {world: train}}\n").stdout == "ok\n"
    error = run("config", "check", "-", stdin="task: 5\n").exception
    assert str(error).startswith("standard input:1:1: data is missing")
    assert json.loads(run("config", "schema").stdout) == json.loads(json.dumps(recipe_schema()))
    for command in ("recipes list", "recipes show", "recipes copy", "config check", "config show", "config schema"):
        done = run(*command.split(), "--help")
        assert done.exit_code == 0 and f"Example: atento {command}" in " ".join(done.stdout.split())


def test_recipes_copy(tmp_path: Path) -> None:
    done = run("recipes", "copy", NAME, "my.yaml")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "my.yaml\n", "next: atento config check my.yaml\n")
    copied = Path("my.yaml").read_bytes()
    assert copied == shipped_text(NAME).encode()
    assert load_recipe("my.yaml", {"name": NAME}, environment={}).recipe == load_recipe(NAME, environment={}).recipe
    Path("my.yaml").write_text("mine", encoding="utf-8")
    assert str(refused("recipes", "copy", NAME, "my.yaml")) == "my.yaml exists; --force replaces it"
    assert Path("my.yaml").read_text(encoding="utf-8") == "mine"
    assert run("recipes", "copy", NAME, "my.yaml", "--force").exit_code == 0
    assert Path("my.yaml").read_bytes() == copied
    Path("folder").mkdir()
    assert run("recipes", "copy", NAME, "folder").stdout == f"folder/{NAME}.yaml\n"
    assert str(refused("recipes", "copy", NAME, "no/folder.yaml")).startswith("no/folder.yaml cannot be written: ")
    assert isinstance(refused("recipes", "copy", "nothing", "x.yaml"), RecipeError) and not Path("x.yaml").exists()


def test_config_check_and_show() -> None:
    done = run("config", "check", NAME)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "ok\n", "")
    done = run("config", "check", NAME, "training.epochs=2", "decoding.beam=2")
    assert done.stdout == "ok\n" and done.stderr.startswith("warning: micro-world-en-pt.yaml:")
    assert "training.steps has no effect" in done.stderr
    absent = run("config", "check", NAME, "init=micro-world-en-p", "teacher={model: [a/b, ./gone, micro-world-en-pt]}")
    assert absent.exit_code == 0 and absent.stdout == "ok\n"
    said = [line for line in absent.stderr.splitlines() if "no model at" in line]
    assert len(said) == 2 and said[1].startswith("warning: teacher: no model at gone: ")
    assert said[0].startswith("warning: init: no model at micro-world-en-p: give ") and "did you mean" in said[0]
    record = json.loads(run("config", "check", NAME, "training.epochs=2", "--json").stdout)
    assert record["ok"] is True and record["name"] == NAME and len(record["warnings"]) == 1
    assert str(refused("config", "check", NAME, "training.steps=many")).startswith("command line: training.steps must")
    Path("my.yaml").write_text("task: translation\ndata: {train: {world: train}}\ntraning: {}\n", encoding="utf-8")
    assert str(refused("config", "check", "my.yaml")).startswith("my.yaml:3:1: unknown key 'traning'; did you mean")
    done = run("config", "show", NAME, "training.steps=7", "~training.seed")
    assert done.exit_code == 0 and done.stderr == ""
    Path("shown.yaml").write_text(done.stdout, encoding="utf-8")
    wanted = load_recipe(NAME, ["training.steps=7", "~training.seed"], environment={}).recipe
    assert load_recipe("shown.yaml", environment={}).recipe == wanted
    annotated = run("config", "show", NAME, "training.steps=7", "--origins").stdout
    assert any(line.split() == ["steps:", "7", "#", "command", "line"] for line in annotated.splitlines())
    record = json.loads(run("config", "show", NAME, "training.steps=7", "--json").stdout)
    wanted = load_recipe(NAME, ["training.steps=7"], environment={})
    assert record["recipe"] == json.loads(json.dumps(recipe_to_dict(wanted.recipe)))
    assert record["origins"]["training.steps"] == "command line"
    assert record["folder"] == str(Path.cwd()) and record["warnings"] == []


@pytest.mark.parametrize("name", sorted(shipped()))
def test_what_show_prints_is_the_recipe_again(tmp_path: Path, name: str) -> None:
    printed_again(tmp_path, name)


def test_what_show_prints_leaves_open_what_the_data_decide(tmp_path: Path) -> None:
    """Every task by itself, and every preset: the sizes that training chooses are named, and not written."""
    fields = "source: source, target: target", "text: text", "text: text, label: label", "text: text, pair: pair"
    fields += ("text: text, score: score", "tokens: tokens, tags: tags")
    seen = {"tasks": set(), "presets": set()}
    for task, preset in [*((task, None) for task in TASKS), *((None, preset) for preset in PRESETS)]:
        for owner in [task] if task else TASKS:
            for columns in fields if task else fields[:2]:
                text = f"task: {owner}\ndata: {{train: {{file: a.jsonl, {columns}}}}}\n"
                text += f"network: {{preset: {preset}}}\n" if preset else ""
                (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
                try:
                    load_recipe(str(tmp_path / "x.yaml"))
                except RecipeError:
                    continue
                printed_again(tmp_path, "x.yaml")
                seen["presets" if preset else "tasks"].add(preset or task)
                break
            if preset in seen["presets"]:
                break
    assert seen["presets"] == set(PRESETS) and len(seen["tasks"]) > 10


def printed_again(folder: Path, name: str) -> None:
    printed = run("config", "show", name)
    assert printed.exit_code == 0, printed.exception
    (folder / "y.yaml").write_text(printed.stdout, encoding="utf-8")
    loaded, again = load_recipe(name), load_recipe(str(folder / "y.yaml"))
    open_keys = [{key for key, origin in of.origins.items() if origin in (FITTED, INHERITED)} for of in (loaded, again)]
    assert open_keys[0] == open_keys[1], name
    assert replace(again.recipe, name=loaded.recipe.name) == loaded.recipe, name
