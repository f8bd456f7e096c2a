"""Prepare training: read and check records, make the tokenizer, configure the network, make batches."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from atento.base.errors import DataError, RecipeError, counted
from atento.config.reading.loading import LoadedRecipe
from atento.config.reading.sizes_by_data import fitted
from atento.config.reading.task_defaults import has_own_tokenizer, task_of_records
from atento.config.recipe import Recipe, SourceConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.position_scheme import PositionConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.tasks import TASKS, objectives_of
from atento.data.batches.batch import Batches
from atento.data.batches.special_tokens import ids_of, template_for
from atento.data.files.several_files import source_files
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation, Teach
from atento.data.records.memory import MemoryRecords, argument_name
from atento.data.records.reader import Records, read_records
from atento.data.records.splits import Split, by_group, fold_of, held_out, held_out_lines, overlap, split_of, subset
from atento.models.initial_model import encoder_of, initial_model, with_features
from atento.models.vocabulary_transfer import begun
from atento.released import FAMILIES
from atento.runs.data_checks import check_columns, doubtful_labels, said_alike, without_difference
from atento.runs.fine_tuning import with_inherited
from atento.runs.multilingual import network_of_run, tokenizer_of_run
from atento.runs.run_tokenizer import new_tokenizer, tokenizer_of_init
from atento.runs.task_heads import labels_by_record, training_labels, with_heads
from atento.tasks.model_outputs import same_vocabulary
from atento.text.read_tokenizer import spelled
from atento.text.tokenizer import Tokenizer

Report = Callable[[str], None]


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
    """Read the records of each source of a split. Raises DataError, RecipeError: names file, line and rule."""
    spec, skip_bad = TASKS[task_of_records(recipe, split)], recipe.data.skip_bad
    fields = spec.partly_labelled if recipe.head else spec.fields
    sources = _by_file(recipe, split, folder)
    read = [read_records(source, fields, folder, skip_bad=skip_bad, memory=memory) for source in sources]
    return [replace(part, lacking="without a text or a label") for part in read] if recipe.head else read


def files_by_source(recipe: Recipe, split: str, folder: Path) -> list[int]:
    """Return the number of files of each source of a split; 1 for what is no file."""
    sources: tuple[SourceConfig, ...] = getattr(recipe.data, split)
    fields = TASKS[task_of_records(recipe, split)].fields
    return [1 if source.file is None else len(source_files(source, folder, fields)) for source in sources]


def _by_file(recipe: Recipe, split: str, folder: Path) -> list[SourceConfig]:
    """Return the sources of a split, one for each file of a folder or a pattern."""
    sources: list[SourceConfig] = []
    fields = TASKS[task_of_records(recipe, split)].fields
    for source in getattr(recipe.data, split):
        names = [None] if source.file is None else source_files(source, folder, fields)
        if len(names) > 1 and source.count is not None:
            raise DataError(f"`count` is for one file: {source.file} has {len(names)}")
        sources += [replace(source, file=name) for name in names]
    return sources


def read_data(recipe: Recipe, folder: Path, report: Report, memory: Mapping[str, MemoryRecords] | None = None) -> Data:
    """Read every split and warn of records that are left out; `memory` has the records passed in Python, by name.
    Raises DataError, RecipeError: before any long work, naming file, line and rule.
    """
    splits: dict[str, Split | None] = {}
    records: dict[str, list[Records]] = {}
    for name in ("train", "valid", "test"):
        records[name] = read_sources(recipe, name, folder, memory)
        _report_warnings((text for part in records[name] for text in part.warnings()), report)
        splits[name] = split_of(records[name], files_by_source(recipe, name, folder))
    train = splits["train"]
    if train is None:
        raise RecipeError("`data.train` names no data")
    check_columns(recipe.task, splits, train)
    for part, source in zip(records["valid"], _by_file(recipe, "valid", folder)):
        if also := overlap(records["train"], part):
            kinds = f" with labels {source.labels}" if source.labels else ""
            shown = f"the micro-world's {source.world}{kinds}" if source.world else str(source.file or source.source)
            shown = shown if source.memory is None else argument_name(source.memory)
            subject = f"{len(part)} validation {TASKS[recipe.task].records} of {shown}"
            report(f"warning: {also} of {subject} are also in the training data")
    label = next((field.name for field in TASKS[recipe.task].fields if field.kind == "class"), None)
    if label is not None:
        _report_warnings(doubtful_labels(train, label), report)
    else:
        _report_warnings(said_alike(training_labels(recipe, train)), report)
    if recipe.data.folds:  # train on all folds but one; each label is in each fold, where records have one
        data, noun, seed, every = recipe.data, TASKS[recipe.task].records, recipe.training.seed, train
        parts = by_group(
            train.columns,
            TASKS[recipe.task].grouped_by,
            lambda columns: fold_of(columns, data.folds, data.fold, seed, label, every.where),
        )
        train, test = (subset(every, rows) for rows in parts)
        splits["test"], sizes = test, f"{len(train):,} training {noun}, {len(test):,} for the test"
        report(f"fold {data.fold} of {data.folds}: {sizes} (seed {seed})")
    if recipe.data.held_out:
        # the records are divided, and their number is reported
        noun, labels = TASKS[recipe.task].records, labels_by_record(recipe, train)
        group, count = TASKS[recipe.task].grouped_by, recipe.data.held_out
        if group is not None:  # whole groups, with about as many records
            count = max(1, round(count * len(set(train[group])) / len(train)))
        parts = by_group(train.columns, group, lambda columns: held_out(columns, count, labels))
        remaining, valid = (subset(train, rows) for rows in parts)
        equal = len(train) - len(remaining) - len(valid)
        for line in held_out_lines(len(valid), len(train), noun, recipe.data.held_out, equal):
            report(line)
        train, splits["valid"] = remaining, valid
    _report_warnings(without_difference(recipe.task, {**splits, "train": train}), report)
    return Data(train, splits["valid"], splits["test"], fingerprint_of(train, splits["valid"]))


def _report_warnings(warnings: Iterable[str], report: Report) -> None:
    for warning in warnings:
        report(f"warning: {warning}")


def fingerprint_of(train: Split, valid: Split | None) -> str:
    """Return what identifies the training and validation records."""
    return sha256("\n".join([train.fingerprint, "" if valid is None else valid.fingerprint]).encode()).hexdigest()


def network_for(
    recipe: Recipe, tokenizer: Tokenizer, train: Split, tasks: Sequence[tuple[Recipe, Split]] = ()
) -> NetworkConfig:
    """Return the network of the recipe, with the sizes and ids of the tokenizer and the heads of its tasks."""
    vocab_size = recipe.network.vocab_size
    if vocab_size not in (0, tokenizer.vocab_size):
        raise RecipeError(
            f"`network.vocab_size` must be the tokenizer's: got {vocab_size} and {tokenizer.vocab_size}; leave it out"
        )
    written = recipe.network.embedding.target_vocab_size
    if written not in (None, tokenizer.target.vocab_size):
        raise RecipeError(
            "`network.embedding.target_vocab_size` must be the tokenizer's: got "
            f"{written} and {tokenizer.target.vocab_size}; leave it out"
        )
    target = tokenizer.target
    # a vocabulary a side: two tables
    two = recipe.network.reads_source and not same_vocabulary(tokenizer, target)
    two = two or recipe.network.features is not None
    positions, family = recipe.network.positions, FAMILIES.get(recipe.network.family)
    if family is not None and family.from_padding and isinstance(positions, PositionConfig) and positions.real_only:
        positions = replace(positions, shift=target.pad_id + 1)  # RoBERTa's published table begins after that id
    network = changed(
        recipe.network,
        vocab_size=tokenizer.vocab_size,
        embedding={"shared": False, "target_vocab_size": target.vocab_size} if two else {},
        ids=ids_of(target),
        positions=positions,
        tokenizer_fingerprint=tokenizer.fingerprint,
    )
    return with_heads(network, tasks or [(recipe, train)])


def tokenizer_and_network(loaded: LoadedRecipe, train: Split, report: Report) -> tuple[Tokenizer, NetworkConfig]:
    """Return the tokenizer and the network of a new run of a recipe: of the initial model, or the recipe's own."""
    recipe = loaded.recipe
    init = recipe.init
    if init is None:
        tokenizer, features = new_tokenizer(recipe, loaded.home, train, report), recipe.network.features
        if features is not None:
            recipe = replace(recipe, network=with_features(recipe.network, encoder_of(features, loaded.home)))
        return tokenizer, network_for(recipe, tokenizer, train)
    initial = initial_model(init.model, loaded.home)
    recipe = with_inherited(loaded, initial.network_config).recipe
    if has_own_tokenizer(recipe):
        tokenizer = new_tokenizer(recipe, loaded.home, train, report)
    else:
        tokenizer = tokenizer_of_init(recipe, loaded.home, initial.path, train.texts, report)
    initial = begun(initial, recipe, tokenizer, report)
    tokenizer = tokenizer_of_run(loaded, tokenizer)
    config = network_of_run(replace(loaded, recipe=recipe), initial, tokenizer, report, True)[1]
    return tokenizer, with_heads(config, [(recipe, train)])


