"""The statements of the ordinary splits, and commands and exclamations: each pattern a short function."""

from collections.abc import Callable

from atento_world.clauses import copula_of, copular, participle_form, predicate, quality, statement
from atento_world.events import (
    NARRATIVE,
    SIMPLE,
    Sentence,
    anything,
    clause,
    direct_verbs,
    event,
    infinitive,
    manners_of,
    someone,
    state,
    subject,
    thing,
    together,
)
from atento_world.inflection import indefinite_article
from atento_world.lexicon import (
    DATIVE,
    FREQUENCY,
    INTRANSITIVE,
    PRONOUNS,
    TRANSITIVE,
    WITH_CLAUSE,
    WITH_INFINITIVE,
    Adjective,
    noun,
    nouns_of,
    verb,
)
from atento_world.pairs import Word
from atento_world.phrases import (
    Phrase,
    a_person,
    adjective_form,
    after_preposition,
    common,
    expression,
    fixed,
    joined,
    noun_phrase,
    place,
    pronoun_phrase,
    some_name,
    time,
)
from atento_world.sentence import Draft, adjectives_for

_BE_TENSES = ("present", "present", "past", "future")
_YOU = next(entry for entry in PRONOUNS if entry.english == "you")
_WORK = verb("work", INTRANSITIVE)
_POSTURES = {"sitting": "sentado", "lying": "deitado", "kneeling": "ajoelhado", "standing": ""}  # standing: em pé
_HUMAN_QUALITIES = adjectives_for(noun("child"), "predicate", False)
_PASSIVE_VERBS = [v for v in direct_verbs() if "P" in v.subjects and not v.state and set(v.objects) != {"S"}]
_FIELD_VERBS = [v for v in TRANSITIVE if "S" in v.objects]
_MOVERS = [v for v in INTRANSITIVE if "m" in v.flags]
_COMMANDS = [v for v in TRANSITIVE if "c" in v.flags and "P" in v.subjects]
_PRAISED = tuple(n for n in nouns_of("PACOFUBRVNI") if n.countable)


def posture(d: Draft, doer: Phrase, english: str, tense: str, where: Phrase) -> Phrase:
    """Return someone *is sitting* somewhere: in Portuguese a state (*está sentado*), not an action."""
    portuguese = _POSTURES[english]
    links = (d.link(),)
    if portuguese:
        ending = ("a" if doer.gender == "f" else "o") + ("s" if doer.plural else "")
        target = [Word(portuguese[:-1] + ending, "ADJ", links)]
    else:
        target = [Word("em", "ADP", links), Word("pé", "NOUN", links)]
    how = Phrase([Word(english, "VERB", links)], target)
    return statement(doer, copular(d, doer, "estar", tense, how, where))


def simple(d: Draft) -> Sentence:
    """*The boy opened the door.*"""
    return statement(*event(d, d.pick(NARRATIVE), negative=d.chance(0.2), adjective=0.5)), "."


def fields(d: Draft) -> Sentence:
    """*I love NLP* → *Eu amo PLN*: a field of study, bare in both languages."""
    doer, action = someone(d), d.pick(_FIELD_VERBS)
    tense = d.pick(SIMPLE)
    return statement(doer, predicate(d, doer, action, tense, common(d, "S"), negative=d.chance(0.2))), "."


def movements(d: Draft) -> Sentence:
    """*The cat jumped high.*: a subject, a movement and its manner."""
    action = d.pick(_MOVERS)
    doer, manners = subject(d, action.subjects), manners_of(action)
    # few verbs take these; without this they would be too rare to learn
    high_manners = tuple(manner for manner in manners if "h" in manner.use)
    how = expression(d, d.pick(high_manners if high_manners and d.chance(0.5) else manners))
    return statement(doer, predicate(d, doer, action, d.pick(SIMPLE), None, how)), "."


def _with(adverbial: str, negative: float) -> Callable[[Draft], Sentence]:
    """The statements of an event with an adverbial of a kind, of which a share is negative."""
    return lambda d: (statement(*event(d, d.pick(NARRATIVE), adverbial, negative=d.chance(negative))), ".")


with_manner = _with("manner", 0.1)  # *The boy painted the wall carefully.*
with_place = _with("place", 0.15)  # *Maria sleeps in the garden.*
with_company = _with("company", 0.15)  # *Pedro is dancing with me.*


def with_time(d: Draft) -> Sentence:
    """*He will travel to Brazil next week*, or the time first."""
    tense = d.pick(SIMPLE)
    if d.chance(0.5):
        return statement(*event(d, tense, "time", negative=d.chance(0.15))), "."
    when = time(d, tense) or Phrase([], [])
    clause = statement(*event(d, tense, negative=d.chance(0.15)))
    return Phrase(when.source + clause.source, when.target + clause.target), "."


def with_frequency(d: Draft) -> Sentence:
    """*She always forgets the key.*"""
    often = d.pick(FREQUENCY)
    return statement(*event(d, d.pick(("present", "present", "past")), frequency=often)), "."


