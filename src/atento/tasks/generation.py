"""A language model continues prompts: whole outputs, or a stream of pieces of text."""

from collections.abc import Iterator, Sequence

from atento.config.decoding import DecodingConfig
from atento.decoding.contract import AnyStepFunction
from atento.decoding.trace import Trace
from atento.networks import Decoder, RecurrentLM
from atento.tasks.strategies import Utility, constraints_of
from atento.tasks.writing import WrittenText, stream_one, write_all
from atento.text.tokenizer import Tokenizer


def prompt_ids(
    network: Decoder | RecurrentLM, tokenizer: Tokenizer, prompts: Sequence[str], template: str | None
) -> list[list[int]]:
    """Prompts as the model reads them, with the special tokens of `template` (None: its own); never empty."""
    encoded = (tokenizer.with_specials(ids, template=template)[0] for ids in tokenizer.encode_batch(list(prompts)))
    return [ids or [network.config.start_id] for ids in encoded]


def continue_prompts(
    network: Decoder | RecurrentLM,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    config: DecodingConfig,
    *,
    template: str | None = None,
    step_function: AnyStepFunction | None = None,
    utility: Utility | None = None,
    first: int = 0,
    trained: int | None = None,
    trace: Trace | None = None,
) -> list[list[WrittenText]]:
    """What follows each prompt, the prompt itself left out; best first where there are several.

    `step_function` is the one to use instead of the network's plain one; the others as in `write_all`.
    """
    return write_all(
        network if step_function is None else step_function,
        network.config,
        prompt_ids(network, tokenizer, prompts, template),
        config,
        tokenizer.decode,
        device=next(network.parameters()).device,
        n_special=tokenizer.added(template=template),
        is_prompt=True,
        constraints=constraints_of(config, tokenizer),
        utility=utility,
        first=first,
        trained=trained,
        trace=trace,
    )


def stream_continuation(
    network: Decoder | RecurrentLM,
    tokenizer: Tokenizer,
    prompt: str,
    config: DecodingConfig,
    *,
    template: str | None = None,
    step_function: AnyStepFunction | None = None,
    row: int = 0,
    trained: int | None = None,
) -> Iterator[str]:
    """What `continue_prompts` gives for prompt number `row`, in pieces (`writing.stream_one`)."""
    return stream_one(
        network if step_function is None else step_function,
        network.config,
        prompt_ids(network, tokenizer, [prompt], template)[0],
        config,
        tokenizer,
        device=next(network.parameters()).device,
        n_special=tokenizer.added(template=template),
        is_prompt=True,
        row=row,
        trained=trained,
    )
