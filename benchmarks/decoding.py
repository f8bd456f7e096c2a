"""Decoding speed compared with `transformers` and CTranslate2: the same weights, run alternately.

A Transformer-base (Vaswani et al. 2017) with random weights, sources of 32 tokens, and exactly 48 output tokens each: 1
and 16 sentences, greedy and beam 4. Each contender runs in a separate process with the same number of threads. The
weights make EOS impossible, and the outputs of all contenders are compared, so all do the same work.
"""

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from atento.base.errors import AtentoError, CapabilityError
from atento.config import presets
from atento.config.sections.network import NetworkConfig
from atento.inference.packed_linear import Precision
from benchmarks.decoding_sides import Conversion, CTranslate2, Ours, Transformers, Work, write_weights
from benchmarks.devices import device_of, peers_of, precisions_of
from benchmarks.processes import Contender, Measurement, Side, about, alternate, best_seconds, median_seconds, peak_mib

_IDS: dict[str, object] = {"ids": {"pad": 0, "unk": 1, "bos": 2, "start": 2, "eos": 3}}
_KIND: dict[str, object] = {"feed_forward": {"activation": "relu"}, "initializer": "xavier", **_IDS}
SIZES: dict[str, NetworkConfig] = {
    "transformer-base": presets.marian(vocab_size=32000, **_KIND),
    "tiny": presets.marian(vocab_size=200, d_model=32, d_ff=64, n_heads=4, n_layers=2, max_len=64, **_KIND),
}
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")  # of our fast twin
CELLS = tuple(Work((32,) * sentences, beam, 48) for beam in (1, 4) for sentences in (1, 16))
_MIN_SAME = 0.9  # of greedy's tokens: exact sides diverge only where two tokens are equal up to rounding

# two contenders, and the goals of their ratio for one sentence and for several; "fastest": of our precisions
Comparison = tuple[str, str, tuple[float, float] | None]
COMPARISONS: tuple[Comparison, ...] = (
    ("fastest", "transformers float32", (5.0, 3.0)),
    ("fastest", "ctranslate2 int8", (2.0, 1.2)),
    ("atento float32", "transformers float32", (2.0, 2.0)),
    ("atento float32", "ctranslate2 float32", (1.2, 1.2)),
)

# On a GPU: what is reached beside the peer in 16 bits, and graphs beside plain steps, which decides what "auto" takes.
ON_GPU: tuple[Comparison, ...] = (
    ("fastest", "transformers bfloat16", None),
    ("fastest", "transformers flash bfloat16", None),
    ("fastest", "transformers float16", None),
    ("atento float32", "transformers float32", None),
    ("atento float32", "atento plain", None),
    ("atento bfloat16", "atento plain bfloat16", None),
)

Contenders = Mapping[str, tuple[type[Contender], tuple[object, ...]]]
Sides = dict[str, tuple[type[Contender], tuple[object, ...]]]


