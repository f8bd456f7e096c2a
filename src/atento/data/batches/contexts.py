"""Contexts in overlapping windows, each behind its question, with the characters that each token stands for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError
from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import MemoryStore, Ragged
from atento.data.batches.whole_words import (
    CHARACTERS,
    characters_of_words,
    readable,
    reads_words,
    row_characters,
    word_ids,
)
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer
from atento.text.words import word_spans

MAX_CHARACTERS = 1_000_000  # of a context
MAX_WINDOWS = 10_000  # of a context
_SHOWN = 40  # characters of a question in a message


@dataclass(frozen=True)
class _Read:
    """A text as a network reads it: ids, the characters (n,2) that each stands for, and its words if it reads words."""

    ids: list[int]
    offsets: NDArray[np.int64]
    words: list[str]


@dataclass(frozen=True)
class ContextWindows:
    """Questions with their contexts: W windows, each a row with its question and special tokens."""

    # the rows; columns "ids" and "segments", and the characters of words for a network that reads them
    store: MemoryStore
    # (W,) number of the record that the window is of; the windows of a record follow one another
    records: NDArray[np.int64]
    first: NDArray[np.int64]  # (W,) number of the window's first context token, among the tokens of the whole context
    position: NDArray[np.int64]  # (W,) position of that token in the row
    size: NDArray[np.int64]  # (W,) number of context tokens in the window
    offsets: list[NDArray[np.int64]]  # for each record, the characters (start, end) of each token of its context, (n,2)

    def __len__(self) -> int:
        return len(self.records)

    def of_records(self) -> list[range]:
        """Return the windows of each record."""
        ends = np.searchsorted(self.records, np.arange(len(self.offsets)), side="right").tolist()
        return [range(start, end) for start, end in zip([0, *ends], ends)]  # from the end of the record before


def context_windows(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: Tokenizer,
    template: Template,
    network: NetworkConfig,
    longest: int | None,
    stride: int,
    where: Callable[[int], str],
) -> ContextWindows:
    """Cut contexts into windows that overlap; every token of a context is in at least one of its windows.

    Args:
        questions: N questions; each stands whole in every window of its context.
        contexts: N contexts. Equal contexts are encoded once.
        template: the special tokens around a question and a context.
        network: whether it reads pieces, words, or their characters.
        longest: maximum tokens of a row, special tokens and question included; None: a context is one window.
        stride: tokens that neighbouring windows share, at most half of the context tokens of a window.
        where: the name of a record, for messages.

    Raises DataError: a question leaves no room for its context, or a context is too long.
    """
    read: dict[str, _Read] = {}
    rows: list[tuple[list[int], list[int]]] = []
    spelled: list[NDArray[np.int16]] = []
    columns: list[tuple[int, int, int, int]] = []
    offsets = []
    count = characters_of_words(network)
    for record, (question, context) in enumerate(zip(_questions(tokenizer, network, questions), contexts, strict=True)):
        if context not in read:
            if len(context) > MAX_CHARACTERS:
                raise DataError(
                    f"{where(record)}: a context may have at most {MAX_CHARACTERS:,} characters: got {len(context):,}"
                )
            read[context] = _whole_words(tokenizer, context) if reads_words(network) else _pieces(tokenizer, context)
        tokens = read[context]
        offsets.append(tokens.offsets)
        length = len(question.ids)
        before = takewhile(lambda slot: slot[0] != "B", template.pair)  # the question and its special tokens
        position = sum(length if content == "A" else 1 for content, _ in before)  # in a row
        named = f"{where(record)}: the question {questions[record][:_SHOWN]!r}"
        for start, end in _cuts(len(tokens.ids), length, template.added(True), longest, stride, named):
            rows.append(template.apply(question.ids, tokens.ids[start:end]))
            columns.append((record, start, position, end - start))
            if count is not None:
                spelled.append(row_characters(template, question.words, tokens.words[start:end], count))
    records, first, positions, sizes = np.array(columns, dtype=np.int64).reshape(-1, 4).T  # (W,) each
    store = MemoryStore({"ids": Ragged([ids for ids, _ in rows]), "segments": Ragged([sides for _, sides in rows])})
    if count is not None:
        store.columns[CHARACTERS] = Ragged.of_arrays(spelled)
    return ContextWindows(store, records, first, positions, sizes, offsets)


def _questions(tokenizer: Tokenizer, network: NetworkConfig, questions: Sequence[str]) -> list[_Read]:
    """Return questions as the network reads them; their offsets are not needed."""
    if reads_words(network):
        return [_whole_words(tokenizer, question) for question in questions]
    return [_Read(ids, np.empty((0, 2), dtype=np.int64), []) for ids in tokenizer.encode_batch(list(questions))]


def _pieces(tokenizer: Tokenizer, text: str) -> _Read:
    tokens = tokenizer.encode_with_offsets(text)
    return _Read(tokens.ids, np.array(tokens.offsets, dtype=np.int64).reshape(-1, 2), [])


def _whole_words(tokenizer: Tokenizer, text: str) -> _Read:
    spans = word_spans(text)
    words = readable(tokenizer, (text[start:end] for start, end in spans))
    return _Read(word_ids(tokenizer, words), np.array(spans, dtype=np.int64).reshape(-1, 2), words)


def _cuts(
    length: int, question: int, added: int, longest: int | None, stride: int, named: str
) -> list[tuple[int, int]]:
    """Return the windows (start, end) of a context of `length` tokens behind a question of `question` tokens."""
    room = max(1, length) if longest is None else longest - added - question  # tokens of context in a window
    if room < 1:
        raise DataError(
            f"{named} has {question} tokens, which with {added} special ones leave no room for the context in a "
            f"window of {longest} tokens"
        )
    overlap = min(stride, room // 2)  # at most half, or windows would hardly move
    starts = range(0, max(1, length - overlap), room - overlap)  # a window with nothing but the overlap is none
    if len(starts) > MAX_WINDOWS:
        raise DataError(
            f"{named} needs {len(starts):,} windows of {room} tokens for the {length:,} tokens of its context; "
            f"it may have at most {MAX_WINDOWS:,}"
        )
    return [(start, min(start + room, length)) for start in starts]
