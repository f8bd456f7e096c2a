"""What the process of Studio keeps: models loaded when first asked for, and results of forward passes."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from atento.model import Model, load
from atento_serve.engine.verbs import fitted
from atento_serve.http.errors import ServiceError
from atento_serve.http.fields import Fields
from atento_serve.settings import Limits, ModelSettings

MOST_MODELS, MOST_RESULTS = 4, 20
T = TypeVar("T")
Values = dict[str, Any]
"""What an answer says, as plain data."""
Function = tuple[type[Fields], Callable[["Shelf", Any], Any]]
"""The fields that a request must have, and what answers it: plain data, or a pair of that and bytes."""


class Shelf:
    """Models and results; of each kind those that were used last stay.

    Args:
        settings: the models by name.
        limits: of the service.
        cache_bytes: what all results may take together.
    """

    def __init__(self, settings: Mapping[str, ModelSettings], limits: Limits, cache_bytes: int) -> None:
        self.settings, self.limits, self._cache_bytes = settings, limits, cache_bytes
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._results: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def model(self, name: str) -> Model:
        """The model of that name.

        Raises:
            ServiceError: 404, there is none. ModelError, UsageError: it cannot be loaded.
        """
        if name not in self.settings:
            known = ", ".join(self.settings)
            raise ServiceError(404, f"there is no model {name[:80]!r}: Studio has {known}", "unknown_model")
        if name not in self._models:
            one = self.settings[name]
            self._models[name] = load(one.path, one.device, one.precision)
            if len(self._models) > MOST_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(name)
        return self._models[name]

    def kept(self, make: Callable[[], tuple[T, int]], *key: object) -> T:
        """A result that `make` computes, with its size in bytes, unless it is still there.

        Args:
            key: all that it is a function of: a link with the same is computed again where it is gone.
        """
        number = hashlib.sha256(json.dumps(key).encode("ascii")).hexdigest()
        if number not in self._results:
            self._results[number] = make()
        self._results.move_to_end(number)
        # the one just used stays, however large it is
        while len(self._results) > 1 and (
            len(self._results) > MOST_RESULTS or sum(size for _, size in self._results.values()) > self._cache_bytes
        ):
            self._results.popitem(last=False)
        result: T = self._results[number][0]
        return result

    def check_text(self, model: Model, *texts: str) -> None:
        """Raises TooLong: one of the texts has more tokens than the service or the model reads."""
        for text in texts:
            fitted(model, "tokenize", [text], self.limits.input_tokens, "error")
