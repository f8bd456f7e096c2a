"""Jobs that write texts, continuously: they join the running batch between two steps, and leave it as they end.

Greedy search and sampling share a lane, in which every output is a row; other strategies are searches that share
steps (`searches.py`). A job's outputs are those that the methods of `atento.Model` write for the same texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import torch
from greenlet import greenlet

from atento.config.tables.tasks import task_with
from atento.decoding import Beam
from atento.decoding.beam.groups import BeamRequest
from atento.decoding.beam.lane import BeamLanes
from atento.decoding.choosing import hypothesis
from atento.decoding.contract import AnyStepFunction, Joining
from atento.decoding.lane import Lane
from atento.decoding.running import JoinedRows, RunningBatch
from atento.decoding.token_loop import Drawn, Output
from atento.errors import AtentoError
from atento.inference.fast import FastStepFunction
from atento.inference.prompts import PromptMemory, RememberingSteps
from atento.inference.slots import Slots
from atento.model import Model
from atento.tasks.generation import Continuing
from atento.tasks.model_outputs import translates, write_outputs
from atento.tasks.task_model import tokenizer_of
from atento.tasks.translation import unsearched
from atento.tasks.writing import Writing, WrittenText
from atento.text.streaming import TextStream
from atento_serve.engine.log_probs import Top, entries, lead_of, most_probable_beside, texts_of_tokens
from atento_serve.engine.outbox import Outbox
from atento_serve.engine.requests import beam_of, fits_lane, inputs_of, is_one_output, outputs_of, width_of
from atento_serve.engine.searches import Searches
from atento_serve.engine.waiting import Waiting
from atento_serve.jobs import Piece, Result, Usage

MOST_ROWS = 256  # outputs that are written at a time, unless one job alone has more
REMEMBERED = 2048  # tokens of prompts whose keys and values are held, for prompts that begin alike
PART = 256  # tokens of inputs that are read between two steps


@dataclass(eq=False)
class _Item:
    """One text of a job in the lane: its outputs, and the stream of the text if it is sent in pieces."""

    job: Waiting
    number: int
    writing: Writing
    outputs: list[Output]
    stream: TextStream | None = None
    unsent: list[Drawn] = field(default_factory=list)  # tokens whose text the stream holds back
    begun: bool = False  # whether text has been sent


@dataclass
class _Written:
    """A job that is being written: its searches, or its items in the lane; the items that are not done."""

    job: Waiting
    searches: Searches | None = None
    running: list[greenlet] = field(default_factory=list)
    width: int = 1  # outputs of an item that are written side by side
    inputs: Sequence[Writing | None] = ()
    open: set[int] = field(default_factory=set)
    items: list[_Item] = field(default_factory=list)
    new_tokens: int = 0


class Writers:
    """The jobs of one model that are being written.

    Args:
        model: the model.
        outbox: sends the events.
        most_tokens: the most that an output has, whatever the model's own limit is.
    """

    def __init__(self, model: Model, outbox: Outbox, most_tokens: int) -> None:
        self.model, self.outbox, self.most_tokens = model, outbox, most_tokens
        self._written: dict[str, _Written] = {}
        self._of_output: dict[int, _Item] = {}  # by the id of the output
        self._lane: Lane | None = None
        self._searches: Searches | None = None
        self._exact: Searches | None = None  # exact searches, which do not share steps

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return len(self._written)

    @property
    def is_full(self) -> bool:
        """Whether further jobs should wait, because the memory of their states grows with the outputs."""
        outputs = sum(len(written.open) * written.width for written in self._written.values())
        return outputs >= MOST_ROWS

    @property
    def rows(self) -> int:
        """The number of outputs that a step writes."""
        return sum(0 if part is None else part.rows for part in (self._lane, self._searches, self._exact))

    def add(self, waiting: Waiting) -> None:
        """Let a job begin, or refuse it."""
        job = waiting.job
        options: Any = dict(job.options)
        n_best = options.pop("n_best", None)
        try:
            self._begin()
            inputs, cuts = inputs_of(self.model, job, waiting.items, n_best, options, self.most_tokens)
        except Exception as error:
            self.outbox.fail(job.id, error)
            return
        written = _Written(waiting, open=set(range(len(inputs))), width=width_of(inputs), inputs=inputs)
        self._written[job.id] = written
        if self._lane is not None and all(one is None or fits_lane(one) for one in inputs):
            self._add_to_lane(written, inputs)
            return
        is_exact = options.get("exact", self.model.decoding.exact)
        searches = self._exact if is_exact else self._searches
        assert searches is not None
        written.searches = searches
        if not is_exact and all(one is None or is_one_output(one) for one in inputs):
            beams = [None if one is None else beam_of(one) for one in inputs]
            if job.stream and not job.log_probs:
                for number, one in enumerate(inputs):
                    written.running.append(searches.start(partial(self._stream, written, searches, number, one)))
                return
            if all(one is None or (beam is not None and searches.takes(beam)) for one, beam in zip(inputs, beams)):
                for number, beam in enumerate(beams):
                    written.running.append(searches.start(partial(self._beam, written, searches, number, beam)))
                return
        for cut, numbers in groupby(range(len(inputs)), cuts.__getitem__):
            cut_options = options | ({} if cut is None else {"max_new_tokens": cut})
            run = partial(self._search, written, searches, list(numbers), n_best, cut_options)
            written.running.append(searches.start(run))

    def cancel(self, job_id: str) -> None:
        """Drop a job; its outputs leave before the next step."""
        written = self._written.pop(job_id, None)
        if written is None:
            return
        if written.searches is not None:
            for search in written.running:
                written.searches.stop(search)
        for item in written.items:
            if self._lane is not None:
                self._lane.drop(item.outputs)
            for output in item.outputs:
                self._of_output.pop(id(output), None)

    def fail(self, job_id: str, error: Exception) -> None:
        """Fail a job, and drop it: what it asks for, or its text, is at fault, so the jobs beside it go on."""
        self.cancel(job_id)
        self.outbox.fail(job_id, error)

    def step(self) -> None:
        """One step of all outputs."""
        if self._lane is not None and self._lane.rows:
            try:
                steps = self._lane.step()
            except Exception as error:
                self._lane = None
                self._fail_all(error, None)
            else:
                self.outbox.count_batch(sum(drawn is not None for _, drawn in steps))
                for output, drawn in steps:
                    self._take(output, drawn)
        for searches in (self._searches, self._exact):
            if searches is not None and searches.rows:
                try:
                    self.outbox.count_batch(searches.run_step())
                except Exception as error:
                    self._fail_all(error, searches)

    def _begin(self) -> None:
        """Make the lane and the searches, at the first job or after a failure of all."""
        if self._lane is not None and self._searches is not None and self._exact is not None:
            return
        function, batch = _running(self.model.step_function(), self.model.device)
        if self._lane is None and batch is not None:
            self._lane = Lane(batch(1), part=PART, most=MOST_ROWS, device=self.model.device)
        if self._searches is None:
            lanes = None if batch is None else BeamLanes(batch, part=PART, device=self.model.device)
            self._searches = Searches(function, part=PART, lanes=lanes)
        if self._exact is None:
            self._exact = Searches(function, part=PART, joins=False)

    # The lane

    def _add_to_lane(self, written: _Written, inputs: Sequence[Writing | None]) -> None:
        assert self._lane is not None and self._searches is not None
        for number, writing in enumerate(inputs):
            if writing is None:
                self._finish_unsearched(written, number)
                continue
            outputs = outputs_of(writing, written.job.job.log_probs or 0)
            item = _Item(written.job, number, writing, outputs)
            written.items.append(item)
            if written.job.job.stream and len(item.outputs) == 1:
                item.stream = TextStream(writing.tokenizer, stop=writing.stop_strings)
            self._of_output |= {id(output): item for output in item.outputs}
            self._lane.add(item.outputs)

    def _finish_unsearched(self, written: _Written, number: int) -> None:
        """Send the output of a source that is blank, or has no words to translate."""
        text, task = written.job.items[number], task_with(written.job.job.verb)
        self._finish(written, number, [unsearched(text, translates(task))], [[]])

    def _take(self, output: Output, drawn: Drawn | None) -> None:
        """Take the token that an output got; whatever fails is a fault of its job alone."""
        item = self._of_output.get(id(output))
        if item is None:  # cancelled
            return
        try:
            if output.error is not None:
                raise output.error
            self._send(item, output, drawn)
        except Exception as error:
            self.fail(item.job.job.id, error)

    def _send(self, item: _Item, output: Output, drawn: Drawn | None) -> None:
        """Send what is certain after a token: text, if it is sent in pieces, and at their end the outputs."""
        if item.stream is not None:
            self._send_piece(item, item.stream, drawn, is_last=output.has_ended)
        if output.has_ended:
            del self._of_output[id(output)]
            if not any(id(other) in self._of_output for other in item.outputs):
                texts = [item.writing.written_text(other.hypothesis) for other in item.outputs]
                tops = [_tops(other.drawn) for other in item.outputs]
                written = self._written[item.job.job.id]
                self._finish(written, item.number, texts, tops, in_pieces=item.stream is not None)

    def _send_piece(self, item: _Item, stream: TextStream, drawn: Drawn | None, *, is_last: bool) -> None:
        """Send the text that is certain after a token, if there is any."""
        text = ""
        if drawn is not None and drawn.end != "eos":
            item.unsent.append(drawn)
            text = stream.push(drawn.id)
        text += stream.finish() if is_last else ""
        if text or (is_last and item.unsent):
            ids = [token.id for token in item.unsent]
            scores = [token.log_prob for token in item.unsent]
            tokens = item.writing.tokenizer.tokens(ids)
            lead = "" if item.begun else self._lead(texts_of_tokens(item.writing.tokenizer, ids[:1]), text)
            item.begun = item.begun or bool(text)
            job, logs = item.job.job, []
            if job.log_probs is not None:
                logs = entries(item.writing.tokenizer, ids, scores, _tops(item.unsent))
            self.outbox.event(job.id, Piece(item.number, text, ids, tokens, scores, logs, lead))
            item.unsent = []

    # Searches

    def _search(
        self, written: _Written, searches: Searches, numbers: list[int], n_best: int | None, options: Any
    ) -> None:
        """Write the outputs of some consecutive items of a job by a search of their own; runs in a greenlet."""
        job, items = written.job.job, [written.job.items[number] for number in numbers]
        stepped = object.__new__(type(self.model))  # `copy` would load it again, as a pickle does
        vars(stepped).update(vars(self.model))
        stepped.step_function = lambda: searches  # type: ignore[method-assign, assignment, return-value]
        try:
            outputs = write_outputs(
                stepped, task_with(job.verb), items, n_best, numbers[0], options, embedder=_no_embedder
            )
            for number, texts in zip(numbers, outputs):
                self._finish(written, number, texts, self._tops_beside(written, number, texts))
        except Exception as error:
            self._fail_inside(job.id, error)

    def _beam(self, written: _Written, searches: Searches, number: int, asked: BeamRequest | None) -> None:
        """Write the output of an item by a beam in a lane; runs in a greenlet."""
        writing = written.inputs[number]
        if asked is None or writing is None:
            self._finish_unsearched(written, number)
            return
        try:
            for _ in searches.beam_steps(asked, each=False):
                pass
            texts = [writing.written_text(asked.results[0][0])]
            self._finish(written, number, texts, self._tops_beside(written, number, texts))
        except Exception as error:
            self._fail_inside(written.job.job.id, error)

    def _fail_inside(self, job_id: str, error: Exception) -> None:
        """As `fail`, in a greenlet of the job: its other searches run on, and their outputs are dropped."""
        if self._written.pop(job_id, None) is not None:
            self.outbox.fail(job_id, error)

    def _tops_beside(self, written: _Written, number: int, texts: Sequence[WrittenText]) -> list[list[Top]]:
        """The likeliest tokens at the places of the outputs of an item, if they are asked for: by another pass."""
        writing, count = written.inputs[number], written.job.job.log_probs
        if writing is None or not count:
            return [[] for _ in texts]
        return [most_probable_beside(self.model, writing.ids, text.hypothesis.ids, count) for text in texts]

    def _stream(self, written: _Written, searches: Searches, number: int, writing: Writing | None) -> None:
        """Write the output of an item by a beam or with a draft, and send what is certain of it after each step.

        It runs in a greenlet.
        """
        if writing is None:
            self._finish_unsearched(written, number)
            return
        stream, drawn = TextStream(writing.tokenizer, stop=writing.stop_strings), list[Drawn]()
        item = _Item(written.job, number, writing, [])
        try:
            for token in writing.tokens(searches, self.model.device):
                drawn.append(Drawn(0, 0, token.id, token.log_prob, token.end))
                self._send_piece(item, stream, drawn[-1], is_last=False)
            self._send_piece(item, stream, None, is_last=True)
            end = drawn[-1].end if drawn else None
            output = hypothesis(
                [token.id for token in drawn if token.end != "eos"],
                [token.log_prob for token in drawn],
                end in ("eos", "stop"),
                writing.strategy.length_penalty if isinstance(writing.strategy, Beam) else 0.0,
            )
            self._finish(written, number, [writing.written_text(output)], [[]], in_pieces=True)
        except Exception as error:
            self._fail_inside(written.job.job.id, error)

    # The end of an item, and of a job

    def _finish(
        self,
        written: _Written,
        number: int,
        texts: list[WrittenText],
        tops: Sequence[list[Top]],
        *,
        in_pieces: bool = False,
    ) -> None:
        """Send the outputs of an item, with the likeliest tokens at each of their places, unless its job has failed."""
        job = written.job.job
        if job.id not in self._written:
            return
        tokenizer = tokenizer_of(self.model).target
        tokens = [texts_of_tokens(tokenizer, text.hypothesis.ids) for text in texts]
        values = [_value(text, of_text, self._lead(of_text, text.text)) for text, of_text in zip(texts, tokens)]
        if job.log_probs is not None:
            for value, top in zip(values, tops):
                value["log_probs"] = entries(tokenizer, value["ids"], value["token_scores"], top)
        if job.stream and not in_pieces:
            logs = values[0].get("log_probs", [])
            self.outbox.event(job.id, Piece(number, texts[0].text, log_probs=logs, lead=values[0]["lead"]))
        self.outbox.event(job.id, Result(number, values))
        written.new_tokens += sum(len(text.hypothesis.token_scores) for text in texts)
        written.open.discard(number)
        if not written.open:
            self._written.pop(job.id, None)
            self.outbox.event(job.id, Usage(written.job.tokens, written.new_tokens))

    def _lead(self, tokens: Sequence[str], text: str) -> str:
        """What stands between a prompt and an output of these tokens; nothing if the model reads it as a source."""
        return lead_of(tokens, text) if isinstance(self.model.network, Continuing) else ""

    def _fail_all(self, error: Exception, searches: Searches | None) -> None:
        """Fail the jobs of those searches; None: those of the lane. New ones are made for the jobs that follow."""
        if searches is self._searches:
            self._searches = None
        for job_id, written in list(self._written.items()):
            if written.searches is searches:
                self.cancel(job_id)
                self.outbox.fail(job_id, error)


def _running(
    function: AnyStepFunction, device: torch.device
) -> tuple[AnyStepFunction, Callable[[int], RunningBatch] | None]:
    """What searches call of a step function, and what makes a running batch of its rows; None: they cannot share."""
    if isinstance(function, FastStepFunction):
        memory = None if function.reader is None else PromptMemory(REMEMBERED)
        remembering = function if memory is None else RememberingSteps(function, memory)
        return remembering, partial(Slots, function, memory)
    if isinstance(function, Joining):
        return function, lambda width: JoinedRows(function, part=PART, device=device, width=width)
    return function, None


def _tops(drawn: Sequence[Drawn]) -> list[Top]:
    """The likeliest tokens at the place of each token but EOS."""
    return [token.top for token in drawn if token.end != "eos"]


def _value(written: WrittenText, tokens: list[str], lead: str) -> dict[str, Any]:
    """An output as plain data."""
    hypothesis = written.hypothesis
    return {
        "text": written.text,
        "lead": lead,
        "ids": hypothesis.ids,
        "tokens": tokens,
        "token_scores": hypothesis.token_scores,
        "log_prob": hypothesis.log_prob,
        "score": hypothesis.score,
        "finished": hypothesis.finished,
        "proposed": hypothesis.proposed,
        "accepted": hypothesis.accepted,
    }


def _no_embedder(name: str) -> Any:
    raise AtentoError("the service compares outputs by metrics alone")
