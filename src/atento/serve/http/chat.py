"""`POST /v1/chat/completions`: a conversation by the chat template of the model's tokenizer."""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento.errors import DataError, UsageError
from atento.serve.http.body import read_object
from atento.serve.http.chat_template import conversation_ids, template_text
from atento.serve.http.completion import (
    MOST_LOG_PROBS,
    NAMES,
    PENALTIES,
    CompletionFields,
    Plan,
    StreamOptions,
    finish_reason,
    planned,
)
from atento.serve.http.errors import ServiceError, too_long, wrong_field
from atento.serve.http.fields import Fields, Texts, bounded, described, read, unsupported
from atento.serve.http.log_probs import chat_log_probs
from atento.serve.http.routes import accepts
from atento.serve.http.service import Service
from atento.serve.http.work import Pointers, Work, event_stream, unless_gone
from atento.serve.jobs import Piece, Result, Usage

_VERB = "generate"
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
}


class ChatFields(Fields):
    """The body of `POST /v1/chat/completions`; `top_k` and the fields after it are ours."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: Texts | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    draft: Texts | None = None


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    async def chat(request: Request) -> Response:
        key = service.clients.authenticate(request)
        with service.clients.share(request, key):
            value = await read_object(request, service.limits)
            if "id" in request.path_params and isinstance(value, dict):  # the path names the model
                value = value | {"model": request.path_params["id"]}
            fields = read(ChatFields, value)
            unsupported(fields, _NEUTRAL)
            _check_log_probs(fields)
            model, ids = fields.model, _prompt(service, fields)
            plan = planned(_as_completion(fields, ids, service.limits.output_tokens), service.limits)
            work = Work(service, request, Pointers("/messages", names=NAMES))
            if fields.stream:
                return await _streamed(work, fields, plan)
            items = plan.prompts * plan.repeats
            outcome = await unless_gone(request, work.run(model, _VERB, items, plan.options, log_probs=plan.log_probs))
            outputs = [value[0] for value in outcome.values]
            choices = [_choice(number, output, plan) for number, output in enumerate(outputs)]
            usage = _usage(outcome.prompt_tokens // plan.repeats, outcome.new_tokens)
            return JSONResponse(_head(work, model, "chat.completion") | {"choices": choices, "usage": usage})

    for path in ("/v1/chat/completions", "/models/{id:path}/v1/chat/completions"):
        app.add_api_route(
            path,
            chat,
            methods=["POST"],
            summary="Continue a conversation",
            tags=["OpenAI"],
            openapi_extra=accepts(ChatFields),
        )


def _prompt(service: Service, fields: ChatFields) -> list[int]:
    """The ids of the conversation.

    Raises:
        ServiceError: 400, the tokenizer has no chat template; 422, a message is wrong; 413, it is too long.
    """
    description = service.describe(fields.model)
    if _VERB not in description.verbs or template_text(description.path) is None:
        message = f"the tokenizer of the model {fields.model!r} has no chat template: use /v1/completions"
        raise ServiceError(400, message, "no_chat_template", param="/model")
    if not fields.messages:
        raise wrong_field("/messages", "`messages` must have at least one message: got none")
    messages = [_message(row, number) for number, row in enumerate(fields.messages)]
    if sum(len(row["content"]) for row in messages) > service.limits.body_bytes:
        raise too_long(f"a conversation must have at most {service.limits.body_bytes:,} characters")
    try:
        ids = conversation_ids(description.path, messages)
    except DataError as error:
        raise wrong_field("/messages", f"the chat template of the model refuses the messages: {error}") from None
    except UsageError as error:
        raise ServiceError(400, str(error), "no_chat_template", param="/model") from None
    if len(ids) > service.limits.input_tokens:
        most = service.limits.input_tokens
        raise too_long(f"the conversation has {len(ids):,} tokens: at most {most:,} are read", "/messages")
    return ids


def _check_log_probs(fields: ChatFields) -> None:
    """Raises ServiceError: 422, `top_logprobs` is out of its range, or without `logprobs`."""
    bounded("top_logprobs", fields.top_logprobs, 0, MOST_LOG_PROBS)
    if fields.top_logprobs and not fields.logprobs:
        raise wrong_field("/top_logprobs", "`top_logprobs` takes `logprobs` true: got none")


def _message(row: Mapping[str, Any], number: int) -> dict[str, str]:
    """A message as role and text; its content may be a list of parts of type text."""
    where = f"/messages/{number}"
    for name in row:
        if name not in ("role", "content", "name"):
            raise wrong_field(f"{where}/{name}", f"unknown field `{name[:60]}`; known: content, name, role")
    role, content = row.get("role"), row.get("content")
    if not isinstance(role, str):
        raise wrong_field(f"{where}/role", f"`role` must be a text: got {described(role)}")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise wrong_field(f"{where}/content", f"`content` must be a text or a list of texts: got {described(content)}")
    if any("\0" in str(text) or "\ue000" in str(text) for text in texts):
        raise wrong_field(f"{where}/content", "`content` must not have the characters U+0000 and U+E000")
    return {"role": role, "content": "".join(map(str, texts))}


def _as_completion(fields: ChatFields, ids: list[int], most: int) -> CompletionFields:
    """The completion that a conversation asks for; without `max_tokens` it may be as long as the service allows."""
    names = ("temperature", "top_p", "n", "stop", "seed", "top_k", "min_p", "repetition_penalty", "draft", *PENALTIES)
    max_tokens = fields.max_completion_tokens if fields.max_tokens is None else fields.max_tokens
    return CompletionFields(
        model=fields.model,
        prompt=[ids],
        max_tokens=most if max_tokens is None else max_tokens,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        **{name: getattr(fields, name) for name in names},
    )


async def _streamed(work: Work, fields: ChatFields, plan: Plan) -> Response:
    head = _head(work, fields.model, "chat.completion.chunk")
    job = work.job(
        fields.model, _VERB, plan.prompts * plan.repeats, plan.options, stream=True, log_probs=plan.log_probs
    )

    def chunk(index: int, delta: dict[str, str], end: str | None = None, logs: Any = None) -> dict[str, Any]:
        return head | {"choices": [{"index": index, "delta": delta, "logprobs": logs, "finish_reason": end}]}

    async def chunks() -> AsyncIterator[dict[str, Any]]:
        begun: set[int] = set()
        async for event in work.events(job):
            if isinstance(event, Usage):
                if fields.stream_options is not None and fields.stream_options.include_usage:
                    usage = _usage(event.prompt_tokens // plan.repeats, event.new_tokens)
                    yield head | {"choices": [], "usage": usage}
                continue
            if event.item not in begun:
                begun.add(event.item)
                yield chunk(event.item, {"role": "assistant", "content": ""})
            if isinstance(event, Piece):
                logs = None if plan.log_probs is None else chat_log_probs(event.log_probs)
                yield chunk(event.item, {"content": event.text}, logs=logs)
            elif isinstance(event, Result):
                yield chunk(event.item, {}, finish_reason(event.value[0]))

    first = work.service.metrics.first.labels("/v1/chat/completions")
    begun_at = work.request.scope["atento"]["begun"]
    return await event_stream(work, chunks(), began=lambda: first.observe(time.monotonic() - begun_at))


def _choice(number: int, output: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    logs = None if plan.log_probs is None else chat_log_probs(output["log_probs"])
    message = {"role": "assistant", "content": output["text"]}
    return {"index": number, "message": message, "logprobs": logs, "finish_reason": finish_reason(dict(output))}


def _head(work: Work, model: str, kind: str) -> dict[str, Any]:
    number = work.request.scope["atento"]["id"]
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(time.time()), "model": model}


def _usage(prompt_tokens: int, new_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new_tokens,
        "total_tokens": prompt_tokens + new_tokens,
    }
