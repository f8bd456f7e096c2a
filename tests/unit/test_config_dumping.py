"""Recipes going out: YAML that reads back equal, the schema of editors, differences, and what explains each key."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.recipe_page import reference
from typer.testing import CliRunner

from atento.base.errors import RecipeError
from atento.config.presets import preset
from atento.config.reading.dumping import KeyHelp, explain, section_classes, sections
from atento.config.reading.loading import dump_recipe, load_recipe, recipe_difference, recipe_schema
from atento.config.reading.schema import Reader, as_node, keys_of
from atento.config.recipe import DataConfig, Recipe, SourceConfig, TokenizerConfig, TrainingConfig, recipe_to_dict
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.initial import InitConfig, LoraConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.runs.run_identity import MAY_CHANGE, _difference
from atento_cli.commands.config import config_app
from failing import fails

TRICKY = ["", " x ", "- a", "a: b", "a\nb", "\x85", "\u2028", "\ufeff", "\U0001f600"]
TRICKY += ["no", "1e-4", "0o10", "0x1", "010", "1_0", "null", "~", "é", "#", "'", "12:30", "2020-01-01", "=", "<<"]
TRICKY += [".inf", ".nan", "@a", "%", "!x", "*x", "&x"]
TEXTS = st.sampled_from(TRICKY) | st.text(max_size=12)
PATHS = TEXTS.filter(bool)
POSITIVE = st.integers(1, 2**62)
SOURCES = st.one_of(
    st.builds(SourceConfig, source=PATHS, target=PATHS, count=st.none() | POSITIVE),
    st.builds(SourceConfig, file=PATHS, source=st.integers(0, 3), target=st.integers(4, 9)),
    st.builds(SourceConfig, file=PATHS, source=PATHS.map("a".__add__), target=PATHS.map("b".__add__)),
    st.builds(SourceConfig, world=st.sampled_from(["train", "structures"]), seed=st.integers(0, 2**62)),
)
SPLITS = st.lists(SOURCES, max_size=2).map(tuple)
TRAIN = st.lists(SOURCES, min_size=1, max_size=3).map(tuple)
DATA = st.builds(DataConfig, train=TRAIN, valid=SPLITS, test=SPLITS, folder=st.none() | TEXTS, skip_bad=st.booleans())
TARGETS = st.sampled_from([("query",), ("input", "outer")])
INIT = st.builds(
    InitConfig,
    model=PATHS,
    train=st.sampled_from(["all", "head", "last-2", "bias", "lora"]),
    lora=st.none() | st.builds(LoraConfig, rank=st.integers(1, 99), targets=TARGETS),
    layer_decay=st.floats(0, 1, exclude_min=True),
)
RECIPES = st.builds(
    Recipe,
    task=st.just("translation"),
    data=DATA,
    name=TEXTS.filter(lambda text: text not in ("", ".", "..") and not set(text) & set("/\\\0\n")),
    tokenizer=st.builds(TokenizerConfig, path=st.none() | TEXTS, lowercase=st.booleans()),
    network=st.sampled_from([preset("transformer-tiny"), NetworkConfig(positions=PositionConfig(kind="none"))]),
    init=st.none() | INIT,
    training=st.builds(
        TrainingConfig,
        steps=POSITIVE,
        learning_rate=st.floats(0, 1, exclude_max=True) | st.floats(0, 10),
        epochs=st.none() | st.floats(1e-300, 1e300),
        label_smoothing=st.floats(0, 1, exclude_max=True),
        betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
    ),
    decoding=st.builds(DecodingConfig, length_penalty=st.floats(-50, 50), max_new_tokens=st.none() | POSITIVE),
    metrics=st.sampled_from([(), ("bleu",), ("chrf", "ter")]),
)


@settings(max_examples=30)
@given(RECIPES)
def test_what_is_written_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> None:
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(dump_recipe(recipe), encoding="utf-8", newline="\n")
    back = load_recipe(path, environment={}).recipe
    assert back == recipe and recipe_difference(back, recipe) == []


def test_the_annotated_text_reads_back_equal_and_differences_are_told(tmp_path: Path) -> None:
    loaded = load_recipe("micro-world-en-pt", ["training.steps=9", "init=a # b"], environment={})
    text = dump_recipe(loaded.recipe, loaded.origins)
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8", newline="\n")
    assert load_recipe(tmp_path / "my.yaml", environment={}).recipe == loaded.recipe
    lines = {line.split(":")[0].strip(): line.partition("  # ")[2] for line in text.splitlines()}
    assert lines["steps"] == "command line" and lines["clip"] == "default"
    assert lines["d_model"] == "preset transformer-tiny" and lines["task"].startswith("micro-world-en-pt.yaml:")
    # PyYAML's own safe loader as oracle, numbers and texts alike
    data = DataConfig(train=(SourceConfig(source="1e-4", target="0o10"),))
    training = TrainingConfig(learning_rate=1e-5, clip=1e22)
    recipe = Recipe(task="translation", name="no", init=InitConfig("12:30"), data=data, training=training)
    assert yaml.safe_load(dump_recipe(recipe)) == json.loads(json.dumps(recipe_to_dict(recipe)))
    assert "\nname: ação\n" in dump_recipe(replace(recipe, name="ação"))
    a = load_recipe("micro-world-en-pt", environment={}).recipe
    a = replace(a, training=replace(a.training, learning_rate=2e-3))
    training, data = replace(a.training, learning_rate=5e-4), replace(a.data, valid=(), skip_bad=True)
    assert recipe_difference(a, a) == []
    found = recipe_difference(a, replace(a, training=training, data=data, metrics=("bleu",)))
    assert "training.learning_rate: 0.002 -> 0.0005" in found
    assert "metrics: [bleu, chrf] -> [bleu]" in found and "data.skip_bad: false -> true" in found
    assert "data.valid.0.world: valid -> (absent)" in found and "data.valid: (absent) -> []" in found
    keys = [line.split(":")[0] for line in found]
    assert all(key == "metrics" or key.startswith(("training.learning_rate", "data.")) for key in keys)


def test_a_resumed_run_names_another_test_file_and_pages_the_keys_that_may_change(tmp_path: Path) -> None:
    path, lines = tmp_path / "r.yaml", list[str]()
    path.write_text("task: language-modeling\ndata: {train: a.txt, test: b.txt}\n", encoding="utf-8")
    recipe = load_recipe(path).recipe
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    other = replace(recipe.data, test=(replace(recipe.data.test[0], file="c.txt"),))
    training = replace(recipe.training, checkpoint_every=7)
    for data, found in (recipe.data, []), (other, ["warning: data.test.0.file: b.txt -> c.txt: test records are not"]):
        resumed = replace(recipe, data=data, training=training)
        assert _difference({"data": "x"}, resumed, SimpleNamespace(fingerprint="x"), tmp_path, lines.append) is None  # type: ignore[arg-type]
        assert [line[: len(start)] for line, start in zip(lines, found, strict=True)] == found
    for page in ("train-a-translator.md", "train-a-translator.pt-BR.md"):
        text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
        assert [key for key in MAY_CHANGE if f"`{key.removeprefix('training.')}`" not in text] == []


def test_schema_knows_every_key_with_its_text_and_no_other_and_allows_the_short_forms() -> None:
    schema = recipe_schema()
    json.dumps(schema, allow_nan=False)
    parts = {"Recipe": schema, **schema["$defs"]}
    assert parts.keys() == {cls.__name__ for cls in section_classes()}
    for cls in section_classes():
        part, extra = parts[cls.__name__], {Recipe: {"extends"}, NetworkConfig: {"preset"}}.get(cls, set())
        assert set(part["properties"]) == {item.name for item in fields(cls)} | extra
        assert part["additionalProperties"] is False
        assert all(value.get("description") for value in part["properties"].values()), cls
    choices = schema["$defs"]["TrainingConfig"]["properties"]["schedule"]["enum"]
    assert choices == ["inverse-sqrt", "cosine", "linear", "constant", "wsd"]
    data = schema["$defs"]["DataConfig"]["properties"]
    assert {"$ref": "#/$defs/SourceConfig"} in data["train"]["anyOf"]
    assert any(part.get("type") == "string" for part in data["train"]["anyOf"])
    assert {"type": "string"} in schema["properties"]["metrics"]["anyOf"]
    assert any(part.get("type") == "string" for part in schema["properties"]["tokenizer"]["anyOf"])
    assert any("transformer-tiny" in part.get("enum", ()) for part in schema["properties"]["network"]["anyOf"])
    positions = schema["$defs"]["NetworkConfig"]["properties"]["positions"]["anyOf"]
    assert any("sinusoidal" in part.get("enum", ()) for part in positions)


PAGE = Path(__file__).parents[2] / "docs" / "recipe.md"
KEYS = [(cls, one) for cls, (_, keys) in zip(section_classes(), sections()) for one in keys]


@pytest.mark.parametrize("one", [one for _, one in KEYS], ids=lambda one: one.key)
def test_a_text_is_a_sentence_or_two(one: KeyHelp) -> None:
    assert one.meaning.endswith(".") and 15 <= len(one.meaning) <= 400, one.meaning
    assert '""' not in one.meaning and ":," not in one.meaning  # brackets that are no range stay in the text


def test_every_key_is_on_the_page() -> None:
    assert len(KEYS) > 160 and len(RANGES) > 60
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `python tools/recipe_page.py`"


def refused(one: KeyHelp, value: Any) -> list[Any]:
    least = re.match(r"(?:at least )?(-?[\d,]+)(?: or more)?(?:;|$)", value)
    span = re.match(r"(-?[\d,]+) to (below )?([\d,]+)", value)
    above = re.match(r"above ([\d,]+)", value)
    number = lambda text: int(text.replace(",", ""))  # noqa: E731
    step = 1 if "integer" in one.type else 1e-3
    if span:
        return [number(span[1]) - step, number(span[3]) + (0 if span[2] else step)]
    if above:
        return [number(above[1])]
    return [number(least[1]) - step] if least else []


RANGES = [(cls, one, value) for cls, one in KEYS for value in refused(one, one.range)]


@pytest.mark.parametrize(("cls", "one", "value"), RANGES, ids=lambda part: getattr(part, "key", None))
def test_a_range_that_is_told_is_held(cls: type, one: KeyHelp, value: Any) -> None:
    name = one.key.rpartition(".")[2]
    given: dict[str, Any] = {name: value}
    if "kind" in keys_of(cls) and name != "kind":
        given["kind"] = {"HeadConfig": "next-sentence", "PositionConfig": "t5"}.get(cls.__name__, "bpe")
    with pytest.raises(RecipeError):
        Reader().fit(as_node(given, "test"), cls, "section")


def test_a_key_and_a_section_on_the_command_line() -> None:
    shown = CliRunner().invoke(config_app, ["explain", "training.clip"])
    assert shown.exit_code == 0 and "default  1.0" in shown.output and "0: never" in shown.output
    section = CliRunner().invoke(config_app, ["explain", "training"])
    assert all(f"training.{name}" in section.output for name in ("steps", "warmup", "keep"))
    assert len(CliRunner().invoke(config_app, ["explain"]).output.splitlines()) == len(KEYS)
    records = json.loads(CliRunner().invoke(config_app, ["explain", "decoding", "--json"]).output)
    assert [one["key"] for one in records][:2] == ["decoding", "decoding.beam"]
    # a list is walked with or without a place in it
    assert explain("data.valid.0.file") == explain("data.valid.file")


UNKNOWN = [("training.stpes", "did you mean 'steps'"), ("nothing", "unknown key 'nothing'")]
UNKNOWN += [("learning_rate", "did you mean training.learning_rate?"), ("training.steps.x", "it has no keys")]


@pytest.mark.parametrize(("key", "says"), UNKNOWN)
def test_an_unknown_key_is_named_with_the_nearest(key: str, says: str) -> None:
    fails(RecipeError, re.escape(says), explain, key)
