"""The steps of a run in order, from reading its records to its last event."""

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from atento.base.errors import DataError, UsageError
from atento.config.reading.initial_keys import INHERITED
from atento.config.reading.loading import load_recipe
from atento.config.reading.sizes_by_data import FITTED
from atento.config.reading.task_list import task_named
from atento.config.sections.network import network_to_dict
from atento.config.sections.training import beyond_the_run
from atento.config.tables.tasks import TASKS
from atento.data.batches.special_tokens import template_for
from atento.data.objectives.sequence_to_sequence import within_positions
from atento.data.records.splits import Split
from atento.models.initial_model import (
    check_new_positions,
    encoder_of,
    initial_model,
    load_features,
    pretrained_weights,
    with_embedding,
    with_features,
)
from atento.models.load import read_model
from atento.models.vocabulary_transfer import begun
from atento.models.write import terms
from atento.networks import build_network, parameter_count
from atento.networks.build import own_draws
from atento.networks.electra_generator import Generator
from atento.networks.frozen import frozen
from atento.runs.baseline_scores import with_usual_metrics
from atento.runs.begin import make_tokenizer, start_or_resume
from atento.runs.classifier import classifier_of
from atento.runs.data_checks import check_metrics
from atento.runs.fine_tuning import (
    changed_heads,
    rate_warning,
    rates_taken,
    tune,
    with_inherited,
    with_warmup,
)
from atento.runs.finish import RunResult, already_finished, train_and_finish
from atento.runs.model_config import adapters_of
from atento.runs.multilingual import network_of_run
from atento.runs.prepare import fitted_to, network_for, steps_of, training_batches
from atento.runs.run_identity import has_begun, identity_of, keep_parts
from atento.runs.run_plan import memory_of_weights, new_shapes
from atento.runs.setup import Setup
from atento.runs.sharded import check_processes, check_sharded
from atento.runs.task_heads import model_of, with_heads
from atento.runs.task_parts import config_of, keep_metrics, mixed, read_parts
from atento.runs.teachers import load_teachers
from atento.runs.time_budget import steps_for_time_budget
from atento.runs.vector_cache import cached_config, frozen_vectors, saved_config
from atento.storage.checkpoint_list import clean, newest
from atento.tasks.decoding_setup import constraints_of
from atento.tasks.features import without_dropout
from atento.tasks.question_answering import readable_questions
from atento.tasks.split_evaluation import held_out_batches, samples, validation_scores
from atento.training.allocator import (
    CAPACITY,
    KERNELS,
    KERNELS_OF_NEW_SHAPES,
    check_memory,
    raise_trim_threshold,
    set_kernel_cache_size,
)
from atento.training.compiling import compile_blocks
from atento.training.metrics_log import MetricsLog
from atento.training.optimizer import pause_step, warmup_steps_of
from atento.training.run_state import Run, Samples
from atento.training.selected_weights import check_stages
from atento.training.step import Updater


def train_run(setup: Setup) -> RunResult:
    """Prepare a run, train it and score it; resume it if it has a checkpoint.
    Raises RecipeError, DataError, UsageError: before any long work. TrainingStopped: a signal stopped training; a
    checkpoint was saved.
    """

    def prepare() -> tuple[Run, bool]:
        for step in STEPS:
            step(setup)
        run = open_run(setup)
        return run, start_or_resume(setup, run)

    run, unfinished = setup.replica.main_process_first(prepare)
    return train_and_finish(setup, run) if unfinished else already_finished(run)


def read_records(setup: Setup) -> None:
    """Read and check the records of all splits; warn about the recipe first, then about the data."""
    raise_trim_threshold()
    for warning in setup.loaded.warnings:
        setup.report(f"warning: {warning}")
    read_parts(setup)


def choose_sizes(setup: Setup) -> None:
    """Choose the sizes that the recipe leaves open, by the amount of training text."""
    keys = [key for key, origin in setup.loaded.origins.items() if origin == FITTED]
    if not keys:
        return
    recipe, sentence = fitted_to(setup.recipe, keys, setup.data.train)
    if not has_begun(setup.folder):
        setup.report(sentence)
    setup.loaded = replace(setup.loaded, recipe=recipe)


