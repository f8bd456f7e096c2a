"""A language model goes on from a text: whole outputs, or a stream of pieces of text."""

from collections.abc import Iterator, Sequence
from typing import Any

from atento.config.decoding import DecodingConfig
from atento.decoding.trace import Trace
from atento.networks import Decoder, RecurrentLM
from atento.tasks.strategies import Utility, constraints_of
from atento.tasks.writing import WrittenText, stream_one, write_all
from atento.text.tokenizer import Tokenizer


def prompt_ids(
    network: Decoder | RecurrentLM, tokenizer: Tokenizer, prompts: Sequence[str], template: str | None
) -> list[list[int]]:
    """Prompts as the model reads them, with the marks of `template` (None: the tokenizer's own); one at least."""
    encoded = (tokenizer.with_specials(ids, template=template)[0] for ids in tokenizer.encode_batch(list(prompts)))
    return [ids or [network.config.start_id] for ids in encoded]


def go_on(
    network: Decoder | RecurrentLM,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    config: DecodingConfig,
    *,
    template: str | None = None,
    steps: Any = None,
    utility: Utility | None = None,
    first: int = 0,
    trained: int | None = None,
    trace: Trace | None = None,
) -> list[list[WrittenText]]:
    """What follows each prompt, the prompt itself left out; best first where there are several.

    `steps` is the step function to use instead of the network's own; the others as in `write_all`.
    """
    return write_all(
        network if steps is None else steps,
        network.config,
        prompt_ids(network, tokenizer, prompts, template),
        config,
        tokenizer.decode,
        device=next(network.parameters()).device,
        marks=tokenizer.added(template=template),
        goes_on=True,
        constraints=constraints_of(config, tokenizer),
        utility=utility,
        first=first,
        trained=trained,
        trace=trace,
    )


def stream(
    network: Decoder | RecurrentLM,
    tokenizer: Tokenizer,
    prompt: str,
    config: DecodingConfig,
    *,
    template: str | None = None,
    steps: Any = None,
    row: int = 0,
    trained: int | None = None,
) -> Iterator[str]:
    """What `go_on` gives for prompt number `row`, as pieces of text that join to it (`writing.stream_one`)."""
    return stream_one(
        network if steps is None else steps,
        network.config,
        prompt_ids(network, tokenizer, [prompt], template)[0],
        config,
        tokenizer,
        device=next(network.parameters()).device,
        marks=tokenizer.added(template=template),
        goes_on=True,
        row=row,
        trained=trained,
    )
