"""The questions of the ordinary splits: yes or no, who, what, where, when, why, how."""

from atento_world.clauses import copular, predicate, question, statement
from atento_world.events import SIMPLE, Sentence, anything, direct_verbs, event, someone, state, subject
from atento_world.phrases import Phrase, common, fixed, place
from atento_world.sentence import Draft

_QUESTION_TENSES = (*SIMPLE, "progressive")
_BE_TENSES = ("present", "present", "past", "future")


def yes_no(d: Draft) -> Sentence:
    """*Did the boy open the door?* → *O menino abriu a porta?*; *Is the house big?* → *A casa é grande?*"""
    if d.chance(0.6):
        tense = d.pick((*_QUESTION_TENSES, "can", "should"))
        return question(*event(d, tense, inverted=True)), "?"
    if d.chance(0.7):
        doer = anything(d)
        return question(doer, state(d, doer, d.pick(_BE_TENSES))), "?"
    doer = subject(d, "PAOCU")
    return question(doer, copular(d, doer, "estar", d.pick(_BE_TENSES), place(d))), "?"


def who(d: Draft) -> Sentence:
    """*Who opened the door?* → *Quem abriu a porta?*: the subject is *who*, so English has no *do*."""
    question_word = fixed(d, "who")
    if d.chance(0.7):
        return statement(
            *event(d, d.pick(_QUESTION_TENSES), d.pick(("", "", "place")), doer=question_word, doers="P")
        ), "?"
    if d.chance(0.5):
        return statement(question_word, state(d, question_word, d.pick(_BE_TENSES))), "?"
    return statement(question_word, copular(d, question_word, "estar", d.pick(("present", "past")), place(d))), "?"


def what(d: Draft) -> Sentence:
    """*What did the girl buy?* → *O que a menina comprou?*"""
    question_word = fixed(d, "what")
    verb = d.pick([v for v in direct_verbs() if "P" in v.subjects and set(v.objects) & set("FDCOIMStk")])
    doer = someone(d) if "P" in verb.subjects else subject(d, verb.subjects)
    tense = d.pick(SIMPLE if verb.state else _QUESTION_TENSES)
    clause = question(doer, predicate(d, doer, verb, tense, inverted=True))
    return Phrase(question_word.source + clause.source, question_word.target + clause.target), "?"


def adverb_question(d: Draft) -> Sentence:
    """*Where does Maria work?* → *Onde Maria trabalha?*; *when*, *why* and *how* likewise."""
    word = d.pick(("where", "when", "why", "how"))
    question_word = fixed(d, word)
    # "place" and "manner" only restrict the verbs to those that take such an adverbial
    adverbial = {"where": "place", "how": "manner"}.get(word, "")
    doer, verb_group = event(d, d.pick(SIMPLE), adverbial, inverted=True, adjective=0.25, include_adverbial=False)
    clause = question(doer, verb_group)
    return Phrase(question_word.source + clause.source, question_word.target + clause.target), "?"


def greeting(d: Draft, word: str, doer: Phrase, tense: str) -> Phrase:
    """*How are you?* → *Como você está?*; with a noun or a name the verb comes first: *Onde está o gato?*"""
    question_word = fixed(d, word)
    verb_group = copular(d, doer, "estar", tense, Phrase([], []))
    source = question_word.source + verb_group.auxiliary + doer.source + verb_group.verb_phrase
    target = verb_group.target + doer.target if doer.nominal else doer.target + verb_group.target
    return Phrase(source, question_word.target + target)


def whereabouts(d: Draft) -> Sentence:
    """*Where are the keys?* and *How is your mother?*"""
    if d.chance(0.4):
        return greeting(d, "how", subject(d, "PA"), d.pick(("present", "present", "past"))), "?"
    doer = subject(d, "PA") if d.chance(0.4) else common(d, "FCOMU")
    return greeting(d, "where", doer, d.pick(("present", "present", "past"))), "?"
