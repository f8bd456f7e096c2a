"""The base of every section, which checks its values by the types of its fields, and the rules of numbers."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from math import inf
from typing import Annotated, Literal, NamedTuple, get_args, get_origin, get_type_hints

from atento.base.errors import RecipeError, nearest


class Rule(NamedTuple):
    """What a number must do, as a part of its type: `Annotated[int, AT_LEAST_1]`. Null obeys every rule."""

    words: str
    holds: Callable[[float], bool]
    least: float | None = None  # the bounds that a flag of the command line itself refuses to pass
    most: float | None = None


AT_LEAST_0 = Rule("be at least 0", lambda value: value >= 0)
AT_LEAST_1 = Rule("be at least 1", lambda value: value >= 1, 1)
NOT_NEGATIVE = Rule("not be negative", lambda value: value >= 0, 0)
FINITE = Rule("be finite and not negative", lambda value: 0 <= value < inf, 0)
FINITE_ABOVE_0 = Rule("be finite and above 0", lambda value: 0 < value < inf)
ABOVE_0 = Rule("be above 0", lambda value: 0 < value < inf)
BELOW_1 = Rule("lie in [0, 1)", lambda value: 0 <= value < 1)
FROM_0_TO_1 = Rule("lie in [0, 1]", lambda value: 0 <= value <= 1)
ABOVE_0_TO_1 = Rule("lie in (0, 1]", lambda value: 0 < value <= 1)
SHARE = Rule("lie above 0 and be at most 1", lambda value: 0 < value <= 1)

Count = Annotated[int, AT_LEAST_1]
Natural = Annotated[int, NOT_NEGATIVE]
Positive = Annotated[float, FINITE_ABOVE_0]
BelowOne = Annotated[float, BELOW_1]


class Section:
    """The base of the dataclasses that hold a recipe. Raises RecipeError: a value or a number that its type refuses."""

    _paths = "", ""

    def __init_subclass__(cls, path: str = "", choices: str = "") -> None:
        """What stands before a key in messages; `choices`: before one of type `Literal[...]`, if that is another."""
        if path or choices:  # else as in the class that it extends
            cls._paths = path, choices or path

    def __post_init__(self) -> None:
        kind: type = type(self)
        for name, rule in rules_of(kind).items():
            value = getattr(self, name)
            if not isinstance(rule, Rule) and value not in rule:
                close = nearest(str(value), list(map(str, rule)))
                raise RecipeError(f"`{self._paths[1]}{name}` cannot be {value!r}{close}")
            if isinstance(rule, Rule) and value is not None and not rule.holds(value):
                raise RecipeError(f"`{self._paths[0]}{name}` must {rule.words}: got {value}")
        self._check()

    def _check(self) -> None:
        """Check what the types do not say."""


@cache
def rules_of(kind: type) -> dict[str, Rule | tuple[object, ...]]:
    """Return the rules of a section's numbers, and the values of fields of type `Literal[...]`; `| None` adds None."""
    rules: dict[str, Rule | tuple[object, ...]] = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        parts = (hints[field.name], *get_args(hints[field.name]))
        for part in parts:
            rules.update((field.name, mark) for mark in getattr(part, "__metadata__", ()) if isinstance(mark, Rule))
            if get_origin(part) is Literal and int not in parts:  # `Literal["auto"] | int` takes other values
                rules[field.name] = (*get_args(part), *((None,) if type(None) in parts else ()))
    return rules


class OneOf:
    """Marks a text field whose values are the keys of a table: `Annotated[str, OneOf(TABLE)]`. The table may grow."""

    def __init__(self, table: Mapping[str, object]) -> None:
        self.table = table

    def __get_pydantic_json_schema__(self, core: object, handler: object) -> dict[str, object]:
        return {"type": "string", "enum": list(self.table)}
