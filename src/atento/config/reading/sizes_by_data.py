"""Choose sizes by the amount of data where a recipe sets none: width, depth, vocabulary, steps. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atento.config.recipe import Recipe
from atento.config.sections.recurrent import CharacterConfig
from atento.config.tables.tasks import TASKS, objectives_of

FITTED = "fitted to the data when training begins"  # the origin of such a value
_SIZES = ("d_model", "d_ff", "n_heads", "n_kv_heads", "d_head", "n_layers", "n_decoder_layers", "norm")
_OF_ELMO = ("elmo.d_cell", "elmo.characters.filters", "elmo.characters.n_highway")
_STEPS = (1_000, 100_000)  # fewest and most
_CHARACTERS = {"word": 6.0, "character": 1.0, "byte": 1.0}  # a token
_OF_SUBWORDS = 3.5


@dataclass(frozen=True)
class Size:
    """Sizes for training text of up to `characters` characters; each task uses those that it has.

    `dropout`, and the rate with a cosine schedule, are for networks that learn to write from a source; None: the usual.
    """

    characters: float
    name: str
    network: Mapping[str, Any]
    word_vector: int
    elmo: Mapping[str, Any]
    pieces: int
    words: int
    epochs: int
    dropout: float | None = None
    rate: float | None = None


# Small networks and vocabularies for little data: Sennrich & Zhang 2019 find so for translation, and high dropout.
# Measured in docs/benchmarks/translation.md.
_SMALL = Size(
    3e6,
    "small",
    {"d_model": 128, "d_ff": 512, "n_heads": 4, "n_layers": 2},
    64,
    {"d_model": 64, "d_cell": 128, "filters": ((1, 16), (2, 32), (3, 64)), "n_highway": 1},
    2_000,
    4_000,
    40,
    rate=2e-3,
)
SIZES = (
    replace(_SMALL, characters=3e5, dropout=0.3),
    _SMALL,
    Size(
        6e7,
        "medium",
        {"d_model": 256, "d_ff": 1024, "n_heads": 4, "n_layers": 3},
        128,
        {"d_model": 128, "d_cell": 512, "filters": ((1, 32), (2, 32), (3, 64), (4, 128)), "n_highway": 1},
        8_000,
        20_000,
        20,
        dropout=0.2,
        rate=2e-3,
    ),
    Size(
        float("inf"),
        "base",
        {"d_model": 512, "d_ff": 2048, "n_heads": 8, "n_layers": 6},
        300,
        {"d_model": 256, "d_cell": 1024, "filters": ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256)), "n_highway": 2},
        16_000,
        50_000,
        10,
    ),
)


_RATE = ["training.learning_rate", "training.schedule"]
_TOGETHER = ("architecture", "family", "recurrent", "elmo", *_SIZES)  # a recipe that sets one sets all of these


def beside(fitted_keys: Sequence[str], origins: Mapping[str, str]) -> list[str]:
    """Return the dotted keys that a recipe may not write either, if training is to choose `fitted_keys`."""
    keys = ["training.epochs"] if "training.steps" in fitted_keys else []
    if any(key.startswith("network.") for key in fitted_keys):
        together = tuple(f"network.{name}." for name in _TOGETHER)
        keys += [key for key in origins if f"{key}.".startswith(together) or _places(key)]
    return [key for key in keys if key not in fitted_keys]


def _places(key: str) -> bool:
    """Whether a key says the layers or heads of a part of the network."""
    of_ours = key.startswith("network.") and not key.startswith("network.features.")
    return of_ours and key.endswith((".layers", ".heads"))


def to_fit(recipe: Recipe, origins: Mapping[str, str]) -> list[str]:
    """Return the dotted keys that training chooses by the amount of data: those that the recipe leaves open.

    The sizes of the network are chosen together or not at all: a recipe that sets one of them, its arrangement or a
    preset sets them all. With `init`, nothing is chosen.
    """
    if recipe.init is not None:
        return []

    def left_open(*keys: str) -> bool:
        parts = [
            where for key, where in origins.items() if f"{key}.".startswith(tuple(f"{prefix}." for prefix in keys))
        ]
        return all(where == "default" or where.startswith("task ") for where in parts)

    keys = []
    # layers and heads are named by number, so there must be so many
    placed = any(_places(key) and where != "default" for key, where in origins.items())
    if not placed and left_open(*(f"network.{name}" for name in _TOGETHER)):
        sizes = ("d_model", "d_ff", "n_heads", "n_layers", "norm", *_OF_ELMO)
        keys += [f"network.{name}" for name in sizes if f"network.{name}" in origins]
        if recipe.tokenizer.path is None and left_open("tokenizer.vocab_size"):
            keys.append("tokenizer.vocab_size")
        if TASKS[recipe.task].writes and recipe.network.architecture == "encoder-decoder":
            keys += ["network.dropout"] if left_open("network.dropout") else []
            keys += _RATE if recipe.training.optimizer == "adamw" and left_open(*_RATE) else []
    if recipe.training.minutes is None and left_open("training.steps", "training.epochs"):
        keys.append("training.steps")
    return keys


def fitted(
    recipe: Recipe, keys: list[str], characters: int, targets: int, examples: int | None = None
) -> tuple[Recipe, str]:
    """Return the recipe with these keys chosen by the amount of training text, and a sentence about the choice.

    Args:
        keys: those of `to_fit`.
        characters: of all the training text. targets: of the side that is learned to be written.
        examples: of a task whose `batch_tokens` counts examples, their number; None: it counts tokens or words.
    """
    size = next(candidate for candidate in SIZES if characters <= candidate.characters)
    chosen = []
    if "network.d_model" in keys:
        recipe = replace(recipe, network=replace(recipe.network, **_network(recipe, size)))
        network = recipe.network
        description = f"a {size.name} network, {network.d_model} wide"
        chosen.append(
            description if network.architecture == "cbow" else f"{description} and {network.n_layers} layers deep"
        )
    if "tokenizer.vocab_size" in keys and recipe.tokenizer.kind not in ("character", "byte"):
        pieces = size.words if recipe.tokenizer.kind == "word" else size.pieces
        recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, vocab_size=pieces))
        chosen.append(f"a vocabulary of {pieces:,}")
    if "network.dropout" in keys and size.dropout is not None:
        recipe = replace(recipe, network=replace(recipe.network, dropout=size.dropout))
        chosen.append(f"dropout {size.dropout:g}")
    if _RATE[0] in keys and size.rate is not None:
        training = replace(recipe.training, learning_rate=size.rate, schedule="cosine")
        recipe = replace(recipe, training=training)
        chosen.append(f"a learning rate of {size.rate:g} that falls as a cosine")
    if "training.steps" in keys:
        recipe = replace(recipe, training=replace(recipe.training, steps=_steps(recipe, size, targets, examples)))
        chosen.append(f"{recipe.training.steps:,} steps")
    names = ["network", "tokenizer.vocab_size", "training.learning_rate", "training.steps"]
    named = [f"`{name}`" for name in names if any(f"{key}.".startswith(f"{name}.") for key in keys)]
    last = f"{', '.join(named[:-1])} or {named[-1]}" if len(named) > 1 else "".join(named)
    return (
        recipe,
        f"fitted to {characters:,} characters of training text: {', '.join(chosen)} (write {last} to choose otherwise)",
    )


def _network(recipe: Recipe, size: Size) -> dict[str, Any]:
    network = recipe.network
    if network.architecture == "cbow":
        return {"d_model": size.word_vector, "n_heads": 4}  # which word vectors have no use for
    if network.elmo is None:
        return {**size.network, "norm": "pre"}
    parts = dict(size.elmo)
    characters = replace(
        network.elmo.characters or CharacterConfig(), filters=parts["filters"], n_highway=parts["n_highway"]
    )
    configured = None if network.elmo.characters is None else characters
    elmo = replace(network.elmo, d_cell=parts["d_cell"], characters=configured)
    return {"d_model": parts["d_model"], "n_layers": 2, "n_heads": 4, "elmo": elmo}


def _steps(recipe: Recipe, size: Size, targets: int, examples: int | None) -> int:
    """As many updates as go through the data `size.epochs` times, in hundreds, within limits."""
    if examples is not None:
        requested = round(size.epochs * examples / recipe.training.batch_tokens, -2)
        return int(min(max(requested, _STEPS[0]), _STEPS[1]))
    tokens = targets / _CHARACTERS.get(recipe.tokenizer.kind, _OF_SUBWORDS)
    tokens *= objectives_of(recipe.task, recipe.objective)[0].target_share
    requested = round(size.epochs * tokens / recipe.training.batch_tokens, -2)
    return int(min(max(requested, _STEPS[0]), _STEPS[1]))
