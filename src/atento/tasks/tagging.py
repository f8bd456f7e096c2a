"""Tagging: a tag for each word, such as its part of speech, or the entities that they name; legal sequences."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from atento.base.errors import UsageError
from atento.config.tables.head_kinds import HeadConfig
from atento.data.objectives.labels import inputs_of, network_head
from atento.data.objectives.tags import (
    KIND,
    NO_TAGS,
    Pieces,
    Window,
    encode_sentences,
    room_for,
    tag_numbers,
    windows_as_store,
)
from atento.data.records.splits import Split
from atento.metrics.tag_schemes import SCHEMES, entities, legal_transitions, scheme_of_labels
from atento.networks.crf import Chain, best_tags, forward_sums, illegal_scores, log_marginals, tag_log_probs
from atento.networks.heads import CRFHead
from atento.networks.interface import token_mask_of
from atento.tasks.decoding_setup import refuse_options
from atento.tasks.length_batching import length_batches, run_in_batches
from atento.tasks.task_model import TaskModel, check_flags, for_head, head_of, max_input_tokens, tokenizer_of
from atento.tasks.verb_calls import Texts, listed
from atento.text.kinds import check_texts
from atento.text.words import word_spans


def transitions(labels: Sequence[str], scheme: str) -> Chain:
    """The scores of the transitions between labels under a scheme: 0 for legal ones (`atento.metrics.tag_schemes`).
    Raises UsageError: there is no such scheme.
    """
    return Chain(*map(torch.from_numpy, illegal_scores(legal_transitions(labels, scheme))))


_TOKENS = 4096  # of a batch
_SCORES = 1 << 21  # of pairs of tags that are added up at once
Spans = Sequence[tuple[int, int]]  # the characters of each word, start and end


@dataclass(frozen=True)
class Entity:
    """A labelled part of a text."""

    label: str  # the type of the entity, or the tag of the word
    text: str  # its characters
    start: int  # the number of characters of the text before it
    end: int  # the number of characters of the text before its end
    # of the tag of the word, or of all tags of an entity: with a CRF of all together, else the product over its words
    probability: float


@overload
def tag(model: TaskModel, text: str, *, constrained: bool | None = None, head: str | None = None) -> list[Entity]: ...
@overload
def tag(
    model: TaskModel, text: Texts, *, constrained: bool | None = None, head: str | None = None
) -> list[list[Entity]]: ...
@overload
def tag(
    model: TaskModel,
    *,
    words: Sequence[str] | Sequence[Sequence[str]],
    constrained: bool | None = None,
    head: str | None = None,
) -> list[object]: ...


def tag(
    model: TaskModel,
    text: str | Texts | None = None,
    *,
    words: Sequence[str] | Sequence[Sequence[str]] | None = None,
    constrained: bool | None = None,
    head: str | None = None,
) -> list[Any]:
    """The entities of a text, or, for a model of plain tags such as parts of speech, its tagged words
    (docs/notes.md#g4).

    A text is split into words at spaces; each punctuation mark and each Han character is a word of its own. The tag of
    a word is read at its first token. A sentence longer than the model reads is tagged in windows with overlap.

    Args:
        text: a text, or a list of texts, which gives a list for each.
        words: instead of `text`, a sentence that is split into words already, or a list of such sentences. Offsets
            are then those of the words joined by single spaces.
        constrained: take the most probable legal sequence of tags (no I-PER behind O where the scheme is IOB2) instead
            of the most probable tag of each word. None: where the scheme of the training data is known, `tag_scheme` in
            `config.json`, as it is of models trained here. True for other models: the scheme that the labels suggest,
            BIOES, BILOU, or IOB2, or IOB1 where no label has B. Of a CRF the most probable sequence, by its transitions
            and the scheme of its labels, is taken unless this is False.
        head: the name of a head, of a model that has several; None: the only one that tags.

    Returns:
        The entities in their order; offsets are characters of the text as it was passed.

    Raises:
        CapabilityError: the model has no tagging head. UsageError: neither a text nor words, or both; `constrained`
            for plain tags.
    """
    model = for_head(model, head, "tag")
    sentences, single = _sentences(text, words)
    tagged = _tagged(model, sentences, constrained)
    entity_lists = [words for words, _ in tagged]
    if scheme_of_labels(head_of(model, KIND).labels) is not None:  # the words of an entity become one
        for place, ((whole, _), (own, found)) in enumerate(zip(sentences, tagged)):
            entity_lists[place] = []
            for kind, first, end in entities([word.label for word in own]):
                start, stop = own[first].start, own[end - 1].end
                # that of the last tag, and of each tag given the next one: of all together
                probability = own[end - 1].probability * float(np.exp(found.given_next[first : end - 1].sum()))
                entity_lists[place].append(Entity(kind, whole[start:stop], start, stop, probability))
    return entity_lists[0] if single else entity_lists


def tag_words(
    model: TaskModel,
    text: str | Sequence[str] | None = None,
    *,
    words: Sequence[str] | Sequence[Sequence[str]] | None = None,
    constrained: bool | None = None,
    head: str | None = None,
) -> list[Any]:
    """As `tag`, with an `Entity` for each word, whose label is the tag of the word, such as "B-PER" or "O"."""
    model = for_head(model, head, "tag")
    sentences, single = _sentences(text, words)
    tagged = [words for words, _ in _tagged(model, sentences, constrained)]
    return tagged[0] if single else tagged


def _sentences(text: object, words: Any) -> tuple[list[tuple[str, Spans]], bool]:
    """Texts with the spans of their words, and whether it is one text alone."""
    if (text is None) == (words is None):  # both, or neither
        raise UsageError("give a text or `words`, one of them")
    if words is None:
        return [(item, word_spans(item)) for item in listed(text)], isinstance(text, str)
    if isinstance(words, str | bytes | Mapping):
        raise UsageError(f"`words` must be a list of words, or a list of such lists: got {type(words).__name__}")
    rows = list(words)
    single = all(isinstance(word, str) for word in rows)  # an empty list is one sentence without words
    if not single and any(isinstance(row, str) or not isinstance(row, Iterable) for row in rows):
        raise UsageError("`words` must be a list of words, or a list of such lists: got a list of both or neither")
    sentences = [rows] if single else [list(row) for row in rows]
    for sentence in sentences:
        check_texts(sentence)
        if "" in sentence:
            raise UsageError(f"a word must have at least one character: word {sentence.index('')} is ''")
    return [_joined(sentence) for sentence in sentences], single  # joined by spaces, with the place of each word


def _joined(words: Sequence[str]) -> tuple[str, Spans]:
    """Words joined by single spaces, and the span of each."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), spans


class TagSequence(NamedTuple):
    """What a model says of the tags of a sentence of N words."""

    tags: list[int]  # the number of the tag of each word
    log_probs: NDArray[np.float64]  # (N,C) of all tags of each word
    given_next: NDArray[np.float64]  # (N,) log-probability of each tag, given the tag of the next word


def _tagged(
    model: TaskModel, sentences: Sequence[tuple[str, Spans]], constrained: bool | None
) -> list[tuple[list[Entity], TagSequence]]:
    check_flags(constrained=constrained)
    head = head_of(model, KIND)
    scheme = _scheme(head, model.config.get("tag_scheme"), constrained)
    learned = _learned_chain(model, head)
    chain = None if scheme is None else transitions(head.labels, scheme)  # which tag may follow which
    if learned is not None and constrained is not False:
        chain = learned
    scores = word_scores(model, [[text[start:end] for start, end in spans] for text, spans in sentences])
    tagged = []
    for (text, spans), found in zip(sentences, tag_sequences(scores, chain, learned)):
        words = [
            Entity(head.labels[number], text[start:end], start, end, float(np.exp(found.log_probs[word, number])))
            for word, ((start, end), number) in enumerate(zip(spans, found.tags))
        ]
        tagged.append((words, found))
    return tagged


def _learned_chain(model: TaskModel, head: HeadConfig) -> Chain | None:
    """The transitions that a CRF has learned, in float64; None: the tags of words are independent of one another."""
    module = model.network.heads[head.name]
    return module.chain(torch.float64, "cpu") if isinstance(module, CRFHead) else None


@torch.inference_mode()
def tag_sequences(scores: Sequence[Tensor], chain: Chain | None, learned: Chain | None) -> list[TagSequence]:
    """The tags of sentences, and their probabilities.

    Args:
        scores: (N,C) of each sentence, any real numbers.
        chain: the scores of transitions, by which the best sequence is found; None: the most probable tag of each word.
        learned: those of the model, which its probabilities depend on; None: it has none.
    """
    found = [TagSequence([], np.zeros((0, sentence.shape[1])), np.zeros(0)) for sentence in scores]
    most = _SCORES // max((sentence.shape[1] for sentence in scores), default=1) ** 2  # words of a batch
    for rows in length_batches([len(sentence) for sentence in scores], min(_TOKENS, most)):  # none without words
        padded = pad_sequence([scores[row] for row in rows], batch_first=True)  # (B,N,C)
        lengths = [len(scores[row]) for row in rows]
        log_probs = padded.log_softmax(-1)
        if learned is not None:
            sums = forward_sums(padded, learned.start, learned.transitions)
            log_probs = log_marginals(padded, sums, torch.tensor(lengths), learned)
        best = log_probs.argmax(-1).tolist() if chain is None else best_tags(padded, lengths, chain)
        tags = pad_sequence([torch.tensor(row[:length]) for row, length in zip(best, lengths)], batch_first=True)
        given = log_probs.gather(2, tags.unsqueeze(2)).squeeze(2)  # of independent tags
        if learned is not None:
            given = tag_log_probs(sums, torch.tensor(lengths), tags, learned)
        for number, (row, length) in enumerate(zip(rows, lengths)):
            parts = (part[number, :length].numpy() for part in (log_probs, given))
            found[row] = TagSequence(best[number][:length], *parts)
    return found


def _scheme(head: HeadConfig, stated: object, constrained: bool | None) -> str | None:
    """The scheme that tags must obey; None: none.

    Args:
        stated: the scheme in `config.json`.
        constrained: as in `tag`.

    Raises UsageError: `constrained` for plain tags.
    """
    if constrained is False or (constrained is None and stated not in SCHEMES):
        return None
    if stated in SCHEMES:
        return str(stated)
    scheme = scheme_of_labels(head.labels)
    if scheme is None:
        raise UsageError(f"`constrained` has no effect on plain tags: the labels are {', '.join(head.labels[:5])} ...")
    return scheme


def word_tags(model: TaskModel, sentences: Sequence[Sequence[str]]) -> list[NDArray[np.float64]]:
    """The probabilities (N,C) of all tags of each of the N words of each sentence; long sentences are read in windows.
    Raises CapabilityError: the network has no tagging head.
    """
    scores = word_scores(model, sentences)
    found = tag_sequences(scores, None, _learned_chain(model, head_of(model, KIND)))
    return [np.exp(one.log_probs) for one in found]


@torch.inference_mode()
def word_scores(model: TaskModel, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
    """The outputs (N,C) of the tagging head, in float64, for each of the N words of each sentence; as `word_tags`."""
    network, tokenizer, longest = model.reader(), tokenizer_of(model), model.trained_length
    config = network.config
    head, limit = network_head(config, KIND, NO_TAGS), max_input_tokens(config, longest)
    if limit is not None:
        longest = limit if longest is None else min(longest, limit)
    around = tokenizer.template(model.config.get("template"))
    pieces = encode_sentences(tokenizer, config, sentences)
    room = room_for(longest, around)
    windows = [window for number, sentence in enumerate(pieces) for window in windows_of(number, sentence, room)]
    store = windows_as_store(pieces, windows, around, config)
    device = next(network.parameters()).device
    scores = [torch.zeros(len(sentence), len(head.labels), dtype=torch.float64) for sentence in sentences]

    def read(rows: list[int]) -> torch.Tensor:
        inputs = {name: value.to(device) for name, value in inputs_of(store, rows, config, head).items()}
        token_mask = token_mask_of(inputs)
        return network.read(head.name, network(**inputs, project=False), token_mask)  # (B,L,C)

    for row, logits in run_in_batches(store["ids"].lengths.tolist(), _TOKENS, read, network):
        words = store["words"][row]
        positions = np.flatnonzero(words >= 0)
        at_words = logits[torch.from_numpy(positions).to(device)].double().cpu()
        scores[windows[row].sentence][torch.from_numpy(words[positions])] = at_words
    return scores


def windows_of(number: int, sentence: Pieces, room: int | None) -> Iterator[Window]:
    """Windows of at most `room` ids over a sentence, half of each over the one before it.

    Each begins at a word. Each word is in exactly one of them, the one where it has most ids on its shorter side; an
    end of the sentence counts as no shorter side. Of a word longer than a window the beginning is read.
    """
    starts, total = sentence.starts, len(sentence.ids)
    if not starts:
        return
    if room is None or total <= room:
        yield Window(number, 0, total, 0, len(starts))
        return
    # the first id of each window: a word start, half a window behind the one before it or the nearest before that
    begins = [0]
    while begins[-1] + room < total:
        half = bisect_right(starts, begins[-1] + room - room // 2) - 1
        if half < 0 or starts[half] <= begins[-1]:
            half = bisect_right(starts, begins[-1])  # a word longer than half a window
        if half == len(starts):
            break
        begins.append(starts[half])
    first = 0
    for begin, following in zip(begins, [*begins[1:], total]):
        end = min(begin + room, total)
        last = first
        # a word that stands in the following window too is tagged there where it is nearer to the end of this one
        while last < len(starts) and (starts[last] < following or starts[last] - following < end - starts[last]):
            last += 1
        if last > first:
            yield Window(number, begin, end, first, last)
        first = last


def call(model: TaskModel, split: Split, options: Mapping[str, object]) -> list[list[str]]:
    """The tags of each record of a split: the most probable legal sequence, where the model has a scheme."""
    refuse_options(options, "tags: a model that tags writes nothing")
    tag_numbers(split, head_of(model, KIND).labels)  # refuses tags that the model does not have
    return [[word.label for word in words] for words in tag_words(model, words=split["tokens"])]


def gold(split: Split) -> list[list[str]]:
    """The tags of a split."""
    return [list(tags) for tags in split["tags"]]
