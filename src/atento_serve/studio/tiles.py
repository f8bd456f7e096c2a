"""Matrices as raw little-endian numbers, with their shape and scale beside them."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atento_serve.studio.shelf import Values

Format = Literal["u8", "f16", "f32"]


def tile(matrix: NDArray[Any], form: Format, **about: object) -> tuple[Values, bytes]:
    """A matrix (T,S) of values from 0 on as bytes: value = number * `scale`.

    Args:
        form: "u8" counts steps of a 255th of the largest value, and gives what is above 0 one step at least; "f16" and
            "f32" are floats.
        about: further values beside the bytes.
    """
    shape = {"rows": matrix.shape[0], "columns": matrix.shape[1], "format": form}
    if form != "u8":
        return {**shape, "scale": 1.0, **about}, matrix.astype("<f2" if form == "f16" else "<f4").tobytes()
    scale = (float(matrix.max(initial=0.0)) or 1.0) / 255
    steps = np.maximum(np.round(matrix / scale), matrix > 0).astype("<u1")
    return {**shape, "scale": scale, **about}, steps.tobytes()
