"""Several heads on one encoder: losses and gradients by hand, updates of one task, a view of one head, recipes."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.config.reading.loading import dump_recipe, load_recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import InputConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import Batch, MemoryStore, Part, Ragged
from atento.data.batches.mixture import Mixture, Shares
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.labels import Labels
from atento.data.objectives.tags import Tags
from atento.metrics.metric_table import quality
from atento.networks import Encoder, build_network, with_head
from atento.networks.output import Output
from atento.training.losses import Call, losses, set_loss
from atento.training.step import Updater
from failing import fails

HEADS = (
    HeadConfig("classification", ("x", "y"), name="few", dropout=0.0),
    HeadConfig("classification", ("p", "q", "r"), name="more", dropout=0.0),
    HeadConfig("tagging", ("O", "B"), name="words", dropout=0.0),
)
SIZES: dict[str, Any] = {"vocab_size": 20, "d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 2}
WEIGHTS = {"few": 1.0, "more": 0.25, "words": 2.0}
CONFIG = NetworkConfig(architecture="encoder", dropout=0.0, heads=HEADS, **SIZES)
PRETRAINING = (HeadConfig("masked-language-model"), HeadConfig("next-sentence", dropout=0.0))
BERT = changed(CONFIG, pooler=True, embedding=InputConfig(segments=2), heads=PRETRAINING)
TRAINING = TrainingConfig(learning_rate=1e-2, warmup=0, weight_decay=0.1, clip=0.0, label_smoothing=0.0)


def network(config: NetworkConfig = CONFIG) -> Encoder:
    torch.manual_seed(1)
    return build_network(config).to(torch.float64)


def batches_of(head: HeadConfig, budget: int = 8, count: int = 40) -> PlannedBatches:
    """Random texts with labels of a head, or with a tag at every token."""
    draw = np.random.default_rng(len(head.name))
    ids = [draw.integers(5, 20, draw.integers(2, 7)).tolist() for _ in range(count)]
    columns = {"ids": Ragged(ids), "segments": Ragged([[0] * len(row) for row in ids])}
    if head.kind == "tagging":
        columns["tags"] = Ragged([draw.integers(0, 2, len(row)).tolist() for row in ids])
        store = MemoryStore(columns)
        return PlannedBatches(store, Tags(CONFIG, head), budget=budget, seed=1, weight=WEIGHTS[head.name])
    columns["label"] = Ragged([[int(draw.integers(0, len(head.labels)))] for _ in ids])
    objective, weight = Labels(CONFIG, head), WEIGHTS[head.name]
    store = MemoryStore(columns)
    return PlannedBatches(store, objective, budget=budget, seed=1, weight=weight, equal_examples=True)


def mixed(shares: tuple[float, ...] = (1, 1, 1), seed: int = 3) -> Mixture:
    members = [lambda _, head=head: batches_of(head) for head in HEADS]
    return Mixture(members, lambda _: Shares.constant(shares), budget=None, seed=seed, sources=len(HEADS))


def by_hand(encoder: Encoder, parts: list[Part], weights: list[dict[str, float]]) -> dict[str, Tensor]:
    """The gradients of Σ weight · cross-entropy / real targets of its head in all parts, by PyTorch alone."""
    counts, terms = Counter[str](), []
    for part in parts:
        counts.update({head: int((labels >= 0).sum()) for head, labels in part.batch.labels.items()})
    for part, weight in zip(parts, weights, strict=True):
        output = encoder(**part.batch.inputs)
        for head, labels in part.batch.labels.items():
            logits = encoder.read(head, output).flatten(0, labels.dim() - 1)
            nats = F.cross_entropy(logits, labels.flatten(), ignore_index=-1, reduction="sum")
            terms.append(weight.get(head, 1.0) * nats / counts[head])
    names = dict(encoder.named_parameters())
    found = torch.autograd.grad(torch.stack(terms).sum(), list(names.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found) if gradient is not None}


def gradients_of(encoder: Encoder, parts: list[Part]) -> dict[str, Tensor]:
    """Those that the optimizer of an update gets."""
    updater, found = Updater(encoder, TRAINING, "float32"), dict[str, Tensor]()

    def keep(rate: float) -> None:
        found.update({name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None})

    updater.optimizer.step = keep  # type: ignore[method-assign]
    updater.update(parts, 1, 1e-2)
    return found


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


def batch(seed: int, rows: int, hidden: int) -> Batch:
    """Pairs of sentences with some hidden tokens, and whether the second follows."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 20, (rows, 7), generator=g)
    labels = torch.full_like(ids, -1)
    labels[:, 1 : 1 + hidden] = torch.randint(5, 20, (rows, hidden), generator=g)
    follows = torch.randint(0, 2, (rows,), generator=g)
    segments = (torch.arange(7) > 3).long().expand(rows, 7)
    return Batch({"ids": ids, "segment_ids": segments}, {"vocabulary": labels, "next-sentence": follows})


