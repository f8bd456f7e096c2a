"""Sequential denoising: write a text from the vector of a copy that lacks most of its words (TSDAE; Wang et al. 2021).

text "[CLS] a cat sleeps on a mat [SEP]"   ids "[CLS] cat mat [SEP]", whose vector is all that the decoder is told
target_ids "[CLS] a cat sleeps on a mat"   labels "a cat sleeps on a mat [SEP]"
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import DataError, RecipeError, counted
from atento.base.splitmix import grid_hashes, uniform
from atento.config.sections.network import NetworkConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batch, Contrast, Draw, MemoryStore, OneText, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.masked import word_columns
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.text_sides import contrast, side_inputs, sides_as_store

HEAD = "reconstruction"
_WORDS_KEY = 36  # keeps these draws apart from those of other purposes


@dataclass(frozen=True)
class Tsdae(OneText):
    """Batches of texts and copies without some words. Columns: "ids"; "words", the number of the word of each token
    between the special ones.
    """

    network: NetworkConfig
    settings: Contrast  # how the vector of a copy is made
    deletion: float  # share of the words that a copy lacks; one stays
    ends: tuple[int, int]  # the number of tokens before and behind a text that stay: special ones, and a prompt

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return one target for each text: updates count texts, as those of other objectives of vectors."""
        return np.ones(len(store))

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; each epoch deletes other words."""
        texts, words = ([store[name][row] for row in rows.tolist()] for name in ("ids", "words"))
        most = 1 + max((int(numbers.max()) for numbers in words if len(numbers)), default=0)
        drawn = uniform(grid_hashes(rows, most, draw.seed, draw.epoch, after=(_WORDS_KEY,)))  # (B,most)
        copies = Ragged([ids[self._kept(*of_text)].tolist() for ids, *of_text in zip(texts, words, drawn)])
        inputs, lengths, _ = side_inputs(MemoryStore({"ids": copies}), np.arange(len(rows)), self.network)
        whole = store["ids"].padded(rows, -1)  # (B,T+1)
        labels = whole[:, 1:].contiguous()
        inputs["target_ids"] = whole[:, :-1].masked_fill(labels < 0, self.network.pad_id)
        lengths["target_ids"] = torch.from_numpy(store["ids"].lengths[rows] - 1)
        return Batch(inputs, {HEAD: labels}, lengths=lengths, settings={HEAD: self.settings})

    def _kept(self, words: NDArray[np.int64], drawn: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which tokens of a text its copy has: its numbers of words (tokens,), and a draw for each number."""
        of_words = drawn[words]
        inner = of_words >= min(self.deletion, of_words.max(initial=0.0))
        return np.pad(inner, self.ends, constant_values=True)


def tsdae(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches for TSDAE; long texts are cut, with a counted warning, and texts of one word are counted.

    Raises:
        DataError: every text is one word. RecipeError: vectors of another width than the layers, or texts in windows.
    """
    network, tokenizer, texts = preparation.network, preparation.tokenizer, preparation.split["text"]
    settings, embedding = contrast(preparation, config), preparation.recipe.embedding
    width = network.d_model if embedding is None else embedding.width(network)
    if width != network.d_model or settings.windows is not None:
        got = f"vectors of {width} numbers" if settings.windows is None else f"`data.windows` {settings.windows}"
        raise RecipeError(
            f"objective {config.kind} writes a text from one vector as wide as the layers, {network.d_model} numbers: "
            f"got {got}"
        )
    before, behind = preparation.text_template().ends()
    prompt = "" if embedding is None else embedding.of_field("text").prompt
    ends = before + (len(tokenizer.encode(prompt)) if prompt else 0), behind
    ids = sides_as_store(preparation)["ids"]
    words = word_columns(tokenizer, [ids[row][ends[0] : len(ids[row]) - behind].tolist() for row in range(len(ids))])
    single = int((words["word count"].flat < 2).sum())
    if not preparation.held_out and single:
        if single == len(texts):
            raise DataError(f"every text is one word, of which objective {config.kind} can delete none")
        preparation.report(f"warning: {single:,} of {counted(len(texts), 'text')} are one word, which is never deleted")
    store = MemoryStore({"ids": ids, "words": words["words"]})
    objective = Tsdae(network, settings, config.option("deletion"), ends)
    return preparation.planned(store, objective, config.weight, equal_examples=True)
