"""`POST /translate_file`: a document as LibreTranslate takes it, in a form in parts; the answer is the document."""

import asyncio
from pathlib import PurePath
from urllib.parse import quote

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from atento.errors import AtentoError
from atento.text.documents import FORMATS, read_document
from atento.text.documents.document_sentences import DocumentSentences
from atento.text.keeping import keeping
from atento_serve.api import libretranslate as api
from atento_serve.api.language_codes import code_of
from atento_serve.http.body import read_upload
from atento_serve.http.errors import LIBRETRANSLATE, wrong_field
from atento_serve.http.fields import Fields, Terms, read
from atento_serve.http.request_jobs import Pointers, Work, unless_gone
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


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    async def translated_file(request: Request) -> Response:
        values, name, content = await read_upload(request, service.limits)  # the key may be a field of the form
        key = service.clients.authenticate(request, values.get("api_key"))
        with service.clients.share(request, key):
            fields = read(FileFields, values)
            glossary = await asyncio.to_thread(api.glossary_of, fields.glossary)
            try:
                work = await asyncio.to_thread(lambda: DocumentSentences(read_document(content, name)))
            except AtentoError as error:  # of the document, which the client sent
                raise wrong_field("/file", str(error)) from None
            source = fields.source
            if source == "auto":
                text = " ".join(work.sentences[:200])  # enough to tell the language
                known = list(api.directions(service))
                source = (await asyncio.to_thread(api.detected_source, text, known, fields.target)).code
            direction = api.direction_of(service, code_of(source), fields.target, detected=fields.source == "auto")
            body = content
            if direction is not None:
                jobs = Work(service, request, Pointers("/file", names=api.FROM_GLOSSARY))
                steps = keeping(work.sentences, glossary, protect=True)
                outputs = await unless_gone(request, api.written_keeping(jobs, direction, steps, 0))
                body = await asyncio.to_thread(work.written, [rows[0] for rows in outputs])
        ending = PurePath(name).suffix.lower()
        headers = {  # RFC 5987: any letters
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(PurePath(name).name)}",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(body, media_type=_TYPES.get(ending, "text/plain"), headers=headers)

    properties = {name: {"type": "string"} for name in FileFields.model_fields}
    file = {"type": "string", "format": "binary", "description": f"A document: {', '.join(FORMATS)}"}
    schema = {"type": "object", "required": ["file", "target"], "properties": {"file": file} | properties}
    app.add_api_route(
        "/translate_file",
        translated_file,
        methods=["POST"],
        summary="A translated document",
        openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}},
        tags=[LIBRETRANSLATE],
    )
