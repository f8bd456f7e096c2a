"""Scheduled sampling: schedules by formula, two passes and steps against plain loops, share 0, draws, refusals."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.attention.masks import causal, documents
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import RecurrentConfig
from atento.config.sections.training import ScheduledSamplingConfig, TrainingConfig
from atento.data.batches.batch import Batch, Part, Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.training.losses import Call, losses
from atento.training.scheduled_sampling import OwnTokens, own_share, own_tokens
from atento.training.step import Updater
from failing import fails

NETWORK = NetworkConfig(vocab_size=23, d_model=16, d_ff=32, n_heads=2, n_layers=1, dropout=0.0)
RECURRENT = changed(NETWORK, architecture="recurrent-seq2seq")
SEQ2SEQ = {
    "transformer": NETWORK,
    "lstm-additive": changed(RECURRENT, recurrent=RecurrentConfig("lstm")),
    "gru-fed": changed(RECURRENT, recurrent=RecurrentConfig("gru", attention="bilinear", input_feeding=True)),
    "gru-none": changed(RECURRENT, recurrent=RecurrentConfig("gru", attention="none")),
}


def pairs(count: int = 40) -> Any:
    generator = np.random.default_rng(3)
    source = [generator.integers(4, 23, generator.integers(2, 7)).tolist() for _ in range(count)]
    target = [generator.integers(4, 23, generator.integers(2, 7)).tolist() for _ in range(count)]
    return parallel(Ragged(source), Ragged(target), budget=60, seed=1, pad_id=0, start_id=2, eos_id=3)


def network_of(config: NetworkConfig) -> Any:
    torch.manual_seed(0)
    network = build_network(config).double().train()
    with torch.no_grad():
        for parameter in network.parameters():  # unequal logits, so that own tokens differ from gold
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return network


def own(batch: Batch, share: float = 0.5, *, sample: bool = False, rows: Any = None) -> OwnTokens:
    count = len(batch.labels["vocabulary"])
    return OwnTokens(share, sample, seed=7, step=3, rows=np.arange(count) if rows is None else rows)


def gradients(network: Any, loss: Tensor) -> list[Tensor]:
    return [g for g in torch.autograd.grad(loss, list(network.parameters()), allow_unused=True) if g is not None]


def plain_loss(network: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(network.project(hidden).flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum")


def test_the_schedules_are_the_formulas_of_the_paper_and_what_cannot_be_is_refused() -> None:
    for step in (1, 2, 50, 400, 1000):
        i = step - 1
        for config, gold in (
            (ScheduledSamplingConfig(0.8, "linear", k=1.1, c=0.002), 1.1 - 0.002 * i),
            (ScheduledSamplingConfig(0.8, "exponential", k=0.99), 0.99**i),
            (ScheduledSamplingConfig(0.8, "inverse-sigmoid", k=60.0), 60 / (60 + math.exp(i / 60))),
        ):
            assert own_share(config, step, 1000) == pytest.approx(min(0.8, max(0.0, 1 - gold)))
    config, part = ScheduledSamplingConfig(0.8), Part(Batch({}, {"vocabulary": torch.zeros(2, 3)}))
    for step, progress, steps in ((50, 0.25, 200), (300, 1.0, 300), (7, 0.0, 7)):
        own = own_tokens(config, 3, step, progress, part)
        assert own is not None and own.share == own_share(config, step, steps) > 0
    assert own_tokens(config, 3, 1, 0.01, part) is None  # the target's tokens alone in the first update
    batch = next(iter(pairs().parts(0))).batch
    network = build_network(NETWORK)
    sampling = ScheduledSamplingConfig(0.5, k=1e-9, c=1.0)
    updater = Updater(network, TrainingConfig(seed=5, scheduled_sampling=sampling), "float32")
    sums, _ = updater.update([Part(batch)], 2, 1e-2)
    assert math.isfinite(sums["vocabulary"].loss)
    for task, section, message in (
        ("masked-language-modeling", {"share": 0.5}, "masked has none: got share 0.5"),
        ("translation", {"share": 1.5}, r"share` must lie in \[0, 1\]: got 1.5"),
        ("translation", {"schedule": "exponential", "k": 2}, "must be above 0 and below 1 .* exponential: got 2"),
        ("translation", {"schedule": "inverse-sigmoid", "k": 0.5}, "must be at least 1 .* got 0.5"),
        ("translation", {"schedule": "exponential", "c": 0.1}, "constant of the linear schedule: got 0.1"),
        ("translation", {"c": 0}, "c` must be finite and above 0: got 0"),
        ("translation", {"k": -1}, "must be above 0 for the schedule linear: got -1"),
    ):
        recipe = {"task": task, "data": DATA, "training": {"scheduled_sampling": section}}
        fails(RecipeError, message, load_recipe, recipe)
    for objective in ("span-corruption", "denoising"):
        recipe = {"task": "span-corruption", "data": DATA, "objective": objective}
        section = {"training": {"scheduled_sampling": {"share": 0.3}}}
        assert load_recipe({**recipe, **section}).recipe.training.scheduled_sampling.share == 0.3


@pytest.mark.parametrize("schedule", ["linear", "exponential", "inverse-sigmoid"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_without_constants_the_share_rises_to_its_largest_value_in_the_last_update(schedule: Any, share: float) -> None:
    config = ScheduledSamplingConfig(share, schedule)
    shares = [own_share(config, step, 300) for step in range(1, 301)]
    assert shares == sorted(shares) and shares[-1] == pytest.approx(share) and shares[0] < share / 4
    assert own_share(replace(config, share=1.0), 300, 300) == pytest.approx(1.0 if schedule == "linear" else 0.99)
    assert own_share(config, 1, 1) <= share


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("sample", [False, True])
def test_two_passes_equal_a_plain_computation(sample: bool, dropout: float) -> None:
    """The source is read once, and dropout takes the same in both passes of the decoder."""
    network = network_of(changed(NETWORK, dropout=dropout))
    batch, random = next(iter(pairs().parts(0))).batch, Randomness(5, 1)
    sampling = own(batch, sample=sample)
    loss, _ = losses(network, batch, Call(replace(random), own=sampling))["vocabulary"]

    labels, ids = batch.labels["vocabulary"], batch.inputs["target_ids"]
    source, real = batch.inputs["source_ids"], batch.inputs.get("source_token_mask")
    encoded = network.encode(source, source_token_mask=real, random=random)

    def decoded(target: Tensor) -> Any:
        return network(None, target, source_token_mask=real, encoded=encoded, random=replace(random))

    with torch.no_grad():
        logits = decoded(ids).logits
    mixed, chosen, n_own = ids.clone(), sampling.chosen(ids.shape[1] - 1), 0
    uniform = sampling._uniform(ids.shape[1] - 1, 32)
    for row in range(len(ids)):
        for t in range(ids.shape[1] - 1):
            is_input = int(labels[row, t + 1]) >= 0  # the next position is real, so it reads this token
            if chosen[row, t] and is_input:
                drawn = int((logits[row, t].softmax(-1).cumsum(0) <= uniform[row, t]).sum())
                mixed[row, t + 1] = drawn if sample else int(logits[row, t].argmax())
                n_own += 1
    assert n_own > 10 and not torch.equal(mixed, ids)
    expected = plain_loss(network, decoded(mixed).hidden, labels)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients(network, loss), gradients(network, expected), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_steps_of_a_recurrent_decoder_equal_a_hand_made_loop_and_share_0_is_teacher_forcing() -> None:
    for name in ("lstm-additive", "gru-fed", "gru-none"):
        network, batch = network_of(SEQ2SEQ[name]), next(iter(pairs().parts(0))).batch
        sampling = own(batch)
        loss, _ = losses(network, batch, Call(own=sampling))["vocabulary"]

        ids, labels = batch.inputs["target_ids"], batch.labels["vocabulary"]
        chosen, fed = torch.from_numpy(sampling.chosen(ids.shape[1] - 1)), ids[:, :1]
        for t in range(1, ids.shape[1]):  # the loop runs the whole prefix again at each step, without a state
            hidden = network(**dict(batch.inputs) | {"target_ids": fed}).hidden
            predicted = network.project(hidden[:, -1]).argmax(-1)
            is_input = labels[:, t] >= 0
            fed = torch.cat([fed, torch.where(chosen[:, t - 1] & is_input, predicted, ids[:, t])[:, None]], dim=1)
        assert not torch.equal(fed, ids)
        expected = plain_loss(network, network(**dict(batch.inputs) | {"target_ids": fed}).hidden, labels)
        torch.testing.assert_close(loss, expected)
        for ours, theirs in zip(gradients(network, loss), gradients(network, expected), strict=True):
            torch.testing.assert_close(ours, theirs)
    for name in list(SEQ2SEQ):
        weights = []
        for sampling in (
            ScheduledSamplingConfig(),
            ScheduledSamplingConfig(0.0, "exponential", k=0.5, tokens="sample"),
        ):
            torch.manual_seed(0)
            network = build_network(changed(SEQ2SEQ[name], dropout=0.1))
            updater = Updater(network, TrainingConfig(seed=5, scheduled_sampling=sampling), "float32")
            for step in (1, 2, 3):
                updater.update(pairs().parts(step - 1), step, 1e-2, step / 3)
            weights.append(network.state_dict())
        assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_recurrent_language_model_and_packed_texts_read_their_own_tokens() -> None:
    network = network_of(changed(NETWORK, architecture="recurrent-lm", recurrent=RecurrentConfig("lstm")))
    ids = torch.randint(4, 23, (6, 8), generator=torch.Generator().manual_seed(1))
    batch = Batch({"ids": ids[:, :-1]}, {"vocabulary": ids[:, 1:].clone()})
    loss, _ = losses(network, batch, Call(own=own(batch, 1.0)))["vocabulary"]
    fed = ids[:, :1]
    for _ in range(6):
        fed = torch.cat([fed, network(fed).logits[:, -1].argmax(-1)[:, None]], dim=1)
    torch.testing.assert_close(loss, plain_loss(network, network(fed).hidden, ids[:, 1:]))
    network = network_of(changed(NETWORK, architecture="decoder"))
    ids = torch.tensor([[2, 5, 6, 3, 2, 7, 8, 9]])
    labels = torch.tensor([[5, 6, 3, -1, 7, 8, 9, 3]])
    texts = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    batch = Batch({"ids": ids}, {"vocabulary": labels}, causal() & documents(texts))
    inputs: list[Tensor] = []
    handle = network.register_forward_pre_hook(lambda *call: inputs.append(call[2]["ids"]), with_kwargs=True)
    losses(network, batch, Call(own=own(batch, 1.0)))
    handle.remove()
    first, second = inputs
    assert torch.equal(first, ids)
    assert second[0, 0] == 2 and second[0, 4] == 2
    predicted = network(ids, mask=batch.mask).logits.argmax(-1)
    assert second[0, [1, 2, 3, 5, 6, 7]].tolist() == predicted[0, [0, 1, 2, 4, 5, 6]].tolist()
    # With gold tokens drawn for every input, two passes give the bits of one
    network = network_of(changed(NETWORK, dropout=0.2))
    batch = next(iter(pairs().parts(0))).batch
    nothing_chosen = own(batch, 1e-12)
    plain = losses(network, batch, Call(Randomness(5, 1)))["vocabulary"][0]
    twice = losses(network, batch, Call(Randomness(5, 1), own=nothing_chosen))["vocabulary"][0]
    assert torch.equal(plain, twice)


def test_the_draws_are_a_function_of_seed_step_row_and_position_whatever_the_parts_and_follow_the_model() -> None:
    for tokens in ("argmax", "sample"):
        sums, shapes = [], []
        for micro_batches in (1, 3):
            torch.manual_seed(0)
            network = build_network(NETWORK).double()
            sampling = ScheduledSamplingConfig(0.6, k=1e-9, c=1.0, tokens=tokens)
            updater = Updater(network, TrainingConfig(seed=5, scheduled_sampling=sampling), "float32")
            parts = list(pairs().parts(2, micro_batches))
            shapes.append(len(parts))
            sums.append(updater.update(parts, 3, 1e-2, 0.5)[0]["vocabulary"])
        assert shapes[1] > shapes[0]
        assert sums[0].nll == pytest.approx(sums[1].nll, rel=1e-12)
    rows = np.array([4, 9, 1])
    chosen = OwnTokens(0.5, False, 7, 3, rows).chosen(40)
    assert np.array_equal(OwnTokens(0.5, False, 7, 3, rows[[2, 0]]).chosen(60)[:, :40], chosen[[2, 0]])
    for other in (OwnTokens(0.5, False, 8, 3, rows), OwnTokens(0.5, False, 7, 4, rows)):
        assert not np.array_equal(other.chosen(40), chosen)
    many = OwnTokens(0.3, False, 7, 3, np.arange(1000)).chosen(50)
    assert abs(many.mean() - 0.3) < 3 * math.sqrt(0.3 * 0.7 / many.size)
    assert abs(np.corrcoef(many[:, :-1].reshape(-1), many[:, 1:].reshape(-1))[0, 1]) < 4 / math.sqrt(many.size)
    network = network_of(NETWORK)
    hidden = torch.randn(1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).expand(4000, 1, 16)
    sampling = OwnTokens(1.0, True, 7, 3, np.arange(4000))
    tokens = sampling.tokens(network, hidden, torch.ones(4000, 1, dtype=torch.bool))
    probs = network.project(hidden[0, 0]).softmax(-1).detach().numpy()
    rates = np.bincount(tokens.numpy(), minlength=23) / 4000
    assert (abs(rates - probs) < 4 * np.sqrt(probs * (1 - probs) / 4000) + 1e-9).all()


DATA = {"train": [{"world": "train", "count": 40}]}
