"""Each key of `config.json`, changed in turn in a small folder of each family, beside transformers.

The outputs are the same, or the load report names the key, or a sentence refuses the value.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.base.errors import AtentoError
from atento.released.read_layout import class_defaults
from released import CASES, saved, theirs
from test_families import compare

pytestmark = pytest.mark.filterwarnings("ignore")
FIRST = list({case[1].model_type: name for name, case in reversed(CASES.items())}.values())  # a case of each family
ACTIVATIONS = ("relu", "silu", "gelu_new", "quick_gelu")
BY_DESIGN = {  # key -> why the outputs differ from theirs although the load report is silent
    "decoder_start_token_id": "`generation_config.json` holds, as in `generate`; their networks alone read this one",
    "is_encoder_decoder": "theirs cannot be run",
    "is_decoder": "the family says which way a network reads",
    "pad_token_id": "M2M-100's positions count padding by its id in theirs, by the mask here",
}


def values_of(key: str, value: Any) -> list[Any]:
    """Other values that a file may have."""
    if isinstance(value, bool):
        return [not value]
    if "act" in key.split("_")[-1] or key.startswith(("activation", "hidden_act")):
        return [name for name in ACTIVATIONS if name != value] if isinstance(value, str) else []
    if key == "feed_forward_proj":
        return ["gated-gelu", "gated-silu", "gelu", "silu"]
    if key == "position_embedding_type":
        return ["relative_key"]
    if isinstance(value, int):
        return [value + 1, 0]
    return [value * 2 + 0.125] if isinstance(value, float) else []


def rows_of(name: str, folder: Path) -> list[tuple[str, Any]]:
    keys = class_defaults(CASES[name][1].model_type) | json.loads((folder / "config.json").read_text())
    return [(key, value) for key, now in sorted(keys.items()) for value in values_of(key, now)]


def outcome(name: str, folder: Path, key: str, value: Any) -> str:
    """What becomes of a folder with that value: same, named, refused, or what is wrong."""
    path = folder / "config.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {key: value}))
    try:
        try:
            model = atento.load(folder)
        except AtentoError as error:
            assert len(str(error)) > 30
            return "refused"
        try:
            other = CASES[name][0].from_pretrained(folder).eval()
        except Exception:  # of any class
            return "theirs is refused"
        assert model.load_report is not None
        if key in model.load_report.unread:
            return "named"
        try:
            for side in ("right", "left"):
                compare(model.network, other, side)
        except Exception as error:  # a difference, or one of the two cannot be run
            return f"differs: {type(error).__name__} {str(error)[:80]}"
        return "same"
    finally:
        path.write_text(before)


@pytest.mark.parametrize("name", FIRST)
def test_some_keys_of_config_changed_in_turn(name: str, tmp_path: Path) -> None:
    folder = saved(theirs(name), tmp_path)
    seed = f"{name} {os.environ.get('ATENTO_KEYS_SEED', '60')}"
    for key, value in random.Random(seed).sample(rows_of(name, folder), 3):
        found = outcome(name, folder, key, value)
        assert not found.startswith("differs") or key in BY_DESIGN, (key, value, found)


@pytest.mark.slow
def test_every_key_of_config_changed_in_turn(tmp_path: Path) -> None:
    differs, outcomes = set(), set()
    for number, name in enumerate(FIRST):
        folder = saved(theirs(name), tmp_path / str(number))
        for key, value in rows_of(name, folder):
            found = outcome(name, folder, key, value)
            outcomes.add(found.partition(":")[0])
            if found.startswith("differs"):
                assert key in BY_DESIGN, (name, key, value, found)
                differs.add(key)
    assert differs == set(BY_DESIGN), "a row that does nothing"
    assert outcomes >= {"same", "refused", "differs"}
