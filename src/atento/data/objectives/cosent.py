"""The order of scored pairs: of two pairs of an update, the one with the higher score has the higher cosine (CoSENT).

ids "[CLS] a cat sleeps [SEP]"   pair_ids "[CLS] a kitten is napping [SEP]"   score 4.5, of any range
"""

from atento.base.errors import DataError, RecipeError
from atento.config.tables.objective import ObjectiveConfig
from atento.data.objectives.multiple_negatives import PairBatches
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.text_sides import Sides, contrast, scored_pairs


def cosent(preparation: Preparation, config: ObjectiveConfig) -> PairBatches:
    """Return batches of scored pairs, whole updates; long texts are cut, with a counted warning.

    Raises:
        DataError: records without a score or with a negative; scores that are all equal. RecipeError: a batch of one.
    """
    split, training = preparation.split, preparation.recipe.training
    scores = split.columns.get("score", [])
    store = scored_pairs(preparation, config, list(scores))
    if training.batch_tokens < 2:
        raise RecipeError(f"`training.batch_tokens` must be at least 2, pairs to compare: got {training.batch_tokens}")
    if not preparation.held_out and len(set(scores)) < 2:
        raise DataError(f"objective {config.kind} learns which pair has the higher score, and all are {scores[0]:g}")
    objective = Sides(config.kind, preparation.network, contrast(preparation, config))
    return PairBatches(
        store, objective, budget=training.batch_tokens, fewest=2, seed=training.seed, weight=config.weight
    )
