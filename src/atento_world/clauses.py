"""Clauses of both languages at once: verb groups in every tense, ser and estar, do-support, negation, word order."""

from dataclasses import dataclass

from atento_world.inflection import conjugate
from atento_world.lexicon import Adjective, Expression, Verb
from atento_world.pairs import Word
from atento_world.phrases import Phrase, adjective_form, expression, with_article
from atento_world.sentence import Draft

_IR = conjugate("ir")
_BE_PRESENT = ("am", "is", "are")
_BE_PAST = ("was", "was", "were")
_COPULAS = {"ser": conjugate("ser"), "estar": conjugate("estar")}
_PASSIVE_PAST = ("fui", "foi", "fomos", "foram")
_GO_FUTURE = ("irei", "irá", "iremos", "irão")  # instead of "vai ir"
_MODALS = {
    "can": conjugate("poder").present,
    "must": conjugate("dever").present,
    "should": ("deveria", "deveria", "deveríamos", "deveriam"),
}
_QUANTIFIERS = ("every", "few", "some", "several", "many")


@dataclass(slots=True)
class Predicate:
    """A clause without its subject. In a question `auxiliary` precedes the subject, and `verb_phrase` follows it."""

    auxiliary: list[Word]
    verb_phrase: list[Word]
    target: list[Word]


def statement(subject: Phrase, predicate: Predicate) -> Phrase:
    """Return the subject, then the predicate, on both sides."""
    return Phrase(subject.source + predicate.auxiliary + predicate.verb_phrase, subject.target + predicate.target)


def question(subject: Phrase, predicate: Predicate) -> Phrase:
    """Return auxiliary, subject, verb phrase in English; in Portuguese the word order of the statement."""
    return Phrase(predicate.auxiliary + subject.source + predicate.verb_phrase, subject.target + predicate.target)


def _negation(d: Draft, negative: bool, subject: Phrase) -> tuple[list[Word], list[Word]]:
    """Return *not* and *não*; subjects with *every* or *few* are not negated."""
    if not negative or subject.source[0].text in _QUANTIFIERS:
        return [], []
    left, right = d.tie("not", "não", "PART", "ADV")
    return [left], [right]


def _words_of(*phrases: Phrase | None) -> list[Word]:
    """Return the Portuguese words of the phrases of a clause."""
    return [word for phrase in phrases if phrase is not None for word in phrase.target]


def predicate(
    d: Draft,
    subject: Phrase,
    verb: Verb,
    tense: str,
    thing: Phrase | None = None,
    *adverbials: Phrase | None,
    negative: bool = False,
    inverted: bool = False,
    frequency: Expression | None = None,
) -> Predicate:
    """Return a verb with its object (`thing`) and adverbials; `inverted` prepares an English question (do-support).

    Tenses: present, past, future, progressive, past-progressive, and the modals can, must, should. Links: *do* and
    *did* are linked with the main verb, *will* with *vai*, *not* with *não*; a preposition that only one language has
    is linked with the verb.
    """
    main = (d.link(),)  # joins the verbs of both languages
    no, nao = _negation(d, negative, subject)
    auxiliary, form, target = _verb_group(d, subject, verb, tense, main, bool(no) or inverted)
    often = expression(d, frequency) if frequency is not None else Phrase([], [])
    never = frequency is not None and frequency.source[0][0] == "never"  # negative without *not*
    forms, pessoa = verb.portuguese, subject.portuguese_person
    d.record(
        target[-1],
        _words_of(subject, thing, *adverbials),
        tense,
        negative=bool(no) or never,
        plural=pessoa >= 2,
        ambiguous=tense in ("present", "past") and forms.present[pessoa] == forms.past[pessoa],
    )
    verb_phrase = [*no, *often.source, Word(form, "VERB", main)]
    target = [*nao, *often.target, *target]
    particle = (d.link(),) if verb.particle and verb.preposition else main  # alone it is a part of the verb
    if verb.particle:
        infinitive = verb.particle == "to" and thing is not None and thing.target[0].tag == "VERB"
        verb_phrase.append(Word(verb.particle, "PART" if infinitive else "ADP", particle))
    if thing is not None:
        verb_phrase += thing.source
        if verb.preposition:
            target.append(Word(verb.preposition, "ADP", particle))
        target += with_article(thing) if verb.preposition in ("a", "de", "em", "por") else thing.target
    for adverbial in adverbials:
        if adverbial is not None:
            verb_phrase += adverbial.source
            target += adverbial.target
    return Predicate(auxiliary, verb_phrase, target)


