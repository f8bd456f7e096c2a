"""Each test of the service finds the fault that it is for: V1 to V10 on a service in which the fault is planted."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import httpx
import pytest

import test_serve_engine as engine_tests
import test_serve_http as http_tests
import test_serve_http_faults as fault_tests
import test_serve_http_long as long_tests
import test_serve_http_refusals as refusal_tests
from atento.model import load
from http_service import Served, shared_service

pytestmark = pytest.mark.slow
PLANTED = Path(__file__).parent.parent / "planted"


def environment(fault: str) -> dict[str, str]:
    paths = [str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PLANTED": fault, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def shared(folder: Path, fault: str) -> Iterator[Served]:
    """The service of most tests."""
    with shared_service(folder, environment=environment(fault)) as service:
        yield service


@contextmanager
def limited(folder: Path, fault: str) -> Iterator[Served]:
    """The service with small limits and keys."""
    with fault_tests.limited_service(fault_tests.write_models(folder)["lm"].parent, environment(fault)) as service:
        yield service


def beside_offline(service: Served) -> None:
    offline = {"lm": load(service.folders["lm"], device="cpu")}
    http_tests.test_v9_v10_replies_do_not_depend_on_neighbours_and_do_not_mix(service, offline)


V1 = refusal_tests.test_v1_each_bad_body_has_its_status_and_error_and_the_next_request_is_answered
V3 = fault_tests.test_v3_overload_is_refused_at_once_and_what_is_accepted_is_answered
V5 = fault_tests.test_v5_slow_heads_bodies_and_idle_connections_are_closed_and_others_are_served
V7_KILL = fault_tests.test_v7_a_worker_that_is_killed_is_replaced_and_its_requests_get_503
V7_TERM = fault_tests.test_v7_after_sigterm_running_requests_are_answered_new_ones_refused_and_the_status_is_0
V8 = fault_tests.test_v8_a_worker_that_hangs_makes_the_service_unready_while_it_lives
Check = Callable[[Served], None]


@pytest.mark.parametrize(
    ("fault", "made", "check"),
    [
        ("nan-is-a-number", shared, V1),
        ("endless-queue", limited, V3),
        ("endless-patience", limited, V5),
        ("kept-requests", shared, long_tests.test_v6_descriptors_and_memory_stay_where_they_are),
        ("mortal-service", limited, V7_KILL),
        ("hasty-end", limited, V7_TERM),
        ("always-ready", limited, V8),
        ("leaning-rows", shared, beside_offline),
        ("stale-outputs", shared, beside_offline),
        ("talkative-log", shared, refusal_tests.test_v10_no_text_of_a_request_is_in_the_log),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(
    fault: str, made: Callable[[Path, str], AbstractContextManager[Served]], check: Check, tmp_path: Path
) -> None:
    with made(tmp_path, fault) as service, pytest.raises((AssertionError, httpx.HTTPError)):
        check(service)


@pytest.mark.parametrize("fault", ["stale-outputs", "deaf-workers", "leaning-rows"])
@pytest.mark.filterwarnings("ignore:the exact search")
def test_a_fault_planted_in_the_workers_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine's own tests: V2 (answers under load), V4 (cancelled work), V9 (batch mates)."""
    folders = engine_tests.write_small_models(tmp_path)
    models = {name: load(folder) for name, folder in folders.items()}
    for name, value in environment(fault).items():
        monkeypatch.setenv(name, value)
    running = engine_tests.Running(folders, engine_tests.LIMITS)
    running.run(running.engine.start())
    cancelled = engine_tests.test_v4_cancelled_work_stops_and_its_neighbours_go_on
    check = cancelled if fault == "deaf-workers" else engine_tests.test_v2_right_answers_under_load
    with closing(running), pytest.raises(AssertionError):
        check(running, models, 60)
