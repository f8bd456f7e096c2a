"""The screens Answer, Fill, Classify and tag, and Why: what a model predicts of a text, and for what words."""

from typing import Any

from atento.config.tables.verbs import EXPLANATIONS
from atento.tasks.classification import classifications
from atento.tasks.tagging import Entity, tag_words
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.fields import bounded
from atento_serve.studio.reasons import unless_one_of
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, masked_text

_EXPLAINED = {"classify", "tag", "answer", "similarity", "translate", "summarize", "generate", "fill"}
no_answers = unless_one_of({"answer"}, "answers_nothing", "This model answers no questions about a text.")
no_masks = unless_one_of({"fill"}, "fills_nothing", "This model predicts no masked tokens.")
no_labels = unless_one_of({"classify", "tag"}, "no_labels", "This model gives no labels to texts or words.")
no_predictions = unless_one_of(
    _EXPLAINED, "predicts_nothing", "This model predicts nothing that words could be held to account for."
)


class QuestionFields(TextFields):
    """A context, which is the text, and a question about it."""

    question: str
    top: int = 5


def _answers(shelf: Shelf, fields: QuestionFields) -> Values:
    """The best answers: [text, start, end, probability], in characters of the context."""
    model = shelf.model(fields.model)
    bounded("top", fields.top, 1, 20)
    shelf.check_text(model, fields.text, fields.question)
    found = model.answer(fields.question, fields.text, n_best=fields.top)
    return {"answers": [[one.text, one.start, one.end, one.probability] for one in found]}


class MaskFields(TextFields):
    """A text, the words of it that are masked, and how many candidates are wanted."""

    top: int = 8


def _fill(shelf: Shelf, fields: MaskFields) -> Values:
    """The masked text and its candidates."""
    model = shelf.model(fields.model)
    bounded("top", fields.top, 1, 50)
    text = masked_text(model, fields.text, fields.spans or [])
    shelf.check_text(model, text)
    candidates = model.fill(text, top=fields.top)
    return {"masked": text, "candidates": [[one.token, one.probability, one.text] for one in candidates]}


def _labels(shelf: Shelf, fields: TextFields) -> Values:
    """The labels of a text with their probabilities; entities and tags of words where the model gives these."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text, fields.second)
    verbs, found = verbs_of(model), dict[str, object]()
    if "classify" in verbs:
        said = classifications(model, [(fields.text, fields.second)] if fields.second else [fields.text])[0]
        found["labels"] = [[one.name, one.probability] for one in said]
    if "tag" in verbs:
        entities, words = model.tag(fields.text), tag_words(model, fields.text)
        found |= {"entities": [_span(one) for one in entities], "words": [_span(one) for one in words]}
    return found


def _span(entity: Entity) -> list[object]:
    return [entity.label, entity.text, entity.start, entity.end, entity.probability]


class WhyFields(TextFields):
    """A text, a method, and another prediction as the target."""

    method: str = EXPLANATIONS[0]


def _explain(shelf: Shelf, fields: WhyFields) -> Values:
    """How much each word adds to a prediction, by four methods: the explanation as `Explanation.to_dict` has it."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text, fields.second)
    verb = next((verb for verb in verbs_of(model) if verb in _EXPLAINED), None)
    text: str | tuple[str, str] = masked_text(model, fields.text, fields.spans or []) if verb == "fill" else fields.text
    if verb == "answer":
        text = (fields.second, fields.text)
    elif fields.second:
        text = (fields.text, fields.second)
    options: Any = {"target": fields.target} if fields.target else {}
    return model.explain(text, fields.method, verb=verb, **options).to_dict()


ANSWER: dict[str, Function] = {"answers": (QuestionFields, _answers)}
FILL: dict[str, Function] = {"fill": (MaskFields, _fill)}
LABELS: dict[str, Function] = {"labels": (TextFields, _labels)}
WHY: dict[str, Function] = {"explain": (WhyFields, _explain)}
