"""Decoding on a GPU: CUDA graphs compared with plain steps and `transformers`, and their memory bandwidth.

The cells and weights are those of `decoding`. A step of few rows is limited by the time to read its weights and caches,
so the bytes per step times steps per second, compared with the bandwidth of a plain copy, show the possible gain.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from atento.config.sections.network import NetworkConfig
from atento.inference.graphs import ROOM
from atento.networks import build_network
from atento.networks.stack.stack_decoders import EncoderDecoder
from benchmarks.decoding import CELLS, SIZES, Comparison, compare
from benchmarks.decoding_sides import Ours, Transformers, Work, write_weights
from benchmarks.devices import device_of, wait
from benchmarks.processes import Contender, about

_BYTES = {"float32": 4, "bfloat16": 2}
_COMPARISONS: tuple[Comparison, ...] = (
    ("fastest", "transformers bfloat16", None),
    ("atento float32", "transformers float32", None),
    ("atento float32", "atento plain", None),
)


def measure_graphs(
    seconds: float,
    *,
    device: str = "auto",
    size: str = "transformer-base",
    cells: Sequence[Work] = CELLS,
    rounds: int = 3,
) -> Iterator[dict[str, object]]:
    """Yield rows of tokens per second, ours with GB/s read; then the ratios.

    Without a GPU, yield one row that says so.
    """
    if device == "auto" and not torch.cuda.is_available():
        yield {"bench": "graphs", "skipped": "needs a CUDA GPU"}
        return
    device = device_of(device)
    copied = copy_speed(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "weights"
        write_weights(folder, SIZES[size])
        sides: dict[str, tuple[type[Contender], tuple[object, ...]]] = {
            "transformers float32": (Transformers, (folder, device)),
            "transformers bfloat16": (Transformers, (folder, device, "bfloat16")),
            "atento plain": (Ours, (folder, "plain", device)),
            "atento float32": (Ours, (folder, "float32", device, True)),
            "atento bfloat16": (Ours, (folder, "bfloat16", device, True)),
        }
        yield about("graphs", size, ("transformers",)) | {"copy_gb_s": round(copied / 1e9, 1)}
        works = {(len(work.lengths), work.beam): work for work in cells}
        for row in compare("graphs", sides, cells, seconds / len(cells), rounds, _COMPARISONS):
            precision = row["who"].removeprefix("atento ")
            if precision in _BYTES and "tokens_per_second" in row:
                work = works[row["sentences"], row["beam"]]
                steps = row["tokens_per_second"] / len(work.lengths)  # steps a second
                step_bytes = bytes_a_step(SIZES[size], work, precision)
                row |= {"mib_a_step": round(step_bytes / 2**20, 1), "read_gb_s": round(step_bytes * steps / 1e9, 3)}
                row["of_copy"] = round(step_bytes * steps / copied, 3)
            yield row


def bytes_a_step(config: NetworkConfig, work: Work, precision: str) -> int:
    """Return the bytes that a captured step reads: the decoder's weights, the output matrix and all caches."""
    with torch.device("meta"):
        network = build_network(config)
    assert isinstance(network, EncoderDecoder)
    weights = sum(parameter.numel() for parameter in network.decoder.parameters()) + network.projection.numel()
    heads = config.kv_heads
    token = 2 * heads * config.head_width * config.decoder_layers  # keys and values of one token
    once = (
        2 * heads * config.head_width * config.d_model * config.decoder_layers
    )  # cross-attention projections of the source, which a step does not read
    rows = len(work.lengths) * work.beam
    room = -(-work.new_tokens // ROOM) * ROOM  # ceil, to whole ROOMs
    return _BYTES[precision] * (weights - once + rows * token * (room + max(work.lengths)))


def copy_speed(device: str, mib: int = 256, rounds: int = 20) -> float:
    """Return the bytes per second that a copy reads and writes, the best of several rounds."""
    source = torch.ones(mib * 2**18, device=device)  # 2**18 numbers of four bytes are 1 MiB
    target = torch.empty_like(source)
    quickest = float("inf")
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        target.copy_(source)
        wait()
        quickest = min(quickest, time.perf_counter() - start)
    return 2 * source.nbytes / quickest  # each byte is read and written
