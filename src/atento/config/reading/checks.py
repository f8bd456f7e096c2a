"""Rules between the keys of a recipe: errors with their positions, and warnings about options without effect."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields

from atento.base.errors import RecipeError, UsageError, counted, nearest
from atento.config.reading import schema
from atento.config.reading.initial_keys import check_initial, without_effect_on
from atento.config.reading.schema import Reader
from atento.config.reading.source_checks import forms, source_problem
from atento.config.reading.task_defaults import task_of_records, with_defaults
from atento.config.reading.unused_options import unused_options
from atento.config.reading.yaml12 import Node
from atento.config.recipe import DataConfig, Recipe, SourceConfig, TokenizerConfig
from atento.config.sections.decoding import UTILITIES
from atento.config.sections.embedding import NO_PROMPT, untrainable
from atento.config.sections.training import without_dropout, without_effect
from atento.config.tables.head_kinds import HEAD_KINDS, OF_TEXT
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.task_spec import TaskSpec
from atento.config.tables.tasks import OTHER_NAMES, TASKS, objectives_of
from atento.metrics.metric_table import LEARNED, METRICS, metric_named, options_by_name

SPLITS = ("train", "valid", "test")


def check_task(tree: Node) -> None:
    """Refuse a recipe without task or data, and an unknown task."""
    trains = f"this version trains: {', '.join(TASKS)}"
    task = tree.value.get("task")
    if task is None:
        raise RecipeError(f"{tree.position}: task is missing; {trains}")
    if isinstance(task.value, str) and task.value not in TASKS:
        meant = OTHER_NAMES.get(task.value.lower().replace("_", "-"))
        close = nearest(task.value, list(TASKS)).partition(" Known:")[0]
        close = close if meant is None else f"; did you mean {meant!r}?"
        raise RecipeError(f"{task.position}: unknown task {task.value!r}{close} T{trains[1:]}")
    if "data" not in tree.value:
        source_forms = forms(task.value if task.value in TASKS else next(iter(TASKS)))
        raise RecipeError(f"{tree.position}: data is missing: data.train is required; {source_forms}")


def check(recipe: Recipe, reader: Reader) -> None:
    """Check the rules between keys: the form of sources, training data, architecture and task, metrics, the name.
    Raises RecipeError: with the position, the dotted key, the rule and the value got.
    """
    spec = TASKS[recipe.task]
    if not recipe.data.train:
        raise reader.refused(f"data.train is missing: {forms(recipe.task)}", "data.train", "data")
    for path, source in _sources(recipe.data):
        problem = source_problem(task := task_of_records(recipe, path.split(".")[1]), source)
        if problem:
            key, reason = problem
            reason += "" if task == recipe.task else "; so does every objective of the recipe"
            raise reader.refused(f"{path} {reason}", f"{path}.{key}", path, "data")
    if any(head.kind == "crf" and head.role not in spec.heads for head in recipe.network.heads):
        raise reader.refused(
            f"network.heads: a crf head gives a tag to each word: got task {recipe.task}", "network.heads"
        )
    for key in ("held_out", "folds") if task_of_records(recipe, "train") != recipe.task else ():
        if count := getattr(recipe.data, key):
            rule = f"data.{key} takes records out of data.train, which are texts without a pair to score"
            raise reader.refused(f"{rule}: give pairs as data.valid or data.test; got {count}", f"data.{key}", "data")
    architecture = recipe.network.architecture
    if recipe.init is None:
        _check_architecture(recipe, reader)  # the model brings its architecture
    else:
        check_initial(recipe, reader)
    if recipe.data.pack == "isolated" and architecture == "recurrent-lm":
        rule = "data.pack isolated needs network.architecture decoder: a recurrent network continues from one text to"
        raise reader.refused(f"{rule} the next; use stream or none", "data.pack")
    if spec.reads_words and recipe.tokenizer.path is None and recipe.tokenizer.kind != "word":
        rule = f"task {recipe.task} learns words, so tokenizer.kind must be word: got {recipe.tokenizer.kind!r}"
        raise reader.refused(rule, "tokenizer.kind", "tokenizer")
    _check_sides(recipe, reader)
    _check_objectives(recipe, reader)
    _check_long_texts(recipe, reader)
    _check_mixing(recipe, reader)
    _check_metrics(recipe, reader)
    if recipe.embedding is not None and (wrong := untrainable(recipe.embedding)):
        raise reader.refused(wrong[1], f"embedding.{wrong[0]}", "embedding")
    utility = recipe.decoding.mbr
    if utility is not None and utility not in UTILITIES:
        why = nearest(utility, list(UTILITIES))
        if ":" in utility:
            why = "; a recipe, whose decoding is kept with the model, names no other model: use the model with --mbr"
        raise reader.refused(f"decoding.mbr: unknown utility {utility!r}{why}", "decoding.mbr")
    if recipe.name in ("", ".", "..") or any(character in recipe.name for character in "/\\\0\n"):
        raise reader.refused(f"name must be the name of a folder, without slashes: got {recipe.name!r}", "name")


def _check_sides(recipe: Recipe, reader: Reader) -> None:
    """Check that a task has sources and targets, where each has its vocabulary or an encoder reads the sources."""
    both = TASKS[recipe.task].texts == ("source", "target") and recipe.network.reads_source
    new_decoder = recipe.init is not None and recipe.init.new_decoder
    features, shared = recipe.network.features is not None, recipe.tokenizer.shared
    keys = {"init.new_decoder": new_decoder, "network.features": features, "tokenizer.shared": not shared}
    for key, written in keys.items():
        if written and not both:
            needs = "needs sources and targets, and a network that reads sources"
            raise reader.refused(f"{key} {needs}: got task {recipe.task}", key)


def _check_architecture(recipe: Recipe, reader: Reader) -> None:
    """Check that the network can learn the task and the objectives, and has the heads that they need."""
    spec, architecture = TASKS[recipe.task], recipe.network.architecture
    if architecture not in spec.architectures:
        needs = f"needs network.architecture {' or '.join(spec.architectures)}, which {spec.why}: got {architecture!r}"
        raise reader.refused(f"task {recipe.task} {needs}", "network.architecture", "network")
    for number, objective in enumerate(objectives_of(recipe.task, recipe.objective)):
        where = f"objective.{number}", "objective"
        requirements, columns = OBJECTIVES[objective.kind], set(spec.columns)
        if not any(set(needed) <= columns for needed in requirements.fields):
            needs = " or ".join(" and ".join(needed) for needed in requirements.fields)
            has = f"task {recipe.task} has {' and '.join(spec.columns)}"
            raise reader.refused(f"objective {objective.kind} needs records of {needs}; {has}", *where)
        if architecture not in requirements.architectures:
            needs = f"{' or '.join(requirements.architectures)}, which {requirements.why}: got {architecture!r}"
            raise reader.refused(f"objective {objective.kind} needs network.architecture {needs}", *where)
        position = reader.origins.get("network.heads") or reader.positions.get("network.heads", "task ")
        head_kinds = {head.kind for head in recipe.network.heads}
        missing = [kind for kind in requirements.heads if kind not in head_kinds] if architecture == "encoder" else []
        # missing heads are added if none were written
        if missing and head_kinds and not position.startswith(("task ", "preset ")):
            needs = f"task {recipe.task}" if objective.kind == spec.objective else f"objective {objective.kind}"
            raise RecipeError(f"{position}: {needs} needs a {' and a '.join(missing)} head in network.heads")


def _check_metrics(recipe: Recipe, reader: Reader) -> None:
    """Refuse a metric that is not known, does not apply to the task, or is named twice."""
    outputs = TASKS[recipe.task].outputs
    known = [name for name, metric in METRICS.items() if metric.scores(outputs)]
    if {} in recipe.metrics:
        raise reader.refused("metrics: a mapping names a metric and its options: got an empty one", "metrics")
    named = [name for item in recipe.metrics for name in options_by_name([item])]
    for number, name in enumerate(named):
        if outputs is None:
            rule = "has no outputs that metrics score (its validation reports nll and perplexity)"
            raise reader.refused(f"task {recipe.task} {rule}: got {name!r}", "metrics")
        if not (outputs == "texts" and name.partition(":")[0] in LEARNED) and name not in known:  # NAME:FOLDER
            raise reader.refused(f"unknown metric {name!r}{nearest(name, known)}", "metrics")
        try:
            score = metric_named(name, options := options_by_name(recipe.metrics)[name])
            if options and outputs in ("texts", "answers"):
                score(["a"], ["a"])  # refuses an unknown value
        except UsageError as error:
            raise reader.refused(str(error), "metrics") from None
        if name in named[:number]:
            raise reader.refused(f"metrics names {name!r} twice", "metrics")


def _sources(data: DataConfig) -> Iterator[tuple[str, SourceConfig]]:
    """Yield each source with its dotted key."""
    for split in SPLITS:
        for number, source in enumerate(getattr(data, split)):
            yield f"data.{split}.{number}", source


def doubtful(recipe: Recipe, reader: Reader) -> list[str]:
    """Return a warning for each option that has no effect or an unlikely value."""
    warnings, network, key = [*_warnings(recipe, reader.origins)], recipe.network, "network.mask.right"
    if key in reader.origins and network.architecture == "decoder" and network.mask is not None and network.mask.right:
        warnings.append(f"{reader.origins[key]}: {key} has no effect: a decoder attends to no later tokens")
    return warnings


def _warnings(recipe: Recipe, written: dict[str, str]) -> Iterator[str]:
    """Yield the warnings; `written` has the position of each key that is not a default."""
    training = recipe.training
    # the defaults of the task, which the recipe in a run folder has too
    tree = schema.as_node({"task": recipe.task, "data": {split: [{"world": "train"}] for split in SPLITS}}, "")
    values, default = map(schema.flatten, (recipe, schema.Reader().build(Recipe, with_defaults(tree), "")))

    def no_effect(key: str, why: str) -> Iterator[str]:  # a key without default is compared with `values`: never equal
        is_default = key in values and values[key] == default.get(re.sub(r"^(data\.\w+)\.\d+", r"\1.0", key), values)
        if not is_default and not written.get(key, "task ").startswith("task "):
            yield f"{written[key]}: {key} has no effect: {why}"

    largest = 1.0 if training.optimizer == "adafactor" else 0.1
    for name, usual, limit in (("learning_rate", "1e-5 to 1e-2", largest), ("weight_decay", "0 to 0.3", 1.0)):
        if (value := getattr(training, name)) > limit:
            key = f"training.{name}"
            yield f"{written.get(key, key)}: {key} {value:g} is far above the usual range ({usual})"
    for name, why in without_effect(training):
        yield from no_effect(f"training.{name}", why)
    yield from _of_other_data(recipe, written)
    if not recipe.data.valid and not recipe.data.held_out:
        if training.early_stop > 0:
            yield from no_effect("training.early_stop", "there is no data.valid")
        yield from no_effect("training.validate_every", "there is no data.valid")
        yield from no_effect("training.samples", "there is no data.valid")
        if not recipe.data.test:
            yield from no_effect("metrics", "there is neither data.valid nor data.test")
    spec = TASKS[recipe.task]
    if "context" not in spec.columns:
        yield from no_effect("data.max_answer", "this task has no contexts of questions")
    yield from _of_windows(recipe, written.get("data.stride", "task "), no_effect)
    if not any(OBJECTIVES[objective.kind].packs for objective in objectives_of(recipe.task, recipe.objective)):
        packing = " or ".join(kind for kind, objective in OBJECTIVES.items() if objective.packs)
        yield from no_effect("data.pack", f"only the objective {packing} packs texts")
    for key, why in spec.without_effect.items():
        for name in [name for name in written if name == key or name.startswith(f"{key}.")]:
            if (name, recipe.data.truncate) != ("data.truncate", "head-tail"):
                yield from no_effect(name, why)
    if "decoding" not in spec.unused:
        decoding_keys = {key.split(".")[1] for key in written if key.startswith("decoding.")}
        for name, why in unused_options(recipe.decoding, decoding_keys):
            yield from no_effect(f"decoding.{name}", why)
    if (recipe.init is None and recipe.teacher is None) or spec.verb != "translate":
        for key in ("data.source_language", "data.target_language"):
            yield from no_effect(key, "it is for translation by a multilingual model that init names")
    if recipe.init is not None:
        yield from without_effect_on(recipe.init, written, no_effect)
    elif recipe.tokenizer.path is not None:
        for part in fields(TokenizerConfig):
            if part.name not in ("path", "markers"):
                yield from no_effect(f"tokenizer.{part.name}", "tokenizer.path names a trained one")
    yield from _of_teacher(recipe, no_effect)
    yield from _mixing_warnings(recipe, written)
    for path, source in _sources(recipe.data):
        if source.world is None:
            yield from no_effect(f"{path}.seed", "it is for the micro-world only")
    if recipe.init is None and recipe.tokenizer.path is None and recipe.tokenizer.kind in ("character", "byte"):
        yield from no_effect(
            "tokenizer.vocab_size", f"the {recipe.tokenizer.kind} tokenizer's size follows from the text"
        )


def _of_other_data(recipe: Recipe, written: dict[str, str]) -> Iterator[str]:
    """Yield a warning for each split that is of the micro-world where the training data are not, or the other way."""
    kinds = {split: {source.world is not None for source in getattr(recipe.data, split)} for split in SPLITS}
    for split in SPLITS[1:]:
        if kinds[split] and kinds["train"].isdisjoint(kinds[split]):
            in_memory = any(source.memory for source in (*recipe.data.train, *recipe.data.valid))
            named = ("the micro-world", "in memory" if in_memory else "files")
            train_kind, split_kind = named if True in kinds["train"] else named[::-1]
            position = written.get(f"data.{split}.0.world") or written.get(f"data.{split}.0.file", "data")
            yield (
                f"{position}: data.{split} is {split_kind}, and data.train is {train_kind}: its scores do not measure "
                "that data"
            )


def _of_windows(recipe: Recipe, where: str, no_effect: Callable[[str, str], Iterator[str]]) -> Iterator[str]:
    """Yield a warning for keys of windows that are not read, and for a stride, written `where`, that is too large."""
    data, spec, most = recipe.data, TASKS[recipe.task], recipe.data.max_len // 2
    if "context" not in spec.columns and data.windows in (None, "first-last"):
        yield from no_effect("data.stride", "nothing is read in windows that share tokens")
    elif data.stride > most and not where.startswith("task "):
        given = f"data.stride {data.stride} is more than half of data.max_len"
        yield f"{where}: {given}: windows share at most {most} tokens"
    if not _reads_long_texts(spec):
        yield from no_effect("data.windows", "this task gives no label, number or vector of a whole text")


def _of_teacher(recipe: Recipe, no_effect: Callable[[str, str], Iterator[str]]) -> Iterator[str]:
    """Yield a warning for each key of a teacher that is for other tasks."""
    if recipe.teacher is None:
        return
    objectives = [OBJECTIVES[objective.kind] for objective in objectives_of(recipe.task, recipe.objective)]
    if "source" not in TASKS[recipe.task].columns:
        yield from no_effect("teacher.n_best", "this task has no sources and targets")
    elif recipe.teacher.n_best:
        for key in ("teacher.weight", "teacher.temperature"):
            yield from no_effect(key, "the teacher's outputs are the targets; with teacher.n_best 0 it has an effect")
    if not any(objective.gives_probabilities for objective in objectives):
        yield from no_effect("teacher.temperature", "this task has no probabilities")


def _check_mixing(recipe: Recipe, reader: Reader) -> None:
    """Refuse weights for another number of sources than there are, and weights that change over unknown steps."""
    mixing, sources = recipe.data.mixing, len(recipe.data.train)
    given = [("weights", mixing.weights)] if mixing.weights else [("points", point.weights) for point in mixing.points]
    for key, weights in given:
        if len(weights) != sources:
            needs = f"needs a weight for each of the {counted(sources, 'source')} of data.train"
            rule = f"data.mixing.{key} {needs}: got {counted(len(weights), 'weight')}"
            raise reader.refused(rule, f"data.mixing.{key}", "data.mixing")
    if mixing.points and recipe.training.epochs is not None:
        rule = "data.mixing.points are shares of the updates, so training.steps must say how many there are"
        got = f"got training.epochs {recipe.training.epochs:g}"
        raise reader.refused(f"{rule}: {got}", "data.mixing.points", "data.mixing")


def _mixing_warnings(recipe: Recipe, written: dict[str, str]) -> Iterator[str]:
    """Yield a warning for the mixing of one source; `written` has the position of each key that is not a default."""
    keys = [key for key in written if key.startswith("data.mixing.")]
    if keys and len(recipe.data.train) == 1 and not recipe.data.mixing.concatenates:
        yield f"{written[keys[0]]}: data.mixing has no effect: data.train is one source"


def _reads_long_texts(spec: TaskSpec) -> bool:
    """Whether a task gives something of whole texts, which may be read in windows: a label, a number, a vector."""
    return spec.vectors or any(HEAD_KINDS[head] in OF_TEXT for head in spec.heads)


def _check_long_texts(recipe: Recipe, reader: Reader) -> None:
    """Refuse ways of reading long texts that the task, or another key, does not go with."""
    data, embedding = recipe.data, recipe.embedding
    if data.truncate == "head-tail" and not _reads_long_texts(TASKS[recipe.task]):
        rule = f"data.truncate head-tail is for texts that get labels, numbers or vectors: got task {recipe.task}"
        raise reader.refused(rule, "data.truncate")
    if TASKS[recipe.task].grouped_by is not None and (data.windows is not None or data.truncate == "head-tail"):
        key = "data.windows" if data.windows is not None else "data.truncate"
        raise reader.refused(f"windows and head-tail are of single texts, and task {recipe.task} reads pairs", key)
    if data.windows == "attention" and TASKS[recipe.task].vectors:
        rule = f"data.windows attention weighs windows in a head, and task {recipe.task} has none"
        raise reader.refused(f"{rule}: use mean, max or first-last", "data.windows")
    prompts = None if embedding is None else embedding.prompt or embedding.field_prompts or embedding.prompts
    if data.windows is not None and prompts:
        raise reader.refused(NO_PROMPT, "data.windows")


def _check_objectives(recipe: Recipe, reader: Reader) -> None:
    """Refuse scheduled sampling, a teacher or R-Drop beside an objective that has no place for it, or a network."""
    share, weight, init = recipe.training.scheduled_sampling.share, recipe.training.r_drop, recipe.init
    for kind in (objective.kind for objective in objectives_of(recipe.task, recipe.objective)):
        row, got = OBJECTIVES[kind], f"got task {recipe.task} with {kind}"
        if share and not row.teacher_forced:
            rule = "is for objectives whose decoder reads the tokens that it learns to predict"
            rule = f"training.scheduled_sampling {rule}, and {kind} has none: got share {share:g}"
            raise reader.refused(rule, "training.scheduled_sampling.share", "training.scheduled_sampling")
        if recipe.teacher is not None:
            if not row.taught:
                known = ", ".join(kind for kind, row in OBJECTIVES.items() if row.taught)
                raise reader.refused(f"teacher is for the objectives {known}: {got}", "teacher.model")
            if init is not None and (init.classifier is not None or init.few_shot):
                given = "few_shot" if init.few_shot else "classifier"
                rule = f"teacher is for a head that is trained by steps: leave init.{given} out"
                raise reader.refused(rule, "teacher.model")
        if weight and not row.gives_probabilities:
            known = ", ".join(kind for kind, row in OBJECTIVES.items() if row.gives_probabilities)
            rule = f"training.r_drop compares probabilities, and is for the objectives {known}: {got}"
            raise reader.refused(rule, "training.r_drop")
    network = recipe.network
    if weight and init is None and not (network.dropout or network.attention.dropout or network.feed_forward.dropout):
        raise reader.refused(without_dropout(weight), "training.r_drop")
