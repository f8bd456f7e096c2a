"""The losses by kind of head: what a head's output costs against its labels, summed over its real targets."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.data.batches import Batch
from atento.errors import CapabilityError
from atento.networks.cbow import CBOW
from atento.networks.network import Network
from atento.networks.output import Output
from atento.networks.recurrent.elmo import ELMo
from atento.training.cross_entropy import cross_entropy


@dataclass(frozen=True)
class Call:
    """What a forward pass in training depends on besides weights and batch.

    Attributes:
        random: where dropout draws from; None: no dropout.
        smoothing: label smoothing.
        step: the update, from 1. progress: the share of the run that is done, 0 to 1.
    """

    random: Randomness | None = None
    smoothing: float = 0.0
    step: int = 0
    progress: float = 0.0


@dataclass
class Sums:
    """What an update, a validation or a log interval adds up for a head: nats, and the real targets they are over."""

    loss: float = 0.0
    nll: float = 0.0
    targets: int = 0

    def add(self, other: "Sums") -> None:
        """Add another's sums."""
        self.loss, self.nll, self.targets = self.loss + other.loss, self.nll + other.nll, self.targets + other.targets


Nats = tuple[Tensor, Tensor]  # the summed loss, and its part without smoothing
Forward = Callable[[], Output]
HeadLoss = Callable[[Any, str, Forward, Batch, Call], Nats]


def vocabulary_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> Nats:
    """-Σ log p(token), smoothed; only positions with a label are projected (docs/notes.md#e8)."""
    labels = batch.labels[head]
    asked = labels >= 0
    vocabulary = network.vocabulary_head
    hidden = vocabulary.read(forward().hidden[asked])
    return cross_entropy(hidden, network.projection, labels[asked], call.smoothing, vocabulary.bias)


def class_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> Nats:
    """-Σ log p(class), of a text (B,C) or of each token (B,L,C)."""
    labels = batch.labels[head]
    asked = labels >= 0
    token_mask = batch.inputs.get("token_mask", batch.inputs.get("source_token_mask"))
    logits = network.read(head, forward(), token_mask, call.random)[asked]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nll = F.cross_entropy(wide, labels[asked], reduction="sum")
    if not call.smoothing:
        return nll, nll.detach()
    return F.cross_entropy(wide, labels[asked], reduction="sum", label_smoothing=call.smoothing), nll.detach()


def bidirectional_loss(network: ELMo, head: str, forward: Forward, batch: Batch, call: Call) -> Nats:
    """-Σ log p(w_t+1 | w_≤t) - Σ log p(w_t-1 | w_≥t), both directions together; there is no smoothing.

    See docs/notes.md#e9.
    """
    inputs = batch.inputs
    total = network.loss(
        inputs["ids"], batch.extras["words"], token_mask=inputs["token_mask"], random=call.random
    ).total
    return total, total.detach()


def window_loss(network: CBOW, head: str, forward: Forward, batch: Batch, call: Call) -> Nats:
    """A word from its neighbours, or they from it, as `CBOW.loss` has it; there is no smoothing (docs/notes.md#e9)."""
    ids, labels, negatives = batch.inputs["ids"], batch.labels[head], batch.extras.get("negatives")
    if network.skip_gram:
        total, _ = network.loss(ids[:, 0], labels, negatives, call.random)
    else:
        context = torch.where(batch.inputs["token_mask"], ids, -1)
        total, _ = network.loss(labels, context, negatives, call.random)
    return total, total.detach()


# kind of head -> its loss; ELMo and word vectors have a loss of their own instead of a head
LOSSES: dict[str, HeadLoss] = {
    "vocabulary": vocabulary_loss,
    "class": class_loss,
    "tag": class_loss,
    "bidirectional": bidirectional_loss,
    "window": window_loss,
}


def losses(network: Network, batch: Batch, call: Call) -> dict[str, Nats]:
    """The summed loss of each head that the batch has labels for; the network runs once.

    What learned sparsity costs, a target, is added to the first head's (docs/notes.md#a17).

    Raises:
        CapabilityError: a head for which there is no loss.
    """

    @cache
    def forward() -> Output:
        mask = {} if batch.mask is None else {"mask": batch.mask}
        output: Output = network(**batch.inputs, **mask, random=call.random, project=False)
        return output

    found: dict[str, Nats] = {}
    counts = batch.counts()
    for head in batch.labels:
        kind = network.heads[head].kind if head in network.heads else head
        if kind not in LOSSES:
            raise CapabilityError(f"this version has no loss for the head {head!r} of kind {kind!r}")
        loss, nll = LOSSES[kind](network, head, forward, batch, call)
        cost = None if found else network.cost()
        found[head] = (loss if cost is None else loss + cost * counts[head], nll)
    return found
