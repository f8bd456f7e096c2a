"""A text that is read twice, with other dropout: find it again among the other texts of the batch (SimCSE).

ids "[CLS] a cat sleeps [SEP]"   pair_ids the same   label 0, the second reading of row 0 (Gao et al. 2021, 3)
"""

from dataclasses import replace

from atento.config.tables.objective import ObjectiveConfig
from atento.data.objectives.multiple_negatives import PairBatches, multiple_negatives
from atento.data.objectives.preparation import Preparation


def simcse(preparation: Preparation, config: ObjectiveConfig) -> PairBatches:
    """Return batches of texts and the same texts; long texts are cut, with a counted warning.
    Raises DataError: the network has no dropout, or there is one text alone. RecipeError: a batch of one text.
    """
    texts = preparation.split["text"]
    split = replace(preparation.split, columns={"text": texts, "pair": texts})
    return multiple_negatives(replace(preparation, split=split), config)
