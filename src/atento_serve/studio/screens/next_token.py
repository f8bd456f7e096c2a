"""The screen Next token: its distribution before and after each filter, and a token drawn from it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.config.sections.decoding import FILTERS
from atento.config.tables.tasks import task_with
from atento.decoding.source import ends_of
from atento.decoding.trace import Trace
from atento.model import Model
from atento.tasks.model_outputs import generator_of, score, writing_task
from atento.tasks.task_model import tokenizer_of
from atento.text.tokenizer import Tokenizer
from atento_serve.studio.reasons import NO_TOKENIZER, Reason
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.traces import TextFields, last_run

_SHOWN = 40  # bars
_CONTINUES = task_with("generate")


class NextFields(TextFields):
    """A prompt or a source, what is written after it, and the filters of a draw."""

    written: str = ""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int = 1


_NEUTRAL = {name: NextFields.model_fields[name].default for name in FILTERS}


class _Shapes(Trace):
    """A search, and the entropy in nats of each distribution of its last step."""

    def __init__(self, name: Callable[[int], str]) -> None:
        super().__init__(top=_SHOWN, name=name)
        self.entropies: list[float] = []

    def step(self, rows: Sequence[int], ids: Tensor, log_probs: Tensor, totals: Tensor | None = None) -> None:
        super().step(rows, ids, log_probs, totals)
        self.entropies = [_entropy(log_probs)]

    def filter(self, name: str, scores: Tensor) -> None:
        super().filter(name, scores)
        self.entropies.append(_entropy(scores))


def _entropy(scores: Tensor) -> float:
    return float(torch.special.entr(torch.softmax(scores[0].double(), dim=-1)).sum())


def why_not(model: Model) -> Reason | None:
    """Why a model predicts no next token."""
    if model.tokenizer is None:
        return NO_TOKENIZER
    try:
        generator_of(model, writing_task(model), None, {})
    except CapabilityError:
        return Reason("writes_nothing", "This model writes no text.")
    return None


def _next(shelf: Shelf, fields: NextFields) -> Values:
    """The next token: each stage as (name, entropy, tokens left, probabilities of the tokens shown)."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text, fields.written)
    options: Any = {name: getattr(fields, name) for name in FILTERS if getattr(fields, name) != _NEUTRAL[name]}
    tokenizer, text = tokenizer_of(model).target, fields.text
    trace = _Shapes(lambda token: tokenizer.tokens([token])[0])
    before, continues = 0, writing_task(model) == _CONTINUES
    if continues:
        text += fields.written
    elif fields.written:
        options["prefix"], before = fields.written, len(tokenizer.encode(fields.written))
    options |= {"sample": True, "max_new_tokens": before + 1, "seed": fields.seed}
    generator_of(model, writing_task(model), None, options).write([text], 0, trace)
    step = last_run(trace).steps[-1]  # those before it read what is written
    shown = step.distributions[0].tokens
    stages = []
    for one, entropy in zip(step.distributions, trace.entropies, strict=True):
        share = dict(zip(one.tokens, one.probabilities, strict=True))
        probabilities = [share.get(token, 0.0) for token in shown]
        stages.append({"name": one.filter, "entropy": entropy, "left": one.left, "probabilities": probabilities})
    chosen = next(one.token for one in step.candidates if one.alive)
    read = (fields.text if continues else "") + fields.written
    return {
        "ids": shown,
        "tokens": tokenizer.tokens(shown),
        "written": [_written(tokenizer, read, fields.written, token) for token in shown],
        "stages": stages,
        "drawn": {"token": tokenizer.tokens([chosen])[0], "written": _written(tokenizer, read, fields.written, chosen)},
        "ended": chosen in ends_of(model.step_function(), None),
    }


def _written(tokenizer: Tokenizer, read: str, written: str, token: int) -> str:
    """What is written once a token follows; a token alone would lose the space before it."""
    ids = tokenizer.encode(read)
    before, after = tokenizer.decode(ids), tokenizer.decode([*ids, token])
    return written + (after.removeprefix(before) if after.startswith(before) else tokenizer.decode([token]))


def _surprisal(shelf: Shelf, fields: NextFields) -> Values:
    """Of each token of what is written, or of the prompt itself: -log p in nats."""
    model = shelf.model(fields.model)
    shelf.check_text(model, fields.text, fields.written)
    if writing_task(model) == _CONTINUES:
        scores = score(model, "", fields.text + fields.written)
    elif fields.written:
        scores = score(model, fields.text, fields.written)
    else:
        return {"tokens": [], "nats": []}
    return {"tokens": scores.tokens, "nats": [-one for one in scores.log_probs]}


FUNCTIONS: dict[str, Function] = {"next": (NextFields, _next), "surprisal": (NextFields, _surprisal)}
