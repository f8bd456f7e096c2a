"""The input of commands that answer line N of the input with line N of the output."""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from atento.base.errors import AtentoError, BadLine, DataError, UsageError, counted
from atento_cli.command_progress import announce_stdin, show_batches
from atento_cli.line_work import Cluster, Work
from atento_cli.options import ModelOptions, check_order, progress

if TYPE_CHECKING:
    from atento.model import Model

T = TypeVar("T")
WINDOW = 1024  # lines processed together, so that memory is bounded

Check = Callable[[str, str], object]  # (line, file:line) -> raises DataError for a line that the command cannot read


@dataclass(frozen=True)
class LineOptions(ModelOptions):
    """FILE and the options of commands that answer each of its lines, for `with_options`."""

    file: Annotated[str, typer.Argument(metavar="FILE", help="One text a line; - is standard input.")] = "-"
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="A bad line becomes an empty line instead of an error.")
    ] = False
    cluster: Cluster | None = None
    table: list[tuple[int, str | DataError]] | None = None  # with --columns: number and text of each row

    def answer(
        self,
        command: str,
        model: str,
        answer: "Callable[[Model, list[str], int, list[str] | None], object]",
        *,
        ready: "Callable[[Model], object]",
        check: Check | None = None,
        model_check: "Callable[[Model, str], str | None] | None" = None,
        per_line: bool = True,
        head: str | None = None,
    ) -> None:
        """Load a model and answer the lines of the file, or of standard input as they arrive.

        Args:
            command: its name, for progress.
            model: the argument of the command.
            answer: writes the outputs for some lines, given the model, the lines, the number of the first one, from 1,
                and a list for the messages of bad lines (None: they are errors).
            ready: called with the model before the first line is read; raises CapabilityError if it cannot do the work.
            check: as in `input_lines`.
            model_check: says why the loaded model cannot read a line; None if it can.
            per_line: as in `Work`.
            head: the name of one of several heads of the model.
        """
        if head is not None:
            answer, ready = partial(_of_head, head, answer), partial(_of_head, head, ready)
            model_check = None if model_check is None else partial(_of_head, head, model_check)

        def answer_block(loaded: "Model", lines: list[str], before: int, bad: list[str] | None) -> None:
            if model_check is not None:
                reason = partial(model_check, loaded)
                lines = list(_checked_by_model(iter(lines), self.file, bad, reason, itertools.count(before + 1)))
            for begin in range(0, len(lines), WINDOW):  # windows as large as those of a file
                answer(loaded, lines[begin : begin + WINDOW], before + begin + 1, bad)

        if self.cluster is not None:
            self.cluster.run(Work(answer_block, ready, check, per_line=per_line))
            return
        first = 1
        with self.reading(model, check) as (loaded, lines, bad):
            ready(loaded)
            if model_check is not None:
                lines = self.checked(lines, bad, partial(model_check, loaded))
            announce_stdin(self.file)
            with show_batches(command):
                for window in windows(lines, from_stdin=self.file == "-"):
                    answer(loaded, window, first, bad)
                    sys.stdout.flush()
                    first += len(window)

    @contextmanager
    def reading(
        self, model: str, check: Check | None = None
    ) -> "Iterator[tuple[Model, Iterator[str], list[str] | None]]":
        """The model, the lines and, with `--skip-bad`, a list for messages of bad lines, which are counted at the end.

        Args:
            model: the argument of the command.
            check: as in `input_lines`.
        """
        check_order(model, self.file)
        bad: list[str] | None = [] if self.skip_bad else None
        lines = self.lines(bad, check)
        with self.loaded(model) as loaded:
            yield loaded, lines, bad
        self.count_bad(bad)

    def count_bad(self, bad: list[str] | None) -> None:
        """Print the number of bad lines, of their messages the first."""
        if bad:
            progress(f"warning: {counted(len(bad), 'bad line')} skipped, first: {bad[0]}")

    def checked(
        self, lines: Iterator[str], bad: list[str] | None, reason: Callable[[str], str | None]
    ) -> Iterator[str]:
        """The lines, of which `reason` says why a loaded model cannot read one; None if it can."""
        return _checked_by_model(lines, self.file, bad, reason, map(self.number, itertools.count()))

    def number(self, index: int) -> int:
        """The line of FILE, from 1, where the text with that index stands, from 0; with --columns that of its row."""
        return index + 1 if self.table is None else self.table[index][0]

    def lines(self, bad: list[str] | None, check: Check | None) -> Iterator[str]:
        """As `input_lines`, or the texts of --columns."""
        if self.table is None:
            return input_lines(self.file, bad, check)
        return iter(list(_checked(self.table, self.file, bad, check)))


def _of_head(head: str, call: Callable[..., T], loaded: "Model", *rest: object) -> T:
    """What a function gives for one of the heads of a model."""
    return call(loaded.head(head), *rest)


