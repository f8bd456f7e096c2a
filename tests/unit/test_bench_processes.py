"""`atento bench processes` on tiny networks: each side counts its real targets, and several share an update."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import replica_side, replicas
from benchmarks.replica_side import NETWORKS, Rate, Work, measured
from benchmarks.replicas import measure_processes
from benchmarks.training import natural_lengths, padded, pairs_of

TOKENS = 4096


@pytest.mark.parametrize("who", ["atento", "transformers", "accelerate"])
@pytest.mark.slow  # imports accelerate and transformers
def test_an_update_has_about_the_real_targets_that_were_asked_for(who: str) -> None:
    pytest.importorskip("transformers")
    if who == "accelerate":
        pytest.importorskip("accelerate", reason="needs accelerate")
    with replica_side.SIDES[who](Work(who, "tiny", "float32", TOKENS, 0.1, torch.get_num_threads())) as trainer:
        counts = [trainer[0](number) for number in range(3)]
        rate = measured(trainer, 0.01)
    assert counts == pytest.approx([TOKENS] * 3, rel=0.1)
    assert rate.tokens == pytest.approx(3 * TOKENS, rel=0.1) and rate.seconds > 0 and rate.processor_seconds > 0
    assert rate.summing_seconds is None  # a process alone has nothing to send


def test_the_time_of_summing_over_processes_is_measured_after_the_warm_up() -> None:
    summing: list[float] = []

    def update(number: int) -> int:
        summing.append(100.0 if number < replica_side._WARM_UP else 0.25)
        return 1

    assert measured((update, summing), 0.0).summing_seconds == pytest.approx(0.25 * replica_side._FEWEST)
    who, rates = "atento, 2 processes", [Rate(10, 2.0, 4.0, 0.5), Rate(10, 1.0, 2.0, 0.1)]
    rows = replicas._rows("float32", {who: rates}, {who: ("atento", 2)})
    assert next(iter(rows))["summing_percent"] == 10.0  # of the best round


def test_the_processes_of_ddp_share_the_pairs_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of two has another half; counted from the lengths alone."""
    pytest.importorskip("transformers")
    source, target = natural_lengths(replica_side._SENTENCES, NETWORKS["tiny"].vocab_size)
    permutation = np.random.default_rng(1).permutation(len(source))[: pairs_of(target, TOKENS)]
    shares = []
    for number in (0, 1):
        monkeypatch.setattr(replica_side, "world_size", lambda: 2)
        monkeypatch.setattr(replica_side, "rank", lambda number=number: number)
        unwrapped: Any = lambda model: model  # noqa: E731
        monkeypatch.setattr(replica_side, "DistributedDataParallel", unwrapped)
        nothing = SimpleNamespace(init_process_group=lambda kind: None, destroy_process_group=lambda: None)
        monkeypatch.setattr(replica_side, "dist", nothing)
        with replica_side.SIDES["transformers"](Work("transformers", "tiny", "float32", TOKENS, 0.1, 1)) as (update, _):
            shares.append(update(0))
    expected = [int((target.lengths[permutation[rank::2]] + 1).sum()) for rank in (0, 1)]  # and the end of each
    assert shares == expected
    assert int((padded(source, target, permutation)["labels"] >= 0).sum()) == sum(expected)


def test_the_rows_end_in_ratios_of_the_best_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Work, int]] = []
    seconds = {("atento", 2): [1.0, 0.5], ("atento", 1): [1.0, 1.0], ("transformers", 2): [4.0, 2.0]}

    def run(work: Work, processes: int) -> Rate:
        started.append((work, processes))
        rounds = seconds.get((work.who, processes), [1.0, 1.0])
        before = sum(known == (work, processes) for known in started)
        return Rate(1000, rounds[before - 1], 2.0)

    monkeypatch.setattr(replicas, "run", run)
    monkeypatch.setattr(replicas.importlib.util, "find_spec", lambda name: None if name == "accelerate" else name)
    rows = list(measure_processes(1.0, precisions=("float32",)))
    assert {"bench": "processes", "who": "accelerate, 2 processes", "skipped": "pip install accelerate"} in rows
    assert [work.threads * processes for work, processes in started] == [2] * 8  # all have two cores
    by_name = {row["who"]: row for row in rows if "rounds" in row}
    assert by_name["atento, 2 processes"]["real_tokens_per_second"] == 2000
    assert by_name["transformers, 2 processes (DDP)"]["rounds"] == [250, 500]
    assert rows[-1]["ratio_to_atento_1_process"] == 2.0 and rows[-1]["ratio_to_transformers_2_processes"] == 4.0


@pytest.mark.slow  # ten processes, most of which import transformers
def test_all_contenders_run() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="needs accelerate")
    rows = list(measure_processes(0.02, size="tiny", precisions=("float32",), rounds=1))
    assert [row["who"] for row in rows if "rounds" in row] == list(replicas._CONTENDERS)
    assert len([name for name in rows[-1] if name.startswith("ratio_to_")]) == 4
