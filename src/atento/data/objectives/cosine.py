"""The score of a pair of texts as the cosine of their vectors.

ids "[CLS] a cat sleeps [SEP]"   pair_ids "[CLS] a kitten is napping [SEP]"   score 0.8
"""

from atento.base.errors import DataError
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.text_sides import Sides, contrast, scored_pairs
from atento.data.records.splits import Split


def cosine(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of scored pairs; long texts are cut, with a counted warning.
    Raises DataError: records without a score or with a negative, or a score out of range; names file and line.
    """
    split = preparation.split
    scores = cosines_of(split, config.score_range) if "score" in split.columns else []
    store = scored_pairs(preparation, config, scores)
    objective = Sides(config.kind, preparation.network, contrast(preparation, config))
    # as sentence-transformers does: else long pairs would count more than short ones
    return preparation.planned(store, objective, config.weight, equal_examples=True)


def cosines_of(split: Split, score_range: tuple[float, float] | None) -> list[float]:
    """Return the cosine for each score: the score itself, or its place in the range, 0 to 1.
    Raises DataError: a score out of range; names file and line.
    """
    low, high = score_range or (-1.0, 1.0)  # a cosine, if no range is given
    for row, score in enumerate(split["score"]):
        if not low <= score <= high:
            why = "its `score_range`" if score_range else "as a cosine (`score_range` of the objective maps others)"
            raise DataError(f"{split.where(row)}: the score must lie in {low:g} to {high:g}, {why}: got {score:g}")
    if score_range is None:
        return list(split["score"])
    return [(score - low) / (high - low) for score in split["score"]]  # 0 at the lowest, 1 at the highest
