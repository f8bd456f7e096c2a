"""The screens of Studio, one row each: what they compute, and why a model cannot feed one."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from atento.base.errors import AtentoError
from atento.model import Model
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.errors import ServiceError
from atento_serve.http.fields import Fields, read
from atento_serve.studio.reasons import Reason
from atento_serve.studio.screens import (
    beam_tree,
    compare,
    heads,
    inside_head,
    mask_lab,
    model_cards,
    next_token,
    one_sentence,
    position_plots,
    predictions,
    token_columns,
    tour,
    translate,
)
from atento_serve.studio.shelf import Function, Shelf, Values


@dataclass(frozen=True)
class Screen:
    """A screen.

    Attributes:
        functions: what its page may ask, by name.
        why_not: why a model cannot feed it; None: it can.
        why_not_two: why it and the model beside it cannot.
    """

    functions: Mapping[str, Function] = field(default_factory=dict)
    why_not: Callable[[Model], Reason | None] = lambda model: None
    why_not_two: Callable[[Model, Model], Reason | None] = lambda model, beside: None


SCREENS: dict[str, Screen] = {
    "one": Screen(one_sentence.FUNCTIONS, one_sentence.why_not),
    "models": Screen(model_cards.FUNCTIONS),
    "heads": Screen(heads.FUNCTIONS, heads.why_not),
    "inside": Screen(inside_head.FUNCTIONS, inside_head.why_not),
    "masks": Screen(mask_lab.FUNCTIONS),
    "positions": Screen(position_plots.FUNCTIONS),
    "next": Screen(next_token.FUNCTIONS, next_token.why_not),
    "translate": Screen(translate.FUNCTIONS, translate.why_not),
    "beam": Screen(beam_tree.FUNCTIONS, beam_tree.why_not),
    "fill": Screen(predictions.FILL, predictions.no_masks),
    "labels": Screen(predictions.LABELS, predictions.no_labels),
    "answer": Screen(predictions.ANSWER, predictions.no_answers),
    "why": Screen(predictions.WHY, predictions.no_predictions),
    "tour": Screen(tour.FUNCTIONS),
    "compare": Screen(compare.FUNCTIONS, compare.why_not, compare.why_not_two),
    "tokens": Screen(token_columns.FUNCTIONS),
}


class _ModelFields(Fields):
    model: str
    b: str = ""


def _screens(shelf: Shelf, fields: _ModelFields) -> Values:
    """Why a model cannot feed each screen; null: it can."""
    model = shelf.model(fields.model)
    reasons = {name: screen.why_not(model) for name, screen in SCREENS.items()}
    if fields.b:
        beside = shelf.model(fields.b)
        reasons = {name: reason or SCREENS[name].why_not_two(model, beside) for name, reason in reasons.items()}
    return {name: None if reason is None else reason.shown() for name, reason in reasons.items()}


class _ScreenFields(Fields):
    screen: str


def _offer(shelf: Shelf, fields: _ScreenFields) -> Values:
    """The first model that can feed a screen, for labels rather one that classifies single texts; null: none can."""
    screen, first = SCREENS.get(fields.screen, Screen()), None
    for name in shelf.settings:
        with suppress(AtentoError, ServiceError):  # one that cannot be loaded is no offer
            if screen.why_not(model := shelf.model(name)) is None:
                if fields.screen != "labels" or (verbs_of(model)[0] == "classify" and not model.config.get("pairs")):
                    return {"model": name}
                first = first or name
    return {"model": first}


FUNCTIONS: dict[str, Function] = {
    "screens": (_ModelFields, _screens),
    "offer": (_ScreenFields, _offer),
    **{name: function for screen in SCREENS.values() for name, function in screen.functions.items()},
}


def answer(shelf: Shelf, function: str, arguments: object) -> tuple[object, bytes]:
    """What a function answers.

    Raises:
        ServiceError: 404, there is no such function; 422, a field is missing, unknown or wrong; what it raises.
    """
    if function not in FUNCTIONS:
        raise ServiceError(404, f"Studio has no function {function[:80]!r}", "not_found")
    kind, call = FUNCTIONS[function]
    value = call(shelf, read(kind, arguments))
    return value if isinstance(value, tuple) else (value, b"")
