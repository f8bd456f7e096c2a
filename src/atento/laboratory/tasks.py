"""Synthetic tasks of the position laboratory that need token order, at any length, with gold alignments."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from atento.world import Pair, write

LETTERS = 16  # ids 0 ... 15
ECHO_DISTANCES = (3,)  # what the query symbols LETTERS and LETTERS + 1 ask for
FIRST, SECOND = LETTERS, LETTERS + 1  # the two letters whose order the classifier judges
_SENTENCE_END, _UNKNOWN = 0, 1
_TRAIN_SENTENCES, _VALID_SENTENCES = 3000, 400
ADJECTIVES, NOUNS, START = 8, 8, 32  # a source id is 0 ... 15, its translation is 16 more


@dataclass(frozen=True)
class Batch:
    """ids (B,L) and labels: (B,L), the next token or -1 where it is not asked for; or (B,), the class of each text."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Reordered:
    """source (B,S), target_input and labels (B,S); `sources` (B,S) is the source position that each label translates.

    All phrases of a batch fill the same length, so nothing is padded.
    """

    source: Tensor
    target_input: Tensor
    labels: Tensor
    sources: Tensor


@dataclass(frozen=True)
class Task:
    """How to draw a batch of B texts of length L, and what for: `classes` 0 is a language model, else a classifier."""

    draw: Callable[[int, int, torch.Generator, bool], Batch]
    vocab_size: Callable[[], int]
    classes: int = 0


def echo(count: int, length: int, generator: torch.Generator, held_out: bool = False) -> Batch:
    """Random letters with query symbols between: after one, the letter that stood 2 (or 5) places before it.

    Letters repeat, so only the distance tells which one is meant; nothing but answers is asked for. As the answer is
    drawn from near by, the task is the same at every length.
    """
    draws = torch.randint(LETTERS, (count, length + 1), generator=generator)
    asks = torch.rand(count, length + 1, generator=generator) < 0.25
    kinds = torch.randint(len(ECHO_DISTANCES), (count, length + 1), generator=generator)
    back = torch.tensor(ECHO_DISTANCES)[kinds]  # (B,L+1)
    ids, asked = draws.clone(), torch.zeros_like(asks)
    rows = torch.arange(count)
    for t in range(max(ECHO_DISTANCES), length + 1):
        before = asked[:, t - 1]
        answer = ids[rows, t - 1 - back[:, t - 1]]
        wanted = ids[rows, t - back[:, t]]
        asked[:, t] = asks[:, t] & ~before & (wanted < LETTERS)  # what a query points at is always a letter
        ids[:, t] = torch.where(before, answer, torch.where(asked[:, t], LETTERS + kinds[:, t], draws[:, t]))
    return Batch(ids[:, :-1], torch.where(asked[:, :-1], ids[:, 1:], -1))


def pairs(count: int, length: int, generator: torch.Generator, held_out: bool = False) -> Batch:
    """Does this text mostly say "a b" (class 1) or "b a" (class 0)? A pair in every four tokens, one in four against.

    Both classes hold as many a and b, so order alone tells them apart; their share is the same at every length, so
    that averaging over a longer text dilutes nothing.
    """
    n_pairs = length // 4
    labels = torch.arange(count) % 2  # as many of one class as of the other
    against = torch.rand(count, n_pairs, generator=generator).argsort(dim=1) < n_pairs // 4
    forward = labels.unsqueeze(1).bool() ^ against  # (B,P)
    offsets = torch.randint(2, (count, n_pairs), generator=generator)  # a pair is never next to another
    places = torch.arange(n_pairs) * 4 + offsets
    ids = torch.randint(LETTERS, (count, length), generator=generator)
    ids.scatter_(1, places, torch.where(forward, FIRST, SECOND))
    ids.scatter_(1, places + 1, torch.where(forward, SECOND, FIRST))
    return Batch(ids, labels)


@dataclass(frozen=True)
class Text:
    """Sentences joined: ids (N,), where each sentence begins, and where the next does, (M,) each."""

    ids: Tensor
    begins: Tensor
    ends: Tensor


