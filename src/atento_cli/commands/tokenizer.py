"""`atento tokenizer`: train a tokenizer, encode and decode text. Does not load torch."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, cast

import typer

from atento.base.errors import DataError, TokenizerError, UsageError
from atento.base.terminal import echo
from atento_cli.command_progress import announce_stdin
from atento_cli.completion import models, words
from atento_cli.options import AsJson, Reading, key_and_value
from atento_cli.output_paths import output_folder

if TYPE_CHECKING:
    from atento.config.recipe import TokenizerKind
    from atento.text import Tokenizer

tokenizer_app = typer.Typer(no_args_is_help=True, help="Train and use tokenizers.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(tokenizer_app, name="tokenizer")


Folder = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A tokenizer folder, a run folder, a model folder, a shipped model or a hub name (owner/name).",
        autocompletion=models,
    ),
]
Lines = Annotated[str, typer.Argument(metavar="FILE", help="A file with one item per line; - is standard input.")]


@tokenizer_app.command(
    epilog="Example:  atento tokenizer train train.en train.pt --out spm --kind unigram --vocab-size 8000"
)
def train(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Text files, one sentence per line; - is standard input.")
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Output folder.")],
    kind: Annotated[
        str,
        typer.Option(
            help="unigram, bpe, wordpiece, word, character or byte.",
            autocompletion=words("unigram", "bpe", "wordpiece", "word", "character", "byte"),
        ),
    ] = "unigram",
    vocab_size: Annotated[int, typer.Option(help="Number of pieces, including special and byte pieces.")] = 8000,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Convert all text to lower case.")] = False,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Columns of tables, by name or number (no header).")
    ] = None,
    reading: Reading = None,
    as_json: AsJson = False,
) -> None:
    """Train a tokenizer and print its kind, size and fingerprint. The same text always gives the same tokenizer."""
    from atento.config.recipe import TokenizerConfig
    from atento.text import train_tokenizer
    from atento.text.kinds import kind_named
    from atento_cli.lines import file_lines

    kind_named(kind)
    if files.count("-") > 1:
        raise UsageError("standard input can be read once: only one of the files may be `-`")
    target = output_folder(out, new=True)

    announce_stdin(*files)
    stated = dict(map(key_and_value, reading or []))

    def lines() -> Iterator[str]:
        for name in files:
            if columns is None and not reading:
                yield from file_lines(name)
                continue
            from atento_cli.table_columns import table_rows  # it loads numpy

            for _, row in table_rows(name, columns.split(",") if columns else [], stated):
                if isinstance(row, DataError):
                    raise row
                yield row

    config = TokenizerConfig(cast("TokenizerKind", kind), vocab_size=vocab_size, lowercase=lowercase)
    tokenizer = train_tokenizer(config, lines())
    tokenizer.save(target)
    record = {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "fingerprint": tokenizer.fingerprint}
    echo(json.dumps(record) if as_json else " ".join(map(str, record.values())))


@tokenizer_app.command(epilog="Example:  echo 'bom dia' | atento tokenizer encode spm - --tokens")
def encode(
    directory: Folder,
    file: Lines = "-",
    ids: Annotated[bool, typer.Option("--ids", help="Print ids (the default).")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Print pieces.")] = False,
    as_json: AsJson = False,
) -> None:
    """Encode each line as ids or pieces. A space inside a piece is printed as U+2581."""
    from atento.text.kinds import SPACE
    from atento_cli.lines import file_lines

    if ids and tokens and not as_json:
        raise UsageError("--ids and --tokens together need --json")
    tokenizer = _load(directory)
    announce_stdin(file)
    for line, row in _encoded(tokenizer, file_lines(file)):
        if as_json:
            record = {"text": line, "ids": row, "tokens": tokenizer.tokens(row)}
            drop = {"tokens"} if ids and not tokens else {"ids"} if tokens and not ids else set()
            echo(json.dumps({k: v for k, v in record.items() if k not in drop}, ensure_ascii=False))
        elif tokens:
            echo(" ".join(token.replace(" ", SPACE) for token in tokenizer.tokens(row)))
        else:
            echo(" ".join(map(str, row)))


def _load(model: str) -> "Tokenizer":
    """Load the tokenizer of a tokenizer, run or model folder, or of a shipped or a hub model."""
    from atento.models.model_folder import find_tokenizer
    from atento.text import Tokenizer

    return Tokenizer.load(find_tokenizer(model))


def _encoded(tokenizer: "Tokenizer", lines: list[str]) -> Iterator[tuple[str, list[int]]]:
    """Each line with its ids, encoded in batches."""
    for start in range(0, len(lines), 1024):
        part = lines[start : start + 1024]
        yield from zip(part, tokenizer.encode_batch(part))


@tokenizer_app.command(epilog="Example:  atento tokenizer encode spm text.pt | atento tokenizer decode spm -")
def decode(directory: Folder, file: Lines = "-", as_json: AsJson = False) -> None:
    """Decode each line of ids to text. Ids are numbers separated by spaces, or a JSON list."""
    from atento.data.files.source_lines import display_name, read_lines

    tokenizer = _load(directory)
    announce_stdin(file)
    where = display_name(file)
    for number, line in enumerate(read_lines(file), 1):
        try:
            ids = [int(word) for word in line.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()]
            text = tokenizer.decode(ids)
        except TokenizerError as error:
            raise DataError(f"{where}:{number}: {error}") from None
        except ValueError:
            raise DataError(f"{where}:{number}: a line must be ids separated by spaces: got {line[:60]!r}") from None
        echo(json.dumps({"ids": ids, "text": text}, ensure_ascii=False) if as_json else text)


@tokenizer_app.command(epilog="Example:  atento tokenizer info spm valid.pt")
def info(
    directory: Folder,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="Text to count pieces in.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print kind, size, special tokens and fingerprint; for a text also pieces per word and unknown pieces."""
    from atento.text import word_spans
    from atento_cli.lines import file_lines

    tokenizer = _load(directory)
    record: dict[str, object] = {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "lowercase": tokenizer.lowercase,
        "specials": dict(tokenizer.specials.ids),
        "fingerprint": tokenizer.fingerprint,
    }
    if file is not None:
        announce_stdin(file)
        lines = file_lines(file)
        unk = tokenizer.specials.get("unk")
        rows = [ids for _, ids in _encoded(tokenizer, lines)]
        words, pieces = sum(len(word_spans(line)) for line in lines), sum(map(len, rows))
        record |= {
            "lines": len(lines),
            "words": words,
            "pieces": pieces,
            "fertility": pieces / words if words else None,
            "unknown": sum(row.count(unk) for row in rows) if unk is not None else 0,
        }
    if as_json:
        echo(json.dumps(record, ensure_ascii=False))
        return
    for key, value in record.items():
        if isinstance(value, dict):
            value = " ".join(f"{text}={i}" for text, i in value.items())
        echo(f"{key}: {value:.4f}" if isinstance(value, float) else f"{key}: {value}")
