"""Next sentence prediction beside masked language modelling, in one pass over two sentences (Devlin et al. 2019).

ids "[CLS] o gato pulou [SEP] ele [MASK] [SEP]"   labels "dormiu" at the mask, and 0: the second sentence follows
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.objective import ObjectiveConfig
from atento.data.batches import Batch, Draw, PlannedBatches, Rows
from atento.data.objectives.masked import HEAD, Masking, masking_of, with_token_mask
from atento.data.objectives.preparation import Preparation
from atento.data.shuffle import hashes
from atento.data.store import MemoryStore, Ragged, Store
from atento.errors import DataError
from atento.text.lengths import pad_batch, truncate
from atento.text.sentences import split_sentences
from atento.text.templates import Template

FOLLOWS = "next-sentence"
_PAIR = 12  # what a hash is for


@dataclass(frozen=True)
class NextSentence:
    """Columns "ids", sentences, "document", the number of the document of each, and "first": a sentence that another
    follows, which is an example.

    Half of the examples have the next sentence (label 0), half a sentence of another document (label 1).
    """

    pad_id: int
    masking: Masking
    template: Template
    longest: int
    segments: bool

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """The hidden tokens of a pair and its one answer."""
        return self.masking.share(self._together(store) - 3) + 1

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the sentence with the one that follows it."""
        together = self._together(store)
        return together, together

    def _together(self, store: Store) -> NDArray[np.int64]:
        first = store["first"].flat
        lengths = store["ids"].lengths
        together = lengths[first] + lengths[first + 1] + self.template.added(True)
        fitting: NDArray[np.int64] = np.minimum(self.longest, together).astype(np.int64)
        return fitting

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Other second sentences and other hidden tokens in every epoch."""
        pairs, follows = [], []
        for row in rows.tolist():
            first = int(store["first"].flat[row])
            second, answer = self._second(store, first, row, draw)
            room = self.longest - self.template.added(True)
            one, other, _ = truncate(store["ids"][first].tolist(), store["ids"][second].tolist(), room)
            pairs.append(self.template.apply(one, other))
            follows.append(answer)
        padded, _ = pad_batch([ids for ids, _ in pairs], self.pad_id)
        ids = torch.from_numpy(padded)
        labels = torch.full_like(ids, -1)
        lengths = np.array([len(one) for one, _ in pairs])
        for i, row in enumerate(rows.tolist()):
            words = np.flatnonzero(padded[i, : lengths[i]] >= self.masking.first_word)
            if len(words):
                self.masking.hide(ids[i], words, labels[i], row, draw)
        inputs = with_token_mask({"ids": ids}, lengths)
        if self.segments:
            inputs["segment_ids"] = torch.from_numpy(pad_batch([segments for _, segments in pairs], 0)[0])
        answers = {HEAD: labels, FOLLOWS: torch.tensor(follows)}
        return Batch(inputs, answers, lengths={"ids": torch.from_numpy(lengths)})

    def _second(self, store: Store, first: int, row: int, draw: Draw) -> tuple[int, int]:
        """The sentence that stands second, and 0 if it follows the first, else 1."""
        coin, place = hashes(2, draw.seed, draw.epoch, row, _PAIR)
        if coin & np.uint64(1):
            return first + 1, 0
        documents = store["document"].flat
        begin, end = np.searchsorted(documents, [documents[first], documents[first] + 1])
        other = int(place % np.uint64(len(documents) - (end - begin)))
        return other if other < begin else other + int(end - begin), 1


def next_sentence(given: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Each text is a document of sentences.

    Raises:
        DataError: fewer than two documents, or no document with two sentences.
    """
    network, tokenizer, training = given.network, given.tokenizer, given.recipe.training
    documents = [split_sentences(text) for text in given.split["text"]]
    sentences: list[list[int]] = []
    owner: list[int] = []
    for number, document in enumerate(documents):
        encoded = [ids for ids in tokenizer.encode_batch(document) if ids]
        sentences += encoded
        owner += [number] * len(encoded)
    first = [row for row in range(len(owner) - 1) if owner[row] == owner[row + 1]]
    if not first or owner[0] == owner[-1]:
        raise DataError(
            "next-sentence prediction needs two documents at least and one of two sentences: each text is a document "
            f"(`paragraphs: true` joins lines); got {len(documents)} texts of {len(sentences)} sentences"
        )
    columns = {"ids": Ragged(sentences), "document": Ragged([[one] for one in owner])}
    store = _Sentences(columns | {"first": Ragged([[one] for one in first])})
    template = given.around()
    objective = NextSentence(
        network.pad_id, masking_of(network, tokenizer, config), template, given.longest, network.embedding.segments > 1
    )
    return PlannedBatches(store, objective, budget=training.batch_tokens, seed=training.seed, weight=config.weight)


class _Sentences(MemoryStore):
    """Its examples are those of the column "first"."""

    def __len__(self) -> int:
        return len(self.columns["first"])
