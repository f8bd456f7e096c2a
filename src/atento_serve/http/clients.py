"""Clients: their API keys, and the share of each in the service."""

import hashlib
import hmac
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request

from atento.base.errors import DataError, UsageError
from atento.base.limits import read_plain_text
from atento_serve.http.errors import ServiceError, retry_after
from atento_serve.settings import Limits

_LIMITS = ("per-minute", "in-flight")


@dataclass(frozen=True)
class Key:
    """An API key: the name of its client, the SHA-256 of the key, and the client's own limits."""

    name: str
    digest: bytes
    per_minute: int | None = None
    in_flight: int | None = None

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


def key_of(text: str, name: str = "default") -> Key:
    """The key with this text."""
    if not text.strip() or not text.isascii():
        raise UsageError("an API key must be ASCII characters, one at least")
    return Key(name, hashlib.sha256(text.encode()).digest())


def read_keys(file: Path) -> list[Key]:
    """The keys of a file, one a line: NAME KEY [per-minute=N] [in-flight=N]; # begins a comment.

    Raises:
        DataError: a line that is not of this form, or a name or key that occurs twice; it does not show the key.
    """
    keys: list[Key] = []
    for number, line in enumerate(read_plain_text(file).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) < 2:
            raise DataError(f"{file}:{number}: a line must be NAME KEY [per-minute=N] [in-flight=N]: got one word")
        name, text, *options = words
        values: dict[str, int] = {}
        for option in options:
            limit, _, value = option.partition("=")  # "per-minute" -> the field per_minute
            if limit not in _LIMITS or not value.isdecimal() or int(value) < 1:
                raise DataError(f"{file}:{number}: a limit must be per-minute=N or in-flight=N: got {option!r}")
            values[limit.replace("-", "_")] = int(value)
        key = Key(name, key_of(text).digest, **values)
        if any(key.name == known.name or key.digest == known.digest for known in keys):
            raise DataError(f"{file}:{number}: each name and each key must occur once: {name!r} occurs again")
        keys.append(key)
    if not keys:
        raise DataError(f"{file}: must have at least one line NAME KEY: got none")
    return keys


@dataclass
class _Use:
    """What a client uses now: requests in flight, and requests left in this minute."""

    in_flight: int = 0
    left: float = 0.0
    at: float = field(default_factory=time.monotonic)


class Clients:
    """Who may use the service, and how much of it at a time."""

    def __init__(self, keys: list[Key], limits: Limits) -> None:
        self._keys, self._limits = keys, limits
        self._uses: dict[str, _Use] = {}

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self._keys)

    def authenticate(self, request: Request, sent: object = None) -> Key | None:
        """The key of a request; None where the service has none.

        Args:
            request: with `Authorization: Bearer KEY`.
            sent: the `api_key` of a body, as LibreTranslate's clients send it.

        Raises:
            ServiceError: 401.
        """
        if not self._keys:
            return None
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            text = sent if isinstance(sent, str) else ""
        digest = hashlib.sha256(text.strip().encode()).digest()
        matches = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]  # reads all keys
        if not matches:
            message = "the API key is missing or wrong: send `Authorization: Bearer KEY`"
            raise ServiceError(401, message, "wrong_api_key", headers={"WWW-Authenticate": "Bearer"})
        return matches[0]

    @contextmanager
    def share(self, request: Request, key: Key | None) -> Iterator[None]:
        """Count a request of a client while it lasts.

        Raises:
            ServiceError: 429, the client uses its share.
        """
        name = f"key {key.name}" if key else f"address {request.client.host if request.client else ''}"
        per_minute = key.per_minute if key and key.per_minute else self._limits.client_per_minute
        most = key.in_flight if key and key.in_flight else self._limits.client_in_flight
        if per_minute is None and most is None:
            yield
            return
        use = self._uses.get(name)
        if use is None:
            old = time.monotonic() - 60  # those not seen for a minute are forgotten, so that addresses do not pile up
            for idle in [one for one, known in self._uses.items() if not known.in_flight and known.at < old]:
                del self._uses[idle]
            # a new client may send a minute's requests at once
            use = self._uses[name] = _Use(left=float(per_minute or 0))
        if most is not None and use.in_flight >= most:
            raise _too_many(f"a client may have {most:,} requests at a time: all are running", 1)
        if per_minute is not None:
            now = time.monotonic()
            # it fills by so many a second
            use.left = min(float(per_minute), use.left + (now - use.at) * per_minute / 60)
            use.at = now
            if use.left < 1:
                raise _too_many(f"a client may send {per_minute:,} requests a minute", (1 - use.left) * 60 / per_minute)
            use.left -= 1
        use.in_flight += 1
        try:
            yield
        finally:
            use.in_flight -= 1


def _too_many(message: str, seconds: float) -> ServiceError:
    return ServiceError(429, message, "over_share", headers={"Retry-After": retry_after(seconds)})
