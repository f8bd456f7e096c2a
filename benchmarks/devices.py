"""Where a benchmark runs: precisions and memory of a device, waiting for it, and the usual loop of other libraries.

Contenders get the name of a device, "cpu" or "cuda"; CUDA_VISIBLE_DEVICES chooses among several GPUs.
"""

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from atento.base.errors import CapabilityError, UsageError
from atento.base.precision import best_precision, resolve_device

SDPA, FLASH = "sdpa", "flash_attention_2"  # how `transformers` attends: PyTorch's kernel, its default, or flash-attn's


def device_of(device: str) -> str:
    """The device of `--device`: "auto" is a GPU where there is one.

    Raises:
        UsageError: it is none of auto, cpu and cuda, or this machine has no such device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"`--device` of a measurement is auto, cpu or cuda (CUDA_VISIBLE_DEVICES chooses the GPU): got {device!r}"
        )
    return resolve_device(device)


def precisions_of(device: str) -> tuple[str, ...]:
    """The precisions of training that are measured on a device, the best first; on a GPU without bfloat16, float16."""
    best = best_precision(device)
    if device == "cpu":
        return tuple(dict.fromkeys((best, "float32")))
    return ("bfloat16", "float16", "float32") if best == "bfloat16" else ("float16", "float32")


def peers_of(device: str, precision: str) -> list[tuple[str, str]]:
    """The names of the contenders of `transformers`, and how each attends: on a GPU in the best precision also by
    flash attention."""
    flash = [("transformers flash", FLASH)] if device != "cpu" and precision == precisions_of(device)[0] else []
    return [("transformers", SDPA), *flash]


def attend_by(model: Any, attention: str) -> None:
    """Let a model of `transformers` attend so.

    Raises:
        CapabilityError: the package of that kernel is missing, or the model has no such form.
    """
    if attention == SDPA:
        return
    try:
        if torch.cuda.is_available():  # a kernel that cannot run here is found before the measurement
            q = torch.ones(1, 8, 1, 64, dtype=torch.float16, device="cuda")
            import_module("flash_attn").flash_attn_func(q, q, q)
        model.set_attn_implementation(attention)
    except (ImportError, ValueError, RuntimeError, OSError) as error:  # OSError: the hub, for a kernel of its own
        raise CapabilityError(
            f"{type(model).__name__} with {attention}: {str(error).strip().splitlines()[0]}"
        ) from None


def forget_peak() -> None:
    """Free what nothing uses on the GPU, and count its memory from here on, if this process uses one."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def wait() -> None:
    """Wait until the GPU has done what it was given, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def peak_of_gpu() -> float | None:
    """The largest memory of tensors on the GPU so far, in MiB; None in a process that uses none."""
    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_initialized() else None


def autocast(device: str, precision: str) -> torch.autocast:
    """The context of a forward pass in a precision; in float32 it changes nothing."""
    return torch.autocast(device, getattr(torch, precision), enabled=precision != "float32")


def peak_row() -> dict[str, object]:
    """The part of a row that says so; empty where no GPU is used."""
    peak = peak_of_gpu()
    return {} if peak is None else {"peak_mib": round(peak)}


class PlainLoop:
    """The usual loop of PyTorch around a model: AdamW, clipping, autocast, and in float16 a scaled loss.

    Args:
        model: what is trained; it is moved to the device.
        rate: the learning rate.
        precision: "float32", "bfloat16" or "float16".
        device: "cpu" or "cuda".
    """

    def __init__(self, model: nn.Module, rate: float, precision: str, device: str = "cpu") -> None:
        self.model, self.precision, self.device = model.to(device), precision, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    def inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs on the device of the model."""
        return {name: value.to(self.device) for name, value in inputs.items()}

    def autocast(self) -> torch.autocast:
        """The context of a forward pass."""
        return autocast(self.device, self.precision)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss."""
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        """Clip the gradients, update the weights, free the gradients."""
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