def with_modal(d: Draft) -> Sentence:
    """*The children can swim*, *must wash the car*, *should not wait*."""
    return statement(*event(d, d.pick(("can", "must", "should")), negative=d.chance(0.25))), "."


def with_infinitive(d: Draft) -> Sentence:
    """*She wants to buy the car.*"""
    doer = someone(d)
    wish = infinitive(d, doer)
    tense = d.pick(("present", "present", "past"))
    return statement(doer, predicate(d, doer, d.pick(WITH_INFINITIVE), tense, wish, negative=d.chance(0.2))), "."


def qualities(d: Draft) -> Sentence:
    """*The house is very old*; *He is very comfortable*."""
    doer = anything(d)
    return statement(doer, state(d, doer, d.pick(_BE_TENSES), d.chance(0.2))), "."


def professions(d: Draft) -> Sentence:
    """*She is a doctor* → *Ela é médica*: no article, and the job has the gender of the subject."""
    doer = pronoun_phrase(d, d.pick(PRONOUNS)) if d.chance(0.4) else a_person(d)
    job = d.pick(nouns_of("j"))
    links = (d.link(),)
    plural = doer.portuguese_person >= 2
    singular = job.feminine if doer.gender == "f" else job.portuguese
    name = Word(job.english_plural if plural else job.english, "NOUN", links)
    article = [] if plural else [Word(indefinite_article(name.text), "DET", links)]
    target = Word(job.portuguese_plural if plural else singular, "NOUN", links)
    complement = Phrase([*article, name], [target])
    return statement(doer, copular(d, doer, "ser", d.pick(_BE_TENSES), complement, negative=d.chance(0.2))), "."


def origins(d: Draft) -> Sentence:
    """*Maria is from Brazil.*"""
    doer = someone(d)
    home = after_preposition(d, fixed(d, "from"), some_name(d, "YZ"))
    return statement(doer, copular(d, doer, "ser", d.pick(("present", "past")), home, negative=d.chance(0.2))), "."


def locations(d: Draft) -> Sentence:
    """*The keys are under the table.*"""
    doer = subject(d, "P") if d.chance(0.3) else common(d, "PAFCOMU", adjective=0.4)
    return statement(doer, copular(d, doer, "estar", d.pick(_BE_TENSES), place(d, 0.3), negative=d.chance(0.15))), "."


def postures(d: Draft) -> Sentence:
    """*The cat is sitting on the mat* → *O gato está sentado no tapete*."""
    return posture(d, subject(d, "PA"), d.pick(tuple(_POSTURES)), d.pick(("present", "past")), place(d, 0.3)), "."


def datives(d: Draft) -> Sentence:
    """*She gave the book to Pedro.*"""
    giving, doer = d.pick(DATIVE), someone(d)
    gift = thing(d, giving, doer) or Phrase([], [])
    receiver = a_person(d) if d.chance(0.4) else common(d, "P", adjective=0.25)
    to = after_preposition(d, fixed(d, "to"), receiver)
    return statement(doer, predicate(d, doer, giving, d.pick(SIMPLE), gift, to, negative=d.chance(0.15))), "."


def passives(d: Draft) -> Sentence:
    """*The letter was written by the poet* → *A carta foi escrita pelo poeta*."""
    action = d.pick(_PASSIVE_VERBS)
    kinds = "".join(kind for kind in action.objects if kind not in "HYZGS")
    patient = common(d, kinds)
    participle = participle_form(action, patient.gender, patient.plural)
    left, right = d.tie(action.participle, participle, "VERB")
    agent = a_person(d) if d.chance(0.35) else common(d, "P", adjective=0.3)
    by = after_preposition(d, fixed(d, "by"), agent)
    tense = d.pick(("past", "past", "future"))
    verb_group = copular(d, patient, "ser", tense, Phrase([left], [right]), by, negative=d.chance(0.15), passive=True)
    return statement(patient, verb_group), "."


def existence(d: Draft) -> Sentence:
    """*There are two cats under the table* → *Há dois gatos embaixo da mesa*."""
    some = common(d, "PACOMUVN", determiner="indefinite", adjective=0.45)
    past = d.chance(0.3)
    links = (d.link(),)
    be = ("were" if past else "are") if some.plural else ("was" if past else "is")
    where = place(d)
    source = [Word("there", "PRON", links), Word(be, "VERB", links), *some.source, *where.source]
    there_is = Word("havia" if past else "há", "VERB", links)
    d.record(there_is, some.target + where.target, "past" if past else "present", negative=False, plural=None)
    return Phrase(source, [there_is, *some.target, *where.target]), "."


def _more(d: Draft, adjective: Adjective, subject: Phrase) -> Phrase:
    form = adjective.comparative_forms[subject.plural]
    if adjective.comparative.startswith("more "):
        more = fixed(d, "more")
        quality_phrase = quality(d, adjective, subject)
        return Phrase(more.source + quality_phrase.source, more.target + quality_phrase.target)
    links = (d.link(),)
    words = [Word(form, "ADJ", links)]
    if not form:
        agreed = adjective_form(adjective, subject.gender, subject.plural)
        words = [Word("mais", "ADV", links), Word(agreed, "ADJ", links)]
    return Phrase([Word(adjective.comparative, "ADJ", links)], words)


