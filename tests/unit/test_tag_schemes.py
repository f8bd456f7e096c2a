"""Schemes of tags: every sentence of up to four words in every scheme, conversion, recognition, illegal tags."""

from collections.abc import Iterator
from itertools import product

from atento.base.errors import UsageError
from atento.data.records.marked_entities import normalized
from atento.metrics.tag_schemes import SCHEMES, converted, entities, illegal, scheme_of
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
