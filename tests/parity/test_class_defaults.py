"""Keys of released files: each has a row, and one that a file leaves out the default of the class of transformers."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import atento
from atento.base.errors import ModelError
from atento.config.sections.network_parts import by_key
from atento.config.tables.released_keys import FILES
from atento.released import FAMILIES
from atento.released.read_layout import ReadKeys, class_defaults
from failing import fails
from folders import edited
from locked import none_left
from released import CASES, saved, theirs
from test_families import compare

DECODER = frozenset({"decoder.block.0", "encoder.embed_tokens.weight"})  # by which T5 is told from its encoder
DERIVED = {"scale_decoder_outputs", "num_labels"}  # T5's class has it from `tie_word_embeddings`; BART's has labels


def class_keys(model_type: str) -> dict[str, Any]:
    """The keys of a configuration class beside those of all classes, with their defaults as its source has them."""
    shared = {field.name for field in dataclasses.fields(hf.PreTrainedConfig)}
    return {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(hf.CONFIG_MAPPING[model_type])
        if field.name not in shared
    }


def read(model_type: str, data: dict[str, Any]) -> dict[str, Any]:
    family = FAMILIES[model_type]
    names = DECODER if model_type in ("t5", "mt5") else frozenset()
    return by_key(family.read(ReadKeys(data), names, family.tying(data, ["x"])))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_of_a_configuration_class_has_a_row(model_type: str) -> None:
    table, keys = class_defaults(model_type), class_keys(model_type)
    none_left((table.keys() ^ keys.keys()) - DERIVED, f"{model_type}: keys without a row", hf)
    none_left({key for key in table.keys() & keys.keys() if table[key] != keys[key]}, f"{model_type}: defaults", hf)
    full = hf.CONFIG_MAPPING[model_type]().to_dict()
    data = ReadKeys(full)
    FAMILIES[model_type].read(data, frozenset(DECODER), FAMILIES[model_type].tying(full, ["x"]))
    none_left(data.unread(), f"{model_type}: keys that are named in the load report of a default configuration", hf)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_key_that_a_file_leaves_out_has_the_default_of_its_class(model_type: str) -> None:
    full = hf.CONFIG_MAPPING[model_type]().to_dict()
    expected = read(model_type, full)
    for key in class_keys(model_type):
        less = {name: value for name, value in full.items() if name != key}
        try:
            assert read(model_type, less) == expected, key
        except KeyError as error:  # a size, without which the file is damaged
            assert error.args == (key,)


def test_every_setting_of_generation_has_a_row() -> None:
    keys = FILES["generation_config.json"]
    none_left([key for key in vars(hf.GenerationConfig()) if not keys.known(key)], "settings without a row", hf)
    assert not keys.unread(hf.GenerationConfig().to_dict())
    assert keys.unread({"num_beams": 3, "sequence_bias": [[[1], 2.0]], "newest": 1}) == ["newest", "sequence_bias"]


def test_keys_of_the_other_files_are_named_in_the_load_report(tmp_path: Path) -> None:
    folder = saved(theirs("bert"), tmp_path)
    edited(folder / "tokenizer_config.json", cls_token="[CLS]", truncation_side="left", newest=1)
    edited(folder / "special_tokens_map.json", pad_token="[PAD]", other_token="[X]")
    unread = ["special_tokens_map.json: other_token", "tokenizer_config.json: newest"]
    report = atento.load(folder).load_report
    assert report is not None and report.unread == unread
    assert f"2 keys of the folder's files not read ({', '.join(unread)})" in str(report)


@pytest.mark.parametrize("case", {case[1].model_type: name for name, case in reversed(CASES.items())}.values())
def test_a_file_of_keys_that_differ_is_the_same_model(case: str, tmp_path: Path, monkeypatch: Any) -> None:
    """With all keys, those that `to_diff_dict` writes, and sizes and ids alone, beside theirs of the same file."""
    make, config = CASES[case]
    defaults = class_defaults(config.model_type)
    plain = {}  # keys that may have the default of the class
    for key, value in config.to_dict().items():
        free = "token_id" not in key and not key.endswith(("dropout", "pdrop", "prob", "rate"))
        if free and defaults.get(key) is not None and isinstance(value, bool | float | str):
            plain[key] = defaults[key]
    changed = type(config)(**config.to_dict() | plain)
    monkeypatch.setitem(CASES, case, (make, changed))
    network = theirs(case)
    folder = saved(network, tmp_path)
    sizes = {key: value for key, value in changed.to_dict().items() if key not in plain}
    configs = []
    for data in (changed.to_dict(), changed.to_diff_dict(), sizes):
        (folder / "config.json").write_text(json.dumps(data | {"model_type": config.model_type}))
        model = atento.load(folder)
        configs.append(model.network.config)
        assert configs[-1] == configs[0]
    compare(model.network, type(network).from_pretrained(folder).eval(), "right")


def test_a_regression_of_several_numbers_is_refused_by_name(tmp_path: Path) -> None:
    folder = saved(theirs("bert classification"), tmp_path)
    edited(folder / "config.json", problem_type="regression")
    fails(ModelError, "`problem_type` regression with 3 labels is not built here", atento.load, folder)
