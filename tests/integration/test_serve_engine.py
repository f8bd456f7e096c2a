"""The engine with real worker processes: right answers under load, cancellation, deaths, reloads, isolation."""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atento.base.errors import ModelError, UsageError
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model, load
from atento_serve.engine.engine import Engine
from atento_serve.engine.outbox import failure_of
from atento_serve.jobs import Event, Failed, Job, Piece, QueueFull, Result, Usage
from atento_serve.settings import Limits, ModelSettings
from http_service import spent, until
from serving import TEXTS, alone, random_job, real_faults, small_model, small_tokenizer, wrong

pytestmark = pytest.mark.usefixtures("modules_are_forked")
LIMITS = Limits(in_flight=64, queue=400, input_tokens=128, output_tokens=1_000_000)
LONG = {"greedy": True, "ignore_eos": True, "max_new_tokens": 100_000}


class Running:
    """An engine on an event loop of its own thread."""

    def __init__(self, folders: dict[str, Path], limits: Limits, workers: int = 1) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        share: dict[str, Any] = {"threads": workers, "workers": workers}
        settings = {name: ModelSettings(name, str(folder), **share) for name, folder in folders.items()}
        self.engine = Engine(settings, limits)

    def run(self, work: Coroutine[Any, Any, Any], seconds: float = 60.0) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(seconds)

    def events(self, *jobs: Job) -> list[list[Event]]:
        """The events of jobs that are submitted at once."""

        async def gathered() -> list[list[Event]]:
            return list(await asyncio.gather(*(collected(self.engine.submit(job)) for job in jobs)))

        return list(self.run(gathered()))

    def pid(self, model: str) -> int:
        return self.pids(model)[0]

    def pids(self, model: str) -> list[int]:
        return [worker.pid for worker in self.engine._of(model).workers]

    def close(self) -> None:
        self.run(self.engine.close())
        self.loop.call_soon_threadsafe(self.loop.stop)


