"""Scheduled sampling: a forward pass in which some inputs of the decoder are the model's own tokens.

Papers: Bengio et al. 2015 (Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks); Mihaylova &
Martins 2019 (Scheduled Sampling for Transformers). See docs/notes.md#f2.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.base.splitmix import grid_hashes, uniform
from atento.config.sections.training import Schedule, ScheduledSamplingConfig
from atento.data.batches.batch import Batch, Part
from atento.networks.interface import Network, mask_of
from atento.networks.output import Output

HEAD = "vocabulary"  # the head whose tokens are fed back
_COIN_KEY, _TOKEN_KEY = 31, 32  # keep these hashes apart from one another
_LOGIT_ROWS = 512  # rows of logits that are in memory together
_NEARLY_ALL = 0.99  # exponential and inverse-sigmoid schedules approach a share of 1 and never reach it


def linear(config: ScheduledSamplingConfig, done: int, last: int) -> float:
    """k - c·i."""
    k = 1.0 if config.k is None else config.k
    c = (k - (1 - config.share)) / last if config.c is None else config.c  # falls to 1 - share in `last` updates
    return k - c * done


def exponential(config: ScheduledSamplingConfig, done: int, last: int) -> float:
    """k^i, with k < 1."""
    k = (1 - min(config.share, _NEARLY_ALL)) ** (1 / last) if config.k is None else config.k  # k^last = 1 - share
    return float(k**done)


def inverse_sigmoid(config: ScheduledSamplingConfig, done: int, last: int) -> float:
    """k / (k + exp(i / k)), with k ≥ 1; one that is left open gives the recipe's share after `last` updates."""
    k = config.k
    if k is None:  # k·ln(k·share / (1 - share)) = last, by bisection
        share = min(config.share, _NEARLY_ALL)
        low, k = 1.0, 2.0 + last + (1 - share) / share  # the k that is sought lies between
        for _ in range(100):
            middle = (low + k) / 2
            reached = middle * math.log(middle * share / (1 - share)) >= last  # grows with k
            low, k = (low, middle) if reached else (middle, k)
    return k / (k + math.exp(min(done / k, 700.0)))  # exp overflows above 709


# The probability that an input is the target's token, after `done` updates of a run that has `last` before its last.
SCHEDULES: Mapping[Schedule, Callable[[ScheduledSamplingConfig, int, int], float]] = {
    "linear": linear,
    "exponential": exponential,
    "inverse-sigmoid": inverse_sigmoid,
}


def own_share(config: ScheduledSamplingConfig, step: int, steps: int) -> float:
    """Return the share of the model's own tokens in update `step` of `steps`, counted from 1."""
    if config.share == 0:
        return 0.0
    gold = SCHEDULES[config.schedule](config, step - 1, max(1, steps - 1))  # `gold`: share of the target's own tokens
    return min(config.share, max(0.0, 1 - gold))


@dataclass(frozen=True)
class OwnTokens:
    """Which inputs of a forward pass are the model's own tokens: a function of (seed, step, row, position)."""

    share: float  # share of the inputs
    sample: bool  # whether a token is drawn from the model's distribution, instead of its most probable token
    seed: int  # seed of the run
    step: int  # number of the update
    # (B,) numbers of the examples in the data, so that it does not matter how an update is cut into parts
    rows: NDArray[np.int64]

    def chosen(self, length: int) -> NDArray[np.bool_]:
        """Return which inputs are own tokens, if they may be, (B,length)."""
        return self._uniform(length, _COIN_KEY) < self.share  # a coin for each input

    def tokens(self, network: Network, hidden: Tensor, at: Tensor, first: int = 0) -> Tensor:
        """Return the network's own tokens at chosen positions, (n,); no gradient flows through them.

        Args:
            network: gives the logits.
            hidden: (B,T,D) vectors from which tokens are predicted.
            at: (B,T) boolean, n of them True.
            first: position of the first vector in the target.
        """
        uniform = self._uniform(first + hidden.shape[1], _TOKEN_KEY)[:, first:] if self.sample else None
        draws = None if uniform is None else torch.from_numpy(uniform).to(hidden.device)[at]  # (n,)
        with torch.no_grad():
            vectors, blocks = hidden[at], []  # (n,D); logits of all of them at once may not fit
            for start in range(0, len(vectors), _LOGIT_ROWS):
                logits = network.project(vectors[start : start + _LOGIT_ROWS])
                own = None if draws is None else draws[start : start + _LOGIT_ROWS]
                blocks.append(logits.argmax(dim=-1) if own is None else _drawn(logits, own))
        return torch.cat(blocks) if blocks else torch.empty(0, dtype=torch.long, device=hidden.device)

    def _uniform(self, length: int, purpose: int) -> NDArray[np.float64]:
        """Return uniform numbers in [0, 1), (B,length)."""
        return uniform(grid_hashes(self.rows, length, self.seed, self.step, purpose))  # by example and position


