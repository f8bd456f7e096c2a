"""The exposure laboratory: what a decoder loses when it reads its own tokens, and what scheduled sampling changes.

Small networks translate sentences of the micro-world. After training by teacher forcing, and by scheduled sampling with
each schedule, it measures by step of the target: the loss of the right token after the right prefix, the same after the
network's own prefix, and the same after a wrong word. See docs/notes.md#f3, #j5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import torch
from torch import Tensor

from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.recurrent import RecurrentConfig
from atento.config.sections.training import Schedule, ScheduledSamplingConfig, TrainingConfig
from atento.data.batches.batch import Batch, Ragged
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.sequence_to_sequence import HEAD, parallel
from atento.networks import build_network
from atento.tasks.prefixes import by_step, free_running, losses_by_step, shifted
from atento.training.optimizer import learning_rate
from atento.training.scheduled_sampling import SCHEDULES
from atento.training.step import Updater
from atento_lab.studies.seeds import Row, interval
from atento_lab.studies.workers import results
from atento_world import write

TEACHER_FORCING = "teacher forcing"
TRAININGS = (TEACHER_FORCING, *SCHEDULES)
PLANTED_AT = 2  # the step whose token is replaced by a wrong one, from 0
_USUAL_SECONDS = 30.0  # the value of `--seconds` that gives the usual number of updates


@dataclass(frozen=True)
class Size:
    """The size of the laboratory: the networks' width, training and test sentences, updates, seeds, largest share."""

    d_model: int = 64
    sentences: int = 8000
    texts: int = 200
    updates: int = 400
    batch_tokens: int = 768
    seeds: int = 2
    share: float = 0.5


@dataclass(frozen=True)
class Job:
    """One training run: the kind of network, the training, the seed."""

    network: str
    training: str
    seed: int
    size: Size


def measure_exposure(seconds: float) -> Iterator[dict[str, object]]:
    """Run the laboratory; yield a row for each network and training.

    Args:
        seconds: scales the updates; 30 gives the usual number.
    """
    usual = Size()
    size = Size(updates=max(2, round(usual.updates * seconds / _USUAL_SECONDS)))
    yield from measure(size, workers=torch.get_num_threads())


def measure(size: Size, workers: int, trainings: Sequence[str] = TRAININGS) -> Iterator[Row]:
    """Yield a row for each network and training: curves by step, the mean of all seeds, and numbers with intervals."""
    jobs = [
        Job(network, training, seed, size)
        for network in networks(size, 0)
        for training in trainings
        for seed in range(1, size.seeds + 1)
    ]
    of_seeds: list[dict[str, object]] = []
    for job, result in zip(jobs, results(run, jobs, workers)):
        of_seeds.append(result)
        if len(of_seeds) == size.seeds:
            yield _row(job, of_seeds)
            of_seeds = []


def _row(job: Job, of_seeds: list[Row]) -> Row:
    row: dict[str, object] = {"bench": "exposure", "network": job.network, "training": job.training}
    row |= {"updates": job.size.updates, "seeds": job.size.seeds, "share": job.size.share, "planted_at": PLANTED_AT}
    for name, first in of_seeds[0].items():
        if isinstance(first, list):
            row[name] = [round(float(value), 4) for value in np.mean([result[name] for result in of_seeds], axis=0)]
        else:
            mean, within = interval([float(result[name]) for result in of_seeds])
            row[name] = {"mean": round(mean, 4), "within": None if within is None else round(within, 4)}
    return row


def networks(size: Size, vocab_size: int) -> dict[str, NetworkConfig]:
    """Return the networks that are compared: a recurrent one with attention, and a Transformer, of one layer each."""
    width = {"d_model": size.d_model, "d_ff": 2 * size.d_model, "n_heads": 4, "n_layers": 1, "dropout": 0.1}
    transformer = changed(NetworkConfig(), {"vocab_size": vocab_size, **width})
    recurrent = changed(transformer, {"architecture": "recurrent-seq2seq", "recurrent": RecurrentConfig("gru")})
    return {"recurrent": recurrent, "transformer": transformer}


def run(job: Job) -> Row:
    """Train a network, and measure it on held-out combinations."""
    vocab_size, train, test = world(job.size.sentences, job.size.texts)
    torch.manual_seed(job.seed)
    network = build_network(networks(job.size, vocab_size)[job.network])
    config = training_config(job)
    batches = pairs(train, job.size.batch_tokens, job.seed, network.config)
    updater = Updater(network, config, "float32")
    for step in range(1, config.steps + 1):
        rate = learning_rate(config, step, config.steps)
        updater.update(batches.parts(step - 1), step, rate, step / config.steps)
    network.eval()
    tests = pairs(test, job.size.batch_tokens, job.seed, network.config)
    return exposure(network, tests.batch(np.arange(len(tests))), job.seed)


