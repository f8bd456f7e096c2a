"""A CUDA device that is computed on the CPU: its tensors say that they are on "cuda:0", and stay apart as on a GPU.

Inside `cuda_twin()`, `to("cuda:0")` and factories with that device give wrappers of CPU tensors. An operation on
tensors of both devices is refused, but for numbers (no dimensions) and indices, which PyTorch moves itself. A captured
graph is a list of operations on fixed tensors; its replay computes them again into the same memory, and what Python
read while it was captured stays as it was. So code for a GPU runs here, and what was left on the CPU is found.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atento.attention import cuda_kernels
from atento.attention.cuda_kernels import PackedSequences
from atento.base import splitmix

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
_INDEXED = ("aten.index.", "aten.index_put", "aten._index_put_impl_", "aten._unsafe_index")
_INTO_FIRST = ("aten.copy_", "aten.index_put_", "aten._index_put_impl_")
_READS = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique", "aten.unique")
_recording: list[list[tuple[Any, Any, Any, Any]]] = []  # the graphs that are being captured


class CudaTensor(Tensor):
    """A tensor of the twin; `held` has its numbers, on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "CudaTensor":
        made: CudaTensor = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device="meta", requires_grad=held.requires_grad,
        )  # fmt: skip
        made.held = held
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where our code sees it; PyTorch itself, which has no CUDA here, sees "meta"."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """As `device`."""
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """As `device`."""
        return False

    def tolist(self) -> Any:
        """The numbers, for which a GPU is waited for; not while a graph is captured."""
        assert not _recording, "a captured step reads numbers"
        return self.held.tolist()

    def __getitem__(self, index: Any) -> Tensor:
        """As of any tensor; PyTorch would make a list of indices where it sees this tensor, on "meta"."""
        return super().__getitem__(_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        """As `__getitem__`."""
        super().__setitem__(_index(index), value)

    def data_ptr(self) -> int:
        """The address of its numbers."""
        return self.held.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = CudaTensor(self.held.detach().clone())
        memo[id(self)] = copied = (
            torch.nn.Parameter(copied, self.requires_grad) if hasattr(self, "_is_param") else copied
        )
        return copied

    def __repr__(self, **options: Any) -> str:
        return f"CudaTensor({self.held})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU; its result is the twin's if a tensor, or the device that is asked for, is."""
    leaves, name = _leaves((args, kwargs)), str(function)
    asked = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    ours = [leaf for leaf in leaves if isinstance(leaf, CudaTensor)]
    others = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, CudaTensor) and leaf.dim()]
    assert not any(leaf.is_meta for leaf in others), f"{name}: a tensor without numbers"
    copies = name.startswith(("aten._to_copy", "aten.copy_"))
    indexed = name.startswith(_INDEXED)
    if ours and not copies and (not isinstance(args[0], CudaTensor) if indexed else bool(others)):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu")
    if _recording and ours:
        assert not name.startswith(_READS) and not (copies and others), f"a captured step may not call {name}"
    on_cuda = bool(ours) if asked is None else asked.type != "cpu"  # PyTorch makes tensors beside ours on "meta"
    if name.startswith(_INTO_FIRST):
        on_cuda = isinstance(args[0], CudaTensor)
    held_args, held_kwargs = _mapped(_held, (args, kwargs))
    result = function(*held_args, **held_kwargs)
    if _recording:
        _recording[-1].append((function, held_args, held_kwargs, result))
    known = {id(leaf.held): leaf for leaf in ours}  # an operation in place returns what it was given

    def wrapped(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not on_cuda:
            return leaf
        return known[id(leaf)] if id(leaf) in known else CudaTensor(leaf)

    return _mapped(wrapped, result)


def _leaves(tree: Any) -> list[Any]:
    """What is in tuples, lists and dictionaries; PyTorch's own functions for trees take half the time of a test."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, tuple | list) else [tree]


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with other leaves."""
    if isinstance(tree, dict):
        return {name: _mapped(change, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)([_mapped(change, part) for part in tree])
    return change(tree)


def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    return torch.tensor(index) if isinstance(index, list) else index


def _held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, CudaTensor) else CPU if isinstance(leaf, torch.device) else leaf


class _Graph:
    """As `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        """The captured operations again, on the same tensors."""
        for function, args, kwargs, result in self.steps:
            again = function(*args, **kwargs)
            for old, new in zip(_leaves(result), _leaves(again)):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _flash_rows(
    q: Tensor, k: Tensor, v: Tensor, sequences: PackedSequences, causal: bool, scale: float, dropout: float
) -> Tensor:
    """As `cuda_kernels._flash_rows`, sequence by sequence; PyTorch's kernel takes such types and lengths."""
    assert q.dtype in (torch.bfloat16, torch.float16) and sequences.bounds.dtype == torch.int32 and q.is_cuda
    assert sequences.max_len == max(sequences.bounds.diff().tolist()) and sequences.bounds.tolist()[-1] == len(q)
    outputs = []
    for begin, end in pairwise(sequences.bounds.tolist()):
        query, key, value = (x[begin:end].transpose(0, 1) for x in (q, k, v))
        options: Any = {"is_causal": causal, "scale": scale, "dropout_p": dropout}
        outputs.append(torch.nn.functional.scaled_dot_product_attention(query, key, value, **options).transpose(0, 1))
    return torch.cat(outputs)


@contextmanager
def _captured(graph: _Graph, **options: Any) -> Iterator[None]:
    _recording.append(graph.steps)
    try:
        yield
    finally:
        _recording.pop()


@contextmanager
def cuda_twin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let "cuda:0" be the twin meanwhile."""
    nothing: Callable[..., None] = lambda *args, **kwargs: None  # noqa: E731
    for name in ("_lazy_init", "synchronize", "Stream", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, nothing)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", _Graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # a build for CUDA asks a driver
    monkeypatch.setattr(splitmix, "_gpu_kernel", lambda: lambda x: CudaTensor(splitmix.mix_(x.held.clone())))
    monkeypatch.setattr(torch.cuda, "graph", _captured)
    monkeypatch.setattr(torch.cuda, "default_generators", (torch.default_generator,))
    monkeypatch.setattr(cuda_kernels, "_flash_rows", _flash_rows)
    # `module.to(dtype)` would give a wrapper other data, and not the tensor that it holds
    monkeypatch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    monkeypatch.setattr(torch._C, "_InferenceMode", lambda mode: torch.no_grad() if mode else nullcontext())
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(..., device="cuda:0")` comes by here
    try:
        with _Mode():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)
