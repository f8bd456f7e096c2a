"""Loss functions by kind of head: the loss of a head's output against its labels, summed over its real targets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention.cuda_kernels import RowMask
from atento.attention.dropout import Randomness
from atento.base.errors import CapabilityError, RecipeError
from atento.config.sections.training import without_dropout
from atento.config.tables.head_kinds import Windows
from atento.data.batches.batch import Batch, ContrastiveSettings
from atento.networks.crf import forward_sums, log_marginals, tag_log_probs
from atento.networks.frozen import current
from atento.networks.heads import CRFHead, SpanBoundaryHead, TextWindows
from atento.networks.interface import Network, mask_of, stacks_of, token_mask_of
from atento.networks.output import Output, Replaced
from atento.networks.recurrent.elmo import ELMo
from atento.networks.vocabulary import at_least_float32, cross_entropy, divergences
from atento.networks.words.cbow import CBOW
from atento.training.ranking_losses import RANKING_LOSSES
from atento.training.scheduled_sampling import OwnTokens, sampled_forward
from atento.training.teacher_losses import soft_classes, soft_numbers, soft_sets, with_teachers, with_token_teachers
from atento.training.vector_losses import MASKS, VECTOR_LOSSES, nested_loss, side_vectors

_SMALLEST = -80.0  # log p of an illegal tag, where a teacher or another pass may give it some probability


@dataclass(frozen=True)
class Call:
    """What a forward pass in training depends on, besides weights and batch."""

    random: Randomness | None = None  # source of random numbers for dropout; None: no dropout
    smoothing: float = 0.0  # label smoothing ε
    step: int = 0  # number of the update, from 1
    progress: float = 0.0  # share of the run that is done, 0 to 1
    # the inputs that are the model's own tokens (scheduled sampling); None: none (teacher forcing)
    own: OwnTokens | None = None
    r_drop: float = 0.0  # weight of the divergence of two passes with other dropout (R-Drop); 0: one pass


@dataclass
class Sums:
    """Summed losses of one head, over a part, an update, a log interval or a validation."""

    loss: float = 0.0  # summed loss in nats, label smoothing and R-Drop included
    nll: float = 0.0  # summed negative log-likelihood in nats
    targets: int = 0  # number of real targets that the sums are over

    def add(self, sums: "Sums") -> None:
        """Add other sums in place."""
        self.loss, self.nll, self.targets = self.loss + sums.loss, self.nll + sums.nll, self.targets + sums.targets


LossAndNll = tuple[Tensor, Tensor]  # summed loss and summed negative log-likelihood, scalars in nats
Forward = Callable[..., Output]  # the output of the forward pass of that number: 0 if none is given, or 1
# (network, name of the head, the forward pass, batch, call); `Any`, because each loss takes its own type of network
HeadLoss = Callable[[Any, str, Forward, Batch, Call], LossAndNll]


def _of_passes(forward: Forward, call: Call, read: Callable[[Output], Tensor]) -> Tensor:
    """What `read` takes from the output of the network; with R-Drop from two passes, (2,...)."""
    return torch.stack([read(forward()), read(forward(1))]) if call.r_drop else read(forward())


def _with_divergence(
    loss: Tensor, nll: Tensor, call: Call, scores: Tensor, probabilities: Callable[[Tensor], Tensor]
) -> LossAndNll:
    """With R-Drop, half of its loss, from the sums over both passes (Liang et al. 2021); else these as they are."""
    if not call.r_drop:
        return loss, nll
    return (loss + call.r_drop / 2 * divergences(scores, probabilities(scores))) / 2, nll / 2


def vocabulary_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return -Σ log p(token) with label smoothing. Only positions with a label are projected (docs/notes.md#e8)."""
    labels, places = batch.labels[head].flatten(), batch.extras.get(f"{head} places")  # (B·L,)
    chosen = labels >= 0 if places is None else places
    vocabulary = network.vocabulary_head
    hidden = _of_passes(forward, call, lambda output: vocabulary.read(output.hidden.flatten(0, 1)[chosen]))
    matrix, bias = network.projection, vocabulary.bias
    loss, nll = cross_entropy(hidden, matrix, labels[chosen], call.smoothing, bias, call.r_drop)
    if f"{head} teacher" in batch.settings:
        loss = with_token_teachers(loss, (hidden, matrix, bias), batch, head)
    return loss, nll


