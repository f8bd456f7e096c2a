"""`generation_config.json` of a released folder: rules for all outputs, and the default decoding of the model.

Older folders have the same keys in `config.json`, where the class of the model may have a default for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from atento.base.errors import ModelError, RecipeError
from atento.config.reading.schema import Reader, as_node
from atento.config.sections.decoding import FILTERS, DecodingConfig
from atento.config.sections.decoding_option import options_of
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import WritingConfig
from atento.config.tables.released_keys import FILES
from atento.models.model_folder import read_config
from atento.released.read_layout import class_defaults

GENERATION = "generation_config.json"
_BEAM = 4  # of an encoder-decoder whose folder has none
_TOP_K = 50  # of `generate` of transformers, where a folder that samples has none
_UNTIL = {True: "filled", False: "likely", "never": "sure"}
_NO_LOSS = ("sample", "exact_limit", "draft", "draft_tokens", "max_new_tokens", "seed", "batch_tokens")
_SAME = {  # ours -> theirs
    "groups": "num_beam_groups",
    "diversity": "diversity_penalty",
    "length_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngrams": "no_repeat_ngram_size",
}


@dataclass(frozen=True)
class Generation:
    """What a folder says about writing."""

    network: NetworkConfig  # the network with the rules of the folder
    decoding: dict[str, Any] = field(default_factory=dict)  # its default decoding, under our keys
    unread: list[str] = field(default_factory=list)  # the keys that are not done


def generation_settings(folder: Path, config: Mapping[str, object]) -> dict[str, Any]:
    """The settings of a folder with that `config.json`: those of its own file, or else those in `config.json`.
    Raises ModelError, CheckpointError: the file cannot be read or is no JSON object.
    """
    keys = FILES[GENERATION]
    if (folder / GENERATION).exists():
        data = read_config(folder / GENERATION)
        ids = ("eos_token_id", "decoder_start_token_id")
        return {key: config[key] for key in ids if config.get(key) is not None} | _given(data)
    if config.get("force_bos_token_to_be_generated"):  # the name that BART's first files have for it
        config = {**config, "forced_bos_token_id": config.get("bos_token_id")}
    of_class = {"forced_eos_token_id": class_defaults(str(config.get("model_type"))).get("forced_eos_token_id")}
    return _given({key: value for key, value in (of_class | dict(config)).items() if keys.known(key)})


def read_generation(folder: Path, config: Mapping[str, object], network: NetworkConfig) -> Generation:
    """The network and the default decoding as the folder of a released model that writes has them.

    Args:
        folder: where the files are.
        config: their `config.json`.
        network: as `config.json` has it.

    Raises:
        ModelError: a value has the wrong type or is out of range; names the file.
    """
    data = generation_settings(folder, config)
    file = folder / (GENERATION if (folder / GENERATION).exists() else "config.json")
    try:
        changed = _with_rules(data, network)
        decoding = _decoding(data, changed)
        Reader().fit(as_node(decoding, str(file)), DecodingConfig, "decoding")
    except (TypeError, ValueError, RecipeError) as error:
        raise ModelError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from None
    unread = FILES[GENERATION].unread(data)
    if not network.reads_source:  # lengths that count the prompt
        # the length that counts the prompt gives way to the one that does not
        replaced = {f"{end}_length" for end in ("max", "min") if data.get(f"{end}_new_tokens") is not None}
        unread += [key for key in ("max_length", "min_length") if data.get(key) and key not in replaced]
    if data.get("do_sample") and (data.get("num_beams") or 1) > 1:
        unread.append("do_sample")
    return Generation(changed, decoding, sorted(unread))


def lost_options(decoding: DecodingConfig, data: Mapping[str, object], network: NetworkConfig) -> list[str]:
    """The options of a default decoding that `generate` of transformers does not follow, given its settings."""
    if decoding.mbr is not None:
        return ["mbr"]
    read = as_node(_decoding(data, network), GENERATION)
    theirs: DecodingConfig = Reader().fit(read, DecodingConfig, "decoding", DecodingConfig(beam=1))
    panels = {name: option.panel for name, option in options_of(DecodingConfig).items()}
    idle = {*_NO_LOSS, *(name for name, panel in panels.items() if panel == "Minimum Bayes risk")}
    if decoding.samples or decoding.beam == 1:
        idle |= {name for name, panel in panels.items() if panel == "Search"} - {"n_best", "exact"}
    if not decoding.temperature:  # greedy search
        idle |= set(FILTERS)
    if decoding.repetition_penalty == 1.0 and not decoding.no_repeat_ngrams:
        idle.add("count_prompt")
    names = [field.name for field in fields(DecodingConfig) if field.name not in idle]
    return [name for name in names if getattr(decoding, name) != getattr(theirs, name)]


def _given(data: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in data.items() if value is not None}


def _ids(data: Mapping[str, Any], key: str, size: int) -> tuple[int, ...]:
    """The ids of a key, one or a list; those that no token has are left out."""
    value = data.get(key)
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in values):
        raise TypeError(f"`{key}` must be an id or a list of ids: got {value!r}")
    return tuple(dict.fromkeys(one for one in values if 0 <= one < size))


def _with_rules(data: Mapping[str, object], network: NetworkConfig) -> NetworkConfig:
    """The network with the ids that end its outputs, its start, and the rules of its outputs."""
    size = network.vocab_size
    ends = _ids(data, "eos_token_id", size) or (network.eos_id,)
    eos = network.eos_id if network.eos_id in ends else ends[0]
    start = _ids(data, "decoder_start_token_id", size)[:1] if network.reads_source else ()
    first = _ids(data, "forced_bos_token_id", size)[:1] if network.reads_source else ()  # no prompt is before it
    banned = data.get("bad_words_ids") or []
    if not isinstance(banned, list) or not all(isinstance(words, list) for words in banned):
        raise TypeError(f"`bad_words_ids` must be a list of lists of ids: got {banned!r}")
    sequences = [tuple(words) for words in banned if words and all(0 <= token < size for token in words)]
    writing = WritingConfig(
        ends=tuple(end for end in ends if end != eos),
        first=first[0] if first else None,
        last=next(iter(_ids(data, "forced_eos_token_id", size)), None),
        suppressed=_ids(data, "suppress_tokens", size),
        suppressed_first=_ids(data, "begin_suppress_tokens", size),
        banned=tuple(ids for ids in dict.fromkeys(sequences) if len(ids) > 1 or ids[0] not in ends),
        renormalized=bool(data.get("renormalize_logits")),
    )
    ids = replace(network.ids, eos=eos, start=start[0] if start else network.ids.start)
    return replace(network, ids=ids, writing=None if writing == WritingConfig() else writing)


def _decoding(data: Mapping[str, Any], network: NetworkConfig) -> dict[str, Any]:
    """The settings of the search under our keys; those that change nothing are left out."""
    decoding = {ours: data[theirs] for ours, theirs in _SAME.items() if theirs in data}
    beam = data.get("num_beams", _BEAM if network.reads_source else 1)
    if data.get("do_sample") and data.get("num_beams", 1) == 1:
        decoding |= {name: data[name] for name in FILTERS if name in data}
        decoding |= {"sample": True, "beam": 1, "top_k": data.get("top_k", _TOP_K)}
    else:
        decoding["beam"] = beam
        if "num_beams" in data and beam != 1:
            decoding["until"] = _UNTIL.get(data.get("early_stopping", False), "likely")
    if not network.reads_source and {"repetition_penalty", "no_repeat_ngrams"} & decoding.keys():
        decoding["count_prompt"] = True  # theirs count it
    if data.get("stop_strings"):
        decoding["stop"] = data["stop_strings"]
    for name, length in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
        if name in data:
            decoding[name] = data[name]
        elif network.reads_source and length in data:  # theirs count the start token
            decoding[name] = max(0, int(data[length]) - 1)
    if network.position_limit is not None and "max_new_tokens" in decoding and network.reads_source:
        decoding["max_new_tokens"] = min(decoding["max_new_tokens"], network.position_limit)
    if "min_new_tokens" in decoding:
        decoding["min_new_tokens"] = min(decoding["min_new_tokens"], decoding.get("max_new_tokens", 2**31))
    usual = DecodingConfig(beam=1) if not network.reads_source else DecodingConfig()
    usual_values = {name: getattr(usual, name) for name in decoding}
    kept = {name: value for name, value in decoding.items() if value != usual_values[name] or name == "beam"}
    return {} if kept == {"beam": 1} and not network.reads_source else kept
