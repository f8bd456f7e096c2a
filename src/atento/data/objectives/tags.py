"""A tag of each word of a sentence: its part of speech, or its position in the name of an entity.

words "O gato pulou"   ids "[CLS] O ga ##to pulou [SEP]"   labels "- DET NOUN - VERB -" (docs/notes.md#d4)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError, counted, nearest
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches, round_length
from atento.data.batches.whole_words import (
    CHARACTERS,
    characters_of_words,
    readable,
    reads_words,
    row_characters,
    word_ids,
)
from atento.data.objectives.labels import cut_warning, network_head, rounded_inputs
from atento.data.objectives.preparation import Preparation
from atento.data.records.splits import Split
from atento.metrics.tag_schemes import legalized, scheme_of_labels
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer

KIND = "tagging"  # of the head's configuration
NO_TAGS = ", so it gives no tags"


@dataclass(frozen=True)
class Pieces:
    """A sentence as ids without special tokens."""

    ids: list[int]  # the ids
    starts: list[int]  # the position of the first id of each word; the tag of the word stands there
    words: list[str]  # the words as text, for networks that read characters


@dataclass(frozen=True)
class Window:
    """A part of a sentence that is one row of a batch: its ids `begin` to `end`, for the words `first` to `last`."""

    sentence: int
    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True)
class Tags(OneText):
    """Batches of tagged sentences.

    Columns "ids" and "segments"; "words", the number of the word that begins at each id, else -1; "tags", the number of
    its tag, else -1; and "whole", whether the sentence is not cut.
    """

    network: NetworkConfig  # configuration of the network
    head: HeadConfig  # configuration of its tagging head

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the number of words of each sentence, each of which has a tag."""
        tags = store["tags"]
        return np.array([np.count_nonzero(tags[row] >= 0) for row in range(len(store))], dtype=np.float64)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch, with labels (B,L) at the first token of each word; it is the same in every epoch."""
        inputs, lengths = rounded_inputs(store, rows, self.network, self.head)
        extras = {}
        if self.head.kind != KIND:  # a CRF, which scores the end of a sentence
            extras[f"{self.head.name} whole"] = store["whole"].padded(rows, 0, length=1).squeeze(1) > 0
        length = round_length(store["ids"].lengths[rows], self.network.position_limit)
        tags = store["tags"].padded(rows, -1, length=length)
        return Batch(inputs, {self.head.name: tags}, extras=extras, lengths=lengths)


def encode_sentences(tokenizer: Tokenizer, network: NetworkConfig, sentences: Iterable[Sequence[str]]) -> list[Pieces]:
    """Encode sentences that are split into words; every word has at least one id.

    A network that reads whole words (ELMo) gets one id for each word.
    """
    return [_encoded(tokenizer, network, sentence) for sentence in sentences]


def _encoded(tokenizer: Tokenizer, network: NetworkConfig, sentence: Sequence[str]) -> Pieces:
    if reads_words(network):
        words = readable(tokenizer, sentence)
        return Pieces(word_ids(tokenizer, words), list(range(len(words))), words)
    encoded = tokenizer.encode_words(sentence)
    starts: dict[int, int] = {}
    for position, word in enumerate(encoded.word_ids):
        if word is not None:
            starts.setdefault(word, position)  # the first piece of a word
    return Pieces(encoded.ids, [starts[word] for word in range(len(sentence))], encoded.words)


def windows_as_store(
    sentences: Sequence[Pieces], windows: Sequence[Window], template: Template, network: NetworkConfig
) -> MemoryStore:
    """Return windows as rows with special tokens, in the columns "ids", "segments" and "words", and the characters of
    the words for a network that reads them."""
    rows = [template.apply(sentences[window.sentence].ids[window.begin : window.end]) for window in windows]
    words: list[list[int]] = []
    before = [content for content, _ in template.single].index("A")  # special tokens before the sentence
    for window, (ids, _) in zip(windows, rows):
        starts = sentences[window.sentence].starts
        numbers = [-1] * len(ids)
        for word in range(window.first, window.last):
            numbers[before + starts[word] - window.begin] = word  # where a word begins in the row
        words.append(numbers)
    columns = {
        "ids": Ragged([ids for ids, _ in rows]),
        "segments": Ragged([segments for _, segments in rows]),
        "words": Ragged(words),
    }
    count = characters_of_words(network)
    if count is not None:
        texts = [sentences[window.sentence].words[window.begin : window.end] for window in windows]
        columns[CHARACTERS] = Ragged.of_arrays([row_characters(template, text, None, count) for text in texts])
    return MemoryStore(columns)


def room_for(longest: int | None, template: Template) -> int | None:
    """Return how many tokens of a sentence stand in a row of `longest` tokens; None: any number.
    Raises DataError: none.
    """
    if longest is None:
        return None
    room = longest - template.added(False)
    if room < 1:
        raise DataError(f"`data.max_len` must leave room for a token between the special ones: got {longest}")
    return room


def tag_numbers(split: Split, names: Sequence[str]) -> list[list[int]]:
    """Return the number of the tag of each word of each record.
    Raises DataError: a tag that is not among `names`; the message names file, line and word.
    """
    numbers = {name: number for number, name in enumerate(names)}
    for row, (words, tags) in enumerate(zip(split["tokens"], split["tags"])):
        for position, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
            if tag not in numbers:
                near = nearest(tag, list(names))
                raise DataError(f"{split.where(row)}: unknown tag {tag!r} of word {position}, {word!r}{near}")
    return [[numbers[tag] for tag in tags] for tags in split["tags"]]


def tags(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of tagged sentences; those longer than `data.max_len` tokens are cut, with a counted warning.
    Raises DataError: a tag that the training data does not have.
    """
    network, split = preparation.network, preparation.split
    head, template = network_head(network, KIND, NO_TAGS), preparation.text_template()
    if head.kind != KIND:  # a CRF, to which an illegal sequence is impossible
        scheme = scheme_of_labels(head.labels)
        legal = legalized(split["tags"], scheme)
        wrong = sum(tags != tuple(given) for tags, given in zip(legal, split["tags"]))
        if wrong:
            examples = f"warning: the tags of {counted(wrong, 'example')} break {scheme}"
            preparation.report(f"{examples}: the crf head learns their entities as {scheme} writes them")
        split = replace(split, columns={**split.columns, "tags": legal})
    numbers = tag_numbers(split, head.labels)
    sentences = encode_sentences(preparation.tokenizer, network, split["tokens"])
    room = room_for(preparation.longest, template)
    windows = [_cut(number, pieces, room) for number, pieces in enumerate(sentences)]
    # report how many sentences were cut, and how many words that leaves out
    cut = [(pieces, window) for pieces, window in zip(sentences, windows) if window.end < len(pieces.ids)]
    if cut:
        lost = sum(len(pieces.starts) - window.last for pieces, window in cut)
        warning = cut_warning(len(cut), counted(len(sentences), "example"), preparation)
        preparation.report(f"{warning}; {counted(lost, 'word')} left out")
    store = windows_as_store(sentences, windows, template, network)
    store.columns["whole"] = Ragged([[int(window.end == len(sentences[window.sentence].ids))] for window in windows])
    words = store["words"]  # the number of the word that begins at a piece, else -1
    rows = zip((words[row].tolist() for row in range(len(words))), numbers)
    store.columns["tags"] = Ragged([[own[word] if word >= 0 else -1 for word in row] for row, own in rows])
    return preparation.planned(store, Tags(network, head), config.weight)


def _cut(number: int, pieces: Pieces, room: int | None) -> Window:
    """Return the beginning of a sentence, up to `room` ids."""
    end = len(pieces.ids) if room is None else min(room, len(pieces.ids))  # exclusive
    return Window(number, 0, end, 0, sum(start < end for start in pieces.starts))  # words that begin within
