"""What a model writes for sources and prompts: whether it does a task, the options of a call, the search."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, overload

from atento.base.errors import CapabilityError, UsageError
from atento.config.sections.decoding import NGRAMS, DecodingConfig, DecodingOptions
from atento.config.tables.tasks import TEXT_TO_TEXT, task_with, verb_of
from atento.data.batches.special_tokens import special_tokens_of
from atento.data.records.splits import Split
from atento.decoding import Beam, Greedy, Sample
from atento.decoding.draft_proposals import Draft
from atento.metrics.mbr_utilities import embedding_utility
from atento.metrics.metric_table import LEARNED
from atento.networks import EncoderDecoder, RecurrentSeq2Seq
from atento.tasks.decoding_setup import Utility, constraints_of, decoding_for, one_output
from atento.tasks.learned_metrics import LearnedUtility, kept_metric
from atento.tasks.prompt_ids import prompt_ids
from atento.tasks.scoring import TokenScores, score_outputs
from atento.tasks.task_model import (
    Continuing,
    TaskModel,
    can_continue,
    check_lengths,
    tokenizer_of,
    watched,
)
from atento.tasks.text_generation import GeneratedText, TextGenerator
from atento.tasks.translation_languages import LANGUAGES, in_languages
from atento.tasks.verb_calls import Texts, listed
from atento.text.kinds import check_texts
from atento.text.protected_spans import has_words
from atento.text.specials import Template
from atento.text.streaming import stream_text
from atento.text.tokenizer import Tokenizer


def _source_ids(model: TaskModel, template: Template, words_only: bool, texts: Sequence[str]) -> list[list[int]]:
    """Sources as the model reads them; none for a text that is not searched."""
    check_texts(texts)
    # without words there is nothing to search: the text is the output
    searched = [text if not words_only or has_words(text) else "" for text in texts]
    sources = [template.apply(ids)[0] if ids else [] for ids in tokenizer_of(model).encode_batch(searched)]
    longest = model.source_limit  # the last token is EOS, or what ends a source
    return [ids if longest is None or len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in sources]


def text_generator(
    model: TaskModel,
    decoding: DecodingConfig,
    special_tokens: Template | None = None,
    *,
    words_only: bool = False,
    **more: Any,
) -> TextGenerator:
    """What writes the outputs of a model: of sources, or behind prompts, which they do not repeat.

    Args:
        special_tokens: those of a source, in place of the usual ones.
        words_only, more: attributes of `TextGenerator`.
    """
    network, tokenizer, is_prompt = model.network, tokenizer_of(model), isinstance(model.network, Continuing)
    if is_prompt:
        special_tokens = tokenizer.template(model.prompt_template)
    template = special_tokens or special_tokens_of(network.config, tokenizer)
    stepwise = decoding.exact or more.get("draft") is not None
    return TextGenerator(
        model.step_function() if stepwise else model.search_function(),
        network.config,
        decoding,
        tokenizer.target.decode,
        next(network.parameters()).device,
        partial(prompt_ids, model) if is_prompt else partial(_source_ids, model, template, words_only),
        n_special=template.added(False),
        is_prompt=is_prompt,
        words_only=words_only,
        constraints=constraints_of(decoding, tokenizer.target, network.config.writing, behind=is_prompt),
        **more,
    )


def draft_of(model: TaskModel, decoding: DecodingConfig) -> Draft | None:
    """The draft that a decoding configuration names; None if it names none.
    Raises CapabilityError: the model that is named has another vocabulary, or is of another architecture.
    """
    if not decoding.draft:
        return None
    tokenizer = model.tokenizer
    source = tokenizer is None or same_vocabulary(tokenizer, tokenizer.target)  # ids of the source can be copied
    name = next((name for name in decoding.draft if name != NGRAMS), None)
    has_ngrams = NGRAMS in decoding.draft
    if name is None:
        return Draft(has_ngrams, None, decoding.draft_tokens, source=source)
    small = model.drafting_model(name)
    reads_source = isinstance(model.network, EncoderDecoder)
    if isinstance(small.network, EncoderDecoder) != reads_source:
        kinds = f"{type(small.network).__name__} and {type(model.network).__name__}"
        raise CapabilityError(f"`draft` must be a model of the same architecture as {model.requested}: got {kinds}")
    theirs = small.tokenizer
    if (
        theirs is None
        or tokenizer is None
        or not (same_vocabulary(theirs, tokenizer) and same_vocabulary(theirs.target, tokenizer.target))
    ):
        raise CapabilityError(
            f"`draft` must have the vocabulary of {model.requested}: that of {small.requested} is another one"
        )
    longest = small.network.config.position_limit
    rows = model.network.config.target_vocab_size
    return Draft(has_ngrams, small.step_function(), decoding.draft_tokens, longest, source, rows)


@lru_cache(maxsize=64)
def same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether every id names the same token."""
    if first is second or first.fingerprint == second.fingerprint:
        return True
    ids = range(first.vocab_size)
    return first.vocab_size == second.vocab_size and first.tokens(ids) == second.tokens(ids)


