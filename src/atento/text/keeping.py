"""Translations that keep the terms of a glossary, and what must not change: the searches that it takes, in their order.

`keeping` asks for translations and alignments and knows no model, so that the service can ask its processes for them.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from atento.text.glossary import Glossary, Met, has_spaces
from atento.text.kept_spans import Kept, Link

MOST_FORMS = 4  # of a term, that are tried


@dataclass(frozen=True)
class Output:
    """A translation, the score that compares it with others of its text, and what it was made of."""

    text: str
    score: float
    made: object = None


Outputs = list[list[Output]]


@dataclass(frozen=True)
class Translate:
    """Asks for the translations of texts, best first."""

    texts: list[str]
    options: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Align:
    """Asks for the links of each pair of a source and an output."""

    pairs: list[tuple[str, str]]


Result = TypeVar("Result")
Asking = Generator[Translate | Align, Any, Result]
"""Asks for translations and alignments; what comes back is `Outputs`, or a list of links for each pair."""


def keeping(texts: Sequence[str], glossary: Glossary | None, *, protect: bool) -> Asking[Outputs]:
    """The translations of texts, which keep terms and spans.

    Args:
        texts: the sources.
        glossary: its terms; an output that lacks one is searched again.
        protect: whether tags, placeholders, addresses, numbers and emoji stay as they are: tags are taken out of the
            source and set by alignment, and so are the others where the output lacks one.
    """
    kept = [Kept.of(text, tags_only=True) if protect else Kept(text, (), text) for text in texts]
    outputs: Outputs = yield Translate([one.bare for one in kept])
    lost = [
        number
        for number, (one, rows) in enumerate(zip(kept, outputs))
        if protect and not all(one.is_whole(row.text) for row in rows)
    ]
    if lost:
        for number in lost:
            kept[number] = Kept.of(texts[number])
        again: Outputs = yield Translate([kept[number].bare for number in lost])
        for number, rows in zip(lost, again):
            outputs[number] = rows
    for number, one in enumerate(kept):
        if glossary is not None and (terms := glossary.find(one.bare)):
            outputs[number] = [(yield from _with_terms(one.bare, outputs[number][0], terms))]
    with_spans = [number for number, one in enumerate(kept) if one.spans]
    pairs = [(kept[number].bare, row.text) for number in with_spans for row in outputs[number]]
    links = iter((yield Align(pairs)) if pairs else ())
    for number in with_spans:
        one = kept[number]
        outputs[number] = [replace(row, text=one.joined(row.text, next(links))) for row in outputs[number]]
    return outputs


def _with_terms(source: str, output: Output, terms: Sequence[Met]) -> Asking[Output]:
    """A translation that has a form of each term.

    From left to right: the words that a lost term is aligned with become a form of it, and the search goes on behind
    it. What has no aligned words is a required word of a search, and if more than the word is written in one, it is
    set where it stands in the source, in proportion.
    """
    prefix = ""
    for attempt in range(2 * len(terms)):
        lost = [met for met in terms if not met.term.is_in(output.text)]
        if not lost:
            break
        (links,) = yield Align([(source, output.text)])
        places = [(place, met) for met in lost if (place := _aligned(met, links, len(prefix))) is not None]
        if not places and attempt < len(terms):
            options: dict[str, object] = {"required_words": [met.term.forms[0] for met in lost]} | (
                {"prefix": prefix} if prefix else {}
            )
            ((output, *_),) = yield Translate([source], options)
            lost = [met for met in terms if not met.term.is_in(output.text)]
        if not places and lost:
            share = round(len(output.text) * lost[0].start / len(source))
            places = [(max(len(prefix), output.text.rfind(" ", 0, share) + 1), lost[0])]
        if places:
            place, met = min(places, key=lambda found: found[0])
            prefix, output = yield from _with_term(source, output.text[:place], met, output.text[place:])
    return output


def _with_term(source: str, before: str, met: Met, rest: str) -> Asking[tuple[str, Output]]:
    """The beginning of a translation with a term in place of `rest`, in the form of the best score; and that."""
    best: tuple[str, Output] | None = None
    for form in met.term.forms[:MOST_FORMS]:
        begun = before + (form[:1].upper() + form[1:] if rest[:1].isupper() else form)
        begun += " " * has_spaces(form[-1])  # the word ends there
        ((output, *_),) = yield Translate([source], {"prefix": begun})
        if best is None or output.score > best[1].score:
            best = begun, output
    assert best is not None
    return best


def _aligned(met: Met, links: Sequence[Link], least: int) -> int | None:
    """Where the words of an output begin that come from a term, at `least` or later.

    It is the word that attends to the term most, and of a term of several words also those before it that do.
    """
    after = [link for link in links if link.start >= least]
    found = [link.source_start < met.end and met.start < link.source_end for link in after]
    if not any(found):
        return None
    first = max((n for n, is_of_term in enumerate(found) if is_of_term), key=lambda n: after[n].weight)
    while " " in met.term.source and first > 0 and found[first - 1]:
        first -= 1
    return after[first].start
