"""The screen Why: how much each word adds to a prediction, by four methods."""

from typing import Any

from atento.config.tables.verbs import EXPLANATIONS
from atento.model import Model
from atento_serve.engine.verbs import verbs_of
from atento_serve.studio.reasons import Reason
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, masked_text

_VERBS = ("classify", "tag", "answer", "similarity", "translate", "summarize", "generate", "fill")


class WhyFields(TextFields):
    """A text, a method, and another prediction as the target."""

    method: str = EXPLANATIONS[0]


def _verb(model: Model) -> str | None:
    return next((verb for verb in verbs_of(model) if verb in _VERBS), None)


def why_not(model: Model) -> Reason | None:
    """Why a model predicts nothing that can be explained."""
    if _verb(model) is None:
        return Reason("predicts_nothing", "This model predicts nothing that words could be held to account for.", {})
    return None


def _explain(shelf: Shelf, fields: WhyFields) -> Values:
    """The explanation as `Explanation.to_dict` has it."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text, fields.second)
    verb = _verb(model)
    text: str | tuple[str, str] = masked_text(model, fields.text, fields.spans or []) if verb == "fill" else fields.text
    if verb == "answer":
        text = (fields.second, fields.text)
    elif fields.second:
        text = (fields.text, fields.second)
    options: Any = {"target": fields.target} if fields.target else {}
    return model.explain(text, fields.method, verb=verb, **options).to_dict()


FUNCTIONS: dict[str, Function] = {"explain": (WhyFields, _explain)}