def writing_task(model: TaskModel) -> str:
    """The task for which the model writes: its own if it reads a source, else to continue a prompt."""
    reads_source = isinstance(model.network, EncoderDecoder | RecurrentSeq2Seq)
    return str(model.config.get("task")) if reads_source else task_with("generate")


def generator_of(
    model: TaskModel,
    task: str,
    n_best: int | None,
    options: DecodingOptions,
    *,
    usual: DecodingConfig | None = None,
    embedder: Callable[[str], Any] | None = None,
) -> TextGenerator:
    """What writes the outputs of one call of a model.

    Args:
        task: the task to do. Its texts are sources, or prompts; prompts may be ids, special tokens included.
        n_best: outputs of each text; None: those of the model's decoding.
        options: they change the model's decoding, or `usual` in its place.
        embedder: the name of a model -> its function of texts -> vectors, for `mbr="embeddings:MODEL"`; None: no model
            is loaded.

    Raises CapabilityError: the model does not do the task. UsageError, RecipeError: a wrong option.
    """
    network_for(model, task)
    special_tokens = None
    if not options.keys().isdisjoint(LANGUAGES):
        special_tokens, options = in_languages(model, options)
    decoding = decoding_for(usual or model.decoding, n_best, options)
    utility = _utility(options.get("mbr", decoding.mbr), embedder)
    # a text without words is its own translation, unless such texts were learned or the output must have a word
    words = model.config.get("without_words") or decoding.prefix or decoding.required_words
    generator = text_generator(
        model,
        decoding,
        special_tokens,
        words_only=verb_of(task) == "translate" and not words,
        utility=utility,
        trained=model.trained_length,
        draft=draft_of(model, decoding),
    )
    remembering = getattr(utility, "remembering", None)  # of a metric that reads sources
    return generator if remembering is None else replace(generator, encode=remembering(generator.encode))


def write_outputs(
    model: TaskModel,
    task: str,
    texts: Sequence[str],
    n_best: int | None,
    row: int | Sequence[int],
    options: DecodingOptions,
    own: Sequence[DecodingOptions] = (),
    *,
    embedder: Callable[[str], Any],
) -> list[list[GeneratedText]]:
    """What `generator_of` writes for texts; `own` has further options of each one, `prefix` and `required_words`.

    `row` is the number of the first text, or the numbers of all.
    """
    required, generators = options.get("required_words") or (), list[TextGenerator]()
    for each in own or ({},):
        change = options | each
        if "required_words" in each:  # those of the call too
            change["required_words"] = (*required, *each["required_words"])
        generators.append(generator_of(model, task, n_best, change, embedder=embedder))
    return generators[0].write(texts, row, each=[generator.constraints for generator in generators] if own else ())


