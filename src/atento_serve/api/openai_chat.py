"""`POST /v1/chat/completions`: a conversation by the chat template of the model's tokenizer."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento_serve.api.completion import (
    MOST_LOG_PROBS,
    NAMES,
    NEUTRAL,
    CompletionFields,
    Plan,
    SharedFields,
    finish_reason,
    planned,
    usage_of,
)
from atento_serve.api.openai_log_probs import chat_log_probs
from atento_serve.http.errors import ServiceError, wrong_field
from atento_serve.http.fields import Row, bounded, described, unsupported
from atento_serve.http.request_jobs import Pointers, Work, event_stream, unless_gone
from atento_serve.http.routes import posts
from atento_serve.http.service import Service
from atento_serve.jobs import Piece, Result, Usage

_VERB = "generate"
_NEUTRAL = NEUTRAL | {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "reasoning_effort": ("none", "medium"),
    "verbosity": ("medium",),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
_NEUTRAL_IN_MESSAGES: dict[str, tuple[object, ...]] = {
    "refusal": ("",),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "tool_calls": ([],),
}
_TEXTS_IN_MESSAGES = ("role", "content", "name", "reasoning_content", "tool_call_id")
_OWN_VARIABLES = ("messages", "add_generation_prompt")


class ChatFields(SharedFields):
    """The body of `POST /v1/chat/completions`.

    Labels of a request, such as `metadata`, have no effect on its answer. The last fields are those of other servers
    with chat templates.
    """

    messages: Row[dict[str, object]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Row[object] | None = None
    tool_choice: object = None
    response_format: dict[str, object] | None = None
    functions: Row[object] | None = None
    function_call: object = None
    parallel_tool_calls: bool | None = None
    modalities: Row[str] | None = None
    audio: object = None
    prediction: object = None
    web_search_options: object = None
    moderation: object = None
    store: bool | None = None
    metadata: dict[str, object] | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: object = None
    prompt_cache_retention: str | None = None
    chat_template_kwargs: dict[str, object] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    paths = "/v1/chat/completions", "/models/{id:path}/v1/chat/completions"

    @posts(app, service, ChatFields, *paths, summary="Continue a conversation", tag="OpenAI")
    async def chat(request: Request, fields: ChatFields) -> Response:
        unsupported(fields, _NEUTRAL)
        bounded("top_logprobs", fields.top_logprobs, 0, MOST_LOG_PROBS)
        if fields.top_logprobs and not fields.logprobs:
            raise wrong_field("/top_logprobs", "`top_logprobs` takes `logprobs` true: got none")
        model = fields.model
        if not service.describe(model).has_chat_template:
            message = f"the tokenizer of the model {model!r} has no chat template: use /v1/completions"
            raise ServiceError(400, message, "no_chat_template", param="/model")
        if not fields.messages:
            raise wrong_field("/messages", "`messages` must have at least one message: got none")
        messages = [_message(row, number) for number, row in enumerate(fields.messages)]
        variables = fields.chat_template_kwargs or {}
        for name in _OWN_VARIABLES:
            if name in variables:
                raise wrong_field("/chat_template_kwargs", f"`chat_template_kwargs` must not have `{name}`")
        conversation = {"messages": messages, "variables": variables}
        shared = {name: getattr(fields, name) for name in SharedFields.model_fields}
        max_tokens = fields.max_completion_tokens if fields.max_tokens is None else fields.max_tokens
        # without `max_tokens` an output may be as long as the service allows
        shared["max_tokens"] = service.limits.output_tokens if max_tokens is None else max_tokens
        log_probs = (fields.top_logprobs or 0) if fields.logprobs else None
        plan = planned(CompletionFields(**shared, logprobs=log_probs), service.limits)
        items = [conversation] * plan.repeats
        work = Work(service, request, Pointers("/messages", names=NAMES))
        if fields.stream:
            return await _streamed(work, fields, plan, items)
        outcome = await unless_gone(request, work.run(model, _VERB, items, plan.options, log_probs=plan.log_probs))
        choices = []
        for number, (output, *_) in enumerate(outcome.values):
            logs = None if plan.log_probs is None else chat_log_probs(output["log_probs"])
            said = {"message": {"role": "assistant", "content": output["text"]}, "logprobs": logs}
            choices.append({"index": number, **said, "finish_reason": finish_reason(output)})
        usage = usage_of(outcome.prompt_tokens // plan.repeats, outcome.new_tokens)
        return JSONResponse(_head(work, model, "chat.completion") | {"choices": choices, "usage": usage})


def _message(row: Mapping[str, Any], number: int) -> dict[str, str]:
    """A message as texts; its content may be a list of parts of type text. Fields that are null are as if not there."""
    where, given = f"/messages/{number}", {name: value for name, value in row.items() if value is not None}
    known = sorted((*_TEXTS_IN_MESSAGES, *_NEUTRAL_IN_MESSAGES))
    for name, value in given.items():
        if name not in known:
            raise wrong_field(f"{where}/{name}", f"unknown field `{name[:60]}`; known: {', '.join(known)}")
        # values that ask for nothing: clients send their defaults
        if name in _NEUTRAL_IN_MESSAGES and value not in _NEUTRAL_IN_MESSAGES[name]:
            raise wrong_field(f"{where}/{name}", f"`{name}` is not supported: got {described(value)}")
        if name in _TEXTS_IN_MESSAGES and name != "content" and not isinstance(value, str):
            raise wrong_field(f"{where}/{name}", f"`{name}` must be a text: got {described(value)}")
    role, content = row.get("role"), row.get("content")
    if role is None:  # null as well as missing
        raise wrong_field(f"{where}/role", "`role` must be a text: got null")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise wrong_field(f"{where}/content", f"`content` must be a text or a list of texts: got {described(content)}")
    if any("\0" in str(text) for text in texts):  # it parts texts inside the service
        raise wrong_field(f"{where}/content", "`content` must not have the character U+0000")
    return {name: given[name] for name in _TEXTS_IN_MESSAGES if name in given} | {"content": "".join(map(str, texts))}


async def _streamed(work: Work, fields: ChatFields, plan: Plan, items: Sequence[object]) -> Response:
    head = _head(work, fields.model, "chat.completion.chunk")
    job = work.job(fields.model, _VERB, items, plan.options, stream=True, log_probs=plan.log_probs)

    def chunk(index: int, delta: dict[str, str], end: str | None = None, logs: object = None) -> dict[str, object]:
        return head | {"choices": [{"index": index, "delta": delta, "logprobs": logs, "finish_reason": end}]}

    async def chunks() -> AsyncIterator[dict[str, object]]:
        begun: set[int] = set()
        async for event in work.events(job):
            if isinstance(event, Usage):
                if fields.stream_options is not None and fields.stream_options.include_usage:
                    # each output read the prompt
                    usage = usage_of(event.prompt_tokens // plan.repeats, event.new_tokens)
                    yield head | {"choices": [], "usage": usage}
                continue
            if event.item not in begun:  # the role comes first, once an output
                begun.add(event.item)
                yield chunk(event.item, {"role": "assistant", "content": ""})
            if isinstance(event, Piece):
                logs = None if plan.log_probs is None else chat_log_probs(event.log_probs)
                yield chunk(event.item, {"content": event.text}, logs=logs)
            elif isinstance(event, Result):
                yield chunk(event.item, {}, finish_reason(event.value[0]))

    return await event_stream(work, chunks(), "/v1/chat/completions")


def _head(work: Work, model: str, kind: str) -> dict[str, object]:
    number = work.request.scope["atento"]["id"]
    return {"id": f"chatcmpl-{number}", "object": kind, "created": int(time.time()), "model": model}