@cache
def _world() -> tuple[int, Text, Text]:
    """The micro-world in word ids: how many there are, the text to train on, and the text held out."""
    train, valid = write("train", _TRAIN_SENTENCES), write("valid", _VALID_SENTENCES)
    words = sorted({word for pair in train for word in pair.source_words})
    ids = {word: number + 2 for number, word in enumerate(words)}

    def text(pairs: list[Pair]) -> Text:
        joined: list[int] = []
        bounds = [0]
        for pair in pairs:
            joined += [ids.get(word, _UNKNOWN) for word in pair.source_words] + [_SENTENCE_END]
            bounds.append(len(joined))
        return Text(torch.tensor(joined), torch.tensor(bounds[:-1]), torch.tensor(bounds[1:]))

    return len(ids) + 2, text(train), text(valid)


def world(count: int, length: int, generator: torch.Generator, held_out: bool = False) -> Batch:
    """English sentences of the micro-world one after the other, from the beginning of any; every token is asked for."""
    text = _world()[2] if held_out else _world()[1]
    begins = text.begins[text.begins + length + 1 <= len(text.ids)]
    chosen = begins[torch.randint(len(begins), (count,), generator=generator)]
    ids = text.ids[chosen.unsqueeze(1) + torch.arange(length + 1)]  # (B,L+1)
    return Batch(ids[:, :-1], ids[:, 1:])


def sentences(count: int, length: int, generator: torch.Generator) -> Batch:
    """Single sentences of their natural lengths, cut at `length`; past the end ids are 0 and labels -1."""
    text = _world()[1]
    chosen = torch.randint(len(text.begins), (count,), generator=generator)
    places = text.begins[chosen].unsqueeze(1) + torch.arange(length + 1)
    real = places < text.ends[chosen].unsqueeze(1)  # the sentence and its end
    ids = torch.where(real, text.ids[places.clamp(max=len(text.ids) - 1)], _SENTENCE_END)
    return Batch(ids[:, :-1], torch.where(real[:, 1:], ids[:, 1:], -1))


def longest_sentence() -> int:
    """How many tokens the longest sentence to train on gives a model to read: its end is only written."""
    text = _world()[1]
    return int((text.ends - text.begins).max()) - 1


def reorder(count: int, length: int, generator: torch.Generator) -> Reordered:
    """Phrases of one to three words, adjectives then noun; the target says each phrase backwards, in other words.

    As "a small red house" and "uma casa vermelha pequena": the dictionary is one to one, words repeat, and which
    target word stands for which source word is known.
    """
    starts = torch.zeros(count, length, dtype=torch.bool)  # where phrases begin
    starts[:, 0] = True
    since = torch.zeros(count, dtype=torch.long)
    new = torch.rand(count, length, generator=generator) < 0.4
    for t in range(1, length):
        since = torch.where(starts[:, t - 1], 0, since + 1)
        starts[:, t] = new[:, t] | (since >= 2)
    is_noun = torch.cat([starts[:, 1:], torch.ones(count, 1, dtype=torch.bool)], dim=1)  # a phrase ends in its noun
    adjectives = torch.randint(ADJECTIVES, (count, length), generator=generator)
    nouns = ADJECTIVES + torch.randint(NOUNS, (count, length), generator=generator)
    source = torch.where(is_noun, nouns, adjectives)
    places = torch.arange(length).expand(count, -1)
    first = torch.where(starts, places, 0).cummax(dim=1).values
    last = torch.where(is_noun, places, length).flip(1).cummin(dim=1).values.flip(1)
    sources = first + last - places  # each phrase backwards
    labels = source.gather(1, sources) + ADJECTIVES + NOUNS
    begun = torch.full((count, 1), START)
    return Reordered(source, torch.cat([begun, labels[:, :-1]], dim=1), labels, sources)


REORDER_VOCABULARY = START + 1
TASKS: dict[str, Task] = {
    "echo": Task(echo, lambda: LETTERS + len(ECHO_DISTANCES)),
    "world": Task(world, lambda: _world()[0]),
    "pairs": Task(pairs, lambda: LETTERS + 2, classes=2),
}
