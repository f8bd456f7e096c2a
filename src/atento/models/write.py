"""A model folder, written whole or not at all: configuration, weights, tokenizer files, model card, manifest."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

import atento
from atento.config.schema import Reading, as_written
from atento.errors import AtentoError, CheckpointError, UsageError
from atento.models.exporting import GENERATION, KEPT, generation_files, read_config, sentence_files, tokenizer_files
from atento.models.find import decoding_config, network_config
from atento.models.weight_files import MAX_SHARD_SIZE, type_name, weight_files, widest
from atento.networks.families import release
from atento.storage.manifest import directory as open_directory
from atento.storage.manifest import is_plain_name, write_file, write_manifest
from atento.storage.tensorfile import flatten
from atento.tasks.embedding import EmbeddingConfig
from atento.text.tokenizer import Tokenizer

CARD = "README.md"
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|USE_POLICY)([._-].*)?", re.IGNORECASE)
_CARRIED = ("chat_template.jinja", "config_sentence_transformers.json", GENERATION)
_MAX_BYTES = 4 * 2**20
_HEADING = "## Written by Atento"
_SECTION = re.compile(rf"^{_HEADING}\n.*?(?=^##? |\Z)", re.MULTILINE | re.DOTALL)


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
        directory: where to; an empty folder or none.
        config: ours, whatever the layout.
        weights: under our names.
        tokenizer: the model's, None where it has none.
        layout: "atento" or "huggingface".
        source: the folder that the model was read from: its card and licence are kept.
        max_shard_size: above it the weights stand in several files, as in `weight_files`.

    Raises:
        UsageError: something stands there already. CapabilityError: the layout cannot hold this model; says why.
        AtentoError: it cannot be written; nothing is left of it.
    """
    files = carried_files(source)
    if layout == "huggingface":
        files = _stock_files(directory, config, tokenizer, files, source) | files
    elif tokenizer is not None:
        files |= tokenizer.files()
    return write_model(directory, config, weights, files, layout=layout, max_shard_size=max_shard_size)


def _stock_files(
    directory: Path,
    config: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    carried: dict[str, bytes],
    source: Path | None,
) -> dict[str, bytes]:
    """What the Hugging Face layout has beside configuration and weights; takes from `carried` what is written anew."""
    network = network_config(config, directory)
    files = {} if tokenizer is None else tokenizer_files(network, config, tokenizer)
    if "decoding" in config:
        carried.pop(GENERATION, None)
    decoding = decoding_config(config, directory) if "decoding" in config else None
    files |= generation_files(network, decoding, read_config(source))
    if "embedding" in config:
        place = str(directory)
        embedding = Reading().fit(as_written(config["embedding"], place), EmbeddingConfig, "embedding")
        files |= sentence_files(network, embedding)
    return files


def is_carried(name: str) -> bool:
    """Whether a file of that name is kept as it is, whatever the layout: card, licence, chat template, decoding."""
    return name == CARD or name in _CARRIED or _LICENCE.fullmatch(name) is not None


def terms(source: Path | None) -> dict[str, bytes]:
    """Card and licence of a model, by file name: they hold for a model that is trained from it, too."""
    return {name: text for name, text in carried_files(source).items() if name not in _CARRIED}


def carried_files(source: Path | None) -> dict[str, bytes]:
    """What a model folder says for people and for other tools: card, licence, chat template, decoding."""
    if source is None:
        return {}
    places = [source, *([source.parent] if (source.parent / "modules.json").exists() else [])]
    found: dict[str, bytes] = {}
    for place in places:
        try:
            for file in sorted(place.iterdir()):
                kept = is_carried(file.name) and is_plain_name(file.name)
                if kept and file.is_file() and file.stat().st_size <= _MAX_BYTES:
                    found.setdefault(file.name, file.read_bytes())
        except OSError:  # the folder is gone: the weights in memory are written all the same
            continue
    return found


