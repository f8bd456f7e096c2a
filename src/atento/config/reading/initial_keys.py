"""The keys of a recipe beside an initial model: which are left to it, which have no effect. No torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from atento.config.reading.schema import Reader
from atento.config.reading.sizes_by_data import FITTED
from atento.config.recipe import Recipe
from atento.config.sections.initial import InitConfig
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import by_key
from atento.config.tables.head_kinds import HEAD_KINDS
from atento.config.tables.tasks import TASKS

INHERITED = "the initial model, read when training begins"  # the origin of such a value
_RATES = ("dropout", "attention.dropout", "feed_forward.dropout")  # keys of the network
_POSITIONS = "max_len"  # a longer table has rows that the initial model has not learned
_SECTION = "network."

_NOT_WRITTEN = ("default", FITTED)
_OF_A_CLASSIFIER = ("training.seed", "training.precision", "training.keep", "training.baseline")


def check_initial(recipe: Recipe, reader: Reader) -> None:
    """Check what `init` needs of the task, and of the section `tokenizer`. Raises RecipeError: it lacks that."""
    init, spec = recipe.init, TASKS[recipe.task]
    assert init is not None
    if init.classifier is not None and [HEAD_KINDS[head] for head in spec.heads] not in (["class"], ["tag"]):
        rule = f"init.classifier gives each text, or each word, one label: got task {recipe.task}"
        raise reader.refused(rule, "init.classifier.kind", "init")
    if init.few_shot and not any(field.kind == "class" for field in spec.fields):
        raise reader.refused(f"init.few_shot learns from texts with a label: got task {recipe.task}", "init.few_shot")
    given = (origin for key, origin in reader.origins.items() if key.startswith("tokenizer."))
    if init.tokenizer == "own" and all(origin in _NOT_WRITTEN or origin.startswith("task ") for origin in given):
        rule = "init.tokenizer own is that of the section tokenizer, which is missing: give tokenizer a kind and a size"
        raise reader.refused(rule, "init.tokenizer")


def to_inherit(recipe: Recipe, origins: Mapping[str, str]) -> list[str]:
    """Return the dotted keys that training takes from the initial model, if nobody wrote them.

    A default, the default of a task, and the value of a preset are not written.
    """
    if recipe.init is None:
        return []
    keys = [f"{_SECTION}{key}" for key in (*_RATES, _POSITIONS)]
    return [key for key in keys if origins[key] == "default" or origins[key].startswith(("task ", "preset "))]


def inherited(recipe: Recipe, keys: Sequence[str], network: NetworkConfig) -> Recipe:
    """Return the recipe with these keys as in a network."""
    ours, theirs = by_key(recipe.network), by_key(network)
    rates = _changes(*(theirs[rate] if f"{_SECTION}{rate}" in keys else ours[rate] for rate in _RATES))
    positions = {_POSITIONS: network.max_len} if f"{_SECTION}{_POSITIONS}" in keys else {}
    return replace(recipe, network=changed(recipe.network, rates | positions))


def rates_among(keys: Sequence[str]) -> list[str]:
    """Return those of these dotted keys that are rates of dropout."""
    return [key for key in keys if key.removeprefix(_SECTION) in _RATES]


def rates_of(network: NetworkConfig) -> dict[str, object]:
    """Return the rates of dropout of a network as `changed` takes them."""
    return _changes(network.dropout, network.attention.dropout, network.feed_forward.dropout)


def _changes(main: float, attention: float, feed_forward: float) -> dict[str, object]:
    return {"dropout": main, "attention": {"dropout": attention}, "feed_forward": {"dropout": feed_forward}}


def without_effect_on(
    init: InitConfig, written: dict[str, str], no_effect: Callable[[str, str], Iterator[str]]
) -> Iterator[str]:
    """Yield a warning for each key that has no effect beside an initial model; of a longer table of positions, training
    knows.
    """
    own = ["network.heads", "tokenizer.markers", *(f"{_SECTION}{key}" for key in (*_RATES, _POSITIONS, "positions"))]
    if init.new_decoder:  # its depth is the recipe's
        depth = "n_decoder_layers" if "network.n_decoder_layers" in written else "n_layers"
        own += [f"{_SECTION}{depth}", "network.preset", "tokenizer"]
    own += ["tokenizer"] if init.tokenizer == "own" else []
    for key, position in written.items():
        brought = key.startswith(("tokenizer.", "network."))
        brought = brought and not f"{key}.".startswith(tuple(f"{kept}." for kept in own))
        if brought and not position.startswith(("preset ", "task ")):
            yield from no_effect(key, "init names a trained model, which brings its own")
    if init.train != "lora":
        for key in [key for key in written if key.startswith("init.lora.")]:
            yield from no_effect(key, f"init.train is {init.train}, and only lora has adapters")
    if init.classifier is not None or init.few_shot:
        unused = [key for key, position in written.items() if not position.startswith(("preset ", "task "))]
        unused = [
            key for key in unused if key.startswith(("training.", "data.mixing.")) and key not in _OF_A_CLASSIFIER
        ]
        for key in unused:
            pairs = "init.few_shot reads its pairs once, at a rate of its own, and fits a head at once"
            yield from no_effect(key, pairs if init.few_shot else "init.classifier is fitted at once, not by steps")
    if init.train == "head":
        yield from no_effect("init.layer_decay", "init.train is head, which has the whole learning rate")
