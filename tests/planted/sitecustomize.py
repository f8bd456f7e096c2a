"""Plants the fault PLANTED in each process of a service: put into its module on import, the rest is what people run."""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def nan_is_a_number(module: Any) -> None:
    """JSON's NaN and infinities are read as 0."""
    module._constant = lambda name: 0.0


def stale_outputs(module: Any) -> None:
    """Each fifth output is that of the one before."""
    real, sent = module._value, [None]

    def value(*written: Any) -> Any:
        sent.append(real(*written))
        return sent[-2] if len(sent) % 5 == 0 and sent[-2] else sent[-1]

    module._value = value


def endless_queue(module: Any) -> None:
    """No job is refused."""
    real = module.ServedModel.submit

    def submit(self: Any, job: Any) -> Any:
        self.limits = replace(self.limits, queue=1_000_000)
        return real(self, job)

    module.ServedModel.submit = submit


def deaf_workers(module: Any) -> None:
    """A worker goes on with a job that was cancelled."""
    module.TextGenerators.cancel = lambda self, job_id: None


def endless_patience(module: Any) -> None:
    """A connection is never too slow."""
    module._Limited._wait = lambda self, seconds: None


def kept_requests(module: Any) -> None:
    """Two kilobytes of each request stay in memory."""
    real, kept = module.Log.request, list[bytes]()

    def request(self: Any, status: int, **values: Any) -> None:
        kept.append(os.urandom(2048))
        real(self, status, **values)

    module.Log.request = request


def mortal_service(module: Any) -> None:
    """A worker that has ended is not replaced."""

    async def restart(self: Any) -> None:
        """Nothing."""

    module.ServedModel._restart = restart


def hasty_end(module: Any) -> None:
    """The service ends without waiting for the requests under way."""
    real = module.Metrics

    class Idle(real):  # type: ignore[misc]
        """Numbers of a service that has nothing to do."""

        running = property(lambda self: 0, lambda self, value: None)

    module.Metrics = Idle


def always_ready(module: Any) -> None:
    """A service says that it is ready without asking its workers."""
    module.ServedModel.is_ready = property(lambda self: True)


def leaning_rows(module: Any) -> None:
    """A row of a running batch takes a part of the scores of the row above."""
    real = module.Slots.step

    def step(self: Any, tokens: Any) -> Any:
        logits = real(self, tokens)
        return logits + 0.3 * logits.roll(1, 0)

    module.Slots.step = step


def talkative_log(module: Any) -> None:
    """Texts are logged, whatever the service was told."""
    real = module.Log.__init__

    def begin(self: Any, *, texts: bool = False, quiet: bool = False) -> None:
        real(self, texts=True, quiet=quiet)

    module.Log.__init__ = begin


FAULTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "nan-is-a-number": ("atento_serve.http.strict_json", nan_is_a_number),
    "stale-outputs": ("atento_serve.engine.generation", stale_outputs),
    "endless-queue": ("atento_serve.engine.served", endless_queue),
    "deaf-workers": ("atento_serve.engine.generation", deaf_workers),
    "endless-patience": ("atento_serve.http.connection", endless_patience),
    "kept-requests": ("atento_serve.http.logs", kept_requests),
    "mortal-service": ("atento_serve.engine.served", mortal_service),
    "hasty-end": ("atento_serve.http.metrics", hasty_end),
    "always-ready": ("atento_serve.engine.served", always_ready),
    "leaning-rows": ("atento.inference.slots", leaning_rows),
    "talkative-log": ("atento_serve.http.logs", talkative_log),
}


class _Planter(importlib.abc.MetaPathFinder):
    """Finds one module as ever, and changes it when it has been executed."""

    def __init__(self, name: str, plant: Callable[[Any], None]) -> None:
        self.name, self.plant = name, plant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the module, with a loader that changes it."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_plant(module: ModuleType) -> None:
            execute(module)
            self.plant(module)

        spec.loader.exec_module = execute_and_plant  # type: ignore[method-assign]
        return spec


if "PLANTED" in os.environ:
    sys.meta_path.insert(0, _Planter(*FAULTS[os.environ["PLANTED"]]))
