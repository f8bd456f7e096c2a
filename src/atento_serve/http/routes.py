"""How a route is described on the OpenAPI page."""

from typing import Any

from atento_serve.http.body import FORMS
from atento_serve.http.fields import Fields


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
