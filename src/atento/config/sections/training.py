"""The section `training` of a recipe: length, batches, optimizer, scheduled sampling, processes, checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from atento.base.errors import RecipeError, counted, nearest
from atento.config.literals import ABOVE_0, FINITE, FROM_0_TO_1, BelowOne, Count, Positive, Rule, Section

_RULES = {"linear": "above 0", "exponential": "above 0 and below 1", "inverse-sigmoid": "at least 1"}  # of k
_Size = Annotated[float, FINITE]
_Number = Annotated[int, FINITE]
_Span = Annotated[float, ABOVE_0]
Schedule = Literal["linear", "exponential", "inverse-sigmoid"]


@dataclass(frozen=True)
class ScheduledSamplingConfig(Section, path="training.scheduled_sampling."):
    """Inputs of the decoder that are the model's own tokens instead of the target's (Bengio et al. 2015).

    Recurrent decoders take them step by step. Transformers take them from a first pass over the target, and learn from
    a second pass (Mihaylova & Martins 2019).
    """

    share: Annotated[float, FROM_0_TO_1] = 0.0
    """Largest share of replaced tokens. [0 to 1; 0: teacher forcing] 0.1 to 0.5 is usual; a Transformer takes up to
    twice as long.
    """
    schedule: Schedule = "linear"
    """Fall of the probability of the target's token with update i, to 1 - `share`: `linear`, k - c·i; `exponential`,
    k^i; `inverse-sigmoid`, k / (k + exp(i / k)).
    """
    k: float | None = None
    """Constant k; of linear, above 1 delays the start. [linear: above 0; exponential: above 0, below 1;
    inverse-sigmoid: at least 1; null: linear 1, others such that `share`, at most 0.99, is reached at the end]
    """
    c: Positive | None = None
    """Slope of the linear schedule, an update. [above 0; null: such that `share` is reached at the end]"""
    tokens: Literal["argmax", "sample"] = "argmax"
    """The most probable token (`argmax`), or a `sample`."""

    def _check(self) -> None:
        section = "training.scheduled_sampling"
        lowest = 1.0 if self.schedule == "inverse-sigmoid" else 0.0  # below 1, k / (k + exp(i / k)) falls at once
        limit = 1.0 if self.schedule == "exponential" else float("inf")
        if self.k is not None and not (0 < self.k < limit and lowest <= self.k):
            raise RecipeError(
                f"`{section}.k` must be {_RULES[self.schedule]} for the schedule {self.schedule}: got {self.k}"
            )
        if self.c is not None and self.schedule != "linear":
            raise RecipeError(f"`{section}.c` is a constant of the linear schedule: got {self.c} for {self.schedule}")


@dataclass(frozen=True)
class ParallelConfig(Section, path="training.parallel."):
    """How several processes (`atento train --nproc`, torchrun) train one network together.

    Each process has a copy of the network, or a shard of one, and computes its share of the parts of every update.
    Gradients are summed over all processes and divided once by the number of real targets, so the update does not
    depend on their number.
    """

    replicate: Literal["auto"] | int = "auto"
    """Copies of the network; a number must be reached. [at least 1; auto: as many as the processes allow]"""
    shard: Count = 1
    """Processes that share weights, gradients and optimizer state of a copy, where one device cannot hold it. [at least
    1; 1: each has a whole copy]
    """
    exact: bool = False
    """Any number of processes gives the same bits, one CPU thread a process; slower."""
    timeout: Positive = 300.0
    """Seconds that a process waits for the others before an error. [above 0] Raise it where updates take minutes."""

    def _check(self) -> None:
        section = "training.parallel"
        if self.replicate != "auto" and (not isinstance(self.replicate, int) or self.replicate < 1):
            raise RecipeError(f"`{section}.replicate` must be auto or at least 1: got {self.replicate}")
        if self.shard > 1 and self.exact:
            raise RecipeError(
                f"`{section}.exact` fixes the order of sums, and with `{section}.shard` {self.shard} they are summed "
                "where each shard is: use one of the two"
            )


LARGEST_RATE = 10  # maximum learning rate; training usually fails above 0.1
TRACKERS = ("tensorboard", "wandb", "mlflow")  # also the names of their packages


@dataclass(frozen=True)
class TrainingConfig(Section, path="training."):
    """Length of training, batches, optimizer, validation and checkpoints."""

    steps: Count = 2000
    """Updates; chosen by the amount of data if neither it nor `epochs` is set. [at least 1] Raise it while the
    validation score improves.
    """
    epochs: _Span | None = None
    """Passes over the training data. [above 0; null: use `steps`]"""
    minutes: _Span | None = None
    """Minutes without validations; the first reached of it, `steps` and `epochs` counts. [above 0; null: no limit]"""
    batch_tokens: Count = 4096
    """Target tokens of an update without padding; of masks and span corruption, those predicted. [at least 1] Lower it
    when memory runs out.
    """
    micro_batches: Count = 1
    """Pieces of each part of an update (about 2,048 tokens, 16,384 on a GPU): less memory, the same update. [at least
    1]
    """
    optimizer: Literal["adamw", "adafactor", "muon"] = "adamw"
    """`adamw`; `adafactor`, with half its memory and a learning rate relative to a weight's size (about 1e-2); or
    `muon`, orthogonal steps for matrices at the rate of adamw: slower, often fewer.
    """
    learning_rate: _Size = 1e-3
    """Peak learning rate: 1e-3 to 2e-3 for small networks, 3e-4 or less for large ones, 2e-5 to 5e-5 for fine-tuning.
    [0 to 10] Lower it when the loss rises or becomes NaN. A translator of little text has 2e-3, along a cosine, without
    size, rate and schedule.
    """
    warmup: _Number | None = None
    """Updates in which the learning rate rises from 0. [0 or more; null: a fifth of the run, at most 200]"""
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant", "wsd"] = "inverse-sqrt"
    """Fall of the learning rate: with 1/√step (`inverse-sqrt`), along half a `cosine`, `linear`, not at all
    (`constant`), or linear in the last steps (`wsd`). cosine, linear and wsd depend on `steps`: not for runs that may
    be extended.
    """
    decay: Annotated[float, Rule("be above 0 and at most 1", lambda share: 0 < share <= 1)] = 0.1
    """Share of the steps in which wsd lowers the rate. [above 0 to 1]"""
    weight_decay: _Size = 0.01
    """Weight decay of matrices (AdamW): an update multiplies them by 1 - `learning_rate` · `weight_decay`. [0 or more]
    Raise it to 0.1 against overfitting.
    """
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of Adam's means of gradients and squares. [each 0 to below 1]"""
    clip: _Size = 1.0
    """Maximum norm of the gradient. [0 or more; 0: never] Lower it when the loss jumps."""
    ema: BelowOne = 0.0
    """Decay rate of a moving average of the weights, used instead of them; checkpoints take a third more. [0 to below
    1; 0: none] 0.999 for thousands of steps, 0.9999 for many more.
    """
    non_finite: Literal["stop", "skip", "rewind"] = "stop"
    """After a loss or gradient that is NaN or infinite: `stop` with an error, `skip` the update, or `rewind` to the
    last checkpoint and go on with later data.
    """
    label_smoothing: BelowOne = 0.1
    """Probability spread evenly over the vocabulary. [0 to below 1] 0.1 helps translation, 0 perplexity."""
    r_drop: _Size = 0.0
    """R-Drop: weight of the divergence between two passes with other dropout. [0 or more; 0: one pass] 5 for
    translation, 0.1 to 1 for labels; up to twice the time.
    """
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of forward and backward passes; weights are `float32`. `auto` is `bfloat16` where the hardware has it, else
    float32. `float16`, with a scaled loss, is for GPUs without bfloat16.
    """
    scheduled_sampling: ScheduledSamplingConfig = field(default_factory=ScheduledSamplingConfig)
    """Give the decoder its own tokens, more as training goes on. [share 0: teacher forcing]"""
    activation_checkpointing: bool = False
    """Compute layers again in the backward pass: bit-equal, far less memory, about a third more time."""
    compile: bool = False
    """Run Transformer blocks with `torch.compile`, for runs of many minutes on a GPU; needs a C++ compiler. Losses
    differ in rounding.
    """
    subword_dropout: BelowOne = 0.0
    """Share of merges dropped while encoding training texts (BPE dropout, Unigram sampling). [0 to below 1] 0.1 helps
    with little data.
    """
    validate_every: Count = 500
    """Updates between validations. [at least 1]"""
    samples: _Number = 0
    """Validation records whose output is shown, in the log and `metrics.jsonl`. [0 or more; 0: none]"""
    checkpoint_every: Count = 500
    """Updates between checkpoints. [at least 1]"""
    async_checkpoints: bool = True
    """Write checkpoints in a thread where they take over a hundredth of the time; needs memory for a copy."""
    keep: Count = 3
    """Latest checkpoints to keep beside the best, each three times the weights' size. [at least 1]"""
    average: _Number = 0
    """Last checkpoints to average at the end, used if better than the best one. [0 or more; 0: none] 4 or 5 often gain
    some tenths of BLEU.
    """
    early_stop: _Number = 0
    """Validations without a better score before the end. [0 or more; 0: never]"""
    log_every: Count = 50
    """Updates between lines of the log. [at least 1]"""
    report_to: tuple[str, ...] = ()
    """Experiment trackers that get the events of `metrics.jsonl` too, each an extra. [any of tensorboard, wandb and
    mlflow]
    """
    baseline: bool = True
    """Compare the final score with the best simple learner (`atento baseline`)."""
    log_gradient_noise: bool = False
    """Log the gradient noise scale (McCandlish et al. 2018): about the targets up to which larger updates save steps.
    Needs updates of several parts.
    """
    log_update_ratios: bool = False
    """Log the change of each layer by an update, relative to its weights (about 1e-3 is usual); needs memory for a
    copy.
    """
    seed: int = 1
    """Seed of the initial weights, the order of the data and dropout."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """Several processes (`atento train --nproc`)."""

    def _check(self) -> None:
        for number, name in enumerate(self.report_to):
            if name not in TRACKERS:
                raise RecipeError(f"`training.report_to`: unknown tracker {name!r}{nearest(name, list(TRACKERS))}")
            if name in self.report_to[:number]:
                raise RecipeError(f"`training.report_to` names {name} twice")
        if self.learning_rate > LARGEST_RATE:
            raise RecipeError(
                f"`training.learning_rate` must be at most {LARGEST_RATE}: got {self.learning_rate} "
                "(Adam moves every weight by about that much an update; 1e-5 to 1e-2 is usual)"
            )
        if self.weight_decay * self.learning_rate >= 1:
            raise RecipeError(
                "`training.weight_decay` times `training.learning_rate` must be below 1, for every update multiplies "
                f"the weights by 1 minus it: got {self.weight_decay} and {self.learning_rate} (0 to 0.3 is usual)"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RecipeError(f"`training.betas` must lie in [0, 1): got {list(self.betas)}")
        for key, used, why in (  # with sharded weights
            ("optimizer", self.optimizer != "adamw", "it computes with whole matrices, and a process has some rows"),
            ("minutes", self.minutes, "one process times the first updates, and it has a part of the weights"),
            ("compile", self.compile, "compiled blocks that gather their weights have not been tested"),
            (
                "log_gradient_noise",
                self.log_gradient_noise,
                "gradients of single parts are summed over processes at once",
            ),
            (
                "log_update_ratios",
                self.log_update_ratios,
                "a process sees the change of some rows of each weight alone",
            ),
        ):
            if used and self.parallel.shard > 1:
                named = f"`training.{key}`{f' {self.optimizer}' if key == 'optimizer' else ''}"
                rule = f"cannot be used with `training.parallel.shard` {self.parallel.shard}"
                raise RecipeError(f"{named} {rule}: {why}")


def beyond_the_run(config: TrainingConfig, steps: int, *, validated: bool) -> Iterator[str]:
    """Yield a sentence for each key that cannot do in a run of `steps` updates what it is for.

    Args:
        config: the section of the recipe.
        validated: whether there is validation data.
    """
    run = f"the run of {counted(steps, 'update')}"
    if (config.warmup or 0) > steps:
        yield (
            f"`training.warmup` {config.warmup} is longer than {run}: the learning rate ends at "
            f"{steps / (config.warmup or 1):.1%} of `training.learning_rate`; leave it out for a fifth of the run"
        )
    validations, checkpoints = -(-steps // config.validate_every), -(-steps // config.checkpoint_every)
    if validated and config.early_stop >= validations:
        yield (
            f"`training.early_stop` {config.early_stop} cannot stop {run}, which has "
            f"{counted(validations, 'validation')}; lower `training.validate_every` {config.validate_every}"
        )
    if config.average > checkpoints:
        yield (
            f"`training.average` {config.average} is more than the {counted(checkpoints, 'checkpoint')} of {run}; "
            f"lower `training.checkpoint_every` {config.checkpoint_every}"
        )


def without_effect(config: TrainingConfig) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for each key that has no effect because of another key."""
    if config.epochs is not None:
        yield "steps", "training.epochs is given"
    if config.schedule != "wsd":
        yield "decay", f"training.schedule is {config.schedule}"
    if config.optimizer == "adafactor":
        yield "betas", "adafactor has no such means"


def without_dropout(weight: float) -> str:
    """The reason that R-Drop of this weight is refused for a network whose two passes would be equal."""
    rule = "`training.r_drop` compares two passes with other dropout, and this network has none"
    return f"{rule}: raise `network.dropout`, or set it to 0; got {weight:g}"
