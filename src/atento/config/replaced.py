"""A recipe whose training data was replaced: what becomes of the validation and test data that belonged to the old."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from atento.config.yaml12 import Written

HELD_OUT = 500  # records, where validation data are left out; never more than a tenth of the training data


def without_foreign(tree: Written, files: Sequence[str], command_line: str) -> tuple[Written, list[str]]:
    """Leave out validation and test data of another kind than a `data.train` that was laid over them.

    The kinds are the micro-world and files. A shipped recipe validates on the micro-world: with training data of one's
    own on the command line (or in a recipe that extends it), its scores would say nothing about that data. Data given
    in the same place as `data.train`, or above it, stay.

    Args:
        tree: the recipe as written, all layers joined.
        files: the labels of the recipe's files, the first one first, those that it extends behind.
        command_line: the place of what was given on the command line; any other place is an environment variable's.

    Returns:
        The recipe, with `data.held_out` where validation data were left out; and a sentence that says so.
    """
    data = tree.value.get("data")
    if data is None or not isinstance(data.value, dict) or "train" not in data.value:
        return tree, []

    def layer(node: Written) -> int:
        """The highest layer that wrote any part of it, 0 = the command line."""
        ranks = {command_line: 0} | {label: number for number, label in enumerate(files, start=2)}
        return min(ranks.get(place, ranks.get(place.rsplit(":", 2)[0], 1)) for place in _places(node))

    train = data.value["train"]
    foreign = [
        name
        for name in ("valid", "test")
        if name in data.value and layer(train) < layer(data.value[name]) and _differ(train, data.value[name])
    ]
    if not foreign:
        return tree, []
    kept = {key: value for key, value in data.value.items() if key not in foreign}
    instead = ""
    if "valid" in foreign:
        place = "in place of the data.valid left out"
        kept.setdefault("held_out", Written(HELD_OUT, place, key_place=place))
        instead = (
            f"; up to {kept['held_out'].value} training records are held out for validation "
            "(data.held_out=N takes another number, data.valid=... other data)"
        )
    ours, theirs = ("files", "the micro-world") if _kinds(train) == {"file"} else ("the micro-world", "files")
    if any(_given(source, "memory") for source in _maps(train)):
        ours = "in memory"
    names = " and ".join(f"data.{name}" for name in foreign)
    said = (
        f"{train.place}: data.train is {ours}, so the recipe's {names} ({theirs}) "
        f"{'are' if len(foreign) > 1 else 'is'} left out{instead}"
    )
    return replace(tree, value={**tree.value, "data": replace(data, value=kept)}), [said]


def _differ(train: Written, other: Written) -> bool:
    """Whether one reads the micro-world only, and the other files only."""
    kinds = _kinds(train), _kinds(other)
    return all(len(kind) == 1 for kind in kinds) and kinds[0] != kinds[1]


def _kinds(sources: Written) -> set[str]:
    """`world`, `file` or both: what the sources of a split are."""
    return {"world" if _given(source, "world") else "file" for source in _maps(sources)}


def _maps(sources: Written) -> list[dict[str, Any]]:
    """The keys of each source of a split."""
    every = sources.value if isinstance(sources.value, list) else [sources]
    maps = ({"file": source} if isinstance(source.value, str) else source.value for source in every)
    return [source for source in maps if isinstance(source, dict) and source]


def _given(source: dict[str, Any], key: str) -> bool:
    return key in source and source[key].value is not None


def _places(node: Written) -> Iterator[str]:
    """Where a value and its parts were written."""
    yield node.place
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    for part in parts:
        yield from _places(part)
