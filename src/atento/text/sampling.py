"""Subword regularisation: random segmentations of a text as a function of (text, rate, seed).

The library's own generator cannot be seeded, which would break exact resumption. So the library finds the words of a
text and the plain segmentation of each; only a segmentation that differs from the plain one is made here.
"""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, inf, log, log1p
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from atento.base.errors import CapabilityError
from atento.text.kinds import require_unicode

_CHUNK = 128  # characters; a longer run without spaces is sampled in parts, which keeps the cost linear
_CACHE = 500_000  # different words that are cached with their plain segmentation
_CUT = 5_000_000  # words of all texts together that are cached, since every epoch needs them again

Merged = tuple[int | None, list[str]]
"""The rank of a merge, and the pieces of a word after it."""


@dataclass(eq=False, slots=True)
class _Word:
    """A word of a text as the model of a tokenizer gets it."""

    text: str  # the word; empty where there is only one segmentation, as of an added token
    plain: list[int]  # the ids of its plain segmentation, by the library
    merges: int | None = None  # for bpe, the number of merges of the plain segmentation; None: not counted yet


class _Splits(threading.local):
    """The last step of a pre-tokenizer: records the parts of a text that the model would get."""

    parts: Sequence[tuple[str, list[int] | None]] = ()

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        """Record each part, and the ids of those that are added tokens; the library calls it."""
        splits = text.get_splits("original", "char")
        self.parts = [(part, None if tokens is None else [token.id for token in tokens]) for part, _, tokens in splits]


