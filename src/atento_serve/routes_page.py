"""The page of the routes, `GET /docs`: made from the OpenAPI document, without anything from another address."""

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from atento.inspection.standalone import mark, sheet

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The `Content-Security-Policy` of the page."""

_STYLE = """
body {max-width: 60rem; margin: 0 auto; padding: 16px}
summary {padding: 5px 0} textarea {font: var(--small)/1.4 var(--mono)}
.method {display: inline-block; min-width: 56px; font-weight: bold} table {margin: 8px 0}
td, th {border: 0; padding: 2px 13px 2px 0} .what {color: var(--muted)}
textarea {width: 100%; background: var(--field); border: 1px solid var(--edge)}
pre {white-space: pre-wrap; overflow: auto; max-height: 24rem}
@media (width < 36rem) {td {display: block; padding: 0} tr {display: block; margin: 6px 0}}
"""
_SCRIPT = """
document.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("click", async (event) => {
  const form = event.target.closest("button") && event.target.closest("details");
  if (!form) return;
  const [shown, body, file] = ["pre", "textarea", "input[type=file]"].map((name) => form.querySelector(name));
  const key = document.getElementById("key").value, headers = key ? {Authorization: "Bearer " + key} : {};
  if (body && !file) headers["Content-Type"] = "application/json";
  let path = form.dataset.path;
  for (const input of form.querySelectorAll("input")) path = path.replace("{" + input.name + "}", input.value);
  shown.textContent = "...";
  try {
    const sent = file ? new FormData() : body ? body.value : undefined;
    if (file) for (const one of Object.entries(JSON.parse(body.value))) sent.append(...one);
    if (file && file.files.length) sent.append("file", file.files[0]);
    const answer = await fetch(path, {method: form.dataset.method, headers, body: sent});
    shown.textContent = answer.status + " " + answer.statusText + "\\n" + await answer.text();
  } catch (error) { shown.textContent = String(error); }
});
"""


class Schema(TypedDict, total=False):
    """What the page reads of the JSON schema of a value."""

    type: str
    properties: "dict[str, Schema]"
    required: list[str]
    items: "Schema"
    anyOf: "list[Schema]"
    enum: list[object]
    default: object
    description: str


def routes_page(document: Mapping[str, Any], models: list[str]) -> str:
    """The page as HTML.

    Args:
        document: the OpenAPI document.
        models: the names of the models, of which the examples use the first.
    """
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["Other"])[0]
            by_tag.setdefault(tag, []).append(_operation(path, method, operation, models))
    sections = [f"<h2>{html.escape(tag)}</h2>\n{''.join(parts)}" for tag, parts in by_tag.items()]
    names = ", ".join(f"<code>{html.escape(name)}</code>" for name in models)
    names = f"Models: {names}. " if models else ""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}: routes</title>'
        f'<meta name="viewport" content="width=device-width"><style>{sheet("document.css")}{_STYLE}</style>\n'
        f"<header>{mark()}<h1>{title}</h1></header>\n"
        f'<p>{names}The routes as a document for programs: <a href="openapi.json">openapi.json</a>.</p>\n'
        '<form><label>API key, if the service has keys: <input id="key" type="password" autocomplete="off"></label>'
        "</form>\n"
        f"{''.join(sections)}<script>{_SCRIPT}</script></html>\n"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any], models: list[str]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    accepted: Mapping[str, Any] = next(iter(content.values()), {})
    schema: Schema = accepted.get("schema", {})
    slots = re.findall(r"\{(\w+)\}", path)
    model = html.escape(_first(models))
    inputs = "".join(f'<p><label>{slot} <input name="{slot}" value="{model}"></label>' for slot in slots)
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(kind)}<td class=what>{html.escape(note)}"
        for name, kind, note in _fields(schema)
    )
    body = ""
    if content:
        fields = schema.get("properties", {})
        shown = [name for name in (*schema.get("required", ()), "prompt") if name in fields and name != "file"]
        value = accepted.get("example") or {name: _value(name, fields[name], models) for name in shown}
        example = html.escape(json.dumps(value, ensure_ascii=False, indent=1))
        upload = "<p><input type=file aria-label=file></p>" if "file" in fields else ""
        body = f"<table>{rows}</table>{upload}<textarea rows=5 aria-label=body>{example}</textarea>"
    return (
        f'<details data-path="{html.escape(path)}" data-method="{html.escape(method.upper())}"><summary>'
        f"<span class=method>{html.escape(method.upper())}</span> <code>{html.escape(path)}</code> "
        f"<span class=what>{html.escape(operation.get('summary', ''))}</span></summary>"
        f"{inputs}{body}<p><button>Send</button></p><pre></pre></details>\n"
    )


def _first(models: list[str]) -> str:
    return models[0] if models else ""


def _fields(schema: Schema) -> Iterator[tuple[str, str, str]]:
    """The name of each field, its type, and whether it is required or what it is without it."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        default = field.get("default")
        note = "required" if name in required else "" if default is None else f"default {json.dumps(default)}"
        yield name, _kind(field), note or str(field.get("description", ""))


def _kind(field: Schema) -> str:
    """The type of a field in words."""
    if "properties" in field:
        return f"object of {', '.join(field['properties'])}"
    if "anyOf" in field:
        kinds = [_kind(part) for part in field["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(map(json.dumps, field["enum"]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any value"))


def _value(name: str, field: Schema, models: list[str]) -> object:
    kinds = [field.get("type"), *(part.get("type") for part in field.get("anyOf", ()))]
    if name == "model":
        return _first(models)
    if name == "messages":
        return [{"role": "user", "content": "text"}]
    if name in ("source", "target"):
        return {"source": "en", "target": "pt"}[name]
    return (
        "text" if "string" in kinds or not any(kinds) else [] if "array" in kinds else 1 if "integer" in kinds else {}
    )
