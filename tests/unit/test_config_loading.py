"""Recipes read, joined and resolved: short forms, layers, origins, folders, warnings, sizes that fit the data."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import RecipeError
from atento.config.presets import preset
from atento.config.reading.loading import LoadedRecipe, dump_recipe, load_recipe
from atento.config.reading.recipe_layers import shipped, shipped_text
from atento.config.reading.sizes_by_data import FITTED, fitted
from atento.config.recipe import SourceConfig
from atento.config.sections.decoding import UTILITIES
from atento.config.sections.initial import InitConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.metrics import mbr_utilities
from failing import fails

MINIMAL = "task: translation\ndata: {train: {source: a.en, target: a.pt}}\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a recipe in an otherwise empty current directory."""
    monkeypatch.chdir(tmp_path)

    def make(text: str, name: str = "my.yaml") -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return path

    return make


def load(text: str, write: Write, *overrides: str) -> LoadedRecipe:
    return load_recipe(write(text), overrides, environment={})


def test_a_minimal_recipe_and_the_origin_of_every_value(write: Write) -> None:
    loaded = load(MINIMAL, write)
    assert loaded.recipe.data.train == (SourceConfig(source="a.en", target="a.pt"),)
    assert loaded.recipe.name == "my" and loaded.origins["name"] == "file name"
    assert loaded.recipe.network == NetworkConfig()
    assert loaded.folder == loaded.home == Path.cwd() and loaded.path == Path("my.yaml")
    assert loaded.warnings == []
    assert load("\ufeff" + MINIMAL.replace("\n", "\r\n"), write).recipe.name == "my"
    text = MINIMAL + "training:\n  seed: 7\nnetwork: {preset: transformer-tiny, n_layers: 3}\nmetrics: bleu\n"
    origins = load(text, write, "training.steps=10").origins
    assert origins["training.seed"] == "my.yaml:4:9" and origins["training.steps"] == "command line"
    assert origins["training.clip"] == "default" and origins["network.n_layers"] == "my.yaml:5:47"
    assert origins["network.d_model"] == origins["network.positions.kind"] == "preset transformer-tiny"
    assert origins["data.train.0.target"] == "my.yaml:2:38" and origins["metrics"] == "my.yaml:6:10"


def test_network_short_forms_and_the_heads_of_a_preset(write: Write) -> None:
    assert load(MINIMAL + "network: transformer-tiny\n", write).recipe.network == preset("transformer-tiny")
    unplaced = preset("transformer-tiny", n_layers=4, positions=PositionConfig(kind="none"))
    for network, wanted in (
        ("{preset: transformer-tiny, n_layers: 4, positions: none}", unplaced),
        ("{}", NetworkConfig()),
        ("t5-small", preset("t5-small", vocab_size=0)),  # its vocabulary is that of the recipe's tokenizer
        ("{preset: t5-small}", preset("t5-small", vocab_size=0)),
        ("{preset: t5-small, vocab_size: 77}", preset("t5-small", vocab_size=77)),
    ):
        assert load(MINIMAL + f"network: {network}\n", write).recipe.network == wanted
    part = load(MINIMAL + "network: {preset: transformer-tiny, positions: {base: 500}}\n", write)
    assert part.recipe.network.positions == PositionConfig(base=500.0)
    text = "task: masked-language-modeling\ndata: {train: {world: train, count: 9}}\n"
    for network, *more in (
        ("roberta-base",),
        ("{preset: roberta-base, n_layers: 2}",),
        ("bert-base-pretraining", "next-sentence"),
        ("{preset: bert-tiny, heads: [{kind: masked-language-model, hidden: true}]}",),
    ):
        heads = load(f"{text}network: {network}\n", write).recipe.network.heads
        assert [head.kind for head in heads] == ["masked-language-model", *more]
        assert heads[0].hidden == ("hidden" in network)


ANOTHER = "a recipe, whose decoding is kept with the model, names no other model: use the model with --mbr"


