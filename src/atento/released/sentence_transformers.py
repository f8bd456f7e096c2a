"""Reads and writes the modules of sentence-transformers folders, so that `encode` pools as `Model.embed` does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from atento.base.errors import CapabilityError, ModelError, nearest
from atento.base.limits import read_plain_text
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import ProjectionConfig
from atento.config.tables.released_keys import MODULES as KEYS
from atento.storage.tensorfile import SINGLE, TensorFiles, check_finite, safetensors_chunks, to_bytes

MODULES = "modules.json"
_LIMITS = tuple(  # the first that is there counts; written is the first
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_SETTINGS = "config_sentence_transformers.json"
CROSS_ENCODER = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}  # of `config.json`
_NO_LIMIT = 10**6  # tokens; tokenizers without a limit state one far above
_POOLINGS = {  # in the order in which they join the poolings that are true
    "first": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "sqrt-mean": "mean_sqrt_len_tokens",
    "weighted-mean": "weightedmean_tokens",
    "last": "lasttoken",
}
_ALWAYS = ("first", "mean", "max", "last")  # which a file that we write names, true or false
_NAMED = {"cls": "first", "mean_sqrt_len_tokens": "sqrt-mean", "weightedmean": "weighted-mean", "lasttoken": "last"}
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_THEIR_ACTIVATIONS: dict[Any, str] = {
    None: "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "silu": "torch.nn.modules.activation.SiLU",
}
_ACTIVATIONS = {theirs.rpartition(".")[2]: ours for ours, theirs in _THEIR_ACTIVATIONS.items()}
_MODES = {f"pooling_mode_{theirs}": ours for ours, theirs in _POOLINGS.items()}


@dataclass(frozen=True)
class SentenceModules:
    """What the modules of a sentence-transformers folder are."""

    network: Path  # the folder of the network
    embedding: dict[str, Any]  # the embedding configuration as data
    dense: tuple[Path, ...] = ()  # the folders of the linear maps behind the pooling
    unread: tuple[str, ...] = ()  # the keys of the modules' files that are not done, each behind the name of its file


def sentence_folder(path: Path) -> SentenceModules | None:
    """The modules of a sentence-transformers folder; None for any other folder.
    Raises ModelError: the folder is damaged, or has a module or a pooling that is not supported; names the file.
    """
    modules = path / MODULES
    if not modules.exists() or _object(path / _SETTINGS).get("model_type") == "CrossEncoder":  # the network alone
        return None
    rows = _read_json(modules)
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ModelError(f"{modules} is damaged: it must hold a list of modules")
    network, dense = path, []
    config: dict[str, object] = {"pooling": "mean", "normalize": False}
    kinds = [str(row.get("type", "")).rpartition(".")[2] for row in rows]
    for row, kind in zip(rows, kinds):
        name = str(row.get("path", ""))
        folder = path / name
        if not folder.resolve().is_relative_to(path.resolve()):
            raise ModelError(f"{modules}: the path of a module must be inside the folder: got {name!r}")
        if kind == "Transformer":
            network = folder
        elif kind == "Pooling":
            config |= _pooling(folder / "config.json")
        elif kind == "Normalize":
            config["normalize"] = True
        elif kind == "Dense":
            dense.append(folder)
        else:
            raise ModelError(
                f"{modules}: a module of type {row.get('type')!r} is not built here{nearest(kind, list(_ORDER))}"
            )
    if kinds != sorted(kinds, key=_ORDER.index):
        raise ModelError(f"{modules}: modules must be in the order {', '.join(_ORDER)}: got {', '.join(kinds)}")
    tokenizer = _object(network / "tokenizer_config.json")
    for limit in (_limits(network).get("max_seq_length"), tokenizer.get("model_max_length")):
        if isinstance(limit, int) and 0 < limit < _NO_LIMIT:  # the second since version 5 of sentence-transformers
            config["max_len"] = limit
            break
    config |= _reading(path, network)
    # the keys that are not done, of `modules.json` and of the file of each module behind the network
    unread = [f"{MODULES}: {key}" for row in rows for key in KEYS[MODULES].unread(row)]
    for row, kind in zip(rows, kinds):
        name = str(Path(str(row.get("path", ""))) / "config.json")
        unread += [f"{name}: {key}" for key in KEYS[kind].unread(_object(path / name))] if kind in KEYS else []
    return SentenceModules(network, config, tuple(dense), tuple(dict.fromkeys(unread)))


def _reading(path: Path, network: Path) -> dict[str, Any]:
    """The embedding settings of what a text becomes before it is read: behind the default prompt, in lower case."""
    settings, config = _object(path / _SETTINGS), dict[str, object]()
    name, named = settings.get("default_prompt_name"), settings.get("prompts")
    prompts = named if isinstance(named, Mapping) else {}
    config["prompts"] = {name: prompt for name, prompt in prompts.items() if isinstance(prompt, str)}
    if name is not None:
        prompt = prompts.get(name)
        if not isinstance(prompt, str):
            raise ModelError(f"{path / _SETTINGS}: `default_prompt_name` must be one of `prompts`: got {name!r}")
        config["prompt"] = prompt
    if _limits(network).get("do_lower_case"):
        config["lowercase"] = True
    return {key: value for key, value in config.items() if value}  # empty: the default


def with_projections(
    network: NetworkConfig, weights: Mapping[str, Tensor], modules: SentenceModules
) -> tuple[NetworkConfig, dict[str, Tensor]]:
    """A network and its weights with the linear maps of these modules behind the pooling.
    Raises ModelError: a map has an option or a shape that is not supported, or the network is no encoder; names the
    file. CheckpointError: a damaged file.
    """
    folders, poolings = modules.dense, modules.embedding["pooling"].count("+") + 1  # their vectors are joined
    widened, projections, width = dict(weights), list[ProjectionConfig](), network.d_model * poolings
    for number, folder in enumerate(folders):
        file = folder / "config.json"
        data = _read_json(file)
        if not isinstance(data, Mapping):
            raise ModelError(f"{file} must hold one JSON object: got {type(data).__name__}")
        name, bias = str(data.get("activation_function", "Tanh")).rpartition(".")[2], bool(data.get("bias", True))
        if name not in _ACTIVATIONS:
            raise ModelError(f"{file}: activation {name!r} is not known here{nearest(name, list(_ACTIVATIONS))}")
        if data.get("use_residual") or data.get("module_input_name", "sentence_embedding") != "sentence_embedding":
            raise ModelError(f"{file}: a Dense module is built here only on the vector of the text, without a residual")
        with TensorFiles(folder, model=folder.parent) as files:
            expected = {"linear.weight"} | ({"linear.bias"} if bias else set())
            if files.entries.keys() != expected:
                raise ModelError(f"{folder}: a Dense module must have {sorted(expected)}: got {sorted(files.entries)}")
            tensors = {key.removeprefix("linear."): files.read(key) for key in expected}
        for part, tensor in tensors.items():
            check_finite(folder, f"linear.{part}", tensor)
            widened[f"projections.{number}.{part}"] = tensor
        if tensors["weight"].dim() != 2 or tensors["weight"].shape[1] != width:
            raise ModelError(f"{folder}: a map of vectors of width {width} has shape {tuple(tensors['weight'].shape)}")
        inputs = width if number == 0 and poolings > 1 else None  # None: as wide as what comes before
        width = tensors["weight"].shape[0]
        projections.append(ProjectionConfig(width, _ACTIVATIONS[name], bias, inputs))
    if projections and network.architecture != "encoder":
        raise ModelError(f"{folders[0]}: a Dense module needs an encoder: got architecture {network.architecture!r}")
    return changed(network, projections=tuple(projections)), widened


def without_projections(
    network: NetworkConfig, weights: Mapping[str, Tensor]
) -> tuple[NetworkConfig, dict[str, Tensor], dict[str, bytes]]:
    """The inverse of `with_projections`: the files, by name, of the Dense modules instead of the maps."""
    files, width = {}, network.d_model
    for number, projection in enumerate(network.projections):
        parts = [part for part in ("weight", "bias") if f"projections.{number}.{part}" in weights]
        tensors = {f"linear.{part}": weights[f"projections.{number}.{part}"] for part in parts}
        config = {
            "in_features": projection.inputs or width,
            "out_features": projection.width,
            "bias": projection.bias,
            "activation_function": _THEIR_ACTIVATIONS[projection.activation],
        }
        folder, width = _dense_folder(number), projection.width
        files[f"{folder}/config.json"] = _json_bytes(config)
        files[f"{folder}/{SINGLE}"] = b"".join(to_bytes(safetensors_chunks(folder, tensors)))
    plain = {name: tensor for name, tensor in weights.items() if not name.startswith("projections.")}
    return changed(network, projections=()), plain, files


def _dense_folder(number: int) -> str:
    """The folder of a Dense module, behind the network and its pooling."""
    return f"{number + 2}_Dense"


def _pooling(file: Path) -> dict[str, object]:
    """The embedding settings of a pooling module: our names of the poolings, and whether the prompt is pooled."""
    config = _read_json(file)
    if not isinstance(config, Mapping):
        raise ModelError(f"{file} must hold one JSON object: got {type(config).__name__}")
    selected = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    named = config.get("pooling_mode")  # of later versions: a name, or a list
    if named is not None:
        names = [named] if isinstance(named, str) else named if isinstance(named, list) else [str(named)]
        poolings = [_NAMED.get(str(name), str(name)) for name in names]
        selected = [str(name) for name in names if _NAMED.get(str(name), str(name)) not in _POOLINGS]
    else:
        poolings = [ours for mode, ours in _MODES.items() if mode in selected]
        selected = [mode for mode in selected if mode not in _MODES]
    if not poolings or selected:
        wrong = ", ".join(selected) or "none"
        raise ModelError(f"{file}: some of {', '.join(_MODES)} must be true, and no others: got {wrong}")
    return {"pooling": "+".join(poolings)} | ({} if config.get("include_prompt", True) else {"pool_prompt": False})


def sentence_files(network: NetworkConfig, embedding: EmbeddingConfig, max_len: int | None) -> dict[str, bytes]:
    """The files, by name, that make sentence-transformers pool as `Model.embed` does.

    Args:
        network: the network whose vectors are pooled.
        embedding: how the model pools.
        max_len: positions that the network has in the Hugging Face layout; None: any number.

    Raises:
        CapabilityError: the vectors are those of another layer than the last, or pass an activation that has no name.
    """
    for projection in network.projections:
        if projection.activation not in _THEIR_ACTIVATIONS:
            raise CapabilityError(f"sentence-transformers has no Dense module with {projection.activation}")
    if embedding.layer not in (-1, network.n_layers - 1):
        raise CapabilityError(f"sentence-transformers pools the last layer only: got layer {embedding.layer}")
    prompts = dict(embedding.prompts)
    default = next((name for name, prompt in prompts.items() if prompt == embedding.prompt), "default")
    prompts |= {default: embedding.prompt} if embedding.prompt else {}
    settings = {"prompts": prompts, "default_prompt_name": default if embedding.prompt else None}
    limits = [limit for limit in (embedding.max_len, max_len) if limit is not None]
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [("Dense", _dense_folder(number)) for number in range(len(network.projections))]
    modules += [("Normalize", f"{len(modules)}_Normalize")] if embedding.normalize else []
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    poolings = embedding.pooling.split("+")
    pooling: dict[str, object] = {"word_embedding_dimension": network.d_model}
    if poolings == [ours for ours in _POOLINGS if ours in poolings]:
        named = (ours for ours in dict.fromkeys((*_ALWAYS, *_POOLINGS)) if ours in poolings or ours in _ALWAYS)
        pooling |= {f"pooling_mode_{_POOLINGS[ours]}": ours in poolings for ours in named}
    else:  # another order than that of their flags
        names = {ours: theirs for theirs, ours in _NAMED.items()}
        pooling["pooling_mode"] = [names.get(ours, ours) for ours in poolings]
    pooling |= {} if embedding.pool_prompt else {"include_prompt": False}
    return {
        MODULES: _json_bytes(rows),
        "1_Pooling/config.json": _json_bytes(pooling),
        _LIMITS[0]: _json_bytes({"max_seq_length": min(limits, default=None), "do_lower_case": embedding.lowercase}),
        **({_SETTINGS: _json_bytes(settings)} if prompts else {}),
    }


def _limits(network: Path) -> Mapping[str, object]:
    """The settings of the module that holds the network, under the name that its version gave the file."""
    return next((found for name in _LIMITS if (found := _object(network / name))), {})


def _object(file: Path) -> Mapping[str, object]:
    """The JSON object of a file; empty where there is none."""
    data = _read_json(file) if file.exists() else None
    return data if isinstance(data, Mapping) else {}


def _read_json(file: Path) -> object:
    try:
        return json.loads(read_plain_text(file))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is damaged: {error}") from None


def _json_bytes(data: object) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
