"""The section `training` of a recipe: length, batches, optimizer, scheduled sampling, processes, checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from atento.config.literals import check_choices, check_numbers
from atento.errors import RecipeError, counted, nearest

_RULES = {"linear": "above 0", "exponential": "above 0 and below 1", "inverse-sigmoid": "at least 1"}  # of k
Schedule = Literal["linear", "exponential", "inverse-sigmoid"]


@dataclass(frozen=True)
class ScheduledSamplingConfig:
    """Inputs of the decoder that are the model's own tokens instead of the target's (Bengio et al. 2015).

    Recurrent decoders take them step by step. Transformers take them from a first pass over the target, and learn from
    a second pass (Mihaylova & Martins 2019).
    """

    share: float = 0.0
    """Largest share of the target's tokens that are replaced by the model's own in the input. [0 to 1; 0: teacher
    forcing] 0.1 to 0.5 is usual; a Transformer takes up to twice as long for its two passes.
    """
    schedule: Schedule = "linear"
    """How the probability of the target's token falls with the number i of updates done, down to 1 - `share`. linear:
    k - c·i. exponential: k^i. inverse-sigmoid: k / (k + exp(i / k)).
    """
    k: float | None = None
    """Constant k of the schedule. [linear: above 0; exponential: above 0, below 1; inverse-sigmoid: at least 1; null:
    linear 1, others such that `share`, at most 0.99, is reached in the last update] With linear, a k above 1 delays the
    start.
    """
    c: float | None = None
    """Constant c of the linear schedule, its slope an update. [above 0; null: such that `share` is reached in the last
    update]
    """
    tokens: Literal["argmax", "sample"] = "argmax"
    """The model's own token: the most probable one, or a sample of its distribution."""

    def __post_init__(self) -> None:
        section = "training.scheduled_sampling"
        check_choices(self, f"{section}.")
        check_numbers(self, f"{section}.", share="lie in [0, 1]")
        lowest = 1.0 if self.schedule == "inverse-sigmoid" else 0.0  # below 1, k / (k + exp(i / k)) falls at once
        limit = 1.0 if self.schedule == "exponential" else float("inf")
        if self.k is not None and not (0 < self.k < limit and lowest <= self.k):
            raise RecipeError(
                f"`{section}.k` must be {_RULES[self.schedule]} for the schedule {self.schedule}: got {self.k}"
            )
        if self.c is not None and self.schedule != "linear":
            raise RecipeError(f"`{section}.c` is a constant of the linear schedule: got {self.c} for {self.schedule}")
        check_numbers(self, f"{section}.", c="be finite and above 0")


@dataclass(frozen=True)
class ParallelConfig:
    """How several processes (`atento train --nproc`, torchrun) train one network together.

    Each process has a copy of the network, or a shard of one, and computes its share of the parts of every update.
    Gradients are summed over all processes and divided once by the number of real targets, so the update does not
    depend on their number.
    """

    replicate: Literal["auto"] | int = "auto"
    """Copies of the network. [auto, or at least 1; auto: as many as the processes that were started allow, each with
    `shard` of them] Give a number to make sure that a run starts with that many.
    """
    shard: int = 1
    """Processes that the weights, gradients and optimizer state of one copy are divided among. [at least 1; 1: each
    process has a whole copy] Raise it where a copy does not fit into the memory of a device. It sends more: the weights
    of each block, before it computes.
    """
    exact: bool = False
    """Sum the gradients of the parts of an update in a fixed order, one CPU thread a process, so that any number of
    processes gives the same bits. It is slower. Set it to compare runs, or to look for a fault of a machine.
    """
    timeout: float = 300.0
    """Seconds that a process waits in an update for the others before the run ends with an error. [above 0] Raise it
    where updates take minutes, or processes are of different speed.
    """

    def __post_init__(self) -> None:
        section = "training.parallel"
        if self.replicate != "auto" and (not isinstance(self.replicate, int) or self.replicate < 1):
            raise RecipeError(f"`{section}.replicate` must be auto or at least 1: got {self.replicate}")
        check_numbers(self, f"{section}.", shard="be at least 1")
        if self.shard > 1 and self.exact:
            raise RecipeError(
                f"`{section}.exact` fixes the order of sums, and with `{section}.shard` {self.shard} they are summed "
                "where each shard is: use one of the two"
            )
        check_numbers(self, f"{section}.", timeout="be finite and above 0")


LARGEST_RATE = 10  # maximum learning rate; training usually fails above 0.1
TRACKERS = ("tensorboard", "wandb", "mlflow")  # also the names of their packages


