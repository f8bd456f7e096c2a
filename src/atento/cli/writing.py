"""`atento translate`, `summarize`, `generate`: one line in, one line out."""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.cli.decoding import with_decoding
from atento.cli.options import AsJson, Device, ModelArgument, Precision, Seed, Threads, check_order, progress, running
from atento.cli.outputs import output_file
from atento.cli.progress import Progress, batches_shown, tell_waiting

if TYPE_CHECKING:
    from atento.model import Model
    from atento.tasks.writing import WrittenText

File = Annotated[str, typer.Argument(metavar="FILE", help="One text a line; - is standard input.")]
SplitSentences = Annotated[
    bool, typer.Option("--split-sentences", help="Each sentence of a line by itself, joined again.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="A broken line becomes an empty one, counted.")]
Stream = Annotated[
    bool, typer.Option("--stream", help="Show each output while it is written, each line as soon as it comes.")
]
TracePage = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE.html",
        help="Also write a page of the search; of several lines FILE-1.html, FILE-2.html ... (16 at most).",
    ),
]
TRACED = 16  # lines that --trace takes: each is a page of some hundred kilobytes
WINDOW = 1024  # lines of standard input that are written together, so that an endless one needs no endless memory


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    example = "Example:  echo 'I love NLP' | atento translate runs/demo"
    app.command("translate", epilog=example)(with_decoding(translate))
    app.command("summarize", epilog="Example:  atento summarize runs/news articles.txt")(with_decoding(summarize))
    example = "Example:  echo 'o gato' | atento generate runs/micro-world-lm --top-p 0.9"
    app.command("generate", epilog=example)(with_decoding(generate))