async def collected(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_small_models(tmp_path_factory.mktemp("models"))


def write_small_models(folder: Path) -> dict[str, Path]:
    tokenizer = small_tokenizer()
    reader = small_model(tokenizer, "encoder", heads=(HeadConfig("classification", labels=("a", "b", "c")),))
    reader.config["task"] = "classification"
    models = {"writer": small_model(tokenizer, "encoder-decoder", 1.2), "reader": reader}
    return {name: model.save(folder / name) for name, model in models.items()}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Model]:
    return {name: load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def running(folders: dict[str, Path]) -> Iterator[Running]:
    running = Running(folders, LIMITS)
    running.run(running.engine.start())
    yield running
    running.close()


def job(job_id: str, model: str, verb: str, items: list[Any], **options: Any) -> Job:
    return Job(job_id, model, verb, items, options)


def test_the_engine_describes_and_refuses_in_the_models_words(running: Running, models: dict[str, Model]) -> None:
    writer, reader = running.engine.describe("writer"), running.engine.describe("reader")
    assert writer.task == models["writer"].config["task"] and reader.labels == ["a", "b", "c"]
    assert (writer.verb, reader.verb) == ("translate", "classify")
    assert {"translate", "score", "tokenize"} <= set(writer.verbs) and {"classify", "embed"} <= set(reader.verbs)
    assert "translate" not in reader.verbs and "classify" not in writer.verbs
    assert running.engine.ready() and running.engine.ready("writer")
    with pytest.raises(UsageError, match="no model is served by the name 'wrter'; did you mean 'writer'"):
        running.engine.submit(job("0", "wrter", "translate", ["a"]))
    long = " ".join(TEXTS)
    refused = running.events(
        job("1", "writer", "translate", ["a"], beem=3),
        job("2", "writer", "translate", ["a"], mbr="embeddings:/etc"),
        job("3", "reader", "translate", ["a"]),
        job("4", "reader", "clasify", ["a"]),
        job("5", "reader", "classify", ["a", long]),
        job("6", "reader", "classify", [["a", "b"], "a"]),
    )
    assert [type(events[-1]) for events in refused] == [Failed] * 6 and all(len(events) == 1 for events in refused)
    messages = [(event.kind, event.message) for (event,) in refused if isinstance(event, Failed)]
    assert [kind for kind, _ in messages] == ["request", "request", "request", "request", "too_long", "request"]
    with pytest.raises(UsageError) as error:
        models["writer"].translate("a", beem=3)  # type: ignore[call-arg]
    assert messages[0][1] == str(error.value)
    count = len(models["reader"].tokenizer.encode(long))  # type: ignore[union-attr]
    assert "text 1" in messages[4][1] and "128" in messages[4][1] and str(count)[:2] in messages[4][1]


def test_readers_share_batches_and_answer_each_in_its_order(running: Running, models: dict[str, Model]) -> None:
    """The one at fault fails alone."""
    reader, rng = models["reader"], random.Random(2)
    jobs, expected = [], []
    for number in range(60):
        texts = [rng.choice(TEXTS) for _ in range(rng.randint(1, 4))]
        if number % 3 == 0:
            jobs.append(job(f"e{number}", "reader", "embed", texts, normalize=bool(number % 2)))
            expected.append([*reader.embed(texts, normalize=bool(number % 2))])
        else:
            jobs.append(job(f"c{number}", "reader", "classify", texts))
            expected.append(reader.classifications(texts))
    jobs.append(job("bad", "reader", "embed", ["a"], pooling="sum"))
    before = running.engine.stats("reader")
    *results, bad = running.events(*jobs)
    assert isinstance(bad[-1], Failed) and bad[-1].kind == "request"
    for one, events, values in zip(jobs, results, expected):
        assert isinstance(events[-1], Usage) and events[-1].new_tokens == 0
        assert events[-1].prompt_tokens == sum(len(reader.tokenizer.encode(text)) for text in one.items)  # type: ignore[union-attr]
        for event, value in zip(events[:-1], values, strict=True):
            assert isinstance(event, Result)
            if one.verb == "embed":
                np.testing.assert_allclose(event.value, value, atol=1e-5)
            else:
                assert [label["name"] for label in event.value] == [label.name for label in value]
    until(lambda: sum(running.engine.stats("reader").batches.values()) > sum(before.batches.values()))
    assert max(running.engine.stats("reader").batches) > 8  # items of several jobs in one batch


def under_load(running: Running, model: Model, count: int, clients: int, seed: int) -> list[str]:
    """What is wrong with the replies to so many clients that each send one job after the other."""
    rng = random.Random(seed)
    jobs = [replace(random_job(rng, n, "translate", TEXTS), id=f"{seed}.{n}", model="writer") for n in range(count)]
    replies: dict[str, list[Event]] = {}
    todo = iter(jobs)

    async def client() -> None:
        for one in todo:
            replies[one.id] = await collected(running.engine.submit(one))

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    running.run(all_clients(), 600)
    return real_faults(model, [(one, wrong(alone(model, one), replies[one.id])) for one in jobs])


@pytest.mark.filterwarnings("ignore:the exact search")
@pytest.mark.parametrize("count", [60, pytest.param(20_000, marks=pytest.mark.slow)])
def test_v2_right_answers_under_load(running: Running, models: dict[str, Model], count: int) -> None:
    assert under_load(running, models["writer"], count, 64, seed=count) == []
    assert count < 200 or max(running.engine.stats("writer").batches) > 16


@pytest.mark.filterwarnings("ignore:the exact search")
@pytest.mark.parametrize("count", [24, pytest.param(2000, marks=pytest.mark.slow)])
def test_v4_cancelled_work_stops_and_neighbours_go_on(running: Running, models: dict[str, Model], count: int) -> None:
    """A third of the clients vanish: in the queue, while it is computed, in the middle of a stream."""
    rng, engine = random.Random(4), running.engine

    async def vanishing(number: int) -> None:
        one = Job(f"gone{number}", "writer", "translate", [rng.choice(TEXTS)], LONG, stream=number % 2 == 0)
        events = engine.submit(one)
        if rng.random() < 0.3:
            engine.cancel(one.id)
            assert [event async for event in events] == []
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rng.random() / 4):
                    assert all([isinstance(event, Piece) async for event in events])
        assert one.id not in engine._of("writer")._jobs

    async def staying(number: int) -> tuple[Job, list[Event]]:
        one = replace(random_job(rng, number, "translate", TEXTS), id=f"stays{number}", model="writer")
        return one, await collected(engine.submit(one))

    async def both() -> list[tuple[Job, list[Event]]]:
        room = asyncio.Semaphore(256)  # the queue takes 400 jobs

        async def in_turn(work: Coroutine[Any, Any, Any]) -> Any:
            async with room:
                return await work

        gone = [asyncio.create_task(in_turn(vanishing(number))) for number in range(count // 3)]
        stays = await asyncio.gather(*(in_turn(staying(number)) for number in range(count)))
        await asyncio.gather(*gone)
        return list(stays)

    replies = running.run(both(), 600)
    faults = [(one, wrong(alone(models["writer"], one), events)) for one, events in replies]
    assert real_faults(models["writer"], faults) == [] and len(replies) == count
    assert engine.stats("writer").in_flight == 0 and engine.stats("writer").queue == 0
    assert works_no_more(running.pid("writer"))


def works_no_more(pid: int) -> bool:
    """Whether a process does next to nothing, 0.1 seconds and a step after it was told to stop."""
    time.sleep(0.15)
    before = spent(pid)
    time.sleep(0.5)
    return spent(pid) - before < 0.1


def test_a_deadline_drops_the_work(running: Running) -> None:
    late = Job("late", "writer", "translate", ["a"], LONG, deadline=time.monotonic() + 0.2)
    for (ended,) in running.events(late, Job("over", "writer", "translate", ["a"], {}, deadline=time.monotonic() - 1)):
        assert isinstance(ended, Failed) and ended.kind == "deadline"
    assert running.engine.stats("writer").in_flight == 0 and works_no_more(running.pid("writer"))


def test_v10_no_reply_or_log_has_a_word_of_another_job(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    """Each text has a word of its own, which `score` and `tokenize` give back token by token."""
    words = [f"canary{number:03d}" for number in range(150)]
    jobs = []
    for number, word in enumerate(words):
        verb, items = ("tokenize", [word]) if number % 2 else ("score", [[word, word]])
        jobs.append(job(word, "writer", verb, items, **({"bad": word} if number % 7 == 0 else {})))
    tokenizer = load(Path(running.engine.describe("writer").path)).tokenizer
    for one, events in zip(jobs, running.events(*jobs)):
        if isinstance(events[-1], Failed):
            assert events[-1].message == f"`{one.verb}` has no option 'bad'"
            continue
        assert isinstance(events[0], Result)
        ids = [tokenizer.token_id(token) for token in events[0].value["tokens"]]
        assert tokenizer.decode([token for token in ids if token is not None]) == one.id
    assert "canary" not in failure_of(ValueError("canary")).message  # a fault of ours may quote a text
    assert "canary" not in "".join(capfd.readouterr())


def test_a_full_queue_refuses_at_once(folders: dict[str, Path], running: Running) -> None:
    served = running.engine._of("writer")
    served.limits = replace(LIMITS, queue=2, in_flight=2)
    try:
        full, in_flight = running.run(filled(running.engine))
        assert in_flight == 4  # two are computed, two wait
        running.run(submitted(running.engine, 6, first=5, continues=True))  # of a request that was accepted
    finally:
        served.limits = LIMITS
        for number in range(6):
            running.loop.call_soon_threadsafe(running.engine.cancel, f"full{number}")
    assert full.retry_after >= 1
    until(lambda: running.engine.stats("writer").in_flight == 0)


async def filled(engine: Engine) -> tuple[QueueFull, int]:
    """What refuses the fifth of five jobs, and how many are in flight then: no result is read meanwhile."""
    with pytest.raises(QueueFull) as full:
        await submitted(engine, 5)
    return full.value, engine.stats("writer").in_flight


async def submitted(engine: Engine, count: int, first: int = 0, *, continues: bool = False) -> None:
    for number in range(first, count):
        engine.submit(replace(job(f"full{number}", "writer", "translate", [TEXTS[0]]), continues=continues))


@pytest.mark.filterwarnings("ignore:the exact search")
def test_reload_loses_no_job_nor_does_a_kill(running: Running, models: dict[str, Model]) -> None:
    old = running.pid("writer")
    reloading = asyncio.run_coroutine_threadsafe(running.engine.reload("writer"), running.loop)
    while not reloading.done():
        assert under_load(running, models["writer"], 20, 8, seed=random.randrange(10**6)) == []
    assert reloading.exception() is None and running.pid("writer") != old
    until(lambda: not Path(f"/proc/{old}").exists())
    threading.Timer(0.3, os.kill, (running.pid("writer"), signal.SIGKILL)).start()
    (lost,) = running.events(Job("lost", "writer", "translate", ["a"], LONG))
    assert lost[-1] == Failed("worker", "the process that computes this model ended")
    assert not running.engine.ready("writer") and running.engine.ready("reader")
    (after,) = running.events(job("waits", "writer", "translate", [TEXTS[0]]))  # waits for the new worker
    assert isinstance(after[-1], Usage) and running.engine.stats("writer").restarts == 1


@pytest.mark.slow
def test_a_worker_that_hangs_too_long_is_ended_and_replaced(folders: dict[str, Path]) -> None:
    running = Running({"writer": folders["writer"]}, replace(LIMITS, hang_seconds=5.0))
    running.run(running.engine.start())
    try:
        pid = running.pid("writer")
        threading.Timer(0.3, os.kill, (pid, signal.SIGSTOP)).start()
        start = time.monotonic()
        (lost,) = running.events(Job("lost", "writer", "translate", ["a"], LONG | {"max_new_tokens": 10**6}))
        assert lost[-1] == Failed("worker", "the process that computes this model did not answer and was ended")
        assert 5.0 < time.monotonic() - start < 9.0 and not Path(f"/proc/{pid}").exists()
        (after,) = running.events(job("waits", "writer", "translate", [TEXTS[0]]))
        assert isinstance(after[-1], Usage) and running.engine.stats("writer").restarts == 1
    finally:
        running.close()


def resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@pytest.mark.slow
@pytest.mark.parametrize("count", [20_000, 200_000])
def test_memory_stays_flat_over_many_requests(running: Running, count: int) -> None:
    """Of the worker, in the second half of the requests; before that it grows, in part by oneDNN's cache."""
    rng, pid, sizes = random.Random(8), running.pid("writer"), list[float]()
    strategies = [{"greedy": True}, {"greedy": True}, {"top_p": 0.9}, {"sample": True, "n_best": 3}, {"beam": 2}]
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            if number % (count // 20) == 0:
                sizes.append(resident(pid))
            options = rng.choice(strategies) | {"max_new_tokens": rng.choice([1, 2, 4, 4, 8, 20])}
            text = " ".join(rng.choice(TEXTS[:20]) for _ in range(rng.choice([1, 1, 2, 3])))
            events = await collected(running.engine.submit(job(f"m{number}", "writer", "translate", [text], **options)))
            assert isinstance(events[-1], Usage)

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(32)))

    running.run(clients(), 7200)
    sizes.append(resident(pid))
    print("MiB of the worker after each twentieth:", " ".join(f"{size:.1f}" for size in sizes))
    middle = len(sizes) // 2
    assert max(sizes[middle:]) - sizes[middle] < 64, sizes


def test_a_model_that_cannot_be_loaded_is_refused_with_its_sentence(tmp_path: Path) -> None:
    running = Running({"none": tmp_path / "none"}, LIMITS)
    with pytest.raises(UsageError) as expected:
        load(tmp_path / "none")
    with pytest.raises(ModelError) as error:
        running.run(running.engine.start())
    assert str(error.value) == str(expected.value)
    running.close()
