"""Denoising: write a text from a noisy copy of it (BART; Lewis et al. 2020, 2.2).

text "O gato dorme. Ele sonha com peixe."
source "Ele sonha <mask>. <mask> gato dorme. </s>"   labels "O gato dorme. Ele sonha com peixe. </s>"
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from atento.config.objective import ObjectiveConfig
from atento.data.batches import Batch, Draw, PlannedBatches, Rows
from atento.data.objectives.preparation import Preparation, windows
from atento.data.objectives.sequence_to_sequence import SequenceToSequence
from atento.data.shuffle import hashes, permutation, random_partition
from atento.data.special_tokens import special_tokens_of
from atento.data.store import MemoryStore, Ragged, Store
from atento.errors import DataError
from atento.text.sentences import split_sentences
from atento.text.templates import Template
from atento.text.tokenizer import Tokenizer

_COINS_KEY, _LENGTHS_KEY, _GAPS_KEY, _DELETED_KEY, _SENTENCES_KEY = 31, 32, 33, 34, 35  # one for each use of a hash


@dataclass(frozen=True)
class Noise:
    """The noise of BART, drawn again in every epoch; each kind is left out where its share is 0.

    In this order: the sentences of a text are permuted; spans of tokens are replaced by one mask each (text infilling),
    with lengths by the Poisson distribution, so that a span of length 0 inserts a mask; tokens are deleted; the text is
    rotated to begin at a random token.

    Attributes:
        mask_id: id of the mask token.
        infilling: share of the tokens of a text in spans; the last span is cut so that it holds.
        mean_span: mean of the Poisson distribution.
        deletion: share of the tokens that are deleted.
        permutation: share of the texts whose sentences are permuted.
        rotation: share of the texts that are rotated.
    """

    mask_id: int
    infilling: float = 0.3
    mean_span: float = 3.0
    deletion: float = 0.0
    permutation: float = 1.0
    rotation: float = 0.0

    def noisy(self, ids: NDArray[np.int64], sentences: NDArray[np.int64], row: int, draw: Draw) -> NDArray[np.int64]:
        """Return a noisy copy of a text, a function of seed, epoch and row.

        Args:
            ids: (L,), at least one token.
            sentences: (L,) the number of the sentence of each token, in rising order.
            row: number of the example.
            draw: seed and epoch.
        """
        key = (draw.seed, draw.epoch, row)
        permuted, rotated, infilled, deleted, first = _uniform(5, *key, _COINS_KEY).tolist()
        if permuted < self.permutation:
            ids = np.concatenate([ids[sentences == number] for number in shuffled(sentences, *key, _SENTENCES_KEY)])
        if self.infilling:
            ids = self._infilled(ids, infilled, *key)
        if self.deletion:
            count = int(self.deletion * len(ids) + deleted)  # rounded at random, so that the mean is exact
            ids = ids[np.sort(permutation(len(ids), *key, _DELETED_KEY)[count:])]
        if rotated < self.rotation and len(ids):
            ids = np.roll(ids, -int(first * len(ids)))
        return ids

    def _infilled(self, ids: NDArray[np.int64], rounding: float, *key: int) -> NDArray[np.int64]:
        """Replace spans by masks; two spans have a token between them."""
        hidden = int(self.infilling * len(ids) + rounding)
        lengths = self.span_lengths(hidden, *key, _LENGTHS_KEY)[: len(ids) - hidden + 1]
        if not len(lengths):
            return ids
        lengths[np.argmax(lengths)] += hidden - int(lengths.sum())  # 0, but for a text with room for few spans
        # + 2: the first and the last gap may be empty
        gaps = random_partition(len(ids) - hidden + 2, len(lengths) + 1, *key, _GAPS_KEY)
        pieces, at = [], -1
        for gap, length in zip(gaps, [*lengths.tolist(), 0]):
            pieces.append(ids[max(0, at) : at + gap])
            at += gap + length
        mask = np.array([self.mask_id], dtype=ids.dtype)
        return np.concatenate([part for piece in pieces[:-1] for part in (piece, mask)] + pieces[-1:])

    def span_lengths(self, hidden: int, *key: int) -> NDArray[np.int64]:
        """Return lengths of spans whose sum is `hidden`: those of the distribution up to this sum, the last one cut."""
        most = 8 + int(4 * hidden / self.mean_span)  # far more than are needed
        drawn = np.searchsorted(self._poisson, _uniform(most, *key), side="right").astype(np.int64)
        summed = np.cumsum(drawn)
        drawn = drawn[: int(np.searchsorted(summed, hidden)) + 1] if hidden else drawn[:0]
        if hidden:
            drawn[-1] -= max(0, int(drawn.sum()) - hidden)
        return drawn

    @cached_property
    def _poisson(self) -> NDArray[np.float64]:
        """P(length <= k) for k from 0."""
        lengths = np.arange(20 + int(10 * self.mean_span))
        log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, len(lengths))))])
        return np.cumsum(np.exp(lengths * np.log(self.mean_span) - self.mean_span - log_factorials))


@dataclass(frozen=True)
class Denoising:
    """Batches of noisy texts and the texts. Columns: "ids"; "sentence", the number of the sentence of each token.

    Attributes:
        layout: makes batches of sources and targets.
        noise: makes the sources.
        template: special tokens around a source.
    """

    layout: SequenceToSequence
    noise: Noise
    template: Template

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the number of tokens of each text, EOS included."""
        return (store["ids"].lengths + 1).astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of texts with special tokens, as sources without noise and as targets."""
        return store["ids"].lengths + self.template.added(False), store["ids"].lengths + 1

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch draws other noise."""
        sources = []
        for row in rows.tolist():
            noisy = self.noise.noisy(store["ids"][row].astype(np.int64), store["sentence"][row], row, draw)
            sources.append(self.template.apply(noisy.tolist())[0][:-1])  # the layout adds EOS
        targets = [store["ids"][row].tolist() for row in rows.tolist()]
        columns = {"source": Ragged(sources), "target": Ragged(targets)}
        return self.layout.batch(MemoryStore(columns), np.arange(len(sources)), draw)


