"""The initialisation of the weights of a Transformer."""

import torch
from torch import nn

from atento.config.sections.network import NetworkConfig


@torch.no_grad()
def initialise(network: nn.Module, config: NetworkConfig) -> None:
    """Initialise the weights from PyTorch's global generator; biases are zero.

    "xavier": matrices Xavier-uniform, embeddings normal with deviation 1/√D, as the code of Vaswani et al. 2017 has
    it. "normal": deviation 0.02 throughout, as BERT and GPT have it (Devlin et al. 2019). A network on the meta
    device is left unchanged.
    """
    if next(network.parameters()).is_meta:  # drawing there would import PyTorch's compiler, which takes seconds
        return
    own_matrix = "heads.vocabulary.output.weight" if config.writes else ""
    for name, parameter in network.named_parameters():
        if ".schemes." in name or ".gates." in name or ".sparse." in name:
            continue  # position schemes and learned sparsity are initialised as in their papers
        if ".generator." in name:
            continue  # it has other widths and initialises itself
        if parameter.dim() < 2:
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        elif config.initializer == "normal":
            nn.init.normal_(parameter, std=0.02)
        elif "embedding" in name or name == own_matrix or name.endswith(".segments"):
            # scaled by √D, or matched with normed vectors as the output matrix: √D of them add up to about 1
            matched = (
                "embedding" not in name or config.embedding.scaled or (config.output.tied and not config.output.scaled)
            )
            nn.init.normal_(parameter, std=config.d_model**-0.5 if matched else 1.0)
        elif name.endswith("attention.input.weight"):
            _attention(parameter, config)
        else:
            nn.init.xavier_uniform_(parameter)


def _attention(stacked: nn.Parameter, config: NetworkConfig) -> None:
    """Initialise queries, keys and values, each with its own bound; queries compensate for a scale that is not 1/√K."""
    shared = config.kv_heads
    width = config.head_width
    queries, *keys_values = stacked.split([config.n_heads * width, shared * width, shared * width])
    for part in (queries, *keys_values):
        nn.init.xavier_uniform_(part)
    if config.attention.scale is not None:
        queries.mul_(width**-0.5 / config.attention.scale)
