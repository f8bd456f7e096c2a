"""D5: every field of a recipe against wrong types, NaN, infinities, -1, huge numbers, unknown keys, YAML bombs."""

import json
import math
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from atento.base.errors import RecipeError
from atento.config.literals import OneOf
from atento.config.reading import loading
from atento.config.reading.loading import load_recipe
from atento.config.reading.recipe_layers import RecipeFile, read_files, shipped_text
from atento.config.reading.schema import Reader, _adapter, _exactly
from atento.config.recipe import Recipe
from failing import fails

SHIPPED = "micro-world-en-pt"
HUGE = 10**30


def leaves(cls: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a recipe that holds a plain value, with its type, found by reflection."""
    for part in fields(cls):
        hint = get_type_hints(cls)[part.name]
        inside = get_args(hint)
        either = next((arm for arm in inside if is_dataclass(arm)), None) if get_origin(hint) is not tuple else None
        if is_dataclass(hint) or either is not None:
            yield from leaves(either or hint, f"{path}{part.name}.")
        elif get_origin(hint) is tuple and is_dataclass(inside[0]):
            yield from leaves(inside[0], f"{path}{part.name}.0.")
        else:
            yield f"{path}{part.name}", hint


LEAVES = dict(leaves(Recipe))
SECTIONS = sorted({key.rpartition(".")[0] for key in LEAVES})


def alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def wrong(hint: Any, *, from_end: bool = False) -> list[Any]:
    """Values that no field of this type may take; -1 is one unless the field counts from the end."""
    kinds = alternatives(hint)
    plain = [kind for kind in kinds if isinstance(kind, type)]
    bad: list[Any] = [{"a": 1}, {}, math.nan, math.inf, -math.inf, [[1]], [{}]]
    listed = any(get_origin(kind) is tuple for kind in kinds)
    bad += [5, 0.5, True] if listed else [[], [1], ["a"]]
    if any(get_origin(kind) is Mapping for kind in kinds):
        bad.remove({})  # nothing named
    if str not in plain and not listed:
        bad += ["", "no such thing", "1e-4x", "NaN"]
    if bool not in plain:
        bad += [True, False]
    if int not in plain and float not in plain:
        bad += [0, 1, -1, 7.5, HUGE]
    if int in plain:
        bad += [1.5, 1e-4, HUGE, -HUGE, 2**63]
    if int in plain and str not in plain and not from_end:
        bad += [-1]
    if any(get_args(kind)[:1] == (int,) for kind in kinds if get_origin(kind) is tuple):
        bad = [value for value in bad if isinstance(value, bool) or value not in (0, 1)]  # one stands for a list of one
    return bad


def test_the_table_covers_the_recipe() -> None:
    assert {"task", "training.learning_rate", "data.train.0.source", "network.positions.kind"} <= set(LEAVES)
    assert sum(len(wrong(hint)) for hint in LEAVES.values()) > 10 * len(LEAVES)


def named(key: str, error: RecipeError) -> bool:
    """Whether the message names the field: by its dotted key, or by its own name in backticks; of a task also this."""
    key = key.removeprefix("tasks.0.") if str(error).endswith("(task 'a')") else key
    parts = key.split(".")
    return key in str(error) or any(f"`{'.'.join(parts[n:])}`" in str(error) for n in range(len(parts)))


_POINT = "data.mixing.points.0.weights"


def _beside(key: str) -> dict[str, Any]:
    """What a field of `init`, of a point of a mixture, of a projection or of an objective needs beside it."""
    if key.endswith(_POINT):
        of_task = key.removesuffix(_POINT)
        return {f"{of_task}data.mixing.points.0.at": 0.0, f"{of_task}data.mixing.kind": "weights"}
    section = "network.features" if key.startswith("network.features.") else key.partition(".")[0]
    model = {f"{section}.model": "runs/base"} if section in ("init", "teacher", "network.features") else {}
    return {
        "network.projections.0.inputs": {"network.projections.0.width": 8},
        "objective.0.sampled": {"objective.0.kind": "bidirectional"},
        "objective.0.matryoshka": {"objective.0.kind": "multiple-negatives"},
    }.get(key, model)


DATA: dict[str, Any] = {"train": [{"world": "train"}]}
LABELLED = {"task": "classification", "data": {"train": [{"world": "train", "labels": "tense"}]}}


def recipe_with(key: str) -> dict[str, Any]:
    """A right recipe to which a key can be added: with `tasks` for their keys, else with `task`."""
    tasks = [{"name": name, **LABELLED} for name in "ab"]
    return {"tasks": tasks} if key.startswith("tasks.") else {"task": "translation", "data": DATA}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of recipes in one line: reading the file is most of the time that loading takes."""
    folder = tmp_path_factory.mktemp("recipe")
    for key in ("task", "tasks."):
        (folder / f"{key}.yaml").write_text(json.dumps(recipe_with(key)), encoding="utf-8")
    return folder


@pytest.mark.parametrize("key", LEAVES)
def test_every_field_refuses_what_it_cannot_be(short: Path, key: str) -> None:
    """A third of the values for each field, and each value for a third of the fields of its type."""
    of_type = [other for other in LEAVES if LEAVES[other] == LEAVES[key]]
    refuses(short, key, of_type.index(key) % 3, 3)


@pytest.mark.slow
def test_every_field_refuses_all_that_it_cannot_be(short: Path) -> None:
    for key in LEAVES:
        refuses(short, key)


def refuses(short: Path, key: str, first: int = 0, step: int = 1) -> None:
    for value in wrong(LEAVES[key], from_end=key == "embedding.layer")[first::step]:
        if key.endswith(_POINT) and type(value) in (int, float) and 0 < value < math.inf:
            continue  # one weight stands for a list of one
        if key in ("objective.0.matryoshka", "network.features.layers") and type(value) is int and value > 0:
            continue  # as does one length, or one layer
        with pytest.raises(RecipeError) as caught:
            file = short / ("tasks..yaml" if key.startswith("tasks.") else "task.yaml")
            beside = {"network.n_layers": 2} | _beside(key)  # numbers of layers are held against it
            load_recipe(file, beside | {key: value}, environment={})
            pytest.fail(f"{key} took {value!r}")
        assert named(key, caught.value), f"{key} = {value!r}: {caught.value}"
        assert str(caught.value).startswith("command line: "), f"{key} = {value!r}: {caught.value}"
        assert not any(word in str(caught.value) for word in ("pydantic", "Input should", "Traceback"))


@pytest.mark.parametrize("key", [key for key, hint in LEAVES.items() if type(None) not in alternatives(hint)])
def test_null_in_a_file_is_refused_where_there_is_no_null(key: str, tmp_path: Path) -> None:
    written = json.loads(json.dumps(recipe_with(key)))
    *heads, last = key.split(".")
    inner: Any = written
    for head, after in zip(heads, [*heads[1:], last], strict=False):
        inner = inner[int(head)] if isinstance(inner, list) else inner.setdefault(head, [{}] if after == "0" else {})
    inner[last] = None
    path = tmp_path / "my.yaml"
    path.write_text(json.dumps(written), encoding="utf-8", newline="\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, environment={})
    assert named(key, caught.value) and str(caught.value).startswith(f"{path}:1:") and "null" in str(caught.value)


@pytest.mark.parametrize("section", SECTIONS)
def test_unknown_keys_name_the_nearest(section: str) -> None:
    lead = f"{section}." if section else ""
    for known in [key for key in LEAVES if key.rpartition(".")[0] == section]:
        name = known.rpartition(".")[2]
        with pytest.raises(RecipeError) as caught:
            load_recipe(SHIPPED, [f"{lead}{name}x=1"], environment={})
        assert f"unknown key '{name}x'" in str(caught.value) and f"'{name}'?" in str(caught.value)


NAMES = st.sampled_from([key.rpartition(".")[2] for key in LEAVES]) | st.text(max_size=5)
NUMBERS = st.booleans() | st.integers() | st.floats() | st.just(10**400)
JUNK = st.recursive(
    st.none() | NUMBERS | st.text(max_size=10) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*LEAVES, *filter(None, SECTIONS), "data.train", "network.preset"]) | st.text(max_size=12)


@settings(max_examples=75)
@given(st.dictionaries(KEYS, JUNK, min_size=1, max_size=3))
@example({"network": True})
@example({"network": [[]]})
@example({"task": "no such task"})
def test_any_override_is_taken_or_refused_in_one_sentence(changes: dict[str, object]) -> None:
    try:
        loaded = load_recipe(SHIPPED, changes, environment={})
    except RecipeError as error:
        assert str(error)
    else:
        assert isinstance(loaded.recipe, Recipe) and loading.dump_recipe(loaded.recipe)


@settings(max_examples=200)
@given(st.lists(st.text(max_size=20) | st.builds("{}={}".format, KEYS, st.text(max_size=12)), max_size=3))
def test_any_text_on_the_command_line_is_taken_or_refused(overrides: list[str]) -> None:
    try:
        load_recipe(SHIPPED, overrides, environment={})
    except RecipeError as error:
        assert str(error)


@settings(max_examples=75)
@given(st.data())
def test_a_damaged_recipe_is_taken_or_refused(data: st.DataObject) -> None:
    text = shipped_text(SHIPPED)
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 30))
    new = data.draw(st.sampled_from(["", text[at : at + length] * 2, "\t", ":", "- ", "{", "*a", "\x00", "é", "!!x "]))
    try:
        tree, _ = read_files(RecipeFile("my.yaml", text[:at] + new + text[at + length :], None, Path(), "my"))
        Reader().build(Recipe, tree, "")
    except RecipeError as error:
        assert str(error).startswith("my.yaml:")


