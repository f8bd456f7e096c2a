"""Estimators of scikit-learn over `train` and `load`: a classifier, a regressor, a tagger and an embedder of texts."""

import io
import tempfile
import weakref
from collections.abc import Mapping, Sequence, Sized
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from shutil import rmtree
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import MissingPartError, UsageError, install_hint
from atento.config.tables.tasks import task_with
from atento.data.records.marked_entities import normalized
from atento.data.records.memory import is_frame
from atento.metrics.label_counts import class_name
from atento.model import Model, load
from atento.runs.train import train
from atento.tasks.regression import numbers_of

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError:
    raise MissingPartError(f"`atento.sklearn` needs scikit-learn: {install_hint('eval')}") from None

Inputs = Any  # texts (N) or pairs of texts (N,2): a list, an array, a frame
Targets = TypeVar("Targets", bound=Sized)
Column = NDArray[Any]  # of one type, which is that of the targets

__all__ = ["Classifier", "Embedder", "Regressor", "Tagger"]


class _Texts(BaseEstimator):
    """What all estimators share: their inputs are texts, and a fitted one has a `Model`."""

    device: str

    @property
    def model(self) -> Model:
        """The model that the estimator has fitted or loaded."""
        check_is_fitted(self, "model_")
        model: Model = self.model_
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.no_validation = True  # texts have no number of features
        return tags


class _Trained(_Texts):
    """An estimator that trains a network by a recipe; every `fit` makes a run of its own.

    Args:
        init: a pretrained model to fine-tune; None: a network from scratch.
        steps: updates; None: the recipe's.
        learning_rate: None: the recipe's.
        settings: further keys of a recipe, such as {"network.d_model": 64, "training.batch_tokens": 1000}; one of them
            is `settings__network__d_model` in a search.
        folder: where the folders of runs are made; None: a temporary folder, which goes with the estimator, so that
            only an estimator with a `folder` can be pickled once it is fitted.
        random_state: a seed, or a `RandomState`, which draws one for each `fit`; None: the recipe's.
        device: "auto", "cpu", "cuda" ...
        verbose: whether `fit` shows its progress on standard error.

    Attributes:
        model_: the model with the best checkpoint, after `fit`.
    """

    _task = ""

    def __init__(
        self,
        init: str | None = None,
        *,
        steps: int | None = None,
        learning_rate: float | None = None,
        settings: Mapping[str, object] | None = None,
        folder: str | Path | None = None,
        random_state: int | np.random.RandomState | None = 1,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.init, self.steps, self.learning_rate, self.settings = init, steps, learning_rate, settings
        self.folder, self.random_state, self.device, self.verbose = folder, random_state, device, verbose

    def _fit(self, records: list[dict[str, object]]) -> None:
        """Train on records, and load the run."""
        recipe: dict[str, object] = {"task": self._task, "data": {}, "init": self.init and str(self.init)}
        named = {"training.steps": self.steps, "training.learning_rate": self.learning_rate}
        named["training.seed"] = self._seed()
        given, further = {key: value for key, value in named.items() if value is not None}, dict(self.settings or {})
        if twice := given.keys() & further.keys():
            raise UsageError(f"`settings` and an argument of the estimator both give {min(twice)}")
        if self.folder is not None:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix=f"{type(self).__name__.lower()}-", dir=self.folder)
        with nullcontext() if self.verbose else redirect_stderr(io.StringIO()):
            run = train(recipe, given | further, data=records, out=Path(made) / "run", device=self.device)
        self.model_ = load(run.folder, self.device)
        self._is_kept = self.folder is not None
        if not self._is_kept:  # the run lives as long as the model
            weakref.finalize(self.model_, rmtree, made, ignore_errors=True)

    def set_params(self, **params: Any) -> Self:
        """As scikit-learn's; `settings__KEY` sets one key of `settings`, where `__` may stand for a dot."""
        nested = {name.removeprefix("settings__"): value for name, value in params.items() if "settings__" in name}
        plain = {name: value for name, value in params.items() if "settings__" not in name}
        if nested:
            keys = {name.replace("__", "."): value for name, value in nested.items()}
            plain["settings"] = {**(plain.get("settings", self.settings) or {}), **keys}
        result: Self = super().set_params(**plain)
        return result

    def _seed(self) -> int | None:
        """The seed: `random_state`, or a number that a generator of NumPy draws."""
        state = self.random_state
        return int(state.randint(2**31 - 1)) if isinstance(state, np.random.RandomState) else state

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "model_" in state and not state["_is_kept"]:
            raise UsageError("a fitted estimator is pickled by its folder: give it one as `folder` before `fit`")
        return state


