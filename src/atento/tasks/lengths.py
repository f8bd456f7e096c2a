"""The length of texts that a model was trained on, and the warning about longer texts."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from atento.config.network import NetworkConfig
from atento.errors import AtentoWarning, counted


class LongTextWarning(AtentoWarning):
    """Texts are longer than those that the model was trained on.

    Attributes:
        long: number of these texts.
        total: number of all texts.
        longest: tokens of the longest text.
        trained: maximum tokens of a text in training.
        result: what the model computes from the texts.
    """

    def __init__(self, long: int, total: int, longest: int, trained: int, result: str = "outputs") -> None:
        self.long, self.total, self.longest, self.trained, self.result = long, total, longest, trained, result
        super().__init__(
            f"{counted(long, 'text')} of {total:,} {'is' if long == 1 else 'are'} longer than the {trained:,} tokens "
            f"that the model was trained on (the longest has {longest:,}): such {result} may be wrong, and take long"
        )


def trained_length(config: Mapping[str, Any], network: NetworkConfig) -> int | None:
    """Return the maximum tokens of a text in training, special tokens included; None: unknown.

    Args:
        config: its `config.json`. `max_len` is the `data.max_len` of the recipe that it was trained by.
        network: of a released family, or with learned positions, its `max_len` says it otherwise.
    """
    max_len = config.get("max_len")
    if isinstance(max_len, int) and not isinstance(max_len, bool) and max_len > 0:
        return max_len
    return network.max_len if network.family else network.position_limit


def warn_of_length(lengths: Sequence[int], trained: int | None, result: str = "outputs") -> None:
    """Warn once, with counts, of texts (their tokens, special ones with them) that are longer than `trained`.

    Texts of no tokens are not counted. `result` is what comes of them.
    """
    real = [length for length in lengths if length]
    long = sum(trained is not None and length > trained for length in real)
    if long and trained is not None:
        warnings.warn(LongTextWarning(long, len(real), max(real), trained, result), stacklevel=3)
