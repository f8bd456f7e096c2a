"""A text nearer to its pair than to its negative, by a margin.

ids "[CLS] how old are you [SEP]"   pair_ids "[CLS] what is your age [SEP]"   negative_ids "[CLS] how are you [SEP]"
"""

from atento.base.errors import DataError
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.text_sides import Sides, contrast, sides_as_store


def triplet(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of triplets; long texts are cut, with a counted warning.
    Raises DataError: records without a negative, or with a score.
    """
    columns = preparation.split.columns
    if "negative" not in columns or "score" in columns:
        raise DataError(
            f"objective {config.kind} needs records of `text`, `pair` and `negative`, those of validation too: got "
            f"{', '.join(columns)}"
        )
    store = sides_as_store(preparation)
    objective = Sides(config.kind, preparation.network, contrast(preparation, config))
    return preparation.planned(store, objective, config.weight, equal_examples=True)
