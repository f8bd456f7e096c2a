"""`POST /tokenize` and `POST /detokenize`: the tokenizer of a model."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento_serve.http.errors import too_long, wrong_field
from atento_serve.http.fields import Fields, Row, Texts, listed
from atento_serve.http.request_jobs import Pointers, Work, check_texts, unless_gone
from atento_serve.http.routes import posts
from atento_serve.http.service import Service

_SHOWN = ("ids", "tokens", "offsets")


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

    @posts(app, service, TokenizeFields, "/tokenize", summary="Texts as ids, tokens and offsets", tag="Tokens")
    async def tokenize(request: Request, fields: TokenizeFields) -> Response:
        model = service.model_for("tokenize", fields.model)
        texts = listed(fields.text)
        check_texts(service, len(texts), "/text")
        run = Work(service, request, Pointers("/text")).run(
            model, "tokenize", texts, {"special": fields.special_tokens}
        )
        outcome = await unless_gone(request, run)
        rows = [{name: value[name] for name in _SHOWN} | {"count": len(value["ids"])} for value in outcome.values]
        return JSONResponse(rows[0] if isinstance(fields.text, str) else rows)

    @posts(app, service, DetokenizeFields, "/detokenize", summary="Ids as a text", tag="Tokens")
    async def detokenize(request: Request, fields: DetokenizeFields) -> Response:
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
