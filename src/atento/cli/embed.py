"""`atento embed` and `atento similarity`: texts as vectors, and how near two of them are."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.cli.completion import words
from atento.cli.options import AsJson, Device, ModelArgument, Precision, Seed, Threads, check_order, running
from atento.cli.outputs import output_file
from atento.cli.progress import batches_shown, tell_waiting

Layer = Annotated[int | None, typer.Option(help="0 is the first, -1 the last.")]
_WORDS = (".txt", ".vec")
_ENDINGS = (".npy", ".tsv", *_WORDS)
Pooling = Annotated[
    str | None,
    typer.Option(
        help="mean, first, last or max; the model's own if not given.",
        autocompletion=words("mean", "first", "last", "max"),
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("embed", epilog="Example:  atento embed MODEL texts.txt --out vectors.npy")(embed)
    app.command("similarity", epilog="Example:  atento similarity MODEL pairs.tsv")(similarity)


def embed(
    model: ModelArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="One text a line; - is standard input.")] = "-",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a file instead: .npy is NumPy's (N,D), .tsv numbers with tabs, .txt and .vec word2vec's text, "
            "for one word a line. Replaced if it exists.",
        ),
    ] = None,
    layer: Layer = None,
    pooling: Pooling = None,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Texts as vectors: line N of the output, numbers with blanks between, is the vector of line N of the input."""
    from atento.data.source_lines import display_name
    from atento.data.sources import read_lines

    check_order(model, file)
    if out is not None:
        output_file(out, _ENDINGS)
    tell_waiting(file)
    lines = read_lines(file)
    if out is not None:
        _check_words(out, lines, display_name(file))
    vectors = _vectors(model, lines, layer, pooling, device, precision, seed, threads)
    if out is not None:
        _write(out, lines, vectors)
        typer.echo(f"wrote {out}: {vectors.shape[0]} x {vectors.shape[1]}", err=True)
        return
    for line, vector in zip(lines, vectors):
        if as_json:
            sys.stdout.write(json.dumps({"text": line, "vector": vector.tolist()}, ensure_ascii=False) + "\n")
        else:
            sys.stdout.write(" ".join(f"{number:.7g}" for number in vector.tolist()) + "\n")


def _check_words(out: Path, lines: list[str], name: str) -> None:
    """Raises DataError: a file of word2vec's format has no room for these texts."""
    from atento.errors import DataError

    if out.suffix.lower() not in _WORDS:
        return
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line or len(line.split()) != 1 or line != line.strip():
            raise DataError(
                f"{name}:{number}: --out {out} is word2vec's text format, of one word a line: got {line[:60]!r}; "
                "a file that ends in .npy or .tsv takes any text"
            )
        if line in seen:
            raise DataError(
                f"{name}:{number}: --out {out} is word2vec's text format, in which a word stands once: {line[:60]!r} "
                f"is also line {seen[line]}"
            )
        seen[line] = number


def _write(out: Path, lines: list[str], vectors: Any) -> None:
    """The vectors (N,D) in the format that the name's ending says."""
    import numpy as np

    from atento.errors import AtentoError
    from atento.text.vectors import Vectors, write_text_vectors

    if out.suffix.lower() in _WORDS:
        write_text_vectors(out, Vectors(lines, vectors))
        return
    try:
        if out.suffix.lower() == ".npy":
            with out.open("wb") as written:
                np.save(written, vectors)
        else:
            np.savetxt(out, vectors, fmt="%.9g", delimiter="\t", encoding="ascii")
    except OSError as error:
        raise AtentoError(f"{out} cannot be written: {error.strerror}") from None


def similarity(
    model: ModelArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Two texts a line, a TAB between; - is standard input.")
    ] = "-",
    layer: Layer = None,
    pooling: Pooling = None,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """How near the two texts of a line are: the cosine of their vectors, -1 to 1."""
    from atento.data.source_lines import display_name
    from atento.data.sources import read_lines
    from atento.errors import DataError
    from atento.tasks.embedding import cosine

    check_order(model, file)
    tell_waiting(file)
    pairs = []
    for number, line in enumerate(read_lines(file), 1):
        parts = line.split("\t")
        if len(parts) != 2:
            raise DataError(
                f"{display_name(file)}:{number}: a line must hold two texts with a TAB between: got {len(parts)}"
            )
        pairs.append(parts)
    flat = [text for pair in pairs for text in pair]
    vectors = _vectors(model, flat, layer, pooling, device, precision, seed, threads)
    for pair, one, two in zip(pairs, vectors[::2], vectors[1::2]):
        value = cosine(one, two)
        if as_json:
            sys.stdout.write(json.dumps({"texts": pair, "similarity": value}, ensure_ascii=False) + "\n")
        else:
            sys.stdout.write(f"{value:.6f}\n")


def _vectors(
    model: str,
    texts: list[str],
    layer: int | None,
    pooling: str | None,
    device: str,
    precision: str,
    seed: int,
    threads: int | None,
) -> Any:
    """The texts' vectors; warnings as plain lines."""
    from atento.model import load

    given = {"layer": layer, "pooling": pooling}
    options: Any = {name: value for name, value in given.items() if value is not None}
    with running(seed, threads):
        loaded = load(model, device=device, precision=precision)
        with batches_shown("embed"):
            return loaded.embed(texts, **options)
