"""Schemes of tags, legal transitions, and the best legal sequence beside an exhaustive search."""

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atento.metrics.tag_schemes import SCHEMES, entities, scheme_of_labels
from atento.networks.crf import Chain, best_tags
from atento.tasks.tagging import transitions

IOB = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
BIOES = ["B-PER", "E-PER", "I-PER", "O", "S-LOC", "S-PER"]


def test_the_scheme_that_labels_suggest_and_legal_sequences_of_the_strict_reading() -> None:
    for labels, scheme in (
        (IOB, "IOB2"),
        (["I-LOC", "B-LOC", "O"], "IOB2"),  # in any order
        (["I-LOC", "I-PER", "O"], "IOB1"),
        (BIOES, "BIOES"),
        (["B-X", "L-X", "U-X", "O"], "BILOU"),
        (["NOUN", "VERB", "O"], None),
        (["B-PER", "I-PER", "X"], None),
        (["I", "O", "S"], None),  # parts of speech may be single letters
    ):
        assert scheme_of_labels(labels) == scheme
    # Where a strict reading finds the entities of the lenient one, and each word with a letter is inside of one
    for scheme, labels in (("IOB2", IOB), ("BIOES", ["B-A", "I-A", "E-A", "S-A", "B-C", "E-C", "O"])):
        legal = transitions(labels, scheme)
        for numbers in product(range(len(labels)), repeat=3):
            tags = [labels[number] for number in numbers]
            spans = entities(tags, scheme)
            inside = sum(end - start for _, start, end in spans)
            strict = spans == entities(tags) and inside == sum(tag != "O" for tag in tags)
            assert is_legal(numbers, legal) == strict, tags
    legal = transitions(["I-PER", "E-PER"], "BIOES")
    assert best_sequence(np.log([[0.4, 0.6], [0.9, 0.1]]), legal) == [0, 1]  # the beginning alone is illegal


def is_legal(tags: Sequence[int], chain: Chain) -> bool:
    """Whether a sequence of numbers of tags, not empty, is legal."""
    inner = sum(chain.transitions[left, right] for left, right in pairwise(tags))
    return bool(chain.start[tags[0]] + chain.end[tags[-1]] + inner == 0)


def best_sequence(scores: NDArray[np.float64], chain: Chain) -> list[int]:
    """The best sequence of one sentence."""
    return best_tags(torch.from_numpy(scores).unsqueeze(0), [len(scores)], chain)[0]


@settings(max_examples=30)
@given(length=st.integers(1, 4), scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 10**6))
def test_the_best_sequence_is_that_of_an_exhaustive_search(length: int, scheme: str, seed: int) -> None:
    labels = {"BIOES": BIOES, "BILOU": ["B-PER", "I-PER", "L-PER", "O", "U-LOC", "U-PER"]}.get(scheme, IOB)
    scores = np.log(np.random.default_rng(seed).dirichlet(np.ones(len(labels)), size=length))
    legal = transitions(labels, scheme)
    sequences = [numbers for numbers in product(range(len(labels)), repeat=length) if is_legal(numbers, legal)]
    best = max(sequences, key=lambda numbers: sum(scores[word, tag] for word, tag in enumerate(numbers)))
    assert best_sequence(scores, legal) == list(best)
