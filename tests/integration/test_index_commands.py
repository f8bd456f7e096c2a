"""`atento index`, `atento find` and `POST /find`: what they print, answer and refuse."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.config.recipe import TokenizerConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.text.tokenizer_training import train_tokenizer
from conftest import ForkServer, refused
from http_service import SOURCES, Served, random_model, served

MODEL = "micro-world-mlm"
TABLE = 'id,lang,text\n1,en,The cat sleeps.\n2,pt,O gato dorme.\n3,en,\n4,en,"The dog, a big one, sings."\n'


@pytest.fixture(scope="module")
def made(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("find")
    (place / "table.csv").write_text(TABLE, encoding="utf-8")
    done = server.run("index", "table.csv", MODEL, "--out", "i", "--columns", "text,lang,id", cwd=place)
    assert done.status == 0 and done.stdout == "added 3 lines: i has 3\n", done.stderr
    return place


def test_lines_are_printed_with_score_place_and_text(server: ForkServer, made: Path) -> None:
    done = server.run("find", "i", "dog", "--words", cwd=made)
    index = atento.Index(made / "i")
    (hit,) = index.find("dog", by="words")
    assert done.stdout == f"{hit.score:.4f}\ttable.csv:5\tThe dog, a big one, sings.\n"
    assert (hit.line, hit.source, hit.columns) == (5, "table.csv", {"lang": "en", "id": "4"})
    done = server.run("find", "i", "the cat", "--hybrid", "--top", "2", cwd=made)
    hits = index.find("the cat", top=2, by="both")
    assert done.stdout == "".join(f"{hit.score:.4f}\ttable.csv:{hit.line}\t{hit.text}\n" for hit in hits)
    done = server.run("find", "i", "-", "--json", "--where=lang=pt", "--where=lang=en", cwd=made, stdin="gato\ncat\n")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["query"] for record in records] == ["gato", "cat"]
    for record in records:
        expected = index.find(record["query"])
        assert [hit["line"] for hit in record["hits"]] == [hit.line for hit in expected]
        assert record["hits"][0] == {**vars(expected[0]), "score": pytest.approx(expected[0].score, abs=1e-6)}
    done = server.run("find", "i", "-", "--words", "--where", "id=2", cwd=made, stdin="gato\ncat\n")
    assert done.stdout.splitlines()[1:] == [""]  # of the second query nothing is found


def test_lines_are_added_and_taken_out(server: ForkServer, made: Path, tmp_path: Path) -> None:
    lines = "one line\n\nanother line\n"
    done = server.run("index", "-", MODEL, "--out", "i", "--vectors", "int8", "--json", cwd=tmp_path, stdin=lines)
    assert json.loads(done.stdout) == {"index": "i", "added": 2, "lines": 2}
    done = server.run("index", "-", MODEL, "--out", "i", "--add", cwd=tmp_path, stdin="a third one\n")
    assert done.stdout == "added 1 line: i has 3\n"
    done = server.run("index", "-", MODEL, "--out", "i", "--remove", cwd=tmp_path, stdin="one line\nno such line\n")
    assert done.stdout == "removed 1 line: i has 2\n"
    found = server.run("find", "i", "line", "--words", cwd=tmp_path).stdout
    assert found.split("\t")[1:] == ["standard input:3", "another line\n"]


@pytest.mark.parametrize(
    ("command", "stdin", "said"),
    [
        ("find i ''", "", "the query is empty"),
        ("find i -", "cat\n \n", "standard input:2: the query is empty"),
        ("find i ?! --words", "", "the query '?!' has no words"),
        ("find i cat --words --hybrid", "", "--words and --hybrid exclude each other"),
        ("find i cat --where lang", "", "--where has the form COLUMN=VALUE: got 'lang'"),
        ("find i cat --words --where land=pt", "", "did you mean 'lang'?; the columns are 'lang', 'id'"),
        ("find i cat --model micro-world-tense", "", "the index i was made by another model: micro-world-mlm had"),
        ("find i cat --rerank micro-world-mlm", "", "has no regression head"),
        ("find table.csv cat", "", "table.csv is no index: it is no folder"),
        ("find none cat", "", "none is no index: it does not exist; `atento index CORPUS MODEL --out none`"),
        ("index - micro-world-mlm --out j", "\n  \n", "standard input: an index needs at least one line with text"),
        ("index table.csv micro-world-mlm --out i --columns text", "", "i is an index already; --add adds lines"),
        ("index table.csv micro-world-mlm --out j --columns body", "", "table.csv"),
        ("index table.csv micro-world-mlm --out i --add --columns text,id", "", "of the index, lang, id: got id"),
        ("index table.csv micro-world-tense --out i --add --columns text,lang,id", "", "made by another model"),
        ("index table.csv micro-world-mlm --out i --add --remove", "", "exclude each other"),
        ("index table.csv micro-world-mlm --out i --add --vectors int8", "", "--vectors is for a new index"),
        ("index none.txt micro-world-mlm --out j", "", "none.txt"),
        ("index table.csv micro-world-mlm --out table.csv", "", "--out table.csv cannot be written"),
        ("index - micro-world-mlm --out .", "a\n", ". has other files"),
    ],
)
def test_bad_input_changes_nothing(server: ForkServer, made: Path, command: str, stdin: str, said: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.name != ".lock"}
    refused(server.run(*[word.strip("'") for word in command.split(" ")], cwd=made, stdin=stdin), said)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.name != ".lock"} == before


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    subwords = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=200), iter(SOURCES))
    ranker = random_model(subwords, "ranking", "bos-eos", architecture="encoder", heads=(HeadConfig("regression"),))
    ranker.config["pairs"] = True
    ranker.save(folder / "ranker")
    columns = {"parity": [str(number % 2) for number in range(len(SOURCES))]}
    atento.Index.create(SOURCES, MODEL, folder / "i", columns=columns)
    with served([f"encoder={MODEL}", str(folder / "ranker"), "--index", f"encoder={folder / 'i'}"]) as running:
        running.folders = {"i": folder / "i", "ranker": folder / "ranker"}
        yield running


def test_find_over_http_gives_what_the_index_gives_and_a_ranker_orders_it_anew(service: Served) -> None:
    index = atento.Index(service.folders["i"])
    for options in (
        *({}, {"by": "words", "top": 3}, {"by": "both", "top": 4, "within": 7}, {"where": {"parity": "1"}, "top": 40}),
        {"where": {"parity": ["0", "1"]}, "by": "both", "model": "encoder"},
    ):
        answer = service.post("/find", {"query": SOURCES[2], **options})
        assert answer.status_code == 200, answer.text
        given: dict[str, Any] = {name: value for name, value in options.items() if name != "model"}
        expected = [vars(hit) for hit in index.find(SOURCES[2], **given)]
        assert answer.json()["model"] == "encoder" and len(expected) > 0
        for hit, wanted in zip(answer.json()["hits"], expected, strict=True):
            assert hit == {**wanted, "score": pytest.approx(wanted["score"], abs=1e-6)}
    hits = service.post("/find", {"query": SOURCES[0], "top": 5, "within": 40, "rerank": "ranker"}).json()["hits"]
    ranker = atento.load(service.folders["ranker"])
    expected = atento.Index(service.folders["i"]).find(SOURCES[0], top=5, within=40, rerank=ranker)
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert hits[0]["score"] > hits[-1]["score"]


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({"query": ""}, 422, "/query", "is empty"),
        ({"query": " \n"}, 422, "/query", "is empty"),
        ({}, 422, "/query", "`query` is missing"),
        ({"query": "a", "top": 0}, 422, "/top", "between 1 and 1,000"),
        ({"query": "a", "within": 5000}, 422, "/within", "between 1 and 1,000"),
        ({"query": "a", "by": "word"}, 422, "/by", "`by`"),
        ({"query": "?!", "by": "words"}, 422, "", "has no words"),
        ({"query": "a", "where": {"party": "1"}}, 422, "/where", "names no column of the index: got 'party'"),
        ({"query": "a", "where": {"parity": 1}}, 422, "/where/parity", "must be a text or texts: got the number 1"),
        ({"query": "a", "where": {"parity": ["1", 2]}}, 422, "/where/parity", "got a list of 2"),
        ({"query": "a", "where": ["parity"]}, 422, "/where", "an object"),
        ({"query": "a", "model": "ranker"}, 400, "/model", "cannot find"),
        ({"query": "a", "model": "none"}, 404, "/model", "there is no model"),
        ({"query": "a", "rerank": "encoder"}, 422, "/rerank", "is no ranker"),
        ({"query": "a " * 3000}, 413, "/query", "tokens"),
        ({"query": "a", "k": 3}, 422, "/k", "`k`"),
    ],
)
def test_bad_fields_are_named(service: Served, body: dict[str, Any], status: int, param: str | None, said: str) -> None:
    answer = service.post("/find", body)
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert said in error["message"] and (param is None or (error["param"] or "") == param)


def test_a_service_has_no_wrong_index_and_says_it_has_none(service: Served, server: ForkServer, tmp_path: Path) -> None:
    for words, said in (
        (["serve", "micro-world-tense", "--index", str(service.folders["i"])], "was made by another model"),
        (["serve", MODEL, "--index", str(tmp_path / "none")], "is no index: it does not exist"),
        (["serve", MODEL, "--index", "other=i"], "--index must be NAME=I with the name of a model"),
    ):
        done = server.run(*words, "--port", "0", cwd=tmp_path)
        assert done.status != 0 and said in done.stderr, done.stderr
    with served([MODEL]) as running:
        answer = running.post("/find", {"query": "a"})
        assert answer.status_code == 404 and "can find" in answer.json()["error"]["message"]
