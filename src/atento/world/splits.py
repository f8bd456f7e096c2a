"""The four splits of the micro-world and the sentences of each."""

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from random import Random

from atento.errors import UsageError, nearest
from atento.world.notes import notes_sentences
from atento.world.pairs import Pair, finish
from atento.world.patterns import HELD_OUT, PATTERNS, Pattern
from atento.world.phrases import Phrase
from atento.world.sentence import Draft

#: train and valid share one language; combinations and structures hold what neither of them ever shows.
SPLITS: tuple[str, ...] = ("train", "valid", "combinations", "structures")

_VALID_PERCENT = 8
_NOTES_FROM = 100  # a train split of this size or more begins with the notes' sentences
_OPEN_PERCENT = 15  # statements without their full stop: people leave it out when they type
_PATIENCE = 2000  # sentences tried in vain, one after the other, before a language counts as exhausted


def write(split: str, count: int, seed: int = 1) -> list[Pair]:
    """`count` different sentence pairs of a split; the same for the same arguments, on any machine.

    *train* and *valid* are told apart by a hash of the English sentence, so they never meet, whatever the counts and
    seeds. *combinations* uses the same patterns, but every sentence has an adjective with a noun (as its attribute or
    said of it) that train and valid never bring together. *structures* has longer patterns and two adjectives on one
    noun, from pairs that train knows. Train begins with the notes' sentences when `count` is 100 or more. A shorter
    list is the beginning of a longer one of the same seed (of train: from 100 on).

    Raises UsageError for an unknown split, a negative count, or one larger than the language.
    """
    if split not in SPLITS:
        raise UsageError(f"`split` must be one of the micro-world's: got {split!r}{nearest(split, list(SPLITS))}")
    if count < 0:
        raise UsageError(f"`count` must be 0 or more: got {count}")
    random = Random(int.from_bytes(_digest(f"{split} {seed}"), "big"))
    first = notes_sentences() if split == "train" and count >= _NOTES_FROM else []
    return collect(lambda: _attempt(split, random), count, f"split {split!r}", first)


def collect(attempt: Callable[[], tuple[str, Pair] | None], count: int, what: str, first: list[Pair]) -> list[Pair]:
    """`first` and then different pairs out of `attempt` (a key and a pair, or None for a miss) until there are `count`.

    Raises UsageError when the language seems to have no more.
    """
    pairs, seen, in_vain = list(first), {_key(pair.source_words) for pair in first}, 0
    while len(pairs) < count:
        found = attempt()
        if found is None or found[0] in seen:
            in_vain += 1
            if in_vain > _PATIENCE:
                raise UsageError(f"{what} is too small: asked for {count} different sentences, found {len(pairs)}")
            continue
        in_vain = 0
        seen.add(found[0])
        pairs.append(found[1])
    return pairs


def _attempt(split: str, random: Random) -> tuple[str, Pair] | None:
    draft = Draft(random, unseen=split == "combinations")
    structure, pattern = draft.pick(_weighted(split == "structures"))
    phrase, mark = pattern(draft)
    if split == "combinations" and not draft.held:
        return None
    key = _sentence_key(phrase)
    if split in ("train", "valid") and _is_valid(key) != (split == "valid"):
        return None
    if mark == "." and draft.chance(_OPEN_PERCENT / 100):
        mark = ""
    return key, finish(draft.link(), phrase.source, phrase.target, mark, structure)


@cache
def _weighted(held_out: bool) -> tuple[tuple[str, Pattern], ...]:
    table = HELD_OUT if held_out else PATTERNS
    return tuple((name, pattern) for name, (pattern, weight) in table.items() for _ in range(weight))


def _is_valid(key: str) -> bool:
    """Whether an ordinary sentence is one for validation: about 8 in 100, never one of the notes'."""
    return int.from_bytes(_digest(key), "big") % 100 < _VALID_PERCENT and key not in _notes_keys()


@cache
def _notes_keys() -> frozenset[str]:
    return frozenset(_key(pair.source_words) for pair in notes_sentences())


def _key(words: tuple[str, ...]) -> str:
    """The English sentence in lower case without its final mark: with and without it, it is one sentence."""
    return " ".join(words).rstrip(" .!?").lower()


def _sentence_key(phrase: Phrase) -> str:
    return " ".join([word.text for word in phrase.source]).lower()


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()