def choose_metrics(setup: Setup) -> None:
    """Choose the metrics by the tags and the scores of the training data, where the recipe names none; check them.
    Raises DataError: held-out pairs have no scores for a metric, or have some.
    """
    for part in setup.parts or [setup]:
        part.loaded = with_usual_metrics(part.loaded, part.data)
        check_metrics(part.recipe.task, part.recipe.deciding[:-1], {"valid": part.data.valid, "test": part.data.test})
    keep_metrics(setup)


def inherit_keys(setup: Setup) -> None:
    """Take the keys that the recipe leaves to the initial model: the model's, or those the run began with.

    A network whose vectors are stored (`init.cache`) has no dropout.
    """
    init, saved = setup.recipe.init, setup.folder / "recipe.yaml"
    if init is None or INHERITED not in setup.loaded.origins.values():
        return
    if has_begun(setup.folder) and saved.exists():
        network = load_recipe(saved, environment={}).recipe.network
    else:
        setup.initial = initial_model(init.model, setup.loaded.home)
        network = setup.initial.network_config
        taken = rates_taken(setup.loaded, network) if init.cache is None else ""
        for line in filter(None, (rate_warning(setup.loaded, network), taken)):
            setup.report(line)
        network = network if init.cache is None else without_dropout(network)
    setup.loaded = with_inherited(setup.loaded, network)


def keep_warmup(setup: Setup) -> None:
    """Take an open `training.warmup` as the run, or that of `--from`, began with it: more steps do not change it."""
    branch = None if setup.branch is None else setup.branch.path.parent.parent
    folder = setup.folder if has_begun(setup.folder) else branch
    if setup.recipe.training.warmup is None and folder is not None and (folder / "recipe.yaml").exists():
        warmup = load_recipe(folder / "recipe.yaml", environment={}).recipe.training.warmup
        setup.loaded = setup.loaded if warmup is None else with_warmup(setup.loaded, warmup)


def check_identity(setup: Setup) -> None:
    """Compare recipe and data with `run.json` of the folder, or write it; delete incomplete files of a killed run."""
    setup.identity = identity_of(setup)
    torch.set_num_threads(int(setup.identity["threads"]))
    for part in ("checkpoints", "averaged"):
        clean(setup.folder / part)


def find_initial_model(setup: Setup) -> None:
    """Find the model that `init` names, or that of `network.features`, and how vectors are made; a run with a
    checkpoint reads them from there.
    """
    init, features = setup.recipe.init, setup.recipe.network.features
    checkpoint = newest(setup.folder / "checkpoints") if init is not None or features is not None else None
    if init is None and features is not None:
        begun = checkpoint or (None if setup.branch is None else setup.branch.path)
        files = None if begun is None else read_model(begun)
        of_run = files is not None and files.network_config.features is not None
        setup.features = files if of_run else encoder_of(features, setup.loaded.home)
    elif checkpoint is not None:
        setup.initial = read_model(checkpoint)
    elif init is not None and setup.initial is None:
        setup.initial = initial_model(init.model, setup.loaded.home)
    setup.loaded = replace(setup.loaded, recipe=with_embedding(setup.recipe, setup.initial, setup.loaded.origins))


