"""The hash of a model's files, by which a run knows whether the model is the same."""

import hashlib
import json
from pathlib import Path

from atento.base.errors import CheckpointError, ModelError
from atento.base.limits import open_plain
from atento.models.model_folder import find_model, kept_confidence
from atento.storage.manifest import CONFIDENCE, MANIFEST, read_manifest

_ENDINGS = (".json", ".safetensors", ".txt", ".model", ".spm", ".jinja", ".bin", ".vec", ".hdf5")
_OF_TRAINING = ("optimizer", "state.json", MANIFEST)  # files of a checkpoint that the model does not read


def model_files(model: str) -> tuple[Path, str]:
    """The path of a model and the SHA-256 of the files that it consists of; takes about 0.8 s per GiB.

    A checkpoint has the hashes of its files in its manifest, which are taken as they are: they are verified when the
    model is loaded.

    Args:
        model: a run folder, a model folder, a hub name or a file of word vectors.

    Raises UsageError: there is no such model. CheckpointError: its manifest is damaged.
    """
    path = Path(model)
    if path.is_file():
        return path.resolve(), _sha256(path)
    folder = find_model(model).resolve()
    if (folder / MANIFEST).is_file() and not (folder / MANIFEST).is_symlink():
        hashes = {entry.name: entry.sha256 for entry in read_manifest(folder).files if _is_read(entry.name)}
        if kept := kept_confidence(folder):  # of a checkpoint, in its run
            hashes[CONFIDENCE] = json.dumps(kept, sort_keys=True)
    else:
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
        hashes = {name: _sha256(folder / name) for name in names if _is_read(name)}
    if not hashes:
        raise ModelError(f"{model}: the folder has no files of a model")
    digest = hashlib.sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode())
    return folder, digest.hexdigest()


def _is_read(name: str) -> bool:
    return name.endswith(_ENDINGS) and not name.startswith(_OF_TRAINING)


def _sha256(path: Path) -> str:
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
