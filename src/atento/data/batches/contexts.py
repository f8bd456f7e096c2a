"""Long texts and contexts of questions: in windows that overlap, all of a text or context together; or cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError
from atento.config.sections.long_texts import LongTextConfig
from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import MemoryStore, Ragged, Rows, Store
from atento.data.batches.whole_words import (
    CHARACTERS,
    characters_of_words,
    readable,
    reads_words,
    row_characters,
    word_ids,
)
from atento.text.lengths import truncate
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


WINDOWS = "windows"  # the column "ids windows" has the lengths of the windows of each text
_HEAD = 4  # a cut text keeps one token of its beginning in so many (Sun et al. 2019, How to fine-tune BERT)


def cut_text(
    ids: Sequence[int],
    pair: Sequence[int] | None,
    room: int,
    side: Literal["right", "left"],
    long_texts: LongTextConfig,
) -> tuple[list[int], list[int] | None, int]:
    """Cut a text or two to `room` ids, as `truncate`; a single text may lose its middle instead of one side."""
    if not long_texts.head_tail or pair is not None or len(ids) <= room:
        return truncate(ids, pair, room, side=side)
    head = room // _HEAD  # a quarter of the room
    return [*ids[:head], *ids[len(ids) - (room - head) :]], None, len(ids) - room  # the rest from the end


def cut_windows(ids: Sequence[int], room: int, long_texts: LongTextConfig) -> list[Sequence[int]]:
    """The windows of a text of `room` ids each, the last one shorter; of first-last, the first and the last `room` ids.
    Raises DataError: there is no room for a token.
    """
    if room < 1:
        raise DataError(f"a window must have room for a token beside the special ones: got {room}")
    if len(ids) <= room:
        return [ids]
    if long_texts.windows == "first-last":
        return [ids[:room], ids[len(ids) - room :]]
    overlap = min(long_texts.stride, room // 2)  # windows move by half their room at least
    return [ids[start : start + room] for start in range(0, len(ids) - overlap, room - overlap)]


def windows_of(
    tokenizer: Tokenizer, template: Template, texts: Sequence[str], longest: int | None, long_texts: LongTextConfig
) -> MemoryStore:
    """Encode texts as windows of at most `longest` tokens, special ones included; a row has all windows of a text.

    Columns "ids" and "segments", and "ids windows", the length of each window.
    """
    rows: dict[str, list[list[int]]] = {"ids": [], "segments": [], f"ids {WINDOWS}": []}
    for ids in tokenizer.encode_batch(list(texts)):
        room = max(1, len(ids)) if longest is None else longest - template.added(False)  # no limit: one window
        windows = [template.apply(list(window)) for window in cut_windows(ids, room, long_texts)]
        rows["ids"].append([number for window, _ in windows for number in window])
        rows["segments"].append([number for _, segments in windows for number in segments])
        rows[f"ids {WINDOWS}"].append([len(window) for window, _ in windows])
    return MemoryStore({name: Ragged(values) for name, values in rows.items()})


def opened(store: Store, rows: Rows, name: str = "ids") -> tuple[Store, Rows, NDArray[np.int64] | None]:
    """The windows of some texts as rows of their own.

    Args:
        store: of texts.
        rows: the numbers of N of them.
        name: the column of their ids.

    Returns:
        A store of W windows with the columns `name` and "segments", the numbers 0 to W - 1, and the text of each
        window, (W,), from 0 to N - 1. Where texts are not in windows: store and rows as they are, and None.
    """
    if f"{name} {WINDOWS}" not in store:
        return store, rows, None
    lengths = [store[f"{name} {WINDOWS}"][row] for row in rows.tolist()]
    columns: dict[str, Ragged] = {}
    for column in (name, "segments"):
        if column in store:  # vectors of texts have no segments
            windows = [
                window
                for row, sizes in zip(rows.tolist(), lengths)
                for window in np.split(store[column][row], np.cumsum(sizes)[:-1])
            ]
            columns[column] = Ragged.of_arrays(windows)
    texts = np.repeat(np.arange(len(rows)), [len(sizes) for sizes in lengths])  # (W,)
    return MemoryStore(columns), np.arange(len(texts)), texts
