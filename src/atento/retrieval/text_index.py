"""`atento.Index`: lines of text that are found by vectors, by words or by both, with a ranker on top."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import AtentoError, DataError, UsageError, counted, listed, nearest
from atento.base.limits import path_of
from atento.metrics.rouge import unicode_words
from atento.model import load
from atento.models.model_hash import model_files
from atento.retrieval import By
from atento.retrieval.index_folder import (
    Document,
    IndexWriter,
    Segment,
    SegmentEntry,
    State,
    quantised,
    read_index,
    value_term,
    writing,
)
from atento.tasks.hard_negatives import search_vectors
from atento.tasks.regression import numbers_of
from atento.tasks.task_model import TaskModel
from atento.tasks.verb_calls import listed as texts_of

Found = tuple[NDArray[np.int64], NDArray[np.floating]]  # rows (n,) and their scores (n,), the best first
K1, B = 1.2, 0.75  # of BM25, as Lucene has them
_FUSION = 60  # the constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)
_ROWS = 2048  # rows that are multiplied at once, so that they stay in the cache


def bm25(segments: Sequence[Segment], words: Sequence[str]) -> list[NDArray[np.float64]]:
    """The BM25 of each line of each segment (N,); 0 without a word of the query.

    Σ over words of idf · tf / (tf + k1 · (1 - b + b · length / mean length)), idf = log(1 + (N - n + ½) / (n + ½)), as
    Lucene computes it (Robertson and Zaragoza 2009); lines that were taken out count nowhere.
    """
    lines = sum(int(segment.alive.sum()) for segment in segments)
    mean = sum(int(segment.lengths[segment.alive].sum()) for segment in segments) / max(1, lines) or 1.0
    scores = [np.zeros(len(segment.alive)) for segment in segments]
    for word, times in Counter(words).items():
        found = [segment.postings(word) for segment in segments]
        n = sum(int(segment.alive[rows].sum()) for segment, (rows, _) in zip(segments, found))
        idf = math.log(1 + (lines - n + 0.5) / (n + 0.5))
        for segment, (rows, counts), own in zip(segments, found, scores):
            own[rows] += times * idf * counts / (counts + K1 * (1 - B + B * segment.lengths[rows] / mean))
    return scores


def cosines(segment: Segment, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """The cosine of each line (N,) with a query (D,) of length 1: one product, a block of rows at a time."""
    vectors, side = torch.from_numpy(segment.vectors), torch.from_numpy(query)
    if vectors.dtype == torch.float32:
        return torch.mv(vectors, side).numpy()
    products, buffer = torch.empty(len(vectors)), torch.empty(_ROWS, len(query))
    for begin in range(0, len(vectors), _ROWS):
        block = vectors[begin : begin + _ROWS]
        rows = buffer[: len(block)].copy_(block)  # in float32
        torch.mv(rows, side, out=products[begin : begin + _ROWS])
    return (products * torch.from_numpy(segment.scales)).numpy()


def best(scores: NDArray[np.floating], allowed: NDArray[np.bool_], n: int) -> Found:
    """The `n` allowed rows of highest score (N,); of equal ones the earlier."""
    rows = np.flatnonzero(allowed)
    own = scores[rows]
    if len(rows) > n > 0:
        rows = rows[own >= np.partition(own, len(own) - n)[len(own) - n]]
        own = scores[rows]
    order = np.argsort(-own, kind="stable")[:n]
    return rows[order], own[order]


def fused(rankings: Iterable[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    """Rankings of numbered lines joined: Σ 1 / (60 + rank) of each, the highest first; of equal ones the first seen."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (line, _) in enumerate(ranking, 1):
            scores[line] = scores.get(line, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda item: -item[1])


Vectors = Literal["float32", "int8"]
Where = Mapping[str, str | Sequence[str]]  # column -> the value, or values, of which a line must have one
Columns = Mapping[str, Sequence[str]]
Report = Callable[[int, int], None]  # lines done, lines in all
_SEGMENT = 100_000  # lines of a segment at most: what is in memory while an index is made
_BLOCK = 1024  # lines that are embedded at once, between two reports


