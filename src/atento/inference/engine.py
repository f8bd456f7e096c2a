"""What runs the layers of a network on the CPU: PyTorch, or ONNX Runtime; a table by sizes and features."""

from importlib.metadata import version
from importlib.util import find_spec
from typing import Literal, get_args

import torch

from atento.attention.multihead import Projection
from atento.attention.relative import Shaw
from atento.attention.relative_terms import ProjectedScheme
from atento.base.errors import CapabilityError, MissingPartError, UsageError, install_hint
from atento.base.precision import cpu_features
from atento.inference.packed_modules import PackedModule
from atento.networks.stack.stack import Stack, linear_maps

Engine = Literal["auto", "torch", "onnx"]
ENGINES = get_args(Engine)
# Numbers of the largest weight of a layer up to which `auto` takes ONNX Runtime (docs/decisions/onnx-steps.md).
_LARGEST, _LARGEST_IN_8_BITS = 1 << 20, 1 << 18
# Numbers of that weight, times rows of a step, up to which one thread of it is faster than several of PyTorch.
_BESIDE_THREADS = 1 << 22
_READ_AT_ONCE = 8  # tokens that a reader reads in the time of a row of a step


def has_onnx() -> bool:
    """Whether the packages of the extra `onnx` are installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime"))


def check_engine(engine: str) -> None:
    """Raises UsageError: no such engine."""
    if engine not in ENGINES:
        raise UsageError(f"`engine` must be one of {', '.join(ENGINES)}: got {engine!r}")


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
    check_engine(engine)
    if engine == "torch":
        return False
    in_8_bits = precision == "int8" and stack.writes and cpu_features()["vnni"]
    reason = (
        why_no_graph(stack, in_8_bits=in_8_bits)
        if in_8_bits or precision == "float32"
        else f"the precision {precision} here"
    )
    if engine == "onnx":
        if not has_onnx():
            raise MissingPartError(f"`engine: onnx` needs onnx and onnxruntime: {install_hint('onnx')}")
        if reason is not None:
            raise CapabilityError(f"`engine: onnx` does not hold {reason}; auto and torch do")
        return True
    return reason is None and largest_weight(stack) <= (_LARGEST_IN_8_BITS if in_8_bits else _LARGEST) and has_onnx()


def largest_weight(stack: Stack) -> int:
    """The numbers of the largest weight of a layer."""
    inner = stack.layers[0].feed_forward.inner
    return inner.in_features * inner.out_features


def suits(largest: int, rows: int = 0, *, tokens: int = 0) -> bool:
    """Whether a graph, which runs on one thread, is faster than PyTorch (docs/decisions/onnx-steps.md).

    Args:
        largest: what `largest_weight` says.
        rows: of a step.
        tokens: that are read.
    """
    return runs_alone() or largest * max(rows, tokens // _READ_AT_ONCE) <= _BESIDE_THREADS


def runs_alone() -> bool:
    """Whether all that a graph can run is faster by it, so that PyTorch needs no packed weights beside it."""
    return torch.get_num_threads() == 1


def engine_here() -> str:
    """What `auto` takes on this machine, in words."""
    if not has_onnx():
        return f"PyTorch; with onnx and onnxruntime faster: {install_hint('onnx')}"
    steps = f", int8 steps: {_LARGEST_IN_8_BITS:,}" if cpu_features()["vnni"] else ""
    rows = f"; with several threads, steps whose rows times those numbers are at most {_BESIDE_THREADS:,}"
    return f"ONNX Runtime {version('onnxruntime')}: float32 matrices of up to {_LARGEST:,} numbers{steps}{rows}"


def why_no_graph(stack: Stack, *, in_8_bits: bool = False) -> str | None:
    """The part of a stack that the graphs do not hold, of those that fast passes support; None if they hold all.

    `in_8_bits`: the products, so that weights may be packed in 8 bits already.
    """
    weight = next(stack.parameters(), None)
    if weight is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return "weights other than float32 in the memory of the CPU"
    if any(heads is not None for layer in stack.positions.rotary for _, heads in layer):
        return "rotary positions of some heads"
    held = (Projection, PackedModule) if in_8_bits else (Projection,)
    if any(type(getattr(owner, name)) not in held for owner, name in linear_maps(stack)):
        return "adapters, or weights in packed form"
    if any(block.self_attention.query_norm is not None for block in stack.layers):
        return "norms of queries and keys"
    if len({mask.form for mask in stack.masks} | {"causal" if stack.writes else "full"}) > 1:
        return "a mask other than the usual one"
    schemes = [getattr(scheme, "scheme", scheme) for scheme in stack.positions.schemes]
    if any(isinstance(scheme, Shaw | ProjectedScheme) for scheme in schemes):
        return "relative positions with vectors"
    return None
