"""Routes that read the fields of a body, and how they are described on the OpenAPI page."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from atento_serve.http.body import FORMS, read_object
from atento_serve.http.fields import F, Fields, read
from atento_serve.http.service import Service

Answering = Callable[[Request, F], Awaitable[Response]]
Example = dict[str, object] | None


def posts(
    app: FastAPI, service: Service, kind: type[F], *paths: str, summary: str, tag: str | None, example: Example = None
) -> Callable[[Answering[F]], None]:
    """Add the route of `POST` at some paths that what is decorated answers, within the share of the client.

    Args:
        app, service: of the routes.
        kind: the fields that are read; a path with `{id}` names their `model`.
        summary, tag, example: for the OpenAPI page.
    """

    def add(answer: Answering[F]) -> None:
        async def route(request: Request) -> Response:
            key = service.clients.authenticate(request)
            with service.clients.share(request, key):
                value = await read_object(request, service.limits)
                if "id" in request.path_params and isinstance(value, dict):
                    value = value | {"model": request.path_params["id"]}
                return await answer(request, read(kind, value))

        for path in paths:
            extra, name = accepts(kind, example=example), answer.__name__
            app.add_api_route(
                path,
                route,
                methods=["POST"],
                name=name,
                summary=summary,
                tags=[tag] if tag else None,
                openapi_extra=extra,
            )

    return add


def accepts(
    kind: type[Fields] | dict[str, object], *, form: bool = False, example: dict[str, object] | None = None
) -> dict[str, object]:
    """The entry of a request body with these fields, as JSON or, with `form`, also as a form.

    Args:
        kind: the fields, or their JSON Schema.
        example: a body, where the required fields alone are none.
    """
    schema = kind if isinstance(kind, dict) else _whole(kind.model_json_schema())
    content = {"application/json": {"schema": schema}}
    if example is not None:
        content["application/json"]["example"] = example
    if form:
        content |= {kind_of_form: {"schema": schema} for kind_of_form in FORMS}
    return {"requestBody": {"required": True, "content": content}}


def _whole(schema: dict[str, object]) -> dict[str, object]:
    """A schema with its definitions in place of the references to them, which a document around it could not follow."""
    definitions: Any = schema.pop("$defs", {})

    def within(part: object) -> Any:
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            return within(definitions[name]) if name else {key: within(value) for key, value in part.items()}
        return [within(value) for value in part] if isinstance(part, list) else part

    whole: dict[str, object] = within(schema)
    return whole
