"""A table of words and their ids that is asked for all words of a text at once."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_KEY = 16  # bytes of the longest word that is in the table
_LONGEST = 64  # bytes; a longer word is encoded again in the next call
_IDS = 1 << 23  # of all words together
_SLOTS = 20  # binary logarithm of the slots; at most half of them are taken
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xFF51AFD7ED558CCD], dtype=np.uint64)
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(9)], dtype=np.uint64)  # of the first bytes of a number
N = TypeVar("N", bound=np.generic)
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class WordTable:
    """The ids of the words of texts in UTF-8, which end at spaces and NUL.

    A word of up to 16 bytes is two numbers of 8 bytes. All words of a call are looked up in a hash table in a few array
    operations, which is several times faster than a dictionary. Longer words are in a dictionary. Words that are not
    known are encoded together.

    Args:
        encode: returns the ids of words.
        dtype: the type of the ids.
    """

    def __init__(self, encode: Encode, dtype: np.dtype[np.generic]) -> None:
        self.encode, self.rows = encode, _Rows(dtype)
        self._table = np.zeros((1 << _SLOTS, 3), dtype=np.uint64)  # both halves of a word, 1 + the number of its row
        self._long: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self.rows.count

    @property
    def full(self) -> bool:
        """Whether it has as many words as it should."""
        return len(self) > 1 << (_SLOTS - 1) or self.rows.used > _IDS

    def ids(self, text: bytes) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Return the ids of a text without NUL at its end, and for each part between NULs, where its ids end."""
        data = text + b"\0" + bytes(_KEY)
        characters = np.frombuffer(data, dtype=np.uint8)[: len(text) + 1]
        ends = np.flatnonzero((characters == 32) | (characters == 0))  # a blank or a NUL ends a word
        starts = np.append(0, ends[:-1] + 1)  # where each part begins
        words = np.flatnonzero(ends > starts)  # two blanks in a row have none between
        ids, id_ends = self.rows.joined(self._numbers(data, starts[words], ends[words]))
        last = np.searchsorted(words, np.flatnonzero(characters[ends] == 0), side="right")  # words up to each NUL
        return ids, np.append(0, id_ends)[last]

    def _numbers(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the rows of words, which are added where they are new."""
        eights = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))  # 8 bytes from each position on
        sizes = ends - starts
        low = eights[starts] & _MASKS[np.minimum(sizes, 8)]  # the first eight bytes
        high = eights[starts + 8] & _MASKS[np.clip(sizes - 8, 0, 8)]  # the next eight
        numbers = self._found(low, high)
        is_long = sizes > _KEY  # longer than the key of the table
        numbers[is_long] = [
            self._long.get(data[start:end], -1) for start, end in zip(starts[is_long].tolist(), ends[is_long].tolist())
        ]
        new = np.flatnonzero(numbers < 0)  # not seen before
        if len(new):
            spelled = [data[start:end] for start, end in zip(starts[new].tolist(), ends[new].tolist())]
            first = dict(zip(reversed(spelled), reversed(new.tolist())))  # the first place of each new word
            added = len(self) + np.arange(len(first))
            self.rows.add(self.encode([word.decode("utf-8") for word in first]))
            number_of = dict(zip(first, added.tolist()))
            numbers[new] = [number_of[word] for word in spelled]
            self._long.update((word, number) for word, number in number_of.items() if _KEY < len(word) <= _LONGEST)
            short = np.array([place for word, place in first.items() if len(word) <= _KEY], dtype=np.int64)
            self._add(low[short], high[short], numbers[short])
        return numbers

    def _slots(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The slot that the search for each word begins at."""
        mixed = low * _FACTORS[0] ^ high * _FACTORS[1]
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _FACTORS[2]
        slots: NDArray[np.int64] = (mixed >> np.uint64(64 - _SLOTS)).astype(np.int64)
        return slots

    def _found(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The numbers of words; -1 for a word that is not in the table."""
        numbers = np.full(len(low), -1)
        slots, open_ = self._slots(low, high), np.arange(len(low))
        while len(open_):
            entries = self._table[slots]  # (words,3)
            equal = (entries[:, 0] == low[open_]) & (entries[:, 1] == high[open_])
            taken = entries[:, 2] > 0  # the number + 1; 0: a free slot
            numbers[open_] = np.where(equal & taken, entries[:, 2].astype(np.int64) - 1, -1)
            on = np.flatnonzero(taken & ~equal)  # another word has the slot: the next one
            slots, open_ = (slots[on] + 1) % len(self._table), open_[on]
        return numbers

    def _add(self, low: NDArray[np.uint64], high: NDArray[np.uint64], numbers: NDArray[np.int64]) -> None:
        """Put different words into the table, each into the first free slot from its own on."""
        entries = np.stack([low, high, (numbers + 1).astype(np.uint64)], axis=1)  # (words,3)
        slots = self._slots(low, high)
        while len(entries):
            free = np.flatnonzero(self._table[slots, 2] == 0)
            self._table[slots[free]] = entries[free]  # of several words for one slot, one has it now
            left = np.flatnonzero(self._table[slots, 2] != entries[:, 2])  # whose slot another word took
            slots, entries = (slots[left] + 1) % len(self._table), entries[left]


class _Rows:
    """Rows of ids of different lengths, to which rows are added."""

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        self.starts, self.lengths = np.zeros(1 << 10, dtype=np.int64), np.zeros(1 << 10, dtype=np.int64)
        self.ids = np.zeros(1 << 10, dtype=dtype)
        self.count = self.used = 0

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        """Add rows."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ends = self.used + np.cumsum(lengths)  # in the flat `ids`
        count, used = self.count + len(rows), self.used + int(lengths.sum())
        self.starts, self.lengths = _grown(self.starts, count), _grown(self.lengths, count)
        self.ids = _grown(self.ids, used)
        self.starts[self.count : count], self.lengths[self.count : count] = ends - lengths, lengths
        self.ids[self.used : used] = [token for row in rows for token in row]
        self.count, self.used = count, used

    def joined(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Return the ids of rows one after another, and where each row ends."""
        lengths = self.lengths[numbers]
        ends = np.cumsum(lengths)
        places = np.repeat(self.starts[numbers] - (ends - lengths), lengths)  # start of the row, less its place
        places += np.arange(len(places))  # (ids,) places in the flat `ids`
        return self.ids[places], ends


def _grown(values: NDArray[N], size: int) -> NDArray[N]:
    """The same values in an array of at least `size`, twice as large as before where it must grow."""
    if size <= len(values):
        return values
    grown = np.zeros(max(size, 2 * len(values)), dtype=values.dtype)
    grown[: len(values)] = values
    return grown
