"""The head over the vocabulary, on the base of all heads, and its loss: label-smoothed cross-entropy, also with R-Drop.

The loss takes memory that does not grow with tokens x vocabulary (docs/notes.md#c5). It is a sum over real targets; the
training step divides once, by the real targets of the whole update.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atento.attention.algebra import Context, TypedFunction
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig, HeadKind
from atento.networks.layers import ACTIVATIONS, OutputMatrix, TokenEmbedding, make_norm


class Head(nn.Module):
    """The base of all heads: a kind, which decides the loss that trains them."""

    kind: HeadKind


class OutputHead(Head):
    """The base of heads with an output matrix over the vocabulary."""

    output: OutputMatrix

    @property
    def bias(self) -> Tensor | None:
        """The bias of the logits, (V,)."""
        return self.output.bias

    def matrix(self, table: TokenEmbedding | None) -> Tensor:
        """The output matrix (V,D): the head's, or that of the embedding `table`."""
        return self.output.matrix(table)


class Transform(nn.Module):
    """norm(act(W x + b)): the layer before the output matrix of a masked language model (Devlin et al. 2019).

    Its vectors have the width of the embeddings, E.
    """

    def __init__(self, config: NetworkConfig, head: HeadConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.embedding_width, bias=head.hidden_bias)
        self.activation = ACTIVATIONS[head.activation or config.feed_forward.activation]
        self.norm = make_norm(config, config.embedding_width)

    def forward(self, hidden: Tensor) -> Tensor:
        """(...,D) -> (...,E)."""
        return cast(Tensor, self.norm(self.activation(self.dense(hidden))))


class VocabularyHead(OutputHead):
    """hidden -> logits over the vocabulary, of the next token or of a masked token.

    See docs/notes.md#c5, #e3.

    The matrix is the head's or, if tied, the embedding's. Before it, the vectors may pass a dense layer with a norm
    (BERT) or be multiplied by `scale` (T5). A loss that never computes all logits at once uses `read`, `matrix` and
    `bias`.
    """

    kind = "vocabulary"

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        tied: bool,
        bias: bool,
        scale: float = 1.0,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        self.transform, self.scale = transform, scale
        self.output = OutputMatrix(vocab_size, d_model, tied=tied, bias=bias)

    def read(self, hidden: Tensor) -> Tensor:
        """hidden (...,D) -> the input of the output matrix, (...,D)."""
        hidden = hidden if self.transform is None else self.transform(hidden)
        return hidden * self.scale if self.scale != 1.0 else hidden  # 1.0 costs no pass

    def forward(self, hidden: Tensor, table: TokenEmbedding | None) -> Tensor:
        """hidden (...,D) -> logits (...,V)."""
        return cast(Tensor, self.output(self.read(hidden), table))


# Rows of one block of logits. Every block reads and writes the gradient of the whole weight matrix, so that small
# blocks are slow (GPT-2's update took 1.5 times as long with 41 rows as with 128). Large blocks cost memory with a
# large vocabulary. The aim is 32 MiB of float32 logits. Within a block, rows become probabilities and gradients in
# strips of 1 MiB that stay in a processor's cache; in memory, bfloat16 took 1.15 times as long with 30,522 words.
_MIN_ROWS, _MAX_ROWS, _BLOCK_LOGITS = 192, 512, 1 << 23
_MIN_STRIP_ROWS, _STRIP_LOGITS = 8, 1 << 18
_GPU_FACTOR = 8  # on a GPU: a block is some thirty short kernels
_ADDED = 1 << 17  # elements that are converted at once, which stay in a processor's cache
_GPU_MULTIPLE = 64  # of words: where rows of logits do not begin at 16 bytes, a GPU's products take four times as long
_NEVER = -30000.0  # the logit of what is no word; a probability of 0, also in 16 bits
_ROW_MULTIPLE = 64  # the last block is padded to a multiple of this, so that oneDNN meets few shapes


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precisions to float32; leave float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def add_wide(total: Tensor, narrow: Tensor) -> Tensor:
    """Add a tensor, which may have a narrower type, to `total` in place; return it.

    On a CPU, PyTorch would convert the whole tensor first, and new memory for it takes longer than the sum.
    """
    if total.dtype == narrow.dtype or total.is_cuda or not (total.is_contiguous() and narrow.is_contiguous()):
        return total.add_(narrow)
    for part, added in zip(total.view(-1).split(_ADDED), narrow.view(-1).split(_ADDED)):  # views of the same memory
        part.add_(added.to(total.dtype))
    return total


