"""OpenAI's API: `/v1/completions` and `/v1/embeddings`."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import numpy as np
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from atento.config.tables.verbs import WRITING
from atento_serve.api.completion import (
    NAMES,
    NEUTRAL,
    CompletionFields,
    Plan,
    choice,
    echoed,
    finish_reason,
    joined,
    planned,
    usage_of,
)
from atento_serve.api.openai_log_probs import completion_log_probs
from atento_serve.http.errors import ServiceError, too_long, wrong_field
from atento_serve.http.fields import Fields, Prompts, bounded, listed, unsupported
from atento_serve.http.request_jobs import Outcome, Pointers, Work, check_texts, event_stream, unless_gone
from atento_serve.http.routes import posts
from atento_serve.http.service import Service, abilities
from atento_serve.jobs import GeneratedOutput, Piece, Result, Usage

_BY_IDS = "generate"  # the verb that also takes prompts as ids
_MOST_INPUTS = 2048  # of a request for vectors, as in OpenAI's API


class EmbeddingFields(Fields):
    """The body of `POST /v1/embeddings`."""

    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes."""

    @posts(app, service, CompletionFields, "/v1/completions", summary="Continue prompts", tag="OpenAI")
    async def completions(request: Request, fields: CompletionFields) -> Response:
        unsupported(fields, NEUTRAL | {"suffix": ("",)})
        description = service.describe(fields.model)
        verb = next((verb for verb in (description.verb, *description.verbs) if verb in WRITING), None)
        if verb is None:
            writes = f"the model {fields.model!r} writes no text: it can {abilities(description)}"
            raise ServiceError(400, writes, "wrong_model", param="/model")
        plan = planned(fields, service.limits)
        _check_ids(service, fields.model, plan.prompts, "/prompt")
        work = Work(service, request, Pointers("/prompt", names=NAMES))
        if fields.stream:
            return await _streamed(work, fields, plan, verb)
        return JSONResponse(await unless_gone(request, _completed(work, fields, plan, verb)))

    @posts(app, service, EmbeddingFields, "/v1/embeddings", summary="Vectors of texts", tag="OpenAI")
    async def embeddings(request: Request, fields: EmbeddingFields) -> Response:
        model, inputs = service.model_for("embed", fields.model), listed(fields.input)
        check_texts(service, len(inputs), "/input", _MOST_INPUTS)
        _check_ids(service, model, inputs, "/input")
        bounded("dimensions", fields.dimensions, 1, service.describe(model).width or 0)
        outcome = await unless_gone(request, _embedded(Work(service, request, Pointers("/input")), fields, inputs))
        # row by row: thousands of vectors at once would hold up other requests
        return StreamingResponse(_rows(fields, outcome), media_type="application/json")


async def _embedded(work: Work, fields: EmbeddingFields, inputs: list[object]) -> Outcome:
    texts = await _as_texts(work, fields.model, inputs)
    return await work.run_in_parts(fields.model, "embed", texts)


async def _rows(fields: EmbeddingFields, outcome: Outcome) -> AsyncIterator[str]:
    """The body of an answer with vectors."""
    usage = {"prompt_tokens": outcome.prompt_tokens, "total_tokens": outcome.prompt_tokens}
    yield '{"object":"list","data":['
    for number, value in enumerate(outcome.values):
        vector = np.asarray(value, dtype=np.float32)
        if fields.dimensions is not None and fields.dimensions < len(vector):
            vector = vector[: fields.dimensions]
            norm = float(np.linalg.norm(vector))
            vector = vector / norm if norm else vector  # as OpenAI shortens its vectors
        shown: object = vector.tolist()
        if fields.encoding_format == "base64":
            shown = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        row = {"object": "embedding", "index": number, "embedding": shown}
        yield "," * (number > 0) + json.dumps(row, separators=(",", ":"))
        await asyncio.sleep(0)
    yield "]," + json.dumps({"model": fields.model, "usage": usage})[1:]


def _check_ids(service: Service, model: str, inputs: list[object], pointer: str) -> None:
    """Raises ServiceError: 413, a list of token ids is too long; 422, an id is outside the vocabulary."""
    limit, vocabulary = service.limits.input_tokens, service.describe(model).vocabulary or 0
    for number, ids in enumerate(inputs):
        if isinstance(ids, list):
            if len(ids) > limit:
                raise too_long(f"text {number} has {len(ids):,} tokens: at most {limit:,} are read", pointer)
            wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
            if wrong is not None:
                raise wrong_field(pointer, f"a token id must lie between 0 and {vocabulary - 1:,}: got {wrong}")


async def _as_texts(work: Work, model: str, inputs: list[object]) -> list[Any]:
    """Texts; lists of token ids are decoded by the model's tokenizer."""
    ids = {number: item for number, item in enumerate(inputs) if isinstance(item, list)}
    if not ids:
        return inputs
    texts = dict(zip(ids, (await work.run(model, "detokenize", list(ids.values()))).values))
    return [texts.get(number, item) for number, item in enumerate(inputs)]


