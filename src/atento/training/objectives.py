"""What is learned: each objective's loss over one part of a batch, summed over its real targets."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.attention.masks import causal, documents, prefix
from atento.data.batches import Seq2SeqBatch
from atento.data.text_batches import TextBatch
from atento.data.windows import WindowBatch
from atento.data.word_batches import WordBatch
from atento.networks import CBOW, Decoder, ELMo, Encoder, Network, RecurrentLM, Seq2Seq
from atento.training.loss import cross_entropy


class Batch(Protocol):
    """What an objective reads: it moves to a device, and knows how many real targets it holds."""

    @property
    def targets(self) -> int:
        """Real targets."""

    def to(self, device: torch.device | str) -> Any:
        """The batch on another device."""


# network, batch, label smoothing, dropout's randomness -> the summed loss and its part without smoothing
Objective = Callable[[Any, Any, float, Randomness | None], tuple[Tensor, Tensor]]


def seq2seq_loss(
    network: Seq2Seq, batch: Seq2SeqBatch, smoothing: float, random: Randomness | None
) -> tuple[Tensor, Tensor]:
    """Teacher forcing: -Σ log p(y_t | y_<t, x) over real targets, smoothed, and the plain sum beside it.

    See docs/notes.md#e8.
    """
    output = network(
        batch.source,
        batch.target_input,
        source_token_mask=None if bool(batch.source_token_mask.all()) else batch.source_token_mask,
        random=random,
        project=False,
    )
    return _at_labels(network, output.hidden, batch.labels, smoothing)


def causal_loss(
    network: Decoder | RecurrentLM, batch: TextBatch, smoothing: float, random: Randomness | None
) -> tuple[Tensor, Tensor]:
    """-Σ log p(w_t+1 | w_≤t) over real targets. Padding stands behind, where nobody looks, so none is masked.

    See docs/notes.md#e1.

    Of a row that holds several documents, each sees itself alone, its positions counted from 0.
    """
    packed: dict[str, Any] = {}
    if batch.documents is not None:
        packed = {"mask": causal() & documents(batch.documents), "position_ids": batch.position_ids}
    output = network(batch.ids, random=random, project=False, **packed)
    return _at_labels(network, output.hidden, batch.labels, smoothing)


def prefix_loss(
    network: Decoder, batch: TextBatch, smoothing: float, random: Randomness | None
) -> tuple[Tensor, Tensor]:
    """-Σ log p(target | prefix) over the target alone (Raffel et al. 2020; docs/notes.md#c10, #e7).

    Each row is a prefix and its target, one behind the other; labels are -1 over the prefix but for its last token,
    from which the target's first is guessed. The prefix sees all of itself, the target what stands before.
    """
    lengths = (batch.labels >= 0).int().argmax(dim=1) + 1
    output = network(batch.ids, mask=prefix(lengths), random=random, project=False)
    return _at_labels(network, output.hidden, batch.labels, smoothing)


def masked_loss(
    network: Encoder, batch: TextBatch, smoothing: float, random: Randomness | None
) -> tuple[Tensor, Tensor]:
    """-Σ log p(w_t | the text with some tokens hidden), over the chosen tokens alone; all are attended to.

    See docs/notes.md#e3.
    """
    token_mask = None if bool(batch.token_mask.all()) else batch.token_mask
    hidden = network(batch.ids, token_mask=token_mask, random=random, project=False).hidden
    return _at_labels(network, hidden, batch.labels, smoothing)


def bidirectional_loss(
    network: ELMo, batch: WordBatch, smoothing: float, random: Randomness | None
) -> tuple[Tensor, Tensor]:
    """-Σ log p(w_t+1 | w_≤t) - Σ log p(w_t-1 | w_≥t), both directions together; there is no smoothing.

    See docs/notes.md#e9.
    """
    total = network.loss(batch.ids, batch.words, token_mask=batch.token_mask, random=random).total
    return total, total.detach()


def window_loss(
    network: CBOW, batch: WindowBatch, smoothing: float, random: Randomness | None
) -> tuple[Tensor, Tensor]:
    """A word from its neighbours, or they from it, as `CBOW.loss` has it (docs/notes.md#e9); there is no smoothing."""
    total, _ = network.loss(batch.centre, batch.context, batch.negatives, random)
    return total, total.detach()


def _at_labels(network: Network, hidden: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """hidden (B,L,D) and labels (B,L): only real targets are projected."""
    real = labels >= 0
    head = network.vocabulary_head
    read = head.read(hidden[real])
    loss, nll = cross_entropy(read, head.matrix(network.table), labels[real], smoothing, head.bias)
    return _with_cost(network, loss, nll, int(real.sum()))


def _with_cost(network: Any, loss: Tensor, nll: Tensor, targets: int) -> tuple[Tensor, Tensor]:
    """What learned sparsity costs, a target (docs/notes.md#a17), with the loss; the plain sum stays as it is."""
    cost = network.cost()
    return loss if cost is None else loss + cost * targets, nll
