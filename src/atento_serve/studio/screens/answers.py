"""The screen Answer: the span of a context that answers a question, and the others that were considered."""

from atento_serve.http.fields import bounded
from atento_serve.studio.reasons import unless_one_of
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields


class QuestionFields(TextFields):
    """A context, which is the text, and a question about it."""

    question: str
    top: int = 5


why_not = unless_one_of({"answer"}, "answers_nothing", "This model answers no questions about a text.")


def _answers(shelf: Shelf, fields: QuestionFields) -> Values:
    """The best answers: [text, start, end, probability], in characters of the context."""
    model = shelf.model(fields.model)
    bounded("top", fields.top, 1, 20)
    shelf.check_text(model, fields.text, fields.question)
    found = model.answer(fields.question, fields.text, n_best=fields.top)
    return {"answers": [[one.text, one.start, one.end, one.probability] for one in found]}


FUNCTIONS: dict[str, Function] = {"answers": (QuestionFields, _answers)}
