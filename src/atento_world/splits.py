"""The four splits of the micro-world, the tables of their sentence patterns, and the sentences of each."""

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from random import Random

from atento.base.errors import UsageError, nearest
from atento_world import held_out as longer
from atento_world import questions, relatives, statements
from atento_world.events import Sentence
from atento_world.notes import notes_sentences
from atento_world.pairs import Pair, finish
from atento_world.phrases import Phrase
from atento_world.sentence import Draft

Pattern = Callable[[Draft], Sentence]

#: Every pattern of train, valid and combinations, with its relative frequency.
PATTERNS: dict[str, tuple[Pattern, int]] = {
    "simple": (statements.simple, 16),
    "field": (statements.fields, 3),
    "movement": (statements.movements, 4),
    "manner": (statements.with_manner, 5),
    "place": (statements.with_place, 6),
    "company": (statements.with_company, 4),
    "time": (statements.with_time, 6),
    "frequency": (statements.with_frequency, 4),
    "modal": (statements.with_modal, 4),
    "infinitive": (statements.with_infinitive, 4),
    "quality": (statements.qualities, 10),
    "profession": (statements.professions, 2),
    "origin": (statements.origins, 2),
    "location": (statements.locations, 5),
    "posture": (statements.postures, 3),
    "dative": (statements.datives, 4),
    "passive": (statements.passives, 5),
    "existence": (statements.existence, 4),
    "comparison": (statements.comparisons, 6),
    "part": (statements.parts, 3),
    "joined-subjects": (statements.joined_subjects, 3),
    "joined-clauses": (statements.joined_clauses, 4),
    "reported": (statements.reported, 4),
    "organisation": (statements.organisations, 3),
    "command": (statements.commands, 3),
    "exclamation": (statements.exclamations, 2),
    "yes-no": (questions.yes_no, 6),
    "who": (questions.who, 3),
    "what": (questions.what, 3),
    "adverb-question": (questions.adverb_question, 4),
    "whereabouts": (questions.whereabouts, 3),
    "subject-relative": (relatives.subject_relative, 5),
    "object-relative": (relatives.object_relative, 5),
}

#: Every pattern of the split `structures`, with its relative frequency; the ordinary splits have none of them.
HELD_OUT: dict[str, tuple[Pattern, int]] = {
    "two-adjectives": (longer.two_adjectives, 5),
    "relative-adverbial-conjunction": (longer.relative_adverbial_conjunction, 2),
    "time-relative-conjunction": (longer.time_relative_conjunction, 2),
    "two-relatives": (longer.two_relatives, 2),
    "reported-relative": (longer.reported_relative, 2),
    "place-and-time": (longer.place_and_time, 2),
    "relative-with-place": (longer.nested_relatives, 1),
}


#: train and valid share one language; combinations and structures contain what neither of them contains.
SPLITS: tuple[str, ...] = ("train", "valid", "combinations", "structures")

_VALID_PERCENT = 8
_NOTES_FROM = 100  # a train split of this size or more begins with the notes' sentences
_OPEN_PERCENT = 15  # statements without a full stop, which people often omit
_MAX_MISSES = 2000  # consecutive misses after which a language counts as exhausted


def write(split: str, count: int, seed: int = 1) -> list[Pair]:
    """Return `count` different sentence pairs of a split; the same for the same arguments, on any machine.

    A hash of the English sentence separates *train* and *valid*, so they never overlap for any counts and seeds.
    *combinations* uses the same patterns, but every sentence has an adjective with a noun (as attribute or predicate)
    that never occur together in train and valid. *structures* has longer patterns and two adjectives on one noun, from
    pairs that occur in train. Train begins with the notes' sentences if `count` is 100 or more. A shorter list is a
    prefix of a longer one of the same seed (for train: from 100 on).

    Raises:
        UsageError: an unknown split, a negative count, or a count larger than the language.
    """
    check(split, count)
    random = seeded(f"{split} {seed}")
    first = notes_sentences() if split == "train" and count >= _NOTES_FROM else []
    return collect(lambda: attempt(split, random), count, f"split {split!r}", first)


def check(split: str, count: int) -> None:
    """Refuse an unknown split and a negative count (UsageError)."""
    if split not in SPLITS:
        raise UsageError(f"`split` must be one of the micro-world's: got {split!r}{nearest(split, list(SPLITS))}")
    if count < 0:
        raise UsageError(f"`count` must be 0 or more: got {count}")


def seeded(text: str) -> Random:
    """Return a source of random numbers by a hash of the text, the same on any machine."""
    return Random(int.from_bytes(_digest(text), "big"))


def collect(draw: Callable[[], tuple[str, Pair] | None], count: int, language: str, first: list[Pair]) -> list[Pair]:
    """Return `first` and then different pairs of `draw` (a key and a pair, or None for a miss), `count` in all.

    Raises:
        UsageError: there seem to be no more sentences.
    """
    pairs, keys, misses = list(first), {_key(pair.source_words) for pair in first}, 0
    while len(pairs) < count:
        result = draw()
        if result is None or result[0] in keys:
            misses += 1
            if misses > _MAX_MISSES:
                raise UsageError(f"{language} is too small: asked for {count} different sentences, found {len(pairs)}")
            continue
        misses = 0
        keys.add(result[0])
        pairs.append(result[1])
    return pairs


def attempt(split: str, random: Random) -> tuple[str, Pair] | None:
    """Draw a sentence of a split: a key that no two sentences share, and the pair; None for a miss."""
    draft = Draft(random, unseen=split == "combinations")
    structure, pattern = draft.pick(_weighted(split == "structures"))
    phrase, punctuation = pattern(draft)
    if split == "combinations" and not draft.unseen_pairs:
        return None
    key = sentence_key(phrase)
    if not belongs(key, split):
        return None
    if punctuation == "." and draft.chance(_OPEN_PERCENT / 100):
        punctuation = ""
    return key, finish(draft.link(), phrase.source, phrase.target, punctuation, structure, draft.clauses)


@cache
def _weighted(held_out: bool) -> tuple[tuple[str, Pattern], ...]:
    table = HELD_OUT if held_out else PATTERNS
    return tuple((name, pattern) for name, (pattern, weight) in table.items() for _ in range(weight))


def belongs(key: str, split: str) -> bool:
    """Return whether a sentence may be in a split, as far as train and valid are separated by a hash of its words."""
    return split not in ("train", "valid") or _is_valid(key) == (split == "valid")


def _is_valid(key: str) -> bool:
    """Return whether an ordinary sentence belongs to valid: about 8 in 100, never one of the notes'."""
    return int.from_bytes(_digest(key), "big") % 100 < _VALID_PERCENT and key not in _notes_keys()


@cache
def _notes_keys() -> frozenset[str]:
    return frozenset(_key(pair.source_words) for pair in notes_sentences())


def _key(words: tuple[str, ...]) -> str:
    """Return the English sentence in lower case without its final punctuation, which does not distinguish sentences."""
    return " ".join(words).rstrip(" .!?").lower()


def sentence_key(phrase: Phrase) -> str:
    """Return the English words of a statement or question in lower case."""
    return " ".join([word.text for word in phrase.source]).lower()


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()
