"""A model as tasks take it, loaded or in training: network, tokenizer, configuration, the lengths of texts it reads."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import AtentoWarning, CapabilityError, LongTextWarning, TokenizerError, UsageError, counted
from atento.config.sections.confidence import ConfidenceConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.long_texts import LongTextConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.tasks import task_of_head, verb_of
from atento.inference.choose import NetworkStepFunction, captured, step_function
from atento.inference.engine import Engine
from atento.inference.packed_linear import Precision
from atento.inference.prefix_steps import Prompt
from atento.models.load import load_model
from atento.models.model_folder import decoding_config, objectives_of, reads_prompts_both_ways, section_of
from atento.models.word_models import WordModel
from atento.networks import Decoder, Encoder, Network, RecurrentLM, with_head
from atento.text.released.tokenizer_files import unknown_class
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_folder import read_settings

T = TypeVar("T")
M = TypeVar("M", bound="TaskModel")
_LONGEST = 65_536  # tokens that are compared with one another, unless a model was trained with more
Continuing = Decoder | RecurrentLM | Encoder
"""Networks that continue a prompt; an encoder, if `can_continue` says so."""


def can_continue(network: Network, config: Mapping[str, object]) -> bool:
    """Whether a model, of this `config.json`, continues prompts: an encoder if it was trained to."""
    trained = {"causal", "prefix"} & objectives_of(config)
    return isinstance(network, Decoder | RecurrentLM) or (isinstance(network, Encoder) and bool(trained))


class TaskModel:
    """A network in evaluation mode, its tokenizer and its `config.json`; `atento.model.Model` is one with methods.

    Attributes:
        words: of a model that reads words instead of pieces.
        requested: what it was loaded by, for messages.
        source_limit: the most tokens of a source, which is cut there; None: it is read whole.
    """

    source_limit: int | None = None
    whole: "tuple[TaskModel, str] | None" = None  # of a view of one head, the model with all, and the head's name
    chosen_engine: Engine = "torch"  # what is asked for; a network in training has no copy of its weights

    def __init__(
        self,
        network: Network,
        tokenizer: Tokenizer | None,
        config: dict[str, Any],
        path: Path | None = None,
        words: WordModel | None = None,
        precision: str = "float32",
        requested: str = "",
    ) -> None:
        self.network, self.tokenizer, self.config, self.path = network, tokenizer, config, path
        self.words, self.precision, self.requested = words, precision, requested or str(path or "MODEL")

    def head(self: M, name: str) -> M:
        """A view of this model that shares its weights, and has one of its heads alone: what that was trained for.
        Raises UsageError: there is no such head; names the nearest one.
        """
        view, config = copy(self), self.config | self.config.get("tasks", {}).get(name, {})
        view.network, view.whole = with_head(self.network, name), (self, name)
        view.config = {key: value for key, value in config.items() if key != "tasks"}
        return view

    @property
    def decoding(self) -> DecodingConfig:
        """The default decoding of this model: that of its recipe."""
        return decoding_config(self.config, self.path or Path())

    @property
    def trained_length(self) -> int | None:
        """The most tokens of a text it was trained on, if known; longer texts are counted in a `LongTextWarning`."""
        return trained_length(self.config, self.network.config)

    @property
    def long_texts(self) -> LongTextConfig:
        """How it reads texts that are longer than it was trained on, if it gives labels, numbers or vectors."""
        return section_of(LongTextConfig, self.config, self.path or Path())

    @property
    def confidence(self) -> ConfidenceConfig:
        """What is known of the probabilities of a classifier."""
        return section_of(ConfidenceConfig, self.config, self.path or Path())

    @property
    def prompt(self) -> Prompt:
        """How it reads a prompt: in both directions, if it was trained with prefixes; or causally."""
        reads_prompt = isinstance(self.network, Continuing)  # a network that reads a source has none
        both_ways = reads_prompt and reads_prompts_both_ways(self.config, self.network.config.architecture)
        return "prefix" if both_ways else "causal"

    @property
    def prompt_template(self) -> str | None:
        """The special tokens before a prompt; an encoder's texts, which also end with one, begin with the same."""
        template: str | None = self.config.get("template")
        return "bos" if isinstance(self.network, Encoder) and template == "bos-eos" else template

    def step_function(self) -> NetworkStepFunction:
        """Return the network's step function with the present weights."""
        precision: Precision | None = "int8" if self.precision == "int8" else None
        return step_function(self.network, precision=precision, prompt=self.prompt, engine=self.chosen_engine)

    def search_function(self) -> NetworkStepFunction:
        """Return that of a search that continues from its newest state alone: greedy search, sampling, beams."""
        return captured(self.step_function())

    def reader(self) -> Network:
        """Return the network that reads texts."""
        return self.network

    def drafting_model(self, name: str) -> "TaskModel":
        """Return the model of that name, which proposes tokens for this one."""
        raise UsageError(f"`draft` {name} is for a loaded model")

    def embedder(self, name: str) -> Callable[[list[str]], NDArray[np.float32]]:
        """Return the function of texts -> vectors (N,D) of another model, by which `mbr` compares outputs."""
        raise UsageError(f"`mbr` embeddings:{name} is for a loaded model")


