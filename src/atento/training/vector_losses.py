"""Losses of the vectors of texts, which compare the texts of a record or of a batch; and how these are read."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from atento.attention.dropout import Randomness
from atento.data.batches.batch import SIDES, Batch, ContrastiveSettings
from atento.networks.heads import TextWindows, pool_text, pool_windows
from atento.networks.interface import Network
from atento.networks.vocabulary import at_least_float32

_GROUP_TOKENS = {"cpu": 2048}  # tokens of texts that are read at a time for their vectors, by type of device
_MANY_TOKENS = 32768  # of other devices, which are slow at many small products
MASKS = 1 << 20  # masks of dropout that a group may draw

# (vectors of each side (B,D), name of the loss, batch, settings) -> summed loss
VectorLoss = Callable[[Sequence[Tensor], str, Batch, ContrastiveSettings], Tensor]


def ranking_loss(vectors: Sequence[Tensor], name: str, batch: Batch, settings: ContrastiveSettings) -> Tensor:
    """Return Σ -log softmax(scale · cosines)[pair] over texts: multiple negatives ranking.

    Each text is compared with the second texts of all pairs of the batch, and with all negatives
    (`Batch.extras["candidates"]` says which are not). Symmetric: the mean with the same over second texts, each
    compared with all first texts.

    Papers: Henderson et al. 2017 (Efficient Natural Language Response Suggestion for Smart Reply), 4.4; Reimers &
    Gurevych 2019 (Sentence-BERT).
    """
    texts, *compared = (F.normalize(side, dim=-1) for side in vectors)  # of length 1: products are cosines
    scores = settings.scale * (texts @ torch.cat(compared).T)  # (B, all second texts and negatives)
    if "candidates" in batch.extras:
        scores = scores.masked_fill(~batch.extras["candidates"], float("-inf"))  # -inf: never counted as wrong
    labels = batch.labels[name]
    loss = F.cross_entropy(scores, labels, reduction="sum")  # the right one of text i is pair `labels[i]`
    if settings.symmetric:
        loss = (loss + F.cross_entropy(scores[:, : len(texts)].T, labels, reduction="sum")) / 2
    return loss


def cosine_loss(vectors: Sequence[Tensor], name: str, batch: Batch, settings: ContrastiveSettings) -> Tensor:
    """Return Σ (cosine - score)² over pairs; `Batch.extras[name]` (B,) has the scores (Reimers & Gurevych 2019)."""
    texts, pairs = vectors
    return F.mse_loss(F.cosine_similarity(texts, pairs), batch.extras[name], reduction="sum")  # (B,)


def cosent_loss(vectors: Sequence[Tensor], name: str, batch: Batch, settings: ContrastiveSettings) -> Tensor:
    """Return B · log(1 + Σ exp(scale · (cosine_j - cosine_i))) over the pairs i that have a higher score than j.

    Only the order of the scores, `Batch.extras[name]` (B,), counts. The factor B is taken back where the loss of an
    update is divided by its pairs. Paper: Huang et al. 2024 (CoSENT).
    """
    (texts, pairs), scores = vectors, batch.extras[name]
    cosines = settings.scale * F.cosine_similarity(texts, pairs)  # (B,)
    higher = scores[:, None] > scores[None, :]  # (B,B)
    terms = (cosines[None, :] - cosines[:, None])[higher]  # cosine_j - cosine_i where i is scored higher
    return len(scores) * torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), dim=0)


def triplet_loss(vectors: Sequence[Tensor], name: str, batch: Batch, settings: ContrastiveSettings) -> Tensor:
    """Return Σ max(0, margin + distance(text, pair) - distance(text, negative)) (Schroff et al. 2015, FaceNet).

    The distance is Euclidean, or 1 - cosine.
    """
    texts, pairs, negatives = vectors  # (B,D) each
    if settings.distance == "cosine":
        near, far = (1 - F.cosine_similarity(texts, side) for side in (pairs, negatives))
    else:
        near, far = (F.pairwise_distance(texts, side) for side in (pairs, negatives))
    return F.relu(settings.margin + near - far).sum()  # no loss from `margin` on


VECTOR_LOSSES: dict[str, VectorLoss] = {
    "multiple-negatives": ranking_loss,
    "cosine": cosine_loss,
    "cosent": cosent_loss,
    "triplet": triplet_loss,
    "simcse": ranking_loss,
}


def nested_loss(
    loss: VectorLoss, vectors: Sequence[Tensor], name: str, batch: Batch, settings: ContrastiveSettings
) -> Tensor:
    """Return a loss of the vectors; with `settings.sizes`, the sum of those of their first N numbers, for each size N.

    The shortened vectors have length 1 (Kusupati et al. 2022, Matryoshka Representation Learning).
    """
    if not settings.sizes:
        return loss(vectors, name, batch, settings)
    shortened = ([F.normalize(side[:, :size], dim=-1) for side in vectors] for size in settings.sizes)
    return torch.stack([loss(sides, name, batch, settings) for sides in shortened]).sum()


def side_vectors(
    network: Network, batch: Batch, settings: ContrastiveSettings, random: Randomness | None
) -> list[Tensor]:
    """Return the vectors (B,D) of the texts of each side, at least in float32.

    One network reads all sides together, in groups of texts of similar length, and a text of several records once.
    """
    names = [name for name in SIDES.values() if name in batch.inputs]
    width = max(batch.inputs[name].shape[1] for name in names)  # of the longest side: all are padded to it
    pad_id = network.config.pad_id
    ids = torch.cat(  # (sides·B,width)
        [F.pad(batch.inputs[name], (0, width - batch.inputs[name].shape[1]), value=pad_id) for name in names]
    )
    real = torch.cat([F.pad(batch.real(name), (0, width - batch.inputs[name].shape[1])) for name in names])
    lengths = real.sum(dim=1)  # (sides·B,)
    skips = torch.tensor([settings.skip.get(name, 0) for name in names for _ in batch.inputs[name]], device=ids.device)
    places = torch.arange(len(ids), device=ids.device)  # of each row, which of those below it is
    if settings.windows is None:
        # each different text once, which has one place; but where a record has one text on two sides, dropout may be
        # what tells these apart (Gao et al. 2021, SimCSE)
        _, found = torch.unique(torch.cat([ids, skips[:, None]], dim=1), dim=0, return_inverse=True)
        records = found.view(len(names), -1).sort(dim=0).values  # (sides, records): the texts of a record, sorted
        rows = places
        places = rows if (records[1:] == records[:-1]).any() else found
        once = places.new_full((int(places.max()) + 1,), len(ids)).scatter_reduce(0, places, rows, "amin")  # the first
        ids, real, skips, lengths = ids[once], real[once], skips[once], lengths[once]
    order = torch.argsort(lengths, stable=True)  # so that a group is padded to its own longest text
    per_group = _GROUP_TOKENS.get(ids.device.type, _MANY_TOKENS)
    count = min(len(ids), max(settings.pieces, round(int(lengths.sum()) / per_group)))  # at least as many as `pieces`
    vectors = []
    for number, rows in enumerate(torch.tensor_split(order, max(1, count))):
        longest = int(lengths[rows[-1]])  # the last row of a group, for they are sorted
        own = None if random is None else replace(random, use=random.use + number * MASKS)
        arguments = (network, ids[rows, :longest], real[rows, :longest], skips[rows, None], settings, own)
        if settings.pieces > 1:
            vectors.append(checkpoint(_read, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            vectors.append(_read(*arguments))
    in_order = torch.cat(vectors)[torch.argsort(order)][places]  # the inverse of `order`, then each text in its places
    sides = in_order.split([len(batch.inputs[name]) for name in names])  # (B,D) each
    if settings.windows is None:
        return list(sides)
    windows = (TextWindows(settings.windows, batch.extras[f"{name} texts"]) for name in names)
    pooled = [pool_windows(own, side) for own, side in zip(windows, sides)]
    return [F.normalize(side, dim=-1) for side in pooled] if settings.normalize else pooled


def _read(
    network: Network, ids: Tensor, real: Tensor, skip: Tensor, settings: ContrastiveSettings, random: Randomness | None
) -> Tensor:
    """The vectors of texts, ids (B,L) -> (B,D); a second call with the same arguments drops the same elements out.

    The vectors leave out the first `skip` (B,1) tokens.
    """
    own = None if random is None else replace(random)  # drawing counts
    hidden = network(ids=ids, token_mask=real, random=own, project=False).hidden  # (B,L,D)
    pooled = pool_text(settings.pooling, at_least_float32(hidden), real, skip)  # (B,D), or P·D wide
    pooled = network.text_vectors(pooled)
    return F.normalize(pooled, dim=-1) if settings.normalize and settings.windows is None else pooled