@dataclass(frozen=True)
class TrainingConfig:
    """Length of training, batches, optimizer, validation and checkpoints."""

    steps: int = 2000
    """Number of updates of the weights. [at least 1] Raise it while the validation score still improves. If the recipe
    sets neither it nor `epochs`, it is chosen by the amount of data.
    """
    epochs: float | None = None
    """Number of passes over the training data, instead of `steps`. [above 0; null: use `steps`]"""
    minutes: float | None = None
    """Minutes of training, besides validations. [above 0; null: no limit] The first updates are timed, then the number
    of updates is fixed and kept with the run. With `steps` or `epochs`, whichever is reached first.
    """
    batch_tokens: int = 4096
    """Target tokens of one update, padding not counted: of masked language modelling and span corruption, those that
    are predicted, not those that are read. [at least 1] Larger batches give less noisy gradients and take
    proportionally longer; lower it when memory runs out.
    """
    micro_batches: int = 1
    """Number of pieces that each part of an update (about 2,048 tokens, 16,384 on a GPU) is split into. The update is
    the same, and needs less memory. [at least 1] Raise it when memory runs out.
    """
    optimizer: Literal["adamw", "adafactor", "muon"] = "adamw"
    """Optimizer. adafactor needs half the memory, and its learning rate is relative to the size of a weight: use about
    1e-2. muon takes steps of orthogonal matrices for the matrices of layers and AdamW for the other weights, at the
    learning rate of adamw; it needs more computation a step, and often fewer steps.
    """
    learning_rate: float = 1e-3
    """Peak learning rate, reached at the end of the warm-up. [0 to 10] Use 1e-3 to 2e-3 for small networks, 3e-4 or
    less for large ones, 2e-5 to 5e-5 for fine-tuning. Lower it when the loss rises or becomes NaN. A translator of
    little text gets 2e-3, along a cosine, if the recipe sets no size, rate or schedule.
    """
    warmup: int | None = None
    """Updates in which the learning rate rises linearly from 0 to `learning_rate`. [0 or more; null: a fifth of the
    run, at most 200] Raise it when the loss jumps at the start.
    """
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant", "wsd"] = "inverse-sqrt"
    """How the learning rate decreases after the warm-up: with 1/√step, along half a cosine to 0, linearly to 0, not at
    all, or (wsd: warm-up, stable, decay) linearly to 0 in the last steps. 0 is reached one step after the last. cosine,
    linear and wsd depend on `steps`: choose inverse-sqrt or constant for a run that may be extended.
    """
    decay: float = 0.1
    """Share of the steps after the warm-up in which the schedule wsd decreases the learning rate. [above 0 to 1]"""
    weight_decay: float = 0.01
    """Weight decay of matrices; biases and norms are not decayed (AdamW, Loshchilov & Hutter 2019). An update
    multiplies matrices by 1 - `learning_rate` · `weight_decay`. [0 or more] Raise it to 0.1 against overfitting.
    """
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of Adam's running means of the gradient and of its square (Kingma & Ba 2015). [each 0 to below 1]"""
    clip: float = 1.0
    """Maximum Euclidean norm of the gradient; a larger gradient is scaled down. [0 or more; 0: never] Lower it
    when single batches make the loss jump.
    """
    ema: float = 0.0
    """Decay rate of an exponential moving average of the weights, which is validated and used instead of them. [0 to
    below 1; 0: none] 0.999 for thousands of steps, 0.9999 for many more. Checkpoints take a third more.
    """
    non_finite: Literal["stop", "skip", "rewind"] = "stop"
    """What happens when a loss or gradient is NaN or infinite: stop with an error; skip that update; or rewind the
    weights to the last checkpoint and go on with the data behind it. At most 10 updates in a row and 0.1 % of `steps`,
    but at least one, may be skipped.
    """
    label_smoothing: float = 0.1
    """Probability that the smoothed target distribution spreads evenly over the vocabulary (Szegedy et al. 2016). [0 to
    below 1] 0.1 helps translation; perplexity is best with 0.
    """
    r_drop: float = 0.0
    """R-Drop, against overfitting: the weight α of the divergence between what two passes of a batch with other dropout
    predict, beside the mean of their losses (Liang et al. 2021). [0 or more; 0: one pass] The paper has 5 for
    translation and 0.1 to 1 for labels. An update takes up to twice as long.
    """
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of forward and backward passes in training. auto is bfloat16 where the hardware supports it natively,
    else float32. Weights and optimizer state are always float32. float16 is for GPUs without bfloat16, as free ones
    are: the loss is scaled, and an update whose gradient overflows is skipped and counted.
    """
    scheduled_sampling: ScheduledSamplingConfig = field(default_factory=ScheduledSamplingConfig)
    """Inputs of the decoder that are the model's own tokens instead of the target's, more of them as training goes on.
    [share 0: teacher forcing]
    """
    activation_checkpointing: bool = False
    """Keep the input of each layer alone for the backward pass, and compute the layer again there. The result is
    bit-equal; activations need a small part of the memory, and an update about a third more time.
    """
    compile: bool = False
    """Run the blocks of a Transformer with `torch.compile` while training. The first steps take longer, by tens of
    seconds, and losses differ in rounding. It needs a C++ compiler. Use it on a GPU for runs of many minutes; on a CPU,
    measure first.
    """
    subword_dropout: float = 0.0
    """Subword regularization: share of merges dropped while encoding training texts, so that a word has several
    segmentations (BPE dropout, Provilkov et al. 2020; Unigram sampling, Kudo 2018). [0 to below 1] 0.1 helps with
    little data.
    """
    validate_every: int = 500
    """Number of updates between validations. [at least 1]"""
    samples: int = 0
    """Number of validation records for which each validation also shows what the model writes, beside the reference: in
    the log, and as events `sample` of `metrics.jsonl`. [0 or more; 0: none] 3 shows how a model learns to write; each
    sample takes as long as decoding one text.
    """
    checkpoint_every: int = 500
    """Number of updates between checkpoints; a power cut loses at most this many. [at least 1]"""
    async_checkpoints: bool = True
    """Write checkpoints in a thread while training continues, where writing the last one took more than a hundredth of
    the time between two. They have the same content; memory for a copy of the weights and the optimizer's state is
    needed meanwhile. Set false when memory is short.
    """
    keep: int = 3
    """Number of latest checkpoints to keep, in addition to the best one. [at least 1] Each takes three times the size
    of the weights on disk.
    """
    average: int = 0
    """Number of last checkpoints to average at the end; that many checkpoints are retained. The average is used if it
    scores better than the best checkpoint. [0 or more; 0: none] 4 or 5 often gain some tenths of BLEU.
    """
    early_stop: int = 0
    """Number of validations without a better score after which training stops. [0 or more; 0: never]"""
    log_every: int = 50
    """Number of updates between lines of the log. [at least 1]"""
    report_to: tuple[str, ...] = ()
    """Experiment trackers that get the events of `metrics.jsonl` too. [any of tensorboard, wandb and mlflow; none by
    default] Each is an extra of the package with that name, and its own environment variables say where it writes. A
    tracker that fails is left out with a warning, and training continues.
    """
    baseline: bool = True
    """Show the score of the best simple learner (`atento baseline`) beside the final score, and say so if the model
    does not beat it; of training data of over 6 million characters, it learns from a part. It takes seconds.
    """
    log_gradient_noise: bool = False
    """Also log the gradient noise scale (McCandlish et al. 2018): about the number of targets in an update up to which
    larger updates save steps. Needs updates of several parts; compare it with `batch_tokens`.
    """
    log_update_ratios: bool = False
    """Also log how much an update changes each layer, relative to its weights; about 1e-3 is usual. It needs memory for
    a copy of the weights at each line of the log.
    """
    seed: int = 1
    """Seed of the initial weights, the order of the data and dropout. The same seed gives the same model on the same
    kind of machine.
    """
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """Several processes that train one network together; `atento train --nproc` starts them."""

    def __post_init__(self) -> None:
        check_choices(self, "training.")
        counts = ("steps", "batch_tokens", "micro_batches", "validate_every", "checkpoint_every", "keep", "log_every")
        check_numbers(self, "training.", **dict.fromkeys(counts, "be at least 1"))
        sizes = ("warmup", "average", "early_stop", "samples", "weight_decay", "clip", "learning_rate", "r_drop")
        check_numbers(self, "training.", **dict.fromkeys(sizes, "be finite and not negative"))
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
        shares = ("label_smoothing", "subword_dropout", "ema")
        check_numbers(self, "training.", **dict.fromkeys(shares, "lie in [0, 1)"))
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RecipeError(f"`training.betas` must lie in [0, 1): got {list(self.betas)}")
        if not 0 < self.decay <= 1:
            raise RecipeError(f"`training.decay` must be above 0 and at most 1: got {self.decay}")
        if self.epochs is not None and not 0 < self.epochs < float("inf"):
            raise RecipeError(f"`training.epochs` must be above 0: got {self.epochs}")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise RecipeError(f"`training.minutes` must be above 0: got {self.minutes}")
        if self.parallel.shard > 1:
            _check_divided(self)


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


def _check_divided(config: TrainingConfig) -> None:
    """Check what cannot be done with divided weights. Raises RecipeError: says why."""
    for key, used, why in (
        ("optimizer", config.optimizer != "adamw", "it computes with whole matrices, and a process has some rows"),
        (
            "minutes",
            config.minutes is not None,
            "one process times the first updates, and it has a part of the weights",
        ),
        ("compile", config.compile, "compiled blocks that gather their weights have not been tested"),
        (
            "log_gradient_noise",
            config.log_gradient_noise,
            "gradients of single parts are summed over processes at once",
        ),
        ("log_update_ratios", config.log_update_ratios, "a process sees the change of some rows of each weight alone"),
    ):
        if used:
            value = f" {config.optimizer}" if key == "optimizer" else ""
            raise RecipeError(
                f"`training.{key}`{value} cannot be used with `training.parallel.shard` {config.parallel.shard}: {why}"
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
