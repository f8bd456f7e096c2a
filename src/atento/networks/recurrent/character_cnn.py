"""Word vectors from characters: embedding, convolutions of several widths, the maximum of each, highway, projection."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.config.sections.elmo_network import N_CHARACTERS, CharacterConfig
from atento.errors import RecipeError

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class Highway(nn.Module):
    """y = g · relu(x W + b) + (1 - g) · x, g = σ(x C + c): at first it passes x on (Srivastava et al. 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.transform = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., W) -> (..., W)."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x  # g near 0 passes x on


class CharacterCNN(nn.Module):
    """Character ids -> word vectors, as in the published ELMo (Peters et al. 2018; Kim et al. 2016).

    See docs/notes.md#c14.

    The maximum is over all characters of a word and its padding, as in the training of the published weights.
    """

    def __init__(self, config: CharacterConfig, d_model: int) -> None:
        super().__init__()
        if not config.projection and config.n_filters != d_model:
            raise RecipeError(
                f"without `projection` the counts of `filters` must add up to `d_model`: got {config.n_filters} "
                f"and {d_model}"
            )
        self.config = config
        self.embedding = nn.Parameter(torch.empty(N_CHARACTERS, config.d_char))
        self.convolutions = nn.ModuleList(nn.Conv1d(config.d_char, count, width) for width, count in config.filters)
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))
        self.projection = nn.Linear(config.n_filters, d_model) if config.projection else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Each matrix normal with deviation 1/√inputs, biases zero, highway gates nearly closed (-2), as published."""
        nn.init.uniform_(self.embedding, -1.0, 1.0)
        self.embedding[0].zero_()  # no word has no characters
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)  # 1/√ of the inputs of one output
            elif name.endswith("bias"):
                nn.init.constant_(parameter, -2.0 if "gate" in name else 0.0)  # -2: g = 0.12

    def forward(self, characters: Tensor) -> Tensor:
        """characters (B,L,C) -> (B,L,D), C = `max_characters`.

        Raises:
            ValueError: another shape.
        """
        if characters.dim() != 3 or characters.shape[-1] != self.config.max_characters:
            raise ValueError(
                f"characters must be (B,L,{self.config.max_characters}), ids from `atento.text.characters`: "
                f"got {tuple(characters.shape)}"
            )
        x = F.embedding(characters.flatten(0, 1), self.embedding, padding_idx=0)  # (B,L,C) -> (N,C,E)
        x = x.transpose(1, 2)  # (N,E,C)
        maxima = [convolution(x).amax(dim=-1) for convolution in self.convolutions]  # each (N,count)
        x = _ACTIVATIONS[self.config.activation](torch.cat(maxima, dim=-1))  # (N,W)
        for highway in self.highways:
            x = highway(x)
        if self.projection is not None:
            x = self.projection(x)  # (N,D)
        return x.view(*characters.shape[:2], -1)  # (B,L,D)
