"""Evaluate a model, loaded or in training, on a split: the loss of its objective, its metrics, and samples to read."""

import inspect
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from atento.attention.lora import adapters_joined
from atento.base.errors import AtentoWarning
from atento.config.recipe import Recipe
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.task_spec import TaskSpec
from atento.config.tables.tasks import TASKS, objectives_of
from atento.data.batches.batch import Batch, Batches
from atento.data.batches.special_tokens import template_for
from atento.data.objectives import batches_for
from atento.data.objectives.preparation import Preparation, long_texts_of
from atento.data.records.splits import Split, subset
from atento.metrics import Score, metric_named
from atento.metrics.metric_table import MEAN, learned_name, options_by_name
from atento.metrics.tag_schemes import scheme_of_labels
from atento.networks.interface import Network, with_head
from atento.tasks.calibrating import Confidence, fit_confidence
from atento.tasks.learned_metrics import kept_metric
from atento.tasks.length_batching import Share, all_results, batches_shared
from atento.tasks.mask_filling import fill
from atento.tasks.model_outputs import reads_signs, text_generator
from atento.tasks.question_answering import learned_settings
from atento.tasks.task_model import TaskModel, labels_of
from atento.tasks.verb_table import VERBS
from atento.text.tokenizer import Tokenizer
from atento.training.losses import Call, Sums, losses

_BATCH_TOKENS = 2048
Scored = Sequence[tuple[Split, Recipe]]  # records of each task, and its recipe
Metrics = Sequence[str | Mapping[str, Mapping[str, str]]]  # names, or mappings of names to options


def held_out_batches(recipe: Recipe, network: NetworkConfig, tokenizer: Tokenizer, split: Split) -> Batches:
    """Return a validation or test split as batches of the recipe's objective.
    Raises DataError: no example is left, or a label that the training data does not have.
    """
    preparation = Preparation(recipe, network, tokenizer, split, template_for(recipe.task, tokenizer), held_out=True)
    return batches_for(preparation, objectives_of(recipe.task, recipe.objective))


@dataclass(frozen=True)
class Evaluation:
    """The scores of a split by name, and what was scored: the outputs and the right ones, if there are metrics."""

    scores: dict[str, float]
    outputs: Sequence[object] = ()
    gold: Sequence[object] = ()


class ModelInTraining(TaskModel):
    """A network in training as the model that its checkpoint will be. Its outputs are those of the loaded model, but:

    - Texts are read by the network itself: packed weights would be used once. A draft, which changes no greedy output,
      is not used.
    - `data.truncate` cuts sources at the learned positions, and `data.max_len` the texts that become vectors.
    - Tags obey the scheme that the labels suggest, where a loaded model has that of the training data. Questions may
      have no answer, and sources no words, if those of the split do: a loaded model goes by the training data.
    """

    def __init__(self, network: Network, tokenizer: Tokenizer, recipe: Recipe, split: Split) -> None:
        config: dict[str, object] = {
            "task": recipe.task,
            "template": template_for(recipe.task, tokenizer),
            "max_len": recipe.data.max_len,
            "prefixes": prefixes_of(recipe),
        }
        if not TASKS[recipe.task].writes:
            config["long_texts"] = asdict(long_texts_of(recipe.data))
        if "tags" in split.columns:
            config["tag_scheme"] = scheme_of_labels(labels_of(network.config))
        if recipe.objective:
            config["objectives"] = [objective.kind for objective in recipe.objective]
        if TASKS[recipe.task].vectors:
            embedding = recipe.embedding or EmbeddingConfig()
            # the shorter of what the model and the recipe read
            limits = [limit for limit in (embedding.max_len, recipe.data.max_len) if limit is not None]
            config["embedding"] = asdict(replace(embedding, max_len=min(limits)))
        config["without_words"] = reads_signs(split)
        if "answers" in split.columns:
            config["answering"] = learned_settings(recipe, split)
        super().__init__(network, tokenizer, config)
        given = recipe.decoding  # a draft changes the time alone
        self._decoding = replace(given, draft=()) if given.draft else given
        # sources beyond the positions are cut, if the recipe cuts
        self.source_limit = None if recipe.data.truncate == "none" else network.config.source_limit

    @property
    def decoding(self) -> DecodingConfig:
        """That of the recipe."""
        return self._decoding

    @property
    def trained_length(self) -> int | None:
        """The tokens to which texts are cut; none of those that outputs are written for, of which training told."""
        return None if TASKS[self.config["task"]].writes else super().trained_length


