"""The screen Heads: the weights of any layer and head, and all heads of a kind as small pictures."""

from typing import Literal, cast

import numpy as np

from atento.errors import CapabilityError
from atento.inspection import AttentionRecord, attention_svg
from atento.inspection.maps import Head
from atento.inspection.page import attention_page
from atento.inspection.word_groups import Matrix
from atento_serve.http.errors import wrong_field
from atento_serve.studio.reasons import why_no_attention as why_not
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.tiles import Format, tile
from atento_serve.studio.traces import TextFields, trace_of

__all__ = ["FUNCTIONS", "record_of", "why_not"]
_THUMB = 32  # squares of a side of a small picture, at most


class MapFields(TextFields):
    """One map: a kind, a layer, and a head or all of them joined; by token or by word."""

    kind: str
    layer: int
    head: int | str
    words: bool = False


class WeightFields(MapFields):
    """A map as numbers; head "each": the maps of all heads, one behind the other, with the scale of each."""

    format: Format = "f32"


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


def _trace(shelf: Shelf, fields: TextFields) -> Values:
    return trace_of(shelf, fields).shown()


def _weights(shelf: Shelf, fields: WeightFields) -> tuple[Values, bytes]:
    record, head = record_of(shelf, fields), _head(fields)
    if fields.head != "each":
        return tile(_map(record, fields, head), fields.format)
    _map(record, fields, 0)  # refuses a layer that there is not
    heads = range(len(record.layers(fields.kind)[fields.layer]))
    tiles = [tile(_map(record, fields, one), fields.format) for one in heads]
    return {**tiles[0][0], "scales": [about["scale"] for about, _ in tiles]}, b"".join(data for _, data in tiles)


def _map(record: AttentionRecord, fields: MapFields, head: Head) -> Matrix:
    if fields.words:
        return record.word_weights(fields.layer, head, fields.kind).weights
    return record.weights(fields.layer, head, fields.kind)


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
    rows = [[one.entropy, one.distance, one.special, one.first, one.previous] for one in record.report(fields.kind)]
    about = {"heads": [len(layer) for layer in layers], "rows": shape[0], "columns": shape[1], "statistics": rows}
    return about, b"".join(parts)


FUNCTIONS: dict[str, Function] = {
    "trace": (TextFields, _trace),
    "weights": (WeightFields, _weights),
    "picture": (PictureFields, _picture),
    "overview": (KindFields, _overview),
}
