"""Word vectors compared with gensim on the micro-world: words a second, and whether similar words have similar vectors.

Both train CBOW and skip-gram on the same sentences, with the same width, window, negatives, subsampling and number of
epochs, in processes of their own with the same number of threads, alternately.
"""

import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.sections.network import NetworkConfig
from atento.config.sections.recurrent import CBOWConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.windows import Windows
from atento.data.objectives.window import WindowBatches
from atento.networks.words.cbow import CBOW
from atento.text.words import word_spans
from atento.training.allocator import raise_trim_threshold
from atento.training.step import Updater
from atento_world import lexicon, write
from benchmarks.processes import Contender, Measurement, Side, about, alternate

_WIDTH, _WINDOW, _NEGATIVES, _SUBSAMPLE = 100, 5, 5, 1e-3  # gensim's default values
_SHARED = 16  # negatives of a block
_BATCH_WORDS, _RATE = 8_192, 4e-2  # of an update, and its learning rate at the beginning; it falls linearly to 0
_EPOCHS_A_SECOND = 2  # of the measurement, about as many as both train in it
_OURS, _PEER = "atento", "gensim"
Vectors = NDArray[np.float32]
Trained = tuple[float, Vectors]  # seconds, and the vectors (V,D) by the number of the word


class OurVectors:
    """Blocks of windows with shared negatives, and AdamW, as `atento train` has them."""

    def load(self, sentences: Sequence[Sequence[str]], mode: Any) -> None:
        """Count the words."""
        raise_trim_threshold()
        cbow = CBOWConfig(_WINDOW, mode, _NEGATIVES, _SUBSAMPLE, shared_negatives=_SHARED)
        self.windows = Windows.from_words(sentences, cbow, seed=1)
        self.config = NetworkConfig(
            architecture="cbow", vocab_size=len(self.windows.words), d_model=_WIDTH, n_heads=1, dropout=0.0, cbow=cbow
        )

    def run(self, epochs: int) -> Trained:
        """Train from the beginning; making batches counts."""
        network = CBOW(self.config)
        network.reset_parameters(torch.Generator().manual_seed(1))
        config = TrainingConfig(label_smoothing=0.0, weight_decay=0.0, clip=0.0)
        updater = Updater(network, config, "float32")
        batches = WindowBatches(self.windows, budget=_BATCH_WORDS)
        steps = epochs * batches.updates_per_epoch
        begin = time.perf_counter()
        for step in range(steps):
            updater.update(batches.parts(step), step + 1, _RATE * (1 - step / steps))
        return time.perf_counter() - begin, network.vectors.detach().numpy()


class Gensim:
    """gensim's `Word2Vec` with as many workers as threads, windows of the full width, and its own learning rate."""

    other_library = True

    def __init__(self) -> None:
        from gensim.models import Word2Vec

        self._model: Any = Word2Vec

    def load(self, sentences: Sequence[Sequence[str]], mode: str) -> None:
        """Remember the sentences."""
        self.sentences, self.mode = sentences, mode

    def run(self, epochs: int) -> Trained:
        """Train from the beginning; counting the words does not count."""
        model = self._model(
            vector_size=_WIDTH,
            window=_WINDOW,
            negative=_NEGATIVES,
            sample=_SUBSAMPLE,
            sg=int(self.mode == "skip-gram"),
            min_count=1,
            shrink_windows=False,
            workers=torch.get_num_threads(),
            seed=1,
        )
        model.build_vocab(self.sentences)
        begin = time.perf_counter()
        model.train(self.sentences, total_examples=model.corpus_count, epochs=epochs)
        seconds = time.perf_counter() - begin
        order = sorted(model.wv.index_to_key, key=lambda word: (-model.wv.get_vecattr(word, "count"), word))
        return seconds, np.stack([model.wv[word] for word in order])


def measure_words(seconds: float, *, count: int = 20_000) -> Iterator[dict[str, object]]:
    """Yield rows of words a second and of the probe, for each mode and library, and the ratio of the rates.

    Args:
        seconds: about how long each contender is measured for each mode.
        count: the number of sentences of the micro-world.
    """
    sentences = _sentences(count)
    words = sum(map(len, sentences))
    kinds: dict[str, type[Contender]] = {_OURS: OurVectors}
    if importlib.util.find_spec("gensim") is not None:
        kinds[_PEER] = Gensim
    epochs = max(1, round(_EPOCHS_A_SECOND * seconds / 3))
    size = f"{words:,} words of {count:,} sentences, width {_WIDTH}, window {_WINDOW}, {_NEGATIVES} negatives"
    yield about("words", f"{size}, {epochs} epochs", ["gensim"])
    cbow = CBOWConfig(_WINDOW)
    vocabulary = Windows.from_words(sentences, cbow, seed=1).words
    for mode in ("cbow", "skip-gram"):
        with ExitStack() as stack:
            sides = {name: stack.enter_context(Side(kind, sentences, mode)) for name, kind in kinds.items()}
            measured = alternate(sides, epochs, seconds, rounds=1, warm_up=1)
        rates = {name: words * epochs / _seconds(runs) for name, runs in measured.items()}
        for name, runs in measured.items():
            score = similar_kinds(vocabulary, runs[-1].result[1])
            yield {"mode": mode, "library": name, "words_per_second": round(rates[name]), "similar": round(score, 4)}
        if _PEER in rates:
            yield {"mode": mode, "ratio": round(rates[_OURS] / rates[_PEER], 2)}


def _seconds(runs: Sequence[Measurement]) -> float:
    """The seconds of training of the fastest run."""
    return min(float(run.result[0]) for run in runs)


def _sentences(count: int) -> list[list[str]]:
    """Return the words of Portuguese sentences, in lower case."""
    texts = (pair.target.lower() for pair in write("train", count))
    return [[text[start:end] for start, end in word_spans(text)] for text in texts]


def similar_kinds(words: Sequence[str], vectors: Vectors) -> float:
    """Return the share of nouns whose nearest noun, by cosine, is of the same kind: a food, a vehicle, a person ...

    Args:
        words: of the vocabulary.
        vectors: (V,D), their vectors.
    """
    kinds = _kinds()
    rows = [row for row, word in enumerate(words) if word in kinds]
    chosen = vectors[rows] / np.maximum(np.linalg.norm(vectors[rows], axis=1, keepdims=True), 1e-12)
    cosines = chosen @ chosen.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.argmax(axis=1).tolist()
    return float(np.mean([bool(kinds[words[row]] & kinds[words[rows[near]]]) for row, near in zip(rows, nearest)]))


def _kinds() -> Mapping[str, frozenset[str]]:
    """The kinds of each noun of the micro-world, by its singular."""
    kinds: dict[str, frozenset[str]] = {}
    for noun in lexicon.NOUNS:
        own = frozenset(filter(str.isupper, noun.kinds))
        kinds[noun.portuguese] = kinds.get(noun.portuguese, frozenset()) | own
    return kinds
