"""`atento recipes new`: tables of many shapes, and the recipe that each gets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import AtentoWarning
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import read_records
from atento.runs.prepare import read_data
from atento.runs.run_tokenizer import tokenizer_of_columns
from test_recipes_cli import here, refused, run

__all__ = ["here"]  # the fixture of every test


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
NEW: dict[str, tuple[str, str | bytes, str | None, dict[str, Any]]] = {
    # file, content, --task, and what the recipe says
    "sentiment of a Brazilian spreadsheet": (
        "a.csv",
        _table("avaliação|classe", *(row.rpartition("|")[0] for row in _REVIEW_ROWS)).encode("windows-1252"),
        None,
        CLASSES | {"text": "avaliação", "label": "classe", "encoding": "windows-1252", "delimiter": ";"},
    ),
    "scores with decimal commas": (
        "a.csv", _table("Texto|Nota", *_SCORES), None, _COMMA | {"text": "Texto", "score": "Nota"}
    ),
    "scores without a header": ("a.csv", _table(None, *_SCORES), None, _COMMA | {"text": 0, "score": 1}),
    "one of two tasks": (
        "a.csv", _table("avaliação|classe|nota", *_REVIEW_ROWS), "regression",
        _COMMA | {"text": "avaliação", "score": "nota"},
    ),
    "ids and dates": (
        "a.tsv",
        _table("id|data|texto|rótulo", "{}|2024-01-02|um gato {}|sim", "{}|03/02/2024|um cão {}|não", sign="\t"),
        None, CLASSES | {"text": "texto", "label": "rótulo"},
    ),
    "numbers as labels": (
        "a.csv", _table("sentence|label", "um gato dorme {}|0", "um cão ladra {}|1", sign=","), None,
        CLASSES | {"text": "sentence", "label": "label"},
    ),
    "stars of reviews": (
        "a.jsonl",
        _lines(*({"id": "r{}", "review": f"{text} {{}}", "stars": n + 1} for n, (text, _, _) in enumerate(REVIEWS))),
        None, CLASSES | {"text": "review", "label": "stars"},
    ),
    "objects in objects": (
        "a.jsonl",
        _lines(*({"meta": {"classe": label}, "dados": {"texto": f"{text} {{}}"}} for text, label, _ in REVIEWS)),
        None, CLASSES | {"text": "dados.texto", "label": "meta.classe"},
    ),
    "pairs with a header": (
        "a.tsv", _table("en|pt", *_SENTENCES, sign="\t"), None, PAIRS | {"source": "en", "target": "pt"}
    ),
    "pairs without a header": (
        "a.tsv", _table(None, *_SENTENCES, sign="\t"), None, PAIRS | {"source": 0, "target": 1}
    ),
    "summaries": (
        "a.jsonl",
        _lines({"dialogue": "Um gato dorme {}, e um cão ladra sem parar, todos os dias.", "summary": "Gato {} e cão."}),
        None, {"task": "summarization", "source": "dialogue", "target": "summary"},
    ),
    "pairs with scores": (
        "a.csv", _table(None, *(f"{row}|{n}.5" for n, row in enumerate(_SENTENCES)), sign=","), None,
        SCORES | {"text": 0, "pair": 1, "score": 2},
    ),
    "sentences of two columns": (
        "a.tsv",
        _table("pair_ID|sentence_A|sentence_B|a_label", *(f"{{}}|{row}|{len(row)}x" for row in _SENTENCES), sign="\t"),
        None, CLASSES | {"text": "sentence_A", "pair": "sentence_B", "label": "a_label"},
    ),
    "words and tags": ("a.txt", "Ana B-PER\nvive O\n\nbom O\ndia O\n\n" * 9, None, TAGS | {"format": "conll"}),
    "lists of words and tags": (
        "a.jsonl", _lines({"tokens": ["Ana", "vive"], "ner_tags": ["B-PER", "O"]}), None,
        TAGS | {"tokens": "tokens", "tags": "ner_tags"},
    ),
    "SQuAD": ("a.json", json.dumps(SQUAD), None, ANSWERS),
    "questions": (
        "a.jsonl",
        _lines({"pergunta": "Quem?", "contexto": "O gato.", "respostas": {"text": ["O gato"], "answer_start": [0]}}),
        None, ANSWERS | {"question": "pergunta", "context": "contexto", "answers": "respostas"},
    ),
    "one column": (
        "a.csv", _table("texto", "um gato dorme {}", '"um cão, ladra {}"'), None, TEXTS | {"text": "texto"}
    ),
    "a text file": ("a.txt", "um gato dorme\num cão ladra\n" * 9, None, TEXTS),
}  # fmt: skip


@pytest.mark.parametrize("name", NEW)
def test_a_new_recipe_says_what_the_file_holds(name: str) -> None:
    """It loads, its records are read, and every line that is no path of keys has its reason."""
    file, content, task, expected = NEW[name]
    Path("data").mkdir()
    Path("data", file).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run("recipes", "new", f"data/{file}", "--out", "r.yaml", *(["--task", task] if task else []))
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
