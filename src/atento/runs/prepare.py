"""Prepare training: read and check records, make the tokenizer, configure the network, make batches."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from atento.config.heads import HeadConfig
from atento.config.loading import LoadedRecipe
from atento.config.network import NetworkConfig, changed
from atento.config.objective import OBJECTIVES
from atento.config.positions import PositionConfig
from atento.config.recipe import Recipe, SourceConfig
from atento.config.tasks import TASKS, objectives_of
from atento.data.batches import Batches
from atento.data.held_out import held_out
from atento.data.memory import MemoryRecords, argument_name
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation
from atento.data.records import Records, Split, fingerprint, joined, overlap, read_records
from atento.data.special_tokens import template_for
from atento.errors import DataError, RecipeError, UsageError
from atento.models.initial import fine_tuned, initial_model
from atento.text.specials import sentinels
from atento.text.tokenizer import Tokenizer
from atento.text.training import train_tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Data:
    """The splits of a recipe; `fingerprint` identifies the training and validation records."""

    train: Split
    valid: Split | None
    test: Split | None
    fingerprint: str


def read_sources(
    recipe: Recipe, split: str, folder: Path, memory: Mapping[str, MemoryRecords] | None = None
) -> list[Records]:
    """Read the records of each source of a split.

    Raises:
        DataError, RecipeError: names file, line and rule.
    """
    fields, skip_bad = TASKS[recipe.task].fields, recipe.data.skip_bad
    sources: tuple[SourceConfig, ...] = getattr(recipe.data, split)
    return [read_records(source, fields, folder, skip_bad=skip_bad, memory=memory) for source in sources]


def read_data(recipe: Recipe, folder: Path, say: Say, memory: Mapping[str, MemoryRecords] | None = None) -> Data:
    """Read every split and warn of records that are left out; `memory` has the records given in Python, by name.

    Raises:
        DataError, RecipeError: before any long work, naming file, line and rule.
    """
    config, noun = recipe.data, TASKS[recipe.task].records
    splits: dict[str, Split | None] = {}
    read: dict[str, list[Records]] = {}
    for name in ("train", "valid", "test"):
        read[name] = read_sources(recipe, name, folder, memory)
        for warning in (text for one in read[name] for text in one.warnings()):
            say(f"warning: {warning}")
        splits[name] = joined(read[name])
    train = splits["train"]
    if train is None:
        raise RecipeError("`data.train` names no data")
    for name, split in splits.items():
        if split is not None and split.columns.keys() != train.columns.keys():
            fields = [" and ".join(f"`{column}`" for column in one.columns) for one in (split, train)]
            raise DataError(f"`data.{name}` has {fields[0]}, and `data.train` has {fields[1]}")
    for part, source in zip(read["valid"], config.valid):
        also = overlap(read["train"], part)
        if also:
            place = f"{len(part)} validation {noun} of {_name(source)}"
            say(f"warning: {also} of {place} also stand in the training data")
    if config.held_out:
        train, splits["valid"] = _held_out(train, config.held_out, noun, say)
    parts = [train.fingerprint, "" if splits["valid"] is None else splits["valid"].fingerprint]
    return Data(train, splits["valid"], splits["test"], sha256("\n".join(parts).encode()).hexdigest())


def _held_out(train: Split, count: int, noun: str, say: Say) -> tuple[Split, Split]:
    """Return the training records without the held-out ones, and the held-out ones; report their number."""
    rest, valid = (Split(part, fingerprint(*part.values())) for part in held_out(train.columns, count))
    equal = len(train) - len(rest) - len(valid)
    also = f"; {equal} equal to one of them {'are' if equal > 1 else 'is'} not trained on" if equal else ""
    say(f"{len(valid):,} of {len(train):,} training {noun} held out for validation{also}")
    return rest, valid


def _name(source: SourceConfig) -> str:
    if source.memory is not None:
        return argument_name(source.memory)
    return f"the micro-world's {source.world}" if source.world else str(source.file or source.source)


def tokenizer_for(recipe: Recipe, folder: Path, texts: Iterable[str], say: Say) -> Tokenizer:
    """Return the tokenizer of the recipe: loaded from its `path`, or trained on the training text."""
    config = recipe.tokenizer
    if config.path is not None:
        return Tokenizer.load(folder / config.path)
    count = max(OBJECTIVES[one.kind].sentinels for one in objectives_of(recipe.task, recipe.objective))
    tokenizer = train_tokenizer(config, texts, extra_specials=sentinels(count))
    say(f"tokenizer: {config.kind}, {tokenizer.vocab_size} pieces")
    return tokenizer


def network_for(recipe: Recipe, tokenizer: Tokenizer, train: Split) -> NetworkConfig:
    """Return the network of the recipe, with the sizes and ids of the tokenizer and the heads of the task."""
    given = recipe.network.vocab_size
    if given not in (0, tokenizer.vocab_size):
        raise RecipeError(
            f"`network.vocab_size` must be the tokenizer's: got {given} and {tokenizer.vocab_size}; leave it out"
        )
    network = changed(
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
    return with_objective_heads(with_task_heads(network, recipe, train), recipe)


def with_task_heads(network: NetworkConfig, recipe: Recipe, train: Split) -> NetworkConfig:
    """The network with the heads that the task lays on it, for the labels of the training data in alphabetical order.

    A head of the recipe with labels of its own stands as it is. A head of the initial model is kept if it has the
    labels of the training data; otherwise it gets new labels, and `atento.models.initial` gives it new weights. Heads
    that no objective of the recipe trains are left out.

    Raises:
        DataError: the training data has fewer than two labels.
    """
    laid = TASKS[recipe.task].heads
    if not laid:
        return network
    trained = {kind for one in objectives_of(recipe.task, recipe.objective) for kind in OBJECTIVES[one.kind].heads}
    given = recipe.network.heads if recipe.init is not None else network.heads
    heads = [head for head in given if head.kind in trained or head.kind in laid]
    for kind in laid:
        if any(head.kind == kind for head in heads):
            continue
        names = tuple(sorted(set(train["label"])))
        before = next((head for head in network.heads if head.kind == kind), None)
        if before is not None and set(names) <= set(before.labels):
            heads.append(before)
            continue
        if len(names) < 2:
            raise DataError(f"the training data has one label alone, {names[0]!r}: there is nothing to learn")
        heads.append(replace(before or HeadConfig(kind, names, **_read_by(network)), labels=names))  # type: ignore[arg-type]
    return replace(network, heads=tuple(heads), pooler=network.pooler or network.family == "bert")


def _read_by(network: NetworkConfig) -> dict[str, Any]:
    """How a new head of the whole text reads a network: as its family's published classifiers do."""
    if network.family in ("roberta", "xlm-roberta"):
        return {"hidden": True, "pooling": "first", "dropout": network.dropout}
    return {"dropout": network.dropout}


