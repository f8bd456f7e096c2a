"""Search in own texts: an index of lines by their vectors and their words, and what finds lines in it."""

from typing import Literal

By = Literal["vectors", "words", "both"]  # here, since the service reads it without torch
