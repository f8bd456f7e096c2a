"""The span of a context that answers a question, as the positions of its first and its last token.

ids "[CLS] quem pulou ? [SEP] o gato pulou [SEP]"   label 5 6, "o gato" (docs/notes.md#g3)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import CapabilityError, DataError, counted
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.contexts import ContextWindows, context_windows
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.labels import network_head, rounded_inputs
from atento.data.objectives.preparation import Preparation
from atento.data.records.values import Span

KIND = "answer"  # of the head's configuration
NO_ANSWER = (0, 0)  # the first token, [CLS], twice
NOT_LEARNED = (-1, -1)  # the label of a window that is not learned from
Answers = Sequence[tuple[int, int] | None]  # of each record: the first and the last token of its answer, if it has one


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
    head = network_head(network, KIND, ", so it answers no questions")
    if head.side == "decoder":
        raise CapabilityError(f"an {KIND} head must stand on the encoder, which reads the context: got `side: decoder`")
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
    _leave_out(preparation, windows, answers, labels)
    _warn(preparation, windows, answers, labels)
    windows.store.columns["span"] = Ragged([list(span) for span in labels])
    store = windows.store if preparation.held_out else _learned(windows.store)
    # as in the published training script: else long windows would count more than short ones
    return preparation.planned(store, Spans(network, head), config.weight, equal_examples=True)


def _leave_out(
    preparation: Preparation, windows: ContextWindows, answers: Answers, labels: list[tuple[int, int]]
) -> None:
    """Take the labels from the windows of questions whose answer has no token, in place, and count them in a warning.
    Raises DataError: there is such a question, and `data.skip_bad` is false.
    """
    split = preparation.split
    bad = [record for record, accepted in enumerate(split["answers"]) if accepted and answers[record] is None]
    if not bad:
        return
    message = f"{split.where(bad[0])}: the tokenizer has no token for the answer {split['answers'][bad[0]][0].text!r}"
    if not preparation.recipe.data.skip_bad:
        raise DataError(message)
    preparation.report(f"warning: {counted(len(bad), 'question')} left out, first {message}")
    numbers = windows.of_records()
    for window in (window for record in bad for window in numbers[record]):
        labels[window] = NOT_LEARNED


def _learned(store: MemoryStore) -> MemoryStore:
    """Return the windows that have a label."""
    rows = [row for row in range(len(store)) if store["span"][row][0] >= 0]  # not (-1, -1)
    if len(rows) == len(store):
        return store
    columns = store.columns.items()
    return MemoryStore({name: Ragged.of_arrays([column[row] for row in rows]) for name, column in columns})


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
