"""The folder of a model: which one a name means, and its `config.json` in our layout, read and its parts checked."""

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from atento.base.errors import CheckpointError, ModelError, RecipeError, UsageError
from atento.base.limits import read_plain_text
from atento.config.reading.recipe_layers import shipped
from atento.config.reading.schema import Reader, as_node
from atento.config.sections.confidence import ConfidenceConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.initial import LoraConfig
from atento.config.sections.long_texts import LongTextConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.tasks import TASKS
from atento.models.model_hub import fetched
from atento.models.shipped import shipped_models
from atento.storage.checkpoint_list import select_checkpoint
from atento.storage.manifest import CONFIDENCE

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
WORD_ENDINGS = (".txt", ".vec", ".bin")  # of word vectors, the last binary


def find_model(model: str | Path, *, older: bool = False, fetch: bool = True) -> Path:
    """The folder of a model: the best checkpoint of a run (else its last), a model folder, a shipped or a hub model.

    Args:
        model: in this order an existing path, the name of a model that comes with the package, or a hub name
            (`owner/name`).
        older: also fetch `pytorch_model*.bin` or `adapter_model.bin` where a hub model, or a Dense module of it, has no
            safetensors.
        fetch: ask the hub; False: a hub name is looked for in the hub's cache alone.

    Raises:
        UsageError: there is no such model. CheckpointError: every checkpoint of the run is damaged.
    """
    if not str(model):
        raise UsageError("the name of the model is empty: give a run folder, a model folder or a hub name (owner/name)")
    path = Path(model)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, not allowed, a NUL
        raise UsageError(f"no model at {path}: {getattr(error, 'strerror', None) or error}") from None
    if (path / "checkpoints").is_dir():
        if selected := select_checkpoint(path):
            return selected.path
        if any((path / "checkpoints").glob("step-*")):
            raise CheckpointError(f"every checkpoint of the run {path} is damaged")
        raise UsageError(f"the run {path} has no checkpoint yet")
    if path.is_dir():
        return path
    if path.exists():
        raise UsageError(f"{path} is a file; a model is a folder")
    if path.parent != Path() and path.parent.is_dir():
        close = get_close_matches(path.name, _folders(path.parent), n=1, cutoff=0.6)
        hint = f"; did you mean {path.parent / close[0]}?" if close else ""
        raise UsageError(f"no model at {path}: the folder {path.parent} has no {path.name}{hint}")
    if _HUB_NAME.fullmatch(str(model)) and not str(model).startswith("."):
        return fetched(str(model), older, only_cache=not fetch)
    if path.parent == Path() and path.name in (models := shipped_models()):
        return models[path.name]
    raise UsageError(f"no model at {path}: give a run folder, a model folder or a hub name (owner/name){_near(path)}")


def word_files(path: Path) -> tuple[Path, ...]:
    """The files of a model of words: `*options.json` and `*weights.hdf5` of a published ELMo folder, or a word2vec file
    (.bin, binary; .txt or .vec, text; each also with .gz). Empty for anything else.
    Raises ModelError: an ELMo folder with several options or weights.
    """
    try:
        is_folder = path.is_dir()
    except OSError:  # too long for a path: `find_model` reports it
        return ()
    if not is_folder:
        return (path,) if Path(path.name.removesuffix(".gz")).suffix in WORD_ENDINGS and path.is_file() else ()
    options, weights = sorted(path.glob("*options.json")), sorted(path.glob("*weights.hdf5"))
    if options and weights and len(options + weights) > 2:
        raise ModelError(f"{path} holds several ELMo models: {', '.join(file.name for file in options + weights)}")
    return (*options, *weights) if options and weights else ()


def find_tokenizer(model: str | Path, *, fetch: bool = True) -> Path:
    """The folder with the tokenizer of a model, whose weights need not be there: of a run that one for all checkpoints.

    Args:
        model: a tokenizer folder, or as in `find_model`.
        fetch: as in `find_model`.

    Raises:
        UsageError: there is no such model.
    """
    path = Path(model)
    if (path / "tokenizer").is_dir() and not (path / "tokenizer.json").exists():
        return path / "tokenizer"
    if path.exists() or (str(model) not in shipped_models() and (len(path.parts) != 2 or path.is_absolute())):
        return path
    return find_model(model, fetch=fetch)


