"""The examples of CONTRIBUTING, run in their order as one module outside the package, and what they add put to use."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from typer import Typer
from typer.testing import CliRunner

import atento
from atento.base.errors import RecipeError, UsageError
from atento.config.presets import PRESETS, preset
from atento.config.reading.dumping import field_texts
from atento.config.sections.decoding import DecodingConfig
from atento.config.tables import objective, verbs
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS
from atento.data import objectives
from atento.data.batches.batch import Draw, MemoryStore, Ragged
from atento.data.records.memory import records_in
from atento.decoding.exact import exact_search
from atento.decoding.generate import STRATEGIES, generate
from atento.decoding.strategies import Greedy
from atento.metrics import METRICS, paired_test
from atento.model import Model
from atento.released import FAMILIES
from atento.runs.train import TrainedRun
from atento.tasks.decoding_setup import RULES, rules_of
from atento.tasks.verb_table import VERBS
from atento_cli.decoding_options import flags_of
from atento_lab.notes.table import ROWS, rows_named, run
from atento_serve.api.decoding import names_of, option_fields
from atento_serve.app import ROUTES
from conftest import ForkServer
from failing import fails
from http_service import served

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLES: tuple[dict[Any, Any], ...] = (
    *(objective.OBJECTIVES, objectives.OBJECTIVES, METRICS, TASKS, verbs.VERBS, VERBS, FAMILIES, PRESETS, STRATEGIES),
    *(ROWS, RULES),
)


def sections() -> dict[str, str]:
    """The text of each "How to add" section."""
    parts = re.split(r"^### (.+)$", PAGE[PAGE.index("## How to add") :], flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The examples as a module; the tables are as before afterwards."""
    before, routes = [dict(table) for table in TABLES], list(ROUTES)
    path = tmp_path_factory.mktemp("examples") / "examples_of_contributing.py"
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE[PAGE.index("## How to add") :], flags=re.M | re.S)
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    sys.path.insert(0, str(path.parent))
    try:
        import examples_of_contributing  # type: ignore[import-not-found]

        yield examples_of_contributing
    finally:
        sys.path.remove(str(path.parent))
        for table, held in zip(TABLES, before):
            table.clear()
            table.update(held)
        ROUTES[:] = routes


