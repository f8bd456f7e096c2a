"""The engine as the server sees it: jobs in, events out; it computes nothing itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from atento.base.errors import UsageError, nearest
from atento_serve.engine.served import ServedModel
from atento_serve.jobs import Description, Event, Job, Stats
from atento_serve.settings import Limits, ModelSettings


class Engine:
    """The served models, each with worker processes of its own; for one event loop.

    Args:
        models: by the names that jobs use.
        limits: of the service; the engine holds `queue`, `in_flight`, `input_tokens`, `output_tokens`, `truncate`,
            `batch_tokens`, `wait_ms` and `hang_seconds`.
    """

    def __init__(self, models: Mapping[str, ModelSettings], limits: Limits) -> None:
        self._served = {name: ServedModel(settings, limits) for name, settings in models.items()}

    def on_change(self, notify: Callable[..., None]) -> None:
        """Have a function called with a name and values when a worker ends or starts, cannot start, or is reloaded."""
        for served in self._served.values():
            served.notify = notify

    async def start(self) -> None:
        """Start the workers of every model.

        Raises:
            ModelError: a model cannot be loaded; no worker is left running.
        """
        starts = [served.start() for served in self._served.values()]
        results = await asyncio.gather(*starts, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await self.close()
            raise errors[0]

    def submit(self, job: Job) -> AsyncIterator[Event]:
        """Accept a job; its events are ended by `Failed`, or by `Usage` after the last `Result`, or by `cancel`.

        Raises:
            UsageError: no such model. QueueFull: too many jobs wait for it.
        """
        return self._of(job.model).submit(job)

    def cancel(self, job_id: str) -> None:
        """End a job without a further event: dropped if it waits, else stopped within a step."""
        for served in self._served.values():
            served.cancel(job_id)

    def describe(self, model: str) -> Description:
        """The loaded model.

        Raises:
            UsageError: no such model.
        """
        description = self._of(model).description
        assert description is not None, "the engine was not started"
        return description

    def ready(self, model: str | None = None) -> bool:
        """Whether a worker of a model, or of all models, answers: by a forward pass over one token every second."""
        return all(served.is_ready for name, served in self._served.items() if model in (None, name))

    def stats(self, model: str) -> Stats:
        """The numbers of a model's work."""
        return self._of(model).stats()

    async def reload(self, model: str) -> None:
        """Load a model again in new workers, which then take over; no job is lost.

        Raises:
            UsageError: no such model. ModelError: it cannot be loaded; the old workers go on.
        """
        await self._of(model).reload()

    def drop(self) -> None:
        """Accept no more jobs, and fail those that are under way: the service stops."""
        for served in self._served.values():
            served.drop()

    async def close(self) -> None:
        """End all workers; jobs that are under way fail."""
        await asyncio.gather(*(served.close() for served in self._served.values()))

    def _of(self, model: str) -> ServedModel:
        if model not in self._served:
            raise UsageError(f"no model is served by the name {model!r}{nearest(model, list(self._served))}")
        return self._served[model]
