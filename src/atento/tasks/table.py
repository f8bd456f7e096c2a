"""The tasks that are trained: how each reads its data, makes its batches, is learned and is validated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from atento.config.network import NetworkConfig
from atento.config.recipe import Recipe
from atento.errors import DataError
from atento.tasks.language_modeling import causal_batches, masked_batches, silent, validate_causal, validate_masked
from atento.tasks.prepare import Data, Examples, Say, batches_for
from atento.tasks.validation import validate
from atento.tasks.word_learning import (
    bidirectional_batches,
    held_out_windows,
    validate_bidirectional,
    validate_windows,
    window_batches,
)
from atento.text.tokenizer import Tokenizer
from atento.training.loop import Batches
from atento.training.objectives import (
    Objective,
    bidirectional_loss,
    causal_loss,
    masked_loss,
    seq2seq_loss,
    window_loss,
)


@dataclass(frozen=True)
class Task:
    """What training needs to know of a task; its data and defaults stand in `atento.config.tasks`."""

    batches: Callable[[Recipe, NetworkConfig, Tokenizer, Examples, Say], Batches]
    loss: Objective
    validate: Callable[[Any, Tokenizer, Examples, Recipe], dict[str, float]]
    held_out: Callable[[Recipe, NetworkConfig, Tokenizer, Examples, Say], Any] | None = (
        None  # what `validate` goes over
    )

    def check_held_out(self, recipe: Recipe, config: NetworkConfig, tokenizer: Tokenizer, data: Data) -> None:
        """Validation and test data that cannot be scored are found before training, not at the first validation.

        Raises:
            DataError: names the split and the rule.
        """
        valid = "data.held_out" if recipe.data.held_out else "data.valid"
        for name, split in ((valid, data.valid), ("data.test", data.test)):
            if split is not None and self.held_out is not None:
                try:
                    self.held_out(recipe, config, tokenizer, split, silent)
                except DataError as error:
                    raise DataError(f"{name}: {error}") from None


TASKS: dict[str, Task] = {
    "translation": Task(batches_for, seq2seq_loss, validate),
    "summarization": Task(batches_for, seq2seq_loss, validate),
    "language-modeling": Task(causal_batches, causal_loss, validate_causal, causal_batches),
    "masked-language-modeling": Task(masked_batches, masked_loss, validate_masked, masked_batches),
    "bidirectional-language-modeling": Task(
        bidirectional_batches, bidirectional_loss, validate_bidirectional, bidirectional_batches
    ),
    "cbow": Task(window_batches, window_loss, validate_windows, held_out_windows),
}
