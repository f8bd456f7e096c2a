"""A loaded model; its methods take and return text."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray

from atento.base.errors import CapabilityError, UsageError
from atento.base.limits import path_of
from atento.base.precision import resolve_device
from atento.config.sections.decoding import DecodingOptions
from atento.config.sections.network import network_to_dict
from atento.config.tables.renamed_keys import VERSION
from atento.config.tables.tasks import task_with
from atento.decoding.trace import Trace
from atento.inference.choose import NetworkStepFunction, Watch, check_int8, engine_of, pack_weights, reader
from atento.inference.engine import Engine
from atento.inference.packed_linear import Precision
from atento.inspection import AttentionRecord
from atento.models.load import load_model, precision_type
from atento.models.model_folder import CALIBRATION
from atento.models.weight_files import MAX_SHARD_SIZE, in_types
from atento.models.word_models import WordModel
from atento.models.write import save_model
from atento.networks import Network, parameter_count, with_head
from atento.released.load_report import LoadReport
from atento.tasks.attention_records import attention_record
from atento.tasks.classification import classifications, classify
from atento.tasks.explain_predictions import explain
from atento.tasks.features import features
from atento.tasks.mask_filling import fill
from atento.tasks.model_outputs import generator_of, score, stream_output, write_outputs, writing_task
from atento.tasks.model_vectors import embed, similarity
from atento.tasks.protected_translation import translate_protected
from atento.tasks.question_answering import answer, answers
from atento.tasks.tagging import tag, tag_words
from atento.tasks.task_model import TaskModel, check_flags, tokenizer_of
from atento.tasks.text_generation import GeneratedText
from atento.tasks.text_perplexity import perplexity
from atento.tasks.translation_languages import TranslationOptions
from atento.tasks.verb_calls import continues, strings, translates, writes
from atento.text import Tokenizer
from atento.text import split_sentences as sentences_of
from atento.text.kinds import check_texts
from atento.training.allocator import raise_trim_threshold, trim_memory

T = TypeVar("T")
_LOCK = Lock()  # threads that share a model wait for its step function, so that weights are packed once


def load(
    model: str | Path,
    device: str = "auto",
    precision: str = "float32",
    *,
    engine: Engine = "auto",
    allow_missing: bool = False,
    allow_unused: bool = False,
) -> Model:
    """Load a model in evaluation mode.

    Args:
        model: a run folder (its best checkpoint, else its last), a model folder of our layout or Hugging Face's, one
            of the package (`micro-world-en-pt`), a hub name (`owner/name`), an ELMo folder, or word2vec (.bin, .vec).
        device: "auto", "cpu", "cuda" ...
        precision: "float32", "float64", "bfloat16", "int8" or "auto". int8: on the CPU, the linear maps in the layers
            of a decoder or an encoder have weights and activations of 8 bits, and tables of tokens 8 bits a number (of
            an encoder, where no head multiplies by them), and no others are kept; all else is float32. "auto" is the
            widest type in the file.
        engine: what runs the layers of a network on the CPU: "torch", "onnx" (ONNX Runtime), or "auto": ONNX
            Runtime for small networks where the extra `onnx` is installed. `model.engine` says which.
        allow_missing: weights that the file of another layout lacks keep their initial values.
        allow_unused: weights of such a file that the network does not have are ignored.

    Returns:
        The model; its `load_report` says what became of the weights of another layout.

    Raises:
        UsageError, ModelError: nothing that can be loaded. CheckpointError: truncated or altered; names the file.
    """
    check_flags(allow_missing=allow_missing, allow_unused=allow_unused)
    loaded = load_model(model, device, precision, allow_missing=allow_missing, allow_unused=allow_unused)
    return Model(**vars(loaded), engine=engine).to(precision="int8" if loaded.precision == "int8" else None)


class Model(TaskModel):
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
        requested: str = "",
        engine: Engine = "auto",
    ) -> None:
        super().__init__(network, tokenizer, config, path, words, precision, requested)
        self.chosen_engine = engine
        self.load_report = load_report
        self.stored = stored or {}  # the type of each weight in the file that it was read from
        self._watch: Watch | None = None
        self._made: dict[str, object] = {}  # for the network as it was then
        self._drafting: dict[str, Model] = {}
        if precision == "int8":
            check_int8(network)
        if tokenizer is not None:
            tokenizer.pad_to(network.config.vocab_size, network.config.target_vocab_size)

    @property
    def engine(self) -> str:
        """What runs the layers of the network: "torch", or "onnx"."""
        return engine_of(self.network, self.chosen_engine, self.precision)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    def to(self, device: str | torch.device | None = None, precision: str | None = None) -> Model:
        """Move the model to a device ("auto", "cpu", "cuda" ...) or change its precision, as `load` does; in place.

        Digits lost in a lower precision are not restored by a higher one; load the model again for those.

        Returns:
            The model itself.

        Raises:
            UsageError: no such device, precision or engine. CapabilityError: int8, or the engine, for another network.
        """
        dtype = None if precision is None else precision_type(precision)
        if self.precision == "int8" and precision not in (None, "int8"):
            raise UsageError(f"the model has weights of 8 bits, so its precision is int8: got {precision!r}")
        if precision == "int8":
            check_int8(self.network)
        self.network.to(device=None if device is None else resolve_device(str(device)), dtype=dtype)
        if precision == "int8":
            pack_weights(self.network, "int8")
            trim_memory()  # that of the weights
        self.precision = self.precision if precision is None else precision
        self._watch, self._drafting = None, {}
        if self.chosen_engine != "auto":
            engine_of(self.network, self.chosen_engine, self.precision)  # raises where it is not possible
        return self

    def step_function(self) -> NetworkStepFunction:
        """Return the network's step function for `atento.decoding`: the fast one, with packed weights, if it has one.

        It is made at the first call, and again when the weights have changed. All threads share it.
        """
        return self._kept("step function", super().step_function)

    def reader(self) -> Network:
        """Return the network that reads texts: the fast pass of an encoder with packed weights on a CPU, or `network`;
        made and shared as the step function is.
        """
        if self.whole is not None:
            return with_head(self.whole[0].reader(), self.whole[1])
        precision: Precision | None = "int8" if self.precision == "int8" else None
        return self._kept("reader", lambda: reader(self.network, precision, self.chosen_engine))

    def drafting_model(self, name: str) -> Model:
        """Return the model of that name, loaded on the device of this one and in its precision: for `draft`.

        It is loaded at the first call. All threads share it.
        """
        with _LOCK:
            if name not in self._drafting:
                self._drafting[name] = load(name, str(self.device), self.precision, engine=self.chosen_engine)
            return self._drafting[name]

    def embedder(self, name: str) -> Callable[[list[str]], NDArray[np.float32]]:
        """Return the function of texts -> vectors (N,D) of another model, by which `mbr` compares outputs."""
        return load(name).embed

    def _kept(self, name: str, make: Callable[[], T]) -> T:
        """What is kept of that name for the network as it is at present, made if there is none."""
        with _LOCK:
            if self._watch is None or self._watch.is_changed:
                self._watch, self._made = Watch(self.network), {}
            if name not in self._made:
                raise_trim_threshold()  # every step allocates the same large blocks again
                self._made[name] = make()
            return cast(T, self._made[name])

    @translates
    def translate(
        self,
        text: str | Sequence[str],
        *,
        n_best: int | None = None,
        split_sentences: bool = False,
        **options: Unpack[TranslationOptions],
    ) -> list[Any]:
        """Translate a text (str in, str out) or texts (list in, list out); a blank text gives a blank translation.

        Args:
            n_best: return a list of that many translations for each text.
            split_sentences: translate each sentence of a text by itself, and join the outputs with spaces; not with
                `n_best`.
            options: the fields of `atento.config.sections.decoding.DecodingConfig`, the recipe's by default; `greedy`;
                `mbr` as a function of two lists of texts that returns their utilities; `source_language` and
                `target_language`; `glossary`, a file or mapping of terms to keep; `protect`, as `--protect`.

        Raises:
            UsageError: a wrong option or language. CapabilityError: the model does not translate, or is not
                multilingual. RecipeError: a value out of range. DataError: a NUL character, or a wrong glossary.
        """
        check_flags(split_sentences=split_sentences)
        if not split_sentences:
            return strings(self.translations(text, n_best=n_best, **options), n_best)
        if n_best is not None:
            raise UsageError("`n_best` and `split_sentences` exclude each other")
        parts = [sentences_of(line) for line in text]
        outputs = iter(self.translations([sentence for part in parts for sentence in part], **options))
        return [" ".join(next(outputs)[0].text for _ in part) for part in parts]

    @writes
    def summarize(
        self, text: str | Sequence[str], *, n_best: int | None = None, **options: Unpack[DecodingOptions]
    ) -> list[Any]:
        """Summarise a text or texts; arguments and errors as in `translate`."""
        return strings(self.summaries(text, n_best=n_best, **options), n_best)

    @continues
    def generate(
        self, prompt: str | Sequence[str], *, n_best: int | None = None, **options: Unpack[DecodingOptions]
    ) -> list[Any]:
        """Continue a prompt or prompts, which the output does not repeat; greedy search if no option says otherwise.

        Arguments and errors are those of `translate`.
        """
        return strings(self.generations(prompt, n_best=n_best, **options), n_best)

    # Verbs that are functions of (model, ...) in the file of their task.
    classify = classify
    classifications = classifications
    tag = tag
    tag_words = tag_words
    answer = answer
    answers = answers
    embed = embed
    features = features
    similarity = similarity
    fill = fill
    perplexity = perplexity
    score = score
    explain = explain

    def translations(
        self, texts: Sequence[str], *, n_best: int | None = None, row: int = 0, **options: Unpack[TranslationOptions]
    ) -> list[list[GeneratedText]]:
        """As `translate`, with each output's hypothesis: ids, score, log-probability, token scores.

        `row` is the number of the first text, if these are part of a longer input; random seeds depend on it.
        """
        return translate_protected(self, texts, self._write, n_best, row, options)

    def summaries(
        self, texts: Sequence[str], *, n_best: int | None = None, row: int = 0, **options: Unpack[DecodingOptions]
    ) -> list[list[GeneratedText]]:
        """As `summarize`, with each output's hypothesis; `row` as in `translations`."""
        return self._write("summarize", texts, n_best, row, options)

    def generations(
        self, prompts: Sequence[str], *, n_best: int | None = None, row: int = 0, **options: Unpack[DecodingOptions]
    ) -> list[list[GeneratedText]]:
        """As `generate`, with each output's hypothesis; `row` as in `translations`."""
        return self._write("generate", prompts, n_best, row, options)

    def traced(
        self,
        text: str,
        *,
        task: str | None = None,
        n_best: int | None = None,
        row: int = 0,
        **options: Unpack[TranslationOptions],
    ) -> tuple[list[GeneratedText], Trace]:
        """The outputs for a text, equal to those without a trace, and the trace of the search for them.

        Args:
            text: a source, or a prompt. A blank source is not searched: its trace has no runs.
            task: "translation", "summarization" or "language-modeling"; None: what the model does.
            n_best: as in `translations`, as `row` is; the options are those of `translate`.

        Raises:
            CapabilityError: the model does not do that task. UsageError: an option that is wrong or has no effect.
        """
        tokenizer = tokenizer_of(self).target
        trace = Trace(name=lambda token: tokenizer.tokens([token])[0])
        generator = generator_of(self, task or writing_task(self), n_best, options, embedder=self.embedder)
        (outputs,) = generator.write([text], row, trace)
        return outputs, trace

    def stream(
        self, prompt: str, *, task: str | None = None, row: int = 0, **options: Unpack[TranslationOptions]
    ) -> Iterator[str]:
        """The output of `generate`, or of `translate` or `summarize` where the model does that, in pieces as they are
        written; a piece never ends inside a character.

        A beam gives a piece as soon as all hypotheses that may still be the output begin with it.

        Args:
            prompt: a prompt, or a source.
            task: as in `traced`.
            row: as in `translations`: the pieces are those of text number `row` of a list.
            options: as in `translate`, except `n_best`, `exact` and `mbr`. Without options of a beam, greedy search.

        Raises:
            CapabilityError: the model does not do that task. UsageError: an option that is wrong or has no effect.
        """
        return stream_output(self, task or writing_task(self), prompt, row, options)

    def attend(self, text: str, target: str | None = None) -> AttentionRecord:
        """The attention weights of a text: encoder self-attention, masked decoder self-attention, cross-attention.

        See docs/notes.md#a11.

        Args:
            text: the text, or the source.
            target: the output; None: the one that the model writes.
        """
        check_texts([text] if target is None else [text, target])
        return attention_record(self, text, target)

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
            directory: the folder; it must be empty or not exist.
            layout: "atento", or "huggingface": as `transformers` reads it, for networks of a family that it has.
            precision: "float32", "bfloat16", "float16" or "float64" for every weight; "int8": matrices are stored in 8
                bits (layout "atento"). None: the type that each weight had in the file that it was loaded from where
                that loses nothing, else the type of the network.
            max_shard_size: bytes, or text such as "5GB"; larger weights are split into several files with an index.

        Returns:
            The folder.

        Raises:
            CapabilityError: that layout cannot represent this network; says why. UsageError: no such layout, type or
                size, or the folder is not empty.
        """
        if self.words is not None and self.tokenizer is None:
            raise CapabilityError("word models stay as published; `atento.text.word_vectors` writes word vectors")
        if self.precision == "int8" and CALIBRATION not in self.config:
            raise UsageError("the weights were rounded to 8 bits: load the model in another precision to save it")
        if precision == "int8" and (layout != "atento" or CALIBRATION in self.config):
            raise UsageError("`precision='int8'` is for the layout atento, and for weights that do not have 8 bits yet")
        network = {"version": VERSION, "network": network_to_dict(self.network.config)}
        return save_model(
            path_of(directory, "directory", "a folder"),
            {"model_type": "atento"} | self.config | network,
            in_types(self.network.state_dict(), self.stored, precision, str(self.path)),
            self.tokenizer,
            layout=layout,
            source=self.path,
            max_shard_size=max_shard_size,
        )

    def _write(self, verb: str, *arguments: Any) -> list[list[GeneratedText]]:
        """`write_outputs` of the task of a verb."""
        return write_outputs(self, task_with(verb), *arguments, embedder=self.embedder)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle is the folder, to be loaded again. Raises UsageError: there is none."""
        if self.whole is not None:
            return TaskModel.head, self.whole
        if self.path is not None:
            return partial(load, engine=self.chosen_engine), (str(self.path), str(self.device), self.precision)
        raise UsageError("a model is pickled by its folder, and this one has none: `save` it and load that")

    def __repr__(self) -> str:
        name, task = (self.config.get(key) for key in ("name", "task"))
        about = f"{task}, {parameter_count(self.network):,} parameters, {self.precision} on {self.device}"
        return f"Model({reprlib.repr(name)}, {about})"
