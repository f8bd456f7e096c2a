"""`atento bench sizing`: what it says of a real service of small models is what the requests and the system say."""

import os
import time

import pytest
import torch

from atento.base.errors import UsageError
from benchmarks import sizing
from benchmarks.sizing import measure_sizing
from failing import fails

pytest.importorskip("fastapi", reason="fastapi is not installed (extra serve)")
MODELS = {"embed-minilm": ("float32",), "generate-gpt2": ("int8",)}


@pytest.mark.slow
def test_tokens_memory_and_processor_time_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(sizing, "SIZED", MODELS)
    about, *rows = measure_sizing(1.5, size="tiny", clients=3)
    assert about["bench"] == "sizing"
    assert [(row["workload"], (row["precision"],)) for row in rows] == list(MODELS.items())
    for row in rows:
        cores = row["tokens_per_second"] / row["tokens_per_processor_second"]
        assert 0.02 < cores < 1.3, row  # of one thread, and of the one that talks with the server
        assert 0 < row["http_ms_per_request"] < 100
        assert 20 < row["http_mib_loaded"] < row["worker_mib_loaded"]  # torch is in the worker alone
        for name in ("http", "worker"):
            assert row[f"{name}_mib_peak"] >= row[f"{name}_mib_loaded"] - 1
    written = rows[-1]  # each output has exactly 32 tokens
    assert written["tokens_per_second"] == pytest.approx(32 * written["requests_per_second"], rel=0.03, abs=2)


def test_the_memory_is_that_of_the_process() -> None:
    processes = {"this": os.getpid()}
    before = sizing._memory(processes)["this"]
    with sizing._peak(processes) as peak:
        held = bytearray(200 << 20)
        time.sleep(5 * sizing._PAUSE)
        del held
    assert 190 < peak["this"] - before < 260
    assert sizing._memory(processes)["this"] - before < 60


def test_an_unknown_workload_is_refused() -> None:
    said = "unknown workload 'embed-minlm'.*embed-minilm"
    fails(UsageError, said, next, measure_sizing(1.0, workloads=["embed-minlm"]))
