"""Fill in the defaults of a recipe's task."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atento.config.presets import PRESETS
from atento.config.tasks import TASKS
from atento.config.yaml12 import Written


def with_defaults(tree: Written) -> Written:
    """Return the recipe with the defaults of its task for keys that are not written; their place is `task NAME`."""
    task = tree.value["task"].value
    if not isinstance(task, str):  # reading it later raises the error
        return tree
    defaults = dict(TASKS[task].defaults)
    network = tree.value.get("network")
    if network is not None and (isinstance(network.value, str) or _named(network)):
        network_defaults = defaults.pop("network", {})  # a named network is used as it is ...
        name = network if isinstance(network.value, str) else network.value.get("preset")
        preset = PRESETS[name.value]() if name and isinstance(name.value, str) and name.value in PRESETS else None
        if (
            preset
            and not preset.heads
            and preset.architecture in TASKS[task].architectures
            and "heads" in network_defaults
        ):
            defaults["network"] = {"heads": network_defaults["heads"]}  # ... with the heads that the task needs
            if name is network:
                tree = replace(tree, value=tree.value | {"network": replace(network, value={"preset": network})})
    return _fill(tree, defaults, f"task {task}")


def _named(network: Written) -> bool:
    return isinstance(network.value, dict) and not {"preset", "architecture"}.isdisjoint(network.value)


def _fill(node: Written, defaults: Mapping[str, Any], place: str) -> Written:
    written = dict(node.value or {})
    for key, value in defaults.items():
        here = written.get(key)
        if here is None:
            written[key] = _written(value, place)
        elif isinstance(value, Mapping) and isinstance(here.value, dict):
            written[key] = _fill(here, value, place)
    return replace(node, value=written)


def _written(value: Any, place: str) -> Written:
    if isinstance(value, Mapping):
        value = {key: _written(child, place) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_written(child, place) for child in value]
    return Written(value, place, key_place=place)
