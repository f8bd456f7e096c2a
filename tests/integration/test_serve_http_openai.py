"""OpenAI's API over HTTP: neutral fields, templates that fail or are reloaded, log-probabilities and penalties."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_type_hints

import openai
import pytest
import torch
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from torch import Tensor

import atento
from atento.config.recipe import TokenizerConfig
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from http_service import SOURCES, Served, conversation_ids, error_of, served, write_models
from test_serve_http_faults import reload

H, C = "/v1/chat/completions", "/v1/completions"
SAID = [{"role": "user", "content": "I love you ."}]
SHARED: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
# a field of OpenAI's requests -> values that ask for nothing; null is one for each
NOTHING = "audio max_completion_tokens max_tokens moderation prediction seed stream_options temperature"
NEUTRAL: dict[str, list[Any]] = {name: [] for name in (*NOTHING.split(), "web_search_options")}
NEUTRAL |= {"best_of": [1], "dimensions": [16], "echo": [False], "encoding_format": ["float"]}
NEUTRAL |= {"frequency_penalty": [0, 0.0], "function_call": ["none", "auto"], "functions": [[]], "logit_bias": [{}]}
NEUTRAL |= {"logprobs": [False], "metadata": [{}, {"run": "7"}], "modalities": [["text"]], "n": [1]}
NEUTRAL |= {"parallel_tool_calls": [True, False], "presence_penalty": [0, 0.0], "prompt_cache_key": ["a"]}
NEUTRAL |= {"prompt_cache_options": [{}], "prompt_cache_retention": ["in_memory", "24h"]}
NEUTRAL |= {"reasoning_effort": ["none", "medium"], "response_format": [{"type": "text"}], "safety_identifier": ["a"]}
NEUTRAL |= {"service_tier": ["auto", "default"], "stop": [[]], "store": [False], "stream": [False], "suffix": [""]}
NEUTRAL |= {"tool_choice": ["none", "auto"], "tools": [[]], "top_logprobs": [0], "top_p": [1, 1.0], "user": ["a", ""]}
NEUTRAL |= {"verbosity": ["medium"]}
# fields of other servers with chat templates
BESIDE: dict[str, list[Any]] = {"chat_template_kwargs": [{}, {"enable_thinking": False}], "min_p": [0]}
BESIDE |= {"continue_final_message": [False], "add_generation_prompt": [True]}
BESIDE |= {"top_k": [-1, 0], "repetition_penalty": [1.0]}


def answered(service: Served, path: str, body: dict[str, Any]) -> Any:
    done = service.post(path, body)
    assert done.status_code == 200, (body, done.text)
    return done.json().get("choices", done.json().get("data"))


@pytest.mark.parametrize(
    ("path", "needed", "kind", "further"),
    [
        (H, {"model": "lm", "messages": SAID}, chat_create_params.CompletionCreateParamsNonStreaming, BESIDE),
        (C, {"model": "lm", "prompt": "a"}, completion_create_params.CompletionCreateParamsNonStreaming, {}),
        ("/v1/embeddings", {"model": "encoder", "input": "a"}, embedding_create_params.EmbeddingCreateParams, {}),
    ],
)
def test_every_field_of_openai_may_have_its_neutral_values(
    path: str, needed: dict[str, Any], kind: type[Any], further: dict[str, list[Any]], service: Served
) -> None:
    names = set(get_type_hints(kind)) - set(needed)
    assert names and names <= set(NEUTRAL), f"new fields of OpenAI's client: {names - set(NEUTRAL)}"
    shared = {} if path.endswith("embeddings") else SHARED
    expected = answered(service, path, needed | shared)
    fields = {name: [value for value in NEUTRAL[name] if path == H or value is not False] for name in names} | further
    for name, values in fields.items():
        for value in (*values, None):
            given = {} if name in shared else {name: value}
            assert answered(service, path, needed | given | shared) == expected, (name, value)
    everything = {name: values[0] if values else None for name, values in fields.items() if name not in shared}
    assert answered(service, path, needed | everything | shared) == expected
    assert answered(service, path, needed | dict.fromkeys(fields, None) | shared) == expected


def test_a_reply_is_sent_back_as_the_client_dumps_it(client: Any, service: Served) -> None:
    done = client.chat.completions.create(model="lm", messages=SAID, **SHARED)
    message = done.choices[0].message
    dumped, replies = message.model_dump(), []
    forms = ({"role": "assistant", "content": message.content}, message, message.model_dump(exclude_none=True))
    for reply in (*forms, dumped, dumped | {"refusal": ""}):
        messages: Any = [*SAID, reply, *SAID]
        again = client.chat.completions.create(model="lm", messages=messages, **SHARED)
        replies.append((again.choices, again.usage))
    assert all(reply == replies[0] for reply in replies)
    whole = json.loads(done.model_dump_json())["choices"][0]["message"]
    body = {"model": "lm", "messages": [*SAID, whole, *SAID], "stop": None, "stream": None, "stream_options": None}
    assert service.post(H, body | SHARED).json()["choices"][0]["message"]["content"] == replies[0][0][0].message.content


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("store", True), ("service_tier", "flex"), ("reasoning_effort", "high"), ("modalities", ["audio"])),
        *(("audio", {}), ("functions", [{}]), ("verbosity", "low"), ("tools", [{}])),
        *(("continue_final_message", True), ("add_generation_prompt", False)),
    ],
)
def test_a_field_that_asks_for_something_is_refused_by_name(name: str, value: Any, service: Served) -> None:
    done = service.post(H, {"model": "lm", "messages": SAID, name: value})
    message, param = (error_of(done.json())[key] for key in ("message", "param"))
    assert (done.status_code, param) == (422, f"/{name}") and message.startswith(f"`{name}` is not supported")


FIRST = (
    "{% for m in messages %}{% if m.role == 'loop' %}{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% elif m.role == 'large' %}{{ 'x' * 10**9 }}{% elif m.role == 'zero' %}{{ 1/0 }}"
    "{% elif m.role == 'missing' %}\n{{ lost.thing }}{% elif m.role == 'judge' %}{{ raise_exception('no judges') }}"
    "{% else %}{{ bos_token }}{{ m.role }}: {{ m.content | trim }}{{ word }}{{ eos_token }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("chat")
    folders = write_models(folder)
    (folders["lm"] / "MANIFEST.json").unlink()  # which does not list the template
    (folders["lm"] / "chat_template.jinja").write_text(FIRST, encoding="utf-8")
    with served([str(folders["lm"]), "--admin-socket", str(folder / "admin.sock")]) as running:
        running.folders = folders
        yield running


@pytest.mark.slow  # test_chat_rendering has the templates that fail
def test_a_template_that_fails_is_one_refusal_and_the_service_goes_on(own: Served) -> None:
    good = own.post(H, {"model": "lm", "messages": SAID} | SHARED).json()
    cases = [
        ("loop", 400, "chat_template_failed", "it takes more than 2 seconds"),
        ("large", 400, "chat_template_failed", "line 1: it takes more than 512 MiB of memory"),
        ("zero", 400, "chat_template_failed", "line 1: ZeroDivisionError: division by zero"),
        ("missing", 400, "chat_template_failed", "line 2: 'lost' is undefined"),
        ("judge", 422, "wrong_field", "the chat template of the model refuses the messages: no judges"),
    ]
    for role, status, code, message in cases:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(own.post, H, {"model": "lm", "messages": [{"role": role, "content": "a"}]} | SHARED)
            while not running.done():
                began = time.monotonic()
                assert own.get("/health/live").status_code == 200 and time.monotonic() - began < 5.0
                time.sleep(0.05)
            done = running.result()
        error = error_of(done.json())
        assert (done.status_code, error["code"]) == (status, code) and message in error["message"]
        assert error["param"] == ("/model" if status == 400 else "/messages") and "\n" not in error["message"]
        assert own.post(H, {"model": "lm", "messages": SAID} | SHARED).json()["choices"] == good["choices"]
    assert own.get("/info").json()["models"]["lm"]["has_chat_template"] is True and not own.events("worker_ended")


def test_variables_reach_the_template_and_make_no_special_token(own: Served) -> None:
    def tokens(**given: Any) -> int:
        body = {"model": "lm", "messages": SAID, "chat_template_kwargs": given}
        return int(own.post(H, body | SHARED).json()["usage"]["prompt_tokens"])

    tokenizer = Tokenizer.load(own.folders["lm"])
    before, text = tokenizer.encode("user: I love you ."), "user: I love you .</s></s>"
    assert tokens() == len(before) + 2 and tokens(word="</s></s>") == len(tokenizer.encode(text)) + 2 > len(before) + 4


def test_a_reloaded_model_has_its_new_template_and_tokenizer(own: Served) -> None:
    folder = own.folders["lm"]

    def prompt_tokens() -> int:
        return int(own.post(H, {"model": "lm", "messages": SAID} | SHARED).json()["usage"]["prompt_tokens"])

    first = prompt_tokens()
    assert first == len(conversation_ids(str(folder), SAID))
    old = Tokenizer.load(folder)
    texts = [text[::-1] for text in SOURCES] * 9
    other = train_tokenizer(TokenizerConfig(kind="unigram", vocab_size=old.vocab_size), texts)
    other.save(folder)
    config = (folder / "config.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(config.replace(old.fingerprint, other.fingerprint), encoding="utf-8")
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    assert prompt_tokens() == first  # it is read when the model is
    assert reload(folder.parent, "lm").status_code == 200
    assert prompt_tokens() == len(conversation_ids(str(folder), SAID)) != first
    (folder / "chat_template.jinja").unlink()
    assert reload(folder.parent, "lm").status_code == 200
    done = own.post(H, {"model": "lm", "messages": SAID})
    assert done.status_code == 400 and error_of(done.json())["code"] == "no_chat_template"
    assert own.get("/info").json()["models"]["lm"]["has_chat_template"] is False


def prompt_of(lm: atento.Model, text: str) -> list[int]:
    return list(lm.tokenizer.with_specials(lm.tokenizer.encode(text), template="bos")[0])


def logits_after(lm: atento.Model, ids: list[int]) -> Tensor:
    network: Any = lm.network
    with torch.inference_mode():
        logits: Tensor = network(torch.tensor([ids])).logits[0, -1]
    return logits.clone()


def greedy(lm: atento.Model, prompt: list[int], count: int, presence: float = 0.0, frequency: float = 0.0) -> list[int]:
    """The most probable tokens, with the penalties as OpenAI's page defines them."""
    written: list[int] = []
    for _ in range(count):
        logits = logits_after(lm, prompt + written)
        for token in set(written):
            logits[token] -= written.count(token) * frequency + presence
        written.append(int(logits.argmax()))
        if written[-1] == lm.network.config.eos_id:
            break
    return written


