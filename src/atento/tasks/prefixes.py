"""What a decoder loses on the right tokens after other prefixes than the right one, by step of the target.

See docs/notes.md#f3, #j5.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.data.batches.batch import Batch
from atento.data.objectives.sequence_to_sequence import HEAD
from atento.decoding import Greedy, generate

_ENOUGH = 0.25  # a step is reported if this share of the sentences reaches it


def losses_by_step(network: Any, batch: Batch, inputs: Tensor) -> Tensor:
    """Return -log p(right token) in nats (B,T) of a batch of pairs whose decoder reads `inputs` (B,T); 0 at padding."""
    logits = network(**dict(batch.inputs) | {"target_ids": inputs}).logits
    return F.cross_entropy(logits.transpose(1, 2).double(), batch.labels[HEAD], ignore_index=-1, reduction="none")


def free_running(network: Any, batch: Batch, length: int, prefix: Tensor | None = None) -> Tensor:
    """Return the tokens that the network writes greedily (B,length), after a prefix (B,P) if there is one."""
    hypotheses = generate(
        network,
        batch.inputs["source_ids"],
        Greedy(),
        token_mask=batch.inputs.get("source_token_mask"),
        max_new_tokens=length - (0 if prefix is None else prefix.shape[1]),
        eos_id=(),
        prefix_ids=prefix,
    )
    written = torch.tensor([row[0].ids for row in hypotheses])
    return written if prefix is None else torch.cat([prefix, written], dim=1)


def shifted(written: Tensor, gold_inputs: Tensor) -> Tensor:
    """Return the inputs (B,T) of a decoder that reads what it has written (B,T): the start token, then all but the
    last."""
    return torch.cat([gold_inputs[:, :1], written[:, :-1]], dim=1)


def by_step(values: Tensor, real: Tensor) -> list[float]:
    """Return the mean of values (B,T) over real positions at each step that a quarter of the sentences reach."""
    steps = int((real.sum(dim=0) >= max(1.0, _ENOUGH * len(real))).sum())
    return [float(values[:, t][real[:, t]].mean()) for t in range(steps)]
