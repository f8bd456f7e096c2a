"""Decode ids one by one to a stream of text, which never splits a character and never changes earlier text."""

import re
from collections.abc import Iterable, Iterator, Sequence

from atento.text.kinds import kind_named
from atento.text.tokenizer import Tokenizer

_UNREADABLE = "\ufffd"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class TextStream:
    """Emits the text of a growing sequence of ids, as far as later ids cannot change it.

    The emitted parts joined are `tokenizer.decode` of all ids. It holds back:

    - bytes that are not a complete character. If the vocabulary also has other pieces, a run of byte pieces is decoded
      as a whole, so it is held back until it ends. With a byte tokenizer a character is emitted when it is complete;
      the parts equal the decoded text if all bytes are valid;
    - the last word of word and WordPiece vocabularies, since it may continue, and its spaces depend on what follows;
    - with stop strings, an end of the text that may be the beginning of one.

    A character is a code point: a letter may be emitted before an accent that combines with it. Each id decodes all ids
    before it, so the cost is quadratic in the length: some milliseconds for a few hundred ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, before: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        """Args:
        tokenizer: the tokenizer of the ids.
        before: ids before the stream, such as a prompt: they affect spaces, but their text is not emitted.
        stop: the text ends before the first of these strings that is complete.

        Raises:
            ValueError: a stop string is empty.
        """
        if isinstance(stop, str) or not all(stop):
            raise ValueError(f"`stop` must be a list of strings, none of them empty: got {stop!r}")
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._whole_words = not kind_named(tokenizer.kind).spaces
        self._runs = tokenizer.kind != "byte"
        self._ids = [token for token in before if tokenizer.spelling(token) is not None]
        self._base = self._final_text()
        self._tail = tokenizer.decode(self._ids)[len(self._base) :]
        self._emitted = ""
        self.stopped = False  # True after a stop string: no more text is emitted

    def push(self, token: int) -> str:
        """Add an id and return the text that is now final, often none."""
        if self._tokenizer.spelling(token) is not None:
            self._ids.append(token)
        return self._emit(self._final_text(), last=False)

    def finish(self) -> str:
        """Return the text that was held back, after the last id."""
        return self._emit(self._tokenizer.decode(self._ids), last=True)

    def _final_text(self) -> str:
        """The text that every continuation begins with."""
        if self._whole_words:
            return self._tokenizer.decode(self._ids).rpartition(" ")[0]
        ids = self._ids
        while self._runs and ids and _BYTE.fullmatch(self._tokenizer.tokens(ids[-1:])[0]):
            ids = ids[:-1]
        return self._tokenizer.decode(ids).rstrip(_UNREADABLE)

    def _emit(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        new = text[len(self._base) :]
        if self._tail:  # the end of the prompt may change with the first ids, but is not emitted
            new = new.lstrip(" ").removeprefix(self._tail.lstrip(" "))
        end = len(new)
        met = [(new.find(string) + len(string), new.find(string)) for string in self._stop if string in new]
        if met:
            end, self.stopped = min(met)[1], True
        elif not last:
            begun = (size for stop in self._stop for size in range(1, len(stop)) if new.endswith(stop[:size]))
            end -= max(begun, default=0)  # what may be the beginning of a stop
        new = new[:end]
        if not (text.startswith(self._base) and new.startswith(self._emitted)):
            return _UNREADABLE if last else ""  # a broken character later in the run makes all of it unreadable
        piece, self._emitted = new[len(self._emitted) :], new
        return piece


def stream_text(
    tokenizer: Tokenizer, ids: Iterable[int], *, before: Sequence[int] = (), stop: Sequence[str] = ()
) -> Iterator[str]:
    """The parts of the text, none of them empty, as ids arrive; arguments as for `TextStream`.

    After a stop string no more ids are taken.
    """
    text = TextStream(tokenizer, before=before, stop=stop)
    for token in ids:
        piece = text.push(token)
        if piece:
            yield piece
        if text.stopped:
            return
    piece = text.finish()
    if piece:
        yield piece
