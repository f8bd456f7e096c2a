"""`POST /tokenize` and `POST /detokenize`: the tokenizer of a model."""

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento_serve.http.body import read_object
from atento_serve.http.errors import too_long, wrong_field
from atento_serve.http.fields import Fields, Row, Texts, listed, read
from atento_serve.http.request_jobs import Pointers, Work, check_texts, unless_gone
from atento_serve.http.routes import accepts
from atento_serve.http.service import Service


class TokenizeFields(Fields):
    """The body of `POST /tokenize`."""

    text: Texts
    model: str | None = None
    special_tokens: bool = False


class DetokenizeFields(Fields):
    """The body of `POST /detokenize`."""

    ids: Row[int]
    model: str | None = None


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes."""

    async def tokenize(request: Request) -> Response:
        key = service.clients.authenticate(request)
        with service.clients.share(request, key):
            fields = read(TokenizeFields, await read_object(request, service.limits))
            model = service.model_for("tokenize", fields.model)
            texts = listed(fields.text)
            check_texts(service, len(texts), "/text")
            options = {"special": fields.special_tokens}
            outcome = await unless_gone(
                request, Work(service, request, Pointers("/text")).run(model, "tokenize", texts, options)
            )
            rows = [_shown(value) for value in outcome.values]
            return JSONResponse(rows[0] if isinstance(fields.text, str) else rows)

    async def detokenize(request: Request) -> Response:
        key = service.clients.authenticate(request)
        with service.clients.share(request, key):
            fields = read(DetokenizeFields, await read_object(request, service.limits))
            model = service.model_for("detokenize", fields.model)
            limit, vocabulary = service.limits.input_tokens, service.describe(model).vocabulary or 0
            if len(fields.ids) > limit:
                raise too_long(f"the list has {len(fields.ids):,} ids: at most {limit:,} are read", "/ids")
            for number, token in enumerate(fields.ids):
                if not 0 <= token < vocabulary:
                    rule = f"an id must lie between 0 and {vocabulary - 1:,}"
                    raise wrong_field(f"/ids/{number}", f"{rule}: got {token}")
            outcome = await unless_gone(request, Work(service, request).run(model, "detokenize", [fields.ids]))
            return JSONResponse({"text": outcome.values[0]})

    for path, route, kind, summary in (
        ("/tokenize", tokenize, TokenizeFields, "Texts as ids, tokens and offsets"),
        ("/detokenize", detokenize, DetokenizeFields, "Ids as a text"),
    ):
        app.add_api_route(path, route, methods=["POST"], summary=summary, tags=["Tokens"], openapi_extra=accepts(kind))


def _shown(value: dict[str, Any]) -> dict[str, Any]:
    return {"ids": value["ids"], "tokens": value["tokens"], "offsets": value["offsets"], "count": len(value["ids"])}
