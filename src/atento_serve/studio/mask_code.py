"""Masks written as code: the named masks of `atento.attention.masks`, joined by `&`, `|` and `~`; nothing is run."""

import ast
from collections.abc import Callable
from typing import Any

import torch

from atento.attention import masks
from atento.attention.masks import Mask
from atento.base.errors import UsageError

LONGEST = 4000  # characters
_MOST = 4096  # the largest number
_DEEPEST = 64  # masks within one another, each a call within a call
Value = object
"""A number, a list of values, or a mask."""


def _of_lengths(make: Callable[..., Mask]) -> Callable[[Value], Mask]:
    """A mask that takes lengths, one a row, as a list."""
    return lambda value: make(torch.tensor(value) if isinstance(value, list) else value)


NAMES: dict[str, Callable[..., Mask]] = {
    "bidirectional": masks.bidirectional,
    "causal": masks.causal,
    "lookahead": masks.lookahead,
    "prefix": _of_lengths(masks.prefix),
    "window": masks.window,
    "dilated": masks.dilated,
    "global_tokens": masks.global_tokens,
    "padding": _of_lengths(masks.padding),
    "documents": lambda ids: masks.documents(torch.tensor([ids] if ids and isinstance(ids[0], int) else ids)),
    "allowed_pairs": masks.allowed_pairs,
    "blocks": lambda allowed, size: masks.blocks(torch.tensor(allowed, dtype=torch.bool), size),
    "per_head": masks.per_head,
}
"""The masks by name: all but `predicate`, which takes a function."""


def mask_of(code: str) -> Mask:
    """The mask that some code says.

    Raises:
        UsageError: it is not the code of a mask, or its numbers do not fit.
    """
    try:
        return _mask(parsed(code), 0)
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:  # of the masks themselves
        raise UsageError(f"the mask cannot be made: {error}") from None


def parsed(code: str) -> ast.expr:
    """The code as a tree.

    Raises:
        UsageError: it is too long, or no expression.
    """
    if len(code) > LONGEST:
        raise UsageError(f"the code of a mask has at most {LONGEST:,} characters: got {len(code):,}")
    try:
        return ast.parse(code.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UsageError(f"this is no code of a mask: {code.strip()[:60]!r}; try causal() & window(3, 0)") from None


def painted(code: str, adds: list[tuple[int, int]], removes: list[tuple[int, int]]) -> str:
    """The code of the same mask with some pairs (query, key) added and some removed."""
    tree = parsed(code)
    if adds:
        tree = ast.BinOp(tree, ast.BitOr(), parsed(f"allowed_pairs({adds})"))
    if removes:
        tree = ast.BinOp(tree, ast.BitAnd(), parsed(f"~allowed_pairs({removes})"))
    return ast.unparse(tree)


def _mask(node: ast.expr, depth: int) -> Mask:
    if depth > _DEEPEST:
        raise UsageError(f"a mask has at most {_DEEPEST} masks within one another")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        left, right = _mask(node.left, depth + 1), _mask(node.right, depth + 1)
        return left & right if isinstance(node.op, ast.BitAnd) else left | right  # `&` binds as in Python
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_mask(node.operand, depth + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
        named = {str(keyword.arg): _value(keyword.value, depth + 1) for keyword in node.keywords}
        return NAMES[node.func.id](*(_value(one, depth + 1) for one in node.args), **named)
    raise UsageError(f"a mask is one of {', '.join(NAMES)}, joined by &, | and ~: got {ast.unparse(node)[:60]!r}")


def _value(node: ast.expr, depth: int) -> Any:
    """A number, a list of values, or a mask."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        values = [_value(one, depth + 1) for one in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -_value(node.operand, depth)
    # True and False are numbers here
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, int)):
        if node.value is not None and node.value > _MOST:
            raise UsageError(f"a number in a mask is at most {_MOST:,}: got {node.value:,}")
        return node.value
    return _mask(node, depth)
