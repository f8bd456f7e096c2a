"""Learning words and not pieces, ELMo's way and word2vec's: texts to batches, and the loss on held-out text."""

from collections.abc import Callable

from atento.config.elmo import CBOWConfig
from atento.config.network import NetworkConfig
from atento.config.recipe import Recipe
from atento.data.windows import Windows
from atento.data.word_batches import WindowBatches, WordBatches
from atento.errors import DataError
from atento.networks import Network
from atento.tasks.language_modeling import mean_loss, perplexity_of, silent
from atento.tasks.prepare import Examples
from atento.text import word_spans
from atento.text.tokenizer import Tokenizer
from atento.training.objectives import bidirectional_loss, window_loss

_VALIDATED = 2048  # words computed at a time


def bidirectional_batches(
    recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Examples, say: Callable[[str], None]
) -> WordBatches:
    """Each text as words between two marks; one longer than `data.max_len` words is cut in several."""
    whole = _words(tokenizer, split)
    room = recipe.data.max_len
    sentences = [words[at : at + room] for words in whole for at in range(0, len(words), room)]
    if not sentences:
        raise DataError("no text is left: all are blank")
    if len(sentences) > len(whole):
        say(f"{len(whole)} texts in {len(sentences)} examples: some are longer than {room} words")
    ids = [[tokenizer.bos_id, *_ids(tokenizer, words), tokenizer.eos_id] for words in sentences]
    characters = None if network.elmo is None or network.elmo.characters is None else network.elmo.characters
    return WordBatches(
        sentences,
        ids,
        budget=recipe.training.batch_tokens,
        seed=recipe.training.seed,
        max_characters=None if characters is None else characters.max_characters,
    )


def window_batches(
    recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Examples, say: Callable[[str], None]
) -> WindowBatches:
    """Windows over each text's words, unknown ones with them.

    Raises:
        DataError: no text has two words, or subsampling leaves fewer than two words an epoch on average.
    """
    windows = _windows(recipe, network, tokenizer, split)
    if windows.expected() < 2:
        raise DataError(
            f"too little text for word vectors: `network.cbow.subsample` {windows.config.subsample:g} leaves "
            f"{windows.expected():.1f} of its {len(windows.flat)} words an epoch on average, and a window needs 2; "
            "give more text, or network.cbow.subsample=0"
        )
    return WindowBatches(windows, budget=recipe.training.batch_tokens)


def held_out_windows(
    recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Examples, say: Callable[[str], None]
) -> WindowBatches:
    """As `window_batches`, of however little text; says nothing."""
    windows = _windows(recipe, network, tokenizer, split)
    return WindowBatches(windows, budget=recipe.training.batch_tokens)


def validate_bidirectional(network: Network, tokenizer: Tokenizer, split: Examples, recipe: Recipe) -> dict[str, float]:
    """loss and nll, nats a guess of either direction, and their perplexity."""
    batches = bidirectional_batches(recipe, network.config, tokenizer, split, silent)
    mean = mean_loss(network, batches.in_order(_VALIDATED), bidirectional_loss)
    return {"loss": mean, "nll": mean, "perplexity": perplexity_of(mean)}


def validate_windows(network: Network, tokenizer: Tokenizer, split: Examples, recipe: Recipe) -> dict[str, float]:
    """loss and nll a guess; with negative samples no log-probabilities of words, so there is no perplexity."""
    batches = held_out_windows(recipe, network.config, tokenizer, split, silent)
    every = (part for update in range(batches.updates_per_epoch) for part in batches.parts(update))
    mean = mean_loss(network, every, window_loss)
    return {"loss": mean, "nll": mean}


def _windows(recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Examples) -> Windows:
    rows = [_ids(tokenizer, words) for words in _words(tokenizer, split)]
    return Windows(rows, network.vocab_size, network.cbow or CBOWConfig(), seed=recipe.training.seed)


def _words(tokenizer: Tokenizer, split: Examples) -> list[list[str]]:
    """The words of each text that has any, as the tokenizer would read them."""
    texts = (tokenizer.normalize(text) for text in split["text"])
    found = ([text[start:end] for start, end in word_spans(text)] for text in texts)
    return [words for words in found if words]


def _ids(tokenizer: Tokenizer, words: list[str]) -> list[int]:
    known = (tokenizer.token_id(word) for word in words)
    return [tokenizer.unk_id if token is None else token for token in known]
