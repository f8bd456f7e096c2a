"""The questions of the ordinary splits: yes or no, who, what, where, when, why, how."""

from atento.world.clauses import copular, predicate, question, statement
from atento.world.events import (
    SIMPLE,
    Sentence,
    anything,
    direct_verbs,
    event,
    someone,
    state,
    subject,
)
from atento.world.lexicon import Verb
from atento.world.phrases import Phrase, common, fixed, place
from atento.world.sentence import Draft

_ASKED = (*SIMPLE, "progressive")
_BE_TENSES = ("present", "present", "past", "future")


def yes_no(d: Draft) -> Sentence:
    """*Did the boy open the door?* → *O menino abriu a porta?*; *Is the house big?* → *A casa é grande?*"""
    if d.chance(0.6):
        tense = d.pick((*_ASKED, "can", "should"))
        return question(*event(d, tense, inverted=True)), "?"
    if d.chance(0.7):
        doer = anything(d)
        return question(doer, state(d, doer, d.pick(_BE_TENSES))), "?"
    doer = subject(d, "PAOCU")
    return question(doer, copular(d, doer, "estar", d.pick(_BE_TENSES), place(d))), "?"


def who(d: Draft) -> Sentence:
    """*Who opened the door?* → *Quem abriu a porta?*: who is the subject, so English asks without *do*."""
    asked = fixed(d, "who")
    if d.chance(0.7):
        return statement(*event(d, d.pick(_ASKED), d.pick(("", "", "place")), doer=asked, doers="P")), "?"
    if d.chance(0.5):
        return statement(asked, state(d, asked, d.pick(_BE_TENSES))), "?"
    return statement(asked, copular(d, asked, "estar", d.pick(("present", "past")), place(d))), "?"


def what(d: Draft) -> Sentence:
    """*What did the girl buy?* → *O que a menina comprou?*"""
    asked = fixed(d, "what")
    verb = d.pick([verb for verb in direct_verbs() if _has_things(verb)])
    doer = someone(d) if "P" in verb.subjects else subject(d, verb.subjects)
    tense = d.pick(SIMPLE if verb.state else _ASKED)
    clause = question(doer, predicate(d, doer, verb, tense, inverted=True))
    return Phrase(asked.source + clause.source, asked.target + clause.target), "?"


def _has_things(verb: Verb) -> bool:
    return "P" in verb.subjects and bool(set(verb.objects) & set("FDCOIMStk"))


def adverb_question(d: Draft) -> Sentence:
    """*Where does Maria work?* → *Onde Maria trabalha?*; *when*, *why* and *how* likewise."""
    word = d.pick(("where", "when", "why", "how"))
    asked = fixed(d, word)
    # "place" and "manner" as filters only: the verbs that could say where or how
    adverbial = {"where": "place", "how": "manner"}.get(word, "")
    doer, done = event(d, d.pick(SIMPLE), adverbial, inverted=True, adjective=0.25, said=False)
    clause = question(doer, done)
    return Phrase(asked.source + clause.source, asked.target + clause.target), "?"


def greeting(d: Draft, word: str, doer: Phrase, tense: str) -> Phrase:
    """*How are you?* → *Como você está?*; with a noun or a name the verb goes first: *Onde está o gato?*"""
    asked = fixed(d, word)
    done = copular(d, doer, "estar", tense, Phrase([], []))
    source = asked.source + done.auxiliary + doer.source + done.rest
    order = done.target + doer.target if doer.nominal else doer.target + done.target
    return Phrase(source, asked.target + order)


def whereabouts(d: Draft) -> Sentence:
    """*Where are the keys?* and *How is your mother?*"""
    if d.chance(0.4):
        return greeting(d, "how", subject(d, "PA"), d.pick(("present", "present", "past"))), "?"
    doer = subject(d, "PA") if d.chance(0.4) else common(d, "FCOMU")
    return greeting(d, "where", doer, d.pick(("present", "present", "past"))), "?"
