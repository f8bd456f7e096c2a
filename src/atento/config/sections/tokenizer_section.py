"""The section `tokenizer` of a recipe."""

from dataclasses import dataclass
from typing import Literal

from atento.errors import RecipeError

TokenizerKind = Literal["unigram", "bpe", "wordpiece", "word", "character", "byte"]
MAX_VOCABULARY = 1_000_000  # as `atento.text.tokenizer_training` has it, which knows no recipes


@dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer to train, or the `path` of a trained one."""

    kind: TokenizerKind = "unigram"
    """How text is split into tokens. bpe and unigram are lossless subwords; wordpiece is the subwords of BERT; word
    keeps whole words (for word vectors and ELMo); character and byte need no training.
    """
    vocab_size: int = 8000
    """Number of tokens in the vocabulary. [1 to 1,000,000] Use about 2,000 for tens of thousands of short sentences,
    8,000 to 32,000 for more: in a vocabulary that is too large, tokens are too rare to learn. If the recipe sets
    neither it nor a network, it is chosen by the amount of data.
    """
    shared: bool = True
    """One vocabulary for source and target. false: one for each, of `vocab_size` tokens at most, and two tables of
    embeddings. Use it for languages that share neither script nor words.
    """
    path: str | None = None
    """Folder of a trained tokenizer to use instead of training one: a run, a model, or the output of `atento tokenizer
    train`.
    """
    lowercase: bool = False
    """Convert text to lower case. Outputs are then in lower case too. Accents are unchanged."""
    markers: tuple[str, ...] = ()
    """Special tokens that texts may spell, such as "[NUM]": in the data of the run, and wherever its model is used.
    The tokenizer of `path` or of `init.model` must have them; one that is trained gets them, and there they look like
    "<num>". Other special tokens in a text are read as ordinary characters.
    """

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= MAX_VOCABULARY:
            raise RecipeError(f"`tokenizer.vocab_size` must lie in 1 to {MAX_VOCABULARY:,}: got {self.vocab_size}")
