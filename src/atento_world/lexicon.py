"""The words of the micro-world as values: every noun, adjective, verb, name and expression, with all its forms.

Kinds of noun (upper case): P person, A animal, F food, D drink, C clothing, O thing, M musical instrument, Q part of a
building, U furniture, B building, R room or open place, V vehicle, N nature, I idea or event, S field of study.
Kinds of name: H human being, Y city, Z country, G organisation. Traits (lower case): k can be opened, t is written, s
can be sat on, o takes *on* rather than *in*, x can be crossed, c can be climbed, w flies, d is driven, j is a job, u
has no plural and no *a*. Groups of adverbs: m motion, a activity, v skill, h height, e time of day, c deliberate.
An English word has one Portuguese word, unless the sentence decides (ser and estar, médico and médica).
"""

from dataclasses import dataclass
from functools import cache

from atento.base.errors import UsageError
from atento_world import adjectives, expressions, names, nouns, verbs
from atento_world.inflection import (
    Conjugation,
    Forms,
    adjective_forms,
    conjugate,
    english_gerund,
    english_past,
    english_plural,
    english_third,
    portuguese_plural,
)

#: Groups of adjectives by rank: of two adjectives the one of lower rank comes first, in both languages.
GROUPS = ("limit", "opinion", "size", "age", "state", "character", "colour", "origin")


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun with singular and plural in both languages; `feminine` is the name of a woman's job, or empty."""

    english: str
    english_plural: str
    portuguese: str
    portuguese_plural: str
    feminine: str
    gender: str  # m or f
    kinds: str

    @property
    def countable(self) -> bool:
        """Whether it has a plural and takes *a*."""
        return "u" not in self.kinds


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; `forms` are its Portuguese m sg, f sg, m pl, f pl; `comparative` is empty if it has none."""

    english: str
    forms: Forms
    copula: str  # ser, estar, either
    group: str
    kinds: str
    comparative: str
    comparative_forms: tuple[str, str]  # one word, singular and plural (maior, maiores); empty: mais + adjective
    before: bool
    definite: bool
    attributive: bool


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages with its prepositions (empty: none) and the kinds of its subjects and objects."""

    english: str
    third: str
    past: str
    participle: str
    gerund: str
    particle: str
    portuguese: Conjugation
    preposition: str
    subjects: str
    objects: str
    flags: str

    @property
    def state(self) -> bool:
        """A state takes no progressive, no passive and no command."""
        return "s" in self.flags


@dataclass(frozen=True, eq=False)
class Name:
    """A proper name; `kind` is H, Y, Z or G; `article` is o, a or empty; `english` may begin with *the*."""

    english: tuple[str, ...]
    portuguese: tuple[str, ...]
    article: str
    gender: str
    kind: str


@dataclass(frozen=True, eq=False)
class Expression:
    """A fixed sequence of words: (word, tag) on both sides, the links between them, and their use."""

    source: tuple[tuple[str, str], ...]
    target: tuple[tuple[str, str], ...]
    links: tuple[tuple[int, int], ...]
    use: str


@dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner; `owner` is the pronoun that follows the noun in Portuguese (*o livro dele*), or empty."""

    english: str
    tag: str
    forms: Forms
    possessive: bool
    owner: str
    weight: int


@dataclass(frozen=True, eq=False)
class Pronoun:
    """A personal pronoun with its persons (numbers as in `expressions.PRONOUNS`)."""

    english: str
    english_object: str
    portuguese: str
    portuguese_object: str
    english_person: int
    portuguese_person: int
    gender: str


def _noun(line: str) -> Noun:
    english, portuguese, gender, kinds = line.split()
    base, _, plural = english.partition("/")
    word, _, feminine = portuguese.partition(":")
    lemma, _, lemma_plural = word.partition("/")
    lemma_plural = lemma_plural or ("guarda-chuvas" if lemma == "guarda-chuva" else portuguese_plural(lemma))
    return Noun(base, plural or english_plural(base), lemma, lemma_plural, feminine, gender, kinds)


def _adjective(line: str) -> Adjective:
    english, portuguese, copula, group, kinds, *fields = line.split()
    flags = fields.pop() if fields and fields[-1][0] in "<!^" else ""
    comparative, _, short = (fields[0] if fields else "").partition("=")
    forms = adjective_forms(portuguese)
    return Adjective(
        english,
        forms,
        copula,
        group,
        kinds,
        f"more {english}" if comparative == "more" else comparative,
        (short, portuguese_plural(short)) if short else ("", ""),
        before="<" in flags,
        definite="!" in flags,
        attributive="^" not in flags,
    )


def _verb(line: str) -> Verb:
    english, portuguese, subjects, objects, flags = line.split()
    forms, _, particle = english.partition("+")
    base, past, participle = [*forms.split("/"), "", ""][:3]
    infinitive, _, preposition = portuguese.partition("+")
    past = past or english_past(base)
    objects, flags = objects.strip("-"), flags.strip("-")
    forms_of_be = (english_third(base), past, participle or past, english_gerund(base))
    return Verb(base, *forms_of_be, particle, conjugate(infinitive), preposition, subjects, objects, flags)


def _expression(line: str) -> Expression:
    source, target, links, use = (part.strip() for part in line.split("|"))
    left, right = _tagged(source), _tagged(target)
    if links:
        pairs = tuple((int(a), int(b)) for a, b in (link.split("-") for link in links.split()))
    else:
        last = len(left) - 1, len(right) - 1
        pairs = tuple((min(i, last[0]), min(i, last[1])) for i in range(max(last) + 1))
    return Expression(left, right, pairs, use)


def _tagged(text: str) -> tuple[tuple[str, str], ...]:
    parts = (word.rpartition("/") for word in text.split())
    return tuple((word, tag) for word, _, tag in parts)


def _place_name(line: str, kind: str) -> Name:
    english, portuguese, gender = line.split()
    article = {"m": "o", "f": "a", "-": ""}[gender]
    return Name(tuple(english.split("_")), tuple(portuguese.split("_")), article, gender.replace("-", "m"), kind)


def _person_name(line: str) -> Name:
    name, gender = line.split()
    return Name((name,), (name,), "", gender, "H")


def _determiner(line: str) -> Determiner:
    english, tag, *forms, flags = line.split()
    a, b, c, d = ("" if form == "-" else form for form in forms)
    owner = flags[1:] if flags[0] == "=" else ""
    weight = 1 if owner else int(flags.strip("p"))
    return Determiner(english, tag, (a, b, c, d), "p" in flags, owner, weight)


def _pronoun(line: str) -> Pronoun:
    subject, oblique, portuguese, after, person, persona, gender = line.split()
    return Pronoun(subject, oblique, portuguese, after, int(person), int(persona), gender)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


NOUNS = tuple(_noun(line) for line in _lines(nouns.NOUNS))
ADJECTIVES = tuple(_adjective(line) for line in _lines(adjectives.ADJECTIVES))
TRANSITIVE = tuple(_verb(line) for line in _lines(verbs.TRANSITIVE))
INTRANSITIVE = tuple(_verb(line) for line in _lines(verbs.INTRANSITIVE))
DATIVE = tuple(_verb(line) for line in _lines(verbs.DATIVE))
WITH_INFINITIVE = tuple(_verb(line) for line in _lines(verbs.WITH_INFINITIVE))
WITH_CLAUSE = tuple(_verb(line) for line in _lines(verbs.WITH_CLAUSE))
PEOPLE = tuple(_person_name(line) for line in _lines(names.PEOPLE))
SURNAMES = tuple(names.SURNAMES.split())
CITIES = tuple(_place_name(line, "Y") for line in _lines(names.CITIES))
COUNTRIES = tuple(_place_name(line, "Z") for line in _lines(names.COUNTRIES))
ORGANISATIONS = tuple(_place_name(line, "G") for line in _lines(names.ORGANISATIONS))
MANNER = tuple(_expression(line) for line in _lines(expressions.MANNER))
FREQUENCY = tuple(_expression(line) for line in _lines(expressions.FREQUENCY))
TIMES = tuple(_expression(line) for line in _lines(expressions.TIMES))
PLACES = tuple(_expression(line) for line in _lines(expressions.PLACES))
FIXED = {" ".join(w for w, _ in e.source): e for e in map(_expression, _lines(expressions.PREPOSITIONS))}
DETERMINERS = tuple(_determiner(line) for line in _lines(expressions.DETERMINERS))
PRONOUNS = tuple(_pronoun(line) for line in _lines(expressions.PRONOUNS))

VERBS = TRANSITIVE + INTRANSITIVE + DATIVE + WITH_INFINITIVE + WITH_CLAUSE
NAMES = PEOPLE + CITIES + COUNTRIES + ORGANISATIONS


@cache
def nouns_of(kinds: str) -> tuple[Noun, ...]:
    """Return the nouns that have any of these kinds or traits and none of those after `^`."""
    included, _, excluded = kinds.partition("^")
    return tuple(n for n in NOUNS if set(n.kinds) & set(included) and not set(n.kinds) & set(excluded))


@cache
def names_of(kinds: str) -> tuple[Name, ...]:
    """Return the proper names of any of these kinds."""
    return tuple(name for name in NAMES if name.kind in kinds)


def noun(english: str) -> Noun:
    """Return the noun with this English singular.

    Raises:
        UsageError: the lexicon has no such noun.
    """
    if english not in _BY_ENGLISH:
        raise UsageError(f"the micro-world has no noun {english!r}")
    return _BY_ENGLISH[english]


def verb(english: str, table: tuple[Verb, ...] = VERBS) -> Verb:
    """Return the first verb of a table with this English base form.

    Raises:
        UsageError: the table has no such verb.
    """
    for entry in table:
        if entry.english == english:
            return entry
    raise UsageError(f"the micro-world has no such verb {english!r}")


_BY_ENGLISH = {entry.english: entry for entry in NOUNS}


def size() -> int:
    """Return the number of entries of the lexicon, including closed words."""
    tables = (NOUNS, ADJECTIVES, VERBS, NAMES, SURNAMES, MANNER, FREQUENCY, TIMES, PLACES, FIXED, DETERMINERS, PRONOUNS)
    return sum(len(table) for table in tables)
