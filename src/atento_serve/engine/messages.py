"""What the server and a worker process say to each other: a line of JSON each, with vectors as base64."""

import base64
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from atento_serve.jobs import Event, Failed, Job, Piece, Result, Usage

EVENTS: dict[str, type[Event]] = {"piece": Piece, "result": Result, "usage": Usage, "failed": Failed}
_NAMES = {kind: name for name, kind in EVENTS.items()}
LONGEST = 256 << 20  # bytes of a line


def encoded(message: Mapping[str, object]) -> bytes:
    """A message of plain data as a line."""
    return json.dumps(message, separators=(",", ":")).encode("utf-8") + b"\n"


def decoded(line: bytes) -> dict[str, Any]:
    """The message of a line."""
    message: dict[str, object] = json.loads(line)
    return message


def job_message(job: Job) -> dict[str, object]:
    """A job as plain data."""
    return {"job": _shallow(job)}


def event_message(job_id: str, event: Event) -> dict[str, object]:
    """An event of a job as plain data."""
    values = _shallow(event)
    if isinstance(event, Result) and isinstance(event.value, np.ndarray):
        values["value"] = base64.b64encode(event.value.astype("<f4").tobytes()).decode("ascii")  # little-endian
        values["vector"] = True
    return {"of": job_id, "event": _NAMES[type(event)], **values}


def event_of(message: Mapping[str, Any]) -> Event:
    """The event of such a message."""
    values = {name: value for name, value in message.items() if name not in ("of", "event", "vector")}
    if message.get("vector"):
        values["value"] = np.frombuffer(base64.b64decode(values["value"]), dtype="<f4")
    event: Event = EVENTS[message["event"]](**values)
    return event


def plain(value: object) -> Any:
    """A value as plain data: dataclasses as dicts, tuples as lists; a vector stays an array."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(part) for name, part in _shallow(value).items()}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _shallow(value: Any) -> dict[str, object]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