def input_lines(
    file: str, bad: list[str] | None, check: Check | None = None, reads: Sequence[str] = (".tsv",)
) -> Iterator[str]:
    """The lines of a file, which is read and checked first; those of standard input as they arrive.

    Args:
        file: its name; "-" is standard input.
        bad: receives the messages of bad lines, which become empty lines; None: a bad line is an error.
        check: raises DataError for a line; it gets no blank line.
        reads: endings of the tables whose lines a command with a check reads.

    Raises DataError: a line is bad, before any work. AtentoError: a later line of standard input is bad.
    """
    from atento.data.files.source_lines import display_name, iter_lines

    name = display_name(file)
    if file != "-":
        read = file_lines(file, bad, reads if check is not None else ())
        return iter(list(_checked(enumerate(read, start=1), name, bad, check)))
    return _during_work(_checked(enumerate(iter_lines(sys.stdin.buffer, name, bad=bad), start=1), name, bad, check))


def file_lines(file: str, bad: list[str] | None = None, reads: Sequence[str] = ()) -> list[str]:
    """All lines of a file, or of standard input; a table is a warning, but for the endings of those that it `reads`.

    Raises:
        UsageError: the argument is a text in place of a file, and a message says how to give one; or it has no lines.
    """
    from os import F_OK, access
    from shlex import join, quote

    from atento.data.files.source_lines import read_lines

    if any(letter.isspace() for letter in file.strip()) and not access(file, F_OK):  # also of a name that is too long
        # standard input is what an argument means that is not there; an option needs a value, `-`
        given = itertools.pairwise(sys.argv)
        words = ["-" if word == file and before.startswith("--") else word for before, word in given]
        command = join(["atento", *(word.replace(f"={file}", "=-") for word in words if word != file)])
        text = quote(file) if len(file) < 60 else "'TEXT'"
        raise UsageError(
            f"{file!r:.60} is no file, and this command reads files; to give a text: echo {text} | {command}"
        )
    if file.lower().endswith(".parquet"):
        raise UsageError(
            f"{file}: a file must have lines of text; --columns names the column of a table where the command has it"
        )
    lines = read_lines(file, bad=bad)
    table_warning(file, next(iter(lines), ""), reads)
    return lines


def _checked_by_model(
    lines: Iterator[str], file: str, bad: list[str] | None, reason: Callable[[str], str | None], numbers: Iterable[int]
) -> Iterator[str]:
    """The lines after a check that needs the model; all lines of a file are checked before work begins."""
    from atento.data.files.source_lines import display_name

    def check(line: str, place: str) -> None:
        if (why := reason(line)) is not None:
            raise DataError(f"{place}: the text {why}: {line[:60]!r}")

    numbered = ((number, line) for line, number in zip(lines, numbers))  # a table has no number after its last line
    checked = _checked(numbered, display_name(file), bad, check)
    return _during_work(checked) if file == "-" else iter(list(checked))


_TABLES = (".csv", ".json", ".jsonl", ".conll", ".conllu", ".xml")
_MARKUP = (".xlf", ".xliff", ".tmx", ".po", ".ass", ".ssa", ".sbv", ".rst", ".tex", ".yaml", ".yml", ".properties")


def table_warning(file: str, first: str, reads: Sequence[str] = ()) -> None:
    """Warn of a file of text that is named as a table, but for the endings `reads`, or has markup; its first line."""
    name = file.lower().removesuffix(".gz").removesuffix(".zst")
    kind = next((ending for ending in (".tsv", *_TABLES, *_MARKUP) if name.endswith(ending)), None)
    if kind == ".tsv" and "\t" not in first:
        kind = None
    if kind is not None and kind not in reads:
        progress(
            f"warning: {file} is named {kind} and read as plain text: a whole line is the text, columns and markup "
            "included. Give a file with the texts alone, or --columns of a table where the command has it; `atento "
            "evaluate` reads labelled data"
        )


def windows(lines: Iterator[str], *, from_stdin: bool) -> Iterator[list[str]]:
    """The lines in lists of up to `WINDOW`; at a terminal, one by one. An empty input gives one empty list.

    The lines before a bad one are given first, and then its error is raised.
    """
    size = 1 if from_stdin and sys.stdin.isatty() else WINDOW
    begun = end = False
    while not end:
        window: list[str] = []
        failure: AtentoError | None = None
        try:
            for line in itertools.islice(lines, size):
                window.append(line)
        except AtentoError as error:
            failure = error
        end = len(window) < size
        if window or not (begun or failure):
            begun = True
            yield window
        if failure is not None:
            raise failure


def one_line(text: str) -> str:
    """The text on one line: a byte-level model may write a newline, and output line N belongs to input line N."""
    return text.replace("\n", " ").replace("\r", " ")


def _checked(
    lines: Iterable[tuple[int, str | DataError]], name: str, bad: list[str] | None, check: Check | None
) -> Iterator[str]:
    """The numbered lines after a check."""
    for number, line in lines:
        try:
            if isinstance(line, DataError):
                raise line
            if check is not None and line.strip():
                check(line, f"{name}:{number}")
            yield line
        except DataError as error:
            if bad is None:
                raise
            bad.append(str(error))
            yield BadLine()


def _during_work(lines: Iterator[str]) -> Iterator[str]:
    """The lines; a bad line after the first is a failure of the work that has begun, which changes the exit status."""
    begun = False
    try:
        for line in lines:
            yield line
            begun = True
    except DataError as error:
        if begun:
            raise AtentoError(str(error)) from None
        raise
