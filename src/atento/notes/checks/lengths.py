"""Check of length generalisation: trained on short texts, tested on longer ones (docs/notes.md#b9)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.config.network import NetworkConfig
from atento.config.positions import PositionConfig
from atento.networks import EncoderDecoder
from atento.notes.checks.tiny import Adam
from atento.notes.finding import AtLeast, AtMost, Finding, compare

LETTERS, LENGTH, TIMES = 12, 8, (1, 2, 4, 8)
MOST_STEPS, LEARNT = 200, 0.05  # stop where the loss is below
SCHEMES = {"sinusoidal": PositionConfig(), "shaw": PositionConfig(kind="shaw", max_distance=4)}


def logits(network: EncoderDecoder, letters: Tensor) -> Tensor:
    """What each place says stood two places before it: (B,L) -> (B,L-2,V)."""
    return network.project(network.encode(letters))[:, 2:]


def trained_short(scheme: PositionConfig) -> tuple[EncoderDecoder, int]:
    """One layer that has learnt to name the letter two places back on texts of `LENGTH` letters; its updates."""
    sizes = {"vocab_size": LETTERS, "d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 1, "dropout": 0.0}
    network = EncoderDecoder(NetworkConfig(**sizes, norm="pre", positions=scheme))  # type: ignore[arg-type]
    optimiser = Adam(network.parameters(), 1e-2)
    for step in range(MOST_STEPS):
        letters = torch.randint(LETTERS, (32, LENGTH))
        loss = F.cross_entropy(logits(network, letters).flatten(0, 1), letters[:, :-2].flatten())
        if float(loss.detach()) < LEARNT:
            return network, step
        torch.autograd.backward(loss)
        optimiser.step()
    return network, MOST_STEPS


def longer_texts() -> Finding:
    """B9: trained on texts of 8 letters, tried on 8 to 64: distances carry over, absolute places do not."""
    right: dict[str, list[float]] = {}
    updates = {}
    for name, scheme in SCHEMES.items():
        network, updates[name] = trained_short(scheme)
        right[name] = []
        for times in TIMES:
            letters = torch.randint(LETTERS, (64, LENGTH * times))
            with torch.no_grad():
                said = logits(network, letters).argmax(dim=-1)
            right[name].append(float((said == letters[:, :-2]).float().mean()))
    lines = [f"{'letters':<11}" + "".join(f"{LENGTH * times:>7}" for times in TIMES)]
    lines += [f"{name:<11}" + "".join(f"{share:>7.1%}" for share in shares) for name, shares in right.items()]
    return compare(
        {name: {"as long": shares[0], "8 times": shares[-1]} for name, shares in right.items()},
        {
            "sinusoidal": {"as long": AtLeast(0.9), "8 times": AtMost(0.5)},
            "shaw": {"as long": AtLeast(0.9), "8 times": AtLeast(0.9)},
        },
        remark=f"share of right answers after {updates['sinusoidal']} and {updates['shaw']} updates; the notes say of "
        "absolute positions both that they carry over to longer texts and that they do not (error 55); `atento bench "
        "positions` has every scheme in one table",
        drawing="\n".join(lines),
    )
