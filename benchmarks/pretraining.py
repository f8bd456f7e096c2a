"""Pretraining throughput compared with `transformers`: masked and causal language modelling and span corruption.

Documents of natural lengths; real input tokens per second, padding, and the share of the machine's matrix rate.
"""

import importlib.util
import time
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F

from atento.precision import best_precision
from benchmarks.pretraining_sides import OURS, Ours, Theirs, Work
from benchmarks.processes import Contender, Measurement, Side, about, alternate, peak_mib

_TOKENS = 4096  # real tokens of an update
_ROUNDS = 2
_MATRIX = (2048, 768, 3072)  # rows, inputs and outputs of the product that measures the machine's rate
_Made = tuple[type[Contender], tuple[object, ...]]  # a contender and the arguments that load it


def measure_pretraining(seconds: float, *, size: str = "base", tokens: int = _TOKENS) -> Iterator[dict[str, object]]:
    """Yield rows of real tokens per second for each kind of pretraining and contender; the ratios come last.

    Args:
        seconds: about how long each contender is measured.
        size: a name of `SIZES`.
        tokens: real tokens of an update.
    """
    best = best_precision("cpu")
    yield about("pretraining", size, ("transformers",))
    has_peer = importlib.util.find_spec("transformers") is not None
    if not has_peer:
        yield {"bench": "pretraining", "who": "transformers", "skipped": "pip install transformers"}
    for kind, packings in OURS.items():
        contenders: dict[str, _Made] = {
            f"atento {best} {packing}".rstrip(): (Ours, (kind, size, best, packing, tokens)) for packing in packings
        }
        if has_peer:
            for precision in dict.fromkeys(("float32", best)):
                contenders[f"transformers {precision}"] = (Theirs, (kind, size, precision, tokens))
        yield from _rows(kind, _by_turns(contenders, seconds), matrix_rate(best), best)


def _by_turns(contenders: Mapping[str, _Made], seconds: float) -> dict[str, list[Measurement]]:
    """Measure the contenders one after the other, twice; each is alone in memory, of which some need half."""
    measured: dict[str, list[Measurement]] = {who: [] for who in contenders}
    for _ in range(_ROUNDS):
        for who, (kind, arguments) in contenders.items():
            with Side(kind, *arguments) as side:
                measured[who] += alternate({who: side}, 1, seconds / _ROUNDS, rounds=1)[who]
    return measured


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
            yield {
                "bench": "pretraining",
                "network": kind,
                "who": who,
                "ratio_to_transformers_as_it_comes": _times_as_fast(runs, measurements["transformers float32"]),
                "ratio_at_the_same_precision": _times_as_fast(runs, measurements[f"transformers {best}"]),
            }


def _times_as_fast(ours: list[Measurement], theirs: list[Measurement]) -> float:
    return round(_rate(ours) / _rate(theirs), 2)


@torch.no_grad()
def matrix_rate(precision: str, repeats: int = 20) -> float:
    """Return the floating-point operations per second of a product of the size of BERT-base's feed-forward layer."""
    rows, inputs, outputs = _MATRIX
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    x, weight = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
    F.linear(x, weight)
    durations = []
    for _ in range(repeats):
        start = time.perf_counter()
        F.linear(x, weight)
        durations.append(time.perf_counter() - start)
    return 2 * rows * inputs * outputs / min(durations)
