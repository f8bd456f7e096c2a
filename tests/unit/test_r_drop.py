"""Losses beside the plain one: R-Drop's two passes, and teachers, by their equations, in training, and refusals."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.objective import OBJECTIVES
from atento.data.batches.batch import Batch, Distillation, Part
from atento.networks import Network, build_network
from atento.networks.vocabulary import cross_entropy, plain_cross_entropy
from atento.tasks.teacher_outputs import token_vectors, with_outputs
from atento.training.losses import Call, losses
from atento.training.step import Updater
from atento.training.teacher_losses import soft_classes, soft_numbers, soft_sets, with_teachers
from failing import fails
from test_loss import cut

ALPHA = 5.0


def passes(n: int, vocab_size: int, d: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Hidden vectors of two passes (2,n,d), a matrix and a bias, which need gradients, and targets."""
    g = torch.Generator().manual_seed(seed)
    shapes = (2, n, d), (vocab_size, d), (vocab_size,)
    made = [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    return [*made, torch.randint(vocab_size, (n,), generator=g)]


def found(function: Any, inputs: list[Tensor], smoothing: float) -> list[Tensor]:
    hidden, weight, bias, targets = inputs
    loss, nll = function(hidden, weight, targets, smoothing, bias, ALPHA)
    return [loss.detach().double(), nll.detach().double(), *torch.autograd.grad(3 * loss, [hidden, weight, bias])]


@settings(max_examples=30)
@given(
    *(st.integers(0, 20), st.integers(1, 12), st.integers(1, 25), st.integers(1, 25)),
    *(st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 1000)),
)
def test_chunks_equal_the_equation(n: int, vocab_size: int, rows: int, strip: int, smoothing: float, seed: int) -> None:
    """float64 1e-10, values and gradients against autograd of the plain twin, wherever blocks and strips end."""
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, rows, strip)
        got = found(cross_entropy, passes(n, vocab_size, seed=seed), smoothing)
    for one, other in zip(got, found(plain_cross_entropy, passes(n, vocab_size, seed=seed), smoothing)):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_the_loss_by_hand_by_finite_differences_and_of_equal_passes() -> None:
    """Two words, p = (3/4, 1/4), q = (1/2, 1/2), y = the first: KL(p || q) + KL(q || p) = (p1 - q1) log 3 = log(3) / 4.

    The paper's loss is -log p1 - log q1 + α / 2 times that; a half of it is returned."""
    for function in (cross_entropy, plain_cross_entropy):
        hidden = torch.tensor([[[1.0]], [[0.0]]], dtype=torch.float64)
        weight = torch.tensor([[3.0], [1.0]], dtype=torch.float64).log()
        loss, nll = function(hidden, weight, torch.tensor([0]), 0.0, None, ALPHA)
        assert float(2 * nll) == pytest.approx(float(-torch.tensor([0.75, 0.5]).log().sum()))
        assert float(2 * loss) == pytest.approx(float(2 * nll + ALPHA / 2 * torch.tensor(3.0).log() / 4))
    hidden, weight, bias, targets = passes(4, 5, 3)

    def loss(*inputs: Tensor) -> Tensor:
        return cross_entropy(inputs[0], inputs[1], targets, 0.1, inputs[2], ALPHA)[0]

    assert torch.autograd.gradcheck(loss, (hidden, weight, bias))
    hidden, weight, bias, targets = (each.detach() for each in passes(9, 11))
    expected = cross_entropy(hidden[0], weight, targets, 0.1, bias)
    got = cross_entropy(hidden[:1].repeat(2, 1, 1), weight, targets, 0.1, bias, ALPHA)
    torch.testing.assert_close(torch.stack(got), torch.stack(expected), rtol=0, atol=1e-10)


def test_bfloat16_stays_within_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 90, 7)
    inputs = passes(200, 50, dtype=torch.bfloat16)
    exact = [each.detach().double().requires_grad_() for each in inputs[:3]]
    got, expected = found(cross_entropy, inputs, 0.1), found(plain_cross_entropy, [*exact, inputs[3]], 0.1)
    assert {each.dtype for each in got[2:]} == {torch.bfloat16}
    for one, other in zip(got, expected):
        assert float((one.double() - other).norm() / other.norm()) < 0.01


IDS = torch.randint(5, 23, (4, 7), generator=torch.Generator().manual_seed(1))
TOKENS = torch.where(torch.arange(7) % 3 == 1, IDS, -1)
MASK = torch.arange(7) < torch.tensor([[7], [5], [4], [6]])
LABELS = torch.tensor([1, -1, 0, 2])
INPUTS = {"ids": IDS, "token_mask": MASK}