def configure_network(setup: Setup) -> None:
    """Configure the network: by the recipe, or as the initial model with the heads of the task.
    Raises UsageError: the task needs another architecture, or the machine has too little memory.
    """
    recipe, spec, init = setup.recipe, TASKS[setup.recipe.task], setup.recipe.init
    tasks = [(part.recipe, part.data.train) for part in setup.parts or [setup]]
    if setup.initial is None:
        if setup.features is not None:
            recipe = replace(recipe, network=with_features(recipe.network, setup.features))
        setup.config = network_for(recipe, setup.tokenizer, setup.data.train, tasks)
    else:
        begins = setup.begins_with_init
        if begins:
            setup.initial = begun(setup.initial, recipe, setup.tokenizer, setup.report)
        setup.initial, config = network_of_run(setup.loaded, setup.initial, setup.tokenizer, setup.report, begins)
        if not has_begun(setup.folder):
            check_new_positions(setup.initial, config, recipe)
        if config.architecture not in spec.architectures:
            raise UsageError(
                f"{model_of(recipe)} is of architecture {config.architecture!r}, and task {recipe.task} needs "
                f"{' or '.join(spec.architectures)}, which {spec.why}"
            )
        if init is not None and init.cache is not None:
            config = cached_config(config, recipe)
        setup.config = with_heads(config, tasks)
        for warning in changed_heads(recipe, setup.initial.network_config, setup.config) if begins else ():
            setup.report(f"warning: {warning}")
    for part, head in zip(setup.parts, setup.config.heads):
        part.tokenizer, part.config = setup.tokenizer, replace(setup.config, heads=(head,))
    with torch.device("meta"):
        network = build_network(setup.config)
        trained = tune(setup.recipe, network, 1.0)  # refuses what the network does not have
    check_sharded(recipe, network, setup.branch)
    memory = memory_of_weights(network, recipe.training, trained, "float32")
    needs = sum(memory[part] for part in ("weights", "gradients", "optimizer"))
    check_memory(parameter_count(network), needs, setup.device)


def make_batches(setup: Setup) -> None:
    """Make the batches of the training data; check validation and test data now, not at the first validation.
    Raises DataError: a split has no usable example; the message names the split and the rule.
    """
    recipe = setup.recipe
    constraints_of(recipe.decoding, setup.tokenizer.target)  # refuses words that the vocabulary cannot write
    if recipe.data.skip_bad and "question" in setup.data.train.columns:
        limit, longest = setup.config.position_limit, recipe.data.max_len
        longest = longest if limit is None else min(longest, limit)
        template, splits = template_for(recipe.task, setup.tokenizer), dict[str, Split]()
        for name in ("train", "valid", "test"):  # without questions that leave no room for their context
            if (whole := getattr(setup.data, name)) is not None:
                splits[name], said = readable_questions(
                    whole, setup.tokenizer, template, setup.config, longest, recipe.data.stride
                )
                if said:
                    setup.report(f"warning: data.{name}: {said}")
        setup.data = replace(setup.data, **splits)  # type: ignore[arg-type]
    for part in setup.parts or [setup]:
        with task_named(part.recipe.head):
            part.batches = training_batches(
                part.recipe, part.config, setup.tokenizer, part.data.train, part.report, setup.teach
            )
    setup.batches = mixed(setup.parts) if setup.parts else setup.batches
    keep_parts(setup.batches, setup.identity, setup.config)
    setup.teach = None  # frees the teachers, but for those whose probabilities of tokens are still needed
    for part in setup.parts or [setup]:  # of validation and test data once, without pairs that are too long
        recipe = part.recipe
        for key, name in (("valid", "data.held_out" if recipe.data.held_out else "data.valid"), ("test", "data.test")):
            split: Split | None = getattr(part.data, key)
            if split is None:
                continue
            with task_named(recipe.head):
                try:
                    split, warning = within_positions(split, part.config, part.tokenizer, recipe.data.truncate)
                    held_out_batches(recipe, part.config, part.tokenizer, split)
                except DataError as error:
                    raise DataError(f"{name}: {error}") from None
                if warning is not None:
                    part.report(f"warning: {name}: {warning}")
                    part.data = replace(part.data, **{key: split})  # type: ignore[arg-type]


def set_caches(setup: Setup) -> None:
    """Set the sizes of the caches of compiled products, by the shapes of the batches; before the first product.

    The batches are looked at only where it matters: not if the user, or an earlier run of the process, has chosen.
    """
    matters = setup.device == "cpu" and CAPACITY not in os.environ
    is_new = matters and new_shapes(setup.batches, setup.recipe.training.micro_batches)
    set_kernel_cache_size(KERNELS_OF_NEW_SHAPES if is_new else KERNELS)


