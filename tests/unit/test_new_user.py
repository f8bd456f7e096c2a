"""What a new user types: names of other tools, pairs, pictures, texts in place of files; each answered in one line."""

import inspect
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import atento
from atento.base.errors import AtentoWarning, CapabilityError, DataError, MissingPartError, RecipeError, UsageError
from atento.config.reading.dumping import explain
from atento.config.reading.loading import load_recipe
from atento.config.recipe import READING, SourceConfig
from atento.config.sections.decoding import DecodingOptions
from atento.config.tables import foreign
from atento.config.tables.renamed_keys import elsewhere
from atento.config.tables.tasks import OTHER_NAMES, TASKS, scored
from atento.data.records.labelled_data import source_of
from atento.data.records.reader import read_records
from atento.evaluation import calibrate, evaluate, task_of
from atento.metrics import chrf
from atento.model import Model, load
from atento.networks import build_network, presets
from atento.runs.model_config import facts_of_data
from atento.runs.train import train
from atento.tasks.regression import numbers_of
from atento.tasks.text_outputs import texts_of_model
from atento_cli.lines import file_lines
from atento_cli.main import COMMANDS, application
from atento_cli.messages import CommandLineError, sentence
from atento_cli.output_paths import output_file
from atento_cli.search.run_search import search
from failing import fails

RECIPE: dict[str, Any] = {
    "task": "translation",
    "tokenizer": {"kind": "bpe", "vocab_size": 340},
    "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "norm": "pre"},
    "training": {"steps": 2, "batch_tokens": 200, "precision": "float32"},
    "decoding": {"beam": 1, "max_new_tokens": 4},
}


def invoke(*arguments: str) -> Result:
    command = application(arguments[0] if arguments[0] in COMMANDS else None)
    return CliRunner().invoke(command, list(arguments), standalone_mode=False)


def test_every_option_of_another_tool_or_without_its_section_or_command_leads_to_a_key() -> None:
    for theirs in foreign.KEYS:
        ours = foreign.KEYS[theirs]
        fails(
            RecipeError, f"did you mean {ours.replace('.', '[.]')}", load_recipe, "micro-world-en-pt", [f"{theirs}=3"]
        )
        with pytest.raises(
            RecipeError, match=f"did you mean .*{ours.replace('.', '[.]') if theirs != 'alpha' else ''}"
        ):
            explain(theirs)  # `alpha` is a key of LoRA too
        with pytest.raises(RecipeError) as error:  # the key itself is known, whatever its value
            load_recipe("micro-world-en-pt", [f"{ours}=[[]]"])
        assert "unknown key" not in str(error.value)
    for key, ours in (("steps", "training.steps"), ("max_len", "data.max_len"), ("beam", "decoding.beam")):
        fails(RecipeError, f"unknown key '{key}'; did you mean {ours}", load_recipe, "micro-world-en-pt", [f"{key}=3"])
        assert elsewhere("training", "steps") is None
    assert said("train", "a.yaml", "--epochs", "3").endswith("it is a key of the recipe: training.epochs=VALUE")
    assert said("train", "a.yaml", "--num-train-epochs", "3").endswith("training.epochs=VALUE")
    assert "did you mean --beam?" in said("translate", "MODEL", "--num-beams", "4")
    fails(RecipeError, "a recipe is a YAML file that names the data", load_recipe, "sst2")
    for key in foreign.OPTIONS:
        assert foreign.OPTIONS[key].split()[0] in CliRunner().invoke(application("train"), ["train", "--help"]).output
        for typed in (key, f"training.{key}"):
            with pytest.raises(RecipeError, match=f"'{key}' is no key of a recipe, but an option of the command: --"):
                load_recipe("micro-world-en-pt", [f"{typed}=1"])


