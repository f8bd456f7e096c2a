"""Training, also by `atento tokenizer`: the same bytes, sizes kept or explained, linear time (rows D1, D2, D3)."""

import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atento.base.errors import DataError, RecipeError, TokenizerError, UsageError
from atento.config.recipe import TokenizerConfig
from atento.text import Tokenizer, train_tokenizer
from atento_cli.commands.tokenizer import tokenizer_app
from failing import fails

KINDS = ["unigram", "bpe", "wordpiece", "word", "character", "byte"]


def corpus(seed: int, n_words: int, n_lines: int) -> list[str]:
    """Made-up words, many of them equally frequent, which is where trainers break ties by chance."""
    letters = "ga to ca chor ro pu lou al mas ção inho mente rá pi da os com por lei te Å ñ x zw"
    parts = letters.split()
    chance = random.Random(seed)
    words = sorted({"".join(chance.choice(parts) for _ in range(chance.randint(1, 4))) for _ in range(n_words)})
    ends = [".", "!", " (x)", " 12"]
    return [" ".join(chance.choice(words) for _ in range(8)) + chance.choice(ends) for _ in range(n_lines)]


def train(kind: str, size: int, texts: list[str], lowercase: bool = False) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=size, lowercase=lowercase), texts)  # type: ignore[arg-type]


def test_the_same_text_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """Performance page, traps: the library's own trainers give another vocabulary each run."""
    code = (
        "import sys, json\n"
        "from atento.text import train_tokenizer\n"
        "from atento.config.recipe import TokenizerConfig\n"
        "texts = json.load(open(sys.argv[1], encoding='utf-8'))\n"
        "for kind in sys.argv[3:]:\n"
        "    train_tokenizer(TokenizerConfig(kind=kind, vocab_size=700), texts).save(f'{sys.argv[2]}/{kind}')"
    )
    (tmp_path / "texts.json").write_text(json.dumps(corpus(1, 800, 1500)), encoding="utf-8")
    seen: dict[str, set[tuple[str, ...]]] = {kind: set() for kind in KINDS}
    for run, (threads, parallel) in enumerate([("1", "false"), ("2", "true"), ("4", "true")]):
        ours = {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": parallel}
        env = os.environ | ours | {"PYTHONHASHSEED": str(run)}
        folder = tmp_path / str(run)
        folder.mkdir()
        arguments = [sys.executable, "-c", code, str(tmp_path / "texts.json"), str(folder), *KINDS]
        subprocess.run(arguments, env=env, check=True, stderr=subprocess.DEVNULL)
        for kind, hashes in seen.items():
            files = [folder / kind / "tokenizer.json", folder / kind / "tokenizer_config.json"]
            hashes.add(tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))
    assert {kind: len(hashes) for kind, hashes in seen.items()} == dict.fromkeys(KINDS, 1)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
