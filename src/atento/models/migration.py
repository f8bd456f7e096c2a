"""Migrates model folders of earlier versions: keys of `config.json` and names of tensors."""

from collections.abc import Mapping

from torch import Tensor

from atento.base.errors import ModelError
from atento.config.tables.renamed_keys import VERSION, nested

_WRITERS = ("decoder", "encoder-decoder", "recurrent-lm", "recurrent-seq2seq")
_NAMES: dict[tuple[str, ...], dict[str, str]] = {  # architectures -> how names of version 1 begin -> of version 2
    ("encoder",): {
        "heads.masked-language-model.output.": "heads.vocabulary.output.",
        "heads.masked-language-model.": "heads.vocabulary.transform.",
        "heads.span-boundary.places": "heads.span-boundary.positions",
    },
    _WRITERS: {"output.": "heads.vocabulary.output."},
    ("elmo",): {
        "output_weight": "heads.vocabulary.output.weight",
        "output_bias": "heads.vocabulary.output.bias",
        "embedding": "embedding.weight",
    },
}


def migrated(
    config: Mapping[str, object], weights: Mapping[str, Tensor], folder: str
) -> tuple[dict[str, object], dict[str, Tensor]]:
    """A model's `config.json` and tensors as this version writes them.

    Args:
        config: of our layout; without `version` it is of version 1.
        weights: by the names of that version.
        folder: the folder, for messages.

    Raises:
        ModelError: a later version wrote it.
    """
    version = config.get("version", 1)
    if type(version) is int and version == VERSION:
        return dict(config), dict(weights)
    if type(version) is not int or version != 1:
        raise ModelError(f"{folder}: config.json is of version {version!r}, this Atento reads up to {VERSION}")
    network = config.get("network")
    if not isinstance(network, Mapping):  # reported when the network is read
        return dict(config), dict(weights)
    architecture = network.get("architecture", "encoder-decoder")
    migrated_weights = {_name(str(architecture), name): value for name, value in weights.items()}
    return {**config, "version": VERSION, "network": nested(network)}, migrated_weights


def _name(architecture: str, name: str) -> str:
    """A tensor's name of version 2."""
    name = name.replace(".own_residual.", ".self_attention_residual.")
    name = name.replace(".cross_residual.", ".cross_attention_residual.")
    for architectures, starts in _NAMES.items():
        for start, new in starts.items() if architecture in architectures else ():
            if name == start or (start.endswith(".") and name.startswith(start)):
                return new + name.removeprefix(start)
    return name
