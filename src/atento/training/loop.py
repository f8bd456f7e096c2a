"""The training loop: updates and their faults, events, what is watched, validations, checkpoints and stopping."""

import gc
import math
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import torch
from torch import Tensor

from atento.base.errors import AtentoError, TrainingError, TrainingStopped, counted
from atento.data.batches.batch import Part
from atento.metrics.metric_table import quality
from atento.storage.checkpoint_list import newest
from atento.training.allocator import MallocTrimmer, is_out_of_memory, trim_memory
from atento.training.losses import Sums
from atento.training.optimizer import learning_rate
from atento.training.progress import StopRequest
from atento.training.run_state import Run, TrainerState, finish_writing, restore_weights, save
from atento.training.step import NotFinite

IN_A_ROW = 10  # updates in a row that may be skipped or rewound
SHARE = 0.001  # of all updates that may be
_LAYER = re.compile(r".*?\b(?:blocks|layers|forward_layers|backward_layers)\.\d+(?=\.)")


def fit(run: Run) -> TrainerState:
    """Train until the last step, early stopping, the step of a pause, or a signal.
    Raises TrainingStopped: a signal stopped training; a checkpoint was saved. TrainingError: the loss or the gradient
    is not finite. CheckpointError: a checkpoint could not be written; the last good one is kept.
    """
    config, progress = run.config, run.progress
    progress.finished = False
    run.seconds_counted_at = time.monotonic()
    last_step = run.steps if run.pause_at is None else min(run.steps, run.pause_at)
    targets, is_new = TargetCounts(run.batches.updates_per_epoch), progress.step == 0
    memory = MallocTrimmer()
    started, tokens = time.monotonic(), 0  # of the log interval; validations and checkpoints are taken out
    with StopRequest() as stop, finished_writing(run):
        # a signal may have stopped the run between an update and its validation: make up for it first
        pending = _validation_due(run) and progress.score_step != progress.step
        if progress.step and (pending or progress.step == run.steps):
            if pending:
                validate(run)
            progress.finished = progress.finished or progress.step == run.steps
            save(run)
        while progress.step < last_step and not progress.finished:
            step = progress.step + 1
            rate = learning_rate(config, step, run.steps, zero_at=progress.zero_at)
            logged = step % config.log_every == 0 or step == run.steps
            weights = run.updater.parameters if logged and config.log_update_ratios else {}
            before = {name: value.detach().clone() for name, value in weights.items()}
            sums = take_update(run, step, rate)
            memory.between_updates()
            progress.step = step
            finish_writing(run)
            for head, head_sums in sums.items():
                progress.interval.setdefault(head, Sums()).add(head_sums)
                tokens += head_sums.targets
            run.reporter.step(step)
            targets.add({head: head_sums.targets for head, head_sums in sums.items()})
            if logged:
                for line in targets.warnings(is_whole=is_new and step == run.steps):
                    run.reporter.line(line)
                more = {"update_ratios": update_ratios(before, run.updater.parameters)} if before else {}
                log(run, rate, tokens / (time.monotonic() - started), more)
                if slow := run.updater.replica.slow_process():
                    run.reporter.line(f"warning: {slow}")
                started, tokens = time.monotonic(), 0
            if _validation_due(run) and _stop_signal(run, stop) is None:
                pause = time.monotonic()
                validate(run)
                started += time.monotonic() - pause
            # read once: a signal that comes during the save below counts for the next step
            stop_signal = _stop_signal(run, stop)
            pending = _validation_due(run) and progress.score_step != step
            progress.finished = progress.finished or (step == run.steps and not pending)
            is_best = progress.score_step == step == progress.best_step
            due = step % config.checkpoint_every == 0 or step == last_step
            if due or is_best or progress.finished or stop_signal is not None:
                pause = time.monotonic()
                ends = progress.finished or stop_signal is not None  # what waits for its checkpoint needs no copy
                save(run, beside=config.async_checkpoints and not ends)
                started += time.monotonic() - pause
            if stop_signal is not None:
                finish_writing(run, wait=True)
                raise TrainingStopped(
                    f"stopped by {stop_signal.name} after step {step}, checkpoint saved; run the same command to resume"
                )
    return progress


@contextmanager
def finished_writing(run: Run) -> Iterator[None]:
    """Wait at the end for the checkpoint that is being written; a failure of training counts for more than its own."""
    try:
        yield
    except BaseException:
        with suppress(AtentoError):
            finish_writing(run, wait=True)
        raise
    finish_writing(run, wait=True)


def _validation_due(run: Run) -> bool:
    step = run.progress.step
    return run.validate is not None and (step % run.config.validate_every == 0 or step == run.steps)


def _stop_signal(run: Run, stop: StopRequest) -> signal.Signals | None:
    """Return the signal that stops the run: one that any process has received."""
    number = run.updater.replica.highest(0 if stop.by is None else int(stop.by))  # 0: no signal on any process
    return signal.Signals(number) if number else None