@pytest.mark.parametrize("seed", range(8))
def test_small_texts_full_of_ties_repeat(kind: str, seed: int) -> None:
    """The library seeds its hash tables anew for each trainer, so one process shows it too."""
    texts = corpus(seed, random.Random(seed).choice([5, 40, 400]), 60)
    assert len({train(kind, 330, texts).fingerprint for _ in range(4)}) == 1


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece"])
def test_the_size_asked_for_is_reached_or_a_warning(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train(kind, 450, corpus(2, 800, 1000))
    assert tokenizer.vocab_size == 450 and tokenizer.notes == ()
    short = tokenizer.encode_batch(corpus(2, 800, 50))
    assert sum(map(len, short)) < 0.7 * sum(len(text) for text in corpus(2, 800, 50))  # subwords, not letters
    with caplog.at_level(logging.WARNING, logger="atento.text"):
        few = train(kind, 8000, ["o gato", "a gata"])
    said = f"the vocabulary has {few.vocab_size} pieces, 8,000 were requested: the text has no more pieces worth "
    assert few.notes == (f"{said}keeping",) and said in caplog.text
    many = train(kind, 10, ["o gato", "a gata"])
    front = 5 if kind == "wordpiece" else 261
    assert many.vocab_size > 10
    assert many.notes == (
        f"the vocabulary has {many.vocab_size} pieces, 10 were requested: "
        f"a {kind} vocabulary holds {front} special and byte pieces and every letter of the text",
    )
    assert many.decode(many.encode("o gato")) == "o gato"


def test_vocabularies_hold_frequent_words_every_letter_or_its_bytes_and_no_mixed_pieces() -> None:
    assert train("word", 5 + 3, ["a a a b b c", "a b d", "c"]).tokens(range(5, 8)) == ["a", "b", "c"]
    letters = train("character", 5 + 2, ["ab ab", "b c"])
    assert letters.tokens(range(5, 7)) == ["b", " "] and Counter("ab abb c").most_common(1)[0][0] == "b"
    # So that no word of known letters is unknown, whatever their order
    tokenizer = train("wordpiece", 300, ["gato pulou", "maçã"] * 3)
    assert tokenizer.unk_id not in tokenizer.encode("ãçap otag uolup")
    tokenizer = train("bpe", 300, ["a b c d e f g h"] * 2000 + ["ж"])
    assert tokenizer.token_id("ж") is None and tokenizer.token_id("h") is not None
    assert tokenizer.decode(tokenizer.encode("ж a")) == "ж a"
    for kind in ("unigram", "bpe"):
        tokenizer = train(kind, 500, ["gato. (gato) 1996! gato,"] * 50)
        for piece in tokenizer.tokens(range(261, tokenizer.vocab_size)):
            assert len(piece) == 1 or not set(piece) & set(".()!,0123456789")


@pytest.mark.covering
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a", ".", "a" * 100_000, "日本" * 5000, "1 2 3", "e\u0301" * 1000, "\ufeff\u200d"])
@pytest.mark.parametrize("size", [1, 300, 8000])
def test_odd_texts_train_without_a_crash(kind: str, text: str, size: int) -> None:
    tokenizer = train(kind, size, [text, ""])
    part = text[:50]
    if kind in ("unigram", "bpe", "byte"):
        assert tokenizer.decode(tokenizer.encode(part)) == tokenizer.normalize(part)
    else:
        assert len(tokenizer.encode(part)) >= 1


def test_wrong_use_is_refused() -> None:
    for n in (0, 1_000_001):
        fails(RecipeError, f"^`tokenizer.vocab_size` must lie in 1 to 1,000,000: got {n}$", train, "bpe", n, ["a"])
    fails(RecipeError, r"^`tokenizer.kind` cannot be 'unigramm'; did you mean 'unigram'", train, "unigramm", 300, ["a"])
    fails(TokenizerError, r"^training text must be lines, one string each", train, "bpe", 300, "a line")
    with pytest.raises(TokenizerError, match=r"^line 2 of the training text must be Unicode text: .* U\+D800 at char"):
        train("bpe", 300, ["a", "\ud800"])
    for kind in KINDS:
        for texts in ([], ["", " \t", "\x00"]):
            fails(DataError, "^the text to train the tokenizer on is empty: it holds no word$", train, kind, 300, texts)


PARTS = {"letters": "a", "spaces": " ", "han": "日本", "marks": "a\u0301\u0316", "digits": "1", "marks only": "\u0301"}


@cache
def trained(kind: str) -> Tokenizer:
    return train(kind, 320, ["aaaa aa a á banana 日本 11 22", "a á ananas 日 1"] * 20)


def seconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()  # of this process alone: others share the machine
        call()
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.covering
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_ten_times_the_text_takes_about_ten_times_as_long(kind: str, part: str) -> None:
    """Forty times is let pass on a busy machine; quadratic cost would be a hundred times."""
    tokenizer = trained(kind)

    def all_ways(n: int) -> Callable[[], object]:
        text = (PARTS[part] * n)[:n]

        def work() -> None:
            tokenizer.words(tokenizer.encode_with_offsets(text).ids)
            tokenizer.decode(tokenizer.encode(text))
            if kind in ("unigram", "bpe", "wordpiece"):
                tokenizer.encode_batch([text], dropout=0.1)

        return work

    short, long = seconds(all_ways(2_000)), seconds(all_ways(20_000))
    assert long < 40 * short + 0.05


@pytest.mark.covering
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_mebibyte_without_a_space_does_not_hang(kind: str, part: str) -> None:
    text = PARTS[part] * (2**20 // len(PARTS[part].encode()))
    started = time.process_time()
    trained(kind).encode(text)
    assert time.process_time() - started < 10


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
    ids = tokenizer.encode("a gata")
    assert run("decode", folder, stdin=f"{ids}\n").stdout == "a gata\n"
    out = run("decode", folder, "--json", stdin=" ".join(map(str, ids)) + "\n")
    assert json.loads(out.stdout) == {"ids": ids, "text": "a gata"}
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