@dataclass(frozen=True)
class Hit(Document):
    """A line that was found.

    Attributes:
        score: the cosine; the BM25 of words; Σ 1 / (60 + rank) of both; or the number of the ranker.
    """

    score: float = 0.0


class Index:
    """An index of lines in a folder, opened for search; `Index.create` makes one.

    Args:
        folder: the folder of the index.
        model: the model that made it, or its name; None: it is loaded by the name in the index when it is first needed.

    Raises:
        UsageError: the folder is no index, or the model is another one. DataError: half written or damaged.
    """

    def __init__(self, folder: str | Path, model: TaskModel | str | Path | None = None) -> None:
        self.folder = path_of(folder, "folder", "a folder")
        self._read()
        self._model = None if model is None else self._checked(model)

    def _read(self) -> None:
        self._state, self._segments = read_index(self.folder)
        self._starts = np.cumsum([0, *(len(segment.alive) for segment in self._segments)])  # of segments in all rows

    @classmethod
    def create(
        cls,
        texts: Sequence[str] | Sequence[Document],
        model: TaskModel | str | Path,
        folder: str | Path,
        *,
        columns: Columns | None = None,
        vectors: Vectors = "float32",
        report: Report = lambda done, total: None,
    ) -> "Index":
        """Make an index of texts, which is written whole or not at all.

        Args:
            texts: the lines; blank ones are left out.
            model: makes the vectors, with its prompts of queries and documents, if it has such.
            folder: a new or empty folder.
            columns: further values of each text by column, which hits show and filters compare.
            vectors: how they are stored: "float32", or "int8", a quarter of the size.
            report: called with the numbers of lines that are done, and of all.

        Raises:
            UsageError: the folder is not empty, or columns of another length. DataError: there is no text.
        """
        if vectors not in get_args(Vectors):
            raise UsageError(f"unknown `vectors` {vectors!r}{nearest(str(vectors), list(get_args(Vectors)))}")
        documents, target = _documents(texts, columns), path_of(folder, "folder", "a folder")
        if not documents:
            raise DataError("an index needs at least one line with text: got none")
        encoder, name, digest = _loaded(model)
        width, names = search_vectors(encoder, ["a"]).shape[1], tuple(documents[0].columns)
        with writing(target, State(name, digest, width, vectors, names)) as writer:
            writer.commit(_written(writer, encoder, documents, report))
        return cls(target, encoder)

    def __len__(self) -> int:
        return sum(int(segment.alive.sum()) for segment in self._segments)

    @property
    def model(self) -> TaskModel:
        """The model of the vectors, loaded at the first call.
        Raises UsageError: it is not the one that made the index, or there is none any longer.
        """
        if self._model is None:
            self._model = self._checked(self._state.model)
        return self._model

    def add(
        self,
        texts: Sequence[str] | Sequence[Document],
        *,
        columns: Columns | None = None,
        report: Report = lambda done, total: None,
    ) -> int:
        """Add lines behind those that there are, all or none, and return their number; arguments as of `create`."""
        documents, model = _documents(texts, columns), self.model
        with writing(self.folder, made_by=self._state.model_hash) as writer:
            entries = [*writer.state.segments, *_written(writer, model, documents, report)]
            while len(entries) > 1:
                left, right = (entry.rows - len(entry.removed) for entry in entries[-2:])
                if 2 * right <= left or left + right > _SEGMENT:  # few are left, each at most half the one before
                    break
                entries[-2:] = writer.rewritten(entries[-2:])
            writer.commit(entries)
        self._read()
        return len(documents)

    def remove(self, texts: str | Sequence[str] | None = None, *, where: Where | None = None) -> int:
        """Take lines out, and return their number: those with one of these texts, or values of columns, or both.

        Args:
            texts: the texts; None: any.
            where: as in `find`.
        """
        if texts is None and not where:
            raise UsageError("`remove` needs texts or columns: got none")
        wanted, number, kept = None if texts is None else {*texts_of(texts)}, 0, list[SegmentEntry]()
        with writing(self.folder, made_by=self._state.model_hash) as writer:
            self._read()
            for entry, segment, mask in zip(writer.state.segments, self._segments, self._allowed(where)):
                found = np.flatnonzero(mask).tolist()
                rows = [row for row in found if wanted is None or segment.document(row).text in wanted]
                number += len(rows)
                entry = replace(entry, removed=tuple(sorted({*entry.removed, *rows})))
                is_sparse = 2 * len(entry.removed) > entry.rows
                kept += writer.rewritten([entry]) if rows and is_sparse else [entry]
            writer.commit(kept)
        self._read()
        return number

    def find(
        self,
        query: str | Sequence[str],
        *,
        top: int = 10,
        by: By = "vectors",
        where: Where | None = None,
        rerank: TaskModel | None = None,
        within: int = 100,
    ) -> list[Any]:
        """The lines that answer a query best, a list of `Hit`, the best first; for a list of queries a list of these.

        Args:
            query: a text or texts.
            top: the most lines of a query.
            by: "vectors", the cosine of vectors; "words", BM25, which finds lines with a word of the query alone;
                "both", joined by rank (reciprocal rank fusion).
            where: column -> the value, or the values, of which a line must have one.
            rerank: a model of pairs that gives numbers, which orders the first `within` lines anew.
            within: how many lines of each ranking are joined and ordered anew.

        Raises:
            UsageError: an empty query, an unknown column, or an option out of range. CapabilityError: no ranker.
        """
        queries, allowed = texts_of(query), self._allowed(where)
        if by not in get_args(By):
            raise UsageError(f"unknown `by` {by!r}{nearest(str(by), list(get_args(By)))}")
        for name, value in (("top", top), ("within", within)):
            if type(value) is not int or value < 1:
                raise UsageError(f"`{name}` must be a whole number of at least 1: got {value!r}")
        for number, text in enumerate(queries, 1):
            if not text.strip():
                raise UsageError(f"query{f' {number}' if len(queries) > 1 else ''} is empty: give words to search for")
        if rerank is not None:
            numbers_of(rerank, [])  # refused before the search
        depth = top if by != "both" and rerank is None else max(top, within)
        vectors = None if by == "words" or not queries else search_vectors(self.model, queries, query=True)
        results = []
        for number, text in enumerate(queries):
            rankings = []
            if vectors is not None:
                rankings.append(self._first([cosines(one, vectors[number]) for one in self._segments], allowed, depth))
            if by != "vectors":
                words = unicode_words(text)
                if not words and by == "words":
                    raise UsageError(f"the query {text[:60]!r} has no words: lines are found by letters and digits")
                scores = bm25(self._segments, words)
                having = [may & (own > 0) for own, may in zip(scores, allowed)]
                rankings.append(self._first(scores, having, depth))
            hits = list[Hit]()
            for row, score in (fused(rankings) if len(rankings) > 1 else rankings[0])[:depth]:
                segment = int(np.searchsorted(self._starts, row, side="right")) - 1  # rows count over all segments
                line = self._segments[segment].document(row - int(self._starts[segment]))
                hits.append(Hit(**vars(line), score=score))
            if rerank is not None:
                numbers = numbers_of(rerank, [(text, hit.text) for hit in hits])
                hits = sorted((replace(hit, score=own) for hit, own in zip(hits, numbers)), key=lambda hit: -hit.score)
            results.append(hits[:top])
        return results[0] if isinstance(query, str) else results

    def _first(
        self, scores: Sequence[NDArray[np.floating]], allowed: Sequence[NDArray[np.bool_]], n: int
    ) -> list[tuple[int, float]]:
        """The `n` allowed rows of highest score: their numbers over all segments and scores, the best first."""
        found = [best(own, may, n) for own, may in zip(scores, allowed)]
        pairs = (zip((rows + at).tolist(), own.tolist()) for (rows, own), at in zip(found, self._starts))
        return sorted(chain.from_iterable(pairs), key=lambda pair: -pair[1])[:n]

    def _allowed(self, where: Where | None) -> list[NDArray[np.bool_]]:
        """Which rows of each segment are there, and have one of the values of each column."""
        masks, known = [segment.alive.copy() for segment in self._segments], self._state.columns
        for column, values in (where or {}).items():
            if column not in known:
                raise UsageError(f"`where` names no column of the index: got {column!r}{listed(column, known)}")
            for segment, mask in zip(self._segments, masks):
                fits = np.zeros_like(mask)
                for value in texts_of(values):
                    fits[segment.postings(value_term(column, value))[0]] = True
                mask &= fits
        return masks

    def _checked(self, model: TaskModel | str | Path) -> TaskModel:
        """The model, loaded. Raises UsageError: it is not the one that made the index."""
        loaded, name, digest = _loaded(model)
        if digest != self._state.model_hash:
            raise UsageError(
                f"the index {self.folder} was made by another model: {self._state.model} had the hash "
                f"{self._state.model_hash[:12]}, and {name} has {digest[:12]}; make the index again, or give that model"
            )
        return loaded


