"""How much each key of a search matters: the share of the variance of the scores that its values explain alone."""

from collections.abc import Sequence
from typing import Any

from atento.config.reading.dumping import scalar_text

_MAX_BINS = 4  # of the values of a range


def importance(values: Sequence[Any], scores: Sequence[float], *, is_range: bool) -> float | None:
    """Return the share of the variance of the scores that the values of one key explain (epsilon squared, Kelley 1935).

    The scores are grouped by value. With g groups of n scores, SSB the sum of squares between the groups and SSW that
    within them, the share is (SSB - (g - 1) SSW / (n - g)) / (SSB + SSW). The second term is what random groups would
    explain; a negative share is given as 0.

    Args:
        values: the value of the key in each trial.
        scores: the score of each trial.
        is_range: whether the values are numbers of a range; more than 4 different ones are sorted into at most 4
            groups of like size, of two scores or more.

    Returns:
        A share from 0 to 1; None: there is one group only, no two scores share a group, or all scores are equal.
    """
    groups = _groups(values, is_range)
    n, labels = len(scores), sorted(set(groups))
    if len(labels) < 2 or n <= len(labels):
        return None
    mean = sum(scores) / n
    between = within = 0.0
    for label in labels:
        members = [score for score, group in zip(scores, groups) if group == label]
        center = sum(members) / len(members)
        between += len(members) * (center - mean) ** 2
        within += sum((score - center) ** 2 for score in members)
    total = between + within
    if not total > 0:
        return None
    return max(0.0, (between - (len(labels) - 1) * within / (n - len(labels))) / total)


def _groups(values: Sequence[Any], is_range: bool) -> list[str]:
    """Return the group of each value."""
    texts = [scalar_text(value) for value in values]
    different = sorted(set(values)) if is_range else []
    if len(different) <= _MAX_BINS:
        return texts
    bins = max(1, min(_MAX_BINS, len(values) // 2))
    ranked = sorted(values)
    # equal values share the group of their first rank
    return [str(ranked.index(value) * bins // len(ranked)) for value in values]
