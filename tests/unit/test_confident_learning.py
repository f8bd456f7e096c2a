"""Confident learning against a case by hand and cleanlab's ranking; the order of texts that are worth a label."""

import numpy as np
import pytest

from atento.metrics.confident_learning import confident_joint, label_issue_count, ranked_label_issues
from atento_cli.labels.next_labels import spread


def test_the_joint_by_hand() -> None:
    """Thresholds: (0.9 + 0.7 + 0.2) / 3 = 0.6 and (0.9 + 0.6 + 0.3) / 3 = 0.6; of label 2, which nobody has, none."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    first = np.array([0.9, 0.7, 0.2, 0.1, 0.35, 0.65])
    second = np.array([0.1, 0.25, 0.7, 0.9, 0.6, 0.3])
    probabilities = np.stack([first, second, 1 - first - second], axis=1)
    assert confident_joint(labels, probabilities).tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert label_issue_count(labels, probabilities) == 2  # a third of three records, twice
    assert ranked_label_issues(labels, probabilities).tolist() == [2, 5]
    assert ranked_label_issues(labels, probabilities, 4).tolist() == [2, 5, 4, 1]


# given labels, and the probabilities of the first two of three labels; drawn at random
GIVEN = [0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 2, 2, 2]
FIRST = [0.755, 0.718, 0.598, 0.965, 0.267, 0.48, 0.78, 0.903, 0.078, 0.184, 0.028, 0.194]
FIRST += [0.093, 0.01, 0.011, 0.116, 0.034, 0.058, 0.019, 0.06, 0.286, 0.091, 0.074, 0.06]
SECOND = [0.057, 0.213, 0.063, 0.029, 0.603, 0.398, 0.123, 0.062, 0.914, 0.614, 0.863, 0.631]
SECOND += [0.513, 0.915, 0.961, 0.871, 0.033, 0.476, 0.011, 0.463, 0.285, 0.436, 0.059, 0.076]


def test_joint_number_and_order_are_those_of_cleanlab_also_without_confidence() -> None:
    """Computed once by cleanlab 2.9.0: joint, number of issues (off-diagonal, calibrated), order by self-confidence."""
    labels, first, second = np.array(GIVEN), np.array(FIRST), np.array(SECOND)
    probabilities = np.stack([first, second, 1 - first - second], axis=1)
    assert confident_joint(labels, probabilities).tolist() == [[4, 0, 0], [1, 5, 0], [0, 0, 4]]
    assert label_issue_count(labels, probabilities) == 1
    order = [3, 9, 4, 20, 17, 21, 19, 5, 12, 2, 11, 1, 0, 6, 10, 23, 22, 15, 7, 8, 13, 16, 14, 18]
    assert ranked_label_issues(labels, probabilities, len(labels)).tolist() == order
    labels = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.5, 0.5], [0.45, 0.55], [0.9, 0.1], [0.5, 0.5]])
    # thresholds 0.475 and 0.3: row 0 is confident of both equally, the first counts; row 2 of the first alone
    assert confident_joint(labels, probabilities).tolist() == [[1, 1], [2, 0]]
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.95, 0.05], [0.1, 0.2]])
    probabilities[3] = [0.9, 0.1]
    assert label_issue_count(labels, probabilities) < 4


def test_points_far_apart_come_first_and_their_distance_is_that_of_outer_products() -> None:
    draw = np.random.default_rng(1)
    residuals, vectors = draw.normal(size=(30, 3)), draw.normal(size=(30, 5))
    products = np.einsum("nc,nd->ncd", residuals, vectors).reshape(30, -1)
    chosen = list(spread(residuals, vectors, 40))
    assert sorted(row for row, _ in chosen) == list(range(30))
    for number, (row, distance) in enumerate(chosen):
        before = np.concatenate([np.zeros((1, 15)), products[[row for row, _ in chosen[:number]]]])
        nearest = np.linalg.norm(products[:, None] - before[None], axis=2).min(axis=1)
        nearest[[row for row, _ in chosen[:number]]] = -1
        assert distance == pytest.approx(nearest.max()) and nearest[row] == pytest.approx(nearest.max())
