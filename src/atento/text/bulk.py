"""Many texts to ids at once: repeated words are looked up in a table, and worker processes share the texts."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import AtentoError
from atento.base.processes import Child, Message, receive, send
from atento.text.kinds import require_texts
from atento.text.tokenizer import Tokenizer

SEPARATOR = "\0"  # of the texts of a block; no text of a file has it
Answer = Message
T = TypeVar("T")


class TextWorkers(Protocol):
    """Workers that answer blocks of texts, wherever they are."""

    def answers(self, blocks: Iterable[list[str]]) -> Iterator[tuple[list[str], Answer]]:
        """Yield each block with its answer, in order; only a few blocks are in memory at a time.
        Raises AtentoError: a worker ended, and its block could not be answered.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class TextProcesses:
    """Worker processes of this machine.

    Args:
        program: what a worker runs (`python -c`), which calls `serve`.
        arguments: of the program.
        count: number of processes.
    """

    def __init__(self, program: str, arguments: Sequence[str], count: int) -> None:
        self._free: SimpleQueue[Child] = SimpleQueue()
        self._workers = [Child("-c", program, *arguments, TOKENIZERS_PARALLELISM="false") for _ in range(count)]
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(max(1, count))

    def answers(self, blocks: Iterable[list[str]]) -> Iterator[tuple[list[str], Answer]]:
        """Yield each block with its answer, in order."""
        submit = lambda texts: self._threads.submit(self._exchange, texts)  # noqa: E731
        yield from in_order(blocks, submit, lambda future: future.result(), 2 * len(self._workers))

    def _exchange(self, texts: bytes) -> Answer:
        """Send texts to a free worker and return its answer."""
        worker = self._free.get()
        try:
            worker.send(texts, b"")
            answer = worker.receive()
        finally:
            self._free.put(worker)
        if answer is None:
            raise AtentoError(f"a process that reads text ended with status {worker.wait()}; its error is above")
        return answer

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)


def in_order(
    blocks: Iterable[list[str]], submit: Callable[[bytes], T], result: Callable[[T], Answer], most: int
) -> Iterator[tuple[list[str], Answer]]:
    """Yield blocks with their answers, in order.

    Args:
        blocks: of texts.
        submit: begins to answer the texts of a block, in UTF-8 with `SEPARATOR` between.
        result: waits for the answer.
        most: number of blocks that wait for their answers.
    """
    waiting: deque[tuple[list[str], T]] = deque()
    for block in blocks:
        waiting.append((block, submit(SEPARATOR.join(block).encode("utf-8"))))
        if len(waiting) > most:
            texts, under_way = waiting.popleft()
            yield texts, result(under_way)
    while waiting:
        texts, under_way = waiting.popleft()
        yield texts, result(under_way)


def serve(answer: Callable[[bytes], Answer]) -> None:
    """In a worker: answer each block of texts on standard input, until the input ends."""
    while (message := receive(sys.stdin.buffer)) is not None:
        send(sys.stdout.buffer, *answer(message[0]))


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
        numbers = np.full(len(low), -1)  # -1 for a word that is not in the table
        slots, open_ = self._slots(low, high), np.arange(len(low))
        while len(open_):
            entries = self._table[slots]  # (words,3)
            equal = (entries[:, 0] == low[open_]) & (entries[:, 1] == high[open_])
            taken = entries[:, 2] > 0  # the number + 1; 0: a free slot
            numbers[open_] = np.where(equal & taken, entries[:, 2].astype(np.int64) - 1, -1)
            on = np.flatnonzero(taken & ~equal)  # another word has the slot: the next one
            slots, open_ = (slots[on] + 1) % len(self._table), open_[on]
        is_long = sizes > _KEY  # longer than the key of the table
        bounds = zip(starts[is_long].tolist(), ends[is_long].tolist())
        numbers[is_long] = [self._long.get(data[start:end], -1) for start, end in bounds]
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
            # put them into the table, each into the first free slot from its own on
            entries = np.stack([low[short], high[short], (numbers[short] + 1).astype(np.uint64)], axis=1)  # (words,3)
            slots = self._slots(low[short], high[short])
            while len(entries):
                free = np.flatnonzero(self._table[slots, 2] == 0)
                self._table[slots[free]] = entries[free]  # of several words for one slot, one has it now
                behind = np.flatnonzero(self._table[slots, 2] != entries[:, 2])  # whose slot another word took
                slots, entries = (slots[behind] + 1) % len(self._table), entries[behind]
        return numbers

    def _slots(self, low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The slot that the search for each word begins at."""
        mixed = low * _FACTORS[0] ^ high * _FACTORS[1]
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _FACTORS[2]
        slots: NDArray[np.int64] = (mixed >> np.uint64(64 - _SLOTS)).astype(np.int64)
        return slots


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


_SERVE = "import sys; from atento.text.bulk import serve_ids; serve_ids(sys.argv[1])"


@dataclass(frozen=True)
class EncodedTexts:
    """The ids of several texts, one after another, and the number of ids of each."""

    ids: NDArray[np.generic]
    lengths: NDArray[np.uint32]


def id_type(vocab_size: int) -> np.dtype[np.generic]:
    """Return the type that holds the ids of a vocabulary: uint16 up to 65,536 pieces, else int32."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<i4")


