"""Language modelling, left to right or behind masks: texts to batches, and how well held-out text is guessed."""

import math
from collections.abc import Callable, Iterable

import torch

from atento.config.network import NetworkConfig
from atento.config.recipe import Recipe
from atento.data.batches import Ragged
from atento.data.packing import packed
from atento.data.text_batches import Layout, Masked, NextToken, TextBatches, windows
from atento.errors import DataError, RecipeError, counted
from atento.networks import Network
from atento.tasks.prepare import Examples
from atento.text.tokenizer import Tokenizer
from atento.training.objectives import Batch, Objective, causal_loss, masked_loss
from atento.training.step import Sums

_VALIDATED = 4096  # tokens computed at a time


def causal_batches(
    recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Examples, say: Callable[[str], None]
) -> TextBatches:
    """Each text between BOS and EOS; one longer than `data.max_len` tokens goes on in a further example, where it was
    left, without what stood before. With `data.pack`, examples are full rows of texts one behind the other.

    Raises:
        RecipeError: texts packed in isolation for a network that is not attention's alone.
    """
    texts = [[tokenizer.bos_id, *row, tokenizer.eos_id] for row in _encoded(tokenizer, split)]
    longest = _longest(recipe, network)
    if recipe.data.pack != "none":
        if recipe.data.pack == "isolated" and network.architecture != "decoder":
            raise RecipeError(f"`data.pack` isolated needs a decoder: got a {network.architecture}; stream or none")
        rows, layout = packed(texts, longest, pad_id=network.pad_id, isolated=recipe.data.pack == "isolated")
        say(f"{counted(len(texts), 'text')} packed into {counted(len(rows), 'row')} of {longest} tokens")
        return TextBatches(rows, layout, budget=recipe.training.batch_tokens, seed=recipe.training.seed)
    pieces = [piece for text in texts for piece in windows(text, longest + 1, overlap=1)]
    _told(say, len(texts), len(pieces), recipe)
    return _batches(recipe, pieces, NextToken(network.pad_id))


def masked_batches(
    recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Examples, say: Callable[[str], None]
) -> TextBatches:
    """Each text between its two marks, some tokens hidden; one longer than `data.max_len` tokens is cut in several."""
    ids = _encoded(tokenizer, split)
    room = _longest(recipe, network) - 2
    if room < 1:
        raise DataError(f"`data.max_len` must leave room for a token between two marks: got {recipe.data.max_len}")
    template = template_for("masked-language-modeling", tokenizer)
    pieces = [
        tokenizer.with_specials(piece, template=template)[0]
        for row in ids
        for piece in windows(row, room, overlap=0)
        if piece
    ]
    _told(say, len(ids), len(pieces), recipe)
    layout = Masked(
        network.pad_id,
        mask_id=tokenizer.mask_id,
        first_word=1 + max(tokenizer.specials.ids.values()),
        vocab_size=network.vocab_size,
        seed=recipe.training.seed,
    )
    return _batches(recipe, pieces, layout)


def validate_causal(network: Network, tokenizer: Tokenizer, split: Examples, recipe: Recipe) -> dict[str, float]:
    """loss and nll, nats a token, and perplexity, over every token of the held-out texts."""
    return _validated(network, causal_batches(recipe, network.config, tokenizer, split, silent), causal_loss)


def validate_masked(network: Network, tokenizer: Tokenizer, split: Examples, recipe: Recipe) -> dict[str, float]:
    """loss and nll, nats a hidden token, and perplexity; the same tokens are hidden every time."""
    return _validated(network, masked_batches(recipe, network.config, tokenizer, split, silent), masked_loss)


def _validated(network: Network, batches: TextBatches, loss: Objective) -> dict[str, float]:
    mean = mean_loss(network, batches.in_order(_VALIDATED), loss)
    return {"loss": mean, "nll": mean, "perplexity": perplexity_of(mean)}


@torch.inference_mode()
def mean_loss(network: Network, batches: Iterable[Batch], loss: Objective) -> float:
    """The loss a target over all batches, nats, without dropout or smoothing."""
    was_training = network.training
    device = next(network.parameters()).device
    network.eval()
    sums = Sums()
    try:
        for batch in batches:
            total, nll = loss(network, batch.to(device), 0.0, None)
            sums.add(Sums(float(total), float(nll), batch.targets))
    finally:
        network.train(was_training)
    return sums.nll / max(1, sums.targets)


def perplexity_of(mean: float) -> float:
    """exp of mean nats; of more than 700 that of 700, since exp(710) is no float any more."""
    return math.exp(min(mean, 700.0))


def template_for(task: str, tokenizer: Tokenizer) -> str | None:
    """The marks that a model of that task reads around a text or before it; None: as the tokenizer has it."""
    if task == "language-modeling":
        return "bos"
    return "bos-eos" if task == "masked-language-modeling" and not tokenizer.added() else None


def _encoded(tokenizer: Tokenizer, split: Examples) -> list[list[int]]:
    return tokenizer.encode_batch(split.columns["text"])


def _longest(recipe: Recipe, network: NetworkConfig) -> int:
    """Tokens of an example: the recipe's, and no more than learned positions have places for."""
    learned = any(scheme.kind == "learned" for scheme in network.schemes)
    return min(recipe.data.max_len, network.max_len) if learned else recipe.data.max_len


def _told(say: Callable[[str], None], texts: int, pieces: int, recipe: Recipe) -> None:
    if pieces > texts:
        say(f"{texts} texts in {pieces} examples: some are longer than {recipe.data.max_len} tokens")


def _batches(recipe: Recipe, pieces: list[list[int]], layout: Layout) -> TextBatches:
    if not pieces:
        raise DataError("no text is left: all are blank")
    return TextBatches(Ragged(pieces), layout, budget=recipe.training.batch_tokens, seed=recipe.training.seed)


def silent(line: str) -> None:
    """Validation says nothing of how texts were cut."""
