"""Scores of tagged sentences: entity F1, and accuracy by word."""

from collections.abc import Sequence
from itertools import chain
from operator import eq

from atento.base.errors import UsageError
from atento.metrics.label_counts import averaged, count_rows, f1_of, label_names, label_parts, summed
from atento.metrics.score import Score, warn_score
from atento.metrics.tag_schemes import Span, entities

Sentences = Sequence[Sequence[str]]


def entity_f1(
    predictions: Sentences, references: Sentences, *, scheme: str | None = None, average: str = "micro"
) -> Score:
    """F1 of entities, 0 to 1: an entity is right if its words and its type are; equal to `seqeval`.

    Args:
        predictions: the tags of each sentence, such as ["B-PER", "I-PER", "O"].
        references: the right tags.
        scheme: None reads any of IOB1, IOB2, BIOES and BILOU, and illegal sequences as the script conlleval does.
            "IOB1", "IOB2", "BIOES" or "BILOU" is strict: what is illegal in that scheme is no entity.
        average: over the types of entities: "micro", "macro" or "weighted".

    Returns:
        A Score whose parts are precision, recall, F1 and support of each type, and their averages, named as in
        `report`; `report_table` prints them.

    Raises:
        UsageError: unequal lengths, nothing to score, a tag of another form, or an option is not valid.
    """
    sides = _checked(predictions, references)
    ours, theirs = ([set(entities(tags, scheme)) for tags in side] for side in sides)  # (type, start, end)
    if not any(theirs):
        warn_score("no right tag is part of an entity, so that F1 is 0 whatever is predicted")
    kinds = sorted({span[0] for side in (ours, theirs) for spans in side for span in spans})
    matches = ((_kinds(a & b), _kinds(a), _kinds(b)) for a, b in zip(ours, theirs))
    rows = count_rows(matches, kinds)
    value, total = f1_of(average, kinds, None), summed(rows)
    precision, recall, _ = averaged(total, average)
    parts = {"precision": precision, "recall": recall} | label_parts(total, kinds, sides=True)
    settings = f"average:{average}|scheme:{scheme or 'any'}|mode:{'strict' if scheme else 'conlleval'}"
    return Score("entity F1", value(total), parts, settings, rows, value, digits=4)


def tag_accuracy(predictions: Sentences, references: Sentences, *, sides: bool = False) -> Score:
    """The share of words with the right tag, 0 to 1.

    Args:
        predictions: the tags of each sentence.
        references: the right tags.
        sides: add the parts of `report` for each tag, which `report_table` prints (the metric `tag-report`).

    Raises:
        UsageError: unequal lengths, or nothing to score.
    """
    sentences = [*zip(*_checked(predictions, references))]
    rows = [[float(sum(map(eq, *pair))), float(len(pair[0]))] for pair in sentences]
    total = summed(rows)
    if not total[1]:
        raise UsageError("there is nothing to score: the sentences have 0 words")  # sentences of no words
    parts = {"right": total[0], "words": total[1]}
    if sides:
        tags = sorted({tag for pair in sentences for tag in chain(*pair)})
        matches = (([tag for tag, right in zip(*pair) if tag == right], *pair) for pair in sentences)
        parts |= label_parts(summed(count_rows(matches, tags)), tags, sides=True)
    return Score("tag accuracy", _share(total), parts, "", rows, _share, digits=4)


def _kinds(spans: set[Span]) -> list[str]:
    return [kind for kind, _, _ in spans]


def _share(total: list[float]) -> float:
    return total[0] / total[1] if total[1] else 0.0


def _checked(predictions: Sentences, references: Sentences) -> tuple[list[list[str]], list[list[str]]]:
    """The names of the tags of both sides."""
    if not len(predictions):
        raise UsageError("there is nothing to score: got 0 sentences")
    if len(predictions) != len(references):
        raise UsageError(
            f"each sentence needs its reference: got {len(predictions)} predictions and {len(references)} references"
        )
    sides: tuple[list[list[str]], list[list[str]]] = ([], [])
    for number, sentence in enumerate(zip(predictions, references), 1):
        for names, tags in zip(sides, sentence):
            if isinstance(tags, str):
                raise UsageError(f"a sentence is a list of tags, which are strings: got {tags!r:.60}")
            names.append(label_names(tags))
        ours, theirs = (len(names[-1]) for names in sides)
        if ours != theirs:
            raise UsageError(f"sentence {number}: each word needs its tag: got {ours} tags for {theirs}")
    return sides