@pytest.mark.parametrize("key", ["metrics", "data.train", "training", "network.positions", "init"])
def test_a_bomb_under_any_key(key: str) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    value = "{" + ", ".join(lines) + "}"
    fails(RecipeError, f"command line: {key}: .* 4000", load_recipe, SHIPPED, [f"{key}={value}"], environment={})


HINTS: list[object] = [str, int, float, bool, type(None), str | None, int | None, int | float, Literal["a", "b"]]
HINTS += [Literal["a", "b"] | None, tuple[str, ...], tuple[int, ...] | None, tuple[float, float], dict[str, int]]
HINTS += [Annotated[str, OneOf({"a": 1})], Annotated[int, Field(ge=2)], Literal[1, 2], tuple[Literal["a"], ...] | str]
VALUES: list[object] = [None, True, False, 0, 1, -3, 2.0, 1.5, float("inf"), float("nan"), "", "a", "c", "1", "\ud800"]
VALUES += [(), ("a",), ("a", "c"), (1, 2), (1, True), (1.0, 2.0), (1, "a"), ("\udfff",), ["a"], {}, {"a": 1}, b"a"]


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: re.sub(r" at 0x\w+", "", str(hint)))
def test_what_is_taken_at_once_is_what_pydantic_returns(hint: object) -> None:
    for value in filter(lambda value: _exactly(value, hint), VALUES):
        found = _adapter(hint).validate_python(value)
        assert (type(found), repr(found)) == (type(value), repr(value))


def test_most_values_are_taken_at_once() -> None:
    """So that a start makes no adapter: `learning_rate: 1`, a mapping and a wrong value are left to pydantic."""
    taken = [(hint, value) for hint in HINTS for value in VALUES if _exactly(value, hint)]
    assert {("a", str), (1, int), (1.5, float), (None, type(None)), (("a", "c"), tuple[str, ...])} <= {
        (value, hint) for hint, value in taken if not isinstance(value, dict | list)
    }
    assert not any(_exactly(value, hint) for hint, value in [(float, 1), (int, True), (Literal["a"], "b"), (str, 1)])