def load_for_tasks(path: str | Path, device: str, requested: str = "") -> TaskModel:
    """Load a model in float32 without the copies of its weights that read faster; errors as in `atento.load`."""
    loaded, name = load_model(path, device, "float32"), requested or str(path)
    return TaskModel(loaded.network, loaded.tokenizer, loaded.config, loaded.path, loaded.words, requested=name)


def tokenizer_of(model: TaskModel) -> Tokenizer:
    """The model's tokenizer. Raises TokenizerError: it has none."""
    if model.tokenizer is None:
        named = unknown_class(model.path, read_settings(model.path, {})) if model.path is not None else None
        why = f"its tokenizer, {named}, is not known here" if named else "the model has no tokenizer files"
        raise TokenizerError(f"{model.path}: {why}, so it cannot read text; `model.network` takes ids")
    return model.tokenizer


def head_of(model: TaskModel, kind: str) -> HeadConfig:
    """The model's head that stands for that kind.
    Raises CapabilityError: it has none; says what the model was trained for, and how to give it one.
    """
    head = next((head for head in model.network.config.heads if head.role == kind), None)
    if head is None:
        raise CapabilityError(
            f"this model was trained for {model.config.get('task')} and has no {kind} head: fine-tune it by a recipe "
            f"with `task: {task_of_head(kind)}` and `init: {model.requested}`"
        )
    return head


def for_head(model: M, head: str | None, verb: str | None = None) -> M:
    """The view of the head of that name, or, of a model of several tasks, of the only one that `verb` (None: any) fits.
    Raises UsageError: there is no such head, or several that fit; names them.
    """
    if head is not None:
        return model.head(head)
    tasks = model.config.get("tasks", {})
    fitting = [name for name, own in tasks.items() if verb in (None, verb_of(own["task"]))]
    if len(fitting) > 1:
        able = f"heads that {verb}" if verb else "heads"
        raise UsageError(f"`head` (--head NAME) must name one of the {able}: this model has {', '.join(fitting)}")
    return model.head(fitting[0]) if fitting else model


def labels_of(network: NetworkConfig) -> set[str]:
    """The labels of all heads of a network."""
    return {label for head in network.heads for label in head.labels}


def check_flags(**options: object) -> None:
    """Check options that are true or false; None: not given.
    Raises UsageError: another value, such as the text "no", which would count as true; names the option.
    """
    for name, value in options.items():
        if value is not None and type(value).__name__ not in ("bool", "bool_"):  # NumPy's too
            raise UsageError(f"`{name}` must be True or False: got {value!r:.60}")


