"""Forms over HTTP: letters as they stand or percent-encoded, fields in parts as a client library writes them (K9)."""

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from atento_serve.http.body import _fields, _in_pairs, _parsed
from atento_serve.http.errors import ServiceError
from atento_serve.settings import Limits

FIELDS = {"q": "Olá gato, não é?", "source": "pt", "target": "日本"}


def test_letters_outside_ascii_as_curl_sends_them_and_percent_encoded() -> None:
    plain = "&".join(f"{name}={value}" for name, value in FIELDS.items()).encode()
    encoded = httpx.Request("POST", "http://localhost", data=FIELDS).content
    assert plain != encoded and _fields(_in_pairs(plain)) == _fields(_in_pairs(encoded)) == FIELDS
    with pytest.raises(ServiceError, match="must be UTF-8"):
        _in_pairs("q=Olá".encode("latin-1"))


def test_fields_in_parts_are_those_that_were_sent() -> None:
    sent = httpx.Request("POST", "http://localhost", files={name: (None, value) for name, value in FIELDS.items()})
    body, kind = sent.read(), sent.headers["content-type"]
    assert _parsed(body, "multipart/form-data", kind, Limits()) == FIELDS
    for broken in (body[:-8], body.replace(b"\r\n\r\n", b"\r\n", 1), b"", body.replace("á".encode(), b"\xe1")):
        with pytest.raises(ServiceError, match="well formed"):
            _parsed(broken, "multipart/form-data", kind, Limits())
