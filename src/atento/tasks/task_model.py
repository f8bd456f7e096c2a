"""A network with its tokenizer and configuration: what the functions of tasks take, loaded or in training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.config.sections.confidence import ConfidenceConfig
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.long_texts import LongTextConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.config.tables.tasks import task_of_head
from atento.errors import CapabilityError, TokenizerError, UsageError
from atento.inference.choose import NetworkStepFunction, captured, step_function
from atento.inference.prefix_steps import Prompt
from atento.models.configuration import confidence_config, decoding_config, long_text_config
from atento.models.word_models import WordModel
from atento.networks import Network
from atento.tasks.generation import Continuing, prompt_mode
from atento.tasks.length_warnings import trained_length
from atento.text.released.tokenizer_files import unknown_class
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_folder import read_settings


class TaskModel:
    """A network in evaluation mode, its tokenizer and its `config.json`; `atento.model.Model` is one with methods.

    Attributes:
        words: of a model that reads words instead of pieces.
        requested: what it was loaded by, for messages.
        source_limit: the most tokens of a source, which is cut there; None: it is read whole.
        copies: whether the translation of a text without a letter or digit is the text itself.
    """

    source_limit: int | None = None
    copies = True

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
        return long_text_config(self.config, self.path or Path())

    @property
    def confidence(self) -> ConfidenceConfig:
        """What is known of the probabilities of a classifier."""
        return confidence_config(self.config, self.path or Path())

    @property
    def prompt(self) -> Prompt:
        """How it reads a prompt; a network that reads a source has none."""
        return prompt_mode(self.network, self.config) if isinstance(self.network, Continuing) else "causal"

    def step_function(self) -> NetworkStepFunction:
        """Return the network's step function with the present weights."""
        return step_function(self.network, precision="int8" if self.precision == "int8" else None, prompt=self.prompt)

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


def tokenizer_of(model: TaskModel) -> Tokenizer:
    """The model's tokenizer. Raises TokenizerError: it has none."""
    if model.tokenizer is None:
        named = unknown_class(model.path, read_settings(model.path, {})) if model.path is not None else None
        why = f"its tokenizer, {named}, is not known here" if named else "the model has no tokenizer files"
        raise TokenizerError(f"{model.path}: {why}, so it cannot read text; `model.network` takes ids")
    return model.tokenizer


def head_of(model: TaskModel, kind: str) -> HeadConfig:
    """The model's head of that kind.

    Raises:
        CapabilityError: it has none; says what the model was trained for, and how to give it one.
    """
    head = next((head for head in model.network.config.heads if head.kind == kind), None)
    if head is None:
        raise CapabilityError(
            f"this model was trained for {model.config.get('task')} and has no {kind} head: fine-tune it by a recipe "
            f"with `task: {task_of_head(kind)}` and `init: {model.requested}`"
        )
    return head


def labels_of(network: NetworkConfig) -> set[str]:
    """The labels of all heads of a network."""
    return {label for head in network.heads for label in head.labels}
