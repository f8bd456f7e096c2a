"""Replaced-token detection: a generator fills masks, and the network learns which tokens are not the text's (ELECTRA).

ids "<s> o <mask> pulou </s>"   labels, generator "- - gato - -", replaced-token "<s> o gato pulou </s>"
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Draw, OneText, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.masked import Masked, masked_texts, with_token_mask
from atento.data.objectives.preparation import Preparation

GENERATOR, DETECTOR = "generator", "replaced-token"


@dataclass(frozen=True)
class ReplacedToken(OneText):
    """Batches of masked texts, labelled for the generator and for the network that detects its tokens.

    All chosen tokens are masked. The labels of the detector are the original tokens of the whole text; which of them
    the generator replaces is known when it has filled the masks (`Network.replaced`).
    """

    masked: Masked

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the expected number of masked tokens; the labels of the detector do not count for the budget."""
        return self.masked.sizes(store)

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch masks other tokens."""
        ids, labels, _ = self.masked.hidden(store, rows, draw)
        ids[labels >= 0] = self.masked.masking.mask_id  # all of them: BERT leaves some
        lengths = store["ids"].lengths[rows]
        return Batch(
            with_token_mask({"ids": ids}, lengths),
            {GENERATOR: labels, DETECTOR: store["ids"].padded(rows, -1)},  # the detector has all tokens
            lengths={"ids": torch.from_numpy(lengths)},
        )


def replaced_token(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for replaced-token detection; texts longer than `data.max_len` tokens are split."""
    store, masked = masked_texts(preparation, config)
    weights = {GENERATOR: config.weight, DETECTOR: config.weight * config.option("detection")}
    return preparation.planned(store, ReplacedToken(masked), weights)
