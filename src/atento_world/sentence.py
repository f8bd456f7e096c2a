"""The state of a sentence that is being written: random choices, link numbers, allowed adjectives."""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from random import Random
from typing import TypeVar

from atento_world.lexicon import ADJECTIVES, Adjective, Expression, Noun
from atento_world.pairs import Clause, Derived, Word

T = TypeVar("T")

HELD_OUT_PERCENT = 15


@cache
def held_out(adjective: Adjective, noun: Noun) -> bool:
    """Return whether train and valid exclude this pair: a fixed 15 of 100, by a hash of the two English words."""
    digest = blake2b(f"{adjective.english} {noun.english}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < HELD_OUT_PERCENT


@cache
def adjectives_for(noun: Noun, use: str, unseen: bool) -> tuple[Adjective, ...]:
    """Return the adjectives that suit a noun in a use of `fits`; `unseen` selects the held-out ones."""
    kinds = set(noun.kinds)
    suit = (a for a in ADJECTIVES if kinds & set(a.kinds) and fits(a, use))
    return tuple(a for a in suit if held_out(a, noun) == unseen)


def fits(adjective: Adjective, use: str) -> bool:
    """Return whether an adjective can be an attribute (also *indefinite*), a predicate or in a comparison."""
    if use == "indefinite":
        return adjective.attributive and not adjective.definite
    if use == "attribute":
        return adjective.attributive
    return not adjective.definite and (use == "predicate" or bool(adjective.comparative))


class Draft:
    """The state that the grammar's functions share for one sentence.

    With `unseen`, about half of the adjectives come from held-out pairs, and `unseen_pairs` counts them; without it
    held-out pairs never occur. `clauses` are the clauses that were written, inner ones first.
    """

    __slots__ = ("_links", "_random", "_used", "clauses", "unseen", "unseen_pairs")

    def __init__(self, random: Random, unseen: bool = False) -> None:
        self._random = random.random
        self.unseen = unseen
        self.unseen_pairs = 0
        self._links = 0
        self._used: list[Noun] = []
        self.clauses: list[Derived] = []

    def record(
        self, verb: Word, parts: list[Word], form: str, *, negative: bool, plural: bool | None, ambiguous: bool = False
    ) -> None:
        """Remember a clause by its Portuguese main verb; see `pairs.Derived`."""
        self.clauses.append(Derived(Clause(form, negative, plural, ambiguous), verb, parts))

    def link(self) -> int:
        """Return a new link number."""
        self._links += 1
        return self._links

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options with equal probability."""
        return options[int(self._random() * len(options))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random() < probability

    def pick_noun(self, options: Sequence[Noun]) -> Noun:
        """Return a noun, preferably one that the sentence does not have yet."""
        noun = self.pick(options)
        for _ in range(3):
            if noun not in self._used:
                break
            noun = self.pick(options)
        self._used.append(noun)
        return noun

    def pick_adjective(self, noun: Noun, use: str) -> Adjective | None:
        """Return an adjective for this noun that the split allows; None if there is none."""
        if self.unseen and self.chance(0.5):
            options = adjectives_for(noun, use, True)
            if options:
                self.unseen_pairs += 1
                return self.pick(options)
        options = adjectives_for(noun, use, False)
        return self.pick(options) if options else None

    def expression(self, expression: Expression) -> tuple[list[Word], list[Word]]:
        """Return a fixed expression as linked words of both sides."""
        left: list[list[int]] = [[] for _ in expression.source]
        right: list[list[int]] = [[] for _ in expression.target]
        for i, j in expression.links:
            number = self.link()
            left[i].append(number)
            right[j].append(number)
        source = [Word(text, tag, tuple(links)) for (text, tag), links in zip(expression.source, left)]
        target = [Word(text, tag, tuple(links)) for (text, tag), links in zip(expression.target, right)]
        return source, target

    def tie(self, source: str, target: str, tag: str, target_tag: str = "") -> tuple[Word, Word]:
        """Return one word on each side, linked to each other."""
        links = (self.link(),)
        return Word(source, tag, links), Word(target, target_tag or tag, links)
