"""Vectors of texts: which text belongs to which among the others of a batch, how near two are, and what one tells.

multiple-negatives   ids "[CLS] how old are you [SEP]"   pair_ids "[CLS] what is your age [SEP]"   label 0, row 0's pair
simcse   pair_ids the same as ids, read with other dropout
cosine, cosent   ids "[CLS] a cat sleeps [SEP]"   pair_ids "[CLS] a kitten is napping [SEP]"   score 0.8, or any number
triplet   a pair, and negative_ids "[CLS] how are you [SEP]"
tsdae   ids "[CLS] cat mat [SEP]", whose vector is all that the decoder is told   labels "a cat sleeps on a mat [SEP]"
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import DataError, RecipeError, counted
from atento.base.splitmix import grid_hashes, permutation, uniform
from atento.config.sections.network import NetworkConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import (
    EVERY,
    Batch,
    ContrastiveSettings,
    Draw,
    MemoryStore,
    OneTarget,
    OneText,
    Part,
    PartSize,
    Ragged,
    Rows,
    Store,
    Teach,
)
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.masked import word_columns
from atento.data.objectives.preparation import Preparation
from atento.data.objectives.text_sides import (
    TextPairs,
    contrast,
    scored_pairs,
    side_inputs,
    sides_as_store,
    text_numbers,
)
from atento.data.records.splits import Split
from atento.data.records.values import shortened

RECONSTRUCTION = "reconstruction"
_ORDER = 3  # part of the key of these shuffles
_WORDS_KEY = 36  # keeps the draws of deleted words apart from those of other purposes


@dataclass(frozen=True)
class MultipleNegatives(TextPairs):
    """Batches of pairs, or of triples with a negative. Columns "ids", "pair_ids" and "negative_ids".

    `numbers` (examples, sides) has equal numbers for equal texts; None: equal texts are negatives too.
    """

    numbers: NDArray[np.int64] | None

    def batch(self, store: Store, rows: Rows, draw: Draw | None = None, pieces: int = 1) -> Batch:
        """Return a batch; the label of a row is the number of its pair among the candidates.

        The candidates of each row are the pairs of all rows, then the negatives of all rows.
        """
        masks = {} if self.numbers is None else {"candidates": torch.from_numpy(candidates(self.numbers[rows]))}
        batch = super().batch(store, rows, draw, pieces)
        return replace(batch, labels={self.kind: torch.arange(len(rows))}, extras={**batch.extras, **masks})


def candidates(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which texts each row is compared with, (B, B) for pairs, (B, 2B) for triples: its pair and the negatives.

    A text is no negative of a row if it equals the row's text or pair, or belongs to an equal text.

    Args:
        numbers: (B, sides), equal for equal texts.
    """
    texts, pairs, *negatives = numbers.T  # (B,) each
    compared = np.concatenate([pairs, *negatives])  # (B,) or (2B,)
    mask: NDArray[np.bool_] = (compared != pairs[:, None]) & (compared != texts[:, None])  # (B,B) or (B,2B)
    mask[:, : len(pairs)] &= texts != texts[:, None]  # an equal first text: its pair is right as well
    np.fill_diagonal(mask, True)  # its own pair, which the comparisons have left out
    return mask


