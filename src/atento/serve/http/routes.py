"""How a route is described on the OpenAPI page."""

from typing import Any

from atento.serve.http.fields import Fields


def accepts(
    kind: type[Fields] | dict[str, Any], *, form: bool = False, example: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The entry of a request body with these fields, as JSON or, with `form`, also as a form.

    Args:
        kind: the fields, or their JSON Schema.
        example: a body, where the required fields alone are none.
    """
    schema = kind if isinstance(kind, dict) else kind.model_json_schema()
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if example is not None:
        content["application/json"]["example"] = example
    if form:
        content["application/x-www-form-urlencoded"] = {"schema": schema}
    return {"requestBody": {"required": True, "content": content}}