class Sampler:
    """Samples segmentations of text for a tokenizer.

    - bpe: each possible merge is skipped with probability `rate` (BPE-dropout, Provilkov et al. 2020);
    - unigram: with probability `rate` the segmentation of a word is sampled with probability proportional to
      P(segmentation) ** alpha (Kudo 2018; docs/notes.md#d2); rate 1 is subword regularisation as published;
    - wordpiece: each longest match is skipped with probability `rate` (MaxMatch-Dropout, Hiraoka 2022).

    Added tokens, and words that the library does not cut because they are too long, have one segmentation.
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
        draws = {"bpe": self._bpe, "unigram": self._unigram, "wordpiece": self._wordpiece}
        if kind not in draws:
            raise CapabilityError(
                f"subword dropout needs a bpe, unigram or wordpiece tokenizer: a {kind} tokenizer has one segmentation"
            )
        self._draw = draws[kind]
        self._backend = backend
        self._alpha = alpha
        self._splits = _Splits()
        self._splitter = _splitter(backend, self._splits)
        model = definition["model"]
        self._known: dict[str, list[_Word]] = {}  # a word of a text, or its parts
        self._cut: dict[str, list[_Word]] = {}
        self._room = _CUT
        if kind == "unigram":
            self._ids = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
            self._scores: dict[str, float] = dict(model["vocab"])
            self._unknown = min(self._scores.values()) - 10.0  # the library's own penalty
        else:
            self._ids = model["vocab"]
        self._longest = max(map(len, self._ids), default=1)  # characters of a piece
        self._prefix = model.get("continuing_subword_prefix") or ""
        self._suffix = model.get("end_of_word_suffix") or ""
        merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in model.get("merges") or ()]
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        unk = self._ids.get(model.get("unk_token") or "") if kind != "unigram" else int(model["unk_id"] or 0)
        self._unknown_ids = [] if unk is None else [unk]  # without one the library drops what it cannot encode
        self._fuses = kind == "unigram" or bool(model.get("fuse_unk"))  # neighbours that are unknown, into one
        self._bytes = bool(model.get("byte_fallback"))
        self._most = model.get("max_input_chars_per_word", _CHUNK)  # of wordpiece

    def encode(self, text: str, rate: float, seed: int | str) -> list[int]:
        """The ids of a sampled segmentation of `text`; `rate` is in [0, 1]."""
        chance = random.Random(f"subwords {seed}")
        words = self._cut.get(text)
        ids: list[int] = []
        for word in self._words(text) if words is None else words:
            ids += self._draw(word, rate, chance) if word.text else word.plain
        return ids

    def merges(self, text: str) -> Iterator[list[Merged]]:
        """For bpe, of each word as the model gets it: its characters, with None, and its pieces after each merge.

        A last state without a merge has what no merge makes: bytes of a character, a word that is taken whole.
        Raises CapabilityError: the kind joins no pieces. TokenizerError: the text is not valid Unicode.
        """
        if self._draw != self._bpe:
            raise CapabilityError("only a bpe tokenizer joins pieces: this one is of another kind")
        require_unicode(text)
        for word in self._words(text):
            parts = self._letters(word.text)
            steps: list[Merged] = [(None, list(parts))] if parts else []
            while (position := self._best(parts, 0.0, random.Random())) >= 0:
                rank = self._ranks[parts[position], parts[position + 1]]
                self._join(parts, position)
                steps.append((rank, list(parts)))
            plain = [str(self._backend.id_to_token(i)) for i in word.plain]
            if plain != parts:  # bytes, an added token, a word taken whole
                steps.append((None, plain))
            yield steps

    def _words(self, text: str) -> list[_Word]:
        """The words of a text as the tokenizer splits them, cached."""
        self._splits.parts = ()
        self._splitter.encode(text, add_special_tokens=False)  # fills `self._splits.parts`
        words: list[_Word] = []
        parts: Sequence[tuple[str, list[int] | None]] = self._splits.parts
        for part, added in parts:
            words += self._parts(part) if added is None else [_Word("", added)]
        if len(words) < self._room:
            self._room -= len(words) + 1
            self._cut[text] = words
        return words

    def _parts(self, word: str) -> list[_Word]:
        """A word with its plain segmentation, by the library; of a long one the parts, cut between pieces."""
        parts = self._known.get(word)
        if parts is None:
            if len(self._known) >= _CACHE:
                self._known.clear()
            tokens = self._backend.model.tokenize(word)
            plain = [token.id for token in tokens]
            if len(word) <= _CHUNK:
                parts = [_Word(word, plain)]
            elif self._prefix or self._suffix:  # the parts of a word would not be words
                parts = [_Word("", plain)]
            else:
                parts = list(_cut_between(word, tokens))
            self._known[word] = parts
        return parts

    def _ids_of(self, pieces: list[str]) -> list[int]:
        """The ids of pieces; those that are not in the vocabulary are unknown characters."""
        ids: list[int] = []
        for known, run in groupby(pieces, self._ids.__contains__):
            if known:
                ids += [self._ids[piece] for piece in run]
                continue
            unknown = [piece.removeprefix(self._prefix).removesuffix(self._suffix) for piece in run]
            for chars in ["".join(unknown)] if self._fuses and not self._bytes else unknown:
                # the bytes of what is no piece, if the model has them, else `unk`
                spelt = [self._ids.get(f"<0x{byte:02X}>") for byte in chars.encode("utf-8")] if self._bytes else [None]
                found = [i for i in spelt if i is not None]
                ids += found if len(found) == len(spelt) else self._unknown_ids
        return ids

    def _bpe(self, word: _Word, rate: float, chance: random.Random) -> list[int]:
        """Skip each best merge with probability `rate`.

        One random number gives how many merges precede the first that is skipped; most often it is all of them, and
        the segmentation is the plain one.
        """
        if word.merges is None:  # how many make the plain segmentation
            parts = self._letters(word.text)
            count = len(parts)
            self._merge(parts, count, chance)
            word.merges = count - len(parts)
        # geometric: how many merges in a row are not skipped, if each is with probability `rate`
        n_merges = 0.0 if rate == 1.0 else log(1.0 - chance.random()) / log1p(-rate) if rate else inf
        if n_merges >= word.merges:
            return word.plain
        parts = self._letters(word.text)
        self._merge(parts, int(n_merges), chance)
        # the next best merge is the skipped one; from here on chance decides on each
        position = self._best(parts, rate, chance, passed=self._best(parts, 0.0, chance))
        while position >= 0:
            self._join(parts, position)
            position = self._best(parts, rate, chance)
        return self._ids_of(parts)

    def _merge(self, parts: list[str], times: int, chance: random.Random) -> None:
        """Apply at most that number of best merges."""
        for _ in range(times):
            position = self._best(parts, 0.0, chance)
            if position < 0:
                break
            self._join(parts, position)

    def _join(self, parts: list[str], position: int) -> None:
        parts[position : position + 2] = [parts[position] + parts[position + 1].removeprefix(self._prefix)]

    def _best(self, parts: list[str], rate: float, chance: random.Random, passed: int = -1) -> int:
        """The position of the best merge that is not skipped, where `passed` is skipped for certain; -1 if none."""
        best, position = inf, -1
        for i in range(len(parts) - 1):
            rank = self._ranks.get((parts[i], parts[i + 1]))
            if rank is not None and rank < best and i != passed and (not rate or chance.random() >= rate):
                best, position = rank, i
        return position

    def _letters(self, word: str) -> list[str]:
        """The characters of a word as pieces, without those that the library drops."""
        parts = [self._prefix + char if i else char for i, char in enumerate(word)]
        if parts:
            parts[-1] += self._suffix
        return parts if self._unknown_ids or self._bytes else [part for part in parts if part in self._ids]

    def _unigram(self, word: _Word, rate: float, chance: random.Random) -> list[int]:
        """Forward filtering, backward sampling over the lattice of pieces."""
        if chance.random() >= rate:
            return word.plain
        text = word.text
        n = len(text)
        forward = [0.0] + [-inf] * n  # log of the summed weight of all segmentations of text[:end]
        arcs: list[list[tuple[int, float]]] = [[] for _ in range(n + 1)]
        for end in range(1, n + 1):
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(text[start:end])
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
            pieces.append(text[start:end])
            end = start
        return self._ids_of(pieces[::-1])

    def _wordpiece(self, word: _Word, rate: float, chance: random.Random) -> list[int]:
        ids: list[int] = []
        text, start = word.text, 0
        if len(text) > self._most:
            return word.plain
        while start < len(text):
            prefix = self._prefix if start else ""
            match_end = 0
            for end in range(min(len(text), start + self._longest), start, -1):
                if prefix + text[start:end] in self._ids:
                    match_end = end
                    if end == start + 1 or chance.random() >= rate:
                        break
            if not match_end:
                return word.plain  # a shorter match has no continuation
            ids.append(self._ids[prefix + text[start:match_end]])
            start = match_end
        return ids


def _splitter(backend: tokenizers.Tokenizer, splits: _Splits) -> tokenizers.Tokenizer:
    """A copy of a tokenizer that ends with the parts for the model: added tokens, and the words between them."""
    splitter = tokenizers.Tokenizer.from_str(backend.to_str())
    splitter.encode_special_tokens = backend.encode_special_tokens
    splitter.model = models.BPE()
    steps = [pre_tokenizers.PreTokenizer.custom(splits)]
    before = backend.pre_tokenizer
    splitter.pre_tokenizer = pre_tokenizers.Sequence(steps if before is None else [before, *steps])
    return splitter


def _cut_between(word: str, tokens: list[tokenizers.Token]) -> Iterator[_Word]:
    """Parts of a long word, of at most `_CHUNK` characters unless a piece is longer, each with its plain ids."""
    spelt, start, ids = word.encode("utf-8"), 0, list[int]()
    if [token.offsets[0] for token in tokens[1:]] != [token.offsets[1] for token in tokens[:-1]]:
        yield _Word("", [token.id for token in tokens])  # pieces do not tell where they stand: bytes, dropped letters
        return
    for token in tokens:
        begin, end = token.offsets
        is_character = spelt[begin] & 0xC0 != 0x80  # not inside one, of which each byte is a piece
        if ids and is_character and len(spelt[start:end].decode("utf-8", "ignore")) > _CHUNK:
            yield _Word(spelt[start:begin].decode("utf-8"), ids)
            start, ids = begin, []
        ids.append(token.id)
    yield _Word(spelt[start:].decode("utf-8"), ids)
