"""The outputs that a loaded model writes: whether it does a task, the options of the call, the search."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from atento.config.sections.decoding import DecodingConfig, DecodingOptions
from atento.config.tables.tasks import TEXT_TO_TEXT, task_with, verb_of
from atento.data.batches.special_tokens import special_tokens_of
from atento.decoding.trace import Trace
from atento.errors import CapabilityError, UsageError
from atento.metrics.utilities import embedding_utility
from atento.networks import Encoder, EncoderDecoder, Network, RecurrentSeq2Seq
from atento.tasks.drafts import draft_of
from atento.tasks.generation import (
    Continuing,
    can_continue,
    continue_prompts,
    prompt_ids,
    prompt_template,
    stream_continuation,
)
from atento.tasks.languages import in_languages
from atento.tasks.options import decoding_for, one_output
from atento.tasks.scoring import TokenScores, score_texts
from atento.tasks.strategies import Utility
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.tasks.translation import source_ids, stream_translation, translate
from atento.tasks.verbs import check_texts
from atento.tasks.writing import Writing, WrittenText, writing_of


def writing_task(model: TaskModel) -> str:
    """The task for which the model writes: its own if it reads a source, else to continue a prompt."""
    reads_source = isinstance(model.network, EncoderDecoder | RecurrentSeq2Seq)
    return str(model.config.get("task")) if reads_source else task_with("generate")


def write_outputs(
    model: TaskModel,
    task: str,
    texts: Sequence[str | Sequence[int]],
    n_best: int | None,
    row: int,
    options: DecodingOptions,
    *,
    embedder: Callable[[str], Any],
    trace: Trace | None = None,
) -> list[list[WrittenText]]:
    """The outputs of one task for each text, best first.

    Args:
        model: the model.
        task: the task to do.
        texts: sources, or prompts; prompts may be ids, special tokens included.
        n_best: outputs of each text; None: those of the model's decoding.
        row: the number of the first text, where these are part of more.
        options: they change the model's decoding.
        embedder: the name of a model -> its function of texts -> vectors, for `mbr="embeddings:MODEL"`.
        trace: records the search for one text.

    Raises:
        CapabilityError: the model does not do the task. UsageError, RecipeError: a wrong option. DataError: a text has
            a NUL character.
    """
    network = network_for(model, task)
    _check_inputs(network, texts)
    special_tokens, plain_options = in_languages(network.config, tokenizer_of(model), options)
    decoding = decoding_for(model.decoding, n_best, plain_options)
    arguments: dict[str, Any] = {
        "step_function": model.step_function(),
        "utility": _utility(options.get("mbr", decoding.mbr), embedder),
        "first": row,
        "trained": model.trained_length,
        "trace": trace,
        "draft": draft_of(model, decoding),
    }
    if isinstance(network, Continuing):
        arguments["template"] = prompt_template(network, model.config)
        return continue_prompts(network, tokenizer_of(model), texts, decoding, **arguments)
    sources: Any = texts
    arguments |= {"special_tokens": special_tokens, "longest": model.source_limit}
    arguments["words_only"] = model.copies and translates(task)
    return translate(network, tokenizer_of(model), sources, decoding, **arguments)


def translates(task: str) -> bool:
    """Whether a task translates: a text without a letter or digit is then its own output."""
    return verb_of(task) == "translate"


def writings(
    model: TaskModel,
    task: str,
    texts: Sequence[str | Sequence[int]],
    n_best: int | None,
    row: int,
    options: DecodingOptions,
    decode: Callable[[DecodingConfig, int | None, DecodingOptions], DecodingConfig] = decoding_for,
) -> list[Writing | None]:
    """What `write_outputs` searches for each text, each by itself; None for a source whose output is `unsearched`.

    Arguments and errors are those of `write_outputs`; `decode` is `decoding_for`, or remembers what that returned.
    """
    network, tokenizer = network_for(model, task), tokenizer_of(model)
    _check_inputs(network, texts)
    special_tokens, plain_options = in_languages(network.config, tokenizer, options)
    decoding = decode(model.decoding, n_best, plain_options)
    is_prompt, draft = isinstance(network, Continuing), draft_of(model, decoding)
    if isinstance(network, Continuing):
        template = prompt_template(network, model.config)
        inputs = prompt_ids(network, tokenizer, texts, template)
        n_special, writer = tokenizer.added(template=template), tokenizer
    else:
        sources: Any = texts
        special_tokens = special_tokens or special_tokens_of(network.config, tokenizer)
        inputs = source_ids(tokenizer, sources, special_tokens, words_only=translates(task))
        n_special, writer = special_tokens.added(False), tokenizer.target
    return [
        writing_of(
            network.config,
            ids,
            decoding,
            writer,
            n_special=n_special,
            is_prompt=is_prompt,
            row=row + number,
            draft=draft,
        )
        if ids
        else None
        for number, ids in enumerate(inputs)
    ]


def _check_inputs(network: Network, texts: Sequence[str | Sequence[int]]) -> None:
    """As `check_texts`; a prompt may also be a list of ids."""
    is_prompt = isinstance(network, Continuing)
    check_texts([text for text in texts if not (is_prompt and isinstance(text, list))])


def traced_outputs(
    model: TaskModel,
    task: str,
    text: str,
    n_best: int | None,
    row: int,
    options: DecodingOptions,
    *,
    embedder: Callable[[str], Any],
) -> tuple[list[WrittenText], Trace]:
    """The outputs for a text and the trace of the search for them; arguments as in `write_outputs`."""
    tokenizer = tokenizer_of(model).target
    trace = Trace(name=lambda token: tokenizer.tokens([token])[0])
    (outputs,) = write_outputs(model, task, [text], n_best, row, options, embedder=embedder, trace=trace)
    return outputs, trace


def stream_output(model: TaskModel, task: str, text: str, row: int, options: DecodingOptions) -> Iterator[str]:
    """The output for a text in pieces: by greedy search, unless the options name sampling or a beam.

    Arguments and errors as in `write_outputs`. UsageError: several outputs are asked for.
    """
    if "n_best" in options:
        raise UsageError("a stream is one output of greedy search, sampling or a beam: `n_best` is no option of it")
    check_texts([text])
    network = network_for(model, task)
    special_tokens, plain_options = in_languages(network.config, tokenizer_of(model), options)
    decoding = decoding_for(one_output(model.decoding), 1, plain_options)
    arguments: dict[str, Any] = {
        "step_function": model.step_function(),
        "row": row,
        "trained": model.trained_length,
        "draft": draft_of(model, decoding),
    }
    if isinstance(network, Continuing):
        arguments["template"] = prompt_template(network, model.config)
        return stream_continuation(network, tokenizer_of(model), text, decoding, **arguments)
    arguments |= {"special_tokens": special_tokens, "words_only": translates(task)}
    return stream_translation(network, tokenizer_of(model), text, decoding, **arguments)


def score_outputs(model: TaskModel, sources: Sequence[str], targets: Sequence[str], top: int = 0) -> list[TokenScores]:
    """The scores of given outputs, with `top` of the most probable tokens at each place.

    Raises:
        CapabilityError: the network writes nothing. UsageError: the lists are not equally long.
    """
    network = model.network
    if not isinstance(network, EncoderDecoder | RecurrentSeq2Seq | Continuing) or (
        isinstance(network, Encoder) and not can_continue(network, model.config)
    ):
        raise CapabilityError(f"this network ({type(network).__name__}) writes nothing that could be scored")
    if len(sources) != len(targets):
        raise UsageError(f"as many sources as targets: got {len(sources)} and {len(targets)}")
    return score_texts(
        network,
        tokenizer_of(model),
        sources,
        targets,
        template=prompt_template(network, model.config),
        step_function=model.step_function(),
        trained=model.trained_length,
        top=top,
    )


def network_for(model: TaskModel, task: str) -> EncoderDecoder | RecurrentSeq2Seq | Continuing:
    """The model's network. Raises CapabilityError: the model does not do the task."""
    network, trained_task = model.network, str(model.config.get("task"))
    kind = type(network).__name__
    if task == task_with("generate"):
        if isinstance(network, Continuing) and can_continue(network, model.config):
            return network
        if trained_task == TEXT_TO_TEXT and isinstance(network, EncoderDecoder | RecurrentSeq2Seq):
            return network
        raise CapabilityError(f"this network ({kind}) cannot continue a text: it does {trained_task}")
    if trained_task not in (task, TEXT_TO_TEXT):  # a prefix of the text names the task of a text-to-text model
        raise CapabilityError(f"this model does {trained_task}, not {task}")
    if not isinstance(network, EncoderDecoder | RecurrentSeq2Seq):
        raise CapabilityError(f"this network ({kind}) has no source")
    return network


def _utility(mbr: object, embedder: Callable[[str], Any]) -> Utility | None:
    """The function that `mbr` compares texts with: itself, or vectors for "embeddings:MODEL"; None for a metric."""
    if isinstance(mbr, str) and mbr.startswith("embeddings:"):
        name = mbr.removeprefix("embeddings:")
        if not name:
            raise UsageError("`mbr` embeddings:MODEL names a model folder: got none")
        return embedding_utility(embedder(name))
    return mbr if callable(mbr) else None
