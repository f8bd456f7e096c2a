"""`atento recipes` and `atento config`: what they print where, what they refuse, a new recipe for a table."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from atento.base.errors import AtentoWarning, RecipeError, UsageError
from atento.config.presets import PRESETS
from atento.config.reading.initial_keys import INHERITED
from atento.config.reading.loading import load_recipe, recipe_schema
from atento.config.reading.recipe_layers import shipped, shipped_text
from atento.config.reading.sizes_by_data import FITTED
from atento.config.recipe import SourceConfig, recipe_to_dict
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import read_records
from atento.runs.prepare import read_data
from atento.runs.run_tokenizer import tokenizer_of_columns
from atento_cli.commands.config import config_app
from atento_cli.commands.recipes import recipes_app
from atento_cli.completion import recipe_summary

NAME = "micro-world-en-pt"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, stdin: str | None = None) -> Result:
    app = typer.Typer()
    app.add_typer(config_app, name="config")
    app.add_typer(recipes_app, name="recipes")
    return CliRunner().invoke(app, list(arguments), input=stdin)


def refused(*arguments: str) -> UsageError:
    error = run(*arguments).exception
    assert isinstance(error, UsageError) and error.exit_status == 2
    return error


def test_recipes_list_show_config_of_standard_input_and_an_example_in_each_help() -> None:
    lines = run("recipes", "list").stdout.splitlines()
    assert len(lines) == len(shipped())
    assert any(line.startswith(NAME) and "  English to Portuguese" in line for line in lines)
    records = json.loads(run("recipes", "list", "--json").stdout)
    assert [record["name"] for record in records] == sorted(shipped())
    assert all(record["description"] for record in records)
    assert recipe_summary("\n#\n#  For a lecture. \n# more\ntask: x\n") == "For a lecture."
    assert recipe_summary("task: x\n") == ""
    assert run("recipes", "show", NAME).stdout == shipped_text(NAME)
    assert "did you mean" in str(refused("recipes", "show", "micro-world-en-p"))
    assert run("config", "check", "-", stdin="task: translation\ndata: {train: {world: train}}\n").stdout == "ok\n"
    error = run("config", "check", "-", stdin="task: 5\n").exception
    assert str(error).startswith("standard input:1:1: data is missing")
    assert json.loads(run("config", "schema").stdout) == json.loads(json.dumps(recipe_schema()))
    for command in ("recipes list", "recipes show", "recipes copy", "config check", "config show", "config schema"):
        done = run(*command.split(), "--help")
        assert done.exit_code == 0 and f"Example: atento {command}" in " ".join(done.stdout.split())


def test_recipes_copy(tmp_path: Path) -> None:
    done = run("recipes", "copy", NAME, "my.yaml")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "my.yaml\n", "next: atento config check my.yaml\n")
    copied = Path("my.yaml").read_bytes()
    assert copied == shipped_text(NAME).encode()
    assert load_recipe("my.yaml", {"name": NAME}, environment={}).recipe == load_recipe(NAME, environment={}).recipe
    Path("my.yaml").write_text("mine", encoding="utf-8")
    assert str(refused("recipes", "copy", NAME, "my.yaml")) == "my.yaml exists; --force replaces it"
    assert Path("my.yaml").read_text(encoding="utf-8") == "mine"
    assert run("recipes", "copy", NAME, "my.yaml", "--force").exit_code == 0
    assert Path("my.yaml").read_bytes() == copied
    Path("folder").mkdir()
    assert run("recipes", "copy", NAME, "folder").stdout == f"folder/{NAME}.yaml\n"
    assert str(refused("recipes", "copy", NAME, "no/folder.yaml")).startswith("no/folder.yaml cannot be written: ")
    assert isinstance(refused("recipes", "copy", "nothing", "x.yaml"), RecipeError) and not Path("x.yaml").exists()


def test_config_check_and_show() -> None:
    done = run("config", "check", NAME)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "ok\n", "")
    done = run("config", "check", NAME, "training.epochs=2", "decoding.beam=2")
    assert done.stdout == "ok\n" and done.stderr.startswith("warning: micro-world-en-pt.yaml:")
    assert "training.steps has no effect" in done.stderr
    absent = run("config", "check", NAME, "init=micro-world-en-p", "teacher={model: [a/b, ./gone, micro-world-en-pt]}")
    assert absent.exit_code == 0 and absent.stdout == "ok\n"
    said = [line for line in absent.stderr.splitlines() if "no model at" in line]
    assert len(said) == 2 and said[1].startswith("warning: teacher: no model at gone: ")
    assert said[0].startswith("warning: init: no model at micro-world-en-p: give ") and "did you mean" in said[0]
    record = json.loads(run("config", "check", NAME, "training.epochs=2", "--json").stdout)
    assert record["ok"] is True and record["name"] == NAME and len(record["warnings"]) == 1
    assert str(refused("config", "check", NAME, "training.steps=many")).startswith("command line: training.steps must")
    Path("my.yaml").write_text("task: translation\ndata: {train: {world: train}}\ntraning: {}\n", encoding="utf-8")
    assert str(refused("config", "check", "my.yaml")).startswith("my.yaml:3:1: unknown key 'traning'; did you mean")
    done = run("config", "show", NAME, "training.steps=7", "~training.seed")
    assert done.exit_code == 0 and done.stderr == ""
    Path("shown.yaml").write_text(done.stdout, encoding="utf-8")
    wanted = load_recipe(NAME, ["training.steps=7", "~training.seed"], environment={}).recipe
    assert load_recipe("shown.yaml", environment={}).recipe == wanted
    annotated = run("config", "show", NAME, "training.steps=7", "--origins").stdout
    assert any(line.split() == ["steps:", "7", "#", "command", "line"] for line in annotated.splitlines())
    record = json.loads(run("config", "show", NAME, "training.steps=7", "--json").stdout)
    wanted = load_recipe(NAME, ["training.steps=7"], environment={})
    assert record["recipe"] == json.loads(json.dumps(recipe_to_dict(wanted.recipe)))
    assert record["origins"]["training.steps"] == "command line"
    assert record["folder"] == str(Path.cwd()) and record["warnings"] == []


@pytest.mark.parametrize("name", sorted(shipped()))
def test_what_show_prints_is_the_recipe_again(tmp_path: Path, name: str) -> None:
    printed_again(tmp_path, name)


def test_what_show_prints_leaves_open_what_the_data_decide(tmp_path: Path) -> None:
    """Every task by itself, and every preset: the sizes that training chooses are named, and not written."""
    fields = "source: source, target: target", "text: text", "text: text, label: label", "text: text, pair: pair"
    fields += ("text: text, score: score", "tokens: tokens, tags: tags")
    seen = {"tasks": set(), "presets": set()}
    for task, preset in [*((task, None) for task in TASKS), *((None, preset) for preset in PRESETS)]:
        for owner in [task] if task else TASKS:
            for columns in fields if task else fields[:2]:
                text = f"task: {owner}\ndata: {{train: {{file: a.jsonl, {columns}}}}}\n"
                text += f"network: {{preset: {preset}}}\n" if preset else ""
                (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
                try:
                    load_recipe(str(tmp_path / "x.yaml"))
                except RecipeError:
                    continue
                printed_again(tmp_path, "x.yaml")
                seen["presets" if preset else "tasks"].add(preset or task)
                break
            if preset in seen["presets"]:
                break
    assert seen["presets"] == set(PRESETS) and len(seen["tasks"]) > 10


def printed_again(folder: Path, name: str) -> None:
    printed = run("config", "show", name)
    assert printed.exit_code == 0, printed.exception
    (folder / "y.yaml").write_text(printed.stdout, encoding="utf-8")
    loaded, again = load_recipe(name), load_recipe(str(folder / "y.yaml"))
    open_keys = [{key for key, origin in of.origins.items() if origin in (FITTED, INHERITED)} for of in (loaded, again)]
    assert open_keys[0] == open_keys[1], name
    assert replace(again.recipe, name=loaded.recipe.name) == loaded.recipe, name


REVIEWS = [
    ("Não gostei; demorou três dias", "péssimo", 1.5),
    ("Adorei o serviço, é rápido", "ótimo", 4.5),
    ("Nem bom, nem mau, às vezes", "médio", 3.0),
]
QUESTION = {"id": "1", "question": "Quem dorme?", "answers": [{"text": "O gato", "answer_start": 0}]}
SQUAD = {"data": [{"title": "a", "paragraphs": [{"context": "O gato dorme.", "qas": [QUESTION]}] * 3}]}


def _table(header: str | None, *rows: str, sign: str = ";") -> str:
    lines = [line.replace("{}", str(n)) for n, line in enumerate([*rows] * 12)]
    return "\n".join([*([header] if header else []), *lines]).replace("|", sign)


def _lines(*records: object) -> str:
    lines = [json.dumps(record, ensure_ascii=False) for record in records] * 12
    return "\n".join(line.replace("{}", str(n)) for n, line in enumerate(lines))


_REVIEW_ROWS = [f'"{text} {{}}"|{label}|{str(score).replace(".", ",")}' for text, label, score in REVIEWS]
_SCORES = [f"{row.split('|')[0]}|{row.split('|')[2]}" for row in _REVIEW_ROWS]
_SENTENCES = ("{} The cat sleeps here.|{} O gato dorme aqui.", "{} A dog ran away.|{} Um cão fugiu.")
CLASSES, TAGS, TEXTS, SCORES, PAIRS, ANSWERS = (
    {"task": task}
    for task in ("classification", "tagging", "language-modeling", "regression", "translation", "question-answering")
)
_COMMA = SCORES | {"decimal": ",", "delimiter": ";"}
NEW: dict[str, tuple[str, str | bytes, dict[str, Any]]] = {
    # file, content, and what the recipe says
    "sentiment of a Brazilian spreadsheet": (
        "a.csv",
        _table("avaliação|classe", *(row.rpartition("|")[0] for row in _REVIEW_ROWS)).encode("windows-1252"),
        CLASSES | {"text": "avaliação", "label": "classe", "encoding": "windows-1252", "delimiter": ";"},
    ),
    "decimal commas": ("a.csv", _table("Texto|Nota", *_SCORES), _COMMA | {"text": "Texto", "score": "Nota"}),
    "scores without a header": ("a.csv", _table(None, *_SCORES), _COMMA | {"text": 0, "score": 1}),
    "tasks": ("a.csv", _table("avaliação|classe|nota", *_REVIEW_ROWS), _COMMA | {"text": "avaliação", "score": "nota"}),
    "ids and dates": (
        "a.tsv",
        _table("id|data|texto|rótulo", "{}|2024-01-02|um gato {}|sim", "{}|03/02/2024|um cão {}|não", sign="\t"),
        CLASSES | {"text": "texto", "label": "rótulo"},
    ),
    "numbers as labels": (
        "a.csv", _table("sentence|label", "um gato dorme {}|0", "um cão ladra {}|1", sign=","),
        CLASSES | {"text": "sentence", "label": "label"},
    ),
    "stars of reviews": (
        "a.jsonl",
        _lines(*({"id": "r{}", "review": f"{text} {{}}", "stars": n + 1} for n, (text, _, _) in enumerate(REVIEWS))),
        CLASSES | {"text": "review", "label": "stars"},
    ),
    "objects in objects": (
        "a.jsonl",
        _lines(*({"meta": {"classe": label}, "dados": {"texto": f"{text} {{}}"}} for text, label, _ in REVIEWS)),
        CLASSES | {"text": "dados.texto", "label": "meta.classe"},
    ),
    "pairs with a header": ("a.tsv", _table("en|pt", *_SENTENCES, sign="\t"), PAIRS | {"source": "en", "target": "pt"}),
    "pairs without a header": ("a.tsv", _table(None, *_SENTENCES, sign="\t"), PAIRS | {"source": 0, "target": 1}),
    "summaries": (
        "a.jsonl",
        _lines({"dialogue": "Um gato dorme {}, e um cão ladra sem parar, todos os dias.", "summary": "Gato {} e cão."}),
        {"task": "summarization", "source": "dialogue", "target": "summary"},
    ),
    "pairs with scores": (
        "a.csv", _table(None, *(f"{row}|{n}.5" for n, row in enumerate(_SENTENCES)), sign=","),
        SCORES | {"text": 0, "pair": 1, "score": 2},
    ),
    "sentences of two columns": (
        "a.tsv",
        _table("pair_ID|sentence_A|sentence_B|a_label", *(f"{{}}|{row}|{len(row)}x" for row in _SENTENCES), sign="\t"),
        CLASSES | {"text": "sentence_A", "pair": "sentence_B", "label": "a_label"},
    ),
    "words and tags": ("a.txt", "Ana B-PER\nvive O\n\nbom O\ndia O\n\n" * 9, TAGS | {"format": "conll"}),
    "lists of words and tags": (
        "a.jsonl", _lines({"tokens": ["Ana", "vive"], "ner_tags": ["B-PER", "O"]}),
        TAGS | {"tokens": "tokens", "tags": "ner_tags"},
    ),
    "SQuAD": ("a.json", json.dumps(SQUAD), ANSWERS),
    "questions": (
        "a.jsonl",
        _lines({"pergunta": "Quem?", "contexto": "O gato.", "respostas": {"text": ["O gato"], "answer_start": [0]}}),
        ANSWERS | {"question": "pergunta", "context": "contexto", "answers": "respostas"},
    ),
    "one column": ("a.csv", _table("texto", "um gato dorme {}", '"um cão, ladra {}"'), TEXTS | {"text": "texto"}),
    "a text file": ("a.txt", "um gato dorme\num cão ladra\n" * 9, TEXTS),
}  # fmt: skip


@pytest.mark.parametrize("name", NEW)
def test_a_new_recipe_says_what_the_file_holds(name: str) -> None:
    """It loads, its records are read, and every line that is no path of keys has its reason."""
    file, content, expected = NEW[name]
    Path("data").mkdir()
    Path("data", file).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run("recipes", "new", f"data/{file}", "--out", "r.yaml", *["--task", "regression"] * (name == "tasks"))
    assert done.exit_code == 0, done.exception
    loaded = load_recipe(Path("r.yaml"))
    (source,) = loaded.recipe.data.train
    keys = {key: value for key, value in vars(source).items() if value != getattr(SourceConfig(), key)}
    assert {"task": loaded.recipe.task} | keys == {"file": f"data/{file}"} | expected
    assert loaded.warnings == [] and not [key for key in loaded.later() if not key.startswith("training.epochs")]
    records = read_records(source, TASKS[loaded.recipe.task].fields, skip_bad=loaded.recipe.data.skip_bad)
    different = len({str(record) for record in records}) > 10
    assert min(1, different) <= loaded.recipe.data.held_out <= max(1, len(records) // 10)
    reasons = [line for line in Path("r.yaml").read_text(encoding="utf-8").splitlines() if not line.endswith(":")]
    assert all("# " in line for line in reasons), reasons
    train = read_data(loaded.recipe, loaded.folder, lambda line: None).train
    assert tokenizer_of_columns(loaded.recipe, loaded.folder, train.texts, lambda line: None).notes == ()


def test_what_a_file_leaves_open_is_listed() -> None:
    for files, said in (
        ({"a.csv": _table("avaliação|classe|nota", *_REVIEW_ROWS)}, "'classe' .* the label, 'nota' .* the score"),
        ({"a.tsv": _table("x|y|label", *(f"{row}|{len(row)}" for row in _SENTENCES), sign="\t")}, "column is `text`"),
        ({"a.csv": ""}, "a.csv: (holds no|is empty)"),
        ({"a.csv": "\n\n"}, "a.csv: holds no record"),
        ({"a.jsonl": ""}, "a.jsonl: holds no record"),
        ({"a.txt": ""}, "a.txt: holds no text"),
        ({"a.csv": "id,data\n1,2024-01-02\n2,2024-01-03\n"}, r"no column of texts; its columns are 'id' \(says"),
        ({"a.txt": "um gato\n", "b.txt": "a cat\nanother\n"}, "has 1 lines and"),
        ({"a.tmx": "x"}, "not XML"),
        (
            {"a.csv": _table("a,b;c;d", "O filme é bom, e longo, nº {}|Positivo")},
            "a.csv:2: 3 columns.* comma shows 2 .* line 1 and 3 .* line 2, a semicolon shows 3 .* line 1 and 2 ",
        ),
        ({"a.csv": _table("id,b;c;d", "{}, bom, e longo|Positivo")}, "a.csv:2: 3 columns, and line 1 has 2; 12 of 13"),
        ({"a.csv": _table("texto", "Bom, e longo; nº {}")}, "a.csv:2: 2 columns, and line 1 has 1; 12 of 13 records"),
        ({"a.csv": _table("texto|rótulo", '"Um "gato" {}"|sim')}, "a.csv:2: .*; 12 of 13 records are bad"),
        ({"a.csv": "Texto;Rótulo\n"}, "a.csv: holds one line alone, .*Texto.* and no record below it"),
        ({"a.jsonl": _lines({"text": "um gato {}", "label": "a"}, {"text": 1, "label": []})}, "a.jsonl:2: .* are bad"),
    ):
        for name, content in files.items():
            Path(name).write_text(content, encoding="utf-8")
        error = refused("recipes", "new", *files, "--out", "r.yaml")
        assert re.search(said, str(error)) and not Path("r.yaml").exists()


def test_a_few_bad_records_are_left_out_labels_named_and_too_few_not_held_out() -> None:
    rows = _table("texto|rótulo", *("Um gato {}|sim", "Um cão {}|não") * 5, sign=",")
    Path("a.csv").write_text(f"{rows}\nUm gato,e outro,sim\n", encoding="utf-8")
    assert "skip_bad: true  " in run("recipes", "new", "a.csv").stdout
    rows = ("Um gato {}|sim", "Um cão {}|não", "Um rato {}|Sim")
    Path("a.csv").write_text(_table("texto|rótulo", *rows), encoding="utf-8")
    with pytest.warns(AtentoWarning, match="'Sim' and 'sim' are two labels here"):
        assert run("recipes", "new", "a.csv").exit_code == 0
    Path("a.csv").write_text("text,label\num gato,sim\num gato,sim\num cão,não\num cão,não\n", encoding="utf-8")
    assert run("recipes", "new", "a.csv", "--task", "classification", "--out", "r.yaml").exit_code == 0
    assert load_recipe(Path("r.yaml")).recipe.data.held_out == 0


def test_on_a_terminal_a_new_recipe_asks_and_its_paths_begin_at_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.csv").write_text(_table("avaliação|classe|nota", *_REVIEW_ROWS), encoding="utf-8")
    monkeypatch.setattr("atento_cli.commands.recipes._asks", lambda: True)
    done = run("recipes", "new", "a.csv", stdin="7\n2\n")
    assert done.exit_code == 0 and "task: regression" in done.stdout
    assert "which task? 1 classification; 2 regression" in done.stderr
    for name, text in (("a.en", "a cat\n"), ("a.pt", "um gato\n")):
        Path(name).write_text(text * 12, encoding="utf-8")
    Path("recipes").mkdir()
    assert run("recipes", "new", "a.en", "a.pt", "--out", "recipes/r.yaml").exit_code == 0
    loaded = load_recipe(Path("recipes/r.yaml"))
    (source,) = loaded.recipe.data.train
    assert source.source == "../a.en"
    assert len(read_records(source, TASKS["translation"].fields, loaded.folder)) == 12
    assert "exists; --force" in str(refused("recipes", "new", "a.en", "a.pt", "--out", "recipes/r.yaml"))
    assert "unknown task 'sentiment'" in str(refused("recipes", "new", "a.en", "--task", "sentiment"))
