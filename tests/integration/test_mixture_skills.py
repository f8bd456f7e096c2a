"""One network trained on a mixture of objectives, beside a specialist of each (M2: the mask is an argument)."""

from pathlib import Path
from typing import Any

import pytest

import atento
from atento.config.reading.loading import load_recipe
from atento.runs.prepare import read_data
from atento.tasks.split_evaluation import held_out_batches, mean_losses

SKILLS = ("masked", "causal", "prefix")
STEPS = 160
TRAINING = dict.fromkeys(("steps", "validate_every", "checkpoint_every"), STEPS) | {"warmup": 20, "batch_tokens": 256}
CHANGES: dict[str, Any] = {f"training.{key}": value for key, value in TRAINING.items()}
CHANGES |= {"training.learning_rate": 1e-2, "training.precision": "float32", "network.dropout": 0.0}
CHANGES |= {"network.d_model": 32, "network.d_ff": 64, "network.n_layers": 2, "network.n_heads": 2}
CHANGES |= {"tokenizer.kind": "word", "tokenizer.vocab_size": 600}
CHANGES |= {"data.train.0.count": 3000, "data.valid.0.count": 100, "data.test.0.count": 50}


def trained(objective: str | None, folder: Path) -> atento.Model:
    changes = CHANGES if objective is None else CHANGES | {"objective": objective}
    return atento.load(atento.train("micro-world-mixture", changes, out=folder, threads=1).folder)


def nll(model: atento.Model, objective: str) -> float:
    """Mean loss of a token of the validation data, in nats."""
    recipe = load_recipe("micro-world-mixture", CHANGES | {"objective": objective})
    split = read_data(recipe.recipe, recipe.folder, lambda line: None).valid
    assert split is not None and model.tokenizer is not None
    batches = held_out_batches(recipe.recipe, model.network.config, model.tokenizer, split)
    return mean_losses(model.network, batches.in_order(2048))["vocabulary"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_m2_each_skill_of_a_mixture_is_near_that_of_a_specialist_of_the_same_steps(tmp_path: Path) -> None:
    """The mixture has a third of the updates of each specialist for each skill."""
    mixture = trained(None, tmp_path / "mixture")
    losses = {}
    for skill in SKILLS:
        losses[skill] = nll(mixture, skill), nll(trained(skill, tmp_path / skill), skill)
    print(losses)
    assert all(joint < 1.15 * alone for joint, alone in losses.values()), losses
    assert mixture.fill("O gato <mask>.")[0].probability > 0 and mixture.generate("O gato")
