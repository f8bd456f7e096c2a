"""How the outputs of one text were searched for: written by a model as always, with the trace of the search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from atento.config.decoding import DecodingOptions
from atento.decoding.trace import Trace
from atento.tasks.writing import WrittenText

if TYPE_CHECKING:
    from atento.model import Model


def traced(
    model: Model, text: str, *, task: str, n_best: int | None = None, row: int = 0, **options: Unpack[DecodingOptions]
) -> tuple[list[WrittenText], Trace]:
    """The outputs for a text, those that the model gives without a trace, and what the search for them considered.

    Args:
        text: a source, or a prompt. A blank source is not searched: its trace has no runs.
        task: "translation", "summarization" or "language-modeling".
        n_best, row: as in `Model.translations`. options: as in `Model.translate`.

    Raises:
        CapabilityError: the model does not do that task. UsageError: an option that is wrong or has no effect.
    """
    tokenizer = model._tokenizer().target
    trace = Trace(name=lambda token: tokenizer.tokens([token])[0])
    (outputs,) = model._written(task, [text], n_best, row, options, trace)
    return outputs, trace
