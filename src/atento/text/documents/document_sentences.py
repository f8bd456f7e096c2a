"""Passages and documents as sentences, which are translated one by one, and put together again as they stood."""

import re
from collections.abc import Sequence

from atento.text.documents.segments import NUMBERED, Document
from atento.text.words import split_sentences

_LINES = re.compile(r"([\t\r\n\u2028\u2029]+)")
Piece = str | int  # a text that stays, or the number of a sentence


class Passages:
    """Some texts, cut into sentences.

    Attributes:
        sentences: of all texts, in their order.
    """

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def text(self, text: str) -> list[Piece]:
        """A text: line breaks, tabs and spaces around a line stay; sentences of a line are joined by one space."""
        pieces: list[Piece] = []
        for line in _LINES.split(text):
            words = line.strip()
            start = line.index(words)
            pieces.append(line[:start] if words else line)
            for sentence in split_sentences(words):
                pieces += [len(self.sentences), " "]
                self.sentences.append(sentence)
            if words:
                pieces[-1] = line[start + len(words) :]  # what stands behind the last sentence
        return pieces


def joined(pieces: Sequence[Piece], translated: Sequence[str]) -> str:
    """The text of some pieces, with translations of all sentences of the `Passages` in place of them."""
    return "".join(piece if isinstance(piece, str) else translated[piece] for piece in pieces)


_NOT_TEXT = re.compile(r"[^\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")


class DocumentSentences:
    """The sentences of a document.

    Attributes:
        sentences: each sentence once, in the order of the document.
    """

    def __init__(self, document: Document) -> None:
        self._document, passages = document, Passages()
        self._pieces: list[list[Piece]] = [passages.text(text) for text in document.texts]
        self._all = passages.sentences
        self.sentences = list(dict.fromkeys(passages.sentences))  # each is translated once

    def written(self, translations: Sequence[str], language: str | None = None) -> bytes:
        """The document with translations in place of the sentences: line breaks and spaces around lines stay.

        It names `language` as its own, where it names one; None: that stays.

        A sentence whose translation is empty stays as it is.

        A line break or a control character that a model writes is a space: it would end a subtitle, or a file that
        Word can open.
        """
        rows = zip(self.sentences, translations, strict=True)
        clean = ((old, new if new == old else _NOT_TEXT.sub(" ", new).strip()) for old, new in rows)
        by_sentence = {old: new if NUMBERED.sub("", new).strip() else old for old, new in clean}  # tags are no words
        outputs = [by_sentence[sentence] for sentence in self._all]
        texts = zip(self._document.texts, self._pieces)
        written = [  # as it was, spaces between sentences too, where each sentence is its own translation
            text
            if all(outputs[one] == self._all[one] for one in pieces if isinstance(one, int))
            else joined(pieces, outputs)
            for text, pieces in texts
        ]
        return self._document.written(written, language)
