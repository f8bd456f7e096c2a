"""Translation and summarization: texts in, texts out, in the same order; or one text as a stream of pieces."""

from collections.abc import Iterator, Sequence

from atento.config.sections.decoding import DecodingConfig
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.records.reader import Split
from atento.decoding import Hypothesis
from atento.decoding.contract import AnyStepFunction
from atento.decoding.draft import Draft
from atento.decoding.trace import Trace
from atento.networks import Seq2Seq
from atento.tasks.strategies import Utility, constraints_of
from atento.tasks.writing import WrittenText, stream_one, write_all
from atento.text.templates import Template
from atento.text.tokenizer import Tokenizer


def gold(split: Split) -> list[str]:
    """The targets of a split."""
    return split["target"]


def translate(
    network: Seq2Seq,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    config: DecodingConfig,
    *,
    step_function: AnyStepFunction | None = None,
    utility: Utility | None = None,
    first: int = 0,
    trained: int | None = None,
    trace: Trace | None = None,
    draft: Draft | None = None,
    special_tokens: Template | None = None,
    longest: int | None = None,
    words_only: bool = False,
) -> list[list[WrittenText]]:
    """The n best translations of each text, best first; a blank text has one empty translation.

    With `words_only`, a text without a letter or digit, such as emoji, has one output, itself.

    `step_function` replaces the network's plain step function, and `special_tokens` the usual ones of the source; a
    source of more than `longest` tokens is cut before its last one, EOS. The other arguments are those of `write_all`.
    """
    special_tokens = special_tokens or special_tokens_of(network.config, tokenizer)
    sources = source_ids(tokenizer, texts, special_tokens, words_only=words_only)
    if longest is not None:
        sources = [ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in sources]
    results = write_all(
        network if step_function is None else step_function,
        network.config,
        sources,
        config,
        tokenizer.target.decode,
        device=next(network.parameters()).device,
        n_special=special_tokens.added(False),
        constraints=constraints_of(config, tokenizer.target, network.config.writing),
        utility=utility,
        first=first,
        trained=trained,
        trace=trace,
        draft=draft,
    )
    return [outputs or [unsearched(text, words_only)] for text, outputs in zip(texts, results)]


def has_words(text: str) -> bool:
    """Whether a text has a letter, of any script, or a digit."""
    return any(char.isalnum() for char in text)


def unsearched(text: str, words_only: bool) -> WrittenText:
    """The output of a source that has no ids: empty, or with `words_only` the text itself if it is not blank."""
    as_it_is = words_only and bool(text.strip()) and not has_words(text)
    return WrittenText(text if as_it_is else "", Hypothesis([], 0.0, 0.0, []))


def source_ids(
    tokenizer: Tokenizer, texts: Sequence[str], special_tokens: Template, *, words_only: bool = False
) -> list[list[int]]:
    """Sources as the model reads them; empty for a blank text, and with `words_only` for one without words."""
    if words_only:
        texts = [text if has_words(text) else "" for text in texts]
    return [special_tokens.apply(ids)[0] if ids else [] for ids in tokenizer.encode_batch(list(texts))]


def stream_translation(
    network: Seq2Seq,
    tokenizer: Tokenizer,
    text: str,
    config: DecodingConfig,
    *,
    step_function: AnyStepFunction | None = None,
    row: int = 0,
    trained: int | None = None,
    special_tokens: Template | None = None,
    draft: Draft | None = None,
    words_only: bool = False,
) -> Iterator[str]:
    """The translation of text number `row` in pieces (`writing.stream_one`); none for a blank text.

    With `words_only`, a text without a letter or digit is its own translation.
    """
    if words_only and not has_words(text):
        return iter((text,) if text.strip() else ())
    ids = tokenizer.encode(text)
    if not ids:
        return iter(())
    special_tokens = special_tokens or special_tokens_of(network.config, tokenizer)
    return stream_one(
        network if step_function is None else step_function,
        network.config,
        special_tokens.apply(ids)[0],
        config,
        tokenizer.target,
        device=next(network.parameters()).device,
        n_special=special_tokens.added(False),
        row=row,
        trained=trained,
        draft=draft,
    )
