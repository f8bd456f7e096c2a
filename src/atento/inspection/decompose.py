"""Decompose attention scores into content and position terms, by token or by word (docs/notes.md#b13)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention, PositionTerms
from atento.attention.relative_disentangled import ProjectedDisentangled


@torch.no_grad()
def decompose(
    attention: MultiHeadAttention,
    x: Tensor,
    *,
    position_terms: PositionTerms | None = None,
    added: Tensor | None = None,
    norm: nn.Module | None = None,
) -> dict[str, Tensor]:
    """Decompose the scores of a self-attention, before mask and softmax, into named terms that sum to them.

    Args:
        x: (B,L,D), the input of the layer.
        position_terms: what position schemes contribute to this layer.
        added: (B|1,L,D), the part of `x` that position schemes added to it. It is known before the first layer only;
            without it all of `x` counts as content.
        norm: the norm before the attention, if there is one (`LayerNorm` or an RMS norm). With its deviation held
            constant it is linear, so that the terms are exact.

    Returns:
        Terms of shape (B,H,L,L): "content", or with `added` "content-content", "content-position",
        "position-content" and "position-position" (query first); "rotary" if queries and keys are rotated; and one
        for each relative scheme, under the name of its class, or two for `Disentangled`: "content-to-position" and
        "position-to-content".
    """
    scale = attention.d_head**-0.5 if attention.scale is None else attention.scale
    shared = attention.n_heads // attention.n_kv_heads  # query heads to a head of keys
    of_both = [attention.n_heads, attention.n_kv_heads]
    width = sum(of_both) * attention.d_head
    sides = {"content": x} if added is None else {"content": x - added, "position": added.expand_as(x)}
    projected: dict[str, tuple[Tensor, Tensor]] = {}
    for name, part in sides.items():
        constant = name == "content"  # the biases of the norm and the projection count as content
        normed = part if norm is None else _normed(norm, part, x, constant)
        bias = attention.input.bias if constant else None
        both = nn.functional.linear(normed, attention.input.weight, bias)[..., :width]  # without the values
        q, k = (
            both.unflatten(-1, (-1, attention.d_head)).transpose(1, 2).split(of_both, dim=1)
        )  # (B,H,L,K), (B,Hkv,L,K)
        projected[name] = q * scale, k.repeat_interleave(shared, dim=1)  # (B,H,L,K) each
    if len(sides) == 1:
        q, k = projected["content"]
        parts = {"content": q @ k.transpose(-2, -1)}  # (B,H,L,L)
    else:
        pairs = [(query, key) for query in projected for key in projected]
        parts = {f"{query}-{key}": projected[query][0] @ projected[key][1].transpose(-2, -1) for query, key in pairs}
    if position_terms is None:
        return parts
    q, k = (torch.stack(both).sum(dim=0) for both in zip(*projected.values()))  # the whole queries and keys
    rotated_q, rotated_k = q, k
    if position_terms.rotations:
        for rotation in position_terms.rotations:
            rotated_q, rotated_k = rotation(rotated_q), rotation(rotated_k)
        parts["rotary"] = rotated_q @ rotated_k.transpose(-2, -1) - q @ k.transpose(-2, -1)
    if position_terms.relative is not None:  # what rotation changes
        shape = (*q.shape[:-1], k.shape[-2])  # (B,H,L,L)
        relative = position_terms.relative.projected(attention.project_positions)
        for scheme in relative.schemes:
            if isinstance(scheme, ProjectedDisentangled):
                terms = scheme.parts(rotated_q, rotated_k, relative.positions, scale)
            else:
                terms = {type(scheme).__name__: scheme.scores(rotated_q, rotated_k, relative.positions, scale)}
            for name, term in terms.items():
                parts[name] = parts[name] + term.expand(shape) if name in parts else term.expand(shape)
    return parts


def parts_by_word(
    parts: Mapping[str, Tensor], rows: Sequence[int | None], columns: Sequence[int | None] | None = None
) -> dict[str, Tensor]:
    """Sum the terms of the scores over the tokens of words.

    The terms of a pair of words sum to the sum of its scores. Words of many tokens have large sums; divide by the
    number of token pairs for a mean.

    Args:
        parts: from `decompose` or `score_parts`, (B,H,T,S) each.
        rows: the word of each query's token, numbered from 0 as in `Encoded.word_ids`; None for a token outside words,
            such as a special token, which is left out.
        columns: the same for the keys; `rows` if not given.

    Returns:
        The same names; (B,H,W,W') each, for W words of the queries and W' words of the keys.

    Raises ValueError: the number of words is not the number of tokens, or a word is negative.
    """
    columns = rows if columns is None else columns
    summed = {}
    for name, part in parts.items():
        if (len(rows), len(columns)) != tuple(part.shape[-2:]):
            got = f"{len(rows)} and {len(columns)} for scores of shape {tuple(part.shape)}"
            raise ValueError(f"each token must have a word or None: got {got}")
        summed[name] = _membership(rows, part) @ part @ _membership(columns, part).t()  # (W,T) (T,S) (S,W')
    return summed


def _membership(words: Sequence[int | None], like: Tensor) -> Tensor:
    """The tokens of each word as a matrix (W,L) of zeros and ones, in the dtype of `like`."""
    known = [word for word in words if word is not None]
    if known and min(known) < 0:
        raise ValueError(f"words must be numbered from 0, or None: got {min(known)}")
    out = like.new_zeros(max(known, default=-1) + 1, len(words))  # (W,L)
    for token, word in enumerate(words):
        if word is not None:
            out[word, token] = 1.0
    return out


def _normed(norm: Any, part: Tensor, x: Tensor, constant: bool) -> Tensor:
    """The contribution of `part` to the norm of `x`."""
    if isinstance(norm, nn.LayerNorm):  # an RMSNorm subtracts no mean
        part, deviation = part - part.mean(dim=-1, keepdim=True), x.var(dim=-1, unbiased=False, keepdim=True)
    else:
        deviation = x.square().mean(dim=-1, keepdim=True)  # mean square, as an RMS norm has it
    out: Tensor = part / torch.sqrt(deviation + norm.eps) * getattr(norm, "gain", norm.weight)
    bias = getattr(norm, "bias", None)
    return out + bias if constant and bias is not None else out  # once: the parts add up to the whole
