"""A program that torchrun runs as one process: training with weights sharded by FSDP2 on one device, beside whole ones.

`torchrun --standalone --nproc-per-node 1 -m tools.gpu_sharded --device cuda --seconds 5` prints rows of JSON. One
shard has all rows, so the losses are those of whole weights; what differs is gathering, and the memory it needs.
"""

import argparse
import json
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from atento.config.sections.training import ParallelConfig, TrainingConfig
from atento.data.objectives.sequence_to_sequence import HEAD, parallel
from atento.networks import build_network
from atento.training.replica.data_parallel import Processes
from atento.training.replica.local import Replica
from atento.training.replica.sharded_weights import shards_of
from atento.training.step import Updater
from benchmarks.devices import device_of, forget_peak, peak_row, precisions_of, wait
from benchmarks.training import SIZES, natural_lengths

_TOKENS, _SENTENCES = 4096, 6000  # as in `training`
_COMPARED = 3  # updates whose losses are compared


class OneShard(Processes):
    """One process whose weights `fully_shard` holds, which `training.parallel` asks for from two processes on."""

    def __init__(self, device: str) -> None:
        super().__init__(ParallelConfig(), device)
        self.shards = shards_of(device, 1, self._group, self.answered)


def measure(seconds: float, device: str, size: str) -> Iterator[dict[str, object]]:
    """Yield rows of target tokens per second, peak MiB on a GPU, and the losses of the first updates."""
    for precision in dict.fromkeys((precisions_of(device)[0], "float32")):
        for who, make in (("whole", lambda: Replica()), ("sharded", lambda: OneShard(device))):
            forget_peak()
            yield {"bench": "sharded", "size": size, "who": who, "precision": precision} | _trained(
                make(), seconds, device, size, precision
            )


def _trained(replica: Replica, seconds: float, device: str, size: str, precision: str) -> dict[str, object]:
    torch.manual_seed(1)
    config = SIZES[size]
    source, target = natural_lengths(_SENTENCES, config.vocab_size)
    batches = parallel(source, target, budget=_TOKENS, seed=1, pad_id=0, start_id=2, eos_id=3)
    updater = Updater(build_network(config).to(device), TrainingConfig(learning_rate=1e-4), precision, replica=replica)
    losses: list[float] = []
    start, tokens, update = 0.0, 0, 0
    while update < _COMPARED or time.perf_counter() - start < seconds:
        sums, _ = updater.update(batches.parts(update), update + 1, 1e-4)
        update += 1
        if update <= _COMPARED:
            losses.append(round(sums[HEAD].loss / sums[HEAD].targets, 4))
            wait()
            start, tokens = time.perf_counter(), 0
        else:
            tokens += sums[HEAD].targets
    wait()
    row: dict[str, object] = {"target_tokens_per_second": round(tokens / (time.perf_counter() - start))}
    return row | peak_row() | {"losses": losses}


def main() -> None:
    """Join the group of one process, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--size", default="transformer-base", choices=SIZES)
    given = parser.parse_args()
    device = device_of(given.device)
    dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
    for row in measure(given.seconds, device, given.size):
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