@pytest.mark.parametrize(
    ("utility", "why"), [("chfr", "did you mean 'chrf'"), ("embeddings:runs/other", ANOTHER), ("comet:comet", ANOTHER)]
)
def test_h10_a_utility_that_validation_cannot_use_is_told_before_training(write: Write, utility: str, why: str) -> None:
    with pytest.raises(RecipeError, match=rf"my\.yaml:\d+:\d+: decoding\.mbr: unknown utility '{utility}'; {why}"):
        load(MINIMAL + f"decoding: {{mbr: '{utility}'}}\n", write)
    for known in UTILITIES:
        assert load(MINIMAL + f"decoding: {{mbr: {known}}}\n", write).recipe.decoding.mbr == known
    assert set(UTILITIES) == set(mbr_utilities.UTILITIES)


def test_sources_alone_or_in_a_list_and_metrics(write: Write) -> None:
    text = "task: translation\ndata:\n  train: [{world: train, count: 3}, {file: a.tsv, source: 0, target: pt}]\n"
    text = text.replace("target: pt", "target: 1") + "  valid: {file: b.tsv, source: en, target: pt}\nmetrics: ter\n"
    recipe = load(text, write).recipe
    assert recipe.data.train[1] == SourceConfig(file="a.tsv", source=0, target=1) and recipe.metrics == ("ter",)
    assert recipe.data.valid == (SourceConfig(file="b.tsv", source="en", target="pt"),)
    assert load(MINIMAL + "tokenizer: shared/pieces\n", write).recipe.tokenizer.path == "shared/pieces"
    text = "task: translation\ndata: {train: {source: no, target: 12:30}}\n"  # YAML 1.1 would change both
    assert load(text, write).recipe.data.train == (SourceConfig(source="no", target="12:30"),)


WHOLE = [("30_000", 30000), ("4e3", 4000), ("4.0", 4), ("0x10", 16), ("010", 10)]


@pytest.mark.parametrize(("key", "written", "value"), [*(("steps", *row) for row in WHOLE), ("clip", "2", 2.0)])
def test_a_number_has_the_type_of_its_key(key: str, written: str, value: float, write: Write) -> None:
    found = getattr(load(f"{MINIMAL}training: {{{key}: {written}}}\n", write).recipe.training, key)
    assert found == value and type(found) is type(value)


def test_an_empty_section_is_its_defaults_and_overrides(write: Write) -> None:
    assert load(MINIMAL + "training:\n  # steps: 5\n", write).recipe.training.steps == 2000
    for section in ("training", "network", "decoding"):  # those of the task too
        text = "task: language-modeling\ndata: {train: a.txt}\n"
        assert load(f"{text}{section}:\n", write).recipe == load(text, write).recipe
    for key in ("preset:", "preset: null"):  # no section: refused
        fails(RecipeError, r"network.preset must be text: got null", load, f"{MINIMAL}network:\n  {key}\n", write)
    text = MINIMAL.replace("}}", "}, valid: {file: v.tsv, source: 0, target: 1}}") + "training: {epochs: 2}\n"
    written = "training.learning_rate=5e-4 data.valid.0.file=x.tsv data.valid.count=9 data.test.0.world=structures"
    written += " network=transformer-tiny network.n_layers=4 network.positions=none training.epochs=null init=a=b"
    spaced = ("data.train.1={world: train, count: 5}", "training={seed: 4}", "metrics=[bleu, ter]")
    loaded = load(text, write, *written.split(), *spaced)
    recipe = loaded.recipe
    assert recipe.training.learning_rate == 5e-4 and recipe.training.epochs is None and recipe.training.seed == 4
    assert recipe.data.valid == (SourceConfig(file="x.tsv", source=0, target=1, count=9),)
    assert recipe.data.test == (SourceConfig(world="structures"),)
    assert recipe.data.train[1] == SourceConfig(world="train", count=5)
    assert recipe.network == preset("transformer-tiny", n_layers=4, positions=PositionConfig(kind="none"))
    assert recipe.metrics == ("bleu", "ter") and recipe.init == InitConfig("a=b")
    assert loaded.origins["data.valid.0.file"] == "command line"
    assert loaded.origins["data.valid.0.source"] == f"my.yaml:2:{text.splitlines()[1].index('source: 0') + 9}"


