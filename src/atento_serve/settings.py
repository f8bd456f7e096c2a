"""The settings of the service: the models it serves and the limits it holds, with their defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from atento.base.errors import UsageError, nearest

T = TypeVar("T")
Truncate = Literal["error", "left", "right"]


@dataclass(frozen=True)
class ModelSettings:
    """One served model.

    Attributes:
        name: by which requests name it.
        path: what `atento.load` takes: a run folder, a model folder, a shipped model or a hub name.
        device, precision, engine: as `atento.load` takes them.
        threads: CPU threads of its workers together; None: all cores.
        workers: the number of processes that compute it.
        seed: of requests that have none; None: that of the model's own decoding.
        languages: (source, target) of a translation model whose tokenizer names no languages; None: unknown.
        index: the folder of an index that this model made, for `/find`; None: it has none.
    """

    name: str
    path: str
    device: str = "auto"
    precision: str = "float32"
    engine: Literal["auto", "torch", "onnx"] = "auto"
    threads: int | None = None
    workers: int = 1
    seed: int | None = None
    languages: tuple[str, str] | None = None
    index: str | None = None


@dataclass(frozen=True)
class StudioSettings:
    """What Studio shows.

    Attributes:
        models: by the names that the page shows; each is loaded when it is first asked for.
        cache_bytes: what the results of forward passes may take together.
        runs: runs and folders of runs that are drawn: those that the command line named, and beside them.
    """

    models: Mapping[str, ModelSettings]
    cache_bytes: int = 1_000_000_000
    runs: Sequence[str] = ()


def _limit(default: T, text: str, least: float = 0, *, above: bool = False) -> T:
    """A field with its meaning and its least value, which it must exceed if `above`."""
    return field(default=default, metadata={"text": text, "least": least, "above": above})


_TOO_LONG = "what becomes of a text that is too long: error, left or right (the end that is cut)"


@dataclass(frozen=True)
class Limits:
    """Every limit of the service; `GET /limits` shows them, and docs/serving.md lists them.

    Raises:
        UsageError: a value out of its range.
    """

    connections: int = _limit(256, "open connections", 1)
    header_bytes: int = _limit(16_384, "bytes of the head of a request: its line and its fields", 1024)
    header_fields: int = _limit(64, "fields in the head of a request", 8)
    body_bytes: int = _limit(1 << 20, "bytes of the body of a request", 1)
    json_depth: int = _limit(16, "levels of nesting of a JSON body", 4)
    json_parts: int = _limit(20_000, "arrays and objects of a JSON body", 16)
    texts: int = _limit(32, "texts of one request; more inputs for vectors are computed in parts of as many", 1)
    segments: int = _limit(10_000, "passages or sentences of one request for translation", 1)
    terms: int = _limit(10_000, "terms of a glossary", 1)
    unfolded_bytes: int = _limit(16 << 20, "bytes of a document that is an archive, when it is unpacked", 1)
    text_processes: int = _limit(8, "processes that work on long texts and documents, each for one request", 1)
    text_memory: int = _limit(512 << 20, "bytes of memory of such a process", 256 << 20)
    text_seconds: float = _limit(10.0, "seconds of the processor that such work may take for a request", above=True)
    input_tokens: int = _limit(512, "tokens of one text, special tokens included", 1)
    output_tokens: int = _limit(256, "new tokens of one output", 1)
    beam: int = _limit(16, "width of a beam", 1)
    n: int = _limit(16, "outputs of one text", 1)
    in_flight: int = _limit(64, "requests computed at a time by one model", 1)
    queue: int = _limit(64, "requests that wait for one model", 1)
    deadline: float = _limit(30.0, "seconds from the last byte of a request to its answer", above=True)
    header_seconds: float = _limit(5.0, "seconds for the head of a request to arrive", above=True)
    body_seconds: float = _limit(10.0, "seconds for the body of a request to arrive", above=True)
    idle_seconds: float = _limit(
        15.0, "seconds that a connection may stay without a request, or without reading its answer", above=True
    )
    hang_seconds: float = _limit(
        60.0, "seconds without an answer after which a worker that hangs is ended and replaced", 5
    )
    drain_seconds: float = _limit(30.0, "seconds that running requests have to end after SIGTERM")
    batch_tokens: int = _limit(4096, "tokens that are computed at a time", 1)
    wait_ms: float = _limit(2.0, "milliseconds that a request waits for others to share its batch")
    truncate: Truncate = field(default="error", metadata={"text": _TOO_LONG, "least": 0})
    client_in_flight: int | None = _limit(None, "requests of one client at a time; null: no limit", 1)
    client_per_minute: int | None = _limit(None, "requests of one client in a minute; null: no limit", 1)

    def __post_init__(self) -> None:
        if self.truncate not in ("error", "left", "right"):
            raise UsageError(f"`truncate` must be error, left or right: got {self.truncate!r}")
        for limit in fields(self):
            value, least = getattr(self, limit.name), limit.metadata["least"]
            if isinstance(value, str) or value is None:
                continue
            low = not least < value if limit.metadata.get("above") else not least <= value
            if low or value == float("inf"):
                rule = "above" if limit.metadata.get("above") else "at least"
                raise UsageError(f"the limit `{limit.name}` must be finite and {rule} {least}: got {value}")


def limit_texts() -> dict[str, str]:
    """What each limit means, by its name."""
    return {limit.name: limit.metadata["text"] for limit in fields(Limits)}


def limits_from(values: Mapping[str, Any], words: Sequence[str]) -> Limits:
    """The limits with these values and those of `NAME=VALUE` words.

    Raises:
        UsageError: no such limit, or a value of the wrong type or out of range.
    """
    changed = dict(values)
    known = {limit.name: limit for limit in fields(Limits)}
    for word in words:
        name, _, text = word.partition("=")
        if name not in known:
            raise UsageError(f"there is no limit {name!r}{nearest(name, list(known))}")
        changed[name] = _value(name, text, is_float=known[name].type is float)
    return Limits(**changed)


def _value(name: str, text: str, *, is_float: bool) -> object:
    if name == "truncate":
        return text
    try:
        return float(text) if is_float else int(text)
    except ValueError:
        kind = "a number" if is_float else "a whole number"
        raise UsageError(f"the limit `{name}` must be {kind}: got {text!r}") from None
