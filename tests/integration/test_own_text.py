"""Shipped recipes on text of one's own, by the command that README shows: where validation and errors come from."""

import json
import textwrap
from pathlib import Path

from atento_world import write
from conftest import ForkServer
from runs import events

SMALL = ["network={d_model: 16, d_ff: 32, n_heads: 2, n_layers: 1}", "tokenizer.vocab_size=400", "training.steps=6"]
SMALL += [f"training.{it}" for it in ("precision=float32", "validate_every=3", "batch_tokens=256", "warmup=2")]


def test_w6_readmes_line_validates_on_the_text_that_was_given(server: ForkServer, here: Path) -> None:
    texts = [f"{pair.source} #{number}" for number, pair in enumerate(write("train", 300))]
    (here / "book.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = ["train", "micro-world-lm", "data.train={file: book.txt}", *SMALL, "--out", "book"]
    done = server.good(*command, cwd=here)
    assert "warning: command line: data.train is files, so the recipe's data.valid and data.test" in done.stderr
    assert "30 of 300 training texts held out for validation\n" in done.stderr
    assert [event["step"] for event in events(here / "book", "valid")] == [3, 6]
    assert '"test_' not in (here / "book" / "metrics.jsonl").read_text(encoding="utf-8")
    again = server.run(*command, cwd=here)
    assert again.status == 0 and "already finished" in again.stderr


def test_a_hard_wrapped_book_is_joined_and_packed(server: ForkServer, here: Path) -> None:
    texts = [pair.target for pair in write("train", 900)]
    whole = [" ".join(texts[at : at + 6]) for at in range(0, 900, 6)]
    (here / "book.txt").write_text("\n\n".join(textwrap.fill(text, 60) for text in whole), encoding="utf-8")
    lines = (here / "book.txt").read_text(encoding="utf-8").count("\n")
    small = [*SMALL, "training.learning_rate=2e-2", "training.steps=12", "data.max_len=48"]
    for pack in ("none", "isolated", "stream"):
        given = ["data.train={file: book.txt, paragraphs: true}", f"data.pack={pack}"]
        done = server.good("train", "micro-world-lm", *given, *small, "--out", pack, cwd=here)
        assert "15 of 150 training texts held out for validation\n" in done.stderr and lines > 500
        assert ("135 texts packed into" in done.stderr) == (pack != "none")
        scores = [event["perplexity"] for event in events(here / pack, "valid")]
        assert scores[-1] < 0.9 * scores[0]
    peeked = server.run("data", "peek", "micro-world-lm", *given, *small, "--count", "1", "--json", cwd=here)
    assert len(json.loads(peeked.stdout)["ids"]["tokens"]) == 48


def test_r1_word_vectors_of_too_little_text(server: ForkServer, here: Path) -> None:
    small = ["network.d_model=8", "training.steps=40", "training.validate_every=20", "~data.valid"]
    one = server.run("train", "micro-world-cbow", "data.train={world: train, count: 1}", *small, cwd=here)
    said = "error: too little text for word vectors: `network.cbow.subsample` 0.001 leaves"
    assert one.status == 2 and one.stderr.splitlines()[-1].startswith(said)
    assert one.stderr.rstrip().endswith("give more text, or network.cbow.subsample=0")
    for name, extra in {
        "two": ["data.train={world: train, count: 3}"],
        "off": ["data.train={world: train, count: 1}", "network.cbow.subsample=0"],
        "tiny": ["data.train={world: train, count: 3}", "training.batch_tokens=1", "training.micro_batches=2"],
    }.items():
        done = server.run("train", "micro-world-cbow", *small, *extra, "--out", name, cwd=here)
        assert done.status == 0, (name, done.stderr)


def test_validation_text_that_cannot_be_scored_is_found_before_training(server: ForkServer, here: Path) -> None:
    (here / "words.txt").write_text("um\ndois\n", encoding="utf-8")
    given = ["data.train={world: train, count: 300}", "training.validate_every=1"]
    for split in ("valid", "test"):
        command = ["train", "micro-world-cbow", *given, f"data.{split}={{file: words.txt}}", "--out", split]
        done = server.run(*command, cwd=here)
        assert done.status == 2 and "step 1" not in done.stderr
        said = f"error: data.{split}: no sentence has two words, so there is no context to learn from"
        assert done.stderr.splitlines()[-1] == said
