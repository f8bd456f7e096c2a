"""Bits a byte of the held-out stories: of language models, and of an n-gram model of bytes, which they have to beat.

    python -m models.bits LABELS [MODEL ...]

The orders 1 to 8 of the n-gram model are interpolated (Witten and Bell 1991); validation chooses the highest one.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import log, log2
from pathlib import Path

import atento

HIGHEST = 8


def counts(train: bytes, read: bytes, highest: int = HIGHEST) -> dict[bytes, Counter[int]]:
    """What follows each context of `read` in `train`; a context has up to `highest` - 1 bytes."""
    found: dict[bytes, Counter[int]] = {
        read[at - length : at]: Counter() for length in range(highest) for at in range(length, len(read))
    }
    for length in range(highest):
        for at in range(length, len(train)):
            if (following := found.get(train[at - length : at])) is not None:
                following[train[at]] += 1
    return found


def bits(read: bytes, found: dict[bytes, Counter[int]], highest: int = HIGHEST) -> list[float]:
    """Bits a byte of `read` by the models of order 1 to `highest`."""
    sums = [0.0] * highest
    for at, byte in enumerate(read):
        for length, probability in enumerate(_probabilities(read, at, byte, found, highest)):
            sums[length] -= log2(probability)
    return [each / len(read) for each in sums]


def _probabilities(read: bytes, at: int, byte: int, found: dict[bytes, Counter[int]], highest: int) -> Iterator[float]:
    """The probability of a byte by each order, the lowest first."""
    probability = 1 / 256
    for length in range(highest):
        following = found[read[at - length : at]] if length <= at else Counter[int]()
        if following:
            kinds = len(following)
            probability = (following[byte] + kinds * probability) / (following.total() + kinds)
        yield probability


def model_bits(model: str | atento.Model, read: bytes) -> float:
    """Bits a byte by a language model, which reads a chapter as one text, in windows."""
    texts = [text for text in read.decode().split("\n\n") if text.strip()]
    loaded = atento.load(model) if isinstance(model, str) else model
    parts = loaded.perplexity(texts).parts
    return parts["nll"] * parts["tokens"] / log(2) / len(read)


def compared(folder: Path, models: Sequence[str | atento.Model]) -> list[tuple[str, float, float]]:
    """The n-gram model of the best order, then each model: its name, and bits of the validation and test stories."""
    train, *judged = ((folder / f"stories-{part}.txt").read_bytes() for part in ("train", "valid", "test"))
    orders = [bits(read, counts(train, read)) for read in judged]
    best = min(range(HIGHEST), key=orders[0].__getitem__)
    valid, test = (each[best] for each in orders)
    first, last = judged
    rows = [(str(model), model_bits(model, first), model_bits(model, last)) for model in models]
    return [(f"n-grams of order {best + 1}", valid, test), *rows]


def main(arguments: Sequence[str]) -> None:
    """Print the bits of the validation and test stories."""
    for name, valid, test in compared(Path(arguments[0]), arguments[1:]):
        sys.stdout.write(f"{name}: validation {valid:.3f}, test {test:.3f} bits a byte\n")


if __name__ == "__main__":
    main(sys.argv[1:])
