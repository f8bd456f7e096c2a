"""Events: subjects, objects and adverbials that suit a verb, combined into clauses."""

from functools import cache

from atento_world.clauses import Predicate, copula_of, copular, predicate, quality, statement
from atento_world.lexicon import INTRANSITIVE, MANNER, PRONOUNS, TRANSITIVE, Expression, Verb, noun
from atento_world.phrases import (
    Phrase,
    a_person,
    after_preposition,
    common,
    expression,
    fixed,
    object_pronoun,
    place,
    pronoun_phrase,
    some_name,
    time,
)
from atento_world.sentence import Draft, adjectives_for

Sentence = tuple[Phrase, str]  # the words without the final punctuation, and the punctuation

_NAMES = "HYZG"
_WHEREABOUTS = frozenset("BRYZx^o")
#: *I* and *we* are twice as frequent as the others: only they have distinct verb forms.
_SUBJECT_PRONOUNS = PRONOUNS + tuple(entry for entry in PRONOUNS if entry.english in ("I", "we"))
NARRATIVE = (
    "present",
    "past",
    "past",
    "future",
    "progressive",
    "past-progressive",
)  # a tense is as frequent as its entries
SIMPLE = ("present", "past", "past", "future")
_TOPICS = ("speak", "sing")  # verbs that take *about*

#: The names of adverbials; `event` takes one of them.
ADVERBIALS = ("manner", "place", "time", "company")


def goes_somewhere(verb: Verb) -> bool:
    """Return whether the verb or its object already says where (*arrive*, *go to the park*, *visit Lisbon*)."""
    if verb.english == "arrive":
        return True
    return bool(verb.objects) and (set(verb.objects) <= _WHEREABOUTS or "Y" in verb.objects)


def direct(verb: Verb) -> bool:
    """Return whether the verb has an object without a preposition in both languages."""
    return bool(verb.objects) and not verb.particle and not verb.preposition


@cache
def verbs_for(tense: str, adverbial: str, subjects: str = "") -> tuple[Verb, ...]:
    """Return the verbs that allow a tense and an adverbial ("" for none) and, if given, one of these subjects."""
    chosen = []
    for verb in TRANSITIVE + INTRANSITIVE:
        if verb.state and (tense not in ("present", "past", "future") or adverbial in ("manner", "place", "company")):
            continue
        if adverbial == "manner" and not manners_of(verb):
            continue
        if adverbial in ("place", "company") and goes_somewhere(verb):
            continue
        if adverbial == "company" and ("P" not in verb.subjects or verb.particle or verb.preposition):
            continue
        if subjects and not set(verb.subjects) & set(subjects):
            continue
        chosen.append(verb)
    return tuple(chosen)


@cache
def manners_of(verb: Verb) -> tuple[Expression, ...]:
    """Return the adverbs of manner that a verb takes."""
    return tuple(entry for entry in MANNER if set(entry.use) & set(verb.flags))


def subject(d: Draft, kinds: str, adjective: float = 0.35) -> Phrase:
    """Return a subject of these kinds: people also as pronouns and names, organisations (G) by name."""
    if "P" in kinds:
        if d.chance(0.3):
            return pronoun_phrase(d, d.pick(_SUBJECT_PRONOUNS))
        if d.chance(0.24):
            return a_person(d)
    if "G" in kinds and d.chance(0.2):
        return some_name(d, "G")
    return common(d, kinds, adjective=adjective)


def thing(d: Draft, verb: Verb, doer: Phrase, adjective: float = 0.4) -> Phrase | None:
    """Return an object that suits the verb; None if it takes none."""
    if not verb.objects:
        return None
    kinds = "".join(kind for kind in verb.objects if kind not in _NAMES)
    names = "".join(kind for kind in verb.objects if kind in _NAMES)
    if names and (not kinds or d.chance(0.25)):
        return some_name(d, names)
    if "S" in kinds and d.chance(0.45):
        return common(d, "S")
    if verb.preposition and verb.particle and "P" in kinds and d.chance(0.15):
        return object_pronoun(d, doer)
    return common(d, kinds, adjective=adjective, bare=True)