def training_batches(
    recipe: Recipe,
    network: NetworkConfig,
    tokenizer: Tokenizer,
    train: Split,
    report: Report,
    teach: Teach | None = None,
) -> Batches:
    """Return the training data as batches of the objectives of the recipe, with what teachers say of them.
    Raises DataError, RecipeError: no example is left, or an objective and the network do not fit.
    """
    # texts may spell special tokens, which they are not
    found = spelled(tokenizer.specials, train.texts(TASKS[recipe.task].texts))
    if found:
        markers = [text for text in found if text not in tokenizer.specials.roles.values()]
        way_out = f"; `tokenizer.markers: {json.dumps(markers[:8], ensure_ascii=False)}` lets them be tokens"
        counts = (f"{text} stands in {counted(count, 'text')}" for text, count in found.most_common(5))
        report(
            f"warning: {', '.join(counts)}: a text never makes special tokens, so they are read as characters"
            f"{way_out if markers else ''}"
        )
    template = template_for(recipe.task, tokenizer)
    preparation = Preparation(recipe, network, tokenizer, train, template, report=report, teach=teach)
    return batches_for(preparation, objectives_of(recipe.task, recipe.objective))


def steps_of(training: TrainingConfig, batches: Batches) -> int:
    """Return the updates of a run: those of its epochs, if the recipe gives these."""
    return training.steps if training.epochs is None else max(1, round(training.epochs * batches.updates_per_epoch))


def fitted_to(recipe: Recipe, keys: Sequence[str], train: Split) -> tuple[Recipe, str]:
    """Return the recipe with these keys chosen for its training records, and a sentence about the choice."""
    lengths = train.characters()
    targets = lengths.get("target", lengths.get("text", lengths.get("tokens", 0)))
    examples = None if TASKS[recipe.task].targets.endswith(("tokens", "words")) else len(train)
    return fitted(recipe, list(keys), sum(lengths.values()), targets, examples)
