"""Check of three arrangements of blocks, trained on the same batches (docs/notes.md#c18)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from atento.attention.masks import Mask, bidirectional, causal, prefix
from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import Batch
from atento.decoding import Greedy, generate
from atento.inference.choose import step_function
from atento.inspection import mask_text
from atento.networks import build_network, parameter_count
from atento.networks.interface import Network
from atento.training.losses import Call, losses
from atento_lab.notes.checks.tiny import Adam
from atento_lab.notes.finding import AtLeast, AtMost, Finding, compare

FIRST, LETTERS, LENGTH, START, END = 4, 6, 4, 2, 3  # ids of the first letter, the start and the end
STEPS, BATCH, TEXTS, RATE = 150, 24, 100, 7e-3
_PAIR = NetworkConfig(vocab_size=FIRST + LETTERS, d_model=32, d_ff=128, n_heads=4, n_layers=1, dropout=0.0, norm="pre")
_STACK = replace(_PAIR, architecture="decoder", n_layers=2, d_ff=160, max_len=2 * LENGTH + 2)
ARRANGEMENTS: Mapping[str, tuple[NetworkConfig, Mask | None]] = {
    "encoder-decoder": (_PAIR, None),
    "language model": (_STACK, None),
    "prefix LM": (_STACK, prefix(LENGTH)),
}


def reversals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return texts of letters (B,L), and each text reversed with END (B,L+1)."""
    source = FIRST + torch.randint(LETTERS, (count, LENGTH), generator=generator)
    return source, torch.cat([source.flip(1), torch.full((count, 1), END)], dim=1)


def batch_of(source: Tensor, target: Tensor, name: str) -> Batch:
    """Return a batch: a source and a target, or one text of both, whose loss covers the target alone."""
    target_ids = torch.cat([torch.full((len(target), 1), START), target[:, :-1]], dim=1)
    if name == "encoder-decoder":
        return Batch({"source_ids": source, "target_ids": target_ids}, {"vocabulary": target})
    labels = torch.cat([torch.full_like(source, -1), target], dim=1)
    mask = ARRANGEMENTS[name][1]
    return Batch({"ids": torch.cat([source, target_ids], dim=1)}, {"vocabulary": labels}, mask)


@cache
def learned(name: str) -> tuple[Network, float]:
    """Train an arrangement; return its network and the share of new texts that it reverses without an error."""
    config, mask = ARRANGEMENTS[name]
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = build_network(config)
        adam = Adam(network.parameters(), RATE)
        for done in range(STEPS):
            adam.rate = RATE * (1 - done / STEPS)  # at one rate, rounding decides whether the last updates spoil it
            batch = batch_of(*reversals(BATCH, generator), name)
            loss, _ = losses(network, batch, Call())["vocabulary"]
            torch.autograd.backward(loss / batch.counts()["vocabulary"])
            adam.step()
    source, target = reversals(TEXTS, torch.Generator().manual_seed(2))
    network.eval()
    prompt = source if name == "encoder-decoder" else torch.cat([source, torch.full((TEXTS, 1), START)], dim=1)
    steps = step_function(network, prompt="prefix" if mask is not None else "causal")
    outputs = generate(steps, prompt, Greedy(), max_new_tokens=LENGTH + 1, eos_id=END)
    right = sum(best[0].ids == expected[:-1] for best, expected in zip(outputs, target.tolist()))
    return network, right / TEXTS


def three_arrangements() -> Finding:
    """C18: encoder-decoder, language model and prefix LM of equal size learn to reverse texts: what each position
    sees, the share reversed.
    """
    masks = {"encoder": bidirectional(), "language model": causal(), "prefix LM": prefix(2)}
    visible = {name: mask.dense(4)[0, 0].sum(dim=-1).tolist() for name, mask in masks.items()}  # what each query sees
    found = {name: learned(name) for name in ARRANGEMENTS}
    sizes = {name: parameter_count(network) for name, (network, _) in found.items()}
    table = [f"{name:<16} {sizes[name]:>7,} parameters  {share:>4.0%} reversed" for name, (_, share) in found.items()]
    matrices = [f"{name}:\n{mask_text(mask.dense(4))}" for name, mask in masks.items()]
    return compare(
        {
            "seen": visible,
            "largest over smallest": max(sizes.values()) / min(sizes.values()),
            "reversed": {name: share for name, (_, share) in found.items()},
        },
        {
            "seen": {"encoder": [4, 4, 4, 4], "language model": [1, 2, 3, 4], "prefix LM": [2, 2, 3, 4]},
            "largest over smallest": AtMost(1.05),
            "reversed": dict.fromkeys(found, AtLeast(0.9)),
        },
        remark=f"{STEPS} updates of {BATCH} texts of {LENGTH} letters each; the losses cover the target alone",
        drawing="\n".join([*table, *matrices]),
    )
