"""What the process of Studio keeps: models loaded when first asked for, and results of forward passes."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from atento.model import Model, load
from atento.models.model_folder import find_tokenizer
from atento.text import Tokenizer
from atento_serve.engine.verbs import fitted, seed_decoding
from atento_serve.http.errors import ServiceError
from atento_serve.http.fields import Fields
from atento_serve.settings import Limits, ModelSettings

MOST_MODELS, MOST_TOKENIZERS, MOST_RESULTS = 4, 8, 200
T = TypeVar("T")
Values = dict[str, object]
"""What an answer says, as plain data."""
Function = tuple[type[Fields], Callable[["Shelf", Any], object]]
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
        self._tokenizers: OrderedDict[str, Tokenizer] = OrderedDict()
        self._trained: OrderedDict[str, Tokenizer] = OrderedDict()
        self._results: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def model(self, name: str) -> Model:
        """The model of that name.

        Raises:
            ServiceError: 404, there is none. ModelError, UsageError: it cannot be loaded.
        """
        one = self._named(name)

        def loaded() -> Model:
            model = load(one.path, one.device, one.precision, engine=one.engine)
            seed_decoding(model, one.seed)
            return model

        return _last_used(self._models, name, loaded, MOST_MODELS)

    def tokenizer(self, name: str) -> Tokenizer:
        """The tokenizer of that model, read without the model; `name` may also be that of a tokenizer folder.

        Raises:
            ServiceError: 404, there is none. TokenizerError, UsageError: it cannot be read; a hub model is not fetched.
        """
        path = self._named(name).path
        return _last_used(
            self._tokenizers, name, lambda: Tokenizer.load(find_tokenizer(path, fetch=False)), MOST_TOKENIZERS
        )

    def trained(self, key: str, make: Callable[[], Tokenizer] | None = None) -> Tokenizer:
        """A tokenizer that was trained here; without `make`, one that is there.

        Raises:
            ServiceError: 404, it is not there, or no longer. Whatever `make` raises.
        """
        if make is None and key not in self._trained:
            gone = f"this tokenizer is no longer kept: train it again (the {MOST_TOKENIZERS} that were used last stay)"
            raise ServiceError(404, gone, "not_kept")
        return _last_used(self._trained, key, make or (lambda: self._trained[key]), MOST_TOKENIZERS)

    def _named(self, name: str) -> ModelSettings:
        if name not in self.settings:
            known = ", ".join(self.settings)
            raise ServiceError(404, f"there is no model {name[:80]!r}: Studio has {known}", "unknown_model")
        return self.settings[name]

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


def _last_used(store: OrderedDict[str, T], key: str, make: Callable[[], T], most: int) -> T:
    """What a store has of a key, made if it is not there; the `most` that were used last stay."""
    if key not in store:
        store[key] = make()
        if len(store) > most:
            store.popitem(last=False)
    store.move_to_end(key)
    return store[key]
