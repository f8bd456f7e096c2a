"""The recipes of Portuguese models by name: each trains and is scored from tiny files like the hub's and the set's."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.config.reading.loading import load_recipe
from atento.config.reading.recipe_layers import shipped, shipped_text
from atento_world import write
from conftest import ForkServer, refused
from glue_data import GLUE, assin, entities, numbers, put, questions
from portuguese_folders import PORTUGUESE, write_portuguese

ROOT = Path(__file__).parents[2]
KINDS = (r"^## ", r"^### ", r"^\| ", r"^- ", r"^```", r"^<!-- ")
NAMES = [name for name in shipped() if not name.startswith("adapt-")]  # of those, `test_adapted_translators.py`
HUB = {name: init.model for name in NAMES if (init := load_recipe(name, environment={}).recipe.init) is not None}
SENTENCES = [pair.target for pair in write("train", 60, seed=4)]
ACCENTS = "A avó não pôs açúcar à mão, João."
SHORT = ("~training.epochs", "training.steps=2", "training.warmup=1", "training.validate_every=2")
SHORT += ("training.checkpoint_every=2", "training.precision=float32")
RIGHT = {  # a score that `atento evaluate` prints, and the file that it is given
    **dict.fromkeys(("albertina-assin2", "bertimbau-assin2-rte", "ptt5-v2-assin2"), ("report", "assin2-test.xml")),
    **dict.fromkeys(("bertimbau-assin2-sts", "ptt5-assin2"), ("pearson", "assin2-test.xml")),
    "albertina-plue-rte": ("accuracy", "datasets/RTE/dev.tsv"),
    "bertimbau-faquad": ("squad", "data/dev.json"),
    "bertimbau-harem": ("entity-f1", "MiniHAREM-total.conll"),
    **dict.fromkeys(("bertimbau-lener", "moberto-lener"), ("entity-f1", "leNER-Br/test/test.conll")),
    "bertimbau-sentiment": ("accuracy", "datasets/SST-2/dev.tsv"),
    "e5-assin2": ("cosine-spearman", "assin2-test.xml"),
    "tucano-machado": ("", "txt/teatro/peca.txt"),  # whose perplexity is measured
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder with the files of all sets, in the layouts of their distributions."""
    folder = tmp_path_factory.mktemp("sets")
    train, valid = SENTENCES[:48], SENTENCES[48:]
    for split in ("train", "dev", "test"):
        words, assin2 = entities(numbers(split), "", " "), "train-only" if split == "train" else split
        assin(folder / f"assin2-{assin2}.xml", split, ("Entailment", "None"))
        put(folder / "leNER-Br" / split / f"{split}.conll", words)
        harem = {"train": "FirstHAREM-total-train", "dev": "FirstHAREM-total-dev", "test": "MiniHAREM-total"}
        put(folder / f"{harem[split]}.conll", words)
    for name in ("SST-2", "RTE"):
        GLUE[name](folder / "datasets" / name)
    for split in ("train", "dev"):
        made: Any = questions(numbers(split))  # of which one answer does not stand at its offset, as in published files
        made["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 10_000
        put(folder / "data" / f"{split}.json", [json.dumps(made, ensure_ascii=False)])
    for kind, lines in (("romance/livro", train), ("conto/conto", train), ("teatro/peca", valid)):
        put(folder / "txt" / f"{kind}.txt", ["\n\n".join(lines)])
    return folder


@pytest.fixture(scope="module")
def hub(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hub name -> a folder like it; BERTimbau's after the conversion that its recipes name."""
    place = tmp_path_factory.mktemp("hub")
    folders = {name: write_portuguese(name, place / name) for name in PORTUGUESE}
    older = "neuralmind/bert-base-portuguese-cased"
    server.good("convert", folders[older], "--to", "atento", "--out", "bertimbau", cwd=place)
    return folders | {older: place / "bertimbau"}


@pytest.mark.parametrize("name", RIGHT)
def test_the_head_of_a_recipe_says_what_it_needs(name: str) -> None:
    assert HUB.keys() == RIGHT.keys() and set(HUB.values()) == set(PORTUGUESE)  # each that names a hub model is here
    text = "\n".join(line for line in shipped_text(name).splitlines() if line.startswith("#"))
    for part in ("# Model:  ", "# Data:   ", f"# Train:  atento train {name} ", "# Score:  ", "# Again:  atento "):
        assert part in text, part
    assert str(HUB[name]) in text and "data.folder=" in text


# `test_recipes_cli.py` reads all of them; here each model and each measure has its turn.
@pytest.mark.covering(of=lambda name: {"model": str(HUB[name]), "measure": RIGHT[name][0]})
@pytest.mark.parametrize("name", RIGHT)
def test_a_recipe_trains_and_is_scored(server: ForkServer, tmp_path: Path, sets: Path, hub: Any, name: str) -> None:
    given = (f"init={hub[HUB[name]]}", f"data.folder={sets}")
    checked = server.run("config", "check", name, *given, cwd=tmp_path)
    assert (checked.status, checked.stdout) == (0, "ok\n"), checked.stderr
    assert all("bad record" in line for line in checked.stderr.splitlines())  # `skip_bad` of SQuAD's recipes
    server.good("train", name, *given, *SHORT, cwd=tmp_path)
    metric, file = RIGHT[name]
    command = "evaluate" if metric else "perplexity"
    report = ["--report"] if metric == "report" else []
    scored = server.run(command, f"runs/{name}", sets / file, "--json", *report, cwd=tmp_path)
    assert scored.status == 0 and f'"{metric or command}"' in scored.stdout.splitlines()[0], scored.stderr
    model = atento.load(tmp_path / "runs" / name)
    ids = model.tokenizer.encode(ACCENTS)
    assert ids != model.tokenizer.encode("A avo nao pos acucar a mao, Joao.")
    assert "ç" in model.tokenizer.decode(ids) and "ã" in model.tokenizer.decode(ids)


def test_a_recipe_whose_model_cannot_be_fetched_says_so(server: ForkServer, tmp_path: Path, sets: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    done = server.run("train", "moberto-lener", f"data.folder={sets}", cwd=tmp_path, env=offline)
    refused(done, "Tropic-AI/moBERTo is no local folder", "not in the hub's cache", "you are offline; give the path of")


def test_the_models_are_used_as_they_are(server: ForkServer, tmp_path: Path, hub: dict[str, Path]) -> None:
    """The commands of docs/portuguese.md, from the folders."""
    pairs = "".join(f"{one}\t{two}\n" for one, two in pairwise(SENTENCES[:4]))
    for name, command, text, lines in (
        ("neuralmind/bert-base-portuguese-cased", ["fill"], "O menino viu a [MASK].\n", 1),
        ("TucanoBR/Tucano-160m", ["generate", "--top-p", "0.9", "--max-new-tokens", "4"], "A menina não\n", 1),
        ("intfloat/multilingual-e5-small", ["similarity"], pairs, 3),
    ):
        done = server.run(command[0], hub[name], *command[1:], cwd=tmp_path, stdin=text)
        assert done.status == 0 and len(done.stdout.splitlines()) >= lines, done.stderr


def test_both_pages_have_the_same_rows_and_the_recipes_numbers() -> None:
    """The lists of the two languages tell the same, and each score stands in the head of its recipe."""
    pages = [(ROOT / "docs" / f"portuguese{end}.md").read_text("utf-8") for end in ("", ".pt-BR")]
    counts = [[len(re.findall(kind, page, flags=re.M)) for kind in KINDS] for page in pages]
    assert counts[0] == counts[1]
    parts = [re.search(r"^## (?:Published|Resultados).*?(?=^## )", page, flags=re.M | re.S) for page in pages]
    rows = [re.findall(r"^- `(.+?)`: (.+)$", part[0], flags=re.M) for part in parts if part]
    for (recipe, score), (receita, pontos) in zip(*rows, strict=True):
        numbers = re.findall(r"\d+\.\d+", score)
        assert recipe == receita and numbers == [one.replace(",", ".") for one in re.findall(r"\d+,\d+", pontos)]
        assert all(number in shipped_text(recipe) for number in numbers), (recipe, numbers)
    assert {recipe for recipe, _ in rows[0]} == {*RIGHT}
