"""`atento answer`: the answer to a question on each line, a span of the context beside it."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import DataError, UsageError, counted
from atento.base.terminal import write
from atento_cli.cluster_option import with_cluster
from atento_cli.explain_option import ExplainOptions
from atento_cli.lines import Check, file_lines, input_lines
from atento_cli.options import ModelArgument, with_options

if TYPE_CHECKING:
    from atento.model import Model
    from atento.tasks.question_answering import Answer

_BY_NAME = ("json", "csv", "xlsx")  # formats that name their columns, or that are no lines
_Options = Mapping[str, Any]  # of `Model.answers`
_Pair = tuple[str, str]  # a question and its context; both are empty for a blank line


@dataclass(frozen=True)
class QuestionOptions(ExplainOptions):
    """FILE may also be in the layout of SQuAD or a table; its questions then become lines of JSON."""

    jsonl: Annotated[bool, typer.Option("--jsonl", help="The lines are JSON objects, whatever the name of FILE.")] = (
        False
    )

    @property
    def form(self) -> str | None:
        """The format of the questions; tsv and None: a question and its context a line."""
        from atento.config.tables.formats import format_of

        return "jsonl" if self.jsonl else None if self.table is not None else format_of(self.file, None, ())

    def lines(self, bad: list[str] | None, check: Check | None) -> Iterator[str]:
        """The lines of the file, or one for each question of it."""
        if self.form == "jsonl" and self.table is None:
            return input_lines(self.file, bad, check, (".jsonl", ".json"))
        if self.form not in _BY_NAME:
            return super().lines(bad, check)
        from atento.config.recipe import SourceConfig
        from atento.config.tables.task_spec import Field
        from atento.data.records.reader import file_rows

        made = []
        with ExitStack() as files:
            source = SourceConfig(file=self.file, question="question", context="context")
            for row in file_rows(source, str(self.form), (Field("question"), Field("context")), Path(), files)[1]:
                try:
                    if isinstance(row, DataError):
                        raise row
                    question, context = row[1]
                    if question or context:  # a blank line of a table has neither
                        _not_blank((question, context), f"{self.file}:{row[0]}")
                    made.append(json.dumps({"question": question, "context": context}) if question else "")
                except DataError as error:
                    if bad is None:
                        raise
                    bad.append(str(error))
                    made.append("")
        return iter(made)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("answer", epilog="Example:  atento answer MODEL questions.tsv")(with_cluster(answer))


@with_options(
    file="A question and its context on each line, with a tab between; .jsonl, .json, .csv or .xlsx with the keys "
    "question and context; or SQuAD's .json; - is standard input."
)
def answer(
    model: ModelArgument,
    shared: QuestionOptions,
    question: Annotated[
        str | None, typer.Option(metavar="TEXT", help="One question about the whole text of --context.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="FILE", help="The text of --question; - is standard input.")
    ] = None,
    n_best: Annotated[
        int | None, typer.Option("--n-best", min=1, metavar="N", help="Print the N best answers, with tabs between.")
    ] = None,
    max_answer: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum tokens of an answer; as trained if not given.")
    ] = None,
    null_threshold: Annotated[
        float,
        typer.Option(
            metavar="X", help='Give no answer where the score of "no answer" exceeds the best span\'s by more than X.'
        ),
    ] = 0.0,
) -> None:
    """Print the answer to the question on each line; the line is empty where the context has no answer.

    With --json, print each answer with its characters (start, end) in the context and its probability.
    """
    if (question is None) != (context is None):
        raise UsageError("--question and --context belong together: give both, or a FILE with a question a line")
    if shared.cluster is not None and shared.form in _BY_NAME:
        raise UsageError(
            f"{shared.file}: --cluster reads lines: .jsonl, or a question and its context with a tab between"
        )
    if question is not None and shared.cluster is not None:
        raise UsageError("--question and --cluster exclude each other")
    if question is not None and shared.file != "-":
        raise UsageError(f"--question and --context replace FILE: got {shared.file}")
    options: _Options = {
        "n_best": 1 if n_best is None else n_best,
        "max_answer": max_answer,
        "null_threshold": null_threshold,
    }
    excluded = {
        "--question": question,
        "--n-best": n_best,
        "--max-answer": max_answer,
        "--null-threshold": null_threshold or None,
    }
    columns = shared.cluster is not None and shared.cluster.columns  # which are joined by a tab
    parse = _object if shared.form in ("jsonl", *_BY_NAME) and not columns else _row
    if shared.explains("answer", model, lambda line: parse(line, ""), excluded=excluded, check=parse):
        return
    if question is not None and context is not None:
        text = "\n".join(file_lines(context))
        with shared.loaded(model) as loaded:
            _show([(question, text)], loaded.answers([question], [text], **options), n_best, shared.as_json)
        return

    def show_answers(loaded: "Model", lines: Sequence[str], first: int, bad: list[str] | None) -> None:
        from atento.data.files.source_lines import display_name

        pairs = [parse(line, "") if line.strip() else ("", "") for line in lines]
        before = display_name(shared.file) + (": question " if shared.form in _BY_NAME else ":")
        positions = [f"{before}{shared.number(index)}" for index in range(first - 1, first - 1 + len(lines))]
        _show(pairs, _answers(loaded, pairs, positions, bad, options), n_best, shared.as_json)

    shared.answer("answer", model, show_answers, ready=lambda loaded: loaded.answers([], [], **options), check=parse)


def _answers(
    loaded: "Model", pairs: Sequence[_Pair], positions: Sequence[str], bad: list[str] | None, options: _Options
) -> "list[list[Answer]]":
    """The answers to each question, best first; none to a blank line and, where `bad` takes its message, a bad one."""

    def answers(numbers: Sequence[int]) -> "list[list[Answer]]":
        questions, contexts = ([pairs[number][side] for number in numbers] for side in (0, 1))
        return loaded.answers(questions, contexts, **options, where=lambda index: positions[numbers[index]])

    best: dict[int, list[Answer]] = {}
    present = [number for number, (question, _) in enumerate(pairs) if question]
    try:
        best = dict(zip(present, answers(present)))
    except DataError:  # a long question, or a long context
        if bad is None:
            raise
        for number in present:
            try:
                best[number] = answers([number])[0]
            except DataError as error:
                bad.append(str(error))
    return [best.get(number, []) for number in range(len(pairs))]


def _show(pairs: Sequence[_Pair], answers: "Sequence[Sequence[Answer]]", n_best: int | None, as_json: bool) -> None:
    for (question, _), best in zip(pairs, answers):
        if as_json:
            shown = [vars(answer) for answer in best]
            write(json.dumps({"question": question, "answers": shown}, ensure_ascii=False) + "\n")
        else:
            texts = [" ".join(answer.text.split()) for answer in best]  # a context may hold line ends and tabs
            write("\t".join(texts if n_best is not None else texts[:1]) + "\n")
    sys.stdout.flush()


def _row(line: str, position: str) -> _Pair:
    """The question and the context of a line, with a tab between.
    Raises DataError: the line has another number of texts, or one of them is blank.
    """
    texts = line.split("\t")
    if len(texts) != 2:
        got = counted(len(texts), "text")
        raise DataError(f"{position}: a line must hold a question and its context with a tab between: got {got}")
    return _not_blank((texts[0], texts[1]), position)


def _object(line: str, position: str) -> _Pair:
    """The question and the context of a JSON object.
    Raises DataError: the line is no JSON, or no object with both, or one of them is blank.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{position}: the line is not JSON: {error}") from None
    fields = record if isinstance(record, dict) else {}
    question, context = fields.get("question"), fields.get("context")
    if not isinstance(question, str) or not isinstance(context, str):
        raise DataError(f"{position}: a line must be an object with the strings `question` and `context`")
    return _not_blank((question, context), position)


def _not_blank(pairs: _Pair, position: str) -> _Pair:
    for text, name in zip(pairs, ("question", "context")):
        if not text.strip():
            raise DataError(f"{position}: the {name} is blank")
    return pairs
