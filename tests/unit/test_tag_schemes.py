"""Schemes of tags: conversion, recognition, illegal tags, the best legal sequence by an exhaustive search."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atento.base.errors import UsageError
from atento.data.records.marked_entities import normalized
from atento.metrics.tag_schemes import SCHEMES, converted, entities, illegal, scheme_of, scheme_of_labels
from atento.networks.crf import Chain, best_tags
from atento.tasks.tagging import transitions
from failing import fails

Segments = tuple[tuple[str, int], ...]  # type ("" is outside) and length, one behind the other


def segmentations(length: int) -> Iterator[Segments]:
    """All ways to cut a sentence into entities of two types and single words outside."""
    if not length:
        yield ()
    for size in range(1, length + 1):
        for kind in ("X", "Y", "") if size == 1 else ("X", "Y"):
            yield from (((kind, size), *after) for after in segmentations(length - size))


def written(segments: Segments, scheme: str) -> tuple[str, ...]:
    """The tags of a sentence by the definition of each scheme."""
    tags: list[str] = []
    before = ""
    for kind, size in segments:
        first, last, single = {
            "IOB1": ("B" if kind == before else "I", "I", "B" if kind == before else "I"),
            "IOB2": ("B", "I", "B"),
            "BIOES": ("B", "E", "S"),
            "BILOU": ("B", "L", "U"),
        }[scheme]
        prefixes = single if size == 1 else first + "I" * (size - 2) + last
        tags += ["O"] if not kind else [f"{prefix}-{kind}" for prefix in prefixes]
        before = kind
    return tuple(tags)


ALL = [segments for length in range(5) for segments in segmentations(length)]


def test_every_sentence_is_converted_to_each_scheme_and_other_tags_have_none() -> None:
    for scheme in SCHEMES:
        for segments in ALL:
            tags = written(segments, scheme)
            spans, at = [], 0
            for kind, size in segments:
                spans += [(kind, at, at + size)] if kind else []
                at += size
            assert entities(tags) == spans, tags
            assert illegal(tags, scheme) == [], tags
            for wanted in SCHEMES:
                assert converted(tags, wanted) == written(segments, wanted), (tags, wanted)
        assert scheme_of(written(segments, scheme) for segments in ALL) == scheme
        legal = {written(segments, scheme) for segments in ALL}
        prefixes = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}[scheme]
        every = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in "XY")]
        for length in range(1, 4):
            for sentence in product(every, repeat=length):
                assert bool(illegal(sentence, scheme)) == (sentence not in legal), sentence
    assert scheme_of([("NOUN", "VERB", "O")]) is None and scheme_of([("PRO-KS-REL",)]) is None
    assert scheme_of([("O", "O")]) is None and scheme_of([]) is None
    assert scheme_of([("B-X", "L-X", "S-X")]) is None  # of two schemes
    assert scheme_of([("B-X", "I-X"), ("O", "I-X")]) == "IOB2"  # one slip does not make it IOB1
    sentences = [("NOUN", "VERB")]
    assert normalized(sentences, str) == (sentences, [])
    read = ([("B-X", "B-X"), ("O",)], ["its tags are IOB1, and are read as IOB2"])
    assert normalized([("I-X", "B-X"), ("O",)], str) == read and normalized([("B-X", "E-X", "O")], str)[1] == []
    slips = [("B-X",), ("O", "I-X", "O", "I-Y"), ("B-X", "I-Y")]
    same, notes = normalized(slips, lambda number: f"a.conll:{10 * number}")
    assert same == slips and notes == [
        "3 tags cannot follow the tag before by the rules of IOB2; the first is 'I-X' of word 2 of the sentence at "
        "a.conll:10"
    ]
    fails(UsageError, "unknown scheme 'IOB'", converted, ("O",), "IOB")


def test_a_prefix_alone_stays_one() -> None:
    assert converted(("B", "I", "O", "I-X"), "BIOES") == ("B", "E", "O", "S-X")


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
    inner = sum(chain.transitions[left, right] for left, right in pairwise(tags))
    return bool(chain.start[tags[0]] + chain.end[tags[-1]] + inner == 0)


def best_sequence(scores: NDArray[np.float64], chain: Chain) -> list[int]:
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
