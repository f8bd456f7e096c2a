"""The payload of text generation, whole or streamed as text-generation-inference does; the call that payloads share."""

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import StreamingResponse

from atento_serve.api.completion import MOST_LOG_PROBS, joined
from atento_serve.api.decoding import GenerationFields, decoding_options
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import bounded, described, read
from atento_serve.http.request_jobs import WHOLE, Fit, Work, check_texts, event_stream
from atento_serve.http.service import Service
from atento_serve.jobs import Entry, GeneratedOutput, Piece, Result


@dataclass(frozen=True)
class Call:
    """A payload on its way: for which model and verb, its inputs and parameters, still unchecked."""

    service: Service
    work: Work
    model: str
    verb: str
    inputs: Any
    parameters: dict[str, object]


def inputs_of(call: Call) -> tuple[list[str], bool]:
    """The inputs as a list of texts, and whether it was one text.

    Raises:
        ServiceError: 422, they are something else; 413, too many.
    """
    single = isinstance(call.inputs, str)
    texts = [call.inputs] if single else call.inputs
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong_field("/inputs", f"`inputs` must be a text or a list of texts: got {described(call.inputs)}")
    check_texts(call.service, len(texts), "/inputs")
    return texts, single


def of_inputs(values: Sequence[object], single: bool) -> object:
    """The value of the only text, or the list of values."""
    return values[0] if single else values


async def generate(call: Call) -> object:
    """[{generated_text}], one a prompt and output."""
    fields, options, fit = _read_generation(call)
    texts, _ = inputs_of(call)
    outcome = await call.work.run(call.model, call.verb, texts, options, log_probs=fields.top_n_tokens, fit=fit)
    return [
        {"generated_text": _shown(prompt, output, fields)} | _details(output, fields)
        for prompt, outputs in zip(texts, outcome.values)
        for output in outputs
    ]


def _read_generation(call: Call) -> tuple[GenerationFields, dict[str, object], Fit]:
    """The fields of a call, as options, and with `truncate` tokens at most, of which the last are read."""
    fields = read(GenerationFields, call.parameters, "/parameters")
    bounded("parameters/top_n_tokens", fields.top_n_tokens, 0, MOST_LOG_PROBS)
    bounded("parameters/truncate", fields.truncate, 1, sys.maxsize)
    fit = WHOLE if fields.truncate is None else Fit(fields.truncate, "left")
    return fields, decoding_options(fields, call.service.limits), fit


def _shown(prompt: str, output: GeneratedOutput, fields: GenerationFields) -> str:
    return (prompt if fields.return_full_text else "") + joined(prompt, output["lead"], output["text"])


def _details(output: GeneratedOutput, fields: GenerationFields) -> dict[str, object]:
    if not fields.details:
        return {}
    tokens = [
        {"id": number, "text": text, "logprob": score, "special": False}
        for number, text, score in zip(output["ids"], output["tokens"], output["token_scores"])
    ]
    tops = {"top_tokens": [_top_tokens(entry) for entry in output["log_probs"]]} if fields.top_n_tokens else {}
    about = {"finish_reason": _finish_reason(output), "generated_tokens": len(output["ids"]), "prefill": []}
    return {"details": {**about, "seed": fields.seed, "tokens": tokens, **tops}}


def _finish_reason(output: GeneratedOutput) -> str:
    """Why an output ended, in the words of text-generation-inference; EOS has a score and no id."""
    if not output["finished"]:
        return "length"
    return "eos_token" if len(output["token_scores"]) > len(output["ids"]) else "stop_sequence"


def _top_tokens(entry: Entry) -> list[dict[str, object]]:
    """The most probable tokens at the place of one."""
    return [
        {"id": top["id"], "text": top["token"], "logprob": top["log_prob"], "special": top["bytes"] is None}
        for top in entry["top"]
    ]


async def generation(call: Call, *, stream: bool) -> StreamingResponse:
    """A stream of `{"token": {...}}`, the last with `generated_text`; for one prompt and one output."""
    fields, options, fit = _read_generation(call)
    texts, _ = inputs_of(call)
    if len(texts) != 1:
        raise wrong_field("/inputs", f"a stream is of one text: got {len(texts)}")
    job = call.work.job(call.model, call.verb, texts, options, stream=stream, log_probs=fields.top_n_tokens, fit=fit)

    async def chunks() -> AsyncIterator[dict[str, object]]:
        index = 0
        async for event in call.work.events(job):
            if isinstance(event, Piece):
                index += 1
                tops = {"top_tokens": _top_tokens(event.log_probs[-1])} if event.log_probs else {}
                yield _chunk(index, event, joined(texts[0], event.lead, event.text)) | tops
            elif isinstance(event, Result):  # always before the last event
                output: GeneratedOutput = event.value[0]
            else:
                details = {"finish_reason": _finish_reason(output), "generated_tokens": len(output["ids"])}
                details |= {"input_length": event.prompt_tokens, "seed": fields.seed}
                text = _shown(texts[0], output, fields)
                # their stream ends with an empty token
                yield _chunk(index + 1, Piece(0, ""), "") | {"generated_text": text, "details": details}

    return await event_stream(call.work, chunks())


def _chunk(index: int, piece: Piece, text: str) -> dict[str, object]:
    number = piece.token_ids[-1] if piece.token_ids else 0
    token = {"id": number, "text": text, "logprob": sum(piece.token_scores), "special": not text}
    return {"index": index, "token": token, "generated_text": None, "details": None}
