"""What a run tunes: rates of dropout, warm-up, adapters on the network, the weights to train, and how many they are."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace

from atento.config.reading.initial_keys import INHERITED, inherited, rates_among
from atento.config.reading.loading import LoadedRecipe
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import by_key
from atento.config.sections.position_scheme import PositionConfig
from atento.config.tables.tasks import TASKS
from atento.networks import parameter_count
from atento.networks.adapters import adapt
from atento.networks.crf import TRANSITIONS
from atento.networks.interface import Network
from atento.training.optimizer import TrainedWeights
from atento.training.selected_weights import trained_weights

# Of the transitions of a crf head, where `training.learning_rate` is lower: at 5e-5, as a pretrained encoder takes, an
# Adam step hardly moves a score of some nats
_TRANSITION_RATE = 0.05
_WIDE = 256  # numbers a token; narrower networks learn at the rate of new ones


def with_inherited(loaded: LoadedRecipe, network: NetworkConfig) -> LoadedRecipe:
    """Return the recipe with the keys that it leaves to the initial model as in a network."""
    keys = inherited_keys(loaded)
    return replace(loaded, recipe=inherited(loaded.recipe, keys, network)) if keys else loaded


def rates_taken(loaded: LoadedRecipe, network: NetworkConfig) -> str:
    """Return a sentence about the rates of dropout that are taken from a network; "" if none are."""
    values = by_key(network)
    rates = (f"`{key}` {values[key.removeprefix('network.')]:g}" for key in rates_among(inherited_keys(loaded)))
    source = "" if loaded.recipe.init is None else loaded.recipe.init.model
    if not rates_among(inherited_keys(loaded)):
        return ""
    return f"dropout as in {source}: {', '.join(rates)} (write them to choose otherwise)"


def with_written_dropout(loaded: LoadedRecipe, network: NetworkConfig) -> NetworkConfig:
    """Return a network of an initial model whose heads drop as `network.dropout` says, where the recipe writes it."""
    if "network.dropout" in inherited_keys(loaded):
        return network
    rate = loaded.recipe.network.dropout
    return replace(network, heads=tuple(replace(h, dropout=rate) if h.dropout else h for h in network.heads))


def positions_without_effect(loaded: LoadedRecipe, was: NetworkConfig, now: NetworkConfig) -> Iterator[str]:
    """Yield a warning of `network.max_len` and `network.positions` that make no table of positions longer."""
    origins, positions = loaded.origins, loaded.recipe.network.positions
    keys = ["network.max_len", *(key for key in origins if key.startswith("network.positions."))]
    not_written = ("default", INHERITED, "preset ", "task ")
    keys = [key for key in keys if not origins.get(key, "default").startswith(not_written)]
    by_a_run = len(keys) > len(fields(PositionConfig)) and positions == NetworkConfig().positions  # it writes all down
    if by_a_run or positions == was.positions:
        keys = [key for key in keys if key == "network.max_len"]
    longer = now.max_len > was.max_len
    for key in keys:
        if not longer and (key != "network.max_len" or loaded.recipe.network.max_len != was.max_len):
            limit = was.position_limit
            why = "learns no positions" if limit is None else f"has {limit:,} learned positions, which stay"
            yield f"{origins[key]}: {key} has no effect: the initial model {why}"
        elif longer and not key.endswith(("max_len", ".kind", ".longer")):
            yield f"{origins[key]}: {key} has no effect: init names a trained model, which brings its own"


def changed_heads(recipe: Recipe, was: NetworkConfig, now: NetworkConfig) -> Iterator[str]:
    """Yield a warning for each head whose output begins with random weights since the labels are others, or whose kind
    changes, and for each head of the recipe that the run has not.
    """
    assert recipe.init is not None
    for head in now.heads:
        named = sorted(was.heads, key=lambda one: one.name != head.name)
        own = next((one for one in named if one.role == head.role), None)
        if own is None:
            continue
        before = own.labels
        if own.kind != head.kind:
            begins = "its transitions begin at 0" if head.kind == "crf" else "its transitions are left out"
            yield f"the {own.kind} head of {recipe.init.model} becomes a {head.kind} head; {begins}"
        if not before or before == head.labels or recipe.init.classifier is not None:
            continue
        by_form = {_plain(label): label for label in before} | {f"{n}": label for n, label in enumerate(before)}
        pairs = {label: by_form.get(_plain(label)) for label in head.labels if label not in before}
        ours, theirs = (", ".join(map(repr, labels[:8])) for labels in (head.labels, before))
        match = ", ".join(f"{other!r} for {label!r}" for label, other in pairs.items())
        way = f"data with {match} keep it" if all(pairs.values()) else "data with its labels alone keep it"
        yield (
            f"the labels of the data are {ours}, those of the {own.kind} head of {recipe.init.model} {theirs}: its "
            f"output begins with random weights; {way}"
        )
    names = {head.name for head in now.heads}
    for head in recipe.network.heads:
        if head.name not in names:
            yield f"network.heads: the head {head.name!r} is left out: nothing in this recipe trains it"


def _plain(label: str) -> str:
    """A label without case, the form of a number, and the word before the number of LABEL_0."""
    return re.sub(r"^label_(?=\d+$)", "", re.sub(r"\.0+$", "", label.casefold()))


def rate_warning(loaded: LoadedRecipe, network: NetworkConfig) -> str:
    """Return a warning of the default learning rate, which spoils a wide trained network; "" if there is no need."""
    init, is_open = loaded.recipe.init, loaded.origins.get("training.learning_rate") == "default"
    if init is None or not is_open or init.few_shot or init.train != "all" or network.d_model < _WIDE:
        return ""
    return (
        f"warning: `training.learning_rate` {loaded.recipe.training.learning_rate:g} is the default, for new networks: "
        f"the whole of a trained network {network.d_model} wide usually takes 2e-5 to 5e-5"
    )


def with_warmup(loaded: LoadedRecipe, warmup: int) -> LoadedRecipe:
    """Return the recipe with an open `training.warmup` as that many updates."""
    recipe = loaded.recipe
    if recipe.training.warmup is not None:
        return loaded
    return replace(loaded, recipe=replace(recipe, training=replace(recipe.training, warmup=warmup)))


def inherited_keys(loaded: LoadedRecipe) -> list[str]:
    """Return the keys that the recipe leaves to the initial model."""
    return [key for key, origin in loaded.origins.items() if origin == INHERITED]


def tune(recipe: Recipe, network: Network, updates_per_epoch: float) -> TrainedWeights:
    """Put the adapters that `init` asks for on the network, and return the weights that the run trains.
    Raises RecipeError: the network does not have what `init` names.
    """
    init = recipe.init
    if init is not None and init.adapters is not None:
        adapt(network, init.adapters)
    reads_only = bool(TASKS[recipe.task].heads) and all(head.side == "encoder" for head in network.config.heads)
    trained = trained_weights(network, init, updates_per_epoch, reads_only=reads_only)
    rate = recipe.training.learning_rate
    factor = max(rate, _TRANSITION_RATE) / rate if rate else 1.0
    learned = {name: factor for name in trained.scales if name.startswith("heads.") and name.endswith(TRANSITIONS)}
    return replace(trained, scales={**trained.scales, **learned})


def sizes(recipe: Recipe, network: Network, trained: TrainedWeights) -> str:
    """The number of parameters, and of those that are trained if these are fewer."""
    total = parameter_count(network)
    learned = sum(value.numel() for name, value in network.named_parameters() if name in trained.begins)
    if learned == total:
        return f"{total:,} parameters"
    chosen = "" if recipe.init is None or recipe.init.train == "all" else f"{recipe.init.train}, "
    return f"{total:,} parameters, {learned:,} trained ({chosen}{learned / total:.1%})"