def measure_decoding(
    seconds: float,
    *,
    device: str = "cpu",
    size: str = "transformer-base",
    cells: Sequence[Work] = CELLS,
    precisions: Sequence[str] = PRECISIONS,
    rounds: int = 3,
) -> Iterator[dict[str, object]]:
    """Yield rows of tokens per second (of the best and the median round) and peak MiB; the last rows are the ratios.

    Each contender is measured for about `seconds` over all cells, and at least `rounds` rounds. On a GPU, our plain
    steps stand beside CUDA graphs, in the place of `precisions`.
    """
    config, device = SIZES[size], device_of(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_weights(folder / "weights", config)
        sides = sides_on(device, folder / "weights", precisions)
        if importlib.util.find_spec("ctranslate2") is None:
            yield {"bench": "decoding", "who": "ctranslate2", "skipped": "pip install ctranslate2"}
        else:
            with Side(Conversion) as conversion:
                for kind in ("float32", "int8"):
                    conversion.run((folder / "weights", folder / kind, kind))
                    sides[f"ctranslate2 {kind}"] = (CTranslate2, (folder / kind, kind, device))
            if device != "cpu":
                sides["ctranslate2 float16"] = (CTranslate2, (folder / "float32", "float16", device))
        yield about("decoding", size, ("transformers", "ctranslate2"))
        comparisons = COMPARISONS if device == "cpu" else (*ON_GPU, ("fastest", "ctranslate2 float16", None))
        yield from compare("decoding", sides, cells, seconds / len(cells), rounds, comparisons)


def sides_on(device: str, weights: Path, precisions: Sequence[str]) -> Sides:
    """Ours and those of `transformers`: on the CPU our fast steps, on a GPU graphs beside the plain steps that
    `kind="auto"` takes there."""
    sides: Sides = {
        "transformers float32": (Transformers, (weights, device)),
        "atento plain": (Ours, (weights, "plain", device)),
    }
    if device == "cpu":
        return sides | {f"atento {precision}": (Ours, (weights, precision)) for precision in precisions}
    for precision in precisions_of(device)[:-1]:  # float32 is among the sides already
        for who, attention in peers_of(device, precision):
            sides[f"{who} {precision}"] = (Transformers, (weights, device, precision, attention))
    sides["atento float32"] = (Ours, (weights, "float32", device, True))
    if "bfloat16" in precisions_of(device):
        sides["atento plain bfloat16"] = (Ours, (weights, "plain bfloat16", device))
        sides["atento bfloat16"] = (Ours, (weights, "bfloat16", device, True))
    return sides


def compare(
    bench: str,
    contenders: Contenders,
    cells: Sequence[Work],
    seconds: float,
    rounds: int,
    comparisons: Sequence[Comparison],
) -> Iterator[dict[str, Any]]:
    """Run all contenders on all cells and yield their rows, then the ratios; the first contender's tokens are expected.

    Raises:
        AtentoError: a contender generates fewer tokens than required, or an exact one generates other tokens.
    """
    measured: list[tuple[Work, dict[str, list[Measurement]]]] = []
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, (kind, arguments) in contenders.items():
            try:
                sides[name] = stack.enter_context(Side(kind, *arguments))
            except CapabilityError as error:
                yield {"bench": bench, "who": name, "skipped": str(error)}
        for work in cells:
            measurements = alternate(sides, work, seconds, rounds)
            measured.append((work, measurements))
            yield from _rows(bench, work, measurements)
    _check_same(measured)
    for work, measurements in measured:
        yield from _ratios(bench, work, measurements, comparisons)


def _cell(bench: str, work: Work) -> dict[str, object]:
    return {"bench": bench, "sentences": len(work.lengths), "beam": work.beam}


def _rows(bench: str, work: Work, measurements: Mapping[str, list[Measurement]]) -> Iterator[dict[str, object]]:
    expected = next(iter(measurements.values()))[0].result
    for name, runs in measurements.items():
        outputs = runs[0].result
        if [len(row) for row in outputs] != [work.new_tokens] * len(work.lengths):
            lengths = [len(row) for row in outputs]
            raise AtentoError(f"{name} must generate {work.new_tokens} tokens per sentence: got {lengths}")
        yield _cell(bench, work) | {
            "who": name,
            "tokens_per_second": round(work.tokens / best_seconds(runs)),
            "middle_round": round(work.tokens / median_seconds(runs)),
            "rounds": len(runs),
            "peak_mib": peak_mib(runs),
            "same_sentences": f"{sum(a == b for a, b in zip(outputs, expected))}/{len(expected)}",
            "same_tokens": round(same_tokens(outputs, expected), 4),
        }


def same_tokens(outputs: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> float:
    """Return the share of expected tokens that occur at the same position in the output."""
    matches = sum(a == b for row, expected_row in zip(outputs, expected) for a, b in zip(row, expected_row))
    return matches / sum(len(row) for row in expected)


def _check_same(measured: Sequence[tuple[Work, Mapping[str, list[Measurement]]]]) -> None:
    """Check that greedy decoding in float32 gives the same outputs for all contenders."""
    greedy = [measurements for work, measurements in measured if work.beam == 1]
    for name in greedy[0] if greedy else ():
        if name.endswith(("float32", "plain")):
            outputs = [row for measurements in greedy for row in measurements[name][0].result]
            first = next(iter(greedy[0]))
            expected = [row for measurements in greedy for row in measurements[first][0].result]
            share = same_tokens(outputs, expected)
            if share < _MIN_SAME:
                raise AtentoError(f"{name} generates {share:.0%} of the tokens of {first}: it does different work")


def _ratios(
    bench: str, work: Work, measurements: Mapping[str, list[Measurement]], comparisons: Sequence[Comparison]
) -> Iterator[dict[str, object]]:
    """Yield the ratios of tokens per second to the peer's, by best and by median rounds, with their goals."""
    fast = [name for name in measurements if name.startswith("atento ") and not name.startswith("atento plain")]
    for ours, peer, goals in comparisons:
        name = (
            min(fast, key=lambda contender: best_seconds(measurements[contender]))
            if ours == "fastest" and fast
            else ours
        )
        if name not in measurements or peer not in measurements:
            continue
        row = _cell(bench, work) | {
            "who": name + (" (fastest)" if ours == "fastest" else ""),
            "ratio_to": peer,
            "ratio": round(best_seconds(measurements[peer]) / best_seconds(measurements[name]), 2),
            "by_middle_rounds": round(median_seconds(measurements[peer]) / median_seconds(measurements[name]), 2),
        }
        yield row if goals is None else row | {"goal": goals[len(work.lengths) > 1]}
