"""Classification: a label for each text, or each pair of texts, with its probability."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch

from atento.config.recipe import Recipe
from atento.data.objectives.labels import KIND, classification_head, inputs_of, label_numbers, texts_as_store
from atento.data.records import Split
from atento.data.special_tokens import template_for
from atento.errors import AtentoWarning, UsageError, counted
from atento.networks.network import Network
from atento.tasks.grouping import by_length
from atento.tasks.heads import head_of
from atento.tasks.model_outputs import LoadedModel, tokenizer_of
from atento.tasks.verbs import listed
from atento.text.tokenizer import Tokenizer

_TOKENS = 4096  # computed at a time


@dataclass(frozen=True)
class Label:
    """A label and its probability."""

    name: str
    probability: float


@torch.inference_mode()
def classify_texts(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    template: str | None = None,
    longest: int | None = None,
) -> list[list[Label]]:
    """All labels of each text, or of each text with the one of `pairs` beside it, the most probable first.

    Args:
        network: one with a classification head, in evaluation mode.
        template: the special tokens around a text; None: the tokenizer's own.
        longest: most tokens of a text, special ones with them; longer ones are cut, with one warning that counts them.

    Raises:
        CapabilityError: the network has no classification head.
    """
    head, rows_of_table = classification_head(network.config), network.config.position_limit
    if rows_of_table is not None:
        longest = rows_of_table if longest is None else min(longest, rows_of_table)
    store, cut = texts_as_store(tokenizer, tokenizer.template(template), texts, pairs, longest)
    if cut:
        warnings.warn(f"{cut} of {counted(len(texts), 'text')} cut to {longest} tokens", AtentoWarning, stacklevel=3)
    device = next(network.parameters()).device
    results: list[list[Label]] = [[] for _ in texts]
    for rows in by_length(store["ids"].lengths.tolist(), _TOKENS):
        inputs = {name: value.to(device) for name, value in inputs_of(store, rows, network.config, head).items()}
        token_mask = inputs.get("token_mask", inputs.get("source_token_mask"))
        logits = network.read(head.name, network(**inputs, project=False), token_mask)
        for row, probabilities in zip(rows, torch.softmax(logits.double(), dim=-1).tolist()):
            labels = [Label(name, share) for name, share in zip(head.labels, probabilities)]
            results[row] = sorted(labels, key=lambda label: -label.probability)
    return results


@overload
def classify(model: LoadedModel, text: str | tuple[str, str]) -> Label: ...  # type: ignore[overload-overlap]
@overload
def classify(model: LoadedModel, text: Sequence[str] | Sequence[tuple[str, str]]) -> list[Label]: ...


def classify(model: LoadedModel, text: str | tuple[str, str] | Sequence[str] | Sequence[tuple[str, str]]) -> Any:
    """The most probable label of a text or texts, or, for a model of pairs, of a tuple of two texts or a list of such
    tuples (docs/notes.md#g1).

    Raises:
        CapabilityError: the model has no classification head. UsageError: texts for a model of pairs, or pairs for a
            model of texts.
    """
    single = isinstance(text, str | tuple)
    texts: Any = [text] if single else text
    best = [labels[0] for labels in classifications(model, texts)]
    return best[0] if single else best


def classifications(model: LoadedModel, texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[list[Label]]:
    """As `classify`, with all labels of each text, the most probable first."""
    head_of(model, KIND)  # refuses a model without it
    first, second = texts_and_pairs(texts)
    pairs = model.config.get("pairs")
    if first and pairs is not None and pairs != (second is not None):
        got, expected = ("single texts", "pairs of texts") if pairs else ("pairs of texts", "single texts")
        raise UsageError(f"this model was trained on {expected}: got {got}")
    template, longest = model.config.get("template"), model.trained_length
    return classify_texts(model.network, tokenizer_of(model), first, second, template=template, longest=longest)


def texts_and_pairs(value: object) -> tuple[list[str], list[str] | None]:
    """Texts; or, of tuples of two texts, the first ones and the second ones.

    Raises:
        UsageError: something else. DataError: a text with a NUL character.
    """
    if isinstance(value, Sequence) and value and all(isinstance(pair, tuple | list) for pair in value):
        if any(len(pair) != 2 for pair in value):
            raise UsageError("a pair is a tuple of two texts: got one of another length")
        first, second = ([pair[side] for pair in value] for side in (0, 1))
        return listed(first), listed(second)
    return listed(value), None


def predict(network: Network, tokenizer: Tokenizer, split: Split, recipe: Recipe) -> list[str]:
    """The most probable label of each record of a split."""
    pairs = split["pair"] if "pair" in split.columns else None
    template = template_for(recipe.task, tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtentoWarning)  # training has said how many are cut
        results = classify_texts(
            network, tokenizer, split["text"], pairs, template=template, longest=recipe.data.max_len
        )
    return [labels[0].name for labels in results]


def call(model: Any, split: Split, options: Mapping[str, Any]) -> list[str]:
    """As `predict`, by a loaded model."""
    for name in sorted(options.keys() - {"seed"}):  # by which the command also draws the intervals of scores
        raise UsageError(f"`{name}` has no effect on labels: a model that classifies writes nothing")
    label_numbers(split, head_of(model, KIND).labels)  # refuses labels that the model does not have
    texts = split["text"]
    inputs = list(zip(texts, split["pair"])) if "pair" in split.columns else texts
    return [label.name for label in model.classify(inputs)]


def gold(split: Split) -> list[str]:
    """The labels of a split."""
    return split["label"]
