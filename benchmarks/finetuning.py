"""Fine-tuning speed of BERT-base and MiniLM compared with `transformers`, and of a part of the weights with all.

Contenders run in separate processes with the same number of threads, two or three by turns, on the same sentences.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from atento.base.errors import CapabilityError
from benchmarks.devices import device_of, peers_of, precisions_of
from benchmarks.finetuning_sides import Operations, OurTuning, Texts, TransformersLoop, natural_texts, write_classifier
from benchmarks.processes import Contender, Measurement, Side, about, alternate, best_seconds, median_seconds, peak_mib

_PARTLY = ("last-2", "lora")  # values of `init.train`
_SHOWN = ("bert-base", "minilm")


def measure_finetuning(
    seconds: float,
    *,
    device: str = "cpu",
    size: str | None = None,
    updates: int = 4,
    per_update: int = 32,
    rounds: int = 3,
) -> Iterator[dict[str, object]]:
    """Yield rows of real tokens per second of forward, backward and update; ratios follow.

    Args:
        seconds: about how long each contender is measured.
        device: "auto", "cpu" or "cuda".
        size: a name of `SIZES`; None: bert-base, then minilm.
        updates: updates in a run.
        per_update: sentences in an update.
        rounds: the minimum number of runs of each contender.
    """
    device = device_of(device)
    best = precisions_of(device)[0]
    shown = _SHOWN if size is None else (size,)
    for size in shown:
        texts = natural_texts(size, updates, per_update)
        yield about("finetuning", size, ("transformers",)) | {
            "sentences_per_update": per_update,
            "tokens_per_update": texts.tokens // updates,
        }
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "model"
            write_classifier(folder, size)
            for ours, theirs in _pairs(device):
                for who, attention in peers_of(device, theirs):
                    contenders: dict[str, tuple[type[Contender], tuple[object, ...]]] = {
                        f"atento {ours}": (OurTuning, (folder, ours, "all", device)),
                        f"{who} {theirs}": (TransformersLoop, (folder, theirs, device, attention)),
                    }
                    try:
                        measurements = _alternate(contenders, texts, seconds, rounds)
                    except CapabilityError as error:
                        yield {"bench": "finetuning", "size": size, "who": f"{who} {theirs}", "skipped": str(error)}
                        continue
                    yield from _rows(size, measurements, texts)
                    yield ratio(size, measurements)
            partly = {
                f"atento {best} {train}": (OurTuning, (folder, best, train, device)) for train in ("all", *_PARTLY)
            }
            measurements = _alternate(partly, texts, seconds, rounds)
            yield from _rows(size, measurements, texts)
            yield from _shares(size, measurements, texts, folder, best, device)


def _pairs(device: str) -> Iterable[tuple[str, str]]:
    """Our precision and theirs: as both come, then at the same precision. Two at a time, since each needs memory."""
    best, *others = precisions_of(device)
    return dict.fromkeys([(best, "float32"), (best, best), *((each, each) for each in others)])


def _alternate(
    contenders: Mapping[str, tuple[type[Contender], tuple[object, ...]]], texts: Texts, seconds: float, rounds: int
) -> dict[str, list[Measurement]]:
    with ExitStack() as stack:
        sides = {who: stack.enter_context(Side(kind, *arguments)) for who, (kind, arguments) in contenders.items()}
        return alternate(sides, texts, seconds, rounds)


def _rows(size: str, measurements: Mapping[str, list[Measurement]], texts: Texts) -> Iterator[dict[str, object]]:
    for who, runs in measurements.items():
        yield {
            "bench": "finetuning",
            "size": size,
            "who": who,
            "real_tokens_per_second": round(texts.tokens / best_seconds(runs)),
            "middle_round": round(texts.tokens / median_seconds(runs)),
            "peak_mib": peak_mib(runs),
            "rounds": len(runs),
        }


def ratio(size: str, measurements: Mapping[str, list[Measurement]]) -> dict[str, object]:
    """Return the row of how many times faster the first of two contenders is."""
    (ours, our_runs), (theirs, their_runs) = measurements.items()
    return {"bench": "finetuning", "size": size, "who": ours, "ratio_to": theirs, **_ratio(their_runs, our_runs)}


def _shares(
    size: str, measurements: Mapping[str, list[Measurement]], texts: Texts, folder: Path, precision: str, device: str
) -> Iterator[dict[str, object]]:
    """Yield the speed of training a part of the weights relative to all, and the share of operations that is left."""
    operations: dict[str, int] = {}
    for train in ("all", *_PARTLY):
        with Side(Operations, folder, precision, train, device) as side:
            operations[train] = side.run(texts).result
    for train in _PARTLY:
        share = operations[train] / operations["all"]
        yield {
            "bench": "finetuning",
            "size": size,
            "who": f"atento {precision} {train}",
            "ratio_to": "all",
            **_ratio(measurements[f"atento {precision} all"], measurements[f"atento {precision} {train}"]),
            "share_of_operations": round(share, 3),
            "ratio_in_proportion": round(1 / share, 2),
        }


def _ratio(slower: list[Measurement], faster: list[Measurement]) -> dict[str, float]:
    return {
        "ratio": round(best_seconds(slower) / best_seconds(faster), 2),
        "by_middle_rounds": round(median_seconds(slower) / median_seconds(faster), 2),
    }
