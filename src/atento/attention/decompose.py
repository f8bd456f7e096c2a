"""A score taken apart: how much is content, how much position, scheme by scheme, over tokens or words.

See docs/notes.md#b13.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atento.attention.multihead import MultiHeadAttention, Order


@torch.no_grad()
def decompose(
    attention: MultiHeadAttention,
    x: Tensor,
    *,
    order: Order | None = None,
    added: Tensor | None = None,
    norm: nn.Module | None = None,
) -> dict[str, Tensor]:
    """The scores of a self-attention, before mask and softmax, as named parts of shape (B,H,L,L) that sum to them.

    Args:
        x: (B,L,D), the stream that the layer reads.
        order: what position schemes tell this layer.
        added: (B|1,L,D), the part of `x` that position schemes added to it. Known before the first layer; later
            layers have mixed it with the rest, and without it all of x counts as content.
        norm: the norm that stands before the attention, if one does (`LayerNorm`, or an RMS norm, which takes no mean
            away): with the deviation it found taken as given, it is linear, so what it makes of each part is exact.

    Returns:
        "content", or with `added` "content-content", "content-position", "position-content" and
        "position-position" (query first); "rotary" where queries and keys are turned; and one entry a relative
        scheme, by the name of its class.
    """
    scale = attention.d_head**-0.5 if attention.scale is None else attention.scale
    shared = attention.n_heads // attention.n_kv_heads
    sides = {"content": x} if added is None else {"content": x - added, "position": added.expand_as(x)}
    projected: dict[str, tuple[Tensor, Tensor]] = {}
    for name, part in sides.items():
        constant = name == "content"  # biases, of the norm and the projection, count as content
        read = part if norm is None else _normed(norm, part, x, constant)
        q, k = _queries_and_keys(attention, read, constant)
        projected[name] = q * scale, k.repeat_interleave(shared, dim=1)
    if len(sides) == 1:
        q, k = projected["content"]
        parts = {"content": q @ k.transpose(-2, -1)}
    else:
        pairs = [(one, other) for one in projected for other in projected]
        parts = {f"{one}-{other}": projected[one][0] @ projected[other][1].transpose(-2, -1) for one, other in pairs}
    if order is None:
        return parts
    q, k = (torch.stack(both).sum(dim=0) for both in zip(*projected.values()))
    if order.turns:
        turned_q, turned_k = q, k
        for turn in order.turns:
            turned_q, turned_k = turn(turned_q), turn(turned_k)
        parts["rotary"] = turned_q @ turned_k.transpose(-2, -1) - q @ k.transpose(-2, -1)
        q = turned_q
    if order.relations is not None:
        shape = (*q.shape[:-1], k.shape[-2])
        for scheme in order.relations.schemes:
            name, found = type(scheme).__name__, scheme.scores(q, order.relations.places, scale).expand(shape)
            parts[name] = parts[name] + found if name in parts else found
    return parts


def parts_by_word(
    parts: Mapping[str, Tensor], rows: Sequence[int | None], columns: Sequence[int | None] | None = None
) -> dict[str, Tensor]:
    """The parts of the scores summed over words: what one word's tokens say to another's, part by part.

    A sum over pairs of tokens is linear, so the parts of a pair of words sum to the sum of its scores. Words of many
    pieces have large sums; divide by the number of pairs of tokens for a mean.

    Args:
        parts: as `decompose` or `score_parts` gives them, (B,H,T,S) each.
        rows: the word of each query's token, numbered from 0 as `Encoded.word_ids` are; None for a token of no word,
            such as a special one, which is left out.
        columns: the same of the keys; None: as `rows`.

    Returns:
        The same names; (B,H,W,W') each, W the words of the queries and W' of the keys.

    Raises:
        ValueError: not one word a token, or a negative one.
    """
    columns = rows if columns is None else columns
    summed = {}
    for name, part in parts.items():
        if (len(rows), len(columns)) != tuple(part.shape[-2:]):
            raise ValueError(
                f"each token must have a word, or None: got {len(rows)} and {len(columns)} for the scores "
                f"{tuple(part.shape)}"
            )
        summed[name] = _membership(rows, part) @ part @ _membership(columns, part).t()
    return summed


def _membership(words: Sequence[int | None], like: Tensor) -> Tensor:
    """Which tokens each word has: (W,L) of zeros and ones, in the type of `like`."""
    known = [word for word in words if word is not None]
    if known and min(known) < 0:
        raise ValueError(f"words are numbered from 0, None is no word: got {min(known)}")
    out = like.new_zeros(max(known, default=-1) + 1, len(words))
    for token, word in enumerate(words):
        if word is not None:
            out[word, token] = 1.0
    return out


def _normed(norm: Any, part: Tensor, whole: Tensor, constant: bool) -> Tensor:
    """What the norm of `whole` makes of a part of it."""
    if isinstance(norm, nn.LayerNorm):
        part, deviation = part - part.mean(dim=-1, keepdim=True), whole.var(dim=-1, unbiased=False, keepdim=True)
    else:
        deviation = whole.square().mean(dim=-1, keepdim=True)
    out: Tensor = part / torch.sqrt(deviation + norm.eps) * norm.weight
    bias = getattr(norm, "bias", None)
    return out + bias if constant and bias is not None else out


def _queries_and_keys(attention: MultiHeadAttention, x: Tensor, constant: bool) -> tuple[Tensor, Tensor]:
    """x (B,L,D) -> q (B,H,L,K), k (B,Hkv,L,K)."""
    bias = attention.input.bias if constant else None
    projected = nn.functional.linear(x, attention.input.weight, bias)
    both = projected[..., : (attention.n_heads + attention.n_kv_heads) * attention.d_head]
    by_head = both.unflatten(-1, (-1, attention.d_head)).transpose(1, 2)
    return by_head[:, : attention.n_heads], by_head[:, attention.n_heads :]
