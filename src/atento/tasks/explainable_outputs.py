"""The predictions about texts that can be explained: labels, tags, answers, similarities, as numbers of a network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.base.errors import CapabilityError, UsageError, nearest
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.contexts import context_windows
from atento.data.batches.special_tokens import prompt_length, special_tokens_of
from atento.data.objectives.labels import NUMBER
from atento.data.objectives.tags import ANSWER, encode_sentences, room_for
from atento.data.objectives.tags import KIND as TAGS
from atento.inspection.attributions import AttributedInput, Inputs
from atento.models.model_folder import AnsweringConfig, section_of
from atento.networks.interface import Network
from atento.tasks.classification import classifications, gives_label_sets, label_head
from atento.tasks.decoding_setup import embedding_for
from atento.tasks.explained_tokens import (
    TextTokens,
    TokenGroups,
    cut_to,
    head_inputs,
    head_reading,
    of_encoded,
    text_tokens,
)
from atento.tasks.question_answering import answer
from atento.tasks.regression import has_regression_head
from atento.tasks.tagging import tag, tag_words, windows_of
from atento.tasks.task_model import TaskModel, head_of, max_input_tokens, tokenizer_of
from atento.tasks.text_embedding import text_pooling
from atento.tasks.text_outputs import texts_of_model


@dataclass(frozen=True)
class Explained:
    """A prediction as the sum of numbers."""

    readings: list[
        AttributedInput
    ]  # the rows that the numbers are computed from; each gives all numbers, and they are added
    groups: TokenGroups  # the words of all rows
    target: str  # what is predicted
    quantity: str  # what the numbers are
    parts: list[str] = field(default_factory=list)  # the name of each number, where there are several


def _longest(model: TaskModel) -> int | None:
    """The most tokens that are read at a time."""
    limits = (model.trained_length, max_input_tokens(model.network.config, model.trained_length))
    return min((limit for limit in limits if limit is not None), default=None)


def _of_text(
    model: TaskModel, head: HeadConfig, texts: Sequence[str], number: Any
) -> tuple[AttributedInput, TokenGroups]:
    """What a head of the whole text says of a text, or of a pair."""
    template = tokenizer_of(model).template(model.config.get("template"))
    tokens = [text_tokens(model, text, side) for text, side in zip(texts, ("text", "second"))]
    first, *second = cut_to(model, template, _longest(model), *tokens)
    groups = TokenGroups()
    row = head_inputs(model, head, template, first, second[0] if second else None, groups)
    return head_reading(model, head, row, groups, number), groups


def explained_label(model: TaskModel, verb: str, texts: Sequence[str], target: object) -> Explained:
    """The log-odds of a label: the most probable one, or the target."""
    given: Any = [tuple(texts)] if len(texts) == 2 else list(texts)  # a pair is one item
    (ranked,) = classifications(model, given)
    head = label_head(model.network)
    name = ranked[0].name if target is None else target
    if name not in head.labels:
        raise UsageError(f"this model has no label {name!r}{nearest(str(name), list(head.labels))}")
    label, several = head.labels.index(str(name)), gives_label_sets(model.network)

    def number(logits: Tensor, _: None) -> Tensor:
        # of several labels a logit is the log-odds
        return logits[:, [label]] if several else log_odds(logits, torch.tensor([label], device=logits.device))[:, None]

    reading, groups = _of_text(model, head, texts, number)
    return Explained([reading], groups, str(name), "log-odds of the label")


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """log p / (1 - p) of labels (...), which is linear in their logits (...,C) however large p is."""
    index = labels.expand(logits.shape[:-1])[..., None]
    return logits.gather(-1, index)[..., 0] - logits.scatter(-1, index, float("-inf")).logsumexp(dim=-1)


def explained_similarity(model: TaskModel, verb: str, texts: Sequence[str], target: object) -> Explained:
    """The cosine of the vectors of two texts, or the number that a model with a regression head gives."""
    if target is not None:
        raise UsageError(f"a similarity is one number and has no `target`: got {target!r}")
    if has_regression_head(model):
        given: object = [tuple(texts)] if len(texts) == 2 else list(texts)
        texts_of_model(model, given)  # refuses texts for a model of pairs
        reading, groups = _of_text(model, head_of(model, NUMBER), texts, lambda numbers, _: numbers)
        return Explained([reading], groups, "similarity" if len(texts) == 2 else "number", "number of the regression")
    if len(texts) != 2:
        raise UsageError("a similarity is that of two texts: give a tuple of two")
    if model.words is not None:
        raise CapabilityError("the similarity of a model of words is not explained: it is that of the words alone")
    tokenizer, network = tokenizer_of(model), model.network
    config = embedding_for(model.config.get("embedding", {}), str(model.path), {})
    template = special_tokens_of(network.config, tokenizer, model.config.get("template"))
    pool = text_pooling(config.pooling, prompt_length(config, tokenizer, template))
    own_way = model.long_texts.windows is not None or model.long_texts.head_tail  # else texts are read whole
    longest = _longest(model) if own_way else max_input_tokens(network.config, model.trained_length)
    limit = min((n for n in (longest, config.max_len) if n is not None), default=None)
    groups, device = TokenGroups(), next(network.parameters()).device
    inputs, columns, reads = {}, {}, {}
    for text, side in zip(texts, ("text", "second")):
        (tokens,) = cut_to(model, template, limit, text_tokens(model, config.read(text), side))
        ids, _, columns[side] = groups.row(tokenizer, template, tokens)
        inputs[side] = torch.tensor([ids], device=device)
        every = torch.ones((1, len(ids)), dtype=torch.bool)
        weights = pool(torch.eye(len(ids))[None], every).reshape(-1, len(ids)).double().numpy()
        reads[side] = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0, keepdims=True) / 2

    def values(network: Network, given: Inputs) -> Tensor:
        vectors = []
        for side in ("text", "second"):
            hidden = network.features(given[side], layer=config.layer)
            every = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
            vectors.append(network.text_vectors(pool(hidden.float(), every)))
        return F.cosine_similarity(vectors[0], vectors[1], dim=-1).unsqueeze(1)

    return Explained([AttributedInput(inputs, columns, groups.special, values, reads)], groups, "similarity", "cosine")


def explained_tags(model: TaskModel, verb: str, texts: Sequence[str], target: object) -> Explained:
    """The log-odds of the tags of each entity, of each tagged word, or of one word."""
    if len(texts) != 1:
        raise UsageError("a model of tags reads one text: got two")
    head, config, tokenizer = head_of(model, TAGS), model.network.config, tokenizer_of(model)
    words = tag_words(model, texts[0])
    named = _tags(words, tag(model, texts[0]), target, head)
    # one sentence; `starts`: the piece that begins each word
    pieces = encode_sentences(tokenizer, config, [[word.text for word in words]])[0]
    template, groups = tokenizer.template(model.config.get("template")), TokenGroups()
    spelled = [word.text for word in words]
    index = list(range(len(words)))
    tokens = TextTokens(pieces.ids, index, spelled, "text")  # a word a piece: the words themselves are the groups
    if len(pieces.ids) != len(words) or pieces.starts != index:
        tokens = of_encoded(tokenizer.encode_words(spelled), "text")
    before = template.ends()[0]
    readings = []
    for window in windows_of(0, pieces, room_for(_longest(model), template)):
        # the words of each part that this window answers for
        inside = [[(w, n) for w, n in part if window.first <= w < window.last] for _, part in named]
        if not any(inside):
            continue
        # a word is read at its first piece
        columns = [[before + pieces.starts[w] - window.begin for w, _ in part] for part in inside]
        row = head_inputs(model, head, template, tokens.part(range(window.begin, window.end)), None, groups)
        member = [number for number, part in enumerate(inside) for _ in part]  # of each place that is read, its part
        labels = torch.tensor([n for part in inside for _, n in part])
        readings.append(head_reading(model, head, row, groups, _tag_sums(labels, member, len(named)), columns))
    target_name = named[0][0] if len(named) == 1 else f"{len(named)} tags"
    quantity = f"log-odds of the tags{' before transitions' if head.kind == 'crf' else ''}"
    return Explained(readings, groups, target_name, quantity, [name for name, _ in named])


def _tags(words: Sequence[Any], found: Sequence[Any], target: object, head: HeadConfig) -> list[tuple[str, list[Any]]]:
    """Each part that is explained: its name, and its words with the numbers of their tags."""
    number = {label: place for place, label in enumerate(head.labels)}
    if target is not None:
        at, label = target if isinstance(target, tuple) else (target, None)
        if isinstance(at, str):
            at = next((n for n, word in enumerate(words) if word.text == at), at)  # the first word of that spelling
        if not isinstance(at, int) or not 0 <= at < len(words):
            raise UsageError(
                f"`target` names a word, 0 to {len(words) - 1}, or a tuple of it and a tag: got {target!r}"
            )
        label = words[at].label if label is None else label
        if label not in number:
            raise UsageError(f"this model has no tag {label!r}{nearest(str(label), list(number))}")
        return [(f"{words[at].text}/{label}", [(at, number[label])])]
    parts = [
        (f"{one.text}/{one.label}", [n for n, word in enumerate(words) if one.start <= word.start < one.end])
        for one in found or words
    ]
    return [(name, [(n, number[words[n].label]) for n in members]) for name, members in parts]


def _tag_sums(labels: Tensor, member: Sequence[int], count: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The function of logits (B,L,C) and positions (B,P) -> the sums (B,O) of the log-odds of tags."""

    def number(logits: Tensor, positions: Tensor) -> Tensor:
        rows = torch.arange(len(logits), device=logits.device)[:, None]
        return summed(log_odds(logits[rows, positions], labels.to(logits.device)), member, count)  # (B,P) -> (B,O)

    return number


