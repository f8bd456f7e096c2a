"""The screen Compare: what two models say of the same text, and over which texts they disagree most."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from atento.base.errors import UsageError
from atento.config.sections.decoding import DecodingOptions
from atento.decoding.trace import Trace
from atento.metrics.bleu import chrf
from atento.model import Model
from atento.tasks.classification import classifications
from atento.tasks.model_outputs import generator_of, writing_task
from atento.tasks.task_model import labels_of, tokenizer_of
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import Fields, Row
from atento_serve.studio.reasons import NO_TOKENIZER, Reason, why_no_attention
from atento_serve.studio.screens.heads import MapFields, map_of, record_of
from atento_serve.studio.screens.next_token import why_not as why_no_text
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.tiles import tile
from atento_serve.studio.traces import TextFields, masked_text, trace_of

MOST_TEXTS = 40
_SHOWN = 24  # rows of a distribution
Shares = dict[str | int, float]
Said = Shares | list[tuple[str, str]] | str | float
"""What a model says of a text: shares by name or id, tags of words, a text, or a similarity."""


class TwoFields(Fields):
    """Two models."""

    model: str
    b: str


class SideFields(TextFields):
    """A text for two models, and a way to compare them."""

    b: str
    view: str


class ListFields(SideFields):
    """Texts for two models; `text` is what embeddings of these are compared with, `masked` the `spans` of each."""

    texts: Row[str]
    masked: Row[Row[Row[int]]] | None = None


class DifferenceFields(MapFields):
    """The same map of two models."""

    b: str


@dataclass(frozen=True)
class View:
    """A way to compare two models: whether both can, what one says, and whether its shares are of everything."""

    can: Callable[[Model, Model], bool]
    says: Callable[[Model, SideFields], Said]
    whole: bool = False


class _FirstStep(Trace):
    """Keeps the distribution of the first step of a search."""

    first: Tensor | None = None

    def step(self, rows: Sequence[int], ids: Tensor, log_probs: Tensor, totals: Tensor | None = None) -> None:
        super().step(rows, ids, log_probs, totals)
        self.first = log_probs[0].double() if self.first is None else self.first


def _labels(model: Model, fields: SideFields) -> Said:
    found = classifications(model, [(fields.text, fields.second)] if fields.second else [fields.text])[0]
    return {one.name: one.probability for one in found}


def _tags(model: Model, fields: SideFields) -> Said:
    words: Any = model.tag_words(fields.text)
    return [(one.text, one.label) for one in words]


def _fill(model: Model, fields: SideFields) -> Said:
    found: Any = model.fill(masked_text(model, fields.text, fields.spans or []), top=50)
    return {one.token: one.probability for one in found}


def _next(model: Model, fields: SideFields) -> Said:
    trace, options = _FirstStep(), DecodingOptions(sample=True, max_new_tokens=1, seed=1)
    generator_of(model, writing_task(model), None, options).write([fields.text], 0, trace)
    return {} if trace.first is None else dict(enumerate(trace.first.exp().tolist()))


def _both(verb: str) -> Callable[[Model, Model], bool]:
    return lambda a, b: verb in verbs_of(a) and verb in verbs_of(b)


def _give_the_same_labels(a: Model, b: Model) -> bool:
    return (
        _both("classify")(a, b)
        and labels_of(a.network.config) == labels_of(b.network.config)
        and a.config.get("pairs") == b.config.get("pairs")
    )


def _write(a: Model, b: Model) -> bool:
    return why_no_text(a) is None and why_no_text(b) is None and writing_task(a) == writing_task(b)


VIEWS = {
    "labels": View(_give_the_same_labels, _labels, whole=True),
    "tags": View(_both("tag"), _tags),
    "fill": View(_both("fill"), _fill),
    "next": View(
        lambda a, b: _write(a, b) and tokenizer_of(a).target.fingerprint == tokenizer_of(b).target.fingerprint,
        _next,
        whole=True,
    ),
    "output": View(_write, lambda model, fields: model.traced(fields.text, n_best=1)[0][0].text),
    "similarity": View(
        _both("similarity"), lambda model, fields: model.similarity(fields.text, fields.second or fields.text)
    ),
}


def _attend(a: Model, b: Model) -> bool:
    return why_no_attention(a) is None and why_no_attention(b) is None


def why_not(model: Model) -> Reason | None:
    """Why a model is compared with none."""
    return NO_TOKENIZER if model.tokenizer is None else None


def why_not_two(a: Model, b: Model) -> Reason | None:
    """Why two models cannot be compared."""
    if why_not(b) is None and (_attend(a, b) or any(view.can(a, b) for view in VIEWS.values())):
        return None
    return Reason("nothing_shared", "The two models do nothing alike: choose another one beside.")


def _shared(shelf: Shelf, fields: TwoFields) -> Values:
    """The ways to compare two models, and whether both can."""
    a, b = shelf.model(fields.model), shelf.model(fields.b)
    return {**{name: view.can(a, b) for name, view in VIEWS.items()}, "attention": _attend(a, b)}


def _compared(shelf: Shelf, fields: SideFields) -> Values:
    """What each model says, how far apart that is from 0 to 1, and the divergences in nats where they are known."""
    (view, a, b), rows = _sides(shelf, fields), list[list[object]]()
    if isinstance(a, dict) and isinstance(b, dict):
        names = sorted({*a, *b}, key=lambda name: -max(a.get(name, 0.0), b.get(name, 0.0)))[:_SHOWN]
        tokens = tokenizer_of(shelf.model(fields.model)).target.tokens  # ids of tokens, or names of labels
        rows = [[tokens([n])[0] if isinstance(n, int) else n, a.get(n, 0.0), b.get(n, 0.0)] for n in names]
    elif isinstance(a, list) and isinstance(b, list):
        rows = [[word, tag, other] for (word, tag), (_, other) in zip(a, b)]
    return {
        "rows": rows,
        "said": None if rows else [a, b],
        "apart": apart(a, b),
        "divergences": [_divergence(a, b), _divergence(b, a)] if view.whole else None,
    }


def _disagreements(shelf: Shelf, fields: ListFields) -> Values:
    """Of each text how far apart the two models are, and in short what each says."""
    if not 1 <= len(fields.texts) <= MOST_TEXTS:
        raise wrong_field("/texts", f"`texts` must be 1 to {MOST_TEXTS} texts: got {len(fields.texts)}")
    found = []
    second = fields.text if fields.view == "similarity" else fields.second  # each text beside the one of the form
    for at, text in enumerate(fields.texts):
        spans = dict(enumerate(fields.masked or [])).get(at)
        about = fields.model_dump(exclude={"texts", "masked"}) | {"text": text, "second": second, "spans": spans}
        _, a, b = _sides(shelf, SideFields(**about))
        found.append([apart(a, b), *(_short(shelf.model(fields.model), one) for one in (a, b))])
    return {"rows": found}


def _sides(shelf: Shelf, fields: SideFields) -> tuple[View, Said, Said]:
    if fields.view not in VIEWS:
        raise wrong_field("/view", f"`view` must be one of {', '.join(VIEWS)}: got {fields.view[:40]!r}")
    view, models = VIEWS[fields.view], [shelf.model(fields.model), shelf.model(fields.b)]
    if not view.can(*models):
        raise UsageError(f"the two models have no {fields.view} in common")
    for model in models:
        shelf.check_text(model, fields.text, fields.second)
    a, b = (view.says(model, fields) for model in models)
    return view, a, b


def apart(a: Said, b: Said) -> float:
    """How far apart two models are, from 0 to 1.

    Of shares the total variation, half the sum of |a - b|; of tags the share of words with another tag; of texts
    1 - chrF; of similarities half of |a - b|.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return sum(abs(a.get(name, 0.0) - b.get(name, 0.0)) for name in {*a, *b}) / 2
    if isinstance(a, list) and isinstance(b, list):
        same = sum(x[1] == y[1] for x, y in zip(a, b))
        return 1 - same / max(1, len(a), len(b))  # other words: not the same
    if isinstance(a, str) and isinstance(b, str):
        return 0.0 if a == b else 1 - chrf([b], [a]).value / 100
    return abs(a - b) / 2 if isinstance(a, float) and isinstance(b, float) else 1.0