def write_model(
    directory: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    files: Mapping[str, bytes],
    *,
    layout: str = "atento",
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> Path:
    """A model folder, written beside its place and renamed into it. `config` is ours whatever the layout.

    Args:
        files: further files by name (`folder/name` for one in a folder); a card among them is kept and added to.
        max_shard_size: above it the weights stand in several files, as in `weight_files`.

    Raises:
        UsageError: something stands there already. CapabilityError: the layout cannot hold this network.
        AtentoError: it cannot be written; nothing is left of it.
    """
    card = model_card(config, layout=layout, source=files.get(CARD, b"").decode("utf-8", "replace"))
    if layout == "huggingface":
        released, weights = release(network_config(config, directory), weights)
        kept = {"atento": {name: config[name] for name in KEPT if name in config}}
        config = released | kept | {"torch_dtype": type_name(widest(weights.values()))}
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} exists already; give another folder")
    parts = weight_files(weights, max_shard_size)
    partial = directory.with_name(f".{directory.name}-{os.getpid()}")
    contents = {
        **files,
        "config.json": (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(),
        CARD: card.encode(),
    }
    try:
        partial.mkdir(parents=True)
        for folder in sorted({name.rpartition("/")[0] for name in contents} - {""}):
            (partial / folder).mkdir()
        with open_directory(partial) as fd:
            entries = [write_file(fd, name, [content]) for name, content in contents.items()]
            entries += [write_file(fd, name, flatten(pieces)) for name, pieces in parts.items()]
        write_manifest(partial, entries=entries)
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    except (OSError, CheckpointError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) else error
        raise AtentoError(f"the model folder {directory} cannot be written: {reason}") from error
    return directory


def model_card(config: Mapping[str, Any], *, layout: str = "atento", source: str = "") -> str:
    """What the model is, for a person: task, sizes, how to use it, and which Atento wrote it.

    Args:
        config: ours.
        layout: of the folder that the card is for.
        source: the card of the folder that the model was read from, kept whole; an earlier section of ours in it is
            replaced.
    """
    section = f"{_HEADING}\n\n{_about(config)}\n\n{_usage(config, layout)}"
    if not source.strip():
        library = {"atento": "atento"}.get(layout, "sentence-transformers" if "embedding" in config else "transformers")
        unknown = "The training data, and so what the model may be used for, are known to whoever trained it.\n"
        return f"---\nlibrary_name: {library}\n---\n\n# {config.get('name')}\n\n{unknown}\n{section}"
    if _SECTION.search(source):
        return _SECTION.sub(lambda _: section, source, count=1)
    return f"{source.rstrip()}\n\n{section}"


def _about(config: Mapping[str, Any]) -> str:
    network = config["network"]
    family = f" of the family {network['family']}" if network.get("family") else ""
    trained = config.get("atento_version")
    return (
        f"Task: {config.get('task')}. Architecture: {network['architecture']}{family}, {network['d_model']} wide, "
        f"{_depth(network)} layers, vocabulary {network['vocab_size']}. "
        f"{f'Trained with Atento {trained}. ' if trained else ''}These files were written by Atento "
        f"{atento.__version__}."
    )


def _usage(config: Mapping[str, Any], layout: str) -> str:
    """How to use it, with Atento and, in their layout, with the libraries whose layout it is."""
    task = str(config.get("task"))
    blocks = [f"import atento\n\nmodel = atento.load('.')\n{_USE.get(task, '')}"]
    if layout == "huggingface":
        theirs = _STOCK.get("embedding" if "embedding" in config else task, "")
        blocks += [theirs] if theirs else []
    return "\n".join(f"```python\n{block}```\n" for block in blocks)


_USE = {
    "translation": "model.translate('Hello.')\n",
    "summarization": "model.summarize('A long text ...')\n",
    "language-modeling": "model.generate('Once')\n",
    "embedding": "model.embed(['Olá.'])\n",
    "masked-language-modeling": "model.embed(['Olá.'])\n",
}
_WRITE = (
    "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
    "tokenizer, network = AutoTokenizer.from_pretrained('.'), AutoModelForSeq2SeqLM.from_pretrained('.')\n"
    "written = network.generate(**tokenizer('Hello.', return_tensors='pt'))\n"
    "print(tokenizer.decode(written[0], skip_special_tokens=True))\n"
)
_STOCK = {
    "translation": _WRITE,
    "summarization": _WRITE,
    "text-to-text": _WRITE,
    "language-modeling": "from transformers import pipeline\n\nprint(pipeline('text-generation', model='.')('Once'))\n",
    "masked-language-modeling": (
        "from transformers import pipeline\n\n"
        "fill = pipeline('fill-mask', model='.')\n"
        "print(fill(f'Once {fill.tokenizer.mask_token} a time.'))\n"
    ),
    "embedding": (
        "from sentence_transformers import SentenceTransformer\n\nprint(SentenceTransformer('.').encode('Olá.'))\n"
    ),
}


def _depth(network: Mapping[str, Any]) -> str:
    """How many layers, of either side where there are two."""
    if network["architecture"] != "encoder-decoder":
        return str(network["n_layers"])
    return f"{network['n_layers']} + {network['n_decoder_layers'] or network['n_layers']}"