async def _completed(work: Work, fields: CompletionFields, plan: Plan, verb: str) -> dict[str, object]:
    """The body of a completion that is not streamed."""
    # ids are read as they are; echo needs their text
    prompts = plan.prompts if verb == _BY_IDS and not fields.echo else await _as_texts(work, fields.model, plan.prompts)
    choices: list[dict[str, object]] = []
    prompt_tokens = new_tokens = 0
    values: list[list[GeneratedOutput]] = [[] for _ in prompts]
    if plan.writes:
        items = [prompt for prompt in prompts for _ in range(plan.repeats)]  # repeats of a prompt stand side by side
        outcome = await work.run(fields.model, verb, items, plan.options, log_probs=plan.log_probs)
        prompt_tokens, new_tokens = outcome.prompt_tokens // plan.repeats, outcome.new_tokens  # each repeat counted it
        for number, value in enumerate(outcome.values):
            values[number // plan.repeats] += value
    scored = await echoed(work, fields, prompts, verb) if fields.echo else None
    if not plan.writes and scored is not None:  # without outputs, what scoring read
        prompt_tokens = scored.prompt_tokens
    for number, prompt in enumerate(prompts):
        before = None if scored is None else scored.values[number]
        for output in plan.best(values[number]):
            choices.append(choice(len(choices), prompt, output, before, fields))
    usage: dict[str, object] = {**usage_of(prompt_tokens, new_tokens)}
    if fields.draft:  # the tokens that it proposed, by OpenAI's names for predicted outputs
        outputs = [output for prompt in values for output in prompt]
        accepted = sum(output["accepted"] for output in outputs)
        rejected = sum(output["proposed"] for output in outputs) - accepted
        counts = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
        usage["completion_tokens_details"] = counts
    return _head(work, fields.model) | {"choices": choices, "usage": usage}


async def _streamed(work: Work, fields: CompletionFields, plan: Plan, verb: str) -> Response:
    """A stream of pieces. Several outputs of a beam are known only at its end, and come whole."""
    if plan.best_of > plan.n:
        raise wrong_field("/best_of", f"`best_of` must be `n` in a stream: got {plan.best_of} and {plan.n}")
    if not plan.writes:
        raise wrong_field("/max_tokens", "`max_tokens` must be at least 1 in a stream: got 0")
    prompts = plan.prompts
    if verb != _BY_IDS or fields.echo:
        prompts = await unless_gone(work.request, _as_texts(work, fields.model, prompts))
    head = _head(work, fields.model)
    items = [prompt for prompt in prompts for _ in range(plan.repeats)]
    pieces = plan.n == 1 or "beam" not in plan.options  # outputs of a beam are ranked at its end
    job = work.job(fields.model, verb, items, plan.options, stream=pieces, log_probs=plan.log_probs)
    with_usage = fields.stream_options is not None and fields.stream_options.include_usage
    scored = await unless_gone(work.request, echoed(work, fields, prompts, verb)) if fields.echo else None

    def chunk(index: int, text: str, end: str | None, logs: object = None) -> dict[str, object]:
        return head | {"choices": [{"index": index, "text": text, "logprobs": logs, "finish_reason": end}]}

    async def chunks() -> AsyncIterator[dict[str, object]]:
        lengths = [0] * len(items)  # characters sent of each output, for the offsets of its tokens
        if scored is not None:
            for index in range(len(items) if pieces else 0):
                prompt, before = prompts[index // plan.repeats], scored.values[index // plan.repeats]
                lengths[index] = len(prompt)
                logs = None if before is None else completion_log_probs(before, prompt, 0, plan.log_probs or 0)
                yield chunk(index, prompt, None, logs)
        async for event in work.events(job):
            if isinstance(event, Piece):
                prompt = prompts[event.item // plan.repeats]
                text = joined(prompt, event.lead, event.text)
                logs = None
                if plan.log_probs is not None:
                    logs = completion_log_probs(event.log_probs, text, lengths[event.item], plan.log_probs)
                lengths[event.item] += len(text)
                yield chunk(event.item, text, None, logs)
            elif isinstance(event, Result) and pieces:  # the text went out in pieces
                yield chunk(event.item, "", finish_reason(event.value[0]))
            elif isinstance(event, Result):
                before = None if scored is None else scored.values[event.item]
                for rank, output in enumerate(plan.best(event.value)):  # one job wrote the `n` of a prompt
                    full = choice(event.item * plan.n + rank, prompts[event.item], output, before, fields)
                    yield head | {"choices": [full]}
            elif with_usage and isinstance(event, Usage):
                usage = usage_of(event.prompt_tokens // plan.repeats, event.new_tokens)
                yield head | {"choices": [], "usage": usage}

    return await event_stream(work, chunks(), "/v1/completions")


def _head(work: Work, model: str) -> dict[str, object]:
    number = work.request.scope["atento"]["id"]
    return {"id": f"cmpl-{number}", "object": "text_completion", "created": int(time.time()), "model": model}
