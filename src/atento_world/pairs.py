"""Sentence pairs with their gold labels, and how tagged words become text: contraction, spelling, links, clauses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from atento_world.expressions import CONTRACTIONS

_NO_SPACE_BEFORE = frozenset(".,?!")


@dataclass(frozen=True)
class Entity:
    """A named entity: words `start` up to (not including) `end` of one side; PER, LOC or ORG."""

    label: str
    side: Literal["source", "target"]
    start: int
    end: int


@dataclass(frozen=True)
class Clause:
    """What the grammar decided of a main clause.

    `form` is present, past, future, progressive, past-progressive, can, must or should. `negative`: it has *not* or
    *never*. `plural`: the number that its verb agrees with in Portuguese; None without a subject (*há*). `ambiguous`:
    the Portuguese verb has the same form in present and past (*nós cantamos*).
    """

    form: str
    negative: bool
    plural: bool | None
    ambiguous: bool

    @property
    def tense(self) -> str | None:
        """The tense: present, past or future; None for *can*, *must* and *should*."""
        return {"progressive": "present", "past-progressive": "past"}.get(
            self.form, self.form if self.form in ("present", "past", "future") else None
        )


@dataclass(frozen=True)
class Pair:
    """An English sentence, its Portuguese translation, and the gold labels of both.

    `alignment` contains sorted (source word, target word) indices; every word has at least one link: a word without a
    counterpart (do-support, an article that only one language has) is linked to the counterpart of the word that it
    belongs to. Tags are the universal parts of speech; a contraction (*do*, *na*, *dele*) has the tag of its
    preposition. `clauses` are the main clauses: those that no other clause contains.
    """

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]
    source_tags: tuple[str, ...]
    target_tags: tuple[str, ...]
    entities: tuple[Entity, ...]
    structure: str
    clauses: tuple[Clause, ...] = ()


class Word(NamedTuple):
    """A word of an unfinished sentence; words of the two sides that share a link number are aligned."""

    text: str
    tag: str
    links: tuple[int, ...]
    entity: tuple[str, int] | None = None  # label, index within the sentence
    role: str = ""  # of a scene (`scenes.Scene`): doer, thing, place, time


class Derived(NamedTuple):
    """A clause as the grammar wrote it: its Portuguese main verb, and the words of its subject and complements."""

    clause: Clause
    verb: Word
    parts: list[Word]


def main_clauses(derived: Sequence[Derived], target: Sequence[Word]) -> tuple[Clause, ...]:
    """Return the clauses whose verb is in the sentence, and not in a subject or complement of another clause.

    Words are compared by identity: the same word may occur twice in a sentence.
    """
    contained = {id(word) for one in derived for word in one.parts}
    main = {id(word) for word in target} - contained
    return tuple(one.clause for one in derived if id(one.verb) in main)


def contract(words: Sequence[Word]) -> list[Word]:
    """Join prepositions with a following determiner or pronoun: *de o* → *do*, *a a* → *à*, *de ele* → *dele*."""
    out: list[Word] = []
    for word in words:
        if out and word.tag in ("DET", "PRON") and out[-1].tag == "ADP":
            joined = CONTRACTIONS.get((out[-1].text, word.text))
            if joined is not None:
                before = out.pop()
                role = word.role if word.role == before.role else ""
                out.append(Word(joined, "ADP", before.links + word.links, role=role))
                continue
        out.append(word)
    return out


def spell(words: Sequence[str]) -> str:
    """Join words to a line of text, without a space before punctuation."""
    text = words[0]
    for word in words[1:]:
        text += word if word in _NO_SPACE_BEFORE else f" {word}"
    return text


def capitalise(words: list[Word]) -> list[Word]:
    """Change the first letter of the first word to upper case."""
    first = words[0]
    return [first._replace(text=first.text[0].upper() + first.text[1:]), *words[1:]]


def finished(link: int, source: list[Word], target: list[Word], punctuation: str) -> tuple[list[Word], list[Word]]:
    """Return two rows of words as they are spelled: contracted, capitalised, with punctuation ("" for none)."""
    target = contract(target)
    if punctuation:
        end = Word(punctuation, "PUNCT", (link,))
        source, target = [*source, end], [*target, end]
    return capitalise(source), capitalise(target)


def finish(
    link: int, source: list[Word], target: list[Word], punctuation: str, structure: str, derived: Sequence[Derived] = ()
) -> Pair:
    """Make a pair of two rows of words (see `finished`), with its main clauses."""
    clauses = main_clauses(derived, target)
    return _pair_up(*finished(link, source, target, punctuation), structure, clauses)


def _pair_up(source: Sequence[Word], target: Sequence[Word], structure: str, clauses: tuple[Clause, ...]) -> Pair:
    positions: dict[int, list[int]] = {}  # link -> the words of the source that have it
    for i, word in enumerate(source):
        for link in word.links:
            positions.setdefault(link, []).append(i)
    alignment = {(i, j) for j, word in enumerate(target) for link in word.links for i in positions.get(link, ())}
    source_words = tuple([word.text for word in source])
    target_words = tuple([word.text for word in target])
    return Pair(
        spell(source_words),
        spell(target_words),
        source_words,
        target_words,
        tuple(sorted(alignment)),
        tuple([word.tag for word in source]),
        tuple([word.tag for word in target]),
        (*_entities(source, "source"), *_entities(target, "target")),
        structure,
        clauses,
    )


def _entities(words: Sequence[Word], side: Literal["source", "target"]) -> list[Entity]:
    entities: list[Entity] = []
    last: tuple[str, int] | None = None
    for i, word in enumerate(words):
        if word.entity is not None and word.entity == last:
            entities[-1] = Entity(entities[-1].label, side, entities[-1].start, i + 1)
        elif word.entity is not None:
            entities.append(Entity(word.entity[0], side, i, i + 1))
        last = word.entity
    return entities
