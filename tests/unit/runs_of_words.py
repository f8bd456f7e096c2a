"""Small texts of a few words, of given lengths, to train on for a moment."""

from collections.abc import Sequence
from pathlib import Path

WORDS = ("um", "dois", "sol", "lua", "mar", "rio", "pedra", "vento")


def write_texts(path: Path, lengths: Sequence[int]) -> None:
    """A line a text, of so many words each."""
    lines = [" ".join(WORDS[(n + k) % len(WORDS)] for k in range(length)) for n, length in enumerate(lengths)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
