"""Pretraining throughput compared with `transformers`: masked and causal language modelling and span corruption.

Documents of natural lengths; real input tokens per second, padding, and the share of the machine's matrix rate.
"""

import importlib.util
import time
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F

from atento.base.errors import CapabilityError
from benchmarks.devices import device_of, peers_of, precisions_of, wait
from benchmarks.pretraining_sides import OURS, Ours, Theirs, Work
from benchmarks.processes import Contender, Measurement, Side, about, alternate, peak_mib

_TOKENS = 4096  # real tokens of an update
_ROUNDS = 2
_MATRIX = (2048, 768, 3072)  # rows, inputs and outputs of the product that measures the machine's rate
_Made = tuple[type[Contender], tuple[object, ...]]  # a contender and the arguments that load it


def measure_pretraining(
    seconds: float, *, device: str = "cpu", size: str = "base", tokens: int = _TOKENS
) -> Iterator[dict[str, object]]:
    """Yield rows of real tokens per second for each kind of pretraining and contender; the ratios come last.

    Args:
        seconds: about how long each contender is measured.
        device: "auto", "cpu" or "cuda".
        size: a name of `SIZES`.
        tokens: real tokens of an update.
    """
    device = device_of(device)
    best, *others = precisions_of(device)
    yield about("pretraining", size, ("transformers",))
    has_peer = importlib.util.find_spec("transformers") is not None
    if not has_peer:
        yield {"bench": "pretraining", "who": "transformers", "skipped": "pip install transformers"}
    for kind, packings in OURS.items():
        contenders: dict[str, _Made] = {
            f"atento {best} {packing}".rstrip(): (Ours, (kind, size, best, packing, tokens, device))
            for packing in packings
        }
        if "float16" in others:
            contenders[f"atento float16 {packings[-1]}".rstrip()] = (
                Ours,
                (kind, size, "float16", packings[-1], tokens, device),
            )
        if has_peer:
            for precision in dict.fromkeys((*others[::-1], best)):
                for who, attention in peers_of(device, precision):
                    contenders[f"{who} {precision}"] = (Theirs, (kind, size, precision, tokens, device, attention))
        measured: dict[str, list[Measurement]] = {}
        rounds = _ROUNDS if device == "cpu" else 1  # to load one takes a GPU as long as a round
        yield from _by_turns(kind, contenders, seconds, rounds, measured)
        yield from _rows(kind, measured, matrix_rate(best, device=device), best)


def _by_turns(
    network: str, contenders: Mapping[str, _Made], seconds: float, rounds: int, measured: dict[str, list[Measurement]]
) -> Iterator[dict[str, object]]:
    """Measure the contenders one after the other, in rounds; each is alone in memory, of which some need half.

    Yield a row for each that cannot run.
    """
    refused: dict[str, str] = {}
    for _ in range(rounds):
        for who, (kind, arguments) in contenders.items():
            if who in refused:
                continue
            try:
                with Side(kind, *arguments) as side:
                    measured.setdefault(who, []).extend(alternate({who: side}, 1, seconds / rounds, rounds=1)[who])
            except CapabilityError as error:
                refused[who] = str(error)
                yield {"bench": "pretraining", "network": network, "who": who, "skipped": refused[who]}


def _rate(runs: list[Measurement]) -> float:
    """Real tokens per second of the best round."""
    return max(float(run.result.real) / run.seconds for run in runs)


def _rows(
    kind: str, measurements: Mapping[str, list[Measurement]], peak: float, best: str
) -> Iterator[dict[str, object]]:
    for who, runs in measurements.items():
        fastest = min(runs, key=lambda run: run.seconds / run.result.real)
        work: Work = fastest.result
        yield {
            "bench": "pretraining",
            "network": kind,
            "who": who,
            "real_tokens_per_second": round(_rate(runs)),
            "padding": round(1 - sum(run.result.real for run in runs) / sum(run.result.computed for run in runs), 3),
            "gflops_per_second": round(work.flops / fastest.seconds / 1e9),
            **({"share_of_matrix_rate": round(work.flops / fastest.seconds / peak, 2)} if best in who else {}),
            "peak_mib": peak_mib(runs),
            "rounds": len(runs),
        }
    yield {"bench": "pretraining", "network": kind, "matrix_gflops_per_second": round(peak / 1e9), "precision": best}
    for who, runs in measurements.items():
        if who.startswith("atento") and "transformers float32" in measurements:
            precision = who.split()[1]
            row: dict[str, object] = {
                "bench": "pretraining",
                "network": kind,
                "who": who,
                "ratio_to_transformers_as_it_comes": _times_as_fast(runs, measurements["transformers float32"]),
                "ratio_at_the_same_precision": _times_as_fast(runs, measurements[f"transformers {precision}"]),
            }
            flash = measurements.get(f"transformers flash {precision}")
            yield row if flash is None else row | {"ratio_to_flash": _times_as_fast(runs, flash)}


def _times_as_fast(ours: list[Measurement], theirs: list[Measurement]) -> float:
    return round(_rate(ours) / _rate(theirs), 2)


@torch.no_grad()
def matrix_rate(precision: str, repeats: int = 20, device: str = "cpu") -> float:
    """Return the floating-point operations per second of a product of the size of BERT-base's feed-forward layer."""
    rows, inputs, outputs = _MATRIX
    dtype: torch.dtype = getattr(torch, precision)
    x, weight = (torch.randn(size, inputs, dtype=dtype, device=device) for size in (rows, outputs))
    at_once = 1 if device == "cpu" else 50  # a product takes a GPU as long as it takes to launch one and wait for it
    F.linear(x, weight)
    durations = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        for _ in range(at_once):
            F.linear(x, weight)
        wait()
        durations.append(time.perf_counter() - start)
    return 2 * rows * inputs * outputs * at_once / min(durations)  # a multiplication and an addition each
