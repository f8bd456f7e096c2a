"""Learned metrics: BERTScore, the row of each, which makes it of a loaded model, and what calls them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from atento.base.errors import UsageError, nearest
from atento.inference.choose import reader
from atento.metrics.bleu import References, reference_streams
from atento.metrics.mbr_utilities import Utility
from atento.metrics.metric_table import LEARNED, check_inputs, learned_name, learned_score
from atento.metrics.ngrams import Floats
from atento.metrics.score import Score, warn_score
from atento.networks.interface import layer_count
from atento.tasks.comet_metrics import Comet, CometKiwi
from atento.tasks.metric_vectors import TextReader, Vectors

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
            warn_score("idf has no effect: all references are the same text")
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


class SegmentScores(Protocol):
    """What a learned metric computes with its model."""

    settings: str
    """What changes the score, in one line."""

    def rows(self, outputs: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]) -> Floats:
        """The numbers of each output, (N,columns) of its row of `LEARNED`, for reference sets and sources."""

    def utilities(self, candidates: list[str], evidence: list[str], source: str) -> Floats:
        """The score of each candidate with each piece of evidence as the reference, (N,M)."""


READERS: dict[str, Callable[..., SegmentScores]] = {"bertscore": BertScore, "comet": Comet, "comet-kiwi": CometKiwi}
"""Metric -> what computes it, from the folder of its model, a device and options of its own."""


@dataclass(frozen=True)
class Learned:
    """A learned metric with its model: a function of outputs, references and sources.

    Attributes:
        name: of the metric, a key of `LEARNED`.
        folder: that of its model.
        scores: what computes it.
    """

    name: str
    folder: str
    scores: SegmentScores

    def __call__(
        self, predictions: Sequence[str], references: References = (), *, sources: Sequence[str] | None = None
    ) -> Score:
        """The score of outputs: the mean over them, with the score of each in `per_sentence`.

        Args:
            references: a list of texts, or a list of reference sets; none for a metric that reads none.
            sources: the source of each output, for a metric that reads them.

        Raises:
            UsageError: the lengths differ, there is nothing to score, or references or sources are missing.
        """
        streams = reference_streams(predictions, references) if len(references) else []
        check_inputs(self.name, len(streams), sources is not None)
        if sources is not None:
            (sources,) = reference_streams(predictions, sources)
        rows = self.scores.rows(list(predictions), streams, sources or ())
        settings = [f"model:{Path(self.folder).name}", self.scores.settings, f"nrefs:{len(streams)}"]
        return learned_score(self.name, rows.tolist(), "|".join(filter(None, settings)))

    def of_records(self, outputs: Sequence[str], gold: References, *, sources: Sequence[str] | None = None) -> Score:
        """As a call, with references and sources left out where the metric does not read them."""
        row = LEARNED[self.name]
        return self(outputs, gold if row.references else (), sources=sources if row.source else None)


@dataclass(frozen=True)
class LearnedUtility:
    """A learned metric as a utility of minimum Bayes risk."""

    scores: SegmentScores  # what computes it
    # the text of each source or prompt by its ids, for metrics that read it
    sources: dict[tuple[int, ...], str] = field(default_factory=dict)

    def __call__(self, candidates: list[str], evidence: list[str]) -> Floats:
        """The utilities (N,M) for a source that is not known."""
        return self.scores.utilities(candidates, evidence, "")

    def of_input(self, ids: Sequence[int]) -> Utility:
        """The utility for the outputs of one input."""
        return partial(self.scores.utilities, source=self.sources[tuple(ids)])

    def remembering(self, encode: Callable[[Sequence[Any]], list[list[int]]]) -> Callable[..., list[list[int]]]:
        """The function of texts -> ids that also keeps the texts."""

        def encoded(texts: Sequence[Any]) -> list[list[int]]:
            rows = encode(texts)
            self.sources.update(zip(map(tuple, rows), texts))
            return rows

        return encoded


def learned_metric(name: str, folder: str | Path, *, device: str = "auto", **options: Any) -> Learned:
    """The learned metric of that name, computed by the model in a folder.

    Args:
        name: a key of `LEARNED`.
        folder: of the model, as `atento.load` takes it; that of COMET is made by `atento convert`.
        device: "auto", "cpu", "cuda" ...
        options: of the metric: `layer` and `idf` of bertscore.

    Raises UsageError: no such metric, model or option. ModelError: the folder is not that of such a metric.
    """
    if name not in LEARNED:
        raise UsageError(f"unknown learned metric {name!r}{nearest(name, list(LEARNED))}")
    return Learned(name, str(folder), READERS[name](str(folder), device, **options))


def kept_metric(name: str, folder: str, **options: object) -> Learned:
    """As `learned_metric`, loaded once while its files stay as they are: validations read the same references again."""
    files = sorted(Path(folder).iterdir()) if Path(folder).is_dir() else []
    held = tuple((file.name, (about := file.stat()).st_size, about.st_mtime_ns) for file in files)
    return _kept(held, name, folder, **options)


@lru_cache(maxsize=4)
def _kept(held: tuple[object, ...], name: str, folder: str, **options: object) -> Learned:
    return learned_metric(name, folder, device="auto", **options)


def load_learned(metrics: Sequence[str]) -> None:
    """Load the models of the learned metrics among these, before a run computes anything; errors as above."""
    for name in metrics:
        if ":" in name and (learned := learned_name(name)):
            kept_metric(*learned)