def test_tilde_goes_back_to_the_default_and_a_preset_replaced_keeps_the_changes(write: Write) -> None:
    text = MINIMAL + "training: {steps: 5, seed: 9}\nnetwork: {preset: transformer-tiny, n_layers: 5}\n"
    loaded = load(text, write, "~training.steps", "~network.n_layers", "~training.seed")
    assert (loaded.recipe.training.steps, loaded.recipe.training.seed) == (2000, 1)
    assert loaded.recipe.network.n_layers == preset("transformer-tiny").n_layers
    assert loaded.origins["training.steps"] == "fitted to the data when training begins"
    assert loaded.origins["training.seed"] == "default"
    path = write(MINIMAL)
    changes = {"training.steps": 1000, "training": {"seed": 3}, "data.valid": [SourceConfig(world="valid", count=2)]}
    changes |= {"network": preset("transformer-tiny"), "init": Path("a") / "b", "name": "12"}
    recipe = load_recipe(path, changes, environment={}).recipe
    assert recipe.training.steps == 1000 and recipe.training.seed == 3
    assert recipe.data.valid == (SourceConfig(world="valid", count=2),)
    assert recipe.network == preset("transformer-tiny")
    assert recipe.init == InitConfig(str(Path("a/b"))) and recipe.name == "12"
    text = MINIMAL + "network: {preset: transformer-tiny, n_layers: 5}\n"
    kept = load(text, write, "network.preset=transformer-base").recipe.network
    fresh = load(text, write, "network=transformer-base").recipe.network
    assert kept == preset("transformer-base", n_layers=5) and fresh == preset("transformer-base")
    text = "task: translation\ndata:\n  train: {world: train}\n  valid: &v {world: valid}\n  test: *v\n"
    recipe = load(text, write, "data.valid.count=5").recipe
    assert (recipe.data.valid[0].count, recipe.data.test[0].count) == (5, None)


def test_each_layer_wins_over_the_one_below(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """interfaces.md 3.3: default < file (its `extends` chain) < environment < command line."""
    write(MINIMAL + "training: {steps: 1, warmup: 1, keep: 1, seed: 1, log_every: 1}\n", "lowest.yaml")
    write("extends: lowest.yaml\ntraining: {warmup: 2, keep: 2, seed: 2, log_every: 2}\n", "base.yaml")
    path = write("extends: base.yaml\ntraining:\n  keep: 3\n  seed: 3\n  log_every: 3\n")
    monkeypatch.setenv("ATENTO_TRAINING__SEED", "4")
    monkeypatch.setenv("ATENTO_TRAINING__LOG_EVERY", "4")
    monkeypatch.setenv("ATENTO_CACHE", "elsewhere")
    loaded = load_recipe(path, ["training.log_every=5"])
    training = loaded.recipe.training
    assert [training.steps, training.warmup, training.keep, training.seed, training.log_every] == [1, 2, 3, 4, 5]
    assert training.clip == 1.0 and loaded.recipe.name == "my"
    places = ("lowest.yaml:3:19", "base.yaml:2:20", "my.yaml:3:9", "ATENTO_TRAINING__SEED", "command line")
    for key, place in zip(("steps", "warmup", "keep", "seed", "log_every"), places):
        assert loaded.origins[f"training.{key}"] == place


def test_extending_joins_sections_replaces_lists_and_finds_folders(write: Write, tmp_path: Path) -> None:
    base = "network: transformer-tiny\ndata:\n  valid: [{world: valid}, {world: train}]\ntraining: {seed: 8}\n"
    write(base, "base.yaml")
    text = "extends: base.yaml\ntask: translation\nnetwork: {n_layers: 3}\ntraining:\n  # nothing here\n"
    recipe = load(text + "data: {train: {world: train}, valid: {world: structures}}\n", write).recipe
    assert recipe.network == preset("transformer-tiny", n_layers=3)
    assert recipe.data.valid == (SourceConfig(world="structures"),) and recipe.training.seed == 8
    loaded = load("extends: micro-world-en-pt\ntraining: {steps: 7}\n", write)
    assert loaded.recipe.training.steps == 7 and loaded.recipe.data.train[0].world == "train"
    assert loaded.origins["task"].startswith("micro-world-en-pt.yaml:")
    path, elsewhere = write(MINIMAL, "deep/my.yaml"), tmp_path / "elsewhere"
    for given, folder in (("", "deep"), ("data.folder=corpus", "deep/corpus"), (f"data.folder={elsewhere}", elsewhere)):
        assert load_recipe(path, [given] if given else [], environment={}).folder == tmp_path / folder
    base = write(MINIMAL.replace("{train", "{folder: corpus, train"), "deep/base.yaml")
    loaded = load_recipe(write(f"extends: {base}\n"), environment={})
    assert loaded.folder == tmp_path / "deep" / "corpus" and loaded.home == tmp_path
    shipped = load_recipe("micro-world-en-pt", environment={})
    assert shipped.folder == tmp_path and shipped.path is None
    Path("micro-world-en-pt").mkdir()  # does not hide the shipped one
    assert load_recipe("micro-world-en-pt", environment={}).recipe.name == "micro-world-en-pt"


def test_the_shipped_recipes_are_right_and_short_and_read_from_standard_input_without_torch() -> None:
    assert "micro-world-en-pt" in shipped()
    for name in shipped():
        text = shipped_text(name)
        assert text.startswith("# ") and text.count("\n") <= 60
        assert load_recipe(name, environment={}).warnings == []
    command = (
        "import sys; from atento.config.reading.loading import load_recipe, dump_recipe, recipe_schema;"
        "dump_recipe(load_recipe('micro-world-en-pt').recipe); recipe_schema();"
        "import atento_cli.commands.config, atento_cli.commands.recipes;"
        "print(load_recipe('-').recipe.data.train[0].source, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", command], input=MINIMAL.encode(), capture_output=True, check=True)
    assert done.stdout.split() == [b"a.en", b"False", b"False"]


