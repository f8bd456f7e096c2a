"""Relative clauses: *the man who bought the car*, *the cake that Maria made*."""

from atento_world.clauses import Predicate, predicate, statement
from atento_world.events import SIMPLE, Sentence, direct_verbs, event, someone, state
from atento_world.lexicon import Verb
from atento_world.phrases import Phrase, common
from atento_world.sentence import Draft

_ALL_TENSES = ("present", "past", "past", "future")
_BE_TENSES = ("present", "present", "past", "future")
# direct verbs whose object can be a common noun
_OF_THINGS = [verb for verb in direct_verbs() if "P" in verb.subjects and set(verb.objects) - set("HYZGS")]


def _head(d: Draft) -> str:
    return "the" if d.chance(0.65) else "indefinite"


def followed(d: Draft, head: Phrase, clause_source: Phrase) -> Phrase:
    """Return a noun phrase with a relative clause after it; its agreement is unchanged."""
    source, target = head.source + clause_source.source, head.target + clause_source.target
    return Phrase(source, target, *head.persons, head.gender, head.plural, head.head, head.article)


def relative_pronoun(d: Draft, head: Phrase) -> Phrase:
    """Return *who* for people, else *that*; *que* for both. It has the person of its head."""
    people = head.head is not None and "P" in head.head.kinds
    left, right = d.tie("who" if people else "that", "que", "PRON")
    return Phrase([left], [right], *head.persons, head.gender, head.plural)


def doer_with_clause(d: Draft, kinds: str = "PA", adjective: float = 0.25) -> Phrase:
    """*the dog that followed the boy*: the noun is the subject of its clause."""
    head = common(d, d.pick(kinds), adjective=adjective, determiner=_head(d), owner=0.0)
    tense = d.pick(("present", "past", "past", "progressive"))
    animal = head.head is not None and "A" in head.head.kinds
    clause = statement(*event(d, tense, doer=relative_pronoun(d, head), doers="A" if animal else "P", adjective=0.2))
    return followed(d, head, clause)


def thing_with_clause(d: Draft, verb: Verb, adjective: float = 0.25) -> Phrase:
    """*the cake that Maria bought*: the noun is the object of its clause."""
    kinds = "".join(kind for kind in verb.objects if kind not in "HYZGS")
    determiner = _head(d) if "D" not in kinds and "F" not in kinds else "the"
    head = common(d, kinds, adjective=adjective, determiner=determiner, owner=0.0)
    left, right = d.tie("that", "que", "PRON")
    doer = someone(d, 0.15)
    tense = d.pick(("present", "past", "past")) if verb.state else d.pick(("present", "past", "past", "progressive"))
    inner = statement(doer, predicate(d, doer, verb, tense))
    return followed(d, head, Phrase([left, *inner.source], [right, *inner.target]))


def subject_relative(d: Draft) -> Sentence:
    """*The man who bought the car is tired*; *Maria helped the man who lives in Paris*."""
    doer = doer_with_clause(d)
    if d.chance(0.4):
        return statement(doer, state(d, doer, d.pick(_BE_TENSES))), "."
    if d.chance(0.5):
        animal = doer.head is not None and "A" in doer.head.kinds
        return statement(*event(d, d.pick(SIMPLE), doer=doer, doers="A" if animal else "P", adjective=0.2)), "."
    kind = "A" if doer.head is not None and "A" in doer.head.kinds else "P"
    verb = d.pick([verb for verb in direct_verbs() if kind in verb.objects and "P" in verb.subjects])
    speaker = someone(d, 0.15)
    return statement(speaker, predicate(d, speaker, verb, d.pick(_ALL_TENSES), doer)), "."


def object_relative(d: Draft) -> Sentence:
    """*The cake that Maria bought is good*; *Pedro ate the cake that Maria bought*."""
    if d.chance(0.5):
        object_phrase = thing_with_clause(d, d.pick(_OF_THINGS))
        return statement(object_phrase, state(d, object_phrase, d.pick(_BE_TENSES))), "."
    speaker = someone(d, 0.15)
    return statement(speaker, acts_on_relative_object(d, speaker, d.pick(SIMPLE))), "."


def acts_on_relative_object(d: Draft, doer: Phrase, tense: str) -> Predicate:
    """*ate the cake that Maria bought*: the verb and the verb of the relative clause differ."""
    verb = d.pick(_OF_THINGS)
    object_phrase = thing_with_clause(d, verb)
    kinds = set(object_phrase.head.kinds) if object_phrase.head is not None else set()
    fitting = [candidate for candidate in _OF_THINGS if candidate is not verb and kinds & set(candidate.objects)]
    return predicate(d, doer, d.pick(fitting or [verb]), tense, object_phrase)
