"""Threads: how long they wait where processes share cores, and the pools in which work is done side by side."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from atento.precision import sharing_cores, side_by_side


def test_threads_that_share_the_cores_wait_briefly_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("ATENTO_TEST", "x")
    assert sharing_cores()["GOMP_SPINCOUNT"] == "10000" and sharing_cores()["ATENTO_TEST"] == "x"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "GOMP_SPINCOUNT" not in sharing_cores()
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert sharing_cores()["GOMP_SPINCOUNT"] == "7"


def test_threads_side_by_side_stay_and_have_their_share_of_the_processors() -> None:
    before = torch.get_num_threads()

    def where(_: int) -> tuple[int, int]:
        time.sleep(0.02)
        return threading.get_ident(), torch.get_num_threads()

    with side_by_side(2, 3) as pool:
        first = list(pool.map(where, range(4)))
    with side_by_side(2, 3) as pool:
        second = list(pool.map(where, range(4)))
    assert len({thread for thread, _ in first}) == 2 and {*first} == {*second}
    assert {threads for _, threads in first} == {3} and torch.get_num_threads() == before
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == before


def test_an_exception_waits_for_what_is_under_way_side_by_side() -> None:
    done = list[int]()

    def work(number: int) -> None:
        time.sleep(0.05)
        done.append(number)

    with pytest.raises(KeyError), side_by_side(2, 1) as pool:
        for number in range(4):
            pool.submit(work, number)
        raise KeyError
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_has_threads_of_its_own_side_by_side() -> None:
    with side_by_side(2, 1) as pool:
        pool.submit(int).result()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for threads that it does not have
        with side_by_side(2, 1) as pool:
            os._exit(pool.submit(int).result())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
