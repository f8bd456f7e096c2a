"""Log-probabilities and penalties over HTTP, against the network of the model, read token by token."""

from typing import Any

import pytest
import torch
from torch import Tensor

import atento
from http_service import SOURCES, Served, conversation_ids

openai = pytest.importorskip("openai", reason="the package openai is not installed")
MESSAGES = [{"role": "user", "content": "I love you ."}]


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
    prompt = conversation_ids(str(service.folders["lm"]), MESSAGES)
    shared = {"model": "lm", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
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
        expected = best(lm, prompt + ids, 4)
        assert sorted(tops.values(), reverse=True)[:4] == pytest.approx(expected, abs=1e-4)
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
    shared = {"model": "lm", "messages": MESSAGES}
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
