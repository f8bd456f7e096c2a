"""Few labels (`init.few_shot`): an encoder learns pairs of texts with one label or two, then a linear head (SetFit)."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from atento.config.reading.initial_keys import rates_among
from atento.config.reading.loading import LoadedRecipe
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.network_parts import by_key
from atento.config.tables.tasks import EMBEDDING
from atento.data.files.source_records import header_hint
from atento.data.objectives.labels import label_numbers
from atento.data.records.memory import MemoryRecords
from atento.data.records.splits import Split
from atento.errors import DataError, RecipeError, counted
from atento.models.initial_model import initial_model
from atento.models.load import read_model
from atento.models.model_folder import SECTIONS, section_of
from atento.runs.fine_tuning import inherited_keys
from atento.runs.prepare import read_data

_ROUNDS, _PAIRS = 20, 4000  # pairs of each kind that a text is in first, and pairs in all
_TRAINING = {"batch_tokens": 16, "epochs": 1, "learning_rate": 2e-5, "schedule": "linear", "log_every": 20}
_NO_DROPOUT = {"dropout": 0.0, "attention": {"dropout": 0.0}, "feed_forward": {"dropout": 0.0}}  # in one short pass
_POOLINGS = ("mean", "first", "last")  # that a head can read


def vectors_recipe(
    loaded: LoadedRecipe, memory: Mapping[str, MemoryRecords]
) -> tuple[dict[str, object], list[tuple[str, str, float]]]:
    """The recipe that trains the encoder, and its pairs of texts, with 1 for texts of one label and 0 for others.

    Every text is the first of up to 20 pairs of each kind, which are drawn by the seed: as many of one label as of two,
    so that pairs repeat where labels have few texts. There are at most about 4,000 pairs, and one pass over
    them, without dropout (Tunstall et al. 2022, Efficient Few-Shot Learning Without Prompts).
    Raises RecipeError: the records are pairs. DataError: a label with fewer than two different texts.
    """
    recipe, init = loaded.recipe, loaded.recipe.init
    assert init is not None
    data = read_data(recipe, loaded.folder, lambda line: None, memory)
    train = data.train
    if "pair" in train.columns:
        raise RecipeError("`init.few_shot` learns from single texts with a label: leave `pair` out")
    if data.valid is not None:
        label_numbers(data.valid, sorted({*train["label"]}))  # before the encoder learns
    folder, windows = loaded.home / init.model, recipe.data.windows
    read: dict[str, object] = {"train": {"memory": "train"}, "max_len": recipe.data.max_len}
    if windows is not None:  # a head alone has weights of windows
        read["windows"] = "mean" if windows == "attention" else windows
    if loaded.origins.get("data.stride", "default") != "default":
        read["stride"] = recipe.data.stride
    if recipe.data.truncate == "head-tail":
        read["truncate"] = "head-tail"
    vectors: dict[str, object] = {
        "task": EMBEDDING,
        "init": str(folder) if folder.exists() else init.model,
        "network": _NO_DROPOUT,
        "objective": "cosine",
        "data": read,
        "tokenizer": {"markers": list(recipe.tokenizer.markers)},
        "training": _TRAINING | {"seed": recipe.training.seed, "precision": recipe.training.precision},
    }
    if windows is not None:  # a prompt of the model has no place before them
        initial = initial_model(init.model, loaded.home)
        known = section_of(EmbeddingConfig, initial.config, initial.path)
        vectors[SECTIONS[EmbeddingConfig]] = asdict(replace(known, prompt="", prompts={}, field_prompts={}))
    return vectors, pairs_of_labels(train, recipe.training.seed)


def pairs_of_labels(train: Split, seed: int) -> list[tuple[str, str, float]]:
    """Pairs of texts with 1.0 where both have one label, 0.0 where they have two."""
    texts = dict(zip(train["text"], train["label"]))  # each text once
    by_label: dict[str, list[str]] = {}
    for text, label in texts.items():
        by_label.setdefault(label, []).append(text)
    for label, own in by_label.items():
        if len(own) < 2:
            at = train.where(train["text"].index(own[0]))
            raise DataError(
                f"{at}: label {label!r} has {counted(len(own), 'text')}, and a pair of texts of one label needs 2: "
                f"`init.few_shot` needs two or more of each label{header_hint(at)}"
            )
    if len(by_label) < 2:
        raise DataError(f"{train.where(0)}: every text has the label {train['label'][0]!r}: there is nothing to learn")
    draw, pairs = np.random.default_rng(seed), list[tuple[str, str, float]]()
    places = {text: place for own in by_label.values() for place, text in enumerate(own)}
    for _ in range(max(1, min(_ROUNDS, _PAIRS // (2 * len(texts))))):
        for text, label in texts.items():
            labels = [other for other in by_label if other != label]
            same, different = by_label[label], by_label[labels[draw.integers(len(labels))]]
            behind = (places[text] + draw.integers(1, len(same))) % len(same)  # any text of the label but this one
            for other, score in ((same[behind], 1.0), (different[draw.integers(len(different))], 0.0)):
                first, second = sorted((text, other))
                pairs.append((first, second, score))
    return pairs


def head_overrides(loaded: LoadedRecipe, vectors: Path) -> dict[str, object]:
    """The keys of the recipe by which the head is fitted on the vectors of the trained encoder.

    The rates of dropout are those of the initial model, for a later fine-tuning: the pairs were learned with none.
    """
    assert loaded.recipe.init is not None
    trained, rates = read_model(vectors), by_key(initial_model(loaded.recipe.init.model, loaded.home).network_config)
    pooling = section_of(EmbeddingConfig, trained.config, trained.path).pooling
    keys: dict[str, object] = {"init.model": str(vectors.resolve()), "init.few_shot": False, "init.train": "head"}
    keys |= {key: rates[key.removeprefix("network.")] for key in rates_among(inherited_keys(loaded))}
    if loaded.origins.get("init.classifier.pooling", "default") == "default":
        keys["init.classifier.pooling"] = pooling if pooling in _POOLINGS else "mean"
    return keys
