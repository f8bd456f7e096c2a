"""`atento embed` and `atento similarity`: vectors of texts, and how similar pairs of texts are."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import AtentoError, BadLine, DataError
from atento.base.terminal import echo, write
from atento.config.sections.embedding import POOLINGS
from atento_cli.cluster_option import with_cluster
from atento_cli.command_progress import announce_stdin, show_batches
from atento_cli.completion import words
from atento_cli.explain_option import ExplainOptions
from atento_cli.line_work import Work
from atento_cli.lines import LineOptions
from atento_cli.options import Head, ModelArgument, check_order, with_options
from atento_cli.output_paths import output_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atento.model import Model

Layer = Annotated[int | None, typer.Option(help="The layer, from 0; -1 is the last; the model's own if not given.")]
_WORDS = (".txt", ".vec")
_ENDINGS = (".npy", ".tsv", *_WORDS)
Pooling = Annotated[
    str | None,
    typer.Option(
        help="mean, first, last, max, sqrt-mean or weighted-mean, several joined by +; the model's own if not given.",
        autocompletion=words(*POOLINGS),
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("embed", epilog="Example:  atento embed MODEL texts.txt --out vectors.npy")(with_cluster(embed))
    app.command("similarity", epilog="Example:  atento similarity MODEL pairs.tsv")(with_cluster(similarity))


@with_options(
    file="A text file, one text per line; - is standard input.",
    skip_bad="A bad line has no vector, and is counted: an empty line, null with --json, NaN in a file.",
)
def embed(
    model: ModelArgument,
    shared: LineOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a file instead: .npy (a NumPy array (N,D)), .tsv, or .txt and .vec (word2vec text format, one "
            "word per line). Replaced if it exists. With --cluster: the folder of the parts.",
        ),
    ] = None,
    layer: Layer = None,
    pooling: Pooling = None,
    prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="A prompt of the model by name, such as query.")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Keep the first N numbers of each vector.")
    ] = None,
    head: Head = None,
) -> None:
    """Print a vector for each line: numbers separated by spaces.

    An empty line has a vector too: that of an empty text.
    """
    from atento.data.files.source_lines import display_name

    chosen = {"layer": layer, "pooling": pooling, "prompt_name": prompt_name, "dimensions": dimensions, "head": head}
    options: Any = {name: value for name, value in chosen.items() if value is not None}
    show = _show_json if shared.as_json else _show_numbers if shared.cluster is None else _save

    def answer(loaded: "Model", lines: list[str], *_: object) -> None:
        show(lines, _vectors(loaded, lines, options))

    def ready(loaded: "Model") -> None:
        loaded.embed([], **options)  # wrong options are refused before the first block

    if shared.cluster is not None:
        shared.cluster.run(Work(answer, ready=ready, ending=None if shared.as_json else ".npy"))
        return
    if out is None:
        shared.answer("embed", model, answer, ready=ready)
        return
    check_order(model, shared.file)
    output_file(out, _ENDINGS)
    announce_stdin(shared.file)
    bad: list[str] | None = [] if shared.skip_bad else None
    lines = list(shared.lines(bad, None))
    _check_words(out, [(shared.number(row), line) for row, line in enumerate(lines)], display_name(shared.file))
    with shared.loaded(model) as loaded, show_batches("embed"):
        vectors = _vectors(loaded, lines, options)
    _write(out, lines, vectors)
    shared.count_bad(bad)
    echo(f"wrote {out}: {vectors.shape[0]} x {vectors.shape[1]}", err=True)


def _vectors(loaded: "Model", lines: Sequence[str], options: dict[str, Any]) -> "NDArray[np.float32]":
    """The vectors of lines (N,D); that of a bad line is NaN."""
    vectors = loaded.embed(lines, **options)
    vectors[[row for row, line in enumerate(lines) if isinstance(line, BadLine)]] = math.nan
    return vectors


def _show_numbers(lines: Sequence[str], vectors: "NDArray[np.float32]") -> None:
    """Write a line of numbers for each line; an empty one for a bad line."""
    for line, vector in zip(lines, vectors):
        numbers = [] if isinstance(line, BadLine) else vector.tolist()
        write(" ".join(f"{number:.7g}" for number in numbers) + "\n")


def _show_json(lines: Sequence[str], vectors: "NDArray[np.float32]") -> None:
    """Write an object with the text and its vector for each line; null for a bad line."""
    for line, vector in zip(lines, vectors):
        numbers = None if isinstance(line, BadLine) else vector.tolist()
        write(json.dumps({"text": line, "vector": numbers}, ensure_ascii=False) + "\n")


def _save(lines: Sequence[str], vectors: "NDArray[np.float32]") -> None:
    """Write the vectors (N,D) to standard output as a NumPy file."""
    import numpy as np

    np.save(sys.stdout.buffer, vectors)


def _check_words(out: Path, numbered: Sequence[tuple[int, str]], name: str) -> None:
    """Raises DataError if the texts cannot be written in word2vec's text format."""
    if out.suffix.lower() not in _WORDS:
        return
    line_of: dict[str, int] = {}
    for number, line in numbered:
        if not line or len(line.split()) != 1 or line != line.strip():
            raise DataError(
                f"{name}:{number}: --out {out} is word2vec's text format, with one word per line: got {line[:60]!r}; "
                "a file that ends in .npy or .tsv takes any text"
            )
        if line in line_of:
            raise DataError(
                f"{name}:{number}: --out {out} is word2vec's text format, in which words are distinct: {line[:60]!r} "
                f"is also line {line_of[line]}"
            )
        line_of[line] = number


