"""How the methods of `Model` are called: a text gives one result, a list gives a list; typed for checkers.

A verb is a method that takes a list of texts and returns a list of results. `per_text` makes it take one text as well;
`writes`, `translates` and `continues` do so for methods that write text, whose results depend on `n_best`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, get_args, get_type_hints, overload

from atento.base.errors import UsageError
from atento.config.sections.decoding import DecodingOptions
from atento.data.records.memory import frame_texts, is_frame
from atento.tasks.text_generation import GeneratedText
from atento.tasks.translation_languages import TranslationOptions
from atento.text.kinds import check_texts

P = ParamSpec("P")
R = TypeVar("R")


class Texts(Protocol):
    """Several texts. A `str` is none: its `in` takes texts alone."""

    def __contains__(self, value: object, /) -> bool: ...
    def __getitem__(self, index: int, /) -> str: ...
    def __len__(self) -> int: ...


class PerText(Protocol[P, R]):
    """A method whose result for a text is of type R: text -> R, texts -> list of R."""

    @overload
    def __call__(self, text: str, /, *args: P.args, **options: P.kwargs) -> R: ...
    @overload
    def __call__(self, text: Texts, /, *args: P.args, **options: P.kwargs) -> list[R]: ...


class Writes(Protocol):
    """A method that writes a text for each text; with `n_best`, a list of that many for each."""

    @overload
    def __call__(self, text: str, *, n_best: None = None, **options: Unpack[DecodingOptions]) -> str: ...
    @overload
    def __call__(self, text: Texts, *, n_best: None = None, **options: Unpack[DecodingOptions]) -> list[str]: ...
    @overload
    def __call__(self, text: str, *, n_best: int, **options: Unpack[DecodingOptions]) -> list[str]: ...
    @overload
    def __call__(self, text: Texts, *, n_best: int, **options: Unpack[DecodingOptions]) -> list[list[str]]: ...


class Translates(Protocol):
    """As `Writes`, with `split_sentences` where `n_best` is not given."""

    @overload
    def __call__(
        self, text: str, *, n_best: None = None, split_sentences: bool = False, **options: Unpack[TranslationOptions]
    ) -> str: ...
    @overload
    def __call__(
        self, text: Texts, *, n_best: None = None, split_sentences: bool = False, **options: Unpack[TranslationOptions]
    ) -> list[str]: ...
    @overload
    def __call__(self, text: str, *, n_best: int, **options: Unpack[TranslationOptions]) -> list[str]: ...
    @overload
    def __call__(self, text: Texts, *, n_best: int, **options: Unpack[TranslationOptions]) -> list[list[str]]: ...


class Continues(Protocol):
    """As `Writes`, for a prompt."""

    @overload
    def __call__(self, prompt: str, *, n_best: None = None, **options: Unpack[DecodingOptions]) -> str: ...
    @overload
    def __call__(self, prompt: Texts, *, n_best: None = None, **options: Unpack[DecodingOptions]) -> list[str]: ...
    @overload
    def __call__(self, prompt: str, *, n_best: int, **options: Unpack[DecodingOptions]) -> list[str]: ...
    @overload
    def __call__(self, prompt: Texts, *, n_best: int, **options: Unpack[DecodingOptions]) -> list[list[str]]: ...


def per_text(method: Callable[Concatenate[object, Any, P], Sequence[R]]) -> PerText[P, R]:
    """A method of (self, texts, ...) that also takes one text, and then returns one result.

    Raises, when it is called:
        UsageError: something else than texts. DataError: a text with a NUL character.
    """
    name = list(inspect.signature(method).parameters)[1]

    @wraps(method)
    def call(model: object, *args: Any, **options: Any) -> Any:
        if not args and name not in options:
            raise TypeError(f"{method.__name__}() missing 1 required positional argument: {name!r}")
        value, *arguments = args or (options.pop(name),)
        results = method(model, listed(value), *arguments, **options)
        return results[0] if isinstance(value, str) else results

    call.__signature__ = with_named_options(method)  # type: ignore[attr-defined]
    return cast(PerText[P, R], call)


def with_named_options(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function with its `**options: Unpack[...]` by name, which notebooks complete.

    An option that is not given has the model's value, so its default is shown as `...`.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    options = get_args(get_type_hints(function).get(parameters[-1].name))
    taken = {parameter.name for parameter in parameters}
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
        for name, kind in (get_type_hints(options[0]) if options else {}).items()
        if name not in taken
    ]
    return signature.replace(parameters=[*parameters[:-1], *named])


def writes(method: Callable[..., Sequence[object]]) -> Writes:
    """`per_text` for a method of (self, texts, *, n_best, **options) that returns `strings(...)`."""
    return cast(Writes, per_text(method))


def translates(method: Callable[..., Sequence[object]]) -> Translates:
    """As `writes`, for a method that also takes `split_sentences`."""
    return cast(Translates, per_text(method))


def continues(method: Callable[..., Sequence[object]]) -> Continues:
    """As `writes`, for a method whose texts are prompts."""
    return cast(Continues, per_text(method))


def strings(outputs: Sequence[Sequence[GeneratedText]], n_best: int | None) -> list[object]:
    """The best text of each output, or, with `n_best`, all texts of each."""
    return [[output.text for output in texts] if n_best is not None else texts[0].text for texts in outputs]


def listed(value: object) -> list[str]:
    """A text or texts as a list.
    Raises UsageError: something else than texts. DataError: a text with a NUL character.
    """
    if is_frame(value):
        value = frame_texts(value)
    shape = (0,) if isinstance(value, str) else getattr(value, "shape", (0,))  # texts of NumPy have one too
    if len(shape) != 1:
        how = "; array[:, 0] has the texts of its first column" if len(shape) == 2 else ""
        raise UsageError(f"give a text or a list of texts: got an array of the shape {tuple(shape)}{how}")
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping | Set):  # in no order
        raise UsageError(f"give a text or a list of texts: got {type(value).__name__}")
    texts = [value] if isinstance(value, str) else list(value)
    check_texts(texts)
    return texts