def company(d: Draft, verb: Verb, doer: Phrase) -> Phrase:
    """Return an adverbial with, without or for a person, or for a few verbs about a topic."""
    if verb.english in _TOPICS and d.chance(0.5):
        return after_preposition(d, fixed(d, "about"), common(d, "PISA", adjective=0.2))
    if d.chance(0.4):
        return after_preposition(d, fixed(d, "with"), object_pronoun(d, doer))
    preposition = fixed(d, d.pick(("with", "for") if "c" in verb.flags else ("with", "with", "without")))
    return after_preposition(d, preposition, a_person(d) if d.chance(0.5) else common(d, "P", adjective=0.2))


def adverbial_for(d: Draft, name: str, verb: Verb, doer: Phrase, tense: str) -> Phrase | None:
    """Return the adverbial of this name (one of ADVERBIALS, or "" for None)."""
    if name == "manner":
        return expression(d, d.pick(manners_of(verb)))
    if name == "place":
        return place(d)
    if name == "time":
        return time(d, tense)
    return company(d, verb, doer) if name == "company" else None


def event(
    d: Draft,
    tense: str,
    adverbial: str = "",
    *,
    doer: Phrase | None = None,
    doers: str = "",
    negative: bool = False,
    inverted: bool = False,
    frequency: Expression | None = None,
    adjective: float = 0.4,
    last: str = "",
    include_adverbial: bool = True,
) -> tuple[Phrase, Predicate]:
    """Return a subject and its predicate.

    Args:
        doer: the subject; None draws one.
        doers: the kinds of the subject.
        last: the name of a second adverbial.
        include_adverbial: False only restricts the verb to those that take the adverbial (for a question about it).
    """
    verb = d.pick(verbs_for(tense, adverbial, doers))
    if doer is None:
        doer = subject(d, doers or ("P" if adverbial == "company" else verb.subjects), adjective * 0.8)
    object_phrase = thing(d, verb, doer, adjective)
    first = adverbial_for(d, adverbial if include_adverbial else "", verb, doer, tense)
    second = adverbial_for(d, last, verb, doer, tense)
    verb_group = predicate(
        d, doer, verb, tense, object_phrase, first, second, negative=negative, inverted=inverted, frequency=frequency
    )
    return doer, verb_group


def state(d: Draft, doer: Phrase, tense: str, negative: bool = False) -> Predicate:
    """Return *is (very) good*: an adjective that suits the subject, with ser or estar."""
    adjective = None if doer.head is None else d.pick_adjective(doer.head, "predicate")
    if adjective is None:
        adjective = d.pick(adjectives_for(noun("child"), "predicate", False))
    very = bool(adjective.comparative) and d.chance(0.25)
    return copular(d, doer, copula_of(adjective, doer), tense, quality(d, adjective, doer, very), negative=negative)


def anything(d: Draft, adjective: float = 0.3) -> Phrase:
    """Return a subject that can have a quality: any kind but a field of study."""
    if d.chance(0.3):
        return subject(d, "P", adjective)
    return common(d, d.pick("PAFDCOMQUBRVNI"), adjective=adjective)


def someone(d: Draft, adjective: float = 0.3) -> Phrase:
    """Return a person, by pronoun, name or noun."""
    return subject(d, "P", adjective)


@cache
def direct_verbs() -> tuple[Verb, ...]:
    """Return the verbs with an object and no preposition in either language."""
    return tuple(verb for verb in TRANSITIVE if direct(verb))


def infinitive(d: Draft, doer: Phrase) -> Phrase:
    """Return an infinitive with its object, without *to*: *open the door*, *abrir a porta*."""
    verb = d.pick(verbs_for("can", "", "P"))
    object_phrase = thing(d, verb, doer)
    verb_group = predicate(d, doer, verb, "can", object_phrase)
    return Phrase(verb_group.verb_phrase, verb_group.target[1:])


def clause(d: Draft, tense: str, adverbial: str = "", last: str = "", adjective: float = 0.25) -> Phrase:
    """Return a statement about an event; one in five is negated."""
    return statement(*event(d, tense, adverbial, last=last, adjective=adjective, negative=d.chance(0.2)))


def together(d: Draft, first: Phrase, conjunction: str, second: Phrase) -> Phrase:
    """Join two clauses; *but* has a comma before it in both languages."""
    link = fixed(d, conjunction)
    source, target = list(first.source), list(first.target)
    if conjunction == "but":
        left, right = d.tie(",", ",", "PUNCT")
        source.append(left)
        target.append(right)
    return Phrase(source + link.source + second.source, target + link.target + second.target)
