"""Labelled examples of the micro-world: nine labellings, each from the derivation of its sentences."""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import count as numbers
from random import Random
from typing import Any

from atento.base.errors import UsageError, nearest
from atento_world.pairs import Pair, Word, finished, spell
from atento_world.phrases import Phrase
from atento_world.scenes import Scene, changed_participant, changed_verb, draw_place, draw_scene
from atento_world.sentence import Draft
from atento_world.splits import attempt, belongs, check, seeded, sentence_key

Example = dict[str, Any]
LANGUAGES = ("pt", "en")
_MAX_MISSES = 4000  # draws in a row without an example, after which a labelling counts as exhausted
_MARKS = (".", "?", "!")
_MOST = 5.0  # the similarity of two sentences that share every role
_SENTENCES = (1, 2, 2)  # of a context


@dataclass(frozen=True)
class Labelling:
    """How examples are drawn.

    Attributes:
        draw: from random numbers, a split and a language: a key that no two examples share, the class that is balanced
            (None: nothing is) and the example; None for a miss.
        classes: the number of classes, which are equally frequent; 0: nothing is balanced.
    """

    draw: Callable[[Random, str, str], tuple[Hashable, str | None, Example] | None]
    classes: int = 0


def labelled(labels: str, split: str, count: int, seed: int = 1, language: str = "pt") -> list[Example]:
    """Return `count` different examples of a labelling; the same for the same arguments, on any machine.

    The splits are those of `write`. Sentences of one text are those of `write`, where the labelling applies to them.
    Classes are equally frequent. A shorter list is a prefix of a longer one.

    Args:
        labels: a key of `LABELLINGS`.
        split: one of `SPLITS`.
        language: pt or en.

    Returns:
        Mappings with the keys text and label; text, pair and label; text, pair and score (0 to 5); tokens and tags; or
        question, context and answers (a list of mappings with text and answer_start, in characters of the context).

    Raises:
        UsageError: an unknown labelling, split or language, a negative count, or a count that is too large.
    """
    for name, value, known in (("labels", labels, tuple(LABELLINGS)), ("language", language, LANGUAGES)):
        if value not in known:
            raise UsageError(f"`{name}` must be one of {', '.join(known)}: got {value!r}{nearest(value, list(known))}")
    check(split, count)
    labelling = LABELLINGS[labels]
    random = seeded(f"{split} {seed}" if labels in _OF_SENTENCES else f"{labels} {split} {seed}")
    examples: list[Example] = []
    keys: set[Hashable] = set()
    frequencies: Counter[str | None] = Counter()
    misses = 0
    while len(examples) < count:
        drawn = labelling.draw(random, split, language)
        # a class that is ahead waits until the others have caught up
        full = drawn is not None and labelling.classes and frequencies[drawn[1]] > len(examples) // labelling.classes
        if drawn is None or full or drawn[0] in keys:
            misses += 1
            if misses > _MAX_MISSES:
                raise UsageError(
                    f"split {split!r} has too few examples with the labels {labels}: asked for {count}, found "
                    f"{len(examples)}"
                )
            continue
        misses = 0
        key, label, example = drawn
        keys.add(key)
        frequencies[label] += 1
        examples.append(example)
    return examples


def _words(pair: Pair, language: str) -> tuple[str, ...]:
    return pair.source_words if language == "en" else pair.target_words


def _of_sentence(
    label: Callable[[Pair, str], str | None],
) -> Callable[[Random, str, str], tuple[Hashable, str | None, Example] | None]:
    """Return how texts with a label are drawn; a sentence whose label is None is left out."""

    def draw(random: Random, split: str, language: str) -> tuple[Hashable, str | None, Example] | None:
        written = attempt(split, random)
        value = None if written is None else label(written[1], language)
        if written is None or value is None:
            return None
        key, pair = written
        text = pair.source if language == "en" else pair.target
        if label is _question:
            text = text.rstrip("".join(_MARKS))
        return key, value, {"text": text, "label": value}

    return draw


def _common(values: set[object]) -> object:
    """Return the value that all main clauses share; None if they differ or there are none."""
    return values.pop() if len(values) == 1 else None


def _tense(pair: Pair, language: str) -> str | None:
    """Return present, past or future; None where the Portuguese form may be present or past."""
    if language == "pt" and any(clause.ambiguous for clause in pair.clauses):
        return None
    tense = _common({clause.tense for clause in pair.clauses})
    return tense if tense is None else str(tense)


def _negation(pair: Pair, language: str) -> str | None:
    """Return negative if a main clause is negated, else affirmative."""
    if not pair.clauses:
        return None
    return "negative" if any(clause.negative for clause in pair.clauses) else "affirmative"


