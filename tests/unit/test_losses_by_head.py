"""The loss of an update: each head's sum divided by its own real targets in the whole update, times its weight."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import InputConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch, Part
from atento.networks import Encoder, build_network
from atento.networks.output import Output
from atento.training.losses import Call, losses, set_loss
from atento.training.step import Updater
from failing import fails

CONFIG = TrainingConfig(learning_rate=0.0, warmup=0, weight_decay=0.0, clip=0.0, label_smoothing=0.0, seed=3)


def encoder() -> Encoder:
    torch.manual_seed(1)
    heads = (HeadConfig("masked-language-model"), HeadConfig("next-sentence", dropout=0.0))
    sizes: Any = {"vocab_size": 23, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 2, "dropout": 0.0}
    config = NetworkConfig("encoder", pooler=True, embedding=InputConfig(segments=2), heads=heads, **sizes)
    network = build_network(config)
    assert isinstance(network, Encoder)
    return network


def batch(seed: int, rows: int, hidden: int) -> Batch:
    """Pairs of sentences with some hidden tokens, and whether the second follows."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 23, (rows, 7), generator=g)
    labels = torch.full_like(ids, -1)
    labels[:, 1 : 1 + hidden] = torch.randint(5, 23, (rows, hidden), generator=g)
    follows = torch.randint(0, 2, (rows,), generator=g)
    segments = (torch.arange(7) > 3).long().expand(rows, 7)
    return Batch({"ids": ids, "segment_ids": segments}, {"vocabulary": labels, "next-sentence": follows})


PARTS = [(11, 3, 1), (12, 5, 3)]


def by_hand(network: Encoder, weights: list[dict[str, float]]) -> dict[str, Tensor]:
    """The gradient of Σ over heads of Σ over parts of weight · cross-entropy / real targets, by PyTorch alone."""
    batches = [batch(*given) for given in PARTS]
    counts = {"vocabulary": sum(rows * hidden for _, rows, hidden in PARTS), "next-sentence": 8}
    total = torch.zeros(())
    for given, weight in zip(batches, weights):
        output = network(**given.inputs)
        for head, labels in given.labels.items():
            logits = network.read(head, output).reshape(-1, 23 if head == "vocabulary" else 2)
            nats = F.cross_entropy(logits, labels.reshape(-1), ignore_index=-1, reduction="sum")
            total = total + weight.get(head, 1.0) * nats / counts[head]
    names = [name for name, _ in network.named_parameters()]
    found = torch.autograd.grad(total, list(network.parameters()), allow_unused=True)
    return {name: value for name, value in zip(names, found) if value is not None}


class Kept(Updater):
    """An updater that keeps the gradient it would step by."""

    def _divide_and_clip(self, *given: object) -> float:
        norm = super()._divide_and_clip(*given)  # type: ignore[arg-type]
        self.gradients = {n: p.grad.clone() for n, p in self.parameters.items() if p.grad is not None}
        return norm


@pytest.mark.parametrize("weights", [[{}, {}], [{"vocabulary": 2.0}, {"vocabulary": 0.5, "next-sentence": 3.0}]])
def test_e4_two_heads_of_one_update_are_each_divided_by_their_own_targets(weights: list[dict[str, float]]) -> None:
    network = encoder()
    expected = by_hand(network, weights)
    updater = Kept(network, CONFIG, "float32")
    sums, _ = updater.update([Part(batch(*given), weight) for given, weight in zip(PARTS, weights)], 1, 0.0)
    assert updater.gradients.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(updater.gradients[name], value, rtol=2e-4, atol=2e-7, msg=name)
    assert {head: one.targets for head, one in sums.items()} == {"vocabulary": 18, "next-sentence": 8}


def test_a_head_is_divided_by_its_own_targets_the_network_runs_once_and_each_needs_a_loss() -> None:
    network = encoder()
    first, second = batch(11, 3, 1), batch(12, 5, 3)
    alone = Batch(second.inputs, {"vocabulary": second.labels["vocabulary"]})
    answers = F.cross_entropy(network.read("next-sentence", network(**first.inputs)), first.labels["next-sentence"])
    expected = torch.autograd.grad(answers, [network.heads["next-sentence"].out.weight])[0]  # type: ignore[union-attr]
    updater = Kept(network, CONFIG, "float32")
    updater.update([Part(first), Part(alone)], 1, 0.0)
    torch.testing.assert_close(updater.gradients["heads.next-sentence.out.weight"], expected, rtol=1e-4, atol=1e-7)
    network, runs = encoder(), []
    network.stack.register_forward_hook(lambda *given: runs.append(1))
    assert list(losses(network, batch(1, 4, 2), Call())) == ["vocabulary", "next-sentence"] and runs == [1]
    given = batch(1, 2, 1)
    spelled = Batch(given.inputs, {"spell": given.labels["vocabulary"]})
    fails(CapabilityError, "no loss for the head 'spell'", losses, network, spelled, Call())


def parts() -> Iterator[Part]:
    return (Part(batch(*given)) for given in PARTS)


def test_two_heads_learn_side_by_side_with_factors_of_labels_given_and_not() -> None:
    updater = Updater(encoder(), TrainingConfig(warmup=0, label_smoothing=0.0), "float32")
    means = []
    for step in range(1, 41):
        sums, _ = updater.update(parts(), step, 5e-3)
        means.append({head: one.nll / one.targets for head, one in sums.items()})
    assert all(means[-1][head] < 0.3 * means[0][head] for head in means[0])
    # the mean over labels of w·(-log σ) by hand: the second row of factors is for those that it has
    logits, has = torch.tensor([[0.5, -1.0], [2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    factors = torch.tensor([[0.5, 2.0], [3.0, 7.0]])
    network: Any = SimpleNamespace(read=lambda *arguments: logits)
    batch = Batch({}, {"labels": torch.zeros(2, dtype=torch.long)}, extras={"labels": has, "labels weights": factors})
    loss, nll = set_loss(network, "labels", lambda number=0: Output(logits), batch, Call())
    entropies = -F.logsigmoid(torch.where(has > 0, logits, -logits))
    torch.testing.assert_close(loss, (entropies * torch.tensor([[3.0, 2.0], [0.5, 7.0]])).sum() / 2)
    torch.testing.assert_close(nll, entropies.sum() / 2)
