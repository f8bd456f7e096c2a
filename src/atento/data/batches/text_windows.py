"""Long texts: in windows that overlap, all of a text in one row of a store; or cut, at the end or in the middle."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError
from atento.config.sections.long_texts import LongTextConfig
from atento.data.batches.batch import MemoryStore, Ragged, Rows, Store
from atento.text.lengths import truncate
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer

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
