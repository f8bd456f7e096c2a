"""Schemes of tags, legal transitions, and the best legal sequence beside an exhaustive search."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.metrics.tag_schemes import entities
from atento.tasks.tag_sequences import (
    SCHEMES,
    Scheme,
    best_sequence,
    name_entities,
    scheme_of,
    scheme_of_labels,
    split_tag,
    transitions,
)

IOB = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
BIOES = ["B-PER", "E-PER", "I-PER", "O", "S-LOC", "S-PER"]


def test_split_tag() -> None:
    assert [split_tag(tag) for tag in ("I-PER", "U-LOC", "L-LOC", "O", "B", "B-a-b")] == [
        ("I", "PER"),
        ("S", "LOC"),
        ("E", "LOC"),
        ("O", ""),
        ("B", "_"),
        ("B", "a-b"),
    ]


def test_labels_that_name_entities() -> None:
    assert name_entities(IOB) and name_entities(BIOES) and name_entities({"I-X", "O"})
    assert not name_entities(["NOUN", "VERB", "O"]) and not name_entities(["B-PER", "I-PER", "X"])
    assert not name_entities(["I", "O", "S"])  # parts of speech may be single letters


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("B-PER I-PER O B-LOC", "IOB2"),
        ("I-PER I-PER O I-LOC", "IOB1"),
        ("I-PER B-PER I-PER", "IOB1"),
        ("B-PER E-PER O S-LOC", "BIOES"),
        ("B-PER L-PER O U-LOC", "BIOES"),
        ("I-PER O B-LOC", None),  # neither
        ("B-PER O S-LOC", None),
        ("DET NOUN VERB", None),
        ("O O", None),
    ],
)
def test_the_scheme_of_sequences(tags: str, scheme: Scheme | None) -> None:
    assert scheme_of([tags.split(), ["O"] if "O" in tags else tags.split()[:1] * 0]) == scheme


def test_the_scheme_that_labels_suggest() -> None:
    assert scheme_of_labels(IOB) == "IOB2" and scheme_of_labels(BIOES) == "BIOES"


def test_legal_sequences_are_those_of_the_strict_reading() -> None:
    """A sequence is legal exactly where a strict reading of its scheme finds the entities of the lenient one, and each
    word with a letter is inside of one.
    """
    for scheme, labels in (("IOB2", IOB), ("BIOES", ["B-A", "I-A", "E-A", "S-A", "B-C", "E-C", "O"])):
        legal = transitions(labels, scheme)  # type: ignore[arg-type]
        for numbers in product(range(len(labels)), repeat=3):
            tags = [labels[number] for number in numbers]
            spans = entities(tags, scheme)
            inside = sum(end - start for _, start, end in spans)
            strict = spans == entities(tags) and inside == sum(tag != "O" for tag in tags)
            assert legal.allow(numbers) == strict, tags


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 4), scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 10**6))
def test_the_best_sequence_is_that_of_an_exhaustive_search(length: int, scheme: Scheme, seed: int) -> None:
    labels = BIOES if scheme == "BIOES" else IOB
    scores = np.log(np.random.default_rng(seed).dirichlet(np.ones(len(labels)), size=length))
    legal = transitions(labels, scheme)
    sequences = [numbers for numbers in product(range(len(labels)), repeat=length) if legal.allow(numbers)]
    best = max(sequences, key=lambda numbers: sum(scores[word, tag] for word, tag in enumerate(numbers)))
    assert best_sequence(scores, legal) == list(best)


def test_where_no_sequence_is_legal_one_breaks_the_scheme_as_little_as_possible() -> None:
    legal = transitions(["I-PER", "E-PER"], "BIOES")
    assert best_sequence(np.log([[0.4, 0.6], [0.9, 0.1]]), legal) == [0, 1]  # the beginning alone is illegal
    assert best_sequence(np.zeros((0, 2)), legal) == []
