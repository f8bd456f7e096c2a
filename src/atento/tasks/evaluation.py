"""How good a model is on a split: the loss of its objective and the metrics of its outputs, for validation and test."""

import math
from collections.abc import Iterable, Sequence

import torch

from atento.config.network import NetworkConfig
from atento.config.recipe import Recipe
from atento.config.tasks import TASKS, objectives_of
from atento.data.batches import Batch, Batches
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation
from atento.data.records import Split
from atento.data.special_tokens import template_for
from atento.metrics import Score, metric_named
from atento.networks.network import Network
from atento.tasks.table import VERBS
from atento.text.tokenizer import Tokenizer
from atento.training.losses import Call, Sums, losses

_TOKENS = 2048  # computed at a time


def held_out_batches(recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Split) -> Batches:
    """A split that nothing is learned from, as batches of the recipe's objective.

    Raises:
        DataError: no example is left, or a label that the training data does not have.
    """
    template = template_for(recipe.task, tokenizer)
    given = Preparation(recipe, network, tokenizer, split, template, held_out=True)
    return batches_for(given, objectives_of(recipe.task, recipe.objective))


def evaluate(network: Network, tokenizer: Tokenizer, split: Split, recipe: Recipe) -> dict[str, float]:
    """The scores of a valid event: `loss` and `nll` (nats a target), `perplexity` where it applies, metrics by name.

    The same tokens are hidden, and the same places drawn, every time. Of several heads, `loss` and `nll` are the sums
    of the means, each of which stands behind its name.
    """
    was_training = network.training
    network.eval()
    try:
        means = mean_losses(network, held_out_batches(recipe, network.config, tokenizer, split).in_order(_TOKENS))
        nll = sum(means.values())
        scores = {"loss": nll, "nll": nll}
        if len(means) > 1:
            scores |= {f"nll_{head}": mean for head, mean in means.items()}
        spec = TASKS[recipe.task]
        if spec.perplexity:
            scores["perplexity"] = perplexity_of(next(iter(means.values())))
        if recipe.metrics and spec.verb in VERBS:
            verb = VERBS[spec.verb]
            outputs = verb.predict(network, tokenizer, split, recipe)
            found = score_outputs(outputs, verb.gold(split), recipe.metrics)
            scores |= {name: score.value for name, score in found.items()}
        return scores
    finally:
        network.train(was_training)


def score_outputs(outputs: Sequence[str], gold: Sequence[str], metrics: Sequence[str]) -> dict[str, Score]:
    """Outputs against what is right, by each metric.

    Raises:
        UsageError: an unknown metric.
    """
    return {name: metric_named(name)(outputs, gold) for name in metrics}


@torch.inference_mode()
def mean_losses(network: Network, batches: Iterable[Batch]) -> dict[str, float]:
    """The loss a target of each head over all batches, nats, without dropout or smoothing."""
    device = next(network.parameters()).device
    sums: dict[str, Sums] = {}
    for batch in batches:
        counts = batch.counts()
        for head, (loss, nll) in losses(network, batch.to(device), Call()).items():
            sums.setdefault(head, Sums()).add(Sums(float(loss), float(nll), counts[head]))
    return {head: one.nll / max(1, one.targets) for head, one in sums.items()}


def perplexity_of(mean: float) -> float:
    """exp of mean nats; of more than 700 that of 700, since exp(710) is no float any more."""
    return math.exp(min(mean, 700.0))
