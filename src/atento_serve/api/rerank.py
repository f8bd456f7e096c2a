"""Texts ranked by a query, as Cohere, Jina and text-embeddings-inference do; and the `/embed` of the latter."""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento_serve.api.examples import RERANK
from atento_serve.http.errors import HUGGING_FACE, wrong_field
from atento_serve.http.fields import Fields, Row, Texts, bounded, described, listed
from atento_serve.http.request_jobs import Fit, Pointers, Work, check_texts, fit_of, unless_gone
from atento_serve.http.routes import posts
from atento_serve.http.service import Service
from atento_serve.jobs import Description

_NOT = {"not", "non", "no", "un", "nao", "sem", "pouco"}
Direction = Literal["left", "right", "Left", "Right"]


class RerankFields(Fields):
    """The body of `POST /rerank`: `documents` of Cohere and Jina, or `texts` of text-embeddings-inference."""

    query: str
    model: str | None = None
    documents: Row[object] | None = None
    texts: Row[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Direction = "right"


class EmbedFields(Fields):
    """The body of `POST /embed`."""

    inputs: Texts
    model: str | None = None
    normalize: bool = True
    truncate: bool | None = None
    truncation_direction: Direction = "right"
    prompt_name: str | None = None
    dimensions: int | None = None


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes."""

    ranks = {"summary": "Texts ranked by a query", "tag": HUGGING_FACE}

    @posts(app, service, RerankFields, "/rerank", "/v1/rerank", "/v2/rerank", **ranks, example=RERANK)
    async def rerank(request: Request, fields: RerankFields) -> Response:
        texts = _texts(service, fields)
        bounded("top_n", fields.top_n, 1, 2**31)
        model, way = _ranker(service, fields.model)
        work = Work(service, request, Pointers("/texts" if fields.documents is None else "/documents"))
        fit = fit_of(fields.truncate, fields.truncation_direction)
        scores, tokens = await unless_gone(request, _scores(work, model, way, fields, texts, fit))
        return JSONResponse(_body(work, model, fields, texts, scores, tokens))

    @posts(app, service, EmbedFields, "/embed", summary="Vectors of texts", tag=HUGGING_FACE)
    async def embed(request: Request, fields: EmbedFields) -> Response:
        model, texts = service.model_for("embed", fields.model), listed(fields.inputs)
        check_texts(service, len(texts), "/inputs")
        bounded("dimensions", fields.dimensions, 1, service.describe(model).width or 0)
        fit = fit_of(fields.truncate, fields.truncation_direction)
        options = fields.model_dump(include={"normalize", "prompt_name"}, exclude_none=True)
        run = Work(service, request, Pointers("/inputs")).run(model, "embed", texts, options, fit=fit)
        outcome = await unless_gone(request, run)
        rows = []
        for vector in outcome.values:  # its first `dimensions`, of length 1 again where vectors have this length
            row = np.asarray(vector, dtype=np.float32)[: fields.dimensions]
            norm = float(np.linalg.norm(row))
            rows.append((row / norm if fields.normalize and norm else row).tolist())
        return JSONResponse(rows)


def _texts(service: Service, fields: RerankFields) -> list[str]:
    """The texts to rank; a document is a text or an object with a `text`."""
    if (fields.documents is None) == (fields.texts is None):
        raise wrong_field("/documents", "give `documents` or `texts`: got both or none")
    if fields.texts is not None:
        check_texts(service, len(fields.texts), "/texts")
        return fields.texts
    texts: list[str] = []
    for number, document in enumerate(fields.documents or ()):
        text = document.get("text") if isinstance(document, Mapping) else document
        if not isinstance(text, str):
            rule = "a document must be a text, or an object with a `text`"
            raise wrong_field(f"/documents/{number}", f"{rule}: got {described(document)}")
        texts.append(text)
    check_texts(service, len(texts), "/texts" if fields.documents is None else "/documents")
    return texts


def _ranker(service: Service, name: str | None) -> tuple[str, str]:
    """A model, and how it ranks: "number", the name of a label, or "" for the cosine of vectors.

    Raises:
        ServiceError: 404, no such model; 400, it can do neither.
    """
    for model in service.models if name is None else [name]:
        if (way := _way(service.describe(model))) is not None:
            return model, way
    return service.model_for("embed", name), ""


def _way(description: Description) -> str | None:
    """How a model of pairs ranks: by its number, or by the label that says that a text is relevant."""
    if description.pairs is False:
        return None
    if description.gives_number:
        return "number"
    if "classify" not in description.verbs:
        return None
    return min(filter(_means_relevant, description.labels), key=len, default=None)


def _means_relevant(label: str) -> bool:
    """Whether a label says so, in English or in Portuguese: entailment, relevante, but not "não relevante"."""
    words = re.findall("[A-Z]?[a-z]+|[A-Z]+", normalize("NFD", label).replace("\u0303", ""))  # a tilde is no letter
    words = [word.lower() for word in words]
    return any(map(re.compile("entail|relevant").match, words)) and not _NOT.intersection(words)


async def _scores(
    work: Work, model: str, way: str, fields: RerankFields, texts: list[str], fit: Fit
) -> tuple[list[float], int]:
    """A score for each text, and the number of tokens that were read."""
    if not way:
        vectors, tokens = list[Any](), 0
        prompts = work.service.describe(model).search_prompts
        sides = [(Pointers("/query"), [fields.query], prompts[0]), (work.pointers, texts, prompts[1])]
        for work.pointers, side, name in sides:
            options = {"normalize": True} | ({} if name is None else {"prompt_name": name})
            outcome = await work.run(model, "embed", side, options, fit=fit)
            vectors, tokens = [*vectors, *outcome.values], tokens + outcome.prompt_tokens
        # of length 1: the product is the cosine
        query, *documents = (np.asarray(vector, dtype=np.float64) for vector in vectors)
        return [float(query @ vector) for vector in documents], tokens
    pairs = [[fields.query, text] for text in texts]
    outcome = await work.run(model, "similarity" if way == "number" else "classify", pairs, fit=fit)
    if way != "number":
        # `way` is the label that says relevant
        scores = [next(row["probability"] for row in value if row["name"] == way) for value in outcome.values]
    else:
        # the logistic function, without overflow
        scores = outcome.values if fields.raw_scores else [0.5 * (1 + math.tanh(one / 2)) for one in outcome.values]
    return scores, outcome.prompt_tokens


def _body(
    work: Work, model: str, fields: RerankFields, texts: list[str], scores: list[float], tokens: int
) -> dict[str, object] | list[dict[str, object]]:
    """The answer: a list for `texts`, an object with `results` for `documents`; the highest score first."""
    # stable: equal scores stay in their order
    order = sorted(range(len(texts)), key=lambda number: -scores[number])[: fields.top_n]
    if fields.texts is not None:  # the form of text-embeddings-inference; else that of Cohere and Jina
        shown = fields.return_text or fields.return_documents
        return [
            {"index": number, "score": scores[number]} | ({"text": texts[number]} if shown else {}) for number in order
        ]
    results = [
        {"index": number, "relevance_score": scores[number]}
        | ({"document": {"text": texts[number]}} if fields.return_documents else {})
        for number in order
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": work.request.scope["atento"]["id"], "model": model, "results": results, "usage": usage}
