"""The `config.json` of a model folder in our layout: read, and its parts checked (network, decoding, answers)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from atento.config.reading.schema import Reader, as_node
from atento.config.sections.confidence import ConfidenceConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.initial import LoraConfig
from atento.config.sections.long_texts import LongTextConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.tasks import TASKS
from atento.errors import CheckpointError, ModelError, RecipeError
from atento.limits import read_plain_text
from atento.storage.manifest import CONFIDENCE


@dataclass(frozen=True)
class AnsweringConfig:
    """How contexts are cut into windows, and what answers are."""

    stride: int = 128
    """Tokens that neighbouring windows share."""
    max_answer: int = 30
    """Maximum tokens of an answer."""
    unanswerable: bool = True
    """Whether a question may have no answer."""

    def __post_init__(self) -> None:
        if self.stride < 0:
            raise RecipeError(f"`answering.stride` must not be negative: got {self.stride}")
        if self.max_answer < 1:
            raise RecipeError(f"`answering.max_answer` must be at least 1: got {self.max_answer}")


T = TypeVar("T")
CONFIG = "config.json"
LORA = "lora"  # the key of adapters that are still beside the weights
CALIBRATION = "calibration"  # the key of a model whose linear maps have 8 bits and fixed scales
OUR_KEYS = (  # what the Hugging Face layout has no place for; it is kept there under "atento"
    *("name", "task", "objectives", "decoding", "embedding"),
    *("max_len", "pairs", "prefixes", "columns", "reading", "tag_scheme", "answering", "long_texts", "confidence"),
)


def read_config(file: Path) -> dict[str, Any]:
    """The JSON object of a `config.json`, of any layout.

    Raises:
        ModelError: it cannot be read or holds no object. CheckpointError: it is not JSON.
    """
    try:
        config = json.loads(read_plain_text(file))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} must hold one JSON object: got {type(config).__name__}")
    return config


def network_config(config: Mapping[str, object], path: Path) -> NetworkConfig:
    """The network of a `config.json`.

    Args:
        config: the content of the file.
        path: the folder that it was read from, for messages.

    Raises:
        ModelError: it is of another layout, has keys that this version does not know, or a value out of range.
    """
    network = config.get("network")
    if config.get("model_type") != "atento" or not isinstance(network, dict):
        said = "" if "model_type" in config else '; a released model names its family there ("model_type": "bert")'
        raise ModelError(f"{path}: config.json is not Atento's own (model_type {config.get('model_type')!r}){said}")
    if not isinstance(config.get("task"), str | None):
        raise ModelError(f"{path / CONFIG}: `task` must be text: got {config['task']!r:.40}")
    values = dict(network)
    unknown = set(values) - {field.name for field in fields(NetworkConfig)}
    if unknown:
        raise ModelError(
            f"{path}: config.json has unknown network keys {sorted(unknown)}; was it written by a newer version?"
        )
    file = path / CONFIG
    if large := next(_large(values, "network"), None):
        raise ModelError(f"{file}: {large} must be below 2,147,483,648")
    network = _fitted(values, NetworkConfig, "network", path)
    for name in ("pad", "unk", "bos", "eos", "start", "mask"):
        value = getattr(network.ids, name)
        # the others may stand on both sides
        limit = network.target_vocab_size if name == "start" else min(network.vocab_size, network.target_vocab_size)
        if value is not None and value >= limit:
            raise ModelError(f"{file}: network.ids.{name} must be below network.vocab_size: got {value} and {limit}")
    return network


def _large(value: Any, name: str) -> Iterator[str]:
    """The names of the whole numbers in JSON data that no size of a network, no distance and no id can have."""
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _large(item, f"{name}.{key}")
    elif isinstance(value, int) and abs(value) >= 1 << 31:
        yield name


def objectives_of(config: Mapping[str, Any]) -> set[str]:
    """What a model was trained on: the objectives of its recipe, or that of its task."""
    task = config.get("task")
    return set(config.get("objectives") or ([TASKS[task].objective] if task in TASKS else ()))


def reads_prompts_both_ways(config: Mapping[str, object], architecture: str) -> bool:
    """Whether a model reads a prompt in both directions: it was trained with prefixes.

    A decoder that was trained both ways reads it causally, which is faster.
    """
    trained = objectives_of(config)
    return "prefix" in trained and (architecture == "encoder" or "causal" not in trained)


def decoding_config(config: Mapping[str, object], path: Path) -> DecodingConfig:
    """The decoding of a `config.json`; keys of other versions are ignored.

    Missing keys have the defaults of the task: a language model decodes greedily, a model that reads a
    source with a beam of 4.

    Raises:
        ModelError: a value has the wrong type or is out of range.
    """
    values = config.get("decoding", {})
    if isinstance(values, dict):
        rules = TASKS.get(str(config.get("task")))
        values = ({} if rules is None else dict(rules.defaults.get("decoding", {}))) | values
        values = {name: values[name] for name in DecodingConfig.__dataclass_fields__ if name in values}
    return _decoding_of(json.dumps(values), path)


@lru_cache(maxsize=64)
def _decoding_of(values: str, path: Path) -> DecodingConfig:
    """The decoding of JSON, remembered because every call of a model asks for it."""
    return _fitted(json.loads(values), DecodingConfig, "decoding", path)


def embedding_config(config: Mapping[str, object], path: Path) -> EmbeddingConfig:
    """The embedding of a `config.json`, the defaults where it has none.

    Raises:
        ModelError: an unknown key, or a value of the wrong type.
    """
    return _fitted(config.get("embedding", {}), EmbeddingConfig, "embedding", path)


def answering_config(config: Mapping[str, object], path: Path) -> AnsweringConfig:
    """The answering of a `config.json`, the defaults where it has none.

    Raises:
        ModelError: an unknown key, or a value of the wrong type or out of range.
    """
    return _fitted(config.get("answering", {}), AnsweringConfig, "answering", path)


def long_text_config(config: Mapping[str, object], path: Path) -> LongTextConfig:
    """How a `config.json` says that long texts are read; cut at their end where it says nothing.

    Raises:
        ModelError: an unknown key, or a value of the wrong type or out of range.
    """
    return _fitted(config.get("long_texts", {}), LongTextConfig, "long_texts", path)


def confidence_config(config: Mapping[str, object], path: Path) -> ConfidenceConfig:
    """What a `config.json` says of the probabilities of a classifier; a temperature of 1 where it says nothing.

    Raises:
        ModelError: an unknown key, or a value of the wrong type or out of range.
    """
    return _fitted(config.get("confidence", {}), ConfidenceConfig, "confidence", path)


def kept_confidence(path: Path) -> dict[str, Any]:
    """What was kept of the probabilities of a model after its folder was written; nothing: {}.

    It is in `confidence.json` beside the model, or, of a checkpoint, in its run; one of another checkpoint says nothing
    of this one.

    Args:
        path: the folder that the model was read from.

    Raises:
        ModelError, CheckpointError: the file cannot be read.
    """
    file, checkpoint = confidence_file(path)
    if not file.is_file():
        return {}
    kept = read_config(file)
    return {"confidence": kept} if kept.pop("checkpoint", "") == checkpoint else {}


def confidence_file(path: Path) -> tuple[Path, str]:
    """The file for the confidence of a model, and which checkpoint it is of: empty if the folder is no checkpoint."""
    if (path / "state.json").exists():
        return path.parent.parent / CONFIDENCE, f"{path.parent.name}/{path.name}"
    return path / CONFIDENCE, ""


def lora_config(config: Mapping[str, object], path: Path) -> LoraConfig | None:
    """The adapters in the weights of a checkpoint; None: there are none.

    Raises:
        ModelError: an unknown key, or a value of the wrong type or out of range.
    """
    return None if config.get(LORA) is None else _fitted(config[LORA], LoraConfig, LORA, path)


def _fitted(values: Any, kind: type[T], name: str, path: Path) -> T:
    try:
        section: T = Reader().fit(as_node(values, str(path / CONFIG)), kind, name)
    except RecipeError as error:
        raise ModelError(str(error)) from None
    return section