WARNED = [
    ("training: {early_stop: 3}", "my.yaml:3:24: training.early_stop has no effect: there is no data.valid"),
    ("training: {validate_every: 3}", "my.yaml:3:28: training.validate_every has no effect: there is no data.valid"),
    ("training: {epochs: 1, steps: 5}", "my.yaml:3:30: training.steps has no effect: training.epochs is given"),
    ("metrics: bleu", "my.yaml:3:10: metrics has no effect: there is neither data.valid nor data.test"),
    ("decoding: {beam: 1, length_penalty: 2}", "length_penalty has no effect: a beam of 1 compares no lengths"),
    ("tokenizer: {path: x, vocab_size: 9}", "tokenizer.vocab_size has no effect: tokenizer.path names a trained one"),
    ("training: {learning_rate: 0.5}", "training.learning_rate 0.5 is far above the usual range (1e-5 to 1e-2)"),
    ("training: {weight_decay: 2}", "training.weight_decay 2 is far above the usual range (0 to 0.3)"),
    ("tokenizer: {kind: byte, vocab_size: 9}", "the byte tokenizer's size follows from the text"),
    ("teacher: {model: a/b, weight: 0.3}", "3:31: teacher.weight has no effect: the teacher's outputs are the targets"),
    ("teacher: {model: a/b, temperature: 3}", "teacher.temperature has no effect: the teacher's outputs are the"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "warning"), WARNED)
def test_an_option_without_effect_warns(line: str, warning: str, write: Write) -> None:
    [only] = load(MINIMAL + line + "\n", write).warnings
    assert warning in only and only.startswith("my.yaml:3:")


