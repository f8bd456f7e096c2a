"""oneDNN's product of 8-bit weights and many rows, which uses the tiles of AMX; all rows of a call share a scale."""

import torch
from torch import Tensor

LARGE_VOCABULARY = 1 << 13
MANY, MANY_OF_VOCABULARY = 32, 4  # rows from which on it is faster than PyTorch's product


class Int8OfMany:
    """x (R,D) -> act(x Wᵀ + b) (R,N) in float32, of the integers and scales of the rows of W (N,D)."""

    def __init__(self, integers: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.onednn.qlinear_prepack.default(integers, None)
        self.scales, self.zeros = scales.float(), torch.zeros(len(scales), dtype=torch.int64)
        self.bias = None if bias is None else bias.detach().float()

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """`activation` as in `packed_linear.Activation`."""
        coded = torch.quantize_per_tensor_dynamic(x, torch.quint8, False)
        out: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            *(codes_of(coded), coded.q_scale(), coded.q_zero_point(), self.weight, self.scales, self.zeros, self.bias),
            *(1.0, 0, torch.float32, activation, [], "none" if activation == "gelu" else ""),
        )
        return out


def codes_of(coded: Tensor) -> Tensor:
    """The codes, uint8, of a tensor of PyTorch's own quantized type, in its memory."""
    return torch.empty(0, dtype=torch.uint8).set_(coded.untyped_storage(), 0, coded.shape, coded.stride())
