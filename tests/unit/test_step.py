"""One training step: against a plain trainer, accumulation, precision, clipping, decay, resuming, faults."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention import observe
from atento.base.errors import TrainingError
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Batch, Part, Ragged
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import EncoderDecoder, build_network
from atento.networks.interface import Network
from atento.networks.vocabulary import cross_entropy
from atento.training.losses import LOSSES, Call, Forward, Sums, losses
from atento.training.optimizer import LossScale
from atento.training.step import Updater
from failing import fails

Patch = pytest.MonkeyPatch
NETWORK = NetworkConfig(vocab_size=31, d_model=16, d_ff=32, n_heads=2, n_layers=1, dropout=0.0, norm="pre")
CONFIG = TrainingConfig(learning_rate=1e-2, warmup=0, weight_decay=0.1, clip=1.0, label_smoothing=0.1, seed=5)


def make(dtype: torch.dtype = torch.float32, **changes: object) -> EncoderDecoder:
    torch.manual_seed(0)
    return build_network(changed(NETWORK, changes)).to(dtype)


def data(seed: int = 0) -> PlannedBatches:
    g = np.random.default_rng(seed)
    source, target = ([g.integers(4, 31, g.integers(1, 9)).tolist() for _ in range(60)] for _ in range(2))
    return parallel(Ragged(source), Ragged(target), budget=60, seed=1, pad_id=0, start_id=2, eos_id=3)


def update(updater: Updater, parts: Iterable[Part], step: int, rate: float) -> tuple[Sums, float]:
    """One update of a network with a head over the vocabulary alone: that head's sums, and the norm."""
    sums, norm = updater.update(parts, step, rate)
    assert sums.keys() == {"vocabulary"}
    return sums["vocabulary"], norm


def train(updater: Updater, steps: int, first: int = 1, micro_batches: int = 1) -> list[float]:
    batches = data()
    found = []
    for step in range(first, first + steps):
        sums, _ = update(updater, batches.parts(step - 1, micro_batches), step, 1e-2)
        found.append(sums.loss / sums.targets)
    return found


def loss_of(network: EncoderDecoder, batch: Batch, call: Call) -> tuple[Tensor, Tensor]:
    """The summed loss, and its part without smoothing."""
    return losses(network, batch, call)["vocabulary"]


def first_batch() -> Batch:
    return next(iter(data().parts(0))).batch


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def plain_gradients(network: EncoderDecoder, batches: list[Batch], smoothing: float) -> tuple[float, int]:
    """Mean smoothed loss over all real targets of all batches, by PyTorch's own loss; gradients left on the network."""
    network.zero_grad(set_to_none=True)
    targets = sum(batch.targets for batch in batches)
    total = 0.0
    for batch in batches:
        source, target, real = batch.inputs["source_ids"], batch.inputs["target_ids"], batch.real("source_ids")
        logits = network(source, target, source_token_mask=real).logits.flatten(0, 1)
        labels = batch.labels["vocabulary"].flatten()
        loss = F.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=smoothing, reduction="sum")
        (loss / targets).backward()
        total += float(loss.detach())
    return total, targets


@pytest.mark.parametrize("clip", [0.0, 0.05, 0.5, 0.8, 1.2, 100.0])
def test_f4_e8_steps_equal_those_of_a_plain_trainer(clip: float) -> None:
    """AdamW on matrices with decay and on vectors without, gradients clipped by their whole norm; float64 1e-9."""
    ours, theirs = make(torch.float64), make(torch.float64)
    updater = Updater(ours, replace(CONFIG, clip=clip), "float32")  # "float32": the weights' own type
    sides: list[list[Tensor]] = [[], []]
    for parameter in theirs.parameters():
        sides[parameter.dim() > 1].append(parameter)
    groups = [{"params": params, "weight_decay": decay} for params, decay in zip(sides, (0.0, 0.1))]
    optimizer = torch.optim.AdamW(groups, betas=CONFIG.betas, foreach=False)
    batches = data()
    for step in range(1, 6):
        parts = list(batches.parts(step - 1))
        total, targets = plain_gradients(theirs, [part.batch for part in parts], 0.1)
        norm = torch.stack([p.grad.norm() for p in theirs.parameters()]).norm()
        if clip and norm > clip:
            for parameter in theirs.parameters():
                parameter.grad.mul_(clip / norm)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / step
        optimizer.step()
        sums, got = update(updater, parts, step, 1e-2 / step)
        assert got == pytest.approx(float(norm), rel=1e-9)
        assert sums.loss == pytest.approx(total, rel=1e-9) and sums.targets == targets
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=1e-9)


