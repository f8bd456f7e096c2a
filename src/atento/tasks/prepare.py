"""From a recipe to what training needs: records read and checked, a tokenizer, ids, a network's configuration."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from atento.config.network import NetworkConfig, changed
from atento.config.positions import PositionConfig
from atento.config.recipe import Recipe, SourceConfig
from atento.config.tasks import RULES
from atento.data.batches import Ragged, Seq2SeqBatches
from atento.data.held_out import held_out
from atento.data.memory import Records, called
from atento.data.sources import fingerprint, overlap, read_pairs
from atento.data.special_tokens import special_tokens_of
from atento.data.texts import read_texts, repeated
from atento.errors import DataError, RecipeError, UsageError, counted
from atento.text.tokenizer import Tokenizer
from atento.text.training import train_tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Examples:
    """One split, all its sources joined, as columns of equal length: `source` and `target`, or `text`."""

    columns: dict[str, list[str]]
    fingerprint: str

    def __getitem__(self, name: str) -> list[str]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def texts(self) -> Iterator[str]:
        """Every text of every record, in their order."""
        return (text for record in zip(*self.columns.values()) for text in record)


@dataclass(frozen=True)
class Data:
    """Every split of a recipe; `fingerprint` says exactly which records a run was trained and validated on."""

    train: Examples
    valid: Examples | None
    test: Examples | None
    fingerprint: str


def read_data(recipe: Recipe, folder: Path, say: Say, memory: Mapping[str, Records] | None = None) -> Data:
    """Read every split, and say what was left out; `memory` has the records of sources that name no file.

    Raises:
        DataError, RecipeError: before any long work, naming file, line and rule.
    """
    config, kind = recipe.data, RULES[recipe.task].data
    splits: dict[str, Examples | None] = {}
    read: dict[str, list[Any]] = {}
    for name, sources in (("train", config.train), ("valid", config.valid), ("test", config.test)):
        read[name] = [READERS[kind].read(source, folder, skip_bad=config.skip_bad, memory=memory) for source in sources]
        for warning in (text for one in read[name] for text in one.warnings()):
            say(f"warning: {warning}")
        splits[name] = _joined(read[name], READERS[kind].columns)
    train = splits["train"]
    if train is None:
        raise RecipeError("`data.train` names no data")
    for part, source in zip(read["valid"], config.valid):
        also = sum(READERS[kind].overlap(one, part) for one in read["train"])
        if also:
            place = f"{len(part)} validation {kind} of {_name(source)}"
            say(f"warning: {also} of {place} also stand in the training data")
    if config.held_out:
        train, splits["valid"] = _held_out(train, config.held_out, kind, say)
    parts = [train.fingerprint, "" if splits["valid"] is None else splits["valid"].fingerprint]
    return Data(train, splits["valid"], splits["test"], sha256("\n".join(parts).encode()).hexdigest())


@dataclass(frozen=True)
class Reader:
    """How a source of one kind of records is read, and how many of one's records also stand in another."""

    columns: tuple[str, ...]
    read: Callable[..., Any]
    overlap: Callable[[Any, Any], int]


READERS = {
    "pairs": Reader(("source", "target"), read_pairs, overlap),
    "texts": Reader(("text",), read_texts, repeated),
}


def _joined(read: list[Any], columns: tuple[str, ...]) -> Examples | None:
    if not read:
        return None
    return Examples(
        {name: [text for part in read for text in getattr(part, name)] for name in columns},
        sha256("\n".join(part.fingerprint for part in read).encode()).hexdigest(),
    )


def _held_out(train: Examples, count: int, kind: str, say: Say) -> tuple[Examples, Examples]:
    """The training records without those held out, and these; says how many."""
    rest, valid = (Examples(part, fingerprint(*part.values())) for part in held_out(train.columns, count))
    equal = len(train) - len(rest) - len(valid)
    also = f"; {equal} equal to one of them {'are' if equal > 1 else 'is'} not trained on" if equal else ""
    say(f"{len(valid):,} of {len(train):,} training {kind} held out for validation{also}")
    return rest, valid


def _name(source: SourceConfig) -> str:
    if source.memory is not None:
        return called(source.memory)
    return f"the micro-world's {source.world}" if source.world else str(source.file or source.source)


def tokenizer_for(recipe: Recipe, folder: Path, texts: Iterable[str], say: Say) -> Tokenizer:
    """The recipe's tokenizer: loaded from its `path`, or trained on the training text."""
    config = recipe.tokenizer
    if config.path is not None:
        return Tokenizer.load(folder / config.path)
    if not config.shared:
        raise UsageError("`tokenizer.shared: false` (one vocabulary a language) is not built yet; use true")
    tokenizer = train_tokenizer(config, texts)
    say(f"tokenizer: {config.kind}, {tokenizer.vocab_size} pieces")
    return tokenizer