def training_config(job: Job) -> TrainingConfig:
    """Return the configuration of a training run: Adam with a cosine schedule, and the job's scheduled sampling."""
    sampling = ScheduledSamplingConfig()
    if job.training != TEACHER_FORCING:
        sampling = ScheduledSamplingConfig(job.size.share, cast(Schedule, job.training))
    return TrainingConfig(
        steps=job.size.updates,
        learning_rate=4e-3,
        warmup=max(1, job.size.updates // 10),
        schedule="cosine",
        label_smoothing=0.0,
        seed=job.seed,
        scheduled_sampling=sampling,
    )


@torch.inference_mode()
def exposure(network: object, batch: Batch, seed: int) -> Row:
    """Measure one network on a batch of pairs.

    Returns:
        Curves by step, mean nats of the right token: "gold" after the right prefix, "own" after the network's own,
        "planted" after a wrong word at step `PLANTED_AT` and the right ones elsewhere (equal to "gold" up to it). And
        numbers: "gold nll" and "own nll" over all tokens; "gap", their difference; "exact", the share of the sentences
        that it writes right; "recovered", the share that it ends right after the wrong word.
    """
    labels, gold_inputs = batch.labels[HEAD], batch.inputs["target_ids"]
    gold = losses_by_step(network, batch, gold_inputs)
    written = free_running(network, batch, labels.shape[1])
    own = losses_by_step(network, batch, shifted(written, gold_inputs))
    planted_inputs = gold_inputs.clone()
    # the input of step t + 1 is the word of step t
    planted_inputs[:, PLANTED_AT + 1] = wrong_words(labels[:, PLANTED_AT], seed)
    planted = losses_by_step(network, batch, planted_inputs)
    continued = free_running(network, batch, labels.shape[1], planted_inputs[:, 1 : PLANTED_AT + 2])
    real = labels >= 0
    long_enough = real.sum(dim=1) > PLANTED_AT + 1  # a word is left after the wrong one
    after = real.clone()
    after[:, : PLANTED_AT + 1] = False
    numbers = {
        "gold nll": float(gold[real].mean()),
        "own nll": float(own[real].mean()),
        "gap": float(own[real].mean() - gold[real].mean()),
        "exact": _equal(written, labels, real),
        "recovered": _equal(continued[long_enough], labels[long_enough], after[long_enough]),
    }
    return {"gold": by_step(gold, real), "own": by_step(own, real), "planted": by_step(planted, real)} | numbers


def wrong_words(right: Tensor, seed: int) -> Tensor:
    """Return for each right word (B,) another word of the same step, that of another sentence, drawn with the seed."""
    generator = np.random.default_rng(seed)
    words = right.tolist()
    real = [word for word in words if word >= 0]
    return torch.tensor([generator.choice([other for other in real if other != word]) for word in words])


def _equal(written: Tensor, labels: Tensor, compared: Tensor) -> float:
    """Return the share of rows that are right at all compared positions; tokens (B,T)."""
    return float(((written == labels) | ~compared).all(dim=1).double().mean()) if len(written) else 0.0


@cache
def world(sentences: int, texts: int) -> tuple[int, tuple[Ragged, Ragged], tuple[Ragged, Ragged]]:
    """Return the micro-world in word ids: the vocabulary size, training pairs, and pairs of held-out combinations."""
    first = NetworkConfig().eos_id + 1  # ids below are special
    train, test = write("train", sentences), write("combinations", texts)
    words = sorted({word for pair in train for word in (*pair.source_words, *pair.target_words)})
    ids = {word: first + 1 + number for number, word in enumerate(words)}

    def side(written: Sequence[Sequence[str]]) -> Ragged:
        return Ragged([[ids.get(word, first) for word in sentence] for sentence in written])

    train_pairs, test_pairs = (
        (side([pair.source_words for pair in split]), side([pair.target_words for pair in split]))
        for split in (train, test)
    )
    return first + 1 + len(words), train_pairs, test_pairs


def pairs(sides: tuple[Ragged, Ragged], budget: int, seed: int, config: NetworkConfig) -> PlannedBatches:
    """Return the batches of parallel sentences."""
    source, target = sides
    ids = {"pad_id": config.pad_id, "start_id": config.start_id, "eos_id": config.eos_id}
    return parallel(source, target, budget=budget, seed=seed, **ids)
