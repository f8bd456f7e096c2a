"""Fields whose type names all the values they may have: checked where a configuration is made in Python too."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from atento.errors import RecipeError, nearest


def check_choices(config: Any, place: str = "") -> None:
    """Raises RecipeError: a field of this dataclass is typed `Literal[...]` and holds none of these."""
    for name, known in _choices(config.__class__).items():
        value = getattr(config, name)
        if value not in known:
            raise RecipeError(f"`{place}{name}` cannot be {value!r}{nearest(str(value), list(map(str, known)))}")


@cache
def _choices(kind: type) -> dict[str, tuple[Any, ...]]:
    """The fields of a dataclass that are typed so, each with its values; `| None` is one more."""
    hints = get_type_hints(kind)
    found = {}
    for field in fields(kind):
        parts = [part for part in (hints[field.name], *get_args(hints[field.name])) if get_origin(part) is Literal]
        if parts:
            more = (None,) if type(None) in get_args(hints[field.name]) else ()
            found[field.name] = (*get_args(parts[0]), *more)
    return found


class OneOf:
    """Marks a text field whose values are the keys of a table: `Annotated[str, OneOf(TABLE)]`. The table may grow."""

    def __init__(self, table: Mapping[str, object]) -> None:
        self.table = table

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.table)}
