"""Documents of queries with their grades: `pointwise`, `ranknet`, `listnet` and `lambda-loss`, which learn a number.

ids "[CLS] who sleeps [SEP] the cat sleeps [SEP]"   grade 2   query 0
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import DataError, counted
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.labels import NUMBER, cut_warning, network_head, rounded_inputs, store_texts
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Documents, pairs_of, qrels_of

Targets = Callable[[Tensor, Tensor], Tensor]  # query and grade of each document (B,) -> labels


@dataclass(frozen=True)
class RankedDocuments:
    """Batches of whole queries. Columns "documents", their rows in `texts`, and "grades"; an example is a query."""

    kind: str  # the loss, which is that of `Batch.settings`
    targets: Targets  # makes its labels
    network: NetworkConfig  # configuration of the network
    head: HeadConfig  # gives the number
    texts: MemoryStore  # queries with documents, encoded

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the number of documents of each query."""
        return store["documents"].lengths.astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens of all documents of each query, twice."""
        tokens = self.texts["ids"].lengths
        lengths = np.array([tokens[store["documents"][row]].sum() for row in range(len(store))])  # (queries,)
        return lengths, lengths

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return the documents of these queries; it is the same in every epoch."""
        documents = np.concatenate([store["documents"][row] for row in rows.tolist()])  # (N,) rows of `self.texts`
        grades = torch.from_numpy(np.concatenate([store["grades"][row] for row in rows.tolist()]))  # (N,)
        counts = torch.from_numpy(store["documents"].lengths[rows])  # (B,)
        query = torch.repeat_interleave(torch.arange(len(rows)), counts)  # (N,) of each document
        inputs, lengths = rounded_inputs(self.texts, documents, self.network, self.head)
        labels, extras = {self.head.name: self.targets(query, grades)}, {"grade": grades, "query": query}
        return Batch(inputs, labels, extras=extras, lengths=lengths, settings={self.head.name: self.kind})


def each_document(query: Tensor, grades: Tensor) -> Tensor:
    """Return a label of 0 for each document (B,): one for itself (pointwise)."""
    return torch.zeros_like(query)


def worse_documents(query: Tensor, grades: Tensor) -> Tensor:
    """Return for each document the numbers of those of its query with lower grades, -1 for others, (B,B); of RankNet.
    LambdaLoss has the same, which it weights by what their order means for nDCG.
    """
    worse = (query[:, None] == query) & (grades[:, None] > grades)  # (B,B): column worse than row
    return torch.where(worse, torch.arange(len(query)), -1)  # the number of the worse one


def first_documents(query: Tensor, grades: Tensor) -> Tensor:
    """Return 0 for the first document of each query and -1 for the others, (B,): a query is one target (ListNet)."""
    return torch.where(torch.arange(len(query)) == torch.searchsorted(query, query), 0, -1)


def ranked_documents(
    preparation: Preparation, config: ObjectiveConfig, targets: Targets, *, compares: bool = True
) -> PlannedBatches:
    """Return batches of queries with their documents, as many documents an update as `training.batch_tokens` says.

    Long texts are cut, with a counted warning.

    Args:
        targets: makes the labels of its loss.
        compares: whether the loss compares documents of a query; in training, queries whose documents all have one
            grade are then left out, else grades are mapped from `score_range` to 0 to 1.

    Raises DataError: as `qrels_of`; grades of one kind only, or one out of `score_range`.
    """
    split, network = preparation.split, preparation.network
    queries, head = qrels_of(split), network_head(network, NUMBER)
    if not preparation.held_out:
        queries = _with_differences(queries, preparation, config.kind, compares)
    grades = [[grade for grade, _ in documents.values()] for documents in queries.values()]  # of each query
    if not compares:
        low, high = config.score_range or (0.0, 1.0)
        for documents in queries.values():
            for grade, row in documents.values():
                if not low <= grade <= high:
                    why = "its `score_range`" if config.score_range else "a probability (`score_range` maps others)"
                    raise DataError(
                        f"{split.where(row)}: the grade must lie in {low:g} to {high:g}, {why}: got {grade:g}"
                    )
        grades = [[(grade - low) / (high - low) for grade in row] for row in grades]
    first, second = zip(*pairs_of(queries))  # one for each document
    template = preparation.text_template()
    texts, cut = store_texts(preparation.tokenizer, template, first, second, preparation.longest, network)
    if cut:
        preparation.report(cut_warning(cut, counted(len(first), "document"), preparation))
    ends = np.cumsum([0, *map(len, grades)])  # those of query n are from ends[n] to ends[n + 1]
    rows = [list(range(begin, end)) for begin, end in pairwise(ends)]
    store = MemoryStore({"documents": Ragged(rows), "grades": Ragged(grades, np.float32)})
    objective = RankedDocuments(config.kind, targets, network, head, texts)
    return preparation.planned(store, objective, config.weight, equal_examples=True)


def _with_differences(
    queries: dict[str, Documents], preparation: Preparation, kind: str, compares: bool
) -> dict[str, Documents]:
    """The queries that teach an order; the others are counted in a warning. Raises DataError: there is none."""
    split, grades = preparation.split, {grade for documents in queries.values() for grade, _ in documents.values()}
    if len(grades) == 1:
        raise DataError(
            f"{split.where(0)}: grades of one kind only: every document has the grade {grades.pop():g}, and none is "
            "better than another"
        )
    if not compares:  # single documents teach their grades
        return queries
    given = {query: {grade for grade, _ in documents.values()} for query, documents in queries.items()}
    kept = {query: documents for query, documents in queries.items() if len(given[query]) > 1}
    left_out = [query for query in queries if query not in kept]
    if not kept:
        raise DataError(
            f"{split.where(0)}: no query has documents of two grades, which objective {kind} compares; `pointwise` "
            "learns from single documents"
        )
    if left_out:
        at = split.where(next(iter(queries[left_out[0]].values()))[1])
        number = counted(len(left_out), "query", "queries")
        preparation.report(f"warning: {number} whose documents have one grade left out, first {at}")
    return kept
