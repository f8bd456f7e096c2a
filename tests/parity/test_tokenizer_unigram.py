"""Unigram: the best segmentation against brute force, and against `sentencepiece` where it is installed (row D2)."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from atento.text import Tokenizer


def test_the_segmentation_is_the_best_of_all() -> None:
    """Every segmentation of short words is scored; the tokenizer's must have the highest score."""
    chance = random.Random(5)
    pieces = sorted({"".join(chance.choice("abc") for _ in range(chance.randint(2, 4))) for _ in range(30)})
    scores = {piece: -chance.uniform(1, 9) for piece in ["▁", "a", "b", "c", *pieces]}
    tokenizer = Tokenizer.from_vocabulary("unigram", list(scores), scores=list(scores.values()))

    def all_of(word: str) -> Iterator[tuple[str, ...]]:
        if not word:
            yield ()
        for end in range(1, len(word) + 1):
            if word[:end] in scores:
                yield from ((word[:end], *rest) for rest in all_of(word[end:]))

    for _ in range(200):
        word = "".join(chance.choice("abc") for _ in range(chance.randint(1, 10)))
        found = tokenizer.tokens(tokenizer.encode(word))
        best = max(sum(scores[piece] for piece in option) for option in all_of("▁" + word))
        assert sum(scores[piece] for piece in found) == pytest.approx(best, abs=1e-9)


def test_sentencepiece_cuts_alike_with_the_same_pieces(tmp_path: Path) -> None:
    """A model that `sentencepiece` trained; its pieces and scores in our tokenizer; its segmentation is ours."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra spm)")
    chance = random.Random(2)
    parts = ["ga", "to", "ca", "chor", "ro", "pu", "lou", "mas", "ção", "inho", "mente", "rá", "pi", "da"]
    words = ["".join(chance.choice(parts) for _ in range(chance.randint(1, 4))) for _ in range(400)]
    lines = [" ".join(chance.choice(words) for _ in range(8)) for _ in range(800)]
    options = {"model_prefix": str(tmp_path / "m"), "normalization_rule_name": "identity", "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), vocab_size=200, **options)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    numbers = range(3, theirs.get_piece_size())
    pieces, scores = [theirs.id_to_piece(i) for i in numbers], [theirs.get_score(i) for i in numbers]
    ours = Tokenizer.from_vocabulary("unigram", pieces, scores=scores)
    unseen = ["".join(chance.choice(parts) for _ in range(chance.randint(1, 5))) for _ in range(300)]
    for text in [*lines[:200], *unseen]:
        assert ours.tokens(ours.encode(text)) == theirs.encode(text, out_type=str)