def _near(path: Path) -> str:
    """Return the end of a message about a name that no model has: runs and shipped models with similar names."""
    runs = _folders(Path("runs"))
    if path.name in shipped() and path.name not in runs:
        return f"; {path.name} is a recipe: `atento train {path.name}` trains it"
    packaged = any(name.startswith("atento-") for name in shipped_models())
    if path.name.startswith(("atento-en-", "atento-pt-")) and not packaged:
        return f"; {path.name} comes with the package atento-models, which is not installed"
    close = get_close_matches(path.name, [*runs, *shipped_models()], n=3, cutoff=0.6)
    names = [f"runs/{name}" if name in runs else name for name in dict.fromkeys(close)]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _folders(path: Path) -> list[str]:
    """The names of the folders in a folder, sorted; empty where it cannot be read."""
    try:
        return sorted(folder.name for folder in path.iterdir() if folder.is_dir())
    except OSError:
        return []


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
    "without_words",  # whether it translates sources without words, which others copy
)


def read_config(file: Path) -> dict[str, Any]:
    """The JSON object of a `config.json`, of any layout.
    Raises ModelError: it cannot be read or holds no object. CheckpointError: it is not JSON.
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
    named, tasks = {head.name for head in network.heads}, config.get("tasks", {})
    each = tasks.items() if isinstance(tasks, dict) else [("", tasks)]
    if any(name not in named or not isinstance(own, dict) or str(own.get("task")) not in TASKS for name, own in each):
        raise ModelError(f"{file}: `tasks` must have the task of each head by its name: got {tasks!r:.60}")
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


SECTIONS: dict[type, str] = {  # of a `config.json`, beside its network and its decoding
    AnsweringConfig: "answering",
    EmbeddingConfig: "embedding",
    LongTextConfig: "long_texts",
    ConfidenceConfig: "confidence",
}


def decoding_config(config: Mapping[str, object], path: Path) -> DecodingConfig:
    """The decoding of a `config.json`; keys of other versions are ignored.

    Missing keys have the defaults of the task: a language model decodes greedily, a model that reads a
    source with a beam of 4.
    Raises ModelError: a value has the wrong type or is out of range.
    """
    values = config.get("decoding", {})
    if isinstance(values, dict):
        rules = TASKS.get(str(config.get("task")))
        values = ({} if rules is None else dict(rules.defaults.get("decoding", {}))) | values
        values = {name: values[name] for name in DecodingConfig.__dataclass_fields__ if name in values}
    return cast(DecodingConfig, _remembered(json.dumps(values), DecodingConfig, "decoding", path))


@lru_cache(maxsize=64)
def _remembered(values: str, kind: Hashable, name: str, path: Path) -> object:
    """A section of JSON, remembered because every call of a model asks for it."""
    return _fitted(json.loads(values), cast(type[object], kind), name, path)


def section_of(kind: type[T], config: Mapping[str, object], path: Path) -> T:
    """What a `config.json` says in a section of `SECTIONS`; the defaults where it has none.
    Raises ModelError: an unknown key, or a value of the wrong type or out of range.
    """
    return cast(T, _remembered(json.dumps(config.get(SECTIONS[kind], {})), cast(Hashable, kind), SECTIONS[kind], path))


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
    try:
        kept = read_config(file)
    except (ModelError, CheckpointError) as error:
        again = "delete it, and `atento evaluate MODEL DATA --calibrate` makes it anew"
        raise type(error)(f"{error}; {again}") from None
    return {"confidence": kept} if kept.pop("checkpoint", "") == checkpoint else {}


def confidence_file(path: Path) -> tuple[Path, str]:
    """The file for the confidence of a model, and which checkpoint it is of: empty if the folder is no checkpoint."""
    if (path / "state.json").exists():
        return path.parent.parent / CONFIDENCE, f"{path.parent.name}/{path.name}"
    return path / CONFIDENCE, ""


def lora_config(config: Mapping[str, object], path: Path) -> LoraConfig | None:
    """The adapters in the weights of a checkpoint; None: there are none.
    Raises ModelError: an unknown key, or a value of the wrong type or out of range.
    """
    return None if config.get(LORA) is None else _fitted(config[LORA], LoraConfig, LORA, path)


def _fitted(values: Any, kind: type[T], name: str, path: Path) -> T:
    try:
        section: T = Reader().fit(as_node(values, str(path / CONFIG)), kind, name)
    except RecipeError as error:
        raise ModelError(str(error)) from None
    return section
