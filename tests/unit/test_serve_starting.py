"""The start of the service: a server that ends before it answers ends the service, and says why."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from atento.base.errors import AtentoError, UsageError
from atento_serve import server
from atento_serve.engine.engine import Engine
from atento_serve.settings import Limits
from atento_serve.start import ServerSettings, listening_socket
from failing import fails


@pytest.mark.parametrize("ends", [None, OSError("no more files")])
def test_a_server_that_ends_before_it_answers(monkeypatch, tmp_path, ends) -> None:
    """It leaves no socket of its administration behind."""
    admin = tmp_path / "admin.sock"

    async def serve(self: Any, sockets: object) -> None:
        if ends is not None:
            raise ends

    monkeypatch.setattr(server._Server, "serve", serve)
    limits = Limits()

    async def start() -> None:
        with listening_socket("127.0.0.1", 0) as bound:
            wrong: dict[str, Any] = {"ready": lambda url: pytest.fail("it does not answer")}
            settings = ServerSettings(quiet=True, admin_socket=admin, **wrong)
            answering = server.answer_until(asyncio.Event(), Engine({}, limits), {}, limits, settings, bound, None)
            await asyncio.wait_for(answering, 10)

    kind, said = (AtentoError, "before it could answer") if ends is None else (OSError, "no more")
    fails(kind, said, asyncio.run, start())
    assert not admin.exists()


def test_the_admin_socket_of_a_running_service_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with server._unix_socket(path) as running:
        running.listen()
        fails(UsageError, r"--admin-socket .*admin.sock: another service answers there", server._unix_socket, path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    server._unix_socket(path).close()  # of a service that was killed