def stream_output(model: TaskModel, task: str, text: str, row: int, options: DecodingOptions) -> Iterator[str]:
    """The output for a text in pieces: by greedy search, unless the options name sampling or a beam.

    Arguments and errors as in `generator_of`. UsageError: several outputs are asked for, or `mbr` or `exact`, whose
    output is known only when the search is over.
    """
    if "n_best" in options:  # also n_best=1, which would promise a list
        raise UsageError("a stream is one output of greedy search, sampling or a beam: `n_best` is no option of it")
    generator = generator_of(model, task, 1, options, usual=one_output(model.decoding))
    (ids,) = generator.encode([text])
    if not ids:  # nothing to search for
        return iter(filter(None, [generator.passthrough(text).text]))
    if (
        generator.decoding.n_best > 1
        or generator.decoding.exact
        or not isinstance(generator.strategy, Greedy | Sample | Beam)
    ):
        raise UsageError(
            "a stream is one output of greedy search, sampling or a beam: no `mbr`, no `exact`, no `n_best`"
        )
    check_lengths([len(ids)], generator.config, generator.trained)
    tokens = generator.generation_job(ids, row).tokens()
    tokens = watched(tokens, len(ids), generator.config) if generator.is_prompt else tokens
    written = (token.id for token in tokens if token.end != "eos")  # EOS has no text
    return stream_text(tokenizer_of(model).target, written, stop=generator.decoding.stop)


@overload
def score(model: TaskModel, source: str, target: str, *, top: int = 0) -> TokenScores: ...
@overload
def score(model: TaskModel, source: Texts, target: Texts, *, top: int = 0) -> list[TokenScores]: ...


def score(
    model: TaskModel, source: str | Texts, target: str | Texts, *, top: int = 0
) -> TokenScores | list[TokenScores]:
    """The log-probability of a given output, token by token, EOS included, in nats (docs/notes.md#h11).

    Args:
        source: the source of a model that reads one, or the prompt of a language model ("" for none); or a list.
        target: the output; a list if `source` is one.
        top: how many of the most probable tokens are returned for each place, as `top` of the result.

    Raises:
        UsageError: `top` is negative, or one text and a list.
    """
    if isinstance(source, str) != isinstance(target, str):
        raise UsageError("give a source and a target, or a list of each")
    if top < 0:
        raise UsageError(f"`top` must not be negative: got {top}")
    scores = score_outputs(model, listed(source), listed(target), top)
    return scores[0] if isinstance(source, str) else scores


def written(verb: str) -> Callable[[TaskModel, Split, Mapping[str, Any]], list[str]]:
    """What gives the best output for each source of a split, with the options of a call."""

    def call(model: TaskModel, split: Split, options: Any) -> list[str]:
        generator = generator_of(model, task_with(verb), None, options, embedder=model.embedder)
        return [best[0].text for best in generator.write(split["source"])]

    return call


def gold(split: Split) -> list[str]:
    """The right outputs for a split: its targets."""
    return split["target"]


def reads_signs(split: Split) -> bool:
    """Whether a tenth of about a thousand pairs, or more, change a source that has no words, such as `3 1 2`."""
    sides = [split.columns.get(name, []) for name in ("source", "target")]
    columns = [side[:: max(1, len(side) // 1000)] for side in sides]
    changed = [source for source, target in zip(*columns) if source != target and not has_words(source)]
    return 10 * len(changed) >= max(1, len(columns[0]))


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


def _utility(mbr: object, embedder: Callable[[str], Any] | None) -> Utility | None:
    """The function that `mbr` compares texts with: itself, vectors for "embeddings:MODEL", a learned metric for
    "NAME:FOLDER"; None for another metric.
    """
    kind, colon, name = mbr.partition(":") if isinstance(mbr, str) else ("", "", "")
    if kind in ("embeddings", *LEARNED) and (colon or kind in LEARNED):
        if not name:
            raise UsageError(f"`mbr` {kind}:MODEL names a model folder: got none")
        if embedder is None:
            raise UsageError(f"`mbr` {mbr} needs another model, which neither a stream nor the service loads")
        if kind == "embeddings":
            return embedding_utility(embedder(name))
        return LearnedUtility(kept_metric(kind, name).scores)
    return mbr if callable(mbr) else None
