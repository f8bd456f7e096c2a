"""The metrics of text by name."""

from collections.abc import Callable

from atento.errors import UsageError, nearest
from atento.metrics.overlap import f1_bleu_rouge, token_f1
from atento.metrics.rouge import rouge
from atento.metrics.score import Score
from atento.metrics.text import bleu, chrf, exact_match, ter

METRICS: dict[str, Callable[..., Score]] = {
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
    "rouge": rouge,
    "token-f1": token_f1,
    "f1-bleu-rouge": f1_bleu_rouge,
    "exact-match": exact_match,
}


LOWER_IS_BETTER = ("nll", "ter")


def signed(name: str, value: float) -> float:
    """The score with the sign for which higher is better; applied twice it gives the score."""
    return -value if name in LOWER_IS_BETTER else value


def metric_named(name: str) -> Callable[..., Score]:
    """The metric of this name.

    Raises:
        UsageError: there is no such metric; the message lists the metrics.
    """
    if name not in METRICS:
        raise UsageError(f"unknown metric {name!r}{nearest(name, list(METRICS))}")
    return METRICS[name]
