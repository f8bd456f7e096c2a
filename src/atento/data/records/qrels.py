"""The documents of each query of a split for ranking, with their grades."""

from atento.base.errors import DataError
from atento.data.records.splits import Split
from atento.data.records.values import shortened

HIGHEST = 30.0  # grade: gains are 2 to the power of it
_GRADED, _TRIPLES = ("query", "document", "grade"), ("query", "positive", "negative")

Documents = dict[str, tuple[float, int]]  # text -> its grade, and the number of a record that has it


def qrels_of(split: Split) -> dict[str, Documents]:
    """Return the documents of each query, each once, in the order of the records.

    Of triples, a positive has the grade 1 and a negative 0.
    Raises DataError: records with other fields; a grade out of range; a document of a query with two grades. Names file
    and line.
    """
    queries: dict[str, Documents] = {}
    columns = split.columns
    if set(columns) not in (set(_GRADED), set(_TRIPLES)):
        raise DataError(
            f"{split.where(0)}: a record for ranking has {', '.join(_GRADED)}, or {', '.join(_TRIPLES)}: got "
            f"{', '.join(columns)}"
        )
    if "grade" in columns:
        judged = [[(document, grade)] for document, grade in zip(columns["document"], columns["grade"])]
    else:
        judged = [[(right, 1.0), (wrong, 0.0)] for right, wrong in zip(columns["positive"], columns["negative"])]
    for row, (query, documents) in enumerate(zip(columns["query"], judged)):
        for document, grade in documents:
            if not 0 <= grade <= HIGHEST:
                raise DataError(f"{split.where(row)}: the grade must lie in 0 to {HIGHEST:g}: got {grade:g}")
            first, at = queries.setdefault(query, {}).setdefault(document, (grade, row))  # of its first record
            if first != grade:
                raise DataError(
                    f"{split.where(row)}: document {shortened(document)!r} of query {shortened(query)!r} has the grade "
                    f"{grade:g}, and {first:g} in {split.where(at)}"
                )
    return queries


def pairs_of(queries: dict[str, Documents]) -> list[tuple[str, str]]:
    """Return query and document of each document."""
    return [(query, document) for query, documents in queries.items() for document in documents]
