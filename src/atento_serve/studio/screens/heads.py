"""The screen Heads: the weights of any layer and head, and all heads of a kind as small pictures."""

from typing import Literal, cast

import numpy as np

from atento.base.errors import CapabilityError, UsageError
from atento.inference import step_function
from atento.inspection import AttentionRecord, attention_svg
from atento.inspection.ablation import ablate
from atento.inspection.attributions import rolled_out
from atento.inspection.maps import Head
from atento.inspection.page import attention_page
from atento.inspection.word_groups import Matrix, merge_words
from atento.tasks.classification import classifications
from atento.tasks.scoring import score_outputs
from atento_serve.engine.verbs import verbs_of
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import bounded
from atento_serve.studio.reasons import why_no_attention as why_not
from atento_serve.studio.screens.next_token import why_not as why_no_text
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.tiles import Format, tile
from atento_serve.studio.traces import TextFields, trace_of

__all__ = ["FUNCTIONS", "map_of", "record_of", "why_not"]
_THUMB = 32  # squares of a side of a small picture, at most


class MapFields(TextFields):
    """One map: a kind, a layer, and a head or all of them joined; by token or by word."""

    kind: str
    layer: int
    head: int | str
    words: bool = False


class WeightFields(MapFields):
    """A map as numbers."""

    format: Format = "f32"


class LinkFields(MapFields):
    """Links of all heads of a layer (`head` is "each"): of each head the `most` strongest of those above `least`.

    `hide` leaves out special tokens; `row` or `column` asks for the links of that place alone.
    """

    hide: bool = False
    least: float = 0.0
    most: int = 1 << 20
    row: int | None = None
    column: int | None = None


class PictureFields(MapFields):
    """A map as a file."""

    format: Literal["svg", "html"]


class KindFields(TextFields):
    """All heads of a kind."""

    kind: str


def record_of(shelf: Shelf, fields: TextFields) -> AttentionRecord:
    """The weights of a text.

    Raises:
        CapabilityError: the model has none.
    """
    record = trace_of(shelf, fields).record
    if record is None:
        reason = why_not(shelf.model(fields.model))
        raise CapabilityError("there are no weights" if reason is None else reason.text.format(**reason.values))
    return record


def _links(shelf: Shelf, fields: LinkFields) -> tuple[Values, bytes]:
    """Of each head its largest weight and how many links; the rows of all links, their columns, their weights."""
    record = record_of(shelf, fields)
    _map(record, fields, 0)  # refuses a layer that there is not
    sides = [side.groups() if fields.words else side.single_groups() for side in record.sides(fields.kind)]
    bounded("row", fields.row, 0, len(sides[0]) - 1)
    bounded("column", fields.column, 0, len(sides[1]) - 1)
    shown = np.logical_and.outer(*([not (fields.hide and one.special) for one in side] for side in sides))
    wanted = tuple(slice(at, None if at is None else at + 1) for at in (fields.row, fields.column))
    largest, links = list[float](), list[list[Matrix]]()
    for head in range(len(record.layers(fields.kind)[fields.layer])):
        weights = _map(record, fields, head)
        weights = np.where(shown, weights, 0) if fields.hide else weights
        largest.append(float(weights.max(initial=0.0)))
        part = weights[wanted]
        cells = np.flatnonzero(part > fields.least)
        values = part.reshape(-1)[cells]
        if len(cells) > fields.most:
            kept = np.sort(np.argpartition(values, -fields.most)[-fields.most :])
            cells, values = cells[kept], values[kept]
        rows, columns = np.divmod(cells, max(1, part.shape[1]))
        links.append([rows + (fields.row or 0), columns + (fields.column or 0), values])
    parts = [np.concatenate(part).astype(form).tobytes() for part, form in zip(zip(*links), ("<u4", "<u4", "<f4"))]
    return {"largest": largest, "counts": [len(values) for *_, values in links]}, b"".join(parts)


def map_of(record: AttentionRecord, fields: MapFields) -> Matrix:
    """The weights that fields name, which the record checks."""
    return _map(record, fields, _head(fields))


def _map(record: AttentionRecord, fields: MapFields, head: Head) -> Matrix:
    if fields.head == "rollout":
        return _rollout(record, fields)
    if fields.words:
        return record.word_weights(fields.layer, head, fields.kind).weights
    return record.weights(fields.layer, head, fields.kind)