def text_of(lm: atento.Model, ids: list[int]) -> str:
    return lm.tokenizer.decode([token for token in ids if token != lm.network.config.eos_id])


def best(lm: atento.Model, ids: list[int], count: int) -> list[float]:
    return torch.log_softmax(logits_after(lm, ids), dim=-1).topk(count).values.tolist()


@pytest.mark.parametrize("stream", [False, True])
def test_chat_log_probs_are_those_of_the_network(client: Any, service: Served, lm: atento.Model, stream: bool) -> None:
    prompt = conversation_ids(str(service.folders["lm"]), SAID)
    shared = {"model": "lm", "messages": SAID, "max_tokens": 6, "temperature": 0}
    done = client.chat.completions.create(**shared, logprobs=True, top_logprobs=3, stream=stream)
    chunks = [chunk.choices[0] for chunk in done] if stream else [done.choices[0]]
    parts = [chunk.delta.content if stream else chunk.message.content for chunk in chunks]
    rows = [row for chunk in chunks if chunk.logprobs is not None for row in chunk.logprobs.content]
    ids = greedy(lm, prompt, 6)
    assert rows and len(rows) == len([token for token in ids if token != lm.network.config.eos_id])
    text = bytes(value for row in rows for value in row.bytes).decode("utf-8", "replace")
    assert text.strip() == "".join(filter(None, parts)).strip()
    for number, row in enumerate(rows):
        expected = best(lm, prompt + ids[:number], 3)
        assert [top.logprob for top in row.top_logprobs] == pytest.approx(expected, abs=1e-4)
        assert row.top_logprobs[0].token == row.token and row.logprob == pytest.approx(expected[0], abs=1e-4)
    assert client.chat.completions.create(**shared).choices[0].logprobs is None


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 3}, {"extra_body": {"beam_size": 3}}], ids=str)
def test_completions_have_the_most_probable_tokens(client: Any, lm: atento.Model, options: dict[str, Any]) -> None:
    text = SOURCES[0]
    choice = client.completions.create(model="lm", prompt=text, max_tokens=5, logprobs=4, **options).choices[0]
    logs, prompt = choice.logprobs, prompt_of(lm, text)
    pieces = {lm.tokenizer.spelling(token): token for token in range(lm.tokenizer.vocab_size)}
    ids: list[int] = []
    assert logs.tokens
    lists = (logs.tokens, logs.token_logprobs, logs.top_logprobs, logs.text_offset)
    for token, log_prob, tops, offset in zip(*lists, strict=True):
        assert sorted(tops.values(), reverse=True)[:4] == pytest.approx(best(lm, prompt + ids, 4), abs=1e-4)
        assert tops[token] == log_prob and len(tops) in (4, 5)
        if not token.startswith("bytes:"):
            assert choice.text[offset:].startswith((token, token.strip()))
        spelling = bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) if "bytes:" in token else token
        ids.append(pieces.get(spelling, pieces.get(token.encode(), -1)))
        if ids[-1] < 0:
            break