def plain_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, bias: Tensor | None = None, r_drop: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy as its equation: Σ (1-ε)·(-log p_y) + ε·mean_v(-log p_v) (Szegedy et al. 2016).

    Of two passes, half of R-Drop's loss: (CE_p + CE_q + α/2·Σ KL(p || q) + KL(q || p)) / 2 (Liang et al. 2021).

    Args:
        hidden: (N,D), or (2,N,D) of two passes with other dropout. weight: (V,D). targets: (N,) int64. bias: (V,).
        smoothing: ε.
        r_drop: α.

    Returns:
        The summed loss, and the summed negative log-likelihood without smoothing, of two passes its mean; scalars in
        nats.
    """
    logits = at_least_float32(F.linear(hidden, weight, bias))  # (N,V), or (2,N,V)
    log_probs = torch.log_softmax(logits, dim=-1)  # (N,V), or (2,N,V)
    nll = -log_probs.gather(-1, targets.expand(log_probs.shape[:-1]).unsqueeze(-1)).sum()
    loss = (1 - smoothing) * nll - smoothing * log_probs.mean(dim=-1).sum()
    if hidden.dim() == 2:
        return loss, nll
    p, q = log_probs
    both = F.kl_div(q, p, reduction="sum", log_target=True) + F.kl_div(p, q, reduction="sum", log_target=True)
    return (loss + r_drop / 2 * both) / 2, nll / 2


def divergences(scores: Tensor, probs: Tensor) -> Tensor:
    """Return Σ KL(p || q) + KL(q || p) = Σ (p - q)·(a - b) of probabilities p, q (2,...) by the scores a, b (2,...)."""
    a, b = scores.unbind()
    p, q = probs.unbind()  # log Z vanishes, since Σ (p - q) = 0
    return ((p - q) * (a - b)).sum()


def _rows_of_block(hidden: Tensor, vocab_size: int) -> int:
    rows = min(max(_MIN_ROWS, _BLOCK_LOGITS // vocab_size), _MAX_ROWS)
    return rows * _GPU_FACTOR if hidden.is_cuda else rows


class _ChunkedCrossEntropy(TypedFunction):
    """Computes the gradients in the forward pass, block by block, so that no (N,V) matrix is ever allocated.

    With p = softmax(logits), the gradient of the loss by a row of logits is p - (1-ε)·onehot(y) - ε/V. The forward pass
    has p at hand, so it multiplies this gradient by `weight` and by `hidden` at once, and drops the block. The backward
    pass scales the results by the incoming gradient. Rows of two passes are in one block.
    """

    @staticmethod
    def forward(
        ctx: Context[None], hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *options: float
    ) -> tuple[Tensor, Tensor]:
        (smoothing, r_drop), passes, vocab_size = options[:2], len(hidden), int(options[2])
        of_hidden, of_weight, of_bias = ctx.needs_input_grad[:3]  # a frozen matrix needs none
        d_hidden = torch.empty_like(hidden) if of_hidden else None
        d_weight: Tensor | None = None  # of the blocks so far
        d_bias = torch.zeros_like(at_least_float32(bias)) if of_bias and bias is not None else None
        # smoothing weighs all logits alike: the sum of a row's logits is h · weight_sum + bias_sum, and the gradient of
        # the smoothed part needs only these two sums, not the logits
        weight_sum = at_least_float32(weight).sum(dim=0) if smoothing else None  # (D,)
        bias_sum = 0.0 if bias is None else at_least_float32(bias[:vocab_size]).sum(dtype=torch.float64)
        loss = torch.zeros((), dtype=torch.float64, device=hidden.device)
        total_nll = torch.zeros_like(loss)
        rows = max(1, _rows_of_block(hidden, vocab_size) // passes)  # of each pass
        strip_rows = rows if hidden.is_cuda else max(_MIN_STRIP_ROWS, _STRIP_LOGITS // vocab_size)
        for start in range(0, hidden.shape[1], rows):
            h = hidden[:, start : start + rows].flatten(0, 1)  # (passes·n,D)
            y = targets[start : start + rows]  # (n,)
            missing = -len(h) % _ROW_MULTIPLE  # rows of zeros
            h = F.pad(h, (0, 0, 0, missing)) if missing else h  # full blocks are faster
            block = F.linear(h, weight, bias)  # (passes·n,V): logits, and then their gradients
            block[len(block) - missing :] = 0
            logits = block[: len(block) - missing].unflatten(0, (passes, -1))  # (passes,n,V)
            if weight_sum is not None:
                logit_sum = (at_least_float32(h) @ weight_sum).sum(dtype=torch.float64) + passes * len(y) * bias_sum
                loss -= smoothing / vocab_size * logit_sum
            for strip, words in zip(logits.split(strip_rows, dim=1), y.split(strip_rows)):
                sums = _to_gradients(strip, words, smoothing, r_drop, d_bias, keep=of_hidden or of_weight or of_bias)
                loss, total_nll = loss + sums[0], total_nll + sums[1]
            # d loss / d logit = p - (1-ε)·onehot(y) - ε/V; the last is one number, so it needs no (n,V) tensor
            if d_hidden is not None:
                d_hidden[:, start : start + rows] = (block @ weight)[: passes * len(y)].unflatten(0, (passes, -1))
            if of_weight:
                product = block.t() @ h  # rows of padding are 0, so they add nothing
                d_weight = product if d_weight is None else add_wide(at_least_float32(d_weight), product)
            del block, logits  # frees the block before the next one is allocated
        if d_bias is not None:
            d_bias -= smoothing / vocab_size * passes * len(targets)
        if of_weight and d_weight is None:  # there are no targets
            d_weight = torch.zeros_like(weight)
        if weight_sum is not None:
            _smooth(d_hidden, smoothing / vocab_size * weight_sum)  # (D,), ε/V · Σ_v w_v, for each row
            d_weight = None if d_weight is None else at_least_float32(d_weight)
            _smooth(d_weight, smoothing / vocab_size * at_least_float32(hidden).sum(dim=(0, 1)))  # ε/V · Σ h, (D,)
        if of_hidden or of_weight or of_bias:
            converted = [None if x is None else x.to(weight.dtype) for x in (d_weight, d_bias)]
            ctx.save_for_backward(d_hidden, *converted)
        ctx.mark_non_differentiable(total_nll)
        return loss, total_nll

    @staticmethod
    def backward(ctx: Context[None], *grads: Tensor) -> tuple[Tensor | None, ...]:
        by = grads[0]  # of the loss alone: the other sum has no gradient
        if by.device.type == "cpu" and by == 1:  # as in an update of one head, whose gradient is divided at the end
            return *ctx.saved_tensors, None, None, None, None
        scaled = [None if saved is None else saved * by.to(saved.dtype) for saved in ctx.saved_tensors]
        return *scaled, None, None, None, None


def _to_gradients(
    logits: Tensor, targets: Tensor, smoothing: float, r_drop: float, d_bias: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Put p - (1-ε)·onehot(y) in place of the logits (passes,n,V) of targets (n,), if `keep`; add its sum to `d_bias`.

    Returns:
        The summed loss without the mean logits of smoothing, and the summed negative log-likelihood.
    """
    y = targets[:, None].repeat(len(logits), 1)  # (passes·n,1)
    scores = at_least_float32(logits).flatten(0, 1)  # (passes·n,V)
    largest, at_target = scores.amax(dim=-1, keepdim=True), scores.gather(1, y)  # (passes·n,1)
    probs = torch.softmax(scores, dim=-1, out=scores if keep and len(logits) == 1 and not scores.is_cuda else None)
    log_z = largest - probs.amax(dim=-1, keepdim=True).log()  # (passes·n,1), without exp
    # -log p(y) = log Z - logit(y); the mean of -log p over the vocabulary = log Z - mean logit
    nll = (log_z - at_target).sum(dtype=torch.float64)
    loss = (1 - smoothing) * nll + smoothing * log_z.sum(dtype=torch.float64)
    if len(logits) == 2:
        loss += r_drop / 2 * _add_divergences(scores, probs, r_drop / 2)
    if keep:
        probs.scatter_add_(1, y, torch.full_like(log_z, -(1 - smoothing)))
        if d_bias is not None:
            d_bias += probs.sum(dim=0)
        if probs.data_ptr() != logits.data_ptr():
            logits.copy_(probs.view_as(logits))  # the type of the products' other side
    return loss, nll


