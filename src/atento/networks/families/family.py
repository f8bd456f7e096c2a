"""What a family of released models is: its configuration read both ways, its weight table, its class names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atento.config.network import NetworkConfig
from atento.errors import ModelError, nearest
from atento.networks.families.rows import Row

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
_THEIRS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "silu": "silu"}


@dataclass(frozen=True)
class Family:
    """One `model_type` of the Hugging Face layout.

    `prefix` is what models with a head put before the names of their base; `read` and `write` translate the
    configuration (`read` also sees which tensors there are: they decide the heads); `computed` are names, or ends of
    names, of tensors that hold nothing learned; `tied` those that repeat another one.
    """

    model_type: str
    prefix: str
    read: Callable[[Mapping[str, Any], frozenset[str]], NetworkConfig]
    write: Callable[[NetworkConfig], dict[str, Any]]
    rows: Callable[[NetworkConfig], list[Row]]
    computed: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()


def activation_of(name: object, model_type: str) -> Any:
    """Our name for their activation."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ModelError(f"{model_type}: activation {name!r} is not known here{nearest(str(name), list(_ACTIVATIONS))}")
    return _ACTIVATIONS[name]


def their_activation(config: NetworkConfig) -> str:
    """Their name for our activation."""
    return _THEIRS[config.activation]


def first_id(value: object, otherwise: int) -> int:
    """A token id of their configuration: the first of several, or another one where there is none."""
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, int) and value >= 0 else otherwise


def refuse(data: Mapping[str, Any], wanted: Mapping[str, tuple[Any, ...]], model_type: str) -> None:
    """Raises ModelError: a key of their configuration asks for what is not built here."""
    for key, allowed in wanted.items():
        if key in data and data[key] not in allowed:
            raise ModelError(f"{model_type}: `{key}` {data[key]!r} is not built here; known: {allowed[0]!r}")
