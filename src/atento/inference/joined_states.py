"""Joins states of the fast step function: rows that have read different numbers of tokens are then stepped together.

It is the twin of `FastState.select`, by which rows leave. The caches are moved so that the last tokens of all rows are
in one column. Columns before the first token of a row are masked, and the row counts its positions from its own first
token, as prompts of different lengths do.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from atento.inference.fast_state import ROOM, Cache, FastState


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
    is_level = not bool(starts.any())
    result = FastState(
        cache,
        width,
        length,
        None if is_level and width == 1 else _joined_mask(states, length, dtype),
        None if is_level else starts,
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
    """Keys or values of all layers: those of each state in the columns before `length`."""
    width, layers = states[0].width, []
    for layer in zip(*parts):
        first = layer[0]
        count = sum(len(tensor) for tensor in layer)
        out = first.new_empty(count, first.shape[1], (length + ROOM) * width, first.shape[3], dtype=dtype)
        row = 0
        for tensor, state in zip(layer, states):
            used = min(length, state.length) * width
            rows = out[row : row + len(tensor)]
            rows[:, :, : length * width - used] = 0  # masked, but 0 times a NaN would be one
            end = state.length * width
            rows[:, :, length * width - used : length * width] = tensor[:, :, end - used : end]
            row += len(tensor)
        layers.append(out)
    return layers


def _joined_mask(states: Sequence[FastState], length: int, dtype: torch.dtype) -> Tensor:
    """(N,w,C·w), 0 in the columns of each output's own past and -inf elsewhere."""
    width = states[0].width
    texts = sum(state.rows for state in states) // width  # N
    like = states[0].cache.keys[0]
    mask = like.new_full((texts, width, (length + ROOM) * width), float("-inf"), dtype=dtype)
    text = 0
    for state in states:
        used, count = min(length, state.length) * width, state.rows // width
        past = mask[text : text + count, :, length * width - used : length * width]  # pasts end at the same column
        if state.mask is None:
            past.fill_(0.0)
        else:
            end = state.length * width
            past.copy_(state.mask[:, :, end - used : end])
        text += count
    return mask


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
                    _repeated(_padded(state.source[layer][part].to(dtype), longest), count)
                    for state, count in zip(states, repeats)
                ]
            )
            for part in (0, 1)
        )
        result.source.append((keys, values))
    if any(state.source_mask is not None or state.source[0][0].shape[2] < longest for state in states):
        result.source_mask = torch.cat(
            [_repeated(_source_mask(state, longest, dtype), count) for state, count in zip(states, repeats)]
        )


def _padded(tensor: Tensor, length: int) -> Tensor:
    """Keys or values (M,Hkv,S,K) of sources with zeros up to `length`."""
    missing = length - tensor.shape[2]
    return torch.nn.functional.pad(tensor, (0, 0, 0, missing)) if missing else tensor


def _repeated(tensor: Tensor, count: int) -> Tensor:
    """Each row so many times in a row."""
    return tensor if count == 1 else tensor.repeat_interleave(count, dim=0)


def _source_mask(state: FastState, length: int, dtype: torch.dtype) -> Tensor:
    """(M,1,1,length), 0 for the tokens of each source and -inf behind them."""
    keys = state.source[0][0]
    mask = keys.new_full((len(keys), 1, 1, length), float("-inf"), dtype=dtype)
    mask[..., : keys.shape[2]] = 0.0 if state.source_mask is None else state.source_mask
    return mask
