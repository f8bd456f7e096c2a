"""The keys of a recipe that `init` leaves to the initial model: rates of dropout, learned positions. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig, changed
from atento.config.sections.network_parts import by_key

INHERITED = "the initial model, read when training begins"  # the origin of such a value
_RATES = ("dropout", "attention.dropout", "feed_forward.dropout")  # keys of the network
_POSITIONS = "max_len"  # a longer table has rows that the initial model has not learned
_SECTION = "network."


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
