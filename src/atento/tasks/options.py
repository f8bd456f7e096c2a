"""What one call of a model gives, checked: its texts, and the options that change the usual decoding or embedding."""

from collections.abc import Iterable, Mapping
from typing import Any

from atento.config.decoding import FILTERS, DecodingConfig, DecodingOptions
from atento.config.schema import Reading, as_written
from atento.errors import UsageError, nearest
from atento.tasks.embedding import EmbeddingConfig, EmbeddingOptions

_PLAIN = DecodingConfig()  # its filters leave the distribution as it is


def listed(given: object) -> list[str]:
    """A text or texts as a list.

    Raises:
        UsageError: something else.
    """
    if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise UsageError(f"give a text or a list of texts: got {type(given).__name__}")
    texts = [given] if isinstance(given, str) else list(given)
    check_texts(texts)
    return texts


def check_texts(texts: Iterable[object]) -> None:
    """Raises UsageError: one of them is no str."""
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"a text must be a str: got {type(text).__name__}")


def decoding_for(usual: DecodingConfig, n_best: int | None, options: DecodingOptions) -> DecodingConfig:
    """The model's usual decoding, changed by the options of a call.

    A filter (`temperature`, `top_k`, ...) asks for sampling, even at a value that filters nothing. A beam narrower than
    the usual `n_best` lowers that.

    Raises:
        UsageError: an option that does not exist (names the nearest), or one that excludes `greedy`.
        RecipeError: a value of the wrong type or out of range.
    """
    changes: dict[str, Any] = dict(options)
    _check_names(changes, [*DecodingOptions.__annotations__], "decoding", also="n_best")
    if changes.pop("greedy", False):
        changes = _greedy(changes)
    elif any(name in changes for name in FILTERS):
        changes = {"sample": True} | changes
    beam = changes.get("beam", usual.beam)
    if callable(changes.get("mbr")):
        changes["mbr"] = "a function"
    if n_best is not None:
        changes["n_best"] = n_best
    elif isinstance(beam, int) and 0 < beam < usual.n_best:
        changes["n_best"] = beam
    decoding: DecodingConfig = Reading().fit(as_written(changes, "options"), DecodingConfig, "decoding", usual)
    return decoding


def embedding_for(given: Mapping[str, Any], place: str, options: EmbeddingOptions) -> EmbeddingConfig:
    """The embedding of a model's configuration (`given`, which stands at `place`), changed by the options of a call.

    Raises:
        UsageError: an option that does not exist. RecipeError: a value of the wrong type.
    """
    _check_names(options, [*EmbeddingOptions.__annotations__], "embedding")
    usual = Reading().fit(as_written(given, place), EmbeddingConfig, "embedding")
    config: EmbeddingConfig = Reading().fit(as_written(options, "options"), EmbeddingConfig, "embedding", usual)
    return config


def _greedy(changes: dict[str, Any]) -> dict[str, Any]:
    """A beam of 1 and nothing drawn, whatever is usual, with the other options of the call."""
    neutral = {"beam": 1, "sample": False, "mbr": None} | {name: getattr(_PLAIN, name) for name in FILTERS}
    for name, value in neutral.items():
        if changes.get(name, value) != value:
            raise UsageError(f"`greedy` and `{name}` exclude each other: got `{name}` {changes[name]!r}")
    return neutral | changes


def _check_names(options: Mapping[str, Any], known: list[str], what: str, also: str = "") -> None:
    for name in options:
        if name not in known:
            near = nearest(name, [*known, also] if also and name != also else known)
            raise UsageError(f"unknown {what} option {name!r}{near}")
