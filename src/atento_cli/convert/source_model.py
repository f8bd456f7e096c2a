"""Loads the model to convert; older weight files are unpickled first, in a temporary folder."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atento.base.errors import CapabilityError
from atento.model import Model, load
from atento.models.model_folder import find_model
from atento.networks.int8_projection import has_int8_weights
from atento.released.sentence_transformers import sentence_folder
from atento_cli.convert.comet_checkpoint import is_comet
from atento_cli.convert.unpickle import older_files, safe_name
from atento_cli.convert.unpickling import unpickled


@contextmanager
def model_to_convert(
    model: str | Path,
    precision: str,
    *,
    allow_missing: bool = False,
    allow_unused: bool = False,
    head: str | None = None,
) -> Iterator[Model]:
    """The model on the CPU, under the name of its folder; a checkpoint keeps the name of its run.

    Args:
        model: a run, a model folder or a hub name.
        precision, allow_missing, allow_unused: as in `atento.load`. head: the only head that is taken along; None: all.

    Raises ModelError: weights are missing or unused, or a file holds more than weights.
    """
    if is_comet(model):
        raise CapabilityError(f"{model} is as COMET writes it, which is converted with `--to atento` alone")
    folder = find_model(model, older=True)
    name = folder.name if Path(model).exists() else Path(model).name  # a hub name is stored under its commit
    modules = sentence_folder(folder)
    parts = (folder,) if modules is None else (modules.network, *modules.dense)  # the folders that hold weights
    with tempfile.TemporaryDirectory(prefix="atento-") as temporary:
        if older := tuple(part for part in parts if _is_older(part)):
            folder = unpickled(folder, older, Path(temporary))
        loaded = load(folder, device="cpu", precision=precision, allow_missing=allow_missing, allow_unused=allow_unused)
        if has_int8_weights(loaded.network):
            raise CapabilityError(f"{model} has weights of 8 bits already: convert the model that it was made from")
        if folder.parent.name != "checkpoints":
            loaded.config["name"] = name
        yield loaded if head is None else loaded.head(head)


def _is_older(folder: Path) -> bool:
    """Whether the weights of a folder are in older files alone."""
    older = older_files(folder)
    return bool(older) and not any(folder.glob(safe_name(older[0]).replace(".", "*.")))