def shuffled(sentences: NDArray[np.int64], *key: int) -> NDArray[np.int64]:
    """Return the numbers of the sentences of a text in random order."""
    numbers = np.unique(sentences)
    return np.asarray(numbers[permutation(len(numbers), *key)], dtype=np.int64)


def sentence_numbers(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Return the ids of a text, and the number of the sentence of each."""
    encoded = tokenizer.encode_with_offsets(text)
    ends, at = [], 0
    for sentence in split_sentences(text):
        at = text.index(sentence, at) + len(sentence)
        ends.append(at)
    starts = np.array([start for start, _ in encoded.offsets], dtype=np.int64)
    numbers = np.searchsorted(np.array(ends[:-1], dtype=np.int64), starts, side="right")
    return encoded.ids, np.maximum.accumulate(numbers).tolist() if len(numbers) else []


def _uniform(count: int, *key: int) -> NDArray[np.float64]:
    """Return pseudo-random numbers in [0, 1) that are a function of `key`."""
    return (hashes(count, *key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def denoising(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for denoising; texts longer than `data.max_len` tokens are split.

    Raises:
        DataError: no text is left. TokenizerError: the tokenizer has no mask.
    """
    network, tokenizer, training = preparation.network, preparation.tokenizer, preparation.recipe.training
    template = special_tokens_of(network, tokenizer)
    room = preparation.longest - template.added(False)
    encoded = [sentence_numbers(tokenizer, text) for text in preparation.split["text"]]
    ids = preparation.pieces([text for text, _ in encoded], room)
    sentences = [piece for _, numbers in encoded if numbers for piece in windows(numbers, room, 0)]
    if not ids:
        raise DataError("no text is left: all are blank")
    shares = (config.option(name) for name in ("infilling", "mean_span", "deletion", "permutation", "rotation"))
    layout = SequenceToSequence(network.pad_id, network.start_id, network.eos_id)
    objective = Denoising(layout, Noise(tokenizer.mask_id, *shares), template)
    store = MemoryStore({"ids": Ragged(ids), "sentence": Ragged(sentences)})
    return PlannedBatches(store, objective, budget=training.batch_tokens, seed=training.seed, weight=config.weight)
