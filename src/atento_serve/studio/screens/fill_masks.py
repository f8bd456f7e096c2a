"""The screen Fill: what a masked model expects in the place of a word."""

from atento_serve.http.fields import bounded
from atento_serve.studio.reasons import unless_one_of
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, masked_text


class MaskFields(TextFields):
    """A text, the words of it that are masked, and how many candidates are wanted."""

    top: int = 8


why_not = unless_one_of({"fill"}, "fills_nothing", "This model predicts no masked tokens.")


def _fill(shelf: Shelf, fields: MaskFields) -> Values:
    """The masked text and its candidates."""
    model = shelf.model(fields.model)
    bounded("top", fields.top, 1, 50)
    text = masked_text(model, fields.text, fields.spans or [])
    shelf.check_text(model, text)
    candidates = model.fill(text, top=fields.top)
    return {"masked": text, "candidates": [[one.token, one.probability, one.text] for one in candidates]}


FUNCTIONS: dict[str, Function] = {"fill": (MaskFields, _fill)}
