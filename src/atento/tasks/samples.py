"""Samples during training: what a network writes for the first records of a split, beside the references."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from atento.config.recipe import Recipe
from atento.config.tables.tasks import TASKS
from atento.data.records.splits import Split, subset
from atento.errors import AtentoWarning
from atento.networks.interface import Network
from atento.tasks.filling import fill
from atento.tasks.generation import Continuing, prompt_template, prompt_writer
from atento.tasks.split_evaluation import ModelInTraining, as_loaded
from atento.tasks.verb_table import VERBS
from atento.text.tokenizer import Tokenizer

_PROMPT = 24  # tokens of a prompt, and of what is written after it
_WORDS = 24  # of a text with masks
_EVERY = 6  # word that is masked, the fourth first


@dataclass(frozen=True)
class Sample:
    """What a network wrote for one record.

    Attributes:
        input: the source, the prompt or the text with masks.
        output: what the network wrote.
        reference: what would be right.
    """

    input: str
    output: str
    reference: str


def samples(network: Network, tokenizer: Tokenizer, split: Split, recipe: Recipe, count: int) -> list[Sample]:
    """Write outputs for the first `count` records of a split; none for a task that writes no text.

    A task with sources writes as in validation. A language model continues the first tokens of a text. A model that
    fills masks gets texts in which every sixth word is a mask. Equal weights give equal samples.
    """
    spec = TASKS[recipe.task]
    model = ModelInTraining(network, tokenizer, recipe, split)
    with as_loaded(network, recipe), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", AtentoWarning)  # of lengths: validation warns
        if spec.outputs == "texts" and spec.verb is not None:
            part = subset(split, range(min(count, len(split))))
            verb = VERBS[spec.verb]
            written = zip(part["source"], verb.call(model, part, {}), verb.gold(part))
            return [Sample(*texts) for texts in written]
        if spec.verb == "generate":
            return _continued(model, tokenizer, _texts(split, tokenizer, count))
        if spec.verb == "fill":
            return _filled(model, tokenizer, _texts(split, tokenizer, count))
    return []


def _texts(split: Split, tokenizer: Tokenizer, count: int) -> list[str]:
    """The first texts of a split that are not blank; of a store of token ids, decoded."""
    if split.tokens is None:
        return [text for text in split["text"][: 10 * count] if text.strip()][:count]
    ids = split.tokens.rows(range(min(1, split.tokens.n_blocks)))
    return [tokenizer.decode(row.tolist()) for row in ids[:count]]


def _continued(model: ModelInTraining, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Sample]:
    """Continue the first half of each text, at most 24 tokens of it, with as many tokens as the reference has."""
    assert isinstance(model.network, Continuing)
    limit = model.network.config.position_limit
    # half for the prompt, one place for the start
    longest = _PROMPT if limit is None else min(_PROMPT, (limit - 1) // 2)
    steps, written = model.step_function(), []
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text)
        begin = min(longest, (len(ids) + 1) // 2)
        reference = ids[begin : begin + longest]
        if not reference:
            continue
        prompt = tokenizer.decode(ids[:begin])
        decoding = replace(model.decoding, n_best=1, min_new_tokens=0, max_new_tokens=len(reference))
        template = prompt_template(model.network, model.config)
        writer = prompt_writer(model.network, tokenizer, decoding, steps, template)
        (outputs,) = writer.write([prompt], row)
        written.append(Sample(prompt, outputs[0].text, tokenizer.decode(reference)))
    return written


def _filled(model: ModelInTraining, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Sample]:
    """Fill the masks of the first 24 words of each text."""
    sentinels = tokenizer.specials.get("<extra_id_0>") is not None
    written = []
    for text in texts:
        words = text.split()[:_WORDS]
        masked = list(words)
        # three words to begin with, if there are as many
        for number, at in enumerate(range(min(3, len(words) - 1), len(words), _EVERY)):
            masked[at] = f"<extra_id_{number}>" if sentinels else tokenizer.specials.roles["mask"]
        candidates = fill(model, " ".join(masked), top=1)
        written.append(Sample(" ".join(masked), candidates[0].text if candidates else "", " ".join(words)))
    return written
