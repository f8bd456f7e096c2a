"""One served model: its worker processes, which are replaced when they end or are reloaded, and its jobs."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from atento.base.errors import AtentoError, ModelError
from atento_serve.engine.messages import event_of, job_message
from atento_serve.engine.process import WorkerProcess
from atento_serve.jobs import Description, Event, Failed, Job, QueueFull, Stats, Usage
from atento_serve.settings import Limits, ModelSettings

_WINDOW = 10.0  # seconds over which the rate of jobs is measured
_LONGEST_PAUSE = 30.0  # seconds between two attempts to start a worker


@dataclass
class _Accepted:
    """A job that has not ended; `worker` is the process that has it, None while there is none."""

    job: Job
    events: asyncio.Queue[Event | None] = field(default_factory=asyncio.Queue)
    worker: WorkerProcess | None = None
    accepted: float = field(default_factory=time.monotonic)
    started: float | None = None  # when it no longer waited
    timer: asyncio.TimerHandle | None = None


class ServedModel:
    """The jobs of one model, and the processes that compute them.

    A job goes to the process with the fewest texts under way.

    Attributes:
        workers: those that have loaded the model and take jobs.
        notify: called with a name and values when a worker ends, when another one has started, and when it cannot.
    """

    def __init__(self, settings: ModelSettings, limits: Limits) -> None:
        self.settings, self.limits = settings, limits
        self.workers: list[WorkerProcess] = []
        self.description: Description | None = None
        self.notify: Callable[..., None] = lambda name, **values: None
        self._jobs: dict[str, _Accepted] = {}
        self._is_closed = False
        self._restarts = 0
        self._ends = deque[float]()  # the times at which the last jobs ended
        self._batches, self._tokens = Counter[int](), Counter[str]()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the workers.

        Raises:
            ModelError: the model cannot be loaded; no worker is left running.
        """
        self._take_over(await self._new_workers())

    async def reload(self) -> None:
        """Start other workers, give them all later jobs, and end the old ones after their last jobs.

        Raises:
            ModelError: the model cannot be loaded; the old workers go on.
        """
        workers = await self._new_workers()
        old, self.workers = self.workers, []
        self._take_over(workers)
        self.notify("reloaded", model=self.settings.name)
        for worker in old:
            self._spawn(self._retire(worker))

    def submit(self, job: Job) -> AsyncIterator[Event]:
        """Accept a job; its events come until it has ended or was cancelled.

        Raises:
            QueueFull: as many jobs are computed and wait as the limits allow, and this is not a further one of a
                request that was accepted.
        """
        # a job that was just sent has not started yet, so jobs are counted, and not those that wait
        is_full = len(self._jobs) >= self.limits.in_flight + self.limits.queue
        if self._is_closed or (is_full and not job.continues):
            # seconds until those that wait are answered
            raise QueueFull(self.settings.name, max(1.0, self.waiting / max(self.rate, 1e-3)))
        if job.id in self._jobs:
            raise ValueError(f"a job with the id {job.id!r} is under way")
        accepted = self._jobs[job.id] = _Accepted(job)
        loop = asyncio.get_running_loop()
        if job.deadline != float("inf"):
            left = max(0.0, job.deadline - time.monotonic())
            accepted.timer = loop.call_later(left, self._fail_late, accepted)
        self._send(accepted)
        return self._events(accepted)

    def cancel(self, job_id: str) -> None:
        """End a job without a further event; its work stops within a step. No such job: nothing."""
        accepted = self._jobs.get(job_id)
        if accepted is not None:
            if accepted.worker is not None:
                accepted.worker.send({"cancel": job_id})
            self._end(accepted)

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return sum(accepted.started is None for accepted in self._jobs.values())

    @property
    def rate(self) -> float:
        """Jobs that ended, a second, over the last seconds: at most ten, from the first end in them."""
        now = time.monotonic()
        while self._ends and self._ends[0] < now - _WINDOW:
            self._ends.popleft()
        return len(self._ends) / max(1.0, now - self._ends[0]) if self._ends else 0.0

    @property
    def is_ready(self) -> bool:
        """Whether a worker has loaded the model and answers."""
        return any(worker.works for worker in self.workers)

    def stats(self) -> Stats:
        """The numbers of its work."""
        return Stats(self.waiting, len(self._jobs), dict(self._batches), dict(self._tokens), self._restarts, self.rate)

    def drop(self) -> None:
        """Accept no more jobs, and fail those that are under way: the service stops."""
        self._is_closed = True
        for accepted in list(self._jobs.values()):
            self._fail(accepted, Failed("stopping", "the service is stopping"))

    async def close(self) -> None:
        """End the workers; jobs that are under way fail."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        workers = {accepted.worker for accepted in self._jobs.values() if accepted.worker is not None}
        workers |= set(self.workers)
        self.workers = []
        for worker in workers:
            await worker.close()
            self._fail_all(worker)
        self._fail_all(None)

    async def _new_worker(self) -> WorkerProcess:
        return await WorkerProcess.started(self.settings, self.limits, self._receive, self._replace)

    async def _new_workers(self) -> list[WorkerProcess]:
        """As many as the settings say, or none."""
        starts = [self._new_worker() for _ in range(self.settings.workers)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        workers = [result for result in results if isinstance(result, WorkerProcess)]
        errors = [result for result in results if isinstance(result, BaseException)]
        if any(worker.has_ended for worker in workers):
            path = self.settings.path
            errors.append(ModelError(f"a worker of {path} ended while the others loaded the model"))
        if errors:
            await asyncio.gather(*(worker.close() for worker in workers))
            raise errors[0]
        return workers

    def _take_over(self, workers: list[WorkerProcess]) -> None:
        """Let workers take the jobs that no other one has, and a share of all later ones."""
        self.workers += workers
        self.description = workers[0].description
        for accepted in self._jobs.values():
            if accepted.worker is None:
                self._send(accepted)

    def _send(self, accepted: _Accepted) -> None:
        """Give a job to the worker with the fewest texts, of those that answer if any does."""
        workers = [worker for worker in self.workers if worker.works] or self.workers
        if workers:
            texts = dict.fromkeys(workers, 0)  # under way at each
            for under_way in self._jobs.values():
                if under_way.worker in texts:
                    texts[under_way.worker] += len(under_way.job.items)
            accepted.worker = min(workers, key=texts.__getitem__)
            accepted.worker.send(job_message(accepted.job))

    async def _events(self, accepted: _Accepted) -> AsyncIterator[Event]:
        try:
            while (event := await accepted.events.get()) is not None:
                yield event
        finally:
            self.cancel(accepted.job.id)  # whoever stops listening needs no more of it

    def _receive(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        """Handle a message of a worker."""
        if "pong" in message:
            self._batches.update({int(size): count for size, count in message["batches"]})
            self._tokens.update(message["tokens"])
            return
        accepted = self._jobs.get(message.get("started", message.get("of", "")))
        if accepted is None or accepted.worker is not worker:  # of a job that ended, or went to another process since
            return
        if "started" in message:
            accepted.started = time.monotonic()
            return
        event = event_of(message)
        if isinstance(event, Usage) and accepted.started is not None:
            waited = accepted.started - accepted.accepted
            event = replace(event, queue_seconds=waited, compute_seconds=time.monotonic() - accepted.started)
        accepted.events.put_nowait(event)
        if isinstance(event, Usage | Failed):  # the last event of a job
            self._ends.append(time.monotonic())
            self._end(accepted)

    def _end(self, accepted: _Accepted) -> None:
        """Forget a job, and end its events."""
        self._jobs.pop(accepted.job.id, None)
        if accepted.timer is not None:
            accepted.timer.cancel()
        accepted.events.put_nowait(None)

    def _fail(self, accepted: _Accepted, failed: Failed) -> None:
        accepted.events.put_nowait(failed)
        self._end(accepted)

    def _fail_late(self, accepted: _Accepted) -> None:
        """The deadline of a job has passed: its work is dropped wherever it is."""
        if accepted.worker is not None:
            accepted.worker.send({"cancel": accepted.job.id})
        self._fail(accepted, Failed("deadline", "the work was not done before its deadline"))

    def _fail_all(self, worker: WorkerProcess | None) -> None:
        for accepted in [accepted for accepted in self._jobs.values() if accepted.worker is worker]:
            how = "did not answer and was ended" if worker is not None and worker.has_hung else "ended"
            self._fail(accepted, Failed("worker", f"the process that computes this model {how}"))

    def _replace(self, worker: WorkerProcess) -> None:
        """A worker has ended by itself, or was killed: its jobs fail, and another one is started."""
        self._fail_all(worker)
        if worker in self.workers:
            self.workers.remove(worker)
            self._restarts += 1
            self.notify("worker_ended", model=self.settings.name, hung=worker.has_hung)
            self._spawn(self._restart())

    async def _restart(self) -> None:
        """Start a worker, again after a pause as long as it fails; without a worker jobs wait until their deadlines."""
        pause = 1.0
        while not self._is_closed:
            try:
                worker = await self._new_worker()
            except (AtentoError, OSError) as error:
                self.notify("worker_failed", model=self.settings.name, error=str(error), again_in=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            if len(self.workers) < self.settings.workers:  # else the model was reloaded meanwhile
                self._take_over([worker])
                self.notify("worker_started", model=self.settings.name)
            else:
                await worker.close()
            return

    async def _retire(self, worker: WorkerProcess) -> None:
        """End a worker after its last job."""
        try:
            while any(accepted.worker is worker for accepted in self._jobs.values()):
                await asyncio.sleep(0.01)
        finally:
            with contextlib.suppress(ProcessLookupError):
                await worker.close()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine beside the others, and hold it until it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