def trained_length(config: Mapping[str, object], network: NetworkConfig) -> int | None:
    """Return the maximum tokens of a text in training, special tokens included; None: unknown.

    Args:
        config: its `config.json`. `max_len` is the `data.max_len` of the recipe that it was trained by.
        network: of a released family, or with learned positions, its `max_len` says it otherwise.
    """
    max_len = config.get("max_len")
    if isinstance(max_len, int) and not isinstance(max_len, bool) and max_len > 0:
        return max_len
    return network.max_len if network.family else network.position_limit


def max_input_tokens(network: NetworkConfig, trained: int | None) -> int | None:
    """Return the most tokens of a text that a network reads at once; None: any number.

    They are its learned positions. A Transformer without them compares each token with all others, in time that grows
    with the square of the length: it reads 65,536, or as many as it was trained with if these are more.
    """
    compares_all = network.architecture in ("encoder", "decoder", "encoder-decoder") and (
        network.attention.sparse is None and (network.mask is None or network.mask.kind != "window")
    )
    if network.source_limit is not None or not compares_all:
        return network.source_limit
    return max(_LONGEST, trained or 0)


def why_too_long(model: TaskModel, text: str) -> str | None:
    """Why the network cannot read a text whole, for a message about its line; None if it can."""
    limit = max_input_tokens(model.network.config, model.trained_length)
    if limit is None or model.tokenizer is None or 4 * len(text.encode()) <= limit:  # hardly ever so many tokens
        return None
    count = len(model.tokenizer.encode(text))
    return f"has {count:,} tokens, and the network reads at most {limit:,} at once" if count > limit else None


def check_lengths(lengths: Sequence[int], network: NetworkConfig, trained: int | None, result: str = "outputs") -> None:
    """Warn once, with counts, of texts (their tokens, special ones with them) that are longer than `trained`.

    Texts of no tokens are not counted. `result` is what comes of them.
    Raises UsageError: a text has more tokens than `max_input_tokens` allows; learned positions refuse it themselves.
    """
    real = [length for length in lengths if length]
    limit, longest = max_input_tokens(network, trained), max(real, default=0)
    if network.position_limit is None and limit is not None and longest > limit:
        raise UsageError(
            f"a text has {longest:,} tokens, and the network reads at most {limit:,} at once: divide it into parts, "
            "one a line"
        )
    long = sum(trained is not None and length > trained for length in real)
    if long and trained is not None:
        warnings.warn(LongTextWarning(long, len(real), longest, trained, result), stacklevel=3)


def context_limit(network: NetworkConfig) -> int | None:
    """Return the most positions that a released network with rotations was trained with, which it can pass; else None.

    It is `max_position_embeddings` of its `config.json`. Rotations that go by the length of a text have no such limit.
    """
    rotations = [scheme for scheme in network.schemes if scheme.kind == "rotary"]
    grows = any(scheme.stretch is not None and scheme.stretch.dynamic for scheme in rotations)
    return network.max_len if network.family and rotations and not grows else None


def warn_of_context(prompts: Iterable[int], outputs: Iterable[int], network: NetworkConfig) -> None:
    """Warn once, with counts, of outputs that go past the positions that the network was trained with.

    Args:
        prompts: the number of tokens of each prompt.
        outputs: the most tokens of an output of each.
        network: the configuration of the network.
    """
    limit = context_limit(network)
    ends = [prompt + output for prompt, output in zip(prompts, outputs) if output]
    long = sum(limit is not None and end > limit for end in ends)
    if long and limit is not None:
        warnings.warn(
            f"{counted(long, 'output')} of {len(ends):,} {'goes' if long == 1 else 'go'} past the {limit:,} positions "
            f"that the model was trained with (the longest, with its prompt, has {max(ends):,} tokens): it may be "
            "wrong from there on; `max_new_tokens` limits it",
            AtentoWarning,
            stacklevel=3,
        )


def watched(tokens: Iterable[T], prompt: int, network: NetworkConfig) -> Iterator[T]:
    """The tokens of an output, with the warning of `warn_of_context` where it passes the positions."""
    limit = context_limit(network)
    for number, token in enumerate(tokens, 1):
        if limit is not None and prompt + number == max(limit, prompt) + 1:
            warn_of_context([prompt], [number], network)
        yield token