@pytest.mark.parametrize("weights", [[{}, {}], [{"vocabulary": 2.0}, {"vocabulary": 0.5, "next-sentence": 3.0}]])
def test_e4_two_heads_of_one_update_are_each_divided_by_their_own_targets(weights: list[dict[str, float]]) -> None:
    """Also where a part has labels of one head alone; the network runs once for both."""
    parts = [Part(batch(*given), weight) for given, weight in zip([(11, 3, 1), (12, 5, 3)], weights)]
    same(gradients_of(network(BERT), parts), by_hand(network(BERT), parts, weights))
    sums, _ = Updater(network(BERT), TRAINING, "float32").update(parts, 1, 0.0)
    assert {head: one.targets for head, one in sums.items()} == {"vocabulary": 18, "next-sentence": 8}
    alone = Batch(parts[1].batch.inputs, {"vocabulary": parts[1].batch.labels["vocabulary"]})
    parts[1] = replace(parts[1], batch=alone)
    same(gradients_of(network(BERT), parts), by_hand(network(BERT), parts, weights))
    encoder, runs = network(BERT), []
    encoder.stack.register_forward_hook(lambda *given: runs.append(1))
    assert list(losses(encoder, parts[0].batch, Call())) == ["vocabulary", "next-sentence"] and runs == [1]
    spelled = Batch(alone.inputs, {"spell": alone.labels["vocabulary"]})
    fails(CapabilityError, "no loss for the head 'spell'", losses, encoder, spelled, Call())


