"""What a head of the whole text gives for texts or pairs, in batches of similar length."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from atento.base.errors import AtentoWarning, UsageError, counted
from atento.config.tables.head_kinds import HeadConfig
from atento.data.batches.contexts import opened
from atento.data.objectives.labels import inputs_of, store_texts
from atento.data.records.memory import frame_texts, is_frame
from atento.data.records.splits import Split
from atento.networks.heads import LinearHead, TextWindows
from atento.networks.interface import Network, token_mask_of
from atento.tasks.length_batching import run_in_batches
from atento.tasks.task_model import TaskModel, max_input_tokens, tokenizer_of
from atento.tasks.verb_calls import listed

_TOKENS = 4096  # of a batch


@torch.inference_mode()
def text_outputs(
    model: TaskModel, head: HeadConfig, given: object, network: Network | None = None
) -> list[list[float]]:
    """The numbers that a head of the whole text gives for each text, or each pair of texts.

    A text that is cut is counted in one warning. `network` reads the texts, by default the model's reader.
    Raises as `texts_of_model`.
    """
    texts, pairs = texts_of_model(model, given)
    network, tokenizer = network or model.reader(), tokenizer_of(model)
    longest, long_texts = model.trained_length, model.long_texts
    limit, template = max_input_tokens(network.config, longest), tokenizer.template(model.config.get("template"))
    if limit is not None:
        longest = limit if longest is None else min(longest, limit)
    store, cut = store_texts(tokenizer, template, texts, pairs, longest, network.config, long_texts)
    if cut:
        warnings.warn(f"{cut} of {counted(len(texts), 'text')} cut to {longest} tokens", AtentoWarning, stacklevel=4)
    device, linear = next(network.parameters()).device, network.heads[head.name]
    assert isinstance(linear, LinearHead)
    windows, numbers, texts_of_windows = opened(store, np.arange(len(store)))
    for row in np.flatnonzero(windows["ids"].lengths == 0).tolist():  # of a tokenizer that puts none around a text
        number = row if texts_of_windows is None else texts_of_windows[row]
        raise UsageError(f"text {number} has no tokens, so there is nothing to read")

    def compute(rows: list[int]) -> list[list[float]]:
        inputs = {name: value.to(device) for name, value in inputs_of(windows, rows, network.config, head).items()}
        pooled = linear.pooled(network(**inputs, project=False), token_mask_of(inputs))
        # of windows the vectors, which are pooled to a text before the head
        read: torch.Tensor = pooled if texts_of_windows is not None else linear(pooled)
        return read.double().tolist()

    outputs: list[list[float]] = [[] for _ in numbers]
    for row, values in run_in_batches(windows["ids"].lengths.tolist(), _TOKENS, compute, network, shared=True):
        outputs[row] = values
    if texts_of_windows is None or not outputs:
        return outputs
    of_texts: list[list[float]] = []
    # windows of a text are neighbours
    for rows in np.split(np.array(outputs), np.flatnonzero(np.diff(texts_of_windows)) + 1):
        # one text, with all these windows
        of_one = TextWindows(long_texts.windows or "mean", torch.zeros(len(rows), dtype=torch.long))
        vectors = torch.from_numpy(rows).to(device, linear.out.weight.dtype)
        of_texts += linear(linear.of_texts(vectors, of_one)).double().tolist()
    return of_texts


def texts_of_model(model: TaskModel, given: object) -> tuple[list[str], list[str] | None]:
    """As `texts_and_pairs`, for a model that was trained on texts or on pairs.
    Raises UsageError: texts for a model of pairs, or pairs for a model of texts.
    """
    first, second = texts_and_pairs(given)
    pairs = model.config.get("pairs")
    if first and pairs is not None and pairs != (second is not None):
        got, learned = ("single texts", "pairs of texts") if pairs else ("pairs of texts", "single texts")
        how = "give two texts each (--pairs: with a tab between)" if pairs else "give single texts, without --pairs"
        raise UsageError(f"this model was trained on {learned}: got {got}; {how}")
    return first, second


def texts_of_split(split: Split) -> list[Any]:
    """The texts of a split, or its pairs of texts."""
    return list(zip(split["text"], split["pair"])) if "pair" in split.columns else split["text"]


def texts_and_pairs(given: object) -> tuple[list[str], list[str] | None]:
    """Texts; or, of tuples of two texts, the first ones and the second ones.
    Raises UsageError: something else. DataError: a text with a NUL character.
    """
    if is_frame(given):
        given = frame_texts(given)
    records: Any = list(given) if isinstance(given, Iterator) else given
    given = records
    if getattr(given, "shape", ())[1:] == (2,):  # an array of pairs
        given = records = records.tolist()
    if isinstance(given, Sequence) and given and all(isinstance(record, tuple | list) for record in given):
        if any(len(record) != 2 for record in records):
            raise UsageError("a pair is a tuple of two texts: got one of another length")
        first, second = ([record[side] for record in records] for side in (0, 1))
        return listed(first), listed(second)
    return listed(given), None