def _rollout(record: AttentionRecord, fields: MapFields) -> Matrix:
    """The rollout up to a layer: what each token of it holds of the tokens of the text."""
    record.weights(fields.layer, "mean", fields.kind)  # refuses a layer that there is not
    if fields.kind == "cross" or (fields.kind == "decoder" and "cross" in record.kinds):
        raise UsageError("attention rollout is of the self-attention of a text that is read alone")
    means = [layer.mean(axis=0, dtype=np.float64) for layer in record.layers(fields.kind)[: fields.layer + 1]]
    joint = rolled_out(means).astype(np.float32)
    rows, columns = (side.groups() for side in record.sides(fields.kind))
    return merge_words(joint, rows, columns) if fields.words else joint


def _head(fields: MapFields) -> Head:
    """The head, which the record checks.

    Raises:
        ServiceError: 422, a number below 0.
    """
    if isinstance(fields.head, int) and (fields.head < 0 or fields.layer < 0):
        raise wrong_field("/head", f"layers and heads count from 0: got {fields.layer} and {fields.head}")
    return cast(Head, fields.head)


def _picture(shelf: Shelf, fields: PictureFields) -> tuple[Values, bytes]:
    record, draw = record_of(shelf, fields), attention_svg if fields.format == "svg" else attention_page
    picture = draw(record, fields.layer, _head(fields), fields.kind, words=fields.words)
    return {"format": fields.format}, picture.encode("utf-8", "backslashreplace")


def _overview(shelf: Shelf, fields: KindFields) -> tuple[Values, bytes]:
    """Every layer and head as a small picture (h,w) of bytes, one behind the other: the strongest link of each block,
    as a share of the strongest of the head; and its statistics.
    """
    record = record_of(shelf, fields)
    layers = record.layers(fields.kind)
    parts, shape = [], (0, 0)
    for layer in layers:
        small = layer
        for axis in (1, 2):
            size = small.shape[axis]
            starts = np.arange(min(_THUMB, size)) * size // min(_THUMB, size)
            small = np.maximum.reduceat(small, starts, axis=axis)
        top = small.max(axis=(1, 2), keepdims=True)  # of each head
        parts.append(np.round(255 * small / np.where(top > 0, top, 1)).astype(np.uint8).tobytes())
        shape = small.shape[1:]
    names = ("entropy", "distance", "special", "first", "previous", "own", "induction")
    rows = [[getattr(one, name) for name in names] for one in record.report(fields.kind)]
    about = {"heads": [len(layer) for layer in layers], "rows": shape[0], "columns": shape[1]}
    about |= {"names": names, "statistics": rows}
    return about, b"".join(parts)


def _ablated(shelf: Shelf, fields: MapFields) -> Values:
    """What the model says with all heads and without one: [name, before, after], probabilities or a log-probability."""
    model, trace = shelf.model(fields.model), trace_of(shelf, fields)
    if not isinstance(fields.head, int) or fields.layer < 0:
        raise wrong_field("/head", f"one head is switched off: got {fields.head!r} of layer {fields.layer}")

    # by the network itself: fast step functions and readers have read its weights, and pass no head to switch off
    def measured() -> dict[str, float]:
        if "classify" in verbs_of(model):
            return {one.name: one.probability for one in classifications(model, [fields.text])[0]}
        if why_no_text(model) is not None:
            raise CapabilityError("a head is switched off where the model classifies or writes: this one does neither")
        # of an encoder-decoder the target, else the text itself
        source, written = (fields.text, trace.target) if trace.target else ("", fields.text)
        steps = step_function(model.network, kind="plain", prompt=model.prompt)
        return {written: score_outputs(model, [source], [written], step_function=steps)[0].total}

    before = measured()
    with ablate(model.network, fields.kind, fields.layer, fields.head):
        after = measured()
    return {"rows": [[name, value, after[name]] for name, value in before.items()]}


FUNCTIONS: dict[str, Function] = {
    "ablated": (MapFields, _ablated),
    "trace": (TextFields, lambda shelf, fields: trace_of(shelf, fields).shown()),
    "weights": (WeightFields, lambda shelf, fields: tile(map_of(record_of(shelf, fields), fields), fields.format)),
    "links": (LinkFields, _links),
    "picture": (PictureFields, _picture),
    "overview": (KindFields, _overview),
}
