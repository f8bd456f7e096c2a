"""Estimators in scikit-learn's shape: its checks that apply to texts, pipelines, grid search, clones, pickles."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as checks

from atento.base.errors import UsageError
from atento.sklearn import Classifier, Embedder, Regressor, Tagger
from failing import fails

pytestmark = pytest.mark.usefixtures("in_a_folder")
TINY: dict[str, Any] = {"tokenizer.kind": "word", "network.d_model": 8, "network.d_ff": 8, "network.n_heads": 1}
TINY |= {"network.n_layers": 1, "network.dropout": 0.0, "training.warmup": 1, "training.log_every": 100}
X = ["good film", "bad film", "a good day", "a bad day", "good good", "bad bad"] * 3
Y = [1, 0, 1, 0, 1, 0] * 3
APPLY = [  # the checks of `check_estimator` that do not hand numbers to `fit`
    *("check_estimator_cloneable", "check_estimator_repr", "check_estimator_tags_renamed", "check_mixin_order"),
    *("check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_get_params_invariance"),
    *("check_set_params", "check_do_not_raise_errors_in_init_or_set_params"),
]


@pytest.mark.parametrize(
    "estimator", [Classifier(), Regressor(), Tagger(), Embedder()], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("name", APPLY)
def test_the_checks_of_scikit_learn_that_apply_to_texts(estimator: Any, name: str) -> None:
    getattr(checks, name)(type(estimator).__name__, estimator)


def test_a_classifier_learns_predicts_and_is_cloned(capsys: pytest.CaptureFixture[str]) -> None:
    classifier = Classifier(steps=40, learning_rate=0.02, settings=TINY, device="cpu")
    with pytest.raises(NotFittedError):
        classifier.predict(X)
    assert classifier.fit(X, Y) is classifier and capsys.readouterr().err == ""
    assert classifier.predict(X).tolist() == Y and classifier.score(X, Y) == 1.0
    assert classifier.classes_.tolist() == [0, 1] and classifier.predict(np.array(X)).dtype == classifier.classes_.dtype
    probabilities = classifier.predict_proba(X[:2])
    assert np.array_equal(np.log(probabilities), classifier.predict_log_proba(X[:2]))
    assert probabilities.shape == (2, 2) and np.allclose(probabilities.sum(axis=1), 1)
    fresh = clone(classifier)
    assert fresh.get_params() == classifier.get_params() and not hasattr(fresh, "model_")
    assert np.array_equal(clone(classifier).fit(X, Y).predict_proba(X), classifier.predict_proba(X))
    folder = Path(str(classifier.model.path))
    assert folder.exists()
    fails(UsageError, "give it one as `folder` before `fit`", pickle.dumps, classifier)
    del classifier
    assert not folder.exists()  # a temporary one goes with its estimator


def test_classes_are_predicted_as_they_were_given_and_an_initial_model_may_have_more() -> None:
    """White space around a class and letters of two code points, which its name in the model has not; a column of y."""
    given = ["sim ", "na\u0303o"] * 9
    classifier = Classifier(steps=1, settings=TINY, device="cpu").fit(X, given)
    assert set(classifier.predict(X)) <= set(given) and np.allclose(classifier.predict_proba(X).sum(axis=1), 1)
    with pytest.warns(DataConversionWarning):
        classifier.fit(X, np.array(given)[:, None])
    assert set(classifier.predict(X)) <= set(given)
    texts = ["she walked home", "she walks home"] * 4
    classifier = Classifier("micro-world-tense", steps=1, device="cpu").fit(texts, ["past", "present"] * 4)
    assert len(classifier.model.network.config.heads[0].labels) == 3
    probabilities = classifier.predict_proba(texts)
    assert probabilities.shape == (8, 2) and np.allclose(probabilities.sum(axis=1), 1)
    assert set(classifier.predict(texts)) <= {"past", "present"}


def test_a_pickle_is_the_folder(tmp_path: Path) -> None:
    classifier = Classifier(steps=2, settings=TINY, folder=tmp_path / "runs", device="cpu").fit(X, [str(y) for y in Y])
    again = pickle.loads(pickle.dumps(classifier))
    assert again.predict(X).tolist() == classifier.predict(X).tolist()
    assert {type(label) for label in again.predict(X).tolist()} == {str}


@pytest.mark.parametrize("name", ["steps", "settings__training__steps"])
def test_in_a_pipeline_and_a_grid_search(name: str) -> None:
    """By an argument of the estimator, and by one of its settings, which keeps the others."""
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = Pipeline([("lower", lower), ("classifier", Classifier(settings=TINY, learning_rate=0.02, device="cpu"))])
    search = GridSearchCV(pipeline, {f"classifier__{name}": [1, 40]}, cv=2, error_score="raise")
    search.fit([text.upper() for text in X], Y)
    assert search.best_params_ == {f"classifier__{name}": 40} and search.best_score_ == 1.0
    settings = search.best_estimator_.named_steps["classifier"].settings
    assert settings == TINY | ({} if name == "steps" else {"training.steps": 40})
    assert search.predict(["GOOD", "bad"]).tolist() == [1, 0]


def test_one_setting_is_searched_and_a_random_state_draws_the_seed() -> None:
    estimator = Classifier(steps=2, settings={"network.d_model": 16, "training.batch_tokens": 64})
    changed = clone(estimator).set_params(settings__network__d_model=8, steps=3)
    assert changed.settings == {"network.d_model": 8, "training.batch_tokens": 64} and changed.steps == 3
    assert estimator.settings == {"network.d_model": 16, "training.batch_tokens": 64}
    pipe = Pipeline([("as it is", FunctionTransformer()), ("labels", estimator)])
    pipe.set_params(**{"labels__settings__network.d_model": 32})
    assert pipe.named_steps["labels"].settings["network.d_model"] == 32
    state = Classifier(random_state=np.random.RandomState(3))
    drawn = np.random.RandomState(3).randint(2**31 - 1)
    assert clone(state)._seed() == drawn and Classifier(random_state=None)._seed() is None


@pytest.mark.slow  # each process imports PyTorch
def test_folds_in_processes_of_their_own() -> None:
    classifier = Classifier(steps=1, settings=TINY, device="cpu")
    assert len(cross_val_score(classifier, X, Y, cv=2, n_jobs=2, error_score="raise")) == 2


def test_numbers_pairs_and_tags() -> None:
    pairs = np.array([[text, text] for text in X], dtype=object)
    regressor = Regressor(steps=60, learning_rate=0.02, settings=TINY, device="cpu").fit(pairs, Y)
    assert regressor.predict(pairs).shape == (len(X),) and regressor.score(pairs, Y) > 0.5
    sentences = [text.split() for text in X]
    tags = [["J" if word in ("good", "bad") else "N" for word in sentence] for sentence in sentences]
    tagger = Tagger(steps=40, learning_rate=0.02, settings=TINY, device="cpu").fit(sentences, tags)
    assert tagger.predict(sentences) == tags and tagger.score(sentences, tags) == 1.0
    iob1 = [["I-J" if tag == "J" else "O" for tag in sentence] for sentence in tags]  # which training reads as IOB2
    tagger.fit(sentences, iob1)
    assert tagger.classes_.tolist() == ["B-J", "I-J", "O"] and tagger.score(sentences, iob1) == 1.0


def test_vectors_feed_other_estimators() -> None:
    pipeline = make_pipeline(Embedder("micro-world-mlm", device="cpu"), LogisticRegression())
    pipeline.fit(["the cat sleeps", "the dog sees the cat"] * 2, [0, 1] * 2)
    assert pipeline.predict(["the cat sleeps"]).tolist() == [0]
    embedder = pipeline[0]
    named = Embedder("micro-world-mlm", device="cpu").fit()  # before it has transformed a text
    assert len(named.get_feature_names_out()) == embedder.transform(["the cat"]).shape[1]
    fails(UsageError, "a text must be a str: got tuple", embedder.transform, [["the cat", "sleeps"]])
    assert clone(embedder).get_params()["model_name"] == "micro-world-mlm"
    assert pickle.loads(pickle.dumps(embedder)).transform(["the cat"]).shape[0] == 1


@pytest.mark.parametrize(
    ("texts", "targets", "error", "said"),
    [
        ("text", [1], TypeError, "X must be texts, or pairs of texts: got str"),
        ([1, 2], [0, 1], TypeError, "X must be texts: row 0 has int"),
        ([["a", "b"], ["a", 1]], ["x", "y"], TypeError, "X must be texts: row 1 has"),
        ([["a", "b", "c"]], [0], ValueError, r"two of pairs: got the shape \(1, 3\)"),
        (["a", "b"], [0], ValueError, "got 2 inputs and 1 targets"),
        ([], [], ValueError, "got 0 inputs and 0 targets"),
        (["a", "b", "c"], ["x", "y", float("nan")], ValueError, "each text must have a class: .* text 2 is missing"),
        (["a", "b"], ["x", None], ValueError, "that of text 1 is missing"),
        (["a", "b", "c"], ["x", " ", "y"], ValueError, "that of text 1 is missing"),
        (["a", "b"], [[1, 0], [0, 1]], ValueError, "1d array"),
        (["a", "b"], [["x"], ["x", "y"]], ValueError, r"target 1 is a list, \['x', 'y'\]; atento.train learns several"),
        (["a", "b"], [{"x"}, {"y"}], ValueError, "target 0 is a set, {'x'}; atento.train learns several labels"),
        (["a", "b", "c"], ["sim", "n\u00e3o", "na\u0303o"], ValueError, "two classes look the same: 'n\u00e3o'"),
        (["a", "b"], [1.5, 2.5], ValueError, "Unknown label type: continuous"),
        (["a", "b"], [1, 1], ValueError, "a classifier needs two classes or more: got 1 class"),
    ],
)
def test_wrong_inputs_are_refused(texts: Any, targets: Any, error: type[Exception], said: str) -> None:
    fails(error, said, Classifier(settings=TINY).fit, texts, targets)
    for twice in ("training.steps", "training.seed"):
        with pytest.raises(UsageError, match=f"an argument of the estimator both give {twice}"):
            Classifier(steps=3, settings={twice: 7}).fit(["a", "b"], ["x", "y"])
    fails(ValueError, "sentence 0 has 2 words and 1 tags", Tagger(settings=TINY).fit, [["a", "b"]], [["N"]])
