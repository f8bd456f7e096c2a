"""Checks of subwords, words, special tokens and padding, compared with exhaustive search (docs/notes.md#d1 to #d6)."""

import unicodedata
from dataclasses import asdict
from functools import cache
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from atento.base.errors import TokenizerError
from atento.config.recipe import TokenizerConfig, TokenizerKind
from atento.config.tables.tasks import task_with
from atento.data.batches.batch import Ragged
from atento.model import load
from atento.models.write import write_model
from atento.text import (
    Tokenizer,
    merge_labels,
    sentinels,
    spread_labels,
    standard_specials,
    train_tokenizer,
    word_spans,
)
from atento.text.lengths import truncate
from atento_lab.notes.checks.tiny import tiny_network, words
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare
from atento_world import write

SENTENCE = "o gatinho corre rapidamente"  # L3
WORD_VOCABULARY = ("gato", "cachorro", "corre", "pula", "rapidamente")
PIECES = ("o", "gat", "##inho", "corre", "rapida", "##mente")


@cache
def portuguese() -> tuple[str, ...]:
    """Return a few hundred Portuguese sentences of the micro-world."""
    return tuple(pair.target for pair in write("train", 400))


def longest_match(word: str, tokenizer: Tokenizer) -> list[str]:
    """Segment by hand as WordPiece: the longest known piece, then the longest known `##` piece, and so on.

    A word without such pieces is unknown.
    """
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = [end for end in range(len(word), start, -1) if tokenizer.token_id(prefix + word[start:end]) is not None]
        if not ends:
            return ["<unk>"]
        pieces.append(prefix + word[start : ends[0]])
        start = ends[0]
    return pieces


def word_piece() -> Finding:
    """D1: the longest match; the notes' vocabulary gives their six pieces."""
    trained = train_tokenizer(TokenizerConfig(kind="wordpiece", vocab_size=500), portuguese())
    unseen = [pair.target for pair in write("valid", 100)]
    differ = sum(
        trained.tokens(trained.encode(text))
        != [piece for start, end in word_spans(text) for piece in longest_match(text[start:end], trained)]
        for text in unseen
    )
    notes = Tokenizer.from_vocabulary("wordpiece", PIECES)
    kinds: tuple[TokenizerKind, ...] = ("wordpiece", "unigram", "byte")
    strange = {kind: _unknown(kind, "o gato 猫") for kind in kinds}
    return compare(
        {
            "pieces": notes.tokens(notes.encode(SENTENCE)),
            "texts cut otherwise": differ,
            "of": len(unseen),
            "unknown in 猫": strange,
        },
        {
            "pieces": list(PIECES),
            "texts cut otherwise": 0,
            "of": 100,
            "unknown in 猫": {"wordpiece": 1, "unigram": 0, "byte": 0},
        },
        notes={"unknown in 猫": {"wordpiece": 0}},
        remark="the notes say that subwords leave nothing unknown; unseen letters are unknown, unless bytes encode "
        "them (error 12)",
    )


def _unknown(kind: TokenizerKind, text: str) -> int:
    """Return the number of unknown tokens in a text, by a tokenizer of this kind trained on Portuguese."""
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=600), portuguese())
    return tokenizer.encode(text).count(tokenizer.unk_id)


def unigram() -> Finding:
    """D2: the most probable segmentation, as exhaustive search confirms; sampling draws others."""
    scores = {"▁": -5.0, "▁gat": -2.5, "inho": -2.0, "▁ga": -1.9, "tinho": -2.4, "▁g": -1.0, "a": -0.5, "t": -3.2}
    scores |= {"▁gati": -3.9, "nho": -2.2, "i": -3.3, "n": -3.4, "h": -3.5, "o": -2.9, "g": -3.6}
    tokenizer = Tokenizer.from_vocabulary("unigram", list(scores), scores=list(scores.values()))
    word = "▁gatinho"
    cuts = (  # every one that there is
        [word[a:b] for a, b in zip((0, *inner), (*inner, len(word)))]
        for count in range(len(word))
        for inner in combinations(range(1, len(word)), count)
    )
    known = [cut for cut in cuts if all(piece in scores for piece in cut)]
    best = max(known, key=lambda cut: sum(scores[piece] for piece in cut))
    drawn = tokenizer.encode_batch(["gatinho"] * 50, dropout=0.5, seed=1)
    trained = train_tokenizer(TokenizerConfig(kind="unigram", vocab_size=700), portuguese())
    unseen = [pair.target for pair in write("valid", 100)]
    return compare(
        {
            "cut": tokenizer.tokens(tokenizer.encode("gatinho")),
            "different cuts drawn": len(set(map(tuple, drawn))),
            "drawn cuts that spell another text": sum(tokenizer.decode(ids) != "gatinho" for ids in drawn),
            "texts that do not come back": sum(trained.decode(trained.encode(text)) != text for text in unseen),
            "pieces a word": sum(map(len, trained.encode_batch(unseen))) / sum(len(word_spans(t)) for t in unseen),
        },
        {
            "cut": best,
            "different cuts drawn": AtLeast(3),
            "drawn cuts that spell another text": 0,
            "texts that do not come back": 0,
            "pieces a word": AtMost(3.0),
        },
    )


