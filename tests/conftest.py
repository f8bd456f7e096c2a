"""What all tests share: the mark `covering`, which leaves most of a large grid to the slow tier, logs, a frozen heap.

One thread, as under `make test`: tests that compare two processes want the same bits. Examples of hypothesis have no
deadline, as other work on the machine makes any of them late, and are 30 unless a test says otherwise.
"""

import gc
import logging
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import pytest
from _pytest.logging import LogCaptureHandler, caplog_handler_key, catching_logs
from hypothesis import settings

NOISE = ("pip install sacremoses", "max_length", "is_torch_tf32_available")  # in warnings of libraries beside ours
gc.disable()  # while ten thousand tests are collected
settings.register_profile("atento", deadline=None, max_examples=30)
settings.load_profile("atento")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
# Instead of pytest's plugin (`-p no:logging`), which looks through thousands of loggers six times a test.
SAID = LogCaptureHandler()
logging.getLogger().addHandler(SAID)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of parity, and as slow what no grid marked `covering` needs; refuse names that differ by process."""
    assert not (own := [item.nodeid for item in items if " at 0x" in item.nodeid]), own
    grids: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        if item.path.parent.name == "parity":
            item.add_marker(pytest.mark.parity)
            item.add_marker(pytest.mark.filterwarnings(f"ignore:.*({'|'.join(NOISE)})"))
        if isinstance(item, pytest.Function) and item.get_closest_marker("covering"):
            grids.setdefault((str(item.path), item.originalname), []).append(item)
    for grid in grids.values():
        mark = grid[0].get_closest_marker("covering")
        assert mark is not None
        kept = covering([item.callspec.params for item in grid], *mark.args, **mark.kwargs)
        for number, item in enumerate(grid):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that fails shows what was logged in it."""
    SAID.reset()
    try:
        return (yield)
    finally:
        item.add_report_section("call", "log", SAID.stream.getvalue())


@pytest.fixture
def caplog(request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
    """That of pytest."""
    handler = request.node.stash[caplog_handler_key] = LogCaptureHandler()
    found = pytest.LogCaptureFixture(request.node, _ispytest=True)
    with catching_logs(handler):
        yield found
    found._finalize()


@pytest.fixture(autouse=True, scope="module")
def limits_stay() -> Iterator[None]:
    """A limit that a test leaves on its worker ends what later tests start there, such as Chromium, without a word."""
    kinds = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    before = [resource.getrlimit(kind) for kind in kinds]
    yield
    assert [resource.getrlimit(kind) for kind in kinds] == before


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collection, which would look through ten thousand tests many times."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 10, 10)  # by default the youngest 700 objects are looked through


def covering(
    cases: Sequence[Mapping[str, object]], values: int = 1, of: Callable[..., Mapping[str, str]] | None = None
) -> set[int]:
    """The numbers of some cases in which every value of every argument occurs, or every `values` of them together.

    Greedy: always the case that brings most of what is missing, of equals the one whose values occurred least. Values
    are told apart by identity, as the objects of a grid need not be hashable. `of` gives the texts that stand for the
    arguments of a case, such as the kind of its model.
    """
    if of is not None:
        cases = [{name: sys.intern(text) for name, text in of(**case).items()} for case in cases]
    brings = [
        {(*names, *(id(case[name]) for name in names)) for names in combinations(case, min(values, len(case)))}
        for case in cases
    ]
    missing = set[tuple[object, ...]]().union(*brings)
    kept: set[int] = set()
    seen: Counter[tuple[object, ...]] = Counter()
    while missing:
        best = max(range(len(cases)), key=lambda n: (len(brings[n] & missing), -sum(seen[one] for one in brings[n])))
        kept.add(best)
        missing -= brings[best]
        seen.update(brings[best])
    return kept
