"""BERTScore: each token of an output finds the most similar token of the reference, and the other way round.

Paper: Zhang et al. 2020, BERTScore: Evaluating Text Generation with BERT.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from atento.inference.choose import reader
from atento.metrics.ngrams import Floats
from atento.metrics.score import doubt
from atento.networks.interface import layer_count
from atento.tasks.text_vectors import TextReader, Vectors

_BLOCK = 1024  # outputs whose tokens' vectors are in memory at once
_SPACED = ("roberta",)  # families whose texts begin with a space, as the authors' program reads them


class BertScore(TextReader):
    """Precision, recall and F1 of the greedy match of tokens by the cosine of their vectors.

    Special tokens are matched but have no weight. A text without other tokens has the score 0.
    """

    def __init__(self, folder: str, device: str = "auto", *, layer: int = -1, idf: bool = False) -> None:
        """As `TextReader`.

        Args:
            layer: the layer whose vectors are compared: 0 is the first, -1 the last.
            idf: weigh each token by its inverse document frequency in the references.
        """
        super().__init__(folder, device)
        self.reader = reader(self.model.network)
        self.layer, self.idf = layer_count(layer, self.config.n_layers) - 1, idf
        self.settings = f"layer:{self.layer}|idf:{'yes' if idf else 'no'}|rescaled:no"

    def rows(self, outputs: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]) -> Floats:
        """Precision, recall and F1 of each output (N,3), each the highest over its references."""
        weights = self._weights([text for texts in references for text in texts])
        best = np.full((len(outputs), 3), -np.inf)  # the highest of any number of references
        for begin in range(0, len(outputs), _BLOCK):
            part = slice(begin, begin + _BLOCK)
            texts = list(dict.fromkeys(chain(outputs[part], *(one[part] for one in references))))
            vectors = self.vectors(texts)
            of = {text: (vectors[text], self._of(ids, weights)) for text, ids in zip(texts, self.ids(texts))}
            for theirs in references:
                scores = [_match(*of[ours], *of[right]) for ours, right in zip(outputs[part], theirs[part])]
                best[part] = np.maximum(best[part], scores)
        return best

    def utilities(self, candidates: list[str], evidence: list[str], source: str) -> Floats:
        """The F1 of each candidate with each piece of evidence, (N,M)."""
        ours = [candidate for candidate in candidates for _ in evidence]
        matrix: Floats = self.rows(ours, [evidence * len(candidates)], ())[:, -1].reshape(-1, len(evidence))
        return matrix

    def ids(self, texts: Sequence[str], longest: int | None = None) -> list[list[int]]:
        """As in `TextReader`, without spaces at the ends."""
        start = " " if self.config.family in _SPACED else ""
        return super().ids([text.strip() and start + text.strip() for text in texts], longest)

    def read(self, ids: Tensor, token_mask: Tensor) -> list[Vectors]:
        """The vectors of each text's tokens (T,D), of length 1."""
        hidden = self.reader.features(ids, token_mask=token_mask, layer=self.layer).float()
        unit = torch.nn.functional.normalize(hidden, dim=-1).cpu().numpy()
        return [row[:length].copy() for row, length in zip(unit, token_mask.sum(dim=1).tolist())]

    def _of(self, ids: Sequence[int], weights: Mapping[int, float]) -> Floats:
        """The weights of a text's tokens (T,); without frequencies where all of them are in every reference."""
        found: Floats = np.array([weights.get(token, weights[-1]) for token in ids])  # -1: one that no reference has
        special = () if found.any() else self.ids([""])[0]
        return found if found.any() else np.array([float(token not in special) for token in ids])

    def _weights(self, references: Sequence[str]) -> Mapping[int, float]:
        """The weight of tokens by id; under -1 that of ids which no reference has."""
        if self.idf and len(set(references)) == 1:
            doubt("idf has no effect: all references are the same text")
        if not self.idf or len(set(references)) == 1:
            return dict.fromkeys(self.ids([""])[0], 0.0) | {-1: 1.0}
        count = len(references) + 1
        counts = Counter(chain.from_iterable(map(set, self.ids(references))))
        return {token: math.log(count / (n + 1)) for token, n in counts.items()} | {-1: math.log(count)}


def _match(ours: Vectors, our_weights: Floats, theirs: Vectors, their_weights: Floats) -> tuple[float, float, float]:
    """Precision, recall and F1 of two texts, each of vectors (T,D) and weights (T,)."""
    if not our_weights.sum() or not their_weights.sum():
        return 0.0, 0.0, 0.0
    cosine = ours @ theirs.T
    precision = float(cosine.max(axis=1) @ our_weights / our_weights.sum())
    recall = float(cosine.max(axis=0) @ their_weights / their_weights.sum())
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both else 0.0
