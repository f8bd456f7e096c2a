"""The input of an objective: a split with recipe, network and tokenizer; and splitting of long texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from atento.base.errors import DataError
from atento.config.recipe import DataConfig, Recipe
from atento.config.sections.long_texts import LongTextConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.data.batches.batch import Batches, EpochStores, Objective, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.records.splits import Split, by_source
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer

Report = Callable[[str], None]
Make = Callable[["Preparation", ObjectiveConfig], Batches]
Teach = Callable[["Preparation", ObjectiveConfig, Make], Batches]


@dataclass(frozen=True)
class Preparation:
    """A split of the data, and everything else that an objective makes examples from."""

    recipe: Recipe  # the recipe
    network: NetworkConfig  # configuration of the network
    tokenizer: Tokenizer  # encodes the texts
    split: Split  # the records
    template: str | None = None  # name of the special tokens around a text; None: the tokenizer's own
    # whether the split is for validation or test. No record is then left out, and encoding is not random
    held_out: bool = False
    report: Report = lambda line: None  # called with a line about examples that are left out or cut
    # the ids of the texts, where they come from a store of token ids; None: the texts are encoded
    ids: Sequence[NDArray[Any]] | None = None
    # makes the batches of an objective with what teachers say of the examples; None: there is no teacher
    teach: "Teach | None" = None

    @property
    def longest(self) -> int:
        """Maximum tokens of an example: `data.max_len`, at most the number of learned positions."""
        longest, limit = self.recipe.data.max_len, self.network.position_limit
        return longest if limit is None else min(longest, limit)

    @property
    def long_texts(self) -> LongTextConfig:
        """How texts that get a label, a number or a vector are read if they are longer."""
        return long_texts_of(self.recipe.data)

    def with_budget(self, tokens: int) -> "Preparation":
        """Return a copy with another `batch_tokens`."""
        return replace(self, recipe=replace(self.recipe, training=replace(self.recipe.training, batch_tokens=tokens)))

    def planned(
        self,
        store: Store | EpochStores,
        objective: Objective,
        weight: float | Mapping[str, float],
        *,
        equal_examples: bool = False,
    ) -> PlannedBatches:
        """Return the batches of an objective, with the budget and the seed of the recipe.

        `equal_examples`: updates have the same number of examples, else long texts would count more than short ones.
        """
        budget, seed = self.recipe.training.batch_tokens, self.recipe.training.seed
        return PlannedBatches(store, objective, budget=budget, seed=seed, weight=weight, equal_examples=equal_examples)

    def by_source(self) -> list["Preparation"]:
        """Return a copy for each source of the split; lines of its report begin with the name of the source."""

        def named(name: str) -> Report:
            def report(line: str) -> None:
                warning = "warning: " if line.startswith("warning: ") else ""
                self.report(f"{warning}{name}: {line.removeprefix(warning)}")

            return report

        return [replace(self, split=part, report=named(name)) for name, part in by_source(self.split)]

    def encoded(self) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""
        if self.ids is not None:
            return [row.tolist() for row in self.ids]
        return self.tokenizer.encode_batch(self.split["text"])

    def pieces(self, texts: Sequence[Sequence[int]], room: int, overlap: int = 0) -> list[list[int]]:
        """Split texts into pieces of at most `room` ids; a piece repeats the last `overlap` ids of the piece before it.
        Raises DataError: all texts are blank, or `room` is below 1.
        """
        if room < 1:
            raise DataError(
                f"`data.max_len` must leave room for a token between the special ones: got {self.recipe.data.max_len}"
            )
        pieces = [piece for text in texts if text for piece in windows(text, room, overlap)]
        if len(pieces) > len(texts):
            self.report(f"{len(texts):,} texts in {len(pieces):,} examples: some are longer than {self.longest} tokens")
        if not pieces:
            raise DataError("no text is left: all are blank")
        return pieces

    def text_template(self) -> Template:
        """Return the template of special tokens around a text."""
        return self.tokenizer.template(self.template)


def long_texts_of(data: DataConfig) -> LongTextConfig:
    """Return how a recipe says that long texts are read."""
    return LongTextConfig(data.windows, max(1, data.stride), data.truncate == "head-tail")


def windows(ids: Sequence[int], longest: int, overlap: int) -> list[list[int]]:
    """Split ids into pieces of at most `longest`; a piece repeats the last `overlap` ids of the piece before it."""
    step = longest - overlap
    return [list(ids[start : start + longest]) for start in range(0, max(1, len(ids) - overlap), step)]
