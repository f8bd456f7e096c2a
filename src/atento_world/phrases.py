"""Phrases of both languages at once: nouns with agreement and order, names, pronouns, prepositions, expressions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from atento_world.inflection import indefinite_article
from atento_world.lexicon import (
    DETERMINERS,
    FIXED,
    PEOPLE,
    PLACES,
    PRONOUNS,
    SURNAMES,
    TIMES,
    Adjective,
    Determiner,
    Expression,
    Name,
    Noun,
    Pronoun,
    names_of,
    nouns_of,
)
from atento_world.pairs import Word
from atento_world.sentence import Draft

_ARTICLE_FORMS = ("o", "a", "os", "as")
_ENTITY_LABELS = {"H": "PER", "Y": "LOC", "Z": "LOC", "G": "ORG"}
_DETERMINER = {entry.english: entry for entry in DETERMINERS}


@dataclass(slots=True)
class Phrase:
    """Words of both sides and the features that a verb or an adjective agrees with.

    Persons are as in `expressions.PRONOUNS`; `article` is the article that a possessive takes after *a, de, em, por*
    (*meu gato*, but *do meu gato*); `head` is the noun, if there is one.
    """

    source: list[Word]
    target: list[Word]
    english_person: int = 1
    portuguese_person: int = 1
    gender: str = "m"
    plural: bool = False
    head: Noun | None = None
    article: str = ""
    pronoun: Pronoun | None = None
    nominal: bool = True  # not a pronoun: inverts in "Onde está o gato?"

    @property
    def persons(self) -> tuple[int, int]:
        """The English and the Portuguese person."""
        return self.english_person, self.portuguese_person


def fixed(d: Draft, english: str) -> Phrase:
    """Return a closed word or expression of `expressions.PREPOSITIONS`, by its English words."""
    return expression(d, FIXED[english])


def expression(d: Draft, entry: Expression) -> Phrase:
    """Return a fixed expression as a phrase."""
    source, target = d.expression(entry)
    return Phrase(source, target)


def _index(gender: str, plural: bool) -> int:
    return (gender == "f") + 2 * plural


def adjective_form(adjective: Adjective, gender: str, plural: bool) -> str:
    """Return the Portuguese form that agrees with a gender and a number."""
    return adjective.forms[_index(gender, plural)]


@cache
def determiners(plural: bool, use: str, countable: bool) -> tuple[Determiner, ...]:
    """Return the determiners of a use (any, plain, indefinite, the), repeated by their weight."""
    chosen: list[Determiner] = []
    for entry in DETERMINERS:
        possessive = entry.possessive or bool(entry.owner)
        definite = entry.english in ("the", "this", "that", "these", "those", "every")
        suitable = {
            "any": True,
            "plain": possessive or entry.english == "the",
            "indefinite": not possessive and not definite,
            "the": entry.english == "the",
        }[use]
        if suitable and entry.forms[2 if plural else 0] and (countable or entry.english not in ("a", "every")):
            chosen += [entry] * entry.weight
    return tuple(chosen)


def noun_phrase(
    d: Draft,
    noun: Noun,
    determiner: Determiner | str | None,
    plural: bool = False,
    adjectives: Sequence[Adjective] = (),
    *,
    possessor: Phrase | None = None,
    very: bool = False,
) -> Phrase:
    """Return [determiner] adjectives noun → [determiner] early adjectives, noun, other adjectives, [owner].

    Adjectives keep their order in Portuguese (*the big red house* → *a casa grande vermelha*); `before` ones precede
    the noun (*um bom livro*). A possessor replaces the determiner: *the boy's dog* → *o cachorro do menino*.
    """
    form = _index(noun.gender, plural)
    noun_links = (d.link(),)
    source: list[Word] = []
    target: list[Word] = []
    after: list[Word] = []
    article = ""
    entry = _DETERMINER[determiner] if isinstance(determiner, str) else determiner
    if possessor is not None:
        last = possessor.source[-1]
        source += [*possessor.source[:-1], last._replace(text=last.text + "'s")]
        target.append(Word(_ARTICLE_FORMS[form], "DET", noun_links))
        after = [Word("de", "ADP", last.links), *with_article(possessor)]
    elif entry is not None:
        links = (d.link(),)
        source.append(Word(entry.english, entry.tag, links))
        tag = "NUM" if entry.tag == "NUM" else "DET"
        if entry.owner:  # *his dog* → *o cachorro dele*
            target.append(Word(_ARTICLE_FORMS[form], "DET", noun_links))
            after = [Word("de", "ADP", links), Word(entry.owner, "PRON", links)]
        else:
            target.append(Word(entry.forms[form], tag, links))
        article = _ARTICLE_FORMS[form] if entry.possessive else ""
    late: list[Word] = []
    for adjective in adjectives:
        left, right = d.tie(adjective.english, adjective.forms[form], "ADJ")
        words = target if adjective.before else late
        if very:
            adverb, adverbio = d.tie("very", "muito", "ADV")
            source.append(adverb)
            words.append(adverbio)
        source.append(left)
        words.append(right)
    source.append(Word(noun.english_plural if plural else noun.english, "NOUN", noun_links))
    target.append(Word(noun.portuguese_plural if plural else noun.portuguese, "NOUN", noun_links))
    if source[0].text == "a":  # *a* or *an*, by the word behind it
        source[0] = source[0]._replace(text=indefinite_article(source[1].text))
    person = (2, 3) if plural else (1, 1)
    return Phrase(source, target + late + after, *person, noun.gender, plural, noun, article)


def with_article(phrase: Phrase) -> list[Word]:
    """Return the Portuguese words after *a, de, em, por*: a possessive gets its article (*no meu carro*)."""
    if not phrase.article:
        return phrase.target
    return [Word(phrase.article, "DET", phrase.target[0].links), *phrase.target]


def name_phrase(d: Draft, name: Name, surname: str = "") -> Phrase:
    """Return a proper name: people with an optional surname, places and organisations with their article."""
    entity = (_ENTITY_LABELS[name.kind], d.link())
    english = name.english[1:] if name.english[0] == "the" else name.english
    links = [(d.link(),) for _ in english]
    source = [Word(text, "PROPN", link, entity) for text, link in zip(english, links)]
    if english == name.portuguese or name.kind == "Y":
        target = [Word(text, "PROPN", link, entity) for text, link in zip(name.portuguese, links)]
    else:  # adjective and noun are swapped: Banco Mundial, World Bank
        target = [Word(text, "PROPN", link, entity) for text, link in zip(name.portuguese, reversed(links))]
    if surname:
        left, right = d.tie(surname, surname, "PROPN")
        source.append(left._replace(entity=entity))
        target.append(right._replace(entity=entity))
    article_links = links[-1]
    if english != name.english:
        article_links = (d.link(),)
        source.insert(0, Word("the", "DET", article_links))
    if name.article:
        target.insert(0, Word(name.article, "DET", article_links))
    return Phrase(source, target, gender=name.gender)


def pronoun_phrase(d: Draft, pronoun: Pronoun) -> Phrase:
    """Return a personal pronoun as a subject."""
    left, right = d.tie(pronoun.english, pronoun.portuguese, "PRON")
    plural = pronoun.portuguese_person >= 2
    persons = pronoun.english_person, pronoun.portuguese_person
    return Phrase([left], [right], *persons, pronoun.gender, plural, pronoun=pronoun, nominal=False)


@cache
def _other_pronouns(pronoun: Pronoun | None) -> tuple[Pronoun, ...]:
    """Return the pronouns that refer to other people: after *we* neither *us* nor *me*."""
    first = pronoun is not None and pronoun.english in ("I", "we")
    return tuple(p for p in PRONOUNS if p is not pronoun and not (first and p.english in ("I", "we")))


def object_pronoun(d: Draft, subject: Phrase) -> Phrase:
    """Return a personal pronoun after a preposition that refers to other people: *com ele*, *dele*, *comigo*."""
    pronoun = d.pick(_other_pronouns(subject.pronoun))
    left, right = d.tie(pronoun.english_object, pronoun.portuguese_object, "PRON")
    return Phrase([left], [right], nominal=False)


def a_person(d: Draft) -> Phrase:
    """Return the name of a person, sometimes with a surname."""
    return name_phrase(d, d.pick(PEOPLE), d.pick(SURNAMES) if d.chance(0.15) else "")


def some_name(d: Draft, kinds: str) -> Phrase:
    """Return a name of one of these kinds, with equal probability for each kind."""
    kind = d.pick(kinds)
    return a_person(d) if kind == "H" else name_phrase(d, d.pick(names_of(kind)))


def common(
    d: Draft,
    kinds: str,
    *,
    adjective: float = 0.4,
    determiner: str = "any",
    bare: bool = False,
    owner: float = 0.06,
    several: float = 0.3,
) -> Phrase:
    """Return a noun phrase of these kinds or traits; `adjective`, `owner`, `several` (the plural) are probabilities.

    Args:
        determiner: "plain" restricts to *the*, *my* ...; "indefinite" to *a*, *some*, *two* ...; "the"; or "any".
        bare: allow uncountable nouns without a determiner (*drinks cold milk*); fields of study never have one.
    """
    noun = d.pick_noun(nouns_of(kinds))
    if "S" in noun.kinds:
        return noun_phrase(d, noun, None)
    use = "indefinite" if determiner == "indefinite" else "attribute"
    chosen_adjective = d.pick_adjective(noun, use) if d.chance(adjective) else None
    limit = chosen_adjective is not None and chosen_adjective.definite
    chosen = () if chosen_adjective is None else (chosen_adjective,)
    very = (
        chosen_adjective is not None
        and bool(chosen_adjective.comparative)
        and not chosen_adjective.before
        and d.chance(0.12)
    )
    plural = noun.countable and not limit and d.chance(several)
    if bare and not noun.countable and not limit and d.chance(0.6):
        return noun_phrase(d, noun, None, False, chosen, very=very)
    if owner and determiner != "indefinite" and not limit and d.chance(owner):
        possessor = a_person(d) if d.chance(0.5) else noun_phrase(d, d.pick_noun(nouns_of("P")), "the")
        return noun_phrase(d, noun, None, plural, chosen, possessor=possessor, very=very)
    options = determiners(plural, "plain" if limit and determiner == "any" else determiner, noun.countable)
    return noun_phrase(d, noun, d.pick(options), plural, chosen, very=very)


def double(d: Draft, kinds: str) -> Phrase:
    """Return a noun phrase with two adjectives of different rank, the lower rank first: *the big red house*."""
    ranks = ("opinion", "size", "age", "state", "character", "colour", "origin")
    while True:
        noun = d.pick_noun(nouns_of(kinds))
        first, second = d.pick_adjective(noun, "attribute"), d.pick_adjective(noun, "attribute")
        if first is None or second is None or first.group not in ranks[:3] or second.group not in ranks[1:]:
            continue
        if ranks.index(first.group) < ranks.index(second.group):
            plural = noun.countable and d.chance(0.3)
            options = determiners(plural, "any", noun.countable)
            return noun_phrase(d, noun, d.pick(options), plural, (first, second))


def joined(d: Draft, first: Phrase, second: Phrase) -> Phrase:
    """Join two phrases with *and*: plural, and masculine unless both are feminine."""
    link = fixed(d, "and")
    gender = "f" if first.gender == second.gender == "f" else "m"
    source = first.source + link.source + second.source
    return Phrase(source, first.target + link.target + second.target, 2, 3, gender, True)


def after_preposition(d: Draft, preposition: Phrase, phrase: Phrase) -> Phrase:
    """Put a preposition before a phrase; `finish` contracts it."""
    needs_article = preposition.target[-1].text in ("a", "de", "em", "por")
    words = with_article(phrase) if needs_article else phrase.target
    return Phrase(preposition.source + phrase.source, preposition.target + words)


def place(d: Draft, adjective: float = 0.2) -> Phrase:
    """Return an adverbial of place: *in the kitchen*, *under the old table*, *in Brazil*."""
    if d.chance(0.2):
        return after_preposition(d, expression(d, PLACES[0]), some_name(d, "YZ"))
    entry = d.pick(PLACES)
    spot = common(d, entry.use, adjective=adjective, determiner="plain", owner=0.0, several=0.12)
    return after_preposition(d, expression(d, entry), spot)


@cache
def times(tense: str) -> tuple[Expression, ...]:
    """Return the adverbials of time that suit a tense."""
    return tuple(entry for entry in TIMES if tense in entry.use.split())


def time(d: Draft, tense: str) -> Phrase | None:
    """Return an adverbial of time that suits the tense; None for tenses without one."""
    options = times(tense)
    return expression(d, d.pick(options)) if options else None
