"""Next sentence prediction together with masked language modelling (Devlin et al. 2019).

ids "[CLS] o gato pulou [SEP] ele [MASK] [SEP]"   labels "dormiu" at the mask, and 0: the second sentence follows
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import DataError
from atento.base.splitmix import grid_hashes
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, EpochStores, MemoryStore, Ragged, Rows, Store
from atento.data.batches.masking import Masking, masking_of
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.word_numbers import WordNumbers
from atento.data.objectives.masked import HEAD, with_token_mask
from atento.data.objectives.preparation import Preparation
from atento.text.lengths import pad_batch, truncate
from atento.text.sentences import split_sentences
from atento.text.specials import Template

FOLLOWS = "next-sentence"
_PAIR_KEY = 12  # keeps these hashes apart from hashes for other purposes


@dataclass(frozen=True)
class NextSentence:
    """Batches of sentence pairs. Half of the second sentences are the next one (label 0), half random (label 1).

    Columns: "ids", the sentences; "document", the number of the document of each; "first", the sentences that have a
    next one in their document; "second" and "follows", as `with_second` draws them for an epoch. Each sentence of
    "first" is an example. Random sentences come from another document.
    """

    pad_id: int  # id of padding
    masking: Masking  # hides tokens of both sentences
    template: Template  # special tokens around the pair
    longest: int  # maximum tokens of a pair; longer pairs are truncated
    segments: bool  # whether the network reads segment ids
    words: WordNumbers | None = None  # give the number of the word of each token; None: tokens are hidden one by one

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the expected number of hidden tokens of each pair, plus one for the label of the pair."""
        return self.masking.share(self._pair_lengths(store) - self.template.added(True)) + 1  # + 1: follows or not

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the length of each pair, twice."""
        lengths = self._pair_lengths(store)
        return lengths, lengths

    def _pair_lengths(self, store: Store) -> NDArray[np.int64]:
        lengths = store["ids"].lengths
        pairs = lengths[store["first"].flat] + lengths[store["second"].flat] + self.template.added(True)
        fitting: NDArray[np.int64] = np.minimum(self.longest, pairs).astype(np.int64)  # longer pairs are truncated
        return fitting

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch hides other tokens."""
        room = self.longest - self.template.added(True)
        pairs = []
        for row in rows.tolist():
            first, second = (store["ids"][int(store[name].flat[row])].tolist() for name in ("first", "second"))
            pairs.append(self.template.apply(*truncate(first, second, room)[:2]))
        padded, _ = pad_batch([ids for ids, _ in pairs], self.pad_id)
        ids = torch.from_numpy(padded)
        labels = torch.full_like(ids, -1)  # -1: no target
        lengths = np.array([len(pair_ids) for pair_ids, _ in pairs])  # (B,) without padding
        may_be_chosen = self.masking.is_ordinary(ids)
        may_be_chosen &= torch.arange(ids.shape[1]) < torch.from_numpy(lengths).unsqueeze(1)  # (B,L), no padding
        words = None if self.words is None else self.words.of(Ragged([pair_ids for pair_ids, _ in pairs]))
        of_words = None if words is None else words.padded(np.arange(len(rows)), -1, length=ids.shape[1]).numpy()
        self.masking.hide_batch(ids, labels, may_be_chosen, rows, draw, of_words)
        inputs = with_token_mask({"ids": ids}, lengths)
        if self.segments:
            inputs["segment_ids"] = torch.from_numpy(pad_batch([segments for _, segments in pairs], 0)[0])
        all_labels = {HEAD: labels, FOLLOWS: torch.from_numpy(store["follows"].flat[rows].astype(np.int64))}
        return Batch(inputs, all_labels, lengths={"ids": torch.from_numpy(lengths)})


def with_second(columns: Mapping[str, Ragged], seed: int, epoch: int) -> MemoryStore:
    """Return the examples of an epoch: for each first sentence a second one, and 0 if it is the next one, else 1."""
    first, documents = columns["first"].flat.astype(np.int64), columns["document"].flat  # (first,), (sentences,)
    coins, numbers = grid_hashes(np.arange(len(first)), 2, seed, epoch, _PAIR_KEY).T  # (first,) each
    # choose among the sentences outside [begin, end), the document of the first sentence
    begin, end = (np.searchsorted(documents, documents[first] + after) for after in (0, 1))  # documents are in order
    drawn = (numbers % (len(documents) - (end - begin)).astype(np.uint64)).astype(np.int64)  # among all others
    drawn = np.where(drawn < begin, drawn, drawn + (end - begin))  # step over the document itself
    follows = (coins & np.uint64(1)).astype(np.int64) ^ 1  # lowest bit 1: the next one
    second, each = np.where(follows == 0, first + 1, drawn), np.ones_like(first)
    return _Sentences({**columns, "second": Ragged.of_flat(second, each), "follows": Ragged.of_flat(follows, each)})


def next_sentence(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for masked language modelling with next sentence prediction; each text is a document.
    Raises DataError: fewer than two documents, or no document with two sentences.
    """
    network, tokenizer, training = preparation.network, preparation.tokenizer, preparation.recipe.training
    documents = [split_sentences(text) for text in preparation.split["text"]]
    sentences: list[list[int]] = []
    document_ids: list[int] = []
    for number, document in enumerate(documents):
        encoded = [ids for ids in tokenizer.encode_batch(document) if ids]
        sentences += encoded
        document_ids += [number] * len(encoded)
    first = [row for row in range(len(document_ids) - 1) if document_ids[row] == document_ids[row + 1]]
    if not first or document_ids[0] == document_ids[-1]:  # all of one document, since their numbers rise
        raise DataError(
            "next-sentence prediction needs two documents at least and one of two sentences: each text is a document "
            f"(`paragraphs: true` joins lines); got {len(documents)} texts of {len(sentences)} sentences"
        )
    columns = {
        "ids": Ragged(sentences),
        "document": Ragged([[number] for number in document_ids]),
        "first": Ragged([[row] for row in first]),
    }
    # each epoch draws the second sentences again
    stores = EpochStores(with_second(columns, training.seed, 0), partial(with_second, columns, training.seed))
    template = preparation.text_template()
    masking, words = masking_of(tokenizer, config), None if config.unit == "tokens" else WordNumbers(tokenizer)
    segments = network.embedding.segments > 1
    objective = NextSentence(network.pad_id, masking, template, preparation.longest, segments, words)
    return preparation.planned(stores, objective, config.weight)


class _Sentences(MemoryStore):
    """A store with one example for each entry of the column "first"."""

    def __len__(self) -> int:
        return len(self.columns["first"])