def _number(pair: Pair, language: str) -> str | None:
    """Return the number of the subjects of the main clauses: singular or plural."""
    plural = _common({clause.plural for clause in pair.clauses})
    return None if plural is None else "plural" if plural else "singular"


def _question(pair: Pair, language: str) -> str | None:
    """Return question or statement; None where only the final mark would tell them apart in Portuguese."""
    if not pair.clauses or (language == "pt" and pair.structure == "yes-no"):
        return None
    return "question" if pair.source_words[-1] == "?" else "statement"


def _tagged(tags: Callable[[Pair, str], tuple[str, ...]]) -> Callable[..., tuple[Hashable, None, Example] | None]:
    """Return how words with tags are drawn."""

    def draw(random: Random, split: str, language: str) -> tuple[Hashable, None, Example] | None:
        written = attempt(split, random)
        if written is None:
            return None
        key, pair = written
        return key, None, {"tokens": list(_words(pair, language)), "tags": list(tags(pair, language))}

    return draw


def _entities(pair: Pair, language: str) -> tuple[str, ...]:
    """Return the tags of the names in the scheme IOB2."""
    tags = ["O"] * len(_words(pair, language))
    for entity in pair.entities:
        if entity.side == ("source" if language == "en" else "target"):
            tags[entity.start : entity.end] = [f"I-{entity.label}"] * (entity.end - entity.start)
            tags[entity.start] = f"B-{entity.label}"
    return tuple(tags)


def _scene(random: Random, split: str) -> tuple[Draft, Scene, str] | None:
    """Draw a scene of a split: the draft, the scene and the key of its statement; None for a miss."""
    d = Draft(random, unseen=split == "combinations")
    scene = draw_scene(d, longer=split == "structures")
    if (scene.thing is not None and scene.thing.head == scene.doer.head) or (d.unseen and not d.unseen_pairs):
        return None
    key = sentence_key(scene.statement(d))
    return (d, scene, key) if belongs(key, split) else None


def _written(d: Draft, phrase: Phrase, mark: str, language: str) -> list[Word]:
    """Return the words of a sentence in a language, as they are spelled."""
    source, target = finished(d.link(), phrase.source, phrase.target, mark)
    return source if language == "en" else target


def _text(words: list[Word]) -> str:
    return spell([word.text for word in words])


def _pair_of(d: Draft, first: Scene, second: Scene, language: str) -> tuple[str, str]:
    first_text, second_text = (_text(_written(d, scene.statement(d), ".", language)) for scene in (first, second))
    return first_text, second_text


def _entailment(random: Random, split: str, language: str) -> tuple[Hashable, str, Example] | None:
    """Draw premise and hypothesis.

    Entailment: the hypothesis lacks a modifier of the premise. Contradiction: moreover, or only, it is negated; or the
    premise is, and lacks the modifiers. Neutral: the hypothesis has a modifier more, or another doer, verb or thing.
    """
    drawn = _scene(random, split)
    if drawn is None:
        return None
    d, scene, _ = drawn
    label = d.pick(("entailment", "contradiction", "neutral"))
    reduced = _without_modifiers(d, scene)
    premise, hypothesis = scene, reduced
    if label == "entailment":
        if reduced == scene:
            return None
    elif label == "contradiction":
        hypothesis = replace(reduced, negative=True)
        if d.chance(0.3):
            premise, hypothesis = hypothesis, premise
    elif d.chance(0.3):
        premise, hypothesis = reduced, scene
        if reduced == scene:
            return None
    else:
        changed = _changed(d, reduced, d.pick(("doer", "action", "thing")))
        if changed is None:
            return None
        hypothesis = replace(changed, negative=d.chance(0.5))
    text, pair = _pair_of(d, premise, hypothesis, language)
    return (text, pair), label, {"text": text, "pair": pair, "label": label}


def _without_modifiers(d: Draft, scene: Scene) -> Scene:
    """Return the scene with each of its modifiers left out with probability a half: adjectives, place, time."""
    if scene.doer.adjective is not None and d.chance(0.5):
        scene = replace(scene, doer=replace(scene.doer, adjective=None))
    if scene.thing is not None and scene.thing.adjective is not None and d.chance(0.5):
        scene = replace(scene, thing=replace(scene.thing, adjective=None))
    if scene.place is not None and d.chance(0.5):
        scene = replace(scene, place=None)
    if scene.time is not None and d.chance(0.5):
        scene = replace(scene, time=None)
    return scene


