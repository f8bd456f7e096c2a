"""Confident learning: how many labels are wrong, by probabilities of models that did not learn from them, and which."""

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-6  # of probabilities, which are compared with their own mean
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def confident_joint(labels: Ints, probabilities: Floats) -> Ints:
    """Count records by their given label (rows) and by the label that they confidently have (columns), (C,C).

    A label is confident where its probability reaches the mean that it has over the records with this label; the most
    probable confident one counts (Northcutt, Jiang and Chuang 2021, Confident Learning: Estimating Uncertainty in
    Dataset Labels, equation 1).

    Args:
        labels: the number of the given label of each record (N,).
        probabilities: of each label (N,C), by models that did not learn from the record.
    """
    count = probabilities.shape[1]
    thresholds = [probabilities[own, label].mean() if (own := labels == label).any() else 2.0 for label in range(count)]
    confident = np.where(probabilities >= np.array(thresholds) - _ROUNDING, probabilities, -1.0)
    counted, joint = confident.max(axis=1) >= 0, np.zeros((count, count), dtype=np.int64)
    np.add.at(joint, (labels[counted], confident.argmax(axis=1)[counted]), 1)
    return joint


def label_issue_count(labels: Ints, probabilities: Floats) -> int:
    """How many labels are wrong by the confident joint, whose rows are scaled to the records of each given label."""
    joint = confident_joint(labels, probabilities)
    right, off = joint.diagonal(), joint.sum(axis=1) - joint.diagonal()
    shares = off / (off + right.clip(min=1))  # a label without a confident record is not wrong everywhere
    return round(float((np.bincount(labels, minlength=len(joint)) * shares).sum()))


def ranked_label_issues(labels: Ints, probabilities: Floats, count: int | None = None) -> Ints:
    """The numbers of the records whose given label is least probable, the least first: `count` of them; None: as many
    as are wrong, but none whose given label is the most probable one.
    """
    given = probabilities[np.arange(len(labels)), labels]
    order = np.argsort(given, kind="stable")[: label_issue_count(labels, probabilities) if count is None else count]
    return order if count is not None else order[given[order] < probabilities[order].max(axis=1)]
