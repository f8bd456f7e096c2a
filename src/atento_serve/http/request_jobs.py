"""Jobs of a request: submitted to the engine, their results collected or streamed, cancelled when the client leaves."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse

from atento_serve.http.body import gone
from atento_serve.http.errors import ServiceError, busy, late, too_long, wrong_field
from atento_serve.http.middleware import CLOSED_BY_CLIENT
from atento_serve.http.service import Service, note
from atento_serve.jobs import Failed, Job, Piece, QueueFull, Result, Usage

PING_SECONDS = 15.0
_NAMED = re.compile(r"`(\w+)`")  # an option in a message
_GRACE = 1.0  # seconds after the deadline in which the engine itself reports it
T = TypeVar("T")


@dataclass
class Outcome:
    """What a job gave: a value for each item, tokens read and written."""

    values: list[Any]
    prompt_tokens: int = 0
    new_tokens: int = 0


@dataclass(frozen=True)
class Fit:
    """What becomes of long texts: the most tokens of one, the end that is cut; as `atento_serve.jobs.Job` has them."""

    longest: int | None = None
    truncate: str | None = None


WHOLE = Fit()
"""As the service says."""


def fit_of(truncate: bool | None, direction: str) -> Fit:
    """What `truncate` and `truncation_direction` of text-embeddings-inference ask for."""
    return WHOLE if truncate is None else Fit(None, direction.lower() if truncate else "error")


@dataclass(frozen=True)
class Pointers:
    """Where the fields of a request stand that a model may refuse: pointers, as `ServiceError.param` has them.

    Attributes:
        texts: to the texts.
        prefix: before the names of the options.
        names: the name of an option in the request, by that of `atento.Model`; others have the same. One in a section
            has that before it, as `generate_parameters/num_beams`.
    """

    texts: str = ""
    prefix: str = "/"
    names: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, message: str, options: Mapping[str, object]) -> ServiceError:
        """The error that says why a model refuses an option or a text, in the names of the request."""
        message = message.removeprefix("options: ").replace("`decoding.", "`")
        named = [name for name in _NAMED.findall(message) if name in options]
        for name in dict.fromkeys(named):
            message = message.replace(f"`{name}`", f"`{self.names.get(name, name).rpartition('/')[2]}`")
        pointer = f"{self.prefix}{self.names.get(named[0], named[0])}" if named else ""
        of_texts = message.startswith(("text ", "the chat template "))
        return wrong_field(pointer or (self.texts if of_texts else ""), message)


@dataclass
class Work:
    """The jobs of one request.

    Attributes:
        service: the service.
        request: the request; its number names the jobs.
        pointers: where its fields stand.
        head: the head of a model with several that its jobs are for; None: the only one that fits.
        deadline: the `time.monotonic()` at which it must be answered.
    """

    service: Service
    request: Request
    pointers: Pointers = Pointers()
    head: str | None = None
    _begun: dict[str, None] = field(default_factory=dict)  # jobs that have not ended
    _count: int = 0
    _is_accepted: bool = False  # a job of it was accepted

    def __post_init__(self) -> None:
        read = self.request.scope["atento"].get("read", time.monotonic())  # when its last byte had come
        self.deadline = read + self.service.limits.deadline

    def job(
        self,
        model: str,
        verb: str,
        items: Sequence[object],
        options: Mapping[str, object],
        *,
        stream: bool = False,
        log_probs: int | None = None,
        fit: Fit = WHOLE,
        first: int = 0,
    ) -> Job:
        """A job of this request; all of them have the deadline of the request."""
        self._count += 1
        number = f"{self.request.scope['atento']['id']}-{self._count}"
        note(self.request, model=model, verb=verb, items=len(items), characters=_characters(items))
        if self.service.log.texts:
            note(self.request, texts=items)
        return Job(
            number,
            model,
            verb,
            items,
            options if self.head is None else {**options, "head": self.head},
            stream=stream,
            deadline=self.deadline,
            log_probs=log_probs,
            longest=fit.longest,
            truncate=fit.truncate,
            first=first,
            continues=self._is_accepted,
        )

    async def run(
        self,
        model: str,
        verb: str,
        items: Sequence[object],
        options: Mapping[str, object] | None = None,
        *,
        log_probs: int | None = None,
        fit: Fit = WHOLE,
        first: int = 0,
    ) -> Outcome:
        """The values of all items; `first` is the number of the first one in the request.

        Raises:
            ServiceError: as `events` says.
        """
        outcome = Outcome([None] * len(items))
        job = self.job(model, verb, items, options or {}, log_probs=log_probs, fit=fit, first=first)
        async for event in self.events(job):
            if isinstance(event, Result):
                outcome.values[event.item] = event.value
            elif isinstance(event, Usage):
                outcome.prompt_tokens, outcome.new_tokens = event.prompt_tokens, event.new_tokens
        return outcome

    async def run_in_parts(
        self, model: str, verb: str, items: Sequence[object], options: Mapping[str, object] | None = None
    ) -> Outcome:
        """The values of any number of items, by jobs of the size of a usual request, so that others come in between.

        Raises:
            ServiceError: as `events` says.
        """
        whole, most = Outcome([]), self.service.limits.texts
        for start in range(0, len(items), most):
            part = await self.run(model, verb, items[start : start + most], options, first=start)
            whole.values += part.values
            whole.prompt_tokens += part.prompt_tokens
            whole.new_tokens += part.new_tokens
        note(self.request, items=len(items), characters=_characters(items))
        return whole

    async def events(self, job: Job) -> AsyncIterator[Piece | Result | Usage]:
        """The events of a job.

        Raises:
            ServiceError: 503 the queue is full or the worker ended; 422 the model refuses the items or options; 413 a
                text has too many tokens; 504 the deadline passed.
        """
        try:
            events = self.service.engine.submit(job)
        except QueueFull as error:
            self.service.check_open()  # it may not: the drain is over
            limits = self.service.limits
            message = f"the model {job.model!r} has all the {limits.in_flight + limits.queue:,} requests that it takes"
            raise busy(message, error.retry_after) from None
        self._is_accepted = True
        self._begun[job.id] = None  # what `stop` cancels
        try:
            # the engine itself should report the deadline first
            until = asyncio.get_running_loop().time() + job.deadline - time.monotonic() + _GRACE
            while True:
                async with asyncio.timeout_at(until):  # in a stream a task of its own awaits each event
                    event = await anext(events, None)
                if event is None:
                    break
                if isinstance(event, Failed):
                    raise self._failure(event, job)
                if isinstance(event, Usage):
                    self._note(event)
                yield event
            del self._begun[job.id]
        except TimeoutError:
            raise self._failure(Failed("deadline", ""), job) from None
        finally:  # also where the reader of the events stops early
            self.stop()

    def _note(self, usage: Usage) -> None:
        """Add tokens and times to the line of log of the request: the sums over its jobs."""
        notes = self.request.scope["atento"]["notes"]
        for name, value in asdict(usage).items():
            notes[name] = round(notes.get(name, 0) + value, 4)

    def stop(self) -> None:
        """Cancel the jobs that have not ended."""
        for number in list(self._begun):
            del self._begun[number]
            self.service.engine.cancel(number)

    def _failure(self, failed: Failed, job: Job) -> ServiceError:
        if failed.kind == "request":
            return self.pointers.refusal(failed.message, job.options)
        if failed.kind == "template":
            return ServiceError(400, failed.message, "chat_template_failed", param="/model")
        if failed.kind == "too_long":
            return too_long(failed.message, self.pointers.texts or None)
        if failed.kind == "deadline":
            return late(self.service.limits.deadline)
        if failed.kind == "worker":
            return busy("the process that computed the answer ended; it is being replaced", 2, "worker_ended")
        if failed.kind == "stopping":
            self.service.check_open()
        note(self.request, error="the worker raised it; its own line of the log names it")
        return ServiceError(500, "the service failed; its log says where", "bug")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled when the client closes the connection.

    Raises:
        ServiceError: of status 499, the client has gone.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ServiceError(CLOSED_BY_CLIENT, "the client has gone", "client_gone")
    finally:
        for future in (task, watch):
            future.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await future


Chunks = AsyncIterator[dict[str, object]]


async def event_stream(work: Work, chunks: Chunks, route: str = "") -> StreamingResponse:
    """An answer of server-sent events, one a chunk; failures before the first chunk have their own status.

    Args:
        work: the jobs behind the chunks, which are cancelled when the client goes.
        chunks: JSON objects.
        route: a route of OpenAI's, whose streams end with `data: [DONE]`, and whose first chunk is timed.

    Raises:
        ServiceError: the first chunk fails.
    """
    first = await unless_gone(work.request, anext(chunks))  # a failure before it is an answer with a status
    if route:
        work.service.metrics.first.labels(route).observe(time.monotonic() - work.request.scope["atento"]["begun"])

    async def lines() -> AsyncIterator[str]:
        upcoming: asyncio.Future[dict[str, object]] | None = None
        try:
            yield _line(first)
            while True:
                # the same one after a ping: it is still awaited
                upcoming = upcoming or asyncio.ensure_future(anext(chunks))
                if not (await asyncio.wait({upcoming}, timeout=PING_SECONDS))[0]:
                    yield ": ping\n\n"
                    continue
                try:
                    yield _line(upcoming.result())
                except StopAsyncIteration:
                    break
                except ServiceError as error:
                    note(work.request, code=error.code)  # the status is sent, so the error is an event
                    yield _line(error.body(work.request.scope))
                    return
                upcoming = None
            if route:
                yield "data: [DONE]\n\n"
        finally:
            if upcoming is not None:
                upcoming.cancel()
            work.stop()

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _line(chunk: dict[str, object]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _characters(items: Sequence[object]) -> int:
    return sum(len(part) for item in items for part in _parts(item))


def _parts(item: object) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, list | tuple):
        yield from (part for part in item if isinstance(part, str))
    elif isinstance(item, Mapping):  # a conversation
        yield from (message["content"] for message in item["messages"])


def check_texts(service: Service, count: int, pointer: str, most: int | None = None) -> None:
    """Raises ServiceError: 413, a request has more than `most` texts (None: the limit); 422, it has none."""
    most = service.limits.texts if most is None else most
    if count > most:
        raise too_long(f"a request may have at most {most:,} texts: got {count:,}", pointer)
    if count == 0:
        raise wrong_field(pointer, f"`{pointer.rpartition('/')[2]}` must have at least one text: got none")
