"""Random networks and batches small enough to compare with formulas, in float64 on the CPU."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from atento.config.sections.network import NetworkConfig, changed
from atento.data.batches.batch import Batch, Ragged
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import EncoderDecoder
from atento.networks.stack.stack import Stack
from atento.text import Tokenizer

WORDS = ("I", "love", "NLP", "Eu", "amo", "gostar", "PLN")


def tiny_network(**changes: object) -> EncoderDecoder:
    """Return a network of two layers of three heads, width 12, vocabulary 11; biases and norms are random too."""
    config = NetworkConfig(vocab_size=11, d_model=12, d_ff=20, n_heads=3, n_layers=2, dropout=0.0)
    network = EncoderDecoder(changed(config, changes)).double().eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.normal_(mean=1.0 if name.endswith("norm.weight") else 0.0, std=0.3)
    return network


class Adam:
    """Adam in plain tensors (Kingma & Ba 2015); PyTorch's own loads a compiler on first use, which takes seconds."""

    def __init__(self, parameters: Iterable[Tensor], rate: float) -> None:
        self.moments = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in parameters}
        self.rate, self.steps = rate, 0

    @torch.no_grad()
    def step(self) -> None:
        """Apply one update and clear the gradients."""
        self.steps += 1
        learned = [parameter for parameter in self.moments if parameter.grad is not None]
        grads = [parameter.grad for parameter in learned if parameter.grad is not None]
        means, squares = zip(*(self.moments[parameter] for parameter in learned))
        torch._foreach_lerp_(means, grads, 0.1)  # β1 = 0.9
        torch._foreach_mul_(squares, 0.98)
        torch._foreach_addcmul_(squares, grads, grads, 0.02)  # β2 = 0.98
        deviations = torch._foreach_sqrt(torch._foreach_div(squares, 1 - 0.98**self.steps))
        torch._foreach_add_(deviations, 1e-9)
        torch._foreach_addcdiv_(learned, means, deviations, -self.rate / (1 - 0.9**self.steps))
        for parameter in learned:
            parameter.grad = None


def some_ids(batch: int, length: int, vocab_size: int = 11) -> Tensor:
    """Return random ids (B,L), none of them special."""
    return torch.randint(4, vocab_size, (batch, length))


def derivatives(stack: Stack, x: Tensor, **arguments: object) -> Tensor:
    """Return |∂h_i/∂x_j| summed over features: one sequence x (L,D) -> (L,L)."""

    def outputs(x: Tensor) -> Tensor:
        out: Tensor = stack(x.unsqueeze(0), **arguments).squeeze(0)
        return out

    jacobian: Tensor = torch.autograd.functional.jacobian(outputs, x)  # (L,D,L,D)
    return jacobian.abs().sum(dim=(1, 3))


def words() -> Tokenizer:
    """Return a tokenizer of the words of one example."""
    return Tokenizer.from_vocabulary("word", WORDS)


def gold_batch(source: str, target: str) -> Batch:
    """Return a batch of one pair of these words for teacher forcing."""
    tokenizer = words()
    batches = parallel(
        Ragged([tokenizer.encode(source)]),
        Ragged([tokenizer.encode(target)]),
        budget=16,
        seed=0,
        pad_id=tokenizer.pad_id,
        start_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
    )
    return batches.batch(np.array([0]))
