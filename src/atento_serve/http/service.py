"""What all routes share: the engine, the limits, the clients, the metrics; which model a request is for."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from atento_serve.engine.engine import Engine
from atento_serve.http.clients import Clients
from atento_serve.http.errors import ServiceError, stopping
from atento_serve.http.logs import Log
from atento_serve.http.metrics import Metrics
from atento_serve.http.text_processes import TextProcesses
from atento_serve.jobs import Description
from atento_serve.settings import Limits, ModelSettings

_VECTORS = ("embed", "similarity")


def abilities(description: Description) -> str:
    """What a model can do, in words for a message: not what every model does with its tokens."""
    return ", ".join(verb for verb in description.verbs if verb not in ("tokenize", "detokenize"))


@dataclass
class Service:
    """The parts that routes share.

    Attributes:
        engine: computes.
        models: name -> settings, in the order of the command line.
        limits, clients, metrics, log: as their classes say.
        texts: the processes that work on users' texts.
        stopping: whether SIGTERM has come: no new work.
        started: the time of the start, in seconds since 1970.
    """

    engine: Engine
    models: Mapping[str, ModelSettings]
    limits: Limits
    clients: Clients
    metrics: Metrics
    log: Log
    texts: TextProcesses = field(init=False)
    stopping: bool = False
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.texts = TextProcesses(self.limits)

    def describe(self, name: str) -> Description:
        """A model by name. Raises ServiceError: 404; names those that there are."""
        if name not in self.models:
            known = ", ".join(self.models) or "none"
            message = f"there is no model {name[:80]!r}: this service has {known}"
            raise ServiceError(404, message, "unknown_model", param="/model")
        return self.engine.describe(name)

    def model_for(self, verb: str, name: str | None = None) -> str:
        """The model that does a verb: the named one, else the first whose own verb it is, else the first that can.

        Raises:
            ServiceError: 404, no such model; 400, it does not do this.
        """
        if name is not None:
            description = self.describe(name)
            if verb not in description.verbs:
                message = f"the model {name!r} cannot {verb}: it can {abilities(description)}"
                raise ServiceError(400, message, "wrong_model", param="/model")
            return name
        kin = _VECTORS if verb in _VECTORS else (verb,)  # a model that is trained for vectors compares texts best
        own = [name for name in self.models if self.engine.describe(name).verb in kin]
        able = [name for name in self.models if verb in self.engine.describe(name).verbs]
        if not able:
            raise ServiceError(404, f"no model of this service can {verb}", "unknown_model")
        return next((name for name in own if name in able), able[0])

    def refused(self, status: int, code: str, seconds: float) -> None:
        """Log and count a request that was refused before it reached a route."""
        self.metrics.count("unknown", status, seconds)
        self.log.request(status, id=uuid.uuid4().hex[:16], route="unknown", seconds=round(seconds, 4), code=code)

    def check_open(self) -> None:
        """Raises ServiceError: 503, the service is stopping."""
        if self.stopping:
            raise stopping()


def note(request: Request, **values: object) -> None:
    """Add values to the line of log of a request; never a user's text."""
    request.scope["atento"]["notes"].update(values)