def translate(
    model: ModelArgument,
    decoding: dict[str, Any],
    file: File = "-",
    split_sentences: SplitSentences = False,
    stream: Stream = False,
    trace: TracePage = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Translate; line N of the output answers line N of the input, and an empty line stays empty."""
    asked = _Asked(
        model, "translation", "translations", stream, split_sentences, as_json, trace, decoding | {"seed": seed}
    )
    _run(asked, file, skip_bad, device, precision, threads)


def summarize(
    model: ModelArgument,
    decoding: dict[str, Any],
    file: File = "-",
    stream: Stream = False,
    trace: TracePage = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Summarise one text a line; an empty line stays empty."""
    asked = _Asked(model, "summarization", "summaries", stream, False, as_json, trace, decoding | {"seed": seed})
    _run(asked, file, skip_bad, device, precision, threads)


def generate(
    model: ModelArgument,
    decoding: dict[str, Any],
    file: File = "-",
    stream: Stream = False,
    trace: TracePage = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Go on from a prompt a line, which is not repeated; an empty line is the empty prompt."""
    asked = _Asked(model, "language-modeling", "outputs", stream, False, as_json, trace, decoding | {"seed": seed})
    _run(asked, file, skip_bad, device, precision, threads)


@dataclass(frozen=True)
class _Asked:
    """What one of the commands is asked for; `name` is what JSON calls the outputs."""

    model: str
    task: str
    name: str
    stream: bool
    split_sentences: bool
    as_json: bool
    trace: str | None
    options: dict[str, Any]

    @property
    def command(self) -> str:
        """The name of the command."""
        return {"translation": "translate", "summarization": "summarize"}.get(self.task, "generate")


def _run(asked: _Asked, file: str, skip_bad: bool, device: str, precision: str, threads: int | None) -> None:
    """The lines read, the model loaded, its outputs written."""
    from atento.errors import UsageError, counted
    from atento.model import load

    if asked.stream and (asked.as_json or "n_best" in asked.options):
        raise UsageError("--stream shows one output as text: no --json, no --n-best")
    if asked.split_sentences and "n_best" in asked.options:
        raise UsageError("--n-best and --split-sentences exclude each other")
    check_order(asked.model, file)
    _check_trace(asked)
    bad: list[str] | None = [] if skip_bad else None
    lines = _lines(file, bad)
    with running(asked.options["seed"], threads):
        loaded = load(asked.model, device=device, precision=precision)
        tell_waiting(file)
        if asked.stream:
            _stream(loaded, lines, asked)
        elif asked.trace is not None:
            _write_traced(loaded, list(itertools.islice(lines, TRACED + 1)), asked, Path(asked.trace))
        elif file == "-":
            _write_windows(loaded, lines, asked)
        else:
            with batches_shown(asked.command):
                outputs = _outputs(loaded, list(lines), asked)
            _show(outputs, asked)
    if bad:
        progress(f"warning: {counted(len(bad), 'bad line')} left empty, first: {bad[0]}")


def _stream(loaded: "Model", lines: Iterable[str], asked: _Asked) -> None:
    """Each line's output, shown while it is written; the same as without `--stream`."""
    from atento.errors import counted

    number, progress = itertools.count(), Progress(asked.command, bar=False)
    for done, line in enumerate(lines, start=1):
        for n, part in enumerate(_parts(line, asked)):
            sys.stdout.write(" " if n else "")
            for piece in loaded.stream(part, task=asked.task, row=next(number), **asked.options):
                sys.stdout.write(_line(piece))
                sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
        progress.count(counted(done, "line"))


def _parts(line: str, asked: _Asked) -> list[str]:
    """What of a line is written by itself: its sentences, if that is asked for."""
    from atento.text.sentences import split_sentences

    return split_sentences(line) if asked.split_sentences else [line]


def _lines(file: str, bad: list[str] | None) -> Iterator[str]:
    """The lines of a file, which is read and found right first; those of standard input as they come."""
    from atento.data.sources import read_lines

    return _standard_input(bad) if file == "-" else iter(read_lines(file, bad=bad))


def _standard_input(bad: list[str] | None) -> Iterator[str]:
    """The lines as they come. A bad first line is found before any work; a later one when others have been answered.

    Raises:
        DataError: the first line is bad. AtentoError: a later one is.
    """
    from atento.data.sources import iter_lines
    from atento.errors import AtentoError, DataError

    begun = False
    try:
        for line in iter_lines(sys.stdin.buffer, "standard input", bad=bad):
            yield line
            begun = True
    except DataError as error:
        if begun:
            raise AtentoError(str(error)) from None
        raise


def _write_windows(loaded: "Model", lines: Iterator[str], asked: _Asked) -> None:
    """The outputs of an input without a known end, window by window; those before a bad line are written too."""
    from atento.errors import AtentoError, counted

    done, pieces, end, progress = 0, 0, False, Progress(asked.command, bar=False)
    most = 1 if sys.stdin.isatty() else WINDOW  # who types waits for an answer
    while not end:
        window: list[str] = []
        failure: AtentoError | None = None
        try:
            for line in itertools.islice(lines, most):
                window.append(line)  # kept where a later line is bad
        except AtentoError as error:
            failure = error
        end = len(window) < most
        if window or not (done or failure):  # once for no line too: what is asked for may not be possible
            outputs = _outputs(loaded, window, asked, pieces)
            _show(outputs, asked)
            done, pieces = done + len(window), pieces + sum(len(found) for _, found in outputs)
            progress.count(counted(done, "line"))
        if failure is not None:
            raise failure


def _check_trace(asked: _Asked) -> None:
    """Raises UsageError: --trace beside what it does not show, or a file that cannot be written."""
    from atento.errors import UsageError

    if asked.trace is None:
        return
    if asked.stream or asked.split_sentences:
        raise UsageError(f"--trace and {'--stream' if asked.stream else '--split-sentences'} exclude each other")
    output_file(asked.trace, (".html",), "--trace")


def _write_traced(loaded: "Model", lines: Sequence[str], asked: _Asked, file: Path) -> None:
    """Each line's output, and a page of how it was searched; a line of nothing has none."""
    from atento.errors import AtentoError, UsageError
    from atento.inspection.decoding_page import decoding_page

    if len(lines) > TRACED:
        raise UsageError(f"--trace takes at most {TRACED} lines, a page each: got more")
    for number, line in enumerate(lines):
        path = file if len(lines) == 1 else file.with_stem(f"{file.stem}-{number + 1}")
        outputs, trace = loaded.traced(line, task=asked.task, row=number, **asked.options)
        _show([(line, [outputs])], asked)
        if not trace.runs:
            continue
        try:
            page = decoding_page(trace, title=line)
        except UsageError as error:  # too many steps, which is known only now
            raise AtentoError(f"line {number + 1} has no page: {error}") from None
        output_file(path, option="--trace").write_text(page, encoding="utf-8", newline="\n")
        progress(f"wrote {path}")


def _outputs(
    loaded: "Model", lines: Sequence[str], asked: _Asked, first: int = 0
) -> list[tuple[str, list[list["WrittenText"]]]]:
    """Each line with the outputs, best first, of each of its pieces; `first` pieces have gone before."""
    write: dict[str, Any] = {
        "translations": loaded.translations,
        "summaries": loaded.summaries,
        "outputs": loaded.generations,
    }
    pieces = [_parts(line, asked) for line in lines]
    flat = [piece for line in pieces for piece in line]
    found = iter(write[asked.name](flat, row=first, **asked.options))
    return [(line, [next(found) for _ in parts]) for line, parts in zip(lines, pieces)]


def _show(outputs: Sequence[tuple[str, list[list["WrittenText"]]]], asked: _Asked) -> None:
    """A line on standard output for each line of the input."""
    for line, found in outputs:
        if asked.as_json:
            hypotheses = [
                {
                    "text": one.text,
                    "score": one.hypothesis.score,
                    "log_prob": one.hypothesis.log_prob,
                    "finished": one.hypothesis.finished,
                }
                for part in found
                for one in part
            ]
            sys.stdout.write(json.dumps({"source": line, asked.name: hypotheses}, ensure_ascii=False) + "\n")
        elif "n_best" in asked.options:
            sys.stdout.write("\t".join(_line(one.text).replace("\t", " ") for one in found[0]) + "\n")
        else:
            sys.stdout.write(_line(" ".join(part[0].text for part in found)) + "\n")
    sys.stdout.flush()


def _line(text: str) -> str:
    """The text on one line: a model that writes bytes may write a line end, and line N must answer line N."""
    return text.replace("\n", " ").replace("\r", " ")
