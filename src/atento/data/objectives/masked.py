"""Masked language modelling and what goes with it: next sentences, SpanBERT's span boundary, ELECTRA's detection.

ids "<s> o <mask> pulou </s>"   labels "- - gato - -" (docs/notes.md#e2)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import DataError
from atento.base.splitmix import grid_hashes
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, EpochStores, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.masking import Masking, WordIds, masking_of
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.preparation import Preparation
from atento.text.lengths import pad_batch, truncate
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer
from atento.text.words import split_sentences

HEAD, BOUNDARY, FOLLOWS = "vocabulary", "span-boundary", "next-sentence"
GENERATOR, DETECTOR = "generator", "replaced-token"
_PAIR_KEY = 12  # keeps these hashes apart from hashes for other purposes


@dataclass(frozen=True)
class Masked(OneText):
    """Batches of masked texts. Column "ids": texts with special tokens at their ends, which are never hidden.

    Columns where words or spans are hidden: "words", the number of the word of each token between the special ones;
    "word count", the number of words of each text.
    """

    pad_id: int  # id of padding
    masking: Masking  # hides tokens
    ends: tuple[int, int] = (1, 1)  # the number of special tokens before a text, and behind it

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the expected number of hidden tokens."""
        words = store["word count"].flat.astype(np.int64) if "word count" in store else None
        return self.masking.expected(store["ids"].lengths - sum(self.ends), words)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch hides other tokens."""
        ids, labels, _ = self.hidden(store, rows, draw)
        return _labelled(ids, store["ids"].lengths[rows], {HEAD: labels})

    def hidden(self, store: Store, rows: Rows, draw: Draw) -> tuple[Tensor, Tensor, list[NDArray[np.int64]]]:
        """Return ids (B,L), labels (B,L), and the hidden words or spans of each text as ranges of its positions.

        Only spans have ranges.
        """
        ids = store["ids"].padded(rows, self.pad_id)  # (B,L)
        labels = torch.full_like(ids, -1)
        column, (before, behind) = torch.arange(ids.shape[1]), self.ends
        inner = (column >= before) & (column < torch.from_numpy(store["ids"].lengths[rows] - behind).unsqueeze(1))
        words = None
        if self.masking.unit != "tokens":  # of the tokens between the special ones
            words = store["words"].padded(rows, -1, length=ids.shape[1] - sum(self.ends)).numpy()
            words = np.pad(words, ((0, 0), self.ends))  # (B,L), 0 at the ends; `inner` leaves these out
        ranges = self.masking.hide_batch(ids, labels, inner, rows, draw, words)
        return ids, labels, [of_row + before for of_row in ranges]  # `ranges` begin behind the special tokens


@dataclass(frozen=True)
class SpanBoundary(OneText):
    """Batches of texts with masked spans, labelled for two heads: the vocabulary, and the span boundary, which predicts
    each token also from the tokens beside its span (SpanBERT; Joshi et al. 2020; docs/notes.md#e5).

    ids "<s> o <mask> <mask> alto </s>"   both labels "- - gato pulou - -"   left 1, right 4, span positions 0, 1

    Extras, each (B,L) and 0 without a label: "span left" and "span right", the positions of the tokens beside the span
    of a hidden token, which are never hidden; "span position", its position in the span, from 0.
    """

    masked: Masked

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return twice the expected number of hidden tokens, since each has two labels."""
        return 2 * self.masked.sizes(store)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch hides other spans."""
        ids, labels, spans = self.masked.hidden(store, rows, draw)
        left, right, position = (torch.zeros_like(ids) for _ in range(3))  # (B,L) each
        ranges, row = np.concatenate(spans), np.repeat(np.arange(len(spans)), [len(of_row) for of_row in spans])
        index, first = inside(ranges)  # (hidden tokens,) each
        row, last = (np.repeat(values, ranges[:, 1] - ranges[:, 0]) for values in (row, ranges[:, 1]))  # a token each
        for values, extra in ((first - 1, left), (last, right), (index - first, position)):  # `last` is beyond the span
            extra[row, index] = torch.from_numpy(values)
        extras = {"span left": left, "span right": right, "span position": position}
        return _labelled(ids, store["ids"].lengths[rows], {HEAD: labels, BOUNDARY: labels}, extras)


@dataclass(frozen=True)
class ReplacedToken(OneText):
    """Batches of masked texts, labelled for the generator and for the network that detects its tokens (ELECTRA).

    ids "<s> o <mask> pulou </s>"   labels, generator "- - gato - -", replaced-token "<s> o gato pulou </s>"

    All chosen tokens are masked. The labels of the detector are the original tokens of the whole text; which of them
    the generator replaces is known when it has filled the masks (`Network.replaced`).
    """

    masked: Masked

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the expected number of masked tokens; the labels of the detector do not count for the budget."""
        return self.masked.sizes(store)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch masks other tokens."""
        ids, labels, _ = self.masked.hidden(store, rows, draw)
        ids[labels >= 0] = self.masked.masking.mask_id  # all of them: BERT leaves some
        detected = store["ids"].padded(rows, -1)  # the detector has all tokens
        return _labelled(ids, store["ids"].lengths[rows], {GENERATOR: labels, DETECTOR: detected})


def _labelled(
    ids: Tensor, lengths: NDArray[np.int64], labels: dict[str, Tensor], extras: dict[str, Tensor] | None = None
) -> Batch:
    inputs = with_token_mask({"ids": ids}, lengths)
    return Batch(inputs, labels, extras=extras or {}, lengths={"ids": torch.from_numpy(lengths)})


def inside(ranges: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions inside ranges (ranges,2), one after another, and the first position of the range of each."""
    sizes = ranges[:, 1] - ranges[:, 0]
    first = np.repeat(ranges[:, 0], sizes)
    return first + np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes), first  # start + place in range