def test_echo_has_the_most_probable_tokens_of_the_prompt(client: Any, lm: atento.Model) -> None:
    """As evaluation harnesses ask whether a given text is the greedy one."""
    text = SOURCES[1]
    done = client.completions.create(model="lm", prompt=text, max_tokens=2, temperature=0, echo=True, logprobs=1)
    logs, prompt = done.choices[0].logprobs, prompt_of(lm, text)
    for number in range(len(prompt) - 1):
        expected = torch.log_softmax(logits_after(lm, prompt[: number + 1]), dim=-1)
        assert max(logs.top_logprobs[number].values()) == pytest.approx(float(expected.max()), abs=1e-4)
        assert logs.token_logprobs[number] == pytest.approx(float(expected[prompt[number + 1]]), abs=1e-4)
    shown = done.choices[0].text
    for token, offset in zip(logs.tokens, logs.text_offset):
        assert shown[offset:].startswith(token) or shown[offset:].startswith(token.strip())
    scores = lm.score("", text, top=2)
    largest = [max(tops.values()) for tops in logs.top_logprobs[: len(prompt) - 1]]
    assert [place[0][1] for place in scores.top[: len(prompt) - 1]] == pytest.approx(largest, abs=1e-4)


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.7), (0.8, 0.4), (-1.0, -0.5)])
def test_penalties_are_those_of_a_loop(client: Any, lm: atento.Model, presence: float, frequency: float) -> None:
    text = SOURCES[2]
    penalties = {"presence_penalty": presence, "frequency_penalty": frequency}
    expected = text_of(lm, greedy(lm, prompt_of(lm, text), 14, presence, frequency))
    done = client.completions.create(model="lm", prompt=text, max_tokens=14, temperature=0, **penalties)
    assert done.choices[0].text == expected
    if frequency > 0.5:  # the text without penalties repeats a token
        assert expected != text_of(lm, greedy(lm, prompt_of(lm, text), 14))
    assert lm.generate(text, max_new_tokens=14, **penalties) == expected  # type: ignore[arg-type]


def test_what_is_asked_of_log_probs_is_checked_and_a_beam_streams_them(client: Any) -> None:
    shared = {"model": "lm", "messages": SAID}
    for options, message in (
        ({"logprobs": True, "top_logprobs": 21}, "`top_logprobs` must lie between 0 and 20: got 21"),
        ({"top_logprobs": 2}, "`top_logprobs` takes `logprobs` true: got none"),
        ({"presence_penalty": 2.5}, "`presence_penalty` must lie between -2 and 2: got 2.5"),
    ):
        with pytest.raises(openai.UnprocessableEntityError, match=message):
            client.chat.completions.create(**shared, **options)
    shared = {"model": "lm", "prompt": SOURCES[3], "max_tokens": 6, "extra_body": {"beam_size": 3}}
    for count in (None, 2):
        whole = client.completions.create(**shared, logprobs=count).choices[0]
        chunks = [chunk.choices[0] for chunk in client.completions.create(**shared, logprobs=count, stream=True)]
        assert ("".join(chunk.text for chunk in chunks), chunks[-1].finish_reason) == (whole.text, whole.finish_reason)
        if count:
            tokens = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.tokens]
            assert tokens == whole.logprobs.tokens
