"""Subword regularisation: random segmentations of a text as a function of (text, rate, seed).

The library's own generator cannot be seeded, which would break exact resumption.
"""

import json
import random
from collections.abc import Callable, Mapping
from math import exp, inf, log, log1p
from typing import Any

import tokenizers

from atento.errors import CapabilityError

_CHUNK = 128  # characters; a longer run without spaces is sampled in parts, which keeps the cost linear
_CACHE = 100_000  # words whose plain segmentation is cached
_CUT = 5_000_000  # words of all texts together that are cached, since every epoch needs them again


class Sampler:
    """Samples segmentations of text for a tokenizer.

    - bpe: each possible merge is skipped with probability `rate` (BPE-dropout, Provilkov et al. 2020);
    - unigram: with probability `rate` the segmentation of a word is sampled with probability proportional to
      P(segmentation) ** alpha (Kudo 2018; docs/notes.md#d2); rate 1 is subword regularisation as published;
    - wordpiece: each longest match is skipped with probability `rate` (MaxMatch-Dropout, Hiraoka 2022).
    """

    def __init__(self, backend: tokenizers.Tokenizer, definition: Mapping[str, Any], kind: str, alpha: float = 0.2):
        """Args:
            backend: the library's tokenizer.
            definition: its `tokenizer.json`.
            kind: its kind.
            alpha: for unigram: 0 samples all segmentations with equal probability, 1 by their probability.

        Raises:
            CapabilityError: the kind has only one segmentation of a text.
        """
        draws: dict[str, Callable[[str, float, random.Random], list[int] | None]] = {
            "bpe": self._bpe,
            "unigram": self._unigram,
            "wordpiece": self._wordpiece,
        }
        if kind not in draws:
            raise CapabilityError(
                f"subword dropout needs a bpe, unigram or wordpiece tokenizer: a {kind} tokenizer has one segmentation"
            )
        self._draw = draws[kind]
        self._backend = backend
        self._alpha = alpha
        model = definition["model"]
        self._plain: dict[str, list[int]] = {}
        self._merged: dict[str, tuple[list[int], int]] = {}
        self._cut: dict[str, list[str]] = {}
        self._known: dict[str, str] = {}  # each word of them once
        self._room = _CUT
        if kind == "unigram":
            self._ids = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
            self._scores: dict[str, float] = dict(model["vocab"])
            self._unknown = min(self._scores.values()) - 10.0  # the library's own penalty
        else:
            self._ids = model["vocab"]
        self._longest = max(map(len, self._ids), default=1)
        merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in model.get("merges") or ()]
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._prefix = model.get("continuing_subword_prefix") or ""
        self._suffix = model.get("end_of_word_suffix") or ""
        unk = self._ids.get(model.get("unk_token") or "") if kind != "unigram" else int(model["unk_id"] or 0)
        self._unknown_ids = [] if unk is None else [unk]  # without one the library drops what it cannot encode

    def encode(self, text: str, rate: float, seed: int | str) -> list[int]:
        """The ids of a sampled segmentation of `text`; `rate` is in [0, 1]."""
        chance = random.Random(f"subwords {seed}")
        ids: list[int] = []
        words = self._cut.get(text)
        for word in self._words(text) if words is None else words:
            if len(word) <= _CHUNK:
                ids += self._word(word, rate, chance)
            elif self._prefix or self._suffix:
                ids += self._segment(word)
            else:
                for start in range(0, len(word), _CHUNK):
                    ids += self._word(word[start : start + _CHUNK], rate, chance)
        return ids

    def _words(self, text: str) -> list[str]:
        """The words of a text as the tokenizer splits them, cached."""
        normal = text if self._backend.normalizer is None else self._backend.normalizer.normalize_str(text)
        words = [normal] if normal else []
        if self._backend.pre_tokenizer is not None:
            words = [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normal)]
        if len(words) < self._room:
            self._room -= len(words) + 1
            self._cut[text] = words = [self._known.setdefault(word, word) for word in words]
        return words

    def _word(self, word: str, rate: float, chance: random.Random) -> list[int]:
        drawn = self._draw(word, rate, chance)
        return self._segment(word) if drawn is None else drawn

    def _segment(self, word: str) -> list[int]:
        """The plain segmentation, by the library."""
        ids = self._plain.get(word)
        if ids is None:
            if len(self._plain) >= _CACHE:
                self._plain.clear()
            ids = self._plain[word] = [token.id for token in self._backend.model.tokenize(word)]
        return ids

    def _spell(self, char: str) -> list[int]:
        """The ids of a character that is not a piece: its bytes if the vocabulary has them, else `unk`."""
        ids = [self._ids.get(f"<0x{byte:02X}>") for byte in char.encode("utf-8")]
        known = [i for i in ids if i is not None]
        return known if len(known) == len(ids) else self._unknown_ids

    def _bpe(self, word: str, rate: float, chance: random.Random) -> list[int]:
        """Skip each best merge with probability `rate`.

        One random number gives how many merges precede the first that is skipped; most often it is all of them, and
        the segmentation is the plain one.
        """
        if word not in self._merged:
            if len(self._merged) >= _CACHE:
                self._merged.clear()
            parts = self._letters(word)
            count = len(parts)
            self._merge(parts, count, chance)
            self._merged[word] = self._pieces(parts), count - len(parts)
        plain, merges = self._merged[word]
        n_merges = 0.0 if rate == 1.0 else log(1.0 - chance.random()) / log1p(-rate) if rate else inf
        if n_merges >= merges:
            return plain
        parts = self._letters(word)
        self._merge(parts, int(n_merges), chance)
        position = self._best(parts, rate, chance, passed=self._best(parts, 0.0, chance))
        while position >= 0:
            parts[position : position + 2] = [parts[position] + parts[position + 1]]
            position = self._best(parts, rate, chance)
        return self._pieces(parts)

    def _merge(self, parts: list[str], times: int, chance: random.Random) -> None:
        """Apply at most that number of best merges."""
        for _ in range(times):
            position = self._best(parts, 0.0, chance)
            if position < 0:
                break
            parts[position : position + 2] = [parts[position] + parts[position + 1]]

    def _best(self, parts: list[str], rate: float, chance: random.Random, passed: int = -1) -> int:
        """The position of the best merge that is not skipped, where `passed` is skipped for certain; -1 if none."""
        best, position = inf, -1
        for i in range(len(parts) - 1):
            rank = self._ranks.get((parts[i], parts[i + 1]))
            if rank is not None and rank < best and i != passed and (not rate or chance.random() >= rate):
                best, position = rank, i
        return position

    def _letters(self, word: str) -> list[str]:
        parts = list(word)
        if parts and self._suffix:
            parts[-1] += self._suffix
        return parts

    def _pieces(self, parts: list[str]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            ids += [self._ids[part]] if part in self._ids else self._spell(part.removesuffix(self._suffix))
        return ids

    def _unigram(self, word: str, rate: float, chance: random.Random) -> list[int] | None:
        """Forward filtering, backward sampling over the lattice of pieces."""
        if chance.random() >= rate:
            return None
        n = len(word)
        forward = [0.0] + [-inf] * n  # log of the summed weight of all segmentations of word[:end]
        arcs: list[list[tuple[int, float]]] = [[] for _ in range(n + 1)]
        for end in range(1, n + 1):
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(word[start:end])
                if score is None and end - start == 1:
                    score = self._unknown
                if score is not None:
                    arcs[end].append((start, forward[start] + self._alpha * score))
            top = max(weight for _, weight in arcs[end])
            forward[end] = top + log(sum(exp(weight - top) for _, weight in arcs[end]))
        pieces: list[str] = []
        end = n
        while end:
            left = chance.random()
            start = arcs[end][-1][0]
            for candidate, weight in arcs[end]:
                left -= exp(weight - forward[end])
                if left < 0:
                    start = candidate
                    break
            pieces.append(word[start:end])
            end = start
        ids: list[int] = []
        for piece in reversed(pieces):
            ids += [self._ids[piece]] if piece in self._ids else self._spell(piece)
        return ids

    def _wordpiece(self, word: str, rate: float, chance: random.Random) -> list[int] | None:
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = self._prefix if start else ""
            match_end = 0
            for end in range(min(len(word), start + self._longest), start, -1):
                if prefix + word[start:end] in self._ids:
                    match_end = end
                    if end == start + 1 or chance.random() >= rate:
                        break
            if not match_end:
                return None  # a shorter match has no continuation: use the plain segmentation
            ids.append(self._ids[prefix + word[start:match_end]])
            start = match_end
        return ids


def parsed(definition: str) -> dict[str, Any]:
    """A `tokenizer.json` as plain data."""
    data: dict[str, Any] = json.loads(definition)
    return data
