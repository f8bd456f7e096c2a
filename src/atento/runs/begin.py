"""How a run begins: its tokenizer, and its first step, a step of another run (`--from`), or where it was stopped."""

import os
import shutil
from pathlib import Path

from atento.base.errors import CheckpointError, TokenizerError, UsageError, counted
from atento.config.reading.task_defaults import counted_targets, has_own_tokenizer
from atento.config.recipe import Recipe
from atento.config.tables.tasks import TASKS
from atento.data.batches.planning import CPU_PARTS
from atento.runs.branch import begin_at, check_network, check_optimizer
from atento.runs.classifier import classifier_of
from atento.runs.fine_tuning import sizes
from atento.runs.finish import has_more_steps
from atento.runs.folder import end_event
from atento.runs.mixing_preview import report_mixing
from atento.runs.multilingual import tokenizer_of_run
from atento.runs.run_identity import has_begun
from atento.runs.run_plan import plan_run
from atento.runs.run_tokenizer import new_tokenizer, tokenizer_of_init
from atento.runs.setup import Setup
from atento.runs.task_parts import share_lines
from atento.storage.checkpoint import check_space
from atento.storage.checkpoint_list import newest
from atento.text.tokenizer import Tokenizer
from atento.training.allocator import is_out_of_memory
from atento.training.metrics_log import changed_since
from atento.training.run_state import Run, finish_save, restore

_ESTIMATED = 50  # steps; a shorter run takes little longer than its estimate


def _load(folder: Path | None, recipe: Recipe) -> Tokenizer:
    """The tokenizer of a folder with the markers of the recipe."""
    assert folder is not None
    return Tokenizer.load(folder, markers=recipe.tokenizer.markers)


def make_tokenizer(setup: Setup) -> None:
    """Load the tokenizer of the run folder; the first time, train it or copy it from its path or the initial model."""
    recipe, folder, home = setup.recipe, setup.folder, setup.loaded.home
    saved = folder / "tokenizer"
    if saved.exists():
        setup.tokenizer = Tokenizer.load(saved)
        own = recipe.tokenizer.path if recipe.init is None else None  # an initial model has its tokenizer
        recipe_tokenizer = None if own is None else home / own
        same = recipe_tokenizer is None or not recipe_tokenizer.exists()
        kept = set(recipe.tokenizer.markers) <= set(setup.tokenizer.markers)
        ours, theirs = setup.tokenizer, setup.tokenizer if same else _load(recipe_tokenizer, recipe)
        if recipe.network.features is not None:  # the path is that of targets
            ours, theirs = ours.target, theirs.target
        if kept and ours.fingerprint == theirs.fingerprint:
            return
        if has_begun(folder) or not setup.replica.main:
            what = f"{recipe_tokenizer} has" if kept else "`tokenizer.markers` have"
            raise TokenizerError(f"{folder} was trained with another tokenizer: {what} changed. Use --out or --force")
        shutil.rmtree(saved)
    # use the tokenizer of the model to start from, unless the recipe names or trains one
    begun_from = setup.branch if setup.initial is None else setup.initial
    source = None if begun_from is None else begun_from.path
    named = recipe.tokenizer.path is not None and recipe.init is None
    if source is None or named or (has_own_tokenizer(recipe) and setup.begins_with_init):
        setup.tokenizer = new_tokenizer(recipe, home, setup.data.train, setup.report)
    else:
        begins, texts = setup.begins_with_init, setup.data.train.texts
        tokenizer = tokenizer_of_init(recipe, home, source, texts, setup.report) if begins else _load(source, recipe)
        setup.tokenizer = tokenizer_of_run(setup.loaded, tokenizer) if begins else tokenizer
    for leftover in folder.glob(".tokenizer-*"):  # of a command that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    partial = folder / f".tokenizer-{os.getpid()}"
    setup.tokenizer.save(partial)
    partial.rename(saved)