def make_network(setup: Setup) -> None:
    """Build the network with its first weights: random ones by the seed, or those of the initial model."""
    with own_draws(setup.recipe.training.seed):
        network = build_network(setup.config)
        if setup.features is not None:
            load_features(network, setup.features)
        if setup.initial is not None:
            pretrained_weights(network, setup.initial, setup.recipe.network)
            special = set(setup.tokenizer.specials.ids.values())
            without_piece = [i for i in setup.tokenizer.other_ids(setup.config.vocab_size) if i not in special]
            for generator in (module for module in network.modules() if isinstance(module, Generator)):
                generator.never(without_piece)
        setup.trained = tune(setup.recipe, network, setup.batches.updates_per_epoch)
    setup.network = network.to(setup.device)


def read_frozen(setup: Setup) -> None:
    """With `init.cache` or `network.features.cache`, read every text once, or its vectors from the folder."""
    recipe = setup.recipe
    frozen_part = recipe.init or recipe.network.features
    if frozen_part is None or frozen_part.cache is None:
        return
    # features are read from there in training alone
    held_out = (
        [] if recipe.init is None else [split for split in (setup.data.valid, setup.data.test) if split is not None]
    )
    others = (held_out_batches(recipe, setup.config, setup.tokenizer, split) for split in held_out)
    vectors = frozen_vectors(
        setup.network, [setup.batches, *others], setup.loaded.home / frozen_part.cache, setup.report
    )
    setup.files.enter_context(frozen(vectors))


# Each needs what those before it have set; those before `check_identity` complete the recipe that it compares.
STEPS: tuple[Callable[[Setup], None], ...] = (
    read_records,
    choose_sizes,
    choose_metrics,
    inherit_keys,
    keep_warmup,
    check_identity,
    find_initial_model,
    load_teachers,
    make_tokenizer,
    configure_network,
    make_batches,
    set_caches,
    make_network,
    read_frozen,
    steps_for_time_budget,
)


def open_run(setup: Setup) -> Run:
    """Return the run for the training loop, and open its journal."""
    recipe, network, tokenizer = setup.recipe, setup.network, setup.tokenizer
    valid = [(part.data.valid, part.recipe) for part in setup.parts or [setup] if part.data.valid is not None]
    steps = steps_of(recipe.training, setup.batches) if classifier_of(recipe) is None else 1
    check_processes(recipe, setup.replica.size)
    check_stages(setup.trained, steps)
    if classifier_of(recipe) is None:
        for sentence in beyond_the_run(recipe.training, steps, validated=bool(valid)):
            setup.report(f"warning: {sentence}")
    setup.loaded = with_warmup(setup.loaded, warmup_steps_of(recipe.training, steps))
    recipe = setup.recipe  # with the warm-up
    journal = setup.folder / "metrics.jsonl" if setup.replica.main else Path(os.devnull)
    updater = Updater(network, recipe.training, str(setup.identity["precision"]), setup.trained, setup.replica)
    if recipe.training.compile:
        compile_blocks(updater.compute_network)
    share = setup.replica if setup.replica.size > 1 else None
    return Run(
        folder=setup.folder,
        config=recipe.training,
        steps=steps,
        updater=updater,
        batches=setup.batches,
        validate=partial(validation_scores, network, tokenizer, *valid[0], share, valid[1:]) if valid else None,
        deciding=recipe.deciding,
        model_config=config_of(setup, network_to_dict(saved_config(setup.config, recipe, setup.initial)))
        | adapters_of(recipe),
        model_files=tokenizer.files()
        | terms(None if (begins := setup.initial or setup.features) is None else begins.path),
        identity={**setup.identity, "tokenizer": tokenizer.fingerprint},
        journal=setup.files.enter_context(MetricsLog(journal)),
        reporter=setup.reporter,
        samples=_samples(setup),
        pause_at=pause_step(steps, setup.share, recipe.training.validate_every),
    )


def _samples(setup: Setup) -> Samples | None:
    """Return what shows outputs for the first validation records, if the recipe asks for it and the task writes."""
    recipe, valid = setup.recipe, setup.data.valid
    if valid is None or not recipe.training.samples or not TASKS[recipe.task].writes:
        return None
    network, tokenizer, count = setup.network, setup.tokenizer, recipe.training.samples
    return lambda: [asdict(sample) for sample in samples(network, tokenizer, valid, recipe, count)]