def log(run: Run, rate: float, tokens_per_second: float, more: Mapping[str, object] | None = None) -> None:
    """Write a train event: the mean loss per real target since the last train event, summed over heads.

    With several heads, `nll_HEAD` is the mean of each. The norm is of the last update. `more` is added to the event.
    """
    interval = run.progress.interval
    means = {head: (of.loss / max(1, of.targets), of.nll / max(1, of.targets)) for head, of in interval.items()}
    # each head by its own targets; without an update, which all overflowed, there is no loss
    sums = {name: sum(each) for name, each in zip(("loss", "nll"), zip(*means.values()))}
    event: dict[str, object] = {
        "event": "train",
        "step": run.progress.step,
        **sums,
        "learning_rate": rate,
        "tokens_per_second": tokens_per_second,
        "gradient_norm": run.updater.norm,
    }
    if len(means) > 1:
        event |= {f"nll_{head}": nll for head, (_, nll) in means.items()}
    if run.updater.noise is not None:
        event["gradient_noise"] = run.updater.noise.scale()
    if run.updater.loss_scale is not None:
        event |= {"loss_scale": run.updater.loss_scale.factor, "overflows": run.updater.loss_scale.overflows}
    event |= more or {}
    run.journal.append(event)
    run.reporter.event(event)
    run.progress.interval = {}


def validate(run: Run) -> None:
    """Validate; write a valid event and samples; update the best score, and stop early if the recipe says so."""
    if run.validate is None:
        return
    progress = run.progress
    trim_memory()  # blocks of other sizes follow
    with run.updater.weights.evaluated(run.updater.average):  # the moving mean, where there is one
        scores = run.updater.replica.on_all_processes(run.validate)  # all processes score a part each
        samples: list[dict[str, str]] = []
        if run.samples is not None and run.updater.replica.main:
            try:
                samples = run.samples()
            except AtentoError as error:  # it is reported, and training continues
                run.reporter.line(f"warning: step {progress.step}: no samples: {error}")
    event: dict[str, object] = {"event": "valid", "step": progress.step}
    numbered = enumerate(samples, start=1)
    for written in (event | scores, *(event | {"event": "sample", "number": n} | sample for n, sample in numbered)):
        run.journal.append(written)
        run.reporter.event(written)
    # warn once of metrics that are the same in all validations; with patience, before it ends the run
    metrics = {name: scores[name] for name in run.deciding[:-1]}
    before = progress.still if progress.validations else metrics
    progress.still = {name: n for name, n in before.items() if metrics[name] == n and math.isfinite(n)}
    progress.validations += 1
    told = min(4, run.config.early_stop or 4) + 1
    if progress.validations == told or (progress.step == run.steps and 2 < progress.validations < told):
        for name, value in progress.still.items():
            others = ", ".join(other for other in run.deciding if other not in progress.still)
            run.reporter.line(
                f"warning: {name} was {value:g} in all {progress.validations} validations: it tells no checkpoint from "
                f"another, and {others} decides which is best"
            )
    score, *progress.ties = quality(scores, run.deciding)
    # the checkpoint of this step has no score then
    progress.score, progress.score_step = score if math.isfinite(scores[run.score_name]) else None, progress.step
    if progress.score is None:
        run.reporter.line(f"warning: step {progress.step}: {run.score_name} is not a finite number: it chooses nothing")
        return
    if progress.best is None or (score, progress.ties) > (progress.best, progress.best_ties):
        progress.best, progress.best_ties = score, progress.ties
        progress.best_step, progress.stale = progress.step, 0
        return
    progress.stale += 1
    if run.config.early_stop and progress.stale >= run.config.early_stop:
        tried = counted(progress.stale, "validation")
        run.reporter.line(f"step {progress.step}: no better {run.score_name} in {tried}; stopping early")
        progress.finished = True


class TargetCounts:
    """Counts the targets of each head since a command began, and tells of heads that have none: they learn nothing.

    Args:
        updates_per_epoch: after so many updates every example was seen.
    """

    def __init__(self, updates_per_epoch: int) -> None:
        self._per_epoch = updates_per_epoch
        self._targets, self._updates = Counter[str](), Counter[str]()
        self._told: set[str] = set()

    def add(self, targets: Mapping[str, int]) -> None:
        """Add the targets of an update, by head."""
        self._updates.update(targets.keys())
        self._targets.update(targets)

    def warnings(self, *, is_whole: bool) -> list[str]:
        """Return a sentence for each head without a target in an epoch, or in a whole run; each is told once."""
        empty = [
            head
            for head, updates in self._updates.items()
            if not self._targets[head] and head not in self._told and (is_whole or updates >= self._per_epoch)
        ]
        self._told.update(empty)
        return [
            f"warning: the head {head!r} has had no target in {counted(self._updates[head], 'update')} and learns "
            "nothing: `atento data peek` shows the labels"
            for head in empty
        ]


