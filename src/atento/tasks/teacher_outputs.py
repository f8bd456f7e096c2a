"""What a trained model says of training records, for another network to learn (distillation)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import CapabilityError, nearest
from atento.config.tables.head_kinds import HEAD_KINDS, HeadConfig
from atento.config.tables.tasks import verb_of
from atento.data.batches.batch import Batch, Distillation, Projected, Rows
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.sequence_to_sequence import HEAD
from atento.data.records.splits import Split
from atento.networks.frozen import frozen
from atento.networks.interface import Network, mask_of
from atento.tasks.classification import label_scores
from atento.tasks.regression import numbers_of
from atento.tasks.tagging import word_tags
from atento.tasks.task_model import TaskModel, for_head, tokenizer_of

Outputs = list[NDArray[np.float32]]  # of each record (T,C): one row, or one a word


def with_outputs(batch: Batch, rows: Rows, teaching: Distillation, outputs: Outputs | None) -> Batch:
    """Return a batch with what K teachers give for each label that is not -1, `extras["HEAD teacher"]` (N,K,C).

    `outputs` are those for the first labels (T,K,C) of each example, or more; None: `teaching` gives them.
    """
    ((head, labels),) = batch.labels.items()
    extras, name = dict(batch.extras), f"{head} teacher"
    if outputs is not None:
        counts = (labels >= 0).reshape(len(labels), -1).sum(dim=1).tolist()
        labelled = [outputs[row][:count] for row, count in zip(rows.tolist(), counts)]
        extras[name] = torch.from_numpy(np.concatenate(labelled))
    return replace(batch, extras=extras, settings={**batch.settings, name: teaching})


def teaching_head(model: TaskModel, head: HeadConfig, split: Split) -> HeadConfig:
    """The head of a model that teaches `head` of a network the records of a split.
    Raises CapabilityError: it has none, or of other labels; says where one stands.
    """
    for_head(model, None)  # refuses a model of several
    own = next((own for own in model.network.config.heads if own.role == head.role), None)
    if own is None:
        raise CapabilityError(f"it was trained for {model.config.get('task')} and has no {head.role} head")
    values = split.columns.get("tags" if "tags" in split.columns else "label", [])
    for names, others, which in ((head.labels, own.labels, "does not know"), (own.labels, head.labels, "also knows")):
        if (name := next((name for name in names if name not in others), None)) is not None:
            rows = (row for row, value in enumerate(values) if name == value or (value != str(value) and name in value))
            at = "" if (row := next(rows, None)) is None else f" of {split.where(row)}"
            must = "its labels must be those of the training data"
            raise CapabilityError(f"it {which} the label {name!r}{at}: {must}{nearest(name, list(own.labels))}")
    return own


def head_outputs(model: TaskModel, head: HeadConfig, records: Sequence[Any]) -> Outputs:
    """The scores of labels (of tags log p), or the number, that a head gives for each text, pair or list of words."""
    kind = HEAD_KINDS[head.kind]
    if kind == "number":
        return [np.array([[number]], dtype=np.float32) for number in numbers_of(model, records)]
    if kind in ("tag", "crf"):
        smallest = np.finfo(np.float32).tiny
        return [np.log(np.maximum(rows, smallest)).astype(np.float32) for rows in word_tags(model, records)]
    return list(label_scores(model, records)[1].numpy().astype(np.float32)[:, np.newaxis])


def check_writer(model: TaskModel, preparation: Preparation) -> None:
    """Raises CapabilityError: the model cannot teach tokens: it writes something else, has others, or reads fewer."""
    task, ours, theirs = preparation.recipe.task, preparation.network, model.network.config
    if verb_of(model.config.get("task")) != verb_of(task) or HEAD not in model.network.heads:
        trained = model.config.get("task")
        raise CapabilityError(f"it was trained for {trained}, and has no tokens to teach a recipe for {task}")
    tokens = [tokenizer.fingerprint for tokenizer in (preparation.tokenizer, tokenizer_of(model))]
    # scores are compared row by row of the vocabulary
    if tokens[0] != tokens[1] or ours.target_vocab_size != theirs.target_vocab_size:
        raise CapabilityError("it has another vocabulary; with `tokenizer.path`, the network can have its tokenizer")
    if theirs.position_limit is not None and theirs.position_limit < preparation.longest:
        given = f"`data.max_len` {preparation.recipe.data.max_len}"
        raise CapabilityError(f"it reads at most {theirs.position_limit} tokens: got {given}")


@torch.no_grad()
def token_vectors(networks: Sequence[Network], batch: Batch) -> list[Projected]:
    """What gives the scores of each network for the tokens of a batch that have a label."""
    projected = []
    for network in networks:
        with frozen(None):  # the stored vectors of a run are of its own network
            output = network(**batch.inputs, **mask_of(network, batch.mask), project=False)
        hidden = output.hidden[batch.labels[HEAD] >= 0]
        projected.append((network.vocabulary_head.read(hidden), network.projection, network.vocabulary_head.bias))
    return projected
