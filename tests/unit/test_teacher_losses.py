"""Losses against teachers: each as its equation, term by term, and as plain PyTorch has it."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.data.batches.batch import Batch, Draw, Teaching
from atento.data.batches.store import MemoryStore, Ragged
from atento.data.batches.taught import Taught
from atento.training.teacher_losses import soft_classes, soft_numbers, soft_sets, with_teachers


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(values: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_classes_are_compared_by_the_divergence_times_the_square_of_the_temperature(temperature: float) -> None:
    """By sums of logarithms; the gradient is T (p - q), as Hinton et al. have it."""
    scores, teachers = drawn(3, 4, seed=1), drawn(3, 2, 4, seed=2)
    total, gradient = 0.0, []
    for row, of_row in zip(scores.tolist(), teachers.tolist()):
        p, (one, other) = softmax(row, temperature), (softmax(each, temperature) for each in of_row)
        q = [(a + b) / 2 for a, b in zip(one, other)]  # the mean of probabilities, not of scores
        total += temperature**2 * sum(b * math.log(b / a) for a, b in zip(p, q))
        gradient.append([temperature * (a - b) for a, b in zip(p, q)])
    traced = scores.clone().requires_grad_()
    loss = soft_classes(traced, teachers, temperature)
    assert float(loss.detach()) == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(loss, traced)[0], torch.tensor(gradient, dtype=torch.float64))
    alone = torch.nn.KLDivLoss(reduction="sum")(
        F.log_softmax(scores / temperature, -1), F.softmax(teachers[:, 0] / temperature, -1)
    )
    assert float(soft_classes(scores, teachers[:, :1], temperature)) == pytest.approx(float(alone) * temperature**2)
    logarithms = torch.log_softmax(teachers, dim=-1)  # probabilities will do
    assert float(soft_classes(scores, logarithms, temperature)) == pytest.approx(total, rel=1e-12)


def test_sets_are_compared_class_by_class() -> None:
    scores, teachers = drawn(3, 4, seed=3), drawn(3, 2, 4, seed=4)
    total = 0.0
    for row, of_row in zip(scores.tolist(), teachers.tolist()):
        for score, *by_teacher in zip(row, *of_row):
            p, (one, other) = 1 / (1 + math.exp(-score / 3)), (1 / (1 + math.exp(-each / 3)) for each in by_teacher)
            q = (one + other) / 2
            total += 9 * (q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))) / 4
    assert float(soft_sets(scores, teachers, 3.0)) == pytest.approx(total, rel=1e-10)
    assert float(soft_sets(scores, scores.unsqueeze(1), 3.0)) == pytest.approx(0, abs=1e-12)


def test_numbers_are_compared_with_the_mean_of_the_teachers() -> None:
    numbers, teachers = torch.tensor([[1.0, 2.0]]), torch.tensor([[[2.0, 2.0], [4.0, 0.0]]])
    assert float(soft_numbers(numbers, teachers, 7.0)) == (4 + 1) / 2


def test_the_weight_shares_the_loss_between_gold_and_teachers() -> None:
    scores, teachers, gold = drawn(2, 3, seed=5), drawn(2, 1, 3, seed=6), torch.tensor(5.0)
    empty = Batch({}, {"class": torch.zeros(2)})
    assert with_teachers(gold, soft_classes, scores, empty, "class") is gold
    settings, extras = {"class teacher": Teaching(0.25, 2.0)}, {"class teacher": teachers}
    taught = Batch({}, {"class": torch.zeros(2)}, settings=settings, extras=extras)
    expected = 0.75 * 5 + 0.25 * float(soft_classes(scores, teachers, 2.0))
    assert float(with_teachers(gold, soft_classes, scores, taught, "class")) == pytest.approx(expected)


@dataclass(frozen=True)
class Words:
    """An objective of one label a word; -1 where there is no word."""

    def sizes(self, store: MemoryStore) -> object:
        return store["ids"].lengths

    def lengths(self, store: MemoryStore) -> object:
        return store["ids"].lengths, store["ids"].lengths

    def batch(self, store: MemoryStore, rows: object, draw: Draw) -> Batch:
        labels = store["ids"].padded(np.asarray(rows), -1)
        return Batch({"ids": labels.clamp(min=0)}, {"tag": labels})


def test_outputs_stand_beside_the_labels_that_are_real() -> None:
    """Row by row in the order of the labels; words that were cut away have no label, and their outputs are left out."""
    store = MemoryStore({"ids": Ragged([[1, -1, 2], [3], [-1, 4]])})
    outputs = [np.full((words, 2, 5), row, dtype=np.float32) for row, words in enumerate((2, 3, 1))]
    outputs[1][0] = 7
    batch = Taught(Words(), Teaching(0.5, 2.0), outputs).batch(store, np.array([2, 0, 1]), Draw(1, 0))  # type: ignore[arg-type]
    beside = batch.extras["tag teacher"]
    assert beside.shape == (4, 2, 5) and beside[:, 0, 0].tolist() == [2, 0, 0, 7]
    assert batch.labels["tag"][batch.labels["tag"] >= 0].tolist() == [4, 1, 2, 3]
    assert batch.settings["tag teacher"] == Teaching(0.5, 2.0)