def test_every_task_command_and_flag_of_another_tool_leads_to_one_of_ours() -> None:
    for theirs in OTHER_NAMES:
        assert OTHER_NAMES[theirs] in TASKS
        with pytest.raises(RecipeError, match=f"unknown task {theirs!r}; did you mean '{OTHER_NAMES[theirs]}'"):
            load_recipe({"task": theirs, "data": {"train": "a.tsv"}})
    for theirs in foreign.COMMANDS:
        assert foreign.COMMANDS[theirs].split()[0] in COMMANDS  # `classify --explain` is a command and its option
        assert f"did you mean '{foreign.COMMANDS[theirs]}'?" in said(theirs)
    for theirs in foreign.FLAGS:
        ours = foreign.FLAGS[theirs]
        assert f"did you mean {ours}?" in said("translate" if ours != "--out" else "train", "MODEL", theirs, "3")


def said(*arguments: str) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, CommandLineError), result
    return sentence(result.exception)


def test_a_model_of_pairs_names_the_flag_is_pickled_by_its_folder_and_shows_every_decoding_option(model: Model) -> None:
    class Pairs:
        config = {"pairs": True}  # noqa: RUF012

    fails(UsageError, "--pairs", texts_of_model, Pairs(), ["a"])
    again = pickle.loads(pickle.dumps(model))
    assert again.path == model.path and again.translate(["a"]) == model.translate(["a"])
    bare = Model(build_network(presets.gpt2(vocab_size=9, d_model=8, d_ff=8, n_heads=1, n_layers=1)), None, {}, None)
    fails(UsageError, "pickled by its folder", pickle.dumps, bare)
    for verb in ("translate", "summarize", "generate"):
        names = set(inspect.signature(getattr(Model, verb)).parameters)
        assert set(DecodingOptions.__annotations__) <= names and "options" not in names


def test_a_text_in_place_of_a_file_says_how_to_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my file.txt").write_text("a\n", encoding="utf-8")
    assert file_lines("my file.txt") == ["a"]
    fails(DataError, "no such file", file_lines, "none.txt")
    monkeypatch.setattr(sys, "argv", ["atento", "translate", "runs/a b", "I see a cat.", "--beam", "3"])
    with pytest.raises(UsageError, match=r"is no file.*echo 'I see a cat\.' \| atento translate 'runs/a b' --beam 3$"):
        file_lines("I see a cat.")
    for text in ("I see a cat " * 9, "I see a cat " * 99):  # the second is too long for the name of a file
        fails(UsageError, r"echo 'TEXT' \| atento", file_lines, text)
    asked = ["answer", "runs/qa", "--question", "Who sees?"]
    for given, hint in ((["--context", "I see a cat."], "--context -"), (["--context=I see a cat."], "--context=-")):
        monkeypatch.setattr(sys, "argv", ["atento", *asked, *given])
        with pytest.raises(UsageError) as refused:
            CliRunner().invoke(application("answer"), [*asked, *given], standalone_mode=False, catch_exceptions=False)
        hint = f"echo 'I see a cat.' | atento answer runs/qa --question 'Who sees?' {hint}"
        assert str(refused.value).endswith(f"to give a text: {hint}")


@pytest.mark.parametrize("task", [name for name, spec in TASKS.items() if spec.records == "texts"])
def test_tasks_of_texts_are_measured_by_perplexity(task: str) -> None:
    if task in scored():
        pytest.skip("has metrics")
    fails(CapabilityError, "atento perplexity MODEL FILE", task_of, None, task)


def test_wrong_answers_are_counted_with_the_way_out(tmp_path: Path) -> None:
    """As 29 of the answers of FaQuAD are."""
    row = '{"question": "q", "context": "ab cd", "answers": {"text": ["cd"], "answer_start": [%d]}}\n'
    (tmp_path / "a.jsonl").write_text(row % 3 + row % 2 + row % 3 + row % 1, encoding="utf-8")
    fields = TASKS["question-answering"].fields
    with pytest.raises(DataError) as error:
        read_records(SourceConfig(file="a.jsonl"), fields, tmp_path)
    assert "a.jsonl:2" in str(error.value) and "it is only at 3, one of 2 such records" in str(error.value)
    assert str(error.value).endswith("(`data.skip_bad: true` or --skip-bad leaves it out)")
    assert len(read_records(SourceConfig(file="a.jsonl"), fields, tmp_path, skip_bad=True)) == 2


