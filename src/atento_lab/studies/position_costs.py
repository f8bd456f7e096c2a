"""Cost of position schemes: parameters, operations, time and memory (docs/notes.md#b10)."""

import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from atento.networks import parameter_count
from atento_lab.studies.networks import PositionNetwork, Size, reader
from atento_lab.studies.tasks import TASKS


def measure_cost(size: Size, device: str, schemes: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield parameters, operations, time and memory of each scheme.

    Schemes alternate, so noise affects all of them alike.
    """
    generator = torch.Generator().manual_seed(1)
    vocab_size = TASKS["echo"].vocab_size()
    ids = torch.randint(vocab_size, (8, size.cost_length), generator=generator).to(device)
    networks = {
        scheme: reader("echo", scheme, size, 1, max_len=max(size.cost_length, 2 * size.long)).to(device)
        for scheme in schemes
    }

    def step(network: PositionNetwork) -> None:
        network.zero_grad()
        torch.autograd.backward(F.cross_entropy(network(ids).flatten(0, 1), ids.flatten()))

    milliseconds: dict[str, list[float]] = defaultdict(list)
    for repetition in range(8):
        for scheme, network in networks.items():
            _finish(device)
            start = time.perf_counter()
            step(network)
            _finish(device)
            if repetition:  # the first is a warm-up
                milliseconds[scheme].append((time.perf_counter() - start) * 1e3)
    for scheme, network in networks.items():
        with LiveMemory() as memory:
            step(network)
        network.zero_grad()
        yield {
            "bench": "positions",
            "task": "cost",
            "scheme": scheme,
            "length": size.cost_length,
            "parameters": parameter_count(reader("echo", scheme, size, 1)),  # with the trained length
            "mflops_a_token": round(_flops(network, min(64, size.cost_length)), 4),
            "ms_a_step": round(median(milliseconds[scheme]), 2),
            "peak_mib": round(memory.peak / 2**20, 2),
            "memory_growth": _growth(network, size, device, generator),
        }


def _finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _flops(network: PositionNetwork, tokens: int) -> float:
    """Return the millions of floating-point operations in matrix products per token, for a short text."""
    ids = torch.zeros(1, tokens, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        deepcopy(network).cpu()(ids)
    return float(counter.get_total_flops()) / tokens / 1e6


@torch.inference_mode()
def _growth(network: PositionNetwork, size: Size, device: str, generator: torch.Generator) -> float | None:
    """Return the ratio of the memory for a text twice as long, without training: 2 is O(L), 4 is O(L²)."""
    if not size.long:
        return None
    peaks: list[int] = []
    for length in (size.long, 2 * size.long):
        ids = torch.randint(TASKS["echo"].vocab_size(), (1, length), generator=generator).to(device)
        with LiveMemory() as memory:
            network.hidden(ids)
        peaks.append(memory.peak)
    return float(round(peaks[1] / peaks[0], 2))


class LiveMemory(TorchDispatchMode):
    """Measures the peak memory, in bytes, of the tensors created in a context.

    Use `with LiveMemory() as memory: ...` and read `memory.peak`.

    Temporary memory of kernels and earlier tensors do not count. Views of a storage count once.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.live, self.peak = 0, 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        """Run an operation and record the storages that it creates."""
        keywords = kwargs or {}
        before = {id(storage) for storage in _storages((args, keywords))}
        output = function(*args, **keywords)
        for storage in _storages(output):
            if id(storage) not in before and id(storage) not in self._known:
                self._known[id(storage)] = storage.nbytes()
                self.live += storage.nbytes()
                weakref.finalize(storage, self._freed, id(storage))
        self.peak = max(self.peak, self.live)
        return output

    def _freed(self, storage: int) -> None:
        self.live -= self._known.pop(storage)


def _storages(tree: object) -> list[UntypedStorage]:
    """Return the storages of all tensors in arguments or results."""
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