def summed(numbers: Tensor, member: Sequence[int], count: int) -> Tensor:
    """Numbers (B,P), each a member of one of `count` sums -> the sums (B,O)."""
    sums = numbers.new_zeros(count, len(member))
    sums[list(member), range(len(member))] = 1.0
    return numbers @ sums.T


def explained_answer(model: TaskModel, verb: str, texts: Sequence[str], target: object) -> Explained:
    """The score of the start of an answer plus that of its end, in the window of the context where it is highest."""
    if len(texts) != 2:
        raise UsageError("give a tuple of a question and its context")
    question, context = texts
    head = head_of(model, ANSWER)
    best = answer(model, question, context)
    start, end = best.start, best.end
    if target is not None:
        start = context.find(str(target))
        end = start + len(str(target))
        if start < 0 or not str(target):
            raise UsageError(f"`target` must be a part of the context: got {target!r}")
    tokenizer, config = tokenizer_of(model), model.network.config
    template = tokenizer.template(model.config.get("template"))
    stride = section_of(AnsweringConfig, model.config, model.path or Path()).stride
    windows = context_windows(
        [question], [context], tokenizer, template, config, _longest(model), stride, lambda _: "the question"
    )
    offsets = windows.offsets[0]
    # the tokens of the answer; None: no answer
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end)) if end > start else None
    if inside is not None and not len(inside):
        raise UsageError(f"no token of the context is in {context[start:end]!r}")
    asked, read = text_tokens(model, question, "question"), text_tokens(model, context, "context")
    candidates = []
    for window in range(len(windows)):
        first, size, position = (int(column[window]) for column in (windows.first, windows.size, windows.position))
        # "no answer" is read twice at the first token
        ends = (0, 0) if inside is None else tuple(position + int(inside[n]) - first for n in (0, -1))
        # the window has not all of the answer
        if inside is not None and not (first <= inside[0] and inside[-1] < first + size):
            continue
        groups = TokenGroups()
        row = head_inputs(model, head, template, asked, read.part(range(first, first + size)), groups)
        reading = head_reading(model, head, row, groups, _ends, [ends])
        with torch.no_grad():
            candidates.append((float(reading.values(model.network, reading.inputs)), reading, groups))
    if not candidates:
        raise UsageError("the answer is longer than the model reads at a time: give a shorter one as `target`")
    # "no answer" holds for a text where every window says so
    chosen = (min if inside is None else max)(candidates, key=lambda candidate: candidate[0])
    name = context[start:end] or "(no answer)"
    return Explained([chosen[1]], chosen[2], name, "score of the start plus that of the end")


def _ends(logits: Tensor, positions: Tensor) -> Tensor:
    """The logits (B,L,2) of a start and an end, at positions (B,2), added: (B,1)."""
    rows = torch.arange(len(logits), device=logits.device)
    return (logits[rows, positions[:, 0], 0] + logits[rows, positions[:, 1], 1]).unsqueeze(1)
