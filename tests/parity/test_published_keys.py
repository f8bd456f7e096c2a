"""Keys of released files: each has a row and its class's default; no published one is unknown or ignored (K2)."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

import atento
from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.tables.released_keys import FILES, MODULES
from atento.models.generation_settings import read_generation
from atento.released import FAMILIES
from atento.released.read_layout import ReadKeys, class_defaults
from failing import fails, none_left
from folders import edited
from published_keys import CONFIG, GENERATION, PUBLISHED
from released import CASES, saved, theirs
from test_families import compare

DECODER = frozenset({"decoder.block.0", "encoder.embed_tokens.weight"})  # by which T5 is told from its encoder
_SAMPLED = {"sample": True, "beam": 1}
_QWEN = {**_SAMPLED, "count_prompt": True}
_LENGTHS = {"max_new_tokens": 141, "min_new_tokens": 55}
DECODING: dict[str, dict[str, Any]] = {  # what their generation settings make the default
    "Llama-3.1-8B-Instruct": {**_SAMPLED, "temperature": 0.6, "top_p": 0.9, "top_k": 50},
    "Llama-2-7b-chat": {**_SAMPLED, "temperature": 0.6, "top_p": 0.9, "top_k": 50},
    "Qwen2.5-7B-Instruct": {**_QWEN, "repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20, "top_p": 0.8},
    "m2m100_418M": {"beam": 5, "max_new_tokens": 199},
    "bart-large-cnn": {"beam": 4, "length_penalty": 2.0, "no_repeat_ngrams": 3} | _LENGTHS,
    "opus-mt-en-de": {"beam": 6, "until": "likely", "max_new_tokens": 511},
    "pegasus-xsum": {"beam": 8, "length_penalty": 0.6, "max_new_tokens": 63},
}
WRITING: dict[str, tuple[Any, ...]] = {  # the ids that end an output, its forced first and last, and what is banned
    "Llama-3.1-8B-Instruct": ({128001, 128008, 128009}, None, None, ()),
    "Qwen2.5-7B-Instruct": ({151645, 151643}, None, None, ()),
    "bart-large-cnn": ({2}, 0, 2, ()),
    "opus-mt-en-de": ({0}, None, 0, ((58100,),)),
}


def network(data: dict[str, Any]) -> tuple[NetworkConfig, list[str]]:
    keys, family = ReadKeys(data), FAMILIES[data["model_type"]]
    return family.read(keys, DECODER, family.tying(data, ["x"])), keys.unread()


@pytest.mark.parametrize("name", PUBLISHED)
def test_k2_no_key_of_a_published_file_is_unknown(name: str) -> None:
    for file, data in PUBLISHED[name].items():
        assert not (network(data)[1] if file == CONFIG else (FILES.get(file) or MODULES[file]).unread(data)), file


@pytest.mark.parametrize("name", DECODING)
def test_k2_the_settings_of_published_files_hold(name: str, tmp_path: Path) -> None:
    files = PUBLISHED[name]
    if GENERATION in files:
        (tmp_path / GENERATION).write_text(json.dumps(files[GENERATION]), encoding="utf-8")
    found = read_generation(tmp_path, files[CONFIG], network(files[CONFIG])[0])
    assert found.decoding == DECODING[name] and not found.unread
    ends, first, last, banned = WRITING.get(name, (None, None, None, ()))
    if ends is not None:
        writing = found.network.writing
        assert set(found.network.eos_ids) == ends
        assert writing is not None and (writing.first, writing.last, writing.banned) == (first, last, banned)


def test_k2_an_older_file_forces_the_first_token_by_another_name(tmp_path: Path) -> None:
    """`force_bos_token_to_be_generated`, as `GenerationConfig.from_model_config` reads it."""
    older = {key: value for key, value in PUBLISHED["bart-large-cnn"][CONFIG].items() if key != "forced_bos_token_id"}
    theirs = hf.GenerationConfig.from_model_config(dict(older))
    writing = read_generation(tmp_path, older, network(older)[0]).network.writing
    assert writing is not None and writing.first == theirs.forced_bos_token_id == 0


def test_k2_a_key_with_the_default_of_its_class_is_not_named() -> None:
    """Nor is a neutral value of an older key; another value of either is, unless the key changes no computation."""
    for model_type in FAMILIES:
        for key, value in class_defaults(model_type).items():
            assert key not in ReadKeys({"model_type": model_type, "vocab_size": 10**6, key: value}).unread()
    assert ReadKeys({"model_type": "bert", "hidden_size": 5}).unread() == ["hidden_size"]
    assert ReadKeys({"model_type": "bart", "add_bias_logits": True}).unread() == ["add_bias_logits"]
    data = {"model_type": "bart", "num_hidden_layers": 3, "encoder_layers": 6}
    assert ReadKeys(data).unread() == ["encoder_layers", "num_hidden_layers"]
    data = {"model_type": "gemma", "hidden_activation": "relu", "newest": 1}
    assert ReadKeys(data).unread() == ["hidden_activation", "newest"]


# With windows in the upper layers, which a file of then has no `layer_types` for.
READ = {name: files[CONFIG] for name, files in PUBLISHED.items() if CONFIG in files}
READ["Qwen2.5 with windows"] = READ["Qwen2.5-7B-Instruct"] | {"use_sliding_window": True, "max_window_layers": 20}
SIZES = re.compile(r"\w+_size|(d|n|num|encoder|decoder)_\w+|(\w+_)?(dim|heads|embeddings)")  # none: a damaged file


@pytest.mark.parametrize("name", READ)
def test_k2_a_key_that_says_its_default_may_be_left_out_or_stand_there(name: str) -> None:
    """Where transformers makes the same configuration without a key, so is ours; and of the file that it saves."""

    def theirs(data: dict[str, Any]) -> dict[str, Any]:
        keys = {key: value for key, value in data.items() if key != "model_type"}
        return dict(hf.AutoConfig.for_model(data["model_type"], **keys).to_dict())

    saved, ours = theirs(READ[name]), network(READ[name])[0]
    assert network(saved)[0] == ours
    for left in (key for key in READ[name] if key != "model_type" and not SIZES.fullmatch(key)):
        less = {key: value for key, value in READ[name].items() if key != left}
        assert theirs(less) != saved or network(less)[0] == ours, left


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


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_of_a_configuration_class_has_a_row(model_type: str) -> None:
    table, keys = class_defaults(model_type), class_keys(model_type)
    none_left((table.keys() ^ keys.keys()) - DERIVED, f"{model_type}: keys without a row", hf)
    none_left({key for key in table.keys() & keys.keys() if table[key] != keys[key]}, f"{model_type}: defaults", hf)
    unread = network(hf.CONFIG_MAPPING[model_type]().to_dict())[1]
    none_left(unread, f"{model_type}: keys that are named in the load report of a default configuration", hf)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_key_that_a_file_leaves_out_has_the_default_of_its_class(model_type: str) -> None:
    full = hf.CONFIG_MAPPING[model_type]().to_dict()
    expected = network(full)[0]
    for key in class_keys(model_type):
        less = {name: value for name, value in full.items() if name != key}
        try:
            assert network(less)[0] == expected, key
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
    other = theirs(case)
    folder = saved(other, tmp_path)
    sizes = {key: value for key, value in changed.to_dict().items() if key not in plain}
    configs = []
    for data in (changed.to_dict(), changed.to_diff_dict(), sizes):
        (folder / "config.json").write_text(json.dumps(data | {"model_type": config.model_type}))
        model = atento.load(folder)
        configs.append(model.network.config)
        assert configs[-1] == configs[0]
    compare(model.network, type(other).from_pretrained(folder).eval(), "right")


def test_a_regression_of_several_numbers_is_refused_by_name(tmp_path: Path) -> None:
    folder = saved(theirs("bert classification"), tmp_path)
    edited(folder / "config.json", problem_type="regression")
    fails(ModelError, "`problem_type` regression with 3 labels is not built here", atento.load, folder)
