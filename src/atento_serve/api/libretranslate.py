"""The API of LibreTranslate: `POST /translate`, `POST /detect`, `GET /languages`; JSON and forms."""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento.config.tables.tasks import verb_of
from atento_serve.api.languages import NAMES, chosen, code_of, detect, known_codes, pair_in
from atento_serve.api.text_work import Asked
from atento_serve.http.body import FORMS, content_type, read_object
from atento_serve.http.clients import Key
from atento_serve.http.errors import LIBRETRANSLATE, ServiceError, too_long, wrong_field
from atento_serve.http.fields import F, Fields, Terms, Texts, bounded, listed, read
from atento_serve.http.request_jobs import Pointers, Work, check_texts, unless_gone
from atento_serve.http.routes import accepts
from atento_serve.http.service import Service, note

_VERB = "translate"
_READ = 4000  # characters, which are more than are read to detect a language
FROM_GLOSSARY = dict.fromkeys(("prefix", "required_words"), "glossary")  # errors name fields of this API


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


Directions = dict[tuple[str, str], Direction]
"""The translations that are done, by the codes of their languages, in the order of the models."""


def directions(service: Service) -> Directions:
    """All translations that the service does, each by the first model that does it."""
    found: Directions = {}
    for name, settings in service.models.items():
        description = service.engine.describe(name)
        # a released multilingual model translates, among other tasks
        if verb_of(description.task) == _VERB or (description.languages and _VERB in description.verbs):
            known = _directions(name, tuple(description.languages), settings.languages or pair_in(name))
            found = known | found if found else known
    return found


@lru_cache(maxsize=64)  # of a model of 200 languages there are 40,000
def _directions(name: str, languages: tuple[str, ...], pair: tuple[str, str] | None) -> Directions:
    if not languages:
        codes = None if pair is None else (code_of(pair[0]), code_of(pair[1]))
        return {} if codes is None else {codes: Direction(name, *codes)}
    code = {language: code for code, language in known_codes(languages).items()}
    pairs = [(source, target) for source in languages for target in languages if source != target]
    return {(code[one], code[two]): Direction(name, code[one], code[two], one, two) for one, two in pairs}


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes."""

    async def languages(request: Request) -> Response:
        service.clients.authenticate(request)
        targets: dict[str, list[str]] = {}
        for source, target in directions(service):
            targets.setdefault(source, []).append(target)
        rows = [{"code": code, "name": NAMES.get(code, code), "targets": codes} for code, codes in targets.items()]
        return JSONResponse(rows)

    async def detected(request: Request) -> Response:
        fields, key = await _fields(service, request, DetectFields)
        with service.clients.share(request, key):
            texts = listed(fields.q)
            check_texts(service, len(texts), "/q")
            rows = [[language.shown for language in detect(text[:_READ])] for text in texts]  # under 1 ms each
        return JSONResponse(rows[0] if isinstance(fields.q, str) else rows)

    async def translated(request: Request) -> Response:
        fields, key = await _fields(service, request, TranslateFields)
        with service.clients.share(request, key):
            texts = listed(fields.q)
            check_texts(service, len(texts), "/q")
            bounded("alternatives", fields.alternatives, 0, min(service.limits.n, service.limits.beam) - 1)
            if fields.glossary and fields.alternatives:
                exclude = "`glossary` and `alternatives` exclude each other: terms are kept in one output"
                raise wrong_field("/glossary", exclude)
            given = {"q": texts, "single": isinstance(fields.q, str), "format": fields.format}
            given |= {"alternatives": fields.alternatives, "protect": fields.protect}
            work = Work(service, request, Pointers("/q", names=FROM_GLOSSARY))
            body = await translated_work(work, "texts", given, fields.source, fields.target, fields.glossary)
            return Response(body, media_type="application/json")

    for path, route, kind, summary in (
        ("/languages", languages, None, "Languages and their targets"),
        ("/detect", detected, DetectFields, "The language of a text"),
        ("/translate", translated, TranslateFields, "A translation"),
    ):
        extra = None if kind is None else accepts(kind, form=True)
        method = "GET" if kind is None else "POST"
        app.add_api_route(path, route, methods=[method], summary=summary, tags=[LIBRETRANSLATE], openapi_extra=extra)


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


async def translated_work(
    work: Work, name: str, given: Asked, source: str, target: str, glossary: Terms | None, content: bytes = b""
) -> bytes:
    """The body of the answer to a request for translation: work on its texts, for which models translate.

    Args:
        work: its jobs.
        name, given, content: as `TextProcesses.run` takes them, but for what the others say.
        source, target, glossary: fields of the request.

    Raises:
        ServiceError: it is refused, or fails.
    """
    service, terms = work.service, glossary or {}
    if len(terms) > (most := service.limits.terms):
        raise too_long(f"a glossary may have at most {most:,} terms: got {len(terms):,}", "/glossary")
    known, alternatives, items = directions(service), given.get("alternatives", 0), 0
    served = [[*dict.fromkeys(pair[side] for pair in known)] for side in (0, 1)]
    code = chosen(target, served[1])
    given |= {"source": chosen(source, served[0]), "target": code, "sources": served[0], "targets": served[1]}
    given |= {
        "language": target if re.fullmatch("[A-Za-z]{2,3}[-_][A-Za-z]{2}", target) else code,  # as documents state it
        "terms": json.dumps(terms),
    }

    async def answer(asked: Asked) -> object:
        """What a piece of work asks for: languages that are translated, translations, or links of words."""
        nonlocal items
        if "directions" in asked:
            return [one for one in asked["directions"] if _is_done(known, one, code, target, detected=source == "auto")]
        direction = known[asked["source"], code]
        if "align" in asked:
            return (await work.run(direction.model, "align", asked["align"], direction.options)).values
        options: dict[str, object] = direction.options | asked["own"]
        if alternatives:
            width = service.engine.describe(direction.model).beam
            width = width if width > 1 else min(4, service.limits.beam)  # greedy search has no alternatives
            options |= {"n_best": alternatives + 1, "beam": max(width, alternatives + 1)}
        try:
            found = (await work.run(direction.model, _VERB, asked["translate"], options)).values
        except ServiceError as error:
            if not asked["own"] or error.status != 422:  # else the vocabulary, or the room, does not allow its options
                raise
            found = [[]]
        items += len(found)
        note(work.request, items=items)
        return [[(output["text"], output["score"]) for output in outputs] for outputs in found]

    return await unless_gone(work.request, service.texts.run(name, given, content, answer, work.deadline))


def _is_done(known: Directions, source: str, code: str, target: str, *, detected: bool) -> bool:
    """Whether the service translates so; False: a text detected to be in the target language stays so.

    Raises ServiceError: 400, no model does.
    """
    if (source, code) in known:
        return True
    if detected and source == code and any(two == source for _, two in known):
        return False
    pairs = ", ".join(f"{one}-{two}" for one, two in islice(known, 20))
    hint = "" if pairs else " (--languages NAME=SOURCE-TARGET says what a model translates)"
    asked = f"from {source[:20]!r}{' (detected)' if detected else ''} to {target[:20]!r}"
    message = f"no model of this service translates {asked}: it translates {pairs or 'none'}{hint}"
    raise ServiceError(400, message, "unknown_language", param="/target")