@contextmanager
def as_loaded(network: Network, recipe: Recipe) -> Iterator[None]:
    """Compute as the model that the checkpoint will be: without dropout, and with adapters joined to the weights."""
    was_training = network.training
    network.eval()
    has_adapters = recipe.init is not None and recipe.init.adapters is not None
    try:
        with adapters_joined(network) if has_adapters else nullcontext():
            yield
    finally:
        network.train(was_training)


def scored(
    model: TaskModel,
    task: str,
    split: Split,
    metrics: Metrics,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    more: Sequence[Sequence[object]] = (),
    language: str | None = None,
) -> tuple[dict[str, Score], Sequence[object], Sequence[object]]:
    """Return the scores of the outputs of a model for the records of a split, the outputs, and the right ones.

    Args:
        model: a model, in training or loaded.
        task: a task whose outputs metrics score.
        metrics: their names, or mappings of names to options.
        options: those of a call that writes.
        more: further right outputs of each record. Without them, a model of several prefixes also has the scores of the
            records of each, as `METRIC[PREFIX]`.
        language: of the answers, for metrics that depend on it.

    Raises UsageError: an unknown metric, or an option without effect.
    """
    verb = VERBS[str(TASKS[task].verb)]
    outputs, gold = verb.call(model, split, options), verb.gold(split)
    prefixes = [prefix for prefix in model.config.get("prefixes", []) if isinstance(prefix, str)]
    sources = sources_of(split, prefixes)
    if more:
        return metric_scores(outputs, [gold, *more], metrics, language, sources), outputs, gold
    scores = metric_scores(outputs, gold, metrics, language, sources)
    return scores | scores_by_prefix(outputs, gold, metrics, split, prefixes), outputs, gold


def validation_scores(
    network: Network,
    tokenizer: Tokenizer,
    split: Split,
    recipe: Recipe,
    share: Share | None = None,
    others: Scored = (),
) -> dict[str, float]:
    """Return the scores of `evaluation_of`, joined with those of other tasks; processes may share the batches."""
    with batches_shared(share):
        every = [(split, recipe), *others]
        return joined_scores([(evaluation_of(network, tokenizer, *one).scores, one[1]) for one in every])


def joined_scores(scores: Sequence[tuple[Mapping[str, float], Recipe]]) -> dict[str, float]:
    """Return the scores of a recipe, or of several tasks: each as `NAME[TASK]`, losses summed, the mean of metrics."""
    if not scores[0][1].tasks:
        return dict(scores[0][0])
    joined = {name: sum(own[name] for own, _ in scores) for name in ("loss", "nll")}
    firsts = [own[one.deciding[0]] for own, one in scores if one.metrics]
    joined |= {MEAN: sum(firsts) / len(firsts)} if firsts else {}
    return joined | {f"{name}[{one.head}]": n for own, one in scores for name, n in own.items() if name != "loss"}


def evaluation_of(network: Network, tokenizer: Tokenizer, split: Split, recipe: Recipe) -> Evaluation:
    """Return the scores of a split: `loss` and `nll` (nats per target), `perplexity` for language models, and metrics.

    Random choices of the objective, such as masked tokens, are the same every time. With several heads, `loss` and
    `nll` are the sum of their means, and `nll_HEAD` is each mean. If the data of the recipe have several prefixes,
    `METRIC[PREFIX]` is the score of the records of one of them. Adapters are joined to the weights meanwhile, as they
    are when the model is loaded.
    """
    network = with_head(network, recipe.tasks[0].name) if recipe.tasks else network
    with ExitStack() as after, as_loaded(network, recipe):
        means = mean_losses(network, held_out_batches(recipe, network.config, tokenizer, split).in_order(_BATCH_TOKENS))
        nll = sum(means.values())
        scores = {"loss": nll, "nll": nll}
        if len(means) > 1:
            scores |= {f"nll_{head}": mean for head, mean in means.items()}
        spec = TASKS[recipe.task]
        if spec.perplexity:
            scores["perplexity"] = math.exp(min(next(iter(means.values())), 700.0))
        if recipe.metrics and spec.verb is not None and spec.outputs is not None:
            if not spec.writes:
                after.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", AtentoWarning)  # training has reported how many are cut
            model = ModelInTraining(network, tokenizer, recipe, split)
            task_scores, outputs, gold = scored(model, recipe.task, split, recipe.metrics)
            return Evaluation(scores | {name: score.value for name, score in task_scores.items()}, outputs, gold)
        return Evaluation(scores)


