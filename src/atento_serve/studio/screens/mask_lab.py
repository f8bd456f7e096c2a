"""The screen Masks: any mask of the library as a matrix, from code, from painted cells, or from a model."""

import numpy as np
from torch import Tensor

from atento.attention.masks import Mask
from atento.base.errors import CapabilityError, UsageError
from atento.inspection.figures.mask import mask_text
from atento.networks import Decoder, Encoder, EncoderDecoder, Network
from atento.networks.stack.stack import Stack
from atento_serve.http.errors import wrong_field
from atento_serve.http.fields import Fields, Row
from atento_serve.studio.mask_code import mask_of, painted
from atento_serve.studio.shelf import Function, Shelf, Values
from atento_serve.studio.tiles import tile

LARGEST, MOST_PAINTED, MOST_MATRICES = 128, 1000, 64


class MaskFields(Fields):
    """A mask: its `code`, with the `paint`ed pairs (query, key) turned over, or that of a layer of a `model`.

    `queries` and `keys` are the lengths; `row` and `head` choose one of its matrices.
    """

    code: str = "causal()"
    paint: Row[Row[int]] | None = None
    model: str | None = None
    kind: str | None = None
    layer: int = 0
    queries: int = 12
    keys: int | None = None
    row: int = 0
    head: int = 0


def _mask(shelf: Shelf, fields: MaskFields) -> tuple[Values, bytes]:
    n_keys = fields.queries if fields.keys is None else fields.keys
    for name, value in (("queries", fields.queries), ("keys", n_keys)):
        if not 1 <= value <= LARGEST:
            raise wrong_field(f"/{name}", f"`{name}` must be from 1 to {LARGEST}: got {value}")
    code = ""
    if fields.model is not None and fields.kind is not None:
        mask = _of_model(shelf.model(fields.model).network, fields.kind, fields.layer)
    else:
        code, mask = fields.code, mask_of(fields.code)
        if fields.paint:
            code = _painted(fields, mask, n_keys)
            mask = mask_of(code)
    matrix = _matrix(mask, fields, n_keys)
    about = {
        "code": code,
        "name": mask.name,
        "ahead": mask.max_ahead,
        "caches": mask.may_cache,
        "batch": mask.batch,
        "heads": mask.heads,
        "text": mask_text(matrix.numpy()),
        "open": int(matrix.sum()),
        "empty": int((~matrix.any(dim=-1)).sum()),
    }
    return tile(matrix.numpy().astype(np.float32), "u8", **about)  # a byte a cell


def _matrix(mask: Mask, fields: MaskFields, n_keys: int) -> Tensor:
    """The matrix (T,S) of one row and head.

    Raises:
        UsageError: the mask is for other lengths. ServiceError: there is no such row or head.
    """
    if mask.batch * mask.heads > MOST_MATRICES:
        raise UsageError(f"a mask may have {MOST_MATRICES} matrices here: got {mask.batch} rows of {mask.heads} heads")
    for name, value, count in (("row", fields.row, mask.batch), ("head", fields.head, mask.heads)):
        if not 0 <= value < count:
            raise wrong_field(f"/{name}", f"`{name}` must be from 0 to {count - 1}: got {value}")
    try:
        return mask.dense(fields.queries, n_keys)[fields.row, fields.head]
    except (ValueError, IndexError, RuntimeError) as error:
        raise UsageError(f"the mask does not fit these lengths: {error}") from None


def _painted(fields: MaskFields, mask: Mask, n_keys: int) -> str:
    """The code with each painted pair turned over."""
    pairs = fields.paint or []
    if len(pairs) > MOST_PAINTED:
        raise wrong_field("/paint", f"at most {MOST_PAINTED:,} pairs are painted: got {len(pairs):,}")
    before = _matrix(mask, fields, n_keys)
    offset = n_keys - fields.queries  # query i stands at key S - T + i
    sides: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for pair in pairs:
        if len(pair) != 2 or not (0 <= pair[0] < fields.queries and 0 <= pair[1] < n_keys):
            raise wrong_field("/paint", f"a painted pair is a query and a key of the matrix: got {pair[:3]}")
        sides[bool(before[pair[0], pair[1]])].append((pair[0] + offset, pair[1]))
    if offset < 0:
        raise UsageError("cells are painted where there are at least as many keys as queries")
    return painted(fields.code, *sides)


def _of_model(network: Network, kind: str, layer: int) -> Mask:
    """The mask that the stack of a layer passes on. Raises CapabilityError, UsageError: no such attention or layer."""
    stacks: dict[str, Stack] = {}
    if isinstance(network, Encoder | Decoder):
        stacks = {"encoder" if isinstance(network, Encoder) else "decoder": network.stack}
    elif isinstance(network, EncoderDecoder):
        stacks = {"encoder": network.encoder, "decoder": network.decoder}
    if kind not in stacks:
        raise CapabilityError(f"this model has no masks of kind {kind[:40]!r}: it has {', '.join(stacks) or 'none'}")
    if not 0 <= layer < stacks[kind].n_layers:
        raise UsageError(f"`layer` must be from 0 to {stacks[kind].n_layers - 1}: got {layer}")
    return stacks[kind].masks[layer]


FUNCTIONS: dict[str, Function] = {"mask": (MaskFields, _mask)}
