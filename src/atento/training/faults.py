"""Faults of an update: a loss or gradient that is not finite, and memory that runs out; what a run does then."""

import gc
import math
from functools import partial

import torch

from atento.data.batches.batch import Part
from atento.errors import TrainingError, counted
from atento.storage.catalogue import newest
from atento.training.allocator import return_freed_memory
from atento.training.losses import Sums
from atento.training.run import Run, finish_writing, restore_weights
from atento.training.step import NotFinite

IN_A_ROW = 10  # updates in a row that may be skipped or rewound
SHARE = 0.001  # of all updates that may be


def take_update(run: Run, step: int, rate: float) -> dict[str, Sums]:
    """Take an update, and return the summed losses of each head, empty if it was skipped.

    If memory runs out, the same update is taken in twice as many pieces, and all later ones too: losses are sums, so
    without dropout the result is the same up to rounding. Other pieces draw other masks of dropout.

    Raises:
        TrainingError: the update is not finite and may not be skipped, or memory does not suffice for one example.
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
                factor = run.updater.loss_scale.factor
                run.journal.append({"event": "overflow", "step": step, "loss_scale": factor})
            return sums
        # here the exception is gone, and with its frames the activations
        _split(run, step, parts, reason)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: that of CUDA, of Python, or of PyTorch's allocator on a CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text
        for words in ("defaultcpuallocator", "out of memory", "cannot allocate memory", "bad_alloc", "start new thread")
    )


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
    return_freed_memory()
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
        name = run.updater.replica.main_does(lambda: _newest(run))  # one process looks, for all must load the same
        if name is None:
            raise TrainingError(f"{error}; there is no checkpoint yet to rewind to") from error
        event["rewound_to"] = restore_weights(run, run.checkpoints / name)
        action = f"the weights are those of step {event['rewound_to']} again, and the data go on"
    run.journal.append(event)
    run.reporter.line(f"warning: {error}; {action}")


def _newest(run: Run) -> str | None:
    """Return the name of the newest checkpoint, once it is written; None: there is none."""
    finish_writing(run, wait=True)
    path = newest(run.checkpoints, run_id=str(run.identity["run_id"]), rename_damaged=False)
    return None if path is None else path.name