def _write(out: Path, lines: list[str], vectors: "NDArray[np.float32]") -> None:
    """Write the vectors (N,D) in the format of the file name."""
    import numpy as np

    from atento.storage.atomic_files import atomic_file
    from atento.text.word_vectors import Vectors, write_text_vectors

    if out.suffix.lower() in _WORDS:
        write_text_vectors(out, Vectors(lines, vectors))
        return
    try:
        with atomic_file(out) as partial, partial.open("wb") as stream:
            if out.suffix.lower() == ".npy":
                np.save(stream, vectors)
            else:
                np.savetxt(stream, vectors, fmt="%.9g", delimiter="\t", encoding="ascii")
    except OSError as error:  # NumPy's own, of a disk that is full, has no `strerror`
        reason = error.strerror or f"the disk may be full ({error})"
        raise AtentoError(f"{out} cannot be written: {reason}") from None


@with_options(file="Two texts per line, separated by a TAB; - is standard input.")
def similarity(
    model: ModelArgument, shared: ExplainOptions, layer: Layer = None, pooling: Pooling = None, head: Head = None
) -> None:
    """Print how similar the two texts of each line are; an empty line stays empty.

    A regression model prints its number, for lines with one text too if it was trained on single texts; other models
    print the cosine of the vectors of the texts, from -1 to 1.
    """
    chosen = {"layer": layer, "pooling": pooling}
    options = {option: value for option, value in chosen.items() if value is not None}
    excluded = {f"--{option}": value for option, value in chosen.items()}
    if shared.explains("similarity", model, _texts, excluded=excluded, check=_one_or_two_texts, head=head):
        return
    shared.answer(
        "similarity",
        model,
        lambda loaded, lines, *_: _show(loaded, lines, options, shared.as_json),
        ready=lambda loaded: loaded,
        check=_one_or_two_texts,
        model_check=_lacks_a_text,
        head=head,
    )


def _one_or_two_texts(line: str, position: str) -> None:
    """Raises DataError: the line has more texts than two."""
    count = line.count("\t") + 1
    if count > 2:
        raise DataError(f"{position}: a line must have two texts separated by a TAB: got {count}")


def _texts(line: str) -> str | tuple[str, str]:
    """The text, or the two texts, of a checked line."""
    first, *second = line.split("\t")
    return (first, second[0]) if second else first


def _lacks_a_text(loaded: "Model", line: str) -> str | None:
    """Why the model cannot compare the texts of a line; None: it can."""
    from atento.tasks.regression import has_regression_head

    learned = loaded.config.get("pairs") if has_regression_head(loaded) else True
    if learned is None or learned == ("\t" in line):
        return None
    needed = "needs a second one behind a TAB, because the model compares two"
    return needed if learned else "has a TAB, and the model reads single texts"


def _show(loaded: "Model", lines: list[str], options: dict[str, Any], as_json: bool) -> None:
    """Write the numbers of some lines; those with one text and those with two are computed together."""
    texts = [line.split("\t") for line in lines]
    numbers: dict[int, float] = {}
    for count in (1, 2):
        rows = [row for row, line in enumerate(lines) if line.strip() and len(texts[row]) == count]
        if rows:
            columns = [[texts[row][side] for row in rows] for side in range(count)]
            numbers |= dict(zip(rows, loaded.similarity(*columns, **options)))
    for row, parts in enumerate(texts):
        number = numbers.get(row)
        if as_json:
            write(json.dumps({"texts": parts, "similarity": number}, ensure_ascii=False) + "\n")
        else:
            write("\n" if number is None else f"{number:.6f}\n")
