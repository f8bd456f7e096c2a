"""Every key of a recipe is explained: beside its field, in the schema, on the page and by `atento config explain`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tools.recipe_page import reference
from typer.testing import CliRunner

from atento.base.errors import RecipeError
from atento.config.reading.dumping import KeyHelp, explain, field_texts, section_classes, sections
from atento.config.reading.loading import recipe_schema
from atento.config.reading.schema import Reader, as_node, keys_of
from atento_cli.commands.config import config_app
from failing import fails

PAGE = Path(__file__).parents[2] / "docs" / "recipe.md"
KEYS = [(cls, one) for cls, (_, keys) in zip(section_classes(), sections()) for one in keys]


@pytest.mark.parametrize("one", [one for _, one in KEYS], ids=lambda one: one.key)
def test_a_text_is_a_sentence_or_two(one: KeyHelp) -> None:
    assert one.meaning.endswith(".") and 15 <= len(one.meaning) <= 400, one.meaning
    assert '""' not in one.meaning and ":," not in one.meaning  # brackets that are no range stay in the text


def test_every_key_has_a_text_beside_its_field_in_the_schema_and_on_the_page() -> None:
    texts = {cls: field_texts(cls) for cls in section_classes()}
    assert [f"{cls.__name__}.{name}" for cls in texts for name in keys_of(cls) if not texts[cls].get(name)] == []
    assert len(KEYS) > 160 and len(RANGES) > 60
    made = recipe_schema()
    for name, part in {"Recipe": made, **made["$defs"]}.items():
        assert all(value.get("description") for value in part["properties"].values()), name
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `python tools/recipe_page.py`"


def refused(one: KeyHelp, value: Any) -> list[Any]:
    """Values just outside a range that is told."""
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
