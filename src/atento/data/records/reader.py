"""One reader for all tasks: files, the embedded micro-world, or records in memory, to columns by name.

A column is a list of values of one kind (`atento.data.records.values`).
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from atento.base.errors import DataError, RecipeError, counted
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import (
    FORMATS,
    LABELLINGS,
    columns_of_source,
    format_of,
    holds,
    labellings_for,
    rule_of_endings,
)
from atento.config.tables.task_spec import Field
from atento.data.files.conll import without_marks
from atento.data.files.dialect import encoding_for, sniffed
from atento.data.files.hub import dataset_rows
from atento.data.files.paragraphs import documents, looks_wrapped, wrapped_sentence
from atento.data.files.several_files import labelled_files, two_files
from atento.data.files.source_lines import open_binary
from atento.data.files.source_records import Row, header_notes, note_of_quotes, rows_in
from atento.data.records.marked_entities import normalized
from atento.data.records.memory import MemoryRecords, argument_name, memory_records, records_in, with_optional
from atento.data.records.values import Converter, canonical, counted_with

SOURCE_AND_TARGET = (Field("source"), Field("target"))
TEXT = (Field("text"),)
_WORLD_COUNTS = {"train": 30000}
_LABELLED_COUNTS = {"train": 10_000}
_WORLD_COUNT = 500  # every other split
_ONE_WORD = 0.95  # share of sentences of one word, above which they are words that were taken for sentences
_NOUNS = {("source", "target"): ("pair", "sentence pair"), ("text",): ("text", "text")}


@dataclass(frozen=True)
class Origins:
    """The position of each record: the names of its files and its line, from 1, the same in each file."""

    names: tuple[str, ...]
    lines: "array[int]"

    def where(self, index: int) -> str:
        """`train.en:12 / train.pt:12`, or `valid.tsv:7`."""
        return " / ".join(f"{name}:{self.lines[index]}" for name in self.names)


@dataclass(frozen=True)
class Records:
    """The records of one source, in the order of their files, as columns of equal length."""

    columns: Mapping[str, list[Any]]  # the values of each field by its name
    origins: Origins  # the position of each record
    skipped: list[str]  # the messages of the broken records that were left out
    empty: int  # how many records were left out because a field was blank
    fingerprint: str  # SHA-256 of the records in their order, so that a resumed run can detect changes
    wrapped: bool = False  # the texts are lines of a file that seems to break them inside sentences
    notes: tuple[str, ...] = ()  # what else is worth a warning, such as tags that were converted; a sentence each
    lacking: str = ""  # what the records with a blank field are, where it says more than that

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The records, each a tuple of its fields."""
        return iter(zip(*self.columns.values()))

    def where(self, index: int) -> str:
        """File and line of a record, for messages."""
        return self.origins.where(index)

    def warnings(self) -> list[str]:
        """Return a sentence for each kind of record that was left out, with its count.

        Blank lines of a text file are not counted: they only separate texts.
        """
        name, sentences = " / ".join(self.origins.names), []
        noun = noun_of(tuple(self.columns))[0]
        if self.empty and len(self.columns) > 1:
            sentences.append(f"{name}: {counted(self.empty, noun)} {self.lacking or 'with an empty side'} left out")
        if self.skipped:
            sentences.append(f"{name}: {counted(len(self.skipped), 'bad record')} left out, first {self.skipped[0]}")
        if self.wrapped:
            sentences.append(wrapped_sentence(name))
        sentences += [f"{name}: {note}" for note in self.notes]
        return sentences


def noun_of(columns: tuple[str, ...]) -> tuple[str, str]:
    """Return the noun for a record with these columns in messages, short and full."""
    return _NOUNS.get(columns, ("example", "example"))


def read_records(
    source: SourceConfig,
    fields: Sequence[Field],
    folder: Path = Path(),
    *,
    skip_bad: bool = False,
    memory: Mapping[str, MemoryRecords] | None = None,
) -> Records:
    """Read one source of a recipe: parallel files, a file with columns, a text file, the micro-world, or memory.

    Args:
        source: what to read. With `count`, reading stops after that many good records.
        fields: the fields of a record; an optional one is read where the source names its column.
        folder: what relative paths are relative to.
        skip_bad: leave out and list broken records instead of refusing the file. Files of unequal length, a header
            without the column and a file in another encoding from its first byte are always errors.
        memory: the records that sources with `memory` name.

    Raises:
        RecipeError: the source itself makes no sense.
        DataError: names file, line and rule; also where no record is left.
    """
    records = _read(source, fields, folder, skip_bad, memory)
    if not source.prefix:
        return records
    name = next((name for name in ("source", "text") if name in records.columns), None)
    if name is None:
        raise RecipeError(f"`prefix` is for data with `source` or `text`: got {' and '.join(records.columns)}")
    columns = {**records.columns, name: [source.prefix + text for text in records.columns[name]]}
    return replace(records, columns=columns, fingerprint=fingerprint(*columns.values()))


