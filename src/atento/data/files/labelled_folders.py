"""Folders of text files, one for each label, such as the `pos/` and `neg/` of IMDb."""

from collections.abc import Iterator
from pathlib import Path

from atento.config.tables.formats import COMPRESSED, FORMATS
from atento.config.tables.task_spec import Field
from atento.data.files.encodings import recoded
from atento.data.files.source_lines import open_binary, read_text
from atento.errors import DataError
from atento.metrics.label_names import class_name

UNLABELLED = "unsup"  # of IMDb: reviews without a label


def labelled_files(
    folder: Path, name: str, fields: tuple[Field, ...], encoding: str | None
) -> Iterator[tuple[int, list[str]] | DataError]:
    """Yield the number of each file, from 1, with its text and the name of its folder, in the order of `fields`.

    The files are in the order of their names, so that the first ones are of all labels.

    Raises:
        DataError: there is no folder of text files in `folder`.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else f"no such folder (looked for {folder.absolute()})"
        raise DataError(f"{name}: {what}; a table ends in .tsv, .csv, .xlsx, .jsonl or .json")
    endings = tuple(f"{ending}{packed}" for ending in FORMATS["text"].endings for packed in ("", *COMPRESSED))
    files = sorted(
        (
            file
            for part in folder.iterdir()
            if part.is_dir() and part.name != UNLABELLED
            for file in part.iterdir()
            if file.name.endswith(endings) and file.is_file()
        ),
        key=lambda file: (file.name, file.parent.name),
    )
    if not files:
        raise DataError(
            f"{name}: has no folder of text files for each label, such as {name}/pos and {name}/neg with files that "
            f"end in {', '.join(endings)}"
        )
    for number, file in enumerate(files, start=1):
        shown = f"{name}/{file.relative_to(folder)}"
        try:
            with open_binary(file, shown) as stream:
                text = read_text(recoded(stream, shown, encoding), shown)
        except DataError as error:
            yield error
            continue
        values = {"text": text.rstrip("\r\n"), "label": class_name(file.parent.name)}
        yield number, [values[field.name] for field in fields]
