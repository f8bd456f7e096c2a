"""`atento evaluate` reads the columns of the recipe; commands that read lines warn about tables; equal labels."""

import json
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
import yaml

import atento
from atento.base.errors import DataError, UsageError
from atento.config.reading.loading import load_recipe
from atento.data.records.labelled_data import reading_of, source_of
from atento.data.records.splits import Split
from atento.evaluation import columns_learned
from atento.runs.model_config import facts_of_data
from conftest import ForkServer, refused
from failing import fails

TEXTS = [("o gato dorme", "ação"), ("a uva caiu", "objeto"), ("o pato come", "ação"), ("a pera caiu", "objeto")]
WORDS = {"kind": "word", "vocab_size": 40}
NETWORK = {"preset": "bert-tiny", "n_layers": 1, "d_model": 16, "d_ff": 16, "n_heads": 2}


@pytest.fixture(scope="module")
def run(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose recipe reads columns by name, in another order than that of the fields."""
    folder = tmp_path_factory.mktemp("columns")
    written = [(a, b if row % 2 else f"{unicodedata.normalize('NFD', b)} ") for row, (a, b) in enumerate(TEXTS * 4)]
    rows = [f"{i},{b},{a}\n" for i, (a, b) in enumerate(written)]
    (folder / "train.csv").write_text("".join(["id,rótulo,texto\n", *rows]))
    data = {"train": {"file": "train.csv", "text": "texto", "label": "rótulo"}}
    training = {"steps": 40, "batch_tokens": 8, "learning_rate": 1e-2, "warmup": 2}
    recipe = {"task": "classification", "data": data, "network": NETWORK, "training": training, "tokenizer": WORDS}
    (folder / "r.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True))
    assert "one training example" not in server.good("train", "r.yaml", "--out", "run", cwd=folder).stderr
    return folder / "run"


def test_evaluate_reads_the_columns_of_the_recipe(server: ForkServer, run: Path) -> None:
    done = server.run("evaluate", str(run), str(run.parent / "train.csv"), "--json", cwd=run.parent)
    assert done.status == 0 and "columns as in training: text 'texto', label 'rótulo'" in done.stderr
    assert json.loads(done.stdout)["accuracy"]["value"] > 0.9
    other = run.parent / "other.tsv"  # it has no such columns: the order of the fields
    other.write_text("o gato dorme\tação\na uva caiu\tobjeto\n")
    done = server.run("evaluate", str(run), str(other), "--json", cwd=run.parent)
    assert done.status == 0 and "columns as in training" not in done.stderr
    swapped = run.parent / "swapped.tsv"
    swapped.write_text("1\tação\to gato dorme\n2\tobjeto\ta uva caiu\n")
    done = server.run("evaluate", str(run), str(swapped), "--columns", "text=2,label=1", "--json", cwd=run.parent)
    assert done.status == 0 and json.loads(done.stdout)["accuracy"]["value"] == 1.0
    assert atento.evaluate(run, swapped, columns={"text": 2, "label": 1})["accuracy"].value == 1.0
    assert atento.load(run).config["network"]["heads"][0]["labels"] == ["ação", "objeto"]


def test_files_of_other_formats_have_the_columns_of_the_recipe_which_are_for_files(run: Path, tmp_path: Path) -> None:
    """Keys that reach into objects, and the columns of a Parquet file."""
    model = atento.load(run)
    rows = [{"review": {"texto": text}, "rótulo": label} for text, label in TEXTS]
    (tmp_path / "nested.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pandas.DataFrame(TEXTS, columns=["texto", "rótulo"]).to_parquet(tmp_path / "a.parquet")
    assert atento.evaluate(model, tmp_path / "a.parquet")["accuracy"].value == 1.0
    model.config["columns"] = {"text": "review.texto", "label": "rótulo"}
    assert atento.evaluate(model, tmp_path / "nested.jsonl")["accuracy"].value == 1.0
    fails(UsageError, "for a file", atento.evaluate, run, [("o gato dorme", "ação")], columns={"text": 0, "label": 1})
    fails(UsageError, "one file", source_of, ["a.en", "a.pt"], "translation", {"source": 0, "target": 1})


def test_one_of_several_sheets_is_evaluated_and_its_reading_holds_for_another(run: Path, tmp_path: Path) -> None:
    book = pandas.DataFrame(TEXTS, columns=["texto", "rótulo"])
    with pandas.ExcelWriter(tmp_path / "a.xlsx") as written:
        for name in ("um", "dois"):
            book.to_excel(written, sheet_name=name, index=False)
    assert atento.evaluate(run, tmp_path / "a.xlsx", reading={"sheet": "dois"})["accuracy"].value == 1.0
    fails(DataError, "--reading sheet=NAME", atento.evaluate, run, tmp_path / "a.xlsx")
    learned = {"delimiter": ";", "decimal": ",", "separator": "/", "encoding": "windows-1252"}
    assert reading_of("a.xlsx", learned) == {"decimal": ",", "separator": "/"}
    sheet = {"sheet": "Dados"}
    assert reading_of("b.xlsx", sheet) == sheet and not reading_of("b.csv", sheet)
    assert reading_of("a.csv", learned) == learned and reading_of("a.jsonl", learned) == {"encoding": "windows-1252"}


def test_a_file_has_the_format_of_the_recipe_where_its_ending_says_no_other(tmp_path: Path) -> None:
    """Words and tags in a .tsv file were read as a table, each word as a sentence."""
    model = atento.load("micro-world-entities")
    lines = "Maria\tB-PER\nviajou\tO\n\nAna\tB-PER\n"
    (tmp_path / "a.tsv").write_text(lines)
    model.config["reading"] = {"format": "conll"}
    assert len(atento.evaluate(model, tmp_path / "a.tsv")["entity-f1"].segments) == 2
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps({"tokens": ["Maria", "viajou"], "tags": ["B-PER", "O"]})]))
    assert len(atento.evaluate(model, tmp_path / "a.jsonl")["entity-f1"].segments) == 1
    model.config["reading"] = {}
    (tmp_path / "a.csv").write_text(lines)
    assert len(atento.evaluate(model, tmp_path / "a.csv", reading={"format": "conll"})["entity-f1"].segments) == 2
    fails(UsageError, "`format` must be tsv, ", atento.evaluate, model, tmp_path / "a.csv", reading={"format": "connl"})


@pytest.mark.parametrize(
    ("task", "columns"),
    [
        ("embedding", {"text": 0, "pair": 1, "score": 2}),
        ("classification", {"text": 0, "label": 1}),
        ("ranking", {"query": 0, "positive": 1, "negative": 2}),
    ],
)
def test_numbers_of_columns_in_another_order_are_kept(tmp_path: Path, task: str, columns: dict[str, int]) -> None:
    """A table of three columns has a score or a hard negative behind two texts, or a column that is not read."""
    (tmp_path / "a.tsv").write_text("a\tb\t1\n")
    recipe = load_recipe({"task": task, "data": {"train": {"file": "a.tsv", **columns}}}, environment={}).recipe
    model: Any = SimpleNamespace(config={"task": task} | facts_of_data(recipe, Split({}, "")))
    assert columns_learned(model, str(tmp_path / "a.tsv"), task) == columns


@pytest.mark.parametrize("columns", ["text", "text=1,etiqueta=0", "text="])
def test_wrong_columns_are_refused(server: ForkServer, run: Path, columns: str) -> None:
    done = server.run("evaluate", str(run), str(run.parent / "train.csv"), "--columns", columns, cwd=run.parent)
    assert done.status == 2 and "olumns" in done.stderr and done.stderr.count("\n") == 1


def test_a_table_given_to_a_command_that_reads_lines_warns(server: ForkServer, run: Path) -> None:
    embed, score = "embed run train.csv --out vectors.npy", "score bleu train.csv train.csv"  # references in a table
    for command in ("classify run train.csv", embed, score, "tokenizer info run train.csv"):
        done = server.run(*command.split(), cwd=run.parent)
        assert done.status == 0 and done.stderr.count("train.csv is named .csv and read as plain text") == 1, command
    (run.parent / "lines.tsv").write_text("o gato dorme\n")
    assert "plain text" not in server.run("classify", str(run), "lines.tsv", cwd=run.parent).stderr
    (run.parent / "two.tsv").write_text("o gato dorme\tação\n")
    assert "two.tsv is named .tsv" in server.run("classify", str(run), "two.tsv", cwd=run.parent).stderr
    (run.parent / "two.csv").write_text("o gato dorme\tação\n")
    for name, warned in (("two.csv", True), ("two.tsv", False)):  # what reads two texts a line, reads a .tsv file
        assert ("read as plain text" in server.good("similarity", str(run), name, cwd=run.parent).stderr) == warned


def test_a_table_of_a_brazilian_spreadsheet_needs_no_second_try(server: ForkServer, tmp_path: Path) -> None:
    """Every command reads it by what its bytes show, and says so in one line."""
    kinds = [("Não gostei; demorou três dias", "péssimo"), ("Adorei o serviço, é rápido", "ótimo")] * 20
    lines = [f'{number};"{text} {number}";{label};4,5' for number, (text, label) in enumerate(kinds)]
    (tmp_path / "a.csv").write_bytes("\r\n".join(["id;avaliação;classe;nota", *lines, ""]).encode("windows-1252"))
    source = {"file": "a.csv", "text": "avaliação", "label": "classe"}
    tiny = {"tokenizer": WORDS, "network": NETWORK, "training": {"steps": 2}}
    recipe = {"task": "classification", "data": {"train": source, "test": source}, **tiny}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
    for command in (
        *("config check r.yaml", "data stats r.yaml --no-tokens", "baseline r.yaml"),
        *("train r.yaml --out run", "evaluate run a.csv", "classify run a.csv --columns avaliação"),
        *("data deduplicate a.csv b.csv --text avaliação", "tokenizer train a.csv --out spm --columns avaliação"),
    ):
        done = server.good(*command.split(), cwd=tmp_path)
        said = 'a.csv: read with `encoding: "windows-1252"`, `delimiter: ";"`, as found in the file'
        assert done.stderr.count(said) == done.stderr.count("as found") == 1, (command, done.stderr)
    for command in ("recipes new a.csv --task classification --out new.yaml", "train new.yaml training.steps=2"):
        done = server.good(*command.split(), cwd=tmp_path)
    done = server.run("config", "check", "r.yaml", "data.train.label=clase", cwd=tmp_path)
    refused(done, "column 'clase' is not in the header; did you mean 'classe'?")
