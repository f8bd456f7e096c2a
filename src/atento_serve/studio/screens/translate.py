"""The screen Translate: the output of a source, the tokens that were as probable, and another beginning."""

from atento.config.sections.decoding import DecodingOptions
from atento.config.tables.tasks import task_with
from atento.model import Model
from atento.tasks.model_outputs import score, writing_task
from atento.tasks.task_model import tokenizer_of
from atento.text.kinds import check_texts
from atento_serve.studio.reasons import Reason
from atento_serve.studio.screens.next_token import why_not as why_no_text
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields

_TOP = 8


class ForcedFields(TextFields):
    """A source, and what the output begins with."""

    prefix: str = ""


def why_not(model: Model) -> Reason | None:
    """Why a model does not write an output for a source."""
    reason = why_no_text(model)
    if reason is None and writing_task(model) == task_with("generate"):
        return Reason("no_source", "This model continues a text: it reads no source.")
    return reason


def _forced(shelf: Shelf, fields: ForcedFields) -> Values:
    """The output that begins so."""
    model = shelf.model(fields.model)
    check_texts([fields.text])
    shelf.check_text(model, fields.text, fields.prefix)
    options: DecodingOptions = {"prefix": fields.prefix} if fields.prefix else {}
    outputs, _ = model.traced(fields.text, n_best=1, **options)
    return {"output": outputs[0].text, "log_prob": outputs[0].hypothesis.log_prob}


def _alternatives(shelf: Shelf, fields: TextFields) -> Values:
    """At each token its log-probability, and the most probable tokens there: [token, log p, the output up to it]."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text, fields.target or "")
    scores = score(model, fields.text, fields.target or "", top=_TOP)
    tokenizer = tokenizer_of(model).target
    texts = [[tokenizer.decode([*scores.ids[:place], one]) for one in ids] for place, ids in enumerate(scores.top_ids)]
    return {
        "tokens": scores.tokens,
        "log_probs": scores.log_probs,
        "total": scores.total,
        "top": [
            [[*one, text] for one, text in zip(row, beginnings, strict=True)]
            for row, beginnings in zip(scores.top, texts, strict=True)
        ],
    }


FUNCTIONS: dict[str, Function] = {"forced": (ForcedFields, _forced), "alternatives": (TextFields, _alternatives)}
