"""Scenes: who does what, where and when, as values to compare, to change, and to write as sentences and questions."""

from dataclasses import dataclass, replace

from atento_world.clauses import predicate, question, statement
from atento_world.events import SIMPLE, verbs_for
from atento_world.lexicon import (
    PEOPLE,
    PLACES,
    SURNAMES,
    Adjective,
    Determiner,
    Expression,
    Name,
    Noun,
    Verb,
    names_of,
    nouns_of,
)
from atento_world.phrases import (
    Phrase,
    after_preposition,
    determiners,
    expression,
    fixed,
    name_phrase,
    noun_phrase,
    times,
)
from atento_world.sentence import Draft, adjectives_for

_NAMES = "HYZG"
#: The roles of a scene that a question asks for, and the word that asks.
QUESTION_WORDS = {"doer": "who", "thing": "what", "place": "where", "time": "when"}
_ASKED_WITH_WHAT = frozenset("FDCOIMStk")  # kinds of nouns


@dataclass(frozen=True)
class Participant:
    """A name with an optional surname, or a noun with determiner, number and at most one adjective."""

    name: Name | None = None
    surname: str = ""
    noun: Noun | None = None
    determiner: Determiner | None = None
    plural: bool = False
    adjective: Adjective | None = None

    @property
    def head(self) -> tuple[object, ...]:
        """Who or what it is, without its determiner and its adjective."""
        return self.name, self.surname, self.noun, self.plural

    def phrase(self, d: Draft) -> Phrase:
        """Return it as a phrase."""
        if self.name is not None:
            return name_phrase(d, self.name, self.surname)
        assert self.noun is not None
        adjectives = () if self.adjective is None else (self.adjective,)
        return noun_phrase(d, self.noun, self.determiner, self.plural, adjectives)


@dataclass(frozen=True)
class Place:
    """A preposition and a participant: *in the garden*."""

    preposition: Expression
    where: Participant

    def phrase(self, d: Draft) -> Phrase:
        """Return it as a phrase."""
        return after_preposition(d, expression(d, self.preposition), self.where.phrase(d))


@dataclass(frozen=True)
class Scene:
    """An event: a doer, a verb in a tense, and where they apply a thing, a place and a time."""

    doer: Participant
    verb: Verb
    tense: str
    thing: Participant | None = None
    place: Place | None = None
    time: Expression | None = None
    negative: bool = False

    @property
    def roles(self) -> dict[str, object]:
        """What fills each role; the adjectives of doer and thing are roles of their own. None: nothing."""
        return {
            "doer": self.doer.head,
            "quality of the doer": self.doer.adjective,
            "action": self.verb,
            "thing": None if self.thing is None else self.thing.head,
            "quality of the thing": None if self.thing is None else self.thing.adjective,
            "place": None if self.place is None else (self.place.preposition, self.place.where.head),
            "time": self.time,
        }

    def statement(self, d: Draft) -> Phrase:
        """*Maria bought the red car in the market.* The words of each phrase have its role."""
        doer = _in_role(self.doer.phrase(d), "doer")
        thing = None if self.thing is None else _in_role(self.thing.phrase(d), "thing")
        place = None if self.place is None else _in_role(self.place.phrase(d), "place")
        time = None if self.time is None else _in_role(expression(d, self.time), "time")
        return statement(doer, predicate(d, doer, self.verb, self.tense, thing, place, time, negative=self.negative))

    def question(self, d: Draft, role: str) -> Phrase:
        """Return the question for a role of `QUESTION_WORDS`, without place and time: *Who bought the red car*."""
        word = fixed(d, QUESTION_WORDS[role])
        thing = None if self.thing is None or role == "thing" else self.thing.phrase(d)
        if role == "doer":
            return statement(word, predicate(d, word, self.verb, self.tense, thing))
        doer = self.doer.phrase(d)
        clause = question(doer, predicate(d, doer, self.verb, self.tense, thing, inverted=True))
        return Phrase(word.source + clause.source, word.target + clause.target)

    def askable(self) -> tuple[str, ...]:
        """Return the roles that a question can ask for."""
        kinds = set() if self.thing is None or self.thing.noun is None else set(self.thing.noun.kinds)
        direct = not (self.verb.particle or self.verb.preposition)
        present = {
            "doer": "P" in self.verb.subjects and (self.doer.noun is None or "P" in self.doer.noun.kinds),
            "thing": direct and bool(kinds & _ASKED_WITH_WHAT) and not kinds & set("PA"),
            "place": self.place is not None,
            "time": self.time is not None,
        }
        return tuple(role for role, possible in present.items() if possible)