def _verb_group(
    d: Draft, subject: Phrase, verb: Verb, tense: str, main: tuple[int, ...], supported: bool
) -> tuple[list[Word], str, list[Word]]:
    """Return the English auxiliary, the English main form, and the Portuguese words."""
    person, pessoa = subject.english_person, subject.portuguese_person
    forms = verb.portuguese
    if tense in ("present", "past"):  # the two with forms of their own in English
        target = [Word((forms.present if tense == "present" else forms.past)[pessoa], "VERB", main)]
        if supported:  # do-support: a negation or a question
            support = "did" if tense == "past" else "does" if person == 1 else "do"
            return [Word(support, "AUX", main)], verb.english, target
        form = verb.past if tense == "past" else verb.third if person == 1 else verb.english
        return [], form, target
    help_links = (d.link(),)
    if tense == "future":
        will = [Word("will", "AUX", help_links)]
        if forms.infinitive == "ir":  # nobody says *vai ir*
            return will, verb.english, [Word(_GO_FUTURE[pessoa], "VERB", help_links + main)]
        helper = Word(_IR.present[pessoa], "AUX", help_links)
        return will, verb.english, [helper, Word(forms.infinitive, "VERB", main)]
    if tense in _MODALS:
        helper = Word(_MODALS[tense][pessoa], "AUX", help_links)
        return [Word(tense, "AUX", help_links)], verb.english, [helper, Word(forms.infinitive, "VERB", main)]
    past = tense == "past-progressive"
    be = Word((_BE_PAST if past else _BE_PRESENT)[person], "AUX", help_links)
    estar = _COPULAS["estar"]
    helper = Word((estar.past if past else estar.present)[pessoa], "AUX", help_links)
    return [be], verb.gerund, [helper, Word(forms.gerund, "VERB", main)]


def copular(
    d: Draft,
    subject: Phrase,
    copula: str,
    tense: str,
    complement: Phrase,
    *adverbials: Phrase | None,
    negative: bool = False,
    passive: bool = False,
) -> Predicate:
    """Return *be* with a complement: ser or estar in present, past (imperfect; *foi* in the passive) or future."""
    links = (d.link(),)
    forms = _COPULAS[copula]
    person, pessoa = subject.english_person, subject.portuguese_person
    no, nao = _negation(d, negative, subject)
    if tense == "future":
        will = (d.link(),)
        auxiliary = [Word("will", "AUX", will)]
        verb_phrase = [*no, Word("be", "AUX", links)]
        target = [*nao, Word(_IR.present[pessoa], "AUX", will), Word(copula, "AUX", links)]
    else:
        past = tense == "past"
        auxiliary = [Word((_BE_PAST if past else _BE_PRESENT)[person], "AUX", links)]
        verb_phrase = no
        was = _PASSIVE_PAST if passive else forms.past
        target = [*nao, Word((was if past else forms.present)[pessoa], "AUX", links)]
    parts = _words_of(subject, complement, *adverbials)
    d.record(target[-1], parts, tense, negative=bool(no), plural=pessoa >= 2)
    for phrase in (complement, *adverbials):
        if phrase is not None:
            verb_phrase = verb_phrase + phrase.source
            target = target + phrase.target
    return Predicate(auxiliary, verb_phrase, target)


def copula_of(adjective: Adjective, subject: Phrase) -> str:
    """Return ser or estar, as the adjective requires, or (*comfortable*) by whether the subject is animate."""
    if adjective.copula != "either":
        return adjective.copula
    animate = subject.head is None or bool(set(subject.head.kinds) & set("PA"))
    return "estar" if animate else "ser"


def quality(d: Draft, adjective: Adjective, subject: Phrase, very: bool = False) -> Phrase:
    """Return an adjective as a predicate, agreeing with the subject; *very* → *muito*."""
    left, right = d.tie(adjective.english, adjective_form(adjective, subject.gender, subject.plural), "ADJ")
    if not very:
        return Phrase([left], [right])
    adverb, adverbio = d.tie("very", "muito", "ADV")
    return Phrase([adverb, left], [adverbio, right])


def participle_form(verb: Verb, gender: str, plural: bool) -> str:
    """Return the Portuguese participle that agrees with a passive subject: *aberta*, *escritos*."""
    return verb.portuguese.participle[:-1] + ("a" if gender == "f" else "o") + ("s" if plural else "")
