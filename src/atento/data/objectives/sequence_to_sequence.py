"""Teacher forcing: predict each token of a target from the source and the target tokens before it.

source "I love NLP </s>"   target_ids "<s> Eu amo PLN"   labels "Eu amo PLN </s>", padded with -1 (docs/notes.md#e8)
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import DataError, counted
from atento.config.sections.network import NetworkConfig
from atento.config.tables.objective import ObjectiveConfig
from atento.config.tables.tasks import TASKS
from atento.data.batches.batch import Batch, Draw, EpochStores, MemoryStore, Ragged, Rows, Store
from atento.data.batches.planning import PlannedBatches
from atento.data.batches.special_tokens import begin_of_outputs, special_tokens_of
from atento.data.objectives.preparation import Preparation, Report
from atento.data.records.splits import Split, subset
from atento.text.tokenizer import Tokenizer

HEAD = "vocabulary"


@dataclass(frozen=True)
class SequenceToSequence:
    """Batches of pairs. Columns "source" and "target": ids without EOS."""

    pad_id: int
    start_id: int
    eos_id: int
    source_end: int | None = None  # the last token of a source, EOS if it is None; of mBART the source language

    def sizes(self, store: Store) -> NDArray[np.float64]:
        """Return the number of target tokens, EOS included."""
        return (store["target"].lengths + 1).astype(np.float64)

    def lengths(self, store: Store) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of sources and targets, EOS included."""
        return store["source"].lengths + 1, store["target"].lengths + 1

    def batch(self, store: Store, rows: Rows, draw: Draw) -> Batch:
        """Return a batch; it is the same in every epoch."""
        end = self.eos_id if self.source_end is None else self.source_end
        source = store["source"].padded(rows, self.pad_id, after=end)  # (B,S)
        target = store["target"].padded(rows, -1, before=self.start_id, after=self.eos_id)  # (B,T+1)
        target_ids, labels = target[:, :-1].clone(), target[:, 1:].clone()  # shifted by one: reads t, says t + 1
        lengths = torch.from_numpy(store["source"].lengths[rows] + 1)  # (B,)
        real = torch.arange(source.shape[1]) < lengths.unsqueeze(1)  # (B,S)
        target_ids[labels < 0] = self.pad_id  # -1 is no id; the last token of each row is not read either
        inputs = {"source_ids": source, "target_ids": target_ids}
        if not bool(real.all()):
            inputs["source_token_mask"] = real
        real_lengths = {"source_ids": lengths, "target_ids": torch.from_numpy(store["target"].lengths[rows] + 1)}
        return Batch(inputs, {HEAD: labels}, lengths=real_lengths)


def sequence_to_sequence(preparation: Preparation, config: ObjectiveConfig) -> PlannedBatches:
    """Return batches of pairs. In training, pairs that are too long are left out, or cut with `data.truncate`.

    Held-out pairs are cut at the learned positions of the network; `within_positions` leaves out the others.
    Raises DataError: no pair is left.
    """
    recipe, network, tokenizer = preparation.recipe, preparation.network, preparation.tokenizer
    sources, targets = preparation.split["source"], preparation.split["target"]
    end = special_tokens_of(network, tokenizer).single[-1][0]
    assert isinstance(end, int)
    objective = SequenceToSequence(network.pad_id, network.start_id, network.eos_id, end)
    source, target = sources_of(network, tokenizer, sources), targets_of(network, tokenizer, targets)
    budget, seed = recipe.training.batch_tokens, recipe.training.seed
    mixed = TASKS[recipe.task].several_tasks  # else an update would hold targets of one length, and so of one task
    if preparation.held_out:
        source, target = _cut(source, target, preparation, (network.source_limit, network.position_limit))
        return PlannedBatches(_store(source, target), objective, budget=budget, seed=seed, random_updates=mixed)
    limits = (min(preparation.longest, network.source_limit or preparation.longest), preparation.longest)
    source, target = _cut(source, target, preparation, limits, preparation.report)
    rows = _fitting(source, target, preparation, limits)

    # a trained encoder knows one segmentation of a word
    dropout = recipe.training.subword_dropout
    known = network.features is not None or (recipe.init is not None and recipe.init.new_decoder)

    def encode(epoch: int) -> Store:
        draws = [seed + 1_000_003 * (2 * epoch + side) for side in (0, 1)]  # each epoch and side draws apart
        read, written = ([side[row] for row in rows] for side in (sources, targets))
        encoded = sources_of(network, tokenizer, read, dropout=0.0 if known else dropout, seed=draws[0])
        wanted = targets_of(network, tokenizer, written, dropout=dropout, seed=draws[1])
        return _store(*_cut(encoded, wanted, preparation, limits))

    first = _store([source[row] for row in rows], [target[row] for row in rows])
    stores = EpochStores(first, encode if dropout else None)
    return PlannedBatches(stores, objective, budget=budget, seed=seed, weight=config.weight, random_updates=mixed)