def start_or_resume(setup: Setup, run: Run) -> bool:
    """Start the run, or resume it from its newest good checkpoint; return False if it has already finished.
    Raises CheckpointError: all checkpoints of the run are damaged. UsageError: the run has more steps than the recipe.
    """
    last = newest(run.checkpoints)
    if last is None:
        if damaged := ", ".join(sorted(path.name for path in run.checkpoints.glob("*.bad*"))):
            way_out = "--force moves it aside and starts over"
            raise CheckpointError(f"every checkpoint of {run.folder} is damaged ({damaged}); {way_out}")
        recipe, identity, spec = setup.recipe, setup.identity, TASKS[setup.recipe.task]
        of_about = f" of about {counted(recipe.training.batch_tokens, counted_targets(recipe).removesuffix('s'))}"
        examples = counted(len(run.batches), spec.records.removesuffix("s"))
        long = run.steps >= _ESTIMATED and classifier_of(recipe) is None and recipe.training.minutes is None
        estimate = _estimate(setup, run) if long and setup.replica.main else ""
        setup.report(
            f"{recipe.name}: {sizes(recipe, setup.network, setup.trained)}, {examples}, "
            f"{counted(run.batches.updates_per_epoch, 'update')} an epoch{'' if setup.parts else of_about}, "
            f"{counted(run.steps, 'step')}; "
            f"{identity['device']}, {identity['precision']}, {counted(int(identity['threads']), 'thread')}"
            f"{_processes(setup, run)}; run folder {run.folder}"
        )
        if estimate:
            setup.report(estimate)
        if setup.replica.size == 1:
            # the disk must hold the weights, and two moments of those that AdamW trains
            weights = sum(weight.numel() * weight.element_size() for weight in run.updater.network.parameters())
            trained = sum(run.updater.parameters[name].numel() for name in run.updater.trained.begins)
            sizes_of_files = [weights, 8 * trained if run.config.optimizer == "adamw" else 0]
            existing = run.checkpoints if run.checkpoints.exists() else run.folder
            check_space(existing, run.checkpoints, run.steps, sizes_of_files)
        report_mixing(run.batches, setup.data.train, recipe, run.steps, setup.report)
        for line in share_lines(setup.parts, run.batches, run.steps):
            setup.report(line)
        run.journal.cut(0)  # events of a start that ended before its first checkpoint
        if setup.branch is not None:
            check_network(setup.branch, setup.config, None if recipe.init is None else recipe.init.adapters)
            check_optimizer(setup.branch, recipe.training.optimizer)
            begin_at(run, setup.branch)
            setup.report(f"starting from step {setup.branch.step} of {setup.branch.name.rpartition('@')[0]}")
        return True
    state = restore(run, last)
    if run.progress.step > run.steps:
        fewer = f"{counted(run.progress.step, 'step')}; `training.steps` {run.steps} is fewer"
        raise UsageError(f"{run.folder} has {fewer}. Use --force to start over")
    finished = run.progress.finished and not has_more_steps(run)
    if finished and end_event(run.folder) is not None:
        setup.report(f"already finished: {run.folder}, step {run.progress.step}")
        return False
    # a run that finished training may still lack its average and test scores
    where = "after its last step," if finished else "from step"
    setup.report(f"resuming {run.folder} {where} {run.progress.step}")
    if change := changed_since(setup.folder / "metrics.jsonl", state.get("journal")):
        setup.report(
            f"warning: {setup.folder / 'metrics.jsonl'} {change} since the checkpoint of step {run.progress.step:,}: "
            "training goes on exactly, but its curves are no longer those of the run; to have them, stop, put the file "
            "back and run the same command"
        )
    run.journal.cut(run.progress.step)
    finish_save(run)
    return True


def _processes(setup: Setup, run: Run) -> str:
    """Return how many processes train, and warn if an update has too few parts for them."""
    size = setup.replica.size
    if size == 1:
        return ""
    parts = sum(1 for _ in run.batches.parts(0, run.config.micro_batches))
    if parts < size:
        each = int(setup.identity.get("part_tokens", CPU_PARTS.tokens))
        setup.report(
            f"warning: the first update has {counted(parts, 'part')} for {size} processes, so some have nothing to do: "
            f"raise `training.batch_tokens` to several times {each * size:,}"
        )
    return f" in each of {size} processes"


def _estimate(setup: Setup, run: Run) -> str:
    """Return a line with the memory of the run, from passes of one part; its time is told after ten seconds."""
    identity = setup.identity
    try:
        plan = plan_run(
            *(setup.recipe, setup.config, run.batches, str(identity["precision"]), str(identity["device"])),
            int(identity["threads"]),
            built=True,
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return "warning: memory ran out when that of an update was measured: updates will be computed in more pieces"
    return plan.sentence(counted_targets(setup.recipe))
