"""The API of LibreTranslate: `POST /translate`, `POST /detect`, `GET /languages`; JSON and forms."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Literal, cast

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento.config.tables.tasks import verb_of
from atento.errors import DataError
from atento.text.documents.document_sentences import DocumentSentences, Passages, joined
from atento.text.documents.segments import NUMBERED, TextDocument
from atento.text.documents.web_pages import read_html
from atento.text.glossary import Glossary, glossary_of_rows
from atento.text.keeping import Asking, Output, Outputs, Translate, keeping
from atento.text.kept_spans import Link
from atento_serve.api.detection import Detected, detect
from atento_serve.api.language_codes import NAMES, code_of, pair_in
from atento_serve.http.body import FORMS, content_type, read_object
from atento_serve.http.clients import Key
from atento_serve.http.errors import LIBRETRANSLATE, ServiceError, wrong_field
from atento_serve.http.fields import F, Fields, Terms, Texts, bounded, listed, read
from atento_serve.http.request_jobs import Outcome, Pointers, Work, check_texts, unless_gone
from atento_serve.http.routes import accepts
from atento_serve.http.service import Service

_VERB = "translate"
FROM_GLOSSARY = dict.fromkeys(("prefix", "required_words"), "glossary")  # errors name fields of this API
_SURE = 50.0  # from this confidence on, a text is taken to be in the target language already


class TranslateFields(Fields):
    """The body of `POST /translate`; `secret` is of the page of LibreTranslate, and has no effect.

    `glossary` (source term -> target term, or a list of allowed forms) and `protect` are ours.
    """

    q: Texts
    source: str = "auto"
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: int = 0
    api_key: str | None = None
    secret: str | None = None
    glossary: Terms | None = None
    protect: bool = False


class DetectFields(Fields):
    """The body of `POST /detect`."""

    q: Texts
    api_key: str | None = None


@dataclass(frozen=True)
class Direction:
    """A translation that a model does: from one language to another, by their codes.

    `source_name` and `target_name` are the names of a multilingual tokenizer; None where it has none.
    """

    model: str
    source: str
    target: str
    source_name: str | None = None
    target_name: str | None = None

    @property
    def options(self) -> dict[str, object]:
        """The options of `Model.translate`."""
        names = {"source_language": self.source_name, "target_language": self.target_name}
        return {option: name for option, name in names.items() if name is not None}


def directions(service: Service) -> Iterator[Direction]:
    """All translations that the service does, in the order of its models."""
    for name, settings in service.models.items():
        description = service.engine.describe(name)
        if verb_of(description.task) != _VERB:
            continue
        languages = description.languages
        pair = settings.languages or pair_in(name)
        if not languages and pair is not None:
            yield Direction(name, code_of(pair[0]), code_of(pair[1]))
        for source in languages:
            for target in languages:
                if code_of(source) != code_of(target):
                    yield Direction(name, code_of(source), code_of(target), source, target)


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes."""

    async def languages(request: Request) -> Response:
        service.clients.authenticate(request)
        targets: dict[str, list[str]] = {}
        for direction in directions(service):
            targets.setdefault(direction.source, [])
            if direction.target not in targets[direction.source]:
                targets[direction.source].append(direction.target)
        rows = [{"code": code, "name": NAMES.get(code, code), "targets": codes} for code, codes in targets.items()]
        return JSONResponse(rows)

    async def detected(request: Request) -> Response:
        fields, _ = await _fields(service, request, DetectFields)
        texts = listed(fields.q)
        check_texts(service, len(texts), "/q")
        # detection takes milliseconds a text
        rows = await asyncio.to_thread(lambda: [[_shown(language) for language in detect(text)] for text in texts])
        return JSONResponse(rows[0] if isinstance(fields.q, str) else rows)

    async def translated(request: Request) -> Response:
        fields, key = await _fields(service, request, TranslateFields)
        with service.clients.share(request, key):
            return JSONResponse(await _translate(service, request, fields))

    app.add_api_route(
        "/languages", languages, methods=["GET"], summary="Languages and their targets", tags=[LIBRETRANSLATE]
    )
    app.add_api_route(
        "/detect",
        detected,
        methods=["POST"],
        summary="The language of a text",
        openapi_extra=accepts(DetectFields, form=True),
        tags=[LIBRETRANSLATE],
    )
    app.add_api_route(
        "/translate",
        translated,
        methods=["POST"],
        summary="A translation",
        openapi_extra=accepts(TranslateFields, form=True),
        tags=[LIBRETRANSLATE],
    )


