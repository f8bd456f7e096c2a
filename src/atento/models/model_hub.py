"""Models of the hub: whether it answers, and the files of a model that are fetched into its cache."""

import socket
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from atento.base.errors import UsageError

_HUB_FILES = [
    *("*.json", "*.safetensors", "*vocab.txt", "*merges.txt", "*.model", "*.spm", "*.jinja"),
    *("README.md", "LICENSE*", "NOTICE*"),
]
_NOT_FETCHED = ["consolidated*", "original/*", "onnx/*", "openvino/*", "checkpoint-*"]  # the same in other forms
_HUB_SECONDS = 5.0  # to wait for a connection


def _answers() -> bool:
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


def fetched(name: str, older: bool, *, only_cache: bool) -> Path:
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
        only_cache = only_cache or not _answers()
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
