"""The screen Fill: what a masked model expects in the place of a word."""

from atento.model import Model
from atento.tasks.task_model import tokenizer_of
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import Row, bounded
from atento_serve.studio.reasons import Reason
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields


class MaskFields(TextFields):
    """A text, the words of it that are masked, as [start, end] in characters, and how many candidates are wanted."""

    spans: Row[Row[int]]
    top: int = 8


def why_not(model: Model) -> Reason | None:
    """Why a model fills no masks."""
    if "fill" not in verbs_of(model):
        return Reason("fills_nothing", "This model predicts no masked tokens.", {})
    return None


def masked_text(model: Model, text: str, spans: list[list[int]]) -> str:
    """A text with a mask of the model in the place of each span [start, end]."""
    mask = tokenizer_of(model).specials.roles.get("mask")
    masked, behind = "", 0
    for number, span in enumerate(sorted(spans)):
        if len(span) != 2 or not behind <= span[0] < span[1] <= len(text):
            raise wrong_field("/spans", f"each span must be [start, end] within the text, apart: got {span}")
        masked += text[behind : span[0]] + (str(mask) if mask else f"<extra_id_{number}>")
        behind = span[1]
    return masked + text[behind:]


def _fill(shelf: Shelf, fields: MaskFields) -> Values:
    """The masked text and its candidates."""
    model = shelf.model(fields.model)
    bounded("top", fields.top, 1, 50)
    text = masked_text(model, fields.text, fields.spans)
    shelf.check_text(model, text)
    candidates = model.fill(text, top=fields.top)
    return {
        "masked": text,
        "candidates": [[one.token, one.probability, one.text] for one in candidates],
    }


FUNCTIONS: dict[str, Function] = {"fill": (MaskFields, _fill)}