def with_objective_heads(network: NetworkConfig, recipe: Recipe) -> NetworkConfig:
    """The network with the heads that the objectives of the recipe need, where it lacks them.

    Raises:
        UsageError: an objective that such a network cannot learn.
    """
    heads = list(network.heads)
    for objective in objectives_of(recipe.task, recipe.objective):
        spec = OBJECTIVES[objective.kind]
        if network.architecture not in spec.architectures:
            raise UsageError(
                f"{recipe.init} is of architecture {network.architecture!r}, and objective {objective.kind} needs "
                f"{' or '.join(spec.architectures)}, which {spec.why}"
            )
        if network.architecture == "encoder":
            present = {head.kind for head in heads}
            heads += [HeadConfig(kind) for kind in spec.heads if kind not in present]  # type: ignore[arg-type]
    return replace(network, heads=tuple(heads))


def tokenizer_and_network(loaded: LoadedRecipe, train: Split, say: Say) -> tuple[Tokenizer, NetworkConfig]:
    """What a new run of that recipe would read its data with: of the initial model, or the recipe's own."""
    recipe = loaded.recipe
    if recipe.init is None:
        tokenizer = tokenizer_for(recipe, loaded.home, train.texts(TASKS[recipe.task].texts), say)
        return tokenizer, network_for(recipe, tokenizer, train)
    initial = initial_model(recipe.init, loaded.home)
    tokenizer = Tokenizer.load(initial.path)
    network = with_task_heads(fine_tuned(initial, recipe.network, tokenizer), recipe, train)
    return tokenizer, with_objective_heads(network, recipe)


def _behind_padding(network: NetworkConfig, pad_id: int) -> PositionConfig | tuple[PositionConfig, ...]:
    """The network's positions; RoBERTa's table begins behind the id of padding, so that its layout can hold it."""
    scheme = network.positions
    if network.family in ("roberta", "xlm-roberta") and isinstance(scheme, PositionConfig) and scheme.real_only:
        return replace(scheme, shift=pad_id + 1)
    return scheme


def training_batches(recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, train: Split, say: Say) -> Batches:
    """Return the training data as batches of the objectives of the recipe.

    Raises:
        DataError, RecipeError: no example is left, or an objective and the network do not fit.
    """
    given = Preparation(recipe, network, tokenizer, train, template_for(recipe.task, tokenizer), say=say)
    return batches_for(given, objectives_of(recipe.task, recipe.objective))
