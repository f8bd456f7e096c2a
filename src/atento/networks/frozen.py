"""Hidden vectors of a frozen network, computed once for each text (feature-based transfer; docs/notes.md#f6).

A context variable holds them, as it does for observation, so that no module needs an argument for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.config.sections.network import NetworkConfig
from atento.networks.heads import pool_text


@dataclass
class FeatureCache:
    """The vectors of texts of one network, by a key of their ids."""

    # how a text is reduced to one vector, which alone is stored; None: the vectors of all tokens are
    pooling: str | None
    # key -> (1,D), or (T,D) for the T tokens of the text. D is N times as wide for N layers to mix or join
    rows: dict[bytes, NDArray[np.floating]] = field(default_factory=dict)
    computed: int = 0  # how many texts the network has read
    # of the vectors: "hidden" ones of a network, or "features", the inputs of one (`network.features`). These are
    # normalised, and are stored in 16 bits
    kind: str = "hidden"

    def hidden(
        self, compute: Callable[[], Tensor], ids: Tensor, token_mask: Tensor | None, segment_ids: Tensor | None
    ) -> Tensor:
        """The hidden vectors (B,L,D) of texts, 0 at padding; `compute` gives those that are not stored.

        With a pooling, every token of a text has the pooled vector, which any head reads as it is.
        """
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        keys = [
            _key(ids[row][real[row]], None if segment_ids is None else segment_ids[row][real[row]])
            for row in range(len(ids))
        ]
        if any(key not in self.rows for key in keys):
            self._store(keys, compute().detach().float(), real)
        values = torch.from_numpy(np.concatenate([self.rows[key] for key in keys])).to(ids.device)
        if self.pooling is not None:
            return values.unsqueeze(1).expand(-1, ids.shape[1], -1)
        hidden = values.new_zeros(*ids.shape, values.shape[-1])  # 0 at padding
        hidden[real] = values  # in the order of rows, and of tokens in a row, as they were joined
        return hidden

    def _store(self, keys: list[bytes], hidden: Tensor, real: Tensor) -> None:
        vectors = hidden if self.pooling is None else pool_text(self.pooling, hidden, real).unsqueeze(1)
        for row, key in enumerate(keys):
            if key not in self.rows:
                value = vectors[row][real[row]] if self.pooling is None else vectors[row]
                # a copy: a view would keep the whole batch in memory
                self.rows[key] = np.array(value.cpu().numpy(), np.float16 if self.kind == "features" else np.float32)
                self.computed += 1


_CURRENT: ContextVar[FeatureCache | None] = ContextVar("frozen_vectors", default=None)


def current(kind: str = "hidden") -> FeatureCache | None:
    """The vectors of that kind that networks read now instead of computing them; None: they compute them."""
    vectors = _CURRENT.get()
    return vectors if vectors is not None and vectors.kind == kind else None


@contextmanager
def frozen(vectors: FeatureCache | None) -> Iterator[None]:
    """Let the network that runs here store its hidden vectors, and read the stored ones; None: it has no such."""
    token = _CURRENT.set(vectors)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def common_pooling(config: NetworkConfig) -> str | None:
    """How all heads of a network reduce a text to one vector; None: they differ, or some head reads every token."""
    poolings = {"first" if (pooling := config.pooling(head)) == "pooler" else pooling for head in config.heads}
    return poolings.pop() if len(poolings) == 1 else None


def _key(ids: Tensor, segments: Tensor | None) -> bytes:
    parts = [ids.cpu().numpy().astype("<i4").tobytes()]
    if segments is not None and bool(segments.any()):
        parts.append(segments.cpu().numpy().astype("<i4").tobytes())
    return sha256(b"|".join(parts)).digest()[:16]  # 16 of 32 bytes: no two texts of a corpus share them
