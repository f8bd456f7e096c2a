"""What a model writes from: prompts, or sources, as ids; and what writes their outputs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from atento.config.sections.decoding import DecodingConfig
from atento.data.batches.special_tokens import special_tokens_of
from atento.tasks.decoding_setup import constraints_of
from atento.tasks.task_model import Continuing, TaskModel, tokenizer_of
from atento.tasks.text_generation import TextGenerator
from atento.text.kinds import check_texts
from atento.text.protected_spans import has_words
from atento.text.specials import Template
from atento.text.tokenizer import Tokenizer


def prompt_ids(model: TaskModel, prompts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """Prompts as the model reads them, with their special tokens; never empty.

    A prompt that is a list of ids has its special tokens already.
    """
    check_texts([prompt for prompt in prompts if not isinstance(prompt, list)])
    tokenizer, template = tokenizer_of(model), model.prompt_template
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = (tokenizer.with_specials(ids, template=template)[0] for ids in tokenizer.encode_batch(texts))
    rows = (next(encoded) if isinstance(prompt, str) else list(prompt) for prompt in prompts)
    return [ids or [model.network.config.start_id] for ids in rows]


def continuation_ids(tokenizer: Tokenizer, prompts: Sequence[str], texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts; those of one that begins with white space are the ids that it has behind its prompt.

    By themselves they would begin with a space too many where the tokenizer begins every text with one (Llama).
    """
    found = tokenizer.encode_batch(list(texts))
    spaced = [number for number, text in enumerate(texts) if text[:1].isspace()]
    before = tokenizer.encode_batch([prompts[number] for number in spaced])
    whole = tokenizer.encode_batch([prompts[number] + texts[number] for number in spaced])
    for number, prompt, ids in zip(spaced, before, whole):
        if prompt and ids[: len(prompt)] == prompt:
            found[number] = ids[len(prompt) :]
    return found


def _source_ids(model: TaskModel, template: Template, words_only: bool, texts: Sequence[str]) -> list[list[int]]:
    """Sources as the model reads them; none for a text that is not searched."""
    check_texts(texts)
    # without words there is nothing to search: the text is the output
    searched = [text if not words_only or has_words(text) else "" for text in texts]
    sources = [template.apply(ids)[0] if ids else [] for ids in tokenizer_of(model).encode_batch(searched)]
    longest = model.source_limit  # the last token is EOS, or what ends a source
    return [ids if longest is None or len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in sources]


def text_generator(
    model: TaskModel,
    decoding: DecodingConfig,
    special_tokens: Template | None = None,
    *,
    words_only: bool = False,
    **more: Any,
) -> TextGenerator:
    """What writes the outputs of a model: of sources, or behind prompts, which they do not repeat.

    Args:
        special_tokens: those of a source, in place of the usual ones.
        words_only, more: attributes of `TextGenerator`.
    """
    network, tokenizer, is_prompt = model.network, tokenizer_of(model), isinstance(model.network, Continuing)
    if is_prompt:
        special_tokens = tokenizer.template(model.prompt_template)
    template = special_tokens or special_tokens_of(network.config, tokenizer)
    stepwise = decoding.exact or more.get("draft") is not None
    return TextGenerator(
        model.step_function() if stepwise else model.search_function(),
        network.config,
        decoding,
        tokenizer.target.decode,
        next(network.parameters()).device,
        partial(prompt_ids, model) if is_prompt else partial(_source_ids, model, template, words_only),
        n_special=template.added(False),
        is_prompt=is_prompt,
        words_only=words_only,
        constraints=constraints_of(decoding, tokenizer.target, network.config.writing, behind=is_prompt),
        **more,
    )
