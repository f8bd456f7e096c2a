"""What changed since a token store was made: its text, its tokenizer, or how the text is read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atento.base.errors import DataError
from atento.config.reading.loading import LoadedRecipe
from atento.data.files.several_files import source_files
from atento.data.store.token_store import sha256_of


def training_files(loaded: LoadedRecipe) -> list[dict[str, object]]:
    """Return name, size and time of each training file."""
    files = []
    for source in loaded.recipe.data.train:
        for name in [] if source.file is None else source_files(source, loaded.folder):
            path = loaded.folder / Path(name).expanduser()
            try:
                state = path.stat()
            except OSError as error:
                raise DataError(f"{name}: cannot be read: {error.strerror}") from None
            files.append({"name": name, "size": state.st_size, "mtime_ns": state.st_mtime_ns})
    return files


def compare_plans(folder: Path, before: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Refuse a store that was made from something else. Raises DataError: the message names the first difference."""
    names = [[file["name"] for file in each["files"]] for each in (before, plan)]
    differences = [
        f"its files were {', '.join(names[0]) or 'none'}, and are now {', '.join(names[1]) or 'none'}"
        if names[0] != names[1]
        else None
    ]
    differences += [
        f"`{key}` of source {number} was {old.get(key)!r}, and is now {new.get(key)!r}"
        for number, (old, new) in enumerate(zip(before["sources"], plan["sources"]))
        for key in dict.fromkeys((*old, *new))  # an option that is no longer stated has changed too
        if old.get(key) != new.get(key)
    ]
    for key, name in (("tokenizer_from", "tokenizer"), ("skip_bad", "data.skip_bad")):
        if before[key] != plan[key]:
            differences.append(f"`{name}` was {before[key]}, and is now {plan[key]}")
    if before["tokenizer"] != plan["tokenizer"]:
        differences.append("its tokenizer was another one")
    for difference in differences:
        if difference is not None:
            raise _other(folder, difference)


def compare_files(
    loaded: LoadedRecipe, folder: Path, before: list[dict[str, object]], now: list[dict[str, object]]
) -> None:
    """Refuse a store whose files have changed; a file of the same size and time is not read again.
    Raises DataError: a file has changed.
    """
    for old, new in zip(before, now):
        if (old["size"], old["mtime_ns"]) == (new["size"], new["mtime_ns"]):
            continue
        path = loaded.folder / Path(str(new["name"])).expanduser()
        if old["size"] != new["size"] or sha256_of(path) != old["sha256"]:
            raise _other(folder, f"{new['name']} has changed ({old['size']:,} bytes, and is now {new['size']:,})")


def _other(folder: Path, difference: str) -> DataError:
    return DataError(
        f"{folder}: the token store was made from something else: {difference}. Give another folder as "
        "data.store_folder, or make it again with `atento data tokenize RECIPE --force`"
    )
