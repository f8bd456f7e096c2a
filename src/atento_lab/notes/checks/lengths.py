"""Check of length generalisation: trained on short texts, tested on longer ones (docs/notes.md#b9)."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.config.sections.position_scheme import PositionConfig
from atento.networks import EncoderDecoder
from atento_lab.notes.checks.tiny import Adam
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

LETTERS, LENGTH, TIMES = 12, 8, (1, 2, 4, 8)
MAX_STEPS, TARGET_LOSS = 200, 0.05  # training stops below this loss
SCHEMES = {"sinusoidal": PositionConfig(), "shaw": PositionConfig(kind="shaw", max_distance=4)}


def logits(network: EncoderDecoder, letters: Tensor) -> Tensor:
    """Return the logits of the letter two positions earlier: (B,L) -> (B,L-2,V)."""
    return network.project(network.encode(letters))[:, 2:]


def trained_short(scheme: PositionConfig) -> tuple[EncoderDecoder, int]:
    """Train one layer to name the letter two positions earlier on texts of `LENGTH` letters.

    Return it and its updates.
    """
    config = NetworkConfig(vocab_size=LETTERS, norm="pre", positions=scheme, dropout=0.0)
    network = EncoderDecoder(replace(config, d_model=32, d_ff=64, n_heads=2, n_layers=1))
    optimiser = Adam(network.parameters(), 1e-2)
    for step in range(MAX_STEPS):
        letters = torch.randint(LETTERS, (32, LENGTH))
        loss = F.cross_entropy(logits(network, letters).flatten(0, 1), letters[:, :-2].flatten())
        if float(loss.detach()) < TARGET_LOSS:
            return network, step
        torch.autograd.backward(loss)
        optimiser.step()
    return network, MAX_STEPS


def longer_texts() -> Finding:
    """B9: trained on 8 letters, tested on 8 to 64: relative positions generalise, absolute ones do not."""
    accuracies: dict[str, list[float]] = {}
    updates = {}
    for name, scheme in SCHEMES.items():
        network, updates[name] = trained_short(scheme)
        accuracies[name] = []
        for times in TIMES:
            letters = torch.randint(LETTERS, (64, LENGTH * times))
            with torch.no_grad():
                predicted = logits(network, letters).argmax(dim=-1)
            accuracies[name].append(float((predicted == letters[:, :-2]).float().mean()))
    lines = [f"{'letters':<11}" + "".join(f"{LENGTH * times:>7}" for times in TIMES)]
    lines += [f"{name:<11}" + "".join(f"{share:>7.1%}" for share in shares) for name, shares in accuracies.items()]
    return compare(
        {name: {"as long": shares[0], "8 times": shares[-1]} for name, shares in accuracies.items()},
        {
            "sinusoidal": {"as long": AtLeast(0.9), "8 times": AtMost(0.5)},
            "shaw": {"as long": AtLeast(0.9), "8 times": AtLeast(0.9)},
        },
        remark=f"accuracy after {updates['sinusoidal']} and {updates['shaw']} updates; the notes say both that "
        "absolute positions generalise to longer texts and that they do not (error 55); `atento bench positions` "
        "compares all schemes",
        drawing="\n".join(lines),
    )
