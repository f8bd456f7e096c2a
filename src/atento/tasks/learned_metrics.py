"""Learned metrics: the row of each, which makes it of a loaded model, and what calls them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from atento.errors import UsageError, nearest
from atento.metrics.learned_table import LEARNED, check_inputs, learned_name, learned_score
from atento.metrics.ngrams import Floats
from atento.metrics.score import Score
from atento.metrics.text import References, reference_streams
from atento.metrics.utilities import Utility
from atento.tasks.bert_score import BertScore
from atento.tasks.comet_metrics import Comet, CometKiwi


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
