"""What a head of the whole text gives for texts or pairs, in batches of similar length."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from atento.config.tables.head_kinds import HeadConfig
from atento.data.files.frames import frame_texts, is_frame
from atento.data.objectives.labels import inputs_of, texts_as_store
from atento.errors import AtentoWarning, UsageError, counted
from atento.networks.interface import Network, token_mask_of
from atento.tasks.grouping import by_length, results_of
from atento.tasks.length_warnings import most_read
from atento.tasks.task_model import TaskModel
from atento.tasks.verb_calls import listed
from atento.text.tokenizer import Tokenizer

_TOKENS = 4096  # computed at a time


@torch.inference_mode()
def text_outputs(
    network: Network,
    tokenizer: Tokenizer,
    head: HeadConfig,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    template: str | None = None,
    longest: int | None = None,
) -> list[list[float]]:
    """The numbers that a head gives for each text, or for each text with the one of `pairs` beside it.

    Args:
        network: a network with that head, in evaluation mode.
        head: one of the whole text.
        template: the special tokens around a text; None: the tokenizer's own.
        longest: most tokens of a text, special ones with them; longer ones are cut, with one warning that counts them.
    """
    limit = most_read(network.config, longest)
    if limit is not None:
        longest = limit if longest is None else min(longest, limit)
    store, cut = texts_as_store(tokenizer, tokenizer.template(template), texts, pairs, longest, network.config)
    if cut:
        warnings.warn(f"{cut} of {counted(len(texts), 'text')} cut to {longest} tokens", AtentoWarning, stacklevel=4)
    device = next(network.parameters()).device
    outputs: list[list[float]] = [[] for _ in texts]

    def compute(rows: list[int]) -> list[list[float]]:
        inputs = {name: value.to(device) for name, value in inputs_of(store, rows, network.config, head).items()}
        token_mask = token_mask_of(inputs)
        logits: torch.Tensor = network.read(head.name, network(**inputs, project=False), token_mask)
        return logits.double().tolist()

    for row, numbers in results_of(by_length(store["ids"].lengths.tolist(), _TOKENS), compute):
        outputs[row] = numbers
    return outputs


def texts_of_model(model: TaskModel, given: object) -> tuple[list[str], list[str] | None]:
    """As `texts_and_pairs`, for a model that was trained on texts or on pairs.

    Raises:
        UsageError: texts for a model of pairs, or pairs for a model of texts.
    """
    first, second = texts_and_pairs(given)
    pairs = model.config.get("pairs")
    if first and pairs is not None and pairs != (second is not None):
        got, learned = ("single texts", "pairs of texts") if pairs else ("pairs of texts", "single texts")
        how = "give tuples of two texts (--pairs: with a tab between)" if pairs else "give single texts (no --pairs)"
        raise UsageError(f"this model was trained on {learned}: got {got}; {how}")
    return first, second


def texts_and_pairs(given: object) -> tuple[list[str], list[str] | None]:
    """Texts; or, of tuples of two texts, the first ones and the second ones.

    Raises:
        UsageError: something else. DataError: a text with a NUL character.
    """
    if is_frame(given):
        given = frame_texts(given)
    records: Any = given
    if isinstance(given, Sequence) and given and all(isinstance(record, tuple | list) for record in given):
        if any(len(record) != 2 for record in records):
            raise UsageError("a pair is a tuple of two texts: got one of another length")
        first, second = ([record[side] for record in records] for side in (0, 1))
        return listed(first), listed(second)
    return listed(given), None
