"""The length of texts that a model was trained on, and the warnings about longer texts and outputs."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from atento.config.sections.network import NetworkConfig
from atento.errors import AtentoWarning, LongTextWarning, UsageError, counted

T = TypeVar("T")
_LONGEST = 65_536  # tokens that are compared with one another, unless a model was trained with more


def trained_length(config: Mapping[str, object], network: NetworkConfig) -> int | None:
    """Return the maximum tokens of a text in training, special tokens included; None: unknown.

    Args:
        config: its `config.json`. `max_len` is the `data.max_len` of the recipe that it was trained by.
        network: of a released family, or with learned positions, its `max_len` says it otherwise.
    """
    max_len = config.get("max_len")
    if isinstance(max_len, int) and not isinstance(max_len, bool) and max_len > 0:
        return max_len
    return network.max_len if network.family else network.position_limit


def most_read(network: NetworkConfig, trained: int | None) -> int | None:
    """Return the most tokens of a text that a network reads at once; None: any number.

    They are its learned positions. A Transformer without them compares each token with all others, in time that grows
    with the square of the length: it reads 65,536, or as many as it was trained with if these are more.
    """
    compares_all = network.architecture in ("encoder", "decoder", "encoder-decoder") and (
        network.attention.sparse is None and (network.mask is None or network.mask.kind != "window")
    )
    if network.position_limit is not None or not compares_all:
        return network.position_limit
    return max(_LONGEST, trained or 0)


def check_lengths(lengths: Sequence[int], network: NetworkConfig, trained: int | None, result: str = "outputs") -> None:
    """Warn once, with counts, of texts (their tokens, special ones with them) that are longer than `trained`.

    Texts of no tokens are not counted. `result` is what comes of them.

    Raises:
        UsageError: a text has more tokens than `most_read` allows; learned positions refuse it themselves.
    """
    real = [length for length in lengths if length]
    limit, longest = most_read(network, trained), max(real, default=0)
    if network.position_limit is None and limit is not None and longest > limit:
        raise UsageError(
            f"a text has {longest:,} tokens, and the network reads at most {limit:,} at once: divide it into parts, "
            "one a line"
        )
    long = sum(trained is not None and length > trained for length in real)
    if long and trained is not None:
        warnings.warn(LongTextWarning(long, len(real), longest, trained, result), stacklevel=3)


def context_limit(network: NetworkConfig) -> int | None:
    """Return the most positions that a released network with rotations was trained with, which it can pass; else None.

    It is `max_position_embeddings` of its `config.json`. Rotations that go by the length of a text have no such limit.
    """
    rotations = [scheme for scheme in network.schemes if scheme.kind == "rotary"]
    grows = any(scheme.stretch is not None and scheme.stretch.dynamic for scheme in rotations)
    return network.max_len if network.family and rotations and not grows else None


def warn_of_context(prompts: Iterable[int], outputs: Iterable[int], network: NetworkConfig) -> None:
    """Warn once, with counts, of outputs that go past the positions that the network was trained with.

    Args:
        prompts: the number of tokens of each prompt.
        outputs: the most tokens of an output of each.
        network: the configuration of the network.
    """
    limit = context_limit(network)
    ends = [prompt + output for prompt, output in zip(prompts, outputs) if output]
    long = sum(limit is not None and end > limit for end in ends)
    if long and limit is not None:
        warnings.warn(
            f"{counted(long, 'output')} of {len(ends):,} {'goes' if long == 1 else 'go'} past the {limit:,} positions "
            f"that the model was trained with (the longest, with its prompt, has {max(ends):,} tokens): it may be "
            "wrong from there on; `max_new_tokens` limits it",
            AtentoWarning,
            stacklevel=3,
        )


def watched(tokens: Iterable[T], prompt: int, network: NetworkConfig) -> Iterator[T]:
    """The tokens of an output, with the warning of `warn_of_context` where it passes the positions."""
    limit = context_limit(network)
    for number, token in enumerate(tokens, 1):
        if limit is not None and prompt + number == max(limit, prompt) + 1:
            warn_of_context([prompt], [number], network)
        yield token