def confidence_of(network: Network, tokenizer: Tokenizer, split: Split, recipe: Recipe) -> Confidence:
    """Fit the probabilities of a classifier to a split; its adapters are joined to the weights meanwhile."""
    with as_loaded(network, recipe), warnings.catch_warnings():
        warnings.simplefilter("ignore", AtentoWarning)  # training has reported how many are cut
        return fit_confidence(ModelInTraining(network, tokenizer, recipe, split), split)


def prefixes_of(recipe: Recipe) -> list[str]:
    """Return the prefixes of all data of a recipe, in their order."""
    sources = (*recipe.data.train, *recipe.data.valid, *recipe.data.test)
    return list(dict.fromkeys(source.prefix for source in sources if source.prefix))


def scores_by_prefix(
    outputs: Sequence[Any], gold: Sequence[object], metrics: Metrics, split: Split, prefixes: Sequence[str]
) -> dict[str, Score]:
    """Score the records of each prefix on their own, as `METRIC[PREFIX]`; none if fewer than two prefixes occur.

    A record belongs to the longest prefix that its source or text begins with.
    """
    texts = split["source" if "source" in split.columns else "text"] if len(prefixes) > 1 else []
    rows: dict[str, list[int]] = {prefix: [] for prefix in prefixes}
    for row, text in enumerate(texts):
        matching = [prefix for prefix in prefixes if text.startswith(prefix)]
        if matching:
            rows[max(matching, key=len)].append(row)
    scores: dict[str, Score] = {}
    if sum(map(bool, rows.values())) > 1:
        for prefix, numbers in rows.items():
            if numbers:
                ours, right = [outputs[row] for row in numbers], [gold[row] for row in numbers]
                part = metric_scores(ours, right, metrics, sources=[texts[row].removeprefix(prefix) for row in numbers])
                scores |= {f"{name}[{prefix.strip()}]": score for name, score in part.items()}
    return scores


def sources_of(split: Split, prefixes: Sequence[str]) -> Sequence[str] | None:
    """The sources of a split without their prefixes, which learned metrics may read; None: it has none."""
    if "source" not in split.columns:
        return None
    texts = split["source"]
    begun = (max((prefix for prefix in prefixes if text.startswith(prefix)), key=len, default="") for text in texts)
    return [text.removeprefix(prefix) for text, prefix in zip(texts, begun)]


def metric_scores(
    outputs: Sequence[Any],
    gold: Sequence[object],
    metrics: Metrics,
    language: str | None = None,
    sources: Sequence[str] | None = None,
) -> dict[str, Score]:
    """Score outputs against references with each metric; they are what the metrics' `outputs` say.
    Raises UsageError: an unknown metric, or sources that a learned one needs are missing.
    """
    scores = {}
    for name, options in options_by_name(metrics).items():
        learned = learned_name(name) if ":" in name else None
        score = partial(kept_metric(*learned).of_records, sources=sources) if learned else metric_named(name, options)
        scores[name] = score(outputs, gold, **metric_options(name, language))
    return scores


def usual_metrics(spec: TaskSpec, labels: Collection[str], columns: Collection[str] = ()) -> tuple[str, ...]:
    """The metrics of an evaluation that names none: by the labels of a model of tags, and the columns of the data."""
    if spec.scored_metrics and "score" in columns:
        return spec.scored_metrics
    if spec.plain_metrics and scheme_of_labels(labels) is None:
        return spec.plain_metrics
    return spec.evaluated or spec.metrics


def metric_options(metric: str, language: str | None) -> dict[str, str]:
    """Return the options of a metric: the language, for those that depend on it."""
    if language is None or "language" not in inspect.signature(metric_named(metric)).parameters:
        return {}
    return {"language": language}


