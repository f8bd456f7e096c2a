"""The example sentences of the lecture notes, written by this grammar from the words of its lexicon."""

from collections.abc import Callable
from random import Random

from atento_world.clauses import copula_of, copular, predicate, quality, statement
from atento_world.lexicon import ADJECTIVES, INTRANSITIVE, MANNER, PLACES, PRONOUNS, noun, verb
from atento_world.pairs import Pair, finish
from atento_world.phrases import Phrase, after_preposition, expression, noun_phrase, pronoun_phrase
from atento_world.questions import greeting
from atento_world.sentence import Draft
from atento_world.statements import posture

_PRONOUN = {entry.english: entry for entry in PRONOUNS}
_MANNER = {entry.source[0][0]: entry for entry in MANNER}
_ON = next(entry for entry in PLACES if entry.source[0][0] == "on")


def _i_love_nlp(d: Draft) -> Phrase:
    speaker = pronoun_phrase(d, _PRONOUN["I"])
    return statement(speaker, predicate(d, speaker, verb("love"), "present", noun_phrase(d, noun("NLP"), None)))


def _moves(d: Draft, animal: str, action: str, tense: str, manner: str) -> Phrase:
    doer = noun_phrase(d, noun(animal), "the")
    how = expression(d, _MANNER[manner])
    return statement(doer, predicate(d, doer, verb(action, INTRANSITIVE), tense, None, how))


def _cat_on_the_mat(d: Draft) -> Phrase:
    mat = after_preposition(d, expression(d, _ON), noun_phrase(d, noun("mat"), "the"))
    return posture(d, noun_phrase(d, noun("cat"), "the"), "sitting", "present", mat)


def _he_is_comfortable(d: Draft) -> Phrase:
    doer = pronoun_phrase(d, _PRONOUN["he"])
    adjective = next(entry for entry in ADJECTIVES if entry.english == "comfortable")
    copula = copula_of(adjective, doer)
    return statement(doer, copular(d, doer, copula, "present", quality(d, adjective, doer, very=True)))


_SENTENCES: tuple[tuple[str, Callable[[Draft], Phrase], str], ...] = (
    ("field", _i_love_nlp, ""),
    ("movement", lambda d: _moves(d, "cat", "jump", "past", "high"), ""),
    ("movement", lambda d: _moves(d, "kitten", "run", "present", "quickly"), ""),
    ("posture", _cat_on_the_mat, ""),
    ("quality", _he_is_comfortable, ""),
    ("whereabouts", lambda d: greeting(d, "how", pronoun_phrase(d, _PRONOUN["you"]), "present"), "?"),
)


def notes_sentences() -> list[Pair]:
    """Return the notes' sentences as pairs (docs/notes.md#l2); statements have no full stop, as in the notes."""
    pairs = []
    for structure, write, punctuation in _SENTENCES:
        draft = Draft(Random(0))
        phrase = write(draft)
        pairs.append(finish(draft.link(), phrase.source, phrase.target, punctuation, structure, draft.clauses))
    return pairs