def with_token_mask(inputs: dict[str, Tensor], lengths: NDArray[np.int64]) -> dict[str, Tensor]:
    """Add a token mask to the inputs, if rows differ in length."""
    real = torch.arange(inputs["ids"].shape[1]) < torch.from_numpy(lengths).unsqueeze(1)  # (B,L)
    return inputs if bool(real.all()) else inputs | {"token_mask": real}


def word_columns(tokenizer: Tokenizer, texts: Sequence[Sequence[int]]) -> dict[str, Ragged]:
    """Return the columns of words of texts without special tokens: "words" and "word count"."""
    words = WordIds(tokenizer).of(Ragged(texts))  # the number of the word of each token
    text = np.repeat(np.arange(len(words)), words.lengths)  # (tokens,)
    begins = np.append(True, (np.diff(words.flat) != 0) | (np.diff(text) != 0))[: len(text)]
    counts = np.bincount(text[begins], minlength=len(words))  # words of each text, an empty one too
    return {"words": words, "word count": Ragged.of_flat(counts, np.ones(len(words), dtype=np.int64))}


def masked_texts(
    preparation: Preparation, config: ObjectiveConfig, unit: Literal["tokens", "words", "spans"] | None = None
) -> tuple[MemoryStore, Masked]:
    """Return the texts with special tokens, those longer than `data.max_len` tokens split, and what hides their tokens.

    The texts have columns of their words where words or spans are hidden.
    """
    tokenizer, template = preparation.tokenizer, preparation.text_template()
    ends = template.ends()
    masked = Masked(preparation.network.pad_id, masking_of(tokenizer, config, unit), ends)
    pieces = preparation.pieces(preparation.encoded(), preparation.longest - sum(ends))
    words = {} if masked.masking.unit == "tokens" else word_columns(tokenizer, pieces)
    return MemoryStore({"ids": Ragged([template.apply(piece)[0] for piece in pieces])} | words), masked


def masked(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for masked language modelling; texts longer than `data.max_len` tokens are split."""
    store, objective = masked_texts(preparation, config)
    return preparation.planned(store, objective, config.weight)


def span_boundary(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for SpanBERT; texts longer than `data.max_len` tokens are split."""
    store, masked = masked_texts(preparation, config, "spans")
    return preparation.planned(store, SpanBoundary(masked), config.weight)


def replaced_token(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for replaced-token detection; texts longer than `data.max_len` tokens are split."""
    store, masked = masked_texts(preparation, config)
    weights = {GENERATOR: config.weight, DETECTOR: config.weight * config.option("detection")}
    return preparation.planned(store, ReplacedToken(masked), weights)


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
    words: WordIds | None = None  # give the number of the word of each token; None: tokens are hidden one by one

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
    drawn_columns = {"second": Ragged.of_flat(second, each), "follows": Ragged.of_flat(follows, each)}
    return MemoryStore({"first": columns["first"], **columns, **drawn_columns})  # the first column counts the examples


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
    masking, words = masking_of(tokenizer, config), None if config.unit == "tokens" else WordIds(tokenizer)
    segments = network.embedding.segments > 1
    objective = NextSentence(network.pad_id, masking, template, preparation.longest, segments, words)
    return preparation.planned(stores, objective, config.weight)