def both(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) + KL(q || p) of log-probabilities over the last dimension."""
    return (p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()


def by_token(logits: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    return _classes(logits[:, TOKENS >= 0], TOKENS[TOKENS >= 0], smoothing)


def by_text(logits: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    return _classes(logits[:, LABELS >= 0], LABELS[LABELS >= 0], smoothing)


def _classes(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    nats = [F.cross_entropy(one, labels, reduction="sum", label_smoothing=smoothing) for one in logits]
    p, q = logits.log_softmax(dim=-1)
    return nats[0] + nats[1], both(p, q)


def by_span(logits: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    nats = kl = torch.zeros(())
    for row in (0, 2, 3):
        for end, right in enumerate((LABELS[row], LABELS[row] + 1)):
            p, q = (one[row, MASK[row], end].log_softmax(dim=-1) for one in logits)
            nats, kl = nats - p[right] - q[right], kl + both(p, q)
    return nats / 2, kl / 2


def by_set(logits: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    chosen = logits[:, LABELS >= 0]
    nats = [F.binary_cross_entropy_with_logits(one, SETS[LABELS >= 0], reduction="sum") for one in chosen]
    p, q = torch.stack([F.logsigmoid(chosen), F.logsigmoid(-chosen)], dim=-1)
    return (nats[0] + nats[1]) / 3, both(p, q) / 3


SETS = torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
NAMES = ("a", "b", "c")
HEADS: dict[str, Any] = {
    "vocabulary": (HeadConfig("masked-language-model"), TOKENS, {}, by_token),
    "classification": (HeadConfig("classification", labels=NAMES), LABELS, {}, by_text),
    "multi-label": (HeadConfig("multi-label", labels=NAMES), LABELS, {"multi-label": SETS}, by_set),
    "answer": (HeadConfig("answer"), LABELS, {"end": torch.where(LABELS >= 0, LABELS + 1, -1)}, by_span),
}


def encoder_of(head: HeadConfig, n_layers: int) -> Network:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 23, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": n_layers}
    return build_network(NetworkConfig("encoder", **sizes, dropout=0.3, heads=(head,))).train()


def test_the_loss_of_a_head_is_that_of_two_passes_and_teachers_see_both() -> None:
    for name in HEADS:
        head, labels, extras, by_hand = HEADS[name]
        network = encoder_of(head, 2)
        random = Randomness(3, 1)
        logits = [network.read(name, network(**INPUTS, random=random, project=False), MASK, random)]
        logits.append(network.read(name, network(**INPUTS, random=random, project=False), MASK, random))
        nats, kl = by_hand(torch.stack(logits), 0.1)
        batch = Batch(INPUTS, {name: labels}, extras=extras)
        ((loss, nll),) = losses(network, batch, Call(Randomness(3, 1), 0.1, r_drop=ALPHA)).values()
        assert float(kl.detach()) > 0.01
        torch.testing.assert_close(loss.float(), (nats + ALPHA / 2 * kl) / 2, rtol=1e-4, atol=1e-5)
        weights = [parameter for parameter in network.parameters() if parameter.requires_grad]
        got = torch.autograd.grad(loss, weights, allow_unused=True)
        for one, other in zip(got, torch.autograd.grad((nats + ALPHA / 2 * kl) / 2, weights, allow_unused=True)):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-5)
        assert not nll.requires_grad
        torch.testing.assert_close(nll.float(), by_hand(torch.stack(logits), 0.0)[0].detach() / 2, rtol=1e-4, atol=1e-5)
    # Their share is the mean over passes; the rest is the loss with R-Drop
    network = encoder_of(HeadConfig("classification", labels=NAMES), 1)
    scores = torch.randn(3, 2, 3)

    def loss(weight: float, r_drop: float, use: int) -> Tensor:
        settings = {"classification teacher": Distillation(weight, 2.0)}
        batch = Batch(INPUTS, {"classification": LABELS}, extras={"classification teacher": scores}, settings=settings)
        ((total, _),) = losses(network, batch, Call(Randomness(3, 1, use=use), r_drop=r_drop)).values()
        return total.detach()

    random = Randomness(3, 1)
    losses(network, Batch(INPUTS, {"classification": LABELS}), Call(random))
    alone = [loss(1.0, 0.0, 0), loss(1.0, 0.0, random.use)]
    torch.testing.assert_close(loss(1.0, ALPHA, 0), (alone[0] + alone[1]) / 2)
    plain = losses(network, Batch(INPUTS, {"classification": LABELS}), Call(Randomness(3, 1), r_drop=ALPHA))
    expected = 0.7 * plain["classification"][0].detach() + 0.3 * (alone[0] + alone[1]) / 2
    torch.testing.assert_close(loss(0.3, ALPHA, 0), expected)


def test_an_update_of_several_parts_is_divided_by_all_targets_and_passes_come_to_agree() -> None:
    """Gradients are the sum of those of the parts, each with dropout of its number, by all targets."""
    for setting in ({}, {"activation_checkpointing": True}):
        network = language_model(1, 16, 0.2)
        config = TrainingConfig(clip=0.0, seed=3, r_drop=ALPHA, label_smoothing=0.1, **setting)
        parts = [
            Part(Batch({"ids": IDS}, {"vocabulary": TOKENS})),
            Part(Batch({"ids": IDS[:2]}, {"vocabulary": IDS[:2]})),
        ]
        total = torch.zeros((), dtype=torch.float64)
        network.train()
        for number, part in enumerate(parts):
            ((loss, _),) = losses(network, part.batch, Call(Randomness(3, 1, number), 0.1, r_drop=ALPHA)).values()
            total = total + loss
        targets = sum(part.batch.targets for part in parts)
        names = [name for name, _ in network.named_parameters()]
        expected = dict(zip(names, torch.autograd.grad(total / targets, list(network.parameters()))))
        updater = Updater(network, config, "float32")
        updater.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
        sums, _ = updater.update(parts, 1, 0.0)
        loss = sums["vocabulary"].loss
        assert loss == pytest.approx(float(total.detach())) and sums["vocabulary"].nll < loss
        for name, value in network.named_parameters():
            torch.testing.assert_close(value.grad, expected[name], rtol=1e-3, atol=1e-6)
    # After some updates, the divergence between two passes is a part of what it is without

    def divergence(alpha: float) -> float:
        network = language_model(1, 16, 0.3)
        batch = Batch({"ids": IDS}, {"vocabulary": F.pad(IDS[:, 1:], (0, 1), value=-1)})
        updater = Updater(network, TrainingConfig(warmup=0, r_drop=alpha, label_smoothing=0.0), "float32")
        for step in range(1, 41):
            updater.update([Part(batch)], step, 5e-3)
        with torch.no_grad():
            values = [losses(network, batch, Call(Randomness(7, 1), r_drop=r))["vocabulary"][0] for r in (1e-9, 4.0)]
        return float(values[1] - values[0])

    assert 0 < divergence(10.0) < 0.5 * divergence(0.0)


DATA = {"train": {"file": "train.tsv", "source": 0, "target": 1}}
FILES: dict[str, dict[str, Any]] = {
    "regression": {"train": {"file": "train.tsv", "text": 0, "score": 1}},
    "masked-language-modeling": {"train": {"file": "train.txt"}},
}


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    for task, objective, value, message in (
        ("translation", None, -1, "`training.r_drop` must be finite and not negative: got -1"),
        ("translation", None, float("inf"), "training.r_drop must be a finite number: got inf"),
        ("regression", None, 5, "compares probabilities, and is for the objectives .* got task regression with number"),
        ("masked-language-modeling", "replaced-token", 5, "got task .* with replaced-token"),
        ("masked-language-modeling", [{"kind": "masked"}, {"kind": "replaced-token"}], 5, "with replaced-token"),
    ):
        recipe = {"task": task, "data": FILES.get(task, DATA), "training": {"r_drop": value}}
        recipe |= {} if objective is None else {"objective": objective}
        fails(RecipeError, message, load_recipe, recipe)
    still: dict[str, Any] = {"task": "translation", "data": DATA, "network": {"dropout": 0}, "training": {"r_drop": 5}}
    fails(RecipeError, r"training\.r_drop` compares two passes .* got 5", load_recipe, still)
    for kept in ({"network": {"dropout": 0, "attention": {"dropout": 0.1}}}, {"init": "model"}, {"training": {}}):
        load_recipe(still | kept)
    refused = {"replaced-token", "bidirectional", "window", "numbers", "multiple-negatives", "cosine", "cosent"}
    refused |= {"simcse", "tsdae", "triplet", "pointwise", "ranknet", "listnet", "lambda-loss"}
    assert {kind for kind, row in OBJECTIVES.items() if not row.gives_probabilities} == refused
    network, batch = language_model(1, 16), Batch({"ids": IDS}, {"vocabulary": TOKENS})
    with pytest.raises(RecipeError, match=r"this network has none: raise `network\.dropout`, or set it to 0; got 5"):
        losses(network.train(), batch, Call(Randomness(1), r_drop=ALPHA))


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


def language_model(seed: int, d_model: int, dropout: float = 0.0) -> Any:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"vocab_size": 23, "d_model": d_model, "d_ff": 2 * d_model, "n_heads": 2, "n_layers": 1}
    return build_network(NetworkConfig("decoder", **sizes, dropout=dropout))