def _read(
    source: SourceConfig,
    fields: Sequence[Field],
    folder: Path,
    skip_bad: bool,
    memory: Mapping[str, MemoryRecords] | None,
) -> Records:
    if source.memory is not None:
        records = memory_records(source.memory, memory)
        return records_in_memory(records, fields, argument_name(source.memory), source.count, skip_bad=skip_bad)
    # those whose column the source names; `file_rows` also knows the usual ones of a format
    present = tuple(field for field in fields if not field.optional or getattr(source, field.name) is not None)
    columns = tuple(field.name for field in present)
    if source.world is not None:
        return _world(source, columns) if source.labels is None else _labelled(source, fields)
    if source.dataset is not None:
        name, rows = dataset_rows(source, present, folder)
        return collect(rows, present, (name,), source.count, skip_bad)
    with ExitStack() as files:
        if source.file is None and columns == ("source", "target"):
            names, rows = two_files(source.source, source.target, folder, files, source.encoding)
            return collect(rows, present, names, source.count, skip_bad)
        if source.file is None:
            raise RecipeError(f"a data source of {noun_of(columns)[0]}s needs `file`, `dataset`, `world` or `memory`")
        form = format_of(source.file, source.format, fields)
        if form is None or not holds(form, fields):
            raise RecipeError(f"`file: {source.file}` {rule_of_endings(source.file, fields)}")
        if form == "text":
            items = documents(source, source.file, folder)
            rows = (item if isinstance(item, DataError) else (item[0], [item[1]]) for item in items)
            records = collect(rows, TEXT, (source.file,), source.count, skip_bad)
            lines = not source.paragraphs and source.documents == "lines"
            return replace(records, wrapped=lines and looks_wrapped(records["text"], records.origins.lines))
        present, rows = file_rows(source, form, fields, folder, files)
        records = collect(rows, present, (source.file,), source.count, skip_bad, FORMATS[form].lacking)
        if form == "conll" and "tokens" in records.columns:
            words, mark = without_marks(records["tokens"])  # of a language, as in WikiANN's files
            if mark is not None:
                unmarked = {**records.columns, "tokens": words}
                note = f"the mark {mark!r} before every word is left out"
                seal = fingerprint(*unmarked.values())
                records = replace(records, columns=unmarked, fingerprint=seal, notes=(*records.notes, note))
        quotes = note_of_quotes(records.columns, records.where) if form == "tsv" else None
        header = header_notes(records.columns, records.where) if FORMATS[form].by_number else ()
        notes = [*([quotes] if quotes else []), *header]
        return replace(records, notes=(*records.notes, *notes))


def records_in_memory(
    records: MemoryRecords, fields: Sequence[Field], name: str, count: int | None = None, *, skip_bad: bool = False
) -> Records:
    """Check records passed from Python by the rules for files; messages call them `name`.
    Raises UsageError, DataError: as `records_in`, and where no record is left.
    """
    records, present = with_optional(records, fields)
    return collect(records_in(records, present, name), present, (name,), count, skip_bad)


def file_rows(
    source: SourceConfig, form: str, fields: Sequence[Field], folder: Path, files: ExitStack, *, streamed: bool = False
) -> tuple[tuple[Field, ...], Iterator[Row]]:
    """Return the fields that one file holds, and its rows; `streamed`: they are not collected in memory."""
    name = str(source.file)
    columns = columns_of_source(form, source, fields)
    quoted_fields = " and ".join(f"`{column}`" for column in columns)
    values = " and ".join(map(repr, columns.values()))
    chosen = [column for column in columns.values() if column is not None]
    if len(chosen) < len(columns):
        what = "the column" if len(columns) == 1 else "the columns"
        raise RecipeError(f"`file: {name}` needs {quoted_fields}, {what}: got {values}")
    numbers = [column for column in chosen if isinstance(column, int)]
    if numbers and not FORMATS[form].by_number:
        raise RecipeError(f"`file: {name}` has no column numbers; {quoted_fields} must be keys: got {values}")
    if numbers and len(numbers) < len(columns):
        every = "both" if len(columns) == 2 else "all"
        rule = f"{every} columns must be numbers (no header) or {every} names"
        raise RecipeError(f"`file: {name}`: {rule}: got {values}")
    if not numbers and not FORMATS[form].by_name:
        raise RecipeError(f"`file: {name}` has no column names; {quoted_fields} must be numbers: got {values}")
    if numbers and min(numbers) < 0 and not FORMATS[form].from_end:
        raise RecipeError(f"`file: {name}`: columns are counted from 0: got {values}")
    present = tuple(field for field in fields if field.name in columns)
    if form == "folders":
        return present, labelled_files(_path(folder, name), name, present, source.encoding)
    source = sniffed(source, form, fields, folder)
    encoding = encoding_for(source, form)
    stream = files.enter_context(open_binary(_path(folder, name), name, streamed=streamed, encoding=encoding))
    converter = Converter(present, source.separator, source.decimal or ".")
    header = bool(source.header)
    rows = rows_in(form, stream, name, chosen, converter, delimiter=source.delimiter, sheet=source.sheet, header=header)
    return present, rows


def _path(folder: Path, name: str) -> Path:
    return folder / Path(name).expanduser()


