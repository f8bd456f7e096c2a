"""Finds the folder of a model: of a run the selected checkpoint, a model folder, a shipped or a fetched model."""

import re
import socket
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from atento.config.reading.recipe_layers import shipped
from atento.errors import CheckpointError, ModelError, UsageError
from atento.models.shipped import shipped_models
from atento.storage.catalogue import select_checkpoint

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = [
    *("*.json", "*.safetensors", "*vocab.txt", "*merges.txt", "*.model", "*.spm", "*.jinja"),
    *("README.md", "LICENSE*", "NOTICE*"),
]
_NOT_FETCHED = ["consolidated*", "original/*", "onnx/*", "openvino/*", "checkpoint-*"]  # the same in other forms
WORD_ENDINGS = (".txt", ".vec", ".bin")  # of word vectors, the last binary
_HUB_SECONDS = 5.0  # to wait for a connection


def find_model(model: str | Path, *, older: bool = False, fetch: bool = True) -> Path:
    """The folder of a model: the best checkpoint of a run (else its last), a model folder, a shipped or a hub model.

    Args:
        model: in this order an existing path, the name of a model that comes with the package, or a hub name
            (`owner/name`).
        fetch: ask the hub; False: a hub name is looked for in the hub's cache alone.
        older: also fetch `pytorch_model*.bin` or `adapter_model.bin` where a hub model, or a Dense module of it, has no
            safetensors.

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
        return _checkpoint(path)
    if path.is_dir():
        return path
    if path.exists():
        raise UsageError(f"{path} is a file; a model is a folder")
    if path.parent != Path() and path.parent.is_dir():
        close = get_close_matches(path.name, _folders(path.parent), n=1, cutoff=0.6)
        hint = f"; did you mean {path.parent / close[0]}?" if close else ""
        raise UsageError(f"no model at {path}: the folder {path.parent} has no {path.name}{hint}")
    if _HUB_NAME.fullmatch(str(model)) and not str(model).startswith("."):
        return _fetch(str(model), older, only_cache=not fetch)
    if path.parent == Path() and path.name in (models := shipped_models()):
        return models[path.name]
    raise UsageError(f"no model at {path}: give a run folder, a model folder or a hub name (owner/name){_near(path)}")


def word_files(path: Path) -> tuple[Path, ...]:
    """The files of a model of words: `*options.json` and `*weights.hdf5` of a published ELMo folder, or a word2vec file
    (.bin, binary; .txt or .vec, text; each also with .gz). Empty for anything else.

    Raises:
        ModelError: an ELMo folder with several options or weights.
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
    close = get_close_matches(path.name, [*runs, *shipped_models()], n=3, cutoff=0.6)
    names = [f"runs/{name}" if name in runs else name for name in dict.fromkeys(close)]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _folders(path: Path) -> list[str]:
    """The names of the folders in a folder, sorted; empty where it cannot be read."""
    try:
        return sorted(folder.name for folder in path.iterdir() if folder.is_dir())
    except OSError:
        return []


def _checkpoint(run: Path) -> Path:
    selected = select_checkpoint(run)
    if selected is None and any((run / "checkpoints").glob("step-*")):
        raise CheckpointError(f"every checkpoint of the run {run} is damaged")
    if selected is None:
        raise UsageError(f"the run {run} has no checkpoint yet")
    return selected.path


def _hub_answers() -> bool:
    """Whether the hub can be reached, or a proxy is set; `huggingface_hub` itself tries for half a minute."""
    from huggingface_hub.constants import ENDPOINT

    address = urlsplit(ENDPOINT)
    if address.scheme in getproxies() or address.hostname is None:
        return True
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), timeout=_HUB_SECONDS).close()
    except OSError:
        return False
    return True


def _older_patterns(folder: Path) -> list[str]:
    """The patterns of the older weight files of a fetched model, and of its modules, that have no safetensors."""
    parts = (folder, *folder.glob("*_Transformer"), *folder.glob("*_Dense"))
    bare = [part.relative_to(folder) for part in parts if not any(part.glob("*.safetensors"))]
    return [str(part / name) for part in bare for name in ("pytorch_model*.bin", "adapter_model.bin")]


def _fetch(name: str, older: bool, *, only_cache: bool) -> Path:
    """The folder of a hub model in the hub's cache; verified by the hub's hashes instead of a manifest."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        only_cache = only_cache or not _hub_answers()
        fetch = partial(snapshot_download, name, ignore_patterns=_NOT_FETCHED, local_files_only=only_cache)
        folder = Path(fetch(allow_patterns=_HUB_FILES))
        if older and (patterns := _older_patterns(folder)):
            folder = Path(fetch(allow_patterns=_HUB_FILES + patterns))
        return folder
    except GatedRepoError:
        reason = "its owner has to grant you access on the hub (then `hf auth login`)"
    except RepositoryNotFoundError:
        reason = "the hub has no model of that name that you may read"
    except HFValidationError:
        reason = "it cannot be a hub name (owner/name) either"
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        reason = "it is not in the hub's cache, and the hub cannot be reached: you are offline"
    except (HfHubHTTPError, OSError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = f"it could not be fetched from the hub ({first_line[:200]})"
    raise UsageError(f"{name} is no local folder, and {reason}; give the path of a local folder") from None
