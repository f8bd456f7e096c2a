"""One process of a contender of `atento bench processes`: trains alone, or with others that torchrun has started."""

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from atento.config.sections.training import ParallelConfig, TrainingConfig
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.training.allocator import raise_trim_threshold
from atento.training.replica.environment import rank, world_size
from atento.training.replica.joined import replica_joined
from atento.training.replica.local import GradientSum
from atento.training.step import Updater
from benchmarks.training import SIZES, marian, marian_loss, natural_lengths, padded, pairs_of

_SENTENCES = 6000
_WARM_UP = 3  # updates before the measurement, in which kernels are compiled and memory grows
_PAUSE = 0.2  # seconds after the last update
_FEWEST = 3  # updates that are measured
NETWORKS = SIZES
Update = Callable[[int], int]  # the number of an update -> the real targets that this process computes
Trainer = tuple[Update, list[float]]  # and the seconds in which gradients were summed, if they are measured


@dataclass(frozen=True)
class Work:
    """What a contender does.

    Attributes:
        who: a name of `SIDES`.
        size: a name of `NETWORKS`.
        precision: "float32" or "bfloat16".
        tokens: real target tokens of an update, of all processes.
        seconds: about how long it is measured.
        threads: CPU threads of each process.
        cores: processors that the processes share; empty: all of this machine.
    """

    who: str
    size: str
    precision: str
    tokens: int
    seconds: float
    threads: int
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rate:
    """Real target tokens of all processes, the seconds they took, and the processor time of all.

    `summing_seconds` are those of the seconds in which the gradients of the processes were summed; None: not measured.
    """

    tokens: int
    seconds: float
    processor_seconds: float
    summing_seconds: float | None = None


@dataclass
class TimedSum:
    """A sum of gradients that notes how long it takes over all processes, which begin it together."""

    inner: GradientSum
    seconds: list[float] = field(default_factory=list)

    def add(self, number: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Take in the gradients of a part."""
        self.inner.add(number, gradients)

    def finish(self) -> None:
        """Sum over all processes."""
        begun = time.perf_counter()
        self.inner.finish()
        self.seconds.append(time.perf_counter() - begun)


@contextmanager
def ours(work: Work) -> Iterator[Trainer]:
    """Atento: the parts of each update are dealt to the processes; one process has one part a thread at a time."""
    raise_trim_threshold()
    config = NETWORKS[work.size]
    source, target = natural_lengths(_SENTENCES, config.vocab_size)
    batches = parallel(source, target, budget=work.tokens, seed=1, pad_id=0, start_id=2, eos_id=3)
    with replica_joined(ParallelConfig(), "cpu") as replica:
        torch.manual_seed(1)
        seconds, inner = list[float](), replica.gradient_sum
        if world_size() > 1:
            timed = lambda weights, parts: TimedSum(inner(weights, parts), seconds)  # noqa: E731
            replica.gradient_sum = timed  # type: ignore[method-assign]
        updater = Updater(build_network(config), TrainingConfig(learning_rate=1e-4), work.precision, replica=replica)

        def update(number: int) -> int:
            parts = list(batches.parts(number, 1, replica.ours()))
            updater.update(parts, number + 1, 1e-4)
            return sum(part.batch.targets for part in parts)

        yield update, seconds


@contextmanager
def theirs(work: Work) -> Iterator[Trainer]:
    """Marian of `transformers` in the usual loop; several processes with DistributedDataParallel, a share of the pairs
    each."""
    config = NETWORKS[work.size]
    source, target = natural_lengths(_SENTENCES, config.vocab_size)
    torch.manual_seed(1)
    model: nn.Module = marian(config)
    several = world_size() > 1
    if several:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    permutation = np.random.default_rng(1).permutation(len(source))
    size = pairs_of(target, work.tokens)

    def update(number: int) -> int:
        begin = (number * size) % (len(permutation) - size)
        inputs = padded(source, target, permutation[begin : begin + size][rank() :: world_size()].astype(np.int64))
        marian_loss(model, inputs, work.precision).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return int((inputs["labels"] >= 0).sum())

    yield update, []
    if several:
        dist.destroy_process_group()


@contextmanager
def accelerated(work: Work) -> Iterator[Trainer]:
    """Marian of `transformers` in a loop of `accelerate`, which wraps model, optimizer and data."""
    accelerate = importlib.import_module("accelerate")
    config = NETWORKS[work.size]
    source, target = natural_lengths(_SENTENCES, config.vocab_size)
    torch.manual_seed(1)
    model = marian(config)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16" if work.precision == "bfloat16" else "no")
    loader: Any = torch.utils.data.DataLoader(
        range(len(source)),  # type: ignore[arg-type]
        batch_size=max(1, pairs_of(target, work.tokens) // world_size()),
        shuffle=True,
        drop_last=True,
        collate_fn=lambda rows: padded(source, target, np.array(rows, dtype=np.int64)),
    )
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loader)
    batches = (inputs for _ in count() for inputs in loader)

    def update(number: int) -> int:
        inputs = next(batches)
        accelerator.backward(marian_loss(model, inputs, "float32"))  # its autocast is accelerate's
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return int((inputs["labels"] >= 0).sum())

    yield update, []
    accelerator.end_training()


SIDES = {"atento": ours, "transformers": theirs, "accelerate": accelerated}


def measured(trainer: Trainer, seconds: float) -> Rate:
    """Take updates for about so many seconds, as many on all processes, after a warm-up."""
    update, summing = trainer
    for number in range(_WARM_UP):
        begun = time.perf_counter()
        update(number)
    updates = max(_FEWEST, math.ceil(seconds / _of_all(time.perf_counter() - begun, dist.ReduceOp.MAX)))
    summing.clear()
    begun, processor = time.perf_counter(), time.process_time()
    tokens = sum(update(number) for number in range(_WARM_UP, _WARM_UP + updates))
    processor = time.process_time() - processor
    duration = _of_all(time.perf_counter() - begun, dist.ReduceOp.MAX)  # until the last process is done
    processor = _of_all(processor, dist.ReduceOp.SUM)
    return Rate(round(_of_all(tokens, dist.ReduceOp.SUM)), duration, processor, sum(summing) if summing else None)


def _of_all(value: float, operation: object) -> float:
    """The sum or the highest of the values of all processes."""
    result = torch.tensor([value], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(result, operation)
    return float(result)


def main() -> None:
    """Do the work of the first argument; the first process writes its rate to the file of the second one."""
    about = json.loads(sys.argv[1])
    work = Work(**about | {"cores": tuple(about["cores"])})
    if work.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, work.cores)
    torch.set_num_threads(work.threads)
    with SIDES[work.who](work) as trainer:
        rate = measured(trainer, work.seconds)
        # DDP waits at its end for gloo's thread, with Python's lock held that the thread needs to drop the last tensors
        # (pytorch/pytorch#56297): without a moment for it, both sometimes wait for ever
        time.sleep(_PAUSE)
    if rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(asdict(rate)), encoding="utf-8")


if __name__ == "__main__":
    main()
