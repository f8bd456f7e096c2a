"""Layers that few networks have: a learned mix of all layers, and a convolution over the input."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import ConvolutionConfig
from atento.networks.layers import ACTIVATIONS, make_norm


class LayerMix(nn.Module):
    """γ Σ_j softmax(w)_j h_j: the input of a task, w and γ learned with the task (Peters et al. 2018, equation 1).

    With `norm` each layer is first normalised, token by token and without scale or shift. (The published programs
    take mean and variance over the batch, which makes a sentence's vectors depend on its neighbours.)
    """

    def __init__(self, n_layers: int, *, norm: bool = False) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.norm = norm

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Equal weights of all layers, γ = 1."""
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.gamma)

    def forward(self, layers: Tensor) -> Tensor:
        """layers (N,B,L,W) -> (B,L,W)."""
        return self._mixed(F.layer_norm(layers, layers.shape[-1:]) if self.norm else layers)  # without scale and shift

    def joined(self, layers: Sequence[Tensor]) -> Tensor:
        """N layers (B,L,W), normalised if the mix does so -> (B,L,N·W), each token's layers one behind the other.

        These vectors do not depend on w and γ, and means over tokens can be mixed as well as tokens.
        """
        normed = [F.layer_norm(layer, layer.shape[-1:]) for layer in layers] if self.norm else layers
        return torch.cat(tuple(normed), dim=-1)

    def of_joined(self, layers: Tensor) -> Tensor:
        """layers (B,L,N·W) as `joined` returns them -> (B,L,W)."""
        return self._mixed(layers.unflatten(-1, (len(self.weights), -1)).movedim(-2, 0))  # (B,L,N·W) -> (N,B,L,W)

    def _mixed(self, layers: Tensor) -> Tensor:
        mixed: Tensor = torch.tensordot(torch.softmax(self.weights, dim=0), layers, dims=1)  # Σ over layers, (B,L,W)
        return self.gamma * mixed


class InputConvolution(nn.Module):
    """norm(x + act(convolution of the input)) of the output x of the first layer (He et al. 2021, section 5.1)."""

    def __init__(self, config: NetworkConfig, convolution: ConvolutionConfig) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            config.d_model,
            config.d_model,
            convolution.width,
            padding=(convolution.width - 1) // 2,  # as many positions out as in
            groups=convolution.groups,
        )
        self.norm = make_norm(config, config.d_model)
        self.activation = ACTIVATIONS[convolution.activation]
        self.dropout = config.dropout

    def forward(self, inputs: Tensor, x: Tensor, token_mask: Tensor | None, random: Randomness | None = None) -> Tensor:
        """The input of the stack and the output of its first layer, (B,L,D) each -> (B,L,D).

        Padding in `token_mask` (B,L) counts as zeros.
        """
        if token_mask is not None:
            inputs = inputs.masked_fill(~token_mask.unsqueeze(-1), 0.0)  # as beyond the ends of a row
        local = self.conv(inputs.transpose(-2, -1)).transpose(-2, -1)  # over positions
        local = dropout(local, self.dropout, random) if self.training else local
        out: Tensor = self.norm(x + self.activation(local))
        return out
