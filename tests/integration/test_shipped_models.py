"""The models that come with the package: they do what their table says, and every command takes them by name."""

import json
import re
from pathlib import Path

import pytest
from tools import models as tool

import atento
from atento.base.errors import UsageError
from atento.models.model_folder import find_model
from atento.models.shipped import shipped_models
from atento.networks import parameter_count
from conftest import ForkServer, refused
from failing import fails

SHIPPED = shipped_models()
MODELS = {name: path for name, path in SHIPPED.items() if name.startswith("micro-world-")}
REAL = sorted({*SHIPPED} - {*MODELS})  # of real text
LEAST = {"accuracy": 0.02, "entity-f1": 0.02, "squad": 2.0}  # how far a smaller model may stay below its recipe
COMMANDS = {  # command -> standard input, and what the answer begins with
    "translate micro-world-en-pt": ("the cat sleeps\nThe white cat sleeps.\n", "O gato dorme\nO gato branco dorme.\n"),
    "evaluate micro-world-en-pt pairs.tsv": ("", "BLEU 100.00"),
    "generate micro-world-lm --greedy": ("O gato branco\n", ""),
    "perplexity micro-world-lm": ("O gato branco dorme.\n", ""),
    "perplexity micro-world-mlm": ("O gato branco dorme.\n", ""),
    "fill micro-world-mlm": ("O gato <mask> dorme.\n", ""),
    "embed micro-world-mlm": ("O gato dorme.\n", ""),
    "similarity micro-world-mlm": ("O gato dorme.\tO gato dorme.\n", "1.0"),
    "classify micro-world-tense": ("A menina vai abrir a porta.\n", "future"),
    "classify micro-world-entailment --pairs": ("Ana vai abrir a porta azul.\tAna vai abrir a porta.\n", "entailment"),
    "tag micro-world-entities": ("Maria viajou para o Brasil.\n", ""),
    "answer micro-world-answers": ("Quem canta?\tO turista bonito canta.\n", "O turista bonito"),
    "attend micro-world-en-pt The_cat_sleeps. --out page.html": ("", ""),
    "tokenizer encode micro-world-lm": ("O gato dorme.\n", ""),
    "convert micro-world-mlm --to huggingface --out theirs": ("", ""),
}


def test_the_table_lists_them_all_and_the_page_has_it() -> None:
    table = json.loads(tool.TABLE.read_text(encoding="utf-8"))
    assert [*table] == [*tool.MODELS] and set(table) == set(MODELS)
    assert tool.section(table) + "\n" in tool.PAGE.read_text(encoding="utf-8")
    assert sum(row["bytes"] for row in table.values()) < 5_000_000


@pytest.mark.parametrize("name", MODELS)
def test_each_does_what_its_table_and_its_recipe_promise(name: str) -> None:
    row = json.loads(tool.TABLE.read_text(encoding="utf-8"))[name]
    model = atento.load(name, device="cpu")
    assert parameter_count(model.network) == row["parameters"]
    assert sum(file.stat().st_size for file in MODELS[name].iterdir()) == row["bytes"]
    scores = tool.measured(model, name)
    assert scores == pytest.approx(row["scores"], rel=0.005)  # other processors round otherwise
    recipes = tool.PAGE.read_text(encoding="utf-8").partition("\n## Recipes\n")[2]
    for promised in re.findall(rf"^\| `{name}` \|.+?\|(.+)\|$", recipes, flags=re.M):
        for metric, value in re.findall(r"([a-z0-9-]+) ([\d.]+)", promised):
            assert scores[metric] >= float(value) - LEAST[metric]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works_at_once(server: ForkServer, tmp_path: Path, command: str) -> None:
    text, said = COMMANDS[command]
    (tmp_path / "pairs.tsv").write_text("The cat sleeps.\tO gato dorme.\n", encoding="utf-8")
    words = [word.replace("_", " ") for word in command.split()]
    done = server.run(*words, cwd=tmp_path, stdin=text, env={"HF_HUB_OFFLINE": "1"})
    assert done.status == 0 and done.stdout.startswith(said), done
    assert done.stdout or "--out" in words


@pytest.mark.parametrize("name", REAL)
def test_a_model_of_real_text_is_small_and_its_card_has_data_licence_and_scores(name: str) -> None:
    card = (SHIPPED[name] / "README.md").read_text(encoding="utf-8")
    assert f"# {name}\n" in card and "**Data**" in card and "**What it does badly**" in card and "license: " in card
    assert re.search(r"^\| .+ \| \d+\.\d+( \[[\d.]+, [\d.]+\])? \|$", card, flags=re.M)
    size, count = (SHIPPED[name] / "model.safetensors").stat().st_size, parameter_count(atento.load(name).network)
    assert (size <= 10e6 and count <= 12e6) if "en" in name.split("-") else size <= 4.5e6


@pytest.mark.parametrize("text", ["", "😀😀 🎉", "Это русский текст.", "palavra " * 400])
def test_a_model_of_real_text_answers_whatever_it_is_given(server: ForkServer, tmp_path: Path, text: str) -> None:
    verbs = {"atento-en-pt": "translate", "atento-pt-en": "translate", "atento-pt-lm": "perplexity"}
    for name in REAL:
        done = server.run(verbs.get(name, "tag"), name, cwd=tmp_path, stdin=f"{text}\n")
        assert done.stdout.count("\n") == 1 if done.status == 0 else done.stderr.count("\n") == 1, (name, done)


def test_what_a_name_means(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of that name wins, a recipe stays a recipe, a wrong name is one sentence without a request."""
    monkeypatch.chdir(tmp_path)
    assert find_model("micro-world-mlm") == MODELS["micro-world-mlm"]
    shown = server.run("config", "show", "micro-world-mlm", cwd=tmp_path)
    assert shown.status == 0 and "task: masked-language-modeling" in shown.stdout
    Path("micro-world-mlm").mkdir()
    assert find_model("micro-world-mlm") == Path("micro-world-mlm")
    refused(server.run("fill", "micro-world-mlm", cwd=tmp_path, stdin="a\n"), "neither a run")
    monkeypatch.setattr("atento.models.model_folder.fetched", lambda *_: pytest.fail("asked the hub"))
    for name, said in (
        ("micro-world-pt-en", r"did you mean .*micro-world-en-pt.*\?$"),
        ("micro_world_lm", "did you mean micro-world-lm"),
        ("micro-world-rnn", "micro-world-rnn is a recipe: `atento train micro-world-rnn` trains it$"),
    ):
        fails(UsageError, said, find_model, name)


def test_a_recipe_starts_from_one_by_its_name(tmp_path: Path) -> None:
    few = {"data.train.0.count": 60, "data.valid.0.count": 6, "data.test.0.count": 6, "init": "micro-world-mlm"}
    steps = {f"training.{key}": 2 for key in ("steps", "validate_every", "checkpoint_every")} | {"training.warmup": 1}
    run = atento.train("micro-world-negation", few | steps, out=tmp_path / "run", threads=1)
    assert atento.load(run.folder).network.config.d_model == atento.load("micro-world-mlm").network.config.d_model
