"""No cache remembers what a path or a name held: the file behind it may change, and a service reloads its models."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import atento

ROOT = Path(atento.__file__).parents[1]
CACHES = {"cache", "lru_cache"}
NAMES = {"path", "folder", "directory", "file", "url", "model", "where", "location"}  # of parameters that name files
HELD = {  # keyed by what the files hold, not by where they are: each with its reason
    "models/model_folder.py _remembered": "the values are in the key; the path is named in errors alone",
    "atento_cli/scale/ray_texts.py _encoder": "the bytes of the files are the key",
    "tasks/learned_metrics.py _kept": "sizes and times of the folder's files are in the key",
    "released/read_layout.py class_defaults": "a table of the package, by the name of a family",
}
KINDS = {"Path", "PathLike", "StrPath"}


def caches(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions whose results are remembered by their arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [part for mark in node.decorator_list for part in ast.walk(mark)]
            if {getattr(part, "id", getattr(part, "attr", "")) for part in parts} & CACHES:
                yield node


def keyed_by_path(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether an argument is a path, by its type or its name, or the function opens a file that an argument names."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    for argument in arguments:
        kind = "" if argument.annotation is None else ast.unparse(argument.annotation)
        words = set(argument.arg.lower().split("_"))
        is_text = "str" in kind or not kind
        if any(name in kind for name in KINDS) or (is_text and words & NAMES):
            return True
    reads = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return bool(arguments) and bool(reads & {"read_text", "read_bytes", "load", "from_file", "from_pretrained", "open"})


def stored_by_path(tree: ast.Module) -> Iterator[str]:
    """Dictionaries of a module whose keys are paths."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and re.match(r"dict\[(str \| )?Path", ast.unparse(node.annotation)):
            yield ast.unparse(node.target)


def test_no_cache_is_keyed_by_a_path() -> None:
    seen, found = 0, []
    for file in sorted(ROOT.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(word in text for word in ("cache", "dict[Path", "dict[str | Path")):
            continue  # nothing that the two checks look for
        tree, name = ast.parse(text), file.relative_to(ROOT).as_posix().removeprefix("atento/")
        for node in caches(tree):
            seen += 1
            if keyed_by_path(node):
                found.append(f"{name} {node.name}")
        found += [f"{name} {stored}" for stored in stored_by_path(tree)]
    assert seen > 20 and sorted(found) == sorted(HELD)
    bad = [
        "@lru_cache(maxsize=8)\ndef tokenizer(folder: str): ...",
        "@cache\ndef weights(at: Path | None): ...",
        "@functools.lru_cache\ndef known(name: str): return Tokenizer.load(name)",
        "@cache\ndef model_path(x, *, model_path='a'): ...",
    ]
    for source in bad:
        assert [keyed_by_path(node) for node in caches(ast.parse(source))] == [True], source
    good = "@cache\ndef rows(count: int): ...\n@lru_cache\ndef parts(text: str): ...\ndef read(path: Path): ..."
    assert [keyed_by_path(node) for node in caches(ast.parse(good))] == [False, False]
    assert list(stored_by_path(ast.parse("_SEEN: dict[Path, int] = {}\n_OTHER: dict[str, int] = {}"))) == ["_SEEN"]
