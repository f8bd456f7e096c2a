"""The task payloads of Hugging Face: `POST /models/{id}` and `POST /{task}`.

A payload is chosen by the verb of the task (`atento.config.tables.tasks`), so a new task with a verb of the table is
served without a line here.
"""

from collections.abc import Callable, Coroutine, Mapping

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from atento.base.errors import nearest
from atento.config.tables.tasks import TASKS, task_with, verb_of
from atento.config.tables.verbs import VERBS, WRITING
from atento_serve.api.decoding import NAMES
from atento_serve.api.examples import ZERO_SHOT as ZERO_SHOT_EXAMPLE
from atento_serve.api.examples import payload_example
from atento_serve.api.payload_generation import Call, generation
from atento_serve.api.payloads import (
    PAYLOADS,
    entailing_model,
    feature_extraction,
    plain_payload,
    sentence_similarity,
    zero_shot,
)
from atento_serve.http.body import read_object
from atento_serve.http.errors import HUGGING_FACE, ServiceError, wrong_field
from atento_serve.http.fields import Fields, described, read
from atento_serve.http.request_jobs import Pointers, Work, unless_gone
from atento_serve.http.routes import accepts
from atento_serve.http.service import Service

Payload = Callable[[Call], Coroutine[object, object, object]]
ZERO_SHOT = "zero-shot-classification"
_SCHEMA: dict[str, object] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "inputs": {"description": "What the task takes: a text, a list of texts, or an object."},
        "parameters": {"type": "object"},
        "options": {"type": "object"},
        "stream": {"type": "boolean"},
    },
}


def names() -> dict[str, str]:
    """The names of tasks in paths, ours and Hugging Face's, and the verb of each."""
    verbs = {name: str(spec.verb) for name, spec in TASKS.items() if spec.verb is not None}
    tags = {spec.hub: verb for verb, spec in VERBS.items() if spec.hub is not None}
    return verbs | tags | {ZERO_SHOT: "classify"}


def tag_of(verb: str) -> str:
    """The name of Hugging Face for what a verb does: "fill-mask"; ours where it has the same."""
    return VERBS[verb].hub or task_with(verb)


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of the payloads."""

    async def of_model(request: Request) -> Response:
        name, _, task = request.path_params["id"].partition("/pipeline/")  # a name may have slashes
        if task and task not in names():
            raise ServiceError(
                404, f"there is no task {task[:60]!r}: known are {', '.join(sorted(names()))}", "not_found"
            )
        return await _answer(service, request, name, task or None)

    async def of_root(request: Request) -> Response:
        if len(service.models) > 1:
            known = ", ".join(service.models)
            raise ServiceError(400, f"name a model: POST /models/NAME; this service has {known}", "no_model")
        return await _answer(service, request, next(iter(service.models)), None)

    first = next((service.describe(name).verb for name in service.models), "")
    routes: list[tuple[str, Callable[[Request], Coroutine[object, object, Response]], str, str]] = [
        ("/models/{id:path}", of_model, "The task of a model", first),
        ("/", of_root, "The task of the only model", first),
    ]
    routes += [(f"/{task}", _of_task(service, task), f"The task {task}", verb) for task, verb in names().items()]
    for path, route, summary, verb in routes:
        example = ZERO_SHOT_EXAMPLE if path == f"/{ZERO_SHOT}" else payload_example(service, verb)
        extra = accepts(_SCHEMA, example=example)
        app.add_api_route(path, route, methods=["POST"], summary=summary, tags=[HUGGING_FACE], openapi_extra=extra)


def _of_task(service: Service, task: str) -> Callable[[Request], Coroutine[object, object, Response]]:
    async def of_task(request: Request) -> Response:
        return await _answer(service, request, None, task)

    return of_task


_POINTERS = Pointers("/inputs", "/parameters/", NAMES)


async def _answer(service: Service, request: Request, model: str | None, task: str | None) -> Response:
    """Answer a payload by a model, or by the first that does the task."""
    key = service.clients.authenticate(request)
    if model is not None:
        service.describe(model)  # 404 before the body is read
    with service.clients.share(request, key):
        value = await read_object(request, service.limits)
        if isinstance(value, dict) and value.get("inputs") is None:  # null as well as missing
            raise wrong_field("/inputs", "`inputs` is missing")
        fields = read(_Parts, value)
        inputs, parameters = fields.inputs, (fields.parameters or {}) | (fields.model_extra or {})
        head = parameters.pop("head", None)
        if head is not None:  # of the model, or of the first that has one of that name
            heads = {name: service.describe(name).heads for name in ([model] if model is not None else service.models)}
            model = next((name for name, known in heads.items() if isinstance(head, str) and head in known), None)
            if model is None:
                every = list(dict.fromkeys(name for known in heads.values() for name in known))
                near = nearest(str(head)[:60], every) if every else ": it has none"
                raise wrong_field("/parameters/head", f"`head`: the model has no head {described(head)}{near}")
        if task is None:
            assert model is not None
            description = service.describe(model)
            verb = description.verb if head is None else str(verb_of(description.heads[str(head)]))
        else:
            verb = names()[task]
        payload = _payload(verb, task, inputs, parameters)
        if payload is sentence_similarity:  # a payload may need another verb than the model's own
            verb = "similarity"
        elif payload is feature_extraction:
            verb = "embed"
        if payload is zero_shot and model is None:  # of all models the first that has such labels
            model = entailing_model(service)
        model = service.model_for(verb, model)
        work = Work(service, request, _POINTERS, None if head is None else str(head))
        call = Call(service, work, model, verb, inputs, parameters)
        if fields.stream:
            if verb not in WRITING:
                raise wrong_field("/stream", f"`stream` takes a model that writes text: {model!r} can {verb}")
            return await generation(call, stream=True)
        return JSONResponse(await unless_gone(request, payload(call)))


class _Parts(Fields):
    """A payload; its parameters may stand beside its inputs."""

    model_config = Fields.model_config | {"extra": "allow"}

    inputs: object = None
    parameters: dict[str, object] | None = None
    options: dict[str, object] | None = None
    stream: bool = False


def _payload(verb: str, task: str | None, inputs: object, parameters: Mapping[str, object]) -> Payload:
    if task == ZERO_SHOT or (verb == "classify" and "candidate_labels" in parameters):
        return zero_shot
    if verb in ("embed", "similarity") and task in (None, tag_of("embed"), tag_of("similarity")):
        pairs = isinstance(inputs, dict) and "source_sentence" in inputs
        if pairs or task == tag_of("similarity"):
            return sentence_similarity
        return feature_extraction if verb == "embed" else plain_payload
    return PAYLOADS.get(verb, plain_payload)
