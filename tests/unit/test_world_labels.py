"""Gold labels of the micro-world, each against an independent reading of its words by the lexicon."""

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from atento.base.errors import UsageError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import LABELLINGS as FIELDS
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import read_records
from atento.data.records.values import Span
from atento_world import LABELLINGS, SPLITS, Pair, labelled, lexicon, write
from atento_world.inflection import conjugate
from atento_world.labelling import similarity
from atento_world.scenes import Participant, Place, Scene
from failing import fails

# Forms of the Portuguese verbs, from the conjugation tables: form -> the tenses and numbers that it may have.
TENSES: dict[str, set[str]] = {}
NUMBERS: dict[str, set[str]] = {}
for _verb in [*(verb.portuguese for verb in lexicon.VERBS), *map(conjugate, ("ser", "estar", "ir", "poder", "dever"))]:
    for _tense, _forms in (("present", _verb.present), ("past", _verb.past)):
        for _person, _form in enumerate(_forms):
            TENSES.setdefault(_form, set()).add(_tense)
            NUMBERS.setdefault(_form, set()).add("plural" if _person >= 2 else "singular")
for _word, _number in (("foi", "singular"), ("foram", "plural"), ("irá", "singular"), ("irão", "plural")):
    NUMBERS.setdefault(_word, set()).add(_number)
for _word, _tense in (("há", "present"), ("havia", "past"), ("foi", "past"), ("foram", "past"), ("irei", "future")):
    TENSES.setdefault(_word, set()).add(_tense)
for _word in ("irá", "iremos", "irão"):
    TENSES.setdefault(_word, set()).add("future")
for _word, _number in (("fui", "singular"), ("irei", "singular"), ("iremos", "plural"), ("fomos", "plural")):
    NUMBERS.setdefault(_word, set()).add(_number)
for _word in ("deveria", "deveríamos", "deveriam"):
    NUMBERS.setdefault(_word, set()).add("singular" if _word == "deveria" else "plural")
GOING = {"vou", "vai", "vamos", "vão"}
INFINITIVES = {verb.portuguese.infinitive for verb in lexicon.VERBS} | {"ser", "estar"}
SIMPLE = {"simple", "manner", "place", "movement", "quality", "location", "organisation", "dative", "time", "posture"}


@cache
def _train() -> list[Pair]:
    return write("train", 4800)


@cache
def _examples(labels: str) -> list[dict[str, Any]]:
    """Of the split train; those of a shorter list begin it."""
    return labelled(labels, "train", {"tense": 600, "number": 500}.get(labels, 400))


def _simple(labels: str, count: int) -> list[tuple[dict[str, Any], Any]]:
    """Examples of the labelling whose sentence has one clause, with its pair."""
    pairs = {pair.target: pair for pair in _train()[: 8 * count]}
    pairs |= {text.rstrip(".?!"): pair for text, pair in list(pairs.items())}
    examples = [(example, pairs.get(example["text"])) for example in _examples(labels)[:count]]
    return [(example, pair) for example, pair in examples if pair is not None and pair.structure in SIMPLE]


def _verbs(pair: Any) -> list[str]:
    return [word.lower() for word, tag in zip(pair.target_words, pair.target_tags) if tag in ("VERB", "AUX")]


def test_tense_and_number_are_those_of_the_verb_forms_and_negation_and_questions_have_their_signs() -> None:
    examples = _simple("tense", 600)
    assert len(examples) > 100
    for example, pair in examples:
        first, *others = _verbs(pair)
        by_form = {"future"} if first in GOING and others and others[0] in INFINITIVES else TENSES[first]
        assert example["label"] in by_form, pair.target
        assert len(by_form) == 1 or first in ("ri", "sorri"), pair.target  # ele ri; eu ri
    examples = _simple("number", 500)
    assert len(examples) > 100
    for example, pair in examples:
        assert example["label"] in NUMBERS[_verbs(pair)[0]], pair.target
        assert len(NUMBERS[_verbs(pair)[0]]) == 1 or pair.target_words[0] in ("Eu", "Nós"), pair.target
    for example in _examples("negation")[:400] + labelled("negation", "structures", 100):
        words = set(re.findall(r"\w+", example["text"].lower()))
        assert (example["label"] == "negative") <= bool(words & {"não", "nunca"}), example
    simple = _simple("negation", 300)
    assert len(simple) > 80
    for example, _ in simple:
        words = set(re.findall(r"\w+", example["text"].lower()))
        assert (example["label"] == "negative") == bool(words & {"não", "nunca"}), example
    for language in ("pt", "en"):
        texts = [text for pair in _train()[:3000] for text in (pair.target, pair.source)]
        questions = {text.rstrip("?") for text in texts if text.endswith("?")}
        statements = {text.rstrip(".") for text in texts if text[-1] not in "?!"}
        examples = labelled("question", "train", 300, language=language)
        for example in examples:
            assert not re.search(r"[.?!]$", example["text"])
            assert example["text"] in (questions if example["label"] == "question" else statements)
        asks = {"Quem", "O", "Onde", "Quando", "Por", "Como"}
        if language == "pt":  # each is told by its words: no question is only told by its mark
            assert {example["text"].split()[0] for example in examples if example["label"] == "question"} <= asks


