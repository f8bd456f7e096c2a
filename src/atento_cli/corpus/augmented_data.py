"""Back-translation: synthetic sources of real targets, filtered, tagged, and joined with the data of a recipe.

Sennrich et al. 2016, Improving Neural Machine Translation Models with Monolingual Data; the tag is that of Caswell et
al. 2019, Tagged Back-Translation.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from atento.base.errors import DataError, RecipeError, TokenizerError, UsageError
from atento.config.reading.loading import LoadedRecipe, dump_recipe
from atento.config.recipe import Recipe, SourceConfig
from atento.config.sections.mixing import MixingConfig, MixingPoint
from atento.config.tables.tasks import task_with
from atento.data.records.reader import Records
from atento.data.records.values import compared
from atento.models.model_folder import find_model, find_tokenizer
from atento.runs.prepare import files_by_source, read_sources
from atento.runs.run_identity import with_absolute_paths
from atento.runs.run_record import is_run, read_run
from atento.storage.atomic_files import output, write_output
from atento.tasks.scoring import score_outputs
from atento.tasks.task_model import TaskModel
from atento.text.specials import standard_specials
from atento.text.tokenizer import Tokenizer

Record = tuple[str, list[tuple[str, float, bool]]]
"""A target, and its sources: the text, the log-probability a token, and whether it ended by itself."""
DATA, RECIPE = "synthetic.jsonl", "recipe.yaml"
_PROBES, _PROBE = 64, 200  # real pairs that show the direction of a model, and the characters of each side at most
_SHORT = 10  # characters: of two short texts a ratio says nothing
_HALF = 0.5  # the largest share of synthetic pairs that is chosen by their size


@dataclass(frozen=True)
class Augmentation:
    """The options of `atento augment`: `min_score` is in nats a token, EOS counted, `max_ratio` in characters."""

    tag: str
    min_score: float
    max_ratio: float
    share: float | None = None


@dataclass(frozen=True)
class RealPairs:
    """The pairs of a recipe: of each source of training data, and of its other data."""

    train: list[list[Records]]
    others: list[Records]

    def probes(self) -> list[tuple[str, str]]:
        """Some pairs that show which way a model translates."""
        pairs = [pair for part in self.train[0] for pair in zip(part["source"], part["target"])]
        short = [pair for pair in pairs if max(map(len, pair)) <= _PROBE] or pairs
        return short[:: -(-len(short) // _PROBES)]


def real_pairs(loaded: LoadedRecipe, tag: str) -> RealPairs:
    """Read the pairs of a recipe.
    Raises RecipeError, DataError: no translation, wrong data, or a source has the tag. UsageError: the tag is no token.
    """
    recipe, folder, task = loaded.recipe, loaded.folder, task_with("translate")
    if recipe.task != task:
        raise RecipeError(f"{loaded.origins['task']}: augment is for task {task}: got {recipe.task}")
    if recipe.data.held_out:
        at = loaded.origins.get("data.held_out", "data.held_out")
        raise RecipeError(f"{at}: data.held_out would take synthetic pairs too: name a file of pairs as data.valid")
    begins = recipe.init or recipe.network.features
    named = recipe.tokenizer.path if begins is None else begins.model
    try:  # whether the recipe's tokenizer has such a token, or a new one can get it
        if tag and named is not None:
            here = loaded.home / named
            Tokenizer.load(find_tokenizer(here if here.exists() else named), markers=[tag])
        elif tag:
            standard_specials([tag])
    except TokenizerError as error:
        raise UsageError(f"--tag {tag}: {error}; --tag '' leaves synthetic sources unmarked") from None
    files = iter(read_sources(recipe, "train", folder))
    # a source may be several files
    train = [[next(files) for _ in range(count)] for count in files_by_source(recipe, "train", folder)]
    for part in chain(*train):
        for row, source in enumerate(part["source"]):
            if tag and tag in source:
                raise DataError(f"{part.where(row)}: the source has the tag {tag}: give another as --tag")
    return RealPairs(train, [part for split in ("valid", "test") for part in read_sources(recipe, split, folder)])


def check_finished(model: str) -> None:
    """Raises UsageError: there is no such model, or it is a run that has not ended."""
    find_model(model)
    if is_run(Path(model)) and not (run := read_run(Path(model))).finished:
        raise UsageError(
            f"--reverse {model}: the run has not ended, it is at step {run.step:,} of {run.steps or 'many'}; "
            f"`atento train {model}` goes on, and a checkpoint of it can be named"
        )


def check_direction(model: TaskModel, pairs: Sequence[Sequence[str]]) -> None:
    """Raises UsageError: the model finds targets after their sources more probable than sources after their targets."""
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    nats = []
    for sides in ((sources, targets), (targets, sources)):
        scores = score_outputs(model, *sides)
        nats.append(sum(score.total for score in scores) / sum(len(score.log_probs) for score in scores))
    if nats[0] > nats[1]:
        raise UsageError(
            f"--reverse translates the wrong way: it gives the recipe's targets {nats[0]:.2f} nats a token and its "
            f"sources {nats[1]:.2f}; train it on the same pairs with `source` and `target` exchanged"
        )


def write_augmented(
    loaded: LoadedRecipe, real: RealPairs, records: Iterable[Record], folder: Path, augmentation: Augmentation
) -> dict[str, int | float]:
    """Write the data file and the recipe; return the number of "pairs", their "share", and what is left out by reason.
    Raises DataError: no pair is left.
    """
    counts, size = Counter[str](), 0
    with output(folder / DATA) as partial:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for pair, reason in _judged(records, real, augmentation):
                counts[reason or "pairs"] += 1
                if reason is None:
                    size += len(pair["target"])
                    file.write(json.dumps(pair, ensure_ascii=False) + "\n")
        if not counts["pairs"]:
            hint = "; a reverse model that writes nothing needs more training" if counts["empty"] else ""
            raise DataError(f"no synthetic pair is left: {left_out(counts)}{hint}")
    sizes = tuple(float(sum(len(text) for part in parts for text in part["target"])) for parts in real.train)
    share = augmentation.share or min(_HALF, size / (size + sum(sizes)))
    recipe = _joined(loaded, folder, augmentation.tag, sizes, share)
    write_output(folder / RECIPE, dump_recipe(recipe, later=loaded.later()))
    return {"pairs": counts.pop("pairs"), "share": share, **counts}


def left_out(counts: Mapping[str, float]) -> str:
    """What was left out, by reason."""
    return ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items()) if name not in ("pairs", "share"))


def _judged(
    records: Iterable[Record], real: RealPairs, own: Augmentation
) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Each synthetic pair with the reason to leave it out; None: it is kept."""
    known = {compared(target) for part in chain(*real.train, real.others) for target in part["target"]}
    seen = set[tuple[str, str]]()
    for target, sources in records:
        for source, score, ended in sources:
            least, most = sorted((len(source), len(target)))
            tests = {
                "empty": not (source.strip() and target.strip()),
                "with a target of the recipe's data": compared(target) in known,
                "cut off": not ended,
                "copied": source.split() == target.split(),
                "of unlike length": most > _SHORT and most > own.max_ratio * least,
                "improbable": score < own.min_score,
                "with the tag": bool(own.tag) and own.tag in source,
                "repeated": (source, target) in seen,
            }
            seen.add((source, target))
            pair = {"source": source, "target": target, "score": score}
            yield pair, next((name for name, found in tests.items() if found), None)


def _joined(loaded: LoadedRecipe, folder: Path, tag: str, sizes: tuple[float, ...], share: float) -> Recipe:
    """The recipe with the synthetic pairs as a further source of training data."""
    recipe = with_absolute_paths(loaded)
    synthetic = SourceConfig(file=str((folder / DATA).resolve()), source="source", target="target", prefix=tag)
    points = []
    for at, weights in recipe.data.mixing.rates(sizes):
        real = [round((1 - share) * weight / sum(weights), 6) for weight in weights]
        points.append(MixingPoint(at, (*real, round(share, 6))))
    shares: Any = {"points": tuple(points)} if len(points) > 1 else {"weights": points[0].weights}
    data = replace(recipe.data, train=(*recipe.data.train, synthetic), mixing=MixingConfig("weights", **shares))
    markers = tuple(dict.fromkeys((*recipe.tokenizer.markers, *filter(None, [tag]))))
    tokenizer = replace(recipe.tokenizer, markers=markers)
    return replace(recipe, name=f"{recipe.name}-augmented", data=data, tokenizer=tokenizer)
