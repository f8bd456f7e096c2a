"""The YAML 1.2 reader: what plain scalars mean, where things stand, and what is refused."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import RecipeError
from atento.config.reading.yaml12 import MAX_BYTES, Node, read_yaml


def read(text: str) -> Node:
    return read_yaml(text, lambda line, column: f"my.yaml:{line}:{column}")


# YAML 1.2.2, section 10.3.2 (core schema), with the traps of YAML 1.1 beside it.
MEANINGS = [
    ("null", None), ("Null", None), ("NULL", None), ("~", None), ("", None), ("nULL", "nULL"), ("none", "none"),
    ("true", True), ("True", True), ("FALSE", False), ("tRUE", "tRUE"),
    ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"), ("NO", "NO"),
    ("0", 0), ("-19", -19), ("+3", 3), ("010", 10), ("0o10", 8), ("0o8", "0o8"), ("0x1F", 31), ("-0x1", "-0x1"),
    ("0b11", "0b11"), ("1_000", "1_000"), ("12:30", "12:30"), ("1:30:00", "1:30:00"),
    ("1e-4", 1e-4), ("1E3", 1000.0), ("0.", 0.0), ("-0.0", -0.0), (".5", 0.5), ("12e03", 12000.0), ("-2E+05", -2e5),
    ("1.5.2", "1.5.2"), (".", "."), ("e5", "e5"), ("+.inf", math.inf), ("-.INF", -math.inf),
    ("inf", "inf"), ("nan", "nan"), ("2020-01-01", "2020-01-01"), ("2001-12-14t21:59:43.10-05:00",) * 2,
    ("=", "="), ("<<", "<<"), ("'12'", "12"), ('"true"', "true"), ("!!str 12", "12"), ("! 12", "12"),
    ("café", "café"), ("١٢", "١٢"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "meaning"), MEANINGS)
def test_core_schema(text: str, meaning: object) -> None:
    value = read(f"a: {text}").bare()["a"]
    assert value == meaning and type(value) is type(meaning)


def test_places_aliases_and_values_of_keys() -> None:
    assert read("-").bare() == [None]
    assert math.isnan(read(".nan").value) and math.isnan(read(".NaN").value)
    root = read("# a comment\na:\n  bb: 12\n  c: [x, {d: y}]\n")
    inner = root.value["a"].value
    assert root.value["a"].key_position == "my.yaml:2:1"
    assert (inner["bb"].key_position, inner["bb"].position) == ("my.yaml:3:3", "my.yaml:3:7")
    assert inner["c"].value[1].value["d"].position == "my.yaml:4:14"
    assert [inner["bb"].plain, read("'12'").plain] == ["12", ""]
    root = read("a: &x {k: 1}\nb: *x\nc: [*x, *x]\n")
    assert root.bare() == {"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}, {"k": 1}]}
    assert root.value["b"].key_position == "my.yaml:2:1" and root.value["b"].position == "my.yaml:1:4"
    deepest = read("a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 11 + "*a" + "]" * 11)  # 1 + 11 + 20 levels
    assert deepest.value["b"].height == 31


def bomb(levels: int, wide: int) -> str:
    """A mapping whose last value stands for wide ** levels texts."""
    lines = ["a0: &a0 x"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * wide)}]" for n in range(1, levels + 1)]
    return "\n".join(lines)


REFUSED = [
    ("a: 1\nb: 2\na: 3", "my.yaml:3:1: duplicate key 'a'; first defined at my.yaml:1:1"),
    ("a: {b: 1, b: 1}", "my.yaml:1:11: duplicate key 'b'"),
    ("a: b: c", "my.yaml:1:5: not valid YAML: mapping values are not allowed here"),
    ("a: [1", "my.yaml:1:6: not valid YAML"),
    ("a:\n\t- b", "my.yaml:2:1: not valid YAML"),
    ("a: 1\n---\nb: 2", "my.yaml:2:1: a recipe is one YAML document, and a second one begins here"),
    ("1: a", "my.yaml:1:1: a key must be text (in quotes if need be): got 1"),
    ("? [a, b]\n: c", "my.yaml:1:3: a key must be text (in quotes if need be): got a list or a mapping"),
    ("{? : c}", "my.yaml:1:3: a key must be text (in quotes if need be): got null"),
    ("a: !!python/object/apply:os.system [ls]", "my.yaml:1:4: tags are not supported in a recipe: got !!python"),
    ("a: !include b.yaml", "my.yaml:1:4: tags are not supported in a recipe: got !include"),
    ("a: !!int '3'", "my.yaml:1:4: tags are not supported in a recipe: got !!int"),
    ("a: *b", "my.yaml:1:4: alias *b has no anchor &b that ends before it"),
    ("a: &a [*a]", "my.yaml:1:8: alias *a has no anchor &a that ends before it"),
    ("a: 1\nb: \x00", "my.yaml:2:4: character U+0000 is not allowed in YAML"),
    ('a: "\\UFFFFFFFF"', "not valid YAML: an escape or a directive holds a number out of range"),
    ("a:\n  b: " + "9" * 5000, "my.yaml:2:6: a.b: an integer of 5000 characters is too large"),
    ("[" * 33, "my.yaml:1:33: nested deeper than 32 levels"),
    ("{a: " * 100_000, "nested deeper than 32 levels"),
    ("a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*a" + "]" * 20, "nested deeper than 32 levels"),
    ("a: &a x\nb: [" + "*a, " * 101 + "]", "a recipe may use at most 100 aliases"),
    (bomb(9, 9), "aliases make this more than 4000 values"),
    ("[" + "0," * 10_000 + "]", "a recipe may hold at most 4000 values"),
    ("#" * (MAX_BYTES + 1), f"my.yaml:1:1: a recipe may hold at most {MAX_BYTES} bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read(text)
    assert message in str(caught.value) and str(caught.value).startswith("my.yaml:")


def test_what_the_limits_allow() -> None:
    assert read("[" * 32 + "]" * 32).height == 32
    assert len(read("a: &a x\nb: [" + "*a, " * 100 + "]").value["b"].value) == 100


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=12)
TREES = st.recursive(SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=6), x, max_size=4))


@given(TREES)
def test_reads_what_json_writes(tree: object) -> None:
    """YAML 1.2 holds JSON: Python's own encoder is the oracle."""
    text = json.dumps(tree, ensure_ascii=True).replace("-Infinity", "-.inf").replace("Infinity", ".inf")
    if ".inf" in text and "inf" in json.dumps(tree).lower().replace("infinity", ""):
        return  # the words stand inside a text
    if "\\ud" in text.lower():
        return  # PyYAML reads \u escapes one by one: a pair stays two halves
    assert read(text).bare() == tree


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@`#,? \n\t0.1e\\~", max_size=60) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read(text)
    except RecipeError as error:
        assert str(error).startswith("my.yaml:")