@pytest.mark.parametrize("micro_batches", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_accumulation_equals_the_full_batch(micro_batches: int) -> None:
    """Twenty updates without dropout: losses are sums divided once, so parts of unequal size weigh as they should."""
    for dtype, rel, atol in ((torch.float64, 1e-9, 1e-7), (torch.float32, 1e-5, None)):
        one, other = (Updater(make(dtype), CONFIG, "float32") for _ in range(2))
        assert train(other, 20, micro_batches=micro_batches) == pytest.approx(train(one, 20), rel=rel)
        if atol is not None:
            torch.testing.assert_close(weights(other.network), weights(one.network), rtol=0, atol=atol)


def test_f1_the_loss_is_over_real_targets_alone_and_a_stepper_draws_anew_at_every_step() -> None:
    """Padding of source and target, and whatever stands there, changes neither sum; the plain sum has no smoothing."""
    network = make(torch.float64)
    batch = first_batch()
    inputs, labels, real = batch.inputs, batch.labels["vocabulary"], batch.real("source_ids")
    assert bool((labels < 0).any()) and not bool(real.all())
    noise = {"source_ids": inputs["source_ids"].masked_fill(~real, 17)}
    noise["target_ids"] = inputs["target_ids"].masked_fill(labels < 0, 19)
    noisy = replace(batch, inputs={**inputs, **noise})
    loss, nll = loss_of(network, batch, Call(smoothing=0.1))
    total, _ = plain_gradients(network, [batch], 0.1)
    assert float(loss.detach()) == pytest.approx(total, rel=1e-10)
    assert float(nll) == pytest.approx(plain_gradients(network, [batch], 0.0)[0], rel=1e-10)
    assert float(loss_of(network, noisy, Call(smoothing=0.1))[0].detach()) == pytest.approx(total, rel=1e-12)
    # The same part over and over, weights held still by a rate of 0: only dropout can make a difference
    part = next(iter(data().parts(0)))

    def loss(parts: int, step: int, seed: int = 5) -> float:
        updater = Updater(make(dropout=0.3), replace(CONFIG, seed=seed), "float32")
        return update(updater, [part] * parts, step, 0.0)[0].loss

    assert loss(1, 1) == loss(1, 1) and len({loss(1, 1), loss(1, 2), loss(2, 1) / 2, loss(1, 1, 6)}) == 4


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16", "float16"])
def test_g6_training_learns(precision: str) -> None:
    """Of sixty short pairs: the loss falls by a third in sixty updates."""
    means = train(Updater(make(), replace(CONFIG, weight_decay=0.0), precision), 60)
    assert means[-1] < 0.75 * means[0]


PRECISIONS = pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])


@PRECISIONS
def test_two_runs_of_one_seed_are_equal_bit_for_bit_and_an_update_that_breaks_off_leaves_no_gradient(precision) -> None:
    """With dropout everywhere; another seed gives another run."""
    runs = []
    for seed in (5, 5, 6):
        network = make(dropout=0.2, attention={"dropout": 0.1}, feed_forward={"dropout": 0.1})
        runs.append((train(Updater(network, replace(CONFIG, seed=seed), precision), 5), weights(network)))
    assert runs[0][0] == runs[1][0] and same(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0] and not same(runs[0][1], runs[2][1])
    # Data that fails in the second part: the step done again is as if it were the first
    updater, healthy = Updater(make(), CONFIG, precision), Updater(make(), CONFIG, precision)

    def broken() -> Iterator[Part]:
        yield next(iter(data().parts(0, 4)))
        raise OSError("the disk is gone")

    fails(OSError, "the disk is gone", updater.update, broken(), 1, 1e-2)
    assert train(updater, 2) == train(healthy, 2) and same(weights(updater.network), weights(healthy.network))


@PRECISIONS
def test_f5_going_on_from_saved_weights_and_optimiser_is_bit_exact(precision: str) -> None:
    """What `Optimizer.tensors` names is all there is to it; what was saved is a copy, not a view."""
    changes = {"dropout": 0.2, "attention": {"dropout": 0.1}}
    straight = Updater(make(**changes), CONFIG, precision)
    first = train(straight, 4)
    kept = weights(straight.network)
    tensors = {name: value.clone() for name, value in straight.optimizer.tensors().items()}
    assert len(tensors) == 3 * len(straight.parameters)
    rest = train(straight, 4, first=5)
    torch.manual_seed(123)
    resumed = Updater(build_network(changed(NETWORK, changes)), CONFIG, precision)
    resumed.network.load_state_dict(kept)
    resumed.optimizer.load(tensors)
    resumed.copy_weights()
    before = {name: value.clone() for name, value in tensors.items()}
    assert train(resumed, 4, first=5) == rest and first != rest
    assert same(weights(resumed.network), weights(straight.network))
    assert same(resumed.optimizer.tensors(), straight.optimizer.tensors()) and same(tensors, before)