def parallel(
    source: Ragged, target: Ragged, *, budget: int, seed: int, pad_id: int, start_id: int, eos_id: int
) -> PlannedBatches:
    """Return batches of parallel ids without EOS."""
    store = MemoryStore({"source": source, "target": target})
    return PlannedBatches(store, SequenceToSequence(pad_id, start_id, eos_id), budget=budget, seed=seed)


def sources_of(
    network: NetworkConfig, tokenizer: Tokenizer, texts: Iterable[str], dropout: float = 0.0, seed: int = 0
) -> list[list[int]]:
    """Encode sources with their special tokens, except the last, which a batch adds; a blank text has no ids."""
    special_tokens = special_tokens_of(network, tokenizer)
    encoded = tokenizer.encode_batch(list(texts), dropout=dropout, seed=seed)
    return [special_tokens.apply(ids)[0][:-1] if ids else [] for ids in encoded]


def targets_of(
    network: NetworkConfig, tokenizer: Tokenizer, texts: Iterable[str], dropout: float = 0.0, seed: int = 0
) -> list[list[int]]:
    """Encode targets, behind the token that all outputs of the network begin with; a blank text has no ids."""
    encoded = tokenizer.target.encode_batch(list(texts), dropout=dropout, seed=seed)
    begin = begin_of_outputs(network)
    return [[*begin, *ids] if ids else [] for ids in encoded] if begin else encoded


def _store(source: list[list[int]], target: list[list[int]]) -> MemoryStore:
    return MemoryStore({"source": Ragged(source), "target": Ragged(target)})


def _fitting(
    source: list[list[int]], target: list[list[int]], preparation: Preparation, limits: tuple[int, int]
) -> list[int]:
    """Return the numbers of the pairs that are not blank and not too long; warn of those that are left out."""
    longest, sides = min(limits), preparation.recipe.data.truncate
    way = {"none": "`data.truncate: source` cuts long sources, and ", "source": "", "both": ""}[sides]
    way = f"{way}`data.max_len` raises the limit"
    rows = [row for row, (s, t) in enumerate(zip(source, target)) if 0 < len(s) < limits[0] and 0 < len(t) < limits[1]]
    n_blank = sum(not s or not t for s, t in zip(source, target))
    n_long = len(source) - len(rows) - n_blank  # below `longest`, since EOS follows
    for count, why in ((n_blank, "a side has no tokens"), (n_long, f"longer than {counted(longest, 'token')}; {way}")):
        if count:
            preparation.report(f"warning: {count:,} of {len(source):,} training pairs left out: {why}")
    if not rows and not n_long:
        raise DataError("no training pair is left: a side of each has no tokens")
    if not rows:
        raise DataError(
            f"no training pair is left: all are longer than `data.max_len` {longest} tokens, or blank; {way}"
        )
    return rows


def within_positions(
    split: Split, network: NetworkConfig, tokenizer: Tokenizer, truncate: str = "none"
) -> tuple[Split, str | None]:
    """Leave out the pairs of a held-out split that the learned positions of a network cannot hold.

    Args:
        split: validation or test data; one without sources and targets is returned as it is.
        truncate: `data.truncate`; a side that it names is cut, and leaves out no pair.

    Returns:
        The pairs that are left, and a warning that counts the others; None: none is left out.

    Raises DataError: no pair is left.
    """
    limit, read = network.position_limit, network.source_limit  # `read` is no more than `limit`
    if read is None or not {"source", "target"} <= split.columns.keys():
        return split, None
    # not those that are cut
    sides = [] if truncate == "both" or limit is None else [(targets_of(network, tokenizer, split["target"]), limit)]
    sides += [(sources_of(network, tokenizer, split["source"]), read)] if truncate == "none" else []
    rows = [row for row in range(len(split)) if all(len(side[row]) < most for side, most in sides)]  # EOS follows
    if len(rows) == len(split):
        return split, None
    why = f"{len(split) - len(rows)} of {len(split)} pairs left out: longer than the {read} positions of the network"
    if not rows:
        raise DataError(why)
    return subset(split, rows), why


def _cut(
    source: list[list[int]],
    target: list[list[int]],
    preparation: Preparation,
    limits: tuple[int | None, int | None],
    report: Report | None = None,
) -> tuple[list[list[int]], list[list[int]]]:
    """Cut the sides that `data.truncate` names at their limits, EOS included; warn of those that are cut."""
    sides, rooms = preparation.recipe.data.truncate, [limit and limit - 1 for limit in limits]  # EOS follows
    if sides == "none":
        return source, target
    # of each side
    long = [sum(len(row) > room for row in side) if room else 0 for side, room in zip((source, target), rooms)]
    counts = [f"{count} on the {name} side" for count, name in zip(long, ("source", "target")) if count]
    if sides == "source":
        counts = counts[: bool(long[0])]  # targets stay whole: of the counts, that of the source side, if there is one
    if counts and report is not None:
        report(f"warning: of {len(source)} training pairs, {' and '.join(counts)} cut to {limits[0]} tokens")
    return [row[: rooms[0]] for row in source], [row[: rooms[1]] for row in target] if sides == "both" else target
