"""Rankings and judgements of documents for `atento score`: TREC's runs and qrels, or JSON lines."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from atento.base.errors import DataError, counted
from atento.data.files.source_json import jsonl_objects
from atento.data.files.source_lines import display_name, open_binary, read_lines
from atento.metrics.rankings import Judgement

Documents = dict[str, tuple[float, int]]  # document -> its number, and the line
_TREC = {"score": ("query Q0 document rank score tag", 2, 4), "grade": ("query 0 document grade", 2, 3)}


def read_rankings(
    qrels: str, runs: Sequence[str], warn: Callable[[str], None]
) -> tuple[list[Judgement], list[list[float | None]]]:
    """The judgements of a file of grades and all documents of some rankings, and the scores that each ranking gives.

    Args:
        qrels: TREC's file (query, 0, document, grade), or JSON lines with these keys.
        runs: TREC's files (query, Q0, document, rank, score, tag), or JSON lines of query, document and score.
        warn: called with a sentence about queries of a ranking that have no grades, which are left out.

    Raises DataError: a line of another form, a document twice, or a query that has grades and no document in a ranking;
    names file and line.
    """
    grades, rankings = _numbers(qrels, "grade"), [_numbers(run, "score") for run in runs]
    if not any(grade > 0 for judged in grades.values() for grade, _ in judged.values()):
        raise DataError(f"{display_name(qrels)}: no document is right: a grade must be above 0")
    for name, ranking in zip(runs, rankings):
        for query, judged in grades.items():
            if query not in ranking:
                line = next(iter(judged.values()))[1]
                raise DataError(
                    f"{display_name(qrels)}:{line}: query {query!r} has no documents in {display_name(name)}"
                )
        unknown = [query for query in ranking if query not in grades]
        if unknown:
            queries = counted(len(unknown), "query", "queries")
            warn(f"{display_name(name)}: {queries} without grades left out, first {unknown[0]!r}")
    references: list[Judgement] = []
    scores: list[list[float | None]] = [[] for _ in runs]
    for query, judged in grades.items():
        documents = dict.fromkeys([*judged, *(document for ranking in rankings for document in ranking[query])])
        for document in documents:
            # without a judgement None, which counts as 0
            references.append((query, document, judged[document][0] if document in judged else None))
            for numbers, ranking in zip(scores, rankings):
                numbers.append(ranking[query][document][0] if document in ranking[query] else None)
    return references, scores


def _numbers(path: str, key: str) -> dict[str, Documents]:
    """Query -> document -> number of a file."""
    name, queries = display_name(path), dict[str, Documents]()
    for line, query, document, value in _rows(path, name, key):
        try:
            # float() also takes 1_000
            number = float(str(value)) if "_" not in str(value) and not isinstance(value, bool) else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise DataError(f"{name}:{line}: the {key} must be a finite number: got {str(value)[:40]!r}")
        documents = queries.setdefault(query, {})
        if document in documents:
            raise DataError(
                f"{name}:{line}: query {query!r} has the document {document!r} twice, also in line "
                f"{documents[document][1]}"
            )
        documents[document] = number, line
    if not queries:
        raise DataError(f"{name}: holds no documents")
    return queries


def _rows(path: str, name: str, key: str) -> Iterator[tuple[int, str, str, object]]:
    """Line, query, document and number of each row."""
    if Path(path.removesuffix(".gz")).suffix == ".jsonl":
        with open_binary(Path(path), name) as stream:
            for row in jsonl_objects(stream, name):
                if isinstance(row, DataError):
                    raise row
                line, record = row
                if record is None:  # a blank line
                    continue
                missing = [field for field in ("query", "document", key) if field not in record]
                if missing:
                    raise DataError(f"{name}:{line}: has no {missing[0]!r}: a record has query, document and {key}")
                yield line, str(record["query"]), str(record["document"]), record[key]
        return
    form, document, number = _TREC[key]
    for line, text in enumerate(read_lines(path), 1):
        cells = text.split()
        if not cells:
            continue
        if len(cells) != len(form.split()):
            raise DataError(
                f"{name}:{line}: must be `{form}`, separated by spaces: got {counted(len(cells), 'column')}"
            )
        yield line, cells[0], cells[document], cells[number]
