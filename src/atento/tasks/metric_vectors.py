"""The vectors of texts that a learned metric compares: each text is read once, in batches of like length."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.tasks.length_batching import run_in_batches
from atento.tasks.task_model import load_for_tasks
from atento.tasks.text_embedding import token_rows
from atento.text.lengths import pad_batch

Vectors = NDArray[np.float32]
_MOST = 256 << 20  # bytes of vectors that are kept


class TextReader:
    """A model that reads texts for a metric.

    Attributes:
        model: the model.
        settings: what changes the score, in one line.
        batch_tokens: tokens of a batch, padding included; a CPU computes several batches at a time.
    """

    settings, batch_tokens = "", 4096

    def __init__(self, folder: str, device: str = "auto") -> None:
        """Load the model of a folder; arguments and errors as in `atento.load`."""
        self.model = load_for_tasks(folder, device)
        if self.model.words is not None:
            raise CapabilityError(f"{folder} reads words, and learned metrics compare texts by their tokens")
        self.config = self.model.network.config
        self._kept: dict[str, Vectors] = {}

    def ids(self, texts: Sequence[str], longest: int | None = None) -> list[list[int]]:
        """The ids of texts with special tokens; longer texts are cut, with a warning."""
        return token_rows(self.model, texts, trained=self.model.trained_length, max_len=longest)

    def read(self, ids: Tensor, token_mask: Tensor) -> list[Vectors]:
        """What is kept of each text of a batch: ids (B,L), token mask (B,L)."""
        raise NotImplementedError

    def vectors(self, texts: Sequence[str]) -> Mapping[str, Vectors]:
        """What is kept of each text, by text; it is read if it was not before."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        self._kept |= zip(new, self.read_all(self.ids(new))) if new else ()
        found = {text: self._kept[text] for text in texts}
        if sum(vectors.nbytes for vectors in self._kept.values()) > _MOST:
            self._kept = found
        return found

    @torch.inference_mode()
    def read_all(self, rows: Sequence[Sequence[int]]) -> list[Vectors]:
        """What `read` gives for each row of ids."""
        device = next(self.model.network.parameters()).device
        results = [np.zeros((0, self.config.d_model), dtype=np.float32)] * len(rows)  # of a row without tokens

        def read(batch: list[int]) -> list[Vectors]:
            padded, real = pad_batch([rows[row] for row in batch], self.config.pad_id)
            return self.read(torch.from_numpy(padded).to(device), torch.from_numpy(real).to(device))

        for row, vectors in run_in_batches(list(map(len, rows)), self.batch_tokens, read, self.model.network):
            results[row] = vectors
        return results
