"""`atento translate`, `summarize`, `generate`: one line in, one line out."""

import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import AtentoError, BadLine, UsageError, counted
from atento.base.terminal import write
from atento_cli.cluster_option import with_cluster
from atento_cli.command_progress import Progress, announce_stdin, show_batches
from atento_cli.decoding_options import with_decoding
from atento_cli.explain_option import ExplainOptions
from atento_cli.line_work import Work
from atento_cli.lines import one_line, windows
from atento_cli.options import ModelArgument, progress, with_options
from atento_cli.output_paths import output_file

if TYPE_CHECKING:
    from atento.model import Model
    from atento.tasks.text_generation import GeneratedText

SplitSentences = Annotated[bool, typer.Option("--split-sentences", help="Process each sentence of a line separately.")]
SourceLanguage = Annotated[
    str | None, typer.Option("--source-language", metavar="NAME", help="Language of the text, of multilingual models.")
]
TargetLanguage = Annotated[
    str | None, typer.Option("--target-language", metavar="NAME", help="Language to write, of multilingual models.")
]
GlossaryFile = Annotated[
    str | None,
    typer.Option(
        "--glossary",
        metavar="FILE",
        help="Terms that translations keep: source term, TAB, target term, and further columns of allowed forms.",
    ),
]
Protect = Annotated[
    bool, typer.Option("--protect", help="Keep tags, placeholders, addresses, numbers and emoji as they are.")
]
DocumentOut = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="File of the translated document; with --cluster, the folder of the parts."
    ),
]
PlainLines = Annotated[
    bool, typer.Option("--lines", help="Read FILE as plain lines, also where its ending is that of a document.")
]
Attributes = Annotated[
    bool,
    typer.Option(
        "--attributes", help="Of pages and Markdown, also translate alt, title, placeholder, aria-label, descriptions."
    ),
]
MarkFuzzy = Annotated[
    bool, typer.Option("--mark-fuzzy", help="Of a .po file, mark each message that gets a translation as fuzzy.")
]
Stream = Annotated[bool, typer.Option("--stream", help="Print each output token by token.")]
TracePage = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE.html",
        help="Also write a page that shows the search; for several lines FILE-1.html, FILE-2.html ... (at most 16).",
    ),
]
_OUTPUTS = {"translate": "translations", "summarize": "summaries", "generate": "generations"}  # methods of the model
_Flags = dict[str, object]  # those of decoding that were set
TRACED = 16  # lines that --trace takes: each page has some hundred kilobytes


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    example = (
        "Examples:  echo 'I love NLP' | atento translate runs/demo; "
        "a document: atento translate runs/demo film.srt --out film.pt.srt"
    )
    app.command("translate", epilog=example)(with_decoding(with_cluster(translate)))
    example = (
        "Examples:  atento summarize runs/news articles.txt; "
        "a file of any size: atento summarize runs/news articles.txt --cluster local --out parts"
    )
    app.command("summarize", epilog=example)(with_decoding(with_cluster(summarize)))
    example = "Example:  echo 'o gato' | atento generate runs/micro-world-lm --top-p 0.9"
    app.command("generate", epilog=example)(with_decoding(with_cluster(generate)))


with_lines = with_options(
    file="A text file, one text per line; - is standard input.",
    skip_bad="Replace invalid lines by empty ones, and count them.",
)


@with_lines
def translate(
    model: ModelArgument,
    decoding: dict[str, Any],
    shared: ExplainOptions,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    split_sentences: SplitSentences = False,
    glossary: GlossaryFile = None,
    protect: Protect = False,
    out: DocumentOut = None,
    lines: PlainLines = False,
    attributes: Attributes = False,
    mark_fuzzy: MarkFuzzy = False,
    stream: Stream = False,
    trace: TracePage = None,
) -> None:
    """Translate a text line by line. Empty lines stay empty.

    A document (.srt .vtt .html .md .po .docx) stays one: its structure, times, styles and tags.
    """
    from atento.text.documents import FORMATS, OPTIONS, is_document

    languages = {"source_language": source_language, "target_language": target_language}
    named: dict[str, Any] = {key: name for key, name in languages.items() if name is not None}
    if glossary is not None:
        from atento.data.files.term_files import glossary_of

        named["glossary"] = glossary_of(glossary)
    if protect:
        named["protect"] = True
    request = _Request(model, "translate", shared, decoding, stream, trace, named, split_sentences)
    if not lines and is_document(shared.file):
        from atento_cli.translated_document import translate_document

        refused = {
            "--cluster": shared.cluster,
            "--columns or --reading": shared.table,
            "--json": shared.as_json,
            "--skip-bad": shared.skip_bad,
            "--explain": shared.explain or shared.explain_method or shared.explain_out,
            "--stream": stream,
            "--trace": trace,
            "--n-best": request.options.get("n_best"),
        }
        reading = {"attributes": attributes, "mark_fuzzy": mark_fuzzy}
        translate_document(shared, model, request.options, out, refused, **reading)
        return
    for flag, is_set in (("--attributes", attributes), ("--mark-fuzzy", mark_fuzzy)):
        if is_set:
            raise UsageError(f"{flag} is for documents ({', '.join(OPTIONS[flag[2:].replace('-', '_')])})")
    if out is not None:
        raise UsageError(f"--out is for documents ({', '.join(FORMATS)}): lines go to standard output")
    _run(request)


