"""Many texts to ids at once: repeated words are looked up, and worker processes share the texts."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from atento.errors import AtentoError
from atento.text.normalization import require_unicode
from atento.text.pipes import receive, send
from atento.text.tokenizer import Tokenizer
from atento.text.word_table import WordTable

_SEPARATOR = "\0"  # of texts; no text of a file has it
_SERVE = "import sys; from atento.text.bulk import serve; serve(sys.argv[1])"


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
        """Encode texts in order.

        Raises:
            TokenizerError: a text is not valid Unicode.
        """
        if not texts or not self.tokenizer.splits_at_spaces:
            return self._encoded(texts)
        for number, text in enumerate(texts):
            require_unicode(text, f"text {number}")
        joined = _SEPARATOR.join(texts)
        if joined.count(_SEPARATOR) >= len(texts):  # all tokenizers that are asked by words read NUL as a space
            joined = _SEPARATOR.join(text.replace(_SEPARATOR, " ") for text in texts)
        return self.encode_joined(joined.encode("utf-8"))

    def encode_joined(self, texts: bytes) -> EncodedTexts:
        """Encode texts in UTF-8 that are joined by NUL."""
        if not self.tokenizer.splits_at_spaces:
            return self._encoded(texts.decode("utf-8").split(_SEPARATOR))
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
    """Worker processes that encode texts with one tokenizer; a context manager that ends them.

    The workers are fresh interpreters, so that a program without a `__main__` guard and the threads of this process do
    no harm. They end when this process ends, however it ends.
    """

    def __init__(self, folder: Path, processes: int) -> None:
        """Start the workers.

        Args:
            folder: the folder of the tokenizer.
            processes: their number; 0 encodes in this process.
        """
        self._encoder = BulkEncoder(Tokenizer.load(folder)) if processes == 0 else None
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._workers = [_worker(folder) for _ in range(processes)]
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(max(1, processes))

    def encode(self, blocks: Iterable[list[str]]) -> Iterator[tuple[list[str], EncodedTexts]]:
        """Yield each block of texts with its ids, in order; only a few blocks are in memory at a time.

        Raises:
            AtentoError: a worker ended.
        """
        if self._encoder is not None:
            for block in blocks:
                yield block, self._encoder.encode(block)
            return
        waiting: deque[tuple[list[str], Future[EncodedTexts]]] = deque()
        for block in blocks:
            waiting.append((block, self._threads.submit(self._exchange, block)))
            if len(waiting) > 2 * len(self._workers):
                texts, future = waiting.popleft()
                yield texts, future.result()
        while waiting:
            texts, future = waiting.popleft()
            yield texts, future.result()

    def _exchange(self, texts: list[str]) -> EncodedTexts:
        """Send texts to a free worker and return its answer."""
        worker = self._free.get()
        try:
            stdin, stdout = cast(BinaryIO, worker.stdin), cast(BinaryIO, worker.stdout)
            send(stdin, _SEPARATOR.join(texts).encode("utf-8"), b"")
            message = receive(stdout)
        except OSError:
            message = None
        finally:
            self._free.put(worker)
        if message is None:
            raise AtentoError(f"a process that encodes text ended with status {worker.wait()}; its error is above")
        lengths = np.frombuffer(message[0], dtype="<u4")
        dtype = np.dtype(f"<{message[1][:2].decode('ascii')}")
        return EncodedTexts(np.frombuffer(message[1], dtype=dtype, offset=2), lengths)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> "EncodingPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _worker(folder: Path) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the process that reads the answers
    )


def serve(folder: str) -> None:
    """In a worker: answer each message of texts on standard input with their ids, until the input ends."""
    encoder = BulkEncoder(Tokenizer.load(folder))
    while (message := receive(sys.stdin.buffer)) is not None:
        encoded = encoder.encode_joined(message[0])
        dtype = encoded.ids.dtype.str[1:].encode("ascii")
        send(sys.stdout.buffer, encoded.lengths.tobytes(), dtype + encoded.ids.tobytes())
