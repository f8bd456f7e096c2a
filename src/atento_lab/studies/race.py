"""The family race: networks of several families, of equal size, trained on the same text for the same time.

A race is a YAML file (`recipes/races/micro-world.yaml`); each entrant is a recipe that changes the common one.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atento.base.errors import RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.reading.schema import Reader
from atento.config.reading.yaml12 import Node, read_yaml
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import LABELLINGS
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS, task_with
from atento.data.records.reader import read_records
from atento.model import Model, load
from atento.networks import parameter_count
from atento.runs.prepare import read_data
from atento.runs.run_tokenizer import new_tokenizer
from atento.runs.train import train
from atento.storage.checkpoint_list import list_checkpoints
from atento.text.words import word_spans
from atento_lab.studies.race_ngrams import ngram_scores
from atento_lab.studies.race_probes import Question, accuracy, feature_accuracy, questions, translation_score
from atento_lab.studies.seeds import Row
from atento_world import labelled

_RACES = files("atento.recipes") / "races"
_TRIAL = 20  # updates that measure the speed of an entrant; the first half warms up
_CHECKPOINTS = 4  # of an entrant, at which it is probed
_LARGEST_ORDER = 9  # of n-grams
_LABELLED = {"train": 1000, "combinations": 500}  # examples of a labelling, by split


@dataclass(frozen=True)
class Race:
    """A race, read from its file.

    Attributes:
        folder: the folder that relative paths start at.
        entrants: the recipe of each entrant.
        ngrams: the order of each entrant that counts n-grams instead; its recipe says the data and the tokenizer.
        texts: held-out texts, in which words are left out.
        classes: labellings of the micro-world, or files with the texts of each class.
        pairs: sources and targets for entrants that translate; None: nothing is translated.
    """

    folder: Path
    entrants: Mapping[str, Mapping[str, object]]
    texts: SourceConfig
    ngrams: Mapping[str, int]
    classes: Sequence[str] | Mapping[str, str] = ()
    pairs: SourceConfig | None = None


def read_race(path: str | Path | None = None) -> Race:
    """Read a race; None reads the shipped race on the micro-world.

    Raises:
        RecipeError, UsageError: the file is no race; the recipe of an entrant is refused.
    """
    file = _RACES / "micro-world.yaml" if path is None else Path(path)
    folder = Path() if path is None else Path(path).parent
    tree = read_entrants(file, "race", ("base", "entrants", "probes"))
    content = plain(tree)
    base = common_recipe(content, folder)
    entrants, ngrams = {}, {}
    for name, changes in content["entrants"].items():
        if isinstance(changes, dict) and "ngrams" in changes:
            order = ngrams[name] = changes["ngrams"]
            if len(changes) > 1 or not isinstance(order, int) or not 1 <= order <= _LARGEST_ORDER:
                raise RecipeError(
                    f"{file.name}: `ngrams` is the only key of its entrant, a number from 1 to {_LARGEST_ORDER}: got "
                    f"{changes!r}, in {name}"
                )
            changes = {"task": task_with("generate")}  # counted, not trained: it says which data is read
        entrants[name] = joined(base, changes)
    for name, recipe in entrants.items():
        loaded = load_recipe(recipe, environment={}).recipe
        if loaded.tokenizer is None or loaded.tokenizer.kind != "word":
            raise RecipeError(f"{file.name}: a race needs `tokenizer.kind` word, so that a word is a token: see {name}")
    probes = content.get("probes", {})
    if "texts" not in probes:
        raise RecipeError(f"{file.name}: `probes` needs `texts`, a source of held-out texts")
    sources = {key: _source(tree.value["probes"].value[key]) for key in ("texts", "pairs") if key in probes}
    return Race(folder, entrants, ngrams=ngrams, classes=probes.get("classes", ()), **sources)


def read_entrants(file: Traversable, kind: str, keys: Sequence[str]) -> Node:
    """Read a file of recipes that change a common one: a mapping with these keys, of which the second has the recipes.

    Raises:
        RecipeError, UsageError: the file cannot be read; it has other keys, or no recipes.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}") from error
    tree = read_yaml(text, lambda line, column: f"{file.name}:{line}:{column}")
    content = plain(tree)
    if not isinstance(content, dict) or set(content) - set(keys) or not content.get(keys[1]):
        raise RecipeError(f"{file.name}: a {kind} has the keys {', '.join(keys[:-1])} and {keys[-1]}")
    base, recipes = content.get(keys[0]) or {}, content[keys[1]]
    for name, part in (
        (keys[0], base),
        ("data", base.get("data", {}) if isinstance(base, dict) else {}),
        (keys[1], recipes),
    ):
        if not isinstance(part, dict):
            raise RecipeError(f"{file.name}: `{name}` is a section: got {part!r}")
    for name, changes in recipes.items():
        if not isinstance(changes, dict | None):
            raise RecipeError(f"{file.name}: {name} is a section with the keys that it changes: got {changes!r}")
    return tree