def _world(source: SourceConfig, fields: tuple[str, ...]) -> Records:
    from atento_world import write  # late: reading files does not need the grammar

    split = str(source.world)
    pairs = write(split, source.count or _WORLD_COUNTS.get(split, _WORLD_COUNT), source.seed)
    is_text = fields == ("text",)
    sides = ["source" if source.text == "en" else "target"] if is_text else ["source", "target"]
    rows = ((number, [getattr(pair, side) for side in sides]) for number, pair in enumerate(pairs, start=1))
    return collect(rows, TEXT if is_text else SOURCE_AND_TARGET, (f"world {split}",), None, False)


def _labelled(source: SourceConfig, fields: Sequence[Field]) -> Records:
    """Write examples of the micro-world with gold labels."""
    from atento_world import labelled  # late: reading files does not need the grammar

    labels, split = str(source.labels), str(source.world)
    present = tuple(field for field in fields if field.name in LABELLINGS[labels])
    if not present or labels not in labellings_for(fields):
        raise RecipeError(f"`labels: {labels}` has records with {', '.join(LABELLINGS[labels])}")
    count = source.count or _LABELLED_COUNTS.get(split, _WORLD_COUNT)
    examples = labelled(labels, split, count, source.seed, str(source.text or "pt"))
    keys = [field.name for field in present]
    converter = Converter(present)
    rows = ((number, converter.objects(example, keys)) for number, example in enumerate(examples, start=1))
    return collect(rows, present, (f"world {split} {labels}",), None, False)


def collect(
    rows: Iterable[Row],
    fields: Sequence[Field],
    names: tuple[str, ...],
    count: int | None,
    skip_bad: bool,
    lacking: str = "",
) -> Records:
    """Collect rows (line, one value per field) into records, up to `count`; rows with a blank text, class or words are
    left out, and so are those without values, which wait for their labels.
    Raises DataError: a broken record, unless `skip_bad`; no record is left.
    """
    columns: dict[str, list[Any]] = {field.name: [] for field in fields}
    converter = Converter(fields)
    lines = array("L")  # of machine integers: there may be millions
    skipped: list[str] = []
    empty, waiting, blank = 0, 0, Counter[str]()
    rows = iter(rows)  # read on below, to count the bad ones
    for row in rows:
        if isinstance(row, DataError):
            if not skip_bad:
                raise counted_with(row, rows, fields)
            skipped.append(str(row))
            continue
        line, values = row
        if not values:  # a task without labels
            waiting += 1
            continue
        if converter.blank(values):
            if (problem := converter.half(values)) is not None:  # a query without a document
                error = DataError(f"{Origins(names, array('L', [line])).where(0)}: {problem}")
                if not skip_bad:
                    raise error
                skipped.append(str(error))
                continue
            empty += 1
            lacks = (value in ((), []) or not str(value).strip() for value in values)
            blank.update(field.name for field, lacking in zip(fields, lacks) if lacking)
            continue
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        lines.append(line)
        if len(lines) == count:
            break
    unlabelled = f"{counted(waiting, 'record')} not labelled yet" if waiting else ""
    if not lines:
        first = f": {skipped[0]}" if skipped else ""
        broken = f"{empty} {lacking or 'empty'}, {len(skipped)} bad{first}" if empty or skipped else ""
        counts = f" ({', '.join(filter(None, [unlabelled, broken]))})" if unlabelled or broken else ""
        every = [name for name, count in blank.items() if count == empty]  # what every record that was left out lacks
        why = f": `{every[0]}` is blank in every record" if every and len(fields) > 1 and not skipped else ""
        raise DataError(f"{' / '.join(names)}: holds no {noun_of(tuple(columns))[1]}{counts}{why}")
    origins = Origins(names, lines)
    notes = [f"{unlabelled}, left out"] if unlabelled else []
    notes += _notes(fields, columns, origins, empty)
    digest = fingerprint(*columns.values())
    return Records(columns, origins, skipped, empty, digest, notes=tuple(notes), lacking=lacking)


def _notes(fields: Sequence[Field], columns: dict[str, list[Any]], origins: Origins, empty: int) -> Iterator[str]:
    """Yield what is to be said of tags, which become those of our schemes in `columns`, and of words."""
    for field in fields:
        if field.kind == "tags":
            columns[field.name], notes = normalized(columns[field.name], origins.where)
            yield from notes
        if field.kind != "words" or not empty:
            continue
        if sum(len(words) == 1 for words in columns[field.name]) > _ONE_WORD * len(columns[field.name]):
            yield "each sentence is one word; where a row is a word, `format: conll` reads sentences"


def fingerprint(*columns: Sequence[object]) -> str:
    """SHA-256 of the records, each value ended by the NUL that no text may hold; hashed in pieces to stay small."""
    digest = sha256()
    for begin in range(0, len(columns[0]), 4096):
        pieces = [column[begin : begin + 4096] for column in columns]
        spelled = (piece if isinstance(piece[0], str) else map(canonical, piece) for piece in pieces)
        texts = chain.from_iterable(zip(*spelled))
        digest.update("".join(f"{text}\0" for text in texts).encode("utf-8"))
    return digest.hexdigest()
