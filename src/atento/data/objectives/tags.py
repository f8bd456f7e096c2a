"""Labels inside a text: a tag of each word (part of speech, place in the name of an entity), or the span of an answer.

words "O gato pulou"   ids "[CLS] O ga ##to pulou [SEP]"   labels "- DET NOUN - VERB -" (docs/notes.md#d4)
ids "[CLS] quem pulou ? [SEP] o gato pulou [SEP]"   label 5 6, "o gato" (docs/notes.md#g3)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import CapabilityError, DataError, counted, nearest
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.contexts import ContextWindows, context_windows
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
from atento.data.records.values import Span
from atento.metrics.tag_schemes import repaired, scheme_of_labels
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer

KIND, ANSWER = "tagging", "answer"  # kinds of heads
NO_ANSWER = (0, 0)  # the first token, [CLS], twice
NOT_LEARNED = (-1, -1)  # the label of a window that is not learned from
Answers = Sequence[tuple[int, int] | None]  # of each record: the first and the last token of its answer, if it has one
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
    if reads_words(network):
        read = (readable(tokenizer, sentence) for sentence in sentences)
        return [Pieces(word_ids(tokenizer, words), list(range(len(words))), words) for words in read]
    every = []
    for sentence in sentences:
        encoded = tokenizer.encode_words(sentence)
        starts: dict[int, int] = {}
        for position, word in enumerate(encoded.word_ids):
            if word is not None:
                starts.setdefault(word, position)  # the first piece of a word
        every.append(Pieces(encoded.ids, [starts[word] for word in range(len(sentence))], encoded.words))
    return every


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
        legal = repaired(split["tags"], scheme)
        wrong = sum(tags != tuple(given) for tags, given in zip(legal, split["tags"]))
        if wrong:
            examples = f"warning: the tags of {counted(wrong, 'example')} break {scheme}"
            preparation.report(f"{examples}: the crf head learns their entities as {scheme} writes them")
        split = replace(split, columns={**split.columns, "tags": legal})
    numbers = tag_numbers(split, head.labels)
    sentences = encode_sentences(preparation.tokenizer, network, split["tokens"])
    room = room_for(preparation.longest, template)
    ends = [len(pieces.ids) if room is None else min(room, len(pieces.ids)) for pieces in sentences]  # exclusive
    windows = [  # the beginnings of the sentences, up to `room` ids; their words are those that begin within
        Window(number, 0, end, 0, sum(start < end for start in pieces.starts))
        for number, (pieces, end) in enumerate(zip(sentences, ends))
    ]
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


@dataclass(frozen=True)
class Spans(OneText):
    """Batches of windows. Columns "ids" and "segments" of a question and a window of its context, and "span".

    "span" has the positions of the answer's first and last token in the row, (0, 0) where the window does not hold the
    answer, (-1, -1) where the window is not learned from.
    """

    network: NetworkConfig
    head: HeadConfig

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return 1 target for each window that has a label, 0 for the others."""
        spans = store["span"]
        return np.where(spans.flat[spans.starts[:-1]] >= 0, 1.0, 0.0)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; its labels are the first tokens, (B,), and `extras["end"]` has the last ones, (B,)."""
        first, last = torch.tensor([store["span"][row].tolist() for row in rows.tolist()]).T  # (B,) each
        inputs, lengths = rounded_inputs(store, rows, self.network, self.head)
        return Batch(inputs, {self.head.name: first}, extras={"end": last}, lengths=lengths)


def answer_head(network: NetworkConfig) -> HeadConfig:
    """Return the head that gives the start and the end of an answer.
    Raises CapabilityError: the network has none, or it stands on the decoder of a network that reads a source.
    """
    head = network_head(network, ANSWER, ", so it answers no questions")
    if head.side == "decoder":
        raise CapabilityError("an answer head must stand on the encoder, which reads the context: got `side: decoder`")
    return head


def answer_tokens(offsets: NDArray[np.int64], answer: Span) -> tuple[int, int] | None:
    """Return the first and the last token that share characters with an answer; None: no token does.

    Args:
        offsets: (n,2) the characters of each token of the context; those of a mere space are none.
        answer: a span of the context.
    """
    start, end = offsets[:, 0], offsets[:, 1]
    inside = np.flatnonzero((end > answer.start) & (start < answer.start + len(answer.text)) & (end > start))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def label_windows(windows: ContextWindows, answers: Answers) -> list[tuple[int, int]]:
    """Return the label of each window: the positions of the answer's first and last token in its row.

    Args:
        answers: of each record, the first and the last token of the answer in the context; None: it has no answer.

    Returns:
        (0, 0) for a window that does not hold the whole answer, as for a question without one (Devlin et al. 2019);
        (-1, -1) for every window of a record whose answer is whole in none.
    """
    labels: list[tuple[int, int]] = []
    for answer, numbers in zip(answers, windows.of_records()):
        complete, spans = False, []
        for window in numbers:
            first, position, size = (int(column[window]) for column in (windows.first, windows.position, windows.size))
            inside = answer is not None and first <= answer[0] and answer[1] < first + size  # whole, or it is none
            complete = complete or inside  # whole in one window at least
            moved = position - first
            spans.append((answer[0] + moved, answer[1] + moved) if answer and inside else NO_ANSWER)
        labels += spans if complete or answer is None else [NOT_LEARNED for _ in numbers]
    return labels


def spans(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of questions with the windows of their contexts; of several answers, the first is learned.
    Raises DataError: a question leaves no room for its context, a context is too long, an answer has no token (unless
    `data.skip_bad`), or no answer is whole in a window.
    """
    network, split, recipe = preparation.network, preparation.split, preparation.recipe
    head, data = answer_head(network), recipe.data
    questions, contexts, tokenizer = split["question"], split["context"], preparation.tokenizer
    longest, template = preparation.longest, preparation.text_template()
    windows = context_windows(questions, contexts, tokenizer, template, network, longest, data.stride, split.where)
    texts = zip(windows.offsets, split["answers"])
    answers = [answer_tokens(offsets, accepted[0]) if accepted else None for offsets, accepted in texts]
    labels = label_windows(windows, answers)
    # questions whose answer has no token teach nothing
    bad = [record for record, accepted in enumerate(split["answers"]) if accepted and answers[record] is None]
    if bad:
        text = split["answers"][bad[0]][0].text
        message = f"{split.where(bad[0])}: the tokenizer has no token for the answer {text!r}"
        if not data.skip_bad:
            raise DataError(message)
        preparation.report(f"warning: {counted(len(bad), 'question')} left out, first {message}")
        numbers = windows.of_records()
        for window in (window for record in bad for window in numbers[record]):
            labels[window] = NOT_LEARNED
    _warn(preparation, windows, answers, labels)
    windows.store.columns["span"] = Ragged([list(span) for span in labels])
    store, learned = windows.store, [row for row, label in enumerate(labels) if label != NOT_LEARNED]
    if not preparation.held_out and len(learned) < len(store):
        columns = store.columns.items()
        store = MemoryStore({name: Ragged.of_arrays([column[row] for row in learned]) for name, column in columns})
    # as in the published training script: else long windows would count more than short ones
    return preparation.planned(store, Spans(network, head), config.weight, equal_examples=True)


