"""The JSON files of models as published: no key of theirs is unknown, and none that matters is ignored (K2)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers

from atento.config.sections.network import NetworkConfig
from atento.config.tables.released_keys import FILES, MODULES
from atento.models.generation_settings import Generation, read_generation
from atento.released import FAMILIES
from atento.released.read_layout import ReadKeys, class_defaults
from published_keys import CONFIG, GENERATION, PUBLISHED

DECODER = frozenset({"decoder.block.0", "encoder.embed_tokens.weight"})  # by which T5 is told from its encoder
_SAMPLED, _COUNTED = {"sample": True, "beam": 1}, {"count_prompt": True}
_LENGTHS = {"max_new_tokens": 141, "min_new_tokens": 55}
DECODING: dict[str, dict[str, Any]] = {  # what their generation settings make the default
    "Llama-3.1-8B-Instruct": {**_SAMPLED, "temperature": 0.6, "top_p": 0.9, "top_k": 50},
    "Llama-2-7b-chat": {**_SAMPLED, "temperature": 0.6, "top_p": 0.9, "top_k": 50},
    "Qwen2.5-7B-Instruct": _SAMPLED
    | {"repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    | _COUNTED,
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


def unread(name: str) -> list[str]:
    """The keys of the files beside `config.json` that are in no row."""
    files = [(file, data) for file, data in PUBLISHED[name].items() if file != CONFIG]
    return [f"{file}: {key}" for file, data in files for key in (FILES.get(file) or MODULES[file]).unread(data)]


def network(data: dict[str, Any]) -> tuple[NetworkConfig, list[str]]:
    keys, family = ReadKeys(data), FAMILIES[data["model_type"]]
    return family.read(keys, DECODER, family.tying(data, ["x"])), keys.unread()


def generation(name: str, folder: Path) -> Generation:
    files = PUBLISHED[name]
    if GENERATION in files:
        (folder / GENERATION).write_text(json.dumps(files[GENERATION]), encoding="utf-8")
    return read_generation(folder, files[CONFIG], network(files[CONFIG])[0])


@pytest.mark.parametrize("name", PUBLISHED)
def test_k2_no_key_of_a_published_file_is_unknown(name: str) -> None:
    assert not unread(name)
    if CONFIG in PUBLISHED[name]:
        assert not network(PUBLISHED[name][CONFIG])[1]


@pytest.mark.parametrize("name", DECODING)
def test_k2_the_settings_of_published_files_hold(name: str, tmp_path: Path) -> None:
    found = generation(name, tmp_path)
    assert found.decoding == DECODING[name] and not found.unread
    ends, first, last, banned = WRITING.get(name, (None, None, None, ()))
    if ends is not None:
        writing = found.network.writing
        assert set(found.network.eos_ids) == ends
        assert writing is not None and (writing.first, writing.last, writing.banned) == (first, last, banned)


def test_k2_an_older_file_forces_the_first_token_by_another_name(tmp_path: Path) -> None:
    """`force_bos_token_to_be_generated`, as `GenerationConfig.from_model_config` reads it."""
    older = {key: value for key, value in PUBLISHED["bart-large-cnn"][CONFIG].items() if key != "forced_bos_token_id"}
    theirs = transformers.GenerationConfig.from_model_config(dict(older))
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
        return dict(transformers.AutoConfig.for_model(data["model_type"], **keys).to_dict())

    saved, ours = theirs(READ[name]), network(READ[name])[0]
    assert network(saved)[0] == ours
    for left in (key for key in READ[name] if key != "model_type" and not SIZES.fullmatch(key)):
        less = {key: value for key, value in READ[name].items() if key != left}
        assert theirs(less) != saved or network(less)[0] == ours, left
