"""Contexts in overlapping windows, each behind its question, with the characters that each token stands for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atento.data.store import MemoryStore, Ragged
from atento.errors import DataError
from atento.text.encoded import Encoded
from atento.text.templates import Template
from atento.text.tokenizer import Tokenizer

MAX_CHARACTERS = 1_000_000  # of a context
MAX_WINDOWS = 10_000  # of a context


@dataclass(frozen=True)
class ContextWindows:
    """Questions with their contexts: W windows, each a row with its question and special tokens.

    Attributes:
        store: the rows; columns "ids" and "segments".
        records: (W,) number of the record that the window is of; the windows of a record follow one another.
        first: (W,) number of the window's first context token, among the tokens of the whole context.
        position: (W,) position of that token in the row.
        size: (W,) number of context tokens in the window.
        offsets: for each record, the characters (start, end) of each token of its context, (n,2).
    """

    store: MemoryStore
    records: NDArray[np.int64]
    first: NDArray[np.int64]
    position: NDArray[np.int64]
    size: NDArray[np.int64]
    offsets: list[NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.records)

    def of_records(self) -> list[range]:
        """Return the windows of each record."""
        ends = np.searchsorted(self.records, np.arange(len(self.offsets)), side="right").tolist()
        return [range(start, end) for start, end in zip([0, *ends], ends)]


def context_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: Tokenizer,
    template: Template,
    longest: int | None,
    stride: int,
    where: Callable[[int], str],
) -> ContextWindows:
    """Cut contexts into windows that overlap; every token of a context is in at least one of its windows.

    Args:
        questions: N questions; each stands whole in every window of its context.
        contexts: N contexts. Equal contexts are encoded once.
        tokenizer: encodes both.
        template: the special tokens around a question and a context.
        longest: maximum tokens of a row, special tokens and question included; None: a context is one window.
        stride: tokens that neighbouring windows share, at most half of the context tokens of a window.
        where: the name of a record, for messages.

    Raises:
        DataError: a question leaves no room for its context, or a context is too long.
    """
    encoded: dict[str, tuple[Encoded, NDArray[np.int64]]] = {}
    ids: list[list[int]] = []
    segments: list[list[int]] = []
    columns: list[tuple[int, int, int, int]] = []
    offsets = []
    for record, (question, context) in enumerate(zip(tokenizer.encode_batch(list(questions)), contexts, strict=True)):
        if context not in encoded:
            if len(context) > MAX_CHARACTERS:
                raise DataError(
                    f"{where(record)}: a context may have at most {MAX_CHARACTERS:,} characters: got {len(context):,}"
                )
            tokens = tokenizer.encode_with_offsets(context)
            encoded[context] = tokens, np.array(tokens.offsets, dtype=np.int64).reshape(-1, 2)
        tokens, characters = encoded[context]
        offsets.append(characters)
        position = _context_position(template, len(question))
        for start, end in _cuts(len(tokens.ids), len(question), template.added(True), longest, stride, where, record):
            row, row_segments = template.apply(question, tokens.ids[start:end])
            ids.append(row)
            segments.append(row_segments)
            columns.append((record, start, position, end - start))
    records, first, positions, sizes = np.array(columns, dtype=np.int64).reshape(-1, 4).T
    store = MemoryStore({"ids": Ragged(ids), "segments": Ragged(segments)})
    return ContextWindows(store, records, first, positions, sizes, offsets)


def _cuts(
    length: int,
    question: int,
    added: int,
    longest: int | None,
    stride: int,
    where: Callable[[int], str],
    record: int,
) -> list[tuple[int, int]]:
    """Return the windows (start, end) of a context of `length` tokens behind a question of `question` tokens."""
    room = max(1, length) if longest is None else longest - added - question
    if room < 1:
        raise DataError(
            f"{where(record)}: the question has {question} tokens, which with {added} special ones leave no room for "
            f"the context in a window of {longest} tokens"
        )
    overlap = min(stride, room // 2)
    starts = range(0, max(1, length - overlap), room - overlap)
    if len(starts) > MAX_WINDOWS:
        raise DataError(
            f"{where(record)}: a context may have at most {MAX_WINDOWS:,} windows: its {length:,} tokens need "
            f"{len(starts):,} windows of {room} beside the question"
        )
    return [(start, min(start + room, length)) for start in starts]


def _context_position(template: Template, question: int) -> int:
    """Return the position of the first context token in a row behind a question of `question` tokens."""
    position = 0
    for content, _ in template.pair:
        if content == "B":
            break
        position += question if content == "A" else 1
    return position