def _smooth(gradient: Tensor | None, uniform: Tensor) -> None:
    """Subtract the part of smoothing, the same in all rows, in place."""
    if gradient is not None:
        gradient -= uniform.to(gradient.dtype)


def _add_divergences(logits: Tensor, probs: Tensor, factor: float) -> Tensor:
    """Return `divergences` of two passes (2n,V), add `factor` times its gradient to `probs`, and overwrite `logits`.

    With δ = a - b, the gradient by a is p·(δ - Σ p·δ) + p - q, and that by b is q·(Σ q·δ - δ) + q - p.
    """
    (delta, spare), (p, q) = logits.chunk(2), probs.chunk(2)  # `delta` and `spare` are views of `logits`
    delta -= spare
    difference, means = p - q, [(each * delta).sum(dim=-1, keepdim=True) for each in (p, q)]  # (n,1) each
    for each, mean, sign in zip((p, q), means, (factor, -factor)):
        each.addcmul_(each, torch.sub(delta, mean, out=spare), value=sign).add_(difference, alpha=sign)
    return (means[0] - means[1]).sum(dtype=torch.float64)  # Σ (p - q)·δ


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float = 0.0,
    bias: Tensor | None = None,
    r_drop: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same as `plain_cross_entropy`, with peak memory independent of N·V.

    Args:
        hidden: (N,D), or (2,N,D) of two passes with other dropout. weight: (V,D). targets: (N,) int64. bias: (V,).
        smoothing: label smoothing ε.
        r_drop: weight α of the divergence of two passes.

    Returns:
        The summed loss, and the summed negative log-likelihood without smoothing; float64 scalars in nats.
    """
    vocab_size = len(weight)
    if hidden.dtype == torch.float16:
        # Blocks are computed again in the backward pass, which knows the scale of the loss: most of a gradient that has
        # not been multiplied by it is below 6e-8, and so 0.
        rows = max(1, _rows_of_block(hidden, vocab_size) // (hidden.dim() - 1))  # of each pass
        loss = nll = torch.zeros((), dtype=torch.float64, device=hidden.device)
        for h, y in zip(hidden.split(rows, dim=-2), targets.split(rows)):
            of_block = checkpoint(plain_cross_entropy, h, weight, y, smoothing, bias, r_drop, use_reentrant=False)
            loss, nll = loss + of_block[0], nll + of_block[1].detach()
        return loss, nll
    missing = -vocab_size % _GPU_MULTIPLE if hidden.is_cuda and hidden.dtype == torch.bfloat16 else 0
    if missing:  # words that no row predicts
        bias = F.pad(weight.new_zeros(vocab_size) if bias is None else bias, (0, missing), value=_NEVER)
        weight = F.pad(weight, (0, 0, 0, missing))
    passes, r_drop = (hidden, r_drop) if hidden.dim() == 3 else (hidden.unsqueeze(0), 0.0)
    loss, nll = _ChunkedCrossEntropy.apply(passes, weight, bias, targets, smoothing, r_drop, vocab_size)
    return (loss, nll) if hidden.dim() == 2 else (loss / 2, nll / 2)  # half of both passes: their mean