@with_lines
def summarize(
    model: ModelArgument, decoding: _Flags, shared: ExplainOptions, stream: Stream = False, trace: TracePage = None
) -> None:
    """Summarise a text on each line. Empty lines stay empty."""
    _run(_Request(model, "summarize", shared, decoding, stream, trace))


@with_lines
def generate(
    model: ModelArgument, decoding: _Flags, shared: ExplainOptions, stream: Stream = False, trace: TracePage = None
) -> None:
    """Continue the prompt on each line with a language model. The prompt is not repeated; it may be empty."""
    _run(_Request(model, "generate", shared, decoding, stream, trace))


@dataclass(frozen=True)
class _Request:
    """The arguments of a command."""

    model: str
    command: str
    shared: ExplainOptions
    decoding: dict[str, Any]
    stream: bool
    trace: str | None
    languages: dict[str, Any] = field(default_factory=dict)  # and what a translation keeps
    split_sentences: bool = False
    terms: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})  # of the glossary: kept, lost

    @property
    def options(self) -> dict[str, Any]:
        """The options of the method of the model."""
        return self.decoding | {"seed": self.shared.seed} | self.languages

    @property
    def task(self) -> str:
        """The task of the command."""
        from atento.config.tables.tasks import task_with

        return task_with(self.command)


def _run(request: _Request) -> None:
    shared = request.shared
    excluded = {
        "--stream": request.stream,
        "--trace": request.trace,
        "--split-sentences": request.split_sentences,
        "--n-best": request.options.get("n_best"),
        "--glossary": request.options.get("glossary"),
        "--protect": request.options.get("protect"),
    }
    if shared.explains(request.command, request.model, str, excluded=excluded, **request.options):
        return
    if request.stream and (shared.as_json or "n_best" in request.options):
        raise UsageError("--stream prints one output as text: it excludes --json and --n-best")
    for option in ("glossary", "protect"):
        if option in request.options and (request.stream or request.trace is not None):
            raise UsageError(f"--{option} and {'--stream' if request.stream else '--trace'} exclude each other")
    if request.split_sentences and "n_best" in request.options:
        raise UsageError("--n-best and --split-sentences exclude each other")
    if shared.cluster is not None:
        for name, is_set in (("--stream", request.stream), ("--trace", request.trace is not None)):
            if is_set:  # it needs the terminal, or is a page for each line
                raise UsageError(f"{name} and --cluster exclude each other")
        work = Work(
            lambda loaded, lines, before, _: _show(_outputs(loaded, lines, request, before), request),
            ready=lambda loaded: _outputs(loaded, [], request),
            rows=(lambda line: len(_parts(line, request))) if request.split_sentences else None,
        )
        shared.cluster.run(work)
        return
    # no option excludes --trace, and its file can be written
    if request.trace is not None:
        if request.stream or request.split_sentences:
            raise UsageError(f"--trace and {'--stream' if request.stream else '--split-sentences'} exclude each other")
        output_file(request.trace, (".html",), "--trace")
    with shared.reading(request.model) as (loaded, given, bad):
        lines = shared.checked(given, bad, lambda line: _too_long(loaded, line, request))
        announce_stdin(shared.file)
        if request.stream:
            _stream(loaded, lines, request)
        elif request.trace is not None:
            # one line more than there may be, so that too many are refused
            _write_traced(loaded, list(itertools.islice(lines, TRACED + 1)), request, Path(request.trace))
        elif shared.file == "-":  # of unknown length: the lines of a window are answered together
            done, pieces, shown = 0, 0, Progress(request.command, bar=False)
            for window in windows(lines, from_stdin=True):
                outputs = _outputs(loaded, window, request, pieces)
                _show(outputs, request)
                done, pieces = done + len(window), pieces + sum(len(texts) for _, texts in outputs)
                shown.count(counted(done, "line"))
        else:
            with show_batches(request.command):
                outputs = _outputs(loaded, list(lines), request)
            _show(outputs, request)
    if "glossary" in request.options:
        kept, lost = request.terms[True], request.terms[False]
        progress(f"terms of the glossary: {kept + lost} met, {kept} kept")


