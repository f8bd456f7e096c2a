"""A plain loop of fine-tuning, as the examples of transformers write it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def their_loop(network: Any, updates: Sequence[Mapping[str, Any]], rate: float, warmup: int = 4) -> list[float]:
    """Train a network of transformers; return the loss of each update.

    Args:
        network: the network.
        updates: the arguments of the network, labels included, for each update.
        rate: the highest learning rate.
        warmup: updates until it is reached; it falls linearly afterwards, to 0 one update after the last.
    """
    plain = [weight for name, weight in network.named_parameters() if name.endswith(("bias", "LayerNorm.weight"))]
    others = [weight for weight in network.parameters() if all(weight is not part for part in plain)]
    groups = [{"params": others}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), weight_decay=0.1)
    steps = len(updates)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / warmup, (steps - k) / (steps + 1 - warmup))
    )
    network.train()
    losses = []
    for inputs in updates:
        loss = network(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