class Classifier(ClassifierMixin, _Trained):
    """Classes of texts, or of pairs of texts; the arguments are those of `_Trained`.

    `classes_` has the classes, sorted, as `fit` got them.
    """

    _task = task_with("classify")

    def fit(self, X: Inputs, y: Sequence[object]) -> Self:
        """Train on texts (N), or pairs (N,2), and their classes (N). Raises ValueError: one is missing."""
        rows, labels = _rows(X), _same(X, column_or_1d(_single(y), warn=True))
        for number, label in enumerate(np.asarray(y, dtype=object).ravel()):  # in an array of texts it is "nan"
            if not label.strip() if isinstance(label, str) else str(label) in ("None", "nan", "NaT", "<NA>"):
                raise ValueError(f"each text must have a class: that of text {number} is missing")
        check_classification_targets(labels)  # numbers that are no classes, such as 0.5
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs two classes or more: got {len(self.classes_)} class")
        names = [class_name(str(label)) for label in self.classes_.tolist()]
        if len(set(names)) < len(names):
            raise ValueError(f"two classes look the same: {max(names, key=names.count)!r}")
        self._fit([row | {"label": str(label)} for row, label in zip(rows, labels.tolist())])
        return self

    def predict_proba(self, X: Inputs) -> NDArray[np.float64]:
        """The probability of each class (N,C), in the order of `classes_`."""
        model, texts = self.model, _inputs(X)
        columns = {class_name(str(label)): column for column, label in enumerate(self.classes_.tolist())}
        table = np.zeros((len(texts), len(columns)))
        for row, labels in enumerate(model.classifications(texts) if texts else ()):
            # an initial model that has these classes may have others, which no text of `fit` has
            known = [label for label in labels if label.name in columns]
            total = sum(label.probability for label in known) if len(known) < len(labels) else 1.0
            for label in known:
                table[row, columns[label.name]] = label.probability / total
        return table

    def predict_log_proba(self, X: Inputs) -> NDArray[np.float64]:
        """The logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):  # log 0 = -inf
            return np.log(self.predict_proba(X))

    def predict(self, X: Inputs) -> Column:
        """The most probable class of each text."""
        probabilities = self.predict_proba(X)
        best: Column = self.classes_[probabilities.argmax(axis=1)]
        return best


class Regressor(RegressorMixin, _Trained):
    """Numbers of texts, or of pairs of texts; the arguments are those of `_Trained`."""

    _task = task_with("similarity")

    def fit(self, X: Inputs, y: Sequence[float]) -> Self:
        """Train on texts (N), or pairs (N,2), and their numbers (N)."""
        rows, numbers = _rows(X), _same(X, column_or_1d(np.asarray(_single(y), dtype=np.float64), warn=True))
        self._fit([row | {"score": number} for row, number in zip(rows, numbers.tolist())])
        return self

    def predict(self, X: Inputs) -> NDArray[np.float64]:
        """The number of each text."""
        model, texts = self.model, _inputs(X)
        return np.asarray(numbers_of(model, texts) if texts else [], dtype=np.float64)


class Tagger(_Trained):
    """Tags of words: X is a list of lists of words, y one of tags; the arguments are those of `_Trained`."""

    _task = task_with("tag")

    def fit(self, X: Sequence[Sequence[str]], y: Sequence[Sequence[str]]) -> Self:
        """Train on sentences and their tags. Raises ValueError: a sentence has fewer tags than words, or more."""
        rows = list(zip(_sentences(X), _sentences(_same(X, y))))
        for number, (words, tags) in enumerate(rows):
            if len(words) != len(tags):
                raise ValueError(f"sentence {number} has {len(words)} words and {len(tags)} tags")
        self._fit([{"tokens": words, "tags": tags} for words, tags in rows])
        read, _ = normalized([tuple(tags) for _, tags in rows], str)
        self.classes_ = np.unique([tag for tags in read for tag in tags])
        return self

    def predict(self, X: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tags of each sentence."""
        model, sentences = self.model, _sentences(X)
        tagged = model.tag_words(words=sentences) if sentences else []
        return [[entity.label for entity in entities] for entities in tagged]

    def score(self, X: Sequence[Sequence[str]], y: Sequence[Sequence[str]]) -> float:
        """The share of words with the right tag; the tags are read as in training, IOB1 as IOB2."""
        right, _ = normalized([tuple(tags) for tags in _sentences(_same(X, y))], str)
        pairs = [pair for found, tags in zip(self.predict(X), right) for pair in zip(found, tags, strict=True)]
        return float(np.mean([found == tag for found, tag in pairs]))


