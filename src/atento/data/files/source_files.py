"""The files of a data source: one file, every text file of a folder, or every file that matches a pattern."""

from collections.abc import Sequence
from pathlib import Path

from atento.config.recipe import SourceConfig
from atento.config.tables.formats import COMPRESSED, FORMATS, format_of
from atento.config.tables.task_spec import Field
from atento.errors import DataError

_WILD = "*?["


def source_files(source: SourceConfig, folder: Path, fields: Sequence[Field] = (Field("text"),)) -> list[str]:
    """Return the names of the files of a source, in alphabetical order, as its `file` writes them.

    Of a folder: the files whose names end in .txt, or in the ending of `format`, compressed or not, in its folders
    too. Of a pattern (`corpus/*.jsonl`, `**` for any folders): the files that match it. A folder of labels, for records
    with these fields, is one source.

    Raises:
        DataError: there is no such file.
    """
    name = str(source.file)
    path = folder / Path(name).expanduser()
    if path.is_dir() and format_of(name, source.format, fields) == "folders":
        return [name]
    if path.is_dir():
        endings = FORMATS[source.format or "text"].endings
        accepted = tuple(f"{ending}{packed}" for ending in endings for packed in ("", *COMPRESSED))
        names = sorted(
            str(Path(name) / file.relative_to(path))
            for file in path.rglob("*")
            if file.is_file() and file.name.endswith(accepted)
        )
        if not names:
            raise DataError(f"{name}: the folder holds no file that ends in {', '.join(accepted)}")
        return names
    if not any(letter in name for letter in _WILD) or path.exists():  # a name may have such letters itself
        return [name]
    absolute = Path(name).expanduser()
    base, pattern = folder, name
    if absolute.is_absolute():  # `glob` takes no absolute pattern
        base = Path(absolute.anchor)
        pattern = str(absolute.relative_to(base))
    matches = sorted(file for file in base.glob(pattern) if file.is_file())
    if not matches:
        raise DataError(f"{name}: no file matches")
    return [str(file if absolute.is_absolute() else file.relative_to(folder)) for file in matches]