def update_ratios(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return |change| / |weights before| of each layer, and of each other part of the network by the first of its name.

    About 1e-3 is usual; a layer far below learns little, one far above is unstable.
    """
    squares: dict[str, tuple[float, float]] = {}
    for name, old in before.items():
        match = _LAYER.match(name)
        layer = match[0] if match else name.partition(".")[0]  # what is in no layer goes by the first part of its name
        change, size = squares.get(layer, (0.0, 0.0))
        squares[layer] = (
            change + float((after[name].detach() - old).double().square().sum()),  # Σ (new - old)², in float64
            size + float(old.double().square().sum()),
        )
    return {layer: (change / size) ** 0.5 for layer, (change, size) in squares.items() if size > 0}


def take_update(run: Run, step: int, rate: float) -> dict[str, Sums]:
    """Take an update, and return the summed losses of each head, empty if it was skipped.

    If memory runs out, the same update is taken in twice as many pieces, and all later ones too: losses are sums, so
    without dropout the result is the same up to rounding. Other pieces draw other masks of dropout.
    Raises TrainingError: the update is not finite and may not be skipped, or memory does not suffice for one example.
    """
    while True:
        pieces = run.config.micro_batches * run.progress.splits  # doubled each time memory ran out
        parts = list(run.batches.parts(step - 1, pieces, run.updater.replica.ours()))  # from 0
        run.updater.one_by_one = run.progress.splits > 1
        spare = partial(next, run.batches.parts(step - 1, pieces))
        try:
            sums, _ = run.updater.update(parts, step, rate, step / run.steps, spare)
        except NotFinite as error:
            _skip(run, step, error)
            return {}
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).strip().partition("\n")[0]
        else:
            run.progress.skipped_in_row = 0
            if not sums and run.updater.loss_scale is not None:  # no sums: a gradient in float16 overflowed
                run.journal.append({"event": "overflow", "step": step, "loss_scale": run.updater.loss_scale.factor})
            return sums
        # here the exception is gone, and with its frames the activations
        _split(run, step, parts, reason)


def _split(run: Run, step: int, parts: list[Part], reason: str) -> None:
    """Double the pieces of an update, free what can be freed, and warn once."""
    reason = f" ({reason:.120})" if reason else ""  # Python's MemoryError often has no text
    rows = max((len(lengths) for part in parts for lengths in part.batch.lengths.values()), default=2)
    rows = run.updater.replica.highest(rows)  # on all processes
    pieces = run.config.micro_batches * run.progress.splits
    if rows <= 1 or pieces > 1 << 16:
        raise TrainingError(
            f"step {step}: memory ran out with one example at a time{reason}; make `network` or `data.max_len` smaller"
        )
    if run.progress.splits == 1:
        run.reporter.line(
            f"warning: step {step}: memory ran out{reason}; updates are computed in more pieces from here on, "
            f"the same but for other masks of dropout: `training.micro_batches` {pieces * 2} or more avoids this"
        )
    run.progress.splits *= 2
    run.updater.network.zero_grad(set_to_none=True)
    parts.clear()
    gc.collect()
    trim_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _skip(run: Run, step: int, error: NotFinite) -> None:
    """Skip an update that is not finite, or rewind the weights; stop if the recipe says so, or it happens too often."""
    policy, progress = run.config.non_finite, run.progress
    if policy == "stop":
        raise error
    progress.skipped += 1
    progress.skipped_in_row += 1
    allowed = max(1, math.ceil(SHARE * run.steps))  # at least one, in a short run
    if progress.skipped_in_row > IN_A_ROW or progress.skipped > allowed:
        many = f"{counted(progress.skipped, 'update')} were not finite, {progress.skipped_in_row} of them in a row"
        raise TrainingError(f"{error}; {many}: at most {allowed} may be, and {IN_A_ROW} in a row") from error
    event: dict[str, object] = {"event": "skip", "step": step, "parameter": error.parameter}
    action = "the update is skipped"
    if policy == "rewind":

        def newest_name() -> str | None:
            finish_writing(run, wait=True)
            path = newest(run.checkpoints, run_id=str(run.identity["run_id"]), rename_damaged=False)
            return None if path is None else path.name

        name = run.updater.replica.on_main_process(newest_name)  # one process looks, for all must load the same
        if name is None:
            raise TrainingError(f"{error}; there is no checkpoint yet to rewind to") from error
        event["rewound_to"] = restore_weights(run, run.checkpoints / name)
        action = f"the weights are those of step {event['rewound_to']} again, and the data go on"
    run.journal.append(event)
    run.reporter.line(f"warning: {error}; {action}")
