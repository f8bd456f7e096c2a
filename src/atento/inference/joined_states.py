"""Joins states of the fast step function: rows that have read different numbers of tokens are then stepped together.

It is the twin of `FastState.select`, by which rows leave. The caches are moved so that the last tokens of all rows are
in one column. Columns before the first token of a row are masked, and the row counts its positions from its own first
token, as prompts of different lengths do.
"""

from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.inference.fast_state import ROOM, Cache, FastState


@torch.inference_mode()
def joined(states: Sequence[FastState]) -> FastState:
    """The rows of all states in their order, in new memory.

    States whose outputs share caches in different numbers get a cache for each output. Columns that no row reads any
    more are left out: so the join of a single state makes its cache shorter after its longest rows have left.
    """
    width = states[0].width
    if any(state.width != width for state in states):
        width = 1
        states = [state if state.width == 1 else state.separated() for state in states]
    device = states[0].cache.keys[0].device
    own = [  # (R,) of each: the number of tokens that each output has read
        torch.full((state.rows,), state.length, device=device) if state.starts is None else state.length + state.starts
        for state in states
    ]
    length = max(int(lengths.max()) for lengths in own)
    dtype = reduce(torch.promote_types, (state.cache.keys[0].dtype for state in states))
    cache = Cache(
        _joined_columns([state.cache.keys for state in states], states, length, dtype),
        _joined_columns([state.cache.values for state in states], states, length, dtype),
    )
    starts = torch.cat(own) - length  # at or below 0
    equal_lengths = not bool(starts.any())
    result = FastState(
        cache,
        width,
        length,
        None if equal_lengths and width == 1 else _joined_mask(states, length, dtype),
        None if equal_lengths else starts,
        rows=len(starts),
        beam_cache_dtype=states[0].beam_cache_dtype,
    )
    cache.holder = result
    if states[0].source:
        _join_sources(result, states, dtype)
    return result


def _joined_columns(
    parts: Sequence[list[Tensor]], states: Sequence[FastState], length: int, dtype: torch.dtype
) -> list[Tensor]:
    """Keys or values of all layers: those of each state in the columns before `length`, and 0 elsewhere."""
    width, layers = states[0].width, []  # where a mask hides the columns: 0 times a NaN would be one
    for layer in zip(*parts):
        tensors = []
        for tensor, state in zip(layer, states):
            used, end = min(length, state.length) * width, state.length * width
            around = (0, 0, length * width - used, ROOM * width)  # columns before and behind
            tensors.append(F.pad(tensor[:, :, end - used : end].to(dtype), around))
        layers.append(torch.cat(tensors))
    return layers


def _joined_mask(states: Sequence[FastState], length: int, dtype: torch.dtype) -> Tensor:
    """(N,w,C·w), 0 in the columns of each output's own past and -inf elsewhere."""
    width, like, masks = states[0].width, states[0].cache.keys[0], []
    for state in states:
        used, end = min(length, state.length) * width, state.length * width
        if state.mask is None:
            past = like.new_zeros(state.rows // width, width, used, dtype=dtype)
        else:
            past = state.mask[:, :, end - used : end].to(dtype)
        masks.append(F.pad(past, (length * width - used, ROOM * width), value=float("-inf")))  # pasts end together
    return torch.cat(masks)


def _join_sources(result: FastState, states: Sequence[FastState], dtype: torch.dtype) -> None:
    """Set the sources: each once for the outputs of a text, padded to the longest."""
    outputs = [state.rows // len(state.source[0][0]) for state in states]  # of each source
    width = result.width if all(count % result.width == 0 for count in outputs) else 1
    repeats = [count // width for count in outputs]  # how often each is repeated
    longest = max(state.source[0][0].shape[2] for state in states)  # S
    for layer in range(len(states[0].source)):
        keys, values = (
            torch.cat(
                [
                    _padded(state.source[layer][part].to(dtype), -2, longest, 0.0).repeat_interleave(count, dim=0)
                    for state, count in zip(states, repeats)
                ]
            )
            for part in (0, 1)
        )
        result.source.append((keys, values))
    if any(state.source_mask is not None or state.source[0][0].shape[2] < longest for state in states):
        masks = []  # (M,1,1,longest), 0 for the tokens of each source and -inf behind them
        for state, count in zip(states, repeats):
            keys, mask = state.source[0][0], state.source_mask
            mask = keys.new_zeros(len(keys), 1, 1, keys.shape[2]) if mask is None else mask
            masks.append(_padded(mask.to(dtype), -1, longest, float("-inf")).repeat_interleave(count, dim=0))
        result.source_mask = torch.cat(masks)


def _padded(tensor: Tensor, dim: int, length: int, value: float) -> Tensor:
    """A tensor with that value behind one of its last two dimensions, up to `length`."""
    return F.pad(tensor, (*[0, 0] * (-dim - 1), 0, length - tensor.shape[dim]), value=value)