class BulkEncoder:
    """Encodes many texts; gives the ids of `Tokenizer.encode_batch`.

    Where a tokenizer treats each word between spaces by itself, the ids of a word are remembered: most words of a text
    occurred before, and looking one up is many times faster than encoding it. Above 2**19 words, it begins again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.dtype = tokenizer, id_type(tokenizer.vocab_size)
        self._words = WordTable(tokenizer.encode_batch, self.dtype)

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Encode texts in order. Raises TokenizerError: a text is not valid Unicode."""
        if not texts or not self.tokenizer.splits_at_spaces:
            return self._encoded(texts)
        require_texts(texts)
        joined = SEPARATOR.join(texts)
        if joined.count(SEPARATOR) >= len(texts):  # all tokenizers that are asked by words read NUL as a space
            joined = SEPARATOR.join(text.replace(SEPARATOR, " ") for text in texts)
        return self.encode_joined(joined.encode("utf-8"))

    def encode_joined(self, texts: bytes) -> EncodedTexts:
        """Encode texts in UTF-8 that are joined by NUL."""
        if not self.tokenizer.splits_at_spaces:
            return self._encoded(texts.decode("utf-8").split(SEPARATOR))
        if self._words.full:
            self._words = WordTable(self.tokenizer.encode_batch, self.dtype)
        ids, ends = self._words.ids(texts)
        return EncodedTexts(ids, np.diff(ends, prepend=0).astype(np.uint32))

    def _encoded(self, texts: Sequence[str]) -> EncodedTexts:
        """The ids of texts that are encoded as a whole."""
        rows = self.tokenizer.encode_batch(texts)
        lengths = np.fromiter(map(len, rows), dtype=np.uint32, count=len(rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=self.dtype, count=int(lengths.sum()))
        return EncodedTexts(ids, lengths)


class EncodingPool:
    """Workers that encode texts with one tokenizer; a context manager that ends them.

    Args:
        folder: the folder of the tokenizer.
        processes: number of worker processes on this machine; 0 encodes in this process.
        workers: others that answer with `encoded_answer`, in place of processes.
    """

    def __init__(self, folder: Path, processes: int, workers: TextWorkers | None = None) -> None:
        self._workers = workers
        if workers is None and processes:
            self._workers = TextProcesses(_SERVE, [str(folder)], processes)
        self._encoder = None if self._workers is not None else BulkEncoder(Tokenizer.load(folder))

    def encode(self, blocks: Iterable[list[str]]) -> Iterator[tuple[list[str], EncodedTexts]]:
        """Yield each block of texts with its ids, in order; only a few blocks are in memory at a time.
        Raises AtentoError: a worker ended.
        """
        if self._encoder is not None:
            for block in blocks:
                yield block, self._encoder.encode(block)
        elif self._workers is not None:
            for block, (lengths, ids) in self._workers.answers(blocks):
                dtype = np.dtype(f"<{ids[:2].decode('ascii')}")  # the first two bytes name the type
                yield block, EncodedTexts(np.frombuffer(ids, dtype=dtype, offset=2), np.frombuffer(lengths, "<u4"))

    def close(self) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> "EncodingPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def encoded_answer(encoder: BulkEncoder, texts: bytes) -> Answer:
    """The answer of a worker: the number of ids of each text, and their type and the ids themselves."""
    encoded = encoder.encode_joined(texts)
    return encoded.lengths.tobytes(), encoded.ids.dtype.str[1:].encode("ascii") + encoded.ids.tobytes()


def serve_ids(folder: str) -> None:
    """In a worker process: encode texts."""
    serve(partial(encoded_answer, BulkEncoder(Tokenizer.load(folder))))