async def _fields(service: Service, request: Request, kind: type[F]) -> tuple[F, Key | None]:
    """The fields of a request whose key may stand in its body, and that key; those of a form are texts."""
    value = await read_object(request, service.limits, form=True)
    if content_type(request) in FORMS:
        value = {name: text or None for name, text in value.items()} | {"q": value.get("q")}  # empty is as not sent
        text = value.get("alternatives")
        if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10:
            value["alternatives"] = int(text)
        if value.get("protect") in ("true", "false"):
            value["protect"] = value["protect"] == "true"
    key = service.clients.authenticate(request, value.get("api_key") if isinstance(value, dict) else None)
    return read(kind, value), key


async def _translate(service: Service, request: Request, fields: TranslateFields) -> dict[str, object]:
    texts = listed(fields.q)
    check_texts(service, len(texts), "/q")
    bounded("alternatives", fields.alternatives, 0, service.limits.n - 1)
    known = list(directions(service))
    rows, languages = await asyncio.to_thread(_read, texts, fields, known)
    glossary = await asyncio.to_thread(glossary_of, fields.glossary, fields.alternatives)
    sources = [language.code if language else code_of(fields.source) for language in languages]
    work = Work(service, request, Pointers("/q", names=FROM_GLOSSARY))
    written = [[[sentence] for sentence in row.sentences] for row in rows]
    for source in dict.fromkeys(sources):  # a direction a language: texts of one go together
        if (direction := direction_of(service, source, fields.target, detected=fields.source == "auto")) is None:
            continue
        chosen = [number for number, code in enumerate(sources) if code == source]
        sentences = [sentence for number in chosen for sentence in rows[number].sentences]
        steps = keeping(sentences, glossary, protect=fields.protect, tags=fields.format == "html")
        outputs = iter(await unless_gone(request, written_keeping(work, direction, steps, fields.alternatives)))
        for number in chosen:
            written[number] = [next(outputs) for _ in rows[number].sentences]
    each = zip(rows, written)
    choices = await asyncio.to_thread(lambda: [_choices(row, outputs, fields.alternatives) for row, outputs in each])
    body = _body(fields, choices, languages)
    if glossary is not None:
        whole = zip(texts, (texts_of_one[0] for texts_of_one in choices))
        read = _words if fields.format == "html" else str
        reports = [glossary.report(read(source), read(output)) for source, output in whole]
        body["terms"] = reports[0] if isinstance(fields.q, str) else reports
    return body


def _words(markup: str) -> str:
    """What a reader sees of HTML."""
    return unescape(re.sub(r"<[^<>]*>", " ", markup))


def glossary_of(terms: Terms | None, alternatives: int = 0) -> Glossary | None:
    """The glossary of a request. Raises ServiceError: 422, it is wrong; says where."""
    if not terms:
        return None
    if alternatives:
        raise wrong_field("/glossary", "`glossary` and `alternatives` exclude each other: terms are kept in one output")
    rows = [[source, *([forms] if isinstance(forms, str) else forms)] for source, forms in terms.items()]
    try:
        return glossary_of_rows((f"/glossary/{row[0]}", row) for row in rows)
    except DataError as error:
        raise wrong_field("/glossary", str(error)) from None


@dataclass(frozen=True)
class _Row:
    """The sentences of a text, and what makes a text of their translations."""

    sentences: list[str]
    written: Callable[[list[str]], str]


def _row(text: str, *, is_html: bool) -> _Row:
    if is_html:
        page = DocumentSentences(TextDocument(read_html(text, "q")))
        return _Row(page.sentences, lambda outputs: page.written(outputs).decode("utf-8"))
    passages = Passages()
    pieces = passages.text(text)
    return _Row(passages.sentences, lambda outputs: joined(pieces, outputs))


