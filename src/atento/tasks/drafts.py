"""From `decoding.draft` to what a search takes: copies of n-grams, a small model with the same vocabulary, or both."""

from functools import lru_cache

from atento.config.sections.decoding import NGRAMS, DecodingConfig
from atento.decoding.draft import Draft
from atento.errors import CapabilityError
from atento.networks import EncoderDecoder
from atento.tasks.task_model import TaskModel
from atento.text.tokenizer import Tokenizer


def draft_of(model: TaskModel, decoding: DecodingConfig) -> Draft | None:
    """The draft that a decoding configuration names; None if it names none.

    Raises:
        CapabilityError: the model that is named has another vocabulary, or is of another architecture.
    """
    if not decoding.draft:
        return None
    tokenizer = model.tokenizer
    source = tokenizer is None or _same_vocabulary(tokenizer, tokenizer.target)  # ids of the source can be copied
    name = next((name for name in decoding.draft if name != NGRAMS), None)
    has_ngrams = NGRAMS in decoding.draft
    if name is None:
        return Draft(has_ngrams, None, decoding.draft_tokens, source=source)
    small = model.drafting_model(name)
    reads_source = isinstance(model.network, EncoderDecoder)
    if isinstance(small.network, EncoderDecoder) != reads_source:
        kinds = f"{type(small.network).__name__} and {type(model.network).__name__}"
        raise CapabilityError(f"`draft` must be a model of the same architecture as {model.requested}: got {kinds}")
    if not _same_vocabularies(small.tokenizer, tokenizer):
        raise CapabilityError(
            f"`draft` must have the vocabulary of {model.requested}: that of {small.requested} is another one"
        )
    longest = small.network.config.position_limit
    rows = model.network.config.target_vocab_size
    return Draft(has_ngrams, small.step_function(), decoding.draft_tokens, longest, source, rows)


def _same_vocabularies(first: Tokenizer | None, second: Tokenizer | None) -> bool:
    """Whether two models have tokenizers with the same vocabularies, of sources and of outputs."""
    if first is None or second is None:
        return False
    return _same_vocabulary(first, second) and _same_vocabulary(first.target, second.target)


@lru_cache(maxsize=64)
def _same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether every id names the same token."""
    if first is second or first.fingerprint == second.fingerprint:
        return True
    ids = range(first.vocab_size)
    return first.vocab_size == second.vocab_size and first.tokens(ids) == second.tokens(ids)