def _loaded(model: TaskModel | str | Path) -> tuple[TaskModel, str, str]:
    """A model, the name by which it is loaded again, and the hash of its files. Raises UsageError: it has no folder."""
    loaded = model if isinstance(model, TaskModel) else load(model)
    if loaded.path is None:
        raise UsageError("an index names the folder of its model, and this one has none: `save` it and load that")
    path, digest = model_files(str(loaded.path))
    is_folder = not loaded.requested or Path(loaded.requested).exists()
    return loaded, str(path) if is_folder else loaded.requested, digest


def _documents(texts: Sequence[str] | Sequence[Document], columns: Columns | None) -> list[Document]:
    """The lines of texts that are not blank. Raises UsageError: a column of another length, texts beside documents."""
    documents = [one for one in texts if isinstance(one, Document)]
    if documents and (columns is not None or len(documents) < len(texts)):
        raise UsageError("give texts, with or without `columns`, or `Document`s alone, which have columns of their own")
    if not documents:
        lines = texts_of(texts)
        values = {name: texts_of(own) for name, own in (columns or {}).items()}
        for name, own in values.items():
            if len(own) != len(lines):
                raise UsageError(f"each text needs its {name!r}: got {counted(len(lines), 'text')} and {len(own):,}")
        cells = [{name: column[row] for name, column in values.items()} for row in range(len(lines))]
        documents = [Document(text, row + 1, columns=cells[row]) for row, text in enumerate(lines)]
    return [one for one in documents if one.text.strip()]


def _written(
    writer: IndexWriter, model: TaskModel, documents: Sequence[Document], report: Report
) -> list[SegmentEntry]:
    """New segments of lines, embedded a block at a time. Raises UsageError: other columns than those of the index."""
    state, entries = writer.state, []
    for one in documents:
        if {*one.columns} != {*state.columns}:
            has, got = (", ".join(names) or "none" for names in (state.columns, one.columns))
            raise UsageError(f"a line must have the columns of the index, {has}: got {got}")
    for start in range(0, len(documents), _SEGMENT):
        part = documents[start : start + _SEGMENT]
        vectors = np.empty((len(part), state.width), dtype=state.vectors)
        scales = np.ones(len(part), dtype=np.float32)
        for begin in range(0, len(part), _BLOCK):
            own = slice(begin, begin + _BLOCK)
            block = search_vectors(model, [one.text for one in part[own]])
            if not np.isfinite(block).all():
                raise AtentoError(f"{state.model} gives vectors that are not finite, from line {part[begin].line} on")
            vectors[own], scales[own] = quantised(block) if state.vectors == "int8" else (block, 1)
            report(start + begin + len(block), len(documents))
        entries.append(writer.segment(part, vectors, scales))
    return entries
