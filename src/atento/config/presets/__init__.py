"""The well-known networks by name, each a configuration of the one stack, with the ids of its released tokenizer.

See docs/notes.md#c16. `presets.bert_base(n_layers=4, dropout=0.0)` is the row "bert-base" with changes.
"""

from collections.abc import Callable

from atento.base.errors import RecipeError, nearest
from atento.config.presets import decoders, encoder_decoders, encoders
from atento.config.sections.network import NetworkConfig

PRESETS: dict[str, Callable[..., NetworkConfig]] = {
    **decoders.TRANSFORMERS,
    **encoders.PRESETS,
    **decoders.PRESETS,
    **encoder_decoders.PRESETS,
}


def preset(name: str, **changes: object) -> NetworkConfig:
    """The preset of that name with some fields changed.

    Raises:
        RecipeError: no such preset, or no such field; the message lists the known ones.
    """
    if name not in PRESETS:
        raise RecipeError(f"unknown preset {name!r}{nearest(name, list(PRESETS))}")
    return PRESETS[name](**changes)


def __getattr__(name: str) -> Callable[..., NetworkConfig]:
    try:
        return PRESETS[name.replace("_", "-")]
    except KeyError:
        raise AttributeError(f"there is no preset {name!r}") from None


def __dir__() -> list[str]:
    return ["PRESETS", "preset", *(name.replace("-", "_") for name in PRESETS)]
