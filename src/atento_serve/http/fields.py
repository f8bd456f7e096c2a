"""The fields of a request: read by a typed class, refused with a pointer to the field and a plain sentence."""

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, ValidationError, WithJsonSchema, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from atento_serve.http.errors import ServiceError, wrong_field

_MUST = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


class Fields(BaseModel):
    """The fields of one kind of request: no others, and no conversion between types.

    A field that is null is as if it were not there, unless it must be there or is named in `NOT_NULL`: clients send all
    fields of their types.
    """

    NOT_NULL: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name: field.is_required() for name, field in cls.model_fields.items()}
        needed = {name for name, is_needed in known.items() if is_needed} | cls.NOT_NULL
        if cls.model_config["extra"] == "forbid":  # the first one that is refused is enough: there may be many
            unknown = next((name for name in value if name not in known), None)
            value = {name: value[name] for name in [*known, unknown] if name in value}
        return {name: part for name, part in value.items() if part is not None or name in needed}


F = TypeVar("F", bound=Fields)
T = TypeVar("T")


class _FirstWrong(FailFast):
    """Ends at the first item that is wrong; a union of types, as `typing` makes it, asks for its hash."""

    __hash__ = object.__hash__


Row = Annotated[list[T], _FirstWrong()]
"""A list; pydantic would list all of its items that are wrong."""


def read(kind: type[F], value: object, pointer: str = "") -> F:
    """The fields of a request.

    Args:
        kind: their class.
        value: the parsed body, or a part of it.
        pointer: where that part is, for messages.

    Raises:
        ServiceError: 422; names the first wrong field, the rule and what was sent.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0], kind, pointer) from None


def bounded(name: str, value: float | None, least: float, most: float) -> None:
    """Check a number. Raises ServiceError: 422, it is out of its range."""
    if value is not None and not least <= value <= most:
        raise wrong_field(f"/{name}", f"`{name}` must lie between {least:,} and {most:,}: got {value}")


def unsupported(fields: Fields, neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse known fields that the service does not act on, unless their value asks for nothing.

    Args:
        fields: those of the request.
        neutral: field -> values that ask for nothing, besides None.

    Raises:
        ServiceError: 422.
    """
    for name, values in neutral.items():
        value = getattr(fields, name)
        if value is not None and value not in values:
            raise wrong_field(f"/{name}", f"`{name}` is not supported: got {described(value)}")


def described(value: object) -> str:
    """What a JSON value is, in words; short numbers as they are."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"a text of {len(value):,} characters"
    return f"a list of {len(value):,}" if isinstance(value, list) else "an object"


def _refusal(error: ErrorDetails, kind: type[Fields], pointer: str) -> ServiceError:
    path = [str(part) for part in error["loc"]]
    where, name = pointer + "".join(f"/{part}" for part in path), path[-1] if path else ""
    if error["type"] == "missing":
        return wrong_field(where, f"`{name}` is missing")
    if error["type"] == "extra_forbidden":
        known = sorted(field.alias or key for key, field in kind.model_fields.items())
        close = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known)}"
        return wrong_field(where, f"unknown field `{name[:60]}`; {hint}")
    subject = f"`{name}`" if path else "the body"
    if error["type"] == "literal_error":
        return wrong_field(where, f"{subject} must be {error['ctx']['expected']}: got {described(error['input'])}")
    # rules of our own say it themselves
    must = error["msg"] if error["type"] == "field" else _MUST.get(error["type"], "of another type")
    return wrong_field(where, f"{subject} must be {must}: got {described(error['input'])}")


def _must_be(what: str) -> PydanticCustomError:
    return PydanticCustomError("field", what)


def _texts(value: object) -> object:
    if not isinstance(value, str | list):
        raise _must_be("a text or a list of texts")
    for number, item in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(item, str):
            raise _must_be(f"a text or a list of texts (item {number}, counted from 0, is {described(item)})")
    return value


def _prompts(value: object) -> object:
    if isinstance(value, list):
        nested = bool(value) and isinstance(value[0], list)
        rows = value if nested else [value]
        if all(isinstance(row, list) and row and all(type(item) is int for item in row) for row in rows):
            return value
    try:
        return _texts(value)
    except PydanticCustomError:
        raise _must_be("a text, a list of texts, a list of token ids, or a list of such lists") from None


def _terms(value: object) -> object:
    """Each is checked here, since pydantic would list all that are wrong."""
    must, is_form = "an object of texts or lists of texts, as JSON in a form", isinstance(value, str)
    with suppress(ValueError):
        value = from_json(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise _must_be(f"{must}{' (it is no JSON of an object)' if is_form else ''}")
    for term, forms in value.items():
        if not (isinstance(forms, str) or (isinstance(forms, list) and all(isinstance(one, str) for one in forms))):
            raise _must_be(f"{must} (the term {term[:40]!r} has {described(forms)})")
    return value


_TEXT_SCHEMA: dict[str, object] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
Terms = Annotated[
    Any, BeforeValidator(_terms), WithJsonSchema({"type": "object", "additionalProperties": _TEXT_SCHEMA})
]
"""Terms of a glossary: source term -> target term, or a list of allowed forms; in a form it is JSON."""
_IDS: dict[str, object] = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
Texts = Annotated[Any, BeforeValidator(_texts), WithJsonSchema(_TEXT_SCHEMA)]
"""A text or a list of texts."""
Prompts = Annotated[
    object,
    BeforeValidator(_prompts),
    WithJsonSchema({"anyOf": [*_TEXT_SCHEMA["anyOf"], _IDS, {"type": "array", "items": _IDS}]}),
]
"""A text, a list of texts, a list of token ids, or a list of such lists."""


def listed(value: Any) -> list[Any]:
    """`Prompts` or `Texts` as a list of texts or of lists of ids."""
    single = isinstance(value, str) or (bool(value) and isinstance(value[0], int))
    return [value] if single else list(value)