def test_what_a_task_does_not_take_from_a_teacher_or_from_few_labels_warns() -> None:
    columns = {"embedding": ("text", "pair"), "regression": ("text", "score"), "translation": ("source", "target")}

    def said(task: str, **given: object) -> list[str]:
        first, second = columns.get(task, ("text", "label"))
        data = {"train": {"file": "a.tsv", first: 0, second: 1}}
        return load_recipe({"task": task, "data": data, **given}, environment={}).warnings

    teacher = {"model": "a/b", "weight": 0.3, "temperature": 3, "n_best": 2}
    few = {"init": {"model": "a/b", "few_shot": True}, "training": {"learning_rate": 1e-5, "steps": 5, "seed": 2}}
    at_once = "has no effect: init.few_shot reads its pairs once, at a rate of its own, and fits a head at once"
    for task, given, keys, why in (
        ("classification", {"teacher": teacher}, ["teacher.n_best"], "has no effect: this task has no sources"),
        ("embedding", {"teacher": teacher}, ["teacher.n_best", "teacher.temperature"], "this task has no"),
        ("translation", {"teacher": teacher | {"n_best": 0}}, [], ""),
        ("classification", few, ["training.learning_rate", "training.steps"], at_once),
    ):
        warnings = said(task, **given)
        assert [one.split(": ")[1].split()[0] for one in warnings] == keys and all(why in one for one in warnings)
    fails(RecipeError, "few_shot learns .*: got task regression", lambda: said("regression", **few))


def test_what_has_no_effect_warns_and_the_same_with_its_effect_does_not(write: Write) -> None:
    for architecture, task, count in (("decoder", "language-modeling", 1), ("encoder", "masked-language-modeling", 0)):
        network = {"architecture": architecture, "mask": {"left": 4, "right": 2}}
        given = {"task": task, "data": {"train": "a.txt"}, "network": network}
        warned = "\n".join(load_recipe(given, environment={}).warnings)
        assert warned.count("network.mask.right has no effect: a decoder attends to") == count
    [only] = load(MINIMAL, write, "data.train.seed=3").warnings
    assert only == "command line: data.train.0.seed has no effect: it is for the micro-world only"
    text = "task: classification\ndata: {train: {world: train, labels: tense}}\ninit: model\n"
    heads = "network: {d_model: 8, heads: [{kind: classification, hidden: true, labels: [a, b]}]}\n"
    [only] = load(text + heads, write).warnings
    assert "network.d_model has no effect" in only
    text = "task: translation\ndata: {train: {world: train}, valid: {world: valid, seed: 2}}\nmetrics: bleu\n"
    text += "decoding: {length_penalty: 2}\ntraining: {early_stop: 3, validate_every: 3, steps: 9}\n"
    assert load(text, write).warnings == []


@pytest.mark.parametrize("objective", ["prefix", "causal", ["prefix", "causal"]], ids=str)
def test_data_pack_is_of_causal_modelling(objective: Any, write: Write) -> None:
    text = "task: language-modeling\ndata: {train: {world: train}, pack: isolated}\n"
    warnings = load(text + f"objective: {json.dumps(objective)}\n", write).warnings
    expected = "my.yaml:2:37: data.pack has no effect: only the objective causal packs texts"
    assert warnings == ([expected] if objective == "prefix" else [])


@pytest.mark.parametrize("task", ["masked-language-modeling", "bidirectional-language-modeling"])
def test_an_own_tokenizer_must_be_written(task: str, write: Write) -> None:
    """The section that is a task's default does not count as written."""
    text = f"task: {task}\ndata: {{train: {{world: train}}}}\ninit: {{model: m, tokenizer: own}}\n"
    fails(RecipeError, r"init.tokenizer own is that of the section .* is missing", load, text, write)


NETWORK = {"network.d_model", "network.d_ff", "network.n_heads", "network.n_layers", "network.norm"}


def of_task(*overrides: str, task: str = "translation") -> LoadedRecipe:
    return load_recipe({"task": task, "data": {"train": {"world": "train"}}}, overrides, environment={})


def keys(loaded: LoadedRecipe) -> set[str]:
    return {key for key, origin in loaded.origins.items() if origin == FITTED}


