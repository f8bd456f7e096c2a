"""What runs the layers of a network on the CPU in float32: PyTorch, or ONNX Runtime; a table by sizes and features."""

from importlib.metadata import version
from importlib.util import find_spec
from typing import Literal, get_args

import torch

from atento.attention.multihead import Projection
from atento.attention.relative import Shaw
from atento.attention.relative_terms import ProjectedScheme
from atento.errors import CapabilityError, MissingPartError, UsageError, install_hint
from atento.networks.stack.stack import Stack, linear_maps

Engine = Literal["auto", "torch", "onnx"]
ENGINES = get_args(Engine)
# Numbers of the largest weight of a layer up to which `auto` takes ONNX Runtime (docs/decisions/onnx-steps.md).
_LARGEST = 1 << 20
_ROWS_BESIDE_THREADS, _ROWS_BESIDE_AVX512 = 16, 64


def has_onnx() -> bool:
    """Whether the packages of the extra `onnx` are installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def takes_graph(engine: Engine, stack: Stack, precision: str) -> bool:
    """Whether ONNX Runtime runs a stack.

    Args:
        engine: "auto" takes it for what is faster by it, where the extra `onnx` is installed.
        stack: one that the fast passes support.
        precision: of their products.

    Raises:
        UsageError: no such engine. MissingPartError: "onnx" without the extra. CapabilityError: "onnx" for what the
            graphs do not hold; names it.
    """
    if engine not in ENGINES:
        raise UsageError(f"`engine` must be one of {', '.join(ENGINES)}: got {engine!r}")
    if engine == "torch":
        return False
    reason = f"the precision {precision}" if precision != "float32" else why_no_graph(stack)
    if engine == "onnx":
        if not has_onnx():
            raise MissingPartError(f"`engine: onnx` needs onnx and onnxruntime: {install_hint('onnx')}")
        if reason is not None:
            raise CapabilityError(f"`engine: onnx` does not hold {reason}; auto and torch do")
        return True
    inner = stack.layers[0].feed_forward.inner
    return reason is None and inner.in_features * inner.out_features <= _LARGEST and has_onnx()


def suits(rows: int) -> bool:
    """Whether a graph, which runs on one thread, is faster than PyTorch for so many rows.

    With AVX-512, PyTorch's products of many rows are faster on one thread too (docs/decisions/onnx-steps.md).
    """
    if torch.get_num_threads() > 1:
        return rows <= _ROWS_BESIDE_THREADS
    return rows <= _ROWS_BESIDE_AVX512 or torch.backends.cpu.get_cpu_capability() != "AVX512"


def engine_here() -> str:
    """What `auto` takes on this machine, in words."""
    if not has_onnx():
        return f"PyTorch; with onnx and onnxruntime faster: {install_hint('onnx')}"
    rows = f"{_ROWS_BESIDE_THREADS} rows, with one thread any number"
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        rows = f"{_ROWS_BESIDE_THREADS} rows, with one thread {_ROWS_BESIDE_AVX512}"
    return f"ONNX Runtime {version('onnxruntime')} in float32: matrices of up to {_LARGEST:,} numbers, steps of {rows}"


def why_no_graph(stack: Stack) -> str | None:
    """The part of a stack that the graphs do not hold, of those that fast passes support; None if they hold all."""
    weight = next(stack.parameters(), None)
    if weight is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return "weights other than float32 in the memory of the CPU"
    if any(heads is not None for layer in stack.positions.rotary for _, heads in layer):
        return "rotary positions of some heads"
    if any(type(getattr(owner, name)) is not Projection for owner, name in linear_maps(stack)):
        return "adapters, or weights in packed form"
    if any(block.self_attention.query_norm is not None for block in stack.layers):
        return "norms of queries and keys"
    if len({mask.form for mask in stack.masks} | {"causal" if stack.writes else "full"}) > 1:
        return "a mask other than the usual one"
    schemes = [getattr(scheme, "scheme", scheme) for scheme in stack.positions.schemes]
    if any(isinstance(scheme, Shaw | ProjectedScheme) for scheme in schemes):
        return "relative positions with vectors"
    return None
