"""Several tasks of one run: a setup for each, their records and batches joined, and what `config.json` says of them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from hashlib import sha256

from atento.base.errors import counted
from atento.config.reading.task_list import task_named
from atento.config.tables.tasks import TASKS
from atento.data.batches.batch import Batches
from atento.data.batches.mixture import Mixture, Shares
from atento.data.batches.special_tokens import template_for
from atento.data.records.reader import fingerprint
from atento.data.records.splits import Split, subset
from atento.data.records.values import as_text
from atento.runs.model_config import facts_of_data, model_config
from atento.runs.prepare import Data
from atento.runs.setup import Setup
from atento.runs.task_heads import labels_by_record
from atento.runs.token_data import data_of_run


def read_parts(setup: Setup) -> None:
    """Read the records of each task; of several, `setup.data` has their texts, from which a tokenizer learns."""
    if not setup.recipe.tasks:
        setup.loaded, setup.data = data_of_run(setup)
        return
    for loaded in setup.loaded.by_task():
        part = copy(setup)  # which shares folder, tokenizer and processes
        part.loaded = loaded
        with task_named(loaded.recipe.head):
            part.loaded, part.data = data_of_run(part)
        setup.parts.append(part)
    for part in setup.parts:  # no training text that another task validates or tests on, but for the last of a label
        train, labels = part.data.train, labels_by_record(part.recipe, part.data.train) or [()] * len(part.data.train)
        splits = [(one, split) for one in setup.parts if one is not part for split in (one.data.valid, one.data.test)]
        held_out = {text for one, split in splits for text in _texts(one, split)}
        left, kept = Counter(label for row in labels for label in set(row)), list[int]()
        for row, text in enumerate(_texts(part, train)):
            if text in held_out and all(left[label] > 1 for label in labels[row]):
                left.subtract(set(labels[row]))
            else:
                kept.append(row)
        if left_out := len(train) - len(kept):
            part.report(f"{left_out:,} training examples left out, whose texts are held out for another task")
            part.data = replace(part.data, train=subset(train, kept))
    fields = [TASKS[part.recipe.task].texts for part in setup.parts]
    texts = list(dict.fromkeys(text for part, own in zip(setup.parts, fields) for text in part.data.train.texts(own)))
    digest = sha256("\n".join(part.data.fingerprint for part in setup.parts).encode()).hexdigest()
    setup.data = Data(Split({fields[0][0]: texts}, fingerprint(texts)), None, None, digest)


def _texts(part: Setup, split: Split | None) -> list[tuple[str, ...]]:
    """The texts of each record of a split of a task, or its words as one; none where there is no split."""
    columns = [] if split is None else [split[name] for name in TASKS[part.recipe.task].texts if name in split.columns]
    return [tuple(map(as_text, record)) for record in zip(*columns)]


def keep_metrics(setup: Setup) -> None:
    """Write the metrics that were chosen for each of several tasks into the recipe of the run."""
    tasks = tuple(replace(part.recipe.tasks[0], metrics=part.recipe.metrics) for part in setup.parts)
    setup.loaded = replace(setup.loaded, recipe=replace(setup.recipe, tasks=tasks))


def mixed(parts: Sequence[Setup]) -> Batches:
    """The batches of several tasks: each update is of one task, drawn by the shares (Liu et al. 2019)."""
    shares = Shares.constant([part.recipe.tasks[0].share for part in parts])
    members, seed = [partial(lambda own, _: own, part.batches) for part in parts], parts[0].recipe.training.seed
    return Mixture(members, lambda _: shares, budget=None, seed=seed, sources=len(parts))


def share_lines(parts: Sequence[Setup], batches: Batches, steps: int) -> Iterator[str]:
    """Yield a line for each of several tasks: its share of the updates, their size, and how often its data are read."""
    for part, (share, epochs) in zip(parts, batches.expected(steps) if isinstance(batches, Mixture) else ()):
        spec, budget = TASKS[part.recipe.task], part.recipe.training.batch_tokens
        each, examples = counted(budget, spec.targets[:-1]), counted(len(part.batches), spec.records[:-1])
        yield f"{part.recipe.head}: {share:.1%} of the updates, each of about {each}; {epochs:.3g} epochs of {examples}"


def config_of(setup: Setup, network: dict[str, object]) -> dict[str, object]:
    """Return the content of `config.json`; of several tasks, `tasks` has what holds for each head by its name."""

    def own(part: Setup) -> Mapping[str, object]:
        template = template_for(part.recipe.task, setup.tokenizer)
        return model_config(part.recipe, network, template) | facts_of_data(part.recipe, part.data.train)

    configs = {part.recipe.head: own(part) for part in setup.parts or [setup]}
    first, *others = configs.values()
    shared = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    tasks = {head: {k: v for k, v in of.items() if k == "task" or k not in shared} for head, of in configs.items()}
    return shared | {"task": first["task"], "max_len": first["max_len"]} | ({"tasks": tasks} if others else {})
