"""Writes a model folder completely or not at all: configuration, weights, tokenizer files, model card, manifest."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from atento.errors import UsageError
from atento.limits import read_plain
from atento.models.card import CARD, model_card
from atento.models.configuration import CONFIG, network_config
from atento.models.exporting import exported_layout, our_keys
from atento.models.generation import GENERATION
from atento.models.weight_files import MAX_SHARD_SIZE, type_name, weight_files, widest
from atento.released import release
from atento.released.sentence_transformers import without_projections
from atento.storage.manifest import directory as open_directory
from atento.storage.manifest import is_plain_name, write_file, write_manifest
from atento.storage.tensorfile import to_bytes
from atento.storage.whole_file import whole_folder
from atento.text.tokenizer import Tokenizer

LAYOUTS = ("atento", "huggingface")
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|USE_POLICY)([._-].*)?", re.IGNORECASE)
_PRESERVED = ("chat_template.jinja", "config_sentence_transformers.json", GENERATION)
_MAX_BYTES = 4 * 2**20


def save_model(
    directory: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    *,
    layout: str = "atento",
    source: Path | None = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> Path:
    """Write a model as `load` reads it, and in the Hugging Face layout as stock transformers reads it.

    Args:
        directory: the folder to write; it must be empty or not exist.
        config: the model's configuration, in our layout.
        weights: tensors by our names.
        tokenizer: the model's; None: it has none.
        layout: "atento" or "huggingface".
        source: the folder that the model was read from; its card and licence are preserved.
        max_shard_size: above it the weights are split into several files, as in `weight_files`.

    Raises:
        UsageError: no such layout, or the folder is not empty. CapabilityError: the layout cannot represent this
            model. AtentoError: it cannot be written; no partial folder remains.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"`layout` must be {' or '.join(map(repr, LAYOUTS))}: got {layout!r}")
    files = preserved_files(source)
    if layout == "huggingface":
        if "decoding" in config:
            files.pop(GENERATION, None)  # written again
        files = exported_layout(directory, config, tokenizer, source) | files
    elif tokenizer is not None:
        files |= tokenizer.files()
    return write_model(directory, config, weights, files, layout=layout, max_shard_size=max_shard_size)


def is_preserved(name: str) -> bool:
    """Whether a file of that name is copied as it is, whatever the layout: card, licence, chat template, decoding."""
    return name == CARD or name in _PRESERVED or _LICENCE.fullmatch(name) is not None


def terms(source: Path | None) -> dict[str, bytes]:
    """Card and licence of a model, by file name: they also apply to a model that is trained from it."""
    return {name: content for name, content in preserved_files(source).items() if name not in _PRESERVED}


def preserved_files(source: Path | None) -> dict[str, bytes]:
    """Files of a model folder that are for people or other tools: card, licence, chat template, decoding."""
    if source is None:
        return {}
    folders = [source, *([source.parent] if (source.parent / "modules.json").exists() else [])]
    files: dict[str, bytes] = {}
    for folder in folders:
        try:
            for file in sorted(folder.iterdir()):
                preserved = is_preserved(file.name) and is_plain_name(file.name)
                if preserved and file.is_file() and file.stat().st_size <= _MAX_BYTES:
                    files.setdefault(file.name, read_plain(file, _MAX_BYTES))
        except OSError:  # the folder was deleted: the weights in memory can still be written
            continue
    return files


def write_model(
    directory: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    files: Mapping[str, bytes],
    *,
    layout: str = "atento",
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> Path:
    """Write a model folder: into a temporary folder beside it, which is then renamed.

    Args:
        directory: the folder to write; it must be empty or not exist.
        config: the model's configuration, in our layout.
        weights: tensors by our names.
        files: further files by name (`folder/name` for one in a folder); a card among them is preserved and added to.
        layout: "atento" or "huggingface".
        max_shard_size: above it the weights are split into several files, as in `weight_files`.

    Raises:
        UsageError: the folder is not empty. CapabilityError: the layout cannot represent this network.
        AtentoError: it cannot be written; no partial folder remains.
    """
    network = network_config(config, directory)
    card = model_card(config, network, layout=layout, existing=files.get(CARD, b"").decode("utf-8", "replace"))
    if layout == "huggingface":
        network, weights, dense = without_projections(network, weights)
        files = {**files, **dense}
        released, weights = release(network, weights)
        config = released | {"atento": our_keys(config), "torch_dtype": type_name(widest(weights.values()))}
    tensors = weight_files(weights, max_shard_size)
    contents = {
        **files,
        CONFIG: (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(),
        CARD: card.encode(),
    }
    with whole_folder(directory) as temporary:
        for folder in sorted({name.rpartition("/")[0] for name in contents} - {""}):
            (temporary / folder).mkdir()
        with open_directory(temporary) as fd:
            entries = [write_file(fd, name, [content]) for name, content in contents.items()]
            entries += [write_file(fd, name, to_bytes(chunks)) for name, chunks in tensors.items()]
        write_manifest(temporary, entries=entries)
    return directory