def _stream(loaded: "Model", lines: Iterable[str], request: _Request) -> None:
    """Write the output of each line token by token; the text is the same as without `--stream`."""
    number, progress = itertools.count(), Progress(request.command, bar=False)
    for done, line in enumerate(lines, start=1):
        for n, part in enumerate(_parts(line, request)):
            write(" " if n else "")
            written = loaded.stream(part, task=request.task, row=next(number), **request.options)
            for piece in () if isinstance(line, BadLine) else written:
                write(one_line(piece))
                sys.stdout.flush()
        write("\n")
        sys.stdout.flush()
        progress.count(counted(done, "line"))


def _parts(line: str, request: _Request) -> list[str]:
    """The parts of a line that are processed separately: its sentences with `--split-sentences`, else the line."""
    from atento.text.words import split_sentences

    return split_sentences(line) if request.split_sentences else [line]


def _too_long(loaded: "Model", line: str, request: _Request) -> str | None:
    """Why the model cannot read a part of a line whole; None if it can."""
    from atento.tasks.task_model import why_too_long

    return next(filter(None, (why_too_long(loaded, part) for part in _parts(line, request))), None)


def _write_traced(loaded: "Model", lines: Sequence[str], request: _Request, file: Path) -> None:
    """Write the output of each line, and a page that shows its search; a line that is not searched has none."""
    from atento.inspection.decoding_page import decoding_page
    from atento.storage.atomic_files import write_output

    if len(lines) > TRACED:
        raise UsageError(f"--trace takes at most {TRACED} lines, one page for each: got more")
    for number, line in enumerate(lines):
        path = file if len(lines) == 1 else file.with_stem(f"{file.stem}-{number + 1}")
        outputs, trace = loaded.traced(line, task=request.task, row=number, **request.options)
        _show([(line, [outputs])], request)
        if not trace.runs:
            progress(f"line {request.shared.number(number)} has no page: nothing is searched for it")
            continue
        try:
            page = decoding_page(trace, title=line)
        except UsageError as error:  # too many steps, known only after decoding
            raise AtentoError(f"line {request.shared.number(number)} has no page: {error}") from None
        write_output(output_file(path, option="--trace"), page)
        progress(f"wrote {path}")


def _outputs(
    loaded: "Model", lines: Sequence[str], request: _Request, first: int = 0
) -> list[tuple[str, list[list["GeneratedText"]]]]:
    """Each line with the outputs of each of its parts, best first; `first` is the number of parts before."""
    write = getattr(loaded, _OUTPUTS[request.command])
    pieces = [_parts(line, request) for line in lines]
    results = iter(write([piece for line in pieces for piece in line], row=first, **request.options))
    rows = [(line, [next(results) for _ in parts]) for line, parts in zip(lines, pieces)]
    return [(line, [] if isinstance(line, BadLine) else outputs) for line, outputs in rows]


def _show(outputs: Sequence[tuple[str, list[list["GeneratedText"]]]], request: _Request) -> None:
    """Write one line to standard output for each line of the input."""
    key = "outputs" if request.command == "generate" else _OUTPUTS[request.command]  # in JSON
    has_draft = "draft" in request.options
    for line, parts in outputs:
        terms: dict[str, object] = {}
        if "glossary" in request.options:
            report = request.options["glossary"].report(line, " ".join(part[0].text for part in parts))
            for kept in report.values():
                request.terms[kept] += 1
            terms = {"terms": report}
        if request.shared.as_json:
            hypotheses = [
                {"text": output.text, "score": made.score, "log_prob": made.log_prob, "finished": made.finished}
                | ({"proposed": made.proposed, "accepted": made.accepted} if made.proposed or has_draft else {})
                for output, made in ((output, output.hypothesis) for part in parts for output in part)
            ]
            write(json.dumps({"source": line, key: hypotheses} | terms, ensure_ascii=False) + "\n")
        elif "n_best" in request.options:
            write("\t".join(one_line(output.text).replace("\t", " ") for part in parts for output in part) + "\n")
        else:
            write(one_line(" ".join(part[0].text for part in parts)) + "\n")
    sys.stdout.flush()
