"""Several heads on one encoder: gradients against sums by hand, updates of one task, a view of one head, recipes."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from atento.base.errors import RecipeError, UsageError
from atento.config.reading.loading import dump_recipe, load_recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.batch import MemoryStore, Part, Ragged
from atento.data.batches.mixture import Mixture, Shares
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.labels import Labels
from atento.data.objectives.tags import Tags
from atento.metrics.metric_table import quality
from atento.networks import Encoder, build_network, with_head
from atento.training.step import Updater
from failing import fails

HEADS = (
    HeadConfig("classification", ("x", "y"), name="few", dropout=0.0),
    HeadConfig("classification", ("p", "q", "r"), name="more", dropout=0.0),
    HeadConfig("tagging", ("O", "B"), name="words", dropout=0.0),
)
SIZES: dict[str, Any] = {"vocab_size": 20, "d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 2}
CONFIG = NetworkConfig(architecture="encoder", dropout=0.0, heads=HEADS, **SIZES)
WEIGHTS = {"few": 1.0, "more": 0.25, "words": 2.0}
TRAINING = TrainingConfig(learning_rate=1e-2, warmup=0, weight_decay=0.1, clip=0.0, label_smoothing=0.0)


def network() -> Encoder:
    torch.manual_seed(1)
    made = build_network(CONFIG).to(torch.float64)
    assert isinstance(made, Encoder)
    return made


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


def by_hand(encoder: Encoder, parts: list[Part]) -> dict[str, Tensor]:
    """The gradients of Σ weight · mean loss of each head, by plain products from the last layer's vectors."""
    sums: dict[str, list[Tensor]] = {}
    counts: dict[str, int] = {}
    for part in parts:
        ((head, labels),) = part.batch.labels.items()
        hidden = encoder(**part.batch.inputs).hidden
        read = hidden if head == "words" else hidden[:, 0]
        weight, bias = (encoder.get_parameter(f"heads.{head}.out.{name}") for name in ("weight", "bias"))
        logits = (read @ weight.T + bias)[labels >= 0]
        sums.setdefault(head, []).append(F.cross_entropy(logits, labels[labels >= 0], reduction="sum"))
        counts[head] = counts.get(head, 0) + int((labels >= 0).sum())
    total = torch.stack([WEIGHTS[head] * torch.stack(of).sum() / counts[head] for head, of in sums.items()]).sum()
    names = dict(encoder.named_parameters())
    found = torch.autograd.grad(total, list(names.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(names, found) if gradient is not None}


def gradients_of(encoder: Encoder, parts: list[Part]) -> dict[str, Tensor]:
    """Those that the optimizer of an update gets."""
    updater, found = Updater(encoder, TRAINING, "float32"), dict[str, Tensor]()

    def keep(rate: float) -> None:
        found.update({name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None})

    updater.optimizer.step = keep  # type: ignore[method-assign]
    updater.update(parts, 1, 1e-2)
    return found


def test_the_gradients_of_several_heads_are_the_sum_of_each_which_an_update_leaves_to_the_others() -> None:
    parts = [part for head in HEADS for part in batches_of(head).parts(0)]
    assert {head for part in parts for head in part.batch.labels} == {head.name for head in HEADS}
    ours, theirs = gradients_of(network(), parts), by_hand(network(), parts)
    assert ours.keys() == theirs.keys() == dict(network().named_parameters()).keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-12, msg=name)
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
        changed = {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}
        assert {name.split(".")[1] for name in changed if name.startswith("heads.")} == {head}
        assert any(name.startswith("stack.") for name in changed)
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
    for changes, message in sentences():
        fails(RecipeError, message, load_recipe, tasks(**changes), environment={})
    warnings = load_recipe(tasks(), {"network.d_model": 8, "training.early_stop": 2}, environment={}).warnings
    assert [one.partition(": ")[2].partition(" ")[0] for one in warnings] == ["network.d_model"]  # one has data.valid


def sentences() -> Iterator[tuple[dict[str, Any], str]]:
    first, second = tasks()["tasks"]
    yield {"tasks": [first, second | {"data": {}}]}, r"data.train is missing: .* \(task 'b'\)"
    yield {"tasks": [first, second | {"task": ["regression"]}]}, r"tasks.1.task must label or rate texts"
    yield {"tasks": [first, {"name": "b"}]}, r"tasks.1.task must label or rate texts or tag words: got null"
    yield {"tasks": [first, "b"]}, r"tasks must list two or more"
    yield {"tasks": [first, second | {"task": "question-answering"}]}, r"got 'question-answering'"
    yield {"tasks": [first, second | {"task": "ranking"}]}, r"got 'ranking'"
    yield {"data": {"folds": 3, "fold": 1}}, r"data.folds is not for several tasks \(task 'a'\)"
    yield {"init": {"model": "m", "train": "head", "cache": "c"}}, r"init.cache is not for several tasks"
    memory = second | {"data": {"train": {"memory": "x"}}}
    yield {"tasks": [first, memory]}, r"data.train.0.memory is not for several tasks \(task 'b'\)"
    yield {"tasks": [first, second | {"metrics": ["accuracy"]}]}, r"unknown metric 'accuracy'.* \(task 'b'\)"
