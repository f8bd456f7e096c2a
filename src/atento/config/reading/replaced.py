"""Validation and test data of a recipe whose training data was replaced."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from atento.config.reading.yaml12 import Node

HELD_OUT = 500  # records, where validation data are left out; never more than a tenth of the training data


def without_foreign(tree: Node, files: Sequence[str], command_line: str) -> tuple[Node, list[str]]:
    """Leave out validation and test data of another kind than a `data.train` from a higher layer.

    The kinds are the micro-world and files. A shipped recipe validates on the micro-world; if the command line, or a
    recipe that extends it, names other training data, these scores do not measure that data. Validation and test data
    of the same layer as `data.train`, or of a higher one, are kept.

    Args:
        tree: the recipe as written, all layers joined.
        files: the labels of the recipe's file and then of those that it extends.
        command_line: the position of overrides of the command line; other positions are environment variables.

    Returns:
        The recipe, with `data.held_out` if validation data were left out; and the warnings.
    """
    data = tree.value.get("data")
    if data is None or not isinstance(data.value, dict) or "train" not in data.value:
        return tree, []

    def layer(node: Node) -> int:
        """Return the highest layer of any of its parts; 0 is the command line."""
        ranks = {command_line: 0} | {label: number for number, label in enumerate(files, start=2)}
        return min(ranks.get(position, ranks.get(position.rsplit(":", 2)[0], 1)) for position in _positions(node))

    train = data.value["train"]
    foreign = [
        name
        for name in ("valid", "test")
        if name in data.value and layer(train) < layer(data.value[name]) and _differ(train, data.value[name])
    ]
    if not foreign:
        return tree, []
    remaining = {key: value for key, value in data.value.items() if key not in foreign}
    instead = ""
    if "valid" in foreign:
        position = "in place of the data.valid left out"
        remaining.setdefault("held_out", Node(HELD_OUT, position, key_position=position))
        instead = (
            f"; up to {remaining['held_out'].value} training records are held out for validation "
            "(data.held_out=N takes another number, data.valid=... other data)"
        )
    training_kind, other_kind = (
        ("files", "the micro-world") if _kinds(train) == {"file"} else ("the micro-world", "files")
    )
    if any(_has(source, "memory") for source in _maps(train)):
        training_kind = "in memory"
    names = " and ".join(f"data.{name}" for name in foreign)
    warning = (
        f"{train.position}: data.train is {training_kind}, so the recipe's {names} ({other_kind}) "
        f"{'are' if len(foreign) > 1 else 'is'} left out{instead}"
    )
    return replace(tree, value={**tree.value, "data": replace(data, value=remaining)}), [warning]


def _differ(train: Node, held_out: Node) -> bool:
    """Return whether one reads only the micro-world, and the other only files."""
    kinds = _kinds(train), _kinds(held_out)
    return all(len(kind) == 1 for kind in kinds) and kinds[0] != kinds[1]


def _kinds(sources: Node) -> set[str]:
    """Return the kinds of the sources of a split: `world`, `file` or both."""
    return {"world" if _has(source, "world") else "file" for source in _maps(sources)}


def _maps(sources: Node) -> list[dict[str, Any]]:
    """Return the keys of each source of a split."""
    every = sources.value if isinstance(sources.value, list) else [sources]
    maps = ({"file": source} if isinstance(source.value, str) else source.value for source in every)
    return [source for source in maps if isinstance(source, dict) and source]


def _has(source: dict[str, Any], key: str) -> bool:
    return key in source and source[key].value is not None


def _positions(node: Node) -> Iterator[str]:
    """Yield the positions of a value and its parts."""
    yield node.position
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    for part in parts:
        yield from _positions(part)
