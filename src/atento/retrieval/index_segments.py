"""A segment of an index: lines with their vectors and words in one safetensors file, which is never changed.

The words of all lines, and the values of their columns, are the terms of an inverted index: for each term the rows that
have it, rising, and how often.
"""

import json
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import CheckpointError, DataError, ModelError
from atento.metrics.rouge import unicode_words
from atento.storage.manifest import FileEntry, write_file
from atento.storage.tensorfile import TensorFiles, safetensors_chunks, to_bytes

Array = NDArray[Any]
Postings = tuple[NDArray[np.int32], NDArray[np.int32]]  # rows (P,), rising, and how often each has the term (P,)


@dataclass(frozen=True)
class Document:
    """A line of an index.

    Attributes:
        text: the text that is searched.
        line: where it stands in its source, from 1.
        source: the name of the file it came from; empty for texts of a list.
        columns: the other columns of its row, by name.
    """

    text: str
    line: int
    source: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


def value_term(column: str, value: str) -> str:
    """The term of the lines whose column has this value; no word has a NUL character."""
    return f"\0{column}\0{value}"


def quantised(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Vectors (N,D) in 8 bits: q (N,D) and scales (N,) with vector ≈ q · scale, rounded to the nearest of 255 steps."""
    scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(127)
    steps = np.rint(vectors / np.where(scales == 0, 1, scales)[:, None])
    return steps.astype(np.int8), scales.astype(np.float32)


def write_segment(
    directory_fd: int, name: str, documents: Sequence[Document], vectors: Array, scales: NDArray[np.float32]
) -> FileEntry:
    """Write a new segment into an open folder, and return its entry.

    Args:
        documents: N lines, at least one.
        vectors, scales: (N,D), of length 1, and (N,): as of `quantised`, or float32 and ones.

    Raises OSError: it cannot be written.
    """
    records = [json.dumps(asdict(one), ensure_ascii=False).encode("utf-8") for one in documents]
    arrays: dict[str, Array] = _terms(documents) | {
        "vectors": vectors,
        "scales": scales,
        "records": np.frombuffer(b"".join(records), dtype=np.uint8).copy(),
        "record_ends": np.cumsum([len(record) for record in records], dtype=np.int64),
    }
    tensors: dict[str, Tensor] = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in arrays.items()}
    return write_file(directory_fd, name, to_bytes(safetensors_chunks(name, tensors)))


def _terms(documents: Sequence[Document]) -> dict[str, Array]:
    """The inverted index of lines: terms in the order of their bytes, their postings, and how many words a line has."""
    known: dict[str, int] = {}
    terms, counts, sizes, lengths = array("i"), array("i"), array("i"), array("i")
    for one in documents:
        found = Counter(unicode_words(one.text))
        lengths.append(found.total())
        found.update(value_term(column, value) for column, value in one.columns.items())
        terms.extend(known.setdefault(term, len(known)) for term in found)
        counts.extend(found.values())
        sizes.append(len(found))
    spelled = [term.encode("utf-8") for term in known]
    order = sorted(range(len(spelled)), key=spelled.__getitem__)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    ranked = ranks[np.frombuffer(terms, dtype=np.int32)]
    by_term = np.argsort(ranked, kind="stable")  # the rows of a term stay in their order
    rows = np.repeat(np.arange(len(documents), dtype=np.int32), np.frombuffer(sizes, dtype=np.int32))
    return {
        "terms": np.frombuffer(b"".join(spelled[number] for number in order), dtype=np.uint8).copy(),
        "term_ends": np.cumsum([len(spelled[number]) for number in order], dtype=np.int64),
        "posting_ends": np.cumsum(np.bincount(ranked, minlength=len(order)), dtype=np.int64),
        "posting_rows": rows[by_term],
        "posting_counts": np.frombuffer(counts, dtype=np.int32)[by_term],
        "lengths": np.frombuffer(lengths, dtype=np.int32),
    }


class Segment:
    """A segment that is read where it is needed: its file is mapped into memory, which processes share.

    Attributes:
        vectors, scales: (N,D), float32 or int8, and (N,): a vector is the product of both.
        lengths: words of each line (N,).
        alive: false for lines that were taken out (N,).
    """

    def __init__(self, path: Path, rows: int, width: int, removed: Sequence[int]) -> None:
        """Map a segment. Raises DataError: the file is damaged."""
        try:
            entries = TensorFiles(path.parent, path.name).entries
            data = np.memmap(path, dtype=np.uint8, mode="c")  # nobody writes; PyTorch warns of what cannot be written
            arrays: dict[str, Array] = {
                name: data[at.start : at.start + at.size].view(str(at.dtype).removeprefix("torch.")).reshape(at.shape)
                for name, at in entries.items()
            }
            self.vectors, self.scales, self.lengths = arrays["vectors"], arrays["scales"], arrays["lengths"]
            self.alive = np.ones(rows, dtype=np.bool_)
            self.alive[list(removed)] = False
            self._records, self._record_ends = arrays["records"], arrays["record_ends"]
            self._terms, self._term_ends = arrays["terms"], arrays["term_ends"]
            self._postings = arrays["posting_ends"], arrays["posting_rows"], arrays["posting_counts"]
        except (ModelError, CheckpointError, KeyError, IndexError, ValueError, OSError) as error:
            raise DataError(f"the index {path.parent} is damaged: {path.name} is no segment ({error})") from None
        sizes = {len(self.lengths), len(self._record_ends), len(self.scales)}
        if self.vectors.shape != (rows, width) or sizes != {rows}:
            raise DataError(f"the index {path.parent} is damaged: {path.name} has not {rows} lines of {width} numbers")

    def document(self, row: int) -> Document:
        """The line of a row."""
        start = self._record_ends[row - 1] if row else 0
        return Document(**json.loads(self._records[start : self._record_ends[row]].tobytes()))

    def postings(self, term: str) -> Postings:
        """The rows that have a term, and how often; also of lines that were taken out."""

        def spelled(number: int) -> bytes:
            return self._terms[self._term_ends[number - 1] if number else 0 : self._term_ends[number]].tobytes()

        wanted, (ends, rows, counts) = term.encode("utf-8"), self._postings
        number = bisect_left(range(len(self._term_ends)), wanted, key=spelled)
        if number == len(self._term_ends) or spelled(number) != wanted:
            return rows[:0], counts[:0]
        part = slice(ends[number - 1] if number else 0, ends[number])
        return rows[part], counts[part]
