"""Translation and summarization: what writes the outputs of sources."""

from collections.abc import Sequence
from typing import Any

from atento.config.sections.decoding import DecodingConfig
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.records.splits import Split
from atento.decoding.contract import AnyStepFunction
from atento.decoding.source import Source
from atento.networks import Seq2Seq
from atento.tasks.decoding_setup import constraints_of
from atento.tasks.text_writing import Writer, WrittenText, has_words
from atento.text.normalization import check_texts
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer


def gold(split: Split) -> list[str]:
    """The targets of a split."""
    return split["target"]


def translate(
    network: Seq2Seq,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    decoding: DecodingConfig,
    *,
    step_function: AnyStepFunction | None = None,
    longest: int | None = None,
) -> list[list[WrittenText]]:
    """The n best translations of each text, best first; a blank text has one empty translation.

    `step_function` replaces the network's plain one; a source of more than `longest` tokens is cut before its last one,
    EOS.
    """
    steps = network if step_function is None else step_function
    return source_writer(network, tokenizer, decoding, steps, longest=longest).write(texts)


def source_writer(
    network: Seq2Seq,
    tokenizer: Tokenizer,
    decoding: DecodingConfig,
    steps: Source,
    *,
    special_tokens: Template | None = None,
    longest: int | None = None,
    words_only: bool = False,
    **more: Any,
) -> Writer:
    """What writes the outputs of sources.

    Args:
        network, tokenizer: of the model.
        decoding: the options of decoding.
        steps: the step function.
        special_tokens: those of a source, in place of the usual ones.
        longest: as in `translate`.
        words_only, more: attributes of `Writer`.
    """
    special_tokens = special_tokens or special_tokens_of(network.config, tokenizer)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        check_texts(texts)
        # without words there is nothing to search: the text is the output
        searched = [text if not words_only or has_words(text) else "" for text in texts]
        sources = [special_tokens.apply(ids)[0] if ids else [] for ids in tokenizer.encode_batch(searched)]
        # the last token is EOS, or what ends a source
        return [ids if longest is None or len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in sources]

    return Writer(
        steps,
        network.config,
        decoding,
        tokenizer.target.decode,
        next(network.parameters()).device,
        encode,
        n_special=special_tokens.added(False),
        words_only=words_only,
        constraints=constraints_of(decoding, tokenizer.target, network.config.writing),
        **more,
    )