def network_for(recipe: Recipe, tokenizer: Tokenizer) -> NetworkConfig:
    """The recipe's network with the tokenizer's sizes and ids filled in."""
    given = recipe.network.vocab_size
    if given not in (0, tokenizer.vocab_size):
        raise RecipeError(
            f"`network.vocab_size` must be the tokenizer's: got {given} and {tokenizer.vocab_size}; leave it out"
        )
    return changed(
        recipe.network,
        vocab_size=tokenizer.vocab_size,
        ids={
            "pad": tokenizer.pad_id,
            "unk": tokenizer.unk_id,
            "bos": tokenizer.bos_id,
            "eos": tokenizer.eos_id,
            "start": tokenizer.bos_id,
            "mask": tokenizer.specials.get("mask"),
        },
        positions=_behind_padding(recipe.network, tokenizer.pad_id),
        tokenizer_fingerprint=tokenizer.fingerprint,
    )


def _behind_padding(network: NetworkConfig, pad_id: int) -> PositionConfig | tuple[PositionConfig, ...]:
    """The network's positions; RoBERTa's table begins behind the id of padding, so that its layout can hold it."""
    scheme = network.positions
    if network.family in ("roberta", "xlm-roberta") and isinstance(scheme, PositionConfig) and scheme.real_only:
        return replace(scheme, shift=pad_id + 1)
    return scheme


def sources_of(network: NetworkConfig, tokenizer: Tokenizer, texts: Iterable[str], **draw: Any) -> list[list[int]]:
    """The sources as the network reads them, but for EOS, which a batch puts behind; a blank text has no ids."""
    marks = special_tokens_of(network, tokenizer)
    return [marks.apply(ids)[0][:-1] if ids else [] for ids in tokenizer.encode_batch(list(texts), **draw)]


def batches_for(
    recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, pairs: Examples, say: Say
) -> Seq2SeqBatches:
    """The training pairs as ids, the over-long ones left out or, with `data.truncate`, cut; either is counted."""
    source, target = sources_of(network, tokenizer, pairs["source"]), tokenizer.target.encode_batch(pairs["target"])
    longest = recipe.data.max_len
    source, target = _cut(source, target, recipe, say)
    kept = [i for i, (s, t) in enumerate(zip(source, target)) if 0 < len(s) < longest and 0 < len(t) < longest]
    blank = sum(not s or not t for s, t in zip(source, target))
    long = len(source) - len(kept) - blank
    for count, why in ((blank, "a side has no tokens"), (long, f"longer than {counted(longest, 'token')}")):
        if count:
            say(f"warning: {count} of {len(source)} training pairs left out: {why}")
    if not kept:
        raise DataError(f"no training pair is left: all are longer than `data.max_len` {longest} tokens, or blank")
    training = recipe.training

    def resample(epoch: int) -> tuple[Ragged, Ragged]:
        drawn = []
        for side, name in enumerate(("source", "target")):
            texts = [pairs[name][i] for i in kept]
            seed = training.seed + 1_000_003 * (2 * epoch + side)
            drop: dict[str, Any] = {"dropout": training.subword_dropout, "seed": seed}
            side_of = tokenizer.target.encode_batch if side else partial(sources_of, network, tokenizer)
            drawn.append(side_of(texts, **drop))
        one, other = _cut(drawn[0], drawn[1], recipe)
        return Ragged(one), Ragged(other)

    return Seq2SeqBatches(
        Ragged([source[i] for i in kept]),
        Ragged([target[i] for i in kept]),
        budget=training.batch_tokens,
        seed=training.seed,
        pad_id=network.pad_id,
        start_id=network.start_id,
        eos_id=network.eos_id,
        resample=resample if training.subword_dropout else None,
    )


def _cut(
    source: list[list[int]], target: list[list[int]], recipe: Recipe, say: Say | None = None
) -> tuple[list[list[int]], list[list[int]]]:
    """Both sides, without EOS, those that `data.truncate` names cut at `data.max_len` tokens with it; says how many."""
    sides, room = recipe.data.truncate, recipe.data.max_len - 1
    if sides == "none":
        return source, target
    long = [sum(len(row) > room for row in side) for side in (source, target)]
    counts = [f"{count} on the {name} side" for count, name in zip(long, ("source", "target")) if count]
    if sides == "source":
        counts = counts[: bool(long[0])]
    if counts and say is not None:
        say(f"warning: of {len(source)} training pairs, {' and '.join(counts)} cut to {room + 1} tokens")
    return [row[:room] for row in source], [row[:room] for row in target] if sides == "both" else target


def in_order(source: list[list[int]], target: list[list[int]], budget: int) -> list[list[int]]:
    """Row numbers in batches of like length for a validation pass, about `budget` target tokens each."""
    order = np.lexsort(([len(row) for row in source], [len(row) for row in target])).tolist()
    batches: list[list[int]] = [[]]
    tokens = 0
    for row in order:
        if tokens + len(target[row]) + 1 > budget and batches[-1]:
            batches.append([])
            tokens = 0
        batches[-1].append(row)
        tokens += len(target[row]) + 1
    return batches
