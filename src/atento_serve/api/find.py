"""`POST /find`: the lines of an index that answer a query, with a served ranker on top."""

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento.retrieval import By
from atento_serve.api.examples import FIND
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import Fields, bounded, described
from atento_serve.http.request_jobs import Pointers, Work, unless_gone
from atento_serve.http.routes import posts
from atento_serve.http.service import Service

_MOST = 1000  # lines of an answer, and of a ranking


class FindFields(Fields):
    """The body of `POST /find`."""

    query: str
    model: str | None = None
    top: int = 10
    by: By = "vectors"
    where: dict[str, object] | None = None
    rerank: str | None = None
    within: int = 100


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @posts(app, service, FindFields, "/find", summary="Lines of an index", tag=None, example=FIND)
    async def find(request: Request, fields: FindFields) -> Response:
        bounded("top", fields.top, 1, _MOST)
        bounded("within", fields.within, 1, _MOST)
        if not fields.query.strip():
            raise wrong_field("/query", "`query` is empty: give words to search for")
        for column, value in (fields.where or {}).items():  # here, since pydantic would list all that are wrong
            if not all(isinstance(one, str) for one in (value if isinstance(value, list) else [value])):
                raise wrong_field(f"/where/{column}", f"`{column}` must be a text or texts: got {described(value)}")
        model = service.model_for("find", fields.model)
        if fields.rerank is not None and not service.describe(fields.rerank).gives_number:
            raise wrong_field("/rerank", f"the model {fields.rerank!r} is no ranker: it gives no number for a pair")
        hits = await unless_gone(request, _hits(Work(service, request, Pointers("/query")), model, fields))
        return JSONResponse({"model": model, "hits": hits})


async def _hits(work: Work, model: str, fields: FindFields) -> list[dict[str, Any]]:
    """The lines that the index of a model has for a query, in the order of the ranker if there is one."""
    options = fields.model_dump(include={"top", "by", "where", "within"})
    if fields.rerank is not None:
        options["top"] = fields.within
    hits: list[dict[str, Any]] = (await work.run(model, "find", [fields.query], options)).values[0]
    if fields.rerank is not None:
        pairs = [[fields.query, hit["text"]] for hit in hits]
        numbers = (await work.run_in_parts(fields.rerank, "similarity", pairs)).values
        hits = sorted((hit | {"score": own} for hit, own in zip(hits, numbers)), key=lambda hit: -hit["score"])
    return hits[: fields.top]
