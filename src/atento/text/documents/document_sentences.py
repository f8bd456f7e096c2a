"""A document as sentences, which are translated one by one, each once."""

from collections.abc import Sequence

from atento.text.documents.segments import Document
from atento.text.passages import Passages, Piece, joined


class DocumentSentences:
    """The sentences of a document.

    Attributes:
        sentences: each sentence once, in the order of the document.
    """

    def __init__(self, document: Document) -> None:
        self._document, passages = document, Passages()
        self._pieces: list[list[Piece]] = [passages.text(text) for text in document.texts]
        self._all = passages.sentences
        self.sentences = list(dict.fromkeys(passages.sentences))

    def written(self, translations: Sequence[str]) -> bytes:
        """The document with translations in place of the sentences: line breaks and spaces around lines stay."""
        by_sentence = dict(zip(self.sentences, translations, strict=True))
        outputs = [by_sentence[sentence] for sentence in self._all]
        rows = zip(self._document.texts, self._pieces)
        return self._document.written([self._text(text, pieces, outputs) for text, pieces in rows])

    def _text(self, text: str, pieces: Sequence[Piece], outputs: Sequence[str]) -> str:
        """A text in translation; as it was, spaces between sentences too, where each is its own translation."""
        is_same = all(outputs[piece] == self._all[piece] for piece in pieces if isinstance(piece, int))
        return text if is_same else joined(pieces, outputs, escape=False)