def _changed(d: Draft, scene: Scene, role: str) -> Scene | None:
    """Return the scene with another doer, action or thing; None for a miss."""
    taken: set[object] = {scene.doer.name, scene.doer.noun}
    if scene.thing is not None:
        taken |= {scene.thing.name, scene.thing.noun}
    if role == "action":
        verb = changed_verb(d, scene)
        return None if verb is None else replace(scene, verb=verb)
    if role == "doer":
        doer = changed_participant(d, scene.doer, scene.verb.subjects, taken - {None})
        return None if doer is None else replace(scene, doer=doer)
    thing = None if scene.thing is None else changed_participant(d, scene.thing, scene.verb.objects, taken - {None})
    return None if thing is None else replace(scene, thing=thing)


def _similarity(random: Random, split: str, language: str) -> tuple[Hashable, None, Example] | None:
    """Draw two sentences and the share of the roles that they fill alike, from 0 to 5."""
    drawn = _scene(random, split)
    if drawn is None:
        return None
    d, scene, _ = drawn
    probability = d.pick((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    second = scene
    for role in ("doer", "action", "thing"):
        if d.chance(probability):
            second = _changed(d, second, role) or second
    second = _with_other_modifiers(d, second, probability)
    text, pair = _pair_of(d, scene, second, language)
    return (text, pair), None, {"text": text, "pair": pair, "score": similarity(scene, second)}


def _with_other_modifiers(d: Draft, scene: Scene, probability: float) -> Scene:
    """Return the scene with each modifier left out with a probability, and a new place or time instead at times."""
    doer, thing = (
        replace(participant, adjective=None) if participant is not None and d.chance(probability) else participant
        for participant in (scene.doer, scene.thing)
    )
    assert doer is not None
    scene = replace(scene, doer=doer, thing=thing)
    if scene.place is not None and d.chance(probability):
        scene = replace(scene, place=draw_place(d) if d.chance(0.5) else None)
    if scene.time is not None and d.chance(probability):
        scene = replace(scene, time=None)
    return scene


def similarity(first: Scene, second: Scene) -> float:
    """Return 5 times the share of equal roles, among the roles that at least one of the scenes has."""
    pairs = [(value, second.roles[role]) for role, value in first.roles.items()]
    pairs = [pair for pair in pairs if pair != (None, None)]
    return round(_MOST * sum(a == b for a, b in pairs) / len(pairs), 3)


def _answers(random: Random, split: str, language: str) -> tuple[Hashable, None, Example] | None:
    """Draw a context of one or two sentences with different verbs, and a question about one of them."""
    scenes: list[tuple[Draft, Scene, str]] = []
    length = _SENTENCES[int(random.random() * len(_SENTENCES))]
    for attempts in numbers():
        if attempts > 40 * length:  # as for valid, which accepts a sentence in twelve
            return None
        drawn = _scene(random, split)
        if drawn is None or any(_alike(drawn[1], scene) for _, scene, _ in scenes):
            continue
        scenes.append(drawn)
        if len(scenes) == length:
            break
    d = scenes[0][0]
    number = int(random.random() * length)
    asked = scenes[number][1]
    roles = asked.askable()
    if not roles:
        return None
    role = d.pick(roles)
    sentences = [_written(d, scene.statement(d), ".", language) for _, scene, _ in scenes]
    texts = [_text(words) for words in sentences]
    start, end = _span(sentences[number], role)
    offset = sum(len(text) + 1 for text in texts[:number])
    context = " ".join(texts)
    answer = {"text": texts[number][start:end], "answer_start": offset + start}
    question = _text(_written(d, asked.question(d, role), "?", language))
    return (context, question), None, {"question": question, "context": context, "answers": [answer]}


def _alike(first: Scene, second: Scene) -> bool:
    """Return whether a question about one may be answered by the other: they share the verb, or a noun or a name."""
    heads = [
        {participant.head for participant in (scene.doer, scene.thing) if participant is not None}
        for scene in (first, second)
    ]
    return first.verb.english == second.verb.english or bool(heads[0] & heads[1])


def _span(words: list[Word], role: str) -> tuple[int, int]:
    """Return the characters of the words in this role: start, and end (not included)."""
    places = [number for number, word in enumerate(words) if word.role == role]
    texts = [word.text for word in words]
    start = len(spell(texts[: places[0] + 1])) - len(texts[places[0]])
    return start, len(spell(texts[: places[-1] + 1]))


LABELLINGS: dict[str, Labelling] = {
    "tense": Labelling(_of_sentence(_tense), 3),
    "negation": Labelling(_of_sentence(_negation), 2),
    "number": Labelling(_of_sentence(_number), 2),
    "question": Labelling(_of_sentence(_question), 2),
    "similarity": Labelling(_similarity),
    "entailment": Labelling(_entailment, 3),
    "pos": Labelling(_tagged(lambda pair, language: pair.source_tags if language == "en" else pair.target_tags)),
    "entities": Labelling(_tagged(_entities)),
    "answers": Labelling(_answers),
}
_OF_SENTENCES = ("tense", "negation", "number", "question", "pos", "entities")