def _warn(
    preparation: Preparation, windows: ContextWindows, answers: Answers, labels: Sequence[tuple[int, int]]
) -> None:
    """Report how many windows there are, and warn of answers that cannot be learned or predicted.
    Raises DataError: no window is left to learn from.
    """
    data, total = preparation.recipe.data, counted(len(answers), "question")
    lost = {int(windows.records[row]) for row, label in enumerate(labels) if label[0] < 0}
    cut = sum(answers[record] is not None for record in lost)  # the others have been reported
    long = sum(answer is not None and answer[1] - answer[0] >= data.max_answer for answer in answers)
    if len(windows) > len(answers):
        preparation.report(f"{total} in {len(windows):,} windows of at most {preparation.longest} tokens")
    if len(lost) == len(answers) and not cut:
        raise DataError("no question is left: the tokenizer has no token for any answer")
    if len(lost) == len(answers):
        raise DataError(f"no answer is whole in a window of {preparation.longest} tokens: raise `data.max_len`")
    if cut:
        preparation.report(
            f"warning: {cut:,} of {total} left out: the answer is whole in no window of {preparation.longest} tokens"
        )
    if long:
        preparation.report(
            f"warning: {long:,} of {total} have an answer of more than `data.max_answer` {data.max_answer} tokens, "
            "and the model gives no longer one: raise it"
        )