def _drawn(logits: Tensor, uniform: Tensor) -> Tensor:
    """logits (n,V), uniform numbers (n,) -> tokens (n,) drawn from the softmax, by its cumulative sum."""
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)  # (n,V); float32 would lose rare tokens
    drawn = torch.searchsorted(cumulative, (uniform * cumulative[:, -1]).unsqueeze(1), right=True).squeeze(1)
    return drawn.clamp(max=logits.shape[-1] - 1)  # where rounding reaches the whole sum


def own_tokens(config: ScheduledSamplingConfig, seed: int, step: int, progress: float, part: Part) -> OwnTokens | None:
    """Return the own tokens of a part of an update; None: teacher forcing.

    Args:
        config: the section of the recipe.
        step: number of the update, from 1.
        progress: share of the run that is done after it, 0 to 1; 0 if the run has no known end.
    """
    share = own_share(config, step, round(step / progress) if progress else step)  # progress = step / steps
    if share <= 0:
        return None
    rows = np.arange(len(part.batch.labels[HEAD])) if part.rows is None else part.rows  # as in the batch
    return OwnTokens(share, config.tokens == "sample", seed, step, rows)


def sampled_forward(network: Any, batch: Batch, own: OwnTokens, random: Randomness | None) -> Output:
    """Run a network on a batch in which some inputs are its own tokens; the labels stay those of the batch.

    An input may be replaced if it is the label of the position before: not the start token, padding, a prefix that is
    given, nor the beginning of a packed text. Both passes of a Transformer have the same dropout.

    Returns:
        Output with `hidden` (B,T,D), the vectors that the labels are predicted from, and `encoded`.
    """
    name = "target_ids" if "target_ids" in batch.inputs else "ids"
    ids, labels = batch.inputs[name], batch.labels[HEAD]
    replaceable = (labels[:, :-1] >= 0) & (labels[:, :-1] == ids[:, 1:])  # (B,T-1): fed as it was predicted
    chosen = torch.from_numpy(own.chosen(replaceable.shape[1])).to(ids.device) & replaceable  # (B,T-1)
    arguments: dict[str, object] = {key: value for key, value in batch.inputs.items() if key != name}
    arguments |= mask_of(network, batch.mask)
    if name == "target_ids":  # the source is read once
        source_mask = arguments.get("source_token_mask")
        encoded = network.encode(arguments.pop("source_ids"), source_token_mask=source_mask, random=random)
        arguments |= {"source_ids": None, "encoded": encoded}
    arguments["project"] = False
    if network.stepwise:
        return _stepwise(network, name, ids, chosen, own, {**arguments, "random": random})
    with torch.no_grad():  # predict all tokens after gold inputs, replace the chosen inputs by them, and run again
        same_dropout = None if random is None else replace(random)  # a copy: the second pass draws the same masks
        first: Output = network(**{name: ids}, **arguments, random=same_dropout)
        mixed = ids.clone()
        mixed[:, 1:][chosen] = own.tokens(network, first.hidden[:, :-1], chosen)
    second: Output = network(**{name: mixed}, **arguments, random=random)
    return second


def _stepwise(
    network: Any, name: str, ids: Tensor, chosen: Tensor, own: OwnTokens, arguments: dict[str, Any]
) -> Output:
    """Run a recurrent network token by token: each input is gold or what the network has just predicted."""
    state = network.begin()
    tokens, hidden = ids[:, :1], []
    for t in range(ids.shape[1]):
        output: Output = network(**{name: tokens}, **arguments, state=state)
        hidden.append(output.hidden)
        if t + 1 < ids.shape[1]:
            tokens, here = ids[:, t + 1 : t + 2].clone(), chosen[:, t : t + 1]  # (B,1) each
            tokens[here] = own.tokens(network, output.hidden, here, first=t)  # `chosen`: reads its own word, not gold
    return Output(torch.cat(hidden, dim=1), encoded=arguments.get("encoded"))
