"""Bodies over HTTP: forms with letters as they stand or percent-encoded, or in parts (K9); how deep JSON may be."""

import json
import re
import time
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

pytest.importorskip("fastapi", reason="needs the extra serve")

import atento_serve
from atento_serve.api import text_process
from atento_serve.api.text_work import WORK
from atento_serve.http.body import _fields, _in_pairs, _parsed
from atento_serve.http.errors import ServiceError
from atento_serve.http.fields import Fields
from atento_serve.http.strict_json import parse
from atento_serve.settings import Limits
from failing import fails

for part in walk_packages(atento_serve.__path__, "atento_serve."):  # with the bodies of all routes
    if not part.name.endswith("__main__"):
        import_module(part.name)
FIELDS = {"q": "Olá gato, não é?", "source": "pt", "target": "日本"}


def test_letters_outside_ascii_and_fields_in_parts_are_those_that_were_sent() -> None:
    plain = "&".join(f"{name}={value}" for name, value in FIELDS.items()).encode()
    encoded = httpx.Request("POST", "http://localhost", data=FIELDS).content
    assert plain != encoded and _fields(_in_pairs(plain)) == _fields(_in_pairs(encoded)) == FIELDS
    fails(ServiceError, "must be UTF-8", _in_pairs, "q=Olá".encode("latin-1"))
    sent = httpx.Request("POST", "http://localhost", files={name: (None, value) for name, value in FIELDS.items()})
    body, kind = sent.read(), sent.headers["content-type"]
    assert _parsed(body, "multipart/form-data", kind, Limits()) == FIELDS
    for broken in (body[:-8], body.replace(b"\r\n\r\n", b"\r\n", 1), b"", body.replace("á".encode(), b"\xe1")):
        fails(ServiceError, "well formed", _parsed, broken, "multipart/form-data", kind, Limits())
    part = b'--b\r\nContent-Disposition: form-data; name="q"\r\nContent-Disposition: form-data;'
    began = time.process_time()
    with pytest.raises(ServiceError, match="well formed"):
        _parsed(part + b" " * 500_000 + b"\r\n\r\nx\r\n--b--\r\n", "multipart/form-data", "boundary=b", Limits())
    assert time.process_time() - began < 1.0  # an expression would try each of the spaces: hours


def test_json_has_few_arrays_and_objects_nested_as_deep_as_the_limit_says() -> None:
    assert parse(b'{"q": "' + b"[{" * 100 + b'"}', 4, 10) == {"q": "[{" * 100}  # those of texts do not count
    fails(ServiceError, "at most 10 arrays and objects: got 11", parse, b"[" + b"[]," * 9 + b"{}]", 4, 10)
    assert parse(b"[" + b"9" * 19 + b"]", 1) == [int("9" * 19)]
    fails(ServiceError, "at most 64 bits", parse, b"[" + b"9" * 21 + b"]", 1)
    # A client of Lua or PHP writes 3.0; an editor of Windows begins a file with a mark. Both were refused
    value = parse(b'\xef\xbb\xbf{"n": 3.0, "big": 1e3, "cold": 0.0, "top_p": 0.5, "far": 1e300}', 1)
    assert value == {"n": 3, "big": 1000, "cold": 0, "top_p": 0.5, "far": 1e300}
    assert isinstance(value, dict) and [type(one) for one in value.values()] == [int, int, int, float, float]
    for inside in (b"", b"1", b'"a"', b"{}"):
        levels = 4 - (inside == b"{}")
        deepest = b"[" * levels + inside + b"]" * levels
        assert json.loads(deepest) == parse(deepest, 4) and parse(b'{"a": 1, "b": "c"}', 1) == {"a": 1, "b": "c"}
        for deeper in (b"[" + deepest + b"]", b'{"a": ' + deepest + b"}"):
            fails(ServiceError, "must not be nested more than 4 levels deep", parse, deeper, 4)


def kinds(of: type[Fields] = Fields) -> list[type[Fields]]:
    """The classes of the bodies of all routes."""
    return [kind for one in of.__subclasses__() for kind in (one, *kinds(one))]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.__module__.startswith("atento_serve")])
def test_a_body_with_many_mistakes_is_refused_for_the_first(kind: type[Fields]) -> None:
    """In lists and objects of any field, and in fields that there are not; pydantic would describe each of them."""
    wrong: list[Any] = [[object()] * 100_000, {str(number): object() for number in range(100_000)}]
    bodies = [{name: value} for name in kind.model_fields for value in wrong]
    for body in [*bodies, wrong[1]]:
        with suppress(ServiceError):  # of a rule of our own, which speaks of one thing
            try:
                kind.model_validate(body)
            except ValidationError as error:
                assert error.error_count() < 50  # a union says one for each of its types; else 100,000


def test_a_fault_in_work_on_texts_is_logged_without_the_text(monkeypatch, capsys) -> None:
    def fails(given: Any, content: bytes) -> Any:
        raise ValueError("a secret text")
        yield

    monkeypatch.setitem(WORK, "texts", fails)
    answer = text_process._answer(b'{"work": "texts"}', b"", 1)
    assert answer is not None and answer[0]["refused"][0] == 500 and answer[0]["is_last"]
    log = capsys.readouterr().err
    assert re.search(r"ValueError in work on texts: .*test_serve_forms.py:\d+", log) and "secret" not in log