def test_classes_are_equally_frequent_and_examples_and_records_those_of_their_arguments() -> None:
    for labels in ("tense", "negation", "number", "question", "entailment"):
        for split in ("train", "combinations"):
            examples = _examples(labels)[:120] if split == "train" else labelled(labels, split, 120)
            frequencies = Counter(example["label"] for example in examples)
            assert len(frequencies) == LABELLINGS[labels].classes and max(frequencies.values()) <= 61
            assert max(frequencies.values()) - min(frequencies.values()) <= 2, (labels, split)
            assert labelled(labels, split, 50) == examples[:50]
    for labels in LABELLINGS:
        assert labelled(labels, "train", 20, 3) == labelled(labels, "train", 20, 3)
        assert labelled(labels, "train", 20, 3) != labelled(labels, "train", 20, 4)
    held_out = {pair.target for pair in write("combinations", 300)}
    examples = labelled("tense", "combinations", 80)
    assert sum(example["text"] in held_out for example in examples) == len(examples)
    # The table of the recipes, and the records that a task reads
    assert set(FIELDS) == set(LABELLINGS)
    for labels, columns in FIELDS.items():
        assert set(labelled(labels, "train", 1)[0]) == set(columns)
    records = read_records(SourceConfig(world="valid", labels="answers", count=5), TASKS["question-answering"].fields)
    assert len(records) == 5 and all(isinstance(spans[0], Span) for spans in records["answers"])
    entailed = SourceConfig(world="valid", labels="entailment", text="en", count=4)
    pairs = read_records(entailed, TASKS["classification"].fields)
    assert list(pairs.columns) == ["text", "pair", "label"] and pairs.where(3) == "world valid entailment:4"
    texts = read_records(SourceConfig(world="valid", labels="tense", count=4), TASKS["classification"].fields)
    assert list(texts.columns) == ["text", "label"]
    with pytest.raises(UsageError, match=r"`labels` must be one of tense, .*: got 'tenses'; did you mean 'tense'\?"):
        labelled("tenses", "train", 1)
    fails(UsageError, "`language` must be one of pt, en: got 'fr'", labelled, "tense", "train", 1, language="fr")
    with pytest.raises(UsageError, match="split 'structures' has too few examples with the labels question"):
        labelled("question", "structures", 10)


CATEGORIES: dict[str, set[str]] = {}
for _noun in lexicon.NOUNS:
    for _form in (_noun.portuguese, _noun.portuguese_plural, _noun.feminine):
        CATEGORIES.setdefault(_form, set()).add("NOUN")
for _adjective in lexicon.ADJECTIVES:
    for _form in (*_adjective.forms, *_adjective.comparative_forms):
        CATEGORIES.setdefault(_form, set()).add("ADJ")
for _form in {*TENSES, *INFINITIVES}:
    CATEGORIES.setdefault(_form, set()).update(("VERB", "AUX"))
for _verb in (verb.portuguese for verb in lexicon.VERBS):
    _stem = _verb.participle[:-1]
    for _form in (_verb.gerund, _verb.command, *(_stem + ending for ending in ("o", "a", "os", "as"))):
        CATEGORIES.setdefault(_form, set()).add("VERB")
NAME_WORDS: dict[str, set[str]] = {}
for _name in lexicon.NAMES:
    for _number, _word in enumerate(_name.portuguese):
        _label = {"H": "PER", "Y": "LOC", "Z": "LOC", "G": "ORG"}[_name.kind]
        NAME_WORDS.setdefault(_word, set()).add(f"{'I' if _number else 'B'}-{_label}")
for _word in lexicon.SURNAMES:
    NAME_WORDS.setdefault(_word, set()).add("I-PER")


def test_parts_of_speech_are_the_categories_of_the_words_and_entities_the_names_in_iob2() -> None:
    checked = 0
    for example in _examples("pos")[:300]:
        for word, tag in zip(example["tokens"], example["tags"], strict=True):
            categories = CATEGORIES.get(word.lower())
            if tag in ("NOUN", "ADJ", "VERB", "AUX") and categories and word not in NAME_WORDS:
                assert tag in categories | {"ADJ"} if word.endswith(("ado", "ados", "ada", "adas")) else categories
                checked += 1
            assert (word in ".,?!") == (tag == "PUNCT") and (tag == "PROPN") <= (word in NAME_WORDS)
    assert checked > 700
    tagged = 0
    for example in _examples("entities")[:300] + labelled("entities", "structures", 100):
        before = "O"
        for word, tag in zip(example["tokens"], example["tags"], strict=True):
            if tag != "O":
                assert tag in NAME_WORDS[word], example
                assert tag[0] == "B" or before[2:] == tag[2:], example
            elif word in NAME_WORDS:  # a common word that begins a sentence has the spelling of no name
                pytest.fail(f"{word} has no tag: {example}")
            before, tagged = tag, tagged + (tag != "O")
    assert tagged > 100


