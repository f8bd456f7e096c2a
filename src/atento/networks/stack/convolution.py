"""A convolution over the input of a stack, added behind its first layer (the larger models of DeBERTa v2)."""

from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout, fresh
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import ConvolutionConfig
from atento.networks.layers import ACTIVATIONS, make_norm


class InputConvolution(nn.Module):
    """norm(x + act(convolution of the input)) of the output x of the first layer (He et al. 2021, section 5.1)."""

    def __init__(self, config: NetworkConfig, convolution: ConvolutionConfig) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            config.d_model,
            config.d_model,
            convolution.width,
            padding=(convolution.width - 1) // 2,
            groups=convolution.groups,
        )
        self.norm = make_norm(config.norm_kind, config.d_model, config.norm_eps, bias=config.norm_bias)
        self.activation = ACTIVATIONS[convolution.activation]
        self.dropout = config.dropout

    def forward(self, inputs: Tensor, x: Tensor, token_mask: Tensor | None, random: Randomness | None = None) -> Tensor:
        """The input of the stack and the output of its first layer, (B,L,D) each -> (B,L,D).

        Padding in `token_mask` (B,L) counts as zeros.
        """
        if token_mask is not None:
            inputs = inputs.masked_fill(~token_mask.unsqueeze(-1), 0.0)
        local = self.conv(inputs.transpose(-2, -1)).transpose(-2, -1)  # over positions
        if self.training and self.dropout:
            local = dropout(local, self.dropout, fresh(random))
        out: Tensor = self.norm(x + self.activation(local))
        return out


def input_convolution(config: NetworkConfig) -> InputConvolution | None:
    """The convolution that `config` describes; None: there is none."""
    return None if config.convolution is None else InputConvolution(config, config.convolution)