def word_level() -> Finding:
    """D3: words outside it are counted as out of vocabulary."""
    tokenizer = Tokenizer.from_vocabulary("word", WORD_VOCABULARY)
    ids = tokenizer.encode(SENTENCE)
    unknown = [word for word, i in zip(SENTENCE.split(), ids) if i == tokenizer.unk_id]
    return compare(
        {"out of vocabulary": unknown, "how many": len(unknown)},
        {"out of vocabulary": [word for word in SENTENCE.split() if word not in WORD_VOCABULARY], "how many": 2},
        notes={"out of vocabulary": ["gatinho"], "how many": 1},
        remark='"o" is not in that vocabulary either (error 11); 30 to 100 thousand words learned by the age of 20 are '
        f"{30_000 / 20 / 365:.1f} to {100_000 / 20 / 365:.1f} a day, not 7 to 10 (error 27)",
    )


def back_to_words() -> Finding:
    """D4: every piece has its offsets in the original text; word labels convert both ways."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="unigram", vocab_size=400), portuguese())
    text = "João não comprou pão em São Paulo."
    labels = ["B-PER", "O", "O", "O", "O", "B-LOC", "I-LOC", "O"]
    value: dict[str, object] = {}
    for name, normalised in (
        ("composed", unicodedata.normalize("NFC", text)),
        ("decomposed", unicodedata.normalize("NFD", text)),
    ):
        encoded = tokenizer.encode_with_offsets(normalised)
        piece_labels = spread_labels(labels, encoded.word_ids)
        covered = {position for start, end in encoded.offsets for position in range(start, end)}
        value[name] = {
            "words": [normalised[start:end] for start, end in word_spans(normalised)] == encoded.words,
            "letters lost": len(normalised) - normalised.count(" ") - len(covered),
            "labels": merge_labels(piece_labels, encoded.word_ids, len(labels)),
        }
    right = {"words": True, "letters lost": 0, "labels": labels}
    return compare(value, {"composed": right, "decomposed": right})


def special_tokens() -> Finding:
    """D5: one table, saved with the tokenizer; a model refuses another's."""
    table = standard_specials(sentinels(2))
    network = tiny_network(vocab_size=12, tokenizer_fingerprint=words().fingerprint)
    other_tokenizer = Tokenizer.from_vocabulary("word", ["I", "love", "NLP", "Eu", "amo", "gostar", "LPN"])
    config = {"model_type": "atento", "task": task_with("translate"), "name": "tiny", "network": asdict(network.config)}
    with TemporaryDirectory() as folder:
        words().save(Path(folder) / "tokenizer")
        same_fingerprint = Tokenizer.load(Path(folder) / "tokenizer").fingerprint == words().fingerprint
        state = {name: weight.float() for name, weight in network.state_dict().items()}
        directory = write_model(Path(folder) / "model", config, state, other_tokenizer.files())
        try:
            load(directory, device="cpu")
            refused = "loaded"
        except TokenizerError:
            refused = "refused"
    return compare(
        {"ids": table.ids, "saved and read": same_fingerprint, "another tokenizer": refused},
        {
            "ids": {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "<mask>": 4, "<extra_id_0>": 5, "<extra_id_1>": 6},
            "saved and read": True,
            "another tokenizer": "refused",
        },
        remark="the notes write the end of a sentence in two ways; it is one id (error 25). In T5's example the first "
        'sentinel replaces "for inviting", not "to invite", and the target ends with one more sentinel (error 47)',
    )


def padded_batches() -> Finding:
    """D6: accents are kept; truncation is counted and shortens the longer of two texts first."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="unigram", vocab_size=400), portuguese())
    texts = ["Ele está muito confortável.", "Eu amo.", "Um avô e uma avó não são iguais."]
    ids = tokenizer.encode_batch(texts)
    lengths = [len(row) for row in ids]
    longest_row = lengths.index(max(lengths))
    rows = Ragged(ids)
    batch = rows.padded(np.array([0, 1, 2]), tokenizer.pad_id, after=tokenizer.eos_id)
    alone = rows.padded(np.array([1]), tokenizer.pad_id, after=tokenizer.eos_id)
    return compare(
        {
            "shapes": [list(batch.shape), list(alone.shape)],
            "padding in each row": (batch == tokenizer.pad_id).sum(dim=1),
            "texts back": [tokenizer.decode(row.tolist()) for row in batch],
            "cut to 4 in all": list(truncate([1, 2, 3, 4, 5], [6, 7], 4)),
        },
        {
            "shapes": [[3, lengths[longest_row] + 1], [1, lengths[1] + 1]],
            "padding in each row": [lengths[longest_row] - length for length in lengths],
            "texts back": texts,
            "cut to 4 in all": [[1, 2], [6, 7], 3],
        },
        remark="the notes pad every text to the maximum length of the model (error 46)",
    )
