"""The screen Classify and tag: the labels of a text or of two, or those of its words."""

from atento.tasks.classification import classifications
from atento.tasks.tagging import Entity, tag_words
from atento_serve.engine.verbs import verbs_of
from atento_serve.studio.reasons import unless_one_of
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields

why_not = unless_one_of({"classify", "tag"}, "no_labels", "This model gives no labels to texts or words.")


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


FUNCTIONS: dict[str, Function] = {"labels": (TextFields, _labels)}