@torch.inference_mode()
def mean_losses(network: Network, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the mean loss per target of each head in nats, without dropout or label smoothing."""
    device = next(network.parameters()).device

    def compute(batch: Batch) -> dict[str, tuple[float, float, int]]:
        counts, computed = batch.counts(), losses(network, batch.to(device), Call())
        return {head: (float(loss), float(nll), counts[head]) for head, (loss, nll) in computed.items()}

    sums: dict[str, Sums] = {}
    for by_head in all_results(batches, compute, network):
        for head, values in by_head.items():
            sums.setdefault(head, Sums()).add(Sums(*values))
    return {head: head_sums.nll / max(1, head_sums.targets) for head, head_sums in sums.items()}


_PROMPT = 24  # tokens of a prompt, and of what is written after it
_WORDS = 24  # of a text with masks
_EVERY = 6  # word that is masked, the fourth first


@dataclass(frozen=True)
class Sample:
    """What a network wrote for one record.

    Attributes:
        input: the source, the prompt or the text with masks.
        output: what the network wrote.
        reference: what would be right.
    """

    input: str
    output: str
    reference: str


def samples(network: Network, tokenizer: Tokenizer, split: Split, recipe: Recipe, count: int) -> list[Sample]:
    """Write outputs for the first `count` records of a split; none for a task that writes no text.

    A task with sources writes as in validation. A language model continues the first tokens of a text. A model that
    fills masks gets texts in which every sixth word is a mask. Equal weights give equal samples.
    """
    spec = TASKS[recipe.task]
    model = ModelInTraining(network, tokenizer, recipe, split)
    with as_loaded(network, recipe), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", AtentoWarning)  # of lengths: validation warns
        if spec.outputs == "texts" and spec.verb is not None:
            part = subset(split, range(min(count, len(split))))
            verb = VERBS[spec.verb]
            written = zip(part["source"], verb.call(model, part, {}), verb.gold(part))
            return [Sample(*texts) for texts in written]
        if spec.verb == "generate":
            return _continued(model, tokenizer, _texts(split, tokenizer, count))
        if spec.verb == "fill":
            return _filled(model, tokenizer, _texts(split, tokenizer, count))
    return []


def _texts(split: Split, tokenizer: Tokenizer, count: int) -> list[str]:
    """The first texts of a split that are not blank; of a store of token ids, decoded."""
    if split.tokens is None:
        return [text for text in split["text"][: 10 * count] if text.strip()][:count]
    ids = split.tokens.rows(range(min(1, split.tokens.n_blocks)))
    return [tokenizer.decode(row.tolist()) for row in ids[:count]]


def _continued(model: ModelInTraining, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Sample]:
    """Continue the first half of each text, at most 24 tokens of it, with as many tokens as the reference has."""
    limit = model.network.config.position_limit
    # half for the prompt, one place for the start
    longest = _PROMPT if limit is None else min(_PROMPT, (limit - 1) // 2)
    writer, written = text_generator(model, replace(model.decoding, n_best=1, min_new_tokens=0)), []
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text)
        begin = min(longest, (len(ids) + 1) // 2)
        reference = ids[begin : begin + longest]
        if not reference:
            continue
        prompt = tokenizer.decode(ids[:begin])
        decoding = replace(writer.decoding, max_new_tokens=len(reference))
        (outputs,) = replace(writer, decoding=decoding).write([prompt], row)
        written.append(Sample(prompt, outputs[0].text, tokenizer.decode(reference)))
    return written


def _filled(model: ModelInTraining, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Sample]:
    """Fill the masks of the first 24 words of each text."""
    sentinels = tokenizer.specials.get("<extra_id_0>") is not None
    written = []
    for text in texts:
        words = text.split()[:_WORDS]
        masked = list(words)
        # three words to begin with, if there are as many
        for number, at in enumerate(range(min(3, len(words) - 1), len(words), _EVERY)):
            masked[at] = f"<extra_id_{number}>" if sentinels else tokenizer.specials.roles["mask"]
        candidates = fill(model, " ".join(masked), top=1)
        written.append(Sample(" ".join(masked), candidates[0].text if candidates else "", " ".join(words)))
    return written
