"""A language model continues prompts: how it reads them, and what writes their outputs."""

from collections.abc import Sequence
from typing import Any

from atento.config.sections.decoding import DecodingConfig
from atento.decoding.source import Source
from atento.inference.plain import WritingNetwork
from atento.inference.prefix_steps import PrefixStepFunction
from atento.networks import Encoder, Network
from atento.tasks.decoding_setup import constraints_of
from atento.tasks.task_model import Continuing
from atento.tasks.text_generation import TextGenerator
from atento.text.kinds import check_texts
from atento.text.tokenizer import Tokenizer


def plain_steps(network: Network) -> Source:
    """What a search takes by default: the network, or the steps of an encoder."""
    if isinstance(network, Encoder):
        return PrefixStepFunction(network)
    assert isinstance(network, WritingNetwork)
    return network


def prompt_ids(
    network: Continuing, tokenizer: Tokenizer, prompts: Sequence[str | Sequence[int]], template: str | None
) -> list[list[int]]:
    """Prompts as the model reads them, with the special tokens of `template` (None: its own); never empty.

    A prompt that is a list of ids has its special tokens already.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    encoded = (tokenizer.with_specials(ids, template=template)[0] for ids in tokenizer.encode_batch(texts))
    rows = (next(encoded) if isinstance(prompt, str) else list(prompt) for prompt in prompts)
    return [ids or [network.config.start_id] for ids in rows]


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


def prompt_generator(
    network: Continuing,
    tokenizer: Tokenizer,
    decoding: DecodingConfig,
    steps: Source,
    template: str | None = None,
    **more: Any,
) -> TextGenerator:
    """What continues prompts; an output does not repeat its prompt.

    Args:
        template: as in `prompt_ids`.
        more: attributes of `TextGenerator`.
    """

    def encode(prompts: Sequence[str | Sequence[int]]) -> list[list[int]]:
        check_texts([prompt for prompt in prompts if not isinstance(prompt, list)])
        return prompt_ids(network, tokenizer, prompts, template)

    return TextGenerator(
        steps,
        network.config,
        decoding,
        tokenizer.decode,
        next(network.parameters()).device,
        encode,
        n_special=tokenizer.added(template=template),
        is_prompt=True,
        constraints=constraints_of(decoding, tokenizer, network.config.writing, behind=True),
        **more,
    )
