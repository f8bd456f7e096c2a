"""Ids that come one by one -> text that comes piece by piece: no character is cut, and nothing is taken back."""

import re
from collections.abc import Iterable, Iterator, Sequence

from atento.text.pipelines import kind_named
from atento.text.tokenizer import Tokenizer

_UNREADABLE = "\ufffd"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class TextStream:
    """Gives out the text of a growing row of ids, as far as no later id can change it.

    The pieces joined are `tokenizer.decode` of all ids. What waits:

    - bytes that do not make a character yet. A vocabulary with byte pieces beside others spells rare characters by a
      run of them, and a whole run is unreadable if part of it is, so a run waits for its end. A byte tokenizer writes
      but one run: there a character goes out when it is complete, and the promise holds where all bytes make text;
    - for word and WordPiece vocabularies the last word: it may go on, and what follows decides about the space before;
    - with stop strings, an end that may be the beginning of one.

    A character is a code point: a letter may go out before an accent that combines with it. Each id costs a decoding
    of all before it, so the whole costs the square of its length, some milliseconds for a few hundred ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, before: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        """Args:
        tokenizer: whose ids they are.
        before: ids that stand before, a prompt: they decide about spaces, their text is not given out.
        stop: strings before which the text ends; of several the one that is complete first.

        Raises:
            ValueError: an empty stop string.
        """
        if isinstance(stop, str) or not all(stop):
            raise ValueError(f"`stop` must be a list of strings, none of them empty: got {stop!r}")
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._whole_words = not kind_named(tokenizer.kind).spaces
        self._runs = tokenizer.kind != "byte"
        self._hidden = frozenset(tokenizer.specials.ids.values()) - tokenizer.specials.shown  # these have no text
        self._ids = [token for token in before if token not in self._hidden]
        self._base = self._settled()
        self._tail = tokenizer.decode(self._ids)[len(self._base) :]
        self._given = ""
        self.stopped = False  # a stop string was met: nothing more is given out

    def push(self, token: int) -> str:
        """One id more -> the text that is now sure, often none."""
        if token not in self._hidden:
            self._ids.append(token)
        return self._give(self._settled(), last=False)

    def finish(self) -> str:
        """No id will follow: the text that waited."""
        return self._give(self._tokenizer.decode(self._ids), last=True)

    def _settled(self) -> str:
        """The text so far that every continuation begins with."""
        if self._whole_words:
            return self._tokenizer.decode(self._ids).rpartition(" ")[0]
        ids = self._ids
        while self._runs and ids and _BYTE.fullmatch(self._tokenizer.tokens(ids[-1:])[0]):
            ids = ids[:-1]
        return self._tokenizer.decode(ids).rstrip(_UNREADABLE)

    def _give(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        new = text[len(self._base) :]
        if self._tail:  # the end of what stands before was not sure then: it is now, and was not written anew
            new = new.lstrip(" ").removeprefix(self._tail.lstrip(" "))
        end = len(new)
        met = [(new.find(string) + len(string), new.find(string)) for string in self._stop if string in new]
        if met:
            end, self.stopped = min(met)[1], True
        elif not last:
            end -= max((_begun(new, string) for string in self._stop), default=0)
        new = new[:end]
        if not (text.startswith(self._base) and new.startswith(self._given)):
            return _UNREADABLE if last else ""  # a broken character behind it makes all of a run unreadable
        piece, self._given = new[len(self._given) :], new
        return piece


def _begun(text: str, string: str) -> int:
    """How many characters at the end of a text may be the beginning of a string."""
    return next((size for size in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:size])), 0)


def stream_text(
    tokenizer: Tokenizer, ids: Iterable[int], *, before: Sequence[int] = (), stop: Sequence[str] = ()
) -> Iterator[str]:
    """The pieces of text, none of them empty, as the ids come; arguments as for `TextStream`.

    No more ids are asked for once a stop string is met.
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
