"""Minimum Bayes risk compared with pairwise sacrebleu and `mbrs` on the same candidates, and its faster methods.

The candidates are sentences of the micro-world's longer kind, joined in twos and disturbed in two steps, so that they
fall into families as the samples of a model do. All sides must choose the same candidate. The quicker ways are held
against the full matrix over many sets: how often they choose the same, and what utility is lost where they do not.
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

from atento.bench.processes import about
from atento.decoding.risk import METHODS, minimum_bayes_risk_choice
from atento.errors import AtentoError
from atento.metrics.utilities import UTILITIES
from atento.world import write

_SHARED = {"bleu", "chrf"}  # the utilities that the peers have too
Way = Callable[[list[str]], int]


def measure_mbr(
    seconds: float, *, sizes: Sequence[int] = (64, 128, 256), sets: int = 50, rounds: int = 3
) -> Iterator[dict[str, Any]]:
    """Rows of seconds a choice, the ways taking turns; then of agreement with the full matrix, on `sets` sets of the
    largest size and a tenth as many of four times that; the last are the ratios.

    Each cell, a utility and a number of candidates, takes about `seconds` over all sides, and `rounds` rounds at least;
    a side that takes longer than `seconds` for one round runs once.

    Raises:
        AtentoError: two sides choose differently.
    """
    yield about("mbr", "-".join(map(str, sizes)), ("sacrebleu", "mbrs", "fastchrf"))
    if importlib.util.find_spec("mbrs") is None:
        yield {"bench": "mbr", "who": "mbrs", "skipped": "pip install --no-deps mbrs fastchrf"}
    ratios = []
    for name in sorted(_SHARED):
        for size in sizes:
            ways = {"atento": _ours(name), "sacrebleu": _pairwise(name)} | _mbrs_ways(name)
            spent = _take_turns(name, ways, size, seconds, rounds)
            cell = {"bench": "mbr", "utility": name, "candidates": size}
            for who, times in spent.items():
                yield cell | {"who": who, "seconds": float(f"{median(times):.3g}")}
            peers = {who: median(times) for who, times in spent.items() if who.startswith("mbrs")}
            ratio: dict[str, Any] = {"ratio_to_sacrebleu": _ratio(spent["sacrebleu"], spent["atento"])}
            if peers:
                ratio["ratio_to_mbrs"] = _ratio(spent[min(peers, key=peers.__getitem__)], spent["atento"])
            ratios.append(cell | ratio)
    for size, number in ((max(sizes), sets), (4 * max(sizes), max(1, sets // 10))):
        for name in UTILITIES:
            yield from agreement(name, [noisy_candidates(size, seed=1000 + each) for each in range(number)])
    yield from ratios


def agreement(name: str, sets: Sequence[list[str]]) -> Iterator[dict[str, Any]]:
    """How often each method chooses as the full matrix does, the mean utility lost, and seconds a choice."""
    full = [minimum_bayes_risk_choice(candidates, None, name) for candidates in sets]
    for method in METHODS:
        if method in ("aggregated", "coarse") and not hasattr(UTILITIES[name], "aggregated"):
            continue
        same, lost, taken, compared = 0, 0.0, [], 0
        for candidates, right in zip(sets, full):
            began = time.perf_counter()
            found = minimum_bayes_risk_choice(candidates, None, name, method=method)
            taken.append(time.perf_counter() - began)
            same += candidates[found.best] == candidates[right.best]
            lost += float(right.expected[right.best] - right.expected[found.best])
            compared += found.compared
        yield {
            "bench": "mbr",
            "utility": name,
            "candidates": len(sets[0]),
            "method": method,
            "seconds": float(f"{median(taken):.3g}"),
            "same_choice": round(same / len(sets), 3),
            "utility_lost": float(f"{lost / len(sets):.2g}"),
            "pairs_compared": round(compared / sum(len(one) ** 2 for one in sets), 3),
        }


def noisy_candidates(count: int, seed: int) -> list[str]:
    """Variants of one text of about twenty words: a few disturbed ones, and of each many disturbed a little more."""
    draw, texts = random.Random(seed), _sentences()
    known = [word for text in texts for word in text.split()]
    origin = " ".join(draw.sample(texts, 2)).split()
    families = [_disturbed(origin, 0.25, known, draw) for _ in range(6)]
    return [" ".join(_disturbed(draw.choice(families), 0.15, known, draw)) for _ in range(count)]


@cache
def _sentences() -> list[str]:
    return [pair.target for pair in write("structures", 200)]


def _disturbed(words: Sequence[str], share: float, known: Sequence[str], draw: random.Random) -> list[str]:
    """Each word changed with that chance: for another, away, twice, or with its neighbour."""
    found: list[str] = []
    for word in words:
        chance = draw.random()
        if chance > share:
            found.append(word)
        elif chance < 0.6 * share:
            found.append(draw.choice(known))
        elif chance < 0.75 * share:
            found += [word, draw.choice(known)]
        elif chance < 0.85 * share and found:
            found.insert(len(found) - 1, word)
    return found or [known[0]]


# The sides -----------------------------------------------------------------------------------------------------------


def _ours(name: str) -> Way:
    return lambda candidates: minimum_bayes_risk_choice(candidates, None, name).best


def _pairwise(name: str) -> Way:
    """As it is written down: sacrebleu's sentence score of each pair."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metric: Any = BLEU(effective_order=True) if name == "bleu" else CHRF()

    def choose(candidates: list[str]) -> int:
        matrix = [[metric.sentence_score(one, [other]).score for other in candidates] for one in candidates]
        return int(np.round(np.mean(matrix, axis=1), 9).argmax())

    return choose


