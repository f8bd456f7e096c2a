"""A recipe for a file of data: task, columns, sizes and held-out share by what stands in it, each with its reason."""

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from os.path import relpath
from pathlib import Path
from statistics import mean
from typing import Any

from atento.base.errors import AtentoWarning, DataError, UsageError, counted, nearest
from atento.config.reading.dumping import scalar_text
from atento.config.reading.loading import load_recipe
from atento.config.reading.sizes_by_data import fitted
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import FORMATS, NAMES, Column, format_of, is_usual
from atento.config.tables.tasks import SHOWN_BY, SUMMARIES, TASKS, TEXT_TO_TEXT
from atento.data.files.dialect import NAMED, NUMBER, encoding_for, first_of, sniffed
from atento.data.files.source_lines import open_binary, scan
from atento.data.files.source_records import DELIMITERS, objects_in, table_rows
from atento.data.records.reader import read_records
from atento.data.records.splits import Split, held_out, split_of, subset
from atento.data.records.values import characters_of, shortened
from atento.runs.data_checks import said_alike
from atento.runs.run_tokenizer import tokenizer_of_columns

_ROWS = 5_000  # rows that are looked at
_LABELS, _STARS = 200, 10  # at most: different labels, and whole numbers that may be labels
_BAD = 0.05  # a larger share of bad records is an error
_FEW = 3e6  # characters, of which the vocabulary is counted
_SHORT, _HELD_OUT = 0.4, 500  # summaries are shorter than this share of their sources; records for validation
_DATE = re.compile(r"(?:\d{4}-\d\d?-\d\d?|\d\d?[/.-]\d\d?[/.-]\d{2,4})(?:[T ].*)?")
# names of columns that only say which row it is
_PLACE = re.compile(r"(?i)(.*[^a-z])?id|index|url|link|fname|filename")
_KINDS = {  # of the columns that may hold a field; those of any other field are texts
    "label": ("labels", "two numbers", "whole numbers"),
    "score": ("numbers", "whole numbers"),
    "grade": ("numbers", "whole numbers", "two numbers"),
    "tokens": ("lists",),
    "tags": ("lists",),
    "answers": ("answers",),
}
_BY_KIND = ("text", "source", "target", "label", "score", "tokens", "tags")  # fields that need no usual name
_TEXTS, _PAIRS, _TAGS = (SHOWN_BY[fields] for fields in (("text",), ("source", "target"), ("tokens", "tags")))
_QUESTIONS = SHOWN_BY["question", "context", "answers"]
_RIVALS = {SHOWN_BY["text", field]: field for field in ("label", "score")}
Choose = Callable[[str, Sequence[str]], str]  # one of the answers to a question


@dataclass(frozen=True)
class _Column:
    """A column of a table: its name or number, its kind, what is to be said of its values, and lengths of lists."""

    key: Column
    kind: str
    about: str
    lengths: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.key!r} ({self.about})"


