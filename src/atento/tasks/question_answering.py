"""Extractive question answering: the span of a context that answers a question, with its probability."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import DataError, UsageError, counted
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig
from atento.data.batches.contexts import context_windows
from atento.data.objectives.labels import inputs_of
from atento.data.objectives.tags import ANSWER, answer_head
from atento.data.records.splits import Split
from atento.models.model_folder import AnsweringConfig, section_of
from atento.networks.interface import token_mask_of
from atento.tasks.decoding_setup import refuse_options
from atento.tasks.length_batching import run_in_batches
from atento.tasks.task_model import TaskModel, head_of, max_input_tokens, tokenizer_of
from atento.tasks.verb_calls import Texts, listed
from atento.text.encoded import whole_characters
from atento.text.kinds import check_texts
from atento.text.tokenizer import Tokenizer

_TOKENS = 4096  # of a batch


@dataclass(frozen=True)
class Answer:
    """A span of a context, in characters: `text` is `context[start:end]`, empty where the question has no answer."""

    text: str
    start: int
    end: int
    probability: float


def span_scores(
    windows: Sequence[tuple[int, NDArray[np.float64]]], valid: NDArray[np.bool_], max_answer: int
) -> NDArray[np.float64]:
    """The score of each span of a context: the highest of its scores in the windows that hold it.

    Args:
        windows: the number of each window's first context token, and the logits of start and end of its tokens, (T,2).
        valid: (n,) whether an answer may begin or end with this token of the context.
        max_answer: maximum tokens of a span.

    Returns:
        (min(max_answer, n), n): row k, column i has the score of tokens i to i + k; -inf where no window holds them.
    """
    scores = np.full((min(max_answer, len(valid)), len(valid)), -np.inf)
    for first, logits in windows:
        size = len(logits)
        start, end = np.where(valid[first : first + size, None], logits, -np.inf).T  # (T,) each
        for further in range(min(len(scores), size)):
            row = scores[further, first : first + size - further]  # a view: the maximum is written into `scores`
            np.maximum(row, start[: size - further] + end[further:], out=row)
    return scores


def _best(
    context: str,
    offsets: NDArray[np.int64],
    scores: NDArray[np.float64],
    null: float,
    unanswerable: bool,
    n_best: int,
    null_threshold: float,
) -> list[Answer]:
    """The `n_best` answers, those of different characters, the best first; `null` is the score of "no answer"."""
    flat = scores.reshape(-1)
    no_span = not np.isfinite(flat).any()  # no span that an answer may be
    every = np.append(flat, null if unanswerable or no_span else -np.inf)  # one behind all spans
    highest = every.max()
    total = np.exp(every - highest).sum()
    ranked = np.argsort(-every, kind="stable")
    nothing = len(flat)  # its number
    if no_span or every[nothing] - flat.max() > null_threshold:
        ranked = np.concatenate([[nothing], ranked[ranked != nothing]])
    elif ranked[0] == nothing:
        ranked = np.concatenate([ranked[1:2], ranked[:1], ranked[2:]])  # the best span, then "no answer"
    spans: dict[tuple[int, int], float] = {}
    for number in ranked.tolist():
        if len(spans) == n_best or not np.isfinite(every[number]):
            break
        # row: how many tokens follow the first
        further, first = divmod(number, scores.shape[1]) if number < nothing else (0, 0)
        span = (0, 0)
        if number < nothing:
            span = whole_characters(context, (int(offsets[first, 0]), int(offsets[first + further, 1])))
        # several spans of tokens may have the same characters
        spans.setdefault(span, float(np.exp(every[number] - highest) / total))
    return [Answer(context[start:end], start, end, share) for (start, end), share in spans.items()]


class _Options(TypedDict, total=False):
    max_answer: int | None
    null_threshold: float


@overload
def answer(
    model: TaskModel, question: str, context: str, *, n_best: None = None, **options: Unpack[_Options]
) -> Answer: ...
@overload
def answer(
    model: TaskModel, question: str, context: str, *, n_best: int, **options: Unpack[_Options]
) -> list[Answer]: ...
@overload
def answer(
    model: TaskModel, question: Texts, context: Texts, *, n_best: None = None, **options: Unpack[_Options]
) -> list[Answer]: ...
@overload
def answer(
    model: TaskModel, question: Texts, context: Texts, *, n_best: int, **options: Unpack[_Options]
) -> list[list[Answer]]: ...


def answer(
    model: TaskModel,
    question: str | Texts,
    context: str | Texts,
    *,
    n_best: int | None = None,
    max_answer: int | None = None,
    null_threshold: float = 0.0,
) -> Any:
    """The answer to a question, a span of its context; or the answers to a list of questions, each in its own context
    (docs/notes.md#g3).

    A context longer than the model reads at once is read in windows that overlap. The probability of an answer is its
    share among all spans of its context and, where the model may give none, "no answer".

    Args:
        question: a question, or a list.
        context: its context, or a list.
        n_best: return a list of that many answers for each question, the best first; fewer where there are fewer.
        max_answer: maximum tokens of an answer; None: as the model was trained.
        null_threshold: the answer is empty where the score of "no answer" exceeds that of the best span by more than
            this. It has no effect on a model whose training data had an answer to every question.

    Raises:
        CapabilityError: the model has no answer head. UsageError: a question and a list of contexts, lists of unequal
            length, or an option out of range. DataError: a question leaves no room for its context, a context is too
            long, or a text has a NUL character.
    """
    single = isinstance(question, str)
    if single != isinstance(context, str):
        raise UsageError("give a question and its context, or a list of each")
    questions, contexts = listed(question), listed(context)
    number = 1 if n_best is None else n_best
    ranked = answers(model, questions, contexts, n_best=number, max_answer=max_answer, null_threshold=null_threshold)
    results: list[object] = [best if n_best is not None else best[0] for best in ranked]
    return results[0] if single else results


@torch.inference_mode()
def answers(
    model: TaskModel,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    n_best: int = 1,
    max_answer: int | None = None,
    null_threshold: float = 0.0,
    where: Callable[[int], str] = lambda number: f"question {number}",
) -> list[list[Answer]]:
    """The best answers of each question; arguments as in `answer`, and `where` names a question in messages.

    The score of a span is the sum of the logits of its first and of its last token. A span in several windows has the
    highest of its scores. "No answer" has the sum of both logits of the first token, the lowest of all windows. The
    probability is the softmax of these scores over all spans of at most `max_answer` tokens in all windows, and "no
    answer" where the model may give none.
    """
    head_of(model, ANSWER)  # refuses a model without it
    check_texts(questions)
    check_texts(contexts)
    if len(questions) != len(contexts):
        raise UsageError(f"as many questions as contexts: got {len(questions)} and {len(contexts)}")
    learned = section_of(AnsweringConfig, model.config, model.path or Path())
    max_answer = learned.max_answer if max_answer is None else max_answer
    for name, value in (("n_best", n_best), ("max_answer", max_answer)):
        if value < 1:
            raise UsageError(f"`{name}` must be at least 1: got {value}")
    if np.isnan(null_threshold):
        raise UsageError("`null_threshold` must be a number: got nan")
    network, tokenizer = model.reader(), tokenizer_of(model)
    limits = (model.trained_length, max_input_tokens(network.config, model.trained_length))
    longest = min((size for size in limits if size is not None), default=None)
    template = tokenizer.template(model.config.get("template"))
    windows = context_windows(questions, contexts, tokenizer, template, network.config, longest, learned.stride, where)
    head, device = answer_head(network.config), next(network.parameters()).device

    def read(rows: list[int]) -> NDArray[np.float64]:
        tensors = inputs_of(windows.store, rows, network.config, head)
        inputs = {name: value.to(device) for name, value in tensors.items()}
        return network.read(head.name, network(**inputs, project=False), token_mask_of(inputs)).double().cpu().numpy()

    # the logits of start and end of the context tokens of each window, (size,2), and the score of "no answer"
    logits: list[NDArray[np.float64]] = [np.empty((0, 2)) for _ in range(len(windows))]
    null = [0.0] * len(windows)
    for row, both in run_in_batches(windows.store["ids"].lengths.tolist(), _TOKENS, read, network):
        position, size = int(windows.position[row]), int(windows.size[row])
        logits[row] = both[position : position + size].copy()  # a view would keep the whole batch
        null[row] = float(both[0].sum())  # the first token stands for "no answer"
    ranked = []
    # windows of one context overlap
    for context, offsets, numbers in zip(contexts, windows.offsets, windows.of_records()):
        valid = offsets[:, 1] > offsets[:, 0]  # tokens without characters: no place to begin or end
        scores = span_scores([(int(windows.first[n]), logits[n]) for n in numbers], valid, max_answer)
        nothing = min(null[n] for n in numbers)
        ranked.append(_best(context, offsets, scores, nothing, learned.unanswerable, n_best, null_threshold))
    return ranked


def readable_questions(
    split: Split, tokenizer: Tokenizer, template: str | None, network: NetworkConfig, longest: int | None, stride: int
) -> tuple[Split, str]:
    """Return a split without the questions that leave no room for their context, and a warning that counts them.
    Raises DataError: none is left.
    """
    rows: list[int] = []
    first, special_tokens = "", tokenizer.template(template)
    for row, (question, context) in enumerate(zip(split["question"], split["context"])):
        where = [split.where(row)].__getitem__  # a name for messages about this one alone
        try:
            context_windows([question], [context], tokenizer, special_tokens, network, longest, stride, where)
            rows.append(row)
        except DataError as error:
            first = first or str(error)
    if len(rows) == len(split):
        return split, ""
    if not rows:
        raise DataError(first)
    skipped = f"{len(split) - len(rows)} of {counted(len(split), 'question')} skipped; the first: {first}"
    return replace(split.taken(rows), fingerprint=split.fingerprint), skipped  # what is trained on is named by all


def learned_settings(recipe: Recipe, split: Split) -> dict[str, object]:
    """What `config.json` says of the training of a model that answers: how to cut contexts, and what answers are."""
    unanswerable = not all(split["answers"])
    return {"stride": recipe.data.stride, "max_answer": recipe.data.max_answer, "unanswerable": unanswerable}


def call(model: TaskModel, split: Split, options: Mapping[str, object]) -> list[str]:
    """The best answer to each question of a split."""
    refuse_options(options, "answers: they are spans of the context")
    return [best[0].text for best in answers(model, split["question"], split["context"], where=split.where)]


def gold(split: Split) -> list[tuple[str, ...]]:
    """The texts of the right answers to each question; none where it has no answer."""
    return [tuple(span.text for span in right) for right in split["answers"]]
