"""What this machine does best: a table of processor features, never a timing, so that a run repeats bit for bit."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

from atento.errors import UsageError

Precision = Literal["float32", "bfloat16"]


def cpu_features() -> dict[str, bool]:
    """The processor features that decide fast paths."""
    import torch

    names = {"bf16": "_is_avx512_bf16_supported", "amx": "_is_amx_tile_supported", "vnni": "_is_vnni_supported"}
    return {feature: bool(getattr(torch.cpu, probe, lambda: False)()) for feature, probe in names.items()}


def best_precision(device: str) -> Precision:
    """The training precision that `precision: auto` stands for on `device` ("cpu", "cuda", "mps").

    bfloat16 where the hardware multiplies it natively (AVX-512 BF16 or AMX; CUDA of compute capability 8 and up):
    on such a processor it is several times float32. Elsewhere float32.
    """
    import torch

    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    if device == "cpu":
        features = cpu_features()
        return "bfloat16" if features["bf16"] or features["amx"] else "float32"
    return "float32"


def resolve_device(device: str) -> str:
    """ "auto" as the best device at hand; anything else as given, if it is there.

    Raises:
        UsageError: no such device on this machine.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):  # an unknown name, or a part PyTorch was built without
        raise UsageError(f"`device` must be one of this machine: got {device!r}; auto or cpu is always there") from None
    return device


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """`count` processor threads within, the former number after; None changes nothing.

    Raises:
        UsageError: fewer than one.
    """
    import torch

    if count is not None and (not isinstance(count, int) or count < 1):
        raise UsageError(f"`threads` must be an integer of at least 1: got {count!r}")
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def side_by_side(workers: int, threads_each: int) -> Iterator[ThreadPoolExecutor]:
    """So many workers, each with processor threads of its own; threads that are made later are as they were."""
    import torch

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads_each,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)  # what a worker sets is what every later thread begins with