@pytest.mark.parametrize("command", ["translate", "generate"])
def test_a_line_too_long_is_named_and_skipped(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atento.tasks.task_model._LONGEST", 1)
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(f"cat\n{'cat ' * 5000}\ncat\n", encoding="utf-8")
    name = {"translate": "micro-world-en-pt", "generate": "micro-world-lm"}[command]
    arguments = [command, name, "a.txt", "--max-new-tokens", "1", "--greedy"]
    done = invoke(*arguments)
    assert isinstance(done.exception, DataError) and str(done.exception).startswith("a.txt:2: the text has "), done
    done = invoke(*arguments, "--skip-bad")
    assert done.stdout.count("\n") == 3 and done.stdout.split("\n")[1] == "" and "1 bad line skipped" in done.stderr
    Path("a.txt").write_bytes(b"cat\n\xff\xfe\n\n")  # an empty prompt is continued, and a bad line is none
    for options in ([], ["--n-best", "1"], ["--stream"]):
        done = invoke(*arguments, "--skip-bad", *options)
        lines = done.stdout.split("\n")
        assert lines[1] == "" and (lines[2] == "") == (command == "translate") and len(lines) == 4, done


def test_a_warning_is_a_line_in_every_command_and_a_picture_needs_its_package(monkeypatch, tmp_path) -> None:
    """Not Python's two lines with the place in the code, also where nothing is computed."""

    def warns(*_: object, **__: object) -> None:
        warnings.warn("tags are read elsewhere", AtentoWarning, stacklevel=2)

    monkeypatch.setattr("atento_cli.convert.layouts.convert", warns)
    done = invoke("convert", "model", "--to", "atento", "--out", str(tmp_path / "out"))
    assert done.stderr == f"warning: tags are read elsewhere\nwrote {tmp_path / 'out'}\n", done
    # Every command checks its output by this function
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:  # of tests before this one
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for option in ("--confusion", "--out"):
        with pytest.raises(MissingPartError, match=r"needs matplotlib: .*\[plot\]"):
            output_file(tmp_path / "c.png", (".svg", ".png"), option)
    assert output_file(tmp_path / "c.svg", (".svg", ".png")).name == "c.svg"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A translator that was trained on a table of Excel, some rows of which are broken."""
    folder = tmp_path_factory.mktemp("trained")
    rows = "".join(f"olá {number};hello {number};x\r\n" for number in range(40)) + "broken\r\n"
    (folder / "a.csv").write_bytes(("pt;en;note\r\n" + rows).encode("latin-1"))
    source = {"file": str(folder / "a.csv"), "source": "en", "target": "pt"}
    data = {"train": [source | {"delimiter": ";", "encoding": "latin-1"}], "skip_bad": True}
    return load(train(RECIPE | {"data": data}, out=folder / "run", threads=1).folder)


def test_evaluate_reads_as_in_training_unless_said_otherwise_and_several_references(model, tmp_path) -> None:
    assert model.config["reading"] == {"delimiter": ";", "encoding": "latin-1", "skip_bad": True}
    (tmp_path / "b.csv").write_bytes("pt;en;note\r\nolá;hello;x\r\nbroken\r\n".encode("latin-1"))
    notes: list[str] = []
    scores = evaluate(model, tmp_path / "b.csv", say=notes.append, metrics="chrf")
    assert len(scores["chrf"].segments) == 1
    assert "read as in training: delimiter ';', encoding 'latin-1'" in notes and "1 bad record" in " ".join(notes)
    fails(DataError, r"b[.]csv:3", evaluate, model, tmp_path / "b.csv", skip_bad=False, metrics="chrf")
    (tmp_path / "c.csv").write_text("pt,en,note\nolá,hello,x\n", encoding="utf-8")
    assert len(evaluate(model, tmp_path / "c.csv", reading={}, metrics="chrf")["chrf"].segments) == 1
    (tmp_path / "d.csv").write_text("pt;en;note\nolá;hello;x\n", encoding="utf-8")
    notes.clear()
    scores = evaluate(model, tmp_path / "d.csv", reading={"encoding": "utf-8"}, say=notes.append, metrics="chrf")
    assert len(scores["chrf"].segments) == 1 and "read as in training: delimiter ';'" in notes
    with pytest.raises(UsageError, match="`reading` takes separator"):
        evaluate(model, tmp_path / "c.csv", reading={"delimeter": ","}, metrics="chrf")
    assert set(READING) <= set(SourceConfig.__dataclass_fields__) and facts_of_data is not None
    # Lines that are left out in the first two files are left out in the others
    for name, lines in {"src": ["a b", "", "c d"], "one": ["w", "", "x"], "two": ["w", "y", "z"]}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    paths = [tmp_path / name for name in ("src", "one", "two")]
    score = evaluate(model, paths, reading={}, metrics="chrf", skip_bad=False)["chrf"]
    assert score.value == pytest.approx(chrf(model.translate(["a b", "c d"]), [["w", "x"], ["w", "z"]]).value)
    (tmp_path / "two").write_text("w\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"two: has 1 line, and .*src:3 / .*one:3 needs line 3"):
        evaluate(model, paths, reading={}, metrics="chrf", skip_bad=False)
    assert source_of(paths[:2], "translation").source == str(paths[0])


def test_python_m_atento() -> None:
    done = subprocess.run([sys.executable, "-m", "atento", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"atento {atento.__version__}\n"), done.stderr


SMALL: dict[str, Any] = {
    "data": {},
    "tokenizer": {"kind": "word"},
    "network": {"d_model": 16, "d_ff": 16, "n_heads": 1, "n_layers": 1},
    "training": {"steps": 3, "batch_tokens": 16, "learning_rate": 1e-2, "precision": "float32", "baseline": False},
}
FILMS = [f"a {word} film {number}" for number in range(8) for word in ("good", "bad")]


def test_numbers_far_from_0_have_their_center_and_do_not_depend_on_their_scale(tmp_path: Path) -> None:
    data = {"train": {"text": FILMS, "score": [100.0 + (1 if "good" in text else -1) for text in FILMS]}}
    model = load(train(SMALL | {"task": "regression"}, data=data, out=tmp_path / "run", threads=1).folder)
    assert (model.network.config.heads[0].center, model.network.config.heads[0].spread) == (100, 1)
    assert numbers_of(model, ["a good film 1"])[0] == pytest.approx(100, abs=5)
    # The outputs are the same but for the factor
    outputs = []
    for factor in (1, 2**20):
        numbers = [factor * (1.0 + (len(text) + number) % 5) for number, text in enumerate(FILMS)]
        data = {"train": {"text": FILMS, "score": numbers}}
        run = train(SMALL | {"task": "regression"}, data=data, out=tmp_path / str(factor), threads=1)
        outputs.append([number / factor for number in numbers_of(load(run.folder), FILMS)])
    assert outputs[1] == pytest.approx(outputs[0], rel=1e-3) and len(set(outputs[0])) > 1


@pytest.mark.parametrize("factor", [1.0, 1e5, 1e-4, -3e20])
def test_numbers_of_any_size_are_learned(tmp_path: Path, factor: float) -> None:
    """The head gives numbers in units of the training data, of any size."""
    data = {"train": {"text": FILMS, "score": [factor * (1 + ("good" in text)) for text in FILMS]}}
    long = SMALL | {"task": "regression", "training": SMALL["training"] | {"steps": 60}}
    model = load(train(long, data=data, out=tmp_path / "run", threads=1).folder)
    (head,) = model.network.config.heads
    assert (head.center, head.spread) == pytest.approx((1.5 * factor, abs(factor) / 2))
    for text, right in (("a good film 1", 2), ("a bad film 2", 1)):
        assert numbers_of(model, [text])[0] / factor == pytest.approx(right, abs=0.2)
    data = {"train": {"text": FILMS[:2], "score": [1e40, 1]}}
    with pytest.raises(DataError, match=r"'score' must hold a finite number of less than 1e\+30: got 1e\+40"):
        train(SMALL | {"task": "regression"}, data=data, out=tmp_path / "no")


def test_texts_with_two_labels_are_counted_and_metrics_of_pairs_refused(tmp_path: Path) -> None:
    labels = ["pos" if "good" in text else "neg" for text in FILMS]
    records = {"text": [*FILMS, FILMS[0], FILMS[1]], "label": [*labels, "neg", "pos"]}
    run = train(SMALL | {"task": "classification"}, data={"train": records}, out=tmp_path / "run", threads=1)
    log = (run.folder / "train.log").read_text("utf-8")
    assert "warning: 2 texts stood before with another label; the first: data['train']:16" in log
    model = load(run.folder)
    for value in ("0.5", 1, True):
        with pytest.raises(UsageError, match=f"`abstain` is a precision between 0 and 1: got {value!r}"):
            model.classify(["x"], abstain=value)
    with pytest.raises(DataError, match=r"unknown label 'POS'; did you mean 'pos'\?; the model's labels"):
        calibrate(model, {"text": [*FILMS, *FILMS[:4]], "label": ["POS", "neg"] * 10})
    for metric, scores, why in (
        ("cosine-spearman", False, "pairs with scores, and these have none"),
        ("mrr", True, "pairs without scores"),
    ):
        pairs: dict[str, Any] = {"text": FILMS, "pair": FILMS[::-1]} | ({"score": [0.5] * len(FILMS)} if scores else {})
        recipe, data = SMALL | {"task": "embedding", "metrics": [metric]}, {"train": pairs, "valid": pairs}
        with pytest.raises(DataError, match=f"data.valid: the metric {metric} is for {why}; leave `metrics` out"):
            train(recipe, data=data, out=tmp_path / metric)
        assert not (tmp_path / metric / "checkpoints").exists()


def test_messages_about_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy search, a file that lies here and not beside the recipe, keys beside few labels, none mined."""
    with pytest.raises(RecipeError, match=r"unknown key 'greedy': greedy search is a beam of 1"):
        load_recipe(RECIPE | {"data": {"train": {"world": "train"}}, "decoding": {"greedy": True}})
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "r.yaml").write_text("task: language-modeling\ndata: {train: a.txt}\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("a\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"a.txt: no such file .*; paths of a recipe's data begin at its folder, not h"):
        train("recipes/r.yaml", out="run")
    few = {"task": "classification", "init": {"model": "micro-world-mlm", "few_shot": True}, "training": {"steps": 3}}
    labels = ["pos" if "good" in text else "neg" for text in FILMS]
    run = train(few | {"data": {}}, data={"train": {"text": FILMS, "label": labels}}, out="few", threads=1)
    log = (run.folder / "train.log").read_text("utf-8")
    assert "training.steps has no effect: init.few_shot reads" in log and "init.classifier" not in log
    (tmp_path / "pairs.tsv").write_text("query\tpositive\na\tb\n", encoding="utf-8")
    mine = ["data", "mine", "pairs.tsv", "--encoder", "micro-world-mlm", "--out", "t.jsonl", "--skip", "9"]
    done = CliRunner().invoke(application(), mine)
    assert isinstance(done.exception, DataError) and "no pair has a negative within the margins" in str(done.exception)
    assert not (tmp_path / "t.jsonl").exists()
    (tmp_path / "space.yaml").write_text("training.steps: [1, 2]\nnetwork.d_model: [32, 50]\n", encoding="utf-8")
    recipe = RECIPE | {"data": {"train": {"world": "train"}, "valid": {"world": "valid"}}}
    with pytest.raises(RecipeError, match=r"space.yaml:2:23: the recipe refuses network.d_model 50: .*must divide"):
        recipe |= {"network": RECIPE["network"] | {"n_heads": 4}}
        search(recipe, space=tmp_path / "space.yaml", strategy="grid", out=tmp_path / "s")
