"""How a route is described on the OpenAPI page."""

from typing import Any

from atento.serve.http.fields import Fields


def accepts(kind: type[Fields], *, form: bool = False) -> dict[str, Any]:
    """The entry of a request body with these fields, as JSON or, with `form`, also as a form."""
    schema = kind.model_json_schema()
    content = {"application/json": {"schema": schema}}
    if form:
        content["application/x-www-form-urlencoded"] = {"schema": schema}
    return {"requestBody": {"required": True, "content": content}}