STEPS, VOCABULARY = "training.steps", "tokenizer.vocab_size"
DROPOUT, RATE = "network.dropout", {"training.learning_rate", "training.schedule"}
WRITING = NETWORK | RATE | {DROPOUT}
OPEN = [
    ([], WRITING | {STEPS, VOCABULARY}),
    (["network.dropout=0.3", "network.positions=rotary"], NETWORK | RATE | {STEPS, VOCABULARY}),  # not sizes
    *(([f"training.{key}"], NETWORK | {DROPOUT, STEPS, VOCABULARY}) for key in (
        "learning_rate=1e-4", "schedule=constant", "optimizer=adafactor")),
    *(([f"training.{key}=5"], WRITING | {VOCABULARY}) for key in ("steps", "epochs", "minutes")),
    *(([f"tokenizer.{key}"], WRITING | {STEPS}) for key in ("vocab_size=9", "path=x")),
    *(([f"network{key}"], {STEPS}) for key in (
        "=transformer-base", ".n_layers=3", ".architecture=recurrent-seq2seq",
        ".positions={kind: shaw, layers: [4]}")),  # there must be a layer 4
    (["init=some/model"], set()),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "wanted"), OPEN, ids=[" ".join(row[0]) for row in OPEN])
def test_what_is_written_is_never_fitted(overrides: list[str], wanted: set[str]) -> None:
    assert keys(of_task(*overrides)) == wanted


MODELING = ("language-modeling", "masked-language-modeling", "bidirectional-language-modeling")


@pytest.mark.parametrize("task", ["translation", "summarization", *MODELING, "cbow"])
def test_every_task_gets_more_with_more_data_and_a_recipe_that_holds(tmp_path: Path, task: str) -> None:
    loaded = of_task(task=task)
    widths, steps = [], []
    for characters in (100_000, 10_000_000, 1_000_000_000):
        recipe, said = fitted(loaded.recipe, list(keys(loaded)), characters, characters // 2)
        (tmp_path / "run.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
        back = load_recipe(tmp_path / "run.yaml", environment={})
        assert back.recipe == recipe and keys(back) == set() and back.warnings == []
        assert f"{recipe.network.d_model} wide" in said and f"{recipe.training.steps:,} steps" in said
        rate = ", `training.learning_rate`" if DROPOUT in keys(loaded) else ""
        assert f"(write `network`, `tokenizer.vocab_size`{rate} or `training.steps` to choose otherwise)" in said
        widths.append((recipe.network.d_model, recipe.tokenizer.vocab_size))
        steps.append(recipe.training.steps)
    assert widths == sorted(widths) and len(set(widths)) == 3 and steps == sorted(steps) and steps[0] == 1000


def test_steps_go_through_the_data_or_count_examples() -> None:
    """7 million characters of target text are some 2 million subwords: 20 times, 4,096 an update."""
    recipe, _ = fitted(of_task().recipe, [STEPS], 14_000_000, 7_000_000)
    assert recipe.training.steps == pytest.approx(20 * 2_000_000 / 4096, abs=100)
    assert recipe.network == of_task().recipe.network  # nothing but what was asked for
    bytewise, _ = fitted(of_task("tokenizer.kind=byte").recipe, [STEPS], 14_000_000, 7_000_000)
    assert bytewise.training.steps == pytest.approx(20 * 7_000_000 / 4096, abs=100)
    # 100,000 texts, 20 times, 32 an update; characters, which are no targets of a label, do not matter
    for targets in (10, 10**9):
        recipe, _ = fitted(of_task("training.batch_tokens=32").recipe, [STEPS], 14_000_000, targets, 100_000)
        assert recipe.training.steps == 62_500


def test_little_text_for_writing_gets_more_dropout_and_a_rate_that_falls() -> None:
    """What docs/benchmarks/translation.md measured; more text, and tasks that write nothing, keep the usual."""
    for task, characters, wanted in (
        ("translation", 200_000, (0.3, 2e-3, "cosine")),
        ("translation", 640_000, (0.1, 2e-3, "cosine")),
        ("translation", 20_000_000, (0.2, 2e-3, "cosine")),
        ("translation", 80_000_000, (0.1, 1e-3, "inverse-sqrt")),
        ("language-modeling", 200_000, (0.1, 1e-3, "inverse-sqrt")),
    ):
        loaded = of_task(task=task)
        recipe, said = fitted(loaded.recipe, list(keys(loaded)), characters, characters // 2)
        training = recipe.training
        assert (recipe.network.dropout, training.learning_rate, training.schedule) == wanted
        assert ("dropout 0.3, a learning rate" in said) == (wanted[0] == 0.3)
        assert ("a learning rate of 0.002 that falls as a cosine" in said) == (wanted[1] == 2e-3)
