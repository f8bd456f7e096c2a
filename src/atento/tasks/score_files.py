"""Predictions and references of `atento score`, read by what a metric scores (`atento.metrics.score`)."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from atento.base.errors import DataError, UsageError, counted
from atento.config.tables.formats import FORMATS
from atento.data.files.conll import sentences_in
from atento.data.files.source_lines import display_name, open_binary, read_lines, read_text
from atento.data.records.values import SEPARATOR
from atento.metrics.score import Outputs
from atento.metrics.tag_schemes import entities, respelled

_COLUMNS = (*FORMATS["conll"].endings, *FORMATS["conllu"].endings)
_UNIVERSAL_TAGS = 3  # the column of the universal part of speech in CoNLL-U


@dataclass(frozen=True)
class Items:
    """The items of a file in their order."""

    name: str  # of the file, for messages
    values: list[Any]  # one an item
    lines: Sequence[int] = ()  # the number of the line where each item begins; empty for JSON
    ids: tuple[str, ...] | None = None  # of JSON, the id of each item
    noun: str = "line"  # what an item is called

    def at(self, number: int) -> str:
        """The file and line of an item, by its number from 0."""
        return f"{self.name}:{self.lines[number]}" if self.lines else f"{self.name}: question {number + 1}"


Rows = Sequence[tuple[int, str | DataError]]
"""The number and the text of each row of a table, or what is wrong with it."""


def read_items(
    path: str, outputs: Outputs, *, reference: bool = False, columns: bool = False, rows: Rows | None = None
) -> Items:
    """Read the items of a file; `-` is standard input.

    Texts, classes and answers: a line each. Class sets: labels separated by "|"; an empty line is none. Numbers: a
    number a line. Probabilities: a label, a tab and a probability, or an empty line, which is None; of references the
    label alone, or None. Tags: those of a sentence on a line, or a file of columns. Answers: also JSON, if the file is
    named .json.

    Args:
        path: the file, `.gz` too.
        outputs: what the metric scores.
        reference: whether these are the right outputs.
        columns: of tags: the file has a word a line, its tag last, and a blank line after each sentence; so has a file
            named .conll, .bio, .iob or .iob2. In a file named .conllu the tags are the universal parts of speech.
        rows: of the file as a table, in place of its lines.

    Raises DataError: names file and line.
    """
    if outputs == "vector pairs":
        raise UsageError("this metric scores the vectors of a model, not files: use atento evaluate")
    name = display_name(path)
    suffix = Path(path.removesuffix(".gz")).suffix
    if outputs == "answers" and suffix == ".json" and rows is None:
        with open_binary(Path(path), name) as stream:
            content = read_text(stream, name)
        try:
            parsed = json.loads(content)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}:{error.lineno}: is no JSON: {error.msg}") from None
        except (ValueError, RecursionError):
            raise DataError(f"{name}: is no JSON that can be read: too deep, or a number too long") from None
        return _squad_references(parsed, name) if reference else _squad_predictions(parsed, name)
    if outputs == "tags" and (columns or suffix in _COLUMNS):
        items = _sentences(path, name, suffix == ".conllu")
        return replace(items, values=list(respelled(items.values)[0]))  # spelled as our schemes are
    read = list(enumerate(read_lines(path), 1)) if rows is None else rows
    parse = _PARSERS.get(outputs, str)
    if outputs == "probabilities" and reference:  # a label has no probability; `where_all_say` knows which may lack

        def parse(line: str) -> str | None:
            return _label(line) if line.strip() else None

    values = []
    for number, line in read:
        if isinstance(line, DataError):
            raise line
        try:
            if outputs == "classes" and reference and not line.strip():
                raise ValueError(_BLANK)
            values.append(parse(line))
        except ValueError as error:
            raise DataError(f"{name}:{number}: {error}") from None
    if outputs == "tags":
        values = list(respelled(values)[0])
    return Items(name, values, [number for number, _ in read])


def in_order_of(references: Items, predictions: Items) -> Items:
    """The predictions in the order of the references, by their ids if they have some.
    Raises DataError: they are not equally many, a question has no prediction, or only one of the files has ids.
    """
    if predictions.ids is not None:
        if references.ids is None:
            raise DataError(
                f"{predictions.name} has predictions by id, which needs references in the JSON of SQuAD: got "
                f"{references.name}"
            )
        by_id = dict(zip(predictions.ids, predictions.values))
        _check_ids(references.ids, by_id, predictions.name)
        _check_ids(by_id, set(references.ids), references.name)  # in both directions: nothing lacks, nothing is over
        return Items(predictions.name, [by_id[key] for key in references.ids], ids=references.ids, noun="question")
    if len(predictions.values) != len(references.values):
        noun = references.noun
        raise DataError(
            f"{noun} N of {predictions.name} must correspond to {noun} N of {references.name}: got "
            f"{len(predictions.values)} and {len(references.values)} {noun}s"
        )
    return predictions


def _check_ids(ids: Iterable[str], known: Collection[str], name: str) -> None:
    """Raises DataError: some of the ids are not among those of the file with that name."""
    missing = [key for key in ids if key not in known]
    if missing:
        raise DataError(f"{name}: has nothing for {counted(len(missing), 'id')}, the first is {missing[0]!r}")


def where_all_say(references: Items, systems: list[Items]) -> tuple[list[str], list[list[Any]], int]:
    """Leave out the examples of which a system says nothing: empty lines, as `atento classify` prints them for empty
    texts and where it abstains.

    Returns:
        The right labels, the predictions of each system, and how many examples are left out.

    Raises DataError: none is left, or one that is left has no right label.
    """
    kept = [number for number, row in enumerate(zip(*(system.values for system in systems))) if None not in row]
    for number in kept:
        if references.values[number] is None:
            raise DataError(f"{references.at(number)}: {_BLANK}")
    if not kept:
        raise DataError(f"there is nothing to score: all lines of {systems[0].name} are empty")
    of_systems = [[system.values[number] for number in kept] for system in systems]
    return [references.values[number] for number in kept], of_systems, len(references.values) - len(kept)


def check_tags(predictions: Items, references: Items, scheme: str | None, of_entities: bool) -> None:
    """Check that each sentence has as many tags as its reference, and tags of entities if the metric needs them.
    Raises DataError: names file and line.
    """
    for number, (tags, right) in enumerate(zip(predictions.values, references.values)):
        if len(tags) != len(right):
            raise DataError(
                f"{predictions.at(number)}: {counted(len(tags), 'tag')}, and {references.at(number)} has {len(right)}; "
                "each word needs its tag"
            )
        for items, sentence in ((predictions, tags), (references, right)) if of_entities else ():
            try:
                entities(sentence, scheme)
            except UsageError as error:
                raise DataError(f"{items.at(number)}: {error}") from None


def _number(line: str) -> float:
    try:
        number = float(line if "_" not in line else "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"each line must hold a finite number: got {line[:40]!r}")
    return number


def _label(line: str) -> str:
    if "\t" in line:
        raise ValueError(
            f"each line must hold a label alone, without a tab: got {line[:40]!r}; `cut -f 1` keeps labels"
        )
    return line


_BLANK = "a blank line is no label; remove the line from every file, as training leaves it out"


def _labels(line: str) -> list[str]:
    return [label.strip() for label in line.split(SEPARATOR) if label.strip()]


def _probability(line: str) -> tuple[str, float] | None:
    if not line.strip():
        return None
    label, _, share = line.rpartition("\t")
    try:
        probability = float(share)
    except ValueError:
        probability = math.nan
    if not label or not 0 <= probability <= 1:
        raise ValueError(f"each line must hold a label, a tab and a probability between 0 and 1: got {line[:40]!r}")
    return label, probability


_PARSERS: dict[str, Callable[[str], Any]] = {
    "classes": _label,
    "class sets": _labels,
    "tags": str.split,
    "numbers": _number,
    "probabilities": _probability,
}


def _sentences(path: str, name: str, universal: bool) -> Items:
    """The tags of a file of columns: the last one, or that of the parts of speech in CoNLL-U."""
    with nullcontext(cast(BinaryIO, sys.stdin.buffer)) if path == "-" else open_binary(Path(path), name) as stream:
        sentences: list[list[str]] = []
        begins: list[int] = []
        for sentence in sentences_in(stream, name, [_UNIVERSAL_TAGS if universal else -1], universal=universal):
            if isinstance(sentence, DataError):
                raise sentence
            line, (tags,) = sentence
            begins.append(line)
            sentences.append(list(tags))
    return Items(name, sentences, begins, noun="sentence")


# SQuAD's JSON ---------------------------------------------------------------------------------------------------------


def _squad_predictions(parsed: object, name: str) -> Items:
    """{id: answer}"""
    if not isinstance(parsed, dict):
        raise DataError(f"{name}: predictions must be one object of ids and answers")
    for key, answer in parsed.items():
        if not isinstance(answer, str):
            raise DataError(f"{name}: the answer of id {key!r} must be a string: got {answer!r:.40}")
    return Items(name, list(parsed.values()), ids=tuple(parsed), noun="question")


def _squad_references(parsed: Any, name: str) -> Items:
    """{"data": [{"paragraphs": [{"qas": [{"id": ..., "answers": [{"text": ...}]}]}]}]}"""
    ids, answers = [], []
    try:
        for article in parsed["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    ids.append(str(question["id"]))
                    texts = [answer["text"] for answer in question["answers"]]
                    answers.append(tuple(dict.fromkeys(str(text) for text in texts)))
    except (KeyError, TypeError):
        after = f" after the question with the id {ids[-1]!r}" if ids else ""
        raise DataError(
            f"{name}: is not in the format of SQuAD (data, paragraphs, qas, id, answers, text){after}"
        ) from None
    repeated = [key for key, count in Counter(ids).items() if count > 1]
    if repeated:
        raise DataError(f"{name}: two questions have the id {repeated[0]!r}")
    return Items(name, answers, ids=tuple(ids), noun="question")
