"""`atento bench words`: both sides train the same words, and the probe knows which nouns are alike."""

from types import TracebackType
from typing import Any

import numpy as np
import pytest

from atento_world import lexicon
from benchmarks import words as bench
from benchmarks.processes import Contender, Measurement
from benchmarks.words import Gensim, OurVectors, measure_words, similar_kinds

pytest.importorskip("gensim")


class InThisProcess:
    """A side without a process of its own, and without a pause between its runs."""

    here = True

    def __init__(self, kind: type[Contender], *arguments: Any) -> None:
        self.contender = kind()
        self.contender.load(*arguments)

    def __enter__(self) -> "InThisProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def run(self, work: Any) -> Measurement:
        return Measurement(0.0, self.contender.run(work), None)


def test_the_probe_is_the_share_of_nouns_next_to_one_of_their_kind() -> None:
    nouns = [noun for noun in lexicon.NOUNS if set(noun.kinds) <= {"A", "F"}]
    words = ["xyz", *(noun.portuguese for noun in nouns)]
    by_kind = np.array([[1.0, 0.9], *([1.0, 0.0] if noun.kinds == "A" else [0.0, 1.0] for noun in nouns)])
    assert similar_kinds(words, by_kind.astype(np.float32)) == 1.0
    mixed = np.zeros((5, 2), dtype=np.float32)
    mixed[:, 0] = 1.0
    mixed[3:, 1] = 1.0  # gato and pão, cachorro and maçã: each beside one of the other kind
    assert similar_kinds(["xyz", "gato", "pão", "cachorro", "maçã"], mixed) == 0.0


@pytest.mark.slow  # trains both sides
def test_both_sides_train_on_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Side", InThisProcess)
    monkeypatch.setattr(bench, "_EPOCHS_A_SECOND", 300)
    about, *rows = measure_words(0.01, count=300)
    assert about["bench"] == "words" and "300 sentences" in about["size"]
    for mode, (ours, peer, ratio) in zip(("cbow", "skip-gram"), (rows[:3], rows[3:])):
        assert (ours["mode"], ours["library"], peer["library"]) == (mode, "atento", "gensim")
        assert ratio["ratio"] == pytest.approx(ours["words_per_second"] / peer["words_per_second"], abs=0.01)
        assert 0 <= ours["similar"] <= 1 and 0 <= peer["similar"] <= 1
    sentences = bench._sentences(100)
    sides = OurVectors(), Gensim()
    for side in sides:
        side.load(sentences, "cbow")
    vectors = [side.run(1)[1] for side in sides]
    assert vectors[0].shape == vectors[1].shape == (len(sides[0].windows.words), 100)
