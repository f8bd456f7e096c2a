"""The options of new heads: by the published models of a family, and by the numbers of the training data."""

import math
from typing import Any

import numpy as np

from atento.config.recipe import Recipe
from atento.config.sections.initial import ClassifierConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HEAD_KINDS, OF_TEXT
from atento.config.tables.tasks import TASKS, objectives_of
from atento.data.records.judged_documents import judged_documents
from atento.data.records.splits import Split
from atento.released import FAMILIES

_FAR = 10.0  # deviations


def head_options(network: NetworkConfig, kind: str, classifier: ClassifierConfig | None) -> dict[str, Any]:
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


def number_scale(recipe: Recipe, train: Split, *, out_bias: bool) -> dict[str, float]:
    """Return the center and the spread of a new head for numbers: the mean and the deviation of the training data.

    `pointwise` learns grades as probabilities, so its center is the log-odds of their mean; other objectives of ranking
    compare documents. A released class without a bias has no place for a center, so only numbers far from 0 have one.
    """
    if TASKS[recipe.task].grouped_by is None:
        mean, deviation = float(np.mean(train["score"])), float(np.std(train["score"])) or 1.0
        return {"center": mean if out_bias or abs(mean) > _FAR * deviation else 0.0, "spread": deviation}
    (objective,) = objectives_of(recipe.task, recipe.objective)[:1]
    grades = [grade for documents in judged_documents(train).values() for grade, _ in documents.values()]
    low, high = objective.score_range or (0.0, 1.0)
    share = (float(np.mean(grades)) - low) / (high - low)
    return (
        {"center": math.log(share / (1 - share))}
        if objective.kind == "pointwise" and 0 < share < 1 and out_bias
        else {}
    )