def sentences(first: int, count: int) -> list[str]:
    """Sentences of one pattern: article, noun, verb, article, noun."""
    nouns, verbs = ("cat", "dog", "bird", "man", "fox", "owl"), ("sees", "hears", "likes")
    found = []
    for number in range(first, first + count):
        subject, verb, thing = nouns[number % 6], verbs[number // 6 % 3], nouns[number // 18 % 6]
        found.append(f"the {subject} {verb} a {thing}")
    return found


RECIPE: dict[str, Any] = {
    "task": "word-ordering",
    "data": {"train": {"memory": "train"}, "valid": {"memory": "valid"}, "test": {"memory": "test"}, "max_len": 16},
    "network": {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_layers": 1, "dropout": 0.0},
    "training": {"steps": 60, "batch_tokens": 600, "learning_rate": 0.01, "warmup": 5, "precision": "float32"}
    | {"validate_every": 60},
    "decoding": {"beam": 1},
}


@pytest.fixture(scope="module")
def trained(added: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    data = {"train": sentences(0, 100), "valid": sentences(100, 4), "test": sentences(104, 4)}
    return atento.train(RECIPE, data=data, out=tmp_path_factory.mktemp("run") / "run", device="cpu")


@pytest.fixture(scope="module")
def model(trained: TrainedRun) -> Model:
    return atento.load(trained.folder)


# the files to change in each section, at most
MOST = {"An objective": 2, "A metric": 2, "A task": 4, "A family": 2, "A decoding strategy": 2, "A decoding option": 2}
MOST |= {"An HTTP route": 1, "A key of a recipe": 1, "A row of the notes": 2}


def test_every_section_says_which_files_change_and_shows_a_small_example() -> None:
    """And these are the files with the tables to which its example adds rows."""
    assert list(sections()) == list(MOST)
    for title, text in sections().items():
        (said,) = re.findall(r"^Files to change: (.*?\.)(?: New| To offer| Then|$)", text, flags=re.M)
        named = re.findall(r"`([a-z_]+/(?:[a-z_]+/)?[a-z_]+\.py|model\.py)`", said)
        assert all((SOURCE / "atento" / name).is_file() or (SOURCE / name).is_file() for name in named), named
        assert len(named) <= MOST[title] and (named or title == "A key of a recipe"), (title, named)
        examples = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
        assert examples and all(files & set(named) for files in tables_changed("\n".join(examples))), title


def tables_changed(example: str) -> list[set[str]]:
    """The files of Atento with each table to which an example adds rows."""
    places = {
        name.split(" as ")[-1]: f"{module}.{name.split(' as ')[0]}"
        for module, names in re.findall(r"^from (\S+) import (.+)$", example, flags=re.M)
        for name in names.split(", ")
    }
    tables = re.findall(r"^(\w+)((?:\.\w+)?)(?:\[.+?\] = |\.append\()", example, flags=re.M)
    return [files_with(*f"{places[name]}{attribute}".split(".")) for name, attribute in tables]


def files_with(*path: str) -> set[str]:
    """The files that define a table of that dotted name, or a part of it."""
    home = SOURCE / Path(*path[:-1])
    files = [file for file in (home.with_suffix(".py"), *home.glob("*.py")) if file.is_file()]
    found = [file for file in files if re.search(rf"(?m)^{path[-1]}(: .+)? = ", file.read_text(encoding="utf-8"))]
    return {file.relative_to(SOURCE).as_posix().removeprefix("atento/") for file in found}


def test_the_objective_shows_a_new_order_every_epoch_and_its_metric_scores_it(added: ModuleType, model: Model) -> None:
    texts = [[5, 6, 7, 8, 9, 10, 11], [12, 13]]
    learned = added.TokenOrdering(added.SequenceToSequence(0, 2, 3))
    store, seen = MemoryStore({"ids": Ragged(texts)}), set()
    for epoch in range(4):
        batch = learned.batch(store, np.array([1, 0]), Draw(1, epoch))
        again = learned.batch(store, np.array([1, 0]), Draw(1, epoch))
        shown = list(batch.examples())
        assert shown == list(again.examples())
        for example, text in zip(shown, [texts[1], texts[0]]):
            assert example["labels"] == [*text, 3] and example["target_ids"] == [2, *text]
            assert sorted(example["source_ids"]) == sorted([*text, 3]) and example["source_ids"][-1] == 3
        seen.add(tuple(shown[1]["source_ids"]))
        assert batch.counts() == {"vocabulary": len(texts[0]) + len(texts[1]) + 2}
    assert len(seen) > 1 and learned.sizes(store).tolist() == [8.0, 3.0]
    score = METRICS["word-order"].score(["a b c", "x y"], ["a c b", "x y"])
    assert score.value == pytest.approx(100 * 3 / 5) and score.per_sentence() == pytest.approx([100 / 3, 100.0])
    low, high = score.interval(samples=50)
    assert low <= score.value <= high
    assert paired_test("word-order", ["a b"] * 8, ["b a"] * 8, [["a b"] * 8], 50).difference == 100


def test_the_task_is_trained_scored_loaded_and_used(added: ModuleType, trained: TrainedRun, model: Model) -> None:
    assert trained.task == "word-ordering" and trained.step == 60
    assert trained.test is not None and set(trained.test) >= {"nll", "word-order"}
    assert trained.best is not None and trained.best_step == 60
    held_out = sentences(104, 4)
    written = added.order(model, held_out)
    right = sum(one == other for line, text in zip(written, held_out) for one, other in zip(line.split(), text.split()))
    assert trained.test["word-order"] == pytest.approx(100 * right / 20)
    scores = atento.evaluate(model, [{"text": text} for text in held_out])
    assert scores["word-order"].value == pytest.approx(trained.test["word-order"])
    assert trained.test["word-order"] > 60, written  # alphabetical order itself has 20


def test_the_objective_is_learned_in_a_mixture_by_another_task(added: ModuleType, tmp_path: Path) -> None:
    mixture = [{"kind": "token-ordering", "share": 0.5}, {"kind": "span-corruption", "share": 0.5}]
    recipe = RECIPE | {"task": "span-corruption", "objective": mixture, "training": RECIPE["training"] | {"steps": 2}}
    recipe["data"] = {"train": {"memory": "train"}}
    assert atento.train(recipe, data=sentences(0, 60), out=tmp_path / "run", device="cpu").step == 2


def test_wrong_recipes_and_records_are_refused_by_name(added: ModuleType) -> None:
    for key, value, says in (
        ("metrics", ["accuracy"], "unknown metric 'accuracy'"),
        ("network", {"architecture": "decoder"}, "needs network.architecture encoder-decoder"),
        ("objective", "masked", "objective masked needs network.architecture encoder"),
    ):
        with pytest.raises(RecipeError, match=says):
            atento.train(RECIPE | {key: value}, data={"train": ["a b"], "valid": ["a b"], "test": ["a b"]})
    with pytest.raises(UsageError, match="dicts with the keys 'one', 'two', 'three': got int"):
        list(records_in(3, [Field(name) for name in ("one", "two", "three")], "data"))  # type: ignore[arg-type]
    abc = [Field(name) for name in "abc"]
    assert list(records_in([{"a": "x", "b": "y", "c": "z"}], abc, "data")) == [(0, ["x", "y", "z"])]


def test_the_command_is_as_the_card_says(added: ModuleType, trained: TrainedRun, model: Model, tmp_path: Path) -> None:
    app, lines = Typer(), sentences(104, 2)
    app.command("other")(lambda: None)  # with one command alone Typer asks for no name
    added.register(app)
    (tmp_path / "words.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["order", str(trained.folder), str(tmp_path / "words.txt")])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == added.order(model, lines)
    assert "model.order(['sees cat the'])" in (model.save(tmp_path / "saved") / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def program(added: ModuleType) -> list[str]:
    """What Python runs to be the command `atento` with the examples."""
    start = f"import sys; sys.path.insert(0, {str(Path(str(added.__file__)).parent)!r}); import {added.__name__}"
    return ["-c", f"{start}; from atento_cli.main import main; main()"]


def test_atento_train_says_what_comes_next(server: ForkServer, program: list[str], tmp_path: Path) -> None:
    """With the page's rows alone; it ended in a KeyError behind the last update."""
    for split, lines in (("train", sentences(0, 60)), ("valid", sentences(100, 4))):
        (tmp_path / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {"train": {"file": "train.txt"}, "valid": {"file": "valid.txt"}, "max_len": 16}
    (tmp_path / "order.yaml").write_text(json.dumps(RECIPE | {"data": data}), encoding="utf-8")
    words = ["train", "order.yaml", "training.steps=2", "--out", "first run"]
    done = server.good(*words, cwd=tmp_path, program=program[1])
    assert done.stderr.endswith("\nnext:\n  atento order 'first run' FILE\n  atento runs show 'first run'\n")


def test_the_route_counts_tokens_over_http(program: list[str], trained: TrainedRun, model: Model) -> None:
    with served([str(trained.folder)], program=program, python=sys.executable) as service:
        texts = sentences(0, 3)
        counts = [len(model.tokenizer.encode(text)) for text in texts]
        assert service.post("/count", {"text": texts}).json() == {"counts": counts}
        refused = service.post("/count", {"text": 3, "model": None})
        assert refused.status_code == 422 and refused.json()["error"]["param"] == "/text", refused.text
        assert "/count" in service.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("penalty", [0.0, 50.0])
def test_the_option_ends_outputs_never_also_in_an_exact_search(added: ModuleType, model: Model, penalty: float) -> None:
    ids = torch.randint(5, 14, (4, 5), generator=torch.Generator().manual_seed(2))
    rules = rules_of(added.Decoding(end_penalty=penalty), eos_id=model.network.config.eos_id)
    assert len(rules) == (penalty != 0)
    written = [best for (best,) in generate(model, ids, Greedy(), max_new_tokens=6, rules=rules)]
    plain = [best for (best,) in generate(model, ids, Greedy(), max_new_tokens=6)]
    if penalty:
        assert all(not best.finished and len(best.ids) == 6 for best in written)
        (found,) = exact_search(model.network, ids[:1], max_new_tokens=2, rules=rules)
        assert found.optimal and found.best is not None and found.best.finished and len(found.best.ids) <= 1
    else:
        assert written == plain


def test_the_option_the_key_and_the_row_of_the_notes_are_where_they_belong(added: ModuleType) -> None:
    flags = flags_of(added.Decoding)
    assert [*flags][-2:] == ["stop_tokens", "batch_tokens"]
    assert flags.keys() - flags_of(DecodingConfig).keys() == {"end_penalty"}
    assert flags["end_penalty"].__metadata__[0].help == "Taken from EOS's score in each step."
    assert names_of(added.Decoding)["end_penalty"] == "end_penalty"
    assert option_fields(added.Decoding)(end_penalty=2.5).end_penalty == 2.5
    assert "[0 or more; 0: off]" in field_texts(added.Decoding)["end_penalty"]
    with pytest.raises(RecipeError, match=r"`decoding\.end_penalty` must be finite and not negative: got -1"):
        added.Decoding(end_penalty=-1)
    assert "[0 or more]" in field_texts(added.HoldConfig)["hold"]
    fails(RecipeError, r"`training\.hold` must be at least 0: got -1", added.HoldConfig, -1)
    (result,) = run(rows_named(["m1"]))
    assert result.finding.passed and result.record()["value"] == pytest.approx([3.0])


def nanogpt(weights: dict[str, Tensor], ids: Tensor, n_heads: int, n_layers: int) -> Tensor:
    """The network in plain PyTorch, by their names."""

    def normed(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    def mapped(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["transformer.wte.weight"][ids] + weights["transformer.wpe.weight"][: ids.shape[1]]
    for n in range(n_layers):
        layer = f"transformer.h.{n}"
        parts = mapped(normed(x, f"{layer}.ln_1"), f"{layer}.attn.c_attn").chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (n_heads, -1)).transpose(1, 2) for part in parts)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + mapped(read, f"{layer}.attn.c_proj")
        x = x + mapped(F.gelu(mapped(normed(x, f"{layer}.ln_2"), f"{layer}.mlp.c_fc")), f"{layer}.mlp.c_proj")
    return F.linear(normed(x, "transformer.ln_f"), weights["transformer.wte.weight"])


def test_the_family_loads_computes_and_is_exported(added: ModuleType, tmp_path: Path) -> None:
    sizes = {"vocab_size": 13, "block_size": 10, "n_embd": 8, "n_head": 2, "n_layer": 2}
    shapes = {"wte.weight": (13, 8), "wpe.weight": (10, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    maps = {"attn.c_attn": (24, 8), "attn.c_proj": (8, 8), "mlp.c_fc": (32, 8), "mlp.c_proj": (8, 32)}
    for n in range(2):
        for name, (rows, columns) in maps.items():
            shapes |= {f"h.{n}.{name}.weight": (rows, columns), f"h.{n}.{name}.bias": (rows,)}
        shapes |= {f"h.{n}.{norm}.{part}": (8,) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
    generator = torch.Generator().manual_seed(1)
    weights = {f"transformer.{name}": torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    folder = tmp_path / "theirs"
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "nanogpt", **sizes}), encoding="utf-8")
    loaded = atento.load(folder)
    assert loaded.config["task"] == "language-modeling"
    ids = torch.randint(13, (2, 7), generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(loaded.network(ids).logits, nanogpt(weights, ids, 2, 2), rtol=1e-4, atol=1e-4)
    again = atento.load(loaded.save(tmp_path / "ours", layout="huggingface"))
    for name, value in loaded.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name]), name
    made = preset("nanogpt-tiny", n_layers=2, ids={"eos": 5})
    assert made.output.tied and (made.n_layers, made.d_model, made.eos_id) == (2, 384, 5)


@pytest.mark.parametrize("min_probability", [1e-9, 0.5, 0.9])
def test_the_strategy_ends_where_greedy_grows_unsure(added: ModuleType, model: Model, min_probability: float) -> None:
    ids = torch.randint(5, 14, (6, 5), generator=torch.Generator().manual_seed(2))
    for (cautious,), (greedy,) in zip(
        generate(model, ids, added.Cautious(min_probability), max_new_tokens=8),
        generate(model, ids, Greedy(), max_new_tokens=8),
        strict=True,
    ):
        unsure = [n for n, score in enumerate(greedy.token_scores) if score < torch.tensor(min_probability).log()]
        end = unsure[0] if unsure else len(greedy.token_scores)
        assert cautious.ids == greedy.ids[:end] and cautious.finished == (greedy.finished and not unsure)
        assert cautious.token_scores == pytest.approx(greedy.token_scores[:end], abs=1e-5)