class PairBatches:
    """Batches of one update each, of pairs in random order.

    All pairs of an update are in one part, because they are compared with each other; a part of an update would have
    fewer. Micro-batches therefore divide the texts that are read at a time, not the negatives.
    """

    def __init__(
        self, store: Store, objective: TextPairs, *, budget: int, fewest: int, seed: int, weight: float = 1.0
    ) -> None:
        """Count the updates of an epoch.

        Args:
            objective: makes batches of them.
            budget: pairs of an update.
            fewest: the fewest pairs of an update that have a negative.
            weight: factor of the loss.
        """
        self.store, self.objective, self.seed, self.weight = store, objective, seed, weight
        self.teach: Teach | None = None
        self.count = len(store)
        self.targets = self.count
        self.updates_per_epoch = max(1, min(self.count // fewest, round(self.count / budget)))
        self._cached_plan: tuple[int, list[Rows]] | None = None  # of one epoch, with its number

    def __len__(self) -> int:
        return self.count

    def rows(self, update: int) -> Rows:
        """Return the rows of an update; updates are counted from 0 over all epochs."""
        epoch, index = divmod(update, self.updates_per_epoch)
        if self._cached_plan is None or self._cached_plan[0] != epoch:
            order = permutation(self.count, self.seed, epoch, _ORDER)
            self._cached_plan = epoch, np.array_split(order, self.updates_per_epoch)  # sizes differ by one at most
        return self._cached_plan[1][index]

    def parts(self, update: int, micro_batches: int = 1, ours: Iterator[bool] = EVERY) -> Iterator[Part]:
        """Yield the one part of an update; its texts are read in `micro_batches` groups, and the loss is the same."""
        if next(ours):
            rows = self.rows(update)
            batch = self.objective.batch(self.store, rows, pieces=micro_batches)
            batch = batch if self.teach is None else self.teach(batch, rows)
            yield Part(batch, {} if self.weight == 1.0 else {self.objective.kind: self.weight})

    def resize(self, size: PartSize) -> None:
        """As `Batches.resize`: an update has one part."""

    def in_order(self, budget: int) -> Iterator[Batch]:
        """Yield every pair once, in batches as large as in training, because the loss depends on their size."""
        for rows in np.array_split(np.arange(self.count), self.updates_per_epoch):
            yield self.objective.batch(self.store, rows)


def multiple_negatives(preparation: Preparation, config: ObjectiveConfig) -> PairBatches:
    """Return batches of pairs or triples; long texts are cut, with a counted warning.
    Raises DataError: a negative that equals the pair, or fewer than two pairs. RecipeError: a batch of one pair.
    """
    split, training = preparation.split, preparation.recipe.training
    if "score" in split.columns:
        raise DataError(
            f"the records have a score, which objective {config.kind} does not read: write `objective: cosine`, or "
            "leave the column out"
        )
    noun = "text" if config.kind == "simcse" else "pair"
    fewest = 1 if "negative" in split.columns else 2  # a triple brings its own contrast
    if training.batch_tokens < fewest:
        raise RecipeError(
            f"`training.batch_tokens` must be at least 2: a batch of one {noun} has nothing to contrast it with; got "
            f"{training.batch_tokens}"
        )
    if len(split) < fewest:
        raise DataError(f"there is one {noun} alone, and nothing to contrast it with")
    # without negatives there is nothing to go through
    for row, (text, pair, negative) in enumerate(zip(split["text"], split["pair"], split.columns.get("negative", ()))):
        if negative in (text, pair):
            raise DataError(
                f"{split.where(row)}: the negative must differ from the text and its pair: got {shortened(negative)!r}"
            )
    settings = contrast(preparation, config)
    store = sides_as_store(preparation)
    numbers = text_numbers(preparation) if config.mask_duplicates else None
    objective = MultipleNegatives(config.kind, preparation.network, settings, numbers)
    return _paired(preparation, config, store, objective, fewest)


def simcse(preparation: Preparation, config: ObjectiveConfig) -> PairBatches:
    """Return batches of texts and the same texts; long texts are cut, with a counted warning (Gao et al. 2021, 3).
    Raises DataError: the network has no dropout, or there is one text alone. RecipeError: a batch of one text.
    """
    texts = preparation.split["text"]
    split = replace(preparation.split, columns={"text": texts, "pair": texts})
    return multiple_negatives(replace(preparation, split=split), config)


def cosine(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of pairs whose score is the cosine of their vectors; long texts are cut, with a counted warning.
    Raises DataError: records without a score or with a negative, or a score out of range; names file and line.
    """
    split = preparation.split
    scores = cosines_of(split, config.score_range) if "score" in split.columns else []
    store = scored_pairs(preparation, config, scores)
    # as sentence-transformers does: else long pairs would count more than short ones
    return preparation.planned(store, _sides(preparation, config), config.weight, equal_examples=True)


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


def cosent(preparation: Preparation, config: ObjectiveConfig) -> PairBatches:
    """Return batches of scored pairs, whole updates, of which the one with the higher score has the higher cosine
    (CoSENT); long texts are cut, with a counted warning.

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
    return _paired(preparation, config, store, _sides(preparation, config), 2)


def triplet(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of triplets, whose text is nearer to its pair than to its negative, by a margin; long texts are
    cut, with a counted warning.
    Raises DataError: records without a negative, or with a score.
    """
    columns = preparation.split.columns
    if "negative" not in columns or "score" in columns:
        raise DataError(
            f"objective {config.kind} needs records of `text`, `pair` and `negative`, those of validation too: got "
            f"{', '.join(columns)}"
        )
    store = sides_as_store(preparation)
    return preparation.planned(store, _sides(preparation, config), config.weight, equal_examples=True)


def _sides(preparation: Preparation, config: ObjectiveConfig) -> TextPairs:
    return TextPairs(config.kind, preparation.network, contrast(preparation, config))


def _paired(
    preparation: Preparation, config: ObjectiveConfig, store: MemoryStore, objective: TextPairs, fewest: int
) -> PairBatches:
    budget, seed = preparation.recipe.training.batch_tokens, preparation.recipe.training.seed
    return PairBatches(store, objective, budget=budget, fewest=fewest, seed=seed, weight=config.weight)


@dataclass(frozen=True)
class Tsdae(OneText, OneTarget):
    """Batches of texts and copies that lack most of their words (Wang et al. 2021). Columns: "ids"; "words", the number
    of the word of each token between the special ones.
    """

    network: NetworkConfig
    settings: ContrastiveSettings  # how the vector of a copy is made
    deletion: float  # share of the words that a copy lacks; one stays
    ends: tuple[int, int]  # the number of tokens before and behind a text that stay: special ones, and a prompt

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
        return Batch(inputs, {RECONSTRUCTION: labels}, lengths=lengths, settings={RECONSTRUCTION: self.settings})

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