def boundary_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return -Σ log p(token | the vectors beside its span, its position in the span): SpanBERT's boundary objective.

    `extras` say where these vectors are and which position it is, each (B,L) (docs/notes.md#e5). Positions from the
    last one that the head knows share its vector.
    """
    boundary = network.heads[head]
    assert isinstance(boundary, SpanBoundaryHead)
    labels, extras = batch.labels[head], batch.extras
    labelled = labels >= 0
    row, positions = labelled.nonzero()[:, 0], extras["span position"][labelled].clamp(max=len(boundary.positions) - 1)

    def read(output: Output) -> Tensor:
        left, right = (output.hidden[row, extras[name][labelled]] for name in ("span left", "span right"))  # (N,D)
        return boundary.read(left, right, positions)

    vectors, matrix = _of_passes(forward, call, read), boundary.matrix(network.table)  # (N,D), (V,D)
    return cross_entropy(vectors, matrix, labels[labelled], call.smoothing, boundary.bias, call.r_drop)


def generator_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return -Σ log p(masked token) of the generator inside a network (Clark et al. 2020)."""
    state, labels = forward().state, batch.labels[head]
    assert isinstance(state, Replaced)
    return cross_entropy(state.vectors, state.weight, labels[labels >= 0], call.smoothing, state.bias)


def detection_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return Σ -log p(replaced or not) over real tokens; labels (B,L) are the original ids, -1 for padding.

    A token is replaced if the network has read another one: a sample that is the original token counts as original.
    """
    labels, output = batch.labels[head], forward()
    ids = output.state.ids if isinstance(output.state, Replaced) else batch.inputs["ids"]
    labelled = labels >= 0
    logits = network.read(head, output, batch.inputs.get("token_mask"), call.random)[labelled].squeeze(-1)  # (n,)
    logits = at_least_float32(logits)
    replaced = (ids != labels)[labelled].to(logits.dtype)  # by the text that was read
    loss = F.binary_cross_entropy_with_logits(logits, replaced, reduction="sum")
    return loss, loss.detach()


def class_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return -Σ w[class] log p(class), for logits of texts (B,C) or of tokens (B,L,C).

    The factors w (C,) are `Batch.extras["HEAD weights"]`, 1 where there are none.
    """
    labelled, logits = _labelled_outputs(network, head, forward, batch, call)
    # the labels once for each pass of R-Drop
    right, flat = batch.labels[head][labelled].expand(logits.shape[:-1]).flatten(), logits.flatten(0, -2)  # (n,), (n,C)
    nll = F.cross_entropy(flat, right, reduction="sum").detach()  # without weights and smoothing
    weight = batch.extras.get(f"{head} weights")
    loss = F.cross_entropy(flat, right, weight, reduction="sum", label_smoothing=call.smoothing)
    loss, nll = _with_divergence(loss, nll, call, logits, partial(torch.softmax, dim=-1))
    return with_teachers(loss, soft_classes, logits, batch, head), nll


def crf_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return -Σ log p(tags of a sentence | its words) of a conditional random field, without label smoothing.

    It is computed in float32 (docs/tagging.md). `Batch.extras["HEAD whole"]` (B,) is False for sentences that are cut,
    whose last tag is not the end of a sentence.
    """
    crf, labels, token_mask = network.heads[head], batch.labels[head], token_mask_of(batch.inputs)
    assert isinstance(crf, CRFHead)
    labelled = labels >= 0  # (B,L), the first piece of each word
    lengths = labelled.sum(dim=1)  # (B,) words
    count = max(1, int(lengths.max()))  # N
    words = labelled.int().argsort(dim=1, descending=True, stable=True)[:, :count]  # (B,N) their places, in order
    real = torch.arange(count, device=labels.device) < lengths.unsqueeze(1)  # (B,N)
    tags, lengths = labels.gather(1, words).clamp(min=0), lengths.clamp(min=1)

    def read(output: Output) -> Tensor:
        logits = network.read(head, output, token_mask, call.random)
        return logits.gather(1, words.unsqueeze(2).expand(-1, -1, logits.shape[2]))

    scores, chain = at_least_float32(_of_passes(forward, call, read)), crf.chain()
    if (whole := batch.extras.get(f"{head} whole")) is not None:
        chain = chain._replace(end=chain.end * whole.unsqueeze(1))  # (B,C)
    passes = scores if call.r_drop else scores.unsqueeze(0)  # (P,B,N,C)
    sums = [forward_sums(one, chain.start, chain.transitions) for one in passes]
    loss = -torch.stack([tag_log_probs(one, lengths, tags, chain)[real] for one in sums]).sum()
    nll = loss.detach()
    if not call.r_drop and f"{head} teacher" not in batch.settings:
        return loss, nll
    every = [log_marginals(one, own, lengths, chain)[real] for one, own in zip(passes, sums)]
    marginals = torch.stack(every).clamp(min=_SMALLEST)
    outputs = marginals if call.r_drop else marginals[0]  # (2,n,C) or (n,C)
    loss, nll = _with_divergence(loss, nll, call, outputs, torch.exp)
    return with_teachers(loss, soft_classes, outputs, batch, head), nll


def number_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return Σ ((output - number) / spread)² over texts, for `Batch.extras[head]` (B,); of ranked documents the loss of
    `RANKING_LOSSES` that `Batch.settings` names.
    """
    ranking = batch.settings.get(head)
    if ranking in RANKING_LOSSES:  # else they are windows
        scores = at_least_float32(network.read(head, forward(), token_mask_of(batch.inputs), call.random)).squeeze(-1)
        loss = RANKING_LOSSES[str(ranking)](scores, batch.labels[head], batch)
        return loss, loss.detach()
    labelled, outputs = _labelled_outputs(network, head, forward, batch, call)
    spread = next(each.spread for each in network.config.heads if each.name == head)
    right = batch.extras[head][labelled].to(outputs.dtype)
    loss = F.mse_loss(outputs.squeeze(-1) / spread, right / spread, reduction="sum")

    def soft(numbers: Tensor, teachers: Tensor, temperature: float) -> Tensor:
        return soft_numbers(numbers / spread, teachers / spread, temperature)

    return with_teachers(loss, soft, outputs, batch, head), loss.detach()


def set_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return the binary cross-entropy of each class, its mean over classes summed over texts.

    `Batch.extras[head]` (B,C) is 1 for the classes of a text, 0 for the others. `Batch.extras["HEAD weights"]` (2,C)
    are the factors of the entropy of a class that a text does not have, and of one that it has; 1 if there are none.
    """
    labelled, logits = _labelled_outputs(network, head, forward, batch, call)
    right = batch.extras[head][labelled].to(logits.dtype).expand_as(logits)  # (n,C), the same for both passes
    weights = batch.extras.get(f"{head} weights")
    nll = F.binary_cross_entropy_with_logits(logits.detach(), right, reduction="sum")
    factors = None if weights is None else torch.where(right > 0, weights[1], weights[0])  # (n,C)
    loss = F.binary_cross_entropy_with_logits(logits, right, factors, reduction="sum")
    loss, nll = (each / logits.shape[-1] for each in _with_divergence(loss, nll, call, logits, torch.sigmoid))
    return with_teachers(loss, soft_sets, logits, batch, head), nll


def _labelled_outputs(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> tuple[Tensor, Tensor]:
    """Which texts (B,) or tokens (B,L) have a target, and the outputs (n,C) of the head for these, or with R-Drop those
    of two passes (2,n,C); at least in float32.
    """
    labelled, token_mask = batch.labels[head] >= 0, token_mask_of(batch.inputs)

    def read(output: Output) -> Tensor:
        return network.read(head, output, token_mask, call.random, windows_of(batch, head))[labelled]

    return labelled, at_least_float32(_of_passes(forward, call, read))


def windows_of(batch: Batch, head: str) -> TextWindows | None:
    """The windows that the rows of a batch are, for a head of the whole text; None: the rows are whole texts."""
    texts = next((batch.extras[f"{name} texts"] for name in batch.lengths if f"{name} texts" in batch.extras), None)
    return None if texts is None else TextWindows(cast(Windows, batch.settings[head]), texts)


def span_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return the sum over rows of -(log p(first token) + log p(last token)) / 2, without label smoothing.

    Both probabilities are over the real tokens of a row (Devlin et al. 2019, 4.2; docs/notes.md#g3). The label is the
    position of the first token (B,), `extras["end"]` that of the last one; the logits are (B,L,2).
    """
    labelled, token_mask = batch.labels[head] >= 0, token_mask_of(batch.inputs)

    def read(output: Output) -> Tensor:
        return network.read(head, output, token_mask, call.random)[labelled]

    def masked(logits: Tensor) -> Tensor:
        return logits if token_mask is None else logits.masked_fill(~token_mask[labelled].unsqueeze(-1), float("-inf"))

    logits = at_least_float32(_of_passes(forward, call, read))  # (n,L,2), or (2,n,L,2)
    ends = torch.stack([batch.labels[head], batch.extras["end"]], dim=1)[labelled]  # as the logits' last dimension
    right = ends.expand(*logits.shape[:-2], 2).flatten(0, -2)  # (n,2), or (2n,2)
    loss = F.cross_entropy(masked(logits).flatten(0, -3), right, reduction="sum", ignore_index=-1)
    every = _with_divergence(loss, loss.detach(), call, logits, lambda scores: torch.softmax(masked(scores), dim=-2))
    return every[0] / 2, every[1] / 2  # the mean of both ends


def bidirectional_loss(network: ELMo, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return -Σ log p(w_t+1 | w_≤t) - Σ log p(w_t-1 | w_≥t), the sum of both directions, without label smoothing.

    See docs/notes.md#e9.
    """
    inputs = batch.inputs
    total = network.loss(
        inputs["ids"],
        batch.extras["words"],
        token_mask=inputs["token_mask"],
        sampled=batch.extras.get("sampled"),
        random=call.random,
    ).total
    return total, total.detach()


def window_loss(network: CBOW, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return the loss of CBOW or skip-gram, without label smoothing (docs/notes.md#e9)."""
    ids, labels, negatives = batch.inputs["ids"], batch.labels[head], batch.extras.get("negatives")
    if negatives is not None and "neighbours" in batch.extras:
        total, _ = network.block_loss(ids, batch.extras["neighbours"], negatives, call.random)
        return total, total.detach()
    if network.skip_gram:
        total, _ = network.loss(ids[:, 0], labels, negatives, call.random)  # its one word
    else:
        context = torch.where(batch.inputs["token_mask"], ids, -1)  # -1: beyond the sentence
        total, _ = network.loss(labels, context, negatives, call.random)
    return total, total.detach()


def vector_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return the loss of the vectors of texts that `head` names, a row of `VECTOR_LOSSES`."""
    settings = cast(ContrastiveSettings, batch.settings[head])
    vectors = side_vectors(network, batch, settings, call.random)
    loss = nested_loss(VECTOR_LOSSES[head], vectors, head, batch, settings)
    return with_teachers(loss, soft_numbers, torch.cat(vectors, dim=-1), batch, head), loss.detach()


def reconstruction_loss(network: Network, head: str, forward: Forward, batch: Batch, call: Call) -> LossAndNll:
    """Return -Σ log p(token | the tokens before it, the vector of a copy without some words) (Wang et al. 2021)."""
    (vectors,) = side_vectors(network, batch, cast(ContrastiveSettings, batch.settings[head]), call.random)
    random = None if call.random is None else replace(call.random, use=call.random.use - MASKS)  # none of the encoder's
    labels = batch.labels[head]
    decoder = network.heads[head]
    hidden, matrix, bias = decoder(network, vectors, batch.inputs["target_ids"], labels >= 0, random)
    return cross_entropy(hidden, matrix, labels[labels >= 0], 0.0, bias)


# Kind of head -> its loss. "bidirectional" and "window" are no heads: ELMo and CBOW compute their own loss. Nor are
# those of `VECTOR_LOSSES`, which compare the vectors of texts.
LOSSES: dict[str, HeadLoss] = {
    "vocabulary": vocabulary_loss,
    "boundary": boundary_loss,
    "generator": generator_loss,
    "detection": detection_loss,
    "class": class_loss,
    "tag": class_loss,
    "crf": crf_loss,
    "span": span_loss,
    "number": number_loss,
    "set": set_loss,
    "bidirectional": bidirectional_loss,
    "window": window_loss,
    "reconstruction": reconstruction_loss,
    **dict.fromkeys(VECTOR_LOSSES, vector_loss),
}


def on_device(network: Network, batch: Batch, device: torch.device) -> Batch:
    """Return a batch on the device of the network.

    For a GPU, with what it would be asked and waited for: where the targets are ("HEAD places"), and the real tokens as
    a row, where the layers compute one.
    """
    if device.type == "cpu":
        return batch.to(device)
    places = {
        f"{head} places": (labels.flatten() >= 0).nonzero().squeeze(1)
        for head, labels in batch.labels.items()
        if labels.dim() == 2
    }
    moved = replace(batch, extras={**batch.extras, **places}).to(device)
    texts = [name for name in batch.inputs if name.endswith("ids") and name not in ("segment_ids", "position_ids")]
    stacks, taught = stacks_of(network), any(name.endswith(" teacher") for name in batch.settings)
    mixed = getattr(network, "mix", None) is not None  # of the outputs of all layers
    if texts != ["ids"] or len(stacks) != 1 or taught or mixed or current() is not None:
        return moved
    (stack,) = stacks
    if not stack.takes_rows(next(network.parameters()).dtype, device):
        return moved
    mask = stack.masks[0] if batch.mask is None else batch.mask
    row = None if isinstance(mask, RowMask) else RowMask.of(mask, batch.real("ids"), device)
    return moved if row is None else replace(moved, mask=row)


def kind_of(network: Network, head: str) -> str:
    """Return the kind of a head; the name itself of a loss without a head."""
    return network.heads[head].kind if head in network.heads else head


def losses(network: Network, batch: Batch, call: Call) -> dict[str, LossAndNll]:
    """Return the summed loss of each head that the batch has labels for; the network runs once, with R-Drop twice.

    The penalty of learned sparsity, one for each target, is added to the loss of the first head (docs/notes.md#a17).

    Args:
        batch: inputs, and labels by head.
        call: randomness, label smoothing and progress.

    Raises CapabilityError: there is no loss for a head. RecipeError: R-Drop without dropout.
    """

    generator = next((name for name in batch.labels if kind_of(network, name) == "generator"), None)

    @cache
    def forward(number: int = 0) -> Output:  # cached: several heads read one forward pass, with R-Drop two
        if generator is not None:
            return network.replaced(generator, batch.inputs, batch.labels[generator], call.random)
        if call.own is not None:
            return sampled_forward(network, batch, call.own, call.random)
        output: Output = network(**batch.inputs, **mask_of(network, batch.mask), random=call.random, project=False)
        return output

    head_losses: dict[str, LossAndNll] = {}
    counts, drawn = batch.counts(), call.random and call.random.use  # `use` grows with each mask that is drawn
    for head in batch.labels:
        kind = kind_of(network, head)
        if kind not in LOSSES:
            raise CapabilityError(f"this version has no loss for the head {head!r} of kind {kind!r}")
        loss, nll = LOSSES[kind](network, head, forward, batch, call)
        penalty = None if head_losses else network.cost()  # of the first head alone
        head_losses[head] = (loss if penalty is None else loss + penalty * counts[head], nll)
    if call.r_drop and call.random is not None and call.random.use == drawn:  # no mask was drawn
        raise RecipeError(without_dropout(call.r_drop))
    return head_losses
