"""Precision, device and threads, chosen by processor features and never by timing, so that runs repeat exactly."""

import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Barrier, Lock
from typing import Literal

from atento.base.errors import UsageError
from atento.base.start_up import SHORT_WAITS, TOO_LATE, waits

Precision = Literal["float32", "bfloat16"]
_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by the number of threads, and the CPU threads of each
# One thread is as fast as two for a weight of fewer numbers than this, while these times the rows, and some rows more
# for reading the weight, are fewer than those of the precision. Fewer than 32 bits were measured with AMX alone.
_SMALL_WEIGHT = 1_000_000
_ONE_THREAD = {"float32": (2, 3_000_000), "bfloat16": (8, 40_000_000), "int8": (8, 40_000_000)}
_turns: dict[ThreadPoolExecutor, Lock] = {}  # of callers that wait for all threads of a pool
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # a forked process has no threads


@cache
def cpu_features() -> dict[str, bool]:
    """The processor features that the choice of precision depends on: those that PyTorch and oneDNN use.

    `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` may limit both to less than the processor has.
    """
    import torch

    used = torch.backends.cpu.get_cpu_capability() == "AVX512" and has_bfloat16_products()
    names = {"bf16": "_is_avx512_bf16_supported", "amx": "_is_amx_tile_supported", "vnni": "_is_vnni_supported"}
    return {feature: used and bool(getattr(torch.cpu, probe, lambda: False)()) for feature, probe in names.items()}


def has_bfloat16_products() -> bool:
    """Whether oneDNN has products of bfloat16 for the processor: it needs AVX-512, or AVX-NE-CONVERT."""
    import torch

    return bool(getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)())


def best_precision(device: str) -> Precision:
    """The training precision of `precision: auto` on `device` ("cpu", "cuda", "mps").

    It is bfloat16 if the hardware multiplies it natively (AVX-512 BF16 or AMX; CUDA from compute capability 8 on),
    where it is several times as fast as float32; else float32.
    """
    import torch

    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device == "cpu":
        features = cpu_features()
        return "bfloat16" if features["bf16"] or features["amx"] else "float32"
    return "float32"


def training_precision(setting: str, device: str) -> str:
    """The precision to train in, for `training.precision` on a device.
    Raises UsageError: this processor computes in float16 only by converting each number.
    """
    import torch

    native = device != "cpu" or bool(getattr(torch.cpu, "_is_amx_fp16_supported", lambda: False)())
    if setting == "float16" and not native:
        raise UsageError(
            "`training.precision: float16` needs a GPU, or a processor with AMX-FP16: this one takes some ten times as "
            f"long as in float32; auto is {best_precision(device)} here"
        )
    return best_precision(device) if setting == "auto" else setting


def resolve_device(device: str) -> str:
    """The device for `device`, where "auto" is CUDA if it is available, else the CPU.
    Raises UsageError: this machine has no such device.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        _warn_of_long_waits()
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # unknown, or not in this build of PyTorch
        absent = "; PyTorch finds no GPU here" if str(device).startswith("cuda") else ""
        raise UsageError(
            f"`device` must exist on this machine: got {device!r}; auto and cpu always do{absent}"
        ) from None
    return device


@cache
def _warn_of_long_waits() -> None:
    """Warn once if PyTorch was loaded before `set_short_waits`, so that its threads wait as they do by default."""
    import torch

    if TOO_LATE and waits and torch.get_num_threads() > 1:
        name = "KMP_BLOCKTIME" if sys.platform == "darwin" else "GOMP_SPINCOUNT"
        warnings.warn(
            f"torch was imported before atento, so its idle threads keep the processors that other programs need: "
            f"import atento first, or start with {name}={SHORT_WAITS[name]}",
            stacklevel=3,
        )


def available_cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Use `count` CPU threads inside this context; None changes nothing.
    Raises UsageError: `count` is no integer from 1 to 1,024.
    """
    import torch

    if count is not None and (not isinstance(count, int) or not 1 <= count <= 1024):
        raise UsageError(f"`threads` must be an integer from 1 to 1024: got {count!r}")
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def threads_for(precision: str, weight: int, rows: int) -> Iterator[None]:
    """Compute on one thread inside this context where products of a network in use are too small for several.

    A thread that sleeps between short products takes longer to wake than to compute its half (docs/decisions/
    waiting-threads.md has what was measured).

    Args:
        precision: of the products: "float32", "bfloat16" or "int8".
        weight: numbers of the largest weight of a layer.
        rows: of the products: outputs of a step, or tokens that are read.
    """
    import torch

    beside, most = _ONE_THREAD[precision if cpu_features()["amx"] else "float32"]
    if torch.get_num_threads() == 1 or weight >= _SMALL_WEIGHT or weight * (rows + beside) >= most:
        yield
        return
    with threads(1):
        yield


@contextmanager
def side_by_side(workers: int, threads_each: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `workers` threads, each with `threads_each` CPU threads; other threads are unaffected.

    Its threads stay for the next call, because new ones for each update of a small network cost a sixth of its time.
    When the context ends by an exception, no work of the pool is under way.
    """
    import torch

    pool = _pools.get((workers, threads_each))
    if pool is None:

        def begin() -> None:
            torch.set_num_threads(threads_each)
            torch.get_num_threads()  # a thread takes the number that holds for new threads when it first asks

        pool = ThreadPoolExecutor(workers, "side-by-side", begin)
        _turns[pool] = Lock()
        _let_all_run(pool, workers)
        _pools[workers, threads_each] = pool
    try:
        yield pool
    except BaseException:
        _let_all_run(pool, workers)  # after what waits in the pool
        raise
    finally:
        torch.set_num_threads(torch.get_num_threads())  # later threads would inherit what a worker set


def _let_all_run(pool: ThreadPoolExecutor, workers: int) -> None:
    """Wait until all threads of a pool have done what waits for them."""
    all_there = Barrier(workers)
    with _turns[pool]:  # two callers could each hold a thread that the other one waits for
        list(pool.map(lambda _: all_there.wait(), range(workers)))
