"""Losses against teachers: each as its equation, term by term, and as plain PyTorch has it."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import Batch, Distillation
from atento.networks import Decoder, build_network
from atento.tasks.teacher_outputs import token_vectors, with_outputs
from atento.training.losses import Call, losses
from atento.training.teacher_losses import soft_classes, soft_numbers, soft_sets, with_teachers


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(values: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


def test_classes_and_tokens_are_compared_by_the_divergence_times_the_square_of_the_temperature() -> None:
    """By sums of logarithms; the gradient is T (p - q), as Hinton et al. have it."""
    for temperature in (1.0, 2.0, 5.0):
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
        student, teacher = F.log_softmax(scores / temperature, -1), F.softmax(teachers[:, 0] / temperature, -1)
        alone = torch.nn.KLDivLoss(reduction="sum")(student, teacher)
        assert float(soft_classes(scores, teachers[:, :1], temperature)) == pytest.approx(float(alone) * temperature**2)
        logarithms = torch.log_softmax(teachers, dim=-1)  # probabilities will do
        assert float(soft_classes(scores, logarithms, temperature)) == pytest.approx(total, rel=1e-12)
    # Loss and gradients of two teachers of other widths against the plain equation over all scores at once
    student, *teachers = language_model(1, 8), language_model(2, 12), language_model(3, 8)
    ids = torch.randint(5, 23, (20, 30), generator=torch.Generator().manual_seed(4))  # more rows than a block has
    labels = ids.roll(-1, dims=1).masked_fill(torch.rand(20, 30, generator=torch.Generator().manual_seed(5)) < 0.2, -1)
    teaching = Distillation(0.3, 2.0, partial(token_vectors, teachers))
    batch = Batch({"ids": ids}, {"vocabulary": labels}, settings={"vocabulary teacher": teaching})
    ((loss, nll),) = losses(student, batch, Call()).values()
    scores, *right = (network(ids).logits[labels >= 0] for network in (student, *teachers))
    mean = torch.stack([F.softmax(one.detach() / 2, dim=-1) for one in right]).mean(dim=0)
    gold = F.cross_entropy(scores, labels[labels >= 0], reduction="sum")
    expected = 0.7 * gold + 0.3 * 4 * F.kl_div(F.log_softmax(scores / 2, dim=-1), mean, reduction="sum")
    assert float(nll) == pytest.approx(float(gold.detach()), rel=1e-5)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    parameters = list(student.parameters())
    for ours, plain in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)
    none = Batch({"ids": ids}, {"vocabulary": torch.full_like(labels, -1)}, settings=batch.settings)
    assert float(losses(student, none, Call())["vocabulary"][0].detach()) == 0


def test_sets_numbers_and_shares_of_teachers_and_outputs_beside_the_labels_that_are_real() -> None:
    scores, teachers = drawn(3, 4, seed=3), drawn(3, 2, 4, seed=4)
    total = 0.0
    for row, of_row in zip(scores.tolist(), teachers.tolist()):
        for score, *by_teacher in zip(row, *of_row):
            p, (one, other) = 1 / (1 + math.exp(-score / 3)), (1 / (1 + math.exp(-each / 3)) for each in by_teacher)
            q = (one + other) / 2
            total += 9 * (q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))) / 4
    assert float(soft_sets(scores, teachers, 3.0)) == pytest.approx(total, rel=1e-10)
    assert float(soft_sets(scores, scores.unsqueeze(1), 3.0)) == pytest.approx(0, abs=1e-12)
    numbers, teachers = torch.tensor([[1.0, 2.0]]), torch.tensor([[[2.0, 2.0], [4.0, 0.0]]])
    assert float(soft_numbers(numbers, teachers, 7.0)) == (4 + 1) / 2
    scores, teachers, gold = drawn(2, 3, seed=5), drawn(2, 1, 3, seed=6), torch.tensor(5.0)
    assert with_teachers(gold, soft_classes, scores, Batch({}, {"class": torch.zeros(2)}), "class") is gold
    settings, extras = {"class teacher": Distillation(0.25, 2.0)}, {"class teacher": teachers}
    taught = Batch({}, {"class": torch.zeros(2)}, settings=settings, extras=extras)
    expected = 0.75 * 5 + 0.25 * float(soft_classes(scores, teachers, 2.0))
    assert float(with_teachers(gold, soft_classes, scores, taught, "class")) == pytest.approx(expected)
    # Row by row in the order of the labels; words that were cut away have no label, and their outputs are left out
    labels, teaching = torch.tensor([[-1, 4, -1], [1, -1, 2], [3, -1, -1]]), Distillation(0.5, 2.0)
    outputs = [np.full((words, 2, 5), row, dtype=np.float32) for row, words in enumerate((2, 3, 1))]
    outputs[1][0] = 7
    batch = with_outputs(Batch({}, {"tag": labels}), np.array([2, 0, 1]), teaching, outputs)
    beside = batch.extras["tag teacher"]
    assert beside.shape == (4, 2, 5) and beside[:, 0, 0].tolist() == [2, 0, 0, 7]
    assert batch.settings["tag teacher"] is teaching


def language_model(seed: int, d_model: int) -> Decoder:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"vocab_size": 23, "d_model": d_model, "d_ff": 2 * d_model, "n_heads": 2, "n_layers": 1}
    network = build_network(NetworkConfig("decoder", **sizes, dropout=0.0))
    assert isinstance(network, Decoder)
    return network
