"""Every option of a command and every setting of the service is read: one that does nothing is a fault."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import atento
from atento_cli.explain_option import ExplainOptions
from atento_serve import settings, start

SOURCE = Path(atento.__file__).parents[1]
COMMANDS = [*sorted((SOURCE / "atento_cli/commands").glob("*.py")), SOURCE / "atento_serve/command.py"]
SERVICE = {file.name: ast.parse(file.read_text("utf-8")) for file in sorted((SOURCE / "atento_serve").rglob("*.py"))}


def reads(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(owner, name) of each attribute that is read: the last name before it, and its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            yield owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", ""), node.attr


@pytest.mark.parametrize("file", COMMANDS, ids=lambda file: file.stem)
def test_each_command_reads_its_options(file: Path) -> None:
    """Also those that `with_options` adds: by the command, or by the class of options itself."""
    tree = ast.parse(file.read_text("utf-8"))
    options = [(SOURCE / f"atento_cli/{one}.py").read_text("utf-8") for one in ("options", "lines", "explain_option")]
    shared = {name for one in options for owner, name in reads(ast.parse(one)) if owner == "self"}
    here = {name for owner, name in reads(tree) if owner == "shared"}
    for command in tree.body:
        if not isinstance(command, ast.FunctionDef) or command.name.startswith("_"):
            continue
        names = {node.id for node in ast.walk(command) if isinstance(node, ast.Name)}
        arguments = {argument.arg for argument in [*command.args.args, *command.args.kwonlyargs]}
        assert arguments <= names, f"{file.name}: {command.name} does not read {sorted(arguments - names)}"
        if "shared" in arguments:
            assert "as_json" in here | names, f"{file.name}: {command.name} does not read --json"
    assert {field.name for field in fields(ExplainOptions)} - {"as_json"} <= shared


def test_each_setting_of_the_service_is_read() -> None:
    for kind, owners in (
        (settings.Limits, ("limits", "_limits", "limits_held")),
        (settings.ModelSettings, ("settings",)),
        (start.ServerSettings, ("settings", "self")),
    ):
        found = {name for tree in SERVICE.values() for owner, name in reads(tree) if owner in owners}
        sent = {node.value for node in ast.walk(SERVICE["process.py"]) if isinstance(node, ast.Constant)}
        parts = [node for name in ("worker.py", "verbs.py") for node in ast.walk(SERVICE[name])]
        parts = [part.slice for part in parts if isinstance(part, ast.Subscript)]  # of `limits["texts"]`
        found |= sent & {str(part.value) for part in parts if isinstance(part, ast.Constant)}
        assert {field.name for field in fields(kind)} <= found
