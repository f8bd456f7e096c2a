"""The state of a sentence that is being written: random choices, link numbers, allowed adjectives."""

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from random import Random
from typing import TypeVar

from atento.world.lexicon import ADJECTIVES, Adjective, Expression, Noun
from atento.world.pairs import Word

T = TypeVar("T")

HELD_OUT_PERCENT = 15


@cache
def held_out(adjective: Adjective, noun: Noun) -> bool:
    """Whether this pair is kept out of train and valid: a fixed 15 in 100, by a hash of the two English words."""
    digest = blake2b(f"{adjective.english} {noun.english}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < HELD_OUT_PERCENT


@cache
def adjectives_for(noun: Noun, use: str, held: bool) -> tuple[Adjective, ...]:
    """The adjectives that suit a noun: for a use that `fits` knows; `held` for the held-out ones."""
    kinds = set(noun.kinds)
    suit = (a for a in ADJECTIVES if kinds & set(a.kinds) and fits(a, use))
    return tuple(a for a in suit if held_out(a, noun) == held)


def fits(adjective: Adjective, use: str) -> bool:
    """Whether an adjective can stand as attribute (also of an *indefinite* noun), as predicate or in a comparison."""
    if use == "indefinite":
        return adjective.attributive and not adjective.definite
    if use == "attribute":
        return adjective.attributive
    return not adjective.definite and (use == "predicate" or bool(adjective.comparative))


class Draft:
    """What the grammar's functions share while they write one sentence.

    With `unseen`, adjectives are drawn from the held-out pairs about half the time and `held` counts them;
    without it a held-out pair is never drawn.
    """

    __slots__ = ("_links", "_random", "_used", "held", "unseen")

    def __init__(self, random: Random, unseen: bool = False) -> None:
        self._random = random.random
        self.unseen = unseen
        self.held = 0
        self._links = 0
        self._used: list[Noun] = []

    def link(self) -> int:
        """A fresh link number."""
        self._links += 1
        return self._links

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each as likely as the other."""
        return options[int(self._random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability

    def pick_noun(self, options: Sequence[Noun]) -> Noun:
        """A noun, rather one that the sentence does not have yet."""
        noun = self.pick(options)
        for _ in range(3):
            if noun not in self._used:
                break
            noun = self.pick(options)
        self._used.append(noun)
        return noun

    def pick_adjective(self, noun: Noun, use: str) -> Adjective | None:
        """An adjective for this noun that the split allows; None if it has none."""
        if self.unseen and self.chance(0.5):
            options = adjectives_for(noun, use, True)
            if options:
                self.held += 1
                return self.pick(options)
        options = adjectives_for(noun, use, False)
        return self.pick(options) if options else None

    def expression(self, expression: Expression) -> tuple[list[Word], list[Word]]:
        """A fixed expression as words of both sides, linked."""
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
        """One word on each side, linked to each other."""
        links = (self.link(),)
        return Word(source, tag, links), Word(target, target_tag or tag, links)