def _bag(text: str) -> Counter[str]:
    return Counter(re.findall(r"[\w-]+", text.lower()))


def test_entailment_and_similarity_by_the_words_of_both_sentences() -> None:
    """A hypothesis with no other words is entailed; with *não*, on one side only, it contradicts; else neither."""
    for split in SPLITS:
        for example in labelled("entailment", split, 150 if split == "valid" else 300):
            premise, hypothesis = _bag(example["text"]), _bag(example["pair"])
            negated = premise.pop("não", 0), hypothesis.pop("não", 0)
            shorter, longer = (premise, hypothesis) if negated[0] else (hypothesis, premise)
            expected = "neutral"
            if shorter <= longer and negated[0] != negated[1]:
                expected = "contradiction"
            elif shorter <= longer and negated == (0, 0):
                expected = "entailment"
            assert example["label"] == expected, example
    examples = _examples("similarity")[:400]
    shares: dict[bool, list[float]] = {True: [], False: []}
    for example in examples:
        first, second = _bag(example["text"]), _bag(example["pair"])
        assert 0 <= example["score"] <= 5
        assert (example["score"] == 5) == (first == second), example
        overlap = 2 * (first & second).total() / (first.total() + second.total())
        shares[example["score"] > 2.5].append(overlap)
    assert min(map(len, shares.values())) > 60
    assert sum(shares[True]) / len(shares[True]) > sum(shares[False]) / len(shares[False]) + 0.25
    # Six roles, of which the doer's adjective and the place differ; then all but the verb
    boy, cat, door = (Participant(noun=lexicon.noun(word)) for word in ("boy", "cat", "door"))
    tired, old = (entry for entry in lexicon.ADJECTIVES if entry.english in ("tired", "old"))
    garden = Place(lexicon.PLACES[0], Participant(noun=lexicon.noun("garden")))
    scene = Scene(replace(boy, adjective=tired), lexicon.verb("open"), "past", replace(door, adjective=old), garden)
    assert similarity(scene, scene) == 5
    assert similarity(scene, replace(scene, doer=boy, place=None)) == round(5 * 4 / 6, 3)
    assert similarity(scene, Scene(cat, lexicon.verb("open"), "past")) == round(5 * 1 / 6, 3)


CONTENT = {"NOUN", "VERB", "ADJ", "PROPN"}


def test_answers_are_in_the_sentence_of_the_question() -> None:
    for language in ("pt", "en"):
        words_of_roles = {"pt": ("Quem", "O que", "Onde", "Quando"), "en": ("Who", "What", "Where", "When")}[language]
        names = dict(zip(words_of_roles, ("doer", "thing", "place", "time")))
        roles: Counter[str] = Counter()
        for example in labelled("answers", "train", 300, language=language):
            (answer,), context = example["answers"], example["context"]
            text, start = answer["text"], answer["answer_start"]
            assert context[start : start + len(text)] == text
            word = next(word for word in words_of_roles if example["question"].startswith(word))
            role = names[word]
            roles[role] += 1
            parts = re.split(r"(?<=\.) ", context)
            sentence = next(part for part in parts if text in part and _missing(example, part, word) < 2)
            assert context.index(sentence) <= start < context.index(sentence) + len(sentence)
            assert (role == "doer") == sentence.startswith(text), example
            assert all(_missing(example, part, word) for part in parts if part != sentence), example
        assert min(roles.values()) > 20 and len(roles) == 4


def _missing(example: dict[str, Any], sentence: str, word: str) -> int:
    """The number of words of the question that the sentence lacks, but the question word and *do*."""
    asked = _bag(example["question"].removeprefix(word))
    for auxiliary in ("did", "does", "do"):
        asked.pop(auxiliary, 0)
    return (asked - _bag(sentence)).total()


@pytest.mark.parametrize("labels", LABELLINGS)
def test_splits_are_disjoint_and_held_out_combinations_are_held_out(labels: str) -> None:
    def texts(split: str) -> set[str]:
        return {str(sorted(example.items())) for example in labelled(labels, split, 60)}

    train = {str(sorted(example.items())) for example in _examples(labels)}
    assert not train & texts("valid") and not train & texts("combinations")
