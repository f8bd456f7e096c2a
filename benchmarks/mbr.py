"""Minimum Bayes risk compared with pairwise sacrebleu and `mbrs` on the same candidates, and its faster methods.

The candidates are long sentences of the micro-world, joined in pairs and randomly edited in two steps, so that they
form families like the samples of a model. All contenders must choose the same candidate. The faster methods are
compared with the full matrix over many sets: how often they choose the same, and the utility lost otherwise.
"""

import importlib
import importlib.util
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

from atento.base.errors import AtentoError
from atento.decoding.risk import METHODS, minimum_bayes_risk_choice
from atento.metrics.mbr_utilities import UTILITIES
from atento_world import write
from benchmarks.processes import about

_SHARED = {"bleu", "chrf"}  # the utilities that the peers have too
Chooser = Callable[[list[str]], int]


def measure_mbr(
    seconds: float, *, sizes: Sequence[int] = (64, 128, 256), sets: int = 50, rounds: int = 3
) -> Iterator[dict[str, object]]:
    """Yield rows of seconds per choice, then of agreement with the full matrix, on `sets` sets of the largest size and
    a tenth as many of four times that size; the last rows are the ratios.

    Each pair of a utility and a number of candidates takes about `seconds` over all contenders, and at least `rounds`
    rounds; a contender that needs longer than `seconds` for one round runs once.

    Raises:
        AtentoError: two contenders choose differently.
    """
    yield about("mbr", "-".join(map(str, sizes)), ("sacrebleu", "mbrs", "fastchrf"))
    if importlib.util.find_spec("mbrs") is None:
        yield {"bench": "mbr", "who": "mbrs", "skipped": "pip install --no-deps mbrs fastchrf"}
    ratios = []
    for name in sorted(_SHARED):
        for size in sizes:
            choosers = {"atento": _ours(name), "sacrebleu": _pairwise(name)} | _mbrs_choosers(name)
            durations = _alternate(name, choosers, size, seconds, rounds)
            cell = {"bench": "mbr", "utility": name, "candidates": size}
            for contender, times in durations.items():
                yield cell | {"who": contender, "seconds": float(f"{median(times):.3g}")}
            peers = {contender: median(times) for contender, times in durations.items() if contender.startswith("mbrs")}
            ratio: dict[str, object] = {"ratio_to_sacrebleu": _ratio(durations["sacrebleu"], durations["atento"])}
            if peers:
                ratio["ratio_to_mbrs"] = _ratio(durations[min(peers, key=peers.__getitem__)], durations["atento"])
            ratios.append(cell | ratio)
    for size, number in ((max(sizes), sets), (4 * max(sizes), max(1, sets // 10))):
        for name in UTILITIES:
            yield from agreement(name, [noisy_candidates(size, seed=1000 + index) for index in range(number)])
    yield from ratios


def agreement(name: str, sets: Sequence[list[str]]) -> Iterator[dict[str, object]]:
    """Yield how often each method chooses as the full matrix, the mean utility lost, and seconds per choice."""
    full = [minimum_bayes_risk_choice(candidates, None, name) for candidates in sets]
    for method in METHODS:
        if method in ("aggregated", "coarse") and not hasattr(UTILITIES[name], "aggregated"):
            continue
        same, lost, durations, compared = 0, 0.0, [], 0
        for candidates, full_choice in zip(sets, full):
            start = time.perf_counter()
            choice = minimum_bayes_risk_choice(candidates, None, name, method=method)
            durations.append(time.perf_counter() - start)
            same += candidates[choice.best] == candidates[full_choice.best]
            lost += float(full_choice.expected[full_choice.best] - full_choice.expected[choice.best])
            compared += choice.compared
        yield {
            "bench": "mbr",
            "utility": name,
            "candidates": len(sets[0]),
            "method": method,
            "seconds": float(f"{median(durations):.3g}"),
            "same_choice": round(same / len(sets), 3),
            "utility_lost": float(f"{lost / len(sets):.2g}"),
            "pairs_compared": round(compared / sum(len(candidates) ** 2 for candidates in sets), 3),
        }


def noisy_candidates(count: int, seed: int) -> list[str]:
    """Return variants of one text of about twenty words: a few edited families, with further edits of each."""
    draw, texts = random.Random(seed), _sentences()
    known = [word for text in texts for word in text.split()]
    origin = " ".join(draw.sample(texts, 2)).split()
    families = [_disturbed(origin, 0.25, known, draw) for _ in range(6)]
    return [" ".join(_disturbed(draw.choice(families), 0.15, known, draw)) for _ in range(count)]


@cache
def _sentences() -> list[str]:
    return [pair.target for pair in write("structures", 200)]


def _disturbed(words: Sequence[str], share: float, known: Sequence[str], draw: random.Random) -> list[str]:
    """Edit each word with this probability: replace it, delete it, insert a word after it, or move it back by one."""
    output: list[str] = []
    for word in words:
        chance = draw.random()
        if chance > share:
            output.append(word)
        elif chance < 0.6 * share:
            output.append(draw.choice(known))
        elif chance < 0.75 * share:
            output += [word, draw.choice(known)]
        elif chance < 0.85 * share and output:
            output.insert(len(output) - 1, word)
    return output or [known[0]]


# The contenders--------------------------------------------------------------------------------------------------------


def _ours(name: str) -> Chooser:
    return lambda candidates: minimum_bayes_risk_choice(candidates, None, name).best


def _pairwise(name: str) -> Chooser:
    """Return a chooser by sacrebleu's sentence score of each pair."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metric: Any = BLEU(effective_order=True) if name == "bleu" else CHRF()

    def choose(candidates: list[str]) -> int:
        matrix = [
            [metric.sentence_score(candidate, [evidence]).score for evidence in candidates] for candidate in candidates
        ]
        return int(np.round(np.mean(matrix, axis=1), 9).argmax())  # rounded: ties go to the first

    return choose


def _mbrs_choosers(name: str) -> dict[str, Chooser]:
    """Return the peer's own decoder: by default, with one worker per processor, and with its compiled chrF."""
    if importlib.util.find_spec("mbrs") is None:
        return {}
    settings: dict[str, dict[str, object]] = {"mbrs": {}, "mbrs, a worker a processor": {"num_workers": os.cpu_count()}}
    if name == "chrf":
        settings["mbrs, compiled"] = {"fastchrf": True}
    return {who: _mbrs_chooser(name, options) for who, options in settings.items()}


def _mbrs_chooser(name: str, options: dict[str, object]) -> Chooser:
    scores = mbrs_metric(name, **options).expected_scores

    def choose(candidates: list[str]) -> int:
        return int(scores(candidates, candidates).argmax())

    return choose


def mbrs_metric(name: str, **options: object) -> Any:
    """Return the BLEU ("bleu") or chrF ("chrf") of `mbrs`.

    Its package of metrics also imports the neural metrics, whose dependencies need older versions of `transformers`. An
    empty package replaces it, and only the two required files are loaded into it.

    Raises:
        ImportError: it is not installed.
    """
    if "mbrs.metrics" not in sys.modules:
        package = importlib.import_module("mbrs")
        stand_in = ModuleType("mbrs.metrics")
        stand_in.__path__ = [f"{next(iter(package.__path__))}/metrics"]
        sys.modules["mbrs.metrics"] = stand_in
        base = importlib.import_module("mbrs.metrics.base")
        stand_in.__dict__.update({key: value for key, value in vars(base).items() if not key.startswith("__")})
    if name == "bleu":
        module: Any = importlib.import_module("mbrs.metrics.bleu")
        return module.MetricBLEU(module.MetricBLEU.Config(**options))
    module = importlib.import_module("mbrs.metrics.chrf")
    return module.MetricChrF(module.MetricChrF.Config(**options))


def _alternate(
    utility: str, choosers: dict[str, Chooser], size: int, seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each contender, run alternately after a small warm-up.

    Every round has new candidates, because some contenders cache texts.
    """
    for choose in choosers.values():
        choose(noisy_candidates(8, seed=0))
    durations: dict[str, list[float]] = {name: [] for name in choosers}
    start_time, number = time.perf_counter(), 0
    while number < rounds or time.perf_counter() - start_time < seconds:
        candidates, chosen = noisy_candidates(size, seed=number + 1), {}
        for name, choose in choosers.items():
            if durations[name] and max(durations[name]) > seconds:
                continue
            start = time.perf_counter()
            chosen[name] = choose(candidates)
            durations[name].append(time.perf_counter() - start)
        _check(chosen, minimum_bayes_risk_choice(candidates, None, utility).expected)
        number += 1
    return durations


def _check(chosen: dict[str, int], expected: Any) -> None:
    """Check that every contender chose a best candidate, within the precision of the peer's float32."""
    wrong = [contender for contender, index in chosen.items() if expected[index] < expected.max() - 1e-6]
    if wrong:
        raise AtentoError(f"these sides chose another candidate than the best: {', '.join(wrong)}")


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return round(median(theirs) / median(ours), 1)
