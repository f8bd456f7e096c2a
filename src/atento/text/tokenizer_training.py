"""Train tokenizers. The same text always gives the same vocabulary, byte for byte.

The library's trainers depend on the order of a hash table of words. Plain BPE is not affected. For WordPiece the pieces
`##x` are numbered in that order and numbers break ties between merges, so all letters are given to the trainer first,
in a fixed order. For Unigram floating-point sums differ in the last digits, and pruned letters get their scores back in
that order, so scores are rounded to four decimals, such letters share the lowest score, and pieces are sorted by score,
then by spelling.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Protocol

import tokenizers
from tokenizers import models, trainers

from atento.base.errors import DataError, TokenizerError
from atento.text.kinds import SPACE, kind_named, library_normalizer, require_unicode
from atento.text.pipelines import build, front
from atento.text.read_tokenizer import with_markers, without_spelled
from atento.text.specials import STANDARD, SpecialTokens, Template, standard_specials
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_folder import Parts

log = logging.getLogger("atento.text")

_COVERAGE = 0.9995  # share of the characters that become pieces, as in SentencePiece
_MAX_PIECE = 16  # characters
_MAX_WORD = 256  # characters; a longer run without spaces is split, in training only
_MAX_LETTERS = 1000  # WordPiece: letters kept, each twice, as x and ##x
_MAX_VOCABULARY = 1_000_000


class TokenizerSettings(Protocol):
    """The settings of training; `atento.config.recipe.TokenizerConfig` has them."""

    @property
    def kind(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def lowercase(self) -> bool: ...


def train_tokenizer(
    config: TokenizerSettings, texts: Iterable[str], *, extra_specials: Iterable[str] = (), markers: Sequence[str] = ()
) -> Tokenizer:
    """Train a tokenizer on lines of text (docs/notes.md#d1, #d2, #d3, #d5).

    Args:
        config: kind, `vocab_size` (with special tokens and byte pieces; a maximum for word, character and byte) and
            `lowercase`.
        texts: lines of text, read once.
        extra_specials: further special tokens after the standard five: `sentinels(100)`, language tags.
        markers: special tokens after those, which texts may spell (`with_markers`); pieces are learned without.

    Returns:
        The tokenizer. If the text has too few pieces for `vocab_size` or needs more, its `notes` and a logged warning
        report it.

    Raises:
        DataError: the text is empty.
        TokenizerError: the kind is unknown, the size is out of range, or a text is not valid Unicode.
    """
    kind_named(config.kind)
    if not 1 <= config.vocab_size <= _MAX_VOCABULARY:
        raise TokenizerError(f"`vocab_size` must lie in 1 ... {_MAX_VOCABULARY}: got {config.vocab_size}")
    if isinstance(texts, str) or isinstance(markers, str) or isinstance(extra_specials, str):
        raise TokenizerError("training text must be lines, one string each, and so are markers: got a single string")
    specials = standard_specials((*extra_specials, *markers))
    counts = _count(config.kind, (without_spelled(text, markers) for text in texts), config.lowercase)
    if not counts:
        raise DataError("the text to train the tokenizer on is empty: it holds no word")
    room = config.vocab_size - len(front(config.kind, specials))  # for pieces that are learned
    pieces, extra = _TRAINERS[config.kind](counts, room)
    backend = build(config.kind, specials, pieces, lowercase=config.lowercase, **extra)
    notes = _notes(config.kind, config.vocab_size, backend.get_vocab_size(), specials)
    for note in notes:
        log.warning(note)
    tokenizer = Tokenizer(backend.to_str(pretty=True), config.kind, specials, lowercase=config.lowercase, notes=notes)
    if not markers:
        return tokenizer
    definition, files = tokenizer.definition, tokenizer.files()
    parts = with_markers(Parts(definition, config.kind, specials, config.lowercase, True, files, Template()), markers)
    return Tokenizer(
        parts.definition, config.kind, parts.specials, lowercase=config.lowercase, notes=notes, parts=parts
    )


def _notes(kind: str, requested: int, size: int, specials: SpecialTokens) -> tuple[str, ...]:
    """Notes to the user about the size of the vocabulary."""
    sizes = f"the vocabulary has {size:,} pieces, {requested:,} were requested"
    if size > requested:
        needs = f"{len(front(kind, specials))} special and byte pieces and every letter of the text"
        return (f"{sizes}: a {kind} vocabulary holds {needs}",)
    if size < requested and kind in ("unigram", "bpe", "wordpiece"):
        return (f"{sizes}: the text has no more pieces worth keeping",)
    return ()


def _count(kind: str, texts: Iterable[str], lowercase: bool) -> Counter[str]:
    """The count of each word as a model of this kind splits text; of each letter for `character`."""
    row, normalizer = kind_named(kind), library_normalizer(lowercase)
    pre_tokenizer = row.pre_tokenizer()
    parts: Counter[str] = Counter()  # of texts between spaces: each is split into words once, however often it occurs
    for number, text in enumerate(texts, 1):
        require_unicode(text, f"line {number} of the training text")
        if row.by_word:
            parts.update(text.split(" "))
        else:
            parts[text] += 1
    counts: Counter[str] = Counter()
    for part, count in parts.items():
        part = normalizer.normalize_str(part)
        words = part if pre_tokenizer is None else [word for word, _ in pre_tokenizer.pre_tokenize_str(part)]
        for word in words:
            counts[word] += count
    return counts


def _letters(counts: Counter[str]) -> Counter[str]:
    """The count of each character in the words."""
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            letters[char] += count
    return letters


def _ranked(counts: Counter[str]) -> list[str]:
    """The keys, most frequent first, ties by spelling."""
    return sorted(counts, key=lambda key: (-counts[key], key))


def _covered(counts: Counter[str]) -> tuple[Counter[str], list[str]]:
    """The words without the rarest characters, and the other characters, which are 99.95 % of the text."""
    letters = _letters(counts)
    spare = (1 - _COVERAGE) * letters.total()  # occurrences that may be left out
    ranked = _ranked(letters)
    while len(ranked) > 1 and letters[ranked[-1]] <= spare and ranked[-1] != SPACE:  # the rarest first
        spare -= letters[ranked.pop()]
    rare = set(letters) - set(ranked)
    if not rare:
        return counts, sorted(ranked)
    cut = re.compile("[" + "".join(map(re.escape, sorted(rare))) + "]+")  # a word's parts count without rare letters
    covered_counts: Counter[str] = Counter()
    for word, count in counts.items():
        for part in cut.split(word):
            if part:
                covered_counts[part] += count
    return covered_counts, sorted(ranked)


def _run(model: models.Model, trainer: Any, counts: Counter[str]) -> dict[str, Any]:
    """Run a trainer of the library and return the model section of `tokenizer.json`."""
    backend = tokenizers.Tokenizer(model)
    # the words in order, each repeated by its count, long ones in parts
    parts = ((word, [word[i : i + _MAX_WORD] for i in range(0, len(word), _MAX_WORD)]) for word in sorted(counts))
    backend.train_from_iterator(chain.from_iterable(repeat(part, counts[word]) for word, part in parts), trainer)
    trained: dict[str, object] = json.loads(backend.to_str())["model"]
    return trained


def _unigram(counts: Counter[str], room: int) -> tuple[list[str], dict[str, Any]]:
    counts, letters = _covered(counts)
    unk = STANDARD["unk"]
    trainer = trainers.UnigramTrainer(
        vocab_size=max(room, len(letters)) + 1, show_progress=False, unk_token=unk, max_piece_length=_MAX_PIECE
    )
    pieces = _run(models.Unigram(), trainer, counts)["vocab"]
    scores: dict[str, float] = {piece: score for piece, score in pieces if piece != unk}
    lowest = min(scores.values())
    # Letters that the trainer pruned get scores a ten-thousandth apart, in the order of a hash table.
    restored = lowest + 1e-4 * (len(letters) + 1)
    for piece, score in scores.items():
        scores[piece] = round(lowest if len(piece) == 1 and score < restored else score, 4)
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    multiple = [piece for piece in ranked if len(piece) > 1][: max(0, room - len(letters))]  # pieces of several letters
    chosen = set(letters).union(multiple)
    pieces = [piece for piece in ranked if piece in chosen]
    return pieces, {"scores": [scores[piece] for piece in pieces]}


def _bpe(counts: Counter[str], room: int) -> tuple[list[str], dict[str, Any]]:
    counts, letters = _covered(counts)
    size = max(room, len(letters))
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, initial_alphabet=letters, max_token_length=_MAX_PIECE
    )
    trained = _run(models.BPE(), trainer, counts)
    merges = [(left, right) for left, right in trained["merges"]]
    return sorted(trained["vocab"], key=trained["vocab"].__getitem__), {"merges": merges}


def _wordpiece(counts: Counter[str], room: int) -> tuple[list[str], dict[str, Any]]:
    alphabet = set(_ranked(_letters(counts))[:_MAX_LETTERS])  # the most frequent letters
    counts = Counter({word: count for word, count in counts.items() if alphabet.issuperset(word)})
    letters = [*sorted(alphabet), *(f"##{char}" for char in sorted(alphabet))]  # at the beginning of a word, and inside
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(room, len(letters)), min_frequency=2, show_progress=False, special_tokens=letters
    )
    vocabulary: dict[str, int] = _run(models.WordPiece(unk_token=STANDARD["unk"]), trainer, counts)["vocab"]
    return sorted(vocabulary, key=vocabulary.__getitem__), {}


def _most_frequent(counts: Counter[str], room: int) -> tuple[list[str], dict[str, object]]:
    return _ranked(counts)[: max(room, 0)], {}


_TRAINERS: dict[str, Callable[[Counter[str], int], tuple[list[str], dict[str, Any]]]] = {
    "unigram": _unigram,
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "word": _most_frequent,
    "character": _most_frequent,
    "byte": lambda counts, room: ([], {}),  # which has nothing to learn
}
