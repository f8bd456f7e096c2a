"""Checks of scheduled sampling and exposure bias (docs/notes.md#f2, #f3, #j5)."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from atento.config.sections.recurrent import RecurrentConfig
from atento.config.sections.training import ScheduledSamplingConfig
from atento.data.batches.batch import Batch, Ragged
from atento.data.objectives.sequence_to_sequence import HEAD, parallel
from atento.networks import Network
from atento.networks.recurrent.seq2seq import RecurrentSeq2Seq
from atento.tasks.prefixes import by_step, free_running, losses_by_step, shifted
from atento.training.losses import Call, losses
from atento.training.scheduled_sampling import OwnTokens, own_share
from atento_lab.notes.checks.attention import EXACT, apart
from atento_lab.notes.checks.shared_network import trained
from atento_lab.notes.checks.tiny import Adam, gold_batch, tiny_network
from atento_lab.notes.drawing import heat, labelled, sheet
from atento_lab.notes.finding import AtLeast, Finding, compare

_PREFIXES = ("right prefix", "own prefix")


def scheduled_sampling() -> Finding:
    """F2: the share of the model's own words grows as in the paper; share 0 is teacher forcing, bit for bit."""
    done, k, c = 80, {"linear": 1.0, "exponential": 0.99, "inverse-sigmoid": 40.0}, 0.004
    configs = {
        "linear": ScheduledSamplingConfig(1.0, "linear", k["linear"], c),
        "exponential": ScheduledSamplingConfig(1.0, "exponential", k["exponential"]),
        "inverse-sigmoid": ScheduledSamplingConfig(1.0, "inverse-sigmoid", k["inverse-sigmoid"]),
    }
    formulas = {
        "linear": 1 - (k["linear"] - c * done),
        "exponential": 1 - k["exponential"] ** done,
        "inverse-sigmoid": 1 - k["inverse-sigmoid"] / (k["inverse-sigmoid"] + math.exp(done / k["inverse-sigmoid"])),
    }
    batch = gold_batch("I love NLP", "Eu amo PLN")
    transformer = tiny_network(vocab_size=12)
    changes = {"architecture": "recurrent-seq2seq", "recurrent": RecurrentConfig("gru")}
    recurrent = RecurrentSeq2Seq(tiny_network(vocab_size=12, **changes).config).double().eval()
    other = gold_batch("I love NLP", "PLN gostar Eu")
    for network in (transformer, recurrent):
        _learn(network, replace(batch, labels=other.labels), other)  # after the right words, and after its own
    with torch.no_grad():
        two_passes, by_steps = (_sampled_loss(network, batch, 1.0) for network in (transformer, recurrent))
        predicted = transformer(**batch.inputs).logits.argmax(dim=-1)
        inputs = shifted(predicted, batch.inputs["target_ids"])
        written = free_running(recurrent, batch, predicted.shape[1])
        of_own = losses_by_step(recurrent, batch, shifted(written, batch.inputs["target_ids"])).sum()
        teacher_forced = losses(transformer, batch, Call())[HEAD][0]
        nothing_sampled = _sampled_loss(transformer, batch, 0.0)
    return compare(
        {
            "different own words, the fewer of both networks": min(
                len(set(ids[0].tolist())) for ids in (predicted, written)
            ),
            "share after 80 updates": {name: own_share(config, done + 1, 1000) for name, config in configs.items()},
            "Transformer, two passes: away": apart(two_passes, losses_by_step(transformer, batch, inputs).sum()),
            "recurrent, step by step: away": apart(by_steps, of_own),
            "share 0 has the bits of teacher forcing": torch.equal(teacher_forced, nothing_sampled),
        },
        {
            "different own words, the fewer of both networks": AtLeast(
                2
            ),  # else a word of another position would be the same
            "share after 80 updates": formulas,
            "Transformer, two passes: away": EXACT,
            "recurrent, step by step: away": EXACT,
            "share 0 has the bits of teacher forcing": True,
        },
        remark="`training.scheduled_sampling` in a recipe; no gradient flows through the sampled words",
    )


def _learn(network: Network, *batches: Batch) -> None:
    """Train a network for a few steps, so that it does not predict the same word everywhere."""
    adam = Adam(network.parameters(), 0.01)
    for _ in range(40):
        for batch in batches:
            torch.autograd.backward(losses(network, batch, Call())[HEAD][0])
        adam.step()


def _sampled_loss(network: Network, batch: Batch, share: float) -> Tensor:
    own = OwnTokens(share, False, seed=1, step=1, rows=np.arange(len(batch.labels[HEAD])))
    return losses(network, batch, Call(own=own))[HEAD][0]


@cache
def _curves() -> tuple[list[float], list[float]]:
    """Mean nats by step on unseen pairs, after the right prefix and after the network's own."""
    model, unseen = trained().model, trained().unseen
    assert model.tokenizer is not None
    config, tokenizer = model.network.config, model.tokenizer
    batches = parallel(
        Ragged([tokenizer.encode(pair.source) for pair in unseen]),
        Ragged([tokenizer.encode(pair.target) for pair in unseen]),
        budget=512,
        seed=0,
        pad_id=config.pad_id,
        start_id=config.start_id,
        eos_id=config.eos_id,
    )
    batch = batches.batch(np.arange(len(unseen)))
    labels = batch.labels[HEAD]
    written = free_running(model.network, batch, labels.shape[1])
    with torch.inference_mode():
        gold = losses_by_step(model.network, batch, batch.inputs["target_ids"])
        own = losses_by_step(model.network, batch, shifted(written, batch.inputs["target_ids"]))
    return by_step(gold, labels >= 0), by_step(own, labels >= 0)


def exposure_bias() -> Finding:
    """F3: after its own prefix a trained decoder loses more nats than after the right one."""
    gold, own = _curves()
    added = [after_own - after_gold for after_gold, after_own in zip(gold, own, strict=True)]
    steps = [str(step + 1) for step in range(len(gold))]
    return compare(
        {"added at the first step": added[0], "added at the later steps, mean": sum(added[1:]) / len(added[1:])},
        {"added at the first step": 0.0, "added at the later steps, mean": AtLeast(0.1)},
        drawing=labelled([gold, own], _PREFIXES, steps),
        remark="`atento bench exposure` measures what scheduled sampling makes of it",
    )


def exposure_drawn() -> Finding:
    """J5: the loss of each step of the target, from a trained network."""
    gold, own = _curves()
    steps = [str(step + 1) for step in range(len(gold))]
    title = "Nats of the right word by step, after the right words and after the network's own"
    figure = sheet("Teacher forcing and free running", [[heat([gold, own], title, _PREFIXES, steps)]])
    return compare(
        {
            "numbers drawn": figure.count('text-anchor="middle">') - len(steps),
            "first step alike": gold[0] == own[0],
            "own prefix costs more, later": sum(own[1:]) > sum(gold[1:]),
        },
        {"numbers drawn": 2 * len(steps), "first step alike": True, "own prefix costs more, later": True},
        drawing=labelled([gold, own], _PREFIXES, steps),
        figure=figure,
    )
