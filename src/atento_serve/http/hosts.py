"""The names by which the service may be called, against web pages that reach it by their own (DNS rebinding).

A page of `evil.example` may let its name point to 127.0.0.1, and a browser then takes the service for a part of that
page. The name stands in the field `Host` of each request.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from atento_serve.http.errors import ServiceError


class Hosts:
    """The names that are answered.

    Args:
        bound: the address that the service listens on. On one of this machine alone, requests must name `localhost`,
            an address of it, or that address; on others every name is answered, unless some are allowed by name.
        allowed: further names; `*` is every name. Beside names on an address of other machines, any address is
            answered too, since it is no name that could point elsewhere: so do probes of containers.
    """

    def __init__(self, bound: str, allowed: Sequence[str] = ()) -> None:
        self._names = {"localhost", _name(bound), *map(_name, allowed)}
        self._is_local = is_loopback(bound)
        self._answers_all = "*" in allowed or not (self._is_local or allowed)

    def check(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises ServiceError: 421, the request names another host."""
        sent = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
        name = _name(sent)
        if self._answers_all or not sent or name in self._names:
            return
        if is_loopback(name) or (not self._is_local and _is_address(name)):
            return
        message = f"this service does not answer for the host {name[:80]!r}: `--allow-host` adds a name"
        raise ServiceError(421, message, "wrong_host", headers={"Connection": "close"})


def is_loopback(host: str) -> bool:
    """Whether an address, or `localhost`, is of this machine alone."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """The name without port, brackets and a full stop at the end, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return host if port and not port.startswith(":") else address
    return host if host.count(":") > 1 else host.partition(":")[0].removesuffix(".")