def common_recipe(content: Mapping[str, Any], folder: Path) -> dict[str, object]:
    """The recipe that all entrants of a file in `folder` share; its paths start there."""
    base = {"data": {}, **(content.get("base") or {})}
    base["data"] = {"folder": str(folder), **base["data"]}
    return base


def measure_race(seconds: float, *, race: str | Path | None = None, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yield a row for each entrant and checkpoint: the updates and seconds of training, and what it has learned.

    The number of updates is chosen so that each entrant trains for the same time: a trial of 20 updates measures its
    speed. So schedules end where the time ends, and a run depends on its number of updates alone.

    Args:
        seconds: training time of each entrant.
        race: a race file; None: the micro-world.
        only: names of entrants; empty: all.

    Raises:
        RecipeError, UsageError: as `read_race`; an unknown entrant.
    """
    entered = read_race(race)
    for name in only:
        if name not in entered.entrants:
            raise UsageError(f"this race has no entrant {name!r}: it has {', '.join(entered.entrants)}")
    texts = _texts(entered.texts, entered)
    pairs = None
    if entered.pairs is not None:
        pairs = list(read_records(entered.pairs, (Field("source"), Field("target")), entered.folder))
    with TemporaryDirectory(prefix="atento-race-") as name:
        for entrant, recipe in entered.entrants.items():
            if only and entrant not in only:
                continue
            if entrant in entered.ngrams:
                yield _counted(entrant, recipe, entered, texts)
                continue
            parsed = load_recipe(recipe, environment={}).recipe
            objective = parsed.objective[0].kind if parsed.objective else TASKS[parsed.task].objective
            run = _trained(recipe, seconds, Path(name) / entrant)
            for checkpoint in _checkpoints(run):
                yield _row(entrant, objective, checkpoint, entered, texts, pairs)


def _counted(entrant: str, recipe: Mapping[str, object], race: Race, texts: Sequence[str]) -> Row:
    """The row of an entrant that counts n-grams: one pass over the training text, however long that takes."""
    loaded = load_recipe(recipe, environment={})
    start = time.perf_counter()
    train = read_data(loaded.recipe, Path(loaded.recipe.data.folder or ""), lambda warning: None).train
    tokenizer = new_tokenizer(loaded.recipe, loaded.folder, train, lambda line: None)
    asked = questions(tokenizer, texts)
    counted = ngram_scores(train["text"], tokenizer, race.ngrams[entrant], asked)
    parameters = counted.pop("parameters")
    return {
        "bench": "race",
        "entrant": entrant,
        "step": 1,
        "seconds": round(time.perf_counter() - start, 1),
        "parameters": parameters,
        "without_word_vectors": parameters,
        "questions": len(asked),
        "scores": {name: round(score, 4) for name, score in counted.items()},
    }


def _texts(source: SourceConfig, race: Race) -> list[str]:
    """The texts of a source that every entrant can read whole, the two special tokens included."""
    room = min(load_recipe(recipe, environment={}).recipe.data.max_len for recipe in race.entrants.values()) - 2
    texts = read_records(source, (Field("text"),), race.folder)["text"]
    return [text for text in texts if len(word_spans(text)) <= room]


def _trained(recipe: Mapping[str, object], seconds: float, folder: Path) -> Path:
    """Train an entrant for about that many seconds, and return its run folder."""
    trial = folder.with_name(f"{folder.name}-trial")
    _train(recipe, _TRIAL, _TRIAL // 2, trial)
    first, last = (_state(checkpoint) for checkpoint in _checkpoints(trial))
    step_seconds = (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
    between = max(1, round(seconds / step_seconds / _CHECKPOINTS))
    _train(recipe, between * _CHECKPOINTS, between, folder)
    return folder


def _train(recipe: Mapping[str, object], steps: int, every: int, out: Path) -> None:
    settings: dict[str, object] = {
        "training.steps": steps,
        "training.warmup": max(1, steps // 10),
        "training.checkpoint_every": every,
        "training.keep": _CHECKPOINTS + 1,
        "training.log_every": every,
    }
    with redirect_stderr(StringIO()):
        train(recipe, settings, out=out)


def _checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return [checkpoint.path for checkpoint in sorted(list_checkpoints(run / "checkpoints"))]


def _state(checkpoint: Path) -> dict[str, Any]:
    """`step` and `seconds` of a checkpoint, among others."""
    state: dict[str, object] = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    return state


def _row(
    entrant: str,
    objective: str,
    checkpoint: Path,
    race: Race,
    texts: Sequence[str],
    pairs: Sequence[tuple[str, str]] | None,
) -> Row:
    model = load(checkpoint, device="cpu")
    state = _state(checkpoint)
    assert model.tokenizer is not None
    asked: list[Question] = questions(model.tokenizer, texts)
    vectors = sum(  # of matrices over the vocabulary
        parameter.numel()
        for parameter in model.network.parameters()
        if model.network.config.vocab_size in parameter.shape
    )
    scores: dict[str, float | None] = {
        "fill": accuracy(model, objective, asked, both=True),
        "continue": accuracy(model, objective, asked, both=False),
        **_classes(model, race),
        "translate": None if pairs is None else translation_score(model, pairs),
    }
    return {
        "bench": "race",
        "entrant": entrant,
        "step": state["step"],
        "seconds": round(state["seconds"], 1),
        "parameters": parameter_count(model.network),
        "without_word_vectors": parameter_count(model.network) - vectors,
        "questions": len(asked),
        "scores": {name: None if score is None else round(score, 4) for name, score in scores.items()},
    }


def _classes(model: Model, race: Race) -> dict[str, float | None]:
    """The accuracy of a linear classifier on frozen features, by name of the labelling, or of classes by file."""
    if isinstance(race.classes, Mapping):
        lines = {name: _texts(SourceConfig(file=file), race) for name, file in race.classes.items()}
        count = min(1500, *(len(texts) for texts in lines.values()))  # as many texts of each class
        examples = [
            (text, name)
            for name, texts in lines.items()
            for text in (texts[n * len(texts) // count] for n in range(count))
        ]
        train_part, test_part = (
            [pair for i, pair in enumerate(examples) if (i % 3 == 0) == held] for held in (False, True)
        )
        return {"classes": feature_accuracy(model, _sides(train_part), _sides(test_part))}
    reads_english = any(field.name == "source" for field in TASKS[model.config["task"]].fields)
    language = "en" if reads_english else "pt"
    scores: dict[str, float | None] = {}
    for labels in race.classes:
        if labels not in LABELLINGS:
            raise UsageError(f"`classes` names labellings of the micro-world: got {labels!r}")
        parts = (
            [(example["text"], example["label"]) for example in labelled(labels, split, count, 1, language)]
            for split, count in _LABELLED.items()
        )
        scores[labels] = feature_accuracy(model, *(_sides(part) for part in parts))
    return scores


def _sides(examples: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [text for text, _ in examples], [name for _, name in examples]


def joined(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """A recipe whose sections have the keys of both; where both have a value, that of `over`."""
    joined = dict(under)
    for key, value in over.items():
        before = joined.get(key)
        joined[key] = {**before, **value} if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return joined


def plain(node: Node) -> Any:
    """The values of a file without their places."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    return [plain(child) for child in node.value] if isinstance(node.value, list) else node.value


def _source(node: Node) -> SourceConfig:
    source: SourceConfig = Reader().build(SourceConfig, node, "probes")
    return source