def _mbrs_ways(name: str) -> dict[str, Way]:
    """The peer's own decoder: as it comes, with as many workers as there are processors, and its compiled chrF."""
    if importlib.util.find_spec("mbrs") is None:
        return {}
    settings: dict[str, dict[str, Any]] = {
        "mbrs": {},
        "mbrs, a worker a processor": {"num_workers": os.cpu_count()},
    }
    if name == "chrf":
        settings["mbrs, compiled"] = {"fastchrf": True}
    return {who: _mbrs_way(name, options) for who, options in settings.items()}


def _mbrs_way(name: str, options: dict[str, Any]) -> Way:
    scores = mbrs_metric(name, **options).expected_scores

    def choose(candidates: list[str]) -> int:
        return int(scores(candidates, candidates).argmax())

    return choose


def mbrs_metric(name: str, **options: Any) -> Any:
    """`mbrs`' BLEU ("bleu") or chrF ("chrf").

    Its package of metrics imports the neural ones too, whose packages ask for older versions of `transformers` than
    ours; so that package is stood in for by an empty one, and the two files that are wanted are loaded into it.

    Raises:
        ImportError: it is not installed.
    """
    if "mbrs.metrics" not in sys.modules:
        whole = importlib.import_module("mbrs")
        stand_in = ModuleType("mbrs.metrics")
        stand_in.__path__ = [f"{next(iter(whole.__path__))}/metrics"]
        sys.modules["mbrs.metrics"] = stand_in
        base = importlib.import_module("mbrs.metrics.base")
        stand_in.__dict__.update({key: one for key, one in vars(base).items() if not key.startswith("__")})
    if name == "bleu":
        module: Any = importlib.import_module("mbrs.metrics.bleu")
        return module.MetricBLEU(module.MetricBLEU.Config(**options))
    module = importlib.import_module("mbrs.metrics.chrf")
    return module.MetricChrF(module.MetricChrF.Config(**options))


def _take_turns(utility: str, ways: dict[str, Way], size: int, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, one after another, after one small turn each to warm up.

    Every round has candidates of its own, as some sides remember the texts that they have seen.
    """
    for choose in ways.values():
        choose(noisy_candidates(8, seed=0))
    spent: dict[str, list[float]] = {name: [] for name in ways}
    began, number = time.perf_counter(), 0
    while number < rounds or time.perf_counter() - began < seconds:
        candidates, chosen = noisy_candidates(size, seed=number + 1), {}
        for name, choose in ways.items():
            if spent[name] and max(spent[name]) > seconds:
                continue
            start = time.perf_counter()
            chosen[name] = choose(candidates)
            spent[name].append(time.perf_counter() - start)
        _check(chosen, minimum_bayes_risk_choice(candidates, None, utility).expected)
        number += 1
    return spent


def _check(chosen: dict[str, int], expected: Any) -> None:
    """Within what the peer's float32 can tell."""
    wrong = [who for who, place in chosen.items() if expected[place] < expected.max() - 1e-6]
    if wrong:
        raise AtentoError(f"these sides chose another candidate than the best: {', '.join(wrong)}")


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return round(median(theirs) / median(ours), 1)
