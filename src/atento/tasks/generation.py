"""A language model goes on from a text: whole outputs, or a stream of pieces of text."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from atento.config.decoding import DecodingConfig
from atento.decoding import Greedy, Sample
from atento.decoding.rules import StopStrings
from atento.decoding.seeds import row_seed
from atento.decoding.stream import stream as token_stream
from atento.errors import UsageError
from atento.networks import Decoder, RecurrentLM
from atento.tasks.writing import WrittenText, most_tokens, rules_of, strategy_of, write_all
from atento.text.streaming import stream_text
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
) -> list[list[WrittenText]]:
    """What follows each prompt, the prompt itself left out; best first where there are several.

    `steps` is the step function to use instead of the network's own.
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
    )


def stream(
    network: Decoder | RecurrentLM,
    tokenizer: Tokenizer,
    prompt: str,
    config: DecodingConfig,
    *,
    template: str | None = None,
    steps: Any = None,
) -> Iterator[str]:
    """What `go_on` gives for one prompt, as pieces of text that join to it; `stop` strings are never shown.

    Raises:
        UsageError: a beam of more than 1, several outputs or `mbr`: those know their output only at its end.
    """
    if config.mbr is not None or config.n_best > 1 or (config.beam > 1 and not config.samples):
        raise UsageError("a stream is one output of greedy search or sampling: no beam, no `mbr`, no `n_best`")
    strategy = strategy_of(config)
    assert isinstance(strategy, Greedy | Sample)
    ids = prompt_ids(network, tokenizer, [prompt], template)[0]
    tokens = token_stream(
        network if steps is None else steps,
        torch.tensor([ids], device=next(network.parameters()).device),
        strategy,
        max_new_tokens=most_tokens(len(ids), tokenizer.added(template=template), config, network.config, goes_on=True),
        min_new_tokens=config.min_new_tokens,
        rules=rules_of(config),
        stop=StopStrings(tokenizer.decode, config.stop) if config.stop else None,
        seed=[row_seed(config.seed, 0)],
    )
    return stream_text(tokenizer, (token.id for token in tokens if token.end != "eos"), stop=config.stop)
