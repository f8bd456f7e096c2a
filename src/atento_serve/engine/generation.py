"""Jobs that write texts, continuously: they join the running batch between two steps, and leave it as they end.

Greedy search and sampling share a continuous batch, in which every output is a row; other strategies are searches that
share steps (`searches.py`). A job's outputs are those that the methods of `atento.Model` write for the same texts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeVar

from greenlet import greenlet

from atento.decoding import Beam
from atento.decoding.beam.beam_batch import BeamBatches
from atento.decoding.choosing import hypothesis
from atento.decoding.continuous_batch import ContinuousBatch
from atento.decoding.token_loop import Drawn, Output
from atento.model import Model
from atento.tasks.task_model import Continuing, tokenizer_of
from atento.tasks.text_generation import GeneratedText, GenerationJob, TextGenerator
from atento.text.streaming import TextStream
from atento.text.tokenizer import Tokenizer
from atento_serve.engine.log_probs import Top, entries, lead_of, most_probable_beside, texts_of_tokens
from atento_serve.engine.outbox import Outbox
from atento_serve.engine.requests import (
    Waiting,
    beam_of,
    fits_batch,
    generation_jobs_of,
    generator_for,
    is_one_output,
    outputs_of,
    width_of,
)
from atento_serve.engine.searches import PART, Searches, shared_steps
from atento_serve.jobs import GeneratedOutput, Job, Piece, Result, Usage

P = TypeVar("P")
MOST_ROWS = 256  # outputs that are written at a time, unless one job alone has more


@dataclass(eq=False)
class _Text:
    """One text of a job: its outputs in the continuous batch, and the stream of one that is sent in pieces."""

    of: "_Generated"
    number: int
    generation: GenerationJob | None
    outputs: list[Output] = field(default_factory=list)
    stream: TextStream | None = None
    unsent: list[Drawn] = field(default_factory=list)  # tokens whose text the stream holds back
    begun: bool = False  # whether text has been sent


@dataclass(eq=False)
class _Generated:
    """A job that is being written: its texts, the numbers of those that are not done, its searches if it has any."""

    waiting: Waiting
    generator: TextGenerator
    texts: list[_Text] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    searches: Searches | None = None
    running: list[greenlet] = field(default_factory=list)
    new_tokens: int = 0

    @property
    def job(self) -> Job:
        """What was asked for."""
        return self.waiting.job


class TextGenerators:
    """The jobs of one model that are being written.

    Args:
        model: the model.
        outbox: sends the events.
        most_tokens: the most that an output has, whatever the model's own limit is.
    """

    def __init__(self, model: Model, outbox: Outbox, most_tokens: int) -> None:
        self.model, self.outbox, self.most_tokens = model, outbox, most_tokens
        self._writer = lru_cache(maxsize=256)(partial(generator_for, model))
        self._written: dict[str, _Generated] = {}
        self._of_output: dict[int, _Text] = {}  # by the id of the output
        self._continuous_batch: ContinuousBatch | None = None
        self._searches: Searches | None = None
        self._exact: Searches | None = None  # exact searches, which do not share steps

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return len(self._written)

    @property
    def is_full(self) -> bool:
        """Whether further jobs should wait, because the memory of their states grows with the outputs."""
        outputs = sum(len(written.open) * width_of(written.generator.strategy) for written in self._written.values())
        return outputs >= MOST_ROWS

    @property
    def rows(self) -> int:
        """The number of outputs that a step writes."""
        return sum(0 if part is None else part.rows for part in (self._continuous_batch, self._searches, self._exact))

    @property
    def _tokenizer(self) -> Tokenizer:
        """That of the outputs."""
        return tokenizer_of(self.model).target

    def add(self, waiting: Waiting) -> None:
        """Let a job begin, or fail it alone."""
        try:
            self._add(waiting)
        except Exception as error:
            self.fail(waiting.job.id, error)

    def _add(self, waiting: Waiting) -> None:
        job = waiting.job
        self._begin()
        generator, inputs = generation_jobs_of(self._writer, job, waiting.items, self.most_tokens)
        written = _Generated(waiting, generator, open=set(range(len(inputs))))
        written.texts = [_Text(written, number, writing) for number, writing in enumerate(inputs)]
        self._written[job.id] = written
        searched = [text for text in written.texts if text.generation is not None]
        for text in written.texts:
            if text.generation is None:  # a source that is blank, or has no words to translate
                self._finish(text, [generator.passthrough(waiting.items[text.number])], [[]])
        is_one = is_one_output(generator)
        if self._continuous_batch is not None and fits_batch(generator):
            for text in searched:
                assert text.generation is not None
                text.outputs = outputs_of(text.generation, job.log_probs or 0)
                if job.stream and len(text.outputs) == 1:
                    text.stream = self._stream_of(text)
                self._of_output |= {id(output): text for output in text.outputs}
                self._continuous_batch.add(text.outputs)
        elif is_one and job.stream and not job.log_probs:
            self._start(written, self._stream, searched)
        elif is_one and self._takes(searched):
            self._start(written, self._beam, searched)
        else:
            self._start(written, self._search, _by_limit(searched))

    def _start(self, written: _Generated, write: Callable[[P], None], parts: Sequence[P]) -> None:
        """Let a search write each of the parts of a job."""
        written.searches = self._exact if written.generator.decoding.exact else self._searches
        assert written.searches is not None
        written.running = [written.searches.start(partial(write, part)) for part in parts]

    def cancel(self, job_id: str) -> None:
        """Drop a job; its outputs leave before the next step."""
        written = self._written.pop(job_id, None)
        if written is None:
            return
        if written.searches is not None:
            for search in written.running:
                written.searches.stop(search)
        for text in written.texts:
            if self._continuous_batch is not None:
                self._continuous_batch.drop(text.outputs)
            for output in text.outputs:
                self._of_output.pop(id(output), None)

    def fail(self, job_id: str, error: Exception) -> None:
        """Fail a job, and drop it: what it asks for, or its text, is at fault, so the jobs beside it go on."""
        self.cancel(job_id)
        self.outbox.fail(job_id, error)

    def step(self) -> None:
        """One step of all outputs."""
        if self._continuous_batch is not None and self._continuous_batch.rows:
            try:
                steps = self._continuous_batch.step()
            except Exception as error:
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
        """Make the continuous batch and the searches, at the first job or after a failure of all."""
        searches = self._searches
        # a network whose states cannot be joined has no continuous batches
        if (
            searches is not None
            and self._exact is not None
            and (self._continuous_batch is not None or searches.beam_batches is None)
        ):
            return
        function, batch = shared_steps(self.model.step_function(), self.model.device)
        if self._continuous_batch is None and batch is not None:
            self._continuous_batch = ContinuousBatch(batch(1), part=PART, most=MOST_ROWS, device=self.model.device)
        if self._searches is None:
            beam_batches = None if batch is None else BeamBatches(batch, part=PART, device=self.model.device)
            self._searches = Searches(function, part=PART, beam_batches=beam_batches)
        if self._exact is None:
            self._exact = Searches(function, part=PART, joins=False)

    # The continuous batch

    def _stream_of(self, text: _Text) -> TextStream:
        return TextStream(self._tokenizer, stop=text.of.generator.decoding.stop)

    def _take(self, output: Output, drawn: Drawn | None) -> None:
        """Take the token of an output, and send what is certain after it; what fails is a fault of its job alone."""
        text = self._of_output.get(id(output))
        if text is None:  # cancelled
            return
        try:
            if output.error is not None:
                raise output.error
            if text.stream is not None:
                self._send_piece(text, text.stream, drawn, is_last=output.has_ended)
            if output.has_ended:
                del self._of_output[id(output)]
                if not any(id(other) in self._of_output for other in text.outputs):
                    outputs = [text.of.generator.generated_text(other.hypothesis) for other in text.outputs]
                    self._finish(text, outputs, [_tops(other.drawn) for other in text.outputs])
        except Exception as error:
            self.fail(text.of.job.id, error)

    def _send_piece(self, text: _Text, stream: TextStream, drawn: Drawn | None, *, is_last: bool) -> None:
        """Send the text that is certain after a token, if there is any."""
        piece = ""
        if drawn is not None and drawn.end != "eos":
            text.unsent.append(drawn)
            piece = stream.push(drawn.id)  # several tokens may make one character
        piece += stream.finish() if is_last else ""
        if piece or (is_last and text.unsent):  # tokens without text of their own go with the next piece
            ids = [token.id for token in text.unsent]
            scores = [token.log_prob for token in text.unsent]
            tokens = self._tokenizer.tokens(ids)
            # only the first piece may need a space before it
            lead = "" if text.begun else self._lead(texts_of_tokens(self._tokenizer, ids[:1]), piece)
            text.begun = text.begun or bool(piece)
            job = text.of.job
            logs = [] if job.log_probs is None else entries(self._tokenizer, ids, scores, _tops(text.unsent))
            self.outbox.event(job.id, Piece(text.number, piece, ids, tokens, scores, logs, lead))
            text.unsent = []

    # Searches, each of which runs in a greenlet

    def _takes(self, texts: Sequence[_Text]) -> bool:
        """Whether the beams of some texts join others of their width."""
        beams = [beam_of(text.generation) for text in texts if text.generation is not None]
        return all(beam is not None and self._searches is not None and self._searches.takes(beam) for beam in beams)

    def _search(self, texts: Sequence[_Text]) -> None:
        """Write the outputs of texts of one limit by a search of their own."""
        with self._failing(texts[0]):
            inputs = {text.number: text.generation.ids for text in texts if text.generation is not None}
            generator = _writer(texts[0])
            results = generator.written([inputs.get(number, []) for number in range(max(inputs) + 1)])
            for text in texts:
                outputs = results[text.number] or ([] if generator.is_prompt else [generator.passthrough("")])
                self._finish(text, outputs, self._tops_beside(text, outputs))

    def _beam(self, text: _Text) -> None:
        """Write the output of a text by a beam in a continuous batch."""
        with self._failing(text):
            assert text.generation is not None and text.of.searches is not None
            asked = beam_of(text.generation)
            assert asked is not None
            for _ in text.of.searches.beam_steps(asked, each=False):
                pass
            outputs = [text.of.generator.generated_text(asked.results[0][0])]
            self._finish(text, outputs, self._tops_beside(text, outputs))

    def _stream(self, text: _Text) -> None:
        """Write the output of a text by a beam or with a draft, and send what is certain of it after each step."""
        with self._failing(text):
            assert text.generation is not None
            text.stream, drawn, generator = self._stream_of(text), list[Drawn](), _writer(text)
            for token in replace(text.generation, generator=generator).tokens():
                drawn.append(Drawn(0, 0, token.id, token.log_prob, token.end))
                self._send_piece(text, text.stream, drawn[-1], is_last=False)
            self._send_piece(text, text.stream, None, is_last=True)
            output = hypothesis(
                [token.id for token in drawn if token.end != "eos"],
                [token.log_prob for token in drawn],
                bool(drawn) and drawn[-1].end in ("eos", "stop"),  # otherwise it reached its limit
                generator.strategy.length_penalty if isinstance(generator.strategy, Beam) else 0.0,
            )
            self._finish(text, [generator.generated_text(output)], [[]])

    @contextmanager
    def _failing(self, text: _Text) -> Iterator[None]:
        """As `fail`, in a greenlet of the job: its other searches run on, and their outputs are dropped."""
        try:
            yield
        except Exception as error:
            if self._written.pop(text.of.job.id, None) is not None:
                self.outbox.fail(text.of.job.id, error)

    def _tops_beside(self, text: _Text, outputs: Sequence[GeneratedText]) -> list[list[Top]]:
        """The likeliest tokens at the places of the outputs of a text, if they are asked for: by another pass."""
        generation, count = text.generation, text.of.job.log_probs
        if generation is None or not count:
            return [[] for _ in outputs]
        return [most_probable_beside(self.model, generation.ids, output.hypothesis.ids, count) for output in outputs]

    # The end of a text, and of a job

    def _finish(self, text: _Text, outputs: list[GeneratedText], tops: Sequence[list[Top]]) -> None:
        """Send the outputs of a text, with the likeliest tokens at each of their places, unless its job has failed."""
        written, job = text.of, text.of.job
        if job.id not in self._written:  # it was cancelled or failed
            return
        tokens = [texts_of_tokens(self._tokenizer, output.hypothesis.ids) for output in outputs]
        values = [_value(output, of_one, self._lead(of_one, output.text)) for output, of_one in zip(outputs, tokens)]
        if job.log_probs is not None:
            for value, top in zip(values, tops):
                value["log_probs"] = entries(self._tokenizer, value["ids"], value["token_scores"], top)
        if job.stream and text.stream is None:  # asked as a stream, but not written in pieces
            logs = values[0].get("log_probs", [])
            self.outbox.event(job.id, Piece(text.number, outputs[0].text, log_probs=logs, lead=values[0]["lead"]))
        self.outbox.event(job.id, Result(text.number, values))
        written.new_tokens += sum(len(output.hypothesis.token_scores) for output in outputs)
        written.open.discard(text.number)
        if not written.open:
            self._written.pop(job.id, None)
            self.outbox.event(job.id, Usage(written.waiting.tokens, written.new_tokens))

    def _lead(self, tokens: Sequence[str], text: str) -> str:
        """What stands between a prompt and an output of these tokens; nothing if the model reads it as a source."""
        return lead_of(tokens, text) if isinstance(self.model.network, Continuing) else ""

    def _fail_all(self, error: Exception, searches: Searches | None) -> None:
        """Fail the jobs of those searches; None: those of the continuous batch. Later jobs have new ones."""
        if searches is None:
            self._continuous_batch = None
        elif searches is self._exact:
            self._exact = None
        else:
            self._searches = None
        for job_id, written in list(self._written.items()):
            if written.searches is searches:
                self.fail(job_id, error)


def _writer(text: _Text) -> TextGenerator:
    """What writes for a text by the searches of its job."""
    assert text.generation is not None and text.of.searches is not None
    return replace(text.generation.generator, steps=text.of.searches)


def _by_limit(texts: Sequence[_Text]) -> list[list[_Text]]:
    """The texts of each limit of tokens, which one search can write."""
    groups: dict[int | None, list[_Text]] = {}
    for text in texts:
        limit = None if text.generation is None else text.generation.generator.decoding.max_new_tokens
        groups.setdefault(limit, []).append(text)
    return list(groups.values())


def _tops(drawn: Sequence[Drawn]) -> list[Top]:
    """The likeliest tokens at the place of each token but EOS."""
    return [token.top for token in drawn if token.end != "eos"]


def _value(written: GeneratedText, tokens: list[str], lead: str) -> GeneratedOutput:
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
