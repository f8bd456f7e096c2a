"""What a run tunes: rates of dropout, warm-up, adapters on the network, the weights to train, and how many they are."""

from dataclasses import replace

from atento.config.reading.initial_keys import INHERITED, inherited, rates_among
from atento.config.reading.loading import LoadedRecipe
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import by_key
from atento.config.tables.tasks import TASKS
from atento.networks import parameter_count
from atento.networks.adapters import adapt
from atento.networks.interface import Network
from atento.training.optimizer import TrainedWeights
from atento.training.selected_weights import trained_weights

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
    return trained_weights(network, init, updates_per_epoch, reads_only=reads_only)


def trained_count(network: Network, trained: TrainedWeights) -> int:
    """The number of parameters that are trained at some time."""
    return sum(value.numel() for name, value in network.named_parameters() if name in trained.begins)


def sizes(recipe: Recipe, network: Network, trained: TrainedWeights) -> str:
    """The number of parameters, and of those that are trained if these are fewer."""
    total, learned = parameter_count(network), trained_count(network, trained)
    if learned == total:
        return f"{total:,} parameters"
    chosen = "" if recipe.init is None or recipe.init.train == "all" else f"{recipe.init.train}, "
    return f"{total:,} parameters, {learned:,} trained ({chosen}{learned / total:.1%})"