def comparisons(d: Draft) -> Sentence:
    """*The house is bigger than the car* → *A casa é maior do que o carro*."""
    while True:
        kinds = d.pick("PPPAAFCOUBRVNI")
        first = common(d, kinds, adjective=0.0)
        adjective = None if first.head is None else d.pick_adjective(first.head, "comparison")
        if adjective is not None:
            break
    second = common(d, kinds, adjective=0.0, determiner="plain", owner=0.0)
    more = _more(d, adjective, first)
    than = fixed(d, "than")
    tense = d.pick(("present", "present", "past"))
    copula = copula_of(adjective, first)
    return statement(first, copular(d, first, copula, tense, more, than, second, negative=d.chance(0.15))), "."


def parts(d: Draft) -> Sentence:
    """*The door of the house is red*; *Pedro painted the door of the house*."""
    piece = common(d, "Q", adjective=0.2, determiner="the", owner=0.0)
    owner = after_preposition(d, fixed(d, "of"), common(d, "B", adjective=0.25, determiner="plain", owner=0.0))
    part = Phrase(piece.source + owner.source, piece.target + owner.target, *piece.persons, piece.gender, piece.plural)
    part.head = piece.head
    if d.chance(0.5):
        return statement(part, state(d, part, d.pick(_BE_TENSES), d.chance(0.15))), "."
    doer = someone(d)
    action = d.pick([v for v in direct_verbs() if "Q" in v.objects])
    return statement(doer, predicate(d, doer, action, d.pick(SIMPLE), part)), "."


def joined_subjects(d: Draft) -> Sentence:
    """*The boy and the girl opened the window.*"""
    named = d.chance(0.4)
    kinds = "P" if d.chance(0.7) else "A"
    first, second = (a_person(d) if named else common(d, kinds, adjective=0.25, owner=0.0) for _ in range(2))
    both = joined(d, first, second)
    if named and d.chance(0.4):
        adjective = d.pick(_HUMAN_QUALITIES)
        tense = d.pick(_BE_TENSES)
        return statement(both, copular(d, both, copula_of(adjective, both), tense, quality(d, adjective, both))), "."
    return statement(*event(d, d.pick(NARRATIVE), doer=both, doers="P" if named else kinds, adjective=0.3)), "."


def joined_clauses(d: Draft) -> Sentence:
    """*Maria sings and Pedro dances*; *but* has a comma before it; *because*."""
    tense = d.pick(SIMPLE)
    first, second = (clause(d, tense) for _ in range(2))
    return together(d, first, d.pick(("and", "but", "because")), second), "."


def reported(d: Draft) -> Sentence:
    """*She thinks that the boy is tired.*"""
    doer = someone(d, 0.15)
    tense = d.pick(("present", "past"))
    if d.chance(0.5):
        inner = anything(d)
        report = statement(inner, state(d, inner, tense))
    else:
        report = clause(d, d.pick(SIMPLE) if tense == "present" else "past")
    that = fixed(d, "that")
    content = Phrase(that.source + report.source, that.target + report.target)
    return statement(doer, predicate(d, doer, d.pick(WITH_CLAUSE), tense, content, negative=d.chance(0.15))), "."


def organisations(d: Draft) -> Sentence:
    """*The Red Cross helped the tourists*; *Maria works for UNESCO*."""
    if d.chance(0.6):
        return statement(*event(d, d.pick(SIMPLE), doer=some_name(d, "G"), doers="G")), "."
    doer = someone(d)
    employer = after_preposition(d, fixed(d, "for"), some_name(d, "G"))
    return statement(doer, predicate(d, doer, _WORK, d.pick(SIMPLE), None, employer, negative=d.chance(0.2))), "."


def commands(d: Draft) -> Sentence:
    """*Please open the door.* → *Por favor, abra a porta.*; *Do not touch the glass!*"""
    action = d.pick(_COMMANDS)
    listener = pronoun_phrase(d, _YOU)
    verb_group = predicate(d, listener, action, "present", thing(d, action, listener), negative=d.chance(0.3))
    forms = action.portuguese
    target = [
        word._replace(text=forms.command) if word.tag == "VERB" and word.text == forms.present[1] else word
        for word in verb_group.target
    ]
    command = Phrase(verb_group.auxiliary + verb_group.verb_phrase, target)
    if d.chance(0.3):
        please = fixed(d, "please")
        return Phrase(please.source + command.source, please.target + command.target), "."
    return command, d.pick(".!")


def exclamations(d: Draft) -> Sentence:
    """*What a beautiful house!* → *Que casa bonita!*"""
    while True:
        kind = d.pick_noun(_PRAISED)
        adjective = d.pick_adjective(kind, "indefinite")
        if adjective is not None:
            break
    plural = d.chance(0.3)
    named = noun_phrase(d, kind, None, plural, (adjective,))
    links = (d.link(),)
    source = [Word("what", "DET", links)]
    if not plural:
        source.append(Word(indefinite_article(adjective.english), "DET", links))
    return Phrase(source + named.source, [Word("que", "DET", links), *named.target]), "!"
