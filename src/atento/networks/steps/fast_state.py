"""Where outputs stand while they are written fast: one cache for the beams of a text, each seeing its own past."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

ROOM = 32  # tokens that a cache has room for at first; it grows by half
SHARED = 8  # more outputs of one text than this are samples, not beams: each gets a cache of its own


@dataclass
class Cache:
    """Keys and values (N,Hkv,C·w,K) of every layer, room for C tokens of w beams; written by `holder` alone."""

    keys: list[Tensor]
    values: list[Tensor]
    holder: object = None

    def roomier(self, used: int, room: int) -> Cache:
        """The first `used` columns in new memory with room for `room` columns."""
        return Cache([_moved(one, used, room) for one in self.keys], [_moved(one, used, room) for one in self.values])

    def grow(self, used: int, room: int) -> None:
        """As `roomier`, in place of what is here, a layer at a time: no two whole caches are held at once."""
        for part in (self.keys, self.values):
            for layer, old in enumerate(part):
                part[layer] = _moved(old, used, room)

    def of(self, texts: Tensor) -> Cache:
        """Those of some texts, in new memory."""
        return Cache(
            [one.index_select(0, texts) for one in self.keys], [one.index_select(0, texts) for one in self.values]
        )


def _moved(old: Tensor, used: int, room: int) -> Tensor:
    """The first `used` columns of keys or values in new memory with room for `room`."""
    new = old.new_empty(*old.shape[:2], room, old.shape[3])
    new[:, :, :used] = old[:, :, :used]
    return new


@dataclass
class FastState:
    """Where R = N·w outputs of N texts stand, w beams of each; M sources are read by R / M outputs each.

    `seen` (N,w,C·w) is 0 where a beam's own past stands and -inf elsewhere; None where each sees all there is. `starts`
    (R,) are the positions of the first tokens, where they differ.
    """

    cache: Cache
    width: int = 1
    length: int = 0
    seen: Tensor | None = None
    starts: Tensor | None = None
    source: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (M,Hkv,S,K) each
    source_mask: Tensor | None = None  # (M,1,1,S), 0 or -inf
    rows: int = 0
    of_beams: torch.dtype = torch.float32  # what caches that several beams share are kept in

    def select(self, rows: Tensor) -> FastState:
        """Only those outputs, in that order. Beams that change places within their text copy nothing but a mask."""
        count = len(rows)
        width = self.width
        texts = None if count % width else rows.view(-1, width) // width  # (N',w)
        if texts is None or not bool((texts == texts[:, :1]).all()):
            return self._alone().select(rows)
        kept = texts[:, 0]
        same = len(kept) * width == self.rows and bool((kept == torch.arange(len(kept), device=rows.device)).all())
        if self.length == 0 and width == 1 and not same:
            return self._opened(rows)
        made = FastState(
            self.cache, width, self.length, None, None, self.source, self.source_mask, count, self.of_beams
        )
        if not same:
            made.cache = self.cache.of(kept)
            made._read(self, rows)
        if not same or self.cache.holder is self:  # else somebody has gone on from here already: this one will copy
            made.cache.holder = made
        made.starts = None if self.starts is None else self.starts.index_select(0, rows)
        if self.seen is not None:
            made.seen = self.seen.view(self.rows, -1).index_select(0, rows).view(len(kept), width, -1)
        return made

    def _opened(self, rows: Tensor) -> FastState:
        """Before the first token: w equal places in a row for each text are its beams."""
        first = rows[0]
        width = int((rows == first).sum())
        grouped = len(rows) % width == 0 and width <= SHARED
        if grouped:
            places = rows.view(-1, width)
            grouped = bool((places == places[:, :1]).all())
        width = width if grouped else 1
        like = self.cache.keys[0]
        shape = (len(rows) // width, like.shape[1], ROOM * width, like.shape[3])
        count = len(self.cache.keys)
        kept = self.of_beams if width > 1 else like.dtype
        cache = Cache(*[[like.new_empty(shape, dtype=kept) for _ in range(count)] for _ in range(2)])
        made = FastState(cache, width, 0, None, None, self.source, self.source_mask, len(rows), self.of_beams)
        cache.holder = made
        if width > 1:
            made.seen = like.new_full((len(rows) // width, width, ROOM * width), float("-inf"), dtype=kept)
        made.starts = None if self.starts is None else self.starts.index_select(0, rows)
        made._read(self, rows)
        made.source = [(keys.to(kept), values.to(kept)) for keys, values in made.source]
        made.source_mask = None if made.source_mask is None else made.source_mask.to(kept)
        return made

    def _read(self, old: FastState, rows: Tensor) -> None:
        """The sources of those rows of the old state: each once, where all have equally many outputs in a row."""
        if not old.source:
            return
        owners = rows // (old.rows // old.source[0][0].shape[0])  # (R',) of M
        changes = torch.nonzero(owners[1:] != owners[:-1]).flatten() + 1
        count = len(changes) + 1
        if len(rows) % count == 0:
            size = len(rows) // count
            places = owners.view(count, size)
            if bool((places == places[:, :1]).all()):
                owners = places[:, 0]
        if len(owners) == old.source[0][0].shape[0] and bool((owners[:-1] < owners[1:]).all()):
            return  # all of them, in order
        self.source = [(k.index_select(0, owners), v.index_select(0, owners)) for k, v in old.source]
        self.source_mask = None if self.source_mask is None else self.source_mask.index_select(0, owners)

    def _alone(self) -> FastState:
        """The same outputs, each with a cache of its own."""
        if self.width == 1:
            raise ValueError("`rows` must be numbers of rows")
        assert self.seen is not None
        width, used = self.width, self.length * self.width
        own = self.seen[:, :, :used].reshape(self.rows, used) == 0  # (R,t·w): t of them each
        columns = own.nonzero()[:, 1].view(self.rows, self.length)  # in the order of time
        texts = torch.arange(self.rows, device=columns.device) // width

        def taken(old: Tensor) -> Tensor:
            found = old.transpose(1, 2)[texts[:, None], columns]  # (R,t,Hkv,K)
            new = old.new_empty(self.rows, old.shape[1], self.length + ROOM, old.shape[3])
            new[:, :, : self.length] = found.transpose(1, 2)
            return new

        cache = Cache([taken(one) for one in self.cache.keys], [taken(one) for one in self.cache.values])
        made = FastState(
            cache, 1, self.length, None, self.starts, self.source, self.source_mask, self.rows, self.of_beams
        )
        cache.holder = made
        return made

    def make_room(self) -> None:
        """Room for one more token, in memory that nobody else writes."""
        columns, own = self.cache.keys[0].shape[2], self.cache.holder is self
        used, more = self.length * self.width, (self.length + 1) * self.width
        if more > columns:
            columns = max(more, columns + max(columns // 2, self.width) // self.width * self.width)
            if own:
                self.cache.grow(used, columns)
        if not own:
            self.cache = self.cache.roomier(used, columns)
            self.cache.holder = self
        if self.seen is not None and self.seen.shape[2] < columns:
            grown = self.seen.new_full((*self.seen.shape[:2], columns), float("-inf"))
            grown[:, :, :used] = self.seen[:, :, :used]
            self.seen = grown
