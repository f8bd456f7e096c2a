"""Bodies over HTTP: forms with letters as they stand or percent-encoded, or in parts (K9); how deep JSON may be."""

import json

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

from atento_serve.http.body import _fields, _in_pairs, _parsed
from atento_serve.http.errors import ServiceError
from atento_serve.http.strict_json import parse
from atento_serve.settings import Limits

FIELDS = {"q": "Olá gato, não é?", "source": "pt", "target": "日本"}


def test_letters_outside_ascii_as_curl_sends_them_and_percent_encoded() -> None:
    plain = "&".join(f"{name}={value}" for name, value in FIELDS.items()).encode()
    encoded = httpx.Request("POST", "http://localhost", data=FIELDS).content
    assert plain != encoded and _fields(_in_pairs(plain)) == _fields(_in_pairs(encoded)) == FIELDS
    with pytest.raises(ServiceError, match="must be UTF-8"):
        _in_pairs("q=Olá".encode("latin-1"))


@pytest.mark.parametrize("inside", [b"", b"1", b'"a"', b"{}"])
def test_json_may_be_nested_as_deep_as_the_limit_says(inside: bytes) -> None:
    levels = 4 - (inside == b"{}")
    deepest = b"[" * levels + inside + b"]" * levels
    assert json.loads(deepest) == parse(deepest, 4) and parse(b'{"a": 1, "b": "c"}', 1) == {"a": 1, "b": "c"}
    for deeper in (b"[" + deepest + b"]", b'{"a": ' + deepest + b"}"):
        with pytest.raises(ServiceError, match="must not be nested more than 4 levels deep"):
            parse(deeper, 4)


def test_whole_numbers_and_a_byte_order_mark_are_those_of_json() -> None:
    """A client of Lua or PHP writes 3.0; an editor of Windows begins a file with a mark. Both were refused."""
    value = parse(b'\xef\xbb\xbf{"n": 3.0, "big": 1e3, "cold": 0.0, "top_p": 0.5, "far": 1e300}', 1)
    assert value == {"n": 3, "big": 1000, "cold": 0, "top_p": 0.5, "far": 1e300}
    assert isinstance(value, dict) and [type(one) for one in value.values()] == [int, int, int, float, float]


def test_fields_in_parts_are_those_that_were_sent() -> None:
    sent = httpx.Request("POST", "http://localhost", files={name: (None, value) for name, value in FIELDS.items()})
    body, kind = sent.read(), sent.headers["content-type"]
    assert _parsed(body, "multipart/form-data", kind, Limits()) == FIELDS
    for broken in (body[:-8], body.replace(b"\r\n\r\n", b"\r\n", 1), b"", body.replace("á".encode(), b"\xe1")):
        with pytest.raises(ServiceError, match="well formed"):
            _parsed(broken, "multipart/form-data", kind, Limits())
