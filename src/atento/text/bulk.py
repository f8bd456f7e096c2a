"""Many texts to ids at once: repeated words are looked up, and worker processes share the texts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from atento.text.kinds import require_texts
from atento.text.text_workers import SEPARATOR, Answer, TextProcesses, TextWorkers, serve
from atento.text.tokenizer import Tokenizer
from atento.text.word_table import WordTable

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
