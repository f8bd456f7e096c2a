"""Synthetic tasks of the position laboratory that need token order, at any length, with gold alignments."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from atento_world import Pair, write

LETTERS = 16  # ids 0 ... 15
ECHO_DISTANCES = (3,)  # the distance of each query symbol, LETTERS + its index
FIRST, SECOND = LETTERS, LETTERS + 1  # the two letters whose order the classifier judges
_SENTENCE_END, _UNKNOWN = 0, 1
_TRAIN_SENTENCES, _VALID_SENTENCES = 3000, 400
ADJECTIVES, NOUNS, START = 8, 8, 32  # source ids are 0 ... 15; a translation is the source id + 16


@dataclass(frozen=True)
class Batch:
    """ids (B,L) and labels: (B,L), the next token or -1 where there is no target; or (B,), the class of each text."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Reordered:
    """source (B,S), target_input and labels (B,S); `sources` (B,S) is the source position that each label translates.

    All phrases of a batch fill the same length, so there is no padding.
    """

    source: Tensor
    target_input: Tensor
    labels: Tensor
    sources: Tensor


@dataclass(frozen=True)
class Task:
    """A task: `draw` returns a batch of B texts of length L.

    `classes` is 0 for a language model, else the number of classes.
    """

    draw: Callable[[int, int, torch.Generator, bool], Batch]
    vocab_size: Callable[[], int]
    classes: int = 0


def echo(count: int, length: int, generator: torch.Generator, held_out: bool = False) -> Batch:
    """Draw random letters with query symbols between them.

    The target after a query is the letter 3 positions before it.

    Letters repeat, so only the distance identifies the target; only targets of queries count. Distances are short, so
    the task is the same at every length.
    """
    draws = torch.randint(LETTERS, (count, length + 1), generator=generator)
    query_drawn = torch.rand(count, length + 1, generator=generator) < 0.25
    kinds = torch.randint(len(ECHO_DISTANCES), (count, length + 1), generator=generator)
    distances = torch.tensor(ECHO_DISTANCES)[kinds]  # (B,L+1)
    ids, is_query = draws.clone(), torch.zeros_like(query_drawn)
    rows = torch.arange(count)
    for t in range(max(ECHO_DISTANCES), length + 1):
        after_query = is_query[:, t - 1]
        answer = ids[rows, t - 1 - distances[:, t - 1]]
        target = ids[rows, t - distances[:, t]]
        is_query[:, t] = (
            query_drawn[:, t] & ~after_query & (target < LETTERS)
        )  # the target of a query is always a letter
        ids[:, t] = torch.where(after_query, answer, torch.where(is_query[:, t], LETTERS + kinds[:, t], draws[:, t]))
    return Batch(ids[:, :-1], torch.where(is_query[:, :-1], ids[:, 1:], -1))


def pairs(count: int, length: int, generator: torch.Generator, held_out: bool = False) -> Batch:
    """Draw texts with mostly "a b" (class 1) or mostly "b a" (class 0).

    There is a pair in every four tokens; one pair in four is reversed. Both classes have the same number of a and b, so
    only order distinguishes them. The share of pairs is the same at every length, so averaging over a longer text does
    not weaken the signal.
    """
    n_pairs = length // 4
    labels = torch.arange(count) % 2  # balanced classes
    against = torch.rand(count, n_pairs, generator=generator).argsort(dim=1) < n_pairs // 4
    forward = labels.unsqueeze(1).bool() ^ against  # (B,P)
    offsets = torch.randint(2, (count, n_pairs), generator=generator)  # pairs are never adjacent
    positions = torch.arange(n_pairs) * 4 + offsets
    ids = torch.randint(LETTERS, (count, length), generator=generator)
    ids.scatter_(1, positions, torch.where(forward, FIRST, SECOND))
    ids.scatter_(1, positions + 1, torch.where(forward, SECOND, FIRST))
    return Batch(ids, labels)


@dataclass(frozen=True)
class Text:
    """Joined sentences: ids (N,), the start of each sentence and its end, (M,) each."""

    ids: Tensor
    starts: Tensor
    ends: Tensor


@cache
def _world() -> tuple[int, Text, Text]:
    """Return the micro-world in word ids: the vocabulary size, the training text, and the held-out text."""
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
    """Draw consecutive English sentences of the micro-world, from the start of a random one.

    Every token is a target.
    """
    text = _world()[2] if held_out else _world()[1]
    starts = text.starts[text.starts + length + 1 <= len(text.ids)]
    chosen = starts[torch.randint(len(starts), (count,), generator=generator)]
    ids = text.ids[chosen.unsqueeze(1) + torch.arange(length + 1)]  # (B,L+1)
    return Batch(ids[:, :-1], ids[:, 1:])


def sentences(count: int, length: int, generator: torch.Generator) -> Batch:
    """Draw single sentences of their natural lengths, cut at `length`; after the end ids are 0 and labels -1."""
    text = _world()[1]
    chosen = torch.randint(len(text.starts), (count,), generator=generator)
    positions = text.starts[chosen].unsqueeze(1) + torch.arange(length + 1)
    in_sentence = positions < text.ends[chosen].unsqueeze(1)  # the sentence and its end
    ids = torch.where(in_sentence, text.ids[positions.clamp(max=len(text.ids) - 1)], _SENTENCE_END)
    return Batch(ids[:, :-1], torch.where(in_sentence[:, 1:], ids[:, 1:], -1))


def longest_sentence() -> int:
    """Return the number of input tokens of the longest training sentence; its end token is only a target."""
    text = _world()[1]
    return int((text.ends - text.starts).max()) - 1


def reorder(count: int, length: int, generator: torch.Generator) -> Reordered:
    """Draw phrases of one to three words, adjectives then noun; the target reverses each phrase, in other words.

    As "a small red house" and "uma casa vermelha pequena": the dictionary is one to one, words repeat, and the source
    word of each target word is known.
    """
    starts = torch.zeros(count, length, dtype=torch.bool)  # where phrases begin
    starts[:, 0] = True
    length_of_phrase = torch.zeros(count, dtype=torch.long)
    starts_drawn = torch.rand(count, length, generator=generator) < 0.4
    for t in range(1, length):
        length_of_phrase = torch.where(starts[:, t - 1], 0, length_of_phrase + 1)
        starts[:, t] = starts_drawn[:, t] | (length_of_phrase >= 2)
    is_noun = torch.cat([starts[:, 1:], torch.ones(count, 1, dtype=torch.bool)], dim=1)  # a phrase ends in its noun
    adjectives = torch.randint(ADJECTIVES, (count, length), generator=generator)
    nouns = ADJECTIVES + torch.randint(NOUNS, (count, length), generator=generator)
    source = torch.where(is_noun, nouns, adjectives)
    positions = torch.arange(length).expand(count, -1)
    first = torch.where(starts, positions, 0).cummax(dim=1).values
    last = torch.where(is_noun, positions, length).flip(1).cummin(dim=1).values.flip(1)
    sources = first + last - positions  # each phrase reversed
    labels = source.gather(1, sources) + ADJECTIVES + NOUNS
    start_tokens = torch.full((count, 1), START)
    return Reordered(source, torch.cat([start_tokens, labels[:, :-1]], dim=1), labels, sources)


REORDER_VOCABULARY = START + 1
TASKS: dict[str, Task] = {
    "echo": Task(echo, lambda: LETTERS + len(ECHO_DISTANCES)),
    "world": Task(world, lambda: _world()[0]),
    "pairs": Task(pairs, lambda: LETTERS + 2, classes=2),
}