class Embedder(TransformerMixin, _Texts):
    """Vectors of texts by a pretrained model; `fit` loads it.

    Args:
        model_name: a model, as `atento.load` takes it.
        pooling, layer: as `Model.embed` takes them; None: the model's own.
        device: "auto", "cpu", "cuda" ...
    """

    def __init__(
        self, model_name: str = "", *, pooling: str | None = None, layer: int | None = None, device: str = "auto"
    ) -> None:
        self.model_name, self.pooling, self.layer, self.device = model_name, pooling, layer, device

    def fit(self, X: Inputs = None, y: object = None) -> Self:
        """Load the model. Raises UsageError: there is none of that name."""
        self.model_ = load(self.model_name, self.device)
        return self

    def transform(self, X: Inputs) -> NDArray[np.float32]:
        """The vectors of texts (N,D)."""
        return self._vectors(_inputs(X))

    def get_feature_names_out(self, input_features: object = None) -> Column:
        """The names of the columns of `transform`."""
        return np.asarray([f"embedder{column}" for column in range(self._vectors([]).shape[1])], dtype=object)

    def _vectors(self, texts: Inputs) -> NDArray[np.float32]:
        options = {name: value for name in ("pooling", "layer") if (value := getattr(self, name)) is not None}
        return np.asarray(self.model.embed(texts, **options))


def _rows(X: Inputs) -> list[dict[str, object]]:
    """The texts or pairs of X, as records.

    Raises:
        TypeError: something else than texts. ValueError: other columns than one text, or two.
    """
    if isinstance(X, str) or not (is_frame(X) or isinstance(X, Sequence | np.ndarray) or hasattr(X, "__array__")):
        raise TypeError(f"X must be texts, or pairs of texts: got {type(X).__name__}")
    table: Column = np.asarray(X, dtype=object)
    table = table[:, None] if table.ndim == 1 else table  # (N,1)
    if table.ndim != 2 or table.shape[1] not in (1, 2):
        raise ValueError(f"X must have one column of texts, or two of pairs: got the shape {table.shape}")
    rows = table.tolist()
    for number, row in enumerate(rows):
        if others := [value for value in row if not isinstance(value, str)]:
            raise TypeError(f"X must be texts: row {number} has {type(others[0]).__name__}")
    return [dict(zip(("text", "pair"), row)) for row in rows]


def _sentences(X: Inputs) -> list[list[str]]:
    """Sentences as lists of words, or of tags. Raises TypeError: a text in place of a list."""
    if isinstance(X, str) or any(isinstance(sentence, str) for sentence in X):
        raise TypeError("each sentence must be a list of words, or of tags, and not a text: text.split() is one")
    return [list(sentence) for sentence in X]


def _inputs(X: Inputs) -> Inputs:
    """The texts or pairs of X, as the methods of `Model` take them."""
    return [tuple(row.values()) if len(row) == 2 else row["text"] for row in _rows(X)]


def _single(y: Sequence[object]) -> Sequence[object]:
    """The targets. Raises ValueError: a text has several."""
    for number, value in enumerate(y if np.iterable(y) else ()):
        if isinstance(value, set | frozenset) or (isinstance(value, list | tuple | np.ndarray) and len(value) != 1):
            several = "atento.train learns several labels a text by task: multi-label-classification"
            raise ValueError(
                f"y must be a 1d array: target {number} is a {type(value).__name__}, {value!r:.40}; {several}"
            )
    return y


def _same(X: Inputs, y: Targets) -> Targets:
    """The targets. Raises ValueError: there are not as many as inputs, or none."""
    count = len(X)
    if len(y) != count or not count:
        raise ValueError(f"as many targets as inputs, one at least: got {count} inputs and {len(y)} targets")
    return y