def test_factors_of_labels_weigh_their_entropies() -> None:
    """The mean over labels of w·(-log σ) by hand: the second row of factors is for those that it has."""
    logits, has = torch.tensor([[0.5, -1.0], [2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    factors = torch.tensor([[0.5, 2.0], [3.0, 7.0]])
    read: Any = SimpleNamespace(read=lambda *arguments: logits)
    batch = Batch({}, {"labels": torch.zeros(2, dtype=torch.long)}, extras={"labels": has, "labels weights": factors})
    loss, nll = set_loss(read, "labels", lambda number=0: Output(logits), batch, Call())
    entropies = -F.logsigmoid(torch.where(has > 0, logits, -logits))
    torch.testing.assert_close(loss, (entropies * torch.tensor([[3.0, 2.0], [0.5, 7.0]])).sum() / 2)
    torch.testing.assert_close(nll, entropies.sum() / 2)


def test_the_gradients_of_several_heads_are_the_sum_of_each_which_an_update_leaves_to_the_others() -> None:
    parts = [part for head in HEADS for part in batches_of(head).parts(0)]
    assert {head for part in parts for head in part.batch.labels} == {head.name for head in HEADS}
    ours = gradients_of(network(), parts)
    assert ours.keys() == dict(network().named_parameters()).keys()
    same(ours, by_hand(network(), parts, [WEIGHTS] * len(parts)))
    alone = [gradients_of(network(), list(batches_of(head).parts(0))) for head in HEADS]
    for name, gradient in ours.items():  # those of the encoder add up; that of a head is its own
        every = [of[name] for of in alone if name in of]
        assert len(every) == (1 if name.startswith("heads.") else len(HEADS))
        torch.testing.assert_close(gradient, torch.stack(every).sum(dim=0), rtol=1e-9, atol=1e-12, msg=name)
    encoder, batches = network(), mixed()
    updater, seen = Updater(encoder, TRAINING, "float32"), set[str]()
    for step in range(1, 25):  # momentum and decay would move a head without a gradient
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        sums, _ = updater.update(list(batches.parts(step - 1)), step, 1e-2)
        (head,) = sums
        moved = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
        assert {name.split(".")[1] for name in moved if name.startswith("heads.")} == {head}
        assert any(name.startswith("stack.") for name in moved)
        seen.add(head)
    assert seen == {head.name for head in HEADS}


@pytest.mark.parametrize("shares", [(1.0, 1.0, 1.0), (6.0, 3.0, 1.0)])
def test_shares_are_of_updates_and_each_task_reads_its_own_in_order(shares: tuple[float, ...]) -> None:
    batches, alone = mixed(shares), {head.name: batches_of(head) for head in HEADS}
    heads = [next(iter(part.batch.labels)) for n in range(1500) for part in islice(batches.parts(n), 1)]
    for head, share in zip(HEADS, shares):
        assert heads.count(head.name) / len(heads) == pytest.approx(share / sum(shares), abs=0.04)
    assert [share for share, _ in batches.expected(1500)] == pytest.approx([share / sum(shares) for share in shares])
    turns = dict.fromkeys(alone, 0)
    for update in range(60):
        parts = list(batches.parts(update))
        (head,) = {name for part in parts for name in part.batch.labels}  # one task an update, of its own size
        wanted = list(alone[head].parts(turns[head]))
        turns[head] += 1
        assert [part.rows.tolist() for part in parts] == [part.rows.tolist() for part in wanted]  # type: ignore[union-attr]
        assert all(part.weights == ({} if WEIGHTS[head] == 1 else {head: WEIGHTS[head]}) for part in parts)
    fresh = mixed(shares)  # the place in all data is the number of the update
    for update in (59, 4097, 3):
        for one, other in zip(batches.parts(update), fresh.parts(update), strict=True):
            assert torch.equal(one.batch.inputs["ids"], other.batch.inputs["ids"])
    assert batches.updates_per_epoch == sum(own.updates_per_epoch for own in alone.values()) and len(batches) == 120


def test_a_view_of_a_head_shares_the_weights_and_has_the_name_of_its_kind() -> None:
    encoder = network()
    view = with_head(encoder, "more")
    ids = torch.tensor([[5, 6, 7]])
    assert [head.name for head in view.config.heads] == ["classification"] and len(encoder.config.heads) == 3
    wanted = encoder.read("more", encoder(ids))
    weight, bias = (encoder.get_parameter(f"heads.more.out.{part}") for part in ("weight", "bias"))
    torch.testing.assert_close(wanted, F.linear(encoder(ids).hidden[:, 0], weight, bias))  # of the first token
    assert torch.equal(view.read("classification", view(ids)), wanted)
    heads = {name for name in view.state_dict() if name.startswith("heads.")}
    assert heads == {f"heads.classification.out.{part}" for part in ("weight", "bias")}
    with torch.no_grad():
        encoder.get_parameter("heads.more.out.bias").add_(1.0)
    assert torch.allclose(view.read("classification", view(ids)), wanted + 1)
    assert {*encoder.heads} == {"few", "more", "words"}
    with pytest.raises(UsageError, match=r"the model has no head 'mor'; did you mean 'more'\? Known: few, more, words"):
        with_head(encoder, "mor")


def tasks(**changes: Any) -> dict[str, Any]:
    source = {"file": "t.csv", "text": "text"}
    first = {"name": "a", "task": "classification", "data": {"train": source | {"label": "a"}, "held_out": 5}}
    second = {"name": "b", "task": "regression", "data": {"train": source | {"score": "b"}, "max_len": 16}}
    return {"tasks": [first, second], "data": {"max_len": 64, "skip_bad": True}, "init": "m"} | changes


def test_a_recipe_of_several_tasks_reads_back_equal_is_one_for_each_and_what_it_cannot_be() -> None:
    loaded = load_recipe(tasks(), {"tasks.1.share": 3, "training.label_smoothing": 0.1}, environment={})
    recipe = loaded.recipe
    assert [own.data.max_len for own in recipe.tasks] == [64, 16] and all(own.data.skip_bad for own in recipe.tasks)
    assert [own.batch_tokens for own in recipe.tasks] == [32, 32] and recipe.tasks[1].metrics == ("pearson", "spearman")
    written = dump_recipe(recipe)
    assert "\ntask:" not in written and "\ndata:" not in written and "\nmetrics:" not in written
    assert load_recipe(yaml.safe_load(written), environment={}).recipe == recipe
    assert recipe.deciding == ("mean", "accuracy[a]", "nll") and recipe.head == ""  # b is not validated
    first, second = (part.recipe for part in loaded.by_task())
    assert (first.task, second.task) == ("classification", "regression") and second.head == "b"
    assert first.data == recipe.tasks[0].data and second.deciding == ("pearson", "spearman", "nll")
    assert second.training.label_smoothing == 0.1 and second.tasks == recipe.tasks[1:]
    assert loaded.by_task()[1].origins["share"] == "command line"
    assert quality({"mean": 0.5, "accuracy[a]": 0.25, "nll": 2.0}, recipe.deciding) == (0.5, 0.25, -2.0)
    sized = load_recipe(tasks(), {"training.batch_tokens": 8, "tasks.1.batch_tokens": 4}, environment={}).recipe
    assert [part.batch_tokens for part in sized.tasks] == [8, 4]
    first, second = tasks()["tasks"]
    memory = second | {"data": {"train": {"memory": "x"}}}
    for changes, message in (
        ({"tasks": [first, second | {"data": {}}]}, r"data.train is missing: .* \(task 'b'\)"),
        ({"tasks": [first, second | {"task": ["regression"]}]}, r"tasks.1.task must label or rate texts"),
        ({"tasks": [first, {"name": "b"}]}, r"tasks.1.task must label or rate texts or tag words: got null"),
        ({"tasks": [first, "b"]}, r"tasks must list two or more"),
        ({"tasks": [first, second | {"task": "question-answering"}]}, r"got 'question-answering'"),
        ({"tasks": [first, second | {"task": "ranking"}]}, r"got 'ranking'"),
        ({"data": {"folds": 3, "fold": 1}}, r"data.folds is not for several tasks \(task 'a'\)"),
        ({"init": {"model": "m", "train": "head", "cache": "c"}}, r"init.cache is not for several tasks"),
        ({"tasks": [first, memory]}, r"data.train.0.memory is not for several tasks \(task 'b'\)"),
        ({"tasks": [first, second | {"metrics": ["accuracy"]}]}, r"unknown metric 'accuracy'.* \(task 'b'\)"),
    ):
        fails(RecipeError, message, load_recipe, tasks(**changes), environment={})
    warnings = load_recipe(tasks(), {"network.d_model": 8, "training.early_stop": 2}, environment={}).warnings
    assert [one.partition(": ")[2].partition(" ")[0] for one in warnings] == ["network.d_model"]  # one has data.valid