def new_recipe(files: Sequence[Path], task: str | None, choose: Choose, beside: Path) -> str:
    """Return a recipe for a table, a text file, a file of words and tags, or two parallel files, as YAML with comments.

    Args:
        files: one or two.
        task: the only task that is asked of; None: it follows from the columns.
        choose: answers what the file leaves open, or raises what was seen.
        beside: the folder that the paths of the recipe begin at.

    Raises:
        DataError: a file is empty, or cannot be read. UsageError: there is no task for what it holds.
    """
    if task is not None and task not in TASKS:
        raise UsageError(f"unknown task {task!r}{nearest(task, list(TASKS))}")
    if len(files) > 2:
        raise UsageError(f"give a file of data, or two parallel files: got {len(files)} files")
    written, reasons, unused = task, dict[str, str](), ""
    if len(files) == 2:
        task, source = task or _PAIRS, SourceConfig(source=str(files[0]), target=str(files[1]))
        reasons = {"source": "line N of one file belongs to line N of the other"}
    else:
        task, source, reasons = _source_of(str(files[0]), task, choose)
        unused = reasons.pop("unused", "")
    of_task = TASKS[task].fields
    records = read_records(source, of_task, skip_bad=True)
    _check_bad(source, records.skipped, len(records) + len(records.skipped))
    lengths = {key: sum(map(characters_of, column)) for key, column in records.columns.items()}
    if written is None and task == _PAIRS and lengths["target"] < _SHORT * lengths["source"]:
        task, reasons = SUMMARIES, reasons | {"task": "the targets are much shorter than their sources"}
    if source.file is not None:
        source = sniffed(source, format_of(source.file, source.format, of_task) or "", of_task, Path(), say=False)
    stated = {field.name: getattr(source, field.name) for field in fields(source)}
    keys = {key: value for key, value in stated.items() if value != getattr(SourceConfig(), key)}
    paths = ("source", "target") if source.file is None else ("file",)
    keys |= {key: keys[key] if Path(keys[key]).is_absolute() else relpath(keys[key], beside) for key in paths}
    lines = [(f"task: {task}", reasons.get("task", "as asked" if written else "")), ("data:", ""), ("  train:", "")]
    reasons = {"file": f"{counted(len(records), 'record')}"} | reasons
    for key, one in keys.items():
        lines.append((f"    {key}: {scalar_text(one)}", reasons.get(key, "" if key in paths else "found in the file")))
    count = max(1, min(_HELD_OUT, len(records) // 10))
    kinds = {field.name: field.kind for field in of_task if field.kind in ("class", "classes", "tags")}
    labels = [(one,) if kind == "class" else one for key, kind in kinds.items() for one in records[key]]
    for said in said_alike(set().union(*labels)):
        warnings.warn(said, AtentoWarning, stacklevel=2)
    part = split_of([records])
    assert part is not None
    try:
        part = subset(part, held_out(records.columns, count, labels)[0])
        lines.append((f"  held_out: {count}", "records for validation, a tenth at most; or give `valid: {file: ...}`"))
    except DataError:
        count = 0
        lines.append(("  # held_out: 0", "there are too few different records to hold some out for validation"))
    if records.skipped:
        said = f"left out: {counted(len(records.skipped), 'bad record')}, first {records.skipped[0]}"
        lines.append(("  skip_bad: true", " ".join(said.split())))
    lines += [(f"  # not used: {unused}", "")] if unused else []
    lines += _sizes(task, {"train": keys, "held_out": count}, lengths, len(records), part)
    width = min(48, max(len(text) for text, reason in lines if reason))
    return "".join(f"{text:<{width}}  # {reason}\n" if reason else f"{text}\n" for text, reason in lines)


def _sizes(
    task: str, data: dict[str, object], lengths: Mapping[str, int], records: int, part: Split
) -> list[tuple[str, str]]:
    """The lines of a recipe about sizes, each with its reason, by the characters of each column."""
    loaded = load_recipe({"task": task, "data": data}, environment={})
    targets = lengths.get("target", lengths.get("text", lengths.get("tokens", 0)))
    examples = None if TASKS[task].targets.endswith(("tokens", "words")) else records
    recipe, why = fitted(loaded.recipe, list(loaded.later()), sum(lengths.values()), targets, examples)
    sizes = ", ".join(f"{key}: {getattr(recipe.network, key)}" for key in ("d_model", "d_ff", "n_heads", "n_layers"))
    asked = size = recipe.tokenizer.vocab_size
    if sum(lengths.values()) < _FEW:  # which may have fewer pieces than that, or more letters
        log = logging.getLogger("atento.text")
        log.addFilter(_silent)
        try:
            size = tokenizer_of_columns(recipe, Path(), part.texts, lambda line: None).vocab_size
        finally:
            log.removeFilter(_silent)
    why = why.partition(" (write")[0].replace(f"a vocabulary of {asked:,}", f"a vocabulary of {size:,}")
    steps = recipe.training.steps
    return [
        (f"network: {{{sizes}}}", why),
        (f"tokenizer: {{vocab_size: {size}}}", "rare words are read in pieces"),
        (f"training: {{steps: {steps}}}", "updates; `minutes: N` in their place fits them to your time"),
    ]


def _silent(record: logging.LogRecord) -> bool:
    """Whether a message is to be logged: none is."""
    return False


def _check_bad(source: SourceConfig, bad: Sequence[str], total: int) -> None:
    """Check that few records are bad. Raises DataError: names the first, and what each delimiter shows of a table."""
    if len(bad) <= _BAD * total:
        return
    name, seen = str(source.file), list[str]()
    form = format_of(name, source.format, ()) if source.file else None
    for sign, sign_name in NAMED.items() if form in ("csv", "tsv") else ():
        with open_binary(Path(name), name, encoding=encoding_for(source, form or "")) as stream:
            read = islice(table_rows(form or "", stream, name, sign, None), _ROWS)
            rows = [(row[0], len(row[1])) for row in read if not isinstance(row, DataError) and row[1] != [""]]
        other = next((row for row in rows if row[1] != rows[0][1]), None)
        also = f" and {other[1]} in line {other[0]}" if other else ""
        seen += [f"{sign_name} shows {counted(rows[0][1], 'column')} in line {rows[0][0]}{also}"] if rows else []
    shown = f" ({', '.join(seen)})" if seen else ""
    raise DataError(f"{bad[0]}; {len(bad):,} of {counted(total, 'record')} are bad, too many to leave out{shown}")


def _source_of(name: str, task: str | None, choose: Choose) -> tuple[str, SourceConfig, dict[str, str]]:
    """The task of one file, its source, and the reasons for its keys."""
    form = format_of(name, None, TASKS[task].fields if task else ()) or (
        "text" if ".txt" in Path(name).suffixes else None
    )
    source = SourceConfig(file=name)
    if Path(name).is_dir():
        return task or next(iter(_RIVALS)), source, {"task": "a folder for each label"}
    if task in (None, _TAGS) and (form in ("conll", "conllu") or (form in (None, "text", "tsv") and _has_tags(name))):
        stated = replace(source, format=None if format_of(name, None, ()) in ("conll", "conllu") else "conll")
        return _TAGS, stated, {"task": "a word and its tag a line", "format": "not what the ending says"}
    if form in (None, "text"):
        return task or _TEXTS, replace(source, format=None if form else "text"), {"task": "a text a line"}
    if FORMATS[form].languages:
        languages = first_of(source, form)
        if len(languages) < 2:
            raise DataError(f"{name}: names fewer than two languages: {', '.join(languages) or 'none'}")
        of_pairs = replace(source, source=languages[0], target=languages[1])
        return task or _PAIRS, of_pairs, dict.fromkeys(("source", "target"), "a language of the file")
    if form == "assin":
        which = f"{name}: `entailment` is a label, `similarity` a score: which task"
        return task or choose(which, list(_RIVALS)), source, {}
    columns = _columns(name, form, sniffed(source, form, (), Path(), say=False))
    if columns is None:
        return _QUESTIONS, source, {"task": "questions in SQuAD's layout"}
    task, chosen = _chosen(name, columns, task, choose)
    reasons = {field: column.about for field, column in chosen.items()}
    keys: dict[str, Any] = {field: column.key for field, column in chosen.items()}
    reasons["unused"] = "; ".join(str(column) for column in columns if column not in chosen.values())
    return task, replace(source, **keys), reasons | {"task": f"by the columns of {' and '.join(chosen)}"}


def _has_tags(name: str) -> bool:
    """Whether a file has a word and its tag a line, and blank lines between sentences."""
    with open_binary(Path(name), name, encoding=None) as stream:
        lines = [line.strip() for line in islice(scan(stream, name), _ROWS) if isinstance(line, str)]
    words = [re.split(r"\t| +", line) for line in lines if line and not line.startswith(("# ", "-DOCSTART-"))]
    tags = {word[-1] for word in words}
    alike = "" in lines[1:-1] and len({len(word) for word in words}) == 1 and 2 <= len(words[0]) <= 4
    return alike and len(tags) <= _LABELS and any(tag == "O" or tag[1:2] == "-" for tag in tags)


def _columns(name: str, form: str, source: SourceConfig) -> list[_Column] | None:
    """The columns of the first rows of a table; None: it is a document of SQuAD."""
    with open_binary(Path(name), name, encoding=encoding_for(source, form)) as stream:
        if form in DELIMITERS:
            read = list(islice(table_rows(form, stream, name, source.delimiter, source.sheet), _ROWS))
            found = [row for row in read if not isinstance(row, DataError) and row[1] != [""]]
            if len(read) == len(found) == 1:
                raise DataError(f"{name}: holds one line alone, {shortened(str(found[0][1]))}, and no record below it")
            rows = [row for _, row in found if len(row) == len(found[0][1])]
            of_first = f"and line {found[0][0]} has {len(found[0][1])}" if found else ""
            bad = [
                str(row) if isinstance(row, DataError) else f"{name}:{row[0]}: {len(row[1])} columns, {of_first}"
                for row in read
                if isinstance(row, DataError) or (row[1] != [""] and len(row[1]) != len(rows[0]))
            ]
            _check_bad(source, bad, len(rows) + len(bad))
            header = bool(rows) and _is_header(rows[0], rows[1:])
            keys: Sequence[Column] = rows[0] if header else range(len(rows[0]) if rows else 0)
            values = {key: [row[number] for row in rows[header:]] for number, key in enumerate(keys)}
        elif (objects := objects_in(form, stream, name)) is None:
            return None
        else:
            records = [row[1] for row in islice(objects, _ROWS) if not isinstance(row, DataError)]
            flat = [_flat(record) for record in records if isinstance(record, Mapping)]
            values = {key: [row.get(key) for row in flat] for key in dict.fromkeys(key for row in flat for key in row)}
    if not any(values.values()):
        raise DataError(f"{name}: holds no record")
    return [_column(key, column) for key, column in values.items()]


def _is_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a row names the columns: usual names that stand in no row below, or it lacks a number that all have."""
    if not rows or len(set(first)) < len(first) or not all(cell.strip() for cell in first):
        return False
    below = [{row[number] for row in rows} for number in range(len(first))]
    named = any(is_usual(cell, field) and cell not in cells for cell, cells in zip(first, below) for field in NAMES)
    number = NUMBER.fullmatch
    return named or any(not number(cell) and all(map(number, cells)) for cell, cells in zip(first, below))


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The values of an object by their keys; dots reach into objects in it."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        inner = isinstance(value, Mapping) and not {"text", "answer_start"} <= value.keys()
        found |= _flat(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return found


def _column(key: Column, column: Sequence[Any]) -> _Column:
    """The kind of the values of a column, and a few words about them."""
    values = [value for value in column if value is not None and str(value).strip()]
    if not values or all(isinstance(value, list | Mapping) for value in values):
        inner = [item for value in values for item in (value if isinstance(value, list) else [value])]
        if inner and all(isinstance(item, str | int) for item in inner):
            return _Column(key, "lists", "lists of words", tuple(map(len, values)))
        return _Column(key, "answers", "answers and their places") if inner else _Column(key, "nothing", "blank")
    texts = [str(value).strip() for value in values]
    counts, words = Counter(texts), mean(len(text.split()) for text in texts)
    whole = all(re.fullmatch(r"[+-]?\d+", text) for text in texts)
    own = len(counts) == len(texts) > 1 and (whole or (words < 2 and any(map(str.isdigit, texts[0]))))
    common = ", ".join(f"{shortened(text)} {number:,}" for text, number in counts.most_common(4))
    common += " ..." if len(counts) > 4 else ""
    if all(map(_DATE.fullmatch, texts)):
        return _Column(key, "dates", "dates")
    if _PLACE.fullmatch(str(key)) or (own and (whole or not all(map(NUMBER.fullmatch, texts)))):
        return _Column(key, "places", f"says which row it is, such as {shortened(texts[0])}")
    if all(map(NUMBER.fullmatch, texts)):
        if whole and len(counts) <= _STARS:
            return _Column(key, "whole numbers" if len(counts) > 2 else "two numbers", f"whole numbers: {common}")
        return _Column(key, "numbers", f"numbers such as {texts[0]}")
    if 1 < len(counts) <= min(_LABELS, max(2, len(texts) // 2)) < len(texts) and mean(map(len, texts)) <= 40:
        return _Column(key, "labels", f"{counted(len(counts), 'label')}: {common}")
    return _Column(key, "texts", f"texts of {counted(round(words), 'word')} on average")


def _chosen(name: str, columns: Sequence[_Column], task: str | None, choose: Choose) -> tuple[str, dict[str, _Column]]:
    """The task of a table, and the column of each of its fields: one with a usual name, or the only one of its kind."""
    shapes = dict(SHOWN_BY)
    if task is not None:
        like, own = _PAIRS if task in (SUMMARIES, TEXT_TO_TEXT) else task, TASKS[task].fields
        shapes = {wanted: one for wanted, one in SHOWN_BY.items() if one == like}
        shapes = shapes or {tuple(field.name for field in own if not field.optional): task}
    possible: dict[str, dict[str, list[_Column]]] = {}
    for wanted, one in shapes.items():
        found: dict[str, list[_Column]] = {}
        for field in wanted:
            fitting = [column for column in columns if column.kind in _KINDS.get(field, ("texts",))]
            repeated = [] if field in _KINDS else [column for column in columns if column.kind == "labels"]
            usual = [column for column in fitting + repeated if is_usual(str(column.key), field)]
            found[field] = usual or [column for column in fitting if field in (*_BY_KIND, "pair")]
        enough = len({column.key for some in found.values() for column in some}) >= len(wanted)
        lengths = {column.lengths for column in [*found.get("tokens", ()), *found.get("tags", ())]}
        if all(found.values()) and enough and len(lengths) < 2:
            possible.setdefault(one, found)
    if not possible:
        what = f"no columns for {task}" if task else "no column of texts"
        raise UsageError(f"{name}: has {what}; its columns are {', '.join(map(str, columns))}")
    best = next(iter(possible))
    if best in _RIVALS and possible.keys() >= _RIVALS.keys():
        seen = {one: possible[one][field] for one, field in _RIVALS.items()}
        sure = [one for one, field in _RIVALS.items() if any(is_usual(str(column.key), field) for column in seen[one])]
        texts = (f"{' or '.join(map(str, some))} may be the {_RIVALS[one]}" for one, some in seen.items())
        best = sure[0] if len(sure) == 1 else choose(f"{name}: {', '.join(texts)}: which task", list(_RIVALS))
    chosen: dict[str, _Column] = {}
    of_best = {field.name for field in TASKS[task or best].fields}
    for field, some in possible[best].items():
        left = [column for column in some if column not in chosen.values()]
        by_number = field == "text" and "pair" in of_best and all(isinstance(column.key, int) for column in left)
        alike = sum(other == some and other_field not in chosen for other_field, other in possible[best].items())
        if len(left) == 2 and by_number and alike == 1:
            chosen["pair"] = left[1]
        elif len(left) != alike:
            answers = {str(column): column for column in left}
            left = [answers[choose(f"{name}: which column is `{field}`", list(answers))]]
        chosen[field] = left[0]
    pairs = [column for column in columns if column.kind == "texts" and is_usual(str(column.key), "pair")]
    if "pair" in of_best - chosen.keys() and len(pairs) == 1 and pairs[0] not in chosen.values():
        chosen["pair"] = pairs[0]
    return task or best, chosen
