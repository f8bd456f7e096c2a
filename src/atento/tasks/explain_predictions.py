"""Explanations of predictions: which words of a text, a pair, a question or a source a prediction comes from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np
import torch

from atento.config.tables.tasks import verb_of
from atento.config.tables.verbs import EXPLANATIONS
from atento.data.batches.whole_words import characters_of_words
from atento.errors import CapabilityError, UsageError, nearest
from atento.inspection.attributions import (
    Attribution,
    Reading,
    gradient_input,
    integrated_gradients,
    leave_out,
    rollout,
)
from atento.inspection.explanation import Explanation
from atento.networks import Encoder
from atento.tasks.explained_outputs import explained_mask, explained_output
from atento.tasks.explained_predictions import (
    Explained,
    explained_answer,
    explained_label,
    explained_similarity,
    explained_tags,
)
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.tasks.translation_languages import TranslationOptions
from atento.text.kinds import check_texts

EXPLAINED: dict[str, Callable[..., Explained]] = {
    "classify": explained_label,
    "tag": explained_tags,
    "answer": explained_answer,
    "similarity": explained_similarity,
    "translate": explained_output,
    "summarize": explained_output,
    "generate": explained_output,
    "fill": explained_mask,
}


@torch.inference_mode(False)
def explain(
    model: TaskModel,
    text: str | tuple[str, str],
    method: str = "integrated-gradients",
    target: str | int | tuple[int, str] | None = None,
    *,
    verb: str | None = None,
    steps: int | None = None,
    **options: Unpack[TranslationOptions],
) -> Explanation:
    """Explain a prediction: how much each word that the model reads adds to the number that it predicts.

    The number is the log-odds of a label or of the tags of entities; the log-probability of each word of an output, or
    of what fills each mask; the sum of the scores of the start and the end of an answer; the cosine of two texts, or
    the number of a regression.
    See docs/explanations.md.

    Args:
        text: a text, a source or a prompt; a tuple of two texts, or of a question and its context.
        method: integrated-gradients (Sundararajan et al. 2017), gradient-input (Shrikumar et al. 2016), rollout
            (Abnar & Zuidema 2020) or leave-out.
        target: another prediction than the model's own: a label; the number of a word, from 0, with its tag or without;
            an answer, which is part of the context; an output; a word for each mask.
        verb: what the model does, where it does several things: classify, tag, answer, similarity, translate,
            summarize, generate or fill. None: what it was trained for.
        steps: of integrated gradients; None: as many as keep the error below 1 % of the total, at most 512.
        options: of `translate` or `generate`, for the output that is explained.

    Raises:
        UsageError: no such method or target, or an empty text. CapabilityError: the model predicts nothing that can be
            explained, or the method does not fit its network.
    """
    if method not in EXPLANATIONS:
        raise UsageError(f"unknown method {method!r}{nearest(method, list(EXPLANATIONS))}")
    if steps is not None and (method != EXPLANATIONS[0] or not 1 <= steps <= 4096):
        raise UsageError(f"`steps`, 1 to 4096, are those of {EXPLANATIONS[0]}: got {steps} with {method}")
    texts = list(text) if isinstance(text, tuple | list) else [text]
    check_texts(texts)
    if len(texts) > 2 or not all(part.strip() for part in texts):
        raise UsageError(f"give a text to explain, or a tuple of two texts: got {text!r:.60}")
    verb = verb or _verb(model, len(texts))
    if verb not in EXPLAINED:
        raise UsageError(f"`verb` {verb!r} cannot be explained{nearest(verb, list(EXPLAINED))}")
    if model.words is not None and not model.network.config.heads:
        raise CapabilityError("a model of words alone has no prediction to explain: explain a model with a head")
    if options and EXPLAINED[verb] is not explained_output:
        raise UsageError(f"`{next(iter(options))}` has no effect: the model writes nothing")
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode is
        explained = EXPLAINED[verb](model, verb, texts, target, **options)
        attributions = [_attribution(model, reading, method, steps) for reading in explained.readings]
    return _explanation(model, explained, attributions, method, " | ".join(texts))


def _verb(model: TaskModel, count: int) -> str:
    """What a model does that can be explained, with that number of texts."""
    verb = str(verb_of(model.config.get("task")))
    if count == 2 and (verb == "fill" or verb not in EXPLAINED):
        return "similarity"  # of two vectors, which every encoder has
    if verb not in EXPLAINED:
        raise CapabilityError(
            f"this model does {model.config.get('task')}, which has no prediction to explain: give a tuple of two "
            "texts, whose similarity is explained"
        )
    return verb


def _mask_id(model: TaskModel) -> int | None:
    """The mask of an encoder that reads tokens, which takes the place of what is left out."""
    tokenizer = tokenizer_of(model)
    return tokenizer.mask_id if isinstance(model.network, Encoder) and "mask" in tokenizer.specials.roles else None


def _attribution(model: TaskModel, reading: Reading, method: str, steps: int | None) -> Attribution:
    if method == "integrated-gradients":
        config, mask_id = model.network.config, _mask_id(model)  # the mask is the baseline, else padding
        baseline = tokenizer_of(model).pad_id if mask_id is None else mask_id
        reads_characters = characters_of_words(config) is not None
        return integrated_gradients(model.network, reading, None if reads_characters else baseline, steps)
    if method == "leave-out":
        return leave_out(model.network, reading, _mask_id(model))
    return (gradient_input if method == "gradient-input" else rollout)(model.network, reading)


def _baseline(model: TaskModel, method: str) -> str:
    """What a method compares with, in words."""
    mask_id, characters = _mask_id(model), characters_of_words(model.network.config) is not None
    token = "zero" if characters else "padding token's" if mask_id is None else "mask token's"
    return {
        "integrated-gradients": f"the {token} vector in place of each word's, special tokens as they are",
        "gradient-input": "zero vectors in place of all tokens, by the slope alone",
        "leave-out": "the text without the word" if mask_id is None else "the mask token in place of the word",
        "rollout": "",
    }[method]


def _explanation(
    model: TaskModel, explained: Explained, attributions: Sequence[Attribution], method: str, title: str
) -> Explanation:
    """The explanation of numbers that one or several rows give."""
    groups, count = explained.groups, len(explained.groups.words)
    rows = [np.pad(one.scores, [(0, 0), (0, count - one.scores.shape[1])]) for one in attributions]
    scores = np.sum(rows, axis=0) + 0.0  # no -0.0
    totals = np.sum([one.totals for one in attributions], axis=0)
    values = np.sum([one.values for one in attributions], axis=0)
    whole = Explanation(
        groups.words,
        scores.sum(axis=0).tolist(),
        method,
        explained.target,
        float(totals.sum()),
        explained.quantity,
        float(values.sum()),
        _baseline(model, method),
        abs(float((scores.sum(axis=1) - totals).sum())),
        max(one.steps for one in attributions),
        groups.special,
        groups.sides,
        title=title,
        model=str(model.config.get("name", "")),
    )
    if method == "rollout":  # the shares of each number add up to 1, and so does their mean
        whole = replace(whole, scores=scores.mean(axis=0).tolist(), total=float(totals.mean()))
    parts = [
        replace(
            whole,
            scores=row.tolist(),
            target=name,
            total=float(total),
            value=float(value),
            error=abs(float(row.sum() - total)),
        )
        for name, row, total, value in zip(explained.parts, scores, totals, values)
    ]
    return replace(whole, parts=parts)
