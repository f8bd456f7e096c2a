"""A linear classifier of scikit-learn on the vectors of a frozen network, stored as the head of that network."""

import time
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import DataError, MissingPartError, UsageError, install_hint
from atento.config.recipe import Recipe
from atento.config.sections.initial import ClassifierConfig
from atento.config.tables.head_kinds import HEAD_KINDS
from atento.data.batches.batch import Batches
from atento.networks.heads import LinearHead
from atento.networks.interface import Network, token_mask_of
from atento.training.loop import validate
from atento.training.losses import windows_of
from atento.training.run_state import Run, save

_TOKENS = 2048  # of texts that are read at a time
_NEVER = -1e4  # the score of a label without examples


def classifier_of(recipe: Recipe) -> ClassifierConfig | None:
    """The linear classifier that the recipe fits instead of training by steps; None: it has none."""
    return None if recipe.init is None else recipe.init.classifier


def fit_classifier(run: Run, config: ClassifierConfig) -> None:
    """Fit the head of the run's network to its training data, in one step, then validate and save.

    Logistic regression and a linear support vector machine are a matrix and a vector, so the network with that head
    predicts what scikit-learn's classifier predicts, and is used, saved and evaluated as any other model.
    Raises MissingPartError: scikit-learn is not installed. DataError: the training data has one label.
    """
    network, started = run.updater.network, time.monotonic()
    run.seconds_counted_at = started
    # the head that gives one label a text, or a word
    name = next(head.name for head in network.config.heads if HEAD_KINDS[head.kind] in ("class", "tag"))
    head = network.heads[name]
    if not isinstance(head, LinearHead) or head.dense is not None:
        raise UsageError(f"`init.classifier` needs a linear head: {name!r} has a layer before it")
    vectors, labels, weights = training_vectors(network, head, run.batches)
    if len(np.unique(labels)) < 2:
        raise DataError("the training data has only one label, so there is nothing to learn")
    read = time.monotonic()
    store_classifier(fitted_classifier(vectors, labels, config, run.config.seed, run.reporter.line, weights), head)
    with torch.inference_mode():  # the mean negative log-likelihood of the labels in nats
        device = head.out.weight.device
        logits = head.out(torch.from_numpy(vectors).to(device)).double()
        nll = float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels).to(device)))
    run.reporter.line(
        f"{config.kind} on {len(vectors):,} vectors of width {vectors.shape[1]}: read in {read - started:.1f} s, "
        f"fitted in {time.monotonic() - read:.1f} s"
    )
    run.progress.step = 1
    # the event of one update, for readers of the journal
    event = {"event": "train", "step": 1, "loss": nll, "nll": nll, "learning_rate": 0.0}
    run.journal.append(event | {"tokens_per_second": len(vectors) / max(1e-9, time.monotonic() - started)})
    validate(run)
    run.progress.finished = True
    save(run)


@torch.inference_mode()
def training_vectors(
    network: Network, head: LinearHead, batches: Batches
) -> tuple[NDArray[np.float32], NDArray[np.int64], dict[int, float] | None]:
    """Return what the head reads of each text or word (N,D), without dropout, the numbers of the labels (N,), and the
    factor of each label (`class_weights`), if there are any."""
    device = next(network.parameters()).device
    vectors, labels, weights = [], [], None
    was_training = network.training
    network.eval()
    for batch in batches.in_order(_TOKENS):
        inputs = batch.to(device).inputs
        token_mask = token_mask_of(inputs)
        output = network(**inputs, project=False)
        of_batch = batch.labels[head.config.name]
        labelled = of_batch >= 0  # (B,) or (B,L): -1 has no label
        # windows of one text become one vector
        of_texts = head.of_texts(head.pooled(output, token_mask), windows_of(batch, head.config.name))
        vectors.append(of_texts[labelled.to(device)].float().cpu().numpy())
        labels.append(of_batch[labelled].numpy())
        factors = batch.extras.get(f"{head.config.name} weights")
        weights = None if factors is None else dict(enumerate(factors.tolist()))
    network.train(was_training)
    return np.concatenate(vectors), np.concatenate(labels), weights


def fitted_classifier(
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64],
    config: ClassifierConfig,
    seed: int,
    report: Any,
    weights: dict[int, float] | None = None,
) -> object:
    """Return scikit-learn's classifier, fitted to vectors (N,D) and labels (N,), whose losses have these factors.

    Logistic regression is fitted in double precision to a gradient of 1e-6: at scikit-learn's own 1e-4 the
    probabilities depend on the rounding of the vectors and the order of the texts in the third digit.
    Raises MissingPartError: scikit-learn is not installed.
    """
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC
    except ImportError as error:
        raise MissingPartError(f"`init.classifier` needs scikit-learn: {install_hint('eval')}") from error
    options: dict[str, object] = {"C": config.inverse_regularization, "random_state": seed, "max_iter": 2000}
    options["class_weight"] = weights
    logistic = config.kind == "logistic"
    classifier = LogisticRegression(tol=1e-6, **options) if logistic else LinearSVC(**options, dual="auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        classifier.fit(vectors.astype(np.float64), labels)
    if any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        report(
            f"warning: {config.kind} did not converge in {options['max_iter']} iterations; lower "
            "`init.classifier.inverse_regularization`"
        )
    return classifier


@torch.no_grad()
def store_classifier(classifier: Any, head: LinearHead) -> None:
    """Write a linear classifier of scikit-learn into a head whose labels have the numbers of its classes.

    With two classes scikit-learn has one row of weights, the score of the second; the score of the first is 0 then. A
    label of the head without examples gets a score that is never the highest.
    """
    coefficients, intercept = torch.from_numpy(classifier.coef_), torch.from_numpy(classifier.intercept_)
    if len(coefficients) == 1:  # two classes: scikit-learn keeps the scores of the second
        coefficients = torch.cat([torch.zeros_like(coefficients), coefficients])
        intercept = torch.cat([torch.zeros_like(intercept), intercept])
    classes = torch.from_numpy(classifier.classes_)
    # a label without an example is never the answer
    weight, bias = torch.zeros_like(head.out.weight), torch.full_like(head.out.bias, _NEVER)
    weight[classes], bias[classes] = coefficients.to(weight), intercept.to(bias)
    head.out.weight.copy_(weight)
    head.out.bias.copy_(bias)
