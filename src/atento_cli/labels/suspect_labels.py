"""Labels of a run's training data that are likely wrong, by runs that did not learn from them (confident learning)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atento.base.errors import DataError, UsageError
from atento.base.limits import path_of
from atento.config.reading.loading import load_recipe
from atento.config.recipe import Recipe
from atento.config.tables.formats import format_of
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS
from atento.data.objectives.tags import KIND
from atento.data.records.memory import MemoryRecords, by_split
from atento.data.records.splits import Split
from atento.metrics.confident_learning import Floats, label_issue_count, ranked_label_issues
from atento.runs.folder import OUTPUTS
from atento.runs.prepare import read_data
from atento.runs.run_identity import data_fingerprint
from atento.tasks.classification import label_probabilities
from atento.tasks.tagging import word_tags
from atento.tasks.task_model import head_of, load_for_tasks
from atento.tasks.text_outputs import texts_of_split
from atento_cli.search.cross_validation import cross_validate


@dataclass(frozen=True)
class Suspect:
    """A label that is likely wrong."""

    source: str  # the file, or what the records in memory are called
    line: int  # its line, from 1, or in memory the number of its record, from 0
    given: str  # the label
    likely: str  # the most probable other label
    score: float  # the probability of the given label, by a run that did not learn from the record
    text: str  # of tags, the words of the sentence
    pair: str = ""  # of pairs, the second text
    word: str = ""  # of tags, the word, and its number from 1
    number: int = 0


def suspect(
    run: str | Path,
    *,
    folds: int = 5,
    features: bool = False,
    top: int | None = None,
    data: MemoryRecords | Mapping[str, MemoryRecords] | None = None,
    say: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> list[Suspect]:
    """Find the labels of a run's training data that are likely wrong by confident learning, the most doubtful first.

    Each record is judged by a run that did not learn from it: the recipe is trained once for each fold of the training
    data, in `RUN-folds-N`. The call can be repeated after a stop.

    Args:
        run: a run that gives a text, a pair or a word one label; or the folder of `atento train --folds`.
        folds: number of folds, at least 2.
        features: do not train, but fit a linear classifier of scikit-learn to each fold on vectors of the run's own
            network (`RUN-features-N`): quick, but the network has learned from all labels, wrong ones too.
        top: how many labels; None: as many as are wrong.
        data, options: `data`, `force`, `device`, `precision`, `seed` and `threads` of `atento.train`.
        say: called with the number of labels, and how many of them are wrong.

    Raises UsageError: no run of such a task, or an option without effect. DataError: the data cannot be read or have
    changed, or a label has fewer records than there are folds; names file and line.
    """
    folder, memory = path_of(run, "run", "a folder"), by_split(data)
    if not (folder / "fold-1").is_dir():
        trained = _recipe(folder, memory)
        recipe: Any = run
        folder = Path(f"{folder.resolve()}-{'features' if features else 'folds'}-{folds}")
        if features:  # a linear classifier on the vectors of the run's network, with its training data alone
            init = {"model": str(Path(run).resolve()), "train": "head", "cache": str(folder / "vectors")}
            recipe = {
                "task": trained.task,
                "name": folder.name,
                "data": {**asdict(trained.data), "valid": [], "test": [], "held_out": 0},
                "init": {**init, "classifier": {"kind": "logistic"}},
                "training": {"seed": trained.training.seed, "baseline": False},
            }
        changes = {} if features else {"data.test": [], "training.keep": 1, "training.baseline": False}
        cross_validate(recipe, changes, folds=folds, data=data, out=folder, **options)
    elif features or any(options.get(name) for name in ("force", "precision", "seed")):
        raise UsageError(f"{folder} holds the runs of folds, which are used as they are: give no option of training")
    parts = [folder / f"fold-{fold + 1}" for fold in range(_recipe(folder / "fold-1", memory).data.folds)]
    judged = [_judged(part, memory, options.get("device", "auto")) for part in parts]
    labels = [one for suspects, _, _ in judged for one in suspects]
    names = sorted({*(one.given for one in labels), *(name for _, own, _ in judged for name in own)})
    given = np.searchsorted(names, [one.given for one in labels])
    known = [[own.index(name) if name in own else -1 for name in names] for _, own, _ in judged]
    # a label that a fold does not know has the probability 0
    shares = np.concatenate([np.pad(one[2], ((0, 0), (0, 1)))[:, columns] for one, columns in zip(judged, known)])
    wrong = label_issue_count(given, shares)
    say(f"{len(labels):,} labels, about {wrong:,} wrong ({wrong / len(labels):.1%})")
    rows = ranked_label_issues(given, shares, top).tolist()
    scores = shares[rows, given[rows]]
    shares[rows, given[rows]] = -1.0  # what is left are other labels
    likely = [names[place] for place in shares[rows].argmax(axis=1).tolist()]
    return [replace(labels[row], likely=name, score=float(score)) for row, name, score in zip(rows, likely, scores)]


def _recipe(folder: Path, memory: Mapping[str, MemoryRecords]) -> Recipe:
    """The recipe of a run. Raises UsageError: it is no run, or its task has no such labels."""
    if not (folder / "run.json").is_file():
        raise UsageError(f"{folder} is no run: give the folder of a run, or of the runs of `atento train --folds`")
    recipe = load_recipe(folder, environment={}, memory=memory).recipe
    if TASKS[recipe.task].outputs not in ("classes", "tags"):
        raise UsageError(f"{folder} is a run of {recipe.task}, which does not give a text, a pair or a word one label")
    return recipe


def _judged(folder: Path, memory: Mapping[str, MemoryRecords], device: str) -> tuple[list[Suspect], list[str], Floats]:
    """The labels that a fold did not learn from, the labels that it knows, and their probabilities (N,C)."""
    if not (folder / OUTPUTS).is_file():
        raise UsageError(f"{folder} has not been trained and tested: repeat `atento train` with its --folds")
    loaded = load_recipe(folder, environment={}, memory=memory)
    data = read_data(loaded.recipe, loaded.folder, lambda line: None, memory)
    if data.fingerprint != data_fingerprint(folder):
        raise DataError(f"{folder} was trained on other data: the records have changed; train the folds again")
    split, model = data.test, load_for_tasks(folder, device)
    assert split is not None
    labels = [one for row in range(len(split)) for one in _labels_of(split, row, TASKS[loaded.recipe.task].fields)]
    if "tags" in split.columns:
        return labels, [*head_of(model, KIND).labels], np.concatenate(word_tags(model, split["tokens"]))
    names, shares = label_probabilities(model, texts_of_split(split))
    return labels, names, shares.numpy()


def _labels_of(split: Split, row: int, fields: Sequence[Field]) -> Iterator[Suspect]:
    """The label of a record, or the tag of each of its words, which have a line each in CoNLL's format."""
    source, _, line = split.where(row).rpartition(":")
    if "tags" not in split.columns:
        pair = split["pair"][row] if "pair" in split.columns else ""
        yield Suspect(source, int(line), split["label"][row], "", 0.0, split["text"][row], pair)
        return
    text, step = " ".join(split["tokens"][row]), format_of(source, None, fields) == "conll"
    for number, (word, tag) in enumerate(zip(split["tokens"][row], split["tags"][row])):
        yield Suspect(source, int(line) + number * step, tag, "", 0.0, text, word=word, number=number + 1)
