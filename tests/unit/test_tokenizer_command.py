"""`atento tokenizer`: one item a line in and out, results alone on standard output, clear errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atento.base.errors import DataError, TokenizerError, UsageError
from atento.text import Tokenizer
from atento_cli.commands.tokenizer import tokenizer_app

TEXT = "o gato pulou\na gata comeu o pão\n\nminha avó não quer 12 ovos\n" * 5


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(tokenizer_app, list(arguments), input=stdin)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.pt"
    path.write_text(TEXT, encoding="utf-8", newline="\n")
    return path


@pytest.fixture
def folder(tmp_path: Path, text: Path) -> str:
    made = run("train", str(text), "--out", str(tmp_path / "spm"), "--kind", "bpe", "--vocab-size", "330")
    assert made.exit_code == 0, made.stderr
    return str(tmp_path / "spm")


def test_train_writes_a_folder_and_reads_many_files(folder: str, text: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.kind == "bpe"
    again = run("train", str(text), "--out", str(tmp_path / "again"), "--kind", "bpe", "--vocab-size", "330")
    assert again.stdout == f"bpe {tokenizer.vocab_size} {tokenizer.fingerprint}\n"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (Path(folder) / name).read_bytes()
    made = run("train", str(text), "-", "--out", str(tmp_path / "o"), "--kind", "word", "--lowercase", stdin="Zebra\n")
    assert made.exit_code == 0
    tokenizer = Tokenizer.load(tmp_path / "o")
    assert tokenizer.lowercase and tokenizer.token_id("zebra") is not None and tokenizer.token_id("gato") is not None


def test_train_reads_a_column_of_tables_and_says_its_note_once(text, tmp_path, caplog) -> None:
    rows = "".join(f"{line};1\n" for line in TEXT.split("\n") if line)
    (tmp_path / "t.csv").write_bytes(f"texto;n\n{rows}".encode("latin-1"))
    how = ["--kind", "bpe", "--vocab-size", "330", "--reading", "encoding=latin-1"]
    plain = run("train", str(text), "--out", str(tmp_path / "plain"), *how[:4])
    table = [str(tmp_path / "t.csv"), "--out", str(tmp_path / "o"), *how, "--reading", "delimiter=;"]
    made = run("train", *table, "--columns", "texto")
    assert made.exit_code == 0 and made.stdout == plain.stdout
    assert isinstance(run("train", *table[:2], f"{tmp_path}/b", *table[3:], "--columns", "text").exception, DataError)
    assert not (tmp_path / "b").exists()
    made = run("train", str(text), "--out", str(tmp_path / "n"))
    assert made.exit_code == 0 and made.stdout.count("\n") == 1 and "8,000 were requested" not in made.stdout
    assert (caplog.text + made.stderr).count("8,000 were requested: the text has no more pieces worth keeping") == 1
    for command in ("train", "encode", "decode", "info"):
        assert "Example:" in run(command, "--help").stdout


def test_encode_and_decode_keep_every_line_pieces_and_json_and_info_counts_them(folder: str, text: Path) -> None:
    lines = TEXT.splitlines()
    encoded = run("encode", folder, str(text))
    rows = encoded.stdout.split("\n")[:-1]
    tokenizer = Tokenizer.load(folder)
    assert [[int(i) for i in row.split()] for row in rows] == [tokenizer.encode(line) for line in lines]
    assert rows[2] == ""
    assert run("decode", folder, "-", stdin=encoded.stdout).stdout == TEXT
    ids = tokenizer.encode("o gato")
    assert run("encode", folder, "--tokens", stdin="o gato\n\n").stdout == " ".join(tokenizer.tokens(ids)) + "\n\n"
    both = run("encode", folder, "--json", stdin="o gato\n")
    assert json.loads(both.stdout) == {"text": "o gato", "ids": ids, "tokens": tokenizer.tokens(ids)}
    assert set(json.loads(run("encode", folder, "--json", "--ids", stdin="a\n").stdout)) == {"text", "ids"}
    assert set(json.loads(run("encode", folder, "--json", "--tokens", stdin="a\n").stdout)) == {"text", "tokens"}
    ids = Tokenizer.load(folder).encode("a gata")
    assert run("decode", folder, stdin=f"{ids}\n").stdout == "a gata\n"
    out = run("decode", folder, "--json", stdin=" ".join(map(str, ids)) + "\n")
    assert json.loads(out.stdout) == {"ids": ids, "text": "a gata"}
    tokenizer = Tokenizer.load(folder)
    plain = run("info", folder)
    assert f"fingerprint: {tokenizer.fingerprint}\n" in plain.stdout and "<pad>=0 <unk>=1 <s>=2" in plain.stdout
    record = json.loads(run("info", folder, str(text), "--json").stdout)
    pieces = sum(len(tokenizer.encode(line)) for line in TEXT.splitlines())
    assert record["kind"] == "bpe" and record["vocab_size"] == tokenizer.vocab_size
    assert (record["lines"], record["words"], record["pieces"], record["unknown"]) == (20, 70, pieces, 0)
    assert record["fertility"] == pieces / 70
    assert f"fertility: {pieces / 70:.4f}\n" in run("info", folder, str(text)).stdout
    assert json.loads(run("info", folder, "-", "--json", stdin="").stdout)["fertility"] is None


def test_wrong_use(folder, tmp_path) -> None:
    for arguments, stdin, error, message in (
        (["train", "-", "-", "--out", "NEW"], "a", UsageError, "standard input can be read once: only one of the"),
        (["train", "-", "--out", "NEW", "--kind", "bpi"], "a", TokenizerError, "unknown kind of tokenizer 'bpi'; did"),
        (["train", "-", "--out", "FOLDER"], "a", UsageError, "--out FOLDER must be a new or empty folder: nothing is"),
        (["train", "-", "--out", "NEW"], "\n", DataError, "the text to train the tokenizer on is empty"),
        (["encode", "NEW"], "a", TokenizerError, "no tokenizer at NEW: there is no such folder"),
        (["encode", "FOLDER", "--ids", "--tokens"], "a", UsageError, "--ids and --tokens together need --json"),
        (["decode", "FOLDER"], "5\n6 x", DataError, "standard input:2: a line must be ids separated by spaces: got '6"),
        (["decode", "FOLDER"], "\n99999\n", DataError, "standard input:2: an id must lie in 0 ... "),
    ):
        new = str(tmp_path / "new")
        result = run(*(a.replace("FOLDER", folder).replace("NEW", new) for a in arguments), stdin=stdin)
        assert isinstance(result.exception, error)
        assert str(result.exception).startswith(message.replace("FOLDER", folder).replace("NEW", new))
        assert result.stdout in ("", "\n", Tokenizer.load(folder).decode([5]) + "\n")
