"""A worker process of the service: it loads one model and computes the jobs that arrive on standard input.

The first line has the settings of the model and the limits; after it come jobs, cancellations and questions whether the
process still works. Standard output has the answers. No line of the log has a user's text.
"""

import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from dataclasses import asdict
from typing import Any, BinaryIO

import torch

from atento.base.errors import AtentoError, ModelError
from atento.base.start_up import without_collections
from atento.config.tables.verbs import WRITING
from atento.decoding.contract import AnyStepFunction
from atento.inference.choose import pack_large, pack_weights
from atento.inference.plain import WritingNetwork
from atento.model import Model, load
from atento.retrieval.text_index import Index
from atento.training.allocator import set_kernel_cache_size, trim_memory
from atento_serve.chat.conversations import Conversations, prompts
from atento_serve.engine.generation import TextGenerators
from atento_serve.engine.messages import decoded
from atento_serve.engine.outbox import Outbox
from atento_serve.engine.reading import batch_of, read_batch
from atento_serve.engine.requests import Waiting
from atento_serve.engine.verbs import check_verb, describe, fitted, seed_decoding
from atento_serve.jobs import Failed, Job


class Inbox:
    """The messages that have arrived on a stream; the process ends when the stream does."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._messages, self._arrived = stream, deque[dict[str, Any]](), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def take(self, seconds: float | None) -> list[dict[str, Any]]:
        """The messages since the last call; if there are none, wait for one so many seconds (None: without end)."""
        if not self._messages and (seconds is None or seconds > 0):
            self._arrived.wait(seconds)
        self._arrived.clear()
        taken = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def _read(self) -> None:
        while line := self._stream.readline():
            self._messages.append(decoded(line))
            self._arrived.set()
        os._exit(0)  # the server has ended, or has closed this worker


_KERNELS = 512  # that oneDNN keeps, some 0.5 MiB each; with 1,024 a service is no faster


class Worker:
    """The jobs of one model: those that wait, and those that are written step by step.

    Args:
        model: the model.
        limits: those of `atento_serve.settings.Limits` that the engine holds, by their names.
        inbox, outbox: the messages from and to the server.
    """

    def __init__(self, model: Model, limits: dict[str, Any], inbox: Inbox, outbox: Outbox) -> None:
        self.model, self.limits, self.inbox, self.outbox = model, limits, inbox, outbox
        self.waiting: dict[str, Waiting] = {}
        self.generators = TextGenerators(model, outbox, limits["output_tokens"])
        self.conversations = Conversations.of(model.path, model.tokenizer)

    def run(self) -> None:
        """Work until the process is ended."""
        with torch.inference_mode():  # throughout, because the searches of several jobs take turns
            while True:
                is_idle = not self.waiting and not self.generators.rows
                self.take(None if is_idle else 0.0)
                self.read()
                self.write()

    def take(self, seconds: float | None) -> None:
        """Handle the messages that have arrived; wait for one if there is nothing else to do."""
        for message in self.inbox.take(seconds):
            if "job" in message:
                self.accept(Job(**message["job"]))
            elif "cancel" in message:
                self.waiting.pop(message["cancel"], None)
                self.generators.cancel(message["cancel"])
            elif "ping" in message:
                self.model_works()
                self.outbox.send({"pong": message["ping"], **self.outbox.report()})

    def accept(self, job: Job) -> None:
        """Let a job wait, or refuse it."""
        try:
            check_verb(job.verb)
            longest = min(self.limits["input_tokens"], job.longest or self.limits["input_tokens"])
            truncate = job.truncate or self.limits["truncate"]
            given = prompts(self.conversations, job.items)
            items, tokens = fitted(self.model, job.verb, given, longest, truncate, job.first, job.options)
        except Exception as error:
            self.outbox.fail(job.id, error)
        else:
            self.waiting[job.id] = Waiting(job, items, tokens)

    def read(self) -> None:
        """Compute one batch of jobs that read, if any wait."""
        jobs = self._ready(writing=False)
        if not jobs:
            return
        batch = batch_of(jobs, self.limits["batch_tokens"], self.limits["in_flight"])
        remaining = jobs[0].arrived + self.limits["wait_ms"] / 1000 - time.monotonic()  # seconds
        if remaining > 0 and len(batch) == len(jobs) and not self.generators.rows:
            self.take(remaining)  # more jobs may arrive that share the batch, and some may be cancelled
            return
        for waiting in batch:
            del self.waiting[waiting.job.id]
            self.outbox.started(waiting.job.id)
        read_batch(self.model, batch, self.outbox)

    def write(self) -> None:
        """Let the jobs in that write, as far as there is room, and do one step of all that are being written."""
        for waiting in self._ready(writing=True):
            if self.generators.jobs >= self.limits["in_flight"] or self.generators.is_full:
                break
            del self.waiting[waiting.job.id]
            self.outbox.started(waiting.job.id)
            self.generators.add(waiting)
        self.generators.step()

    def _ready(self, *, writing: bool) -> list[Waiting]:
        """The jobs that wait, of either kind, without those whose deadline has passed, which fail."""
        late = [waiting.job.id for waiting in self.waiting.values() if waiting.is_late]
        for job_id in late:
            del self.waiting[job_id]
            self.outbox.event(job_id, Failed("deadline", "the deadline passed before the work began"))
        return [waiting for waiting in self.waiting.values() if (waiting.job.verb in WRITING) == writing]

    def model_works(self) -> None:
        """Run the network over one token."""
        network = self.model.network
        token = torch.tensor([[network.config.eos_id]], device=self.model.device)
        if self.model.words is not None:
            self.model.embed(["a"])
        elif isinstance(network, WritingNetwork):
            function: AnyStepFunction = self.model.step_function()
            function.step(token[:, 0], function.begin(token, None))
        else:
            self.model.reader()(token, project=False)


def main() -> None:
    """Load the model that the first line of standard input names, and work until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server decides when its workers end
    warnings.simplefilter("ignore")  # they may quote a text; what matters of them is in the results
    stream = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write to the server
    first = decoded(stream.readline())
    settings, outbox = first["settings"], Outbox(answers)
    set_kernel_cache_size(_KERNELS)
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    try:
        with without_collections():
            model = load(settings["path"], settings["device"], settings["precision"], engine=settings["engine"])
        if model.tokenizer is None and model.words is None:
            raise ModelError(f"{settings['path']} has no tokenizer: the service reads texts")
        seed_decoding(model, settings["seed"])
        if settings["index"]:
            model.config["index"] = Index(settings["index"], model)
        if model.engine == "torch":  # nobody asks for the weights here
            pack_weights(model.network, "int8" if model.precision == "int8" else None)
        elif settings["engine"] == "auto":  # what is large is run by PyTorch, without a second copy
            pack_large(model.network)
        worker = Worker(model, first["limits"], Inbox(stream), outbox)
        with torch.inference_mode():
            worker.model_works()
            description = asdict(describe(model, first["limits"], chats=worker.conversations is not None))
        trim_memory()  # that of packing weights, up to as much as they take
    except AtentoError as error:
        outbox.send({"refused": str(error)})
        sys.exit(2)
    outbox.send({"loaded": description})
    worker.run()