def test_optimiser_tensors_are_named_after_their_weights_and_weights_held_still_keep_their_bits() -> None:
    updater = Updater(make(), CONFIG, "float32")
    assert updater.optimizer.tensors() == {}
    train(updater, 2)
    found = updater.optimizer.tensors()
    for name, parameter in updater.network.named_parameters():
        assert found[f"{name}.exp_avg"].shape == found[f"{name}.exp_avg_sq"].shape == parameter.shape
        assert float(found[f"{name}.step"]) == 2
    sums = Sums(1.0, 2.0, 3)
    sums.add(Sums(0.5, 0.25, 4))
    assert sums == Sums(1.5, 2.25, 7)
    network = make()
    network.decoder.blocks[0].requires_grad_(False)
    before = weights(network)
    train(Updater(network, replace(CONFIG, weight_decay=0.0), "bfloat16"), 3, micro_batches=2)
    for name, value in weights(network).items():
        assert torch.equal(value, before[name]) == name.startswith("decoder.blocks.0."), name


def test_the_bfloat16_copy_follows_weights_that_stay_float32_and_gradients_add_up_in_float32() -> None:
    """Steps too small for bfloat16 add up in the weights all the same."""
    network = make()
    updater = Updater(network, CONFIG, "bfloat16")
    assert updater.compute_network is not network and updater.compute_network.training
    start = weights(network)
    batches = data()
    for step in range(1, 4):
        updater.update(batches.parts(step), step, 1e-6)
        masters, copies = dict(network.named_parameters()), dict(updater.compute_network.named_parameters())
        assert masters.keys() == copies.keys()
        for name, master in masters.items():
            assert master.dtype == torch.float32 and copies[name].dtype == torch.bfloat16
            assert torch.equal(copies[name], master.to(torch.bfloat16)), name
            assert master.grad is None and copies[name].grad is None
    assert all(not torch.equal(start[name], value) for name, value in weights(network).items())
    assert {value.dtype for value in updater.optimizer.tensors().values()} == {torch.float32}
    # Close to the float32 gradient norm, whether in one part or four
    exact = Updater(make(), CONFIG, "float32").update(batches.parts(0), 1, 0.0)[1]
    for micro_batches in (1, 4):
        norm = Updater(make(), CONFIG, "bfloat16").update(batches.parts(0, micro_batches), 1, 0.0)[1]
        assert norm == pytest.approx(exact, rel=0.02)


@PRECISIONS
@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_numbers_that_are_not_finite_change_nothing(precision: str, fault: str) -> None:
    """Weights and optimiser bit-unchanged, a message that says what to do, and the next good step as if nothing was."""
    network = make()
    updater, healthy = Updater(network, CONFIG, precision), Updater(make(), CONFIG, precision)
    for one in (updater, healthy):
        if one.loss_scale is not None:
            one.loss_scale.factor = 1.0  # then no overflow is the reason
    train(updater, 2)
    train(healthy, 2)
    before, moments = weights(network), {n: v.clone() for n, v in updater.optimizer.tensors().items()}
    part = updater.compute_network.decoder.blocks[0].feed_forward.inner
    if fault == "loss":
        handle = part.register_forward_hook(lambda module, given, out: out * float("nan"))
    else:
        handle = part.weight.register_hook(lambda gradient: gradient * float("inf"))
    message = rf"step 3: the {fault} is not finite \(loss .*, gradient norm (nan|inf)\); the weights are unchanged; "
    advice = r"the first such gradient is that of \S+\. Lower `training\.learning_rate` or raise `training\.warmup`"
    fails(TrainingError, message + advice, train, updater, 1, first=3)
    handle.remove()
    assert same(weights(network), before) and same(updater.optimizer.tensors(), moments)
    assert train(updater, 2, first=3) == train(healthy, 2, first=3)
    assert same(weights(network), weights(healthy.network))


@pytest.fixture
def eight_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