def _in_role(phrase: Phrase, role: str) -> Phrase:
    return replace(
        phrase,
        source=[word._replace(role=role) for word in phrase.source],
        target=[word._replace(role=role) for word in phrase.target],
    )


def draw_scene(d: Draft, longer: bool) -> Scene:
    """Draw a scene with at most one of place and time; with `longer` (the split *structures*) it has both."""
    tense = d.pick(SIMPLE)
    setting = "both" if longer else d.pick(("", "place", "time"))
    verb = d.pick(verbs_for(tense, "place" if setting in ("place", "both") else ""))
    doer = draw_participant(d, verb.subjects)
    thing = draw_participant(d, verb.objects) if verb.objects else None
    place = draw_place(d) if setting in ("place", "both") else None
    time = d.pick(times(tense)) if setting in ("time", "both") else None
    return Scene(doer, verb, tense, thing, place, time)


def draw_participant(d: Draft, kinds: str, adjective: float = 0.55) -> Participant:
    """Draw a participant of these kinds: definite, so that it is the same one when it is named again."""
    names = "".join(kind for kind in kinds if kind in _NAMES)
    nouns = "".join(kind for kind in kinds if kind not in _NAMES)
    if "P" in kinds and d.chance(0.3):
        names = "H"
    if names and (not nouns or d.chance(0.3) or names == "H"):
        kind = d.pick(names)
        if kind == "H":
            return Participant(d.pick(PEOPLE), d.pick(SURNAMES) if d.chance(0.15) else "")
        return Participant(d.pick(names_of(kind)))
    noun = d.pick_noun(nouns_of(nouns))
    if "S" in noun.kinds:
        return Participant(noun=noun)
    quality = d.pick_adjective(noun, "attribute") if d.chance(adjective) else None
    if quality is not None and quality.definite:
        quality = None
    plural = noun.countable and d.chance(0.3)
    return Participant(
        noun=noun, determiner=d.pick(determiners(plural, "plain", noun.countable)), plural=plural, adjective=quality
    )


def draw_place(d: Draft) -> Place:
    """Draw a place without an adjective."""
    if d.chance(0.2):
        return Place(PLACES[0], Participant(d.pick(names_of(d.pick("YZ")))))
    preposition = d.pick(PLACES)
    noun = d.pick_noun(nouns_of(preposition.use))
    determiner = d.pick(determiners(False, "the", noun.countable))
    return Place(preposition, Participant(noun=noun, determiner=determiner))


def changed_participant(d: Draft, participant: Participant, kinds: str, taken: set[object]) -> Participant | None:
    """Draw another participant of these kinds that has, where it suits, the adjective of the first; None for a miss."""
    drawn = draw_participant(d, kinds, adjective=0.0)
    if {drawn.name, drawn.noun} - {None} & taken:
        return None
    kept = participant.adjective
    suits = kept is not None and drawn.noun is not None and kept in adjectives_for(drawn.noun, "attribute", False)
    return replace(drawn, adjective=kept) if suits else drawn


def changed_verb(d: Draft, scene: Scene) -> Verb | None:
    """Draw another verb that takes the same doer, thing and place; None for a miss."""
    verb = d.pick(verbs_for(scene.tense, "place" if scene.place is not None else ""))
    doer, thing = (_kinds(participant) for participant in (scene.doer, scene.thing))
    fits = bool(doer & set(verb.subjects)) and (bool(thing & set(verb.objects)) if scene.thing else not verb.objects)
    return verb if fits and verb.english != scene.verb.english else None


def _kinds(participant: Participant | None) -> set[str]:
    """Return the kinds and traits of a participant; a person's name is of the kind of people too."""
    if participant is None:
        return set()
    if participant.name is not None:
        return {participant.name.kind, *("P" if participant.name.kind == "H" else "")}
    assert participant.noun is not None
    return set(participant.noun.kinds)
