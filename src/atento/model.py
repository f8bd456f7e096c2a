"""What a user holds: a loaded model with its text in and text out."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from atento.config.decoding import DecodingConfig, DecodingOptions
from atento.config.embedding import EmbeddingOptions
from atento.config.network import network_to_dict
from atento.errors import CapabilityError, TokenizerError, UsageError
from atento.metrics.utilities import embedding_utility
from atento.models.configuration import decoding_config
from atento.models.load import load_model, precision_type
from atento.models.weight_files import MAX_SHARD_SIZE, in_types
from atento.models.word_models import WordModel
from atento.models.write import save_model
from atento.networks import (
    Decoder,
    EncoderDecoder,
    Network,
    RecurrentLM,
    RecurrentSeq2Seq,
    parameter_count,
)
from atento.networks.families.load_report import LoadReport
from atento.networks.steps.choose import NetworkStepFunction, step_function
from atento.networks.steps.fast import why_not_fast
from atento.precision import resolve_device
from atento.tasks.attend import attention_record
from atento.tasks.embedding import cosine, embed
from atento.tasks.generation import continue_prompts, stream_continuation
from atento.tasks.lengths import trained_length
from atento.tasks.options import check_texts, decoding_for, embedding_for, listed, one_output, texts_of
from atento.tasks.scoring import TokenScores, score_texts
from atento.tasks.strategies import Utility
from atento.tasks.translation import stream_translation, translate
from atento.tasks.word_embedding import embed_words
from atento.tasks.writing import WrittenText
from atento.text import Tokenizer
from atento.text import split_sentences as sentences_of
from atento.training.allocator import keep_freed_memory

if TYPE_CHECKING:
    from atento.decoding.trace import Trace
    from atento.inspection import AttentionRecord

_MAKING = Lock()  # threads that share a model wait for its step function: packed weights are made once


def load(
    model: str | Path,
    device: str = "auto",
    precision: str = "float32",
    *,
    allow_missing: bool = False,
    allow_unused: bool = False,
) -> Model:
    """Load a model in evaluation mode.

    Args:
        model: a run folder (its best checkpoint, else its last), a model folder of our layout or Hugging Face's, a hub
            name (`owner/name`), a published ELMo folder, or a word2vec file (.bin, .txt, .vec).
        device: "auto", "cpu", "cuda" ...
        precision: "float32", "float64", "bfloat16", "int8" or "auto". int8 is for writing alone: weights of 8 bits in
            the decoder, all else float32. "auto" is the widest type in the file.
        allow_missing: weights that the file of another layout lacks keep their initial values.
        allow_unused: weights of such a file that the network does not have are ignored.

    Returns:
        The model; its `load_report` says what became of the weights of another layout.

    Raises:
        UsageError, ModelError: there is nothing that can be loaded. CheckpointError: truncated or altered; names the
            file.
    """
    loaded = load_model(model, device, precision, allow_missing=allow_missing, allow_unused=allow_unused)
    return Model(**vars(loaded))


class Model:
    """A network with its tokenizer and configuration; every method takes text and gives text."""

    def __init__(
        self,
        network: Network,
        tokenizer: Tokenizer | None,
        config: dict[str, Any],
        path: Path | None,
        load_report: LoadReport | None = None,
        words: WordModel | None = None,
        precision: str = "float32",
        stored: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        self.network, self.tokenizer, self.config, self.path = network, tokenizer, config, path
        self.load_report = load_report
        self.words = words  # of a model that reads words, not pieces
        self.precision = precision
        self.stored = stored or {}  # the type of each weight in the file that it was read from
        # made for the weights of these addresses and versions
        self._step_function: tuple[tuple[tuple[int, int], ...], NetworkStepFunction] | None = None
        _check_int8(network, precision)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    def to(self, device: str | torch.device | None = None, precision: str | None = None) -> Model:
        """Move the model to a device ("auto", "cpu", "cuda" ...) or change its precision, as `load` does; in place.

        Digits that a lower precision dropped do not come back: load the model again for those.

        Returns:
            The model itself.

        Raises:
            UsageError: no such device or precision here. CapabilityError: int8 for a network that has none.
        """
        place = None if device is None else resolve_device(str(device))
        dtype = None if precision is None else precision_type(precision)
        _check_int8(self.network, precision)
        self.network.to(device=place, dtype=dtype)
        self.precision = self.precision if precision is None else precision
        self._step_function = None
        return self

    def step_function(self) -> NetworkStepFunction:
        """The network's step function, for `atento.decoding`: the fast one where it has one, which packs the weights.

        It is made at the first call, and anew when the weights have changed. All threads share it.
        """
        weights = self.network.parameters()
        now = tuple((one.data_ptr(), 0 if one.is_inference() else one._version) for one in weights)
        with _MAKING:
            kept = self._step_function
            if kept is None or kept[0] != now:
                keep_freed_memory()  # every step allocates the same large blocks again
                made = step_function(self.network, precision="int8" if self.precision == "int8" else None)
                self._step_function = kept = now, made
            return kept[1]

    @property
    def decoding(self) -> DecodingConfig:
        """How this model decodes unless told otherwise: as its recipe said."""
        return decoding_config(self.config, self.path or Path())

    @property
    def trained_length(self) -> int | None:
        """The most tokens of a text it was trained on, if known; longer ones are counted in a `LongTextWarning`."""
        return trained_length(self.config, self.network.config)

    @overload
    def translate(  # type: ignore[overload-overlap]
        self, text: str, *, n_best: None = None, split_sentences: bool = False, **options: Unpack[DecodingOptions]
    ) -> str: ...
    @overload
    def translate(
        self,
        text: Sequence[str],
        *,
        n_best: None = None,
        split_sentences: bool = False,
        **options: Unpack[DecodingOptions],
    ) -> list[str]: ...
    @overload
    def translate(self, text: str, *, n_best: int, **options: Unpack[DecodingOptions]) -> list[str]: ...  # type: ignore[overload-overlap]
    @overload
    def translate(self, text: Sequence[str], *, n_best: int, **options: Unpack[DecodingOptions]) -> list[list[str]]: ...

    def translate(
        self,
        text: str | Sequence[str],
        *,
        n_best: int | None = None,
        split_sentences: bool = False,
        **options: Unpack[DecodingOptions],
    ) -> Any:
        """Translate a text (str in, str out) or texts (list in, list out); with `n_best`, a list of that many for each.

        A blank text gives a blank translation. `split_sentences` translates each sentence of a text by itself and joins
        the outputs with spaces. Options are the fields of `atento.config.decoding.DecodingConfig`, the recipe's where
        not given, and `greedy`. `mbr` also takes a function of two lists of texts that returns the matrix of their
        utilities.

        Raises:
            UsageError: an option that does not exist, or options that exclude each other. CapabilityError: the model
                does not translate. RecipeError: an option's value is out of range.
        """
        if split_sentences and n_best is not None:
            raise UsageError("`n_best` and `split_sentences` exclude each other")
        if split_sentences:
            sentences = [sentences_of(one) for one in listed(text)]
            outputs = iter(self.translate([one for part in sentences for one in part], **options))
            joined = [" ".join(next(outputs) for _ in part) for part in sentences]
            return joined[0] if isinstance(text, str) else joined
        return texts_of(self.translations, text, n_best, options)

    def translations(
        self, texts: Sequence[str], *, n_best: int | None = None, row: int = 0, **options: Unpack[DecodingOptions]
    ) -> list[list[WrittenText]]:
        """As `translate`, with each output's hypothesis: ids, score, log-probability, token scores.

        `row` is the number of the first text, where these are part of more: what is drawn hangs on it.
        """
        return self._written("translation", texts, n_best, row, options)

    @overload
    def summarize(self, text: str, *, n_best: None = None, **options: Unpack[DecodingOptions]) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def summarize(
        self, text: Sequence[str], *, n_best: None = None, **options: Unpack[DecodingOptions]
    ) -> list[str]: ...
    @overload
    def summarize(self, text: str, *, n_best: int, **options: Unpack[DecodingOptions]) -> list[str]: ...  # type: ignore[overload-overlap]
    @overload
    def summarize(self, text: Sequence[str], *, n_best: int, **options: Unpack[DecodingOptions]) -> list[list[str]]: ...

    def summarize(
        self, text: str | Sequence[str], *, n_best: int | None = None, **options: Unpack[DecodingOptions]
    ) -> Any:
        """Summarise a text or texts; as `translate`."""
        return texts_of(self.summaries, text, n_best, options)

    def summaries(
        self, texts: Sequence[str], *, n_best: int | None = None, row: int = 0, **options: Unpack[DecodingOptions]
    ) -> list[list[WrittenText]]:
        """As `summarize`, with each output's hypothesis; `row` as in `translations`."""
        return self._written("summarization", texts, n_best, row, options)

    @overload
    def generate(self, prompt: str, *, n_best: None = None, **options: Unpack[DecodingOptions]) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def generate(
        self, prompt: Sequence[str], *, n_best: None = None, **options: Unpack[DecodingOptions]
    ) -> list[str]: ...
    @overload
    def generate(self, prompt: str, *, n_best: int, **options: Unpack[DecodingOptions]) -> list[str]: ...  # type: ignore[overload-overlap]
    @overload
    def generate(
        self, prompt: Sequence[str], *, n_best: int, **options: Unpack[DecodingOptions]
    ) -> list[list[str]]: ...

    def generate(
        self, prompt: str | Sequence[str], *, n_best: int | None = None, **options: Unpack[DecodingOptions]
    ) -> Any:
        """Go on from a prompt or prompts, not repeated; options as in `translate`, greedy search if none is given."""
        return texts_of(self.generations, prompt, n_best, options)

    def generations(
        self, prompts: Sequence[str], *, n_best: int | None = None, row: int = 0, **options: Unpack[DecodingOptions]
    ) -> list[list[WrittenText]]:
        """As `generate`, with each output's hypothesis; `row` as in `translations`."""
        return self._written("language-modeling", prompts, n_best, row, options)

    def stream(
        self, prompt: str, *, task: str | None = None, row: int = 0, **options: Unpack[DecodingOptions]
    ) -> Iterator[str]:
        """What `generate` gives, or `translate` or `summarize` where the model does that, piece by piece as it is
        written; a piece never breaks a character.

        Greedy search or, where asked for, sampling: options as in `translate`, but for those of a beam and of `mbr`.
        `task` says what is wanted: a model that does not do it refuses. What is drawn is what the others draw for text
        number `row` of a list.
        """
        check_texts([prompt])
        decoding = decoding_for(one_output(self.decoding), 1, options)
        shared: dict[str, Any] = {"step_function": self.step_function(), "row": row, "trained": self.trained_length}
        if isinstance(self.network, EncoderDecoder | RecurrentSeq2Seq) and task != "language-modeling":
            network = self._writer(task or self.config.get("task"))
            return stream_translation(network, self._tokenizer(), prompt, decoding, **shared)
        if task not in (None, "language-modeling"):
            raise CapabilityError(f"this model does {self.config.get('task')}, not {task}")
        shared["template"] = self.config.get("template")
        return stream_continuation(self._language_model(), self._tokenizer(), prompt, decoding, **shared)

    @overload
    def score(self, source: str, target: str) -> TokenScores: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, source: Sequence[str], target: Sequence[str]) -> list[TokenScores]: ...

    def score(self, source: str | Sequence[str], target: str | Sequence[str]) -> Any:
        """The log-probability of a given output, token by token, EOS with it, in nats (docs/notes.md#h11).

        `source` is what a translation model reads, or the prompt of a language model ("" for none).
        """
        if isinstance(source, str) != isinstance(target, str):
            raise UsageError("give a source and a target, or a list of each")
        network = self.network
        if not isinstance(network, EncoderDecoder | RecurrentSeq2Seq | Decoder | RecurrentLM):
            raise CapabilityError(f"this network ({type(network).__name__}) writes nothing that could be scored")
        sources, targets = listed(source), listed(target)
        if len(sources) != len(targets):
            raise UsageError(f"as many sources as targets: got {len(sources)} and {len(targets)}")
        shared: dict[str, Any] = {"template": self.config.get("template"), "trained": self.trained_length}
        found = score_texts(network, self._tokenizer(), sources, targets, step_function=self.step_function(), **shared)
        return found[0] if isinstance(source, str) else found

    def _written(
        self,
        task: str,
        texts: Sequence[str],
        n_best: int | None,
        row: int,
        options: DecodingOptions,
        trace: Trace | None = None,
    ) -> list[list[WrittenText]]:
        """The outputs of one task; `trace` is told of the search for one text."""
        network = self._language_model() if task == "language-modeling" else self._writer(task)
        check_texts(texts)
        decoding = decoding_for(self.decoding, n_best, options)
        utility = _utility(options.get("mbr", decoding.mbr))
        shared: dict[str, Any] = {"utility": utility, "first": row, "trained": self.trained_length, "trace": trace}
        if isinstance(network, Decoder | RecurrentLM):
            shared["template"] = self.config.get("template")
            return continue_prompts(
                network, self._tokenizer(), texts, decoding, step_function=self.step_function(), **shared
            )
        return translate(network, self._tokenizer(), texts, decoding, step_function=self.step_function(), **shared)

    def _writer(self, task: str | None) -> EncoderDecoder | RecurrentSeq2Seq:
        if self.config.get("task") not in (task, "text-to-text"):  # T5's prefix says what is to be done
            raise CapabilityError(f"this model does {self.config.get('task')}, not {task}")
        if not isinstance(self.network, EncoderDecoder | RecurrentSeq2Seq):
            raise CapabilityError(f"this network ({type(self.network).__name__}) reads no source to write from")
        return self.network

    def _language_model(self) -> Decoder | RecurrentLM:
        if not isinstance(self.network, Decoder | RecurrentLM):
            task, kind = self.config.get("task"), type(self.network).__name__
            raise CapabilityError(f"this network ({kind}) does not go on from a text: it does {task}")
        return self.network

    def embed(
        self, text: str | Sequence[str], *, batch_tokens: int = 4096, **options: Unpack[EmbeddingOptions]
    ) -> NDArray[np.float32]:
        """Texts as vectors (N,D), float32; one text as (D,) (docs/notes.md#g8).

        Options: layer (0 first, -1 last), pooling (mean, first, last, max), normalize, max_len; the model's own where
        not given: those of a sentence-transformers folder, else the mean over the last layer.
        """
        texts = listed(text)
        config = embedding_for(self.config.get("embedding", {}), str(self.path), options)
        if self.words is not None:
            vectors = embed_words(self.words, texts, config, batch_tokens)
        else:
            shared: dict[str, Any] = {"template": self.config.get("template"), "trained": self.trained_length}
            vectors = embed(self.network, self._tokenizer(), texts, config, batch_tokens, **shared)
        return vectors[0] if isinstance(text, str) else vectors

    def similarity(self, first: str, second: str, **options: Unpack[EmbeddingOptions]) -> float:
        """The cosine of two texts' vectors, -1 to 1; options as in `embed`. A text without tokens gives 0."""
        return cosine(*self.embed([first, second], **options))

    def attend(self, text: str, target: str | None = None) -> AttentionRecord:
        """What attends to what: encoder self-attention, masked decoder self-attention, cross-attention.

        See docs/notes.md#a11.

        `target` is the output to look at; the model's own translation when None.
        """
        check_texts([text] if target is None else [text, target])
        return attention_record(
            self.network,
            self._tokenizer(),
            text,
            target,
            translate=self.translate,
            template=self.config.get("template"),
            model_name=str(self.config.get("name", "")),
        )

    def save(
        self,
        directory: str | Path,
        layout: str = "atento",
        *,
        precision: str | None = None,
        max_shard_size: int | str = MAX_SHARD_SIZE,
    ) -> Path:
        """Write a folder that `load` reads: config.json, model.safetensors, tokenizer files, model card, manifest.

        Args:
            layout: "huggingface": as `transformers` reads it, for networks of a family that it has.
            precision: "float32", "bfloat16", "float16" or "float64" for every weight. None: the type in which the file
                holds it that it was loaded from, where that loses nothing, else the type of the network.
            max_shard_size: bytes, or text such as "5GB"; larger weights stand in several files, with an index.

        Raises:
            CapabilityError: that layout cannot say what this network is; names what. UsageError: no such type or size.
        """
        if self.words is not None and self.tokenizer is None:
            raise CapabilityError("word models stay as published; `atento.text.vectors` writes word vectors")
        config = {"model_type": "atento"} | self.config | {"network": network_to_dict(self.network.config)}
        return save_model(
            Path(directory),
            config,
            in_types(self.network.state_dict(), self.stored, precision, str(self.path)),
            self.tokenizer,
            layout=layout,
            source=self.path,
            max_shard_size=max_shard_size,
        )

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(f"{self.path}: the model has no tokenizer files, so it cannot read text")
        return self.tokenizer

    def __repr__(self) -> str:
        name, task = self.config.get("name"), self.config.get("task")
        count = f"{parameter_count(self.network):,} parameters"
        return f"Model({reprlib.repr(name)}, {task}, {count}, {self.precision} on {self.device})"


def _check_int8(network: Network, precision: str | None) -> None:
    reason = why_not_fast(network) if precision == "int8" else None
    if reason is not None:
        raise CapabilityError(f"int8 is for Transformers that write, not for {reason}")


def _utility(given: object) -> Utility | None:
    """What `mbr` compares texts by where that is no metric's name: a function, or the vectors of "embeddings:MODEL"."""
    if isinstance(given, str) and given.startswith("embeddings:"):
        name = given.removeprefix("embeddings:")
        if not name:
            raise UsageError("`mbr` embeddings:MODEL names a model folder: got none")
        return embedding_utility(load(name).embed)
    return given if callable(given) else None
