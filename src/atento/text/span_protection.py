"""Translations that keep the terms of a glossary, and what must not change: the searches that it takes, in their order.

`protected_outputs` asks for translations and alignments and knows no model: the service asks its processes for them.
"""

import re
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

from atento.text.glossary import Glossary, TermMatch, has_spaces
from atento.text.protected_spans import Link, ProtectedText, has_words
from atento.text.words import word_spans

MOST_FORMS = 4  # of a term, that are tried
_BETWEEN = re.compile(r"(?<=\w[.!?…])\W*\s")  # two sentences


@dataclass(frozen=True)
class Output:
    """A translation, the score that compares it with others of its text, and what it was made of."""

    text: str
    score: float
    made: object = None


Outputs = list[list[Output]]


@dataclass(frozen=True)
class Translate:
    """Asks for the translations of texts, best first.

    `own` has options of each text, `prefix` and `required_words`; empty: none has. All texts, or none, have required
    words. A text has no output where the vocabulary, or the room, does not allow its options. `rows` are the numbers of
    the texts, on which their samples depend.
    """

    texts: list[str]
    own: list[dict[str, object]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Align:
    """Asks for the links of each pair of a source and an output."""

    pairs: list[tuple[str, str]]


Result = TypeVar("Result")
Asking = Generator[Translate | Align, Any, Result]
"""Asks for translations and alignments; what comes back is `Outputs`, or a list of links for each pair."""


def protected_outputs(
    texts: Sequence[str], glossary: Glossary | None, *, protect: bool, tags: bool = False
) -> Asking[Outputs]:
    """The translations of texts, which keep terms and spans.

    Args:
        texts: the sources.
        glossary: its terms; an output that lacks one is searched again.
        protect: whether tags, placeholders, addresses, numbers and emoji stay as they are: tags are taken out of the
            source and set by alignment, and so are the others where the output lacks one.
        tags: whether tags at least stay so.
    """
    # tags are always taken out beside words, the other spans only where an output has lost one
    taken = [(protect or tags) and has_words(text) for text in texts]
    kept = [
        ProtectedText.of(text, tags_only=True) if out else ProtectedText(text, (), text)
        for text, out in zip(texts, taken)
    ]
    outputs: Outputs = yield Translate([one.bare for one in kept], rows=[*range(len(kept))])

    def without_spans(lost: list[int]) -> Asking[None]:
        """Translate texts whose outputs lack a span again, without their spans."""
        for number in lost:
            kept[number] = ProtectedText.of(texts[number])
        again: Outputs = (yield Translate([kept[number].bare for number in lost], rows=lost)) if lost else []
        for number, rows in zip(lost, again):
            outputs[number] = rows

    def with_terms(numbers: Sequence[int]) -> Asking[list[int]]:
        """Keep the terms of some texts, in one output each, and say of which."""
        found = [] if glossary is None else [(number, glossary.find(kept[number].bare)) for number in numbers]
        searches = {n: _with_terms(kept[n].bare, outputs[n][0], terms) for n, terms in found if terms}
        for number, output in (yield from _side_by_side(searches)).items():
            outputs[number] = [output]
        return list(searches)

    def is_lost(number: int) -> bool:
        return protect and not all(kept[number].is_whole(row.text) for row in outputs[number])

    yield from without_spans([number for number in range(len(kept)) if is_lost(number)])
    changed = yield from with_terms(range(len(kept)))
    # a search for a term may lose a span that stayed in the text, if it is not in the term, as 24/7 is
    lost = [n for n in changed if is_lost(n) and len(ProtectedText.of(texts[n]).spans) > len(kept[n].spans)]
    found = {n: glossary.find(kept[n].bare) for n in lost} if glossary else {}
    lost = [n for n, terms in found.items() if not any(ProtectedText.of(one.term.source).spans for one in terms)]
    yield from without_spans(lost)
    yield from with_terms(lost)
    with_spans = [number for number, one in enumerate(kept) if one.spans]
    pairs = [(kept[number].bare, row.text) for number in with_spans for row in outputs[number]]
    links = iter((yield Align(pairs)) if pairs else ())  # in the order of the pairs
    for number in with_spans:  # spans go to where their words went
        one = kept[number]
        outputs[number] = [replace(row, text=one.joined(row.text, next(links))) for row in outputs[number]]
    return outputs


def _side_by_side(searches: Mapping[int, Asking[Output]]) -> Asking[dict[int, Output]]:
    """The results of several searches; what they ask in one round is asked at once."""
    results, answers = dict[int, Output](), dict[int, Any](dict.fromkeys(searches))  # None starts a generator
    while answers:
        aligns, plain, required = dict[int, Align](), dict[int, Translate](), dict[int, Translate]()
        for number, answer in answers.items():
            try:
                asked = searches[number].send(answer)
            except StopIteration as end:
                results[number] = end.value
                continue
            if isinstance(asked, Align):
                aligns[number] = asked
            else:
                (required if "required_words" in asked.own[0] else plain)[number] = asked  # apart: see `Translate`
        answers = {}
        if aligns:
            links = iter((yield Align([pair for one in aligns.values() for pair in one.pairs])))
            answers |= {number: [next(links) for _ in one.pairs] for number, one in aligns.items()}
        for group in (plain, required):
            texts = [text for one in group.values() for text in one.texts]
            if texts:
                rows = [number for number, one in group.items() for _ in one.texts]
                outputs = iter((yield Translate(texts, [own for one in group.values() for own in one.own], rows)))
                answers |= {number: [next(outputs) for _ in one.texts] for number, one in group.items()}
    return results


def _with_terms(source: str, output: Output, terms: Sequence[TermMatch]) -> Asking[Output]:
    """A translation that has a form of each term, as many times as the source has the term.

    From left to right: the words that a lost term is aligned with become a form of it, and what follows stays. What has
    no aligned words is a required word of a search, and if more than the word is written in one, it is set where it
    stands in the source, in proportion, and the search goes on behind it. A term that is there, but fewer times, is not
    required where it has no aligned words: it may be a pronoun.
    """
    prefix, stuck = "", False  # the text that is final; whether a term could not be written
    left, times = list(terms), Counter(met.term for met in terms)  # what was not written yet
    for attempt in range(2 * len(terms)):  # each is tried twice at most
        there = {met.term: met.term.places(output.text) for met in terms}  # where each term stands in the output
        fewer = [met for met in left if len(there[met.term]) < times[met.term]]
        lost = [met for met in fewer if not there[met.term]]
        if not fewer or (stuck and not lost):
            break
        (links,) = yield Align([(source, output.text)])
        found = [(*at, met) for met in fewer if (at := _aligned(met, output.text, links, len(prefix))) is not None]
        aligned = [one for one in found if not any(one[0] in span for span in there[one[2].term])]
        places = [] if stuck else aligned
        if not places and not lost:
            break
        if not places and (stuck or attempt < len(terms)):
            required = [*dict.fromkeys(_ended(met.term.forms[0]) for met in lost)]
            options: dict[str, object] = {"required_words": required} | ({"prefix": prefix} if prefix else {})
            (rows,) = yield Translate([source], [options])
            behind = _BETWEEN.split(rows[0].text if rows else "")[1:]  # sentences behind the first one
            alone = [sentence.strip(" .!?…").casefold() for sentence in behind]
            # terms of which such a sentence consists are only added
            if added := [met for met in lost if any(form.casefold() in alone for form in met.term.forms)]:
                left = [met for met in left if met not in added]
                continue
            output = rows[0] if rows else output
            lost = [met for met in lost if not met.term.places(output.text)]
        if not places and lost:
            share = round(len(output.text) * lost[0].start / len(source))  # its place in the source, in proportion
            places = [(max(len(prefix), output.text.rfind(" ", 0, share) + 1), None, lost[0])]
        if places:
            first = min(places, key=lambda place: place[0])  # from left to right
            prefix, output = yield from _with_term(source, output, *first)
            left, stuck = [met for met in left if met is not first[2] or not prefix], not prefix
    return output


def _with_term(source: str, output: Output, place: int, end: int | None, met: TermMatch) -> Asking[tuple[str, Output]]:
    """The beginning of a translation with a term from `place` to `end`, in the form of the best score; and that.

    What follows stays: a search behind a word that the model would not write tends to write the usual word too, or to
    leave out the rest. Without an end, or where that cannot be written, it is searched anew. A form stays as it is, but
    for the capital of a sentence, which the source and what it replaces begin with. Where none can be written, with
    that or as it is, the output stays and the beginning is empty.
    """
    forms = met.term.forms[:MOST_FORMS]
    begins = re.search(r"(?:^|[.!?…]\s)\W*$", output.text[:place]) and output.text[place : place + 1].isupper()
    begins = begins and next(filter(str.isalpha, source), "").isupper()
    capitals = [form[:1].upper() + form[1:] if form.islower() else form for form in forms] if begins else forms
    for written in dict.fromkeys((tuple(capitals), forms)):
        begun = [output.text[:place] + _ended(form) for form in written]
        for whole in (begun,) if end is None else ([one.rstrip() + output.text[end:] for one in begun], begun):
            outputs: Outputs = yield Translate([source] * len(whole), [{"prefix": one} for one in whole])
            if found := [(n, rows[0]) for n, rows in enumerate(outputs) if rows]:
                best, row = max(found, key=lambda one: one[1].score)
                return begun[best], row if whole is begun else replace(row, text=whole[best])
    return "", output


def _ended(form: str) -> str:
    """A form whose last word is over, where its script has spaces."""
    return form + " " * has_spaces(form[-1])


def _aligned(met: TermMatch, output: str, links: Sequence[Link], least: int) -> tuple[int, int | None] | None:
    """Where the words of an output begin and end that come from a term, at `least` or later.

    It is the word that attends to the term most, and of a term of several words (24/7 has three) also those beside it
    that do; of a term of one word those that a sign joins to it, as in e-mail. A word with hyphens is taken as a
    whole, unless it has a word that comes from beside a term without a hyphen.
    """
    after = [link for link in links if link.start >= least]  # words from `least` on
    found = [link.source_start < met.end and met.start < link.source_end for link in after]
    if not any(found):
        return None
    several = len(word_spans(met.term.source)) > 1
    gaps = [output[one.end : two.start] for one, two in pairwise(after)]  # between each word and the next
    beside = [several or (gap != "" and not re.search(r"\s", gap)) for gap in gaps]
    first = last = max((n for n, is_of_term in enumerate(found) if is_of_term), key=lambda n: after[n].weight)
    while first > 0 and found[first - 1] and beside[first - 1]:
        first -= 1
    while last + 1 < len(found) and found[last + 1] and beside[last]:
        last += 1
    start, end = after[first].start, after[last].end
    for word in re.finditer(r"\w+(?:-\w+)+", output):
        joined = [is_of_term for one, is_of_term in zip(after, found) if word.start() <= one.start < word.end()]
        if max(least, word.start()) <= start < word.end() and ("-" in met.term.source or all(joined)):
            start, end = max(least, word.start()), max(end, word.end())
    return start, end
