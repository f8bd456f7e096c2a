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


def kept_requests(module: Any) -> None:
    """Two kilobytes of each request stay in memory."""
    real, kept = module.Log.request, list[bytes]()

    def request(self: Any, status: int, **values: Any) -> None:
        kept.append(os.urandom(2048))
        real(self, status, **values)

    module.Log.request = request


async def nothing(self: Any) -> None:
    """In place of what replaces a worker."""


def hasty_end(module: Any) -> None:
    """The service ends without waiting for the requests under way."""
    real = module.Metrics

    class Idle(real):  # type: ignore[misc]
        """Numbers of a service that has nothing to do."""

        running = property(lambda self: 0, lambda self, value: None)

    module.Metrics = Idle


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


def put(path: str, value: Any) -> Callable[[Any], None]:
    """What puts a value in the place of an attribute of a module, or of a class in it."""

    def plant(module: Any) -> None:
        *owner, name = path.split(".")
        setattr(getattr(module, owner[0]) if owner else module, name, value)

    return plant


FAULTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    # JSON's NaN and infinities are read as 0
    "nan-is-a-number": ("atento_serve.http.strict_json", put("_constant", lambda name: 0.0)),
    "stale-outputs": ("atento_serve.engine.generation", stale_outputs),
    "endless-queue": ("atento_serve.engine.served", endless_queue),
    # a worker goes on with a job that was cancelled
    "deaf-workers": ("atento_serve.engine.generation", put("TextGenerators.cancel", lambda self, job_id: None)),
    # a connection is never too slow
    "endless-patience": ("atento_serve.http.connection", put("_Limited._wait", lambda self, seconds: None)),
    "kept-requests": ("atento_serve.http.logs", kept_requests),
    # a worker that has ended is not replaced
    "mortal-service": ("atento_serve.engine.served", put("ServedModel._restart", nothing)),
    "hasty-end": ("atento_serve.http.metrics", hasty_end),
    # a service says that it is ready without asking its workers
    "always-ready": ("atento_serve.engine.served", put("ServedModel.is_ready", property(lambda self: True))),
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
