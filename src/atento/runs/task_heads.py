"""The heads of a network for its tasks, by the labels of the training data."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atento.base.errors import RecipeError, UsageError
from atento.config.reading.task_list import task_named
from atento.config.recipe import Recipe
from atento.config.sections.initial import ClassifierConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HEAD_KINDS, OF_TEXT, HeadConfig, new_head
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.tasks import TASKS, objectives_of
from atento.data.records.splits import Split, qrels_of
from atento.metrics.tag_schemes import repaired, scheme_of
from atento.released import FAMILIES
from atento.runs.data_checks import check_labels

_FAR = 10.0  # deviations


def with_heads(network: NetworkConfig, tasks: Sequence[tuple[Recipe, Split]]) -> NetworkConfig:
    """Add the heads of tasks, for their training data, and those that their objectives need; of several, one of each.
    Raises as `with_task_heads` and `with_objective_heads`.
    """
    made = []
    for recipe, train in tasks:
        own = tuple(head for head in network.heads if recipe.head in ("", head.name))
        with task_named(recipe.head):
            made.append(with_objective_heads(with_task_heads(replace(network, heads=own), recipe, train), recipe))
    if len(made) == 1:
        return made[0]
    heads = tuple(replace(one.heads[0], name=recipe.head) for one, (recipe, _) in zip(made, tasks))
    return replace(made[0], heads=heads, pooler=any(one.pooler for one in made))


def with_task_heads(network: NetworkConfig, recipe: Recipe, train: Split) -> NetworkConfig:
    """Add the heads of the task to a network, for the labels of the training data in alphabetical order.

    A head of the recipe that has labels is unchanged; one for tags without labels takes the place of the initial
    model's. A head of the initial model is kept if it has the labels of the training data; otherwise it gets new
    labels, and `atento.models.initial_model` gives it new weights. Heads that no objective of the recipe trains are
    left out, and so is a pooler that no head reads.
    Raises DataError: the labels of the training data teach nothing. RecipeError: a crf head beside a classifier or
    label smoothing.
    """
    head_kinds = TASKS[recipe.task].heads
    if not TASKS[recipe.task].vectors:
        network = replace(network, projections=())
    if not head_kinds and not TASKS[recipe.task].vectors:
        return network
    trained = {kind for one in objectives_of(recipe.task, recipe.objective) for kind in OBJECTIVES[one.kind].heads}
    candidates = recipe.network.heads if recipe.init is not None else network.heads
    classifier = None if recipe.init is None else recipe.init.classifier
    heads = [head for head in candidates if head.kind in trained or head.role in head_kinds]
    for kind in head_kinds:
        own = next((head for head in heads if head.role == kind), None)
        if own is not None and (own.labels or HEAD_KINDS[kind] != "tag"):
            continue
        heads = [head for head in heads if head is not own]  # one without labels says how tags are given
        before = next((head for head in network.heads if head.role == kind and head is not own), None)
        if HEAD_KINDS[kind] == "span":  # it has no labels
            options = _head_options(network, kind, classifier) | {"dropout": 0.0}
            heads.append(before or HeadConfig("answer", **options))
            continue
        if classifier is not None:  # a linear head on a pooled vector, whatever the model had
            before = None
        labels, shown = labels_by_record(recipe, train), own or before
        if shown is not None and shown.kind == "crf":
            labels = repaired(labels, scheme_of(labels))
        names = tuple(sorted(set().union(*labels)))
        known = before is not None and set(names) <= set(before.labels)
        if HEAD_KINDS[kind] != "number" and not (known and names):
            check_labels(names, labels, sets=HEAD_KINDS[kind] == "set")
        if before is None or not known:
            options = _head_options(network, kind, classifier)
            if HEAD_KINDS[kind] == "number":
                options |= _scale(recipe, train, out_bias=options.get("out_bias", True))
            before = replace(before or HeadConfig(kind, names, **options), labels=names)
        if own is not None:
            plain = own == HeadConfig(own.kind, name=own.name)  # nothing but its kind and name is written
            named = before.name if own.name == own.role else own.name
            before = replace(before, kind=own.kind, name=named) if plain else replace(own, labels=before.labels)
        heads.append(before)
    crf = any(head.kind == "crf" for head in heads)
    if crf and classifier is not None:
        raise RecipeError("`init.classifier` fits a linear head at once, and a crf head is trained by steps: got both")
    if crf and recipe.training.label_smoothing:
        raise RecipeError(
            "`training.label_smoothing` must be 0 for a crf head, whose sequences of tags may be illegal: got "
            f"{recipe.training.label_smoothing:g}"
        )
    if recipe.data.windows == "attention":
        heads = [replace(head, window_query=HEAD_KINDS[head.kind] in OF_TEXT) for head in heads]
    if not head_kinds:
        return replace(network, heads=tuple(heads))
    pooled = any(HEAD_KINDS[head.kind] in OF_TEXT for head in heads)
    usual = network.family in FAMILIES and FAMILIES[network.family].pooler
    pooler = (network.pooler or usual) if pooled and classifier is None else False
    return replace(network, heads=tuple(heads), pooler=pooler)


def training_labels(recipe: Recipe, train: Split) -> set[str]:
    """Return the labels of the training data, of texts or of words."""
    return set().union(*labels_by_record(recipe, train))


def labels_by_record(recipe: Recipe, split: Split) -> list[tuple[str, ...]]:
    """Return the labels of each record, of its text or of its words; none where records have no labels."""
    for field in TASKS[recipe.task].fields:
        if field.kind in ("class", "classes", "tags"):
            return [(value,) if field.kind == "class" else value for value in split[field.name]]
    return []


def _head_options(network: NetworkConfig, kind: str, classifier: ClassifierConfig | None) -> dict[str, Any]:
    """Return the options of a new head of that kind: those of the published models of the network's family.

    That of a linear classifier has no dropout; of a text it reads a pooled vector.
    """
    if classifier is not None:
        return {"pooling": None if HEAD_KINDS[kind] == "tag" else classifier.pooling, "dropout": 0.0}
    own = FAMILIES[network.family].new_head(HEAD_KINDS[kind], network) if network.family in FAMILIES else None
    if own is not None:
        return own
    if HEAD_KINDS[kind] in OF_TEXT and network.architecture == "decoder":  # as in GPT's paper and the released classes
        return {"out_bias": False, "dropout": network.dropout}
    return {"dropout": network.dropout}


def _scale(recipe: Recipe, train: Split, *, out_bias: bool) -> dict[str, float]:
    """Return the center and the spread of a new head for numbers: the mean and the deviation of the training data.

    `pointwise` learns grades as probabilities, so its center is the log-odds of their mean; other objectives of ranking
    compare documents. A released class without a bias has no place for a center, so only numbers far from 0 have one.
    """
    if TASKS[recipe.task].grouped_by is None:
        mean, deviation = float(np.mean(train["score"])), float(np.std(train["score"])) or 1.0
        return {"center": mean if out_bias or abs(mean) > _FAR * deviation else 0.0, "spread": deviation}
    (objective,) = objectives_of(recipe.task, recipe.objective)[:1]
    grades = [grade for documents in qrels_of(train).values() for grade, _ in documents.values()]
    low, high = objective.score_range or (0.0, 1.0)
    share = (float(np.mean(grades)) - low) / (high - low)
    centred = objective.kind == "pointwise" and 0 < share < 1 and out_bias
    return {"center": math.log(share / (1 - share))} if centred else {}


def with_objective_heads(network: NetworkConfig, recipe: Recipe) -> NetworkConfig:
    """Add the heads that the objectives of the recipe need, if the network lacks them.
    Raises UsageError: the network cannot learn an objective.
    """
    heads = list(network.heads)
    for objective in objectives_of(recipe.task, recipe.objective):
        spec = OBJECTIVES[objective.kind]
        if network.architecture not in spec.architectures:
            raise UsageError(
                f"{model_of(recipe)} is of architecture {network.architecture!r}, and objective {objective.kind} needs "
                f"{' or '.join(spec.architectures)}, which {spec.why}"
            )
        if network.architecture == "encoder":
            present = {head.kind for head in heads}
            heads += [new_head(kind) for kind in spec.heads if kind not in present]
    return replace(network, heads=tuple(heads))


def model_of(recipe: Recipe) -> str:
    """What a message calls the network: the initial model, or the recipe."""
    return recipe.name if recipe.init is None else recipe.init.model