@pytest.mark.covering
@PRECISIONS
@pytest.mark.parametrize("parts", [2, 4, 7])
@pytest.mark.usefixtures("eight_threads")
def test_parts_side_by_side_give_the_bits_of_parts_in_turn(precision: str, parts: int, monkeypatch: Patch) -> None:
    """Losses, norms and weights after four updates, dropout on; several parts really are under way at once."""
    under_way, most, done, lock, real = [0], [0], list[int](), threading.Lock(), LOSSES["vocabulary"]

    def watched(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> tuple[Tensor, Tensor]:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.01)  # or a part so small would be done before the next begins
        try:
            return real(network, head, forward, batch, call)
        finally:
            with lock:
                under_way[0] -= 1
                done.append(torch.get_num_threads())

    monkeypatch.setitem(LOSSES, "vocabulary", watched)
    beside, in_turn = (Updater(make(dropout=0.3), CONFIG, precision) for _ in range(2))
    means = train(beside, 4, micro_batches=parts)
    assert most[0] == min(parts, 4) and set(done) == {8 // min(parts, 4)} and torch.get_num_threads() == 8
    with ThreadPoolExecutor(1) as later:  # a thread that comes later has all threads, not a part's share of them
        assert later.submit(torch.get_num_threads).result() == 8
    in_turn.one_by_one, most[0] = True, 0
    assert train(in_turn, 4, micro_batches=parts) == means and most[0] == 1
    assert same(weights(beside.network), weights(in_turn.network))


@pytest.mark.parametrize("limit, beside", [(10**9, 1), (1, 8)])
@pytest.mark.usefixtures("eight_threads")
def test_one_thread_updates_the_weights_of_a_small_network(limit: int, beside: int, monkeypatch: Patch) -> None:
    """Its parts have all threads, also a part alone."""
    monkeypatch.setattr("atento.training.step.SMALL", limit)
    updater, seen, real = Updater(make(), CONFIG, "float32"), list[tuple[str, int]](), LOSSES["vocabulary"]

    def note(what: str, run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (seen.append((what, torch.get_num_threads())), run(*given))[1]

    monkeypatch.setitem(LOSSES, "vocabulary", note("part", real))
    monkeypatch.setattr(updater.optimizer, "step", note("weights", updater.optimizer.step))
    for count in (1, 2):
        updater.update(data().parts(0, count), 1, 1e-3)
    assert seen == [("part", 8), ("weights", beside), *[("part", 4)] * 2, ("weights", beside)]
    assert torch.get_num_threads() == 8


def test_parts_go_in_turn_while_somebody_looks(eight_threads: None) -> None:
    """What is seen stands in the order of the parts, and looking changes no bit."""
    parts = list(data().parts(0, 3))
    updater, other = (Updater(make(), CONFIG, "float32") for _ in range(2))
    with observe(updater.compute_network) as alone:
        for part in parts:
            loss_of(updater.compute_network, part.batch, Call())
    with observe(updater.compute_network, layers=[0]) as seen:
        looked = updater.update(parts, 1, 1e-2)
    assert looked == other.update(parts, 1, 1e-2) and same(weights(updater.network), weights(other.network))
    for one, given in zip(seen.weights["cross", 0], alone.weights["cross", 0], strict=True):
        torch.testing.assert_close(one, given)


def test_float16_gradients_do_not_depend_on_the_scale_of_the_loss_which_overflows_halve() -> None:
    """As torch.amp does: 2 ** 16 at first, twice that after 2,000 updates; no weight changes meanwhile."""
    updater = Updater(make(), CONFIG, "float16")
    assert updater.loss_scale is not None
    updater.loss_scale.factor = 2.0**24  # what float16 cannot hold
    start, batches, skipped = weights(updater.network), data(), 0
    while not (sums := updater.update(batches.parts(0), 1, 1e-2)[0]):
        skipped += 1
        assert same(weights(updater.network), start) and updater.optimizer.tensors() == {}
        assert updater.loss_scale == LossScale(2.0 ** (24 - skipped), 0, skipped)
    assert 1 < skipped < 20 and sums["vocabulary"].targets and not same(weights(updater.network), start)
    updater.loss_scale.taken = 1999
    factor = updater.loss_scale.factor
    train(updater, 1)
    assert updater.loss_scale == LossScale(2 * factor, 0, skipped)
    for factor in (1.0, 2.0**10, 2.0**15):
        exact = Updater(make(), CONFIG, "float32").update(data().parts(0, 2), 1, 0.0)[1]
        updater = Updater(make(), CONFIG, "float16")
        assert updater.loss_scale is not None
        updater.loss_scale.factor = factor
        assert updater.update(data().parts(0, 2), 1, 0.0)[1] == pytest.approx(exact, rel=2e-3)
    # The gradient of a word of probability 2e-9 is 0 in float16 but for the scale of the loss
    hidden = torch.ones(300, 4, dtype=torch.float16)
    weight = torch.zeros(3, 4, dtype=torch.float16)
    weight[0] = 5.0
    expected = 300 * float(torch.softmax(torch.tensor([20.0, 0.0, 0.0]), dim=0)[1])
    found = []
    for factor in (1.0, 2.0**16):
        leaf = weight.clone().requires_grad_()
        loss, nll = cross_entropy(hidden, leaf, torch.zeros(300, dtype=torch.int64))
        assert loss.dtype == nll.dtype == torch.float64 and not nll.requires_grad
        found.append(float(torch.autograd.grad(loss * factor, leaf)[0][1, 0]) / factor)
    assert found == [0, pytest.approx(expected, rel=1e-2)]
