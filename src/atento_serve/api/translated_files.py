"""`POST /translate_file`: a document as LibreTranslate takes it, in a form in parts; the answer is the document."""

from pathlib import PurePath
from urllib.parse import quote

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from atento.text.documents import FORMATS, OPTIONS
from atento_serve.api import libretranslate as api
from atento_serve.http.body import read_upload
from atento_serve.http.errors import LIBRETRANSLATE
from atento_serve.http.fields import Fields, Terms, read
from atento_serve.http.request_jobs import Pointers, Work
from atento_serve.http.service import Service

_TYPES = {
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "application/xhtml+xml",
    ".vtt": "text/vtt",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}


class FileFields(Fields):
    """The fields of `POST /translate_file` beside `file`."""

    source: str = "auto"
    target: str
    api_key: str | None = None
    glossary: Terms | None = None
    attributes: bool = False
    mark_fuzzy: bool = False


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    async def translated_file(request: Request) -> Response:
        values, name, content = await read_upload(request, service.limits)  # the key may be a field of the form
        key = service.clients.authenticate(request, values.get("api_key"))
        with service.clients.share(request, key):
            # flags are texts in a form
            flags = {name: values[name] == "true" for name in OPTIONS if values.get(name) in ("true", "false")}
            fields = read(FileFields, values | flags)
            work = Work(service, request, Pointers("/file", names=api.FROM_GLOSSARY))
            given = {"name": name, "options": {name: getattr(fields, name) for name in OPTIONS}}
            asked = fields.source, fields.target, fields.glossary
            body = await api.translated_work(work, "document", given, *asked, content)
        ending = PurePath(name).suffix.lower()
        headers = {  # RFC 5987: any letters
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(PurePath(name).name)}",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(body, media_type=_TYPES.get(ending, "text/plain"), headers=headers)

    properties = {name: {"type": "string"} for name in FileFields.model_fields}
    file = {"type": "string", "format": "binary", "description": f"A document: {', '.join(FORMATS)}"}
    schema = {"type": "object", "required": ["file", "target"], "properties": {"file": file} | properties}
    extra = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
    path, summary = "/translate_file", "A translated document"
    app.add_api_route(
        path, translated_file, methods=["POST"], summary=summary, openapi_extra=extra, tags=[LIBRETRANSLATE]
    )
