"""The screen Why: how much each word adds to a prediction, by four methods."""

from typing import Any

from atento.config.tables.verbs import EXPLANATIONS
from atento_serve.engine.verbs import verbs_of
from atento_serve.studio.reasons import unless_one_of
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, masked_text

_VERBS = {"classify", "tag", "answer", "similarity", "translate", "summarize", "generate", "fill"}


class WhyFields(TextFields):
    """A text, a method, and another prediction as the target."""

    method: str = EXPLANATIONS[0]


_NOTHING = "This model predicts nothing that words could be held to account for."
why_not = unless_one_of(_VERBS, "predicts_nothing", _NOTHING)


def _explain(shelf: Shelf, fields: WhyFields) -> Values:
    """The explanation as `Explanation.to_dict` has it."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text, fields.second)
    verb = next((verb for verb in verbs_of(model) if verb in _VERBS), None)
    text: str | tuple[str, str] = masked_text(model, fields.text, fields.spans or []) if verb == "fill" else fields.text
    if verb == "answer":
        text = (fields.second, fields.text)
    elif fields.second:
        text = (fields.text, fields.second)
    options: Any = {"target": fields.target} if fields.target else {}
    return model.explain(text, fields.method, verb=verb, **options).to_dict()


FUNCTIONS: dict[str, Function] = {"explain": (WhyFields, _explain)}
