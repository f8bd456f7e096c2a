"""The processes of Studio as the service sees them: each is started when first asked, and replaced when it ended."""

import asyncio
import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from threading import Lock

from atento.base.processes import Child, ended_by
from atento_serve.http.errors import ServiceError, busy
from atento_serve.settings import Limits, StudioSettings
from atento_serve.studio.process_loop import Answered

_PER_REQUEST = 8  # short ones of a page for one of the service: a browser sends six at once, a class thirty times that


class Studio:
    """What Studio shows, and its two processes: one holds the models and computes, one reads the runs.

    Args:
        settings: the models, the room for traces, the folders of runs.
        limits: of the service.
    """

    def __init__(self, settings: StudioSettings, limits: Limits) -> None:
        self.settings = settings
        self.models = StudioProcess("model_process", "holds Studio's models", settings, limits)
        self.runs = StudioProcess("run_process", "reads Studio's runs", settings, limits)

    def close(self) -> None:
        """End the processes."""
        self.models.close()
        self.runs.close()


class StudioProcess:
    """Requests to one child process, answered one at a time; for one event loop.

    Args:
        module: what it runs, of this package.
        does: what it does, for messages.
        settings, limits: its first message.
    """

    def __init__(self, module: str, does: str, settings: StudioSettings, limits: Limits) -> None:
        self._module, self._does, self._limits = module, does, limits
        self._first = {"settings": asdict(settings), "limits": asdict(limits)}
        self._child: Child | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="studio")
        self._lock, self._under_way = Lock(), 0

    def start(self) -> None:
        """Start the process now, so that it is ready when the page is opened."""
        self._thread.submit(lambda: self._child or self._started())

    async def call(self, function: str, arguments: object) -> Answered:
        """What a function of a screen answers: plain data, and bytes.

        Raises:
            ServiceError: what the function raises; 503, too many requests wait, or the process ended; 504, the answer
                was not ready in time: the work goes on, for the next request of the same.
        """
        limits = self._limits
        with self._lock:
            if self._under_way >= (most := limits.queue * _PER_REQUEST):
                raise busy(f"Studio has all the {most:,} requests that it takes", 1)
            self._under_way += 1
        work = self._thread.submit(self._exchange, function, arguments)
        work.add_done_callback(self._ended)  # also of work that nobody waits for any more
        try:
            async with asyncio.timeout(limits.deadline):
                return await asyncio.wrap_future(work)
        except TimeoutError:
            raise ServiceError(
                504, f"the answer was not ready in {limits.deadline:g} seconds: the work goes on, ask again", "deadline"
            ) from None

    def close(self) -> None:
        """End the process, and with it the request that it computes."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._child is not None:
            self._child.close()

    def _ended(self, _: "Future[Answered]") -> None:
        with self._lock:
            self._under_way -= 1

    def _exchange(self, function: str, arguments: object) -> Answered:
        child = self._child or self._started()
        child.send(_encoded({"function": function, "arguments": arguments}), b"")
        answer = child.receive()
        if answer is None:
            status = child.wait()
            child.close()
            self._child = None  # the next request starts another
            how = ended_by(-status) if status < 0 else f"exit status {status}"
            message = f"the process that {self._does} ended ({how}): it starts again with the next request"
            raise busy(message, 1, "studio_ended")
        head = json.loads(answer[0])
        if "error" in head:
            raise ServiceError(**head["error"])
        return head["value"], answer[1]

    def _started(self) -> Child:
        self._child = child = Child("-m", f"atento_serve.studio.{self._module}", TOKENIZERS_PARALLELISM="false")
        child.send(_encoded(self._first), b"")
        return child


def _encoded(message: object) -> bytes:
    return json.dumps(message).encode("ascii")
