"""Mean and confidence interval over runs with different seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # for 1 to 9 degrees of freedom

Row = dict[str, Any]  # what was measured, by name


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half of the 95 % interval by Student's t; the half interval of a single value is None.

    More than ten values use the t of ten values, which is conservative.
    """
    if len(values) < 2:
        return fmean(values), None
    t = _T_975[min(len(values) - 2, len(_T_975) - 1)]
    return fmean(values), float(t * stdev(values) / len(values) ** 0.5)
