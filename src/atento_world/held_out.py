"""The held-out structures: combinations of structures that the ordinary splits contain separately."""

from atento_world.clauses import copular, predicate, statement
from atento_world.events import SIMPLE, Sentence, clause, direct_verbs, event, someone, state, together
from atento_world.lexicon import WITH_CLAUSE
from atento_world.phrases import Phrase, common, double, fixed, joined, place, time
from atento_world.relatives import acts_on_relative_object, doer_with_clause, followed
from atento_world.sentence import Draft

_CONJUNCTIONS = ("and", "but", "because")


def two_adjectives(d: Draft) -> Sentence:
    """*Maria bought the big red house* → *Maria comprou a casa grande vermelha*."""
    if d.chance(0.5):
        doer = double(d, "PACOUV")
        if d.chance(0.5):
            return statement(doer, copular(d, doer, "estar", d.pick(("present", "past")), place(d, 0.0))), "."
        kinds = "" if doer.head is None else doer.head.kinds
        if "P" in kinds or "A" in kinds:  # these may do something; others become objects, below
            return statement(*event(d, d.pick(SIMPLE), doer=doer, doers=kinds[0], adjective=0.0)), "."
    verb = d.pick([v for v in direct_verbs() if "P" in v.subjects and set(v.objects) & set("PAFCOUBVNI")])
    doer = someone(d, 0.0)
    object_phrase = double(d, "".join(kind for kind in verb.objects if kind in "PAFCOUBVNI"))
    return statement(doer, predicate(d, doer, verb, d.pick(SIMPLE), object_phrase)), "."


def relative_adverbial_conjunction(d: Draft) -> Sentence:
    """*The man who bought the car worked in the garden, but the girl did not sing.*"""
    doer = doer_with_clause(d, "P")
    tense = d.pick(SIMPLE)
    first = statement(*event(d, tense, d.pick(("place", "time")), doer=doer, doers="P", adjective=0.2))
    return together(d, first, d.pick(_CONJUNCTIONS), clause(d, tense)), "."


def time_relative_conjunction(d: Draft) -> Sentence:
    """*Yesterday the girl opened the box that Pedro sent and Maria smiled.*"""
    tense = d.pick(SIMPLE)
    when = time(d, tense) or Phrase([], [])
    doer = someone(d, 0.2)
    middle = statement(doer, acts_on_relative_object(d, doer, tense))
    first = Phrase(when.source + middle.source, when.target + middle.target)
    return together(d, first, d.pick(_CONJUNCTIONS), clause(d, tense)), "."


def two_relatives(d: Draft) -> Sentence:
    """*The woman who lives in Rome bought the dress that the girl wants.*"""
    doer = doer_with_clause(d, "P")
    return statement(doer, acts_on_relative_object(d, doer, d.pick(SIMPLE))), "."


def reported_relative(d: Draft) -> Sentence:
    """*Maria says that the boy who opened the door is tired.*"""
    speaker = someone(d, 0.15)
    inner = doer_with_clause(d)
    tense = d.pick(("present", "past"))
    that = fixed(d, "that")
    report = statement(inner, state(d, inner, tense))
    content = Phrase(that.source + report.source, that.target + report.target)
    return statement(speaker, predicate(d, speaker, d.pick(WITH_CLAUSE), tense, content)), "."


def place_and_time(d: Draft) -> Sentence:
    """*The boy and the girl cooked the eggs in the kitchen yesterday.*"""
    both = joined(d, *(common(d, "P", adjective=0.2, owner=0.0) for _ in range(2)))
    return statement(*event(d, d.pick(SIMPLE), "place", last="time", doer=both, doers="P", adjective=0.3)), "."


def nested_relatives(d: Draft) -> Sentence:
    """*Pedro saw the dog that followed the boy in the garden, but ...*: a place inside the relative clause."""
    head = common(d, "P", adjective=0.2, determiner="the", owner=0.0)
    left, right = d.tie("who", "que", "PRON")
    pronoun = Phrase([left], [right], *head.persons, head.gender, head.plural)
    inner = statement(*event(d, d.pick(("present", "past")), "place", doer=pronoun, doers="P", adjective=0.2))
    head_with_clause = followed(d, head, inner)
    return together(
        d, statement(head_with_clause, state(d, head_with_clause, "present")), d.pick(_CONJUNCTIONS), clause(d, "past")
    ), "."