def _read(
    texts: Sequence[str], fields: TranslateFields, known: Sequence[Direction]
) -> tuple[list[_Row], list[Detected | None]]:
    """The sentences of each text, and its language if it is to be detected.

    It takes up to a second for a long document, in a thread, so that other requests and signals are heard meanwhile.
    """
    rows = [_row(text, is_html=fields.format == "html") for text in texts]
    if fields.source != "auto":
        return rows, [None] * len(rows)
    return rows, [detected_source(" ".join(row.sentences), known, fields.target) for row in rows]


def detected_source(text: str, known: Sequence[Direction], target: str) -> Detected:
    """The language of a text among those that can be translated; that of the target where it is likely to be in it."""
    text = NUMBERED.sub(" ", text)
    target, served = code_of(target), dict.fromkeys(direction.source for direction in known)
    if target in {direction.target for direction in known}:
        found = detect(text, {**served, target: None})[0]
        if found.code == target and found.confidence >= _SURE:
            return found
    return detect(text, served)[0]


async def written_keeping(
    work: Work, direction: Direction, steps: Asking[Outputs], alternatives: int
) -> list[list[str]]:
    """The translation of each sentence and its alternatives."""
    options, answer = direction.options, cast(object, None)
    if alternatives:
        options |= {"n_best": alternatives + 1, "beam": max(4, alternatives + 1)}
    while True:
        try:
            asked = steps.send(answer)
        except StopIteration as end:
            outputs: Outputs = end.value
            return [[output.text for output in rows] for rows in outputs]
        if isinstance(asked, Translate):
            each = zip(([text] for text in asked.texts), asked.own) if asked.own else [(asked.texts, {})]
            found = Outcome([])
            for texts, own in each:
                try:
                    found.values += (await work.run_in_parts(direction.model, _VERB, texts, options | own)).values
                except ServiceError as error:
                    if not own or error.status != 422:  # else the vocabulary, or the room, does not allow its options
                        raise
                    found.values.append([])
            answer = [[Output(output["text"], output["score"]) for output in value] for value in found.values]
        else:
            outcome = await work.run_in_parts(direction.model, "align", asked.pairs, direction.options)
            answer = [[Link(**link) for link in links] for links in outcome.values]


def _choices(row: _Row, outputs: Sequence[Sequence[str]], alternatives: int) -> list[str]:
    """The translation of a text and its alternatives, each different: the first of all sentences, the second of all ...

    A sentence with fewer outputs has its last one in the others.
    """
    ranks = range(alternatives + 1)
    ranked = [[texts[min(rank, len(texts) - 1)] if texts else "" for texts in outputs] for rank in ranks]
    return list(dict.fromkeys(row.written(texts) for texts in ranked))


def _body(fields: TranslateFields, outputs: list[list[str]], languages: list[Detected | None]) -> dict[str, object]:
    single = isinstance(fields.q, str)
    body: dict[str, object] = {"translatedText": outputs[0][0] if single else [texts[0] for texts in outputs]}
    if fields.alternatives:
        further = [texts[1:] for texts in outputs]
        body["alternatives"] = further[0] if single else further
    if fields.source == "auto":
        shown = [_shown(language) for language in languages if language is not None]
        body["detectedLanguage"] = shown[0] if single else shown
    return body


def direction_of(service: Service, source: str, target: str, *, detected: bool) -> Direction | None:
    """The translation by the first model that does it; None: a text detected to be in the target language stays so.

    Raises ServiceError: 400, there is none.
    """
    known = list(directions(service))
    for direction in known:
        if direction.source == source and direction.target == code_of(target):
            return direction
    if detected and source == code_of(target) and any(direction.target == source for direction in known):
        return None
    pairs = ", ".join(dict.fromkeys(f"{pair.source}-{pair.target}" for pair in known[:20]))
    hint = "" if pairs else " (--languages NAME=SOURCE-TARGET says what a model translates)"
    raise ServiceError(
        400,
        f"no model of this service translates from {source[:20]!r}{' (detected)' if detected else ''} to "
        f"{target[:20]!r}: it translates {pairs or 'none'}{hint}",
        "unknown_language",
        param="/target",
    )


def _shown(language: Detected) -> dict[str, object]:
    return {"language": language.code, "confidence": language.confidence}