def _divergence(p: Said, q: Said) -> float | None:
    """KL(p, q) in nats; None: it is infinite."""
    if not (isinstance(p, dict) and isinstance(q, dict)) or p.keys() != q.keys():
        return None
    if any(p[name] > 0 and q[name] == 0 for name in p):
        return None
    return sum(share * math.log(share / q[name]) for name, share in p.items() if share > 0)


def _short(model: Model, said: Said) -> str:
    if isinstance(said, dict):
        name = max(said, key=lambda name: said[name])
        return f"{tokenizer_of(model).target.tokens([name])[0] if isinstance(name, int) else name} {said[name]:.3f}"
    if isinstance(said, list):
        return " ".join(f"{word}/{tag}" for word, tag in said if tag != "O") or "O"
    return said if isinstance(said, str) else f"{said:.4f}"


def _difference(shelf: Shelf, fields: DifferenceFields) -> tuple[Values, bytes]:
    """The weights of the first model minus those of the second, which reads the same tokens."""
    target = trace_of(shelf, fields).target
    first = record_of(shelf, fields)
    second = record_of(shelf, TextFields(model=fields.b, text=fields.text, target=target))
    maps = [map_of(record, fields) for record in (first, second)]
    sides = [[side.tokens for side in record.sides(fields.kind)] for record in (first, second)]
    if sides[0] != sides[1]:
        raise UsageError("the two models split this text into different tokens: their weights have no cells in common")
    difference = maps[0] - maps[1]
    return tile(difference, "f32", mean=float(np.abs(difference).mean()))


FUNCTIONS: dict[str, Function] = {
    "shared": (TwoFields, _shared),
    "compared": (SideFields, _compared),
    "disagreements": (ListFields, _disagreements),
    "difference": (DifferenceFields, _difference),
}
